"""Who comes after whom: a vector clock for the host and for every stream.

A timeline counts its own accesses.  The clock of another one says up to which of them that other has waited;
an access comes before a piece of work exactly if the clock of that work has reached the access's number.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Timeline:
    """The host, or the work of one stream from its making to its end; equal to itself alone.

    Attributes:
        name: str, as reports call it.
        origin: where the stream was made, if that is known; for reports.
        device: int, an ordinal; -1 for the host.
        is_legacy: the device's legacy default stream.
        is_blocking: a stream that waits for the legacy default stream, and that one for it.
        is_over: nothing more is put in, and all of it is known by the host to be complete.
    """

    name: str
    device: int = -1
    origin: object = None
    is_legacy: bool = False
    is_blocking: bool = False
    is_over: bool = False


Clock = dict[Timeline, int]


def join(clock: Clock, other: Clock) -> None:
    """Makes a clock know what another one knows."""
    for timeline, epoch in other.items():
        if clock.get(timeline, 0) < epoch:
            clock[timeline] = epoch


def reached(clock: Clock, timeline: Timeline, epoch: int) -> bool:
    """Tells whether a clock has reached an access."""
    return timeline.is_over or clock.get(timeline, 0) >= epoch


@dataclass(slots=True)
class Order:
    """The clocks of one world: of what runs, or of one capture."""

    host: Timeline = field(default_factory=lambda: Timeline("the host"))
    clocks: dict[Timeline, Clock] = field(default_factory=dict)

    def clock(self, timeline: Timeline) -> Clock:
        return self.clocks.setdefault(timeline, {})

    def position(self, timeline: Timeline) -> Clock:
        """Returns what a timeline's next piece of work would come after; a copy.

        What the host knows goes before all that it enqueues from then on.  On the legacy default stream: CUDA
        programming guide, "Implicit Synchronization" and "Default Stream".
        """
        clock = dict(self.clock(timeline))
        join(clock, self.clock(self.host))
        if timeline.is_blocking:
            for other, known in self.clocks.items():
                is_implicit = other.is_blocking and (timeline.is_legacy or other.is_legacy)
                if other.device == timeline.device and is_implicit:
                    join(clock, known)
        return clock

    def put(self, timeline: Timeline) -> Clock:
        """Puts something into a stream, an access or not.  Answers what it comes after, to be read only."""
        clock = self.clocks[timeline] = self.position(timeline)
        return clock

    def begin(self, timeline: Timeline) -> tuple[int, Clock]:
        """One more access of a timeline: its number, and what it comes after."""
        clock = self.put(timeline)
        clock[timeline] = clock.get(timeline, 0) + 1
        return clock[timeline], clock

    def wait(self, timeline: Timeline, known: Clock) -> None:
        """Later work of a timeline comes after all that a clock has reached."""
        join(self.put(timeline), known)

    def of_device(self, device: int) -> list[Timeline]:
        return [timeline for timeline in self.clocks if timeline.device == device]

    def close(self, timeline: Timeline) -> bool:
        """Ends a timeline that gets no more work, if the host knows all of it to be complete."""
        own = self.clock(timeline).get(timeline, 0)
        if not reached(self.clock(self.host), timeline, own):
            return False
        timeline.is_over = True
        for clock in self.clocks.values():
            clock.pop(timeline, None)
        del self.clocks[timeline]
        return True
