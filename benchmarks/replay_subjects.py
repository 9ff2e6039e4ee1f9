"""The allocators that replay a trace, each behind the same three words: alloc, free and reserved."""

from collections.abc import Callable
from dataclasses import dataclass, field

import peers  # noqa: F401 - its import lets an accelrt that is not installed be found

# Memory of the host device that nobody touches costs nothing, so it may have as much as a trace asks for.
ROOMY = {"ACCELRT_HOST_MEMORY": "64GiB"}
EXPANDABLE = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True")


@dataclass
class Allocator:
    """One allocator, empty, with the streams of a trace."""

    alloc: Callable  # alloc(size, stream=stream) answers what free takes
    free: Callable[[object], object]
    reserved: Callable[[], int]  # the most bytes that it held from the device since it was opened
    streams: list
    settle: Callable[[], object]


def drop(token: object) -> None:
    """The free of allocators whose memory goes with an object: the argument was the last reference."""


def open_accelrt(streams: int) -> Allocator:
    import accelrt

    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.reset_peak_memory_stats()
    return Allocator(
        accelrt.caching_allocator_alloc,
        accelrt.caching_allocator_delete,
        accelrt.max_memory_reserved,
        [accelrt.default_stream(), *(accelrt.Stream() for _ in range(streams - 1))],
        accelrt.synchronize,
    )


def open_torch(streams: int) -> Allocator:
    from torch import cuda

    cuda.init()
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    return Allocator(
        cuda.caching_allocator_alloc,
        cuda.caching_allocator_delete,
        cuda.max_memory_reserved,
        [cuda.default_stream(), *(cuda.Stream() for _ in range(streams - 1))],
        cuda.synchronize,
    )


def open_cupy(streams: int) -> Allocator:
    from cupy import cuda

    pool = cuda.MemoryPool()  # without a limit on it, total_bytes only grows, so its end is its peak
    malloc, current = pool.malloc, cuda.Stream.null
    current.use()

    def alloc(size: int, stream: cuda.Stream) -> cuda.MemoryPointer:
        nonlocal current
        if stream is not current:
            stream.use()
            current = stream
        return malloc(size)

    made = [cuda.Stream.null, *(cuda.Stream(non_blocking=True) for _ in range(streams - 1))]
    return Allocator(alloc, drop, pool.total_bytes, made, cuda.runtime.deviceSynchronize)


def open_rmm(memory: object, reserved: Callable[[], int], streams: int) -> Allocator:
    from rmm import DeviceBuffer
    from rmm.pylibrmm.stream import DEFAULT_STREAM, Stream

    def alloc(size: int, stream: Stream) -> DeviceBuffer:
        return DeviceBuffer(size=size, stream=stream, mr=memory)

    made = [DEFAULT_STREAM, *(Stream() for _ in range(streams - 1))]
    return Allocator(alloc, drop, reserved, made, DEFAULT_STREAM.synchronize)


def open_rmm_pool(streams: int) -> Allocator:
    from rmm import mr

    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), initial_pool_size=2 << 20)
    return open_rmm(pool, pool.pool_size, streams)


def open_rmm_async(streams: int) -> Allocator:
    from rmm import mr

    # The driver's pool gives nothing back here, so what the device lost is what the pool holds at most.
    before = mr.available_device_memory()[0]
    return open_rmm(mr.CudaAsyncMemoryResource(), lambda: before - mr.available_device_memory()[0], streams)


@dataclass(frozen=True)
class Subject:
    """One column of the table."""

    module: str  # to import
    open: Callable[[int], Allocator]  # takes the number of streams
    environment: dict[str, str] = field(default_factory=dict)  # that its process needs


SUBJECTS = {
    "accelrt": Subject("accelrt", open_accelrt, ROOMY),
    "torch": Subject("torch", open_torch),
    "torch expandable": Subject("torch", open_torch, EXPANDABLE),
    "CuPy": Subject("cupy", open_cupy),
    "RMM async": Subject("rmm", open_rmm_async),
    "RMM pool": Subject("rmm", open_rmm_pool),
}
