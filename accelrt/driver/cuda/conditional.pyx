"""The rows of the cuda driver for conditional nodes, of CUDA 12.3 on.

Only a kernel can set a condition (cudaGraphSetConditional).  Ours is the few lines of PTX below, compiled by the
driver itself when a device first needs it: the driver resolves the name while it does, so no toolkit and no
library of CUDA's is linked.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset

from accelrt.driver.cuda.types cimport (
    CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_STREAM_CAPTURE_STATUS_ACTIVE,
    CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUcontext, CUgraph, CUgraphConditionalHandle,
    CUgraphEdgeData, CUgraphNode, CUgraphNodeParams, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, cuuint64_t,
)

from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
from accelrt.driver.cuda.context cimport MOST_DEVICES, enter, leave, primary_of
from accelrt.driver.cuda.library cimport Symbol, resolve
from accelrt.driver.table cimport Table
from accelrt.status cimport ILLEGAL_STATE

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuStreamGetCaptureInfo_v12030)(
        CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
        size_t*) noexcept nogil
    ctypedef int (*PFN_cuStreamUpdateCaptureDependencies_v12030)(
        CUstream, CUgraphNode*, const CUgraphEdgeData*, size_t, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuStreamBeginCaptureToGraph_v12030)(
        CUstream, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t, CUstreamCaptureMode) noexcept nogil
    ctypedef int (*PFN_cuGraphAddNode_v12030)(
        CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t, CUgraphNodeParams*) noexcept nogil
    ctypedef int (*PFN_cuGraphConditionalHandleCreate_v12030)(
        CUgraphConditionalHandle*, CUgraph, CUcontext, unsigned int, unsigned int) noexcept nogil

cdef extern from *:
    int ACQUIRE "__ATOMIC_ACQUIRE"
    int RELEASE "__ATOMIC_RELEASE"
    uintptr_t load_function "__atomic_load_n"(uintptr_t* from_, int order) noexcept nogil
    void store_function "__atomic_store_n"(uintptr_t* to, uintptr_t function, int order) noexcept nogil

cdef PFN_cuStreamGetCaptureInfo_v12030 cuStreamGetCaptureInfo
cdef PFN_cuStreamUpdateCaptureDependencies_v12030 cuStreamUpdateCaptureDependencies
cdef PFN_cuStreamBeginCaptureToGraph_v12030 cuStreamBeginCaptureToGraph
cdef PFN_cuGraphAddNode_v12030 cuGraphAddNode
cdef PFN_cuGraphConditionalHandleCreate_v12030 cuGraphConditionalHandleCreate

cdef Table* rows  # the cuda driver's own
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


cdef int fill_conditionals(Table* table, Table* blank) except -1:
    global rows
    cdef Symbol[7] symbols = [
        Symbol(b"cuStreamBeginCaptureToGraph", 12030, <void**>&cuStreamBeginCaptureToGraph,
               <void**>&table.capture_begin_to),
        Symbol(b"cuStreamGetCaptureInfo", 12030, <void**>&cuStreamGetCaptureInfo, <void**>&table.conditional_create),
        Symbol(b"cuStreamGetCaptureInfo", 12030, <void**>&cuStreamGetCaptureInfo, <void**>&table.conditional_add),
        Symbol(b"cuStreamUpdateCaptureDependencies", 12030, <void**>&cuStreamUpdateCaptureDependencies,
               <void**>&table.conditional_add),
        Symbol(b"cuGraphAddNode", 12030, <void**>&cuGraphAddNode, <void**>&table.conditional_add),
        Symbol(b"cuGraphConditionalHandleCreate", 12030, <void**>&cuGraphConditionalHandleCreate,
               <void**>&table.conditional_create),
        Symbol(b"cuGraphConditionalHandleCreate", 12030, <void**>&cuGraphConditionalHandleCreate,
               <void**>&table.conditional_set),
    ]
    rows = table
    table.capture_begin_to = capture_begin_to
    table.conditional_create = conditional_create
    table.conditional_set = conditional_set
    table.conditional_add = conditional_add
    return resolve(symbols, 7, table, blank)


cdef struct Site:  # where a stream's next node goes
    CUgraph graph
    const CUgraphNode* after
    const CUgraphEdgeData* edges
    size_t count


cdef int find_site(uintptr_t stream, Site* out_site) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef int code
    memset(out_site, 0, sizeof(Site))
    code = cuStreamGetCaptureInfo(<CUstream>stream, &status, NULL, &out_site.graph, &out_site.after, &out_site.edges,
                                  &out_site.count)
    return ILLEGAL_STATE if code == 0 and status != CU_STREAM_CAPTURE_STATUS_ACTIVE else code


cdef int conditional_create(int device, uintptr_t stream, uint64_t* out_condition) noexcept nogil:
    cdef CUgraphConditionalHandle made = 0
    cdef CUcontext context = NULL
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == 0:
        code = find_site(stream, &site)
    if code == 0:
        code = primary_of(device, &context)
    if code == 0:
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
        return 0
    code = go_relaxed(rows, &mode)
    if code:
        return code
    code = rows.module_load(device, PTX, &module)
    if code == 0:
        code = rows.module_function(module, b"accelrt_set_condition", out_function)
    if code == 0:
        store_function(&setters[device], out_function[0], RELEASE)
    elif module:
        rows.module_unload(device, module)
    restore_mode(rows, mode)
    return code


cdef int conditional_set(int device, uintptr_t stream, uint64_t condition, uintptr_t address) noexcept nogil:
    cdef void* arguments[2]
    cdef uintptr_t function = 0
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    arguments[0] = &condition
    arguments[1] = &address
    if code == 0:
        code = find_site(stream, &site)  # outside a graph the kernel would fault
    if code == 0:
        code = setter_of(device, &function)
    if code == 0:
        code = rows.kernel_launch(device, stream, function, 1, 1, 1, 1, 1, 1, 0, arguments)
    return leave(pushed, code)


cdef int conditional_add(int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body) noexcept nogil:
    cdef CUcontext context = NULL
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    out_body[0] = 0
    if code == 0:
        code = find_site(stream, &site)
    if code == 0:
        code = primary_of(device, &context)
    if code == 0:
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
    if code == 0:
        code = cuStreamUpdateCaptureDependencies(<CUstream>stream, &node, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    if code == 0:
        out_body[0] = <uintptr_t>given.conditional.phGraph_out[0]
    return code


cdef int capture_begin_to(int device, uintptr_t stream, uintptr_t body, int mode) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == 0:
        code = cuStreamBeginCaptureToGraph(<CUstream>stream, <CUgraph>body, NULL, NULL, 0, <CUstreamCaptureMode>mode)
    return leave(pushed, code)
