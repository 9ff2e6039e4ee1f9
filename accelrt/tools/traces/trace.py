"""A trace: what a program asked of its allocator, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

SIZE_LIMIT = 1 << 60  # no allocation of a trace is as large
EVENT_LIMIT = 1 << 22  # a replay takes some 256 bytes an event: 1 GiB


@dataclass(frozen=True)
class Trace:
    """A checked trace, as lists that a replay runs through.

    Attributes (an entry a row, but for the last three):
        ops: 1 or 0.
        slots: the allocation's number, counted from 0.
        sizes: bytes, 0 on a free.
        streams: index of the stream, as in the file.
        left: the slots that are live at the end.
        peak_live: the most bytes asked for that are live at once.
        notes: what the file had that the trace has otherwise, a line each.
    """

    ops: list[int]
    slots: list[int]
    sizes: list[int]
    streams: list[int]
    left: list[int]
    peak_live: int
    notes: tuple[str, ...] = ()

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


def built(
    ops: list[int], slots: list[int], sizes: list[int], streams: list[int], notes: tuple[str, ...] = ()
) -> Trace:
    """A trace of rows that have been checked."""
    peak, left = peak_of(ops, slots, sizes)
    return Trace(ops, slots, sizes, streams, left, peak, notes)


def peak_of(ops: list[int], slots: list[int], sizes: list[int]) -> tuple[int, list[int]]:
    """The most bytes live at once, in ints that do not overflow, and the slots live at the end."""
    live: dict[int, int] = {}
    total = peak = 0
    for op, slot, size in zip(ops, slots, sizes, strict=True):
        if op:
            live[slot] = size
            total += size
            peak = max(peak, total)
        else:
            total -= live.pop(slot)
    return peak, list(live)
