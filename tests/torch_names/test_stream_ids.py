"""Streams and events by the ids that torch has for them, and a Stream as its own context."""

import ctypes
import gc

import pytest
from beside import on_a_thread, on_threads
from child import run_code

import accelrt

LAST = accelrt.device_count() - 1
ON_HOST = accelrt.device(0).type == "host"


def parts(stream):
    return {
        "stream_id": stream.stream_id,
        "device_index": stream.device_index,
        "device_type": stream.device_type,
    }


def test_a_stream_made_by_its_id_is_the_same_stream():
    stream = accelrt.Stream(LAST, priority=-1)
    same = accelrt.Stream(**parts(stream))
    assert same == stream
    assert hash(same) == hash(stream)
    assert (same.cuda_stream, same.device, same.priority) == (
        stream.cuda_stream,
        stream.device,
        stream.priority,
    )
    assert same.native_handle == same.stream_id == stream.cuda_stream
    assert same.device_type == 1  # torch's DeviceType::CUDA


@pytest.mark.parametrize("stream", [accelrt.default_stream(LAST), accelrt.per_thread_stream(0)])
def test_default_streams_have_ids_too(stream):
    assert accelrt.Stream(**parts(stream)) == stream
    assert accelrt.default_stream().stream_id == 0


def test_an_external_streams_id_is_its_handle_as_in_torch():
    owner = accelrt.Stream(0)
    external = accelrt.get_stream_from_external(owner.cuda_stream, 0)
    assert type(external) is accelrt.ExternalStream
    assert external.stream_id == owner.cuda_stream
    assert accelrt.Stream(**parts(external)) == owner


def test_the_driver_stream_is_kept_while_a_stream_made_by_its_id_lives():
    first = accelrt.Stream(0)
    handle = first.cuda_stream
    second, third = accelrt.Stream(**parts(first)), accelrt.Stream(**parts(first))
    del first, third
    gc.collect()
    taken = [accelrt.Stream(0) for _ in range(40)]
    assert handle not in {stream.cuda_stream for stream in taken}
    assert accelrt.Stream(**parts(second)) == second
    del second
    more = []
    while len(more) < 1000 and handle not in {stream.cuda_stream for stream in more}:
        more.append(accelrt.Stream(0))
    assert more[-1].cuda_stream == handle


def test_an_id_that_no_stream_has_any_more_is_refused():
    stream = accelrt.Stream(0)
    gone = parts(stream)
    del stream
    with pytest.raises(ValueError, match=r"which is no stream in use of device 0.*keep the Stream"):
        accelrt.Stream(**gone)


def test_ids_that_name_no_stream_are_refused():
    stream = accelrt.Stream(0)
    if ON_HOST:  # a GPU's driver may crash on a handle that was never one
        with pytest.raises(ValueError, match="no stream that the driver knows"):
            accelrt.Stream(stream_id=0xDEAD0, device_index=0, device_type=1)
    with pytest.raises(ValueError, match="stream_id is -1; a handle is an int from 0"):
        accelrt.Stream(stream_id=-1, device_index=0, device_type=1)
    with pytest.raises(TypeError, match="stream_id is '5'"):
        accelrt.Stream(stream_id="5", device_index=0, device_type=1)
    with pytest.raises(TypeError, match="stream_id is None, with a device_index"):
        accelrt.Stream(device_index=0)
    with pytest.raises(ValueError, match="device_type is 12; the streams here are of type 1"):
        accelrt.Stream(stream_id=0, device_index=0, device_type=12)
    with pytest.raises(RuntimeError, match="Invalid device id"):
        accelrt.Stream(stream_id=0, device_index=99, device_type=1)
    if LAST:
        with pytest.raises(ValueError, match=f"no stream in use of device {LAST}"):
            accelrt.Stream(**parts(stream) | {"device_index": LAST})
        with pytest.raises(ValueError, match="pass one of them"):
            accelrt.Stream(0, stream_id=0, device_index=LAST)


def test_set_stream_by_id_sets_stream_and_device():
    stream = accelrt.Stream(LAST)
    accelrt._set_stream_by_id(**parts(stream))
    assert accelrt.current_stream() == stream
    assert accelrt.current_device() == LAST
    accelrt._set_stream_by_id(0, LAST, 1)
    assert accelrt.current_stream() == accelrt.default_stream(LAST)
    accelrt.set_device(0)


def test_an_events_id_is_its_handle_and_0_before_the_first_record():
    event = accelrt.Event()
    assert event.event_id == event.cuda_event == 0
    event.record()
    assert event.event_id == event.cuda_event != 0
    assert type(event._as_parameter_) is ctypes.c_void_p
    assert event._as_parameter_.value == event.event_id
    assert accelrt.default_stream()._as_parameter_.value is None  # a null pointer


def test_a_stream_is_a_context_as_torch_stream_is():
    outer, inner = accelrt.Stream(0), accelrt.Stream(LAST)
    before = accelrt.current_stream(0)
    with outer as entered:
        assert entered is outer
        assert accelrt.current_stream() == outer
        with inner, outer, inner:
            assert accelrt.current_stream() == inner
            assert accelrt.current_device() == LAST
        assert accelrt.current_device() == 0
        with accelrt.stream(inner), inner:
            pass
        with accelrt.StreamContext(outer):
            assert accelrt.current_stream() == outer
    assert accelrt.current_stream(0) == before


def test_a_stream_that_is_not_entered_here_cannot_be_left():
    stream = accelrt.Stream(0)
    with pytest.raises(RuntimeError, match="is not entered on this thread; nothing is changed"):
        stream.__exit__(None, None, None)
    with stream:
        with pytest.raises(RuntimeError, match="is not entered on this thread"):
            on_a_thread(lambda: stream.__exit__(None, None, None))
        assert accelrt.current_stream() == stream


@pytest.mark.own_process
def test_a_forked_child_is_told_so():
    code = (
        "import accelrt, os\nstream = accelrt.Stream(0)\nstream.__enter__()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    stream.__exit__(None, None, None)\n"
        "    try:\n        accelrt.Stream(stream_id=stream.stream_id, device_index=0, device_type=1)\n"
        "    except accelrt.ForkedError:\n        os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert run_code(code) == "7\n"


def test_many_threads_share_and_drop_one_stream():
    stream = accelrt.Stream(0)
    given = parts(stream)

    def work(_):
        for _ in range(300):
            assert accelrt.Stream(**given) == stream

    on_threads(work, range(4))
    assert accelrt.Stream(**given) == stream
