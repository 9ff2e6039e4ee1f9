"""Streams that are gone when memory which they used is given back: they use nothing more."""

import contextlib
import ctypes
import threading

import numpy as np
import pytest
from child import in_child, in_own_process, wrap_host
from compiled import typed
from device_arrays import bytes_of

import accelrt
from accelrt import memory
from accelrt.driver import testing as faults
from accelrt.driver.host.driver import calls_of_gone_streams
from accelrt.driver.registry import Rows
from accelrt.interop.cupy_memory import stream_goes

pytestmark = pytest.mark.own_process
MIB = 1 << 20


def raw_stream():
    """A stream of somebody else's, whose work is done, and what destroys it."""
    accelrt.init()
    rows = Rows()
    _, handle = rows.stream_create(0, 1, 0)
    return accelrt.ExternalStream(handle), lambda: rows.stream_destroy(0, handle)


def device(path, works=True):
    stream, destroy = raw_stream()
    buffer = accelrt.Buffer(4096)
    if works:
        buffer.fill(7, stream=stream)
    buffer.record_stream(stream)
    stream.synchronize()
    assert destroy() == 0
    buffer.free()
    check_device()


def check_device():
    for _ in range(3):
        accelrt.Buffer(64).free()
    accelrt.empty_cache()
    assert accelrt.memory_stats()["active_bytes.all.current"] == 0
    memory.audit()


def after_the_record(path):
    # It goes while its event is out.
    stream, destroy = raw_stream()
    buffer = accelrt.Buffer(4096)
    buffer.record_stream(stream)
    buffer.free()
    destroy()
    check_device()


def beside_a_capture(path):
    # What it used is given back in a capture, and the stream goes before that ends.
    stream, destroy = raw_stream()
    kept, buffer = accelrt.Buffer(64), accelrt.Buffer(4096)
    buffer.record_stream(stream)
    with accelrt.graph(accelrt.CUDAGraph()):
        kept.fill(1)
        buffer.free()
        assert destroy() == 0
    kept.free()
    accelrt.synchronize()
    check_device()


def handed_over(path):
    stream, destroy = raw_stream()
    address = accelrt.caching_allocator_alloc(MIB)
    accelrt.record_stream(address, stream)
    assert destroy() == 0
    memory.free_after(address, accelrt.current_stream().record_event())
    accelrt.synchronize()
    check_device()


def pinned(path):
    stream, destroy = raw_stream()
    block = accelrt.PinnedBuffer(4096)
    accelrt.record_host_stream(block, stream)
    assert destroy() == 0
    block.free()
    assert accelrt.host_memory_stats()["active_requests.current"] == 0
    accelrt.PinnedBuffer(64).free()
    accelrt.host_empty_cache()
    memory.host_audit()


def plugged(path):
    memory.change_current_allocator(memory.CUDAPluggableAllocator(path, "books_alloc", "books_free"))
    device(path, works=False)  # the library's memory is not the host device's
    after_the_record(path)


def kept_for_replays(path):
    # A graph dies whose last replay was on a stream that is gone.

    stream, destroy = raw_stream()
    target, source, graph = accelrt.Buffer(64), np.zeros(64, np.uint8), accelrt.CUDAGraph()
    with accelrt.graph(graph):
        target.copy_from(source, blocking=False)
    with accelrt.stream(stream):
        graph.replay()
        stream.synchronize()
    assert destroy() == 0
    del graph
    target.free()
    check_device()


@pytest.mark.parametrize(
    "scenario",
    [device, after_the_record, beside_a_capture, handed_over, pinned, plugged, kept_for_replays],
    ids=lambda scenario: scenario.__name__,
)
def test_a_stream_that_is_gone_uses_nothing_more(scenario, pluggable):
    in_child(scenario, pluggable)


# --- a driver may not even be asked about a stream that is gone ---------------------------------------------


def active():
    return accelrt.memory_stats()["active.all.current"]


@pytest.mark.parametrize("pinned", [False, True], ids=["device", "page-locked"])
@in_own_process
def test_what_is_freed_in_a_capture_waits_for_its_stream_as_soon_as_that_is_over(pinned):
    stream, destroy = raw_stream()
    graph, kept = accelrt.CUDAGraph(), accelrt.Buffer(64)
    block = accelrt.PinnedBuffer(4096) if pinned else accelrt.Buffer(4096)
    with accelrt.graph(graph, stream=stream):
        kept.fill(1, stream=stream)
        (accelrt.record_host_stream if pinned else accelrt.Buffer.record_stream)(block, stream)
        block.free()
    stream.synchronize()
    assert destroy() == 0
    if pinned:
        accelrt.PinnedBuffer(3 * MIB).free()
        accelrt.host_empty_cache()
        assert accelrt.host_memory_stats()["active_requests.current"] == 0
    else:
        accelrt.Buffer(3 * MIB).free()
        accelrt.empty_cache()
        assert active() == 1
    assert calls_of_gone_streams() == 0


@in_own_process
def test_another_capture_that_goes_on_keeps_nothing_back():
    (first, destroy), second = raw_stream(), accelrt.Stream()
    graphs, kept = [accelrt.CUDAGraph() for _ in range(2)], accelrt.Buffer(64)
    blocks = {stream: accelrt.Buffer(4096) for stream in (first, second)}
    for graph, stream in zip(graphs, (first, second), strict=True):
        with accelrt.stream(stream):
            graph.capture_begin(capture_error_mode="relaxed")
            kept.fill(1, stream=stream)
    for stream, block in blocks.items():
        block.record_stream(stream)
        block.free()
    assert active() == 3
    with accelrt.stream(first):
        graphs[0].capture_end()
    first.synchronize()
    assert destroy() == 0
    accelrt.Buffer(3 * MIB).free()
    assert active() == 2  # all but the one that a capture still uses
    with accelrt.stream(second):
        graphs[1].capture_end()
    second.synchronize()
    accelrt.Buffer(5 * MIB).free()
    assert active() == 1
    assert calls_of_gone_streams() == 0


@pytest.mark.parametrize("goes", [False, True])
@in_own_process
def test_memory_that_a_stream_waited_for_is_not_its_handles(goes):
    stream, _ = raw_stream()
    address, gate = accelrt.caching_allocator_alloc(4 * MIB), threading.Event()
    accelrt.current_stream().launch_host_func(gate.wait)
    event = accelrt.current_stream().record_event()
    memory.free_after(address, event)
    stream.wait_event(event)
    if goes:
        stream_goes(0, stream.cuda_stream)
    again = accelrt.caching_allocator_alloc(4 * MIB, stream=stream)
    assert (again == address) is not goes
    memory.audit()
    gate.set()
    accelrt.synchronize()
    accelrt.caching_allocator_delete(again)
    check_device()


# --- streams that are destroyed with work under way ---------------------------------------------------------


class Working:
    """A stream of somebody else's, destroyed while its work waits: behind that it fills, or reads, memory."""

    def __init__(self, use, code=0):
        stream, destroy = raw_stream()
        self.gate = threading.Event()
        stream.launch_host_func(lambda: self.gate.wait(300))
        use(stream)
        faults.arm(call=1, code=code or 999, mode="onward", rows=["event_record" if code else "open"])
        self.goes = stream_goes(0, stream.cuda_stream)
        faults.disarm()
        if self.goes:
            assert destroy() == 0

    def end(self):
        self.gate.set()
        accelrt.synchronize()
        assert calls_of_gone_streams() == 0


def check_next_user(working):
    """Memory that is allocated while the work goes on is written by its own user alone."""
    again = accelrt.Buffer(4 * MIB)
    again.fill(9)
    accelrt.current_stream().synchronize()
    working.end()
    assert (bytes_of(again) == 9).all()
    again.free()
    check_device()


@pytest.mark.host
@pytest.mark.parametrize("code", [0, 2, 400, 999])
@in_own_process
def test_memory_waits_for_a_stream_that_was_destroyed_at_work(code):
    wrap_host()
    memory_ = accelrt.Buffer(4 * MIB)
    working = Working(lambda stream: memory_.fill(0xAB, stream=stream), code)
    assert working.goes is not bool(code)
    memory_.free()
    check_next_user(working)


@pytest.mark.host
@in_own_process
def test_memory_that_had_no_event_waits_for_a_stream_that_was_destroyed_at_work():
    wrap_host()
    memory_ = accelrt.Buffer(4 * MIB)

    def use(stream):
        memory_.fill(0xAB, stream=stream)
        faults.arm(call=1, code=999, mode="once", rows=["event_record"])
        with contextlib.suppress(accelrt.CudaError):
            memory_.free()
        assert faults.fired() == 1

    working = Working(use)
    check_next_user(working)


@pytest.mark.host
@in_own_process
def test_page_locked_memory_waits_for_a_stream_that_was_destroyed_at_work():
    wrap_host()
    memory_, into, held = accelrt.PinnedBuffer(MIB), accelrt.Buffer(MIB), np.zeros(MIB, np.uint8)
    np.frombuffer(memory_, np.uint8)[:] = 3
    working = Working(lambda stream: into.copy_from(memory_, stream=stream, blocking=False))
    memory_.free()
    again = accelrt.PinnedBuffer(MIB)
    np.frombuffer(again, np.uint8)[:] = 9
    working.end()
    into.copy_to(held)
    assert (held == 3).all()


@pytest.mark.host
@in_own_process
def test_a_librarys_memory_waits_for_a_stream_that_was_destroyed_at_work(pluggable):
    wrap_host()
    memory.change_current_allocator(memory.CUDAPluggableAllocator(pluggable, "books_alloc", "books_free"))
    live = typed(ctypes.CDLL(pluggable), "books_live")
    shared, other = accelrt.caching_allocator_alloc(MIB), accelrt.Stream()
    working = Working(lambda stream: accelrt.record_stream(shared, stream))
    accelrt.record_stream(shared, other)
    accelrt.caching_allocator_delete(shared)
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(64))
    assert live() == MIB
    working.end()
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(64))
    assert live() == 0
    memory.audit()
