"""Owners in cycles that a collection of garbage finds: finalisers there use them, work under way goes on, and
what counts them is told."""

import gc

import numpy as np
import pytest

import accelrt
from accelrt import resources
from accelrt.sharing import mapping

SOURCES = {
    "device": resources.DeviceResource,
    "managed": resources.ManagedResource,
    "pinned": resources.PinnedResource,
    "driver pool": resources.DriverPoolResource,
    "pool": resources.PoolResource,
    "tracking": lambda: resources.TrackingAdaptor(resources.DeviceResource()),
}


class Cycle:
    """What refers to itself, and with it to what it is given."""

    def __init__(self, *things):
        self.itself, self.things = self, things


class Finalised(Cycle):
    """The same, with a finaliser, which calls a function of what it was given."""

    def __init__(self, function, *things):
        super().__init__(*things)
        self.function = function

    def __del__(self):
        self.function(*self.things)


@pytest.fixture(autouse=True)
def _collections_by_hand():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", SOURCES)
def test_a_finaliser_has_the_buffers_that_die_with_its_object(name):
    source = SOURCES[name]()
    kept, contents = [], np.zeros(4096, np.uint8)
    buffer = source.buffer(4096)
    buffer.fill(7)
    accelrt.synchronize()
    Finalised(kept.append, buffer)
    del buffer
    gc.collect()
    other = source.buffer(4096)
    assert other.ptr != kept[0].ptr  # which is alive
    other.fill(9)
    accelrt.synchronize()
    kept[0].copy_to(contents)
    assert (contents == 7).all()


@pytest.mark.parametrize("name", SOURCES)
def test_buffers_in_a_cycle_go_back_with_it(name):
    counted = resources.StatisticsAdaptor(SOURCES[name]())
    Cycle(counted.buffer(4096), counted)
    assert counted.counts.current_bytes == 4096
    gc.collect()
    assert counted.counts.current_bytes == 0


def test_a_pool_that_a_finaliser_keeps_has_nothing_of_what_went_back():
    kept = []
    upstream = resources.StatisticsAdaptor(resources.DeviceResource())
    pool = resources.PoolResource(upstream)
    idle, live = pool.allocate(1 << 16), pool.allocate(1 << 16)
    pool.deallocate(idle, 1 << 16)
    accelrt.synchronize()
    Finalised(kept.append, pool)
    del pool
    gc.collect()
    (pool,) = kept
    assert (pool.total_bytes, pool.used_bytes, upstream.counts.current_bytes) == (0, 0, 0)
    pool.deallocate(live, 1 << 16)
    buffer = accelrt.Buffer(1 << 16)
    address = pool.allocate(1 << 16)
    assert address != buffer.ptr
    assert upstream.counts.current_bytes == pool.total_bytes == 1 << 16
    pool.deallocate(address, 1 << 16)
    kept.clear()
    del pool
    assert upstream.counts.current_bytes == 0  # without a second run of its finaliser


@pytest.mark.parametrize("pinned", [False, True])
def test_driver_memory_is_freed_behind_arrays_that_were_collected(pinned):
    memory = accelrt.memory.DriverPool(pinned=pinned).allocate(4096)
    Cycle(accelrt.asarray(memory, device="cpu" if pinned else None, copy=False))
    with pytest.raises(BufferError, match="1 views"):
        memory.free()
    gc.collect()
    memory.free()


def test_a_reservation_is_closed_behind_arrays_that_were_collected():
    cache = accelrt.reserve(1 << 24)
    cache.commit(0, cache.page_bytes)
    Cycle(cache.array(16, "f4"))
    with pytest.raises(BufferError, match="1 Buffers or Arrays"):
        cache.close()
    gc.collect()
    cache.close()


def test_a_pool_of_page_locked_memory_is_left_by_a_context_that_was_collected():
    pool = accelrt.PinnedMemPool()
    context = accelrt.use_mem_pool(pool)
    context.__enter__()
    Cycle(context)
    del context
    gc.collect()
    with accelrt.PinnedBuffer(4096):
        assert pool.stats()["allocations.current"] == 0


def test_a_reservations_pages_are_let_go_of_with_what_shared_them():
    cache = accelrt.reserve(1 << 24)
    cache.commit(0, cache.page_bytes)
    buffer = cache.buffer(0, 4096)
    shared = mapping.share_bytes(buffer)
    Cycle(shared, buffer)
    del shared, buffer
    gc.collect()
    cache.decommit(0, cache.page_bytes)  # which no process has any more, nor did it go with the Buffer
    accelrt.synchronize()
    cache.close()
