"""NVIDIA's driver behind the driver table.

Importing this module loads no library and makes no call; open does.  Until then the table has no row but open and close.

Here are the library and the table, and the rows that are more than one call of the library's, but for those of memory.pyx:
modules and launches, captures and graphs, and the waits that a signal may end.  rowgen.py derives the others from
functions.pxd and graph_functions.pxd, and puts around a function ROW_entered what makes the row's context current.
`driver/cuda/DESIGN.md` says how the library is called, which context each row runs in, how conditions are set, what a
node's params become, and how waits look for signals.

The only calls that go through cuda.bindings, which finds and loads libcuda, are made at open, where its exceptions are
welcome; in a row they are not.  Its functions are taken by name from the module, not cimported, so that a build fits every
cuda-bindings of CUDA 12.9 and 13 and needs none itself.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.dlfcn cimport RTLD_LOCAL, RTLD_NOW, dlopen, dlsym
from posix.types cimport pid_t
from posix.unistd cimport getpid

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.core.slots cimport Slot
from accelrt.core.threads cimport pthread_cond_init, pthread_cond_signal, pthread_cond_t, start
from accelrt.driver.cuda.memory cimport (
    count_devices, device_total, devices, enter, enter_any, enter_for, fill_memory, leave, load_context, load_function,
    memory_kind, MOST_DEVICES, PAGEABLE, primary_of, resolve_fn, resolve_memory, rows, store_function, Symbol,
)
from accelrt.driver.cuda.types cimport (
    AllocateFields, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_NODE_TYPE_CONDITIONAL,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CU_STREAM_CAPTURE_STATUS_ACTIVE,
    CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUcontext, CUDA_HOST_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D_v2,
    CUDA_MEMSET_NODE_PARAMS, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphConditionalHandle,
    CUgraphEdgeData, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphMem_attribute, CUgraphNode, CUgraphNodeParams,
    CUgraphNodeType, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmemAccessDesc, CUmemGenericAllocationHandle, CUmodule, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, cuuint64_t,
)
from accelrt.driver.guard cimport (
    enter_asking, go_relaxed, INTERRUPTED, is_interruptible, leave_asking, pause_on, poll, poll_briefly, restore_mode,
)
from accelrt.driver.managed cimport LOCATION_HOST
from accelrt.driver.node_params cimport (
    ALLOCATE_HOST, ALLOCATE_MANAGED, ATTRIBUTE_CLUSTER, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_PRIORITY, host_fn,
    LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC, NODE_ALLOCATE, NODE_CHILD, NODE_CONDITION, NODE_COPY, NODE_EMPTY,
    NODE_FILL, NODE_FREE, NODE_HOST, NODE_KERNEL, NODE_RECORD, NODE_WAIT, NodeParams, SIDES_ASKED, SIDES_DST,
    SIDES_SRC,
)
from accelrt.driver.registry cimport begin_table, finish_table, offer
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, LOG_BYTES, TEXT_BYTES, Table
from accelrt.status cimport (
    ILLEGAL_STATE, INIT_FAILED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, keep_init_error,
    NO_DEVICE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS,
)

cdef extern from *:
    """
    #define accelrt_exchange(place, event) __atomic_exchange_n(place, event, __ATOMIC_ACQ_REL)
    """
    uintptr_t exchange_event "accelrt_exchange" (uintptr_t* place, uintptr_t event) noexcept nogil

# Functions of cuda.bindings.cydriver.  Which value means an exception differs between releases of cuda-bindings, so the
# exception itself is asked for.
ctypedef int (*init_fn)(unsigned int flags) except * nogil
ctypedef int (*plain_init_fn)(unsigned int flags) noexcept nogil  # the library's own
ctypedef int (*error_name_fn)(int code, const char** out_name) except * nogil
ctypedef int (*proc_address_fn)(
    const char* name, void** out_address, int version, unsigned long long flags, int* out_status) except * nogil

cdef init_fn cuInit = NULL
cdef error_name_fn cuGetErrorName = NULL
cdef proc_address_fn cuGetProcAddress = NULL
cdef str reason = ""       # why open failed; "" while it did not
cdef uintptr_t[MOST_DEVICES] spares  # an event of each device, or 0; taken and put by exchange_event alone
cdef Table table
cdef Table blank           # all rows unfilled: what a row goes back to where its function is missing
cdef pid_t opened_by = 0   # the process that the driver was opened in

include "driver_rows.pxi"


# the library

cdef void* exported(object module, str name, const char* signature) except NULL:
    # A function that a Cython module exports.  The capsule's name is its signature.
    try:
        return PyCapsule_GetPointer(module.__pyx_capi__[name], signature)
    except (KeyError, ValueError):
        raise RuntimeError(
            f"the installed cuda-bindings does not export {name} as {signature.decode()!r}; "
            "install a cuda-bindings from 12.9 on, below 14"
        ) from None


cdef int load_cydriver() except -1:
    global cuInit, cuGetErrorName, cuGetProcAddress
    from cuda.bindings import cydriver

    cuInit = <init_fn>exported(cydriver, "cuInit", b"CUresult (unsigned int)")
    cuGetErrorName = <error_name_fn>exported(cydriver, "cuGetErrorName", b"CUresult (CUresult, char const **)")
    cuGetProcAddress = <proc_address_fn>exported(
        cydriver, "cuGetProcAddress",
        b"CUresult (char const *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)")
    return 0


cdef void init_before_bindings() noexcept nogil:
    # In the child of a fork whose parent has NVML open, cuGetProcAddress dies of signal 11 (driver 580.159.04) unless cuInit
    # came before cuda.bindings was loaded.  Where the library is elsewhere, cuda.bindings finds it.
    cdef void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)
    cdef void* init = dlsym(library, "cuInit") if library != NULL else NULL
    if init != NULL:
        (<plain_init_fn>init)(0)


cdef int start_library() except -1:
    global reason
    cdef int code
    cdef const char* name = NULL
    reason = ""
    with nogil:
        init_before_bindings()
    load_cydriver()
    with nogil:
        code = cuInit(0)
    if code != SUCCESS:
        cuGetErrorName(code, &name)
        reason = f"cuInit answered {name.decode() if name else 'a code without a name'} ({code})"
    return code


cdef int resolve(Symbol* symbols, int total, Table* table, Table* blank) except -1:
    global reason
    cdef int index, code = SUCCESS
    cdef Symbol* symbol
    for index in range(total):
        symbol = &symbols[index]
        symbol.function[0] = find_function(symbol.name, symbol.version)
        if symbol.function[0] != NULL:
            continue
        if symbol.row != NULL:
            symbol.row[0] = (<void**>blank)[symbol.row - <void**>table]
        elif symbol.needed:
            reason = f"NVIDIA's driver has no {symbol.name.decode()} of version {symbol.version}"
            code = NOT_SUPPORTED
    return code


cdef void* find_function(const char* name, int version) except? NULL:
    # LEGACY_STREAM: stream 0 is the legacy default stream, whatever this process was compiled with.
    cdef void* address = NULL
    cdef int code = cuGetProcAddress(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL)
    return address if code == SUCCESS else NULL


# the table

cdef int open_driver() noexcept nogil:
    with gil:
        return open_with_gil()


cdef int open_with_gil() noexcept:
    # A second call in the same process answers as the first did, or tries again where that failed.
    global opened_by, reason
    cdef int code
    if opened_by == getpid():
        return SUCCESS
    try:
        code = bring_up()
    except Exception as error:
        reason = f"NVIDIA's driver library cannot be used: {error}"
        return NO_DEVICE
    except BaseException as error:  # an interruption: the caller is told, and the next call tries again
        keep_init_error(error)
        return INIT_FAILED
    if code == SUCCESS:
        opened_by = getpid()
    return code


cdef int bring_up() except -1:
    global reason
    cdef int code = start_library()
    if code == SUCCESS:
        fill_memory(&table)
        fill_driver(&table)
        code = resolve_memory(resolve, &table, &blank)
        code = resolve_driver(resolve, &table, &blank) or code
        fill_waits(&table, &blank)
        finish_table(&table)
    if code == SUCCESS:
        code = count_devices()
        if code != SUCCESS:
            reason = f"the driver started, but asking for its devices answered code {code}"
    return code


cdef int close_driver() noexcept nogil:
    # The driver tears itself down after the process's last atexit function, and the callbacks that are
    # still queued go with it: the code that gave them data has waited for them.
    return SUCCESS


def open_error() -> str:
    """Tells why open did not answer SUCCESS, as text; "" where it did or was not called yet."""
    return reason


# between processes: the handles are 64 bytes that travel as they are

cdef int ipc_event_export_entered(uintptr_t event, char* out_ipc) noexcept nogil:
    cdef CUipcEventHandle handle
    cdef int code = cuIpcGetEventHandle(&handle, <CUevent>event)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return code


cdef int ipc_event_open_entered(const char* handle, uintptr_t* out_event) noexcept nogil:
    cdef CUipcEventHandle copied
    cdef CUevent event = NULL
    cdef int code
    memcpy(&copied, handle, sizeof(copied))
    code = cuIpcOpenEventHandle(&event, copied)
    out_event[0] = <uintptr_t>event if code == SUCCESS else 0
    return code


cdef int ipc_memory_export_entered(uintptr_t address, char* out_ipc) noexcept nogil:
    cdef CUipcMemHandle handle
    cdef int code = cuIpcGetMemHandle(&handle, address)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return code


cdef int ipc_memory_open_entered(const char* handle, uintptr_t* out_address) noexcept nogil:
    cdef CUipcMemHandle copied
    cdef CUdeviceptr address = 0
    cdef int code
    memcpy(&copied, handle, sizeof(copied))
    code = cuIpcOpenMemHandle(&address, copied, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    out_address[0] = address if code == SUCCESS else 0
    return code


# modules and their functions

cdef int module_log(int device, const char* image, char* out_log) noexcept nogil:
    # What NVIDIA's loader finds wrong is in the log of errors; a module that it loads is given back.
    cdef CUjit_option[2] options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    cdef void* values[2]
    cdef CUmodule module = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memset(out_log, 0, LOG_BYTES)
    values[0], values[1] = <void*>out_log, <void*><uintptr_t>(LOG_BYTES - 1)
    if code == SUCCESS and <int>cuModuleLoadDataEx(&module, image, 2, options, values) == SUCCESS:
        cuModuleUnload(module)
    return leave(pushed, code)


# launches

cdef void describe_launch(
    CUlaunchConfig* config, uintptr_t stream, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
) noexcept nogil:
    memset(config, 0, sizeof(CUlaunchConfig))
    config.hStream = <CUstream>stream
    config.gridDimX = grid_x
    config.gridDimY = grid_y
    config.gridDimZ = grid_z
    config.blockDimX = block_x
    config.blockDimY = block_y
    config.blockDimZ = block_z
    config.sharedMemBytes = shared_bytes


cdef CUlaunchAttribute* add_attribute(CUlaunchConfig* config, int kind) noexcept nogil:
    cdef CUlaunchAttribute* added = &config.attrs[config.numAttrs]
    memset(added, 0, sizeof(CUlaunchAttribute))
    added.id = kind
    config.numAttrs += 1
    return added


cdef void add_cluster(CUlaunchConfig* config, unsigned int x, unsigned int y, unsigned int z) noexcept nogil:
    cdef CUlaunchAttribute* added = add_attribute(config, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    added.value.clusterDim.x = x
    added.value.clusterDim.y = y
    added.value.clusterDim.z = z


cdef int kernel_launch_with_entered(
    uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments,
    unsigned int flags, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z
) noexcept nogil:
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[3] attributes
    describe_launch(&config, stream, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    if flags & LAUNCH_COOPERATIVE:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).value.cooperative = 1
    if flags & LAUNCH_PROGRAMMATIC:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).value.programmaticStreamSerializationAllowed = 1  # no-cython-lint
    if cluster_x:
        add_cluster(&config, cluster_x, cluster_y, cluster_z)
    return cuLaunchKernelEx(&config, <CUfunction>function, arguments, NULL)


cdef int function_name_entered(uintptr_t function, char* out_text) noexcept nogil:
    cdef const char* name = NULL
    cdef int code = cuFuncGetName(&name, <CUfunction>function)
    if code == SUCCESS and name != NULL:
        snprintf(out_text, TEXT_BYTES, "%s", name)
    return code


cdef int occupancy_clusters_entered(
    uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, unsigned int cluster_x, unsigned int cluster_y,
    unsigned int cluster_z, int* out_clusters
) noexcept nogil:
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[1] attributes
    describe_launch(&config, 0, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    add_cluster(&config, cluster_x, cluster_y, cluster_z)
    return cuOccupancyMaxActiveClusters(out_clusters, <CUfunction>function, &config)


cdef int occupancy_cluster_size_entered(
    uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, int* out_blocks
) noexcept nogil:
    cdef CUlaunchConfig config
    describe_launch(&config, 0, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    return cuOccupancyMaxPotentialClusterSize(out_blocks, <CUfunction>function, &config)


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
    uintptr_t graph, size_t room, void* origins, void* targets, void* data, size_t* out_count
) noexcept nogil:
    # Without room for the edges' data the driver refuses to list edges that carry any (LOSSY_QUERY).
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


cdef int sides_of(uintptr_t src, uintptr_t dst) noexcept nogil:
    # Two questions, so what asks for a node's params keeps the answer for whoever changes its addresses.
    return SIDES_ASKED | SIDES_SRC * (memory_kind(src) == PAGEABLE) | SIDES_DST * (memory_kind(dst) == PAGEABLE)


cdef void describe_copy(const NodeParams* params, CUDA_MEMCPY3D_v2* out_copy) noexcept nogil:
    # The pitches say nothing where there is one row; slices are as copy_3d has them.  Unknown memory is the host's.
    cdef int sides = params.sides if params.sides else sides_of(params.src, params.dst)
    out_copy.srcMemoryType = out_copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED
    out_copy.srcDevice, out_copy.dstDevice = params.src, params.dst
    if sides & SIDES_SRC:
        out_copy.srcMemoryType, out_copy.srcHost, out_copy.srcDevice = CU_MEMORYTYPE_HOST, <const void*>params.src, 0
    if sides & SIDES_DST:
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
    cdef int code
    if params.type == NODE_KERNEL:
        return set_kernel_node(exec_, node, params)
    code = describe_node(device, params, &room, &described) if cuGraphNodeSetParams != NULL else NOT_SUPPORTED
    if code != SUCCESS:
        return code
    if exec_:
        return cuGraphExecNodeSetParams(<CUgraphExec>exec_, <CUgraphNode>node, &described)
    return cuGraphNodeSetParams(<CUgraphNode>node, &described)


cdef int graph_node_params_entered(uintptr_t node, NodeParams* params) noexcept nogil:
    cdef CUgraphNodeType type_ = NODE_EMPTY
    cdef int code
    memset(params, 0, sizeof(NodeParams))
    code = cuGraphNodeGetType(<CUgraphNode>node, &type_)
    params.type = type_
    if code != SUCCESS or type_ == NODE_EMPTY:
        return code
    if type_ == NODE_KERNEL:
        return read_kernel_node(node, params)
    if type_ == NODE_COPY:
        return read_copy_node(node, params)
    if type_ == NODE_FILL:
        return read_fill_node(node, params)
    return read_plain_node(node, params)


cdef int read_kernel_node(uintptr_t node, NodeParams* params) noexcept nogil:
    cdef CUDA_KERNEL_NODE_PARAMS launched
    cdef int code
    memset(&launched, 0, sizeof(launched))
    code = cuGraphKernelNodeGetParams(<CUgraphNode>node, &launched)
    params.function, params.shared_bytes = <uintptr_t>launched.func, launched.sharedMemBytes
    params.grid[0], params.grid[1], params.grid[2] = launched.gridDimX, launched.gridDimY, launched.gridDimZ
    params.block[0], params.block[1], params.block[2] = launched.blockDimX, launched.blockDimY, launched.blockDimZ
    params.arguments = launched.kernelParams
    return code


cdef int set_kernel_node(uintptr_t exec_, uintptr_t node, const NodeParams* params) noexcept nogil:
    # By the functions for kernels, which older drivers have.
    cdef CUDA_KERNEL_NODE_PARAMS launched
    memset(&launched, 0, sizeof(launched))
    launched.func, launched.sharedMemBytes = <CUfunction>params.function, params.shared_bytes
    launched.gridDimX, launched.gridDimY, launched.gridDimZ = params.grid[0], params.grid[1], params.grid[2]
    launched.blockDimX, launched.blockDimY, launched.blockDimZ = params.block[0], params.block[1], params.block[2]
    launched.kernelParams = params.arguments
    if exec_:
        # The first version: what the second one has more nobody needs, and it takes 27 ns longer (580.159).
        return cuGraphExecKernelNodeSetParams(
            <CUgraphExec>exec_, <CUgraphNode>node, <const CUDA_KERNEL_NODE_PARAMS_v1*>&launched)
    return cuGraphKernelNodeSetParams(<CUgraphNode>node, &launched)


cdef int kernel_node_attribute_set_entered(uintptr_t node, int attribute, int x, int y, int z) noexcept nogil:
    cdef CUlaunchAttributeValue value
    memset(&value, 0, sizeof(value))
    if attribute == ATTRIBUTE_COOPERATIVE:
        value.cooperative = x
    elif attribute == ATTRIBUTE_CLUSTER:
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = x, y, z
    elif attribute == ATTRIBUTE_PRIORITY:
        value.priority = x
    else:
        return INVALID_VALUE
    return cuGraphKernelNodeSetAttribute(<CUgraphNode>node, <CUlaunchAttributeID>attribute, &value)


cdef int kernel_node_attribute_get_entered(
    uintptr_t node, int attribute, int* out_x, int* out_y, int* out_z
) noexcept nogil:
    cdef CUlaunchAttributeValue value
    cdef int code = INVALID_VALUE
    memset(&value, 0, sizeof(value))
    if attribute in (ATTRIBUTE_COOPERATIVE, ATTRIBUTE_CLUSTER, ATTRIBUTE_PRIORITY):
        code = cuGraphKernelNodeGetAttribute(<CUgraphNode>node, <CUlaunchAttributeID>attribute, &value)
    if code:
        return code
    if attribute == ATTRIBUTE_CLUSTER:
        out_x[0], out_y[0], out_z[0] = value.clusterDim.x, value.clusterDim.y, value.clusterDim.z
    else:
        out_x[0] = value.cooperative if attribute == ATTRIBUTE_COOPERATIVE else value.priority
    return SUCCESS


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
    if code == SUCCESS:
        params.sides = sides_of(params.src, params.dst)
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
    # A node that has one function or handle, or memory.
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


# waits

# Called when all the other rows are filled: keeps them, and puts those that look for signals over them.
cdef int fill_waits(Table* table, Table* blank) except -1:
    memcpy(&rows, table, sizeof(Table))
    if rows.device_synchronize != blank.device_synchronize:
        table.device_synchronize = synchronize_device
    if rows.event_query == blank.event_query:
        return SUCCESS
    if rows.event_synchronize != blank.event_synchronize:
        table.event_synchronize = synchronize_event
    if rows.stream_synchronize != blank.stream_synchronize and rows.stream_query != blank.stream_query:
        table.stream_synchronize = synchronize_stream
    return SUCCESS


# events of our own

cdef int take_event(int device, uintptr_t* out_event) noexcept nogil:
    out_event[0] = exchange_event(&spares[device], 0) if 0 <= device < MOST_DEVICES else 0
    return SUCCESS if out_event[0] else rows.event_create(device, EVENT_DISABLE_TIMING, out_event)


cdef void put_event(int device, uintptr_t event) noexcept nogil:
    # It may be pending yet, after an interruption: a new record leaves the old one alone.
    cdef uintptr_t before = exchange_event(&spares[device], event)
    if before:
        rows.event_destroy(device, before)


# questions, held back while a capture ends

cdef int query_event(int device, uintptr_t event) noexcept nogil:
    cdef Slot* asker = enter_asking(False)
    cdef int code = rows.event_query(device, event)
    leave_asking(asker)
    return code


cdef int query_stream(int device, uintptr_t stream) noexcept nogil:
    cdef Slot* asker = enter_asking(False)
    cdef int code = rows.stream_query(device, stream)
    leave_asking(asker)
    return code


cdef int record_stream(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef Slot* asker = enter_asking(False)
    cdef int code = rows.event_record(device, event, stream)
    leave_asking(asker)
    return code


# the rows that wait

cdef int synchronize_event(int device, uintptr_t event) noexcept nogil:
    # The first question is refused where the event was captured; the driver's own wait names one that was not.
    cdef int code = poll(query_event, device, event) if is_interruptible() else query_event(device, event)
    return rows.event_synchronize(device, event) if code == NOT_READY else code


cdef int await_record(int device, uintptr_t stream) noexcept nogil:
    # Behind the stream's work so far.
    cdef uintptr_t event = 0
    cdef int code = take_event(device, &event)
    if code != SUCCESS:
        return code
    code = record_stream(device, event, stream)
    if code == SUCCESS:
        code = synchronize_event(device, event)
    put_event(device, event)
    return code


cdef int synchronize_stream(int device, uintptr_t stream) noexcept nogil:
    cdef int code = poll_briefly(query_stream, device, stream) if is_interruptible() else query_stream(device, stream)
    if code != NOT_READY:
        return code
    code = await_record(device, stream)
    if code in (INVALID_CONTEXT, INVALID_HANDLE, OUT_OF_MEMORY):  # a stream of another context takes no event of this one
        return rows.stream_synchronize(device, stream)
    return code


cdef int record_device(int device, uintptr_t event) noexcept nogil:
    # Names all streams of the device.
    cdef Slot* asker = enter_asking(False)
    cdef CUcontext primary = NULL
    cdef bint pushed = False
    cdef int code = primary_of(device, &primary)
    if code == SUCCESS:
        code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxRecordEvent(primary, <CUevent>event)
    code = leave(pushed, code)
    leave_asking(asker)
    return code


cdef int synchronize_device(int device) noexcept nogil:
    # The driver's own wait looks at all streams, for as long as it lasts: it dies beside the end of a capture too.
    cdef uintptr_t event = 0
    cdef int code = NOT_SUPPORTED
    if cuCtxRecordEvent != NULL and take_event(device, &event) == SUCCESS:
        code = record_device(device, event)
        if code == SUCCESS:
            code = synchronize_event(device, event)
        put_event(device, event)
    if code in (INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_SUPPORTED):
        return await_elsewhere(device) if is_interruptible() else rows.device_synchronize(device)
    return code


# where the driver has no event of a device's work: another thread waits, and goes on when it is left alone

cdef struct Errand:  # a wait for a device on a thread of its own
    pthread_mutex_t lock
    pthread_cond_t over
    int device
    int code
    int holders      # that thread, and the one that waits for it
    bint done


cdef void drop_errand(Errand* errand) noexcept nogil:
    # Under its lock, which this opens.
    cdef bint last
    errand.holders -= 1
    last = errand.holders == 0
    pthread_mutex_unlock(&errand.lock)
    if last:
        free(errand)


cdef void* run_errand(void* data) noexcept nogil:
    cdef Errand* errand = <Errand*>data
    cdef int code = rows.device_synchronize(errand.device)
    pthread_mutex_lock(&errand.lock)
    errand.code = code
    errand.done = True
    pthread_cond_signal(&errand.over)
    drop_errand(errand)
    return NULL


cdef int await_elsewhere(int device) noexcept nogil:
    cdef Errand* errand = <Errand*>calloc(1, sizeof(Errand))
    cdef int code
    if errand == NULL:
        return rows.device_synchronize(device)
    pthread_mutex_init(&errand.lock, NULL)
    pthread_cond_init(&errand.over, NULL)
    errand.device = device
    errand.holders = 2
    if start(run_errand, errand):
        free(errand)
        return rows.device_synchronize(device)
    pthread_mutex_lock(&errand.lock)
    while not errand.done and not pause_on(&errand.over, &errand.lock):
        pass
    code = errand.code if errand.done else INTERRUPTED
    drop_errand(errand)
    return code


begin_table(&blank, b"cuda")
begin_table(&table, b"cuda")
table.open = open_driver
table.close = close_driver
finish_table(&table)
offer("cuda", &table)
