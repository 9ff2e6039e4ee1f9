"""Another project's extension: streams and events leased, waited for and timed without the GIL."""

import threading

import pytest
from beside import Gate

import accelrt
from accelrt.driver.host.driver import live_objects


@pytest.fixture
def others():
    """The streams that other tests returned, those of this file among them, taken from the pool."""
    taken = [accelrt.Stream() for _ in range(1000)]
    if accelrt.device(0).type == "host":
        made = live_objects()["streams"]
        while live_objects()["streams"] == made:  # there may be more, until one has to be made
            taken.append(accelrt.Stream())
    return taken


def test_leased_streams_are_unique_and_returned_once(graphs, others):
    handles = [graphs.lease(0, priority) for priority in (0, 0, -1, -100, 0, 100)]
    assert len(set(handles)) == 6
    for handle in handles:
        graphs.give_stream(0, handle)
    mine = accelrt.Stream()
    for bad in (handles[0], 12345, 0, mine.cuda_stream, others[0].cuda_stream):
        with pytest.raises(accelrt.CudaError, match=r"stream_return\(\) answered INVALID_HANDLE"):
            graphs.give_stream(0, bad)
    again = [graphs.lease(0) for _ in range(3)]
    assert set(again) < set(handles)
    for handle in again:
        graphs.give_stream(0, handle)


@pytest.mark.usefixtures("others")
def test_python_and_nogil_code_take_streams_from_one_pool(graphs):
    mine = [accelrt.Stream() for _ in range(20)]
    handles = {stream.cuda_stream for stream in mine}
    leased = graphs.lease(0)
    assert leased not in handles
    del mine
    again = [graphs.lease(0) for _ in handles]
    assert len({*again, leased}) == 21
    assert handles & set(again)
    for handle in (*again, leased):
        graphs.give_stream(0, handle)
    mine = [accelrt.Stream() for _ in range(21)]
    taken = {stream.cuda_stream for stream in mine} & {*again, leased}
    assert taken
    with pytest.raises(accelrt.CudaError, match=r"stream_return\(\) answered INVALID_HANDLE"):
        graphs.give_stream(0, taken.pop())


def test_a_stream_with_work_left_is_not_leased_again(graphs):
    handle = graphs.lease(0)
    busy = accelrt.ExternalStream(handle)
    with Gate(busy):
        assert graphs.query(0, handle) == "NOT_READY"
        graphs.give_stream(0, handle)
        others = [graphs.lease(0) for _ in range(20)]
    assert handle not in others
    busy.synchronize()
    for other in others:
        graphs.give_stream(0, other)


def test_leased_events_are_unique_and_returned_once(graphs):
    accelrt.init()
    events, again = graphs.leased_events(0, 12)
    assert len(set(events)) == 12
    assert again == "INVALID_HANDLE"
    seen = set()
    for _round in range(100):
        seen.update(graphs.leased_events(0, 12)[0])
    assert len(seen) < 100


def recorded_event(stream):
    """An Event, and the driver's handle of it."""
    event = accelrt.Event()
    event.record(accelrt.ExternalStream(stream))
    return event, event.cuda_event


def test_python_and_nogil_code_take_events_from_one_pool(graphs, stream):
    handle = recorded_event(stream)[1]
    graphs.wait_for(0, stream, 0, stream)  # takes an event and returns it
    assert recorded_event(stream)[1] == handle


@pytest.mark.host  # a GPU's driver may give a new event the address of one that was destroyed
def test_an_event_that_nogil_code_captured_is_not_handed_out_again(graphs, stream):
    graph, other = graphs.BareGraph(), graphs.lease(0)
    handle = recorded_event(stream)[1]
    with accelrt.Buffer(512) as buffer:
        graph.begin(0, stream)
        graphs.wait_for(0, other, 0, stream)
        graphs.set_bytes(0, other, buffer.ptr, 1, 512)
        graphs.wait_for(0, stream, 0, other)
        graph.end()
        events = [recorded_event(stream) for _ in range(50)]
        assert handle not in [found for _, found in events]
        graph.destroy()
    graphs.give_stream(0, other)


def test_a_stream_waits_for_another(graphs, stream):
    other, seen = graphs.lease(0), []
    first, second = accelrt.ExternalStream(stream), accelrt.ExternalStream(other)
    with Gate(first):
        first.launch_host_func(lambda: seen.append(1))
        graphs.wait_for(0, other, 0, stream)
        assert graphs.query(0, other) == "NOT_READY"
    second.synchronize()
    assert seen == [1]
    first.synchronize()
    graphs.give_stream(0, other)


def test_a_stream_waits_for_one_of_another_device(graphs, stream):
    if accelrt.device_count() < 2:
        pytest.skip("one device")
    gate, other = threading.Event(), graphs.lease(1)
    accelrt.ExternalStream(other, device=1).launch_host_func(gate.wait)
    graphs.wait_for(0, stream, 1, other)
    assert graphs.query(0, stream) == "NOT_READY"
    gate.set()
    accelrt.ExternalStream(stream).synchronize()
    assert graphs.query(1, other) == "SUCCESS"
    graphs.give_stream(1, other)


def calls_on(graphs, buffer, pinned):
    return {
        "allocate": lambda stream: graphs.give(0, graphs.take(0, 64, stream)),
        "record_stream": lambda stream: graphs.use(0, buffer.ptr, stream),
        "record_pinned_stream": lambda stream: graphs.use_pinned(0, pinned.ptr, stream),
    }


@pytest.mark.parametrize("call", ["allocate", "record_stream", "record_pinned_stream"])
def test_a_stream_of_another_device_or_of_nobody_is_an_invalid_handle(graphs, stream, call):
    refused = []
    if accelrt.device_count() > 1:
        refused.append(accelrt.Stream(1).cuda_stream)
    if accelrt.device(0).type == "host":  # a GPU's driver may crash on a handle that was never one
        refused.append(12345)
    with accelrt.Buffer(64) as buffer, accelrt.PinnedBuffer(64) as pinned:
        function = calls_on(graphs, buffer, pinned)[call]
        for handle in refused:
            with pytest.raises(accelrt.CudaError, match=rf"{call}\(\) answered INVALID_HANDLE"):
                function(handle)
        for handle in (stream, 0, 1, 2, accelrt.Stream(0).cuda_stream):
            function(handle)
    accelrt.Buffer(64).free()


def test_time_passes_between_events(graphs, stream):
    with accelrt.Buffer(1 << 20) as buffer:
        milliseconds, never = graphs.elapsed(0, stream, buffer.ptr, 1 << 20)
    assert milliseconds >= 0
    assert never == "INVALID_HANDLE"


def test_the_revision_is_told(graphs):
    built_for, installed = graphs.revisions()
    assert built_for == installed >= 2
