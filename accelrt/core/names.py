"""The public names of accelrt and of accelrt.memory, by the module below accelrt that each is defined in.

Imports, `dir()`, star imports and what is imported later come from here, and setup.py writes of it the stubs
that type checkers read (accelrt/__init__.pyi, accelrt/memory/__init__.pyi).
"""

import sys

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from types import ModuleType

# Imported with accelrt, in this order.
NOW = {
    "arrays.array": "Array Buffer PinnedBuffer",
    "arrays.exchange": "asarray empty empty_like from_dlpack full full_like zeros zeros_like",
    "arrays.copy": "copy fill",
    "devices.device": """
        can_device_access_peer current_device device device_count device_of mem_get_info set_device
        synchronize
    """,
    "errors": """
        AcceleratorError ArgumentError ArgumentTypeError CaptureError CompileError CompilerNotFoundError
        CudaError DeferredCudaCallError DriverNotFoundError ForkedError IdentityError InterfaceError
        InvalidDeviceError InvalidDeviceTypeError NcclError NotSupportedError OutOfMemoryError
        PeerTimeoutError RaceError RaceWarning ReadingError SleepingMemoryError SnapshotError SyncDebugError
        SyncDebugWarning
    """,
    "memory.caching": """
        caching_allocator_alloc caching_allocator_delete empty_cache get_per_process_memory_fraction
        record_stream set_per_process_memory_fraction
    """,
    "memory.mempool": """
        caching_host_allocator_alloc caching_host_allocator_delete host_empty_cache host_memory_stats
        reset_accumulated_host_memory_stats reset_peak_host_memory_stats
    """,
    "allocator.pinned.cache": "pinned_settings",
    "allocator.settings.apply": "configure_pinned",
    "runtime.init": "init is_available is_initialized lazy_call",
    "runtime.access": "get_sync_debug_mode set_sync_debug_mode",
    "streams.stream": "Event Stream current_stream default_stream per_thread_stream set_stream stream",
}

# Imported when it is asked for.
LATER = {
    "include": "get_include get_library",
    "interface": """
        DeviceInterface get_interface_for_device get_registered_device_interfaces
        register_interface_for_device
    """,
    "devices.properties": "DeviceProperties",
    "devices.contexts": "active_contexts stray_contexts",
    "devices.context_limits": "get_limit reset_persisting_l2_cache set_limit",
    "runtime.cuda_status": "check_error cudaStatus cudart get_module_loading set_module_loading",
    "arrays.l2_cache": "access_policy_window",
    "arrays.texture_memory": "CUDAArray MipmappedArray",
    "arrays.textures": "SurfaceObject TextureObject",
    "streams.stream": "ExternalStream StreamContext get_stream_from_external",
    "green_contexts": "GreenContext",
    "graphs.callables": "GraphedCallable make_graphed_callables",
    "graphs.definition_node": "DefinitionNode",
    "graphs.definition": "GraphDefinition",
    "graphs.graph": "CUDAGraph graph graph_pool_handle is_current_stream_capturing",
    "graphs.graph_memory": """
        free_graph_memory graph_memory_stats graph_memory_trim reset_peak_graph_memory_stats
    """,
    "graphs.hooks": "RemovableHandle",
    "graphs.node_values": "AllocationParams Condition ConditionParams",
    "graphs.parameters": "GraphParameter GraphParameters ParameterUse",
    "kernels.arch": "get_arch_list get_gencode_flags is_bf16_supported is_tf32_supported",
    "kernels.compiler": "ModuleImage compile compile_image link_images",
    "kernels.elementwise": "ElementwiseKernel elementwise",
    "kernels.tensor_map": "TensorMap",
    "allocator.external.external_pool": "CUDAPluggableAllocator",
    "memory.mempool": "MemPool PinnedMemPool RegisteredMemory register_host use_mem_pool",
    "memory.reservation": "reserve",
    "arrays.array": "is_pinned record_host_stream",
    "arrays.creation": "arange ones ones_like pinned_empty",
    "arrays.exchange": "copy_many",
    "arrays.copy": "use",
    "graphs.nodes": "CopyParams FillParams GraphNode KernelParams",
    "kernels.attributes": "KernelAttributes",
    "kernels.kernel": "Kernel Launcher Module host_kernel sleep",
    "sharing.handles": "ipc_collect",
    "devices.versions": "driver_version runtime_version",
    "devices.device": "get_device_capability get_device_name get_device_properties",
    "memory.caching": """
        change_current_allocator get_allocator_backend max_memory_allocated max_memory_reserved
        memory_allocated memory_reserved memory_snapshot memory_stats reset_accumulated_memory_stats
        reset_peak_memory_stats
    """,
    "memory.summary_table": "memory_summary",
    "memory.torch_names": """
        host_memory_stats_as_nested_dict max_memory_cached memory_cached memory_stats_as_nested_dict
        reset_max_memory_allocated reset_max_memory_cached
    """,
    "random": """
        default_generators get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed
        seed_all set_rng_state set_rng_state_all
    """,
    "readings": """
        EccErrors GpuProcess MemoryInfo NvlinkTraffic PcieLink PcieTraffic PowerLimits RemappedRows
        TemperatureLimits application_clock_rates clock_rate clock_rates decoder_utilization
        device_memory_info device_memory_used ecc_errors ecc_mode encoder_utilization energy fan_speed
        fan_speeds gpu_processes list_gpu_processes max_clock_rates memory_temperature memory_usage
        nvlink_links nvlink_throughput pcie_link pcie_throughput performance_state power_draw power_limits
        remapped_rows temperature temperature_limits throttle_reasons utilization
    """,
}

# Names that programs written for torch.cuda use although they begin with an underscore; imported later too.
UNDERSCORED = {
    "kernels.kernel": "_sleep",
    "runtime.init": "_is_in_bad_fork _lazy_call _lazy_init",
    "streams.stream": "_set_stream_by_id",
}
UNDERSCORED_MEMORY = {
    "memory.torch_names": """
        _dump_snapshot _record_memory_history _save_memory_usage _save_segment_usage _set_allocator_settings
        _snapshot
    """
}

# Modules of accelrt that are public themselves: those that `from accelrt import *` brings, and the others.
MODULES = "identity interface memory nvtx profiler publish sanitizer tunable"
UNLISTED = (
    "checkpoint comm gds green_contexts interop nccl nvml random readings resources sharing testing visible"
)

# Of accelrt.memory, imported when it is asked for: its own, and those of accelrt that are of the allocator.
MEMORY = {
    "arrays.array": LATER["arrays.array"],
    "arrays.creation": "pinned_empty",
    "arrays.exchange": "buffer_at",
    "arrays.managed": "ManagedAttributes advise discard is_managed managed_attributes prefetch",
    "allocator.external.external_pool": "CallbackAllocator",
    "allocator.external.torch_table": "library_path",
    "memory.caching": """
        AllocationHooks FreeMemoryCallback audit enable_peer_access free_after memory_stat
        register_free_memory_callback select_backend sleeping
    """,
    "memory.addresses": "AddressInfo address_info",
    "memory.driver_pool": "DriverMemory DriverPool",
    "memory.ipc_handles": "IPCAllocationHandle IPCBufferDescriptor",
    "memory.growth": "Mark compare_snapshots mark",
    "memory.history.recording": "annotate record_history tag",
    "memory.history.snapshot_file": "dump_snapshot load_snapshot",
    "memory.history.snapshots": "snapshot",
    "memory.live_report": "report report_data",
    "memory.mempool": "host_audit host_memory_snapshot sleep sleepable tag_pool wake",
    "memory.pool_checkpoint": """
        PoolCheckpoint check_pool_live_allocations get_checkpoint_state set_checkpoint_state
    """,
    "memory.reservation": "Reservation",
    "memory.sleep_result": "SleepResult",
    "memory.live": "OutOfMemoryObserver attach_out_of_memory_observer",
    "allocator.settings.apply": "allocator_settings set_allocator_settings settings_in_force",
    "allocator.settings.typed": "AllocatorSettings",
    "devices.device": "mem_get_info",
    "readings": "list_gpu_processes",
}
for _module, _names in (*NOW.items(), *LATER.items()):
    if _module.startswith(("memory.", "allocator.")):
        MEMORY[_module] = f"{MEMORY.get(_module, '')} {_names}"


def module_of(table: dict[str, str]) -> dict[str, str]:
    """Name -> module of each name of a table."""
    return {name: module for module, names in table.items() for name in names.split()}


def module_named(name: str) -> "ModuleType":
    """Returns a module, imported if need be; importlib does the same, and takes long to import itself."""
    __import__(name)
    return sys.modules[name]
