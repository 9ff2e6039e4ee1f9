"""The host driver's rows for what a graph is made of: its nodes, its edges, a drawing, its conditions."""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdio cimport FILE, fclose, fopen, fprintf
from libc.stdlib cimport free

from accelrt.driver.host_capture cimport add_node, begin
from accelrt.driver.host_condition cimport find_body, keep_body, new_condition, prepare_branch, prepare_set
from accelrt.driver.host_gate cimport gate, gate_any
from accelrt.driver.host_graph cimport find_graph
from accelrt.driver.host_queue cimport (
    BRANCH, CALL, COPY, FILL, RECORD, WAIT, Graph, HostStream, Work, find_stream, lock, unlock,
)
from accelrt.driver.table cimport CONDITION_IF, CONDITION_WHILE, Table
from accelrt.status cimport INVALID_HANDLE, INVALID_VALUE, OPERATING_SYSTEM

cdef enum:  # CUgraphNodeType
    TYPE_KERNEL = 0
    TYPE_MEMCPY = 1
    TYPE_MEMSET = 2
    TYPE_HOST = 3
    TYPE_EVENT_WAIT = 6
    TYPE_EVENT_RECORD = 7
    TYPE_CONDITIONAL = 13


cdef int type_of(int kind) noexcept nogil:
    # What sets a condition is a kernel on a GPU.
    if kind == COPY:
        return TYPE_MEMCPY
    if kind == FILL:
        return TYPE_MEMSET
    if kind == BRANCH:
        return TYPE_CONDITIONAL
    if kind == WAIT:
        return TYPE_EVENT_WAIT
    if kind == RECORD:
        return TYPE_EVENT_RECORD
    return TYPE_HOST if kind == CALL else TYPE_KERNEL


cdef const char* type_name(int kind) noexcept nogil:
    cdef int type_ = type_of(kind)
    if type_ == TYPE_MEMCPY:
        return "MEMCPY"
    if type_ == TYPE_MEMSET:
        return "MEMSET"
    if type_ == TYPE_CONDITIONAL:
        return "CONDITIONAL"
    if type_ == TYPE_EVENT_WAIT:
        return "EVENT_WAIT"
    if type_ == TYPE_EVENT_RECORD:
        return "EVENT_RECORD"
    return "HOST" if type_ == TYPE_HOST else "KERNEL"


# --- lists -------------------------------------------------------------------------------------------------

cdef int graph_nodes(uintptr_t graph, size_t room, void* nodes, size_t* out_count) noexcept nogil:
    cdef Graph* found
    cdef size_t index
    cdef int code = gate_any()
    out_count[0] = 0
    if code:
        return code
    lock()
    found = find_graph(graph)
    if found != NULL:
        out_count[0] = min(<size_t>found.count, room) if room else found.count
        for index in range(min(<size_t>found.count, room)):
            (<uintptr_t*>nodes)[index] = found.nodes[index].handle
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef size_t list_edges(const Graph* graph, size_t room, uintptr_t* origins, uintptr_t* targets) noexcept nogil:
    # Answers how many there are; writes those that have room.
    cdef size_t count = 0
    cdef int index, step
    for index in range(graph.count):
        for step in range(graph.nodes[index].after.count):
            if count < room:
                origins[count] = graph.nodes[graph.nodes[index].after.nodes[step]].handle
                targets[count] = graph.nodes[index].handle
            count += 1
    return count


cdef int graph_edges(uintptr_t graph, size_t room, void* origins, void* targets, size_t* out_count) noexcept nogil:
    cdef Graph* found
    cdef size_t count
    cdef int code = gate_any()
    out_count[0] = 0
    if code:
        return code
    lock()
    found = find_graph(graph)
    if found != NULL:
        count = list_edges(found, room, <uintptr_t*>origins, <uintptr_t*>targets)
        out_count[0] = min(count, room) if room else count
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int graph_node_type(uintptr_t graph, uintptr_t node, int* out_type) noexcept nogil:
    cdef Graph* found
    cdef int index
    cdef int code = gate_any()
    if code:
        return code
    code = INVALID_VALUE
    lock()
    found = find_graph(graph)
    if found != NULL:
        for index in range(found.count):
            if found.nodes[index].handle == node:
                out_type[0] = type_of(found.nodes[index].work.kind)
                code = 0
    unlock()
    return code


# --- a drawing ---------------------------------------------------------------------------------------------

cdef void write_nodes(FILE* file, const Graph* graph) noexcept nogil:
    # Nodes are named by their handles; a conditional node's body is a cluster that it points into.
    cdef int index, step
    cdef const Graph* body
    for index in range(graph.count):
        fprintf(file, "\"%llx\" [label=\"%d\\n%s\"];\n", <unsigned long long>graph.nodes[index].handle, index,
                type_name(graph.nodes[index].work.kind))
        for step in range(graph.nodes[index].after.count):
            fprintf(file, "\"%llx\" -> \"%llx\";\n",
                    <unsigned long long>graph.nodes[graph.nodes[index].after.nodes[step]].handle,
                    <unsigned long long>graph.nodes[index].handle)
        body = graph.nodes[index].work.body
        if body != NULL:
            fprintf(file, "subgraph \"cluster_%llx\" {\nlabel=\"%s\";\n", <unsigned long long>body.handle,
                    "while" if graph.nodes[index].work.repeats else "if")
            write_nodes(file, body)
            fprintf(file, "}\n")
            if body.count:
                fprintf(file, "\"%llx\" -> \"%llx\" [style=dashed];\n",
                        <unsigned long long>graph.nodes[index].handle, <unsigned long long>body.nodes[0].handle)


cdef int graph_dot(uintptr_t graph, const char* path, unsigned int flags) noexcept nogil:
    cdef Graph* found
    cdef FILE* file
    cdef bint written = False
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = find_graph(graph)
    file = fopen(path, "w") if found != NULL else NULL
    if file != NULL:
        fprintf(file, "digraph dot {\n")
        write_nodes(file, found)
        written = fprintf(file, "}\n") > 0
        written = fclose(file) == 0 and written
    unlock()
    if found == NULL:
        return INVALID_VALUE
    return 0 if written else OPERATING_SYSTEM


# --- conditions --------------------------------------------------------------------------------------------

cdef int conditional_create(int device, uintptr_t stream, uint64_t* out_condition) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    out_condition[0] = 0
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else new_condition(found, out_condition)
    unlock()
    return code


cdef int conditional_set(int device, uintptr_t stream, uint64_t condition, uintptr_t address) noexcept nogil:
    cdef HostStream* found
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else prepare_set(found, condition, address, &work)
    if code == 0:
        code = add_node(found, &work)
    unlock()
    return code


cdef int conditional_add(int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body) noexcept nogil:
    cdef HostStream* found
    cdef Work work
    cdef int code = gate(device)
    out_body[0] = 0
    if code or kind < CONDITION_IF or kind > CONDITION_WHILE:
        return code if code else INVALID_VALUE
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else prepare_branch(found, condition, kind == CONDITION_WHILE, &work)
    if code == 0:
        code = add_node(found, &work)
        if code:
            free(work.body)
        else:
            keep_body(work.body)
            out_body[0] = work.body.handle
    unlock()
    return code


cdef int capture_begin_to(int device, uintptr_t stream, uintptr_t body, int mode) noexcept nogil:
    cdef HostStream* found
    cdef Graph* to
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    to = find_body(body)
    if found == NULL or to == NULL:
        code = INVALID_VALUE if found != NULL else INVALID_HANDLE
    else:
        code = begin(found, to, mode)
    unlock()
    return code


cdef void fill_node_rows(Table* table) noexcept nogil:
    table.graph_nodes = graph_nodes
    table.graph_edges = graph_edges
    table.graph_node_type = graph_node_type
    table.graph_dot = graph_dot
    table.conditional_create = conditional_create
    table.conditional_set = conditional_set
    table.conditional_add = conditional_add
    table.capture_begin_to = capture_begin_to
