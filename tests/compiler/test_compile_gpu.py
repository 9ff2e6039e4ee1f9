"""Kernels compiled for the device at hand, loaded and launched."""

import numpy as np
import pytest
from device_arrays import read, to_device

import accelrt

SCALE = """
template <class T> __global__ void scale(T* x, T a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= a;
}
"""
CALLS = '__device__ float half_of(float); extern "C" __global__ void run(float* x) { *x = half_of(*x); }\n'
CALLED = "__device__ float half_of(float x) { return x / 2; }\n"


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_a_template_is_compiled_for_the_device_and_launched(kind):
    names = ["scale<float>", "scale<double>"]
    with accelrt.compile(SCALE, kind=kind, name_expressions=names) as module:
        for name, dtype in zip(names, ("float32", "float64"), strict=True):
            x = to_device(np.arange(100, dtype=dtype))
            word = "float" if dtype == "float32" else "double"
            module.function(name, f"{word}* x, {word} a, int n")[1, 128](x, 3.0, 100)
            assert (read(x) == np.arange(100) * 3).all()


@pytest.mark.gpu
@pytest.mark.nvrtc("link")
def test_several_sources_are_linked_and_launched():
    x = to_device(np.array([3], np.float32))
    accelrt.compile([CALLS, CALLED]).function("run", "float* x")[1, 1](x)
    assert read(x).tolist() == [1.5]


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_elementwise_of_many_elements_reaches_each():
    kernel = accelrt.elementwise("T x, T y", "T z", "z = x - y", name="difference")
    x = np.arange(10_000_003, dtype=np.int32)
    z = kernel(to_device(x), to_device(x[::-1]))
    assert (read(z) == x - x[::-1]).all()
    shifted = kernel(to_device(x)[1:], 1)  # an address that no wide load takes
    assert (read(shifted) == x[1:] - 1).all()


def test_an_image_for_a_link_is_not_loaded():
    with pytest.raises(ValueError, match="kind='ltoir' is not loaded before link_images"):
        accelrt.compile(SCALE, kind="ltoir")
