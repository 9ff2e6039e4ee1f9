"""Random work of several streams on memory of all kinds, for long_runs.py, beside a model in NumPy.

Events order the uses of each piece of memory.  What is freed is not waited for: its bytes may be another
piece's as soon as the streams that use them are past that, which is for the allocators to know.
"""

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from definition_model import DifferenceError

import accelrt

# Of the last two the caller orders the users before the stream that the memory is of.
KINDS = (
    "device",
    "device",
    "pool",
    "managed",
    "page-locked",
    "page-locked pool",
    "pages",
    "driver",
    "resource",
)
ORDERED = ("driver", "resource")
PIECES, STREAMS, PAGES = 24, 4, 16
SIZES = (512, 4096, 70_000, 1 << 20)
LOOK = 60  # operations between two looks at all memory
SIGNATURE = "unsigned char* to, const unsigned char* from, int count, int number, int turns"
SLOW = (
    f'extern "C" __global__ void mix({SIGNATURE})'
    """ {
    for (volatile int turn = 0; turn < turns; turn = turn + 1) {}
    for (int index = threadIdx.x; index < count; index += blockDim.x)
        to[index] = to[index] * 3 + from[index] + number;
}
"""
)
Memory = accelrt.Buffer | accelrt.PinnedBuffer | accelrt.resources.DeviceBuffer


class Piece:
    """Memory and what the model says is in it.

    Attributes:
        home: the stream that it was allocated on.
        stream, event: of its last use.
    """

    def __init__(self, memory: Memory, kind: str, stream: accelrt.Stream, page: int | None) -> None:
        self.memory, self.kind, self.page = memory, kind, page
        self.home = self.stream = stream
        self.expected = np.zeros(memory.nbytes, np.uint8)
        self.event = accelrt.Event()

    def is_locked(self) -> bool:
        """Whether it is page-locked, which kernels are not given here."""
        return self.kind.startswith("page-locked")

    def array(self) -> accelrt.Array:
        if self.kind in ORDERED:
            return accelrt.asarray(self.memory)
        return accelrt.Array(self.memory, None, np.uint8)


class Streams:
    """Pieces of memory, and streams that work on them."""

    def __init__(self, chosen: random.Random) -> None:
        self.chosen = chosen
        self.mix = accelrt.compile(SLOW).function("mix", SIGNATURE)
        self.capturing = [accelrt.Stream() for _ in range(STREAMS)]
        self.streams = [*self.capturing, accelrt.Stream(nonblocking=False), accelrt.default_stream()]
        self.pool, self.locked_pool = accelrt.MemPool(), accelrt.memory.PinnedMemPool()
        self.driver_pool = accelrt.memory.DriverPool(max_size=1 << 30)
        self.resource = accelrt.resources.PoolResource()
        self.pages = accelrt.reserve(PAGES * (2 << 20), stream=self.streams[0], ahead=4 << 20)
        self.free_pages = list(range(PAGES))
        self.pieces: list[Piece] = []
        often = (self.copy, self.kernel, self.make, self.drop) * 3
        rare = (self.fill, self.batch, self.strided, self.graph, self.named, self.read, self.move, self.empty)
        self.operations: tuple[Callable[[accelrt.Stream], None], ...] = often + rare
        self.steps = 0
        while len(self.pieces) < PIECES:
            self.make(self.streams[0])

    def step(self) -> None:
        """One operation, and a look now and then."""
        self.chosen.choice(self.operations)(self.chosen.choice(self.streams))
        self.steps += 1
        if self.steps % LOOK == 0:
            self.look()

    def look(self) -> None:
        """Compares all memory."""
        for piece in self.pieces:
            self.read(self.streams[0], piece)

    def close(self) -> None:
        self.pieces.clear()
        self.pages.close()

    def begin(self, stream: accelrt.Stream, *pieces: Piece) -> None:
        """Has a stream come after the last use of each piece."""
        for piece in pieces:
            if piece.stream is not stream:
                stream.wait_event(piece.event)

    def end(self, stream: accelrt.Stream, *pieces: Piece) -> None:
        for piece in pieces:
            piece.stream, piece.event = stream, stream.record_event()

    # --- operations ---

    def make(self, stream: accelrt.Stream) -> None:
        """Allocates, and fills what nobody else should be using."""
        if len(self.pieces) >= 2 * PIECES:
            return
        kind = self.chosen.choice(KINDS)
        size = self.chosen.choice(SIZES) - self.chosen.choice((0, 0, 8, 100))
        page = self.free_pages.pop() if kind == "pages" and self.free_pages else None
        with accelrt.stream(stream):
            piece = Piece(self.allocated(kind, size, page, stream), kind, stream, page)
        self.pieces.append(piece)
        self.fill(stream, piece)

    def allocated(self, kind: str, size: int, page: int | None, stream: accelrt.Stream) -> Memory:
        if page is not None:
            place, nbytes = page * self.pages.page_bytes, self.pages.page_bytes
            self.pages.commit(place, nbytes, stream=stream)
            return self.pages.buffer(place, size)
        if kind == "pool":
            with accelrt.use_mem_pool(self.pool):
                return accelrt.Buffer(size)
        if kind == "page-locked":
            return accelrt.PinnedBuffer(size)
        if kind == "page-locked pool":
            return accelrt.PinnedBuffer(size, pool=self.locked_pool)
        if kind == "driver":
            return self.driver_pool.allocate(size)
        if kind == "resource":
            return accelrt.resources.DeviceBuffer(size, resource=self.resource)
        return accelrt.Buffer(size, managed=kind == "managed")

    def drop(self, stream: accelrt.Stream) -> None:
        """Frees memory in use."""
        if len(self.pieces) <= PIECES:
            return
        piece = self.pieces.pop(self.chosen.randrange(len(self.pieces)))
        if piece.page is not None:
            self.begin(stream, piece)
            self.pages.decommit(piece.page * self.pages.page_bytes, self.pages.page_bytes, stream=stream)
            self.free_pages.append(piece.page)
        elif piece.kind in ORDERED:
            self.begin(piece.home, piece)
        elif self.chosen.random() < 0.5:
            piece.memory.free()

    def fill(self, stream: accelrt.Stream, piece: Piece | None = None) -> None:
        piece, value = piece or self.chosen.choice(self.pieces), self.chosen.randrange(256)
        self.begin(stream, piece)
        accelrt.fill(piece.memory, value, stream=stream)
        piece.expected[:] = value
        self.end(stream, piece)

    def copy(self, stream: accelrt.Stream) -> None:
        to, origin = self.chosen.sample(self.pieces, 2)
        count = self.chosen.randint(1, min(to.memory.nbytes, origin.memory.nbytes))
        self.begin(stream, to, origin)
        accelrt.copy(to.memory, origin.memory, count, stream=stream, blocking=False)
        to.expected[:count] = origin.expected[:count]
        self.end(stream, to, origin)

    def kernel(self, stream: accelrt.Stream) -> None:
        """A kernel that may take a while, so that much is under way."""
        to, origin = self.chosen.sample([piece for piece in self.pieces if not piece.is_locked()], 2)
        count = self.chosen.randint(1, min(to.memory.nbytes, origin.memory.nbytes, 4096))
        number, turns = self.chosen.randrange(256), self.chosen.choice((0, 0, 2000, 40_000))
        self.begin(stream, to, origin)
        self.mix[1, 64, stream](to.memory, origin.memory, count, number, turns)
        target = to.expected[:count]
        target[:] = target * np.uint8(3) + origin.expected[:count] + np.uint8(number)
        self.end(stream, to, origin)

    def batch(self, stream: accelrt.Stream) -> None:
        """Several copies by one call."""
        pieces = self.chosen.sample(self.pieces, 6)
        tos, origins = pieces[:3], pieces[3:]
        sizes = [min(to.memory.nbytes, origin.memory.nbytes) for to, origin in zip(tos, origins, strict=True)]
        self.begin(stream, *pieces)
        accelrt.copy_many(
            [each.memory for each in tos], [each.memory for each in origins], sizes, stream=stream
        )
        for to, origin, size in zip(tos, origins, sizes, strict=True):
            to.expected[:size] = origin.expected[:size]
        self.end(stream, *pieces)

    def strided(self, stream: accelrt.Stream) -> None:
        """A copy of every other element."""
        to, origin = self.chosen.sample([piece for piece in self.pieces if not piece.is_locked()], 2)
        count = min(to.memory.nbytes, origin.memory.nbytes)
        self.begin(stream, to, origin)
        to.array()[:count:2].copy_(origin.array()[:count:2], non_blocking=True, stream=stream)
        to.expected[:count:2] = origin.expected[:count:2]
        self.end(stream, to, origin)

    def graph(self, _: accelrt.Stream) -> None:
        """A graph with memory of its own, dropped while its launches are under way."""
        stream, pieces = self.chosen.choice(self.capturing), self.chosen.sample(self.pieces, 3)
        size = min(piece.memory.nbytes for piece in pieces)
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            inner = accelrt.Buffer(size)
            places = [pieces[0].memory, inner, pieces[1].memory, pieces[2].memory]
            for origin, to in pairwise(places):
                accelrt.copy(to, origin, size, stream=stream, blocking=False)
        self.begin(stream, *pieces)
        with accelrt.stream(stream):
            for _ in range(2):
                graph.replay()
        for piece in pieces[1:]:
            piece.expected[:size] = pieces[0].expected[:size]
        self.end(stream, *pieces)

    def named(self, _: accelrt.Stream) -> None:
        """A graph that is given other memory, dropped with it under way."""
        able = [piece for piece in self.pieces if piece.kind == "device"]
        if len(able) < 4:
            return
        stream, pieces = self.chosen.choice(self.capturing), self.chosen.sample(able, 4)
        size = min(piece.memory.nbytes for piece in pieces)
        sides = [piece.memory[:size] for piece in pieces]
        graph = accelrt.CUDAGraph(keep_graph=True)
        with accelrt.graph(graph, stream=stream):
            accelrt.copy(sides[1], sides[0], blocking=False)
        arguments = accelrt.GraphParameters(graph, x=sides[0], y=sides[1])
        self.begin(stream, *pieces[2:])
        with accelrt.stream(stream):
            arguments.replay(x=sides[2], y=sides[3])
        pieces[3].expected[:size] = pieces[2].expected[:size]
        self.end(stream, *pieces[2:])

    def move(self, stream: accelrt.Stream) -> None:
        """Brings managed memory to the device or to the host."""
        able = [piece for piece in self.pieces if piece.kind == "managed"]
        if able:
            piece = self.chosen.choice(able)
            self.begin(stream, piece)
            accelrt.memory.prefetch(piece.memory, self.chosen.choice((None, "cpu")), stream=stream)
            self.end(stream, piece)

    def empty(self, _: accelrt.Stream) -> None:
        """Gives idle memory back, seldom, for it costs much."""
        if self.chosen.random() < 0.2:
            self.chosen.choice((accelrt.empty_cache, accelrt.memory.host_empty_cache))()

    def read(self, stream: accelrt.Stream, piece: Piece | None = None) -> None:
        """Compares a piece, by ordinary host memory."""
        piece = piece or self.chosen.choice(self.pieces)
        self.begin(stream, piece)
        if piece.is_locked():
            stream.synchronize()
            seen = np.frombuffer(piece.memory, np.uint8)
        else:
            seen = np.empty(piece.memory.nbytes, np.uint8)
            accelrt.copy(seen, piece.memory, stream=stream)
        places = np.flatnonzero(seen != piece.expected)
        if places.size:
            raise DifferenceError(
                f"{places.size} of {seen.size} bytes differ, the first of them at {places[0]}, of a piece of "
                f"kind {piece.kind}"
            )
        self.end(stream, piece)
