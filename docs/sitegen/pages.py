"""Pages that stand elsewhere in the tree, as pages of the site: their links lead to the site's pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
TOP = DOCS.parent
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")

# The site's page below docs/, without its suffix -> the file from the top of the tree.
COPIES = {
    "made/examples": "examples/README.md",
    "made/benchmarks": "benchmarks/RESULTS.md",
    "made/scale": "benchmarks/SCALE.md",
    "made/ablation": "benchmarks/ABLATION.md",
    "made/contributing": "CONTRIBUTING.md",
    "made/tests": "tests/README.md",
    "made/security": "SECURITY.md",
    "made/conduct": "CODE_OF_CONDUCT.md",
    "made/changelog": "CHANGELOG.md",
    "made/glossary": "accelrt/GLOSSARY.md",
    "made/design/map": "accelrt/DESIGN.md",
}
for _path in sorted((TOP / "accelrt").rglob("[A-Z]*.md")):
    _parts = _path.relative_to(TOP / "accelrt").with_suffix("").parts
    if len(_parts) > 1:
        _name = (
            "_".join(_parts[:-1]) if _parts[-1] == "DESIGN" else "_".join((*_parts[:-1], _parts[-1].lower()))
        )
        COPIES[f"made/design/{_name}"] = str(_path.relative_to(TOP))
PAGE_OF = {source: page for page, source in COPIES.items()}


def relinked(text: str, source: Path, page: str) -> str:
    """A page's text with links to files that the site has as pages leading there.

    Arguments:
        source: where the text stands, from the top of the tree.
        page: the site's page, below docs/.
    """

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = os.path.normpath(source.parent / target)
        if path in PAGE_OF:
            path = f"docs/{PAGE_OF[path]}.md"
        elif not path.startswith("docs/") or (TOP / path).is_dir():
            return f"`{path}`" if label in (target, path) else f"{label} (`{path}`)"
        here = os.path.dirname(f"docs/{page}")
        return f"[{label}]({os.path.relpath(path, here)}{anchor})"

    return LINK.sub(replace, text)


def write(docs: Path) -> None:
    """Writes the copies below docs/made; one that says the same is left as it is."""
    wanted = {docs / f"{page}.md": source for page, source in COPIES.items()}
    for path in (docs / "made").rglob("*.md"):
        if path not in wanted:
            path.unlink()
    for path, source in wanted.items():
        page = str(path.relative_to(docs).with_suffix(""))
        text = relinked((TOP / source).read_text(), Path(source), page)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
