"""Random numbers in graphs: where the kernels of a graph find the seed and the offset of a replay.

Each generator that a capture draws from has 16 bytes of device memory in the graph's pool.  A kernel of the
graph adds what the kernels before it used to the offset there.  Before each replay the generator's seed and
offset are written there, in the order of the replay's stream, and the generator's offset grows by what the
whole graph uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, cast

from accelrt.arrays.exchange import empty
from accelrt.core.process import ForkSafeLock
from accelrt.errors import refuse_copy
from accelrt.kernels.elementwise import ElementwiseKernel
from accelrt.runtime.lifetimes import capture_of
from accelrt.streams.stream import Event, Stream

if TYPE_CHECKING:
    from accelrt.arrays.array import Array
    from accelrt.graphs.graph import RandomState
    from accelrt.runtime.lifetimes import Record

PUT = ElementwiseKernel(
    "uint64 seed, uint64 offset", "raw uint64 at", "at[0] = seed; at[1] = offset", "random_state"
)
making: ForkSafeLock = ForkSafeLock()  # while the first draw of a capture makes its GraphStates


class GraphStates:
    """The states of the generators that a graph draws from."""

    def __init__(self, registered: tuple[RandomState, ...]) -> None:
        self.registered = registered
        # Its memory, and the words that the graph uses.
        self.places: dict[RandomState, tuple[Array, int]] = {}
        self.event: Event | None = None  # behind the last replay
        self.lock: ForkSafeLock = ForkSafeLock()  # for places; and until a replay is launched

    def take(self, state: RandomState, words: int, stream: Stream) -> tuple[Array, int]:
        """Memory of the seed and the offset, and what to add to the offset, for a kernel of the graph."""
        with self.lock:  # other threads may draw on streams that joined the capture
            memory, used = self.places.get(state) or (empty(2, "uint64", stream.device_index, stream), 0)
            self.places[state] = memory, used + words
        return memory, used

    def prepare(self, stream: Stream) -> None:
        """Puts in front of a replay what its kernels begin with.

        The caller holds the lock until it has launched the replay and recorded the event behind it.
        """
        if capture_of(stream.device_index, stream.handle)[0]:
            raise RuntimeError(
                "a graph that draws random numbers cannot be replayed into a capture, which would repeat "
                "them; capture its work instead"
            )
        if self.event is None:
            self.event = Event()
        else:  # a handle may be another stream's by now, or stand for one of each thread
            self.event.wait(stream)
        for state, (memory, words) in self.places.items():
            PUT(*state.take(words), out=memory, size=1, stream=stream)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is of one graph; capture another one")


def states_of(record: Record | None, stream: Stream) -> GraphStates:
    """The states of the graph that a stream captures for.

    Arguments:
        record: Record that capture_of gave for the stream.
    Raises:
        RuntimeError: it captures for another library, whose replays would repeat the numbers.
    """
    if record is None or record.random is None:
        raise RuntimeError(
            "the stream captures for a graph of another library, whose replays would repeat the random "
            "numbers; capture with accelrt.graph, or draw them outside"
        )
    if record.ordinal != stream.device_index:
        raise RuntimeError(
            f"a capture that began on device {record.ordinal} draws no random numbers on device "
            f"{stream.device_index}; capture those in a graph of that device"
        )
    with making:
        if isinstance(record.random, tuple):
            record.random = GraphStates(record.random)
    return cast("GraphStates", record.random)
