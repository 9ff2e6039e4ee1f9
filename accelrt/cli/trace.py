"""Allocation traces: what they hold, and what a file has to be to be one.

A trace is an npz archive of four one-dimensional integer arrays of one length, an event a row, in order:
op (1 allocates, 0 frees), id (names the allocation; free again once freed), size (bytes asked for; 0 on a
free) and stream (index; without meaning on a free).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelrt.errors import RecordError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]

__all__ = ["SIZE_LIMIT", "Trace", "load"]

COLUMNS = ("op", "id", "size", "stream")
SIZE_LIMIT = 1 << 60  # no allocation of a trace is as large


@dataclass(frozen=True)
class Trace:
    """A checked trace, as lists that a replay runs through.

    Attributes (an entry a row, but for the last two):
        ops: 1 or 0.
        slots: the allocation's number, counted from 0.
        sizes: bytes, 0 on a free.
        streams: index of the stream, as in the file.
        left: the slots that are live at the end.
        peak_live: the most bytes asked for that are live at once.
    """

    ops: list[int]
    slots: list[int]
    sizes: list[int]
    streams: list[int]
    left: list[int]
    peak_live: int

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def slot_count(self) -> int:
        return max(self.slots, default=-1) + 1

    def prefix(self, events: int) -> Trace:
        """The first events alone."""
        return built(self.ops[:events], self.slots[:events], self.sizes[:events], self.streams[:events])

    def shrunk(self, divisor: int) -> Trace:
        """The same events with every size divided; what is left of a size is at least one byte."""
        sizes = [max(1, size // divisor) if size else 0 for size in self.sizes]
        return replace(self, sizes=sizes, peak_live=peak_of(self.ops, self.slots, sizes)[0])


def built(ops: list[int], slots: list[int], sizes: list[int], streams: list[int]) -> Trace:
    peak, left = peak_of(ops, slots, sizes)
    return Trace(ops, slots, sizes, streams, left, peak)


def peak_of(ops: list[int], slots: list[int], sizes: list[int]) -> tuple[int, list[int]]:
    """The most bytes live at once, in ints that do not overflow, and the slots live at the end."""
    live: dict[int, int] = {}
    changes = []
    for op, slot, size in zip(ops, slots, sizes, strict=True):
        if op:
            live[slot] = size
            changes.append(size)
        else:
            changes.append(-live.pop(slot))
    return max(accumulate(changes), default=0), list(live)


def load(path: str | Path) -> Trace:
    """Reads a trace and checks every row of it.

    Arguments:
        path: of an npz file.
    Raises:
        RecordError: it is no trace; its row is the first offending one, or None where it is the file.
        OSError: it cannot be read.
    """
    import numpy as np

    columns = check_columns(read_columns(Path(path)))
    op, names, size, stream = (columns[name] for name in COLUMNS)
    check_values(op, size, stream)
    check_pairs(op, names)
    slots = np.unique(names, return_inverse=True)[1]
    return built(op.tolist(), slots.tolist(), size.tolist(), stream.tolist())


def read_columns(path: Path) -> dict[str, Column]:
    import numpy as np

    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as error:  # a damaged zip makes numpy and zipfile raise nearly anything
            raise RecordError(f"{path} is not an npz archive, or is damaged: {error}") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise RecordError(f"{path} is not an npz archive; a trace is one with {', '.join(COLUMNS)}")
        with archive:
            missing = [name for name in COLUMNS if name not in archive.files]
            if missing:
                raise RecordError(f"{path} lacks {', '.join(missing)}; a trace has {', '.join(COLUMNS)}")
            return {name: read_column(path, archive, name) for name in COLUMNS}


def read_column(path: Path, archive: Any, name: str) -> Column:
    try:
        column: Column = archive[name]
    except Exception as error:  # as above
        raise RecordError(f"{path}: the array {name} is damaged: {error}") from error
    return column


def check_columns(columns: dict[str, Column]) -> dict[str, Column]:
    for name, column in columns.items():
        if column.dtype.kind not in "iu":
            raise RecordError(f"the array {name} has dtype {column.dtype}; a trace holds integers")
        if column.ndim != 1:
            raise RecordError(f"the array {name} has {column.ndim} dimensions; a trace's have 1")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        given = ", ".join(f"{name} {length}" for name, length in lengths.items())
        row = min(lengths.values())
        raise RecordError(f"row {row} is incomplete: the arrays' lengths differ ({given})", row)
    return columns


def refuse(wrong: Column, values: Column, what: str) -> None:
    """Raises for the first row that is wrong."""
    if wrong.any():
        row = int(wrong.argmax())
        raise RecordError(f"row {row}: {what.format(values[row])}", row)


def check_values(op: Column, size: Column, stream: Column) -> None:
    refuse((op != 0) & (op != 1), op, "op is {}; 1 allocates and 0 frees")
    refuse(size < 0, size, "size is {}; a number of bytes is 0 or more")
    refuse((op == 0) & (size != 0), size, "size is {} on a free, where it is 0")
    refuse(size.astype("uint64") >= SIZE_LIMIT, size, "size is {}; it has to be below 2**60")
    refuse((op == 1) & (stream < 0), stream, "stream is {}; an index is 0 or more")


def check_pairs(op: Column, names: Column) -> None:
    """Every allocation's events, in order, are alloc, free, alloc, free, ..."""
    import numpy as np

    order = np.argsort(names, kind="stable")
    ordered = names[order]
    first = np.ones(len(names), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    place = np.arange(len(names)) - np.repeat(starts, np.diff(starts, append=len(names)))
    wrong = np.zeros(len(names), dtype=bool)
    wrong[order] = op[order] == place % 2
    if wrong.any():
        # Only the first is sure to be one: what follows it on the same id is out of step.
        live = op[wrong.argmax()] == 1
        refuse(wrong, names, "allocates id {}, which is live" if live else "frees id {}, which is not live")
