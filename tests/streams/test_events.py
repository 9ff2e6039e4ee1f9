"""Events: kinds, times, other processes, and as nodes of graphs."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from beside import Gate
from device_arrays import bytes_of

import accelrt

SEVERAL = accelrt.device_count() > 1
KINDS = [
    {},
    {"enable_timing": True},
    {"blocking": True},
    {"enable_timing": True, "blocking": True},
    {"interprocess": True},
    {"external": True},
]

OTHER_PROCESS = """
import sys
import accelrt

event = accelrt.Event.from_ipc_handle(0, bytes.fromhex(sys.argv[1]))
assert not event.query()
stream = accelrt.Stream()
stream.wait_event(event)
assert not stream.query()
print("waits", flush=True)
stream.synchronize()
event.synchronize()
assert event.query()
event.record(stream)
stream.synchronize()
"""


def test_making_an_event_makes_no_driver_call_and_the_first_record_takes_one():
    for kind in KINDS:
        event = accelrt.Event(**kind)
        assert event.cuda_event == 0
        assert event.device is None
        assert event.query()
        event.synchronize()
        event.wait()
        event.record()
        assert event.cuda_event
        assert event.device == accelrt.device(0)
        event.synchronize()
        assert event.query()


@pytest.mark.parametrize("kind", KINDS[:4])
def test_dead_events_are_used_again_by_their_kind_only(kind):
    events = [accelrt.Event(**kind) for _ in range(10)]
    for event in events:
        event.record()
    handles = {event.cuda_event for event in events}
    assert len(handles) == 10
    del events, event
    others = [accelrt.Event(**other) for other in KINDS[:4] if other != kind]
    for event in others:
        event.record()
    assert not handles & {event.cuda_event for event in others}
    again = [accelrt.Event(**kind) for _ in range(10)]
    for event in again:
        event.record()
    assert handles == {event.cuda_event for event in again}


def test_an_event_used_again_does_not_disturb_who_waits_for_the_dead_one():
    gate, seen = threading.Event(), []
    first, second = accelrt.Stream(), accelrt.Stream()
    first.launch_host_func(gate.wait)
    event = first.record_event()
    second.wait_event(event)
    del event
    again = accelrt.Event()
    again.record(accelrt.Stream())
    assert not second.query()
    threading.Timer(0, lambda: seen.append(1) or gate.set()).start()
    second.synchronize()
    assert seen == [1]


def test_elapsed_time_of_work_that_is_complete():
    stream = accelrt.Stream()
    start, end = accelrt.Event(enable_timing=True), accelrt.Event(enable_timing=True)
    start.record(stream)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert end.elapsed_time(start) <= 0


def test_elapsed_time_says_what_is_wrong():
    timed, silent = accelrt.Event(enable_timing=True), accelrt.Event()
    with pytest.raises(TypeError, match="end_event is 3 of type int"):
        timed.elapsed_time(3)
    with pytest.raises(
        ValueError, match=r"second event keeps no time; make it with Event\(enable_timing=True\)"
    ):
        recorded(timed).elapsed_time(recorded(silent))
    with pytest.raises(ValueError, match="first event keeps no time"):
        silent.elapsed_time(timed)
    with pytest.raises(ValueError, match="second event was never recorded"):
        timed.elapsed_time(accelrt.Event(enable_timing=True))
    with pytest.raises(ValueError, match="first event was never recorded"):
        accelrt.Event(enable_timing=True).elapsed_time(timed)


def recorded(event):
    event.record()
    event.synchronize()
    return event


def test_elapsed_time_names_the_event_that_is_not_complete():
    stream = accelrt.Stream()
    start, end = accelrt.Event(enable_timing=True), accelrt.Event(enable_timing=True)
    recorded(start)
    with Gate(stream):
        end.record(stream)
        with pytest.raises(accelrt.CudaError, match=r"not_complete='end'.*synchronise first") as caught:
            start.elapsed_time(end)
        assert caught.value.name == "NOT_READY"
        with pytest.raises(accelrt.CudaError, match="not_complete='start'"):
            end.elapsed_time(start)
    stream.synchronize()
    assert start.elapsed_time(end) >= 0


@pytest.mark.skipif(not SEVERAL, reason="needs two devices")
def test_times_of_two_devices_are_not_compared():
    events = [accelrt.Event(enable_timing=True) for _ in range(2)]
    for ordinal, event in enumerate(events):
        event.record(accelrt.Stream(ordinal))
        event.synchronize()
    with pytest.raises(ValueError, match="first event is of device 0 and the second of device 1"):
        events[0].elapsed_time(events[1])


@pytest.mark.skipif(not SEVERAL, reason="needs two devices")
def test_an_event_stays_with_its_first_device_and_others_wait_for_it():
    event, near, far = accelrt.Event(), accelrt.Stream(0), accelrt.Stream(1)
    with Gate(near):
        event.record(near)
        far.wait_event(event)
        with pytest.raises(ValueError, match="belongs to device 0"):
            event.record(far)
        assert not far.query()
    far.synchronize()
    assert near.query()


@pytest.mark.parametrize("other", ["enable_timing", "external"])
def test_an_interprocess_event_is_nothing_else(other):
    with pytest.raises(ValueError, match="interprocess"):
        accelrt.Event(interprocess=True, **{other: True})


# other processes


def test_a_handle_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"pass the bytes of ipc_handle"):
        accelrt.Event.from_ipc_handle(0, "handle")
    with pytest.raises(ValueError, match="handle has 3 bytes"):
        accelrt.Event.from_ipc_handle(0, b"abc")
    with pytest.raises(ValueError, match=r"make it with Event\(interprocess=True\)"):
        accelrt.Event().ipc_handle()


def test_another_process_waits_for_an_event():
    stream, event = accelrt.Stream(), accelrt.Event(interprocess=True)
    with Gate(stream):
        handle = event.ipc_handle()
        assert len(handle) == 64
        event.record(stream)
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS, handle.hex()], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout.readline() == "waits\n"
    assert other.wait(120) == 0
    event.synchronize()


# as nodes


def filled_graph(stream, buffer, values, events):
    """A graph that fills a buffer with each value and records an event behind each fill."""
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        for value, event in zip(values, events, strict=True):
            accelrt.fill(buffer, value, stream=stream)
            event.record(stream)
    return graph


def test_an_external_event_is_recorded_by_every_replay():
    stream, other = accelrt.Stream(), accelrt.Stream()
    events = [accelrt.Event(external=True, enable_timing=True) for _ in range(2)]
    out = np.zeros(4096, np.uint8)
    with accelrt.Buffer(4096, stream=stream) as buffer:
        graph = filled_graph(stream, buffer, (5, 6), events)
        assert graph.node_count == 4
        for _ in range(3):
            accelrt.fill(buffer, 0, stream=stream)
            with Gate(stream):
                with accelrt.stream(stream):
                    graph.replay()
                other.wait_event(events[1])
                assert not events[0].query()
                assert not other.query()
            other.synchronize()
            assert events[1].query()
            buffer.copy_to(out, stream=other)
            assert (out == 6).all()
            assert events[0].elapsed_time(events[1]) >= 0
        del graph


@pytest.mark.parametrize("recorded", [True, False])
def test_a_graph_waits_for_what_was_recorded_outside_before_its_launch(recorded):
    stream, other, event = accelrt.Stream(), accelrt.Stream(), accelrt.Event(external=True)
    if recorded:  # before the capture, too
        event.record(other)
    out = np.zeros(4096, np.uint8)
    with accelrt.Buffer(4096, stream=stream) as buffer, accelrt.Buffer(4096, stream=stream) as result:
        stream.synchronize()
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            event.wait(stream)
            accelrt.copy(result, buffer, stream=stream, blocking=False)
        for value in (1, 2, 3):
            with Gate(other):
                accelrt.fill(buffer, value, stream=other)
                event.record(other)
                with accelrt.stream(stream):
                    graph.replay()
                assert not stream.query()
            result.copy_to(out, stream=stream)
            assert (out == value).all()
        del graph


def test_a_replay_waits_for_an_event_that_was_not_recorded_yet_though_another_was_captured_before():
    captured, graph = accelrt.Event(), accelrt.CUDAGraph()
    with accelrt.graph(graph), accelrt.Buffer(64) as buffer:
        buffer.fill(1)
        captured.record()
    del captured, graph  # the driver's event goes back to the spare ones
    stream, event, graph = accelrt.Stream(), accelrt.Event(external=True), accelrt.CUDAGraph()
    with accelrt.Buffer(64) as buffer:
        with accelrt.graph(graph, stream=stream):
            event.wait(stream)
            buffer.fill(7, stream=stream)
        with accelrt.stream(stream):
            graph.replay()
        assert (bytes_of(buffer, stream) == 7).all()


def test_an_event_of_a_capture_that_ended_has_no_state_until_it_is_recorded_anew():
    event, graph, buffer = accelrt.Event(), accelrt.CUDAGraph(), accelrt.Buffer(64)
    with accelrt.graph(graph):
        buffer.fill(1)
        event.record()
    for call in (event.query, event.synchronize):
        with pytest.raises(accelrt.CaptureError, match="last recorded inside a capture"):
            call()
    event.record()
    event.synchronize()
    assert event.query()


def test_an_external_event_outside_of_captures_is_like_any_other():
    stream, event = accelrt.Stream(), accelrt.Event(external=True)
    event.record(stream)
    accelrt.Stream().wait_event(event)
    event.synchronize()
    assert event.query()


def test_an_event_of_a_device_has_the_drivers_from_the_start():
    event = accelrt.Event(enable_timing=True, device=0)
    assert event.handle
    assert event.device_index == 0
    handle = event.handle
    with pytest.raises(ValueError, match="never recorded"):
        event.elapsed_time(accelrt.Event(enable_timing=True, device="cuda:0"))
    event.record(accelrt.Stream(0))
    event.synchronize()
    assert event.handle == handle
    assert accelrt.Event().handle == 0
    with pytest.raises(ValueError, match="99"):
        accelrt.Event(device=99)


@pytest.mark.skipif(not SEVERAL, reason="there is one device")
def test_an_event_of_a_device_is_not_recorded_on_another():
    event = accelrt.Event(device=1)
    assert event.device_index == 1
    with pytest.raises(ValueError, match="belongs to device 1"):
        event.record(accelrt.Stream(0))


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_tells_its_kind(kind):
    event = accelrt.Event(**kind)
    told = {name: getattr(event, name) for name in ("enable_timing", "blocking", "interprocess")}
    assert told == {name: kind.get(name, False) for name in told}
