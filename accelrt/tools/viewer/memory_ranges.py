"""Finds which addresses were mapped at which moment.

A snapshot says what is mapped at its end; the events say what changed before.  So the last event is undone
first: what it mapped ends there, and what it unmapped is there again.  accelrt's pages are mapped where they
are resident: stitching moves them from one range of addresses to another.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

PLAIN, EXPANDABLE, STITCHED = range(3)
CHANGES = {  # the actions that map and unmap, by the kind of range
    **{"segment_alloc": PLAIN, "segment_free": PLAIN},
    **{"segment_map": EXPANDABLE, "segment_unmap": EXPANDABLE},
}


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


START = attrgetter("address")


def end_of(each: Range) -> int:
    return each.address + each.size


def part(whole: Range, first: int, last: int) -> Range:
    return whole._replace(address=first, size=last - first)


def find_ranges(final: Iterable[Range], changes: Iterable[Range]) -> list[Range]:
    """The ranges of all times.

    Arguments:
        final: those that are mapped at the end.
        changes: what events mapped, which are the begin, and unmapped, with begin -1; in order of time.
    """
    mapped = sorted(final, key=START)  # at the moment that is reached
    complete: list[Range] = []  # from begin to end
    for change in reversed([change for change in changes if change.size > 0]):
        # What it mapped was not there before; in a faultless recording nothing is mapped where it unmapped.
        first, last = change.address, end_of(change)
        touched = slice(bisect_right(mapped, first, key=end_of), bisect_left(mapped, last, key=START))
        rest = []
        for whole in mapped[touched]:
            inner = part(whole, max(whole.address, first), min(end_of(whole), last))
            event = change.end if change.begin < 0 else change.begin
            complete.append(inner._replace(begin=event, stack=change.stack or whole.stack))
            rest += [part(whole, whole.address, inner.address), part(whole, end_of(inner), end_of(whole))]
        if change.begin < 0:
            rest.append(change)
        mapped[touched] = sorted((each for each in rest if each.size > 0), key=START)
    return sorted(complete + mapped, key=attrgetter("begin", "address"))


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The ranges by address; those of one moment that touch and belong to one segment are one.  A plain
    segment touches none that it belongs with."""
    merged: list[Range] = []
    for each in sorted(ranges, key=START):
        before = merged[-1] if merged else None
        if (
            before is not None
            and each.kind != PLAIN
            and before.address + before.size == each.address
            and (before.kind, before.stream, before.pool) == (each.kind, each.stream, each.pool)
        ):
            merged[-1] = before._replace(size=before.size + each.size)
        else:
            merged.append(each)
    return merged


def mark_stitched(ranges: list[Range], stitched: Mapping[int, int]) -> list[Range]:
    """The ranges, those that lie in stitched segments (address -> size) with that kind."""
    starts = sorted(stitched)
    marked = []
    for each in ranges:
        index = bisect_right(starts, each.address) - 1
        inside = index >= 0 and each.address < starts[index] + stitched[starts[index]]
        marked.append(each._replace(kind=STITCHED) if inside else each)
    return marked
