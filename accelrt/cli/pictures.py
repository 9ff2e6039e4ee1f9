"""accelrt view, plot and export-trace: what a snapshot of memory shows."""

from __future__ import annotations

import argparse
from pathlib import Path

from accelrt.cli.text import human
from accelrt.viewer.snapshot_input import read_snapshot

__all__ = ["run"]

SUFFIXES = {"view": ".html", "plot": ".png", "export-trace": ".trace.json"}


def run(given: argparse.Namespace) -> int:
    """A command.  Returns its exit status, 0.

    Arguments:
        given: what main's parser read.
    Raises:
        OSError, ValueError: the snapshot or the place of the output is no good.
        ImportError: plot, and Matplotlib is not installed.
    """
    source = Path(given.snapshot)
    output = Path(given.output or source.with_suffix(SUFFIXES[given.command]))
    if output.exists() and output.samefile(source):
        raise ValueError(f"the output {output} is the snapshot itself; name another with -o")
    snapshot = read_snapshot(source)
    if given.command == "view":
        from accelrt.viewer.html_page import write_page

        write_page(snapshot, output, source.name)
    elif given.command == "plot":
        from accelrt.viewer.plots import write_plot

        write_plot(snapshot, output, given.kind, given.device)
    else:
        from accelrt.viewer.chrome_trace import write_trace

        write_trace(snapshot, output, given.largest)
    print(f"{output} ({human(output.stat().st_size)})")
    if given.command == "view" and given.opens:
        import webbrowser

        if not webbrowser.open(output.resolve().as_uri()):
            raise RuntimeError(f"no browser was found; open {output.resolve()} in one")
    return 0
