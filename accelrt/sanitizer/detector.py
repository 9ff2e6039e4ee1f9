"""The race detector: every copy, fill, replay and use against all that came before on the same bytes.

The hooks of accelrt/runtime/access.pyx call it under the GIL.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, wraps
from threading import get_ident, local
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from accelrt.core.process import ForkSafeLock
from accelrt.errors import RaceError, RaceWarning
from accelrt.sanitizer.memory import Fingerprints, LiveMemory
from accelrt.sanitizer.order import Clock, Order, Timeline, join, reached
from accelrt.sanitizer.replay import Branches, Launch, Step
from accelrt.sanitizer.report import (
    Access,
    Allocation,
    Clash,
    Line,
    Report,
    caller,
    changed_report,
    race_report,
)
from accelrt.sanitizer.scope import (
    Captured,
    Launched,
    Point,
    Scope,
    Span,
    Use,
    exchanged,
    moved,
    summary_of,
    using,
)

PER_THREAD = 2  # CU_STREAM_PER_THREAD: one stream for each thread
LEGACY = (0, 1)  # the null stream, and CU_STREAM_LEGACY
MANY = 4096  # lines of waits to keep before those of streams that are over are dropped

P = ParamSpec("P")
R = TypeVar("R")


class Driver(NamedTuple):
    """The questions that the detector has for the device.

    Attributes:
        capture_of: of a device's stream, the id of the capture that it is in, or 0; -1 where it is not known.
        is_blocking: of a device's stream, whether it waits for the legacy default stream.
        fingerprint: of so many bytes at an address, a sum of their content, where they are page-locked
            memory of the cache's, else None.
    """

    capture_of: Callable[[int, int], int]
    is_blocking: Callable[[int, int], bool]
    fingerprint: Callable[[int, int], int | None]


@dataclass(slots=True)
class Streams:
    """The timeline that each stream of a device has now.

    Arguments:
        is_blocking: of a device's stream, whether it waits for the legacy default stream.
    """

    is_blocking: Callable[[int, int], bool]
    by_handle: dict[tuple[int, int, int], Timeline] = field(default_factory=dict)
    retired: list[Timeline] = field(default_factory=list)

    def at(self, device: int, handle: int) -> Timeline:
        is_legacy = handle in LEGACY
        handle = 0 if is_legacy else handle
        key = (device, handle, get_ident() if handle == PER_THREAD else 0)
        timeline = self.by_handle.get(key)
        if timeline is None:
            name = "the default stream" if is_legacy else f"stream {handle:#x}"
            blocking = is_legacy or handle == PER_THREAD or self.is_blocking(device, handle)
            timeline = Timeline(f"{name} of device {device}", device, None, is_legacy, blocking)
            self.by_handle[key] = timeline
        return timeline

    def begin(self, device: int, handle: int, line: Line | None, order: Order) -> None:
        """A driver stream has a new holder, who can rely on no order with what the last one put in."""
        last = self.by_handle.get((device, handle, 0))
        if last is not None:
            self.retired.append(last)
        blocking = self.is_blocking(device, handle)
        self.by_handle[device, handle, 0] = Timeline(
            f"stream {handle:#x} of device {device}", device, line, False, blocking
        )
        self.retired = [old for old in self.retired if not order.close(old)]


@dataclass(slots=True)
class Mark:
    """The point in a stream's work that an event stands for."""

    scope: Scope
    clock: Clock
    line: Line | None


@dataclass(slots=True)
class Replayed:
    """The work of a graph, and how far its last launch is, which the next one waits for (cuGraphLaunch)."""

    parts: list[Captured | Point]
    has_host_function: bool
    log: list[Captured | Point]
    last: Clock = field(default_factory=dict)
    branches: Branches = field(default_factory=Branches)


class HostCall(NamedTuple):
    """A host function under way.

    Attributes:
        access: its place in its stream's order; None for a graph's node, whose runs are not told apart.
    """

    access: Access | None


def alone(method: Callable[Concatenate[Detector, P], R]) -> Callable[Concatenate[Detector, P], R | None]:
    """One call at a time.  What a destructor calls in between, on the same thread, is done after it."""

    @wraps(method)
    def call(self: Detector, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if self.lock.held_here():
            self.late.append(partial(method, self, *args, **kwargs))
            return None
        with self.lock:
            self.do_late()
            return method(self, *args, **kwargs)

    return call


def telling(method: Callable[Concatenate[Detector, P], None]) -> Callable[Concatenate[Detector, P], None]:
    """Wraps a method as alone() does, which then raises, or warns of, the races that it came upon."""
    called = alone(method)

    @wraps(method)
    def call(self: Detector, /, *args: P.args, **kwargs: P.kwargs) -> None:
        called(self, *args, **kwargs)
        if self.owed:
            self.tell_owed()

    return call


class Detector:
    """The state of the race detector.

    Arguments:
        driver: Driver.
        raises: bool, a race raises RaceError before the second access is put into its stream; else it warns.
    """

    def __init__(self, driver: Driver, raises: bool = True):
        self.driver = driver
        self.raises: bool = raises
        self.reports: list[Report] = []
        self.owed: list[Report] = []  # to be told by the next call that can
        self.known_races: set[tuple[object, ...]] = set()
        self.now: Scope = Scope(log=None)
        self.host: Timeline = self.now.order.host
        self.captures: dict[int, Scope] = {}
        self.graphs: dict[int, Replayed] = {}
        self.streams: Streams = Streams(driver.is_blocking)
        self.events: dict[int, Mark] = {}
        self.waits: dict[tuple[Timeline, Timeline], Line | None] = {}  # where the event was recorded
        self.memory: LiveMemory = LiveMemory()
        self.fingerprints: Fingerprints = Fingerprints(driver.fingerprint)
        self.host_calls: list[Access] = []  # host functions under way: they may write what they like
        self.running: local = local()  # .call: the HostCall of the host function that the thread runs
        self.late: deque[Callable[[], object]] = deque()
        self.lock: ForkSafeLock = ForkSafeLock()

    def do_late(self) -> None:
        while self.late:
            self.late.popleft()()

    def scope(self, device: int, handle: int, unknown: Scope | None = None) -> Scope:
        """The world that a stream is in; where the driver does not say, a given one, or one by itself."""
        capture = self.driver.capture_of(device, handle)
        if capture < 0:
            return unknown or Scope()
        return self.captures.setdefault(capture, Scope()) if capture else self.now

    # --- order ---

    @alone
    def made_stream(self, device: int, handle: int) -> None:
        self.streams.begin(device, handle, caller(), self.now.order)
        if len(self.waits) > MANY:
            self.waits = {pair: line for pair, line in self.waits.items() if not any(s.is_over for s in pair)}

    @alone
    def recorded(self, device: int, handle: int, event: int) -> None:
        scope = self.scope(device, handle, self.now)
        clock = dict(scope.order.put(self.streams.at(device, handle)))
        self.events[event] = Mark(scope, clock, caller())

    @alone
    def waited(self, device: int, handle: int, event: int) -> None:
        mark = self.events.get(event)
        if mark is None or mark.scope is not self.scope(device, handle, mark.scope):
            return
        stream = self.streams.at(device, handle)
        before = dict(mark.scope.order.clock(stream))
        mark.scope.order.wait(stream, mark.clock)
        for other, epoch in mark.clock.items():
            if not reached(before, other, epoch):
                self.waits[stream, other] = mark.line

    @alone
    def captured_point(self, device: int, handle: int, event: int, waits: bool) -> None:
        """A capture has an event as a node: each launch records it, or waits for what was recorded last."""
        scope = self.scope(device, handle)
        if scope.log is not None:
            stream = self.streams.at(device, handle)
            scope.log.append(Point(stream, *scope.order.begin(stream), event, waits, caller()))

    @telling
    def reached_stream(self, device: int, handle: int) -> None:
        """The host knows that all work of a stream is complete."""
        if self.scope(device, handle) is self.now:
            self.host_reached(self.now.order.put(self.streams.at(device, handle)))

    @telling
    def reached_event(self, event: int) -> None:
        mark = self.events.get(event)
        if mark is not None and mark.scope is self.now:
            self.host_reached(mark.clock)

    @telling
    def reached_device(self, device: int) -> None:
        for stream in self.now.order.of_device(device):
            self.host_reached(self.now.order.put(stream))

    def host_reached(self, clock: Clock) -> None:
        self.now.order.wait(self.host, clock)
        known = self.now.order.clock(self.host)
        self.host_calls = [call for call in self.host_calls if not reached(known, call.timeline, call.epoch)]
        for old in self.fingerprints.changed(known):
            second = Access(self.host, 0, "w", "something", caller())
            clash = Clash(old.access, old.address, old.address + old.nbytes)
            self.add_report(changed_report(clash, second, self.memory.at(old.address)))

    # --- accesses ---

    @telling
    def work(self, device: int, handle: int, call: str, spans: Iterable[tuple[int, int, str]]) -> None:
        """Something is about to be put into a stream.  Where it raises, nothing was put down."""
        self.access(self.scope(device, handle), self.streams.at(device, handle), using(call, spans))

    @telling
    def host_work(self, call: str, spans: Iterable[tuple[int, int, str]]) -> None:
        """The host touches memory; in a host function, in its stream's order."""
        self.access(self.now, self.host, using(call, spans))

    def access(self, scope: Scope, stream: Timeline, used: list[Use]) -> None:
        inside: HostCall | None = getattr(self.running, "call", None)
        if inside is not None and stream is self.host:
            if inside.access is None:
                return
            stream, epoch, known = inside.access.timeline, inside.access.epoch, inside.access.known
        else:
            epoch, known = scope.order.begin(stream)
        line = caller()
        accesses = [
            (span, Access(stream, epoch, span.mode, call, line, at, None, known)) for span, call, at in used
        ]
        clean = True
        for span, access in accesses:
            for clash in scope.clashes(span.address, span.address + span.nbytes, access):
                self.clashed(clash, access)
                clean = False
        if clean or not self.raises:
            for span, access in accesses:
                scope.add(span.address, span.address + span.nbytes, access)
                if scope is self.now:
                    self.look_at_content(span, access)

    def clashed(self, clash: Clash, second: Access) -> None:
        first = clash.first
        as_of = self.waits.get((second.timeline, first.timeline))
        epoch = second.known.get(first.timeline, 0)
        self.add_report(race_report(clash, second, self.memory.at(clash.begin), epoch, as_of))

    def look_at_content(self, span: Span, access: Access) -> None:
        end = span.address + span.nbytes
        if span.mode == "w":
            self.fingerprints.drop(span.address, end)
        elif access.timeline is not self.host and not self.host_calls:
            known = self.now.order.clock(self.host)
            writes = [uses.write for _, _, uses in self.now.uses.parts(span.address, end) if uses.write]
            if all(reached(known, write.timeline, write.epoch) for write in writes):
                self.fingerprints.take(span.address, span.nbytes, access)

    # --- host functions ---

    @alone
    def host_function(self, device: int, handle: int) -> HostCall:
        """A Python function is about to be put into a stream.  Answers what runs() takes."""
        scope, stream = self.scope(device, handle), self.streams.at(device, handle)
        epoch, known = scope.order.begin(stream)
        if scope is self.now:
            return self.add_host_call(stream, epoch, known)
        scope.has_host_function = True
        return HostCall(None)

    def add_host_call(self, stream: Timeline, epoch: int, known: Clock) -> HostCall:
        access = Access(stream, epoch, "w", "host function", caller(), known=known)
        self.host_calls.append(access)
        self.fingerprints.clear()
        return HostCall(access)

    def runs(self, call: HostCall | None) -> None:
        """The calling thread begins to run a host function, or, with None, ends."""
        self.running.call = call

    # --- graphs ---

    @alone
    def captured(self, capture: int) -> None:
        """A capture became a graph."""
        scope = self.captures.pop(capture, None) or Scope()
        self.graphs[capture] = Replayed(scope.summary(), scope.has_host_function, list(scope.log or ()))

    @alone
    def changed(self, capture: int, old: tuple[Any, ...], new: tuple[Any, ...]) -> None:
        """A kernel node of a graph launches something else now; old and new are fields of Launched."""
        graph = self.graphs.get(capture)
        if graph is not None:
            graph.log = exchanged(graph.log, Launched(*old), Launched(*new), caller())
            graph.parts = summary_of(graph.log)

    def moved(self, capture: int, address: int, size: int, to: int) -> None:
        """Moves the uses of a graph from a range to another one."""
        graph = self.graphs.get(capture)
        if graph is not None:
            graph.log = [moved(part, address, size, to) for part in graph.log]
            graph.parts = summary_of(graph.log)

    def dropped(self, capture: int) -> None:
        """A capture or its graph is gone."""
        self.captures.pop(capture, None)
        graph = self.graphs.pop(capture, None)
        if graph is not None and graph.branches.timelines:
            self.late.append(partial(self.streams.retired.extend, graph.branches.timelines.values()))

    @telling
    def replayed(self, capture: int, device: int, handle: int) -> None:
        graph = self.graphs.get(capture)
        if graph is None:
            return
        scope, stream = self.scope(device, handle), self.streams.at(device, handle)
        if any(isinstance(part, Point) for part in graph.parts):
            if not self.launch(graph, scope, stream):
                return
        else:
            if scope is self.now:
                scope.order.wait(stream, graph.last)
            used = [part.replay() for part in graph.parts if isinstance(part, Captured)]
            self.access(scope, stream, used)
        scope.has_host_function |= graph.has_host_function
        if scope is self.now:
            graph.last = dict(scope.order.clock(stream))
            if graph.has_host_function:
                self.add_host_call(stream, graph.last[stream], graph.last)

    def launch(self, graph: Replayed, scope: Scope, stream: Timeline) -> bool:
        """A launch of a graph with events among its nodes.  Returns whether it takes place."""
        base, branches = scope.order.position(stream), Branches()
        if scope is self.now:
            branches = graph.branches
            join(base, graph.last)
        launch = Launch(graph.parts, branches, stream, base, caller(), self.clock_of)
        if not self.is_clean(scope, launch) and self.raises:
            return False
        self.put_down(scope, launch)
        _, clock = scope.order.begin(stream)
        join(clock, launch.commit())
        return True

    def clock_of(self, event: int) -> Clock | None:
        mark = self.events.get(event)
        return mark.clock if mark is not None and mark.scope is self.now else None

    def is_clean(self, scope: Scope, launch: Launch) -> bool:
        # What races within the graph was told when it was captured.
        clean, own = True, {*launch.branches.timelines.values()}
        for step in launch.steps:
            if isinstance(step.part, Point) or step.access is None:
                continue
            for clash in scope.clashes(step.part.begin, step.part.end, step.access):
                if clash.first.timeline not in own:
                    self.clashed(clash, step.access)
                    clean = False
        return clean

    def put_down(self, scope: Scope, launch: Launch) -> None:
        """Each part in its place; in a capture, for the launches of what becomes of it."""
        for step in launch.steps:
            scope.order.clocks[step.timeline] = dict(step.known)
            if isinstance(step.part, Point):
                self.put_point(scope, step, step.part, launch.line)
            elif step.access is not None:
                scope.add(step.part.begin, step.part.end, step.access)
                if scope is self.now:
                    size = step.part.end - step.part.begin
                    self.look_at_content(Span(step.part.begin, size, step.access.mode), step.access)

    def put_point(self, scope: Scope, step: Step, point: Point, line: Line) -> None:
        if scope.log is not None:
            scope.log.append(
                point._replace(timeline=step.timeline, epoch=step.epoch, known=step.known, line=line)
            )
        elif not point.waits:
            self.events[point.event] = Mark(scope, step.known, line)
        else:
            mark = self.events.get(point.event)
            if mark is not None:
                self.waits |= {(step.timeline, other): mark.line for other in mark.clock}

    # --- memory ---

    @alone
    def allocated(self, address: int, nbytes: int, device: int, handle: int) -> None:
        """A cache handed memory out; a device of -1 is page-locked memory, which follows no stream."""
        home = self.streams.at(device, handle) if device >= 0 else None
        capture = self.driver.capture_of(device, handle) if device >= 0 else 0
        if not capture:
            self.memory.reuse(address, address + nbytes, home, self.now.uses.remove)
        self.memory.add(Allocation(address, nbytes, home, caller(), set(), capture))

    @alone
    def recorded_use(self, address: int, device: int, handle: int) -> None:
        """A cache was told of another stream that uses memory."""
        allocation = self.memory.at(address)
        if allocation is not None:
            allocation.recorded.add(self.streams.at(device, handle))

    def freed(self, address: int) -> None:
        """Memory goes back to its cache.  Destructors call it: it never waits and never raises.

        Until the next call nothing happens that could change what is found.
        """
        self.late.append(partial(self.free_now, address, caller()))
        if not self.lock.held_here() and self.lock.acquire(blocking=False):
            try:
                self.do_late()
            finally:
                self.lock.release()

    def free_now(self, address: int, line: Line) -> None:
        allocation = self.memory.remove(address)
        if allocation is None:
            return
        scope = self.captures.get(allocation.captured) if allocation.captured else self.now
        if scope is not None:  # else a graph has it, until that is gone
            order = scope.order
            home = allocation.home or order.host
            self.give_back(scope, allocation, order.position(home), line)

    @alone
    def freed_after(self, address: int, event: int) -> None:
        """Memory goes back as of an event."""
        allocation = self.memory.remove(address)
        mark = self.events.get(event)
        if allocation is not None and mark is not None and mark.scope is self.now:
            self.give_back(self.now, allocation, mark.clock, caller())

    def give_back(self, scope: Scope, allocation: Allocation, until: Clock, line: Line) -> None:
        """The cache waits for what until has reached, and for the recorded streams; for nothing else."""
        order, begin, end = scope.order, allocation.address, allocation.address + allocation.nbytes
        known = order.clock(order.host)
        clocks = [until, known, *map(order.position, allocation.recorded)]
        home = allocation.home or order.host
        second = Access(home, order.clock(home).get(home, 0) + 1, "free", "free", line)
        for clash in scope.clashes(begin, end, second):
            first = clash.first
            if not any(reached(clock, first.timeline, first.epoch) for clock in clocks):
                self.add_report(race_report(clash, second, allocation, 0, None))
        self.fingerprints.drop(begin, end)
        if scope is self.now and scope.uses.parts(begin, end):
            position = order.position(home) if allocation.home is not None else {}
            scope.give_back(begin, end, position, known, line)
            self.memory.keep_home(allocation)

    @alone
    def forget(self, begin: int, end: int) -> None:
        """Nothing is known of a range any more."""
        self.now.uses.remove(begin, end)
        self.fingerprints.drop(begin, end)

    @alone
    def emptied(self) -> None:
        """The caches waited for what was idle, and gave it back."""
        self.memory.settle(self.now.uses.remove)

    # --- reports ---

    def add_report(self, report: Report) -> None:
        key = (report.first.line, report.first.call, report.second.line, report.second.call)
        if self.raises or key not in self.known_races:
            self.known_races.add(key)
            self.reports.append(report)
            self.owed.append(report)

    def tell_owed(self) -> None:
        owed, self.owed = self.owed, []
        if owed and self.raises:
            raise RaceError(str(owed[0]), owed[0])
        for report in owed:
            line = report.second.line
            warnings.warn_explicit(str(report), RaceWarning, line.filename, line.number)

    def finish(self) -> None:
        """At exit: warns of what no call was left to tell."""
        self.raises = False
        if self.lock.acquire(blocking=False):
            self.do_late()
            self.lock.release()
        self.tell_owed()

    @alone
    def clear(self) -> None:
        """Forgets what was found, and what was done with any memory; the order of the streams stays."""
        self.reports.clear()
        self.owed.clear()
        self.known_races.clear()
        self.now.uses = type(self.now.uses)()
        self.fingerprints.clear()
