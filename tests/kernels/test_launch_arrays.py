"""Arrays as arguments: their first element's address, views and all, and their memory's owner told."""

import numpy as np
import pytest
from kernel_sources import numbers

import accelrt
from accelrt.arrays.exchange import empty, zeros

COUNT = 256


def read(array):
    out = np.zeros(array.size, np.uint32)
    accelrt.copy(out, array)
    return out


def test_an_array_and_its_slices_are_passed_by_address(number):
    array = zeros(2 * COUNT, np.uint32)
    number[4, 64](array[COUNT:], 3)
    number[1, 4](array[8:16:2], 1)  # strides are the kernel's to know
    assert (read(array)[COUNT:] == numbers(3)).all()
    assert list(read(array)[6:14]) == [0, 0, 1, 2, 3, 4, 0, 0]
    number[4, 64](array[::-1], 0)
    accelrt.synchronize()


def test_a_graph_keeps_arrays(number):
    graph, array = accelrt.CUDAGraph(), zeros(2 * COUNT, np.uint32)
    with accelrt.graph(graph):
        number[4, 64](array[COUNT:], 6)
    address = array.ptr
    del array
    assert address not in [other.ptr for other in [accelrt.Buffer(8 * COUNT) for _ in range(4)]]
    graph.replay()
    accelrt.synchronize()


def test_a_page_locked_array_is_written(number):
    array = empty(COUNT, np.uint32, pin_memory=True)
    number[4, 64](array, 9)
    accelrt.synchronize()
    assert (np.asarray(array) == numbers(9)).all()


def test_an_array_that_no_kernel_can_use_is_refused(number, saxpy):
    array, buffer = empty(COUNT, np.float32), accelrt.Buffer(4 * COUNT)
    array.base.free()
    buffer.free()
    for freed in (array, buffer):
        with pytest.raises(ValueError, match="argument 0 of kernel 'number'"):
            number[1, 1](freed, 1)
    if number.parameters is not None:
        with pytest.raises(TypeError, match=r"argument 1 of kernel 'number' is memory \(Array\)"):
            number[1, 1](None, empty(4))
    if accelrt.device_count() > 1:
        with pytest.raises(ValueError, match="on device 1, the kernel is on device 0"):
            number[1, 1](empty(4, device=1), 1)


@pytest.mark.parametrize(
    ("dtype", "pointer"),
    [
        ("float32", "float*"),
        ("int32", "unsigned*"),
        ("uint8", "float*"),
        ("float32", "char*"),
        ("int64", "void*"),
        ("float16", "__half*"),
        ("complex64", "float2*"),
        ("float32", "float2*"),
        ("float64", "const double2*"),
        ("complex64", "float*"),
        ("float64", "struct thing*"),
    ],
)
def test_an_array_may_have_the_elements_that_a_pointer_is_to(module, dtype, pointer):
    kernel = module.function("number", ["const " + pointer, "uint32_t"])
    memory = accelrt.zeros(1024, dtype)
    for _ in range(2):
        kernel[1, 1](memory, 1)
    accelrt.synchronize()


@pytest.mark.parametrize(
    ("dtype", "pointer", "text"),
    [
        ("int32", "float*", "floating-point numbers of 4 bytes; convert it, or name its bytes' type by view"),
        ("float32", "double*", "floating-point numbers of 8 bytes"),
        ("float32", "int*", "integers of 4 bytes"),
        ("float64", "complex64*", "complex numbers of 8 bytes"),
        ("float16", "float2*", "complex numbers of 8 bytes"),
        ("int64", "uint32_t*", "unsigned integers of 4 bytes"),
    ],
)
def test_an_array_of_other_elements_than_a_pointer_is_to_is_refused(module, dtype, pointer, text):
    kernel = module.function("number", [pointer, "uint32_t"])
    memory = accelrt.zeros(1024, dtype)
    with pytest.raises(TypeError, match=f"argument 0 of .* is an Array of {dtype}; .* to {text}"):
        kernel[1, 1](memory, 1)
    kernel[1, 1](memory.base, 1)  # a Buffer is of no type
    accelrt.synchronize()
