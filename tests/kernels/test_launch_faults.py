"""Drivers that refuse a call, and kernels that fail."""

import ctypes

import numpy as np
import pytest
from child import in_child, in_own_process, wrap_host
from kernel_sources import PTX, image_for

import accelrt
from accelrt.driver.host import driver as host
from accelrt.testing import failing_calls, settle

pytestmark = pytest.mark.own_process


def step(image):
    """Loads, launches, captures, replays, changes and unloads."""
    stream, buffer = accelrt.Stream(), accelrt.Buffer(1024)
    with accelrt.Module(image) as module:
        kernel = module.function("number", "uint32_t* at, uint32_t value")
        kernel[4, 64, stream](buffer, 1)
        kernel.launch(4, 64, (buffer, 2), stream=stream, shared=60 << 10, cooperative=True)
        kernel.occupancy(64)
        kernel.max_potential_block_size()
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            kernel[4, 64](buffer, 3)
        with accelrt.stream(stream):
            graph.replay()
        graph.reset()
    out = np.zeros(256, np.uint32)
    accelrt.copy(out, buffer, stream=stream)
    return out[0]


def left():
    settle()
    counts = host.live_objects()
    return counts["modules"], counts["graphs"], counts["execs"], accelrt.memory_allocated()


@pytest.mark.host
@in_own_process
def test_whatever_call_fails_the_error_is_told_and_nothing_is_left():
    _faults, image, codes = wrap_host(), image_for("host"), set()
    assert step(image) == 3
    assert left() == (0, 0, 0, 0)
    for call, error in failing_calls(lambda: step(image), code=719):
        codes |= {error.code} if error else set()
        assert left() == (0, 0, 0, 0), call
    assert codes == {719}
    assert call > 20


@pytest.mark.host
@in_own_process
def test_an_error_that_comes_late_names_the_kernels():
    faults = wrap_host()
    kernel = accelrt.Module(image_for("host")).function("number", "uint32_t* at, uint32_t value")
    buffer = accelrt.Buffer(1024)
    kernel[4, 64](buffer, 1)
    faults.arm(1, 700, "late", ["kernel_launch"])
    kernel[4, 64](buffer, 1)
    with pytest.raises(
        accelrt.CudaError, match=r"ILLEGAL_ADDRESS .*; the kernels .* last, .*: 'number' on d"
    ):
        accelrt.synchronize()
    faults.disarm()


SUSPECTS = (
    r"LAUNCH_FAILED \(719\).*: 'stop' on device 0, stream 0x0, "
    r"'number' on device 0, stream 0x[1-9a-f][0-9a-f]*; "
    "what was on the device is lost.* other devices go on$"
)


@pytest.mark.host
@in_own_process
def test_a_kernel_that_traps_is_named_and_the_other_device_goes_on():
    module = accelrt.Module(image_for("host"))
    number, stop = module.function("number"), module.function("stop")
    buffer, other, stream = accelrt.Buffer(1024), accelrt.Buffer(1024, device=1), accelrt.Stream()
    number[4, 64, stream](buffer, 1)
    stop[1, 1]()
    with pytest.raises(accelrt.CudaError, match=SUSPECTS):
        accelrt.synchronize()
    for call in (lambda: number[4, 64](buffer, 1), accelrt.synchronize, lambda: buffer.fill(0)):
        with pytest.raises(accelrt.CudaError, match="LAUNCH_FAILED"):
            call()
    other.fill(1, blocking=True)  # the other device goes on
    accelrt.synchronize(1)


def trap_on_a_gpu():
    module = accelrt.Module(PTX)
    number, stop = module.function("number"), module.function("stop")
    stream, buffer, pinned = accelrt.Stream(), accelrt.Buffer(1024), accelrt.PinnedBuffer(1024)
    words = np.frombuffer(pinned, np.uint32)
    number[4, 64](buffer, 1)
    accelrt.copy(pinned, buffer)
    stop[1, 1, stream]()
    with pytest.raises(accelrt.CudaError) as caught:
        stream.synchronize()
    text = str(caught.value)
    assert caught.value.name in ("LAUNCH_FAILED", "ILLEGAL_INSTRUCTION"), text
    assert f"'stop' on device 0, stream {stream.handle:#x}, 'number' on device 0, stream 0x0" in text
    assert "the context is lost" in text
    for call in (
        lambda: number[4, 64](buffer, 1),
        accelrt.synchronize,
        lambda: buffer.fill(0, blocking=True),
    ):
        with pytest.raises(accelrt.CudaError, match=caught.value.name):
            call()
    assert (words == np.arange(1, 257)).all()  # host memory can still be read
    assert ctypes.string_at(pinned.ptr, 4) == b"\1\0\0\0"
    del words
    pinned.free()
    print("ended well")


@pytest.mark.gpu
def test_a_gpus_kernel_that_traps_is_named_and_the_process_ends_well():
    assert in_child(trap_on_a_gpu, ACCELRT_DRIVER="cuda").endswith("ended well\n")
