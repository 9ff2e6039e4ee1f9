"""accelrt view: make one HTML file of a memory snapshot, or tell what it has more than an earlier one.

With --since alone the difference is printed; with -o or --open a page shows it, beside all that is in the
later snapshot.
"""

import argparse
import html
import webbrowser
from pathlib import Path
from typing import Any

from accelrt.memory import compare_snapshots
from accelrt.tools.cli import snapshots
from accelrt.tools.cli.text import put
from accelrt.tools.viewer.html_page import write_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open", action="store_true", dest="opens", help="open it in the browser")
    parser.add_argument(
        "--since",
        metavar="EARLIER",
        help="print what is live in SNAPSHOT and was not in this one, by tag and stack; a page shows it too",
    )
    snapshots.add_arguments(parser, ".html")


def run(snapshot: str, output: str | None, suffix: str, opens: bool, since: str | None) -> int:
    """The command; raises as of snapshots.convert, and RuntimeError where there is no browser."""
    before = None
    if since is not None:
        before, after = (snapshots.read_snapshot(Path(each)) for each in (since, snapshot))
        put(compare_snapshots(before, after).rstrip())
        if output is None and not opens:
            return 0
        suffix = f".since.{Path(since).name}{suffix}"
    title = Path(snapshot).name if since is None else f"{Path(snapshot).name} since {Path(since).name}"

    def write(snapshot: dict[str, Any], path: Path) -> int:
        if output is None:
            refuse_another(path, title)
        return write_page(snapshot, path, title, before)

    page = snapshots.convert(snapshot, output, suffix, write)
    if opens and not webbrowser.open(page.resolve().as_uri()):
        raise RuntimeError(f"no browser was found; open {page.resolve()} in one")
    return 0


def refuse_another(path: Path, title: str) -> None:
    """Refuses to write over a file that nobody named, unless it is an older page of the same snapshot."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        beginning = file.read(8192)
    if f"<title>{html.escape(title)} - accelrt memory</title>".encode("utf-8", "replace") not in beginning:
        raise ValueError(f"{path} is there already, and no page of this snapshot; name another file with -o")
