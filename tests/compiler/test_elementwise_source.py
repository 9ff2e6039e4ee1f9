"""The CUDA C++ of elementwise kernels: it compiles for every type, and reaches each element once.

Without a GPU the text is compiled as C++ and called for each thread in turn.
"""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

import accelrt
from accelrt.kernels.elementwise_source import (
    BLOCK,
    IN_FLOAT,
    STORED,
    UNROLLED,
    Operand,
    Text,
    cuda_source,
    signature,
)

CXX = shutil.which("c++") or shutil.which("g++")
STUBS = """
struct dimensions { unsigned int x; };
static dimensions threadIdx, blockIdx, gridDim;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
extern "C" void accelrt_place(unsigned int grid, unsigned int block, unsigned int thread) {
    gridDim.x = grid; blockIdx.x = block; threadIdx.x = thread;
}
"""


def text_of(x="float32", z="float32", body="z = x * 2 + a + (i == n)"):
    operands = (Operand("x", x, True, False), Operand("a", x, False, False), Operand("z", z, True, True))
    return Text("doubled", operands, {}, body, "")


@pytest.mark.nvrtc
@pytest.mark.parametrize("dtype", sorted(STORED))
def test_every_type_compiles_without_a_warning(dtype):
    text = text_of(dtype, dtype)
    for axes, vector, wide in ((0, 8, False), (2, 1, True)):
        image = accelrt.compile_image(cuda_source(text, axes, vector, wide), arch=90)
        assert image.log == ""


NAMES = "first k u v rest next at layout axes operation begin last end where arguments arg_first held_x whole"


@pytest.mark.nvrtc
@pytest.mark.parametrize("outputs", [1, 18])
def test_a_parameter_may_have_the_name_that_the_text_has_for_something(outputs):
    names = NAMES.split()
    inputs = len(names) - outputs
    operands = tuple(Operand(name, "float32", True, place >= inputs) for place, name in enumerate(names))
    text = Text("doubled", operands, {}, "; ".join(f"{name} = i" for name in names[inputs:]), "")
    for axes, vector in ((0, 4), (2, 1)):
        accelrt.compile_image(cuda_source(text, axes, vector, False), arch=90)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("x", "z", "vector", "wide"), [("float32", "float32", 4, "v4"), ("int8", "int16", 8, "v4")]
)
def test_vectors_are_loaded_and_stored_whole(x, z, vector, wide):
    ptx = accelrt.compile_image(cuda_source(text_of(x, z), 0, vector, False), arch="compute_80").data
    loads = [line for line in ptx.splitlines() if b"ld.global" in line and b".v" in line]
    stores = [line for line in ptx.splitlines() if b"st.global" in line and wide.encode() in line]
    assert len(loads) == len(stores) == UNROLLED


@pytest.mark.nvrtc
def test_an_operation_that_does_not_compile_for_a_gpu_shows_its_line():
    with pytest.raises(accelrt.CompileError, match=r"doubled.cu, line \d+: error.*\n(.*\n)*>.*z = x \+ gone"):
        source = cuda_source(text_of(body="z = x + gone"), 0, 4, False)
        accelrt.compile_image(source, arch=90, name="doubled.cu")


def emulated(text, folder, axes, vector, wide):
    """The kernel as a function of ctypes, and the one that says which thread it is called for."""
    if CXX is None:
        pytest.skip("there is no C++ compiler")
    path = folder / "kernel.so"
    flags = ["-x", "c++", "-O1", "-shared", "-fPIC", "-fsanitize=undefined", "-fno-sanitize-recover"]
    source = STUBS + cuda_source(text, axes, vector, wide)
    subprocess.run([CXX, *flags, "-o", path, "-"], input=source.encode(), check=True, capture_output=True)
    library = ctypes.CDLL(str(path))
    return library.doubled, library.accelrt_place


def run(functions, grid, first, x, z):
    kernel, place = functions
    number = np.ctypeslib.as_ctypes_type(x.dtype)
    for block in range(grid):
        for thread in range(BLOCK):
            place(grid, block, thread)
            kernel(first, ctypes.c_void_p(x.ctypes.data), number(1), ctypes.c_void_p(z.ctypes.data))


@pytest.mark.parametrize(
    ("x", "z", "vector"),
    [("float32", "float32", 4), ("float32", "float32", 1), ("int8", "uint8", 16), ("float32", "float64", 2)],
)
def test_contiguous_kernels_reach_each_element_and_no_other(x, z, vector, tmp_path):
    functions = emulated(text_of(x, z), tmp_path, 0, vector, False)
    tile = BLOCK * UNROLLED * vector
    for size in (1, vector - 1, vector, vector + 1, tile - 1, tile, tile + 1, 2 * tile + 3):
        given = (np.arange(size + 8) % 50).astype(x)
        made = np.full(size + 8, 77, z)
        run(functions, -(-size // tile), ctypes.c_longlong(size), given, made)
        assert (made[:size] == given[:size] * 2 + 1).all()
        assert (made[size:] == 77).all()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", [(700,), (5, 130), (3, 7, 31)])
def test_strided_kernels_follow_the_strides(shape, wide, tmp_path):
    text = text_of()
    axes = len(shape)
    functions = emulated(text, tmp_path, axes, 1, wide)
    memory = np.arange(np.prod(shape) * 2, dtype=np.float32).reshape(*shape[:-1], -1)
    given = memory[..., ::-2]
    made = np.zeros(shape[::-1], np.float32).T
    numbers = [given.size, *shape, *given.strides, *made.strides]
    assert signature(text.operands, axes)[0] == f"struct[{8 * len(numbers)}]"
    layout = type(
        "Layout", (ctypes.Structure,), {"_fields_": [("numbers", ctypes.c_longlong * len(numbers))]}
    )
    first = layout((ctypes.c_longlong * len(numbers))(*numbers))
    for grid in (1, -(-given.size // BLOCK)):  # one block takes all in turns
        made[...] = 0
        run(functions, grid, first, given, made)
        assert (made == given * 2 + 1).all()


def test_16_bit_floats_are_computed_in_float():
    for name in IN_FLOAT:
        assert Operand("x", name, True, False).computed == "float"
        assert STORED[name] == "unsigned short"
