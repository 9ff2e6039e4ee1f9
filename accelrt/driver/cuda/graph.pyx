"""The capture, graph, kernel and interprocess rows of the cuda driver."""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.driver.cuda.context cimport enter, enter_any, enter_for, leave
from accelrt.driver.cuda.library cimport Symbol, resolve
from accelrt.driver.cuda.types cimport (
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_NONE, CUdeviceptr,
    CUevent, CUfunction, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode,
    CUgraphNodeType, CUipcEventHandle, CUipcMemHandle, CUmodule, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
    cuuint64_t,
)
from accelrt.driver.table cimport Table
from accelrt.status cimport NO_HOST_MEMORY, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuStreamBeginCapture_v10010)(CUstream, CUstreamCaptureMode) noexcept nogil
    ctypedef int (*PFN_cuStreamEndCapture_v10000)(CUstream, CUgraph*) noexcept nogil
    ctypedef int (*PFN_cuStreamGetCaptureInfo_v10010)(
        CUstream, CUstreamCaptureStatus*, cuuint64_t*) noexcept nogil
    ctypedef int (*PFN_cuThreadExchangeStreamCaptureMode_v10010)(CUstreamCaptureMode*) noexcept nogil
    ctypedef int (*PFN_cuGraphDestroy_v10000)(CUgraph) noexcept nogil
    ctypedef int (*PFN_cuGraphGetNodes_v10000)(CUgraph, CUgraphNode*, size_t*) noexcept nogil
    ctypedef int (*PFN_cuGraphDebugDotPrint_v11030)(CUgraph, const char*, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuGraphInstantiateWithFlags_v11040)(
        CUgraphExec*, CUgraph, unsigned long long) noexcept nogil
    ctypedef int (*PFN_cuGraphExecUpdate_v12000)(
        CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*) noexcept nogil
    ctypedef int (*PFN_cuGraphUpload_v11010)(CUgraphExec, CUstream) noexcept nogil
    ctypedef int (*PFN_cuGraphLaunch_v10000)(CUgraphExec, CUstream) noexcept nogil
    ctypedef int (*PFN_cuGraphExecDestroy_v10000)(CUgraphExec) noexcept nogil
    ctypedef int (*PFN_cuModuleLoadData_v2000)(CUmodule*, const void*) noexcept nogil
    ctypedef int (*PFN_cuModuleUnload_v2000)(CUmodule) noexcept nogil
    ctypedef int (*PFN_cuModuleGetFunction_v2000)(CUfunction*, CUmodule, const char*) noexcept nogil
    ctypedef int (*PFN_cuLaunchKernel_v4000)(
        CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
        unsigned int, CUstream, void**, void**) noexcept nogil
    ctypedef int (*PFN_cuIpcGetEventHandle_v4010)(CUipcEventHandle*, CUevent) noexcept nogil
    ctypedef int (*PFN_cuIpcOpenEventHandle_v4010)(CUevent*, CUipcEventHandle) noexcept nogil
    ctypedef int (*PFN_cuIpcGetMemHandle_v4010)(CUipcMemHandle*, CUdeviceptr) noexcept nogil
    ctypedef int (*PFN_cuIpcOpenMemHandle_v11000)(CUdeviceptr*, CUipcMemHandle, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuIpcCloseMemHandle_v4010)(CUdeviceptr) noexcept nogil

cdef PFN_cuStreamBeginCapture_v10010 cuStreamBeginCapture
cdef PFN_cuStreamEndCapture_v10000 cuStreamEndCapture
cdef PFN_cuStreamGetCaptureInfo_v10010 cuStreamGetCaptureInfo
cdef PFN_cuThreadExchangeStreamCaptureMode_v10010 cuThreadExchangeStreamCaptureMode
cdef PFN_cuGraphDestroy_v10000 cuGraphDestroy
cdef PFN_cuGraphGetNodes_v10000 cuGraphGetNodes
cdef PFN_cuGraphDebugDotPrint_v11030 cuGraphDebugDotPrint
cdef PFN_cuGraphInstantiateWithFlags_v11040 cuGraphInstantiateWithFlags
cdef PFN_cuGraphExecUpdate_v12000 cuGraphExecUpdate
cdef PFN_cuGraphUpload_v11010 cuGraphUpload
cdef PFN_cuGraphLaunch_v10000 cuGraphLaunch
cdef PFN_cuGraphExecDestroy_v10000 cuGraphExecDestroy
cdef PFN_cuModuleLoadData_v2000 cuModuleLoadData
cdef PFN_cuModuleUnload_v2000 cuModuleUnload
cdef PFN_cuModuleGetFunction_v2000 cuModuleGetFunction
cdef PFN_cuLaunchKernel_v4000 cuLaunchKernel
cdef PFN_cuIpcGetEventHandle_v4010 cuIpcGetEventHandle
cdef PFN_cuIpcOpenEventHandle_v4010 cuIpcOpenEventHandle
cdef PFN_cuIpcGetMemHandle_v4010 cuIpcGetMemHandle
cdef PFN_cuIpcOpenMemHandle_v11000 cuIpcOpenMemHandle
cdef PFN_cuIpcCloseMemHandle_v4010 cuIpcCloseMemHandle


cdef int fill_graphs(Table* table, Table* blank) except -1:
    fill_capture(table, blank)
    fill_graph_rows(table, blank)
    fill_kernels(table, blank)
    fill_ipc(table, blank)
    return SUCCESS


# capture

cdef int fill_capture(Table* table, Table* blank) except -1:
    cdef Symbol[4] symbols = [
        Symbol(b"cuStreamBeginCapture", 10010, <void**>&cuStreamBeginCapture, <void**>&table.capture_begin),
        Symbol(b"cuStreamEndCapture", 10000, <void**>&cuStreamEndCapture, <void**>&table.capture_end),
        Symbol(b"cuStreamGetCaptureInfo", 10010, <void**>&cuStreamGetCaptureInfo, <void**>&table.capture_status),
        Symbol(b"cuThreadExchangeStreamCaptureMode", 10010, <void**>&cuThreadExchangeStreamCaptureMode,
               <void**>&table.capture_mode_exchange),
    ]
    table.capture_begin = capture_begin
    table.capture_end = capture_end
    table.capture_status = capture_status
    table.capture_mode_exchange = capture_mode_exchange
    return resolve(symbols, 4, table, blank)


cdef int capture_begin(int device, uintptr_t stream, int mode) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamBeginCapture(<CUstream>stream, <CUstreamCaptureMode>mode)
    return leave(pushed, code)


cdef int capture_end(int device, uintptr_t stream, uintptr_t* out_graph) noexcept nogil:
    cdef CUgraph graph = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamEndCapture(<CUstream>stream, &graph)
    out_graph[0] = <uintptr_t>graph if code == SUCCESS else 0
    return leave(pushed, code)


cdef int capture_status(int device, uintptr_t stream, int* out_status, uint64_t* out_id) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef cuuint64_t identity = 0
    cdef bint pushed = False
    cdef int code = enter_for(device, stream, &pushed)
    if code == SUCCESS:
        code = cuStreamGetCaptureInfo(<CUstream>stream, &status, &identity)
    out_status[0] = status
    out_id[0] = identity if status == CU_STREAM_CAPTURE_STATUS_ACTIVE else 0
    return leave(pushed, code)


cdef int capture_mode_exchange(int mode, int* out_before) noexcept nogil:
    cdef CUstreamCaptureMode exchanged = <CUstreamCaptureMode>mode
    cdef int code = cuThreadExchangeStreamCaptureMode(&exchanged)
    out_before[0] = exchanged
    return code


# graphs

cdef int fill_graph_rows(Table* table, Table* blank) except -1:
    cdef Symbol[8] symbols = [
        Symbol(b"cuGraphDestroy", 10000, <void**>&cuGraphDestroy, <void**>&table.graph_destroy),
        Symbol(b"cuGraphGetNodes", 10000, <void**>&cuGraphGetNodes, <void**>&table.graph_node_count),
        Symbol(b"cuGraphDebugDotPrint", 11030, <void**>&cuGraphDebugDotPrint, <void**>&table.graph_dot),
        Symbol(b"cuGraphInstantiateWithFlags", 11040, <void**>&cuGraphInstantiateWithFlags,
               <void**>&table.graph_instantiate),
        Symbol(b"cuGraphExecUpdate", 12000, <void**>&cuGraphExecUpdate, <void**>&table.graph_update),
        Symbol(b"cuGraphUpload", 11010, <void**>&cuGraphUpload, <void**>&table.graph_upload),
        Symbol(b"cuGraphLaunch", 10000, <void**>&cuGraphLaunch, <void**>&table.graph_launch),
        Symbol(b"cuGraphExecDestroy", 10000, <void**>&cuGraphExecDestroy, <void**>&table.graph_exec_destroy),
    ]
    table.graph_destroy = graph_destroy
    table.graph_node_count = graph_node_count
    table.graph_dot = graph_dot
    table.graph_instantiate = graph_instantiate
    table.graph_update = graph_update
    table.graph_upload = graph_upload
    table.graph_launch = graph_launch
    table.graph_exec_destroy = graph_exec_destroy
    return resolve(symbols, 8, table, blank)


cdef int graph_destroy(uintptr_t graph) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphDestroy(<CUgraph>graph)
    return leave(pushed, code)


cdef int graph_node_count(uintptr_t graph, size_t* out_count) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphGetNodes(<CUgraph>graph, NULL, out_count)
    return leave(pushed, code)


cdef int graph_dot(uintptr_t graph, const char* path, unsigned int flags) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphDebugDotPrint(<CUgraph>graph, path, flags)
    return leave(pushed, code)


cdef int graph_instantiate(int device, uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil:
    cdef CUgraphExec made = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuGraphInstantiateWithFlags(&made, <CUgraph>graph, flags)
    out_exec[0] = <uintptr_t>made if code == SUCCESS else 0
    return leave(pushed, code)


cdef int graph_update(uintptr_t exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil:
    cdef CUgraphExecUpdateResultInfo told
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    memset(&told, 0, sizeof(told))
    if code == SUCCESS:
        code = cuGraphExecUpdate(<CUgraphExec>exec_, <CUgraph>graph, &told)
    out_result[0] = told.result
    out_node[0] = <uintptr_t>told.errorNode
    return leave(pushed, code)


cdef int graph_upload(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuGraphUpload(<CUgraphExec>exec_, <CUstream>stream)
    return leave(pushed, code)


cdef int graph_launch(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuGraphLaunch(<CUgraphExec>exec_, <CUstream>stream)
    return leave(pushed, code)


cdef int graph_exec_destroy(uintptr_t exec_) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphExecDestroy(<CUgraphExec>exec_)
    return leave(pushed, code)


# kernels

cdef int fill_kernels(Table* table, Table* blank) except -1:
    cdef Symbol[4] symbols = [
        Symbol(b"cuModuleLoadData", 2000, <void**>&cuModuleLoadData, <void**>&table.module_load),
        Symbol(b"cuModuleUnload", 2000, <void**>&cuModuleUnload, <void**>&table.module_unload),
        Symbol(b"cuModuleGetFunction", 2000, <void**>&cuModuleGetFunction, <void**>&table.module_function),
        Symbol(b"cuLaunchKernel", 4000, <void**>&cuLaunchKernel, <void**>&table.kernel_launch),
    ]
    table.module_load = module_load
    table.module_unload = module_unload
    table.module_function = module_function
    table.kernel_launch = kernel_launch
    return resolve(symbols, 4, table, blank)


cdef int module_load(int device, const char* image, uintptr_t* out_module) noexcept nogil:
    cdef CUmodule module = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuModuleLoadData(&module, image)
    out_module[0] = <uintptr_t>module if code == SUCCESS else 0
    return leave(pushed, code)


cdef int module_unload(int device, uintptr_t module) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuModuleUnload(<CUmodule>module)
    return leave(pushed, code)


cdef int module_function(uintptr_t module, const char* name, uintptr_t* out_function) noexcept nogil:
    cdef CUfunction function = NULL
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuModuleGetFunction(&function, <CUmodule>module, name)
    out_function[0] = <uintptr_t>function if code == SUCCESS else 0
    return leave(pushed, code)


cdef int kernel_launch(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuLaunchKernel(<CUfunction>function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                              shared_bytes, <CUstream>stream, arguments, NULL)
    return leave(pushed, code)


# between processes: the handles are 64 bytes that travel as they are

cdef int fill_ipc(Table* table, Table* blank) except -1:
    cdef Symbol[5] symbols = [
        Symbol(b"cuIpcGetEventHandle", 4010, <void**>&cuIpcGetEventHandle, <void**>&table.ipc_event_export),
        Symbol(b"cuIpcOpenEventHandle", 4010, <void**>&cuIpcOpenEventHandle, <void**>&table.ipc_event_open),
        Symbol(b"cuIpcGetMemHandle", 4010, <void**>&cuIpcGetMemHandle, <void**>&table.ipc_memory_export),
        Symbol(b"cuIpcOpenMemHandle", 11000, <void**>&cuIpcOpenMemHandle, <void**>&table.ipc_memory_open),
        Symbol(b"cuIpcCloseMemHandle", 4010, <void**>&cuIpcCloseMemHandle, <void**>&table.ipc_memory_close),
    ]
    table.ipc_event_export = ipc_event_export
    table.ipc_event_open = ipc_event_open
    table.ipc_memory_export = ipc_memory_export
    table.ipc_memory_open = ipc_memory_open
    table.ipc_memory_close = ipc_memory_close
    return resolve(symbols, 5, table, blank)


cdef int ipc_event_export(int device, uintptr_t event, char* out_ipc) noexcept nogil:
    cdef CUipcEventHandle handle
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuIpcGetEventHandle(&handle, <CUevent>event)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return leave(pushed, code)


cdef int ipc_event_open(int device, const char* handle, uintptr_t* out_event) noexcept nogil:
    cdef CUipcEventHandle given
    cdef CUevent event = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memcpy(&given, handle, sizeof(given))
    if code == SUCCESS:
        code = cuIpcOpenEventHandle(&event, given)
    out_event[0] = <uintptr_t>event if code == SUCCESS else 0
    return leave(pushed, code)


cdef int ipc_memory_export(int device, uintptr_t address, char* out_ipc) noexcept nogil:
    cdef CUipcMemHandle handle
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuIpcGetMemHandle(&handle, address)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return leave(pushed, code)


cdef int ipc_memory_open(int device, const char* handle, uintptr_t* out_address) noexcept nogil:
    cdef CUipcMemHandle given
    cdef CUdeviceptr address = 0
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memcpy(&given, handle, sizeof(given))
    if code == SUCCESS:
        code = cuIpcOpenMemHandle(&address, given, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    out_address[0] = address if code == SUCCESS else 0
    return leave(pushed, code)


cdef int ipc_memory_close(int device, uintptr_t address) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuIpcCloseMemHandle(address)
    return leave(pushed, code)


# --- the rows of the cuda driver that list a graph's nodes and edges --------------------------------------

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuGraphGetEdges_v12030)(
        CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t*) noexcept nogil
    ctypedef int (*PFN_cuGraphNodeGetType_v10000)(CUgraphNode, CUgraphNodeType*) noexcept nogil

cdef PFN_cuGraphGetEdges_v12030 cuGraphGetEdges
cdef PFN_cuGraphNodeGetType_v10000 cuGraphNodeGetType


cdef int fill_nodes(Table* table, Table* blank) except -1:
    cdef Symbol[3] symbols = [
        Symbol(b"cuGraphGetNodes", 10000, <void**>&cuGraphGetNodes, <void**>&table.graph_nodes),
        Symbol(b"cuGraphGetEdges", 12030, <void**>&cuGraphGetEdges, <void**>&table.graph_edges),
        Symbol(b"cuGraphNodeGetType", 10000, <void**>&cuGraphNodeGetType, <void**>&table.graph_node_type),
    ]
    table.graph_nodes = graph_nodes
    table.graph_edges = graph_edges
    table.graph_node_type = graph_node_type
    return resolve(symbols, 3, table, blank)


cdef int graph_nodes(uintptr_t graph, size_t room, void* nodes, size_t* out_count) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_count[0] = room
    if code == SUCCESS:
        code = cuGraphGetNodes(<CUgraph>graph, <CUgraphNode*>nodes if room else NULL, out_count)
    return leave(pushed, code)


cdef int graph_edges(uintptr_t graph, size_t room, void* origins, void* targets, size_t* out_count) noexcept nogil:
    # Without room for the edges' data the driver refuses to list edges that carry any (LOSSY_QUERY).
    cdef CUgraphEdgeData* data = NULL
    cdef bint pushed = False
    cdef int code
    out_count[0] = room
    if room:
        data = <CUgraphEdgeData*>calloc(room, sizeof(CUgraphEdgeData))
        if data == NULL:
            return NO_HOST_MEMORY
    code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphGetEdges(<CUgraph>graph, <CUgraphNode*>origins if room else NULL,
                               <CUgraphNode*>targets if room else NULL, data, out_count)
    free(data)
    return leave(pushed, code)


cdef int graph_node_type(uintptr_t graph, uintptr_t node, int* out_type) noexcept nogil:
    cdef CUgraphNodeType found = <CUgraphNodeType>0
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphNodeGetType(<CUgraphNode>node, &found)
    out_type[0] = found
    return leave(pushed, code)
