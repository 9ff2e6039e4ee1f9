"""The reports of the race detector: two accesses, and the edge that is missing between them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from accelrt.core.printable import printable
from accelrt.sanitizer.order import Clock, Timeline, reached

PACKAGE = str(Path(__file__).parents[1]) + "/"
PROGRAMS = PACKAGE + "tools/cli/"  # programs like any other, though they are shipped with the package


class Line(NamedTuple):
    """A line of Python."""

    filename: str
    number: int
    function: str

    def __str__(self) -> str:
        return printable(f"{self.filename}:{self.number} in {self.function}")


def caller() -> Line:
    """The innermost line outside of accelrt; where there is none, the innermost."""
    # Not its own frame: a frame with itself among its variables is a cycle, which would keep its callers, and
    # all that they hold, until the garbage collector runs.
    frame = inner = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE) and not frame.f_code.co_filename.startswith(PROGRAMS):
        if frame.f_back is None:
            frame = inner
            break
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


@dataclass(frozen=True, slots=True)
class Access:
    """One use of a range of bytes.

    Attributes:
        timeline: Timeline, whose order it follows.
        epoch: int, its number among the accesses of the timeline.
        mode: "r" or "w"; "free" where the bytes were given back.
        call: str, what did it.
        line: Line, the caller's.
        captured: Line or None, where a graph's replay was captured.
        freed: Line or None, where the bytes were given back since.
        known: Clock, what it comes after.
    """

    timeline: Timeline
    epoch: int
    mode: str
    call: str
    line: Line
    captured: Line | None = None
    freed: Line | None = None
    known: Clock = field(default_factory=dict, repr=False, compare=False)

    def is_before(self, other: Access) -> bool:
        """Tells whether the other access waits for this one."""
        return reached(other.known, self.timeline, self.epoch)

    def __str__(self) -> str:
        verb = {"r": "reads", "w": "writes", "free": "gives back"}[self.mode]
        origin = f" (made at {self.timeline.origin})" if self.timeline.origin is not None else ""
        text = f"{self.call} {verb} on {self.timeline.name}{origin}, at {self.line}"
        if self.captured is not None:
            text += f", captured at {self.captured}"
        if self.freed is not None:
            text += f"; the memory was given back since, at {self.freed}"
        return text


@dataclass(slots=True)
class Allocation:
    """Live memory of the caches.

    Attributes:
        address, nbytes: int.
        home: Timeline whose order the memory follows; None for page-locked memory.
        line: Line or None, where it was allocated.
        recorded: the timelines whose work the cache waits for before it hands the memory out again.
        captured: it was allocated on a stream that captured, so a graph's pool holds it.
    """

    address: int
    nbytes: int
    home: Timeline | None
    line: Line | None
    recorded: set[Timeline]
    captured: int = 0


@dataclass(frozen=True, slots=True)
class Clash:
    """An earlier access that a later one does not come after, and the bytes of both."""

    first: Access
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Report:
    """A race.

    Attributes:
        first, second: Access, in the order of the calls.
        address, nbytes: int, the bytes that both use.
        allocation: Allocation that the bytes are in, or None where the caches did not hand them out.
        missing: str, the edge that would order them, and how to have it.
    """

    first: Access
    second: Access
    address: int
    nbytes: int
    allocation: Allocation | None
    missing: str

    def __str__(self) -> str:
        where = ""
        if self.allocation is not None:
            where = f", in {self.allocation.nbytes:,} bytes allocated at {self.allocation.line}"
        return (
            f"race on {self.nbytes:,} bytes at {self.address:#x}{where}:\n"
            f"  second: {self.second}\n"
            f"  first:  {self.first}\n"
            f"  {self.missing}"
        )


def race_report(
    clash: Clash, second: Access, allocation: Allocation | None, known: int, as_of: Line | None
) -> Report:
    """The report of a clash.

    Arguments:
        known: int, up to which access of the first timeline the second one has waited; 0 is none.
        as_of: Line or None, where the event was recorded that it waited for last.
    """
    missing = missing_edge(clash.first, second, known, as_of)
    return Report(clash.first, second, clash.begin, clash.end - clash.begin, allocation, missing)


def missing_edge(first: Access, second: Access, known: int, as_of: Line | None) -> str:
    one, other = first.timeline.name, second.timeline.name
    if second.mode == "free":
        wait = f"synchronize() {one}" if second.timeline.device < 0 else f"let {other} wait_stream() for it"
        return (
            f"missing: nothing keeps the memory from being handed out again before {one} is past "
            f"{first.line}; record_stream() it for the memory, or {wait} before giving the memory back"
        )
    if known:
        since = f", the event recorded at {as_of}" if as_of is not None else ""
        return (
            f"missing: {other} waited for {one} only up to an earlier point{since}; "
            f"record an event after {first.line}, and wait for that one"
        )
    if second.timeline.device < 0:
        return (
            f"missing: {other} never waited for {one}; synchronize() {one}, or an event recorded on it after "
            f"{first.line}, before touching the memory"
        )
    return (
        f"missing: {other} never waited for {one}; let {other} wait_stream() for {one}, or wait_event() for "
        f"an event recorded on it after {first.line}"
    )


def changed_report(clash: Clash, second: Access, allocation: Allocation | None) -> Report:
    """The report of page-locked memory whose content changed under a read."""
    first = clash.first
    missing = (
        f"missing: the content changed between {first.line} and {second.line}, while {first.timeline.name} "
        "could still read it; synchronize() that stream before the memory is written"
    )
    return Report(first, second, clash.begin, clash.end - clash.begin, allocation, missing)
