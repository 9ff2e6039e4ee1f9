"""Drivers that refuse a call, and kernels that fail."""

import gc

import pytest
from child import in_child

pytestmark = [pytest.mark.own_process, pytest.mark.host]


def opened():
    import tempfile

    from kernel_sources import image_for

    import accelrt
    from accelrt.driver import registry

    registry.wrap("host")
    accelrt.init(driver="faults")
    return accelrt, registry, image_for("host", tempfile.mkdtemp())


def step(accelrt, image):
    """Loads, launches, captures, replays, changes and unloads."""
    import numpy as np

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


def left(accelrt):
    from accelrt.driver.host import driver as host

    gc.collect()
    for ordinal in range(accelrt.device_count()):
        accelrt.synchronize(ordinal)
    accelrt.empty_cache()
    counts = host.live_objects()
    return counts["modules"], counts["graphs"], counts["execs"], accelrt.memory_allocated()


def sweep():
    accelrt, registry, image = opened()
    assert step(accelrt, image) == 3
    assert left(accelrt) == (0, 0, 0, 0)
    call, codes = 0, set()
    while True:
        call += 1
        registry.arm(call, 719, "once")
        try:
            step(accelrt, image)
        except accelrt.CudaError as error:
            codes.add(error.code)
        else:
            if registry.fired() < call:
                break
        finally:
            registry.disarm()
        assert left(accelrt) == (0, 0, 0, 0), call
    assert codes == {719}
    assert call > 20


def test_whatever_call_fails_the_error_is_told_and_nothing_is_left():
    in_child(sweep)


def late():
    accelrt, registry, image = opened()
    kernel = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    buffer = accelrt.Buffer(1024)
    kernel[4, 64](buffer, 1)
    registry.arm(1, 700, "late", ["kernel_launch"])
    kernel[4, 64](buffer, 1)
    with pytest.raises(accelrt.CudaError, match=r"ILLEGAL_ADDRESS .*; the kernels .* last, .*: 'number'"):
        accelrt.synchronize()
    registry.disarm()


def test_an_error_that_comes_late_names_the_kernels():
    in_child(late)


def trap():
    import tempfile

    from kernel_sources import image_for

    import accelrt

    module = accelrt.Module(image_for("host", tempfile.mkdtemp()))
    number, stop = module.function("number"), module.function("stop")
    buffer, other = accelrt.Buffer(1024), accelrt.Buffer(1024, device=1)
    number[4, 64](buffer, 1)
    stop[1, 1]()
    with pytest.raises(accelrt.CudaError, match=r"LAUNCH_FAILED \(719\).*: 'stop', 'number'$"):
        accelrt.synchronize()
    for call in (lambda: number[4, 64](buffer, 1), accelrt.synchronize, lambda: buffer.fill(0)):
        with pytest.raises(accelrt.CudaError, match="LAUNCH_FAILED"):
            call()
    other.fill(1, blocking=True)  # the other device goes on
    accelrt.synchronize(1)


def test_a_kernel_that_traps_is_named_and_the_other_device_goes_on():
    in_child(trap)
