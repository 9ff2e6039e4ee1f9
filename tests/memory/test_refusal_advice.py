"""Random work on a small device: whenever a request is refused and the error says what makes it fit, that is
done, and the same request is served.
"""

import random
import re

import pytest
from refused_requests import MIB, PLAIN, run

import accelrt

pytestmark = [pytest.mark.host, pytest.mark.own_process]
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
SETTLED = "What makes it fit, any of:"


class Work:
    """Allocations on three streams, in pools and outside, and graphs that hold memory."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.streams = [accelrt.default_stream(), accelrt.Stream(), accelrt.Stream()]
        self.pools = [None, accelrt.MemPool(), accelrt.MemPool(limit=96 * MIB)]
        self.live, self.graphs, self.followed = [], [], 0

    def size(self):
        least, most = self.random.choice(
            [(512, 2 * MIB), (MIB, 40 * MIB), (MIB, 40 * MIB), (20 * MIB, 200 * MIB)]
        )
        return self.random.randrange(least, most)

    def take(self, size, stream, pool):
        if pool is None:
            self.live.append((alloc(size, stream=stream), pool))
        else:
            with accelrt.use_mem_pool(pool):
                self.live.append((alloc(size, stream=stream), pool))

    def free_some(self, count):
        for _ in range(min(count, len(self.live))):
            delete(self.live.pop(self.random.randrange(len(self.live)))[0])

    def capture(self):
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph):
            buffer = accelrt.Buffer(self.random.randrange(MIB, 40 * MIB))
            buffer.fill(0)
            buffer.free()
        self.graphs.append(graph)
        if len(self.graphs) > 3:
            self.graphs.pop(0).reset()

    def pool_named(self, advice):
        number = int(re.search(r"pool \(0, (\d+)\)", advice)[1])
        return next(pool for pool in self.pools if pool is not None and pool.id == (0, number))

    def follow(self, advice, size, stream, pool):
        """Does what the text advises, and the request again; what it cannot do here it leaves."""
        if call := re.search(r"set_per_process_memory_fraction\(([\d.]+), 0\)", advice):
            accelrt.set_per_process_memory_fraction(float(call[1]))
        elif advice.startswith("drop graphs"):
            accelrt.synchronize()
            for graph in self.graphs:
                graph.reset()
            self.graphs.clear()
        elif advice.startswith("leave use_mem_pool"):
            pool = None
        elif advice.startswith("allocate inside"):
            pool = self.pool_named(advice)
        elif advice.startswith("free the live memory of pool"):
            emptied = self.pool_named(advice)
            for address, where in self.live:
                if where is emptied:
                    delete(address)
            self.live = [held for held in self.live if held[1] is not emptied]
        elif advice != "try again":
            return
        self.take(size, stream, pool)
        self.followed += 1

    def request(self):
        size, stream, pool = self.size(), self.random.choice(self.streams), self.random.choice(self.pools)
        try:
            self.take(size, stream, pool)
        except accelrt.OutOfMemoryError as error:
            check_sums(error)
            text = str(error)
            settled = re.findall(r"^  - (.*)$", text.partition(SETTLED)[2].partition("What helps:")[0], re.M)
            if settled:
                self.follow(self.random.choice(settled), size, stream, pool)
            self.free_some(self.random.randrange(3, 12))


def check_sums(error):
    assert error.idle == error.reserved - error.live - error.pending
    for key in ("live", "pending", "idle"):
        assert sum(stream[key] for stream in error.by_stream) <= getattr(error, key)
        assert sum(pool[key] for pool in error.by_pool) == sum(stream[key] for stream in error.by_stream)
    assert sum(pool["reserved"] for pool in error.by_pool) == error.reserved


def work(seed):
    done = Work(seed)
    for _ in range(1500):
        chance = done.random.random()
        if chance < 0.55:
            done.request()
        elif chance < 0.93:
            done.free_some(1)
        elif chance < 0.96:
            try:
                done.capture()
            except accelrt.OutOfMemoryError:
                done.free_some(3)
        elif chance < 0.98:
            accelrt.set_per_process_memory_fraction(done.random.choice([1.0, 0.9, 0.7]))
        else:
            accelrt.synchronize()
    assert done.followed >= 5


@pytest.mark.parametrize("conf", ["", PLAIN, "piece_size_mb:16", "max_split_size_mb:64"])
def test_what_makes_it_fit_does(conf):
    run(work, conf, 1)
