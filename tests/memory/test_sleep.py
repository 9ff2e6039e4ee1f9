"""Sleep and wake: addresses, contents, figures and graphs."""

import gc
import os
import threading

import numpy as np
import pytest
from beside import until_over
from sleepers import MIB, assert_contents, fill_buffers, free_bytes, random_bytes

import accelrt
from accelrt import memory

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"  # where nobody else uses the device meanwhile
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def test_contents_and_addresses_are_the_same_after_it():
    pool = accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [5 * MIB, 100, 3 * MIB, 12 * MIB, 700, 30 * MIB, 1, 70_000])
    addresses, before = [buffer.ptr for buffer in buffers], free_bytes()
    for _ in range(3):
        down = pool.sleep()
        assert pool.is_asleep()
        assert "asleep" in repr(pool)
        memory.audit()
        up = pool.wake()
        assert not pool.is_asleep()
        memory.audit()
        assert_contents(buffers, contents)
        assert down.bytes == up.bytes == pool.stats()["reserved_bytes.current"]
        assert down.copied == up.copied >= sum(map(len, contents))
        assert 0 < down.copy_seconds <= down.seconds
    assert [buffer.ptr for buffer in buffers] == addresses
    assert free_bytes() == before or not ON_HOST


def test_the_device_has_all_of_the_memory_meanwhile():
    before, pool = free_bytes(), accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [64 * MIB, 30 * MIB])
    held, reserved = pool.stats()["reserved_bytes.current"], accelrt.memory_reserved()
    assert held >= 94 * MIB
    if ON_HOST:
        assert before - free_bytes() == held
    result = pool.sleep()
    assert result.bytes == held
    if ON_HOST:
        assert free_bytes() == before
    assert accelrt.memory_reserved() == reserved - held
    assert memory.sleeping() == memory.memory_stat("sleeping_bytes") == held
    assert accelrt.memory_allocated() == 94 * MIB
    stats = pool.stats()
    assert (stats["reserved_bytes.current"], stats["sleeping_bytes"]) == (0, held)
    assert stats["allocated_bytes.current"] == 94 * MIB
    assert all(segment["asleep"] for segment in pool.snapshot())
    states = {block["state"] for segment in pool.snapshot() for block in segment["blocks"]}
    assert "active_allocated" in states
    pool.wake()
    assert memory.sleeping() == 0
    assert accelrt.memory_reserved() == reserved
    assert not any(segment["asleep"] for segment in pool.snapshot())
    assert_contents(buffers, contents)


def test_only_live_memory_is_copied_and_near_blocks_together():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffers = [accelrt.Buffer(4096) for _ in range(200)]
        large = accelrt.Buffer(20 * MIB)
    kept = buffers[::2]
    contents = [random_bytes(4096, seed) for seed in range(100)]
    for buffer, content in zip(kept, contents, strict=True):
        buffer.copy_from(content)
    del large, buffers
    assert 100 * 4096 <= pool.sleep().copied <= 200 * 4096
    pool.wake()
    assert_contents(kept, contents)


def test_discarded_contents_need_no_host_memory():
    pool = accelrt.MemPool()
    buffers, _ = fill_buffers(pool, [20 * MIB])
    gc.collect()
    active = accelrt.host_memory_stats()["active_bytes.current"]
    result = pool.sleep("discard")
    assert (result.bytes >= 20 * MIB, result.copied) == (True, 0)
    assert accelrt.host_memory_stats()["active_bytes.current"] == active
    pool.wake()
    buffers[0].fill(7)
    assert_contents(buffers, [np.full(20 * MIB, 7, np.uint8)])


def test_a_second_sleep_finds_the_host_memory_of_the_first():
    pool = accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [40 * MIB])
    pool.sleep()
    pool.wake()
    taken = accelrt.host_memory_stats()["num_host_alloc"]
    pool.sleep()
    assert accelrt.host_memory_stats()["num_host_alloc"] == taken
    pool.wake()
    assert_contents(buffers, contents)


def test_a_captured_graph_is_replayed_right_after_it():
    pool, graph, stream = accelrt.MemPool(), accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.use_mem_pool(pool), accelrt.stream(stream):
        source, target = accelrt.Buffer(3 * MIB), accelrt.Buffer(3 * MIB)
        with accelrt.graph(graph, pool=pool, stream=stream):
            between = accelrt.Buffer(3 * MIB)
            between.copy_from(source, blocking=False)
            target.copy_from(between, blocking=False)
            del between
    content = random_bytes(3 * MIB)
    source.copy_from(content)
    for keep in ("host", "host", "discard"):
        pool.sleep(keep)
        with pytest.raises(accelrt.SleepingMemoryError, match="wake the pool"), accelrt.stream(stream):
            graph.replay()
        pool.wake()
        if keep == "discard":
            source.copy_from(content)
        target.fill(0)
        accelrt.synchronize()
        with accelrt.stream(stream):
            graph.replay()
        accelrt.synchronize()
        assert_contents([source, target], [content, content])


def test_a_pool_that_only_graphs_use_sleeps_by_its_id():
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.graph(graph, stream=stream):
        kept = accelrt.Buffer(2 * MIB, stream=stream)
        kept.fill(3, stream=stream)
    memory.sleep(graph.pool())
    assert memory.sleeping() >= 2 * MIB
    assert graph.memory_stats()["sleeping_bytes"] == memory.sleeping()
    with pytest.raises(accelrt.SleepingMemoryError):
        graph.replay()
    memory.wake(graph.pool())
    graph.replay()
    accelrt.synchronize()
    assert_contents([kept], [np.full(2 * MIB, 3, np.uint8)])


def test_a_graph_that_copies_memory_of_a_sleeping_pool_is_not_replayed():
    pool, graph, stream = accelrt.MemPool(), accelrt.CUDAGraph(), accelrt.Stream()
    (source,), contents = fill_buffers(pool, [MIB])
    target = accelrt.Buffer(MIB, stream=stream)
    with accelrt.graph(graph, stream=stream):
        target.copy_from(source, stream=stream, blocking=False)
    pool.sleep()
    with pytest.raises(accelrt.SleepingMemoryError, match=r"replay\(pool=.*wake the pool"):
        graph.replay()
    pool.wake()
    graph.replay()
    accelrt.synchronize()
    assert_contents([target], contents)


def test_stitched_memory_sleeps_too():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        apart = [alloc(2 * MIB) for _ in range(16)]
        for address in apart[::2]:
            delete(address)
        buffer = accelrt.Buffer(16 * MIB)  # of the pages between those that are live
    if memory.memory_stat("stitched_bytes") == 0:
        pytest.skip("nothing was stitched")
    content = random_bytes(16 * MIB)
    buffer.copy_from(content)
    pool.sleep()
    assert memory.memory_stat("stitched_bytes") == 0
    memory.audit()
    pool.wake()
    assert memory.memory_stat("stitched_bytes") == 16 * MIB
    assert_contents([buffer], [content])
    pool.sleep()
    for address in apart[1::2]:
        delete(address)
    buffer.free()  # its pages return to their expandable segments while they have no memory
    memory.audit()
    pool.wake()


def test_memory_is_freed_meanwhile():
    pool, other = accelrt.MemPool(), accelrt.Stream()
    buffers, contents = fill_buffers(pool, [MIB, 9 * MIB, 2 * MIB, 4 * MIB])
    buffers[1].record_stream(other)
    pool.sleep()
    for at in (1, 2):
        buffers[at].free()
        memory.audit()
    assert pool.stats()["allocated_bytes.current"] == 5 * MIB
    assert pool.wake().copied < 16 * MIB
    assert_contents([buffers[0], buffers[3]], [contents[0], contents[3]])
    with accelrt.use_mem_pool(pool):
        again = accelrt.Buffer(2 * MIB)
        again.fill(1)


def test_work_that_is_under_way_comes_first():
    pool, stream, gate = accelrt.MemPool(), accelrt.Stream(), threading.Event()
    (buffer,), _ = fill_buffers(pool, [2 * MIB])
    stream.launch_host_func(gate.wait)
    buffer.fill(5, stream=stream)
    threading.Timer(0.05, gate.set).start()
    pool.sleep()
    pool.wake()
    assert_contents([buffer], [np.full(2 * MIB, 5, np.uint8)])


# what is refused


def test_the_memory_of_a_tag_sleeps_by_its_name():
    with pytest.raises(ValueError, match="sleepable"):
        memory.sleep("nothing has this tag")
    with memory.sleepable("weights"):
        buffer = accelrt.Buffer(3 * MIB)
    assert memory.memory_stats()["tag.weights.allocated_bytes.current"] == 3 * MIB
    assert memory.tag_pool("weights") is memory.tag_pool("weights")
    content = random_bytes(3 * MIB)
    buffer.copy_from(content)
    assert memory.sleep("weights").copied == 3 * MIB
    memory.wake("weights")
    assert_contents([buffer], [content])
    buffer.free()
    with accelrt.use_mem_pool(memory.tag_pool("weights")):
        accelrt.empty_cache()
    with pytest.raises(TypeError, match="a tag is a str"):
        memory.tag_pool(3)
    with pytest.raises(ValueError, match="name is empty"):
        memory.sleepable("")


def test_a_pool_that_was_never_allocated_from_sleeps():
    pool = accelrt.MemPool()
    assert pool.sleep().bytes == 0
    with accelrt.use_mem_pool(pool), pytest.raises(accelrt.SleepingMemoryError):
        alloc(512)
    assert pool.wake().bytes == 0
    pool.sleep()
    del pool


def test_the_history_has_an_event_for_each_run_of_pages():
    pool = accelrt.MemPool()
    buffers, _ = fill_buffers(pool, [3 * MIB, 20 * MIB])
    memory.record_history()
    try:
        asleep = pool.sleep().bytes
        pool.wake()
        (events,) = memory.snapshot(0)["accelrt"]["events"]
    finally:
        memory.record_history(None)
    for action in ("sleep", "wake"):
        found = [event for event in events if event["action"] == action]
        assert sum(event["size"] for event in found) == asleep
        assert {event["pool"] for event in found} == {pool.id}
        assert any("test_sleep" in frame["filename"] for frame in found[0]["frames"])
        assert any(event["addr"] <= buffers[0].ptr < event["addr"] + event["size"] for event in found)


def test_other_threads_go_on():
    pool = accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [8 * MIB, 3 * MIB])

    def churn(over, seed):
        chance, held = np.random.default_rng(seed), []
        while not over.is_set():
            if held and chance.random() < 0.5:
                delete(held.pop(chance.integers(len(held))))
            else:
                held.append(alloc(int(chance.integers(1, 3 * MIB))))
        for address in held:
            delete(address)

    with until_over(churn, range(2)):
        for _ in range(12):
            pool.sleep()
            pool.wake()
    assert_contents(buffers, contents)
