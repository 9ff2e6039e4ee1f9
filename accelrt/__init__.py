"""accelrt: torch.cuda's runtime without torch.

A caching memory allocator, streams, events and graph capture for Python and Cython, on NVIDIA GPUs and on
an embedded host device.  Importing it touches no driver; the first use of a device does.
"""

from accelrt import memory, sanitizer
from accelrt.buffer import Buffer, PinnedBuffer
from accelrt.caching import (
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    record_stream,
    set_per_process_memory_fraction,
)
from accelrt.copies import copy, fill
from accelrt.device import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    mem_get_info,
    set_device,
    synchronize,
)
from accelrt.errors import (
    CaptureError,
    CudaError,
    DeferredCudaCallError,
    DriverNotFoundError,
    ForkedError,
    NotSupportedError,
    OutOfMemoryError,
    RaceError,
    RaceWarning,
    SyncDebugError,
    SyncDebugWarning,
)
from accelrt.event import Event
from accelrt.external import ExternalStream
from accelrt.graph import CUDAGraph, graph_pool_handle
from accelrt.graph_nodes import GraphNode
from accelrt.graph_scope import graph, is_current_stream_capturing
from accelrt.graphed import GraphedCallable, make_graphed_callables
from accelrt.hooks import RemovableHandle
from accelrt.lazy import init, is_available, is_initialized, lazy_call
from accelrt.mempool import MemPool, use_mem_pool
from accelrt.pinned import (
    caching_host_allocator_alloc,
    caching_host_allocator_delete,
    configure_pinned,
    host_empty_cache,
    host_memory_stats,
    pinned_settings,
    reset_accumulated_host_memory_stats,
    reset_peak_host_memory_stats,
)
from accelrt.properties import DeviceProperties, get_device_capability, get_device_name, get_device_properties
from accelrt.registered import RegisteredMemory, is_pinned, pinned_empty, record_host_stream, register_host
from accelrt.statistics import (
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from accelrt.stream import (
    Stream,
    current_stream,
    default_stream,
    per_thread_stream,
    set_stream,
    stream,
)
from accelrt.uses import use
from accelrt.watch import get_sync_debug_mode, set_sync_debug_mode

__version__ = "0.1.0"

__all__ = [
    "Buffer",
    "CUDAGraph",
    "CaptureError",
    "CudaError",
    "DeferredCudaCallError",
    "DeviceProperties",
    "DriverNotFoundError",
    "Event",
    "ExternalStream",
    "ForkedError",
    "GraphNode",
    "GraphedCallable",
    "MemPool",
    "NotSupportedError",
    "OutOfMemoryError",
    "PinnedBuffer",
    "RaceError",
    "RaceWarning",
    "RegisteredMemory",
    "RemovableHandle",
    "Stream",
    "SyncDebugError",
    "SyncDebugWarning",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_host_allocator_alloc",
    "caching_host_allocator_delete",
    "can_device_access_peer",
    "configure_pinned",
    "copy",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "fill",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "host_empty_cache",
    "host_memory_stats",
    "init",
    "is_available",
    "is_current_stream_capturing",
    "is_initialized",
    "is_pinned",
    "lazy_call",
    "make_graphed_callables",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "per_thread_stream",
    "pinned_empty",
    "pinned_settings",
    "record_host_stream",
    "record_stream",
    "register_host",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "sanitizer",
    "set_device",
    "set_per_process_memory_fraction",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "use",
    "use_mem_pool",
]
