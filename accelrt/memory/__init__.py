"""The caching allocator: accelrt.memory.memory_stats() and the rest of torch.cuda.memory's names.

The compiled rooms below this package know no streams and no Python; the functions stand above it, in
accelrt.caching and, for the choice of a backend, in accelrt.memory.backend; they are found here when they are
asked for.
"""

import importlib

__all__ = [
    "CUDAPluggableAllocator",
    "audit",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "change_current_allocator",
    "empty_cache",
    "get_allocator_backend",
    "library_path",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "record_stream",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "select_backend",
    "set_per_process_memory_fraction",
]


BACKEND = {
    "CUDAPluggableAllocator",
    "change_current_allocator",
    "get_allocator_backend",
    "library_path",
    "select_backend",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "accelrt.memory.backend" if name in BACKEND else "accelrt.caching"
    return getattr(importlib.import_module(room), name)
