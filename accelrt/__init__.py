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

from accelrt import env, memory, sanitizer
from accelrt.buffers.buffer import Buffer, PinnedBuffer
from accelrt.buffers.copy import copy, fill
from accelrt.devices.device import (
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
from accelrt.graphs.graph import CUDAGraph, graph, graph_pool_handle, is_current_stream_capturing
from accelrt.graphs.hooks import RemovableHandle
from accelrt.graphs.nodes import GraphNode
from accelrt.memory.caching import (
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    record_stream,
    set_per_process_memory_fraction,
)
from accelrt.memory.host_cache import (
    caching_host_allocator_alloc,
    caching_host_allocator_delete,
    host_empty_cache,
    host_memory_stats,
    reset_accumulated_host_memory_stats,
    reset_peak_host_memory_stats,
)
from accelrt.memory.settings.apply import configure_pinned, pinned_settings
from accelrt.runtime import init as lazy
from accelrt.runtime.init import init, is_available, is_initialized, lazy_call
from accelrt.runtime.sanitizer_hooks import get_sync_debug_mode, set_sync_debug_mode
from accelrt.streams.event import Event
from accelrt.streams.stream import (
    Stream,
    current_stream,
    default_stream,
    per_thread_stream,
    set_stream,
    stream,
)

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from accelrt import identity as identity
    from accelrt import interface as interface
    from accelrt import nvml as nvml
    from accelrt import publish as publish
    from accelrt import readings as readings
    from accelrt import visible as visible
    from accelrt.buffers.buffer import (
        RegisteredMemory,
        is_pinned,
        pinned_empty,
        record_host_stream,
        register_host,
    )
    from accelrt.devices.arch import get_arch_list, get_gencode_flags, is_bf16_supported
    from accelrt.devices.device import get_device_capability, get_device_name, get_device_properties
    from accelrt.devices.properties import DeviceProperties
    from accelrt.devices.versions import driver_version, runtime_version
    from accelrt.graphs.callables import GraphedCallable, make_graphed_callables
    from accelrt.interface import (
        DeviceInterface,
        get_interface_for_device,
        get_registered_device_interfaces,
        register_interface_for_device,
    )
    from accelrt.memory.mempool import MemPool, use_mem_pool
    from accelrt.memory.statistics import (
        max_memory_allocated,
        max_memory_reserved,
        memory_allocated,
        memory_reserved,
        memory_snapshot,
        memory_stats,
        reset_accumulated_memory_stats,
        reset_peak_memory_stats,
    )
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
    from accelrt.sanitizer.use import use
    from accelrt.streams.stream import ExternalStream

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

_MODULES = {"identity", "interface", "nvml", "publish", "readings", "visible"}
_FROM = {
    "DeviceInterface": "interface",
    "DeviceProperties": "devices.properties",
    "ExternalStream": "streams.stream",
    "GraphedCallable": "graphs.callables",
    "MemPool": "memory.mempool",
    "RegisteredMemory": "buffers.buffer",
    "driver_version": "devices.versions",
    "get_arch_list": "devices.arch",
    "get_device_capability": "devices.device",
    "get_device_name": "devices.device",
    "get_device_properties": "devices.device",
    "get_gencode_flags": "devices.arch",
    "get_interface_for_device": "interface",
    "get_registered_device_interfaces": "interface",
    "is_bf16_supported": "devices.arch",
    "is_pinned": "buffers.buffer",
    "make_graphed_callables": "graphs.callables",
    "max_memory_allocated": "memory.statistics",
    "max_memory_reserved": "memory.statistics",
    "memory_allocated": "memory.statistics",
    "memory_reserved": "memory.statistics",
    "memory_snapshot": "memory.statistics",
    "memory_stats": "memory.statistics",
    "pinned_empty": "buffers.buffer",
    "record_host_stream": "buffers.buffer",
    "register_host": "buffers.buffer",
    "register_interface_for_device": "interface",
    "reset_accumulated_memory_stats": "memory.statistics",
    "reset_peak_memory_stats": "memory.statistics",
    "runtime_version": "devices.versions",
    "use": "sanitizer.use",
    "use_mem_pool": "memory.mempool",
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


def _publish() -> None:
    if env.value("ACCELRT_PUBLISH"):
        lazy.later("accelrt.publish").start()


lazy.when_opened(_publish)
