"""accelrt: torch.cuda's runtime without torch.

A caching memory allocator, streams, events and graph capture for Python and Cython, on NVIDIA GPUs and on
an embedded host device.  Importing it touches no driver; the first use of a device does.
"""

try:
    import accelrt.status  # noqa: F401  the first that is compiled
except ModuleNotFoundError as error:
    if error.name != "accelrt.status":
        raise
    raise ImportError(
        f"{__path__[0]} is accelrt's source, not compiled for this Python, and hides any accelrt that is "
        "installed: start Python in another directory, or compile this one with 'python -m pip install -e .'"
    ) from None

from accelrt import lazy, memory, sanitizer
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
    IdentityError,
    InterfaceError,
    NotSupportedError,
    OutOfMemoryError,
    RaceError,
    RaceWarning,
    ReadingError,
    SyncDebugError,
    SyncDebugWarning,
)
from accelrt.event import Event
from accelrt.graph import CUDAGraph, graph_pool_handle
from accelrt.graph_nodes import GraphNode
from accelrt.graph_scope import graph, is_current_stream_capturing
from accelrt.hooks import RemovableHandle
from accelrt.lazy import init, is_available, is_initialized, lazy_call
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
from accelrt.stream import (
    Stream,
    current_stream,
    default_stream,
    per_thread_stream,
    set_stream,
    stream,
)
from accelrt.watch import get_sync_debug_mode, set_sync_debug_mode

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from accelrt import counting as counting
    from accelrt import identity as identity
    from accelrt import interface as interface
    from accelrt import nvml as nvml
    from accelrt import publish as publish
    from accelrt import readings as readings
    from accelrt import visible as visible
    from accelrt.arch import get_arch_list, get_gencode_flags, is_bf16_supported
    from accelrt.device_facts import DeviceProperties
    from accelrt.external import ExternalStream
    from accelrt.graphed import GraphedCallable, make_graphed_callables
    from accelrt.interface import (
        DeviceInterface,
        get_interface_for_device,
        get_registered_device_interfaces,
        register_interface_for_device,
    )
    from accelrt.mempool import MemPool, use_mem_pool
    from accelrt.properties import get_device_capability, get_device_name, get_device_properties
    from accelrt.readings import (
        EccErrors,
        GpuProcess,
        MemoryInfo,
        NvlinkTraffic,
        PcieLink,
        PcieTraffic,
        PowerLimits,
        RemappedRows,
        TemperatureLimits,
        application_clock_rates,
        clock_rate,
        clock_rates,
        decoder_utilization,
        device_memory_info,
        device_memory_used,
        ecc_errors,
        ecc_mode,
        encoder_utilization,
        energy,
        fan_speed,
        fan_speeds,
        gpu_processes,
        list_gpu_processes,
        max_clock_rates,
        memory_temperature,
        memory_usage,
        nvlink_links,
        nvlink_throughput,
        pcie_link,
        pcie_throughput,
        performance_state,
        power_draw,
        power_limits,
        remapped_rows,
        temperature,
        temperature_limits,
        throttle_reasons,
        utilization,
    )
    from accelrt.registered import (
        RegisteredMemory,
        is_pinned,
        pinned_empty,
        record_host_stream,
        register_host,
    )
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
    from accelrt.uses import use
    from accelrt.versions import driver_version, runtime_version

__version__ = "0.1.0"

__all__ = [
    "Buffer",
    "CUDAGraph",
    "CaptureError",
    "CudaError",
    "DeferredCudaCallError",
    "DeviceInterface",
    "DeviceProperties",
    "DriverNotFoundError",
    "EccErrors",
    "Event",
    "ExternalStream",
    "ForkedError",
    "GpuProcess",
    "GraphNode",
    "GraphedCallable",
    "IdentityError",
    "InterfaceError",
    "MemPool",
    "MemoryInfo",
    "NotSupportedError",
    "NvlinkTraffic",
    "OutOfMemoryError",
    "PcieLink",
    "PcieTraffic",
    "PinnedBuffer",
    "PowerLimits",
    "RaceError",
    "RaceWarning",
    "ReadingError",
    "RegisteredMemory",
    "RemappedRows",
    "RemovableHandle",
    "Stream",
    "SyncDebugError",
    "SyncDebugWarning",
    "TemperatureLimits",
    "application_clock_rates",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_host_allocator_alloc",
    "caching_host_allocator_delete",
    "can_device_access_peer",
    "clock_rate",
    "clock_rates",
    "configure_pinned",
    "copy",
    "current_device",
    "current_stream",
    "decoder_utilization",
    "default_stream",
    "device",
    "device_count",
    "device_memory_info",
    "device_memory_used",
    "device_of",
    "driver_version",
    "ecc_errors",
    "ecc_mode",
    "empty_cache",
    "encoder_utilization",
    "energy",
    "fan_speed",
    "fan_speeds",
    "fill",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_interface_for_device",
    "get_registered_device_interfaces",
    "get_sync_debug_mode",
    "gpu_processes",
    "graph",
    "graph_pool_handle",
    "host_empty_cache",
    "host_memory_stats",
    "identity",
    "init",
    "interface",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_pinned",
    "lazy_call",
    "list_gpu_processes",
    "make_graphed_callables",
    "max_clock_rates",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_temperature",
    "memory_usage",
    "nvlink_links",
    "nvlink_throughput",
    "pcie_link",
    "pcie_throughput",
    "per_thread_stream",
    "performance_state",
    "pinned_empty",
    "pinned_settings",
    "power_draw",
    "power_limits",
    "publish",
    "record_host_stream",
    "record_stream",
    "register_host",
    "register_interface_for_device",
    "remapped_rows",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "runtime_version",
    "sanitizer",
    "set_device",
    "set_per_process_memory_fraction",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "temperature",
    "temperature_limits",
    "throttle_reasons",
    "use",
    "use_mem_pool",
    "utilization",
]

_MODULES = {"counting", "identity", "interface", "nvml", "publish", "readings", "visible"}
_FROM = {
    "DeviceInterface": "interface",
    "DeviceProperties": "device_facts",
    "ExternalStream": "external",
    "GraphedCallable": "graphed",
    "MemPool": "mempool",
    "RegisteredMemory": "registered",
    "driver_version": "versions",
    "get_arch_list": "arch",
    "get_device_capability": "properties",
    "get_device_name": "properties",
    "get_device_properties": "properties",
    "get_gencode_flags": "arch",
    "get_interface_for_device": "interface",
    "get_registered_device_interfaces": "interface",
    "is_bf16_supported": "arch",
    "is_pinned": "registered",
    "make_graphed_callables": "graphed",
    "max_memory_allocated": "statistics",
    "max_memory_reserved": "statistics",
    "memory_allocated": "statistics",
    "memory_reserved": "statistics",
    "memory_snapshot": "statistics",
    "memory_stats": "statistics",
    "pinned_empty": "registered",
    "record_host_stream": "registered",
    "register_host": "registered",
    "register_interface_for_device": "interface",
    "reset_accumulated_memory_stats": "statistics",
    "reset_peak_memory_stats": "statistics",
    "runtime_version": "versions",
    "use": "uses",
    "use_mem_pool": "mempool",
}
_READINGS = {
    "EccErrors",
    "GpuProcess",
    "MemoryInfo",
    "NvlinkTraffic",
    "PcieLink",
    "PcieTraffic",
    "PowerLimits",
    "RemappedRows",
    "TemperatureLimits",
    "application_clock_rates",
    "clock_rate",
    "clock_rates",
    "decoder_utilization",
    "device_memory_info",
    "device_memory_used",
    "ecc_errors",
    "ecc_mode",
    "encoder_utilization",
    "energy",
    "fan_speed",
    "fan_speeds",
    "gpu_processes",
    "list_gpu_processes",
    "max_clock_rates",
    "memory_temperature",
    "memory_usage",
    "nvlink_links",
    "nvlink_throughput",
    "pcie_link",
    "pcie_throughput",
    "performance_state",
    "power_draw",
    "power_limits",
    "remapped_rows",
    "temperature",
    "temperature_limits",
    "throttle_reasons",
    "utilization",
}


def __getattr__(name: str) -> "Any":
    """What few programs ask for is imported when it is first asked for."""
    if name in _MODULES:
        return lazy.later(f"accelrt.{name}")
    room = "readings" if name in _READINGS else _FROM.get(name)
    if room is not None:
        found = globals()[name] = getattr(lazy.later(f"accelrt.{room}"), name)
        return found
    raise AttributeError(f"module 'accelrt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
