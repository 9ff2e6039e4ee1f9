"""The caching allocator: accelrt.memory.memory_stats() and the rest of torch.cuda.memory's names.

The compiled rooms below this package know no streams and no Python; the functions stand above it, in
accelrt.caching and the modules below, and are found there when they are asked for.
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

# Where the functions stand that are not in accelrt.caching.
_ROOMS = {
    "accelrt.checkpoints": (
        "PoolCheckpoint",
        "check_pool_live_allocations",
        "get_checkpoint_state",
        "set_checkpoint_state",
    ),
    "accelrt.free_memory": ("FreeMemoryCallback", "register_free_memory_callback"),
    "accelrt.memory.configure": ("allocator_settings", "set_allocator_settings"),
    "accelrt.memory.backend": (
        "CUDAPluggableAllocator",
        "change_current_allocator",
        "get_allocator_backend",
        "library_path",
        "select_backend",
    ),
    "accelrt.mempool": ("MemPool", "use_mem_pool"),
    "accelrt.pinned": (
        "caching_host_allocator_alloc",
        "caching_host_allocator_delete",
        "configure_pinned",
        "host_audit",
        "host_empty_cache",
        "host_memory_stats",
        "pinned_settings",
        "reset_accumulated_host_memory_stats",
        "reset_peak_host_memory_stats",
    ),
    "accelrt.registered": (
        "RegisteredMemory",
        "is_pinned",
        "pinned_empty",
        "record_host_stream",
        "register_host",
    ),
    "accelrt.statistics": (
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
    room = next((room for room, names in _ROOMS.items() if name in names), "accelrt.caching")
    return getattr(importlib.import_module(room), name)
