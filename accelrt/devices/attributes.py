"""The names of a device's attributes, and which of them a driver knows.

Source: CUDA driver API, "Data types used by CUDA driver", CUdevice_attribute: the names without their
prefix, in lower case, of CUDA 13.5; what a release added is how its cuda.h differs from the one before.
"""

# The driver's version (cuDriverGetVersion) and the numbers that came with it; CUDA 12.0 has the others.
ADDED: dict[int, tuple[int, ...]] = {
    12010: (132,),
    12020: (130, 131, 134),
    12030: (128, 133),
    12050: (135,),
    12080: (136, 137, 139, 140, 143),
    12090: (138, 141, 142),
    13000: (144, 145, 146, 147),
    13010: (148,),
    13030: (151, 152, 153, 154, 155, 156),
    13040: (149, 150, 157, 158, 161),
    13050: (159, 160),
}

# In the order of their numbers, which go from 1 on without a gap.
NAMES = """
    max_threads_per_block max_block_dim_x max_block_dim_y max_block_dim_z max_grid_dim_x max_grid_dim_y
    max_grid_dim_z max_shared_memory_per_block total_constant_memory warp_size max_pitch
    max_registers_per_block clock_rate texture_alignment gpu_overlap multiprocessor_count
    kernel_exec_timeout integrated can_map_host_memory compute_mode maximum_texture1d_width
    maximum_texture2d_width maximum_texture2d_height maximum_texture3d_width maximum_texture3d_height
    maximum_texture3d_depth maximum_texture2d_layered_width maximum_texture2d_layered_height
    maximum_texture2d_layered_layers surface_alignment concurrent_kernels ecc_enabled pci_bus_id
    pci_device_id tcc_driver memory_clock_rate global_memory_bus_width l2_cache_size
    max_threads_per_multiprocessor async_engine_count unified_addressing maximum_texture1d_layered_width
    maximum_texture1d_layered_layers can_tex2d_gather maximum_texture2d_gather_width
    maximum_texture2d_gather_height maximum_texture3d_width_alternate maximum_texture3d_height_alternate
    maximum_texture3d_depth_alternate pci_domain_id texture_pitch_alignment maximum_texturecubemap_width
    maximum_texturecubemap_layered_width maximum_texturecubemap_layered_layers maximum_surface1d_width
    maximum_surface2d_width maximum_surface2d_height maximum_surface3d_width maximum_surface3d_height
    maximum_surface3d_depth maximum_surface1d_layered_width maximum_surface1d_layered_layers
    maximum_surface2d_layered_width maximum_surface2d_layered_height maximum_surface2d_layered_layers
    maximum_surfacecubemap_width maximum_surfacecubemap_layered_width
    maximum_surfacecubemap_layered_layers maximum_texture1d_linear_width maximum_texture2d_linear_width
    maximum_texture2d_linear_height maximum_texture2d_linear_pitch maximum_texture2d_mipmapped_width
    maximum_texture2d_mipmapped_height compute_capability_major compute_capability_minor
    maximum_texture1d_mipmapped_width stream_priorities_supported global_l1_cache_supported
    local_l1_cache_supported max_shared_memory_per_multiprocessor max_registers_per_multiprocessor
    managed_memory multi_gpu_board multi_gpu_board_group_id host_native_atomic_supported
    single_to_double_precision_perf_ratio pageable_memory_access concurrent_managed_access
    compute_preemption_supported can_use_host_pointer_for_registered_mem can_use_stream_mem_ops_v1
    can_use_64_bit_stream_mem_ops_v1 can_use_stream_wait_value_nor_v1 cooperative_launch
    cooperative_multi_device_launch max_shared_memory_per_block_optin can_flush_remote_writes
    host_register_supported pageable_memory_access_uses_host_page_tables
    direct_managed_mem_access_from_host virtual_memory_management_supported
    handle_type_posix_file_descriptor_supported handle_type_win32_handle_supported
    handle_type_win32_kmt_handle_supported max_blocks_per_multiprocessor generic_compression_supported
    max_persisting_l2_cache_size max_access_policy_window_size gpu_direct_rdma_with_cuda_vmm_supported
    reserved_shared_memory_per_block sparse_cuda_array_supported read_only_host_register_supported
    timeline_semaphore_interop_supported memory_pools_supported gpu_direct_rdma_supported
    gpu_direct_rdma_flush_writes_options gpu_direct_rdma_writes_ordering mempool_supported_handle_types
    cluster_launch deferred_mapping_cuda_array_supported can_use_64_bit_stream_mem_ops
    can_use_stream_wait_value_nor dma_buf_supported ipc_event_supported mem_sync_domain_count
    tensor_map_access_supported handle_type_fabric_supported unified_function_pointers numa_config numa_id
    multicast_supported mps_enabled host_numa_id d3d12_cig_supported mem_decompress_algorithm_mask
    mem_decompress_maximum_length vulkan_cig_supported gpu_pci_device_id gpu_pci_subsystem_id
    host_numa_virtual_memory_management_supported host_numa_memory_pools_supported
    host_numa_multinode_ipc_supported host_memory_pools_supported host_virtual_memory_management_supported
    host_alloc_dma_buf_supported only_partial_host_native_atomic_supported atomic_reduction_supported
    locality_domain_count max_oversized_shared_memory_per_block d3d12_cig_streams_supported
    dma_buf_mmap_supported logical_endpoint_unicast_supported logical_endpoint_multicast_supported
    logical_endpoint_counted_ops_supported logical_endpoint_unicast_access_on_owner_device_supported
    locality_domain_multiprocessor_count logical_endpoint_supported_handle_types
    vulkan_cig_streams_supported tensor_map_large_tensor_min_size
    gpu_direct_rdma_with_localized_memory_supported
"""
ATTRIBUTES = {name: number for number, name in enumerate(NAMES.split(), 1)}


def known_to(driver: int) -> dict[str, int]:
    """The attributes that a driver can be asked for; it refuses others, which tools take for an error.

    Arguments:
        driver: its version, as cuDriverGetVersion has it: 13000 is CUDA 13.0.
    Returns:
        dict of int by name, in the order of ATTRIBUTES.
    """
    newer = {number for version, numbers in ADDED.items() if version > driver for number in numbers}
    return {name: number for name, number in ATTRIBUTES.items() if number not in newer}
