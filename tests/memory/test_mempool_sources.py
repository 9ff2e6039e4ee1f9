"""MemPools of a library's memory, of segments that are not split, and that serve others before a refusal."""

import ctypes
import gc
import os

import numpy as np
import pytest
from backend_use import capture_into_pool
from child import in_child
from compiled import typed

import accelrt
from accelrt import memory

MIB = 1 << 20


class Books:
    """A library's allocator that keeps books, and what it says of itself."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.allocator = memory.CUDAPluggableAllocator(path, "books_alloc", "books_free")

    def __getattr__(self, name):
        return typed(self.library, f"books_{name}")()

    def limit(self, size):
        typed(self.library, "books_limit", None, [ctypes.c_size_t])(size)


@pytest.fixture
def books(pluggable):
    made = Books(pluggable)
    made.limit(1 << 40)
    before = made.live
    yield made
    gc.collect()
    accelrt.empty_cache()
    assert made.live == before == 0


def wrote_and_read(buffer, value, stream=None):
    """Copies: the host device fills no memory that is not its own."""
    written, read = np.full(buffer.nbytes, value, np.uint8), np.zeros(buffer.nbytes, np.uint8)
    buffer.copy_from(written, stream=stream)
    buffer.copy_to(read, stream=stream)
    assert (read == written).all()


def test_a_pools_memory_comes_from_a_librarys_functions(books):
    pool = accelrt.MemPool(books.allocator)
    assert pool.allocator is books.allocator
    assert "memory of <accelrt.memory.CUDAPluggableAllocator books_alloc" in repr(pool)
    stream = accelrt.Stream(0)
    with (
        accelrt.use_mem_pool(pool),
        accelrt.Buffer(1000, stream=stream) as buffer,
        accelrt.Buffer(3 * MIB) as other,
    ):
        assert books.allocations >= 2
        assert books.live == memory.memory_reserved() == pool.stats()["reserved_bytes.current"]
        assert books.device == 0
        wrote_and_read(buffer, 5, stream)
        wrote_and_read(other, 6)
        kinds = {(each["is_expandable"], each["segment_pool_id"]) for each in pool.snapshot()}
        assert kinds == {(False, pool.id)}
        outside = memory.caching_allocator_alloc(2 * MIB)  # of the pool too: this thread is inside
        memory.caching_allocator_delete(outside)
    with accelrt.Buffer(MIB):
        assert memory.memory_reserved() > books.live  # outside the device's own memory is used


def test_a_segment_is_split_and_used_again(books):
    pool, calls = accelrt.MemPool(books.allocator.allocator()), books.allocations
    with accelrt.use_mem_pool(pool):
        kept = [accelrt.Buffer(64 << 10) for _ in range(32)]
        assert books.allocations == calls + 1
        assert pool.stats()["reserved_bytes.current"] == 2 * MIB
        del kept[::2]
        kept += [accelrt.Buffer(64 << 10) for _ in range(16)]
    assert books.allocations == calls + 1
    memory.audit()
    frees = books.frees
    del kept, pool
    accelrt.empty_cache()
    assert books.frees == frees + 1


def test_what_the_library_refuses_is_out_of_memory_and_nothing_is_lost(books):
    pool = accelrt.MemPool(books.allocator)
    books.limit(2 * MIB)
    with accelrt.use_mem_pool(pool), accelrt.Buffer(MIB):
        with pytest.raises(accelrt.OutOfMemoryError, match="Tried to allocate"):
            accelrt.Buffer(4 * MIB)
        assert pool.stats()["reserved_bytes.current"] == 2 * MIB
        books.limit(64 * MIB)
        accelrt.Buffer(4 * MIB).free()


def test_a_graph_is_captured_into_such_a_pool(books):
    capture_into_pool(books)


def test_memory_outlives_the_pool_object(books):
    pool = accelrt.MemPool(books.allocator)
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(MIB)
    del pool
    accelrt.empty_cache()
    wrote_and_read(buffer, 1)
    assert books.live == 2 * MIB
    buffer.free()


def test_such_a_pool_cannot_sleep(books):
    for pool in (accelrt.MemPool(books.allocator), accelrt.MemPool(no_split=True)):
        with accelrt.use_mem_pool(pool):
            buffer = accelrt.Buffer(64)
        with pytest.raises(accelrt.NotSupportedError, match="plain segments"):
            pool.sleep()
        buffer.free()


def test_on_the_last_device_the_library_is_told_so(books):
    last = accelrt.device_count() - 1
    pool = accelrt.MemPool(books.allocator, device=last)
    with accelrt.use_mem_pool(pool, last), accelrt.Buffer(64, device=last):
        assert books.device == last
        assert accelrt.current_device() == 0


@pytest.mark.parametrize("given", [5, "native", object()])
def test_what_is_no_allocator_is_refused(given):
    with pytest.raises(TypeError, match="pass a CUDAPluggableAllocator, a CallbackAllocator, or None"):
        accelrt.MemPool(given)


def test_segments_of_a_pool_that_does_not_split_serve_one_request_each():
    pool = accelrt.MemPool(no_split=True)
    with accelrt.use_mem_pool(pool):
        kept = [accelrt.Buffer(size) for size in (512, 600 << 10, 3 * MIB)]
        assert pool.stats()["segment.current"] == 3
        assert memory.memory_stat("allocated_bytes.all.current") == (2 + 2 + 4) * MIB
        assert memory.memory_stat("requested_bytes.all.current") == 512 + (600 << 10) + 3 * MIB
        places = [buffer.ptr for buffer in kept]
        del kept[0]
        kept.append(accelrt.Buffer(MIB))
        assert kept[-1].ptr == places[0]
        kept.append(accelrt.Buffer(512))
        assert pool.stats()["segment.current"] == 4


def fill_a_device(lends):
    """A device that is full of a pool's memory, of which half is free but no segment or page is."""
    pool = accelrt.MemPool(use_on_oom=lends)
    with accelrt.use_mem_pool(pool):
        kept = [accelrt.Buffer(MIB) for _ in range(32)]
        accelrt.synchronize()
        del kept[::2]
    accelrt.set_per_process_memory_fraction((32 * MIB) / accelrt.mem_get_info()[1])
    buffers, refused = [], False
    try:
        buffers += [accelrt.Buffer(MIB) for _ in range(4)]
    except accelrt.OutOfMemoryError:
        refused = True
    buffers_in_pool = sum(
        any(s["address"] <= b.ptr < s["address"] + s["total_size"] for s in pool.snapshot()) for b in buffers
    )
    for buffer in buffers:
        buffer.fill(3)
    accelrt.synchronize()
    memory.audit()
    print(refused, buffers_in_pool)


@pytest.mark.own_process
@pytest.mark.skipif("expandable_segments:False" in os.environ.get("ACCELRT_ALLOC_CONF", ""), reason="plain")
def test_a_pool_serves_others_before_a_refusal_where_it_is_told_to():
    environment = {"ACCELRT_DRIVER": os.environ.get("ACCELRT_DRIVER", "host")}
    assert in_child(fill_a_device, True, **environment) == "False 4\n"
    assert in_child(fill_a_device, False, **environment) == "True 0\n"


def test_a_pool_is_used_by_its_id():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool.id), accelrt.Buffer(64) as buffer:
        assert pool.use_count() == 2
        assert [each["address"] for each in accelrt.memory_snapshot(pool.id)] == [buffer.ptr]
        assert accelrt.memory_snapshot(mempool_id=pool.id) == pool.snapshot()
    assert pool.use_count() == 1
    handle = accelrt.graph_pool_handle()
    with accelrt.use_mem_pool(handle), accelrt.Buffer(64):
        (segment,) = accelrt.memory_snapshot(handle)
        assert segment["segment_pool_id"] == handle
    with pytest.raises(ValueError, match=r"pool is \(0, 0\), the id of the common pool"):
        accelrt.use_mem_pool((0, 0))
    for wrong in (3, (1,), (1, "x"), None):
        with pytest.raises(TypeError, match="pool is"):
            accelrt.use_mem_pool(wrong)
