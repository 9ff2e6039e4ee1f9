"""The CUDA Array Interface of Arrays, both ways, and streams of other libraries."""

import threading

import numpy as np
import pytest
from device_arrays import StreamProtocol

import accelrt

ON_HOST = accelrt.device(0).type == "host"
LAST = accelrt.device_count() - 1


class Foreign:
    """Another library's array on memory of a Buffer."""

    def __init__(self, buffer, shape, typestr="<f4", **more):
        self.buffer = buffer
        data = (buffer.ptr if buffer is not None else 0, False)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": data,
            "version": 3,
            **more,
        }


def test_a_foreign_array_is_an_array_without_a_copy():
    buffer = accelrt.Buffer(96, LAST)
    foreign = Foreign(buffer, (2, 3), strides=(32, 8), stream=buffer.stream.cuda_stream or 1)
    array = accelrt.asarray(foreign)
    assert (array.ptr, array.shape, array.strides, array.dtype) == (buffer.ptr, (2, 3), (32, 8), np.float32)
    assert (array.device_index, array.base is foreign) == (LAST, True)
    assert accelrt.asarray(Foreign(buffer, (4,))).is_contiguous
    fixed = accelrt.asarray(Foreign(buffer, (4,), data=(buffer.ptr, True)))
    assert fixed.readonly
    assert accelrt.asarray(Foreign(None, (0, 3))).size == 0
    with pytest.raises(ValueError, match="is of a Foreign of another library"):
        array.record_stream(accelrt.Stream(LAST))


def test_the_current_stream_waits_for_the_foreign_one():
    producer, event = accelrt.Stream(), threading.Event()
    buffer = accelrt.Buffer(1 << 16, stream=producer)
    producer.launch_host_func(event.wait)
    buffer.fill(7, stream=producer)
    with accelrt.stream(accelrt.Stream()) as consumer:
        array = accelrt.asarray(Foreign(buffer, (1 << 16,), "|u1", stream=producer.cuda_stream))
        assert array.stream is consumer
        assert not consumer.query()
        event.set()
        assert (array.numpy() == 7).all()


def test_foreign_arrays_are_copied_from_by_their_shape():
    buffer = accelrt.Buffer(96)
    accelrt.Array(buffer, dtype="f4").fill_(2)
    array = accelrt.zeros((2, 3), "f4")
    array.copy_(Foreign(buffer, (2, 3), strides=(32, 8)))
    assert (array.numpy() == 2).all()
    with pytest.raises(TypeError, match="takes no elements of int32"):
        array.copy_(Foreign(buffer, (2, 3), "<i4"))


@pytest.mark.parametrize(
    ("changes", "error", "entry"),
    [
        ({"shape": (-1,)}, ValueError, "shape"),
        ({"typestr": "|O8"}, TypeError, "objects"),
        ({"strides": (4, 4)}, ValueError, "strides"),
        ({"mask": 1}, ValueError, "mask"),
        ({"stream": 0}, ValueError, "stream"),
        ({"data": (0, False)}, ValueError, "shape"),
        ({"data": 7}, TypeError, "data"),
    ],
)
def test_foreign_arrays_that_say_nonsense_are_refused(changes, error, entry):
    foreign = Foreign(accelrt.Buffer(64), (4,))
    foreign.__cuda_array_interface__.update(changes)
    with pytest.raises(error, match=entry):
        accelrt.asarray(foreign)


@pytest.mark.gpu
def test_arrays_of_a_gpu_say_what_they_are():
    stream = accelrt.Stream()
    array = accelrt.zeros((3, 4), "f4", stream=stream)
    found = array.T.__cuda_array_interface__
    assert (found["shape"], found["strides"]) == ((4, 3), (4, 16))
    assert (found["data"], found["stream"], found["typestr"]) == ((array.ptr, False), stream.handle, "<f4")
    assert array.__cuda_array_interface__["strides"] is None


@pytest.mark.host
def test_arrays_of_the_host_device_are_no_cuda_arrays():
    for array in (accelrt.zeros(3), accelrt.empty(3, pin_memory=True)):
        assert not hasattr(array, "__cuda_array_interface__")


class Torchs:
    def __init__(self, handle, device_index=0):
        self.cuda_stream, self.device_index = handle, device_index


def test_streams_of_others_are_streams():
    stream = accelrt.Stream(LAST)
    assert accelrt.Stream.from_any(stream) is stream
    for other in (Torchs(stream.cuda_stream, LAST), StreamProtocol(stream.cuda_stream), stream.cuda_stream):
        assert accelrt.Stream.from_any(other) == stream
    assert accelrt.Stream.from_any(Torchs(0, LAST)) == accelrt.default_stream(LAST)
    assert accelrt.Stream.from_any(0, LAST) == accelrt.default_stream(LAST)
    assert accelrt.Stream.from_any(None) == accelrt.current_stream()
    accelrt.zeros(4, stream=Torchs(stream.cuda_stream, LAST), device=LAST)


def test_cupys_streams_are_streams():
    stream = accelrt.Stream(LAST)
    made = type(
        "Stream", (), {"__module__": "cupy.cuda.stream", "ptr": stream.cuda_stream, "device_id": LAST}
    )()
    assert accelrt.Stream.from_any(made) == stream


def test_what_stands_for_no_stream_is_refused():
    for wrong in ("s", 1.5, True, object()):
        with pytest.raises(TypeError, match="pass a Stream"):
            accelrt.Stream.from_any(wrong)
    with pytest.raises(TypeError, match="cuda_stream"):
        accelrt.Stream.from_any(Torchs("x"))
    if ON_HOST:
        with pytest.raises(ValueError, match="no stream that the driver knows"):
            accelrt.Stream.from_any(Torchs(0x77777))
