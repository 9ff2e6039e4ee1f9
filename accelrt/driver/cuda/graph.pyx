"""The capture, graph and interprocess rows of the cuda driver, and those for conditional nodes, of CUDA 12.3 on.

Only a kernel can set a condition (cudaGraphSetConditional).  Ours is the few lines of PTX below, compiled by the
driver itself when a device first needs it: the driver resolves the name while it does, so no toolkit and no
library of CUDA's is linked.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
from accelrt.driver.cuda.context cimport (
    MOST_DEVICES, Symbol, enter, enter_any, enter_for, leave, primary_of, resolve, rows,
)
from accelrt.driver.cuda.types cimport (
    CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
    CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUcontext,
    CUdeviceptr, CUevent, CUgraph, CUgraphConditionalHandle, CUgraphEdgeData, CUgraphExec,
    CUgraphExecUpdateResultInfo, CUgraphNode, CUgraphNodeParams, CUgraphNodeType, CUipcEventHandle, CUipcMemHandle,
    CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, cuuint64_t,
)
from accelrt.driver.table cimport Table
from accelrt.status cimport ILLEGAL_STATE, NO_HOST_MEMORY, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuStreamBeginCapture_v10010)(CUstream, CUstreamCaptureMode) noexcept nogil  # capture_begin
    ctypedef int (*PFN_cuStreamEndCapture_v10000)(CUstream, CUgraph*) noexcept nogil  # capture_end
    ctypedef int (*PFN_cuStreamGetCaptureInfo_v10010)(
        CUstream, CUstreamCaptureStatus*, cuuint64_t*) noexcept nogil  # capture_status
    ctypedef int (*PFN_cuStreamIsCapturing_v10000)(
        CUstream, CUstreamCaptureStatus*) noexcept nogil  # capture_status, stream_is_capturing
    ctypedef int (*PFN_cuThreadExchangeStreamCaptureMode_v10010)(
        CUstreamCaptureMode*) noexcept nogil  # capture_mode_exchange
    ctypedef int (*PFN_cuGraphDestroy_v10000)(CUgraph) noexcept nogil  # graph_destroy
    ctypedef int (*PFN_cuGraphGetNodes_v10000)(
        CUgraph, CUgraphNode*, size_t*) noexcept nogil  # graph_node_count, graph_nodes
    ctypedef int (*PFN_cuGraphDebugDotPrint_v11030)(CUgraph, const char*, unsigned int) noexcept nogil  # graph_dot
    ctypedef int (*PFN_cuGraphInstantiateWithFlags_v11040)(
        CUgraphExec*, CUgraph, unsigned long long) noexcept nogil  # graph_instantiate
    ctypedef int (*PFN_cuGraphExecUpdate_v12000)(
        CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*) noexcept nogil  # graph_update
    ctypedef int (*PFN_cuGraphUpload_v11010)(CUgraphExec, CUstream) noexcept nogil  # graph_upload
    ctypedef int (*PFN_cuGraphLaunch_v10000)(CUgraphExec, CUstream) noexcept nogil  # graph_launch
    ctypedef int (*PFN_cuGraphExecDestroy_v10000)(CUgraphExec) noexcept nogil  # graph_exec_destroy
    ctypedef int (*PFN_cuIpcGetEventHandle_v4010)(CUipcEventHandle*, CUevent) noexcept nogil  # ipc_event_export
    ctypedef int (*PFN_cuIpcOpenEventHandle_v4010)(CUevent*, CUipcEventHandle) noexcept nogil  # ipc_event_open
    ctypedef int (*PFN_cuIpcGetMemHandle_v4010)(CUipcMemHandle*, CUdeviceptr) noexcept nogil  # ipc_memory_export
    ctypedef int (*PFN_cuIpcOpenMemHandle_v11000)(
        CUdeviceptr*, CUipcMemHandle, unsigned int) noexcept nogil  # ipc_memory_open
    ctypedef int (*PFN_cuIpcCloseMemHandle_v4010)(CUdeviceptr) noexcept nogil  # ipc_memory_close
    ctypedef int (*PFN_cuGraphGetEdges_v12030)(
        CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t*) noexcept nogil  # graph_edges
    ctypedef int (*PFN_cuGraphNodeGetType_v10000)(CUgraphNode, CUgraphNodeType*) noexcept nogil  # graph_node_type
    ctypedef int (*PFN_cuStreamBeginCaptureToGraph_v12030)(
        CUstream, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
        CUstreamCaptureMode) noexcept nogil  # capture_begin_to
    ctypedef int (*PFN_cuStreamGetCaptureInfo_v12030)(
        CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
        size_t*) noexcept nogil  # conditional_create, conditional_add
    ctypedef int (*PFN_cuStreamUpdateCaptureDependencies_v12030)(
        CUstream, CUgraphNode*, const CUgraphEdgeData*, size_t, unsigned int) noexcept nogil  # conditional_add
    ctypedef int (*PFN_cuGraphAddNode_v12030)(
        CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
        CUgraphNodeParams*) noexcept nogil  # conditional_add
    ctypedef int (*PFN_cuGraphConditionalHandleCreate_v12030)(
        CUgraphConditionalHandle*, CUgraph, CUcontext, unsigned int,
        unsigned int) noexcept nogil  # conditional_create, conditional_set

cdef extern from *:
    int ACQUIRE "__ATOMIC_ACQUIRE"
    int RELEASE "__ATOMIC_RELEASE"
    uintptr_t load_function "__atomic_load_n"(uintptr_t* from_, int order) noexcept nogil
    void store_function "__atomic_store_n"(uintptr_t* to, uintptr_t function, int order) noexcept nogil

cdef struct Site:  # where a stream's next node goes
    CUgraph graph
    const CUgraphNode* after
    const CUgraphEdgeData* edges
    size_t count

cdef uintptr_t[MOST_DEVICES] setters  # the kernel, by device; 0 until a device needs it
cdef const char* PTX = b"""
.version 6.4
.target sm_70
.address_size 64

.extern .func cudaGraphSetConditional (.param .b64 condition, .param .b32 value);

.visible .entry accelrt_set_condition (.param .u64 given_condition, .param .u64 given_address)
{
    .reg .b32 %value;
    .reg .b64 %condition, %address;
    .param .b64 first;
    .param .b32 second;
    ld.param.u64 %condition, [given_condition];
    ld.param.u64 %address, [given_address];
    cvta.to.global.u64 %address, %address;
    ld.global.u32 %value, [%address];
    st.param.b64 [first], %condition;
    st.param.b32 [second], %value;
    call.uni cudaGraphSetConditional, (first, second);
    ret;
}
"""

include "graph_rows.pxi"


# capture

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
    # Only an active capture is asked for its id: a stream that another library's thread takes out of its capture just now
    # must not be named to cuStreamGetCaptureInfo.
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef cuuint64_t identity = 0
    cdef bint pushed = False
    cdef int code = enter_for(device, stream, &pushed)
    if code == SUCCESS:
        code = cuStreamIsCapturing(<CUstream>stream, &status)
    if code == SUCCESS and status == CU_STREAM_CAPTURE_STATUS_ACTIVE:
        code = cuStreamGetCaptureInfo(<CUstream>stream, &status, &identity)
    out_status[0] = status
    out_id[0] = identity if status == CU_STREAM_CAPTURE_STATUS_ACTIVE else 0
    return leave(pushed, code)


cdef int stream_is_capturing(int device, uintptr_t stream, int* out_status) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef bint pushed = False
    cdef int code = enter_for(device, stream, &pushed)
    if code == SUCCESS:
        code = cuStreamIsCapturing(<CUstream>stream, &status)
    out_status[0] = status
    return leave(pushed, code)


cdef int capture_mode_exchange(int mode, int* out_before) noexcept nogil:
    cdef CUstreamCaptureMode exchanged = <CUstreamCaptureMode>mode
    cdef int code = cuThreadExchangeStreamCaptureMode(&exchanged)
    out_before[0] = exchanged
    return code


# graphs

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


# between processes: the handles are 64 bytes that travel as they are

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


# what a graph is made of

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


# conditional nodes

cdef int find_site(uintptr_t stream, Site* out_site) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef int code
    memset(out_site, 0, sizeof(Site))
    code = cuStreamGetCaptureInfo_v12030(<CUstream>stream, &status, NULL, &out_site.graph, &out_site.after, &out_site.edges,
                                         &out_site.count)
    return ILLEGAL_STATE if code == SUCCESS and status != CU_STREAM_CAPTURE_STATUS_ACTIVE else code


cdef int conditional_create(int device, uintptr_t stream, uint64_t* out_condition) noexcept nogil:
    cdef CUgraphConditionalHandle made = 0
    cdef CUcontext context = NULL
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = find_site(stream, &site)
    if code == SUCCESS:
        code = primary_of(device, &context)
    if code == SUCCESS:
        code = cuGraphConditionalHandleCreate(&made, site.graph, context, 0, CU_GRAPH_COND_ASSIGN_DEFAULT)
    out_condition[0] = made
    return leave(pushed, code)


cdef int setter_of(int device, uintptr_t* out_function) noexcept nogil:
    # Loading code is refused beside a capture, unless the caller is relaxed.  Two threads that load it at once
    # keep one module more than they need.
    cdef uintptr_t module = 0
    cdef int mode, code
    out_function[0] = load_function(&setters[device], ACQUIRE)
    if out_function[0]:
        return SUCCESS
    code = go_relaxed(&rows, &mode)
    if code:
        return code
    code = rows.module_load(device, PTX, &module)
    if code == SUCCESS:
        code = rows.module_function(module, b"accelrt_set_condition", out_function)
    if code == SUCCESS:
        store_function(&setters[device], out_function[0], RELEASE)
    elif module:
        rows.module_unload(device, module)
    restore_mode(&rows, mode)
    return code


cdef int conditional_set(int device, uintptr_t stream, uint64_t condition, uintptr_t address) noexcept nogil:
    cdef void* arguments[2]
    cdef uintptr_t function = 0
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    arguments[0] = &condition
    arguments[1] = &address
    if code == SUCCESS:
        code = find_site(stream, &site)  # outside a graph the kernel would fault
    if code == SUCCESS:
        code = setter_of(device, &function)
    if code == SUCCESS:
        code = rows.kernel_launch(device, stream, function, 1, 1, 1, 1, 1, 1, 0, arguments)
    return leave(pushed, code)


cdef int conditional_add(int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body) noexcept nogil:
    cdef CUcontext context = NULL
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    out_body[0] = 0
    if code == SUCCESS:
        code = find_site(stream, &site)
    if code == SUCCESS:
        code = primary_of(device, &context)
    if code == SUCCESS:
        code = add_node(context, &site, stream, condition, kind, out_body)
    return leave(pushed, code)


cdef int add_node(
    CUcontext context, Site* site, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body
) noexcept nogil:
    cdef CUgraphNodeParams given
    cdef CUgraphNode node = NULL
    cdef int code
    memset(&given, 0, sizeof(given))
    given.type = CU_GRAPH_NODE_TYPE_CONDITIONAL
    given.conditional.handle = condition
    given.conditional.type = kind
    given.conditional.size = 1
    given.conditional.ctx = context
    code = cuGraphAddNode(&node, site.graph, site.after, site.edges, site.count, &given)
    if code == SUCCESS:
        code = cuStreamUpdateCaptureDependencies(<CUstream>stream, &node, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    if code == SUCCESS:
        out_body[0] = <uintptr_t>given.conditional.phGraph_out[0]
    return code


cdef int capture_begin_to(int device, uintptr_t stream, uintptr_t body, int mode) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamBeginCaptureToGraph(<CUstream>stream, <CUgraph>body, NULL, NULL, 0, <CUstreamCaptureMode>mode)
    return leave(pushed, code)
