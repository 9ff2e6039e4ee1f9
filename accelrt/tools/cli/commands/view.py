"""accelrt view: a memory snapshot as one HTML file for a browser."""

import argparse
import webbrowser
from pathlib import Path

from accelrt.tools.cli import snapshots
from accelrt.tools.viewer.html_page import write_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open", action="store_true", dest="opens", help="open it in the browser")
    snapshots.add_arguments(parser, ".html")


def run(snapshot: str, output: str | None, suffix: str, opens: bool) -> int:
    """The command; raises as of snapshots.convert, and RuntimeError where there is no browser."""
    title = Path(snapshot).name
    page = snapshots.convert(snapshot, output, suffix, lambda found, path: write_page(found, path, title))
    if opens and not webbrowser.open(page.resolve().as_uri()):
        raise RuntimeError(f"no browser was found; open {page.resolve()} in one")
    return 0
