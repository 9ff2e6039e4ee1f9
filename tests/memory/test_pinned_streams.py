"""Page-locked memory that is dropped while a stream still uses it."""

import gc
import threading

import numpy as np
import pytest
from beside import Gate

import accelrt

SIZE = 1 << 16


def addresses():
    """Every block of SIZE that the cache hands out before it asks the driver for more."""
    calls, held = accelrt.host_memory_stats()["num_host_alloc"], []
    while accelrt.host_memory_stats()["num_host_alloc"] == calls:
        held.append(accelrt.caching_host_allocator_alloc(SIZE))
    for address in held:
        accelrt.caching_host_allocator_delete(address)
    return set(held)


def active():
    return accelrt.host_memory_stats()["active_requests.current"]


@pytest.mark.parametrize("make", ["buffer", "array", "view"])
def test_memory_dropped_with_a_copy_in_flight_is_not_handed_out(make):
    stream, out = accelrt.Stream(), np.zeros(SIZE, np.uint8)
    pinned = accelrt.PinnedBuffer(SIZE) if make == "buffer" else accelrt.pinned_empty(SIZE, np.uint8)
    np.frombuffer(pinned, np.uint8)[:] = 7
    address = pinned.ptr if make == "buffer" else pinned.ctypes.data
    gate = Gate(stream)
    with accelrt.Buffer(SIZE, stream=stream) as buffer:
        source = pinned[100:] if make == "view" else pinned
        buffer.copy_from(source, stream=stream, blocking=False)
        del pinned, source
        gc.collect()
        assert active() == 1
        assert address not in addresses()
        gate.open.set()
        buffer.copy_to(out, stream=stream)
    assert (out[: SIZE - 100 * (make == "view")] == 7).all()
    assert address in addresses()
    assert active() == 0


def test_memory_that_is_written_is_held_back_too():
    stream, gone = accelrt.Stream(), []
    with accelrt.Buffer(SIZE, stream=stream) as buffer:
        buffer.fill(9, stream=stream, blocking=True)
        gate = Gate(stream)
        pinned = accelrt.PinnedBuffer(SIZE)
        buffer.copy_to(pinned, stream=stream, blocking=False)
        gone.append(pinned.ptr)
        pinned.free()
        other = accelrt.pinned_empty(SIZE, np.uint8)
        other[:] = 1
        gate.open.set()
        stream.synchronize()
        assert other.ctypes.data not in gone
        assert (other == 1).all()


def test_a_blocking_copy_leaves_nothing_to_wait_for():
    with accelrt.Buffer(SIZE) as buffer:
        pinned = accelrt.PinnedBuffer(SIZE)
        buffer.copy_from(pinned)
        address = pinned.ptr
        pinned.free()
        assert active() == 0
        assert address in addresses()


def test_every_recorded_stream_is_waited_for():
    streams = [accelrt.Stream(ordinal) for ordinal in (0, 0, accelrt.device_count() - 1)]
    gates = [Gate(stream) for stream in streams]
    array = accelrt.pinned_empty(SIZE, np.uint8)
    address = array.ctypes.data
    for stream in streams * 2:
        accelrt.record_host_stream(array[5:], stream)
    del array
    for stream, gate in zip(streams, gates, strict=True):
        assert address not in addresses()
        gate.open.set()
        stream.synchronize()
    assert address in addresses()


def test_memory_recorded_by_its_address():
    stream = accelrt.Stream()
    address = accelrt.caching_host_allocator_alloc(SIZE)
    accelrt.record_host_stream(address + SIZE - 1, stream.cuda_stream)
    gate = Gate(stream)
    accelrt.caching_host_allocator_delete(address)
    with pytest.raises(ValueError, match="given back already"):
        accelrt.caching_host_allocator_delete(address)
    with pytest.raises(ValueError, match="in no live memory"):
        accelrt.record_host_stream(address, stream)
    assert address not in addresses()
    gate.open.set()


def test_emptying_the_cache_waits_for_the_work():
    stream, pinned = accelrt.Stream(), accelrt.PinnedBuffer(SIZE)
    accelrt.record_host_stream(pinned, stream)
    gate = Gate(stream)
    pinned.free()
    opener = threading.Timer(0.05, gate.open.set)
    opener.start()
    accelrt.host_empty_cache()
    opener.join()
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0


def test_a_host_function_may_give_memory_back_while_the_cache_waits_for_it():
    stream, first, second = accelrt.Stream(), accelrt.PinnedBuffer(SIZE), accelrt.PinnedBuffer(SIZE)
    accelrt.record_host_stream(first, stream)
    accelrt.record_host_stream(second, stream)
    gate = Gate(stream)
    stream.launch_host_func(second.free)
    first.free()
    opener = threading.Timer(0.05, gate.open.set)
    opener.start()
    accelrt.host_empty_cache()
    opener.join()
    stream.synchronize()
    accelrt.host_empty_cache()
    assert active() == 0


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_the_cache_works_beside_a_capture_and_does_not_break_it(mode):
    side, graph, out = accelrt.Stream(), accelrt.CUDAGraph(), np.zeros(SIZE, np.uint8)
    source, late = accelrt.pinned_empty(SIZE, np.uint8), accelrt.PinnedBuffer(SIZE)
    source[:] = 3
    stream = accelrt.Stream()
    with accelrt.Buffer(SIZE) as buffer:
        accelrt.record_host_stream(late, side)
        accelrt.record_host_stream(late, stream)
        gate = Gate(side)
        with accelrt.graph(graph, stream=stream, capture_error_mode=mode):
            buffer.copy_from(source, stream=stream, blocking=False)
            late.free()  # one of its streams captures, the other is held
            fresh = [accelrt.PinnedBuffer(40 << 20), accelrt.pinned_empty(1 << 20)]
            del fresh
            gc.collect()
            accelrt.host_empty_cache()
        assert active() == 2
        gate.open.set()
        with accelrt.stream(stream):
            graph.replay()
        buffer.copy_to(out, stream=stream)
        assert (out == 3).all()
        del source, graph
        gc.collect()
    side.synchronize()


def test_memory_of_a_graph_that_dies_while_a_replay_is_under_way():
    stream, graph, out = accelrt.Stream(), accelrt.CUDAGraph(), np.zeros(SIZE, np.uint8)
    source = accelrt.pinned_empty(SIZE, np.uint8)
    source[:] = 5
    address = source.ctypes.data
    with accelrt.Buffer(SIZE) as buffer:
        with accelrt.graph(graph, stream=stream):
            buffer.copy_from(source, stream=stream, blocking=False)
        other = accelrt.Stream()
        gate = Gate(other)
        with accelrt.stream(other):
            graph.replay()
            graph.replay()
        del source
        graph.reset()
        del graph
        gc.collect()
        assert address not in addresses()
        gate.open.set()
        buffer.copy_to(out, stream=other)
    assert (out == 5).all()
    assert address in addresses()


@pytest.mark.parametrize(
    ("memory", "stream", "error"),
    [(1.5, None, TypeError), (np.zeros(10), None, ValueError), (-1, None, ValueError), (64, "x", TypeError)],
)
def test_uses_that_are_none_are_refused(memory, stream, error):
    with pytest.raises(error):
        accelrt.record_host_stream(memory, stream)
