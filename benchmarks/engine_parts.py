"""The part of sleep_engine.py's stand-in that one device has: weights, a cache, and graphs."""

import numpy as np
from bench_sleep import MIB, check

import accelrt

PART = 1024 * MIB  # of weights, at most in one piece of memory
PIECE = 16 * MIB  # of one value


def counts_of(size: int) -> list[int]:
    """How many pieces each part of the weights has, which are six tenths of an engine."""
    pieces, whole = size * 6 // 10 // PIECE, PART // PIECE
    return [min(whole, pieces - first) for first in range(0, pieces, whole)]


def value_of(number: int, piece: int) -> int:
    """What fills a piece of a part of the weights."""
    return number * (PART // PIECE) + piece + 1


class Engine:
    """The part of the stand-in that one device has."""

    def __init__(self, device: int):
        self.device = device
        self.pools = {name: accelrt.MemPool(device=device) for name in ("weights", "cache", "graphs")}
        self.stream = accelrt.Stream(device)
        self.captures = 0

    def load(self) -> None:
        """Makes a kernel, and launches it."""
        self.kernel = accelrt.elementwise("float32 x", "float32 y", "y = x * 2 + 1", name="layer")
        with accelrt.device(self.device):
            self.kernel(accelrt.zeros(16, "float32"))

    def start_libraries(self) -> None:
        """Has libraries take what they need of the device; here is none."""

    def fill(self, size: int) -> None:
        """Takes the weights and the cache."""
        counts = counts_of(size)
        with accelrt.device(self.device), accelrt.use_mem_pool(self.pools["weights"]):
            self.weights = [accelrt.Buffer(count * PIECE, stream=self.stream) for count in counts]
            self.input = accelrt.zeros(MIB // 4, "float32", stream=self.stream)
        with accelrt.device(self.device), accelrt.use_mem_pool(self.pools["cache"]):
            self.cache = accelrt.Buffer(size - sum(counts) * PIECE, stream=self.stream)
        for number, buffer in enumerate(self.weights):
            for at in range(0, len(buffer), PIECE):
                buffer.fill(value_of(number, at // PIECE), PIECE // 4, width=4, offset=at, stream=self.stream)
        with accelrt.device(self.device), accelrt.stream(self.stream):
            self.input.copy_(np.arange(MIB // 4, dtype=np.float32))

    def capture(self, graphs: int, shapes: int) -> None:
        """Captures layers of each shape, over and over, all in one pool."""
        self.graphs = []
        with accelrt.device(self.device):
            for number in range(graphs):
                count = self.input.size * (number % shapes + 1) // shapes
                graph = accelrt.CUDAGraph()
                with accelrt.graph(graph, pool=self.pools["graphs"], stream=self.stream):
                    result = self.input[:count]
                    for _ in range(4):
                        result = self.kernel(result)
                self.graphs.append((graph, result))
                self.captures += 1

    def addresses(self) -> list[int]:
        """Of all that graphs and programs know."""
        results = [result.ptr for _, result in self.graphs]
        return [*(buffer.ptr for buffer in self.weights), self.cache.ptr, self.input.ptr, *results]

    def replay(self) -> None:
        """Every graph, and what came out."""
        for graph, result in self.graphs:
            with accelrt.device(self.device), accelrt.stream(self.stream):
                result.fill_(0)
                graph.replay()
                numbers = result.numpy()
            wanted = np.arange(result.size, dtype=np.float32) * 16 + 15
            check(bool((numbers == wanted).all()), "a replay after the wake is wrong")

    def verify(self) -> None:
        """The weights are what they were."""
        out = accelrt.pinned_empty(PIECE, np.uint8)
        for number, buffer in enumerate(self.weights):
            for at in range(0, len(buffer), PIECE):
                buffer.copy_to(out, PIECE, offset=at, stream=self.stream)
                same = bool((out.view(np.uint32) == value_of(number, at // PIECE)).all())
                check(same, f"part {number} of the weights has other contents at {at:#x}")

    def sleep(self) -> dict[str, accelrt.memory.SleepResult]:
        """All pools; the cache's contents go."""
        return {
            name: pool.sleep("discard" if name == "cache" else "host") for name, pool in self.pools.items()
        }

    def wake(self) -> dict[str, accelrt.memory.SleepResult]:
        """All pools."""
        return {name: pool.wake() for name, pool in self.pools.items()}

    def reserved(self) -> int:
        """Bytes of the device that the allocator has."""
        return accelrt.memory_reserved(self.device)

    def shrink_stacks(self) -> int:
        """Gives back what the context keeps for the stacks of GPU threads; answers the limit before."""
        size = accelrt.get_limit("stack_size", self.device)
        accelrt.set_limit("stack_size", 0, self.device)
        return size

    def restore_stacks(self, size: int) -> None:
        """Takes it again."""
        accelrt.set_limit("stack_size", size, self.device)
