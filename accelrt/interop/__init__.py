"""accelrt's memory and streams under other libraries, and their memory under accelrt.  A module is imported
when it is asked for, its library when one of its functions is called.

cuda_core    cuda.core: a MemoryResource of accelrt's, and memory from a resource of cuda.core's
cupy         CuPy: device and page-locked memory, captures that CuPy begins
cupy_memory  the memory as CuPy holds it; captures that another library begins, and the pool that each has
numba        numba-cuda: its memory manager
peers        finds the libraries, and refuses what only a GPU's memory can be used for
rmm          RMM: a resource of accelrt's, and memory from a resource of RMM's
torch        torch: accelrt as its allocator
torch_allocator.cpp  the allocator objects, of torch's own classes, with torch_former.h, torch_history.h,
             torch_pools.h, torch_pinned.h, torch_sharing.h, torch_fork.h and torch_probe.h, its known answers
torch_mempool  torch.cuda.MemPool with sleep() and wake()
torch_sources  what that is made of, and a compiler's arguments
torch_sleep  its sleep() and wake(): which pools sleep, and what a device still holds then
torch_memory_saver, vllm  the interfaces of torch_memory_saver, and of vLLM's CuMemAllocator, over accelrt
torch_regions  the pools by tag that both put to sleep
torch_build  compiles it for the torch that is installed; cuda_stub/ stands for NVIDIA's headers
torch_prebuilt  finds one that .ci/torch_objects made for a release of torch, and checks it
torch_settings  torch's settings of its allocator, and limits, put into force on accelrt's
torch_sharing  CUDA tensors between processes: torch's functions around handles, with torch_sharing.h
"""

from typing import Any

from accelrt.runtime import init

_MODULES = ("cuda_core", "cupy", "numba", "rmm", "torch", "torch_memory_saver", "vllm")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return init.later(f"accelrt.interop.{name}")
    raise AttributeError(f"module 'accelrt.interop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
