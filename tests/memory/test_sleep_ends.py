"""Pools that are dropped, emptied or refused a wake while they sleep; devices side by side."""

import gc
import os

import pytest
from child import in_own_process
from sleepers import MIB, assert_contents, fill_buffers, random_bytes

import accelrt
from accelrt import memory

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"  # where nobody else uses the device meanwhile
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def test_a_pool_that_is_dropped_asleep_wakes_by_its_id_while_memory_of_it_is_live():
    pool = accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [3 * MIB])
    name = pool.id
    pool.sleep()
    del pool
    accelrt.empty_cache()
    with pytest.raises(accelrt.SleepingMemoryError):
        buffers[0].fill(0)
    memory.wake(name)
    assert_contents(buffers, contents)


@pytest.mark.parametrize("order", [("buffers", "pool"), ("pool", "buffers")], ids=" then ".join)
def test_a_pool_that_is_dropped_asleep_leaves_nothing(order):
    pool = accelrt.MemPool()
    held = {"pool": pool, "buffers": fill_buffers(pool, [3 * MIB, 4096])[0]}
    active = accelrt.host_memory_stats()["active_bytes.current"]
    pool.sleep()
    assert accelrt.host_memory_stats()["active_bytes.current"] >= active + 3 * MIB
    del pool
    for each in order:
        del held[each]
        gc.collect()
    if order[1] == "pool":  # with which what it keeps goes at once
        assert accelrt.host_memory_stats()["active_bytes.current"] == active
    accelrt.empty_cache()
    assert accelrt.host_memory_stats()["active_bytes.current"] == active
    assert memory.sleeping() == 0
    assert accelrt.memory_snapshot() == []


def test_idle_memory_of_a_sleeping_pool_can_be_given_up():
    pool = accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [MIB, 20 * MIB])
    buffers.pop().free()
    asleep = pool.sleep().bytes
    with accelrt.use_mem_pool(pool):
        accelrt.empty_cache()
    memory.audit()
    assert memory.sleeping() < asleep
    assert pool.wake().bytes < asleep
    assert_contents(buffers, contents[:1])


def test_empty_cache_leaves_a_sleeping_pool_alone():
    pool = accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [MIB, 20 * MIB])
    asleep = pool.sleep().bytes
    accelrt.empty_cache()
    assert memory.sleeping() == asleep
    pool.wake()
    assert_contents(buffers, contents)


def test_a_wake_without_room_can_be_tried_again():
    pool, total = accelrt.MemPool(), accelrt.mem_get_info()[1]
    buffers, contents = fill_buffers(pool, [20 * MIB])
    pool.sleep()
    other = accelrt.Buffer(30 * MIB)
    accelrt.set_per_process_memory_fraction(40 * MIB / total)
    try:
        with pytest.raises(accelrt.OutOfMemoryError, match="it sleeps on, and its contents are kept"):
            pool.wake()
        assert pool.is_asleep()
        memory.audit()
        other.free()  # idle memory goes back by itself
        pool.wake()
    finally:
        accelrt.set_per_process_memory_fraction(1.0)
    assert_contents(buffers, contents)


@in_own_process(ACCELRT_HOST_MEMORY="64MiB")
def test_a_full_device_refuses_a_wake_until_memory_is_idle():
    pool = accelrt.MemPool()
    buffers, contents = fill_buffers(pool, [20 * MIB])
    pool.sleep()
    others = [accelrt.Buffer(20 * MIB) for _ in range(3)]
    with pytest.raises(accelrt.OutOfMemoryError, match="the device has no room"):
        pool.wake()
    memory.audit()
    del others[0]
    pool.wake()
    assert_contents(buffers, contents)


def test_parts_on_two_devices_sleep_by_themselves():
    if accelrt.device_count() < 2:
        pytest.skip("needs two devices")
    pool = accelrt.MemPool()
    buffers, contents = [], []
    for device in (0, 1):
        with accelrt.use_mem_pool(pool, device):
            buffers.append(accelrt.Buffer(3 * MIB, device))
        contents.append(random_bytes(3 * MIB, device))
        buffers[-1].copy_from(contents[-1])
    buffers[1].record_stream(accelrt.Stream(0))
    pool.sleep(device=1)
    assert (pool.is_asleep(), pool.is_asleep(1)) == (False, True)
    assert (memory.sleeping(0), memory.sleeping(1) > 0) == (0, True)
    buffers[0].fill(1)
    with pytest.raises(accelrt.SleepingMemoryError):
        accelrt.copy(buffers[0], buffers[1])
    pool.wake(device=1)
    assert_contents(buffers[1:], contents[1:])
