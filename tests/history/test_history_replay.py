"""The recorded events lead to the state that the allocator is in, whatever was done, by many threads."""

import gc
import random

import pytest
from beside import until_over
from child import in_child, in_own_process
from history_replay import check, program, steps

import accelrt
from accelrt import memory
from accelrt.memory.history import recording

pytestmark = pytest.mark.own_process
ROOM = {"ACCELRT_HOST_MEMORY": "8GiB"}


@pytest.mark.host
@pytest.mark.parametrize("level", ["0", "1", "2"])
@pytest.mark.parametrize("settings", ["expandable_segments:True", "expandable_segments:False"])
@pytest.mark.parametrize("threads", [1, 4])
def test_events_lead_to_the_state(level, settings, threads):
    count = 600 if level == "0" else 200
    in_child(program, threads, count, ACCELRT_DEBUG=level, ACCELRT_ALLOC_CONF=settings, **ROOM)


@pytest.mark.host
def test_stacks_of_threads_that_allocate_side_by_side():
    in_child(program, 3, 200, ACCELRT_DEBUG="0", **ROOM)


@pytest.mark.gpu
def test_events_lead_to_the_state_on_a_gpu():
    in_child(program, 4, 500, ACCELRT_DRIVER="cuda", ACCELRT_DEBUG="0")


@pytest.mark.host
@in_own_process
def test_pages_that_move_are_told():
    memory.record_history()
    for part in range(4):
        small = [accelrt.caching_allocator_alloc(6 << 20) for _ in range(12)]
        for address in small[::2]:
            accelrt.caching_allocator_delete(address)
        large = accelrt.caching_allocator_alloc(30 << 20)
        check()
        accelrt.caching_allocator_delete(large)
        for address in small[1::2]:
            accelrt.caching_allocator_delete(address)
        check()
        if part == 2:
            accelrt.empty_cache()
            check()
    names = {event["action"] for event in memory.snapshot()["accelrt"]["events"][0]}
    assert {"stitch", "unstitch"} <= names


@pytest.mark.host
@pytest.mark.parametrize("level", ["0", "2"])
@in_own_process(ACCELRT_DEBUG="{level}", **ROOM)
def test_recording_changes_while_threads_allocate(level):
    chance = random.Random(7)

    def use(over, seed):
        streams, pool = [accelrt.Stream()], memory.MemPool()
        kept = []
        while not over.is_set():
            kept += steps(seed, 20, streams, pool)
            while len(kept) > 100:  # the recordings may take long
                accelrt.caching_allocator_delete(kept.pop(0)[0])
            seed += 1
        for address, _ in kept:
            accelrt.caching_allocator_delete(address)

    with until_over(use, range(0, 4000, 1000)):
        for _ in range(150):
            enabled = chance.choice(["all", "state", None])
            context = chance.choice([None, "state", "alloc", "all"])
            memory.record_history(enabled, context, max_entries=chance.choice([10, 1000, 100_000]))
            if chance.random() < 0.1:
                memory.snapshot()
            memory.audit()
    figures = recording.tag_stats(0)
    assert sum(stats["allocated_bytes"]["current"] for stats in figures.values()) == 0
    assert accelrt.memory_allocated(0) == 0
    memory.record_history(clear_history=True, max_entries=1 << 20)
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(1000, 0))


def many_streams_and_captures(device):
    memory.record_history(max_entries=1 << 20)
    accelrt.set_device(device)
    chance, streams = random.Random(3), [accelrt.Stream() for _ in range(60)]  # most heaps fall asleep
    live, graphs = [], []
    for part in range(6):
        for stream in streams:
            live.append(accelrt.caching_allocator_alloc(chance.choice([1000, 3 << 20]), stream=stream))
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph), memory.tag("captured"):
            buffer = accelrt.Buffer(5 << 20)
            buffer.fill(1)
            accelrt.Buffer(1 << 20).free()
        graph.replay()
        graphs.append((graph, buffer))
        for _ in range(40):
            accelrt.caching_allocator_delete(live.pop(chance.randrange(len(live))))
        if part == 3:
            accelrt.empty_cache()
        check(device)
    for address in live:
        accelrt.caching_allocator_delete(address)
    accelrt.synchronize()
    del graph, buffer
    graphs.clear()
    gc.collect()
    accelrt.empty_cache()
    snapshot = check(device)
    assert snapshot["segments"] == []
    assert snapshot["accelrt"]["tags"][device]["captured"]["allocation"]["current"] == 0


@pytest.mark.host
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("settings", ["expandable_segments:True", "expandable_segments:False"])
def test_events_of_many_streams_and_of_captures(device, settings):
    in_child(many_streams_and_captures, device, ACCELRT_ALLOC_CONF=settings, **ROOM)


@pytest.mark.gpu
def test_events_of_many_streams_and_of_captures_on_a_gpu():
    in_child(many_streams_and_captures, 0, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@in_own_process
def test_a_restored_pool_is_told():
    memory.record_history()
    pool = memory.MemPool()
    with memory.use_mem_pool(pool), memory.tag("branch"):
        first = accelrt.caching_allocator_alloc(5 << 20)
        state = memory.get_checkpoint_state(pool)
        second = accelrt.caching_allocator_alloc(9 << 20)
    check()
    memory.set_checkpoint_state(state)
    snapshot = check()
    assert snapshot["accelrt"]["tags"][0]["branch"]["allocation"]["current"] == 1
    with memory.use_mem_pool(pool):
        third = accelrt.caching_allocator_alloc(9 << 20)
    assert third == second
    check()
    for address in (first, third):
        accelrt.caching_allocator_delete(address)
    del pool
    check()
