"""Streams that wait for the legacy default stream, and it for them: Stream(nonblocking=False)."""

import gc

import numpy as np
import pytest
from beside import Gate
from child import in_own_process

import accelrt
from accelrt.driver.registry import Rows


def test_a_stream_tells_whether_it_is_independent_of_the_default_stream():
    assert accelrt.Stream().is_nonblocking
    assert accelrt.Stream(nonblocking=True).is_nonblocking
    blocking = accelrt.Stream(nonblocking=False)
    assert not blocking.is_nonblocking
    assert Rows().stream_flags(0, blocking.cuda_stream) == (0, 0)
    assert not accelrt.default_stream().is_nonblocking
    assert not accelrt.per_thread_stream().is_nonblocking
    assert not accelrt.ExternalStream(blocking.cuda_stream).is_nonblocking
    assert not accelrt.Stream(stream_id=blocking.stream_id).is_nonblocking


def test_the_default_stream_waits_for_a_blocking_stream_and_it_for_that():
    blocking, other, ours = (
        accelrt.Stream(nonblocking=False),
        accelrt.Stream(nonblocking=False),
        accelrt.Stream(),
    )
    gate = Gate(blocking)
    ours.record_event().synchronize()
    legacy = accelrt.default_stream().record_event()
    behind = other.record_event()
    assert not legacy.query()
    assert not accelrt.ExternalStream(1).query()  # its other handle
    assert not behind.query()
    gate.open.set()
    behind.synchronize()
    assert legacy.query()


def test_a_driver_stream_is_handed_out_again_as_what_it_is():
    blocking = accelrt.Stream(nonblocking=False)
    handle = blocking.cuda_stream
    del blocking
    gc.collect()
    accelrt.synchronize()
    independent = [accelrt.Stream() for _ in range(64)]
    assert handle not in {stream.cuda_stream for stream in independent}
    again = [accelrt.Stream(nonblocking=False) for _ in range(64)]
    assert handle in {stream.cuda_stream for stream in again}
    assert not any(stream.is_nonblocking for stream in again)


def test_priorities_are_those_of_other_streams():
    _, greatest = accelrt.Stream.priority_range()
    stream = accelrt.Stream(priority=greatest, nonblocking=False)
    assert (stream.priority, stream.is_nonblocking) == (greatest, False)


@pytest.mark.parametrize("wrong", [0, 1, None, "False", np.False_])
def test_nonblocking_is_a_bool(wrong):
    with pytest.raises(TypeError, match=r"nonblocking is .* of type .*; pass a bool"):
        accelrt.Stream(nonblocking=wrong)


def test_memory_is_used_and_freed_on_blocking_streams():
    blocking, values = accelrt.Stream(nonblocking=False), np.empty(4096, np.uint8)
    for turn in range(20):
        with blocking, accelrt.Buffer(4096) as buffer:
            buffer.fill(turn)
            with accelrt.stream(accelrt.default_stream()):
                buffer.copy_to(values)  # no wait: the default stream is behind the fill
        assert set(values) == {turn}


def test_a_capture_of_a_blocking_stream_takes_no_work_of_the_default_stream():
    blocking, graph = accelrt.Stream(nonblocking=False), accelrt.CUDAGraph()
    with accelrt.Buffer(64) as buffer:
        with accelrt.graph(graph, stream=blocking):
            buffer.fill(3)
        graph.replay()
        accelrt.synchronize()
        values = np.empty(64, np.uint8)
        buffer.copy_to(values)
        assert set(values) == {3}
        graph.reset()
        other = accelrt.CUDAGraph()
        with pytest.raises(accelrt.CaptureError), accelrt.graph(other, stream=blocking):
            buffer.fill(4)
            accelrt.default_stream().record_event()
    assert accelrt.Stream(nonblocking=False).query()


@pytest.mark.host
@in_own_process
def test_the_race_detector_knows_their_order():
    accelrt.sanitizer.enable()
    blocking, independent = accelrt.Stream(nonblocking=False), accelrt.Stream()
    with accelrt.Buffer(64) as buffer:
        accelrt.synchronize()
        buffer.fill(1, stream=blocking)
        buffer.fill(2, stream=accelrt.default_stream())
        buffer.fill(3, stream=blocking)
        with pytest.raises(accelrt.RaceError):
            buffer.fill(4, stream=independent)
        accelrt.synchronize()


def test_a_stream_tells_whether_it_is_captured():
    stream, other, numbers = accelrt.Stream(), accelrt.Stream(), accelrt.zeros(4, "u1")
    assert not stream.is_capturing
    with accelrt.graph(accelrt.CUDAGraph(), stream=stream):
        numbers.fill_(1)
        assert stream.is_capturing
        assert not other.is_capturing
        assert not accelrt.default_stream().is_capturing
    assert not stream.is_capturing


def test_the_default_stream_refuses_to_tell_beside_a_captured_stream_that_it_waits_for():
    blocking, numbers = accelrt.Stream(nonblocking=False), accelrt.zeros(4, "u1")
    with accelrt.graph(accelrt.CUDAGraph(), stream=blocking):
        numbers.fill_(1)
        assert blocking.is_capturing
        with pytest.raises(accelrt.CaptureError) as raised:
            _ = accelrt.default_stream().is_capturing
        assert raised.value.name == "STREAM_CAPTURE_IMPLICIT"
    assert not accelrt.default_stream().is_capturing
