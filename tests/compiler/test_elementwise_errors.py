"""What is said of declarations and of calls that cannot be computed."""

import copy
import pickle

import numpy as np
import pytest
from device_arrays import read, to_device

import accelrt
from accelrt.kernels import host_compiler

ADD = accelrt.elementwise("T x, T y", "T z", "z = x * y + x", name="axpy")


@pytest.mark.parametrize(
    ("declared", "kind", "said"),
    [
        (("T", "T z", "z = 0"), ValueError, "'T' is no declaration; write a type and a name"),
        (("T x,", "T z", "z = x"), ValueError, "inputs: '' is no declaration"),
        (
            ("float x", "T z", "z = x"),
            ValueError,
            "'float' is no type; it may be bool, int8.* or a placeholder",
        ),
        (("complex256 x", "T z", "z = x"), ValueError, "'complex256' is no type"),
        (("rough T x", "T z", "z = x"), ValueError, "'rough T x' is no declaration; .* or 'raw T x'"),
        (("T x", "T x", "x = x"), ValueError, "two parameters have one name: x, x"),
        (("T n", "T z", "z = n"), ValueError, "'n' is no parameter's name"),
        (("T x", "T double", ""), ValueError, "'double' is no parameter's name"),
        (("T accelrt_n", "T z", ""), ValueError, "'accelrt_n' is no parameter's name"),
        (("T x", "", ""), ValueError, "outputs is empty"),
        ((3, "T z", ""), TypeError, "inputs is a str of declarations"),
        (("T x", "T z", 3), TypeError, "operation is text, not int"),
        (
            (", ".join(f"T x{i}" for i in range(32)), "T z", ""),
            ValueError,
            "33 parameters are more than the 32",
        ),
    ],
)
def test_a_wrong_declaration_is_named(declared, kind, said):
    with pytest.raises(kind, match=said):
        accelrt.elementwise(*declared)


@pytest.mark.parametrize("name", ["", "two words", "3rd", "a;b", "_x"])
def test_a_name_is_one_of_c(name):
    with pytest.raises(ValueError, match="is no name of a function in C"):
        accelrt.elementwise("T x", "T z", "z = x", name=name)


def test_options_are_a_sequence():
    with pytest.raises(TypeError, match="options is a sequence of str"):
        accelrt.elementwise("T x", "T z", "z = x", options="-lineinfo")


def test_a_wrong_number_of_arguments_names_the_inputs():
    with pytest.raises(TypeError, match=r"axpy takes 2 inputs \(x, y\); 1 given"):
        ADD(1)
    array = to_device(np.zeros(3))
    with pytest.raises(TypeError, match=r"axpy has 1 outputs \(z\); out has 2"):
        ADD(array, 1, out=[array, array])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros(3), "y is an array on a device or a number, not ndarray"),
        ("3", "y is an array on a device or a number, not str"),
        (None, "y is an array on a device or a number, not NoneType"),
        (3j, "y is 3j, and T is float64"),
        (np.complex64(1), r"y is \(1\+0j\), and T is float64"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_named(value, said):
    with pytest.raises(TypeError, match=said):
        ADD(to_device(np.zeros(3)), value)


def test_types_that_differ_are_told_with_the_declaration():
    one, other = to_device(np.zeros(3, np.float32)), to_device(np.zeros(3, np.int32))
    with pytest.raises(TypeError, match=r"y is of int32, and T is float32 here: axpy takes T x, T y, T z"):
        ADD(one, other)
    with pytest.raises(TypeError, match=r"z is of int32, and T is float32 here"):
        ADD(one, 1, out=other)


@pytest.mark.parametrize("dtype", ["complex256", ">f4", "M8[s]"])
def test_types_that_are_not_taken_are_told_with_those_that_are(dtype):
    array = accelrt.empty(3, dtype)
    with pytest.raises(TypeError, match="which elementwise kernels do not take; they take bool, int8"):
        ADD(array, 1)


@pytest.mark.parametrize(
    ("dtype", "value", "kind", "said"),
    [
        ("int8", 200, ValueError, "y=200 is out of the range of int8, -128 to 127"),
        ("uint32", -1, ValueError, "y=-1 is out of the range of uint32"),
        ("int32", 1.5, TypeError, "y is 1.5, and T is int32"),
        ("int32", np.float32(2), TypeError, "y is 2.0, and T is int32"),
    ],
)
def test_a_number_that_does_not_fit_is_told(dtype, value, kind, said):
    with pytest.raises(kind, match=said):
        ADD(to_device(np.zeros(3, dtype)), value)


def test_a_type_that_nothing_tells_is_asked_for():
    kernel = accelrt.elementwise("T x", "U z", "z = x")
    array = to_device(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match=r"no argument tells the type U of z; give out, or dtypes=\{'U'"):
        kernel(array)
    with pytest.raises(ValueError, match="dtypes has 'V', which elementwise does not declare"):
        kernel(array, dtypes={"V": "int8"})
    with pytest.raises(ValueError, match="elementwise has numbers alone; give out"):
        kernel(3, dtypes={"U": "int8"})


def test_shapes_that_do_not_fit_are_told():
    one, other = to_device(np.zeros((2, 3))), to_device(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"the shapes \(2, 3\), \(2, 2\) of axpy cannot be broadcast"):
        ADD(one, other)
    with pytest.raises(ValueError, match=r"out for z has the shape \(3,\); the result has \(2, 3\)"):
        ADD(one, 1, out=to_device(np.zeros(3)))


def test_arrays_of_several_devices_and_of_host_memory_are_refused():
    with pytest.raises(ValueError, match="an array of axpy is in host memory; copy it to a device first"):
        ADD(accelrt.empty(3, "float32", pin_memory=True), 1)
    if accelrt.device_count() < 2:
        return
    one, other = (to_device(np.zeros(3), device) for device in range(2))
    with pytest.raises(ValueError, match=r"the arrays of axpy are on the devices \[0, 1\]; copy them to one"):
        ADD(one, other)
    with pytest.raises(ValueError, match="stream is of device 1, and the arrays are on device 0"):
        ADD(one, 1, stream=accelrt.Stream(1))
    assert ADD(other, 1).device_index == 1


def test_an_output_that_overlaps_is_refused():
    memory = to_device(np.arange(10, dtype=np.float32))
    with pytest.raises(ValueError, match=r"z overlaps x, which is not the same array; write to other memory"):
        ADD(memory[:8], 1, out=memory[2:])
    ADD(memory[::2], 1, out=memory[1::2])
    assert read(memory).tolist() == [0, 0, 2, 4, 4, 8, 6, 12, 8, 16]
    rows = accelrt.Array(memory.base, (3, 5), "float32", strides=(0, 4))
    with pytest.raises(ValueError, match="elements of z share memory, and each is to be written"):
        ADD(1.0, 1.0, out=rows)
    two = accelrt.elementwise("T x", "T y, T z", "y = x; z = x")
    with pytest.raises(ValueError, match="z overlaps y"):
        two(memory[:5], out=[memory[5:], memory[5:]])


def test_outputs_that_are_read_only_or_no_arrays_are_refused():
    array = to_device(np.zeros(3))
    fixed = accelrt.Array(array, (3,), "float64", readonly=True)
    with pytest.raises(ValueError, match="out for z is read-only"):
        ADD(array, 1, out=fixed)
    with pytest.raises(TypeError, match=r"out for z is an array on a device, not ndarray"):
        ADD(array, 1, out=[np.zeros(3)])


def test_more_axes_than_a_kernel_takes_are_refused():
    memory = accelrt.Buffer(8 * 3**9)
    strides = tuple(8 * 3**axis for axis in range(9))
    wide = accelrt.Array(memory, (2,) * 9, "float64", strides=strides)
    with pytest.raises(ValueError, match="have 9 axes that cannot be put together, and a kernel takes 8"):
        ADD(wide, 1)


def test_an_array_that_was_freed_is_refused():
    array = to_device(np.zeros(3))
    array.free()
    with pytest.raises(ValueError, match="freed"):
        ADD(array, 1)


def test_an_operation_that_does_not_compile_shows_its_line():
    kernel = accelrt.elementwise("T x", "T z", "z = x +\n    nothing;", name="broken")
    with pytest.raises(accelrt.CompileError, match=r">.*\|     nothing;") as caught:
        kernel(to_device(np.zeros(3)))
    assert "nothing" in caught.value.log
    assert caught.value.source_name.startswith("broken.c")


@pytest.mark.host
def test_without_a_cpp_compiler_it_is_said(monkeypatch):
    monkeypatch.setattr(host_compiler, "_compiler", None)
    monkeypatch.setenv("PATH", "/nowhere")
    said = r"none of c\+\+, g\+\+, clang\+\+ is in PATH; install one, such as the package g\+\+"
    with pytest.raises(accelrt.CompilerNotFoundError, match=said):
        accelrt.elementwise("T x", "T z", "z = x")(to_device(np.zeros(3)))


def test_a_kernel_is_copied_and_pickled_as_its_texts():
    kernel = accelrt.elementwise("T x, int8 y", "T z", "z = x", name="same")
    assert repr(kernel) == "<accelrt.ElementwiseKernel same: T x, int8 y -> T z>"
    for again in (copy.copy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert repr(again) == repr(kernel)
        assert again is not kernel


@pytest.mark.host
def test_the_shared_object_comes_from_the_cache(monkeypatch):
    from accelrt.kernels import cache, host_compiler

    runs = []
    run = host_compiler.run_compiler
    monkeypatch.setattr(host_compiler, "run_compiler", lambda *given: runs.append(given) or run(*given))
    for _ in range(2):
        cache.forget()
        accelrt.elementwise("T x", "T z", "z = x + 1", name="kept")(to_device(np.zeros(3)))
    assert len(runs) == 1
