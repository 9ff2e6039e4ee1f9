"""Memory of resources that is allocated in a capture: it is the graph's for as long as the graph is."""

import numpy as np
import pytest

import accelrt
from accelrt import resources


class OnTop(resources.Resource):
    """A class of a user's, which hands out what accelrt's allocator gave it."""

    def __init__(self):
        super().__init__()
        self.below = resources.DeviceResource()

    def take(self, nbytes, stream):
        return self.below.allocate(nbytes, stream)

    def give_back(self, address, nbytes, stream):
        self.below.deallocate(address, nbytes, stream)


SOURCES = {
    "device": resources.DeviceResource,
    "managed": resources.ManagedResource,
    "pinned": resources.PinnedResource,
    "pool": resources.PoolResource,
    "pool of managed": lambda: resources.PoolResource(resources.ManagedResource()),
    "pool of pinned": lambda: resources.PoolResource(resources.PinnedResource()),
    "pool of a pool": lambda: resources.PoolResource(resources.PoolResource()),
    "statistics of a pool": lambda: resources.StatisticsAdaptor(resources.PoolResource()),
    "fixed": lambda: resources.FixedSizeResource(block_size=4096, blocks=1),
    "bins": lambda: resources.BinningResource(resources.DeviceResource(), 10, 14),
    "user's": OnTop,
}


def capture(resource, stream, graph):
    """Captures two fills and a copy, and answers the copy's target."""
    with accelrt.graph(graph, stream=stream):
        between = resource.buffer(4096)
        between.fill(7)
        last = resource.buffer(4096)
        last.copy_from(between, stream=stream, blocking=False)
    return last


def contents(buffer):
    back = np.empty(buffer.nbytes, np.uint8)
    buffer.copy_to(back, stream=buffer.stream)
    return set(back.tolist())


def judge_replay(resource, stream, graph):
    """A replay leaves alone what others have of the resource."""
    others = [resource.buffer(4096, stream) for _ in range(4)]
    for other in others:
        other.fill(1, stream=stream)
    with accelrt.stream(stream):
        graph.replay()
    assert [contents(other) for other in others] == [{1}] * 4


@pytest.mark.parametrize("name", SOURCES)
def test_replays_leave_alone_what_others_have(name):
    resource, stream, graph = SOURCES[name](), accelrt.Stream(), accelrt.CUDAGraph()
    last = capture(resource, stream, graph)
    judge_replay(resource, stream, graph)
    assert contents(last) == {7}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_dropped_behind_the_capture_stays_the_graphs(name):
    resource, stream, graph = SOURCES[name](), accelrt.Stream(), accelrt.CUDAGraph()
    last = capture(resource, stream, graph)
    del last
    judge_replay(resource, stream, graph)


def test_a_pool_has_the_memory_back_when_the_graph_ends():
    pool, stream, graph = resources.PoolResource(), accelrt.Stream(), accelrt.CUDAGraph()
    last = capture(pool, stream, graph)
    del last
    assert pool.used_bytes == 2 * 4096
    graph.replay()
    graph.reset()
    accelrt.synchronize()
    assert pool.used_bytes == 0
    assert pool.release() == 2 * 4096


def test_a_capture_takes_no_memory_that_earlier_work_of_its_stream_may_use():
    # The graph may run on another stream, which is not behind that work.
    pool, stream, graph = resources.PoolResource(), accelrt.Stream(), accelrt.CUDAGraph()
    earlier = pool.buffer(4096, stream)
    address = earlier.ptr
    del earlier
    assert pool.free_bytes == 4096
    with accelrt.graph(graph, stream=stream):
        captured = pool.buffer(4096)
        captured.fill(7)
    assert captured.ptr != address
    assert pool.buffer(4096, stream).ptr == address


def test_a_capture_takes_what_the_pool_had_at_the_beginning():
    pool, stream, graph = resources.PoolResource(initial=8192), accelrt.Stream(), accelrt.CUDAGraph()
    last = capture(pool, stream, graph)
    assert pool.total_bytes == 8192
    with accelrt.stream(stream):
        graph.replay()
    assert contents(last) == {7}


def test_addresses_are_the_pools_again_when_they_were_given_back():
    pool, stream, graph = resources.PoolResource(), accelrt.Stream(), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        address = pool.allocate(4096)
        accelrt.memory.buffer_at(address, 4096).fill(7)
        pool.deallocate(address, 4096)
    assert pool.used_bytes == 0


def test_what_is_allocated_in_a_capture_is_not_prefetched():
    managed = resources.PrefetchAdaptor(resources.ManagedResource())
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    last = capture(managed, stream, graph)
    with accelrt.stream(stream):
        graph.replay()
    assert contents(last) == {7}
