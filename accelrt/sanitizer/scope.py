"""One world of accesses: what runs, or what one capture records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from accelrt.sanitizer.intervals import IntervalMap
from accelrt.sanitizer.order import Clock, Order, Timeline, reached
from accelrt.sanitizer.report import Access, Clash, Line


class Span(NamedTuple):
    """A range of bytes that an operation uses, to read ("r") or to write ("w")."""

    address: int
    nbytes: int
    mode: str


class Use(NamedTuple):
    """One range that an operation uses, by which name, and where it was captured."""

    span: Span
    call: str
    captured: Line | None


def using(call: str, spans: Iterable[tuple[int, int, str]]) -> list[Use]:
    return [Use(Span(*span), call, None) for span in spans if span[1]]


@dataclass(frozen=True, slots=True)
class Uses:
    """The last uses of some bytes: a write, and the reads since, the latest of each timeline.

    An access that comes after these comes after all earlier ones too, unless those raced themselves.
    """

    write: Access | None = None
    reads: tuple[Access, ...] = ()

    def with_read(self, access: Access) -> Uses:
        others = tuple(read for read in self.reads if read.timeline is not access.timeline)
        return Uses(self.write, (*others, access))

    def with_write(self, access: Access) -> Uses:
        if self.write is not None and access.is_before(self.write):
            return self
        return Uses(access, tuple(read for read in self.reads if access.is_before(read)))

    def keep(self, choose: Callable[[Access], Access | None]) -> Uses | None:
        """Returns what remains of the accesses as wanted gives them back, or None where nothing does."""
        write = choose(self.write) if self.write is not None else None
        reads = tuple(read for read in map(choose, self.reads) if read is not None)
        return Uses(write, reads) if write is not None or reads else None


@dataclass(frozen=True, slots=True)
class Captured:
    """An access that each replay of a graph does."""

    begin: int
    end: int
    access: Access

    def replay(self) -> Use:
        call = self.access.call
        name = call if call.startswith("replay of ") else f"replay of {call}"
        span = Span(self.begin, self.end - self.begin, self.access.mode)
        return Use(span, name, self.access.captured or self.access.line)

    def holds_one_of(self, addresses: Iterable[int]) -> bool:
        return any(self.begin <= address < self.end for address in addresses)


class Launched(NamedTuple):
    """A launch of a kernel, as far as its memory is known.

    Attributes:
        call: str, the kernel's name.
        addresses: tuple of int, what its arguments may point at, as the numbers alone say.
        spans: of the memory that it uses, (address, bytes, "r" or "w").
    """

    call: str
    addresses: tuple[int, ...]
    spans: tuple[tuple[int, int, str], ...] = ()


class Point(NamedTuple):
    """An event that each launch of a graph records, or waits for, as a node of the graph.

    Attributes:
        timeline, epoch: its place in the order of the capture, like an access's.
        known: Clock, what it comes after.
        event: int, the driver's handle.
        waits: bool, whether it waits; else it records.
        line: Line, where it was captured.
    """

    timeline: Timeline
    epoch: int
    known: Clock
    event: int
    waits: bool
    line: Line


@dataclass(slots=True)
class Scope:
    """Clocks, and what was done with which bytes.

    Attributes:
        log: of a capture, all its accesses and points in the order of the calls; None of what runs.
    """

    order: Order = field(default_factory=Order)
    uses: IntervalMap[Uses] = field(default_factory=IntervalMap)
    has_host_function: bool = False
    log: list[Captured | Point] | None = field(default_factory=list)

    def clashes(self, begin: int, end: int, late: Access) -> list[Clash]:
        """The accesses seen so far that a new one has no order with, each once."""
        by_access: dict[Access, Clash] = {}
        for low, high, uses in self.uses.parts(begin, end):
            for access in (uses.write, *(() if late.mode == "r" else uses.reads)):
                if access is None or access.is_before(late) or late.is_before(access):
                    continue
                before = by_access.get(access)
                by_access[access] = Clash(access, before.begin if before else low, high)
        return list(by_access.values())

    def add(self, begin: int, end: int, access: Access) -> None:
        """An access may be seen after those that wait for it: a host function tells when it runs."""
        if self.log is not None:
            self.log.append(Captured(begin, end, access))
        if access.mode == "r":
            self.uses.change(begin, end, lambda old: (old or Uses()).with_read(access))
        else:
            self.uses.change(begin, end, lambda old: (old or Uses()).with_write(access))

    def give_back(self, begin: int, end: int, home: Clock, known: Clock, freed: Line) -> None:
        """Keeps of a range what new work on the same addresses may have to wait for: what the next work of
        its home comes after, but the host does not know to be over."""

        def mark(access: Access) -> Access | None:
            is_over = reached(known, access.timeline, access.epoch)
            is_before = reached(home, access.timeline, access.epoch)
            return replace(access, freed=freed) if is_before and not is_over else None

        self.uses.change(begin, end, lambda old: old.keep(mark) if old is not None else None)

    def summary(self) -> list[Captured | Point]:
        """Returns what one replay does: each range once, a write or else a read; all of it where events
        divide it."""
        if any(isinstance(part, Point) for part in self.log or ()):
            return list(self.log or ())
        return [
            Captured(begin, end, uses.write or uses.reads[-1])
            for begin, end, uses in zip(self.uses.begins, self.uses.ends, self.uses.values, strict=True)
        ]


def summary_of(log: list[Captured | Point]) -> list[Captured | Point]:
    """Returns the summary of a log by itself."""
    scope = Scope()
    for part in log:
        if isinstance(part, Point):
            return list(log)
        scope.add(part.begin, part.end, part.access)
    return scope.summary()


def moved(part: Captured | Point, address: int, size: int, to: int) -> Captured | Point:
    """Moves the uses of a part from a range to another one."""
    if isinstance(part, Point) or part.end <= address or part.begin >= address + size:
        return part
    return Captured(part.begin - address + to, part.end - address + to, part.access)


def exchanged(
    log: list[Captured | Point], old: Launched, new: Launched, line: Line
) -> list[Captured | Point]:
    """A log in which a launch uses other memory.

    Where no launch, or not one alone, is known to be the old one, all stays and the new one is added: a
    replay may then be taken to use more than it does, and never less.
    """
    places: dict[tuple[Timeline, int], list[Captured]] = {}
    for part in log:
        if isinstance(part, Captured) and part.access.call == old.call:
            places.setdefault((part.access.timeline, part.access.epoch), []).append(part)
    matching = [parts for parts in places.values() if all(part.holds_one_of(old.addresses) for part in parts)]
    run = matching[0] if len(matching) == 1 else []
    accesses = [part.access for part in run] or [part.access for part in log if isinstance(part, Captured)]
    base = accesses[-1] if accesses else Access(Timeline("a graph", 0), 0, "r", new.call, line, known={})
    new_parts: list[Captured | Point] = [
        Captured(
            span.address, span.address + span.nbytes, replace(base, mode=span.mode, call=new.call, line=line)
        )
        for span in (Span(*each) for each in new.spans)
        if span.nbytes
    ]
    new_parts += [part for part in run if part.holds_one_of(new.addresses)]
    first = next((place for place, part in enumerate(log) if part in run), len(log))
    return [*log[:first], *new_parts, *(part for part in log[first:] if part not in run)]
