"""Memory of one device that the kernels of another use."""

import numpy as np
import pytest
from child import in_child, wrap_host

import accelrt

pytestmark = pytest.mark.own_process
MIB = 1 << 20
UNKNOWN = 999
TWICE = """
extern "C" __global__ void twice(const int* source, int* target, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) target[at] = 2 * source[at];
}
"""


def opened(faults, action):
    """How many ranges the driver opened meanwhile, and what the action gave."""
    before = faults.call_counts()["memory_access"]
    answer = action()
    return faults.call_counts()["memory_access"] - before, answer


def on(device, size):
    return accelrt.Buffer(size, device=device)


def count_grants():
    faults = wrap_host()
    alone, first = opened(faults, lambda: on(0, 2 * MIB))
    assert opened(faults, accelrt.memory.enable_peer_access)[0] == 0
    calls, second = opened(faults, lambda: on(1, 2 * MIB))
    assert calls == 1 + 2 * alone  # the first one's for device 1, and the second one's for both
    before = accelrt.memory_stats(0)["virtual_memory_calls"]
    calls, third = opened(faults, lambda: on(0, 64 * MIB))
    assert calls >= 2
    assert calls % 2 == 0
    made = accelrt.memory_stats(0)["virtual_memory_calls"] - before
    assert made >= calls + 1
    assert opened(faults, accelrt.memory.enable_peer_access)[0] == 0
    del first, second, third


@pytest.mark.host
def test_each_run_of_pages_is_opened_for_every_device_that_has_memory():
    in_child(count_grants, ACCELRT_HOST_DEVICES="2")


def count_with_sleep():
    faults = wrap_host()
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffer = on(0, 8 * MIB)
    other = on(1, 2 * MIB)
    assert opened(faults, accelrt.memory.enable_peer_access)[0] >= 2
    pool.sleep()
    calls, _ = opened(faults, pool.wake)
    assert calls >= 2
    assert calls % 2 == 0
    del buffer, other


@pytest.mark.host
def test_memory_that_woke_is_open_as_before():
    in_child(count_with_sleep, ACCELRT_HOST_DEVICES="2")


def refuse_grants():
    faults = wrap_host()
    first = on(0, 2 * MIB)
    accelrt.memory.enable_peer_access()
    faults.arm(call=1, code=UNKNOWN, mode="once", rows=["memory_access"])
    with pytest.raises(accelrt.CudaError):
        on(1, 2 * MIB)
    assert opened(faults, lambda: on(0, 64 * MIB))[0] == 1  # nobody else has memory
    second = on(1, 2 * MIB)
    assert opened(faults, lambda: on(0, 128 * MIB))[0] == 2
    accelrt.memory.audit()
    del first, second


@pytest.mark.host
def test_a_refusal_is_told_and_tried_again():
    in_child(refuse_grants, ACCELRT_HOST_DEVICES="2")


def check_kernels(enable_first):
    """A kernel of device 1 reads and writes device 0's memory, old and new, stitched and woken."""
    if enable_first:
        accelrt.memory.enable_peer_access()
    count, pool = 5 * MIB, accelrt.MemPool()
    with accelrt.device(0):
        apart = [accelrt.Buffer(2 * MIB) for _ in range(40)]
        del apart[::2]
        with accelrt.use_mem_pool(pool):
            asleep = accelrt.empty(count, "i4")
        arrays = [accelrt.empty(count, "i4"), asleep]
    with accelrt.device(1):
        there = accelrt.empty(count, "i4")
    if not enable_first:
        accelrt.memory.enable_peer_access()
    with accelrt.device(0):
        arrays.append(accelrt.empty(count, "i4"))
    pool.sleep()
    pool.wake()
    data = np.arange(count, dtype=np.int32)
    with accelrt.device(1):
        kernel = accelrt.compile(TWICE).function("twice")
        grid = (count + 255) // 256
        for array in arrays:
            accelrt.copy(array, data)
            accelrt.synchronize(0)
            kernel[grid, 256](array.ptr, there.ptr, np.int32(count))
            accelrt.synchronize(1)
            assert (there.numpy() == 2 * data).all()
            kernel[grid, 256](there.ptr, array.ptr, np.int32(count))
            accelrt.synchronize(1)
            assert (array.numpy() == 4 * data).all()


@pytest.mark.gpu
@pytest.mark.skipif("accelrt.device_count() < 2 or not accelrt.can_device_access_peer(0, 1)")
@pytest.mark.parametrize("enable_first", [False, True])
def test_kernels_use_another_devices_memory(enable_first):
    in_child(check_kernels, enable_first, ACCELRT_DRIVER="cuda")


def check_torch():
    import torch

    accelrt.interop.torch.install()
    here = torch.arange(1 << 20, device="cuda:0").reshape(1024, 1024)
    there = torch.empty(1024, 1024, device="cuda:1", dtype=here.dtype)
    there.copy_(here.t())  # no plain copy: a kernel of one device writes or reads the other's memory
    assert torch.equal(there.cpu(), here.cpu().t())
    back = torch.empty_like(here)
    back.t().copy_(there)
    assert torch.equal(back.cpu(), here.cpu())


def check_cupy():
    import cupy

    accelrt.interop.cupy.install()
    with cupy.cuda.Device(0):
        source = cupy.arange(1 << 20, dtype=cupy.int32)
        cupy.cuda.runtime.deviceSynchronize()
    with cupy.cuda.Device(1):
        target = cupy.empty(1 << 20, cupy.int32)
        cupy.copyto(target, source[::-1])
        twice = source + source
        assert (twice.get() == 2 * np.arange(1 << 20)).all()
    assert (target.get() == np.arange(1 << 20)[::-1]).all()


@pytest.mark.gpu
@pytest.mark.skipif("accelrt.device_count() < 2 or not accelrt.can_device_access_peer(0, 1)")
@pytest.mark.parametrize("check", [check_torch, check_cupy])
def test_other_libraries_use_the_memory_of_two_devices(check):
    pytest.importorskip(check.__name__.removeprefix("check_"))
    in_child(check, ACCELRT_DRIVER="cuda", ACCELRT_DEBUG="0")
