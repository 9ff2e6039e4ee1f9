"""RMM's log of allocations, as rmm.mr.LoggingResourceAdaptor writes it."""

from pathlib import Path

from accelrt.errors import RecordError
from accelrt.tools.traces.address_pairs import PairedEvents
from accelrt.tools.traces.trace import Trace

COLUMNS = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")
ACTIONS = ("allocate", "free", "allocate failure")
LONGEST = 512  # bytes of a line
NULL = "(nil)"  # as C libraries print a null pointer


def load(path: Path) -> Trace:
    """The trace of a log.

    Raises:
        RecordError: a line is none of such a log's; its row counts from 0, after the header.
        OSError: it cannot be read.
    """
    pairs = PairedEvents(str(path))
    notes, row = [], 0
    with open(path, "rb") as file:
        head = words_of(file.readline(LONGEST))
        if tuple(head) != COLUMNS:
            raise RecordError(
                f"{path}: a log of RMM's begins with {','.join(COLUMNS)!r}, not {','.join(head)!r}"
            )
        while line := file.readline(LONGEST):
            try:
                add(pairs, line)
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < LONGEST:
                    notes.append("the last line is cut short and was left out")
                    break
                raise RecordError(f"{path}: row {row}: {error}", row) from None
            row += 1
    return pairs.trace(*notes)


def words_of(line: bytes) -> list[str]:
    return [word.strip().strip('"') for word in line.decode("ascii", "backslashreplace").split(",")]


def add(pairs: PairedEvents, line: bytes) -> None:
    words = words_of(line)
    if len(words) != len(COLUMNS):
        raise ValueError(f"{len(words)} columns, where {len(COLUMNS)} were expected: {','.join(words)!r:.80}")
    _, _, action, pointer, size, stream = words
    if action not in ACTIONS:
        raise ValueError(f"the action is {action!r:.40}; it may be {', '.join(ACTIONS)}")
    if not (size.isascii() and size.isdigit() and len(size) <= 20):
        raise ValueError(f"the size is {size!r:.40}; it is a number of bytes")
    if not line.endswith(b"\n"):
        raise ValueError("the line does not end")
    address = address_of(pointer)
    if action == "allocate":
        pairs.allocate(address, int(size), stream)
    elif action == "free" and address:
        pairs.free(address, int(size), stream)


def address_of(pointer: str) -> int:
    """A pointer in hexadecimal digits, with or without 0x."""
    digits = pointer.removeprefix("0x").removeprefix("0X")
    if pointer == NULL:
        return 0
    if not digits or len(digits) > 16 or digits.strip("0123456789abcdefABCDEF"):
        raise ValueError(f"the pointer is {pointer!r:.40}; it is an address in hexadecimal digits")
    return int(digits, 16)
