"""Pools of page-locked memory: limits, figures, nodes, and whose memory goes where."""

import gc
import threading

import numpy as np
import pytest
from beside import Gate
from child import in_own_process

import accelrt
from accelrt import memory

MIB = 1 << 20


def in_all(key="allocated_bytes.current"):
    return accelrt.host_memory_stats()[key]


def test_a_pools_memory_is_counted_in_it_and_in_all():
    accelrt.init()
    before = in_all("active_bytes.current")
    pool = accelrt.PinnedMemPool()
    pinned = accelrt.PinnedBuffer(3 * MIB, pool=pool)
    other = accelrt.PinnedBuffer(MIB)
    assert pool.stats()["active_bytes.current"] == 3 * MIB
    assert pool.stats()["active_requests.current"] == 1
    assert in_all("active_bytes.current") - before == 4 * MIB
    np.frombuffer(pinned, np.uint8)[:] = 5
    buffer = accelrt.Buffer(3 * MIB)
    buffer.copy_from(pinned)
    back = accelrt.PinnedBuffer(3 * MIB, pool=pool)
    buffer.copy_to(back)
    assert (np.frombuffer(back, np.uint8) == 5).all()
    assert pool.stats()["active_bytes.peak"] == 6 * MIB
    assert memory.is_pinned(back)
    assert other.nbytes


def test_a_threads_memory_comes_from_the_pool_that_it_entered():
    outer, inner = accelrt.PinnedMemPool(), accelrt.PinnedMemPool()
    live, found = [], []
    with accelrt.use_mem_pool(outer):
        live.append(accelrt.pinned_empty(MIB, "uint8"))
        with accelrt.use_mem_pool(inner):
            live.append(accelrt.empty(2 * MIB, dtype="uint8", pin_memory=True))
            thread = threading.Thread(target=lambda: found.append(accelrt.PinnedBuffer(4 * MIB)))
            thread.start()
            thread.join()
        live.append(accelrt.PinnedBuffer(MIB))
    live.append(accelrt.PinnedBuffer(8 * MIB))
    assert outer.stats()["active_bytes.current"] == 2 * MIB
    assert inner.stats()["active_bytes.current"] == 2 * MIB
    assert in_all("active_bytes.current") == 16 * MIB


def test_a_limit_holds_and_says_so():
    pool = accelrt.PinnedMemPool(limit=8 * MIB)
    assert pool.limit == 8 * MIB
    first = accelrt.PinnedBuffer(6 * MIB, pool=pool)
    with pytest.raises(accelrt.OutOfMemoryError, match="the pool's limit of 8388608 bytes") as caught:
        accelrt.PinnedBuffer(6 * MIB, pool=pool)
    assert (caught.value.refused_by, caught.value.limit) == ("pool", 8 * MIB)
    first.free()
    assert accelrt.PinnedBuffer(7 * MIB, pool=pool).nbytes  # what was idle made room
    assert pool.stats()["allocated_bytes.peak"] <= 8 * MIB
    assert accelrt.PinnedBuffer(20 * MIB).nbytes  # of the common cache


def test_threads_together_keep_to_a_limit():
    pool, kept = accelrt.PinnedMemPool(limit=16 * MIB), []

    def work():
        for _ in range(50):
            try:
                kept.append(accelrt.PinnedBuffer(3 * MIB, pool=pool))
            except accelrt.OutOfMemoryError:
                kept.clear()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats()["allocated_bytes.peak"] <= 16 * MIB


def test_idle_memory_is_the_pools_until_it_ends():
    pool = accelrt.PinnedMemPool()
    address = accelrt.PinnedBuffer(3 * MIB, pool=pool).ptr
    accelrt.host_empty_cache()
    assert pool.stats()["allocated_bytes.current"] == 3 * MIB
    assert accelrt.PinnedBuffer(3 * MIB, pool=pool).ptr == address
    pool.empty_cache()
    assert pool.stats()["allocated_bytes.current"] == 0
    accelrt.PinnedBuffer(3 * MIB, pool=pool)
    del pool
    gc.collect()
    assert in_all() == 0


def test_live_memory_outlives_its_pool():
    pool = accelrt.PinnedMemPool()
    pinned = accelrt.PinnedBuffer(3 * MIB, pool=pool)
    del pool
    gc.collect()
    np.frombuffer(pinned, np.uint8)[:] = 1
    assert in_all() == 3 * MIB
    del pinned
    gc.collect()
    accelrt.host_empty_cache()
    assert in_all() == 0


def test_many_pools_one_after_the_other_leave_nothing():
    for _ in range(2000):
        pool = accelrt.PinnedMemPool(limit=4 * MIB)
        accelrt.PinnedBuffer(100, pool=pool)
        assert pool.stats()["num_host_alloc"] == 1
        del pool
    assert in_all() == 0


def test_memory_in_use_on_a_stream_is_not_handed_out():
    pool = accelrt.PinnedMemPool(limit=4 * MIB)
    stream = accelrt.Stream()
    with Gate(stream):
        pinned = accelrt.PinnedBuffer(3 * MIB, pool=pool)
        buffer = accelrt.Buffer(3 * MIB, stream=stream)
        buffer.copy_from(pinned, stream=stream, blocking=False)
        address = pinned.ptr
        pinned.free()
        assert pool.stats()["active_requests.current"] == 1
    stream.synchronize()
    assert accelrt.PinnedBuffer(3 * MIB, pool=pool).ptr == address


def test_what_the_driver_refuses_is_taken_from_others_idle_memory():
    pool = accelrt.PinnedMemPool()
    accelrt.PinnedBuffer(3 * MIB, pool=pool)
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.PinnedBuffer(1 << 42)
    assert pool.stats()["allocated_bytes.current"] == 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bits", [42, 50])
def test_more_than_the_host_has_is_refused_before_a_page_of_it_is_made(bits, shared):
    """Making the pages would not fail: the system would end the process for want of memory."""
    with pytest.raises(accelrt.OutOfMemoryError, match=r"the host has .* available"):
        accelrt.PinnedBuffer(1 << bits, shared=shared)


def test_a_snapshot_shows_segments_and_blocks():
    pool = accelrt.PinnedMemPool(numa_node=0)
    pinned = accelrt.PinnedBuffer(3 * MIB, pool=pool)
    shared = accelrt.PinnedBuffer(2 * MIB, shared=True)
    small = [accelrt.PinnedBuffer(1000) for _ in range(100)]
    segments = memory.host_memory_snapshot()
    assert sum(each["total_size"] for each in segments) == in_all()
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["blocks"][0]["address"] == segment["address"]
    live = [block for each in segments for block in each["blocks"] if block["state"] == "active_allocated"]
    assert {block["address"] for block in live} == {each.ptr for each in (pinned, shared, *small)}
    by_address = {each["address"]: each for each in segments}
    first, second = by_address[pinned.ptr], by_address[shared.ptr]
    assert (first["numa_node"], first["registered"], first["shared"]) == (0, True, False)
    assert (second["numa_node"], second["pool"], second["shared"]) == (None, 0, True)
    assert first["pool"] > 0


REFUSALS = [
    (lambda: accelrt.PinnedMemPool(limit=-1), ValueError, "limit is -1"),
    (lambda: accelrt.PinnedMemPool(limit=1.5), TypeError, "limit"),
    (lambda: accelrt.PinnedMemPool(limit=1000), ValueError, "2 MiB"),
    (lambda: accelrt.PinnedMemPool(numa_node=-1), ValueError, "no such node"),
    (lambda: accelrt.PinnedMemPool(numa_node=999), ValueError, "no such node"),
    (lambda: accelrt.PinnedMemPool(numa_node="0"), TypeError, "numa_node"),
    (lambda: accelrt.PinnedBuffer(64, pool=accelrt.MemPool()), TypeError, "pass a PinnedMemPool"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSALS)
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_memory_of_a_node_is_registered_there():
    pool = accelrt.PinnedMemPool(numa_node=0)
    assert pool.numa_node == 0
    assert "on NUMA node 0" in repr(pool)
    pinned = accelrt.PinnedBuffer(3 * MIB, pool=pool)
    np.frombuffer(pinned, np.uint8)[:] = 9
    buffer = accelrt.Buffer(3 * MIB)
    buffer.copy_from(pinned)
    assert memory.is_pinned(pinned)
    assert pool.stats()["num_host_alloc"] == 1


@in_own_process(ACCELRT_HOST_NODES="2", ACCELRT_HOST_DEVICES="4")
def test_the_cache_is_split_by_the_nodes_nearest_to_devices():
    accelrt.init()
    buffers = [accelrt.PinnedBuffer(MIB * (device + 1), device) for device in range(4)]
    stats = accelrt.host_memory_stats()
    assert stats["numa_node.0.active_bytes.current"] == (1 + 3) * MIB
    assert stats["numa_node.1.active_bytes.current"] == (2 + 4) * MIB
    assert stats["active_bytes.current"] == 10 * MIB
    address = buffers[1].ptr
    buffers[1].free()
    assert accelrt.PinnedBuffer(2 * MIB, 0).ptr != address
    with accelrt.device(1):  # the current device decides where none is named
        assert accelrt.PinnedBuffer(2 * MIB).ptr == address
    assert accelrt.PinnedMemPool(numa_node=1).numa_node == 1
    memory.host_audit()
    del buffers
    gc.collect()
    accelrt.host_empty_cache()
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0


@in_own_process(ACCELRT_HOST_NODES="2", ACCELRT_HOST_DEVICES="2")
def test_what_sleeps_lies_on_the_node_nearest_to_its_device_and_is_counted_there():
    with accelrt.device(1):
        pool = accelrt.MemPool()
        with accelrt.use_mem_pool(pool):
            buffer = accelrt.Buffer(4 * MIB)
        pool.sleep()
        stats = accelrt.host_memory_stats()
        assert stats["numa_node.1.active_bytes.current"] == stats["active_bytes.current"] == 4 * MIB
        assert "numa_node.0.active_bytes.current" not in stats
        pool.wake()
        memory.host_audit()
        del buffer


@in_own_process()
def test_a_fork_leaves_the_childs_pools_empty():
    import os

    pool = accelrt.PinnedMemPool(limit=8 * MIB)
    pinned = accelrt.PinnedBuffer(3 * MIB, pool=pool)
    child = os.fork()
    if child == 0:
        ok = pool.limit == 8 * MIB and pool.stats()["allocated_bytes.current"] == 0
        del pinned
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.stats()["active_bytes.current"] == 3 * MIB
    assert pinned.nbytes


def test_page_locked_memory_is_filled_and_copied_in_a_streams_order():
    stream = accelrt.Stream()
    first, second = accelrt.PinnedBuffer(MIB), accelrt.PinnedBuffer(MIB)
    array = accelrt.pinned_empty(1000, "uint16")
    array[:] = 0
    accelrt.fill(first, 3, stream=stream, blocking=True)
    with Gate(stream) as gate:
        accelrt.fill(first, 7, stream=stream)
        accelrt.fill(array, 513, 500, width=2, offset=1000, stream=stream)
        assert (np.frombuffer(first, np.uint8) == 3).all()
        assert (array == 0).all()
        gate.open.set()
        accelrt.copy(second, first, stream=stream)  # behind the fill, and waited for
    assert (np.frombuffer(second, np.uint8) == 7).all()
    assert (array[:500] == 0).all()
    assert (array[500:] == 513).all()
    accelrt.fill(second, 1)
    accelrt.synchronize()
    assert (np.frombuffer(second, np.uint8) == 1).all()


def test_memory_that_is_filled_is_not_handed_out_before():
    stream, pinned = accelrt.Stream(), accelrt.PinnedBuffer(3 * MIB)
    with Gate(stream):
        accelrt.fill(pinned, 7, stream=stream)
        pinned.free()
        assert accelrt.host_memory_stats()["active_requests.current"] == 1
    stream.synchronize()


def test_a_replay_fills_and_copies_page_locked_memory():
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    first, second = accelrt.PinnedBuffer(MIB), accelrt.PinnedBuffer(MIB)
    with accelrt.graph(graph, stream=stream):
        accelrt.fill(first, 9, stream=stream)
        accelrt.copy(second, first, stream=stream, blocking=False)
    view = np.frombuffer(second, np.uint8)
    view[:] = 0
    del first  # the graph keeps it
    with accelrt.stream(stream):
        graph.replay()
    stream.synchronize()
    assert (view == 9).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: accelrt.copy(a, b),
        lambda a, b: accelrt.copy(np.zeros(64, np.uint8), a, stream=0),
        lambda a, b: accelrt.copy(a, bytes(64), stream=0),
    ],
)
def test_copies_of_host_memory_want_a_stream_and_page_locked_sides(call):
    with pytest.raises(ValueError, match="both sides are host memory"):
        call(accelrt.PinnedBuffer(64), accelrt.PinnedBuffer(64))
    with pytest.raises(TypeError, match="is host memory"):
        accelrt.fill(np.zeros(8, np.uint8), 1)
