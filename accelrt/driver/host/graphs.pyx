"""The host driver's rows for captures and graphs: what was captured and what is made by hand, instances and their launches.

A graph is a list of nodes in the order in which they were added, which is that of their handles; each names the places of
those that it comes after.  An instance is a plan: a copy of them, with an order in which one can be done after the other,
that a launch holds.  A change of an instance under way makes a new plan.

A child graph and the bodies of a condition are graphs that their node owns.  What an instance does with memory of graphs is
done when a launch is put in (`memory.pyx`).
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdio cimport FILE, fclose, fopen, fprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.machine cimport (
    HOST_MEMORY, UNKNOWN_MEMORY, device_of, drop_launch, drop_plan, drop_ticket, drop_work, enqueue, enqueue_point,
    find_stream, follow_legacy_order, hold_end_open, is_legacy, lock, new_handle, new_ticket, peek_stream, unlock,
)
from accelrt.driver.host.memory cimport claim_memory, find_allocation, is_of_array, make_allocation, note_instance
from accelrt.driver.host.stream cimport (
    abandon_tickets, add_condition, add_node, append_node, begin_branch, begin_capture, beside_capture, bodies,
    break_capture, check_capturing, check_implicit, check_launch, check_unsafe, condition_of, end_capture, enter, events,
    exchange_mode, find_body, find_captured, find_function, free_graph, gate, gate_any, hold_work, is_captured_into,
    keep_body, make_launch, new_condition, owner_at_launch, prepare_branch, prepare_copy, prepare_copy_3d, prepare_fill,
    prepare_set, tickets_for,
)
from accelrt.driver.host.work cimport (
    ALLOCATE, BRANCH, CALL, CHILD, COPY, COPY_3D, DST_KNOWN, FILL, KERNEL, NOTHING, RECORD, RELEASE, REPLAY, SET, SRC_KNOWN,
    WAIT, Frontier, Graph, HostEvent, HostFunction, HostStream, Launch, Node, Plan, Side, Ticket, Work, add_edge,
    add_to_frontier, begin_work, carries, clear_frontier, copy_frontier, edge_data,
)
from accelrt.driver.node_params cimport (
    ALLOCATE_DEVICE, ALLOCATE_MANAGED, ATTRIBUTE_CLUSTER, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_PRIORITY, CONDITION_IF,
    CONDITION_SWITCH, CONDITION_WHILE, EDGE_DEFAULT, EDGE_PROGRAMMATIC, EdgeData, INSTANTIATE_AUTO_FREE,
    INSTANTIATE_FOR_DEVICE, INSTANTIATE_PRIORITIES, NODE_ALLOCATE, NODE_CHILD, NODE_CONDITION, NODE_COPY, NODE_EMPTY,
    NODE_FILL, NODE_FREE, NODE_HOST, NODE_KERNEL, NODE_RECORD, NODE_WAIT, NodeParams, PORT_DEFAULT, PORT_LAUNCH_ORDER,
    PORT_PROGRAMMATIC,
)
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_INVALIDATED, CAPTURE_RELAXED, Table
from accelrt.status cimport (
    CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, GRAPH_UPDATE_FAILURE, INVALID_CLUSTER_SIZE, INVALID_HANDLE, INVALID_VALUE,
    NOT_SUPPORTED, NO_HOST_MEMORY, OPERATING_SYSTEM,
)

cdef extern from *:
    """
    static const char *const accelrt_node_names[] = {
        "KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "EVENT_WAIT", "EVENT_RECORD", "", "", "MEM_ALLOC",
        "MEM_FREE", "", "CONDITIONAL",
    };
    static const char *const accelrt_flow_names[] = {"if", "while", "switch", "child"};
    """
    const char** NODE_NAMES "accelrt_node_names"  # by type
    const char** FLOW_NAMES "accelrt_flow_names"

cdef enum:
    DOT_VERBOSE = 1  # CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE
    GONE = -3        # of side_of

cdef enum:  # numbers of CUgraphExecUpdateResult
    TOPOLOGY_CHANGED = 2
    NODE_TYPE_CHANGED = 3
    PARAMETERS_CHANGED = 5
    ATTRIBUTES_CHANGED = 8

cdef struct Exec:
    uintptr_t handle
    Plan* plan
    Ticket* last  # of the last launch
    bint frees    # a launch gives back first what the one before left allocated
    uintptr_t source  # the graph that it was instantiated from

# Guarded by the queue's lock.
cdef AddressMap graphs
cdef AddressMap execs
cdef size_t own_children = 0
cdef size_t foreign_ends = 0

include "graphs_rows.pxi"


# --- captures ----------------------------------------------------------------------------------------------

cdef Graph* find_graph(uintptr_t graph) noexcept nogil:
    # Or a body, or what is being captured.
    cdef Graph* entry = <Graph*>map_find(&graphs, graph)
    if entry == NULL:
        entry = find_body(graph)
    return entry if entry != NULL else find_captured(graph)


cdef Exec* find_exec(uintptr_t exec_) noexcept nogil:
    return <Exec*>map_find(&execs, exec_)


cdef int capture_begin_locked(HostStream* stream, int mode) noexcept nogil:
    return begin_capture(stream, NULL, mode)


cdef int capture_end_locked(int device, uintptr_t stream, uintptr_t* out_graph) noexcept nogil:
    cdef HostStream* origin = find_stream(device, stream)
    cdef Graph* graph = NULL
    cdef int code
    if origin != NULL and hold_end_open(origin):
        origin = find_stream(device, stream)
    code = INVALID_HANDLE if origin == NULL else map_reserve(&graphs)
    if code == 0:
        code = end_capture(origin, &graph)
    if code == 0 and graph.within != NULL:
        out_graph[0] = graph.handle
    elif code == 0:
        graph.handle = out_graph[0] = graph.handle if graph.handle else new_handle()
        map_insert(&graphs, out_graph[0], graph)
    return code


cdef int capture_status_locked(HostStream* stream, int* out_status, uint64_t* out_id) noexcept nogil:
    if stream == NULL:
        return INVALID_HANDLE
    if is_legacy(stream):
        return CAPTURE_IMPLICIT if beside_capture(stream) else 0
    if stream.capture != NULL:
        out_status[0] = CAPTURE_INVALIDATED if stream.capture.broken else CAPTURE_ACTIVE
        out_id[0] = 0 if stream.capture.broken else stream.capture.id
    return 0


cdef int stream_is_capturing_locked(int device, uintptr_t stream, int* out_status) noexcept nogil:
    cdef uint64_t ignored
    return capture_status_locked(peek_stream(device, stream), out_status, &ignored)


cdef int capture_mode_exchange_gated(int mode, int* out_before) noexcept nogil:
    if mode < 0 or mode > CAPTURE_RELAXED:
        return INVALID_VALUE
    out_before[0] = exchange_mode(mode)
    return 0


cdef int capture_begin_to_locked(HostStream* stream, uintptr_t body, int mode) noexcept nogil:
    cdef Graph* to = find_body(body)
    return begin_capture(stream, to, mode) if to != NULL else INVALID_VALUE


cdef int capture_site_locked(
    HostStream* stream, size_t room, void* nodes, size_t* out_count, uintptr_t* out_graph
) noexcept nogil:
    cdef const Frontier* after = &stream.frontier
    cdef Graph* graph
    cdef size_t index
    cdef int code = check_capturing(stream)
    if code:
        return code
    graph = stream.capture.graph
    if graph.handle == 0:
        graph.handle = new_handle()
    out_graph[0] = graph.handle
    out_count[0] = min(<size_t>after.count, room) if room else after.count
    for index in range(min(<size_t>after.count, room)):
        (<uintptr_t*>nodes)[index] = graph.nodes[after.nodes[index]].handle
    return 0


cdef int capture_continue_locked(HostStream* stream, uintptr_t node) noexcept nogil:
    cdef const Node* entry
    cdef Frontier itself
    cdef int index
    cdef int code = check_capturing(stream)
    global foreign_ends
    if code:
        return code
    entry = find_node(stream.capture.graph.nodes, stream.capture.graph.count, node)
    if entry == NULL:
        foreign_ends += 1
        return INVALID_VALUE
    index = <int>(entry - stream.capture.graph.nodes)
    memset(&itself, 0, sizeof(Frontier))
    itself.nodes, itself.count = &index, 1
    return copy_frontier(&stream.frontier, &itself)


# --- graphs ------------------------------------------------------------------------------------------------

cdef int graph_create_locked(uintptr_t* out_graph) noexcept nogil:
    return keep_graph(<Graph*>calloc(1, sizeof(Graph)), out_graph)


cdef int keep_graph(Graph* graph, uintptr_t* out_graph) noexcept nogil:
    # Frees it where it fails.
    if graph == NULL or map_reserve(&graphs):
        free_graph(graph)
        return NO_HOST_MEMORY
    graph.handle = out_graph[0] = new_handle()
    map_insert(&graphs, graph.handle, graph)
    return 0


cdef int graph_destroy_locked(uintptr_t graph) noexcept nogil:
    cdef Graph* removed = <Graph*>map_remove(&graphs, graph)
    if removed == NULL:
        return INVALID_VALUE
    free_graph(removed)
    return 0


cdef int graph_node_count_locked(Graph* graph, size_t* out_count) noexcept nogil:
    out_count[0] = graph.count
    return 0


cdef int graph_clone_locked(Graph* graph, uintptr_t* out_graph) noexcept nogil:
    cdef Graph* clone = NULL
    cdef int code = clone_graph(graph, NULL, &clone)
    return code if code else keep_graph(clone, out_graph)


cdef int graph_find_in_clone_locked(Graph* graph, uintptr_t node, uintptr_t* out_node) noexcept nogil:
    cdef int index
    for index in range(graph.count):
        if graph.nodes[index].origin == node:
            out_node[0] = graph.nodes[index].handle
            return 0
    return INVALID_VALUE


cdef int clone_graph(const Graph* graph, Graph* within, Graph** out_clone) noexcept nogil:
    # Its nodes name those that they were cloned from.  What an instance or a launch has for itself is not cloned.
    cdef Graph* clone = <Graph*>calloc(1, sizeof(Graph))
    cdef Node* node
    cdef int index, code = map_reserve(&bodies)
    if clone == NULL:
        return NO_HOST_MEMORY
    clone.handle, clone.origin = new_handle(), graph.handle
    clone.within = within
    clone.governed = within != NULL and within.governed
    if within != NULL and code == 0:
        keep_body(clone)
    for index in range(graph.count):
        if code == 0 and (graph.nodes[index].work.allocation != NULL or graph.nodes[index].work.kind == BRANCH):
            code = NOT_SUPPORTED
        if code == 0:
            code = append_node(clone, &graph.nodes[index].work, &graph.nodes[index].after)
        if code:
            break
        node = &clone.nodes[index]
        node.origin = graph.nodes[index].handle
        node.work.body = NULL
        if graph.nodes[index].work.body != NULL:
            code = clone_graph(graph.nodes[index].work.body, clone, &node.work.body)
    if code:
        free_graph(clone)
        return code
    out_clone[0] = clone
    return 0


# --- edges and nodes ---------------------------------------------------------------------------------------

cdef int graph_nodes_locked(Graph* graph, size_t room, void* nodes, size_t* out_count) noexcept nogil:
    cdef size_t index
    out_count[0] = min(<size_t>graph.count, room) if room else graph.count
    for index in range(min(<size_t>graph.count, room)):
        (<uintptr_t*>nodes)[index] = graph.nodes[index].handle
    return 0


cdef int graph_edges_locked(
    Graph* graph, size_t room, void* origins, void* targets, void* data, size_t* out_count
) noexcept nogil:
    cdef EdgeData* into = <EdgeData*>data
    cdef const EdgeData* carried
    cdef size_t count = 0
    cdef int index, step
    for index in range(graph.count):
        for step in range(graph.nodes[index].after.count):
            if count < room:
                (<uintptr_t*>origins)[count] = graph.nodes[graph.nodes[index].after.nodes[step]].handle
                (<uintptr_t*>targets)[count] = graph.nodes[index].handle
                carried = edge_data(&graph.nodes[index].after, step)
                memset(&into[count], 0, sizeof(EdgeData))
                if carried != NULL:
                    into[count] = carried[0]
            count += 1
    out_count[0] = min(count, room) if room else count
    return 0


cdef int graph_node_type_locked(Graph* graph, uintptr_t node, int* out_type) noexcept nogil:
    cdef const Node* entry = find_node(graph.nodes, graph.count, node)
    if entry == NULL:
        return INVALID_VALUE
    out_type[0] = type_of(entry.work.kind)
    return 0


cdef int graph_node_tools_id_locked(Graph* graph, uintptr_t node, uint64_t* out_id) noexcept nogil:
    if find_node(graph.nodes, graph.count, node) == NULL:
        return INVALID_VALUE
    out_id[0] = <uint64_t>number_of(graph.handle) << 32 | number_of(node)
    return 0


cdef unsigned int number_of(uintptr_t handle) noexcept nogil:
    return <unsigned int>handle  # its low half


cdef int graph_exec_id_locked(Exec* exec_, unsigned int* out_id) noexcept nogil:
    out_id[0] = number_of(exec_.handle)
    return 0


cdef int find_places(const Graph* graph, size_t count, const uintptr_t* nodes, Frontier* out_places) noexcept nogil:
    # Finds the places of nodes that are each named once; the caller clears out_places.
    cdef const Node* entry
    cdef size_t index
    cdef int code
    memset(out_places, 0, sizeof(Frontier))
    for index in range(count):
        entry = find_node(graph.nodes, graph.count, nodes[index])
        if entry == NULL:
            return INVALID_VALUE
        code = add_to_frontier(out_places, <int>(entry - graph.nodes))
        if code or out_places.count != <int>index + 1:
            return code if code else INVALID_VALUE
    return 0


cdef int graph_node_add_locked(
    int device, Graph* graph, size_t count, void* after, NodeParams* params, uintptr_t* out_node
) noexcept nogil:
    cdef Frontier frontier
    cdef Work work
    cdef int code = find_places(graph, count, <const uintptr_t*>after, &frontier)
    begin_work(&work, NOTHING)
    if code == 0:
        code = prepare_node(device, graph, params, &work)
    if code == 0:
        code = append_node(graph, &work, &frontier)
        if code:
            free_graph(work.body)
    work.condition = NULL  # its graph's; what else prepare_node made holds itself
    drop_work(&work)
    clear_frontier(&frontier)
    if code:
        return code
    out_node[0] = graph.nodes[graph.count - 1].handle
    if work.kind == BRANCH:
        tell_bodies(work.body, params)
    elif work.kind == ALLOCATE:
        params.address = work.allocation.address
    return 0


cdef void tell_bodies(const Graph* body, NodeParams* params) noexcept nogil:
    cdef unsigned int index = 0
    while body != NULL:
        params.bodies[index] = body.handle
        body = body.sibling
        index += 1


cdef int graph_node_destroy_locked(Graph* graph, uintptr_t node) noexcept nogil:
    cdef const Node* entry = find_node(graph.nodes, graph.count, node)
    if entry == NULL:
        return INVALID_VALUE
    return NOT_SUPPORTED if has_memory(graph) else remove_node(graph, <int>(entry - graph.nodes))


cdef bint has_memory(const Graph* graph) noexcept nogil:
    # No node or edge of such a graph can be taken out.
    cdef int index
    for index in range(graph.count):
        if graph.nodes[index].work.allocation != NULL:
            return True
    return False


cdef int remove_node(Graph* graph, int removed_index) noexcept nogil:
    # The places of those behind it, and what comes after them, move up.
    cdef Node* removed = &graph.nodes[removed_index]
    cdef Frontier* after
    cdef int index, step, left
    if is_captured_into(graph):
        return INVALID_VALUE
    free_graph(removed.work.body)
    drop_work(&removed.work)
    clear_frontier(&removed.after)
    memmove(removed, removed + 1, (graph.count - removed_index - 1) * sizeof(Node))
    graph.count -= 1
    for index in range(graph.count):
        after = &graph.nodes[index].after
        left = 0
        for step in range(after.count):
            if after.nodes[step] != removed_index:
                after.nodes[left] = after.nodes[step] - (after.nodes[step] > removed_index)
                if after.data != NULL:
                    after.data[left] = after.data[step]
                left += 1
        after.count = left
    return 0


cdef void remove_from_frontier(Frontier* frontier, int node) noexcept nogil:
    cdef int step
    for step in range(frontier.count):
        if frontier.nodes[step] == node:
            frontier.count -= 1
            memmove(&frontier.nodes[step], &frontier.nodes[step + 1], (frontier.count - step) * sizeof(int))
            if frontier.data != NULL:
                memmove(&frontier.data[step], &frontier.data[step + 1], (frontier.count - step) * sizeof(EdgeData))
            return


cdef int find_edge(const Frontier* after, int origin) noexcept nogil:
    # Its index; -1 where there is none.
    cdef int step
    for step in range(after.count):
        if after.nodes[step] == origin:
            return step
    return -1


cdef bint same_data(const EdgeData* one, const EdgeData* other) noexcept nogil:
    # NULL carries nothing.
    if one == NULL or other == NULL:
        return one == other
    return one.type == other.type and one.from_port == other.from_port


cdef bint is_allowed(const Node* origin, const Node* target, const EdgeData* data) noexcept nogil:
    # Kernels alone have ports, and what comes after one by itself is a kernel.
    cdef int index
    for index in range(5):
        if data.reserved[index]:
            return False
    if data.to_port or data.type > EDGE_PROGRAMMATIC or data.from_port > PORT_LAUNCH_ORDER:
        return False
    if data.type == EDGE_PROGRAMMATIC:
        return data.from_port != PORT_DEFAULT and origin.work.kind == KERNEL and target.work.kind == KERNEL
    return data.from_port == PORT_DEFAULT or data.from_port == PORT_LAUNCH_ORDER and origin.work.kind == KERNEL


cdef int graph_edges_add_locked(Graph* graph, size_t count, void* origins, void* targets, void* data) noexcept nogil:
    return change_edges(graph, count, <const uintptr_t*>origins, <const uintptr_t*>targets, <const EdgeData*>data, True)


cdef int graph_edges_remove_locked(Graph* graph, size_t count, void* origins, void* targets, void* data) noexcept nogil:
    if has_memory(graph):
        return NOT_SUPPORTED
    return change_edges(graph, count, <const uintptr_t*>origins, <const uintptr_t*>targets, <const EdgeData*>data, False)


cdef int change_edges(
    Graph* graph, size_t count, const uintptr_t* origins, const uintptr_t* targets, const EdgeData* data, bint adds
) noexcept nogil:
    # All or none: where one is refused, those before it are taken back.  An edge is removed by what it carries, where that
    # is said.
    cdef const Node* origin
    cdef const Node* target
    cdef EdgeData* carried
    cdef Frontier* after
    cdef size_t index = 0
    cdef int code = INVALID_VALUE if is_captured_into(graph) else 0
    carried = <EdgeData*>calloc(count + 1, sizeof(EdgeData))
    if carried == NULL:
        return NO_HOST_MEMORY
    if data != NULL:
        memcpy(carried, data, count * sizeof(EdgeData))
    while index < count and code == 0:
        origin = find_node(graph.nodes, graph.count, origins[index])
        target = find_node(graph.nodes, graph.count, targets[index])
        if origin == NULL or target == NULL or origin == target or not is_allowed(origin, target, &carried[index]):
            code = INVALID_VALUE
        else:
            after = &graph.nodes[target - graph.nodes].after
            if data == NULL and not adds:
                read_edge(after, <int>(origin - graph.nodes), &carried[index])
            code = change_edge(after, <int>(origin - graph.nodes), &carried[index], adds)
            index += code == 0
    while code and index:
        index -= 1
        origin = find_node(graph.nodes, graph.count, origins[index])
        target = find_node(graph.nodes, graph.count, targets[index])
        after = &graph.nodes[target - graph.nodes].after  # has room
        change_edge(after, <int>(origin - graph.nodes), &carried[index], not adds)
    free(carried)
    return code


cdef void read_edge(const Frontier* after, int origin, EdgeData* out_data) noexcept nogil:
    # What it carries, where there is such an edge, and it carries something.
    cdef int step = find_edge(after, origin)
    cdef const EdgeData* data = edge_data(after, step) if step >= 0 else NULL
    if data != NULL:
        out_data[0] = data[0]


cdef int change_edge(Frontier* after, int origin, const EdgeData* data, bint adds) noexcept nogil:
    # INVALID_VALUE where there is one already, or none that carries this.
    cdef int step = find_edge(after, origin)
    if adds:
        return INVALID_VALUE if step >= 0 else add_edge(after, origin, data)
    if step < 0 or not same_data(edge_data(after, step), data if carries(data) else NULL):
        return INVALID_VALUE
    remove_from_frontier(after, origin)
    return 0


# --- what nodes do -----------------------------------------------------------------------------------------

cdef int prepare_node(int device, Graph* graph, const NodeParams* params, Work* out_work) noexcept nogil:
    # What it answers holds a launch, an allocation and bodies of its own.  A body holds kernels, copies, fills, children
    # and conditions.
    cdef int type_ = params.type
    cdef int code
    if graph.governed and type_ in (NODE_HOST, NODE_WAIT, NODE_RECORD, NODE_ALLOCATE, NODE_FREE):
        return NOT_SUPPORTED
    if type_ == NODE_KERNEL:
        return prepare_kernel(device, graph, params, out_work)
    if type_ == NODE_COPY:
        return prepare_copied(params, out_work)
    if type_ == NODE_FILL:
        return prepare_fill(out_work, params.dst, params.value, params.element, params.width, params.height,
                            params.dst_pitch)
    if type_ == NODE_HOST:
        begin_work(out_work, CALL)
        out_work.fn, out_work.data = params.fn, params.data
        return 0 if params.fn != NULL else INVALID_VALUE
    if type_ == NODE_WAIT or type_ == NODE_RECORD:
        return prepare_point(device, params, out_work)
    if type_ == NODE_CHILD:
        return prepare_child(graph, find_graph(params.graph), out_work)
    if type_ == NODE_ALLOCATE:
        begin_work(out_work, ALLOCATE)
        out_work.dst = 0
        if params.kind < ALLOCATE_DEVICE or params.kind > ALLOCATE_MANAGED:
            return INVALID_VALUE
        code = make_allocation(params.device, params.size, params.peers, &out_work.allocation)
        if code == 0:
            out_work.allocation.kind, out_work.allocation.peers = params.kind, params.peers
        return code
    if type_ == NODE_FREE:
        begin_work(out_work, RELEASE)
        out_work.allocation = find_allocation(params.address)
        if out_work.allocation == NULL:
            return INVALID_VALUE
        out_work.allocation.holders += 1
        return 0
    if type_ == NODE_CONDITION:
        if params.kind < CONDITION_IF or params.kind > CONDITION_SWITCH or params.bodies == NULL:
            return INVALID_VALUE
        if params.count > (2 if params.kind == CONDITION_IF else 1) and params.kind != CONDITION_SWITCH:
            return INVALID_VALUE
        return begin_branch(graph, params.condition, params.kind, params.count, out_work)
    begin_work(out_work, NOTHING)
    return 0 if type_ == NODE_EMPTY else NOT_SUPPORTED


cdef int prepare_kernel(int device, const Graph* graph, const NodeParams* params, Work* out_work) noexcept nogil:
    cdef HostFunction* function = find_function(params.function)
    if params.function == 0:  # sets a condition, as a node that is captured
        begin_work(out_work, SET)
        out_work.condition = condition_of(graph, params.condition)
        out_work.src, out_work.size, out_work.known = params.src, sizeof(int), SRC_KNOWN
        if out_work.condition == NULL or params.src % sizeof(int):
            return INVALID_VALUE
        return 0 if owner_at_launch(params.src, sizeof(int), False) >= -1 else INVALID_VALUE
    begin_work(out_work, KERNEL)
    if function == NULL or function.module.device != device:
        return INVALID_HANDLE if function == NULL else INVALID_VALUE
    return make_launch(function, params.grid, params.block, params.shared_bytes, params.arguments, &out_work.launch)


cdef int prepare_copied(const NodeParams* params, Work* out_work) noexcept nogil:
    # A single row is a plain copy, of memory that the driver does not know too.
    if params.width == 0 or params.height == 0 or params.depth == 0:
        return INVALID_VALUE
    if params.height == 1 and params.depth == 1:
        return prepare_copy(out_work, params.dst, owner_at_launch(params.dst, params.width, True), params.src,
                            owner_at_launch(params.src, params.width, False), params.width)
    return prepare_copy_3d(out_work, params.dst, params.dst_pitch, params.dst_lines, params.src, params.src_pitch,
                           params.src_lines, params.width, params.height, params.depth)


cdef int prepare_point(int device, const NodeParams* params, Work* out_work) noexcept nogil:
    cdef const HostEvent* event = <const HostEvent*>map_find(&events, params.event)
    begin_work(out_work, RECORD if params.type == NODE_RECORD else WAIT)
    if event == NULL or (params.type == NODE_RECORD and event.device != device):
        return INVALID_HANDLE
    out_work.event = params.event
    return 0


cdef int prepare_child(Graph* graph, const Graph* child, Work* out_work) noexcept nogil:
    # Counts the graphs that were to be a child of themselves, or of one within them, of which a GPU's driver dies.
    global own_children
    cdef const Graph* around = graph
    cdef int code
    begin_work(out_work, CHILD)
    if child == NULL:
        return INVALID_VALUE
    while around != NULL:
        if around == child:
            own_children += 1
            return INVALID_VALUE
        around = around.within
    code = clone_graph(child, graph, &out_work.body)
    if code == 0 and graph.governed and holds_points(out_work.body):
        free_graph(out_work.body)
        out_work.body = NULL
        code = NOT_SUPPORTED
    return code


cdef bint holds_points(const Graph* graph) noexcept nogil:
    # Or host functions: what no body holds.
    cdef int index
    cdef const Work* work
    for index in range(graph.count):
        work = &graph.nodes[index].work
        if work.kind in (CALL, RECORD, WAIT) or (work.kind == CHILD and holds_points(work.body)):
            return True
    return False


cdef int graph_node_params_locked(Graph* graph, uintptr_t node, NodeParams* params) noexcept nogil:
    cdef const Node* entry = find_node(graph.nodes, graph.count, node)
    cdef const Work* work
    memset(params, 0, sizeof(NodeParams))
    if entry == NULL or entry.work.kind in (SET, BRANCH):
        return INVALID_VALUE
    work = &entry.work
    params.type = type_of(work.kind)
    if work.kind == KERNEL:
        params.function, params.shared_bytes = work.launch.function.handle, work.launch.shared_bytes
        params.grid, params.block = work.launch.grid, work.launch.block
        params.arguments = work.launch.arguments
        return 0
    if work.kind == COPY_3D and (is_of_array(work.dst) or is_of_array(work.src)):
        return NOT_SUPPORTED
    params.dst, params.src = work.dst, work.src
    params.event, params.fn, params.data = work.event, work.fn, work.data
    params.value, params.element = work.value, work.width
    if work.kind in (COPY, COPY_3D, FILL):
        params.width = work.size
        params.height, params.depth = max(work.height, <size_t>1), max(work.depth, <size_t>1)
        params.dst_pitch, params.dst_lines = work.to.pitch, work.to.lines
        params.src_pitch, params.src_lines = work.origin.pitch, work.origin.lines
    if work.body != NULL:
        params.graph = work.body.handle
    if work.allocation != NULL:
        params.address, params.device = work.allocation.address, work.allocation.device
        params.size = work.allocation.asked if work.kind == ALLOCATE else 0
        params.kind, params.peers = work.allocation.kind, work.allocation.peers
    return 0


cdef int graph_node_set_locked(int device, Graph* graph, uintptr_t exec_, uintptr_t node, NodeParams* params) noexcept nogil:
    cdef Node* entry = find_node(graph.nodes, graph.count, node)
    cdef Work work
    cdef int code
    if entry == NULL or entry.work.kind in (SET, BRANCH, ALLOCATE, RELEASE):
        return INVALID_VALUE
    if params.type != type_of(entry.work.kind):
        return INVALID_VALUE
    if params.type == NODE_KERNEL:
        return set_launch(device, graph, exec_, entry, params)
    begin_work(&work, NOTHING)
    code = prepare_node(device, graph, params, &work)
    if code == 0 and exec_:
        code = change_planned(find_exec(exec_), node, &work)
    elif code == 0:
        code = INVALID_VALUE if is_captured_into(graph) else 0
        if code == 0:
            free_graph(entry.work.body)
            entry.work, work.body = work, NULL
    free_graph(work.body)
    return code


cdef int change_planned(Exec* exec_, uintptr_t node, Work* work) noexcept nogil:
    # What is left out stays so.  A child takes what another of the same shape does.
    cdef Node* planned = NULL if exec_ == NULL else find_planned(exec_.plan, node)
    cdef Plan* plan = NULL
    cdef Work changed
    cdef uintptr_t ignored
    cdef int code
    if planned == NULL or type_of(planned.work.kind) != type_of(work.kind):
        return INVALID_VALUE
    if work.kind != CHILD:
        work.disabled = planned.work.disabled
        return change_exec(exec_, node, work) if is_kept(&planned.work, work) else INVALID_VALUE
    if shape_changed(planned.work.plan, work.body, &ignored):
        return GRAPH_UPDATE_FAILURE
    code = copy_nodes(work.body.nodes, work.body.count, 0, NULL, &plan)
    if code:
        return code
    keep_handles(plan, planned.work.plan)
    changed = planned.work
    changed.plan = plan
    code = change_exec(exec_, node, &changed)
    drop_plan(plan)
    return code


cdef int graph_node_enable_locked(
    Graph* graph, Exec* exec_, uintptr_t node, int enabled, NodeParams* had
) noexcept nogil:
    # A fill would cost a GPU the order of its launches.
    cdef const Node* planned = find_switched(graph, exec_, node)
    cdef Work work
    if planned == NULL or planned.work.kind == FILL:
        return INVALID_VALUE
    work = planned.work
    work.disabled = not enabled
    return change_exec(exec_, node, &work)


cdef int graph_node_enabled_locked(Graph* graph, Exec* exec_, uintptr_t node, unsigned int* out_enabled) noexcept nogil:
    cdef const Node* planned = find_switched(graph, exec_, node)
    if planned == NULL:
        return INVALID_VALUE
    out_enabled[0] = not planned.work.disabled
    return 0


cdef const Node* find_switched(const Graph* graph, Exec* exec_, uintptr_t node) noexcept nogil:
    # Returns the instance's node; NULL where it can be neither done nor left out.
    cdef const Node* planned = find_planned(exec_.plan, node)
    if find_node(graph.nodes, graph.count, node) == NULL or planned == NULL:
        return NULL
    return planned if planned.work.kind in (KERNEL, COPY, COPY_3D, FILL) else NULL


cdef int graph_condition_locked(Graph* graph, unsigned int value, int kept, uint64_t* out_condition) noexcept nogil:
    return add_condition(graph, value, kept, out_condition)


# --- instances ---------------------------------------------------------------------------------------------

cdef int graph_instantiate_locked(uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil:
    cdef Graph* origin = <Graph*>map_find(&graphs, graph)
    cdef Exec* instance
    cdef int code = INVALID_VALUE if origin == NULL else check_unsafe()
    if code == 0 and flags & ~<uint64_t>(INSTANTIATE_AUTO_FREE | INSTANTIATE_FOR_DEVICE | INSTANTIATE_PRIORITIES):
        code = INVALID_VALUE
    if code == 0 and flags & INSTANTIATE_FOR_DEVICE and not fits_device(origin):
        code = NOT_SUPPORTED
    if code == 0 and has_conditions(origin) and (
            origin.instances or has_clone(origin, &graphs) or has_clone(origin, &bodies)):
        code = NOT_SUPPORTED
    if code == 0:
        code = check_launches(origin)
    if code == 0:
        code = map_reserve(&execs)
    if code:
        return code
    instance = <Exec*>calloc(1, sizeof(Exec))
    if instance == NULL:
        return NO_HOST_MEMORY
    code = copy_nodes(origin.nodes, origin.count, 0, NULL, &instance.plan)
    if code == 0 and not note_instance(instance.plan, True):
        drop_plan(instance.plan)
        code = NOT_SUPPORTED
    if code:
        free(instance)
        return code
    instance.frees = flags & INSTANTIATE_AUTO_FREE != 0
    instance.handle = new_handle()
    instance.source = graph
    origin.instances += 1
    map_insert(&execs, instance.handle, instance)
    out_exec[0] = instance.handle
    return 0


cdef bint has_conditions(const Graph* graph) noexcept nogil:
    # A child has none.
    cdef int index
    for index in range(graph.count):
        if graph.nodes[index].work.kind == BRANCH:
            return True
    return False


cdef bint has_clone(const Graph* graph, const AddressMap* among) noexcept nogil:
    # A clone that lives, a child too, counts as an instance does; it was made before the condition.
    cdef const Graph* each
    cdef size_t index
    for index in range(among.capacity):
        each = <const Graph*>among.slots[index].value
        if each != NULL and each.origin == graph.handle:
            return True
    return False


cdef int check_launches(const Graph* graph) noexcept nogil:
    # A node takes any cluster; whether it goes with the grid is looked at here, those of graphs within it too.
    cdef int index, code = 0
    cdef const Graph* body
    for index in range(graph.count):
        if code == 0 and graph.nodes[index].work.kind == KERNEL:
            code = check_launch(&graph.nodes[index].work)
        body = graph.nodes[index].work.body
        while body != NULL and code == 0:
            code = check_launches(body)
            body = body.sibling
    return code


cdef bint fits_device(const Graph* graph) noexcept nogil:
    # What kernels may launch: kernels, copies, fills and children alone.
    cdef int index
    cdef const Work* work
    for index in range(graph.count):
        work = &graph.nodes[index].work
        if work.kind not in (KERNEL, COPY, COPY_3D, FILL, CHILD, NOTHING):
            return False
        if work.kind == CHILD and not fits_device(work.body):
            return False
    return True


cdef int graph_update_locked(Exec* exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil:
    cdef const Graph* to = <const Graph*>map_find(&graphs, graph)
    cdef Plan* plan = NULL
    cdef int code
    if to == NULL:
        return INVALID_VALUE
    out_result[0] = shape_changed(exec_.plan, to, out_node)
    if out_result[0]:
        return GRAPH_UPDATE_FAILURE
    code = check_launches(to)
    if code == 0:
        code = copy_nodes(to.nodes, to.count, 0, NULL, &plan)  # launches under way keep the old one
    if code:
        return code
    keep_handles(plan, exec_.plan)
    drop_plan(exec_.plan)
    exec_.plan = plan
    return 0


cdef int launch_in_turn(Exec* exec_, HostStream* on, const Work* replay) noexcept nogil:
    # One launch of an instantiated graph runs at a time, whichever the streams.
    cdef Ticket* end = new_ticket()  # before the launch is queued, which no call undoes
    cdef void* tickets = NULL
    cdef int code = NO_HOST_MEMORY if end == NULL else follow_legacy_order(on)
    if code == 0 and exec_.last != NULL and not exec_.last.done:
        code = enqueue_point(on, WAIT, exec_.last)
    if code == 0:
        code = tickets_for(exec_.plan, &tickets)
    if code == 0:
        code = enqueue(on, replay, end, tickets)
        if code:
            abandon_tickets(exec_.plan, tickets)
    if code:
        drop_ticket(end)
        return code
    drop_ticket(exec_.last)
    exec_.last = end
    return 0


cdef int graph_launch_locked(Exec* exec_, HostStream* stream) noexcept nogil:
    cdef Work work
    cdef int code
    if stream.capture != NULL:
        return break_capture(stream, CAPTURE_UNSUPPORTED)
    code = check_implicit(stream)
    if code == 0 and exec_.plan.allocates:
        code = claim_memory(exec_.plan, exec_.frees)
    if code:
        return code
    begin_work(&work, REPLAY)
    work.plan = exec_.plan
    return launch_in_turn(exec_, stream, &work)


cdef int graph_upload_locked(HostStream* stream, Exec* exec_) noexcept nogil:
    # There is nowhere to upload to; the handles are still checked.
    return break_capture(stream, CAPTURE_UNSUPPORTED) if stream.capture != NULL else 0


cdef int graph_exec_destroy_locked(uintptr_t exec_) noexcept nogil:
    cdef Exec* removed
    cdef Graph* source
    cdef int code = check_unsafe()
    if code:
        return code
    removed = <Exec*>map_remove(&execs, exec_)
    if removed == NULL:
        return INVALID_VALUE
    source = <Graph*>map_find(&graphs, removed.source)
    if source != NULL:
        source.instances -= 1
    note_instance(removed.plan, False)
    drop_plan(removed.plan)
    drop_ticket(removed.last)
    free(removed)
    return 0


# --- plans -------------------------------------------------------------------------------------------------

cdef Plan* new_plan(int room) noexcept nogil:
    # Without nodes yet, with room for so many; NULL where the host has no memory.
    cdef Plan* plan = <Plan*>calloc(1, sizeof(Plan))
    if plan == NULL:
        return NULL
    plan.holders = 1
    plan.nodes = <Node*>calloc(room + 1, sizeof(Node))
    if plan.nodes == NULL:
        free(plan)
        return NULL
    return plan


cdef int copy_nodes(const Node* nodes, int count, uintptr_t node, const Work* changed, Plan** out_plan) noexcept nogil:
    # INVALID_VALUE where some come after themselves.
    cdef Plan* plan = new_plan(count)
    cdef const Work* work
    cdef int index
    cdef int code = 0 if plan != NULL else NO_HOST_MEMORY
    for index in range(count if code == 0 else 0):
        code = copy_node(&plan.nodes[index], &nodes[index], node, changed)
        if code:
            break
        plan.count += 1
        work = &plan.nodes[index].work
        if work.kind == CHILD:
            plan.points += work.plan.points
            plan.allocates = plan.allocates or work.plan.allocates
        elif work.kind == RECORD or work.kind == WAIT:
            plan.points += 1
        plan.allocates = plan.allocates or work.allocation != NULL
    if code == 0:
        code = put_in_order(plan)
    if code:
        drop_plan(plan)
        return code
    out_plan[0] = plan
    return 0


cdef int put_in_order(Plan* plan) noexcept nogil:
    # Most graphs are in an order already.  Else the nodes that wait for nothing, in their order, and then those that
    # waited for these alone.
    cdef int* waiting
    cdef int index, step, done = 0, ready = 0
    cdef bint ordered = True
    for index in range(plan.count):
        for step in range(plan.nodes[index].after.count):
            ordered = ordered and plan.nodes[index].after.nodes[step] < index
    if ordered:
        return 0
    plan.order = <int*>calloc(plan.count, sizeof(int))
    waiting = <int*>calloc(plan.count, sizeof(int))
    for index in range(plan.count if plan.order != NULL and waiting != NULL else 0):
        waiting[index] = plan.nodes[index].after.count
        if waiting[index] == 0:
            plan.order[ready] = index
            ready += 1
    while done < ready:
        for index in range(plan.count):
            for step in range(plan.nodes[index].after.count):
                if plan.nodes[index].after.nodes[step] == plan.order[done]:
                    waiting[index] -= 1
                    if waiting[index] == 0:
                        plan.order[ready] = index
                        ready += 1
        done += 1
    free(waiting)
    return 0 if ready == plan.count else INVALID_VALUE


cdef int copy_node(Node* to, const Node* origin, uintptr_t node, const Work* changed) noexcept nogil:
    # Leaves nothing behind where it fails.  A body becomes a plan.
    cdef int code
    if copy_frontier(&to.after, &origin.after):
        clear_frontier(&to.after)
        return NO_HOST_MEMORY
    to.handle = origin.handle
    to.work = changed[0] if origin.handle == node else origin.work
    code = copy_bodies(&to.work, node, changed)
    if code:
        clear_frontier(&to.after)
        return code
    hold_work(&to.work)
    return 0


cdef int copy_bodies(Work* work, uintptr_t node, const Work* changed) noexcept nogil:
    # Copies those of the node that it is a copy of, and whose bodies or plans it still names.
    cdef const Graph* body = work.body
    cdef const Plan* plan = work.plan
    cdef Plan** plan_link = &work.plan
    cdef int code
    work.body, work.plan = NULL, NULL
    while body != NULL or plan != NULL:
        if body != NULL:
            code = copy_nodes(body.nodes, body.count, node, changed, plan_link)
            body = body.sibling
        else:
            code = copy_nodes(plan.nodes, plan.count, node, changed, plan_link)
            plan = plan.sibling
        if code:
            drop_plan(work.plan)
            return code
        plan_link = &plan_link[0].sibling
    return 0


cdef Node* find_node(Node* nodes, int count, uintptr_t handle) noexcept nogil:
    # By bisection: handles grow in the order in which nodes are added.
    cdef int low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if nodes[middle].handle < handle:
            low = middle + 1
        else:
            high = middle
    return &nodes[low] if low < count and nodes[low].handle == handle else NULL


cdef Node* find_planned(const Plan* plan, uintptr_t handle) noexcept nogil:
    cdef Node* planned = find_node(plan.nodes, plan.count, handle)
    cdef int index
    cdef const Plan* body
    for index in range(plan.count if planned == NULL else 0):
        body = plan.nodes[index].work.plan
        while planned == NULL and body != NULL:
            planned = find_planned(body, handle)
            body = body.sibling
    return planned


cdef bint same_after(const Frontier* one, const Frontier* other) noexcept nogil:
    # In any order; neither names a node twice.
    cdef int index, step
    if one.count != other.count:
        return False
    for index in range(one.count):
        step = index if one.nodes[index] == other.nodes[index] else find_edge(other, one.nodes[index])
        if step < 0 or not same_data(edge_data(one, index), edge_data(other, step)):
            return False
    return True


cdef int shape_changed(const Plan* plan, const Graph* graph, uintptr_t* out_node) noexcept nogil:
    cdef int index, changed = 0
    cdef const Node* node
    cdef const Work* work
    cdef const Graph* body
    cdef const Plan* planned
    out_node[0] = 0
    if plan.count != graph.count:
        return TOPOLOGY_CHANGED
    for index in range(plan.count):
        node = &graph.nodes[index]
        work = &plan.nodes[index].work
        if work.kind != node.work.kind or work.flow != node.work.flow:
            changed = NODE_TYPE_CHANGED
        elif not same_after(&plan.nodes[index].after, &node.after):
            changed = TOPOLOGY_CHANGED
        elif work.allocation != NULL:
            changed = PARAMETERS_CHANGED * (work.allocation != node.work.allocation)
        elif work.cooperative != node.work.cooperative:
            changed = ATTRIBUTES_CHANGED
        elif not is_kept(work, &node.work):
            changed = PARAMETERS_CHANGED
        body, planned = node.work.body, work.plan
        while changed == 0 and (body != NULL or planned != NULL):
            changed = TOPOLOGY_CHANGED
            if body != NULL and planned != NULL:
                changed = shape_changed(planned, body, out_node)
                body, planned = body.sibling, planned.sibling
        if changed:
            out_node[0] = out_node[0] if out_node[0] else node.handle
            return changed
    return 0


cdef bint is_kept(const Work* before, const Work* after) noexcept nogil:
    # Whether an instance may do the one in place of the other: copies of rows stay as they are, fills of rows keep their
    # shape, and copies go on between device memory, or from or to the host.
    if before.kind != after.kind:
        return False
    if before.kind == FILL and before.height <= 1:
        return after.height <= 1
    if before.kind == FILL:
        return before.height == after.height and before.size == after.size and (
            before.width == after.width and before.to.pitch == after.to.pitch)
    if before.kind == COPY:
        return (side_of(before, True) in (side_of(after, True), GONE)
                and side_of(before, False) in (side_of(after, False), GONE))
    return before.kind != COPY_3D or before.height == before.depth == after.height == after.depth == 1 or (
        before.dst == after.dst and before.src == after.src and before.size == after.size
        and before.height == after.height and before.depth == after.depth
        and memcmp(&before.to, &after.to, sizeof(Side)) == 0 and memcmp(&before.origin, &after.origin, sizeof(Side)) == 0)


cdef int side_of(const Work* work, bint written) noexcept nogil:
    # The device whose memory a copy writes or reads, HOST_MEMORY, page-locked or not, or GONE: it was freed since.
    cdef int device
    if work.known & (DST_KNOWN if written else SRC_KNOWN) == 0:
        return HOST_MEMORY
    device = device_of(work.dst if written else work.src)
    return GONE if device == UNKNOWN_MEMORY else device


cdef void keep_handles(Plan* plan, const Plan* before) noexcept nogil:
    # Both plans have one shape: nodes go on under the handles that they had, and stay left out where they were, as on a GPU.
    cdef Plan* body
    cdef const Plan* other
    cdef int index
    for index in range(plan.count):
        plan.nodes[index].handle = before.nodes[index].handle
        plan.nodes[index].work.disabled = before.nodes[index].work.disabled
        body, other = plan.nodes[index].work.plan, before.nodes[index].work.plan
        while body != NULL:
            keep_handles(body, other)
            body, other = body.sibling, other.sibling


cdef int change_exec(Exec* exec_, uintptr_t node, const Work* work) noexcept nogil:
    # Launches under way keep the old plan; without them it is changed in place.  What the work names, the caller holds.
    cdef Plan* plan = NULL
    cdef Node* planned = NULL if exec_ == NULL else find_planned(exec_.plan, node)
    cdef Plan* before
    cdef Work old
    cdef int code
    if planned == NULL:
        return INVALID_VALUE
    if exec_.plan.holders == 1 and planned.work.plan == work.plan:
        old = planned.work
        planned.work = work[0]
        planned.work.body = NULL
        hold_work(work)
        drop_work(&old)
        return 0
    code = copy_nodes(exec_.plan.nodes, exec_.plan.count, node, work, &plan)
    if code:
        return code
    before = exec_.plan
    exec_.plan = plan
    drop_plan(before)
    return 0


# --- kinds of nodes, and a drawing -------------------------------------------------------------------------

cdef int type_of(int kind) noexcept nogil:
    # On a GPU a kernel sets the condition.
    if kind == COPY or kind == COPY_3D:
        return NODE_COPY
    if kind == FILL:
        return NODE_FILL
    if kind == CALL:
        return NODE_HOST
    if kind == CHILD:
        return NODE_CHILD
    if kind == NOTHING:
        return NODE_EMPTY
    if kind == WAIT:
        return NODE_WAIT
    if kind == RECORD:
        return NODE_RECORD
    if kind == ALLOCATE:
        return NODE_ALLOCATE
    if kind == RELEASE:
        return NODE_FREE
    return NODE_CONDITION if kind == BRANCH else NODE_KERNEL


cdef const char* type_name(int kind) noexcept nogil:
    return NODE_NAMES[type_of(kind)]


cdef const char* edge_style(const EdgeData* data) noexcept nogil:
    if data == NULL:
        return ""
    if data.type == EDGE_DEFAULT:
        return " [label=\"launch order\"]"
    return " [label=\"programmatic\"]" if data.from_port == PORT_PROGRAMMATIC else " [label=\"programmatic, launch order\"]"


cdef void write_name(FILE* file, const Graph* graph, uintptr_t node) noexcept nogil:
    # By which tools name it too.
    fprintf(file, "\"graph_%u_node_%u\"", number_of(graph.handle), number_of(node))


cdef void write_details(FILE* file, const Work* work, bint verbose) noexcept nogil:
    # Adds to a node's label a kernel's name, and on request the numbers.
    cdef const Launch* launch = work.launch
    if work.kind == KERNEL:
        fprintf(file, "\\n%s", launch.function.name)
    if verbose and work.kind == KERNEL:
        fprintf(file, "\\ngrid %u %u %u, block %u %u %u, shared %u bytes", launch.grid[0], launch.grid[1],
                launch.grid[2], launch.block[0], launch.block[1], launch.block[2], launch.shared_bytes)
        if work.cluster[0]:
            fprintf(file, ", cluster %d %d %d", work.cluster[0], work.cluster[1], work.cluster[2])
        if work.cooperative:
            fprintf(file, ", cooperative")
        if work.priority:
            fprintf(file, ", priority %d", work.priority)
    elif verbose and (work.kind == COPY or work.kind == FILL):
        fprintf(file, "\\n%llu %s", <unsigned long long>work.size, "bytes" if work.kind == COPY else "elements")


cdef void write_nodes(FILE* file, const Graph* graph, bint verbose) noexcept nogil:
    # A child and the bodies of a condition are clusters that their node points into.
    cdef int index, step
    cdef const Node* node
    for index in range(graph.count):
        node = &graph.nodes[index]
        write_name(file, graph, node.handle)
        fprintf(file, " [label=\"%d\\n%s", index, type_name(node.work.kind))
        write_details(file, &node.work, verbose)
        fprintf(file, "\"];\n")
        for step in range(node.after.count):
            write_name(file, graph, graph.nodes[node.after.nodes[step]].handle)
            fprintf(file, " -> ")
            write_name(file, graph, node.handle)
            fprintf(file, "%s;\n", edge_style(edge_data(&node.after, step)))
        write_bodies(file, graph, node, verbose)


cdef void write_bodies(FILE* file, const Graph* graph, const Node* node, bint verbose) noexcept nogil:
    cdef const Graph* body = node.work.body
    while body != NULL:
        fprintf(file, "subgraph \"cluster_%u\" {\nlabel=\"%s\";\n", number_of(body.handle),
                FLOW_NAMES[node.work.flow if node.work.kind == BRANCH else 3])
        write_nodes(file, body, verbose)
        fprintf(file, "}\n")
        if body.count:
            write_name(file, graph, node.handle)
            fprintf(file, " -> ")
            write_name(file, body, body.nodes[0].handle)
            fprintf(file, " [style=dashed];\n")
        body = body.sibling


cdef int graph_dot_locked(Graph* graph, const char* path, unsigned int flags) noexcept nogil:
    cdef FILE* file = fopen(path, "w")
    cdef bint written
    if file == NULL:
        return OPERATING_SYSTEM
    fprintf(file, "digraph dot {\n")
    write_nodes(file, graph, flags & DOT_VERBOSE != 0)
    written = fprintf(file, "}\n") > 0
    return 0 if fclose(file) == 0 and written else OPERATING_SYSTEM


# --- conditions --------------------------------------------------------------------------------------------

cdef int conditional_create_locked(HostStream* stream, uint64_t* out_condition) noexcept nogil:
    return new_condition(stream, out_condition)


cdef int conditional_set_locked(HostStream* stream, uint64_t condition, uintptr_t address) noexcept nogil:
    cdef Work work
    cdef int code = prepare_set(stream, condition, address, &work)
    return code if code else add_node(stream, &work)


cdef int conditional_add_locked(
    int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body
) noexcept nogil:
    cdef HostStream* on
    cdef Work work
    cdef int code
    if kind < CONDITION_IF or kind > CONDITION_WHILE:
        return INVALID_VALUE
    on = find_stream(device, stream)
    code = INVALID_HANDLE if on == NULL else prepare_branch(on, condition, kind, &work)
    if code:
        return code
    code = add_node(on, &work)
    if code:
        free_graph(work.body)
        return code
    out_body[0] = work.body.handle
    return 0


# --- kernel nodes ------------------------------------------------------------------------------------------

cdef int set_launch(int device, const Graph* graph, uintptr_t exec_, Node* changed, const NodeParams* params) noexcept nogil:
    cdef Work work
    cdef int code = INVALID_HANDLE
    begin_work(&work, NOTHING)
    if params.function:
        code = prepare_kernel(device, graph, params, &work)
    if code == 0 and exec_:
        code = change_launch(find_exec(exec_), changed.handle, work.launch)
    elif code == 0:
        drop_launch(changed.work.launch)
        changed.work.launch = work.launch
        work.launch.holders += 1
    if work.launch != NULL:
        drop_launch(work.launch)
    return code


cdef int change_launch(Exec* exec_, uintptr_t node, Launch* launch) noexcept nogil:
    cdef const Node* planned = NULL if exec_ == NULL else find_planned(exec_.plan, node)
    cdef Work work
    cdef int code
    if planned == NULL or planned.work.kind != KERNEL:
        return INVALID_VALUE
    work = planned.work
    work.launch = launch
    code = check_launch(&work)
    return code if code else change_exec(exec_, node, &work)


cdef Node* find_launch(Graph* graph, uintptr_t node) noexcept nogil:
    cdef Node* entry = find_node(graph.nodes, graph.count, node)
    return NULL if entry == NULL or entry.work.kind != KERNEL else entry


cdef int kernel_node_attribute_set_locked(Graph* graph, uintptr_t node, int attribute, int x, int y, int z) noexcept nogil:
    cdef Node* entry = find_launch(graph, node)
    if entry == NULL:
        return INVALID_VALUE
    if attribute == ATTRIBUTE_COOPERATIVE:
        entry.work.cooperative = x != 0
    elif attribute == ATTRIBUTE_CLUSTER and x > 0 and y > 0 and z > 0:
        if entry.work.launch.grid[0] % x or entry.work.launch.grid[1] % y or entry.work.launch.grid[2] % z:
            return INVALID_CLUSTER_SIZE  # of the grid that there is, as a GPU's driver answers
        entry.work.cluster[0], entry.work.cluster[1], entry.work.cluster[2] = x, y, z
    elif attribute == ATTRIBUTE_PRIORITY:
        entry.work.priority = x
    else:
        return INVALID_VALUE
    return 0


cdef int kernel_node_attribute_get_locked(
    Graph* graph, uintptr_t node, int attribute, int* out_x, int* out_y, int* out_z
) noexcept nogil:
    cdef const Node* entry = find_launch(graph, node)
    if entry == NULL:
        return INVALID_VALUE
    if attribute == ATTRIBUTE_COOPERATIVE:
        out_x[0] = entry.work.cooperative
    elif attribute == ATTRIBUTE_CLUSTER:
        out_x[0], out_y[0], out_z[0] = entry.work.cluster[0], entry.work.cluster[1], entry.work.cluster[2]
    elif attribute == ATTRIBUTE_PRIORITY:
        out_x[0] = entry.work.priority
    else:
        return INVALID_VALUE
    return 0
