# The functions of libcuda that the rows call, but for those of graphs (graph_functions.pxd): the types of the pointers.
# The names are those of cudaTypedefs.h, which end in the version of the ABI.  The comment names the rows that cannot
# work without the function, or says "needed" where opening fails without it, or "not needed" where the driver itself
# looks whether it is there.  A row with arguments behind it is this one call: in the context of its device, or in any;
# in none where the function takes the CUdevice, and where the comment says so (driver/cuda/DESIGN.md has why).
# rowgen.py reads the comments, and writes those rows, the pointers and what asks the library for them.
from accelrt.driver.cuda.types cimport (
    CUDA_MEMCPY3D_v2, CUarray, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUjit_option, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUlimit, CUmemAccessDesc, CUmemAccess_flags,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemPoolProps, CUmemPool_attribute, CUmem_advise, CUmem_range_attribute, CUmemoryPool,
    CUmipmappedArray, CUmodule, CUmoduleLoadingMode, CUoccupancyB2DSize, CUpointer_attribute, CUstream, CUuuid,
)

cdef extern from "cudaTypedefs.h" nogil:
    # the library, devices and contexts
    ctypedef int (*PFN_cuDriverGetVersion_v2020)(int*) noexcept nogil  # no context: driver_version(out_version)
    ctypedef int (*PFN_cuDeviceGet_v2000)(CUdevice*, int) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceGetCount_v2000)(int*) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceGetName_v2000)(
        char*, int, CUdevice) noexcept nogil  # device_name(out_text, TEXT_BYTES, device)
    ctypedef int (*PFN_cuDeviceGetUuid_v11040)(
        CUuuid*, CUdevice) noexcept nogil  # device_uuid(out_uuid, device); tells the instances of a MIG device apart
    ctypedef int (*PFN_cuDeviceGetPCIBusId_v4010)(
        char*, int, CUdevice) noexcept nogil  # device_pci_bus_id(out_text, TEXT_BYTES, device)
    ctypedef int (*PFN_cuDeviceGetAttribute_v2000)(int*, CUdevice_attribute, CUdevice) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceTotalMem_v3020)(size_t*, CUdevice) noexcept nogil  # device_memory(out_total, device)
    ctypedef int (*PFN_cuMemGetInfo_v3020)(size_t*, size_t*) noexcept nogil  # memory_info(out_free, out_total)
    ctypedef int (*PFN_cuCtxGetCurrent_v4000)(CUcontext*) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxSetCurrent_v4000)(CUcontext) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxPushCurrent_v4000)(CUcontext) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxPopCurrent_v4000)(CUcontext*) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxGetDevice_v2000)(CUdevice*) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxSynchronize_v2000)() noexcept nogil  # device_synchronize()
    ctypedef int (*PFN_cuDevicePrimaryCtxRetain_v7000)(CUcontext*, CUdevice) noexcept nogil  # needed
    ctypedef int (*PFN_cuDevicePrimaryCtxGetState_v7000)(CUdevice, unsigned int*, int*) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceCanAccessPeer_v4000)(
        int*, CUdevice, CUdevice) noexcept nogil  # can_access_peer(out_can, device, peer)
    ctypedef int (*PFN_cuCtxEnablePeerAccess_v4000)(CUcontext, unsigned int) noexcept nogil  # enable_peer
    ctypedef int (*PFN_cuCtxGetLimit_v3010)(size_t*, CUlimit) noexcept nogil  # limit_get(out_value, limit)
    ctypedef int (*PFN_cuCtxSetLimit_v3010)(CUlimit, size_t) noexcept nogil  # limit_set(limit, value)
    ctypedef int (*PFN_cuCtxResetPersistingL2Cache_v11000)() noexcept nogil  # l2_reset()

    # memory
    ctypedef int (*PFN_cuMemAlloc_v3020)(CUdeviceptr*, size_t) noexcept nogil  # memory_alloc(out_address, size)
    ctypedef int (*PFN_cuMemFree_v3020)(CUdeviceptr) noexcept nogil  # memory_free(address)
    ctypedef int (*PFN_cuPointerGetAttributes_v7000)(
        unsigned int, CUpointer_attribute*, void**, CUdeviceptr) noexcept nogil  # pointer_device
    ctypedef int (*PFN_cuMemGetAddressRange_v3020)(CUdeviceptr*, size_t*, CUdeviceptr) noexcept nogil  # not needed
    ctypedef int (*PFN_cuMemGetAllocationGranularity_v10020)(
        size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) noexcept nogil  # granularity
    ctypedef int (*PFN_cuMemAddressReserve_v10020)(
        CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) noexcept nogil  # no context: address_reserve(out_address, size, alignment, 0, 0), address_reserve_at(out_address, size, alignment, at, 0)  # no-cython-lint
    ctypedef int (*PFN_cuMemAddressFree_v10020)(
        CUdeviceptr, size_t) noexcept nogil  # no context: address_free(address, size)
    ctypedef int (*PFN_cuMemCreate_v10020)(
        CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long) noexcept nogil  # physical_create  # no-cython-lint
    ctypedef int (*PFN_cuMemExportToShareableHandle_v10020)(
        void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long) noexcept nogil  # physical_export
    ctypedef int (*PFN_cuMemImportFromShareableHandle_v10020)(
        CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) noexcept nogil  # physical_import(out_handle, <void*><uintptr_t>file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)  # no-cython-lint
    ctypedef int (*PFN_cuMemRelease_v10020)(CUmemGenericAllocationHandle) noexcept nogil  # physical_release(handle)
    ctypedef int (*PFN_cuMemMap_v10020)(
        CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) noexcept nogil  # memory_map(address, size, 0, handle, 0)  # no-cython-lint
    ctypedef int (*PFN_cuMemSetAccess_v10020)(
        CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) noexcept nogil  # memory_access
    ctypedef int (*PFN_cuMemUnmap_v10020)(CUdeviceptr, size_t) noexcept nogil  # memory_unmap(address, size)
    ctypedef int (*PFN_cuMemAllocFromPoolAsync_v11020)(
        CUdeviceptr*, size_t, CUmemoryPool, CUstream) noexcept nogil  # async_alloc, pool_alloc
    ctypedef int (*PFN_cuMemFreeAsync_v11020)(
        CUdeviceptr, CUstream) noexcept nogil  # async_free(address, stream), managed_pool_free
    ctypedef int (*PFN_cuMemPoolTrimTo_v11020)(CUmemoryPool, size_t) noexcept nogil  # no context: pool_trim
    ctypedef int (*PFN_cuMemPoolGetAttribute_v11020)(CUmemoryPool, CUmemPool_attribute, void*) noexcept nogil  # pool_get
    ctypedef int (*PFN_cuMemPoolSetAttribute_v11020)(CUmemoryPool, CUmemPool_attribute, void*) noexcept nogil  # pool_set
    ctypedef int (*PFN_cuDeviceGetDefaultMemPool_v11020)(CUmemoryPool*, CUdevice) noexcept nogil  # async_alloc, default_pool
    ctypedef int (*PFN_cuMemHostAlloc_v2020)(
        void**, size_t, unsigned int) noexcept nogil  # host_alloc(out_address, size, CU_MEMHOSTALLOC_PORTABLE)
    ctypedef int (*PFN_cuMemFreeHost_v2000)(void*) noexcept nogil  # host_free(address)
    ctypedef int (*PFN_cuMemHostRegister_v6050)(
        void*, size_t, unsigned int) noexcept nogil  # host_register(address, size, CU_MEMHOSTREGISTER_PORTABLE)
    ctypedef int (*PFN_cuMemHostUnregister_v4000)(void*) noexcept nogil  # host_unregister(address)
    ctypedef int (*PFN_cuMemAllocManaged_v6000)(
        CUdeviceptr*, size_t, unsigned int) noexcept nogil  # managed_alloc(out_address, size, flags)
    ctypedef int (*PFN_cuMemPrefetchAsync_v12020)(
        CUdeviceptr, size_t, CUmemLocation, unsigned int, CUstream) noexcept nogil  # not needed
    ctypedef int (*PFN_cuMemPrefetchAsync_v8000)(CUdeviceptr, size_t, CUdevice, CUstream) noexcept nogil  # not needed
    ctypedef int (*PFN_cuMemAdvise_v12020)(CUdeviceptr, size_t, CUmem_advise, CUmemLocation) noexcept nogil  # not needed
    ctypedef int (*PFN_cuMemAdvise_v8000)(CUdeviceptr, size_t, CUmem_advise, CUdevice) noexcept nogil  # not needed
    ctypedef int (*PFN_cuMemRangeGetAttribute_v8000)(
        void*, size_t, CUmem_range_attribute, CUdeviceptr, size_t) noexcept nogil  # managed_attribute

    # streams, events, copies and fills
    ctypedef int (*PFN_cuCtxGetStreamPriorityRange_v5050)(
        int*, int*) noexcept nogil  # stream_priority_range(out_least, out_greatest)
    ctypedef int (*PFN_cuStreamCreateWithPriority_v5050)(
        CUstream*, unsigned int, int) noexcept nogil  # stream_create(out_stream, flags, priority)
    ctypedef int (*PFN_cuStreamDestroy_v4000)(CUstream) noexcept nogil  # stream_destroy(stream)
    ctypedef int (*PFN_cuStreamGetPriority_v5050)(CUstream, int*) noexcept nogil  # stream_priority(stream, out_priority)
    ctypedef int (*PFN_cuStreamGetFlags_v5050)(CUstream, unsigned int*) noexcept nogil  # stream_flags(stream, out_flags)
    ctypedef int (*PFN_cuStreamGetCtx_v9020)(CUstream, CUcontext*) noexcept nogil  # stream_device
    ctypedef int (*PFN_cuStreamQuery_v2000)(CUstream) noexcept nogil  # stream_query(stream)
    ctypedef int (*PFN_cuStreamSynchronize_v2000)(CUstream) noexcept nogil  # stream_synchronize(stream), copy
    ctypedef int (*PFN_cuStreamWaitEvent_v3020)(
        CUstream, CUevent, unsigned int) noexcept nogil  # stream_wait_event(stream, event, 0), stream_wait_external(stream, event, CU_EVENT_WAIT_EXTERNAL)  # no-cython-lint
    ctypedef int (*PFN_cuLaunchHostFunc_v10000)(
        CUstream, CUhostFn, void*) noexcept nogil  # stream_host_func(stream, fn, data)
    ctypedef int (*PFN_cuStreamSetAttribute_v11000)(
        CUstream, CUlaunchAttributeID, const CUlaunchAttributeValue*) noexcept nogil  # stream_window_set, stream_attribute_set  # no-cython-lint
    ctypedef int (*PFN_cuStreamGetAttribute_v11000)(
        CUstream, CUlaunchAttributeID, CUlaunchAttributeValue*) noexcept nogil  # stream_window_get, stream_attribute_get
    ctypedef int (*PFN_cuEventCreate_v2000)(CUevent*, unsigned int) noexcept nogil  # event_create(out_event, flags)
    ctypedef int (*PFN_cuEventDestroy_v4000)(CUevent) noexcept nogil  # event_destroy(event)
    ctypedef int (*PFN_cuEventRecord_v2000)(CUevent, CUstream) noexcept nogil  # event_record(event, stream)
    ctypedef int (*PFN_cuEventRecordWithFlags_v11010)(
        CUevent, CUstream, unsigned int) noexcept nogil  # event_record_external(event, stream, CU_EVENT_RECORD_EXTERNAL)
    ctypedef int (*PFN_cuEventQuery_v2000)(CUevent) noexcept nogil  # no context: event_query(event)
    ctypedef int (*PFN_cuEventSynchronize_v2000)(CUevent) noexcept nogil  # event_synchronize(event)
    ctypedef int (*PFN_cuEventElapsedTime_v2000)(
        float*, CUevent, CUevent) noexcept nogil  # event_elapsed(out_ms, start, end)
    ctypedef int (*PFN_cuMemcpyAsync_v4000)(
        CUdeviceptr, CUdeviceptr, size_t, CUstream) noexcept nogil  # copy, copy_async(dst, src, size, stream)
    ctypedef int (*PFN_cuMemcpyPeerAsync_v4000)(
        CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream) noexcept nogil  # copy_peer, copy_across
    ctypedef int (*PFN_cuMemcpy3DAsync_v3020)(
        const CUDA_MEMCPY3D_v2*, CUstream) noexcept nogil  # copy_3d, array_copy(copy, stream)
    ctypedef int (*PFN_cuMemsetD8Async_v3020)(CUdeviceptr, unsigned char, size_t, CUstream) noexcept nogil  # fill
    ctypedef int (*PFN_cuMemsetD16Async_v3020)(CUdeviceptr, unsigned short, size_t, CUstream) noexcept nogil  # fill
    ctypedef int (*PFN_cuMemsetD32Async_v3020)(CUdeviceptr, unsigned int, size_t, CUstream) noexcept nogil  # fill
    # CUDA arrays, textures and surfaces; the structs are laid out as those of ../textures.pxd
    ctypedef int (*PFN_cuArray3DCreate_v3020)(CUarray*, const void*) noexcept nogil  # array_create(out_array, spec)
    ctypedef int (*PFN_cuArrayDestroy_v2000)(CUarray) noexcept nogil  # array_destroy(array)
    ctypedef int (*PFN_cuArray3DGetDescriptor_v3020)(void*, CUarray) noexcept nogil  # array_spec(spec, array)
    ctypedef int (*PFN_cuMipmappedArrayCreate_v5000)(
        CUmipmappedArray*, const void*, unsigned int) noexcept nogil  # mipmap_create(out_mipmap, spec, levels)
    ctypedef int (*PFN_cuMipmappedArrayDestroy_v5000)(CUmipmappedArray) noexcept nogil  # mipmap_destroy(mipmap)
    ctypedef int (*PFN_cuMipmappedArrayGetLevel_v5000)(CUarray*, CUmipmappedArray, unsigned int) noexcept nogil  # mipmap_level(out_array, mipmap, level)  # no-cython-lint
    ctypedef int (*PFN_cuTexObjectCreate_v5000)(
        unsigned long long*, const void*, const void*, const void*) noexcept nogil  # texture_create
    ctypedef int (*PFN_cuTexObjectDestroy_v5000)(unsigned long long) noexcept nogil  # texture_destroy
    ctypedef int (*PFN_cuSurfObjectCreate_v5000)(unsigned long long*, const void*) noexcept nogil  # texture_create
    ctypedef int (*PFN_cuSurfObjectDestroy_v5000)(unsigned long long) noexcept nogil  # texture_destroy

    # sharing between processes
    ctypedef int (*PFN_cuIpcGetEventHandle_v4010)(CUipcEventHandle*, CUevent) noexcept nogil  # ipc_event_export
    ctypedef int (*PFN_cuIpcOpenEventHandle_v4010)(CUevent*, CUipcEventHandle) noexcept nogil  # ipc_event_open
    ctypedef int (*PFN_cuIpcGetMemHandle_v4010)(CUipcMemHandle*, CUdeviceptr) noexcept nogil  # ipc_memory_export
    ctypedef int (*PFN_cuIpcOpenMemHandle_v11000)(
        CUdeviceptr*, CUipcMemHandle, unsigned int) noexcept nogil  # ipc_memory_open
    ctypedef int (*PFN_cuIpcCloseMemHandle_v4010)(CUdeviceptr) noexcept nogil  # ipc_memory_close(address)

    # modules and launches
    ctypedef int (*PFN_cuModuleLoadData_v2000)(CUmodule*, const void*) noexcept nogil  # module_load(out_module, image)
    ctypedef int (*PFN_cuModuleLoadDataEx_v2010)(
        CUmodule*, const void*, unsigned int, CUjit_option*, void**) noexcept nogil  # module_log
    ctypedef int (*PFN_cuModuleUnload_v2000)(CUmodule) noexcept nogil  # module_unload(module)
    ctypedef int (*PFN_cuModuleGetLoadingMode_v11070)(
        CUmoduleLoadingMode*) noexcept nogil  # no context: module_loading(out_mode)
    ctypedef int (*PFN_cuModuleGetFunction_v2000)(
        CUfunction*, CUmodule, const char*) noexcept nogil  # module_function(out_function, module, name)
    ctypedef int (*PFN_cuModuleGetGlobal_v3020)(
        CUdeviceptr*, size_t*, CUmodule, const char*) noexcept nogil  # module_global(out_address, out_size, module, name)
    ctypedef int (*PFN_cuFuncGetAttribute_v2020)(
        int*, CUfunction_attribute, CUfunction) noexcept nogil  # function_attribute(out_value, attribute, function)
    ctypedef int (*PFN_cuFuncSetAttribute_v9000)(
        CUfunction, CUfunction_attribute, int) noexcept nogil  # function_attribute_set(function, attribute, value)
    ctypedef int (*PFN_cuLaunchKernel_v4000)(
        CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned
        int, CUstream, void**, void**) noexcept nogil  # kernel_launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments, NULL)  # no-cython-lint
    ctypedef int (*PFN_cuLaunchKernelEx_v11060)(
        const CUlaunchConfig*, CUfunction, void**, void**) noexcept nogil  # kernel_launch_with
    ctypedef int (*PFN_cuOccupancyMaxActiveBlocksPerMultiprocessor_v6050)(
        int*, CUfunction, int, size_t) noexcept nogil  # occupancy_blocks(out_blocks, function, threads, shared_bytes)
    ctypedef int (*PFN_cuOccupancyMaxPotentialBlockSize_v6050)(
        int*, int*, CUfunction, CUoccupancyB2DSize, size_t, int) noexcept nogil  # occupancy_block_size(out_grid, out_threads, function, NULL, shared_bytes, limit)  # no-cython-lint
    ctypedef int (*PFN_cuOccupancyMaxActiveClusters_v11070)(
        int*, CUfunction, const CUlaunchConfig*) noexcept nogil  # occupancy_clusters
    ctypedef int (*PFN_cuOccupancyMaxPotentialClusterSize_v11070)(
        int*, CUfunction, const CUlaunchConfig*) noexcept nogil  # occupancy_cluster_size
    ctypedef int (*PFN_cuOccupancyAvailableDynamicSMemPerBlock_v10020)(
        size_t*, CUfunction, int, int) noexcept nogil  # occupancy_shared(out_bytes, function, blocks, threads)
# Typed by hand, for headers have had them only since 13.0, 12.5 and 12.4.
ctypedef int (*PFN_cuMemPrefetchBatchAsync_v13000)(
    CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t, unsigned long long,
    CUstream) noexcept nogil  # not needed
ctypedef int (*PFN_cuMemDiscardBatchAsync_v13000)(
    CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream) noexcept nogil  # managed_discard
ctypedef int (*PFN_cuMemDiscardAndPrefetchBatchAsync_v13000)(
    CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t, unsigned long long,
    CUstream) noexcept nogil  # managed_discard
ctypedef int (*PFN_cuCtxRecordEvent_v12050)(CUcontext, CUevent) noexcept nogil  # not needed
ctypedef int (*PFN_cuFuncGetParamInfo_v12040)(
    CUfunction, size_t, size_t*, size_t*) noexcept nogil  # function_parameter(function, index, out_offset, out_size)
# Batches of copies: two forms of which the driver has the newer one, if any, and single copies with the same attributes.
ctypedef int (*PFN_cuMemcpyBatchAsync_v12080)(
    CUdeviceptr*, CUdeviceptr*, size_t*, size_t, void*, size_t*, size_t, size_t*, CUstream) noexcept nogil  # not needed
ctypedef int (*PFN_cuMemcpyBatchAsync_v13000)(
    CUdeviceptr*, CUdeviceptr*, size_t*, size_t, void*, size_t*, size_t, CUstream) noexcept nogil  # not needed
ctypedef int (*PFN_cuMemcpy3DBatchAsync_v12080)(
    size_t, void*, size_t*, unsigned long long, CUstream) noexcept nogil  # not needed
ctypedef int (*PFN_cuMemcpy3DBatchAsync_v13000)(size_t, void*, unsigned long long, CUstream) noexcept nogil  # not needed
ctypedef int (*PFN_cuMemcpyWithAttributesAsync_v13020)(
    CUdeviceptr, CUdeviceptr, size_t, void*, CUstream) noexcept nogil  # not needed
# The driver's pools: who may use a device's, and those of managed memory; and the name of a function.
ctypedef int (*PFN_cuMemPoolSetAccess_v11020)(CUmemoryPool, const CUmemAccessDesc*, size_t) noexcept nogil  # pool_access_set
ctypedef int (*PFN_cuMemPoolGetAccess_v11020)(
    CUmemAccess_flags*, CUmemoryPool, CUmemLocation*) noexcept nogil  # pool_access_get
ctypedef int (*PFN_cuMemPoolCreate_v11020)(CUmemoryPool*, const CUmemPoolProps*) noexcept nogil  # pool_create, pinned_pool_create, managed_pool_create  # no-cython-lint
ctypedef int (*PFN_cuMemPoolDestroy_v11020)(CUmemoryPool) noexcept nogil  # no context: pool_destroy(pool)
ctypedef int (*PFN_cuMemPoolExportToShareableHandle_v11020)(
    void*, CUmemoryPool, CUmemAllocationHandleType, unsigned long long) noexcept nogil  # pool_export
ctypedef int (*PFN_cuMemPoolImportFromShareableHandle_v11020)(
    CUmemoryPool*, void*, CUmemAllocationHandleType, unsigned long long) noexcept nogil  # pool_import
ctypedef int (*PFN_cuMemPoolExportPointer_v11020)(void*, CUdeviceptr) noexcept nogil  # pool_pointer_export
ctypedef int (*PFN_cuMemPoolImportPointer_v11020)(CUdeviceptr*, CUmemoryPool, void*) noexcept nogil  # pool_pointer_import
ctypedef int (*PFN_cuFuncGetName_v12030)(const char**, CUfunction) noexcept nogil  # function_name
ctypedef int (*PFN_cuMemGetDefaultMemPool_v13000)(CUmemoryPool*, CUmemLocation*, int) noexcept nogil  # not needed
