"""The allocators of bench_random.py, each in its fastest form on the default stream, and opened empty."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import peers  # noqa: F401 - its import lets an accelrt that is not installed be found
from random_steps import MIB, objects, pointers, sized
from replay_subjects import EXPANDABLE, ROOMY


@dataclass
class Allocator:
    """One allocator."""

    play: Callable  # the loop of random_steps.py that suits it
    alloc: Callable[[int], object]
    free: Callable | None
    reserved: Callable[[], int]  # the most bytes that it held from the device since it was opened
    settle: Callable[[], object]


def open_accelrt() -> Allocator:
    import accelrt

    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.reset_peak_memory_stats()
    alloc, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    return Allocator(pointers, alloc, free, accelrt.max_memory_reserved, accelrt.synchronize)


def open_torch() -> Allocator:
    from torch import cuda

    cuda.init()
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    alloc = partial(cuda.caching_allocator_alloc, device=0, stream=0)
    return Allocator(
        pointers, alloc, cuda.caching_allocator_delete, cuda.max_memory_reserved, cuda.synchronize
    )


def open_cupy() -> Allocator:
    from cupy import cuda

    pool = cuda.MemoryPool()  # what it frees to make room is not seen: its end stands for its peak
    return Allocator(objects, pool.malloc, None, pool.total_bytes, cuda.runtime.deviceSynchronize)


def open_rmm(make: Callable) -> Allocator:
    from rmm import mr
    from rmm.pylibrmm.stream import DEFAULT_STREAM

    # None of the three gives anything back as it is used here, so what the device lost is its peak.
    before = mr.available_device_memory()[0]
    memory = make(mr)

    def reserved() -> int:
        return before - mr.available_device_memory()[0]

    return Allocator(sized, memory.allocate, memory.deallocate, reserved, DEFAULT_STREAM.synchronize)


def rmm_pool(mr: object) -> object:
    return mr.PoolMemoryResource(mr.CudaMemoryResource(), initial_pool_size=2 * MIB)


def rmm_arena(mr: object) -> object:
    return mr.ArenaMemoryResource(mr.CudaMemoryResource())  # takes half of the device at once


def rmm_async(mr: object) -> object:
    return mr.CudaAsyncMemoryResource()


def open_bindings() -> Allocator:
    from cuda.bindings import driver
    from peers.with_bindings import Bindings, checked

    device = Bindings(quick=True).device
    pool = checked(driver.cuDeviceGetDefaultMemPool(device))
    kinds = driver.CUmemPool_attribute
    keep, most = kinds.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
    checked(driver.cuCtxSynchronize())
    checked(driver.cuMemPoolTrimTo(pool, 0))
    checked(driver.cuMemPoolSetAttribute(pool, keep, driver.cuuint64_t(2**64 - 1)))
    checked(driver.cuMemPoolSetAttribute(pool, most, driver.cuuint64_t(0)))
    give, take, stream = driver.cuMemAllocAsync, driver.cuMemFreeAsync, driver.CUstream(0)
    fine = driver.CUresult.CUDA_SUCCESS

    def alloc(size: int) -> object:
        status, address = give(size, stream)
        if status != fine:
            raise MemoryError(f"cuMemAllocAsync of {size} bytes answered {status.name}")
        return address

    return Allocator(
        pointers,
        alloc,
        lambda address: take(address, stream),
        lambda: int(checked(driver.cuMemPoolGetAttribute(pool, most))),
        driver.cuCtxSynchronize,
    )


@dataclass(frozen=True)
class Subject:
    """One column of the table."""

    module: str  # to import
    open: Callable[[], Allocator]
    environment: dict[str, str] = field(default_factory=dict)  # that its process needs


SUBJECTS = {
    "accelrt": Subject("accelrt", open_accelrt, ROOMY),
    "cuda.bindings": Subject("cuda.bindings", open_bindings),
    "torch": Subject("torch", open_torch),
    "torch expandable": Subject("torch", open_torch, EXPANDABLE),
    "CuPy": Subject("cupy", open_cupy),
    "RMM async": Subject("rmm", partial(open_rmm, rmm_async)),
    "RMM pool": Subject("rmm", partial(open_rmm, rmm_pool)),
    "RMM arena": Subject("rmm", partial(open_rmm, rmm_arena)),
}
