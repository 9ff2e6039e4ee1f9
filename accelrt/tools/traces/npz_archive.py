"""Traces in numpy's archives, and what a file has to be to be one.

A file is an npz archive of four one-dimensional integer arrays of one length, an event a row, in order: op (1
allocates, 0 frees), id (names the allocation; free again once freed), size (bytes asked for; 0 on a free) and
stream (index; without meaning on a free).
"""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from accelrt.errors import RecordError
from accelrt.tools.traces.trace import EVENT_LIMIT, SIZE_LIMIT, Trace, built

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]

COLUMNS = ("op", "id", "size", "stream")
COLUMN_LIMIT = 8 * EVENT_LIMIT + (1 << 16)  # bytes of one array, its header among them
READ_LIMIT = 1 << 20  # bytes of one read
TOO_LARGE = f"a trace has at most {EVENT_LIMIT:,} events: split it"
ENCRYPTED = 1  # of a zip member's flags
LONGEST = 200  # letters of somebody else's error


def load(path: str | Path) -> Trace:
    """Reads a trace and checks every row of it.

    What the file declares is checked before it is read, so that a small file cannot ask for much memory.

    Arguments:
        path: of an npz file.
    Raises:
        RecordError: it is no trace; its row is the first offending one, or None where it is the file.
        OSError: it cannot be read.
    """
    import numpy as np

    op, names, size, stream = read_columns(Path(path))
    check_values(op, size, stream)
    check_pairs(op, names)
    slots = np.unique(names, return_inverse=True)[1]
    return built(op.tolist(), slots.tolist(), size.tolist(), stream.tolist())


def save(path: str | Path, trace: Trace) -> None:
    """Writes a trace that load() reads back."""
    import numpy as np

    rows = (trace.ops, trace.slots, trace.sizes, trace.streams)
    op, names, size, stream = (np.array(column, np.int64) for column in rows)
    np.savez(path, op=op, id=names, size=size, stream=stream)


class BoundedFile(io.BufferedReader):
    """A file that is read in pieces: zipfile takes the whole directory of an archive in one read."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(READ_LIMIT if size is None or size < 0 else min(size, READ_LIMIT))


def read_columns(path: Path) -> list[Column]:
    with BoundedFile(io.FileIO(path)) as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # a damaged directory makes zipfile raise nearly anything
            raise RecordError(f"{path} is not an npz archive, or is damaged: {brief(error)}") from error
        with archive:
            there = {info.filename: info for info in archive.infolist()}
            missing = [name for name in COLUMNS if f"{name}.npy" not in there]
            if missing:
                needed = ", ".join(f"{name}.npy" for name in COLUMNS)
                raise RecordError(f"{path} lacks {', '.join(missing)}; a trace has the members {needed}")
            heads = [read_head(path, archive, there[f"{name}.npy"], name) for name in COLUMNS]
            check_lengths([head.entries for head in heads])
            return [
                read_data(path, archive, there[f"{name}.npy"], head)
                for name, head in zip(COLUMNS, heads, strict=True)
            ]


class Head(NamedTuple):
    """The header of a member: where its entries begin, how many there are, and of which dtype."""

    name: str
    begin: int
    entries: int
    dtype: Any


def read_head(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Head:
    """Reads and checks a member's header; a header that numpy writes takes 128 bytes."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & ENCRYPTED:
        raise RecordError(f"{path}: the array {name} is encrypted, or compressed as numpy compresses none")
    if info.file_size > COLUMN_LIMIT:
        raise RecordError(f"{path}: the array {name} has {info.file_size:,} bytes; {TOO_LARGE}")
    try:
        with archive.open(info) as member:
            shape, dtype = parse_head(member)
            begin = member.tell()
    except Exception as error:  # as of the directory
        raise RecordError(f"{path}: the array {name} is damaged: {brief(error)}") from error
    if dtype.kind not in "iu":
        raise RecordError(f"the array {name} has dtype {dtype}; a trace holds integers")
    if len(shape) != 1:
        raise RecordError(f"the array {name} has {len(shape)} dimensions; a trace's have 1")
    if shape[0] > EVENT_LIMIT:
        raise RecordError(f"{path}: the array {name} has {shape[0]:,} entries; {TOO_LARGE}")
    if shape[0] < 0 or shape[0] * dtype.itemsize != info.file_size - begin:
        raise RecordError(
            f"{path}: the array {name} is damaged: {shape[0]:,} entries of {dtype} are declared, "
            f"in {info.file_size - begin:,} bytes"
        )
    return Head(name, begin, shape[0], dtype)


def parse_head(member: IO[bytes]) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype that a member in numpy's format declares (numpy.lib.format, versions 1.0 and 2.0)."""
    from numpy.lib import format as npy

    version = npy.read_magic(member)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its format is {version[0]}.{version[1]}; integers are written in 1.0 or 2.0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a header of Python 2 makes numpy say
        shape, _, dtype = readers[version](member)
    return shape, dtype


def read_data(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, head: Head) -> Column:
    import numpy as np

    try:
        with archive.open(info) as member:
            content = b"".join(
                iter(lambda: member.read(READ_LIMIT), b"")
            )  # to its end, where the sum is checked
        column: Column = np.frombuffer(content, head.dtype, head.entries, head.begin)
    except Exception as error:  # as of the directory
        raise RecordError(f"{path}: the array {head.name} is damaged: {brief(error)}") from error
    return column


def brief(error: BaseException) -> str:
    """Returns what an error says, on one line and not too long: some quote what they could not read."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def check_lengths(lengths: list[int]) -> None:
    if len(set(lengths)) > 1:
        text = ", ".join(f"{name} {length}" for name, length in zip(COLUMNS, lengths, strict=True))
        row = min(lengths)
        raise RecordError(f"row {row} is incomplete: the arrays' lengths differ ({text})", row)


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
    turn = np.arange(len(names)) - np.repeat(starts, np.diff(starts, append=len(names)))
    wrong = np.zeros(len(names), dtype=bool)
    wrong[order] = op[order] == turn % 2
    if wrong.any():
        # Only the first is sure to be one: what follows it on the same id is out of step.
        live = op[wrong.argmax()] == 1
        refuse(wrong, names, "allocates id {}, which is live" if live else "frees id {}, which is not live")
