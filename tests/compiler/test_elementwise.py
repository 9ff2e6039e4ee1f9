"""Elementwise kernels: what they compute, for types, shapes and strides, against NumPy."""

import numpy as np
import pytest
from device_arrays import read, strided, to_device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelrt
from accelrt.kernels import elementwise_plan

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64"]
ADD = accelrt.elementwise("T x, T y", "T z", "z = x * y + x", name="axpy")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_type_is_computed_as_numpy_does(dtype, size):
    x = (np.arange(size) % 7).astype(dtype)
    y = (np.arange(size) % 5).astype(dtype)
    z = ADD(to_device(x), to_device(y))
    assert z.dtype == x.dtype
    assert (read(z) == x * y + x).all()


def test_sizes_around_a_block_and_more():
    for size in (0, 65535, 65536, 65537, 200_003):
        x = np.arange(size, dtype=np.float32)
        assert (read(ADD(to_device(x), 2)) == x * 2 + x).all()


@given(st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_strides_and_shapes_are_computed_as_numpy_does(data):
    # Whole numbers, which a GPU that contracts x * y + x to one rounding computes alike.
    memory = np.random.default_rng(0).integers(-99, 99, (5, 4, 6)).astype(np.float64)
    shape = data.draw(st.tuples(*[st.integers(1, 4)] * 3))
    operands = []
    for _ in range(2):
        view = memory.transpose(data.draw(st.permutations(range(3))))
        for axis, length in enumerate(shape):
            kept = data.draw(st.sampled_from([1, length]))
            index = [slice(None)] * 3
            index[axis] = data.draw(st.sampled_from([slice(kept), slice(-1, -1 - kept, -1)]))
            view = view[tuple(index)]
        operands.append(view[0] if view.shape[0] == 1 and data.draw(st.booleans()) else view)
    x, y = operands
    z = ADD(strided(x, memory), strided(y, memory))
    assert z.shape == np.broadcast_shapes(x.shape, y.shape)
    assert (read(z) == x * y + x).all()


def test_outputs_of_any_strides_are_written_and_nothing_beside_them():
    memory = np.full((6, 8), -1.0, np.float32)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = strided(memory[::2, 6::-2], memory)
    assert ADD(to_device(x), 1.0, out=out) is out
    accelrt.synchronize()
    expected = memory.copy()
    expected[::2, 6::-2] = x + x
    whole = accelrt.Array(out.base, memory.shape, memory.dtype)
    assert (read(whole) == expected).all()


def test_an_output_may_be_an_input():
    x = np.arange(10, dtype=np.int32)
    array = to_device(x)
    ADD(array, array, out=array)
    assert (read(array) == x * x + x).all()


def test_several_outputs_and_types():
    split = accelrt.elementwise(
        "T x, int32 base",
        "int64 whole, T rest, bool even",
        "whole = (long long)x / base; rest = x - whole * base; even = whole % 2 == 0",
    )
    x = np.arange(100, dtype=np.float64) + 0.5
    whole, rest, even = split(to_device(x), 8)
    assert [array.dtype.name for array in (whole, rest, even)] == ["int64", "float64", "bool"]
    assert (read(whole) == x // 8).all()
    assert (read(rest) == x % 8).all()
    assert (read(even) == (x // 8 % 2 == 0)).all()


def test_numbers_are_broadcast_and_take_the_arrays_type():
    x = np.arange(5, dtype=np.float16)
    z = ADD(to_device(x), 0.5)
    assert z.dtype == np.float16
    assert (read(z) == x * np.float16(0.5) + x).all()
    assert ADD(2, to_device(np.arange(3, dtype=np.uint8))).dtype == np.uint8
    assert ADD(np.float64(2), to_device(np.ones(3, np.float32))).dtype == np.float32


def test_numbers_alone_take_what_out_or_dtypes_say():
    fill = accelrt.elementwise("T value", "U z", "z = value + i")
    out = to_device(np.zeros(4, np.float32))
    fill(3, out=out)
    assert read(out).tolist() == [3, 4, 5, 6]
    ramp = accelrt.elementwise("T x", "U z", "z = x / 2")
    z = ramp(to_device(np.arange(3, dtype=np.int32)), dtypes={"U": "float64"})
    assert z.dtype == np.float64
    assert read(z).tolist() == [0, 0, 1]


def test_the_element_number_counts_in_c_order_whatever_the_strides():
    number = accelrt.elementwise("T x", "int64 z", "z = i * (n > 0)")
    memory = np.zeros((4, 6), np.float32)
    out = accelrt.Array(accelrt.Buffer(192), (4, 6), "int64", strides=(8, 32))
    number(strided(memory[::-1], memory), out=out)
    assert (read(out) == np.arange(24).reshape(4, 6)).all()


def test_math_of_the_arrays_type_and_a_preamble():
    kernel = accelrt.elementwise(
        "T x",
        "T z",
        "z = twice(sqrt(x)) + min(x, (T)2) + (T)0.1",
        preamble="accelrt_inline double twice(double x) { return 2 * x; }",
    )
    x = np.arange(50, dtype=np.float64)
    expected = 2 * np.sqrt(x) + np.minimum(x, 2) + 0.1
    assert np.allclose(read(kernel(to_device(x))), expected, rtol=1e-14)


def test_every_half_is_converted_as_numpy_does():
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    widen = accelrt.elementwise("float16 x", "float32 z", "z = x")
    wide = read(widen(to_device(every)))
    assert (wide.view(np.uint32) == every.astype(np.float32).view(np.uint32))[~np.isnan(every)].all()
    assert np.isnan(wide[np.isnan(every)]).all()
    narrow = accelrt.elementwise("float32 x", "float16 z", "z = x")
    finite = every[np.isfinite(every)].astype(np.float32)
    values = np.concatenate(
        [
            finite,
            np.nextafter(finite, np.inf),
            (finite[:-1] + finite[1:]) / 2,
            [1e30, np.inf, -np.inf, 65519, 65520],
        ]
    )
    values = values.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    assert (read(narrow(to_device(values))).view(np.uint16) == expected.view(np.uint16)).all()
    assert np.isnan(read(narrow(to_device(np.array([np.nan], np.float32)))))[0]


def test_bfloat16_is_computed_in_float():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-3, 3, 1001, dtype=np.float32).astype(ml_dtypes.bfloat16)
    z = ADD(to_device(x), to_device(x))
    wide = x.astype(np.float32)
    assert (read(z) == (wide * wide + wide).astype(ml_dtypes.bfloat16)).all()


def test_arrays_of_other_libraries_are_taken():
    class Theirs:
        def __init__(self, array):
            self.array = array
            self.__cuda_array_interface__ = {
                "shape": array.shape,
                "typestr": array.dtype.str,
                "data": (array.ptr, False),
                "version": 3,
                "stream": 1,
            }

    x, out = to_device(np.arange(5, dtype=np.float32)), to_device(np.zeros(5, np.float32))
    accelrt.synchronize()
    z = ADD(Theirs(x), 2.0, out=Theirs(out))
    assert isinstance(z, accelrt.Array)
    assert read(out).tolist() == [0, 3, 6, 9, 12]
    assert z.ptr == out.ptr


def test_a_kernel_is_compiled_once_for_its_types(monkeypatch):
    made = []
    load = elementwise_plan.load
    monkeypatch.setattr(elementwise_plan, "load", lambda *given: made.append(given) or load(*given))
    kernel = accelrt.elementwise("T x", "T z", "z = -x")
    for size in (3, 100, 70_000):
        kernel(to_device(np.ones(size, np.float32)))
    assert len(made) == 1
    kernel(to_device(np.ones(3, np.float64)))
    assert len(made) == 2
