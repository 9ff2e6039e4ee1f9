"""Which addresses were mapped at which moment.

A snapshot says what is mapped at its end; the events say what changed before.  So the last event is undone
first: what it mapped ends there, and what it unmapped is there again.  accelrt's pages are mapped where they
are resident: stitching moves them from one range of addresses to another.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

__all__ = [
    "EXPANDABLE",
    "MAPS",
    "PLAIN",
    "STITCHED",
    "UNMAPS",
    "Range",
    "RangeChange",
    "find_ranges",
    "joined",
    "mark_stitched",
]

PLAIN, EXPANDABLE, STITCHED = range(3)
MAPS = {"segment_alloc": PLAIN, "segment_map": EXPANDABLE}
UNMAPS = {"segment_free": PLAIN, "segment_unmap": EXPANDABLE}


class Range(NamedTuple):
    """Addresses that were mapped from one event to another.

    Attributes:
        address, size: int, bytes.
        begin, end: int, indices of the events that mapped and unmapped them; -1 before the first, and the
            number of events where they are mapped at the end.
        stream, pool, stack: int, indices; the stack that mapped them, or 0.
        kind: PLAIN, EXPANDABLE or STITCHED.
    """

    address: int
    size: int
    begin: int
    end: int
    stream: int
    pool: int
    stack: int
    kind: int


class RangeChange(NamedTuple):
    """An event that maps or unmaps addresses; the names are Range's."""

    event: int
    maps: bool
    address: int
    size: int
    stream: int
    pool: int
    stack: int
    kind: int


START = attrgetter("address")


class MappedRanges:
    """The ranges that are mapped at a moment, by address, and those that are known from begin to end."""

    def __init__(self, ranges: Iterable[Range]):
        self.mapped = sorted(ranges, key=START)
        self.known: list[Range] = []

    def end_at(self, change: RangeChange) -> None:
        """What the change mapped was not there before it."""
        first, last = change.address, change.address + change.size
        at = bisect_left(self.mapped, first, key=START)
        if at and self.mapped[at - 1].address + self.mapped[at - 1].size > first:
            at -= 1
        while at < len(self.mapped) and self.mapped[at].address < last:
            whole = self.mapped.pop(at)
            stop = whole.address + whole.size
            left, right = max(whole.address, first), min(stop, last)
            stack = change.stack or whole.stack
            self.known.append(
                whole._replace(address=left, size=right - left, begin=change.event, stack=stack)
            )
            if whole.address < first:
                self.mapped.insert(at, whole._replace(size=first - whole.address))
                at += 1
            if stop > last:
                self.mapped.insert(at, whole._replace(address=last, size=stop - last))
                at += 1

    def restore(self, change: RangeChange) -> None:
        """What the change unmapped was there before it."""
        self.end_at(change)  # in a faultless recording nothing is mapped there
        restored = Range(
            change.address, change.size, -1, change.event, change.stream, change.pool, 0, change.kind
        )
        insort(self.mapped, restored, key=START)


def find_ranges(final: Iterable[Range], changes: Iterable[RangeChange]) -> list[Range]:
    """The ranges of all times.

    Arguments:
        final: those that are mapped at the end.
        changes: the events that mapped and unmapped, in order of time.
    """
    ranges = MappedRanges(final)
    for change in reversed(list(changes)):
        if change.size <= 0:
            continue
        if change.maps:
            ranges.end_at(change)
        else:
            ranges.restore(change)
    return sorted(ranges.known + ranges.mapped, key=attrgetter("begin", "address"))


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The ranges by address; those of one moment that touch and belong to one segment are one.  A plain
    segment touches none that it belongs with."""
    found: list[Range] = []
    for each in sorted(ranges, key=START):
        before = found[-1] if found else None
        if (
            before is not None
            and each.kind != PLAIN
            and before.address + before.size == each.address
            and (before.kind, before.stream, before.pool) == (each.kind, each.stream, each.pool)
        ):
            found[-1] = before._replace(size=before.size + each.size)
        else:
            found.append(each)
    return found


def mark_stitched(ranges: list[Range], stitched: Mapping[int, int]) -> list[Range]:
    """The ranges, those that lie in stitched segments (address -> size) with that kind."""
    starts = sorted(stitched)
    marked = []
    for each in ranges:
        place = bisect_right(starts, each.address) - 1
        inside = place >= 0 and each.address < starts[place] + stitched[starts[place]]
        marked.append(each._replace(kind=STITCHED) if inside else each)
    return marked
