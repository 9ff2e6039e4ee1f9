"""The table of element types against NumPy, ml_dtypes and what NumPy itself exports by DLPack."""

import ctypes

import numpy as np
import pytest

from accelrt.core.dtypes import BY_NAME, DTYPES

OF_NUMPY = [dtype for dtype in DTYPES if not dtype.of_ml_dtypes]
OF_ML_DTYPES = [dtype for dtype in DTYPES if dtype.of_ml_dtypes]
KINDS = {"b": "bool", "i": "signed", "u": "unsigned", "f": "float", "c": "complex"}
TYPE_AT = 20  # bytes into a DLTensor: after data, device and ndim


def name_of(dtype):
    return dtype.name


def exported(array):
    """DLPack's code and bits of an array, as its capsule says."""
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    return tuple((ctypes.c_uint8 * 2).from_address(pointer(capsule, b"dltensor") + TYPE_AT))


@pytest.mark.parametrize("dtype", OF_NUMPY, ids=name_of)
def test_numpys_types_are_as_numpy_has_them(dtype):
    known = np.dtype(dtype.name)
    assert (known.name, 8 * known.itemsize, KINDS[known.kind]) == (dtype.name, dtype.bits, dtype.kind)
    assert exported(np.zeros(3, known)) == (dtype.dlpack, dtype.bits)
    if known.kind in "iu":
        assert dtype.limits == (np.iinfo(known).min, np.iinfo(known).max)
    if known.kind == "f":
        assert dtype.precision == np.finfo(known).nmant + 1


@pytest.mark.parametrize("dtype", OF_ML_DTYPES, ids=name_of)
def test_ml_dtypes_types_are_as_it_has_them(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, dtype.name):
        pytest.skip(f"this ml_dtypes has no {dtype.name}")
    info = ml_dtypes.finfo if dtype.kind == "float" else ml_dtypes.iinfo
    told = info(getattr(ml_dtypes, dtype.name))
    assert told.bits == dtype.bits
    if dtype.kind != "float":
        assert dtype.limits == (told.min, told.max)
    if dtype.precision:
        assert dtype.precision == told.nmant + 1


def test_a_name_and_a_word_are_of_one_type():
    words = [word for dtype in DTYPES if dtype.words for word in dtype.words.split("|")]
    assert len(words) == len(set(words))
    assert len(BY_NAME) == len(DTYPES)
    assert sorted(dtype.nccl for dtype in DTYPES if dtype.nccl is not None) == list(range(12))
