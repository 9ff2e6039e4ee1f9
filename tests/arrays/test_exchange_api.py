"""The C functions of DLPack's exchange API, called as another library would."""

import ctypes
import weakref

import numpy as np
import pytest
from dlpack import SET_ERROR, Producer, Tensor, Versioned, exchange_api

import accelrt

ON_HOST = accelrt.device(0).type == "host"
API = exchange_api(accelrt.Array)


def exported(array):
    out = ctypes.c_void_p()
    assert API.from_object(array, out) == 0
    return Versioned.from_address(out.value)


def test_the_table_says_its_version_and_has_every_function():
    assert (API.major, API.minor, API.prev_api) == (1, 3, None)
    assert all(getattr(API, name) for name, _ in API._fields_[3:])
    assert isinstance(
        accelrt.zeros(3).__dlpack_c_exchange_api__, type(accelrt.Array.__dlpack_c_exchange_api__)
    )


def test_a_tensor_of_an_array_keeps_its_memory():
    array = accelrt.zeros((3, 4), "i4")
    memory, found = weakref.ref(array.base), exported(array.T)
    assert (found.major, found.tensor.data, found.tensor.ndim) == (1, array.ptr, 2)
    assert (tuple(found.tensor.shape[:2]), tuple(found.tensor.strides[:2])) == ((4, 3), (1, 4))
    with pytest.raises(BufferError):
        array.free()
    del array
    assert memory() is not None
    found.deleter(ctypes.addressof(found))
    assert memory() is None


def test_an_array_is_made_of_a_tensor_which_goes_back_with_it():
    producer, out = Producer(np.arange(6, dtype=np.float32).reshape(2, 3)), ctypes.py_object()
    assert API.to_object(ctypes.addressof(producer.managed), out) == 0
    array = out.value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))  # the one that the call gave
    assert (type(array), array.numpy().tolist()) == (accelrt.Array, [[0, 1, 2], [3, 4, 5]])
    assert producer.deleted == 0
    del array
    assert producer.deleted == 1


def test_what_cannot_be_said_is_an_error_of_python():
    out, tensor, made = ctypes.c_void_p(), Tensor(), ctypes.py_object()
    with pytest.raises(BufferError, match="DLPack has no"):
        API.from_object(accelrt.empty(2, ">f4"), out)
    freed = accelrt.zeros(3)
    freed.free()
    for function, room in ((API.from_object, out), (API.describe, tensor)):
        with pytest.raises(ValueError, match="was freed"):
            function(freed, room)
    fixed = accelrt.Array(accelrt.Buffer(8), readonly=True)
    with pytest.raises(BufferError, match="read-only"):
        API.describe(fixed, tensor)
    late = Producer(np.zeros(3), major=2)
    with pytest.raises(BufferError, match=r"accelrt takes 1\.x"):
        API.to_object(ctypes.addressof(late.managed), made)
    assert late.deleted == 1


def test_a_borrowed_tensor_is_the_arrays_own():
    array, tensor = accelrt.zeros((3, 4), "i4")[:, ::2], Tensor()
    for _ in range(2):
        assert API.describe(array, tensor) == 0
        assert (tensor.data, tuple(tensor.shape[:2]), tuple(tensor.strides[:2])) == (
            array.ptr,
            (3, 2),
            (4, 2),
        )
    array.free()


def test_the_current_stream_is_the_threads():
    out = ctypes.c_void_p(1)
    assert API.current_stream(1, 0, out) == 0
    assert out.value is None
    with accelrt.stream(accelrt.Stream()) as stream:
        assert API.current_stream(2, 0, out) == 0
        assert out.value == stream.cuda_stream
    with pytest.raises(BufferError, match="there is no GPU 99"):
        API.current_stream(2, 99, out)


def test_tensors_are_allocated_after_a_prototype():
    told, out = [], ctypes.c_void_p()
    failed = SET_ERROR(lambda context, kind, text: told.append((context, kind, text)))
    prototype = Tensor(ndim=2, code=2, bits=32, lanes=1, device_type=1)
    prototype.shape = (ctypes.c_int64 * 2)(3, 4)
    assert API.allocate(prototype, out, None, failed) == 0
    found = Versioned.from_address(out.value)
    assert tuple(found.tensor.shape[:2]) == (3, 4)
    np.ctypeslib.as_array(ctypes.cast(found.tensor.data, ctypes.POINTER(ctypes.c_float)), (3, 4))[:] = 1
    found.deleter(out.value)
    prototype.device_type = 8
    assert API.allocate(prototype, out, 7, failed) == -1
    assert (out.value, told[0][:2]) == (None, (7, b"BufferError"))
    prototype.device_type = 2
    if ON_HOST:
        assert API.allocate(prototype, out, 7, failed) == -1
        assert b"uses the host device" in told[1][2]
