"""Modules: what they are loaded from, how long they live, and functions of the host as kernels."""

import ctypes
import gc
import os
import threading
import weakref

import numpy as np
import pytest
from child import in_child, in_fork, tell_loss
from compiled import compile_image, compile_source
from kernel_sources import PTX, SOURCE, numbers, written

import accelrt
from accelrt.kernels import host_compiler
from accelrt.testing import settle

COUNT = 256
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"


def test_a_module_is_loaded_from_bytes_a_path_and_what_a_compiler_made(image, tmp_path):
    class Compiled:
        names = {"number<int>": "number"}  # noqa: RUF012

        def __bytes__(self):
            return image

    path = tmp_path / "image"
    path.write_bytes(image)
    for given in (image, bytearray(image), memoryview(image), path, str(path), Compiled()):
        with accelrt.Module(given) as module:
            assert (written(module.function("number")) == numbers(3)).all()
    with accelrt.Module.load(Compiled()) as module:
        assert module.function("number<int>").name == "number<int>"


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (b"", ValueError, "the image is empty"),
        (b"\x7fELF" + bytes(8), ValueError, "too few for its header"),
        (b"\x7fELF" + bytes(80), ValueError, "without section headers"),
        (b"garbage", accelrt.CudaError, "module_load"),
        (7, TypeError, "image is of type int; pass a path, bytes"),
        ("/no/such/file", FileNotFoundError, "/no/such/file"),
    ],
)
def test_an_image_that_is_none_is_refused(given, error, text):
    with pytest.raises(error, match=text):
        accelrt.Module(given)


def test_an_image_that_does_not_load_tells_what_the_driver_says_of_it():
    if ON_HOST:
        source = "extern int nowhere(void); int number(void) { return nowhere(); }"
        given, said = compile_image(source), "undefined symbol: nowhere"
    else:
        given, said = PTX.replace(b"mov.u32 %r2", b"move.u32 %r2", 1), r"line \d+; error .*\n.*fatal"
    with pytest.raises(accelrt.CudaError, match=rf"the driver said:\n    .*{said}"):
        accelrt.Module(given)


@pytest.mark.host
def test_a_shared_object_that_was_cut_off_is_refused(image):
    with pytest.raises(ValueError, match=r"of which \d+ should be there; it is damaged"):
        accelrt.Module(image[:-1])


def test_a_kernel_that_is_not_there_and_a_signature_that_does_not_fit_are_refused(module):
    with pytest.raises(accelrt.CudaError, match="none"):
        module.function("none")
    with pytest.raises(ValueError, match="pass the name of a kernel"):
        module.function("")
    with pytest.raises(ValueError, match="has 1 parameters, kernel 'number' has 2"):
        module.function("number", "int*")
    with pytest.raises(ValueError, match=r"parameter 1 of the signature .* has 8 bytes, that of kernel .* 4"):
        module.function("number", "int*, double")
    with pytest.raises(ValueError, match="parameter 1 of the signature, 'foo x', has a type"):
        module.function("number", "int*, foo x")


def test_a_kernel_outlives_its_module(image):
    module = accelrt.Module(image)
    kernel = module.function("number")
    module.unload()
    module.unload()
    with pytest.raises(ValueError, match="this Module was unloaded"):
        module.function("number")
    assert (written(kernel) == numbers(3)).all()
    assert repr(module) == "<accelrt.Module not loaded>"


def test_a_module_that_dies_while_its_kernel_runs_stays_loaded(image):
    stream = accelrt.Stream()
    buffer, out = accelrt.Buffer(4 * COUNT, stream=stream), np.zeros(COUNT, np.uint32)
    accelrt.sleep(20_000_000, stream)
    accelrt.Module(image).function("number")[4, 64, stream](buffer, 9)
    gc.collect()
    accelrt.copy(out, buffer, stream=stream)
    assert (out == numbers(9)).all()


def test_a_module_of_another_device_is_loaded_there(image):
    if accelrt.device_count() < 2:
        pytest.skip("needs two devices")
    with accelrt.Module(image, device=1) as module:
        kernel = module.function("number")
        assert (module.device_index, kernel.device_index) == (1, 1)
        assert (written(kernel, device=1) == numbers(3)).all()
        with pytest.raises(ValueError, match="on device 0, the kernel is on device 1"):
            kernel[4, 64](accelrt.Buffer(4 * COUNT), 1)
        with pytest.raises(ValueError, match="stream is on device 0"):
            kernel[4, 64, accelrt.Stream(0)]


def test_loading_and_unloading_leave_a_capture_alone(image):
    graph, buffer = accelrt.CUDAGraph(), accelrt.Buffer(4 * COUNT)
    with accelrt.graph(graph):
        module = accelrt.Module(image)
        module.function("number")[4, 64](buffer, 4)
        accelrt.Module(image).unload()
        module.unload()
        del module
    graph.replay()
    out = np.zeros(COUNT, np.uint32)
    accelrt.copy(out, buffer)
    assert (out == numbers(4)).all()


def test_a_child_of_a_fork_is_told(module, number):
    buffer = accelrt.Buffer(4 * COUNT)

    def child():
        with pytest.raises(accelrt.ForkedError):
            number[1, 1](buffer, 1)
        with pytest.raises(accelrt.ForkedError):
            module.function("number")

    assert in_fork(child) == 0


SUM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


@pytest.mark.host
def test_a_function_of_ctypes_is_a_kernel_and_is_kept_alive():
    def run(where, arguments):
        at = ctypes.c_uint32.from_address(ctypes.c_size_t.from_address(arguments[0]).value)
        with lock:
            at.value += ctypes.c_uint32.from_address(arguments[1]).value

    lock = threading.Lock()  # blocks may run at the same time
    function = SUM(run)
    kernel = accelrt.host_kernel(function, "uint32_t* at, uint32_t value", name="add")
    buffer, out = accelrt.Buffer(4), np.zeros(1, np.uint32)
    buffer.fill(0)
    gone = weakref.ref(function)
    del function
    kernel[3, 1](buffer, 5)
    accelrt.copy(out, buffer)
    assert out[0] == 15
    assert kernel.parameters == (8, 4)
    del kernel
    accelrt.synchronize()
    gc.collect()
    assert gone() is None


@pytest.mark.host
def test_functions_of_c_libraries_and_addresses_are_kernels(tmp_path):
    library = ctypes.CDLL(str(compile_source(SOURCE, tmp_path, "number")))
    address = ctypes.cast(library.number, ctypes.c_void_p).value
    library.number.argtypes = SUM._argtypes_
    for function in (library.number, address, np.uint64(address)):
        kernel = accelrt.host_kernel(function, "uint32_t*, uint32_t", device="host:0")
        assert (written(kernel) == numbers(3)).all()
    assert accelrt.host_kernel(library.number, "int*, int").name == "number"


@pytest.mark.host
def test_what_is_no_function_is_refused():
    with pytest.raises(ValueError, match="the text defines none; it should define one function void NAME"):
        accelrt.host_kernel("text", "int")
    with pytest.raises(TypeError, match=r"function is 1.5"):
        accelrt.host_kernel(1.5, "int")
    with pytest.raises(ValueError, match="function is a NULL pointer"):
        accelrt.host_kernel(0, "int")
    with pytest.raises(TypeError, match="signature is None"):
        accelrt.host_kernel(4096, None)
    with pytest.raises(accelrt.CudaError, match="module_register"):
        accelrt.host_kernel(4096, ["struct[4096]"] * 2)


PLAIN = """
#include <complex.h>
#include <stdbool.h>
#include <stdint.h>
void mix(double* out, int8_t a, uint16_t b, float c, double d, bool e, float _Complex f, const int64_t* g) {
    out[0] += a + b + c + d + e + crealf(f) + cimagf(f) + g[0];
}
void pair(void* to, void* from) { *(int64_t*)to = *(int64_t*)from + 1; }
"""


@pytest.mark.host
def test_a_plain_function_of_c_is_called_with_the_values_of_its_arguments(tmp_path):
    library = ctypes.CDLL(str(compile_source(PLAIN, tmp_path, "plain")))
    signature = "double*, int8_t, uint16_t, float, double, bool, complex64, const int64_t*"
    with pytest.raises(
        TypeError, match=r"nothing tells what 'mix' takes; set its argtypes: \(c_void_p, POINTER"
    ):
        accelrt.host_kernel(library.mix, signature)
    kinds = [ctypes.c_int8, ctypes.c_uint16, ctypes.c_float, ctypes.c_double, ctypes.c_bool, ctypes.c_void_p]
    library.mix.argtypes = [ctypes.c_void_p, *kinds, ctypes.c_void_p]
    with pytest.raises(TypeError, match=r"the function takes 8 arguments .* and its signature has 1"):
        accelrt.host_kernel(library.mix, "double*")
    out, given = accelrt.zeros(1, "f8"), accelrt.full(1, 1000, "i8")
    kernel = accelrt.host_kernel(library.mix, signature)
    kernel[1, 32](out, -5, 7, 0.5, 0.25, True, 20 + 30j, given)
    assert out.numpy().tolist() == [1053.75]
    library.pair.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    other, to = accelrt.host_kernel(library.pair, "int64_t*, const int64_t*"), accelrt.zeros(1, "i8")
    other[1, 1](to, given)
    kernel[2, 1](out, 1, 1, 0, 0, False, 0, given)
    assert (to.numpy().tolist(), out.numpy().tolist()) == ([1001], [3057.75])
    library.pair.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    with pytest.raises(TypeError, match="parameter 1 of the signature is passed by value"):
        accelrt.host_kernel(library.pair, ["void*", "struct[24]"])


@pytest.mark.host
def test_a_text_is_compiled_and_its_function_launched():
    text = """
    static float twice(float x) { return 2 * x; }
    void k(const accelrt_block* where, void** arguments) {
        float* x = *(float**)arguments[0];
        x[where->index[0]] = twice(x[where->index[0]]) + rsqrtf(*(float*)arguments[1]);
    }
    """
    kernel, x = accelrt.host_kernel(text, "float*, float"), accelrt.full(3, 5, "f4")
    kernel[3, 1](x, 4.0)
    assert (kernel.name, x.numpy().tolist()) == ("k", [10.5] * 3)
    with pytest.raises(
        accelrt.CompileError, match=r"k.c, line 5, column 30: error: 'twice' was not declared"
    ):
        accelrt.host_kernel(text.replace("static float twice", "static float thrice"), "float*, float")
    other = text.replace("void k", "void other")
    with pytest.raises(ValueError, match="the text defines k, other; it should define one"):
        accelrt.host_kernel(text + other, "float*, float")


ASSERTING = """
#include <assert.h>
static void check(int32_t* at, unsigned int block) { assert(at[block] != 7); }
void k(const accelrt_block* where, void** arguments) {
    int32_t* at = *(int32_t**)arguments[0];
    check(at, where->index[0]);
    at[where->index[0]] += 1;
}
"""


def launch_asserting():
    kernel, at = accelrt.host_kernel(ASSERTING, "int32_t*"), accelrt.zeros(3, "i4")
    kernel[3, 1](at)
    assert at.numpy().tolist() == [1, 1, 1]
    at[1].fill_(7)
    tell_loss(lambda: kernel[3, 1](at))


@pytest.mark.host
@pytest.mark.own_process
def test_an_assertion_of_a_text_ends_its_kernel_and_loses_the_device():
    printed = in_child(launch_asserting)
    assert "k.c:3: block: [1,0,0] Assertion `at[block] != 7` failed." in printed
    assert "told LAUNCH_FAILED" in printed


@pytest.mark.host
def test_an_assertion_of_a_text_can_be_left_out():
    kernel, at = accelrt.host_kernel("#define NDEBUG\n" + ASSERTING, "int32_t*"), accelrt.zeros(1, "i4")
    at.fill_(7)
    kernel[1, 1](at)
    assert at.numpy().tolist() == [8]


@pytest.mark.host
def test_texts_find_the_headers_of_the_host_device():
    text = '#include "accelrt_blocks.hpp"\n#include <assert.h>\nint f(int x) { assert(x); return x; }\n'
    assert len(bytes(host_compiler.compile_cpp(text, "f", {}))) > 1000
    compiler = host_compiler.find_compiler()
    assert compiler is host_compiler.find_compiler()
    assert host_compiler.header_digest() in compiler.stamp  # a header that changes has texts compiled anew


@pytest.mark.host
def test_variables_of_a_module_on_the_host_are_found():
    source = """
    __constant__ float factors[3] = {1, 2, 3};
    __device__ int count;
    extern "C" __global__ void k(float* at) { at[threadIdx.x] *= factors[threadIdx.x]; atomicAdd(&count, 1); }
    """
    with accelrt.compile(source, name_expressions=["&count"]) as module:
        address, size = module.global_address("factors")
        assert size == 12
        (ctypes.c_float * 3).from_address(address)[:] = [4, 5, 6]
        x = accelrt.full(3, 2, "f4")
        module.function("k")[1, 3](x)
        assert x.numpy().tolist() == [8, 10, 12]
        address, size = module.global_address("&count")
        assert (ctypes.c_int.from_address(address).value, size) == (3, 4)
        for missing in ("k", "nothing"):
            with pytest.raises(accelrt.CudaError, match="module_global"):
                module.global_address(missing)


@pytest.mark.host
def test_variables_of_a_module_are_memory_of_the_device():
    source = """
    __device__ int counts[4];
    extern "C" __global__ void add() { counts[threadIdx.x] += threadIdx.x; }
    """
    module = accelrt.compile(source, device=1)
    address, size = module.global_address("counts")
    variable = accelrt.memory.buffer_at(address, size, owner=module)
    assert variable.device_index == 1
    info = accelrt.memory.address_info(address)
    assert (info.kind, info.device) == ("device", 1)
    variable.fill(5, width=4)
    module.function("add")[1, 4]()
    assert accelrt.Array(variable, (4,), "int32").numpy().tolist() == [5, 6, 7, 8]
    accelrt.copy(variable, np.arange(4, dtype=np.int32), stream=accelrt.default_stream(1))
    module.function("add")[1, 4]()
    assert accelrt.Array(variable, (4,), "int32").numpy().tolist() == [0, 2, 4, 6]
    module.unload()
    del variable, module
    settle()
    accelrt.Module(bytes(accelrt.compile_image(source)), 1).unload()  # closes what no one uses any more
    with pytest.raises(ValueError, match="the driver knows no memory there"):
        accelrt.memory.buffer_at(address, size)
