"""PoolResource: blocks of chunks, per stream; figures, limits, and what goes back."""

import ctypes
import gc
import itertools
import random
import threading
import time

import numpy as np
import pytest
from beside import on_threads
from child import in_own_process
from counting_resource import Counting

import accelrt
from accelrt import resources, testing

UNIT = 512


@pytest.fixture
def upstream():
    return Counting()


@pytest.fixture
def pool(upstream):
    return resources.PoolResource(upstream)


def test_sizes_are_rounded(pool):
    assert [pool.rounded(nbytes) for nbytes in (1, UNIT, UNIT + 1)] == [UNIT, UNIT, 2 * UNIT]


def test_a_block_is_split_and_merged(pool):
    whole = pool.allocate(4 * UNIT)
    pool.deallocate(whole, 4 * UNIT)
    for order in (False, True):
        head, tail = pool.allocate(2 * UNIT), pool.allocate(2 * UNIT)
        assert (head, tail) == (whole, whole + 2 * UNIT)
        for address in sorted((head, tail), reverse=order):
            pool.deallocate(address, 2 * UNIT)
        assert pool.free_blocks == 1
    assert pool.allocate(4 * UNIT) == whole


def test_figures_count_what_is_there(pool):
    first, second = pool.allocate(2 * UNIT), pool.allocate(4 * UNIT - 1)
    assert (pool.used_bytes, pool.free_bytes, pool.total_bytes) == (6 * UNIT, 0, 6 * UNIT)
    pool.deallocate(second, 4 * UNIT - 1)
    assert (pool.used_bytes, pool.free_bytes, pool.free_blocks) == (2 * UNIT, 4 * UNIT, 1)
    pool.deallocate(first, 2 * UNIT)
    assert pool.release() == 6 * UNIT
    assert (pool.used_bytes, pool.free_bytes, pool.total_bytes) == (0, 0, 0)


def test_memory_is_of_the_stream_that_gave_it_back(pool):
    first, second = accelrt.Stream(), accelrt.Stream()
    address = pool.allocate(UNIT, first)
    pool.deallocate(address, UNIT, first)
    assert pool.allocate(UNIT, second) != address
    assert pool.allocate(UNIT, first) == address
    pool.deallocate(address, UNIT, second)
    assert pool.allocate(UNIT, second) == address


def test_at_the_limit_memory_goes_from_one_stream_to_another(pool):
    first, second = accelrt.Stream(), accelrt.Stream()
    pool.limit = 4 * UNIT
    whole = pool.allocate(4 * UNIT, first)
    pool.deallocate(whole, 4 * UNIT, first)
    held = pool.allocate(UNIT, first)
    assert pool.allocate(2 * UNIT, second) == whole + UNIT
    with pytest.raises(accelrt.OutOfMemoryError, match="limit"):
        pool.allocate(2 * UNIT, second)
    pool.deallocate(held, UNIT, first)


def filled_source(value, *streams):
    """Device memory of one value, which the streams may read."""
    source = accelrt.full(1 << 15, value, "u1")
    for stream in streams:
        stream.wait_stream(accelrt.current_stream())
    return source


def test_a_stream_waits_for_the_one_whose_memory_it_gets():
    pool = resources.PoolResource(resources.DeviceResource(), 1 << 16, 1 << 16)
    first, second, go = accelrt.Stream(), accelrt.Stream(), threading.Event()
    ones, sevens = filled_source(1, first), filled_source(7, second)
    buffer, held = pool.buffer(1 << 15, first), pool.buffer(1 << 15, first)
    try:
        first.launch_host_func(go.wait)
        buffer.copy_from(ones, stream=first, blocking=False)
        del buffer
        taken = pool.buffer(1 << 15, second)
        taken.copy_from(sevens, stream=second, blocking=False)
        assert not second.query()
    finally:
        go.set()
    back = np.empty(1 << 15, np.uint8)
    taken.copy_to(back, stream=second)
    assert (back == 7).all()
    del held


def test_uses_on_other_streams_are_waited_for():
    """Buffers of one chunk: no block of the allocator stands for the second one."""
    pool = resources.PoolResource(resources.DeviceResource(), 1 << 16, 1 << 16)
    own, other, go = accelrt.Stream(), accelrt.Stream(), threading.Event()
    ones = filled_source(1, other)
    first, buffer = pool.buffer(1 << 15, own), pool.buffer(1 << 15, own)
    address = buffer.ptr
    try:
        other.launch_host_func(go.wait)
        buffer.copy_from(ones, stream=other, blocking=False)
        buffer.record_stream(accelrt.Stream())
        del buffer
        again = pool.buffer(1 << 15, own)
        assert again.ptr == address
        again.fill(7, stream=own)
        assert not own.query()
    finally:
        go.set()
    back = np.empty(1 << 15, np.uint8)
    again.copy_to(back, stream=own)
    assert (back == 7).all()
    del first


def test_memory_that_is_dropped_in_a_capture_goes_back_after_it():
    pool = resources.PoolResource(resources.DeviceResource(), 1 << 16, 1 << 16)
    own, other, numbers = accelrt.Stream(), accelrt.Stream(), accelrt.zeros(4, "u1")
    buffer = pool.buffer(1 << 15, own)
    buffer.fill(1, stream=other)
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=own):
        numbers.fill_(1)
        del buffer
        assert pool.used_bytes == 1 << 15
    pool.buffer(1)
    assert pool.used_bytes == 0


def test_a_limit_refuses_what_fragments_do_not_serve(pool, upstream):
    pool.limit = 6 * UNIT
    pool.deallocate(pool.allocate(5 * UNIT), 5 * UNIT)
    address = pool.allocate(6 * UNIT)  # the idle chunk went back for it
    assert list(upstream.live.values()) == [6 * UNIT]
    with pytest.raises(accelrt.OutOfMemoryError) as raised:
        pool.allocate(1)
    assert raised.value.refused_by == "resource"
    pool.limit = None
    pool.allocate(1)
    pool.deallocate(address, 6 * UNIT)


def test_what_upstream_refuses_is_served_from_idle_chunks():
    upstream = Counting(room=8 * UNIT)
    pool = resources.PoolResource(upstream)
    pool.deallocate(pool.allocate(5 * UNIT), 5 * UNIT)
    assert pool.allocate(8 * UNIT)
    with pytest.raises(MemoryError):
        pool.allocate(1)
    assert pool.total_bytes == 8 * UNIT


def test_an_initial_size_is_taken_at_once(upstream):
    pool = resources.PoolResource(upstream, 1000, 4096)
    assert (list(upstream.live.values()), pool.free_bytes) == ([1024], 1024)
    assert pool.allocate(512, accelrt.Stream()) in upstream.live
    with pytest.raises(ValueError, match="Initial pool size exceeds the maximum pool size"):
        resources.PoolResource(upstream, 4097, 4096)
    with pytest.raises(TypeError, match="initial"):
        resources.PoolResource(upstream, "4MiB")
    with pytest.raises(ValueError, match="limit"):
        pool.limit = -1


def test_memory_of_one_stream_goes_back_alone(pool, upstream):
    first, second = accelrt.Stream(), accelrt.Stream()
    for stream in (first, second):
        pool.deallocate(pool.allocate(UNIT, stream), UNIT, stream)
    assert pool.release(first) == UNIT
    assert pool.total_bytes == UNIT
    assert len(upstream.live) == 1
    assert pool.release() == UNIT
    assert not upstream.live


def test_a_chunk_that_two_streams_freed_goes_back_whole(pool, upstream):
    first, second = accelrt.Stream(), accelrt.Stream()
    pool.deallocate(pool.allocate(2 * UNIT, first), 2 * UNIT, first)
    left, right = pool.allocate(UNIT, first), pool.allocate(UNIT, first)
    pool.deallocate(left, UNIT, first)
    pool.deallocate(right, UNIT, second)
    assert pool.free_blocks == 2
    assert pool.release() == 2 * UNIT
    assert not upstream.live


def test_the_pool_gives_its_chunks_back_when_it_dies(upstream):
    pool = resources.PoolResource(upstream)
    address = pool.allocate(UNIT)
    pool.deallocate(address, UNIT)
    pool.allocate(3 * UNIT)
    del pool
    gc.collect()
    assert not upstream.live


def test_in_a_capture_nothing_goes_from_a_stream_to_another():
    pool = resources.PoolResource(Counting(), 0, UNIT)
    first = accelrt.Stream()
    pool.deallocate(pool.allocate(UNIT, first), UNIT, first)
    capturing = accelrt.Stream()
    held = pool.allocate(UNIT, first)
    pool.deallocate(held, UNIT, first)
    graph = accelrt.CUDAGraph()
    numbers = accelrt.zeros(4, "u1")
    with accelrt.graph(graph, stream=capturing):
        numbers.fill_(1)
        assert pool.allocate(UNIT, first) == held
        with pytest.raises(accelrt.OutOfMemoryError):
            pool.allocate(UNIT, capturing)
    pool.deallocate(held, UNIT, first)


def test_a_destructor_in_the_midst_of_the_pool_is_put_off(pool):
    """Cycles with Buffers die in the collections that the pool's own objects bring about."""
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            cycle = [pool.buffer(UNIT)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert pool.used_bytes == 0
    pool.release()
    assert pool.total_bytes == 0


def test_random_use_by_threads_keeps_the_figures(upstream, pool):
    def work(seed):
        choose = random.Random(seed)
        streams = [accelrt.Stream() for _ in range(2)]
        held = []
        for _ in range(400):
            if held and choose.random() < 0.5:
                address, nbytes = held.pop(choose.randrange(len(held)))
                pool.deallocate(address, nbytes, choose.choice(streams))
            else:
                nbytes = choose.randrange(1, 8 * UNIT)
                held.append((pool.allocate(nbytes, choose.choice(streams)), nbytes))
            if choose.random() < 0.02:
                pool.release()
        spans = sorted((address, pool.rounded(nbytes)) for address, nbytes in held)
        assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(spans))
        for address, nbytes in held:
            pool.deallocate(address, nbytes, streams[0])

    on_threads(work, range(4))
    assert pool.used_bytes == 0
    assert pool.total_bytes == sum(upstream.live.values())
    pool.release()
    assert pool.total_bytes == 0
    assert not upstream.live


@pytest.mark.parametrize("per_thread", [False, True])
def test_the_per_thread_default_stream_is_another_one_on_each_thread(pool, per_thread):
    stream = accelrt.per_thread_stream() if per_thread else accelrt.default_stream()
    addresses = []

    def use():
        addresses.append(pool.allocate(UNIT, stream))
        pool.deallocate(addresses[-1], UNIT, stream)

    use()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert (addresses[0] == addresses[1]) is not per_thread


def test_an_initial_size_that_is_rounded_over_the_maximum_is_refused(upstream):
    with pytest.raises(ValueError, match="1000, rounded to 1024 by a unit of 512 bytes, is more than 1000"):
        resources.PoolResource(upstream, 1000, 1000)
    assert not upstream.live
    whole = resources.PoolResource(upstream, 1000, 1000, unit=8)
    assert (whole.total_bytes, whole.free_bytes) == (1000, 1000)


def three_idle_chunks(pool):
    addresses = [pool.allocate(UNIT) for _ in range(3)]
    for address in addresses:
        pool.deallocate(address, UNIT)


def test_a_chunk_that_upstream_does_not_take_keeps_none_of_the_others(upstream):
    class Refusing(resources.Adaptor):
        left = 2

        def give_back(self, address, nbytes, stream):
            self.left -= 1
            super().give_back(address, nbytes, stream)
            if self.left >= 0:
                raise LookupError(f"refused, {self.left} left")

    pool = resources.PoolResource(Refusing(upstream))
    three_idle_chunks(pool)
    with pytest.raises(LookupError, match="1 left"):
        pool.release()
    assert not upstream.live
    assert pool.total_bytes == 0


def idle_chunks_of_two_streams(pool, number):
    first, second = accelrt.Stream(), accelrt.Stream()
    wholes = [pool.allocate(UNIT, first) for _ in range(number)]
    pool.limit = pool.total_bytes
    for whole in wholes:
        pool.deallocate(whole, UNIT, first)
    halves = [pool.allocate(UNIT // 2, first) for _ in range(2 * number)]
    for index, half in enumerate(halves):
        pool.deallocate(half, UNIT // 2, (first, second)[index % 2])


@pytest.mark.host
@in_own_process
def test_a_release_whose_waits_the_driver_refuses_loses_no_chunk():
    """The second chunk's too, when the first one was looked at."""
    testing.use_device()
    upstream = Counting()
    pool = resources.PoolResource(upstream, unit=UNIT // 2)
    idle_chunks_of_two_streams(pool, 3)
    held = pool.total_bytes
    refused = 0
    for _, error in testing.failing_calls(
        pool.release, rows=["event_create", "event_record", "stream_wait_event"]
    ):
        refused += error is not None
        if error is not None:
            assert pool.total_bytes == pool.free_bytes == held == sum(upstream.live.values())
    assert refused >= 6
    assert not upstream.live
    assert pool.total_bytes == 0


@pytest.fixture
def foreign():
    """Handles of streams that accelrt did not make, and what destroys one."""
    accelrt.init()
    runtime, handles = accelrt.cudart(), []

    def destroy(handle):
        handles.remove(handle)
        assert runtime.cudaStreamDestroy(handle) == 0

    for _ in range(2):
        place = ctypes.c_uint64()
        assert runtime.cudaStreamCreate(ctypes.addressof(place)) == 0
        handles.append(place.value)
    yield list(handles), destroy
    for handle in list(handles):
        destroy(handle)


@pytest.mark.skipif(
    accelrt.testing.device.wanted_by_environment() == "cuda",
    reason="NVIDIA's driver may die of a destroyed stream's handle",
)
@pytest.mark.parametrize("how", ["taken", "released", "dropped"])
def test_a_stream_that_its_owner_destroyed_uses_nothing_more(how, upstream, foreign):
    (gone, other), destroy = foreign
    pool = resources.PoolResource(upstream, 2 * UNIT, 2 * UNIT)
    for handle in (gone, other):
        stream = accelrt.ExternalStream(handle)
        half = pool.allocate(UNIT, stream)
        pool.deallocate(half, UNIT, stream)
    destroy(gone)
    if how == "taken":
        assert len({pool.allocate(UNIT) for _ in range(2)}) == 2
        return
    if how == "released":
        assert pool.release() == 2 * UNIT
    del pool
    gc.collect()
    assert not upstream.live


def test_a_thread_waits_for_one_that_ended_and_had_its_memory():
    """Its number may be the one of the thread that ended; its per-thread default stream is not."""
    pool = resources.PoolResource(resources.DeviceResource(), 2 * UNIT, 2 * UNIT)
    held, go, addresses, order = pool.allocate(UNIT), threading.Event(), [], []

    def use(*work):
        stream = accelrt.per_thread_stream()
        addresses.append(pool.allocate(UNIT, stream))
        for function in work:
            stream.launch_host_func(function)
        pool.deallocate(addresses[-1], UNIT, stream)

    def on_a_thread(*work):
        thread = threading.Thread(target=use, args=work)
        thread.start()
        thread.join()

    try:
        on_a_thread(go.wait, lambda: order.append("first"))
        on_a_thread(lambda: order.append("second"))
        time.sleep(0.1)  # for what does not wait
    finally:
        go.set()
    accelrt.synchronize()
    assert addresses[0] == addresses[1]
    assert order == ["first", "second"]
    pool.deallocate(held, UNIT)


@pytest.mark.host
def test_a_pool_that_dies_in_a_capture_gives_back_after_it(upstream):
    pool = resources.PoolResource(upstream, unit=UNIT // 2)
    idle_chunks_of_two_streams(pool, 1)
    captured, memory = accelrt.CUDAGraph(), accelrt.zeros(1, "i4")
    with accelrt.graph(captured):
        memory.fill_(1)
        del pool
        gc.collect()
        assert upstream.live
    captured.replay()
    resources.DeviceResource().buffer(8)
    assert not upstream.live
