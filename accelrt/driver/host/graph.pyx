"""The host driver's rows for capture and graphs."""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdio cimport FILE, fclose, fopen, fprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.kernel cimport find_function, make_launch
from accelrt.driver.host.queue cimport (
    BRANCH, CALL, COPY, COPY_3D, FILL, KERNEL, RECORD, REPLAY, WAIT, Graph, HostFunction, HostStream, Launch, Node,
    Plan, Ticket, Work, drop_launch, drop_plan, drop_ticket, enqueue, find_stream, follow_legacy_order, hold_end_open,
    is_legacy, lock, mark, new_handle, peek_stream, unlock,
)
from accelrt.driver.host.stream cimport (
    abandon_tickets, add_node, begin_capture, beside_capture, break_capture, change_plan, check_implicit, check_unsafe,
    end_capture, exchange_mode, find_body, find_node, find_planned, free_graph, gate, gate_any, keep_body,
    new_condition, plan_of, prepare_branch, prepare_set, shape_changed, tickets_for,
)
from accelrt.driver.table cimport (
    CAPTURE_ACTIVE, CAPTURE_INVALIDATED, CAPTURE_NONE, CAPTURE_RELAXED, CONDITION_IF, CONDITION_WHILE, Table,
)
from accelrt.status cimport (
    CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, GRAPH_UPDATE_FAILURE, INVALID_HANDLE, INVALID_VALUE, NO_HOST_MEMORY,
    OPERATING_SYSTEM,
)

cdef struct Exec:
    uintptr_t handle
    Plan* plan
    Ticket* last  # of the last launch

# Guarded by the queue's lock.
cdef AddressMap graphs
cdef AddressMap execs

include "graph_rows.pxi"


cdef Graph* find_graph(uintptr_t graph) noexcept nogil:
    cdef Graph* found = <Graph*>map_find(&graphs, graph)
    return found if found != NULL else find_body(graph)


cdef void graph_counts(size_t* counts) noexcept nogil:
    counts[0] = graphs.count
    counts[1] = execs.count


cdef int capture_begin(int device, uintptr_t stream, int mode) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else begin_capture(found, NULL, mode)
    unlock()
    return code


cdef int capture_end(int device, uintptr_t stream, uintptr_t* out_graph) noexcept nogil:
    cdef HostStream* found
    cdef Graph* graph = NULL
    cdef int code = gate(device)
    out_graph[0] = 0
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    if found != NULL and hold_end_open(found):
        found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else map_reserve(&graphs)
    if code == 0:
        code = end_capture(found, &graph)
    if code == 0 and graph.within != NULL:
        out_graph[0] = graph.handle
    elif code == 0:
        out_graph[0] = new_handle()
        map_insert(&graphs, out_graph[0], graph)
    unlock()
    return code


cdef int capture_status(int device, uintptr_t stream, int* out_status, uint64_t* out_id) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    out_status[0] = CAPTURE_NONE
    out_id[0] = 0
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    if found == NULL:
        code = INVALID_HANDLE
    elif is_legacy(found):
        code = CAPTURE_IMPLICIT if beside_capture(found) else 0
    elif found.capture != NULL:
        out_status[0] = CAPTURE_INVALIDATED if found.capture.broken else CAPTURE_ACTIVE
        out_id[0] = 0 if found.capture.broken else found.capture.id
    unlock()
    return code


cdef int stream_is_capturing(int device, uintptr_t stream, int* out_status) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    out_status[0] = CAPTURE_NONE
    if code:
        return code
    lock()
    found = peek_stream(device, stream)
    if found == NULL:
        code = INVALID_HANDLE
    elif is_legacy(found):
        code = CAPTURE_IMPLICIT if beside_capture(found) else 0
    elif found.capture != NULL:
        out_status[0] = CAPTURE_INVALIDATED if found.capture.broken else CAPTURE_ACTIVE
    unlock()
    return code


cdef int capture_mode_exchange(int mode, int* out_before) noexcept nogil:
    cdef int code = gate_any()
    if code or mode < 0 or mode > CAPTURE_RELAXED:
        return code if code else INVALID_VALUE
    out_before[0] = exchange_mode(mode)
    return 0


cdef int graph_destroy(uintptr_t graph) noexcept nogil:
    cdef Graph* found
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = <Graph*>map_remove(&graphs, graph)
    if found != NULL:
        free_graph(found)
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int graph_node_count(uintptr_t graph, size_t* out_count) noexcept nogil:
    cdef Graph* found
    cdef int code = gate_any()
    if code or graph == 0:
        return code if code else INVALID_VALUE
    lock()
    found = find_graph(graph)
    out_count[0] = found.count if found != NULL else 0
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int graph_instantiate(int device, uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil:
    cdef Graph* found
    cdef Exec* made
    cdef int code = gate(device)
    out_exec[0] = 0
    if code:
        return code
    made = <Exec*>calloc(1, sizeof(Exec))
    if made == NULL:
        return NO_HOST_MEMORY
    lock()
    found = <Graph*>map_find(&graphs, graph)
    code = INVALID_VALUE if found == NULL else check_unsafe()
    if code == 0:
        code = map_reserve(&execs)
    if code == 0:
        made.plan = plan_of(found)
        code = 0 if made.plan != NULL else NO_HOST_MEMORY
    if code == 0:
        made.handle = new_handle()
        map_insert(&execs, made.handle, made)
        out_exec[0] = made.handle
    unlock()
    if code:
        free(made)
    return code


cdef int graph_update(uintptr_t exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil:
    cdef Exec* found
    cdef Graph* to
    cdef Plan* plan
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = <Exec*>map_find(&execs, exec_)
    to = <Graph*>map_find(&graphs, graph)
    out_result[0] = 0
    out_node[0] = 0
    if found == NULL or to == NULL:
        code = INVALID_VALUE
    else:
        out_result[0] = shape_changed(found.plan, to, out_node)
        if out_result[0]:
            code = GRAPH_UPDATE_FAILURE
    if code == 0:
        plan = plan_of(to)  # launches under way keep the old one
        if plan == NULL:
            code = NO_HOST_MEMORY
        else:
            drop_plan(found.plan)
            found.plan = plan
    unlock()
    return code


cdef int launch_in_turn(Exec* exec_, HostStream* on, const Work* replay) noexcept nogil:
    # One launch of an instantiated graph runs at a time, whichever the streams.
    cdef Work work
    cdef void* tickets = NULL
    cdef int code = follow_legacy_order(on)
    if code == 0 and exec_.last != NULL and not exec_.last.done:
        memset(&work, 0, sizeof(Work))
        work.kind = WAIT
        code = enqueue(on, &work, exec_.last, NULL)
    if code == 0:
        code = tickets_for(exec_.plan, &tickets)
    if code == 0:
        code = enqueue(on, replay, NULL, tickets)
        if code:
            abandon_tickets(exec_.plan, tickets)
    if code == 0:
        drop_ticket(exec_.last)
        exec_.last = mark(on, &code)
    return code


cdef int graph_launch(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    cdef Exec* found
    cdef HostStream* on
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    memset(&work, 0, sizeof(Work))
    work.kind = REPLAY
    lock()
    found = <Exec*>map_find(&execs, exec_)
    on = find_stream(device, stream)
    if found == NULL or on == NULL:
        code = INVALID_VALUE if found == NULL else INVALID_HANDLE
    elif on.capture != NULL:
        code = break_capture(on, CAPTURE_UNSUPPORTED)
    else:
        code = check_implicit(on)
    if code == 0:
        work.plan = found.plan
        code = launch_in_turn(found, on, &work)
    unlock()
    return code


cdef int graph_upload(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    # There is nowhere to upload to; the handles are still checked.
    cdef HostStream* on
    cdef int code = gate(device)
    if code:
        return code
    lock()
    on = find_stream(device, stream)
    if map_find(&execs, exec_) == NULL or on == NULL:
        code = INVALID_VALUE if on != NULL else INVALID_HANDLE
    elif on.capture != NULL:
        code = break_capture(on, CAPTURE_UNSUPPORTED)
    unlock()
    return code


cdef int graph_exec_destroy(uintptr_t exec_) noexcept nogil:
    cdef Exec* found
    cdef int code = gate_any()
    if code:
        return code
    lock()
    code = check_unsafe()
    found = <Exec*>map_remove(&execs, exec_) if code == 0 else NULL
    if found != NULL:
        drop_plan(found.plan)
        drop_ticket(found.last)
    unlock()
    free(found)
    return INVALID_VALUE if code == 0 and found == NULL else code


# --- the host driver's rows for what a graph is made of: its nodes, its edges, a drawing, its conditions --

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
    if kind == COPY or kind == COPY_3D:
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
    cdef Node* place
    cdef int code = gate_any()
    if code:
        return code
    code = INVALID_VALUE
    lock()
    found = find_graph(graph)
    place = NULL if found == NULL else find_node(found.nodes, found.count, node)
    if place != NULL:
        out_type[0] = type_of(place.work.kind)
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
        code = begin_capture(found, to, mode)
    unlock()
    return code


# --- kernel nodes ------------------------------------------------------------------------------------------

cdef Node* find_kernel_node(uintptr_t graph, uintptr_t node) noexcept nogil:
    # Under the lock; NULL where it is none.
    cdef Graph* found = find_graph(graph)
    cdef Node* place = NULL if found == NULL else find_node(found.nodes, found.count, node)
    return place if place != NULL and place.work.kind == KERNEL else NULL


cdef int kernel_node(uintptr_t graph, uintptr_t node, uintptr_t* out_function, unsigned int* out_grid_x, unsigned int* out_grid_y, unsigned int* out_grid_z, unsigned int* out_block_x, unsigned int* out_block_y, unsigned int* out_block_z, unsigned int* out_shared_bytes, uintptr_t* out_arguments) noexcept nogil:  # no-cython-lint
    cdef Node* found
    cdef const Launch* launch
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = find_kernel_node(graph, node)
    if found != NULL:
        launch = found.work.launch
        out_function[0] = launch.function.handle
        out_grid_x[0], out_grid_y[0], out_grid_z[0] = launch.grid[0], launch.grid[1], launch.grid[2]
        out_block_x[0], out_block_y[0], out_block_z[0] = launch.block[0], launch.block[1], launch.block[2]
        out_shared_bytes[0] = launch.shared_bytes
        out_arguments[0] = <uintptr_t>launch.arguments
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int change_exec(uintptr_t exec_, uintptr_t node, Launch* launch) noexcept nogil:
    # Launches under way keep the old plan; without them it is changed in place.
    cdef Exec* found = <Exec*>map_find(&execs, exec_)
    cdef Plan* plan
    cdef Node* place
    cdef bint changed = False
    if found == NULL:
        return INVALID_VALUE
    if found.plan.holders == 1:
        place = find_planned(found.plan, node)
        if place == NULL or place.work.kind != KERNEL:
            return INVALID_VALUE
        drop_launch(place.work.launch)
        place.work.launch = launch
        launch.holders += 1
        return 0
    plan = change_plan(found.plan, node, launch, &changed)
    if plan == NULL or not changed:
        drop_plan(plan)
        return INVALID_VALUE if plan != NULL else NO_HOST_MEMORY
    drop_plan(found.plan)
    found.plan = plan
    return 0


cdef int kernel_node_set(uintptr_t graph, uintptr_t exec_, uintptr_t node, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] block = [block_x, block_y, block_z]
    cdef Node* found
    cdef HostFunction* of_
    cdef Launch* launch = NULL
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = find_kernel_node(graph, node)
    of_ = find_function(function)
    if found == NULL or of_ == NULL:
        code = INVALID_VALUE if found == NULL else INVALID_HANDLE
    elif of_.module.device != found.work.launch.function.module.device:
        code = INVALID_VALUE
    else:
        code = make_launch(of_, grid, block, shared_bytes, arguments, &launch)
    if code == 0 and exec_:
        code = change_exec(exec_, node, launch)
    elif code == 0:
        drop_launch(found.work.launch)
        found.work.launch = launch
        launch.holders += 1
    drop_launch(launch)
    unlock()
    return code
