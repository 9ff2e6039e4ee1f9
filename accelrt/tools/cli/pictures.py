"""accelrt view, plot and export-trace: what a snapshot of memory shows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from accelrt import memory
from accelrt.core import files
from accelrt.tools.cli.text import human, put

__all__ = ["run"]

MOST_BYTES = 1 << 36  # as memory/history/snapshot_file.py has it
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
    output = Path(given.output or source.with_name(source.name + SUFFIXES[given.command]))
    if output.exists() and output.samefile(source):
        raise ValueError(f"the output {output} is the snapshot itself; name another with -o")
    snapshot = read_snapshot(source)
    if given.command == "view":
        from accelrt.tools.viewer.html_page import write_page

        write_page(snapshot, output, source.name)
    elif given.command == "plot":
        from accelrt.tools.viewer.plots import write_plot

        write_plot(snapshot, output, given.kind, given.device)
    else:
        from accelrt.tools.viewer.chrome_trace import write_trace

        write_trace(snapshot, output, given.largest)
    put(f"{output} ({human(output.stat().st_size)})")
    if given.command == "view" and given.opens:
        import webbrowser

        if not webbrowser.open(output.resolve().as_uri()):
            raise RuntimeError(f"no browser was found; open {output.resolve()} in one")
    return 0


def read_snapshot(path: str | Path) -> dict[str, Any]:
    """Reads a snapshot: what accelrt.memory.load_snapshot reads, and the same dict as JSON.

    Nothing of the file is run.

    Arguments:
        path: str or Path.
    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no snapshot; the text says what was expected.
    """
    files.check_regular(path)  # to open a pipe would wait for its writer
    with open(path, "rb") as file:
        is_json = file.read(1) in (b"{", b"[")
    return read_json(path) if is_json else memory.load_snapshot(path)


def read_json(path: str | Path) -> dict[str, Any]:
    try:
        found = json.loads(files.read(path, MOST_BYTES))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no snapshot: JSON was expected ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no snapshot: an object with 'segments' and 'device_traces' was expected")
    return found
