"""The recorded events lead to the state that the allocator is in, whatever was done, by many threads."""

import pytest
from child import in_child
from history_replay import check, program

import accelrt
from accelrt import memory

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


def allocations_stitched_of_freed_pages():
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
def test_pages_that_move_are_told():
    in_child(allocations_stitched_of_freed_pages)


def checkpoint_gone_back_to():
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


@pytest.mark.host
def test_a_restored_pool_is_told():
    in_child(checkpoint_gone_back_to)
