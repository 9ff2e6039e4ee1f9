"""accelrt record: run a program and record what its allocator does into a trace file."""

import argparse
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from accelrt import SnapshotError
from accelrt.core import files
from accelrt.core.printable import size_text
from accelrt.memory.history import compact_form
from accelrt.tools.cli.text import put

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOT_RUN = 127  # as shells have it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "accelrt record [-o FILE] [--stacks {python,all}] -- PROGRAM [ARGUMENT ...]"
    name = "trace.accelrt"
    parser.add_argument("-o", "--output", metavar="FILE", default=name, help=f"default: {name}")
    text = "where each allocation and free comes from: frames of Python, or those of C too; default: none"
    parser.add_argument("--stacks", choices=("none", "python", "all"), default="none", help=text)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="with its arguments")


def run(program: Sequence[str], output: str, stacks: str = "none") -> int:
    """The command.  Returns the program's exit status, 128 and the signal's number where one ended it."""
    words = [*program[1:]] if program[:1] == ["--"] else [*program]
    if not words:
        raise ValueError("no program is given; write accelrt record -- python script.py")
    path = Path(output).absolute()
    check_place(path)
    remove(path)
    began = time.time()
    settings = {"ACCELRT_RECORD": str(path), "ACCELRT_RECORD_STACKS": stacks}
    try:
        status = run_program(words, os.environ | settings)
    except OSError as error:
        advice = f"; write accelrt record -- python {words[0]}" if words[0].endswith(".py") else ""
        put(f"accelrt record: {words[0]} cannot be run: {error.strerror}{advice}", file=sys.stderr)
        return NOT_RUN
    tell(path, began)
    return status


def check_place(path: Path) -> None:
    """Refuses a file that cannot be made, before the program has run for nothing.

    Raises:
        OSError: its folder is not there or lets nobody write, or something else than a file is at its place.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder for the trace", str(path.parent))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the folder of the trace cannot be written", str(path.parent))
    files.check_regular(path)


def remove(path: Path) -> None:
    """Removes the trace of an earlier run, and nothing else.

    Raises:
        ValueError: the file that is there is no trace.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(len(compact_form.MAGIC))
    except FileNotFoundError:
        return
    if first != compact_form.MAGIC:
        raise ValueError(f"{path} is there and is no trace file; it is not written over: name another by -o")
    path.unlink()


def run_program(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a program to its end, and passes on the signals that are meant for it, early ones too.

    A terminal's interruption reaches the program as well, which decides what to do; here it does nothing.

    Raises:
        OSError: the program cannot be run.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: object) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, *FORWARDED)}
    try:
        # A function, which no program inherits, as it would inherit SIG_IGN.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        for each in FORWARDED:
            signal.signal(each, forward)
        child = subprocess.Popen(words, env=environment)
        for number in early:
            child.send_signal(number)
        status = child.wait()
    finally:
        for each, handler in reversed(before.items()):  # SIGINT last: until then nothing is interrupted
            signal.signal(each, handler)
    return status if status >= 0 else 128 - status


def tell(path: Path, began: float) -> None:
    """Says on standard error what was recorded, by the program and by the processes that it started."""
    traces = [path, *sorted(each for each in path.parent.iterdir() if is_beside(each, path, began))]
    lines = [line for line in map(about, traces) if line]
    for line in lines or [f"the program used no device through accelrt, and {path.name} was not written"]:
        put(f"accelrt record: {line}", file=sys.stderr)


def is_beside(each: Path, path: Path, began: float) -> bool:
    """Tells whether a file is the trace of another process of the program: PATH.PID or PATH.PID.NUMBER."""
    number = each.name.removeprefix(f"{path.name}.")
    if number == each.name or not number.replace(".", "0").isdecimal():
        return False
    try:
        return each.stat().st_mtime >= began - 1
    except OSError:  # it went away
        return False


def about(path: Path) -> str:
    """Returns what a trace file has, as a line; empty where it is not there."""
    try:
        with open(path, "rb") as file:
            outline = compact_form.outline(file, str(path))
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return ""
    except (OSError, SnapshotError) as error:
        return str(error)
    lost = f"; the ring lost {outline.missing:,} events before they were written" if outline.missing else ""
    cut = "" if outline.complete else "; the process was stopped before it could end the file"
    return f"{outline.events:,} events in {path} ({size_text(size)}){lost}{cut}"
