"""The Cython API with ordinals that no device has: a code, and never a crash."""

import ctypes
import re
from pathlib import Path

import pytest
from child import in_own_process

import accelrt
from accelrt import api

ORDINALS = [-1, 63, 64, 1000, 2**31 - 1, -(2**31)]
INVALID_DEVICE, INVALID_HANDLE = 101, 400
INVALID_VALUE, NOT_ALLOCATED = 1, -4
OTHERS = {"end_pool": INVALID_VALUE, "record_pinned_stream": NOT_ALLOCATED}  # of ordinals below 64
FIGURES = {"explain_refusal", "memory_allocated", "memory_reserved"}  # bytes, and no code
TYPES = {
    "int": ctypes.c_int,
    "bint": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uintptr_t": ctypes.c_size_t,
    "float": ctypes.c_float,
}


def declared():
    """The door's functions that take a device, as name -> (type it returns, [(type, name), ...])."""
    text = (Path(accelrt.__file__).parent / "api.pxd").read_text()
    found = {}
    for result, name, arguments in re.findall(r"^cdef ([\w ]+?) (\w+)\(([^)]*)\) noexcept nogil", text, re.M):
        parts = [part.strip().rpartition(" ") for part in re.split(r",\s*", arguments) if part]
        if any(name.endswith("device") for kind, _, name in parts if not kind.endswith("*")):
            found[name] = (result, [(kind, part) for kind, _, part in parts])
    return found


def address(name):
    """Where a function of the API is."""
    capsule = api.__pyx_capi__[name]
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    named = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
    signature = named(("PyCapsule_GetName", ctypes.pythonapi))(capsule)
    return pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, signature)


def call(name, ordinal):
    """Calls a function with an ordinal for each device, 0 for all else, and room for what it writes."""
    result, parts = declared()[name]
    kinds = [ctypes.c_void_p if kind.endswith("*") else TYPES[kind] for kind, _ in parts]
    function = ctypes.CFUNCTYPE(TYPES[result], *kinds)(address(name))
    room = ctypes.create_string_buffer(64)
    values = [
        ctypes.addressof(room) if kind.endswith("*") else ordinal if part.endswith("device") else 0
        for kind, part in parts
    ]
    return function(*values)


def test_the_declarations_are_understood():
    assert set(declared()) >= {"allocate", "copy", "memory_allocated", "release_after", "stream_wait_stream"}
    assert len(declared()) >= 28
    assert call("memory_allocated", 0) == accelrt.memory_allocated(0)


@pytest.mark.parametrize("name", sorted(declared()))
@in_own_process
def test_an_ordinal_that_does_not_exist_is_answered_by_a_code(name):
    accelrt.init()
    count = accelrt.device_count()
    told = {ordinal: call(name, ordinal) for ordinal in ORDINALS if not 0 <= ordinal < count}
    assert len(told) == len(ORDINALS)
    if name in FIGURES:
        assert set(told.values()) == {0}
    elif name in ("event_return", "stream_return"):  # which look for the handle
        assert set(told.values()) == {INVALID_HANDLE}
    else:
        assert set(told.values()) <= {INVALID_DEVICE, OTHERS.get(name, 0)}
        assert told[-1] == told[1000] == INVALID_DEVICE
