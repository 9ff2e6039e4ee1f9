"""The cuda driver's rows for captures and graphs: what is captured, conditional nodes, what is made by hand, kernel nodes.

As in driver.pyx, here are the rows that are more than one call of the library's; rowgen.py derives those of the functions
that this module names.  `driver/cuda/DESIGN.md` says how conditions are set, and what a node's params become.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.driver.cuda.context cimport (
    MOST_DEVICES, PAGEABLE, Symbol, cuStreamIsCapturing, device_total, devices, enter, enter_any, enter_for, leave,
    load_context, load_function, memory_kind, resolve_fn, rows, store_function,
)
from accelrt.driver.cuda.types cimport (
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D_v2, CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_NODE_TYPE_CONDITIONAL,
    AllocateFields, CUDA_HOST_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CU_MEMORYTYPE_HOST,
    CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_ARRAY, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_LOCATION_TYPE_DEVICE, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_NONE,
    CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph,
    CUgraphConditionalHandle, CUgraphEdgeData, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode, CUgraphNodeParams,
    CUmemAccessDesc, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, cuuint64_t, CUgraphMem_attribute, CUhostFn,
)
from accelrt.driver.guard cimport go_relaxed, restore_mode
from accelrt.driver.managed cimport LOCATION_HOST
from accelrt.driver.node_params cimport (
    ALLOCATE_HOST, ALLOCATE_MANAGED, NODE_ALLOCATE, NODE_CHILD, NODE_CONDITION, NODE_COPY, NODE_EMPTY, NODE_FILL,
    NODE_FREE, NODE_HOST, NODE_KERNEL, NODE_RECORD, NODE_WAIT, NodeParams, host_fn,
)
from accelrt.driver.table cimport Table
from accelrt.status cimport ILLEGAL_STATE, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, NO_HOST_MEMORY, SUCCESS

include "graphs_rows.pxi"


# capture

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

cdef int graph_update_entered(uintptr_t exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil:
    cdef CUgraphExecUpdateResultInfo outcome
    cdef int code
    memset(&outcome, 0, sizeof(outcome))
    code = cuGraphExecUpdate(<CUgraphExec>exec_, <CUgraph>graph, &outcome)
    out_result[0] = outcome.result
    out_node[0] = <uintptr_t>outcome.errorNode
    return code


# what a graph is made of

cdef int graph_nodes_entered(uintptr_t graph, size_t room, void* nodes, size_t* out_count) noexcept nogil:
    out_count[0] = room
    return cuGraphGetNodes(<CUgraph>graph, <CUgraphNode*>nodes if room else NULL, out_count)


cdef int graph_edges_entered(
    uintptr_t graph, size_t room, void* origins, void* targets, size_t* out_count
) noexcept nogil:
    # Without room for the edges' data the driver refuses to list edges that carry any (LOSSY_QUERY).
    cdef void* data = NULL
    cdef int code
    if room:
        data = calloc(room, sizeof(CUgraphEdgeData))
        if data == NULL:
            return NO_HOST_MEMORY
    code = graph_edges_with_entered(graph, room, origins, targets, data, out_count)
    free(data)
    return code


cdef int graph_edges_with_entered(
    uintptr_t graph, size_t room, void* origins, void* targets, void* data, size_t* out_count
) noexcept nogil:
    out_count[0] = room
    return cuGraphGetEdges(<CUgraph>graph, <CUgraphNode*>origins if room else NULL,
                           <CUgraphNode*>targets if room else NULL, <CUgraphEdgeData*>data if room else NULL, out_count)


# conditional nodes

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

cdef struct Site:  # where a stream's next node goes
    CUgraph graph
    const CUgraphNode* after
    const CUgraphEdgeData* edges
    size_t count


cdef int find_site(uintptr_t stream, Site* out_site) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef int code
    memset(out_site, 0, sizeof(Site))
    code = cuStreamGetCaptureInfo_v12030(<CUstream>stream, &status, NULL, &out_site.graph, &out_site.after, &out_site.edges,
                                         &out_site.count)
    return ILLEGAL_STATE if code == SUCCESS and status != CU_STREAM_CAPTURE_STATUS_ACTIVE else code


cdef int conditional_create_entered(int device, uintptr_t stream, uint64_t* out_condition) noexcept nogil:
    cdef CUgraphConditionalHandle condition = 0
    cdef Site site
    cdef int code = find_site(stream, &site)
    if code == SUCCESS:
        code = cuGraphConditionalHandleCreate(
            &condition, site.graph, load_context(&devices[device].primary), 0, CU_GRAPH_COND_ASSIGN_DEFAULT)
    out_condition[0] = condition
    return code


cdef int capture_site_entered(
    uintptr_t stream, size_t room, void* nodes, size_t* out_count, uintptr_t* out_graph
) noexcept nogil:
    cdef Site site
    cdef size_t index
    cdef int code = find_site(stream, &site)
    out_graph[0] = <uintptr_t>site.graph
    out_count[0] = min(site.count, room) if room else site.count
    for index in range(min(site.count, room)):
        (<uintptr_t*>nodes)[index] = <uintptr_t>site.after[index]
    return code


cdef int capture_continue_entered(uintptr_t stream, uintptr_t node) noexcept nogil:
    cdef CUgraphNode after = <CUgraphNode>node
    return cuStreamUpdateCaptureDependencies(<CUstream>stream, &after, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES)


cdef int setter_of(int device, uintptr_t* out_function) noexcept nogil:
    # Loading code is refused beside a capture, unless the caller is relaxed.  Two threads that load it at once
    # keep one module more than they need.
    cdef uintptr_t module = 0
    cdef int mode, code
    out_function[0] = load_function(&setters[device])
    if out_function[0]:
        return SUCCESS
    code = go_relaxed(&rows, &mode)
    if code:
        return code
    code = rows.module_load(device, PTX, &module)
    if code == SUCCESS:
        code = rows.module_function(module, b"accelrt_set_condition", out_function)
    if code == SUCCESS:
        store_function(&setters[device], out_function[0])
    elif module:
        rows.module_unload(device, module)
    restore_mode(&rows, mode)
    return code


cdef int conditional_set_entered(int device, uintptr_t stream, uint64_t condition, uintptr_t address) noexcept nogil:
    cdef void* arguments[2]
    cdef uintptr_t function = 0
    cdef Site site
    cdef int code = find_site(stream, &site)  # outside a graph the kernel would fault
    arguments[0] = &condition
    arguments[1] = &address
    if code == SUCCESS:
        code = setter_of(device, &function)
    if code == SUCCESS:
        code = rows.kernel_launch(device, stream, function, 1, 1, 1, 1, 1, 1, 0, arguments)
    return code


cdef int conditional_add_entered(
    int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body
) noexcept nogil:
    cdef CUgraphNodeParams params
    cdef CUgraphNode node = NULL
    cdef Site site
    cdef int code = find_site(stream, &site)
    if code != SUCCESS:
        return code
    memset(&params, 0, sizeof(params))
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = condition
    params.conditional.type = kind
    params.conditional.size = 1
    params.conditional.ctx = load_context(&devices[device].primary)
    code = cuGraphAddNode(&node, site.graph, site.after, site.edges, site.count, &params)
    if code == SUCCESS:
        code = cuStreamUpdateCaptureDependencies(<CUstream>stream, &node, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    if code == SUCCESS:
        out_body[0] = <uintptr_t>params.conditional.phGraph_out[0]
    return code


# graphs made by hand

cdef enum:
    ALLOCATION_MANAGED = 2  # CU_MEM_ALLOCATION_TYPE_MANAGED of CUDA 13.0

cdef struct NodeRoom:  # for what a node's params point at
    CUmemAccessDesc[MOST_DEVICES] peers  # of an allocation
    void* arguments[2]                   # of the kernel that sets a condition

cdef int describe_node(int device, NodeParams* params, NodeRoom* room, CUgraphNodeParams* out_params) noexcept nogil:
    cdef CUcontext primary = load_context(&devices[device].primary)
    cdef uintptr_t function = params.function
    cdef int code = SUCCESS
    memset(out_params, 0, sizeof(CUgraphNodeParams))
    out_params.type = params.type
    if params.type == NODE_KERNEL:
        out_params.kernel.gridDimX, out_params.kernel.gridDimY, out_params.kernel.gridDimZ = (
            params.grid[0], params.grid[1], params.grid[2])
        out_params.kernel.blockDimX, out_params.kernel.blockDimY, out_params.kernel.blockDimZ = (
            params.block[0], params.block[1], params.block[2])
        out_params.kernel.sharedMemBytes = params.shared_bytes
        out_params.kernel.kernelParams = params.arguments
        if function == 0:  # sets a condition
            room.arguments[0], room.arguments[1] = &params.condition, &params.src
            out_params.kernel.kernelParams = room.arguments
            out_params.kernel.gridDimX = out_params.kernel.gridDimY = out_params.kernel.gridDimZ = 1
            out_params.kernel.blockDimX = out_params.kernel.blockDimY = out_params.kernel.blockDimZ = 1
            code = setter_of(device, &function)
        out_params.kernel.func = <CUfunction>function
    elif params.type == NODE_COPY:
        out_params.memcpy.copyCtx = primary
        describe_copy(params, &out_params.memcpy.copyParams)
    elif params.type == NODE_FILL:
        out_params.memset.dst, out_params.memset.pitch = params.dst, params.dst_pitch
        out_params.memset.value, out_params.memset.elementSize = params.value, params.element
        out_params.memset.width, out_params.memset.height = params.width, params.height
        out_params.memset.ctx = primary
    elif params.type == NODE_HOST:
        out_params.host.fn, out_params.host.userData = <CUhostFn>params.fn, params.data
    elif params.type == NODE_CHILD:
        out_params.graph.graph = <CUgraph>params.graph
    elif params.type == NODE_WAIT:
        out_params.eventWait.event = <CUevent>params.event
    elif params.type == NODE_RECORD:
        out_params.eventRecord.event = <CUevent>params.event
    elif params.type == NODE_ALLOCATE:
        code = describe_allocation(params, room.peers, &out_params.alloc)
    elif params.type == NODE_FREE:
        out_params.free.dptr = params.address
    elif params.type == NODE_CONDITION:
        out_params.conditional.handle, out_params.conditional.type = params.condition, params.kind
        out_params.conditional.size, out_params.conditional.ctx = params.count, primary
    return code


cdef void describe_copy(const NodeParams* params, CUDA_MEMCPY3D_v2* out_copy) noexcept nogil:
    # Of one row the pitches say nothing; slices are as copy_3d has them.  Unknown memory is the host's.
    out_copy.srcMemoryType = out_copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED
    out_copy.srcDevice, out_copy.dstDevice = params.src, params.dst
    if memory_kind(params.src) == PAGEABLE:
        out_copy.srcMemoryType, out_copy.srcHost, out_copy.srcDevice = CU_MEMORYTYPE_HOST, <const void*>params.src, 0
    if memory_kind(params.dst) == PAGEABLE:
        out_copy.dstMemoryType, out_copy.dstHost, out_copy.dstDevice = CU_MEMORYTYPE_HOST, <void*>params.dst, 0
    if params.height > 1 or params.depth > 1:
        out_copy.srcPitch, out_copy.dstPitch = params.src_pitch, params.dst_pitch
        out_copy.srcHeight = params.src_lines if params.depth > 1 else params.height
        out_copy.dstHeight = params.dst_lines if params.depth > 1 else params.height
    out_copy.WidthInBytes, out_copy.Height, out_copy.Depth = params.width, params.height, params.depth


cdef int describe_allocation(const NodeParams* params, CUmemAccessDesc* room, AllocateFields* out_fields) noexcept nogil:
    cdef int peer
    cdef size_t count = 0
    if not 0 <= params.device < device_total or params.peers >> device_total:
        return INVALID_DEVICE
    out_fields.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED
    out_fields.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    out_fields.poolProps.location.id = devices[params.device].handle
    if params.kind == ALLOCATE_HOST:
        out_fields.poolProps.location.type, out_fields.poolProps.location.id = LOCATION_HOST, 0
    elif params.kind == ALLOCATE_MANAGED:
        out_fields.poolProps.allocType = ALLOCATION_MANAGED
    for peer in range(device_total):
        if params.peers >> peer & 1:
            room[count].location.type = CU_MEM_LOCATION_TYPE_DEVICE
            room[count].location.id = devices[peer].handle
            room[count].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            count += 1
    out_fields.accessDescs, out_fields.accessDescCount = room, count
    out_fields.bytesize = params.size
    return SUCCESS


cdef int graph_node_add_entered(
    int device, uintptr_t graph, size_t count, void* after, NodeParams* params, uintptr_t* out_node
) noexcept nogil:
    cdef CUgraphNodeParams described
    cdef NodeRoom room
    cdef CUgraphNode node = NULL
    cdef unsigned int body
    cdef int code = describe_node(device, params, &room, &described)
    if code == SUCCESS:
        code = cuGraphAddNode(&node, <CUgraph>graph, <const CUgraphNode*>after, NULL, count, &described)
    if code != SUCCESS:
        return code
    if params.type == NODE_ALLOCATE:
        params.address = described.alloc.dptr
    for body in range(params.count if params.type == NODE_CONDITION else 0):
        params.bodies[body] = <uintptr_t>described.conditional.phGraph_out[body]
    out_node[0] = <uintptr_t>node
    return SUCCESS


cdef int graph_node_set_entered(int device, uintptr_t exec_, uintptr_t node, NodeParams* params) noexcept nogil:
    cdef CUgraphNodeParams described
    cdef NodeRoom room
    cdef int code = describe_node(device, params, &room, &described)
    if code != SUCCESS:
        return code
    if exec_:
        return cuGraphExecNodeSetParams(<CUgraphExec>exec_, <CUgraphNode>node, &described)
    return cuGraphNodeSetParams(<CUgraphNode>node, &described)


cdef int graph_node_params_entered(uintptr_t node, NodeParams* params) noexcept nogil:
    cdef int code, type_ = NODE_EMPTY
    memset(params, 0, sizeof(NodeParams))
    code = cuGraphNodeGetType(<CUgraphNode>node, &type_)
    params.type = type_
    if code != SUCCESS or type_ == NODE_EMPTY:
        return code
    if type_ == NODE_COPY:
        return read_copy_node(node, params)
    if type_ == NODE_FILL:
        return read_fill_node(node, params)
    return read_plain_node(node, params)


cdef int read_copy_node(uintptr_t node, NodeParams* params) noexcept nogil:
    cdef CUDA_MEMCPY3D_v2 copied
    cdef int code
    memset(&copied, 0, sizeof(copied))
    code = cuGraphMemcpyNodeGetParams(<CUgraphNode>node, &copied)
    if code == SUCCESS and CU_MEMORYTYPE_ARRAY in (copied.srcMemoryType, copied.dstMemoryType):
        code = NOT_SUPPORTED
    params.src, params.dst = copied.srcDevice, copied.dstDevice
    if copied.srcMemoryType == CU_MEMORYTYPE_HOST:
        params.src = <uintptr_t>copied.srcHost
    if copied.dstMemoryType == CU_MEMORYTYPE_HOST:
        params.dst = <uintptr_t>copied.dstHost
    params.src += copied.srcXInBytes + (copied.srcZ * copied.srcHeight + copied.srcY) * copied.srcPitch
    params.dst += copied.dstXInBytes + (copied.dstZ * copied.dstHeight + copied.dstY) * copied.dstPitch
    params.src_pitch, params.src_lines = copied.srcPitch, copied.srcHeight
    params.dst_pitch, params.dst_lines = copied.dstPitch, copied.dstHeight
    params.width, params.height, params.depth = copied.WidthInBytes, copied.Height, copied.Depth
    return code


cdef int read_fill_node(uintptr_t node, NodeParams* params) noexcept nogil:
    cdef CUDA_MEMSET_NODE_PARAMS filled
    cdef int code
    memset(&filled, 0, sizeof(filled))
    code = cuGraphMemsetNodeGetParams(<CUgraphNode>node, &filled)
    params.dst, params.dst_pitch = filled.dst, filled.pitch
    params.value, params.element = filled.value, <int>filled.elementSize
    params.width, params.height, params.depth = filled.width, filled.height, 1
    return code


cdef int read_plain_node(uintptr_t node, NodeParams* params) noexcept nogil:
    # Of one function or handle, or of memory.
    cdef CUDA_HOST_NODE_PARAMS called
    cdef CUDA_MEM_ALLOC_NODE_PARAMS allocated
    cdef CUdeviceptr address = 0
    cdef int code = INVALID_VALUE
    memset(&called, 0, sizeof(called))
    memset(&allocated, 0, sizeof(allocated))
    if params.type == NODE_HOST:
        code = cuGraphHostNodeGetParams(<CUgraphNode>node, &called)
        params.fn, params.data = <host_fn>called.fn, called.userData
    elif params.type == NODE_WAIT:
        code = cuGraphEventWaitNodeGetEvent(<CUgraphNode>node, <CUevent*>&params.event)
    elif params.type == NODE_RECORD:
        code = cuGraphEventRecordNodeGetEvent(<CUgraphNode>node, <CUevent*>&params.event)
    elif params.type == NODE_CHILD:
        code = cuGraphChildGraphNodeGetGraph(<CUgraphNode>node, <CUgraph*>&params.graph)
    elif params.type == NODE_FREE:
        code = cuGraphMemFreeNodeGetParams(<CUgraphNode>node, &address)
        params.address = address
    elif params.type == NODE_ALLOCATE:
        code = cuGraphMemAllocNodeGetParams(<CUgraphNode>node, &allocated)
        params.address, params.size = allocated.dptr, allocated.bytesize
        if code == SUCCESS:
            read_allocation(&allocated, params)
    return code


cdef void read_allocation(const CUDA_MEM_ALLOC_NODE_PARAMS* allocated, NodeParams* params) noexcept nogil:
    cdef size_t index
    cdef int peer
    params.device = ordinal_of(allocated.poolProps.location.id)
    if allocated.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE:
        params.device, params.kind = -1, ALLOCATE_HOST
    elif allocated.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED:
        params.kind = ALLOCATE_MANAGED
    for index in range(allocated.accessDescCount):
        peer = ordinal_of(allocated.accessDescs[index].location.id)
        if peer >= 0 and peer != params.device:
            params.peers |= <uint64_t>1 << peer


cdef int ordinal_of(CUdevice handle) noexcept nogil:
    cdef int device
    for device in range(device_total):
        if devices[device].handle == handle:
            return device
    return -1


cdef int graph_condition_entered(
    int device, uintptr_t graph, unsigned int value, int kept, uint64_t* out_condition
) noexcept nogil:
    cdef CUgraphConditionalHandle condition = 0
    cdef int code = cuGraphConditionalHandleCreate(
        &condition, <CUgraph>graph, load_context(&devices[device].primary), value,
        0 if kept else CU_GRAPH_COND_ASSIGN_DEFAULT)
    out_condition[0] = condition
    return code


cdef int graph_memory_get(int device, int attribute, uint64_t* out_value) noexcept nogil:
    cdef cuuint64_t value = 0
    cdef int code = INVALID_DEVICE
    if 0 <= device < device_total:
        code = cuDeviceGetGraphMemAttribute(devices[device].handle, <CUgraphMem_attribute>attribute, &value)
    out_value[0] = value
    return code


cdef int graph_memory_reset(int device, int attribute) noexcept nogil:
    cdef cuuint64_t value = 0
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDeviceSetGraphMemAttribute(devices[device].handle, <CUgraphMem_attribute>attribute, &value)


# kernel nodes

cdef int kernel_node_entered(
    uintptr_t node, uintptr_t* out_function, unsigned int* out_grid_x, unsigned int* out_grid_y, unsigned int* out_grid_z,
    unsigned int* out_block_x, unsigned int* out_block_y, unsigned int* out_block_z, unsigned int* out_shared_bytes,
    uintptr_t* out_arguments
) noexcept nogil:
    cdef CUDA_KERNEL_NODE_PARAMS params
    cdef int code
    memset(&params, 0, sizeof(params))
    code = cuGraphKernelNodeGetParams(<CUgraphNode>node, &params)
    out_function[0] = <uintptr_t>params.func
    out_grid_x[0], out_grid_y[0], out_grid_z[0] = params.gridDimX, params.gridDimY, params.gridDimZ
    out_block_x[0], out_block_y[0], out_block_z[0] = params.blockDimX, params.blockDimY, params.blockDimZ
    out_shared_bytes[0] = params.sharedMemBytes
    out_arguments[0] = <uintptr_t>params.kernelParams
    return code


cdef int kernel_node_set_entered(
    uintptr_t exec_, uintptr_t node, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments
) noexcept nogil:
    cdef CUDA_KERNEL_NODE_PARAMS params
    memset(&params, 0, sizeof(params))
    params.func = <CUfunction>function
    params.gridDimX, params.gridDimY, params.gridDimZ = grid_x, grid_y, grid_z
    params.blockDimX, params.blockDimY, params.blockDimZ = block_x, block_y, block_z
    params.sharedMemBytes = shared_bytes
    params.kernelParams = arguments
    if exec_:
        return cuGraphExecKernelNodeSetParams(<CUgraphExec>exec_, <CUgraphNode>node, &params)
    return cuGraphKernelNodeSetParams(<CUgraphNode>node, &params)
