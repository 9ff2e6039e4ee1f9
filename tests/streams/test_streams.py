"""Streams and events: order, identity, and what is current where."""

import numpy as np
import pytest
from beside import Gate, on_a_thread

import accelrt
from accelrt.driver.registry import Rows


def are_leased_again(handles):
    """Whether new streams come to have these handles; those that other tests returned come first."""
    streams, missing = [], set(handles)
    while missing and len(streams) < 5000:
        streams.append(accelrt.Stream())
        missing.discard(streams[-1].cuda_stream)
    return not missing


def test_streams_are_unique_and_their_handles_are_reused_after_them():
    streams = [accelrt.Stream() for _ in range(100)]
    handles = {stream.cuda_stream for stream in streams}
    assert len(handles) == 100
    assert 0 not in handles
    del streams
    assert are_leased_again(handles)


def test_a_stream_whose_work_still_runs_is_not_leased_again():
    spare = [accelrt.Stream() for _ in range(100)]  # a GPU's driver may wait for the gate before it makes one
    stream = accelrt.Stream()
    handle = stream.cuda_stream
    gate = Gate(stream)
    del stream, spare
    others = [accelrt.Stream() for _ in range(50)]
    assert handle not in {other.cuda_stream for other in others}
    gate.open.set()
    accelrt.synchronize()


def test_equality_hash_and_repr():
    one, other = accelrt.Stream(), accelrt.Stream()
    same = accelrt.ExternalStream(one.cuda_stream, owner=one)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "stream"
    assert f"cuda_stream={one.cuda_stream:#x}" in repr(one)
    assert one.__cuda_stream__() == (0, one.cuda_stream)


def test_priorities_are_clamped_to_the_range():
    least, greatest = accelrt.Stream.priority_range()
    assert least >= greatest
    assert accelrt.Stream(priority=-1000).priority == greatest
    assert accelrt.Stream(priority=1000).priority == least
    assert accelrt.ExternalStream(accelrt.Stream(priority=greatest).cuda_stream).priority == greatest


@pytest.mark.parametrize("priority", ["high", 0.5, True, None])
def test_a_priority_that_is_no_int_is_refused(priority):
    with pytest.raises(TypeError, match=r"pass an int.*Stream.priority_range\(\)"):
        accelrt.Stream(priority=priority)


def test_priorities_of_every_size_and_device():
    for ordinal in range(accelrt.device_count()):
        least, greatest = accelrt.Stream.priority_range(ordinal)
        assert accelrt.Stream(ordinal, -(10**30)).priority == greatest
        assert accelrt.Stream(ordinal, 10**30).priority == least
        for level in range(greatest, least + 1):
            assert accelrt.Stream(ordinal, priority=level).priority == level


@pytest.mark.parametrize("handle", [-1, 1 << 64])
def test_an_external_handle_out_of_range_is_refused(handle):
    with pytest.raises(ValueError, match="a handle is an int from 0"):
        accelrt.ExternalStream(handle)


@pytest.mark.parametrize("handle", ["0", 1.5, True, None])
def test_an_external_handle_that_is_no_int_is_refused(handle):
    with pytest.raises(TypeError, match="handle as an int"):
        accelrt.ExternalStream(handle)


def test_the_current_stream_is_the_default_one_until_set():
    assert accelrt.current_stream() == accelrt.default_stream()
    assert accelrt.current_stream().cuda_stream == 0
    stream = accelrt.Stream()
    with accelrt.stream(stream) as entered:
        assert entered is stream
        assert accelrt.current_stream() is stream
        assert accelrt.current_stream() is accelrt.current_stream(0)
        with accelrt.stream(None):
            assert accelrt.current_stream() is stream
    assert accelrt.current_stream() == accelrt.default_stream()


def test_the_context_restores_after_an_exception_and_nests_in_itself():
    stream = accelrt.Stream()
    context = accelrt.stream(stream)
    with pytest.raises(KeyError), context:
        raise KeyError
    assert accelrt.current_stream() == accelrt.default_stream()
    with accelrt.stream(stream), accelrt.stream(stream):
        assert accelrt.current_stream() is stream
    assert accelrt.current_stream() == accelrt.default_stream()


def test_a_context_entered_again_restores_step_by_step():
    one, other = accelrt.Stream(), accelrt.Stream()
    context = accelrt.stream(one)
    with context:
        accelrt.set_stream(other)
        with context:
            assert accelrt.current_stream() is one
        assert accelrt.current_stream() is other
    assert accelrt.current_stream() == accelrt.default_stream()


def test_set_stream_stays_and_none_changes_nothing():
    stream = accelrt.Stream()
    accelrt.set_stream(stream)
    accelrt.set_stream(None)
    assert accelrt.current_stream() is stream
    accelrt.set_stream(accelrt.default_stream())


def test_a_stream_of_another_device_brings_its_device():
    last = accelrt.device_count() - 1
    stream = accelrt.Stream(last)
    assert stream.device == accelrt.device(last)
    with accelrt.stream(stream):
        assert accelrt.current_device() == last
        assert accelrt.current_stream() is stream
    assert accelrt.current_device() == 0


def test_the_current_stream_is_each_threads_own():
    with accelrt.stream(accelrt.Stream()):
        assert on_a_thread(lambda: accelrt.current_stream().cuda_stream) == 0


def test_a_threads_streams_die_with_it():
    def use():
        stream = accelrt.Stream()
        accelrt.set_stream(stream)
        return stream.cuda_stream

    assert are_leased_again({on_a_thread(use) for _ in range(3)})


@pytest.mark.parametrize("thing", [3, "stream", object()])
def test_what_is_no_stream_is_refused(thing):
    with pytest.raises(TypeError):
        accelrt.stream(thing)


def test_query_is_false_while_work_is_left():
    stream = accelrt.Stream()
    gate = Gate(stream)
    assert not stream.query()
    gate.open.set()
    stream.synchronize()
    assert stream.query()


def test_work_of_a_stream_runs_in_order():
    stream, seen = accelrt.Stream(), []
    for number in range(100):
        stream.launch_host_func(lambda number=number: seen.append(number))
    stream.synchronize()
    assert seen == list(range(100))


def test_a_stream_waits_for_another():
    first, second, seen = accelrt.Stream(), accelrt.Stream(), []
    gate = Gate(first)
    first.launch_host_func(lambda: seen.append("first"))
    second.wait_stream(first)
    second.launch_host_func(lambda: seen.append("second"))
    assert not second.query()
    gate.open.set()
    second.synchronize()
    assert seen == ["first", "second"]


def test_a_host_function_that_raises_is_heard_of_at_the_next_synchronize():
    stream = accelrt.Stream()

    def fail():
        raise KeyError("from the stream")

    stream.launch_host_func(fail)
    with pytest.raises(KeyError, match="from the stream"):
        stream.synchronize()
    stream.synchronize()


@pytest.mark.parametrize("thing", [None, 3, "event"])
def test_what_is_no_event_or_stream_is_not_waited_for(thing):
    stream = accelrt.Stream()
    with pytest.raises(TypeError, match="pass an Event"):
        stream.wait_event(thing)
    with pytest.raises(TypeError, match="pass a Stream"):
        stream.wait_stream(thing)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="cannot be called"):
        accelrt.Stream().launch_host_func(3)


@pytest.mark.gone_streams
def test_a_bad_handle_is_told_apart():
    if accelrt.device(0).type == "host":  # a GPU's driver may crash on garbage
        with pytest.raises(
            ValueError, match="stream_ptr is 0xdead0, which is no stream that the driver knows"
        ):
            accelrt.ExternalStream(0xDEAD0)
        rows = Rows()
        code, handle = rows.stream_create(0, 1, 0)
        stream = accelrt.ExternalStream(handle)
        assert (code, rows.stream_destroy(0, handle)) == (0, 0)
        with pytest.raises(accelrt.CudaError, match="INVALID_HANDLE") as caught:
            stream.synchronize()
        assert caught.value.name == "INVALID_HANDLE"
        assert caught.value.call == "stream_synchronize"


def test_copies_on_two_streams_are_ordered_by_an_event():
    data = np.arange(1 << 16, dtype=np.uint8)
    out = np.zeros_like(data)
    first, second, event = accelrt.Stream(), accelrt.Stream(), accelrt.Event()
    with accelrt.Buffer(data.nbytes, stream=first) as a, accelrt.Buffer(data.nbytes, stream=second) as b:
        a.copy_from(data, stream=first, blocking=False)
        event.record(first)
        event.wait(second)
        accelrt.copy(b, a, stream=second, blocking=False)
        b.copy_to(out, stream=second)
    assert (out == data).all()
