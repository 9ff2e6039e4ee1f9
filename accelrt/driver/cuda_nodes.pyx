"""The rows of the cuda driver that list a graph's nodes and edges."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.driver.cuda_types cimport CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeType

from accelrt.driver.cuda_context cimport enter_any, leave
from accelrt.driver.cuda_library cimport Symbol, resolve
from accelrt.driver.table cimport Table
from accelrt.status cimport NO_HOST_MEMORY, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuGraphGetNodes_v10000)(CUgraph, CUgraphNode*, size_t*) noexcept nogil
    ctypedef int (*PFN_cuGraphGetEdges_v12030)(
        CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t*) noexcept nogil
    ctypedef int (*PFN_cuGraphNodeGetType_v10000)(CUgraphNode, CUgraphNodeType*) noexcept nogil

cdef PFN_cuGraphGetNodes_v10000 cuGraphGetNodes
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
