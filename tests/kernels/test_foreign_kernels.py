"""Kernels of functions that another library loaded: Kernel.from_handle."""

import gc
import weakref

import numpy as np
import pytest
from child import in_own_process, wrap_host
from kernel_sources import image_for, numbers, written

import accelrt
from accelrt.driver.registry import Rows

COUNT = 256


class Code:
    """What another library's code belongs to: a module of the driver's that accelrt has no object of."""

    def __init__(self, image):
        self.rows = Rows()
        accelrt.synchronize()
        code, self.module = self.rows.module_load(0, image)
        assert code == 0
        code, self.function = self.rows.module_function(self.module, b"number")
        assert code == 0

    def __int__(self):
        return self.function

    def unload(self):
        accelrt.synchronize()
        assert self.rows.module_unload(0, self.module) == 0


@pytest.fixture
def code(image):
    made = Code(image)
    yield made
    gc.collect()
    made.unload()


@pytest.mark.parametrize("as_int", [True, False])
def test_a_function_of_another_library_is_launched(code, as_int):
    kernel = accelrt.Kernel.from_handle(int(code) if as_int else code, owner=code)
    assert kernel.handle == int(code)
    assert kernel.name in ("number", f"function at {int(code):#x}")
    assert (written(kernel) == numbers(3)).all()
    told = accelrt.Kernel.from_handle(code, "unsigned* out, unsigned value", name="mine", device=0)
    assert repr(told) == "<accelrt.Kernel 'mine' on device 0>"
    assert (written(told, 5) == numbers(5)).all()
    assert kernel.attributes.max_threads_per_block >= 64
    del kernel, told


def test_what_the_code_belongs_to_lives_as_long_as_a_kernel_a_launch_or_a_graph(code):
    owner = type("Owner", (), {})()
    gone = weakref.ref(owner)
    kernel = accelrt.Kernel.from_handle(int(code), owner=owner)
    graph, buffer = accelrt.CUDAGraph(), accelrt.Buffer(4 * COUNT)
    with accelrt.graph(graph):
        kernel[4, 64](buffer, 7)
    del kernel, owner
    gc.collect()
    assert gone() is not None
    graph.replay()
    out = np.zeros(COUNT, np.uint32)
    accelrt.copy(out, buffer)
    assert (out == numbers(7)).all()
    del graph
    accelrt.synchronize()
    accelrt.Buffer(64).fill(0)
    gc.collect()
    accelrt.empty_cache()
    assert gone() is None


def test_the_handle_of_a_kernel_of_accelrts_keeps_its_module_loaded(image):
    module = accelrt.Module(image)
    handle = module.function("number").handle
    kernel = accelrt.Kernel.from_handle(handle, device=0)
    module.unload()
    del module
    gc.collect()
    assert kernel.attributes.max_threads_per_block >= 64
    assert (written(kernel) == numbers(3)).all()


@pytest.mark.parametrize(
    ("handle", "error", "text"),
    [
        ("7", TypeError, "handle is '7' of type str; pass an int"),
        (1.5, TypeError, "handle is 1.5 of type float"),
        (True, TypeError, "handle is True of type bool"),
        (None, TypeError, "handle is None of type NoneType"),
        (0, ValueError, "handle is 0; the handle of a function is an int from 1"),
        (-1, ValueError, "handle is -1"),
        (1 << 64, ValueError, "an int from 1 to"),
    ],
)
def test_what_is_no_handle_is_refused(handle, error, text):
    with pytest.raises(error, match=text):
        accelrt.Kernel.from_handle(handle)


@pytest.mark.host
def test_a_handle_that_the_driver_does_not_know_is_refused(number):
    with pytest.raises(ValueError, match=r"0x3039, which is no function of device 0 .*INVALID_HANDLE"):
        accelrt.Kernel.from_handle(12345)
    stream = accelrt.Stream()
    with pytest.raises(ValueError, match="no function of device 0"):
        accelrt.Kernel.from_handle(stream.handle)
    # Not from its closure: a class of 3.13t's lives on with what it holds, once there was a second thread.
    kernel = type("CUkernel", (), {"__int__": lambda self: self.handle})()
    kernel.handle = number.handle
    with pytest.raises(accelrt.NotSupportedError, match="a CUkernel is a GPU's"):
        accelrt.Kernel.from_handle(kernel)


@pytest.mark.host
@in_own_process
def test_a_driver_that_does_not_answer_is_no_driver_that_knows_no_such_function():
    faults = wrap_host()
    kernel = accelrt.Module(image_for("host")).function("number")
    faults.arm(1, 2, "once", ["function_attribute"])
    with pytest.raises(accelrt.OutOfMemoryError, match="function_attribute"):
        accelrt.Kernel.from_handle(kernel.handle)
    assert accelrt.Kernel.from_handle(kernel.handle).handle == kernel.handle


def test_a_signature_that_does_not_fit_the_function_is_refused(code):
    if accelrt.Kernel.from_handle(code).parameters is None:
        pytest.skip("the driver tells nothing of parameters")
    with pytest.raises(ValueError, match="has 1 parameters, kernel 'number' has 2"):
        accelrt.Kernel.from_handle(code, "unsigned* out", name="number")
    with pytest.raises(accelrt.InvalidDeviceError):
        accelrt.Kernel.from_handle(code, device=64)


@pytest.mark.gpu
def test_a_kernel_of_a_library_is_the_devices_function(image):
    driver = pytest.importorskip("cuda.bindings.driver")
    accelrt.synchronize()
    status, library = driver.cuLibraryLoadData(image, [], [], 0, [], [], 0)
    assert int(status) == 0
    status, kernel = driver.cuLibraryGetKernel(library, b"number")
    assert int(status) == 0
    try:
        assert (written(accelrt.Kernel.from_handle(kernel)) == numbers(3)).all()
        accelrt.synchronize()
    finally:
        gc.collect()
        driver.cuLibraryUnload(library)
