"""Reading a snapshot, and writing what view, plot and export-trace make of it."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelrt import memory
from accelrt.core import files
from accelrt.core.printable import size_text
from accelrt.tools.cli.text import put

MOST_BYTES = 1 << 36  # of a snapshot in JSON


def add_arguments(parser: argparse.ArgumentParser, suffix: str) -> None:
    """Adds the snapshot, and the file that is made of it: by default one of the same name and suffix."""
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="torch's or accelrt's")
    text = f"default: the snapshot's name and {suffix}"
    parser.add_argument("-o", "--output", metavar=f"OUT{suffix}", help=text)
    parser.set_defaults(suffix=suffix)


def convert(
    snapshot: str, output: str | None, suffix: str, write: Callable[[dict[str, Any], Path], object]
) -> Path:
    """Reads a snapshot, has it written in another form, and says where.  Returns the path.

    Raises:
        OSError, ValueError: the snapshot or the place of the output is no good.
        ImportError: a package that write needs is not installed.
    """
    source = Path(snapshot)
    files.check_regular(source)
    path = Path(output or source.with_name(source.name + suffix))
    if path.exists() and path.samefile(source):
        raise ValueError(f"the output {path} is the snapshot itself; name another with -o")
    write(read_snapshot(source), path)
    put(f"{path} ({size_text(path.stat().st_size)})")
    return path


def read_snapshot(path: Path) -> dict[str, Any]:
    """Reads a snapshot: what accelrt.memory.load_snapshot reads, and the same dict as JSON.

    Nothing of the file is run.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no snapshot; the text says what was expected.
    """
    files.check_regular(path)  # to open a pipe would wait for its writer
    with open(path, "rb") as file:
        if file.read(1) not in (b"{", b"["):
            return memory.load_snapshot(path)
    try:
        snapshot = json.loads(files.read(path, MOST_BYTES))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no snapshot: JSON was expected ({error})") from None
    if not isinstance(snapshot, dict):
        raise ValueError(f"{path} is no snapshot: an object with 'segments' and 'device_traces' was expected")
    return snapshot
