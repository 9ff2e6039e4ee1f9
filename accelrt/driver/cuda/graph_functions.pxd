# The functions of libcuda about captures, graphs and their nodes.  What the comments mean functions.pxd says.
from accelrt.driver.cuda.types cimport (
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D_v2,
    CUDA_MEMSET_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph,
    CUgraphConditionalHandle, CUgraphEdgeData, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphMem_attribute,
    CUgraphNode, CUgraphNodeParams, CUgraphNodeType, CUlaunchAttributeID, CUlaunchAttributeValue, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, cuuint64_t,
)

cdef extern from "cudaTypedefs.h" nogil:
    # captures, graphs and conditional nodes
    ctypedef int (*PFN_cuStreamBeginCapture_v10010)(
        CUstream, CUstreamCaptureMode) noexcept nogil  # capture_begin(stream, mode)
    ctypedef int (*PFN_cuStreamEndCapture_v10000)(CUstream, CUgraph*) noexcept nogil  # capture_end(stream, out_graph)
    ctypedef int (*PFN_cuStreamGetCaptureInfo_v10010)(
        CUstream, CUstreamCaptureStatus*, cuuint64_t*) noexcept nogil  # capture_status
    ctypedef int (*PFN_cuStreamIsCapturing_v10000)(
        CUstream, CUstreamCaptureStatus*) noexcept nogil  # capture_status, stream_is_capturing, copy
    ctypedef int (*PFN_cuThreadExchangeStreamCaptureMode_v10010)(
        CUstreamCaptureMode*) noexcept nogil  # capture_mode_exchange
    ctypedef int (*PFN_cuGraphDestroy_v10000)(CUgraph) noexcept nogil  # graph_destroy(graph)
    ctypedef int (*PFN_cuGraphGetNodes_v10000)(
        CUgraph, CUgraphNode*, size_t*) noexcept nogil  # graph_node_count(graph, NULL, out_count), graph_nodes
    ctypedef int (*PFN_cuGraphDebugDotPrint_v11030)(
        CUgraph, const char*, unsigned int) noexcept nogil  # graph_dot(graph, path, flags)
    ctypedef int (*PFN_cuGraphInstantiateWithFlags_v11040)(
        CUgraphExec*, CUgraph, unsigned long long) noexcept nogil  # graph_instantiate(out_exec, graph, flags)
    ctypedef int (*PFN_cuGraphExecUpdate_v12000)(
        CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*) noexcept nogil  # graph_update
    ctypedef int (*PFN_cuGraphUpload_v11010)(CUgraphExec, CUstream) noexcept nogil  # graph_upload(exec_, stream)
    ctypedef int (*PFN_cuGraphLaunch_v10000)(CUgraphExec, CUstream) noexcept nogil  # graph_launch(exec_, stream)
    ctypedef int (*PFN_cuGraphExecDestroy_v10000)(CUgraphExec) noexcept nogil  # graph_exec_destroy(exec_)
    ctypedef int (*PFN_cuGraphGetEdges_v12030)(
        CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t*) noexcept nogil  # graph_edges
    ctypedef int (*PFN_cuGraphNodeGetType_v10000)(
        CUgraphNode, CUgraphNodeType*) noexcept nogil  # graph_node_type(node, out_type), graph_node_params
    ctypedef int (*PFN_cuStreamBeginCaptureToGraph_v12030)(
        CUstream, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
        CUstreamCaptureMode) noexcept nogil  # capture_begin_to(stream, body, NULL, NULL, 0, mode)
    ctypedef int (*PFN_cuStreamGetCaptureInfo_v12030)(
        CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
        size_t*) noexcept nogil  # conditional_create, conditional_add, capture_site
    ctypedef int (*PFN_cuStreamUpdateCaptureDependencies_v12030)(
        CUstream, CUgraphNode*, const CUgraphEdgeData*, size_t, unsigned int) noexcept nogil  # conditional_add, capture_continue  # no-cython-lint
    ctypedef int (*PFN_cuGraphAddNode_v12030)(
        CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t, CUgraphNodeParams*) noexcept nogil  # conditional_add, graph_node_add  # no-cython-lint
    ctypedef int (*PFN_cuGraphConditionalHandleCreate_v12030)(
        CUgraphConditionalHandle*, CUgraph, CUcontext, unsigned int, unsigned int) noexcept nogil  # conditional_create, conditional_set, graph_condition  # no-cython-lint

    # kernel nodes
    ctypedef int (*PFN_cuGraphKernelNodeGetParams_v12000)(
        CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphKernelNodeSetParams_v12000)(
        CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*) noexcept nogil  # graph_node_set
    ctypedef int (*PFN_cuGraphExecKernelNodeSetParams_v10010)(
        CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1*) noexcept nogil  # graph_node_set
    ctypedef int (*PFN_cuGraphKernelNodeSetAttribute_v11000)(
        CUgraphNode, CUlaunchAttributeID, const CUlaunchAttributeValue*) noexcept nogil  # kernel_node_attribute_set
    ctypedef int (*PFN_cuGraphKernelNodeGetAttribute_v11000)(
        CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*) noexcept nogil  # kernel_node_attribute_get

    # graphs made by hand, other nodes and the memory of graphs
    ctypedef int (*PFN_cuGraphCreate_v10000)(CUgraph*, unsigned int) noexcept nogil  # graph_create(out_graph, 0)
    ctypedef int (*PFN_cuGraphClone_v10000)(CUgraph*, CUgraph) noexcept nogil  # graph_clone(out_graph, graph)
    ctypedef int (*PFN_cuGraphNodeFindInClone_v10000)(
        CUgraphNode*, CUgraphNode, CUgraph) noexcept nogil  # graph_find_in_clone(out_node, node, graph)
    ctypedef int (*PFN_cuGraphNodeSetParams_v12020)(CUgraphNode, CUgraphNodeParams*) noexcept nogil  # not needed
    ctypedef int (*PFN_cuGraphExecNodeSetParams_v12020)(
        CUgraphExec, CUgraphNode, CUgraphNodeParams*) noexcept nogil  # not needed
    ctypedef int (*PFN_cuGraphDestroyNode_v10000)(CUgraphNode) noexcept nogil  # graph_node_destroy(node)
    ctypedef int (*PFN_cuGraphAddDependencies_v12030)(
        CUgraph, const CUgraphNode*, const CUgraphNode*, const CUgraphEdgeData*, size_t) noexcept nogil  # graph_edges_add(graph, origins, targets, data, count)  # no-cython-lint
    ctypedef int (*PFN_cuGraphRemoveDependencies_v12030)(
        CUgraph, const CUgraphNode*, const CUgraphNode*, const CUgraphEdgeData*, size_t) noexcept nogil  # graph_edges_remove(graph, origins, targets, data, count)  # no-cython-lint
    ctypedef int (*PFN_cuGraphNodeSetEnabled_v11060)(
        CUgraphExec, CUgraphNode, unsigned int) noexcept nogil  # graph_node_enable(exec_, node, enabled)
    ctypedef int (*PFN_cuGraphNodeGetEnabled_v11060)(
        CUgraphExec, CUgraphNode, unsigned int*) noexcept nogil  # graph_node_enabled(exec_, node, out_enabled)
    ctypedef int (*PFN_cuGraphMemcpyNodeGetParams_v10000)(CUgraphNode, CUDA_MEMCPY3D_v2*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphMemsetNodeGetParams_v10000)(
        CUgraphNode, CUDA_MEMSET_NODE_PARAMS*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphHostNodeGetParams_v10000)(
        CUgraphNode, CUDA_HOST_NODE_PARAMS*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphEventRecordNodeGetEvent_v11010)(CUgraphNode, CUevent*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphEventWaitNodeGetEvent_v11010)(CUgraphNode, CUevent*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphChildGraphNodeGetGraph_v10000)(CUgraphNode, CUgraph*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphMemAllocNodeGetParams_v11040)(
        CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuGraphMemFreeNodeGetParams_v11040)(CUgraphNode, CUdeviceptr*) noexcept nogil  # graph_node_params
    ctypedef int (*PFN_cuDeviceGetGraphMemAttribute_v11040)(
        CUdevice, CUgraphMem_attribute, void*) noexcept nogil  # graph_memory_get
    ctypedef int (*PFN_cuDeviceSetGraphMemAttribute_v11040)(
        CUdevice, CUgraphMem_attribute, void*) noexcept nogil  # graph_memory_reset
    ctypedef int (*PFN_cuDeviceGraphMemTrim_v11040)(CUdevice) noexcept nogil  # graph_memory_trim(device)
# Typed by hand, for headers have had them only since 13.1: how tools of profiling name graphs.
ctypedef int (*PFN_cuGraphNodeGetToolsId_v13010)(
    CUgraphNode, cuuint64_t*) noexcept nogil  # graph_node_tools_id(node, out_id)
ctypedef int (*PFN_cuGraphExecGetId_v13010)(CUgraphExec, unsigned int*) noexcept nogil  # graph_exec_id(exec_, out_id)
