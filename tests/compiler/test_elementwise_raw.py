"""Elementwise kernels with complex numbers and with raw parameters, which the operation indexes by itself."""

import gc

import numpy as np
import pytest
from device_arrays import read, strided, to_device

import accelrt
from accelrt.kernels.elementwise_source import STORED, Operand, Text, cuda_source

NEIGHBOURS = accelrt.elementwise(
    "raw T x", "T z", "z = x[i] + (i + 1 < n ? x[i + 1] : x[0])", name="neighbours"
)
COMPLEX_BODY = """
    z = x * y / a - 2 * x + (T)3 * y + 2.0 * x + make_complex(1, 2.5);
    z = z + exp(x / 8) + sqrt(y) + log(x) - conj(y);
    z += x; z *= 2; z -= y; z /= 3; z = -z;
    size = cabs(x) + carg(x) + creal(x) + cimag(y);
    same = x == y || !(x != a);
"""


def computed(x, y, a):
    z = x * y / a - 2 * x + 3 * y + 2 * x + (1 + 2.5j) + np.exp(x / 8) + np.sqrt(y) + np.log(x) - np.conj(y)
    z = -(((z + x) * 2 - y) / 3)
    return z, np.abs(x) + np.angle(x) + x.real + y.imag, (x == y) | (x == a)


@pytest.mark.parametrize(("dtype", "part"), [("complex64", "float32"), ("complex128", "float64")])
def test_complex_numbers_are_computed_as_numpy_does(dtype, part):
    kernel = accelrt.elementwise("T x, T y, T a", f"T z, {part} size, bool same", COMPLEX_BODY)
    random = np.random.default_rng(0)
    x, y = ((random.normal(size=100) + 1j * random.normal(size=100)).astype(dtype) for _ in range(2))
    y[::7] = x[::7]
    for one, other in ((to_device(x), to_device(y)), (strided(x[::-1], x), strided(y[::-1], y))):
        backwards = one.strides[0] < 0
        z, size, same = kernel(one, other, 1 - 2j)
        assert (z.dtype, size.dtype, same.dtype) == (dtype, part, "bool")
        expected = computed(x, y, np.array(1 - 2j, dtype)[()])
        for found, wanted in zip((z, size, same), expected, strict=True):
            wanted = wanted[::-1] if backwards else wanted
            near = 1e-4 if dtype == "complex64" else 1e-12
            assert np.allclose(read(found), wanted, rtol=near, atol=near)


def test_complex_and_real_numbers_take_the_arrays_type():
    twice = accelrt.elementwise("T x, T a", "T z", "z = a * x")
    x = np.array([1 + 2j, 3], np.complex64)
    for number in (2, 2.0, 2j, True, np.complex128(1j), np.int8(3)):
        assert (read(twice(to_device(x), number)) == x * np.complex64(number)).all()
    out = to_device(np.zeros(3, np.complex128))
    assert read(twice(2j, 3, out=out)).tolist() == [6j] * 3
    with pytest.raises(TypeError, match=r"a is 2j, and T is float32"):
        twice(to_device(np.zeros(3, np.float32)), 2j)


@pytest.mark.nvrtc
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_compile_for_a_gpu(dtype):
    part = "float32" if dtype == "complex64" else "float64"
    operands = [Operand(name, dtype, name != "a", False) for name in ("x", "y", "a")]
    operands += [Operand("z", dtype, True, True), Operand("size", part, True, True)]
    operands += [Operand("same", "bool", True, True), Operand("w", dtype, True, True, True)]
    body = COMPLEX_BODY + "w[n - 1 - i] = z;"
    text = Text("complexes", tuple(operands), {"T": STORED[dtype]}, body, "")
    for axes, vector in ((0, 1), (0, 0), (2, 1)):
        assert accelrt.compile_image(cuda_source(text, axes, vector, False), arch=90).log == ""


def test_complex_numbers_that_are_aligned_as_their_parts_are_taken():
    memory = to_device(np.arange(9, dtype=np.float64))
    numbers = accelrt.Array(memory.base, (4,), "complex128", offset=8)
    conjugated = accelrt.elementwise("T x", "T z", "z = conj(x)")(numbers)
    assert read(conjugated).tolist() == [1 - 2j, 3 - 4j, 5 - 6j, 7 - 8j]


@pytest.mark.gpu
def test_elements_that_no_gpu_can_read_are_refused():
    memory = accelrt.Buffer(64)
    crooked = accelrt.Array(memory, (4,), "float32", offset=2)
    with pytest.raises(ValueError, match=r"x has elements of float32 at .* no multiples of 4"):
        accelrt.elementwise("T x", "T z", "z = x")(crooked)


def test_a_raw_parameter_is_indexed_and_takes_no_part_in_the_broadcast():
    x = np.arange(70_000, dtype=np.float32)
    assert (read(NEIGHBOURS(to_device(x), size=70_000)) == x + np.roll(x, -1)).all()
    table = accelrt.elementwise("raw U table, T index", "U z", "z = table[index]")
    index = np.array([[3, 0], [1, 2], [0, 0]], np.int64)
    values = np.array([5.5, 6.5, 7.5, 8.5])
    assert (read(table(to_device(values), to_device(index))) == values[index]).all()
    assert (read(table(to_device(values), to_device(index)[::-1])) == values[index[::-1]]).all()


def test_a_raw_output_is_written_where_the_operation_says():
    backwards = accelrt.elementwise("T x", "raw T z, T twice", "z[n - 1 - i] = x; twice = 2 * x")
    x = np.arange(12, dtype=np.int32)
    out = to_device(np.full(14, -1, np.int32))
    raw, twice = backwards(to_device(x), out=[out, None])
    assert raw is out
    assert read(out).tolist() == [*x[::-1].tolist(), -1, -1]
    assert (read(twice) == 2 * x).all()


def test_what_is_wrong_with_a_raw_parameter_is_told():
    x = to_device(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="the arrays of neighbours are all raw; give size"):
        NEIGHBOURS(x)
    with pytest.raises(ValueError, match="size is -1; it is how many elements are computed"):
        NEIGHBOURS(x, size=-1)
    with pytest.raises(ValueError, match="size=4 is for arrays that are all raw, and neighbours has another"):
        NEIGHBOURS(x, size=4, out=x)
    with pytest.raises(TypeError, match="x is raw: an array on a device, not int"):
        NEIGHBOURS(3, size=4)
    with pytest.raises(ValueError, match=r"x is raw, .*strides \(8,\) is not contiguous"):
        NEIGHBOURS(x[::2], size=2)
    with pytest.raises(TypeError, match=r"x is raw and of float16, of which .* see the bits"):
        NEIGHBOURS(to_device(np.zeros(3, np.float16)), size=3)
    scatter = accelrt.elementwise("T x", "raw T z", "z[i] = x", name="scatter")
    with pytest.raises(ValueError, match="z is raw, so no shape of it is known; give out"):
        scatter(x)
    assert repr(scatter) == "<accelrt.ElementwiseKernel scatter: T x -> raw T z>"
    assert NEIGHBOURS(x, size=0).shape == (0,)


def test_calls_with_many_shapes_in_turn_are_told_apart():
    add = accelrt.elementwise("T x, T y", "T z", "z = x + y")
    for _ in range(2):
        for shape in [(3,), (1, 3), (3, 1), (2, 3), (0, 3), (1,) * 6]:
            for dtype in ("float32", "int32"):
                x = np.full(shape, 5, dtype)
                z = add(to_device(x), 2)
                assert (z.shape, z.dtype) == (shape, dtype)
                assert (read(z) == 7).all()
    wide = add(to_device(np.ones((1,) * 9)), to_device(np.ones((2,) * 3)))
    assert read(wide).sum() == 16
    add.unload()
    gc.collect()
    assert read(add(to_device(np.ones(3)), 1)).tolist() == [2, 2, 2]


def test_a_kernel_that_was_not_initialised_says_so():
    with pytest.raises(TypeError, match="this ElementwiseKernel was never initialised"):
        accelrt.ElementwiseKernel.__new__(accelrt.ElementwiseKernel)()


def calls_kept():
    return sum(type(each).__name__ == "Call" for each in gc.get_objects())


def test_sizes_are_numbers_and_calls_of_many_sizes_are_not_all_kept():
    copied = accelrt.elementwise("raw T x", "raw T y", "y[i] = x[i]")
    x, y = to_device(np.arange(1500.0)), to_device(np.zeros(1500))
    before = calls_kept()
    for size in range(1, 1501):
        copied(x, out=y, size=size)
    assert (read(y) == read(x)).all()
    assert calls_kept() <= before + 1024
    with pytest.raises(TypeError, match="float"):
        copied(x, out=y, size=1500.0)
