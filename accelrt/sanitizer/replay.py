"""Launches of a graph with nodes that record events or wait for them: its parts have places of their own.

A graph without such nodes is one piece of work of its stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from accelrt.sanitizer.order import Clock, Timeline, join
from accelrt.sanitizer.report import Access, Line
from accelrt.sanitizer.scope import Captured, Point


@dataclass(slots=True)
class Branches:
    """The timelines that stand for those of the capture, for one launch after the other.

    One launch of a graph waits for the last one (cuGraphLaunch), so that they can share timelines.
    """

    timelines: dict[Timeline, Timeline] = field(default_factory=dict)
    ends: Clock = field(default_factory=dict)  # of the last launch, by the capture's timelines

    def at(self, captured: Timeline, stream: Timeline) -> Timeline:
        timeline = self.timelines.get(captured)
        if timeline is None:
            timeline = self.timelines[captured] = Timeline(f"{stream.name}, in a graph", stream.device)
        return timeline


class Step(NamedTuple):
    """A part of the graph in this launch: its timeline and number there, what it comes after, and the access
    that it is, if it is one."""

    part: Captured | Point
    timeline: Timeline
    epoch: int
    known: Clock
    access: Access | None


class Launch:
    """One launch: what its parts come after.  Nothing changes but by commit.

    Arguments:
        parts: list of Captured and Point, in the order of the capture's calls.
        branches: Branches.
        stream: Timeline that it is put into.
        base: Clock, what all of it comes after.
        line: Line of the launch.
        mark_of: of an event, the clock of its last record; None where there is none.
    """

    def __init__(
        self,
        parts: list[Captured | Point],
        branches: Branches,
        stream: Timeline,
        base: Clock,
        line: Line,
        mark_of: Callable[[int], Clock | None],
    ):
        self.branches: Branches = branches
        self.stream: Timeline = stream
        self.base: Clock = base
        self.line: Line = line
        self.mark_of: Callable[[int], Clock | None] = mark_of
        self.ends: dict[Timeline, int] = dict(branches.ends)
        self.marks: dict[int, Clock] = {}  # of the events that it records
        self.waited: list[tuple[Point, Clock]] = []
        self.steps: list[Step] = [self.step(part) for part in parts]

    def step(self, part: Captured | Point) -> Step:
        point = part if isinstance(part, Point) else part.access
        if isinstance(part, Point) and part.waits:
            # It waits for the record that is the last at the launch, those of the nodes before it among them.
            mark = self.marks.get(part.event) or self.mark_of(part.event)
            if mark is not None:
                self.waited.append((part, mark))
        timeline, known = self.branches.at(point.timeline, self.stream), self.clock(point.known)
        self.ends[point.timeline] = known[timeline]
        if isinstance(part, Point) and not part.waits:
            self.marks[part.event] = known
        return Step(part, timeline, known[timeline], known, self.access(part, timeline, known))

    def clock(self, known: Clock) -> Clock:
        """Returns what a part comes after, by what it came after in the capture."""
        clock = dict(self.base)
        for timeline, epoch in known.items():
            clock[self.branches.at(timeline, self.stream)] = self.branches.ends.get(timeline, 0) + epoch
        for point, mark in self.waited:
            if known.get(point.timeline, 0) >= point.epoch:
                join(clock, mark)
        return clock

    def access(self, part: Captured | Point, timeline: Timeline, known: Clock) -> Access | None:
        if isinstance(part, Point):
            return None
        span, call, captured = part.replay()
        return Access(timeline, known[timeline], span.mode, call, self.line, captured, None, known)

    def commit(self) -> Clock:
        """The launch takes place.  Returns what comes before the stream's later work because of it."""
        end = dict(self.base)
        for captured, timeline in self.branches.timelines.items():
            timeline.name = f"{self.stream.name}, in a graph"
            end[timeline] = self.ends.get(captured, 0)
        for _, mark in self.waited:
            join(end, mark)
        self.branches.ends = self.ends
        return end
