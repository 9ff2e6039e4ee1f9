"""The caching allocator: accelrt.memory.memory_stats() and the rest of torch.cuda.memory's names.

caching         raw pointers: allocate, free, record other streams, empty, limit
statistics      memory_stats, peaks, snapshot, audit
mempool         MemPool and use_mem_pool
checkpoints     the state of a pool, kept and restored
free_callbacks  functions that are asked for memory before a request is refused
host_cache      the cache of page-locked memory
allocator/      the caching allocator, in nogil code
backends/       other allocators behind the same functions
host/           page-locked memory, in nogil code
settings/       the settings string

A public name is found in its module when it is asked for.  DESIGN.md says how all of it works.
"""

import importlib

__all__ = [
    "CUDAPluggableAllocator",
    "FreeMemoryCallback",
    "MemPool",
    "PoolCheckpoint",
    "RegisteredMemory",
    "allocator_settings",
    "audit",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_host_allocator_alloc",
    "caching_host_allocator_delete",
    "change_current_allocator",
    "check_pool_live_allocations",
    "configure_pinned",
    "empty_cache",
    "free_after",
    "get_allocator_backend",
    "get_checkpoint_state",
    "host_audit",
    "host_empty_cache",
    "host_memory_stats",
    "is_pinned",
    "library_path",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stat",
    "memory_stats",
    "pinned_empty",
    "pinned_settings",
    "record_host_stream",
    "record_stream",
    "register_free_memory_callback",
    "register_host",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "select_backend",
    "set_allocator_settings",
    "set_checkpoint_state",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]

# Where the functions stand that are not in accelrt.memory.caching.
_ROOMS = {
    "accelrt.memory.checkpoints": (
        "PoolCheckpoint",
        "check_pool_live_allocations",
        "get_checkpoint_state",
        "set_checkpoint_state",
    ),
    "accelrt.memory.free_callbacks": ("FreeMemoryCallback", "register_free_memory_callback"),
    "accelrt.memory.settings.apply": (
        "allocator_settings",
        "configure_pinned",
        "pinned_settings",
        "set_allocator_settings",
    ),
    "accelrt.memory.backends.backend": (
        "CUDAPluggableAllocator",
        "change_current_allocator",
        "get_allocator_backend",
        "library_path",
        "select_backend",
    ),
    "accelrt.memory.mempool": ("MemPool", "use_mem_pool"),
    "accelrt.memory.host_cache": (
        "caching_host_allocator_alloc",
        "caching_host_allocator_delete",
        "host_audit",
        "host_empty_cache",
        "host_memory_stats",
        "reset_accumulated_host_memory_stats",
        "reset_peak_host_memory_stats",
    ),
    "accelrt.buffers.buffer": (
        "RegisteredMemory",
        "is_pinned",
        "pinned_empty",
        "record_host_stream",
        "register_host",
    ),
    "accelrt.memory.statistics": (
        "audit",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "memory_snapshot",
        "memory_stat",
        "memory_stats",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    ),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = next((room for room, names in _ROOMS.items() if name in names), "accelrt.memory.caching")
    return getattr(importlib.import_module(room), name)
