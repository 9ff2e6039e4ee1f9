"""Snapshots written to files and read back, in torch's form or the compact one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from accelrt.core import files
from accelrt.core.process import Opener
from accelrt.errors import SnapshotError
from accelrt.memory.history import compact_form, torch_form
from accelrt.memory.history.memory_history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

FORMATS: dict[str, Callable[[History], Iterable[bytes]]] = {
    "torch": torch_form.written,
    "compact": compact_form.written,
}
TORCH_SUFFIXES = (".pickle", ".pkl")
MOST_BYTES = 1 << 36


def dump_snapshot(path: str | os.PathLike[str], format: str | None = None) -> None:
    """Writes what memory_snapshot and the recorder hold of every device to a file.

    The events are copied in chunks, and no lock of a pool is held while Python runs.  The file appears under
    its name once it is whole, in place of one that was there.

    Arguments:
        path: the file.
        format: "torch", a pickle that pytorch.org/memory_viz and torch's _memory_viz.py open; "compact",
            accelrt's own, smaller and written and read faster; None goes by the name: torch's for .pickle
            and .pkl, else compact.
    Raises:
        ValueError: no such format.
        NotSupportedError: the backend is not accelrt's own pool.
        OSError: the file cannot be written.
    """
    from accelrt.memory.history.snapshots import history_now  # of a process that may only read files

    target = Path(path)
    chosen = format or ("torch" if target.suffix.lower() in TORCH_SUFFIXES else "compact")
    if chosen not in FORMATS:
        raise ValueError(f"format {format!r} is not known; it may be {', '.join(map(repr, FORMATS))} or None")
    write_history(target, history_now(None, "dump_snapshot"), chosen)


def write_history(path: Path, history: History, format: str) -> None:
    """Writes a history in "torch" or "compact" form; the file is whole or is not there."""
    files.write(path, FORMATS[format](history))


def load_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a snapshot or a trace file: either form of dump_snapshot, torch's snapshots, accelrt record's.

    Nothing of the file is run: a pickle is looked through first, and may hold plain data alone.

    Arguments:
        path: the file; its content says which form it has.
    Returns:
        dict with torch's keys (torch.cuda.memory._snapshot), and "accelrt" where accelrt wrote it: what
        accelrt.memory.snapshot() gave there and then.  A recording that was broken off has
        ["accelrt"]["complete"] False.
    Raises:
        SnapshotError, a ValueError: the file is damaged, cut short, or holds something else; `offset` is the
            byte where something else was expected.
        OSError: it cannot be read.
    """
    history = load_history(path)
    return history.snapshot() if isinstance(history, History) else history


def load_history(path: str | os.PathLike[str]) -> History | dict[str, Any]:
    """The same, but a compact file as the arrays that it holds."""
    name = os.fspath(path)
    # A pipe is opened without waiting for its writer, and refused.
    with open(path, "rb", opener=Opener(os.O_NONBLOCK)) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise SnapshotError(f"{name} is no regular file, as a snapshot was expected to be")
        if facts.st_size > MOST_BYTES:
            raise SnapshotError(f"{name} has {facts.st_size:,} bytes; a snapshot has {MOST_BYTES:,} at most")
        first = file.read(len(compact_form.MAGIC))
        file.seek(0)
        if first[:2] == compact_form.MAGIC[:2]:
            return compact_form.Reader(file, name).read()
        if first[:1] == b"\x80" or first[:1] in (b"(", b"}"):
            return torch_form.read(file.read(), name)
    raise SnapshotError(
        f"{name}: at byte 0: a snapshot of accelrt's ({compact_form.MAGIC!r}) or a pickle of torch's (0x80) "
        f"was expected; found {first!r}",
        0,
    )
