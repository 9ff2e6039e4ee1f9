from accelrt.buffers.buffer import (
    RegisteredMemory as RegisteredMemory,
)
from accelrt.buffers.buffer import (
    is_pinned as is_pinned,
)
from accelrt.buffers.buffer import (
    pinned_empty as pinned_empty,
)
from accelrt.buffers.buffer import (
    record_host_stream as record_host_stream,
)
from accelrt.buffers.buffer import (
    register_host as register_host,
)
from accelrt.memory.backends.backend import (
    CUDAPluggableAllocator as CUDAPluggableAllocator,
)
from accelrt.memory.backends.backend import (
    change_current_allocator as change_current_allocator,
)
from accelrt.memory.backends.backend import (
    get_allocator_backend as get_allocator_backend,
)
from accelrt.memory.backends.backend import (
    library_path as library_path,
)
from accelrt.memory.backends.backend import (
    select_backend as select_backend,
)
from accelrt.memory.caching import (
    caching_allocator_alloc as caching_allocator_alloc,
)
from accelrt.memory.caching import (
    caching_allocator_delete as caching_allocator_delete,
)
from accelrt.memory.caching import (
    empty_cache as empty_cache,
)
from accelrt.memory.caching import (
    free_after as free_after,
)
from accelrt.memory.caching import (
    record_stream as record_stream,
)
from accelrt.memory.caching import (
    set_per_process_memory_fraction as set_per_process_memory_fraction,
)
from accelrt.memory.checkpoints import (
    PoolCheckpoint as PoolCheckpoint,
)
from accelrt.memory.checkpoints import (
    check_pool_live_allocations as check_pool_live_allocations,
)
from accelrt.memory.checkpoints import (
    get_checkpoint_state as get_checkpoint_state,
)
from accelrt.memory.checkpoints import (
    set_checkpoint_state as set_checkpoint_state,
)
from accelrt.memory.free_callbacks import (
    FreeMemoryCallback as FreeMemoryCallback,
)
from accelrt.memory.free_callbacks import (
    register_free_memory_callback as register_free_memory_callback,
)
from accelrt.memory.host_cache import (
    caching_host_allocator_alloc as caching_host_allocator_alloc,
)
from accelrt.memory.host_cache import (
    caching_host_allocator_delete as caching_host_allocator_delete,
)
from accelrt.memory.host_cache import (
    host_audit as host_audit,
)
from accelrt.memory.host_cache import (
    host_empty_cache as host_empty_cache,
)
from accelrt.memory.host_cache import (
    host_memory_stats as host_memory_stats,
)
from accelrt.memory.host_cache import (
    reset_accumulated_host_memory_stats as reset_accumulated_host_memory_stats,
)
from accelrt.memory.host_cache import (
    reset_peak_host_memory_stats as reset_peak_host_memory_stats,
)
from accelrt.memory.mempool import (
    MemPool as MemPool,
)
from accelrt.memory.mempool import (
    use_mem_pool as use_mem_pool,
)
from accelrt.memory.settings.apply import (
    allocator_settings as allocator_settings,
)
from accelrt.memory.settings.apply import (
    configure_pinned as configure_pinned,
)
from accelrt.memory.settings.apply import (
    pinned_settings as pinned_settings,
)
from accelrt.memory.settings.apply import (
    set_allocator_settings as set_allocator_settings,
)
from accelrt.memory.statistics import (
    audit as audit,
)
from accelrt.memory.statistics import (
    max_memory_allocated as max_memory_allocated,
)
from accelrt.memory.statistics import (
    max_memory_reserved as max_memory_reserved,
)
from accelrt.memory.statistics import (
    memory_allocated as memory_allocated,
)
from accelrt.memory.statistics import (
    memory_reserved as memory_reserved,
)
from accelrt.memory.statistics import (
    memory_snapshot as memory_snapshot,
)
from accelrt.memory.statistics import (
    memory_stat as memory_stat,
)
from accelrt.memory.statistics import (
    memory_stats as memory_stats,
)
from accelrt.memory.statistics import (
    reset_accumulated_memory_stats as reset_accumulated_memory_stats,
)
from accelrt.memory.statistics import (
    reset_peak_memory_stats as reset_peak_memory_stats,
)

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
