"""Modules: what they are loaded from, how long they live, and functions of the host as kernels."""

import ctypes
import gc
import os
import threading
import weakref

import numpy as np
import pytest
from compiled import compile_source
from kernel_sources import PTX, SOURCE, numbers

import accelrt

COUNT = 256
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"


def written(kernel, value=3, **given):
    """What the kernel `number` writes."""
    buffer, out = accelrt.Buffer(4 * COUNT, **given), np.zeros(COUNT, np.uint32)
    kernel[4, 64](buffer, value)
    accelrt.copy(out, buffer)
    return out


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


def test_an_image_that_does_not_load_tells_what_the_driver_says_of_it(tmp_path):
    if ON_HOST:
        source = "extern int nowhere(void); int number(void) { return nowhere(); }"
        given, said = compile_source(source, tmp_path, "missing").read_bytes(), "undefined symbol: nowhere"
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
    child = os.fork()
    if child == 0:
        answers = []
        for call in (lambda: number[1, 1](buffer, 1), lambda: module.function("number")):
            try:
                call()
            except accelrt.ForkedError:
                answers.append(True)
        os._exit(0 if answers == [True, True] else 1)
    assert os.waitpid(child, 0)[1] == 0


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
    for function in (library.number, address, np.uint64(address)):
        kernel = accelrt.host_kernel(function, "uint32_t*, uint32_t", device="host:0")
        assert (written(kernel) == numbers(3)).all()
    assert accelrt.host_kernel(library.number, "int*, int").name == "number"


@pytest.mark.host
def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="function is 'text'"):
        accelrt.host_kernel("text", "int")
    with pytest.raises(ValueError, match="function is a NULL pointer"):
        accelrt.host_kernel(0, "int")
    with pytest.raises(TypeError, match="signature is None"):
        accelrt.host_kernel(4096, None)
    with pytest.raises(accelrt.CudaError, match="module_register"):
        accelrt.host_kernel(4096, ["struct[4096]"] * 2)
