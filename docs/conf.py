"""Sphinx's settings for the site: `python -m sphinx -W -b dirhtml docs OUT` builds it, with accelrt[docs]."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "accelrt"
author = "the authors of accelrt"
version = release = re.search(r'^version = "(.+)"', (HERE.parent / "pyproject.toml").read_text(), re.M)[1]

extensions = ["myst_parser", "sitegen.extension"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["sitegen"]
myst_enable_extensions = ["colon_fence", "html_image"]
myst_heading_anchors = 3
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
nitpicky = True

html_theme = "furo"
html_title = f"accelrt {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "search_scorer.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

# Asked for by hand, or once a week by a workflow: `-b linkcheck` in place of `-b dirhtml`.
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_workers = 4
linkcheck_ignore = [r"http://(127\.0\.0\.1|localhost)"]  # what `accelrt export` serves
linkcheck_report_timeouts_as_broken = False  # a host that is slow is not one that is gone
