"""What a broken capture says: the call that broke it and the line that made it; and that nothing is left."""

import inspect
import threading

import pytest
from beside import on_a_thread
from child import in_own_process, wrap_host
from graph_memory import works_again

import accelrt
from accelrt.driver.host import driver as host
from accelrt.testing import settle


def line():
    return inspect.currentframe().f_back.f_lineno


def test_an_error_that_was_swallowed_is_named_at_the_end():
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    with (
        accelrt.Buffer(64) as buffer,
        pytest.raises(accelrt.CaptureError, match="STREAM_CAPTURE_INVALIDATED") as caught,
        accelrt.graph(graph, stream=stream),
    ):
        buffer.fill(1)
        with pytest.raises(accelrt.CaptureError):
            at = line() + 1
            stream.synchronize()
    error = caught.value
    assert error.call == "capture_end"
    assert error.broken_by == "stream_synchronize"
    assert error.broken_at == f"{__file__}:{at}"
    assert f"stream_synchronize at {__file__}:{at}" in str(error)
    assert isinstance(error.__cause__, accelrt.CaptureError)
    assert "STREAM_CAPTURE_UNSUPPORTED" in str(error.__cause__)
    assert error.__cause__.call == "stream_synchronize"
    assert works_again()


def test_a_call_after_the_break_names_what_broke_it():
    graph, event = accelrt.CUDAGraph(), accelrt.Event()
    with accelrt.Buffer(64) as buffer, pytest.raises(accelrt.CaptureError) as caught, accelrt.graph(graph):
        event.record()
        with pytest.raises(accelrt.CaptureError) as first:
            event.synchronize()
        buffer.fill(1)
    assert first.value.broken_by is None
    assert caught.value.broken_by == "event_synchronize"
    assert __file__ in caught.value.broken_at
    assert caught.value.__cause__ is not None
    assert works_again()


def test_a_break_by_another_thread_names_its_line_and_thread():
    graph, other = accelrt.CUDAGraph(), accelrt.Stream()
    told = []

    def breaks_it():
        try:
            other.synchronize()
        except accelrt.CaptureError as error:
            told.append(error)

    with accelrt.Buffer(64) as buffer, pytest.raises(accelrt.CaptureError) as caught, accelrt.graph(graph):
        buffer.fill(1)
        thread = threading.Thread(target=breaks_it, name="the culprit")
        thread.start()
        thread.join()
    assert len(told) == 1
    assert "in breaks_it, thread the culprit" in str(caught.value)
    assert caught.value.broken_by == "stream_synchronize"
    assert works_again()


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_other_threads_do_not_break_captures_in_other_modes(mode):
    graph, other = accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.Buffer(64) as buffer:
        with accelrt.graph(graph, capture_error_mode=mode):
            buffer.fill(1)
            on_a_thread(other.synchronize)
        graph.replay()
        accelrt.synchronize()


def test_an_error_that_breaks_nothing_is_not_taken_for_the_cause():
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    idle = accelrt.CUDAGraph()
    with (
        accelrt.Buffer(64) as buffer,
        pytest.raises(accelrt.CaptureError, match="STREAM_CAPTURE_UNJOINED") as caught,
        accelrt.graph(graph),
    ):
        event = accelrt.Event()
        event.record()
        stream.wait_event(event)
        buffer.fill(1, stream=stream)
        with pytest.raises(RuntimeError, match="nothing to replay"):
            idle.replay()
    assert caught.value.broken_by is None
    assert caught.value.__cause__ is None
    assert works_again()


def test_a_replay_inside_a_capture_breaks_it_and_is_named():
    graph, inner = accelrt.CUDAGraph(), accelrt.CUDAGraph()
    with accelrt.Buffer(64) as buffer:
        with accelrt.graph(inner):
            buffer.fill(1)
        with (
            pytest.raises(accelrt.CaptureError) as caught,
            accelrt.graph(graph),
            pytest.raises(accelrt.CaptureError),
        ):
            inner.replay()
        assert caught.value.broken_by == "graph_launch"
        inner.replay()
        accelrt.synchronize()
    assert works_again()


def test_a_capture_ended_by_another_thread_is_gone_and_said_so():
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.stream(stream), accelrt.Buffer(64) as buffer:
        graph.capture_begin()
        buffer.fill(1)
        with pytest.raises(accelrt.CaptureError) as caught:
            on_a_thread(graph.capture_end)
        assert caught.value.name == "STREAM_CAPTURE_WRONG_THREAD"
        assert not graph.is_capturing
        assert not accelrt.is_current_stream_capturing()
        accelrt.synchronize()
    assert works_again()


@pytest.mark.host
@in_own_process
def test_refused_calls_of_captures_leave_no_stream_behind():
    """Captures of which one call is refused, again and again, leave no stream more than others do."""
    faults = wrap_host()

    def settled():
        works_again()
        settle()
        return host.live_objects()["streams"]

    before = settled()
    for code in (600, 999):
        for row in ("stream_query", "stream_is_capturing", "capture_status", "capture_end"):
            for call in range(1, 6):
                faults.arm(call=call, code=code, mode="once", rows=[row])
                try:
                    works_again()
                except accelrt.CudaError:
                    pass
                finally:
                    faults.disarm()
    after = settled()  # a stream is made where all others are busy, but not one for each of forty refusals
    assert after < before + 10, (before, after)
