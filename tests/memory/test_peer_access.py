"""Memory of one device that the kernels of another use."""

import gc
import threading

import numpy as np
import pytest
from beside import on_threads
from child import in_child, in_own_process, wrap_host

import accelrt
from accelrt.driver.host.driver import opened_to
from accelrt.driver.registry import Rows

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

    def count():
        return faults.call_counts()["memory_access"]

    before = count()
    answer = action()
    return count() - before, answer


def on(device, size):
    return accelrt.Buffer(size, device=device)


def on_stream(device, size):
    """The same on a stream of its own, which others' captures let the allocator wait for."""
    return accelrt.Buffer(size, stream=accelrt.Stream(device))


@pytest.mark.host
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_each_run_of_pages_is_opened_for_every_device_that_has_memory():
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
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_memory_that_woke_is_open_as_before():
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
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_a_refusal_is_told_and_tried_again():
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


def capture_copy(src, dst):
    """A copy from one device to another in a graph, which then goes."""
    stream, graph = accelrt.Stream(0), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream, capture_error_mode="relaxed"):
        accelrt.copy(dst, src, stream=stream, blocking=False)
    graph.reset()


def devices_of(*buffers):
    return [opened_to(buffer.ptr) for buffer in buffers]


def reserved():
    gc.collect()
    accelrt.empty_cache()
    return [accelrt.memory_reserved(device) for device in (0, 1)]


@pytest.mark.host
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_a_pool_that_a_copy_opened_closes_with_its_last_page():
    faults = wrap_host()
    for _ in range(3):
        src, dst = on(0, 4 * MIB), on(1, 4 * MIB)
        assert devices_of(src, dst) == [[0], [1]]
        capture_copy(src, dst)
        assert devices_of(src, dst) == [[0, 1], [0, 1]]
        kept = on(0, 4 * MIB)
        del src
        accelrt.empty_cache()
        more = on(0, 64 * MIB)
        assert devices_of(kept, more) == [[0, 1], [0, 1]]  # pages were left, and the pool is open as before
        before = faults.call_counts()["memory_access"]
        capture_copy(kept, dst)
        assert faults.call_counts()["memory_access"] == before
        del kept, more, dst
        assert reserved() == [0, 0]


@pytest.mark.host
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_a_pool_that_was_opened_for_good_stays_open_without_pages():
    accelrt.memory.enable_peer_access()
    del_first = on(0, MIB), on(1, MIB)
    assert devices_of(*del_first) == [[0, 1], [0, 1]]
    del del_first
    assert reserved() == [0, 0]
    first, second = on(1, MIB), on(0, MIB)
    assert devices_of(first, second) == [[0, 1], [0, 1]]


class Foreign:
    """Memory of a device that is not of its pool, and keeps no page there."""

    def __init__(self, device, size):
        code, address = Rows().memory_alloc(device, size)
        assert code == 0
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@pytest.mark.host
@pytest.mark.parametrize(
    ("row", "number", "waits"),
    [
        ("can_access_peer", 1, False),
        ("memory_access", 1, True),  # the first of 32 pages, which are opened under their pool's lock
        ("memory_access", 33, True),  # the first of the other device's
        ("enable_peer", 1, False),
        ("enable_peer", 2, False),
    ],
)
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_the_last_page_goes_while_two_devices_are_connected(row, number, waits):
    """The last page goes, and another one comes, while a copy of memory outside the pools opens both."""
    faults = wrap_host()
    foreign = [Foreign(device, 4 * MIB) for device in (0, 1)]
    pages = [on_stream(0, 64 * MIB), on(1, 64 * MIB)]
    assert devices_of(*pages) == [[0], [1]]
    copying = threading.Thread(target=capture_copy, args=foreign)
    faults.park(row, number, limit=300)
    copying.start()
    assert faults.await_parked(20) == row
    before = accelrt.memory_stats(0)["num_device_free"]
    pages[0].free()
    releasing = threading.Thread(target=accelrt.empty_cache)
    releasing.start()
    releasing.join(0.05 if waits else None)
    if not waits:
        assert accelrt.memory_reserved(0) == 0
        pages[0] = on_stream(0, 64 * MIB)
    faults.go_on()
    copying.join()
    releasing.join()
    if waits:
        accelrt.empty_cache()
        assert accelrt.memory_reserved(0) == 0
        pages[0] = on_stream(0, 64 * MIB)
    assert accelrt.memory_stats(0)["num_device_free"] > before
    capture_copy(*pages)
    assert devices_of(*pages) == [[0, 1], [0, 1]]
    accelrt.memory.audit()


@pytest.mark.host
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_copies_beside_threads_that_release_pages_reach_both_sides():
    accelrt.init()

    def work(whose):
        device, release = whose
        for index in range(60):
            src, dst = (on_stream(each, (1 + index % 5) * 4 * MIB) for each in (device, 1 - device))
            capture_copy(src, dst)
            assert devices_of(src, dst) == [[0, 1], [0, 1]]
            src.free()
            dst.free()
            if release:
                accelrt.empty_cache()

    on_threads(work, ((0, True), (1, True), (0, False)))
    assert reserved() == [0, 0]
    accelrt.memory.audit()
    src, dst = on(0, MIB), on(1, MIB)
    assert devices_of(src, dst) == [[0], [1]]


@pytest.mark.gpu
@pytest.mark.skipif(
    "(cuda := __import__('accelrt')).device_count() < 2 or not cuda.can_device_access_peer(0, 1)"
)
@pytest.mark.parametrize("enable_first", [False, True])
@in_own_process(ACCELRT_DRIVER="cuda")
def test_kernels_use_another_devices_memory(enable_first):
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
