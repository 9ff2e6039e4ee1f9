"""Types and strides of arrays in DLPack: which come and go, and which it lacks."""

import os

import numpy as np
import pytest
from child import in_child
from dlpack import Producer, look

import accelrt

MODERN = {"max_version": (1, 0)}


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_numpys_dtypes_come_and_go(dtype):
    model = np.arange(6).astype(dtype).reshape(2, 3)
    array = accelrt.from_dlpack(model)
    assert (array.dtype, array.shape, array.ptr, array.device) == (
        model.dtype,
        (2, 3),
        model.ctypes.data,
        "cpu",
    )
    assert (np.from_dlpack(array) == model).all()
    assert (accelrt.asarray(accelrt.asarray(model), device="cpu").numpy() == model).all()


def named_types():
    assert accelrt.full(3, 1.5, "bfloat16").numpy().tolist() == [1.5, 1.5, 1.5]
    assert accelrt.empty(3, "float8_e4m3fn").nbytes == 3


@pytest.mark.own_process
def test_ml_dtypes_are_known_by_their_names_before_anybody_imported_them():
    pytest.importorskip("ml_dtypes")
    in_child(named_types, ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"])
    with pytest.raises(TypeError, match="dtype is 'bfloat17', which names no type"):
        accelrt.empty(3, "bfloat17")


def test_a_name_of_a_type_may_be_numpys_own_text():
    assert accelrt.empty(3, np.str_("float32")).dtype == np.float32


def test_ml_dtypes_come_and_go():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = {"bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8), "float4_e2m1fn": (17, 4)}
    for name, (code, bits) in codes.items():
        model = np.arange(4).astype(getattr(ml_dtypes, name))
        array = accelrt.asarray(model)
        assert (array.numpy() == model).all()
        assert (array.fill_(1).numpy() == model[1]).all()
        tensor = look(capsule := array.__dlpack__(**MODERN)).tensor
        assert (tensor.code, tensor.bits) == (code, bits)
        assert accelrt.asarray(model, device="cpu").numpy().dtype == model.dtype
        del capsule
    back = Producer(np.zeros(3, "u2"), code=4)
    assert accelrt.from_dlpack(back).dtype == ml_dtypes.bfloat16
    four = accelrt.asarray(np.zeros(3, ml_dtypes.float4_e2m1fn))
    capsule = four.__dlpack__(**MODERN)
    assert look(capsule).flags == 4
    with pytest.raises(BufferError, match="of a byte an element"):
        four.__dlpack__()
    with pytest.raises(BufferError, match="packed elements of 4 bits"):
        accelrt.from_dlpack(Producer(np.zeros(3, "u1"), code=17, bits=4))


@pytest.mark.parametrize(
    "dtype", [">f4", "V4", "U2", "longdouble", "datetime64[s]", [("a", "f4"), ("b", "i4")]]
)
def test_types_that_dlpack_lacks_are_refused(dtype):
    with pytest.raises(BufferError, match="DLPack has no"):
        accelrt.empty(2, dtype).__dlpack__()


def test_strides_that_dlpack_lacks_are_refused():
    array = accelrt.Array(accelrt.Buffer(32), 3, "f4", strides=(6,))
    with pytest.raises(BufferError, match="counts in elements; export a copy"):
        array.__dlpack__()
    assert look(array.copy().__dlpack__()).tensor.strides[0] == 1
