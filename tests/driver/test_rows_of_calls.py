"""Which rows of the driver single calls come to: their own, and a look for a capture where that matters."""

from functools import partial

import pytest
from child import in_child, wrap_host
from kernel_sources import image_for

import accelrt
from accelrt.testing import calls_of

pytestmark = pytest.mark.host
IDLE = {"stream_is_capturing": 1, "capture_mode_exchange": 2, "stream_query": 1}


def single_calls():
    wrap_host()
    stream, other, event = accelrt.Stream(), accelrt.Stream(), accelrt.Event()
    event.record(other)
    memory, pinned = accelrt.Buffer(1024), accelrt.PinnedBuffer(1024)
    numbers = accelrt.empty(256, dtype="float32")
    generator = accelrt.random.Generator(0)
    rows = {
        "copy": calls_of(lambda: accelrt.copy(memory, pinned, blocking=False, stream=stream)),
        "copy on the current stream": calls_of(lambda: accelrt.copy(memory, pinned, blocking=False)),
        "fill": calls_of(lambda: accelrt.fill(memory, 0)),
        "record": calls_of(lambda: event.record(other)),
        "wait": calls_of(lambda: stream.wait_event(event)),
        "uniform": calls_of(lambda: generator.uniform(numbers)),
    }
    accelrt.synchronize()
    assert rows == {
        "copy": {"copy_async": 1},
        "copy on the current stream": {"copy_async": 1},
        "fill": {"fill": 1},
        "record": {"event_record": 1},
        "wait": {"stream_wait_event": 1},
        "uniform": {"capture_status": 1, "kernel_launch": 1},
    }


def launches_and_replays():
    _faults, graph, memory = wrap_host(), accelrt.CUDAGraph(), accelrt.Buffer(1024)
    kernel = accelrt.Module(image_for("host")).function("number", "uint32_t* at, uint32_t value")
    assert calls_of(lambda: kernel[4, 64](memory, 5)) == {"kernel_launch": 1}
    with accelrt.graph(graph):
        for _ in range(10):
            kernel[4, 64](memory, 5)
    assert calls_of(graph.replay) == {"graph_launch": 1}
    accelrt.synchronize()


@pytest.mark.parametrize("work", [single_calls, launches_and_replays])
def test_a_call_comes_to_the_row_that_does_its_work(work):
    in_child(work)


def allocations():
    wrap_host()
    allocate, release = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    for device in range(accelrt.device_count()):
        stream = accelrt.Stream(device)
        ways = {
            "address": lambda stream=stream: release(allocate(512, stream=stream)),
            "address, both named": lambda both=(device, stream): release(allocate(512, *both)),
            "buffer": lambda stream=stream: accelrt.Buffer(512, stream=stream).free(),
        }
        for allocate_and_free in ways.values():
            allocate_and_free()
        assert {way: calls_of(work) for way, work in ways.items()} == {way: {} for way in ways}
    assert calls_of(lambda: release(allocate(512))) == {"current_device": 1}


def test_memory_of_a_stream_is_allocated_without_a_question_which_device_is_current():
    in_child(allocations, ACCELRT_HOST_DEVICES="2", ACCELRT_DEBUG="0")


UNTOUCHED = {
    "nothing": lambda stream: None,
    "query": lambda stream: stream.query(),
    "synchronize": lambda stream: stream.synchronize(),
    "compare": lambda stream: (
        stream == accelrt.default_stream(),
        hash(stream),
        stream.device,
        stream.priority,
    ),
}
USED = {
    "handle": lambda stream: stream.handle,
    "cuda_stream": lambda stream: stream.cuda_stream,
    "native_handle": lambda stream: stream.native_handle,
    "stream_id": lambda stream: stream.stream_id,
    "as_parameter": lambda stream: stream._as_parameter_,
    "protocol": lambda stream: stream.__cuda_stream__(),
    "repr": repr,
    "record": lambda stream: accelrt.Event().record(stream),
    "record_event": lambda stream: stream.record_event(),
    "wait_event": lambda stream: stream.wait_event(accelrt.default_stream().record_event()),
    "wait_stream": lambda stream: stream.wait_stream(accelrt.default_stream()),
    "waited for": lambda stream: accelrt.default_stream().wait_stream(stream),
    "launch_host_func": lambda stream: stream.launch_host_func(int),
    "entered": lambda stream: stream.__enter__().__exit__(None, None, None),
    "current": lambda stream: (accelrt.set_stream(stream), accelrt.set_stream(accelrt.default_stream())),
    "copy": lambda stream: accelrt.copy(
        accelrt.Buffer(64), accelrt.PinnedBuffer(64), blocking=False, stream=stream
    ),
    "copy of elements": lambda stream: accelrt.empty((4, 4))[:, :2].copy_(
        accelrt.empty((4, 2)), stream=stream
    ),
    "fill": lambda stream: accelrt.fill(accelrt.Buffer(64), 0, stream=stream),
    "buffer": lambda stream: accelrt.Buffer(64, stream=stream),
    "address": lambda stream: accelrt.caching_allocator_delete(
        accelrt.caching_allocator_alloc(64, 0, stream)
    ),
    "record_stream": lambda stream: accelrt.Buffer(64).record_stream(stream),
    "random": lambda stream: accelrt.random.Generator(0).uniform(accelrt.empty(8), stream=stream),
    "capture": lambda stream: capture_on(stream),
}


def capture_on(stream):
    with accelrt.graph(accelrt.CUDAGraph(), stream=stream):
        accelrt.fill(accelrt.Buffer(64), 0)


def lend(work):
    work(accelrt.Stream())


def leases():
    faults = wrap_host()
    for name, work in UNTOUCHED.items():
        rows = calls_of(partial(lend, work))
        assert rows.keys() <= {"current_device", "stream_query", "stream_synchronize"}, name
    stream = accelrt.Stream()
    handle = stream.cuda_stream
    del stream
    for name, work in USED.items():
        lend(work)
        accelrt.synchronize()
        faults.reset_call_counts()
        stream = accelrt.Stream()
        assert {row: count for row, count in faults.call_counts().items() if count and row in IDLE} == IDLE, (
            name
        )
        assert stream.cuda_stream == handle, name
        del stream


def test_a_stream_is_asked_for_its_work_where_its_holder_may_have_put_some_in():
    in_child(leases, ACCELRT_DEBUG="0")
