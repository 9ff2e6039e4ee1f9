"""What is asked of accelrt when its memory comes from another library, in a process of its own."""

import functools
import gc
import threading

import numpy as np
import pytest
from beside import on_threads
from device_arrays import bytes_of

import accelrt
from accelrt import memory
from accelrt.driver.registry import Rows

MIB = 1 << 20


class Books:
    """An allocator in Python over the driver's rows, with what it was asked."""

    def __init__(self, limit=1 << 40):
        self.held, self.limit, self.fails, self.asked, self.freed = {}, limit, None, [], []
        self.meanwhile = None  # called while memory is asked for
        self.leaving = None  # called while it goes back
        self.allocator = memory.CallbackAllocator(self.allocate, self.free, "books")

    @property
    def live(self):
        return sum(list(self.held.values()))  # at once: other threads allocate meanwhile

    def allocate(self, size, device, stream):
        self.asked.append((size, device, stream))
        if self.meanwhile is not None:
            self.meanwhile()
        if self.fails is not None:
            raise self.fails
        if self.live + size > self.limit:
            return None
        code, address = Rows().memory_alloc(device, size)
        if code:
            raise MemoryError(code)
        self.held[address] = size
        return address

    def free(self, address, size, device, stream):
        if self.leaving is not None:
            self.leaving()
        assert self.held.pop(address) == size
        self.freed.append(size)
        assert Rows().memory_free(device, address) == 0


def capture_into_pool(books):
    """A graph whose memory comes from a pool of books.allocator."""
    pool, graph = accelrt.MemPool(books.allocator), accelrt.CUDAGraph()
    source = accelrt.PinnedBuffer(4096)
    np.frombuffer(source, np.uint8)[:] = 7
    with accelrt.graph(graph, pool=pool.id):
        buffer = accelrt.Buffer(4096)
        buffer.copy_from(source, blocking=False)
    assert books.live == 2 * MIB
    graph.replay()
    assert set(bytes_of(buffer)) == {7}
    graph.reset()
    buffer.free()


def use_memory(live, limit):
    """Contents, streams, statistics and a refusal.

    live: callable, the bytes that the library has handed out.  limit: int, how many it has at most.
    """
    stream, other = accelrt.Stream(), accelrt.Stream()
    data, out = np.arange(MIB, dtype=np.uint8), np.zeros(MIB, np.uint8)
    buffer = accelrt.Buffer(data.nbytes, stream=stream)
    buffer.copy_from(data)
    buffer.copy_to(out, stream=other)
    assert (out == data).all()
    assert accelrt.memory_allocated() == live() == MIB
    array = accelrt.full((1000, 3), 2.5, dtype=np.float32)
    assert (array.numpy() == 2.5).all()
    buffer.record_stream(other)
    buffer.free()
    accelrt.empty_cache()
    assert accelrt.memory_allocated() == live() == 12000
    held = accelrt.Buffer(limit // 2)
    with pytest.raises(accelrt.OutOfMemoryError, match="comes from the backend") as caught:
        accelrt.Buffer(limit - limit // 4)
    assert isinstance(caught.value.__cause__, MemoryError)
    del array, held
    finish(live)


def churn(live, empties=False):
    """Threads that allocate, write, read and free on streams of their own; some empty the cache."""
    on_threads(functools.partial(_churn, empties), range(4))
    finish(live)


def _churn(empties, seed):
    stream, other = accelrt.Stream(), accelrt.Stream()
    out = np.zeros(4096, np.uint8)
    for index in range(100):
        with accelrt.Buffer(4096, stream=stream) as buffer:
            buffer.copy_from(np.full(4096, (seed + index) % 256, np.uint8), stream=stream)
            buffer.copy_to(out, stream=other if index % 2 else stream)
            buffer.record_stream(other)
            assert (out == (seed + index) % 256).all()
        if empties and index % 20 == 0:
            accelrt.empty_cache()


def figures(device=0):
    stats = accelrt.memory_stats(device)
    return stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]


def keep_shared(live, free_waits=False):
    """Memory that another stream uses is given back with the first call after that.

    free_waits: whether the library's free waits for the device, which is busy meanwhile.
    """
    gate, stream, other = threading.Event(), accelrt.Stream(), accelrt.Stream()
    address = accelrt.caching_allocator_alloc(MIB, stream=stream)
    other.launch_host_func(lambda: gate.wait(300))  # where the memory goes early, its free waits for this
    for user in (other, other, stream):
        accelrt.record_stream(address, user)
    accelrt.caching_allocator_delete(address)
    with pytest.raises(ValueError, match="not allocated"):
        accelrt.caching_allocator_delete(address)
    if not free_waits:
        accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(64))
    assert (live(), figures()) == (MIB, (0, MIB))
    memory.audit()
    gate.set()
    other.synchronize()
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(64))
    assert (live(), figures()) == (0, (0, 0))
    memory.audit()


def stay_within_a_limit(asked):
    """asked: callable, how often the library was asked for memory."""
    accelrt.set_per_process_memory_fraction(8 * MIB / accelrt.mem_get_info()[1])
    buffer = accelrt.Buffer(5 * MIB)
    with pytest.raises(accelrt.OutOfMemoryError, match=r"this process may reserve 8\.00 MiB"):
        accelrt.Buffer(4 * MIB)
    assert asked() == 1, "the library was asked for what the limit forbids"
    buffer.free()
    accelrt.Buffer(7 * MIB).free()


def capture(live, name):
    """A capture writes to memory that is there already; it takes none, and what it frees goes at its end."""
    stream, graph, pinned = accelrt.Stream(), accelrt.CUDAGraph(), accelrt.PinnedBuffer(64)
    kept, dropped = accelrt.Buffer(64), accelrt.Buffer(64)
    data = np.arange(64, dtype=np.uint8)
    np.frombuffer(pinned, np.uint8)[:] = data
    with accelrt.graph(graph, stream=stream):
        kept.copy_from(pinned, stream=stream, blocking=False)
        with pytest.raises(accelrt.NotSupportedError, match=r"private pools.*native"):
            accelrt.Buffer(64)
        accelrt.Buffer(64, stream=accelrt.Stream()).free()
        dropped.free()
        assert live() == 3 * 64, "nothing goes back meanwhile"
    assert live() == 64
    graph.replay()
    accelrt.synchronize()
    assert (bytes_of(kept) == data).all()
    with pytest.raises(accelrt.NotSupportedError, match=f"memory_snapshot is not supported by.*{name}"):
        accelrt.memory_snapshot()
    memory.audit()


def finish(live):
    accelrt.synchronize()
    accelrt.empty_cache()
    assert (accelrt.memory_allocated(), live()) == (0, 0)
    memory.audit()


def allocated():
    """memory_allocated() once what accelrt imported was given back, a call after its stream was seen idle."""
    for _ in range(2):
        gc.collect()
        accelrt.synchronize()
    return accelrt.memory_allocated()
