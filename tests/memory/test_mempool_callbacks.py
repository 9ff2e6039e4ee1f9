"""MemPools whose segments come from two Python functions: what they are asked, and raise; threads, locks."""

import ctypes
import gc
import threading
import weakref

import pytest
from backend_use import Books, capture_into_pool
from child import in_own_process
from compiled import typed
from device_arrays import bytes_of

import accelrt
from accelrt import memory

MIB = 1 << 20


@pytest.fixture
def books():
    accelrt.init()
    books = Books()
    yield books
    gc.collect()
    accelrt.empty_cache()
    assert books.held == {}
    memory.audit()


def inside(pool, nbytes):
    with accelrt.use_mem_pool(pool):
        return accelrt.Buffer(nbytes)


def test_a_pools_segments_come_from_two_functions(books):
    pool = accelrt.MemPool(books.allocator)
    assert pool.allocator is books.allocator
    assert "memory of <accelrt.memory.CallbackAllocator 'books'" in repr(pool)
    stream = accelrt.Stream()
    with accelrt.stream(stream):
        kept = [inside(pool, 64 << 10) for _ in range(32)]
    assert books.asked == [(2 * MIB, stream.device_index, stream.handle)]
    assert pool.stats()["reserved_bytes.current"] == 2 * MIB == books.live
    for number, buffer in enumerate(kept):
        buffer.fill(number, stream=stream)
    accelrt.synchronize()
    assert [set(bytes_of(buffer)) for buffer in kept] == [{number} for number in range(32)]
    memory.audit()
    del kept, buffer
    inside(pool, 64 << 10).free()  # of the common pool's current stream: another heap
    assert len(books.asked) == 2
    pool.empty_cache()
    assert books.held == {}
    assert pool.stats()["reserved_bytes.current"] == 0


def test_memory_is_outside_the_pool_as_ever(books):
    pool = accelrt.MemPool(books.allocator)
    inside(pool, MIB).free()
    with accelrt.Buffer(MIB):
        assert len(books.asked) == 1


def test_no_memory_is_out_of_memory_and_a_retry_comes_when_some_went_back(books):
    pool = accelrt.MemPool(books.allocator)
    books.limit = 2 * MIB
    first = inside(pool, MIB)
    with pytest.raises(accelrt.OutOfMemoryError, match="Tried to allocate"):
        inside(pool, 4 * MIB)
    assert pool.stats()["reserved_bytes.current"] == 2 * MIB
    books.limit = 5 * MIB
    with pytest.raises(accelrt.OutOfMemoryError):
        inside(pool, 4 * MIB)
    first.free()  # its segment goes back first, for there is no room for both
    inside(pool, 4 * MIB).free()
    assert books.freed[-1] == 2 * MIB


def test_what_a_function_raises_the_allocation_raises(books):
    pool = accelrt.MemPool(books.allocator)
    books.fails = ValueError("no such arena")
    with pytest.raises(
        RuntimeError, match=r"the allocator 'books' failed: .*ValueError: no such arena"
    ) as caught:
        inside(pool, MIB)
    assert caught.value.__cause__ is books.fails
    assert len(books.asked) == 1  # what is no lack of memory is not tried again
    books.fails = MemoryError("full")
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        inside(pool, MIB)
    assert caught.value.__cause__ is books.fails
    books.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        inside(pool, MIB)
    books.fails = None
    assert pool.stats()["reserved_bytes.current"] == 0
    inside(pool, MIB).free()


@pytest.mark.parametrize("error", [KeyboardInterrupt("now"), SystemExit(7)], ids=repr)
def test_what_interrupts_a_free_is_raised_behind_it(books, error):
    def free(address, size, device, stream):
        books.free(address, size, device, stream)
        raise error

    pool = accelrt.MemPool(memory.CallbackAllocator(books.allocate, free))
    inside(pool, MIB).free()
    with pytest.raises(type(error)) as raised:
        pool.empty_cache()
        sum(range(1000))
    assert raised.value is error
    assert books.held == {}


def test_exceptions_of_the_functions_leave_no_cycle(books):
    pool = accelrt.MemPool(books.allocator)
    error = books.fails = type("Refused", (Exception,), {})()
    with pytest.raises(RuntimeError):
        inside(pool, MIB)
    books.fails = None
    gone = weakref.ref(error)
    del error
    gc.collect()
    assert gone() is None


def test_what_free_raises_is_reported(books, monkeypatch):
    told = []

    def free(address, size, device, stream):
        books.free(address, size, device, stream)
        raise ValueError("after the fact")

    pool = accelrt.MemPool(memory.CallbackAllocator(books.allocate, free))
    inside(pool, MIB).free()
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    pool.empty_cache()
    assert told == ["after the fact"]
    assert pool.stats()["reserved_bytes.current"] == 0


@pytest.mark.parametrize("answer", ["x", 1.5, -8, 1 << 64])
def test_what_is_no_address_is_refused(books, answer):
    pool = accelrt.MemPool(memory.CallbackAllocator(lambda *_: answer, books.free))
    with pytest.raises(RuntimeError, match="what it returned"):
        inside(pool, MIB)
    assert pool.stats()["reserved_bytes.current"] == 0


def test_an_address_between_units_is_given_back_and_refused(books):
    freed = []
    pool = accelrt.MemPool(
        memory.CallbackAllocator(lambda *_: (1 << 40) + 8, lambda *given: freed.append(given[:2]), "odd")
    )
    with pytest.raises(RuntimeError, match="'odd' returned 0x10000000008, and a MemPool takes addresses"):
        inside(pool, MIB)
    assert freed == [((1 << 40) + 8, 2 * MIB)]


@in_own_process
def test_a_segment_goes_back_with_no_lock_held_where_the_request_is_refused():
    books, seen = Books(), []
    pool = accelrt.MemPool(books.allocator, limit=4 * MIB)
    inside(pool, MIB).free()
    books.leaving = lambda: seen.append(memory.memory_stats()["segment.all.current"])
    with pytest.raises(accelrt.OutOfMemoryError):
        inside(pool, 8 * MIB)
    assert (seen, books.held) == ([0], {})


def test_the_functions_use_accelrt_and_another_pool(books):
    calls = []

    def use():
        with accelrt.use_mem_pool(accelrt.MemPool()):
            accelrt.Buffer(5 * MIB).free()
        accelrt.empty_cache()  # takes the lock that growth is under
        calls.append(1)

    def free(*given):
        use()
        books.free(*given)

    books.meanwhile = use
    pool = accelrt.MemPool(memory.CallbackAllocator(books.allocate, free))
    buffer = inside(pool, MIB)
    buffer.fill(5)
    assert set(bytes_of(buffer)) == {5}
    buffer.free()
    pool.empty_cache()
    assert len(calls) == 2


def test_memory_of_accelrts_own_is_refused(books):
    held = []

    def allocate(size, device, stream):
        with accelrt.use_mem_pool(accelrt.MemPool()):
            held.append(accelrt.Buffer(size))
        return held[-1].ptr

    pool = accelrt.MemPool(memory.CallbackAllocator(allocate, lambda *_: held.pop().free()))
    with pytest.raises(accelrt.CudaError, match="memory that accelrt handed out itself; it was given back"):
        inside(pool, MIB)
    assert held == []
    assert pool.stats()["reserved_bytes.current"] == 0


def test_a_function_that_asks_its_own_pool_is_refused(books):
    def allocate(size, device, stream):
        return accelrt.Buffer(size).ptr  # of the same pool: the thread is inside of it

    pool = accelrt.MemPool(memory.CallbackAllocator(allocate, books.free, "snake"))
    with pytest.raises(RuntimeError, match="'snake' failed"):
        inside(pool, MIB)


def test_other_threads_allocate_while_a_function_waits_for_them(books):
    """No lock is held: the others need the growth lock, and the GIL."""
    pool, begun = accelrt.MemPool(books.allocator), []

    def work():
        with accelrt.use_mem_pool(accelrt.MemPool()):
            accelrt.Buffer(8 * MIB).free()
        accelrt.empty_cache()
        begun.append(threading.get_ident())

    def meanwhile():
        books.meanwhile = None
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()

    books.meanwhile = meanwhile
    inside(pool, MIB).free()
    assert len(begun) == 2


def test_threads_that_grow_one_pool_at_once_stay_within_its_limit(books):
    pool, refused, barrier = accelrt.MemPool(books.allocator, limit=8 * MIB), [], threading.Barrier(4)
    stats = []

    def work():
        stream = accelrt.Stream()
        barrier.wait()
        for _ in range(30):
            try:
                with accelrt.stream(stream), accelrt.use_mem_pool(pool):
                    accelrt.Buffer(3 * MIB).free()
            except accelrt.OutOfMemoryError:
                refused.append(1)
            stats.append(pool.stats()["reserved_bytes.current"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(stats) <= 8 * MIB
    assert books.live == pool.stats()["reserved_bytes.current"]


def test_a_pool_that_sleeps_or_dies_meanwhile_keeps_nothing(books):
    """The heap is looked up again when the function returned."""
    pools = [accelrt.MemPool(books.allocator)]

    def meanwhile():
        books.meanwhile = None
        pools.clear()
        gc.collect()
        accelrt.empty_cache()

    books.meanwhile = meanwhile
    context = accelrt.use_mem_pool(pools[0])
    with context:
        accelrt.Buffer(MIB).free()


def test_a_graph_is_captured_into_such_a_pool(books):
    capture_into_pool(books)


def test_another_request_is_served_by_what_goes_back(books):
    """Idle segments of the functions are the device's memory: it is there again before the request fails."""
    pool = accelrt.MemPool(books.allocator)
    inside(pool, 16 * MIB).free()
    free, _ = accelrt.mem_get_info()
    if accelrt.get_device_properties(0).name.startswith("NVIDIA"):
        pytest.skip("of a device whose memory nobody else uses")
    with accelrt.Buffer(free + 8 * MIB):
        assert books.held == {}


def test_hooks_are_told_of_the_pools_allocations(books):
    calls = []
    pool = accelrt.MemPool(books.allocator)
    hooks = memory.AllocationHooks(
        before_allocate=lambda device, size, stream: calls.append(("before", size)),
        after_allocate=lambda device, address, size, stream: calls.append(("after", size)),
    )
    with hooks:
        inside(pool, 1000).free()
    assert calls == [("before", 1000), ("after", 1000)]


def test_code_without_python_allocates_from_the_functions(books):
    """ctypes releases the GIL around the C API's calls."""
    loaded = ctypes.CDLL(accelrt.get_library())
    size, pointer = ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
    take = typed(loaded, "accelrt_allocate", ctypes.c_int, [ctypes.c_int, size, size, pointer])
    release = typed(loaded, "accelrt_release", ctypes.c_int, [ctypes.c_int, size])
    pool, address = accelrt.MemPool(books.allocator), ctypes.c_size_t()
    with accelrt.use_mem_pool(pool):
        assert take(0, MIB, 0, ctypes.byref(address)) == 0
        assert len(books.asked) == 1
        assert pool.stats()["allocated_bytes.current"] == MIB
        assert release(0, address.value) == 0
        books.limit = 0
        assert take(0, 8 * MIB, 0, ctypes.byref(address)) == 2
        assert pool.stats()["allocated_bytes.current"] == 0
