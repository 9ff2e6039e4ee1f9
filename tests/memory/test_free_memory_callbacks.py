"""Functions that are asked for memory: when, with what, and what becomes of what they answer or raise."""

import sys

import pytest
from beside import on_a_thread
from child import in_child

import accelrt
from accelrt.memory import register_free_memory_callback

MIB = 1 << 20
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def test_what_a_callback_gives_back_serves_the_request(full):
    asked = []

    def shrink(device, nbytes):
        asked.append((device, nbytes))
        delete(full.pop())
        return True

    handle = register_free_memory_callback(shrink)
    full.append(alloc(2 * MIB - 100, 0))
    assert asked == [(0, 2 * MIB)]
    handle.remove()
    handle.remove()
    with pytest.raises(accelrt.OutOfMemoryError):
        alloc(2 * MIB, 0)
    assert len(asked) == 1


def test_nobody_is_asked_while_there_is_room():
    with register_free_memory_callback(lambda device, nbytes: pytest.fail("asked")) as handle:
        delete(alloc(2 * MIB))
    assert "removed" in repr(handle)


def test_all_are_asked_in_order_and_a_refusal_stands(full):
    asked = []
    handles = [
        register_free_memory_callback(lambda device, nbytes, name=name: asked.append(name)) for name in "abc"
    ]
    with pytest.raises(accelrt.OutOfMemoryError):
        alloc(2 * MIB, 0)
    assert asked == ["a", "b", "c"]
    for handle in handles:
        handle.remove()


def test_what_a_callback_raises_is_reported_and_counts_as_nothing(full, monkeypatch):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)

    def broken(device, nbytes):
        raise KeyError("shrink")

    handles = [register_free_memory_callback(broken)]
    with pytest.raises(accelrt.OutOfMemoryError):
        alloc(2 * MIB, 0)
    assert [(report.exc_type, report.object) for report in reports] == [(KeyError, broken)]
    handles.append(register_free_memory_callback(lambda device, nbytes: delete(full.pop()) or 1))
    full.append(alloc(2 * MIB, 0))
    for handle in handles:
        handle.remove()
    reports.clear()


def test_a_callback_may_allocate_and_is_not_asked_for_that(full):
    depth = []

    def nested(device, nbytes):
        depth.append(1)
        with pytest.raises(accelrt.OutOfMemoryError):
            alloc(4 * MIB, device)
        delete(full.pop())
        small = alloc(512, device)
        delete(small)
        return True

    handle = register_free_memory_callback(nested)
    full.append(alloc(2 * MIB, 0))
    assert len(depth) == 1
    handle.remove()


def test_a_callback_may_wait_for_a_thread_that_allocates(full):
    def elsewhere(device, nbytes):
        delete(full.pop())
        on_a_thread(lambda: delete(alloc(512, device)))
        accelrt.empty_cache()
        return True

    handle = register_free_memory_callback(elsewhere)
    full.append(alloc(2 * MIB, 0))
    handle.remove()


def test_a_pools_limit_asks_too():
    pool, kept = accelrt.MemPool(limit=4 * MIB), []
    handle = register_free_memory_callback(lambda device, nbytes: delete(kept.pop()) or True)
    with accelrt.use_mem_pool(pool):
        kept += [alloc(2 * MIB), alloc(2 * MIB)]
        kept.append(alloc(2 * MIB))
    handle.remove()
    assert len(kept) == 2
    for address in kept:
        delete(address)


def test_a_pool_that_ends_inside_a_callback_does_no_harm():
    pools = [accelrt.MemPool(limit=2 * MIB)]

    def drop(device, nbytes):
        pools.clear()
        accelrt.empty_cache()
        return True

    handle = register_free_memory_callback(drop)
    with pytest.raises(accelrt.OutOfMemoryError), accelrt.use_mem_pool(pools[0]):
        alloc(4 * MIB)
    handle.remove()
    delete(alloc(4 * MIB))


def ask_at_exit():
    handle = register_free_memory_callback(lambda device, nbytes: True)
    with pytest.raises(accelrt.OutOfMemoryError):
        alloc(1 << 40)
    print(handle)


def test_a_process_ends_with_callbacks_registered():
    assert "FreeMemoryCallback" in in_child(ask_at_exit)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="callable"):
        register_free_memory_callback(None)
