"""Events of the allocators' own that became part of somebody's capture: they are recorded anew.

A raw capture of a stream, as another library begins it, is handed the very event that a queue holds: the host
device numbers its handles in the order in which they are made."""

import contextlib
import os
import threading

import pytest
from child import in_child, in_own_process, wrap_host

import accelrt
from accelrt.driver.registry import Rows

MIB = 1 << 20
pytestmark = [
    pytest.mark.own_process,
    pytest.mark.skipif(os.environ.get("ACCELRT_DRIVER", "host") != "host", reason="guesses handles"),
]
CREATED = 16  # from one handle of the host device to the next


class Captured:
    """A raw capture, on a stream of its own, of an event that the allocator made last."""

    def __init__(self):
        self.rows = Rows()
        _, self.stream = self.rows.stream_create(0, 1, 0)

    def take(self):
        _, probe = self.rows.event_create(0, 2)
        assert self.rows.capture_begin(0, self.stream, 2) == 0
        assert self.rows.event_record(0, probe - CREATED, self.stream) == 0
        self.rows.event_destroy(0, probe)

    def end(self):
        code, graph = self.rows.capture_end(0, self.stream)
        if graph:
            self.rows.graph_destroy(graph)
        return code


@contextlib.contextmanager
def held():
    """A stream that runs nothing before its event is set."""
    stream, gate = accelrt.Stream(), threading.Event()
    stream.launch_host_func(gate.wait)
    try:
        yield stream, gate
    finally:
        gate.set()


def give_back_device(stream):
    buffer = accelrt.Buffer(1000)
    buffer.record_stream(stream)
    buffer.free()
    return lambda: accelrt.memory_stats()["active.all.current"]


def give_back_pinned(stream):
    pinned = accelrt.PinnedBuffer(1000)
    accelrt.record_host_stream(pinned, stream)
    pinned.free()
    return lambda: accelrt.host_memory_stats()["active_requests.current"]


def asks(kind):
    if kind == "device":
        accelrt.Buffer(1000).free()
    else:
        accelrt.PinnedBuffer(3 * MIB).free()


@pytest.mark.parametrize("kind", ["device", "pinned"])
@pytest.mark.parametrize("over", [True, False], ids=["a capture that is over", "a capture under way"])
@in_own_process
def test_memory_behind_a_captured_event_becomes_free_all_the_same(kind, over):
    captured = Captured()
    with held() as (stream, gate):
        pending = (give_back_device if kind == "device" else give_back_pinned)(stream)
        captured.take()
        if over:
            assert captured.end() == 0
        for _ in range(3):
            asks(kind)
        assert pending() == 1
        if not over:
            captured.end()
        gate.set()
        accelrt.synchronize()
        asks(kind)  # recorded anew, where that was not possible before
        accelrt.synchronize()
        asks(kind)
        assert pending() == 0
        accelrt.memory.audit()
        accelrt.memory.host_audit()


@pytest.mark.parametrize("kind", ["device", "pinned"])
@in_own_process
def test_what_waits_for_a_captured_event_is_not_refused(kind):
    captured = Captured()
    with held() as (stream, gate):
        pending = (give_back_device if kind == "device" else give_back_pinned)(stream)
        captured.take()
        assert captured.end() == 0
        gate.set()
        accelrt.empty_cache()
        accelrt.host_empty_cache()
        accelrt.empty_cache()
        accelrt.host_empty_cache()
        assert pending() == 0


@in_own_process
def test_memory_that_is_freed_as_of_an_event_too():
    captured = Captured()
    with held() as (stream, gate):
        address = accelrt.caching_allocator_alloc(MIB, stream=stream)
        accelrt.memory.free_after(address, stream.record_event())
        captured.take()
        assert captured.end() == 0
        accelrt.Buffer(1000, stream=stream).free()
        gate.set()
        for _ in range(2):
            accelrt.synchronize()
            accelrt.Buffer(1000, stream=stream).free()
        assert accelrt.memory_stats()["active.all.current"] == 0


@in_own_process
def test_a_marker_that_was_captured_makes_room_for_another():
    captured = Captured()
    with held() as (stream, gate):
        other = accelrt.Stream()
        accelrt.Buffer(64 * MIB, stream=stream).free()
        accelrt.Buffer(32 * MIB, stream=other).free()  # looks at the other stream, and marks it
        captured.take()
        assert captured.end() == 0
        gate.set()
        accelrt.synchronize()
        before = accelrt.memory_reserved()
        accelrt.Buffer(90 * MIB, stream=other).free()
        assert accelrt.memory_reserved() <= before + 32 * MIB
        accelrt.memory.audit()


@in_own_process
def test_an_event_whose_first_record_failed_does_not_ask_for_a_dead_ones():
    stream, graph, buffer = accelrt.Stream(), accelrt.CUDAGraph(), accelrt.Buffer(64)
    gone = accelrt.ExternalStream(accelrt.Stream().cuda_stream)

    assert Rows().stream_destroy(0, gone.cuda_stream) == 0
    with accelrt.graph(graph, stream=stream, capture_error_mode="thread_local"):
        buffer.fill(1)
        stream.record_event()  # dies at once; the driver's event is kept for the next
        event = accelrt.Event(blocking=False)
        with pytest.raises(accelrt.CudaError):
            event.record(gone)
        assert event.query()
        event.synchronize()
    graph.replay()
    accelrt.synchronize()


def questions():
    faults, graph = wrap_host(), accelrt.CUDAGraph()
    stream, beside = accelrt.Stream(), accelrt.Stream()
    found = {}

    def count(name, call, *arguments):
        faults.reset_call_counts()
        call(*arguments)
        found[name] = faults.call_counts()["capture_status"]

    def record_and_wait(place, on):
        plain, external = accelrt.Event(), accelrt.Event(external=True)
        count(f"record {place}", plain.record, on)
        count(f"wait {place}", plain.wait, on)
        count(f"external record {place}", external.record, on)
        count(f"external wait {place}", external.wait, on)

    record_and_wait("outside", stream)
    with accelrt.graph(graph, stream=stream, capture_error_mode="relaxed"):
        record_and_wait("captured", stream)
        record_and_wait("beside", beside)
    graph.replay()
    accelrt.synchronize()
    print(*(f"{name}: {asked}" for name, asked in found.items()), sep="\n")


def test_whether_a_stream_captures_is_asked_once_an_event():
    assert in_child(questions).splitlines() == [
        "record outside: 0",
        "wait outside: 0",
        "external record outside: 1",
        "external wait outside: 1",
        "record captured: 1",
        "wait captured: 0",
        "external record captured: 1",
        "external wait captured: 1",
        "record beside: 1",
        "wait beside: 0",
        "external record beside: 1",
        "external wait beside: 1",
    ]
