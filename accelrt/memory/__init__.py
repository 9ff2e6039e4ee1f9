"""The caching allocator: accelrt.memory.memory_stats() and the rest of torch.cuda.memory's names.

The compiled rooms below this package know no streams and no Python; the functions stand above it, in
accelrt.caching, and are found here when they are asked for.
"""

import importlib

__all__ = [
    "audit",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "record_stream",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("accelrt.caching"), name)
