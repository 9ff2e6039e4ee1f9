"""What the cuda driver calls of libcuda, by the module that calls it; rowgen.py makes the tables of it.

A line is a function without its version suffix; the version that names its ABI (12000 is 12.0), the same
that cudaTypedefs.h writes into the name of the pointer's type, so that a function whose signature changed
since is no trouble; what it takes; and the rows that cannot work without it.  One without rows is needed by
every row, and open fails where the driver lacks it, unless a ? says that the module itself looks whether it
is there.
"""

SYMBOLS = {
    "context": """
cuDriverGetVersion 2020 (int*): driver_version
cuDeviceGet 2000 (CUdevice*, int)
cuDeviceGetCount 2000 (int*)
cuDeviceGetName 2000 (char*, int, CUdevice): device_name
cuDeviceGetUuid 11040 (CUuuid*, CUdevice): device_uuid  # tells the instances of a MIG device apart
cuDeviceGetPCIBusId 4010 (char*, int, CUdevice): device_pci_bus_id
cuDeviceGetAttribute 2000 (int*, CUdevice_attribute, CUdevice)
cuDeviceTotalMem 3020 (size_t*, CUdevice): device_memory
cuMemGetInfo 3020 (size_t*, size_t*): memory_info
cuCtxGetCurrent 4000 (CUcontext*)
cuCtxSetCurrent 4000 (CUcontext)
cuCtxPushCurrent 4000 (CUcontext)
cuCtxPopCurrent 4000 (CUcontext*)
cuCtxGetDevice 2000 (CUdevice*)
cuCtxSynchronize 2000 (): device_synchronize
cuDevicePrimaryCtxRetain 7000 (CUcontext*, CUdevice)
cuDevicePrimaryCtxGetState 7000 (CUdevice, unsigned int*, int*)
cuDeviceCanAccessPeer 4000 (int*, CUdevice, CUdevice): can_access_peer
cuCtxEnablePeerAccess 4000 (CUcontext, unsigned int): enable_peer
cuCtxRecordEvent 12050 (CUcontext, CUevent)?
""",
    "memory": """
cuMemAlloc 3020 (CUdeviceptr*, size_t): memory_alloc
cuMemFree 3020 (CUdeviceptr): memory_free
cuPointerGetAttributes 7000 (unsigned int, CUpointer_attribute*, void**, CUdeviceptr): pointer_device
cuMemGetAllocationGranularity 10020 (size_t*, const CUmemAllocationProp*,
    CUmemAllocationGranularity_flags): granularity
cuMemAddressReserve 10020 (CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long): address_reserve
cuMemAddressFree 10020 (CUdeviceptr, size_t): address_free
cuMemCreate 10020 (CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long):
    physical_create
cuMemRelease 10020 (CUmemGenericAllocationHandle): physical_release
cuMemMap 10020 (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long): memory_map
cuMemSetAccess 10020 (CUdeviceptr, size_t, const CUmemAccessDesc*, size_t): memory_access
cuMemUnmap 10020 (CUdeviceptr, size_t): memory_unmap
cuMemAllocFromPoolAsync 11020 (CUdeviceptr*, size_t, CUmemoryPool, CUstream): async_alloc
cuMemFreeAsync 11020 (CUdeviceptr, CUstream): async_free
cuMemPoolTrimTo 11020 (CUmemoryPool, size_t): async_trim
cuMemPoolGetAttribute 11020 (CUmemoryPool, CUmemPool_attribute, void*): async_get
cuMemPoolSetAttribute 11020 (CUmemoryPool, CUmemPool_attribute, void*): async_set
cuDeviceGetDefaultMemPool 11020 (CUmemoryPool*, CUdevice): async_alloc
cuMemHostAlloc 2020 (void**, size_t, unsigned int): host_alloc
cuMemFreeHost 2000 (void*): host_free
cuMemHostRegister 6050 (void*, size_t, unsigned int): host_register
cuMemHostUnregister 4000 (void*): host_unregister
""",
    "stream": """
cuCtxGetStreamPriorityRange 5050 (int*, int*): stream_priority_range
cuStreamCreateWithPriority 5050 (CUstream*, unsigned int, int): stream_create
cuStreamDestroy 4000 (CUstream): stream_destroy
cuStreamGetPriority 5050 (CUstream, int*): stream_priority
cuStreamGetFlags 5050 (CUstream, unsigned int*): stream_flags
cuStreamGetCtx 9020 (CUstream, CUcontext*): stream_device
cuStreamQuery 2000 (CUstream): stream_query
cuStreamSynchronize 2000 (CUstream): stream_synchronize, copy
cuStreamWaitEvent 3020 (CUstream, CUevent, unsigned int): stream_wait_event, stream_wait_external
cuLaunchHostFunc 10000 (CUstream, CUhostFn, void*): stream_host_func
cuEventCreate 2000 (CUevent*, unsigned int): event_create
cuEventDestroy 4000 (CUevent): event_destroy
cuEventRecord 2000 (CUevent, CUstream): event_record
cuEventRecordWithFlags 11010 (CUevent, CUstream, unsigned int): event_record_external
cuEventQuery 2000 (CUevent): event_query
cuEventSynchronize 2000 (CUevent): event_synchronize
cuEventElapsedTime 2000 (float*, CUevent, CUevent): event_elapsed
cuMemcpyAsync 4000 (CUdeviceptr, CUdeviceptr, size_t, CUstream): copy, copy_async
cuStreamIsCapturing 10000 (CUstream, CUstreamCaptureStatus*): copy
cuMemcpyPeerAsync 4000 (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream): copy_peer,
    copy_across
cuMemsetD8Async 3020 (CUdeviceptr, unsigned char, size_t, CUstream): fill
cuMemsetD16Async 3020 (CUdeviceptr, unsigned short, size_t, CUstream): fill
cuMemsetD32Async 3020 (CUdeviceptr, unsigned int, size_t, CUstream): fill
""",
    "graph": """
cuStreamBeginCapture 10010 (CUstream, CUstreamCaptureMode): capture_begin
cuStreamEndCapture 10000 (CUstream, CUgraph*): capture_end
cuStreamGetCaptureInfo 10010 (CUstream, CUstreamCaptureStatus*, cuuint64_t*): capture_status
cuThreadExchangeStreamCaptureMode 10010 (CUstreamCaptureMode*): capture_mode_exchange
cuGraphDestroy 10000 (CUgraph): graph_destroy
cuGraphGetNodes 10000 (CUgraph, CUgraphNode*, size_t*): graph_node_count, graph_nodes
cuGraphDebugDotPrint 11030 (CUgraph, const char*, unsigned int): graph_dot
cuGraphInstantiateWithFlags 11040 (CUgraphExec*, CUgraph, unsigned long long): graph_instantiate
cuGraphExecUpdate 12000 (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*): graph_update
cuGraphUpload 11010 (CUgraphExec, CUstream): graph_upload
cuGraphLaunch 10000 (CUgraphExec, CUstream): graph_launch
cuGraphExecDestroy 10000 (CUgraphExec): graph_exec_destroy
cuModuleLoadData 2000 (CUmodule*, const void*): module_load
cuModuleUnload 2000 (CUmodule): module_unload
cuModuleGetFunction 2000 (CUfunction*, CUmodule, const char*): module_function
cuLaunchKernel 4000 (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
    unsigned int, unsigned int, CUstream, void**, void**): kernel_launch
cuIpcGetEventHandle 4010 (CUipcEventHandle*, CUevent): ipc_event_export
cuIpcOpenEventHandle 4010 (CUevent*, CUipcEventHandle): ipc_event_open
cuIpcGetMemHandle 4010 (CUipcMemHandle*, CUdeviceptr): ipc_memory_export
cuIpcOpenMemHandle 11000 (CUdeviceptr*, CUipcMemHandle, unsigned int): ipc_memory_open
cuIpcCloseMemHandle 4010 (CUdeviceptr): ipc_memory_close
cuGraphGetEdges 12030 (CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t*): graph_edges
cuGraphNodeGetType 10000 (CUgraphNode, CUgraphNodeType*): graph_node_type
cuStreamBeginCaptureToGraph 12030 (CUstream, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
    CUstreamCaptureMode): capture_begin_to
cuStreamGetCaptureInfo 12030 (CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const
    CUgraphNode**, const CUgraphEdgeData**, size_t*): conditional_create, conditional_add
cuStreamUpdateCaptureDependencies 12030 (CUstream, CUgraphNode*, const CUgraphEdgeData*, size_t, unsigned
    int): conditional_add
cuGraphAddNode 12030 (CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
    CUgraphNodeParams*): conditional_add
cuGraphConditionalHandleCreate 12030 (CUgraphConditionalHandle*, CUgraph, CUcontext, unsigned int,
    unsigned int): conditional_create, conditional_set
""",
}
