"""Sphinx's settings for the site: `python -m sphinx -W -b dirhtml docs OUT` builds it, with accelrt[docs] installed."""

import re
from pathlib import Path

HERE = Path(__file__).parent

project = "accelrt"
author = "the authors of accelrt"
version = release = re.search(r'^version = "(.+)"', (HERE.parent / "pyproject.toml").read_text(), re.M)[1]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"accelrt {version}"
html_copy_source = False
html_show_sphinx = False
