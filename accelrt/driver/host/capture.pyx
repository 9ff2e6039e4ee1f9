"""The host device's captures and graphs.

Work put into a capturing stream becomes a node behind the stream's frontier: the nodes that whatever comes
next depends on.  Events carry frontiers from stream to stream, which is how streams join a capture and how
they are joined back.
"""
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.frontier cimport clear_frontier, copy_frontier, join_frontier
from accelrt.driver.host.queue cimport (
    BRANCH, CALL, KERNEL, SET, SRC_KNOWN, Condition, Launch, Node, drop_condition, drop_launch, drop_plan, is_legacy,
    new_handle,
)
from accelrt.driver.host.ranges cimport UNKNOWN_MEMORY, owner_of
from accelrt.driver.table cimport CAPTURE_GLOBAL, CAPTURE_RELAXED, STREAM_BLOCKING
from accelrt.status cimport (
    CAPTURE_IMPLICIT, CAPTURE_INVALID, CAPTURE_MERGE, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED,
    CAPTURE_WRONG_THREAD, ILLEGAL_STATE, INVALID_VALUE, NOT_SUPPORTED, NO_HOST_MEMORY,
)

cdef extern from *:
    """
    #include <stdint.h>
    static __thread int accelrt_mode;        /* CAPTURE_GLOBAL is where every thread starts */
    static __thread char accelrt_self;       /* its address tells threads apart */
    """
    int thread_mode "accelrt_mode"
    char thread_self "accelrt_self"

cdef Capture* captures = NULL
cdef uint64_t last_id = 0


cdef uint64_t this_thread() noexcept nogil:
    return <uint64_t>&thread_self


cdef int exchange_mode(int mode) noexcept nogil:
    global thread_mode
    cdef int before = thread_mode
    thread_mode = mode
    return before


# --- refusals ----------------------------------------------------------------------------------------------

cdef int check_unsafe() noexcept nogil:
    cdef Capture* capture = captures
    cdef bint own, concerned
    cdef int code = 0
    if thread_mode == CAPTURE_RELAXED:
        return 0
    while capture != NULL:
        own = capture.thread == this_thread() and capture.mode != CAPTURE_RELAXED
        concerned = own or (thread_mode == CAPTURE_GLOBAL and capture.mode == CAPTURE_GLOBAL)
        if concerned:
            capture.broken = True
            code = CAPTURE_UNSUPPORTED
        capture = capture.next
    return code


cdef int check_device(int device) noexcept nogil:
    cdef Capture* capture = captures
    cdef int code = 0
    while capture != NULL:
        if capture.origin.device == device:
            capture.broken = True
            code = CAPTURE_UNSUPPORTED
        capture = capture.next
    return code


cdef bint concerns(const Capture* capture, const HostStream* legacy) noexcept nogil:
    # One of the streams in it would be ordered with the legacy stream's work.
    cdef const HostStream* stream = capture.streams
    while stream != NULL and not (stream.flags == STREAM_BLOCKING and stream.device == legacy.device):
        stream = stream.captured
    return stream != NULL


cdef bint beside_capture(HostStream* legacy) noexcept nogil:
    cdef const Capture* capture = captures
    while capture != NULL and not concerns(capture, legacy):
        capture = capture.next
    return capture != NULL


cdef int check_implicit(HostStream* stream) noexcept nogil:
    cdef Capture* capture = captures if is_legacy(stream) else NULL
    cdef int code = 0
    while capture != NULL:
        if concerns(capture, stream):
            capture.broken = True
            code = CAPTURE_IMPLICIT
        capture = capture.next
    return code


cdef int break_capture(HostStream* stream, int code) noexcept nogil:
    if stream.capture != NULL:
        stream.capture.broken = True
    return code


# --- beginning and ending ----------------------------------------------------------------------------------

cdef int begin(HostStream* stream, Graph* body, int mode) noexcept nogil:
    global captures, last_id
    cdef Capture* made
    if is_legacy(stream):
        return CAPTURE_UNSUPPORTED
    if stream.capture != NULL:
        return ILLEGAL_STATE
    if mode < CAPTURE_GLOBAL or mode > CAPTURE_RELAXED:
        return INVALID_VALUE
    made = <Capture*>calloc(1, sizeof(Capture))
    if made != NULL:
        made.graph = body if body != NULL else <Graph*>calloc(1, sizeof(Graph))
    if made == NULL or made.graph == NULL:
        free(made)
        return NO_HOST_MEMORY
    last_id += 1
    made.id = last_id
    made.origin = stream
    made.mode = mode
    made.thread = this_thread()
    made.next = captures
    captures = made
    attach(stream, made)
    stream.frontier.count = 0
    return 0


cdef void attach(HostStream* stream, Capture* capture) noexcept nogil:
    stream.capture = capture
    stream.captured = capture.streams
    capture.streams = stream


cdef Capture* capture_of(uint64_t id) noexcept nogil:
    cdef Capture* found = captures
    while found != NULL and found.id != id:
        found = found.next
    return found


cdef void spread(const Graph* graph, const Frontier* origin, char* reached) noexcept nogil:
    # Marks everything that the frontier comes after; nodes come after earlier ones only.
    cdef int index, step
    for index in range(origin.count):
        reached[origin.nodes[index]] = 1
    for index in range(graph.count - 1, -1, -1):
        if reached[index]:
            for step in range(graph.nodes[index].after.count):
                reached[graph.nodes[index].after.nodes[step]] = 1


cdef bint all_joined(const Capture* capture) noexcept nogil:
    cdef const HostStream* stream = capture.streams
    cdef char* reached = <char*>calloc(capture.graph.count + 1, 1)
    cdef bint joined = reached != NULL and not capture.unjoined
    cdef int index
    if joined:
        spread(capture.graph, &capture.origin.frontier, reached)
    while stream != NULL and joined:
        for index in range(stream.frontier.count):
            joined = joined and reached[stream.frontier.nodes[index]]
        stream = stream.captured
    free(reached)
    return joined


cdef void detach(Capture* capture) noexcept nogil:
    # Every stream leaves it; the graph is the caller's.
    cdef HostStream* stream = capture.streams
    cdef Capture** link = &captures
    while stream != NULL:
        stream.capture = NULL
        stream.frontier.count = 0
        stream = stream.captured
    while link[0] != capture:
        link = &link[0].next
    link[0] = capture.next
    free(capture)


cdef int end(HostStream* stream, Graph** out_graph) noexcept nogil:
    cdef Capture* capture = stream.capture
    cdef Graph* graph
    cdef int code = 0
    out_graph[0] = NULL
    if capture == NULL:
        return ILLEGAL_STATE
    if capture.origin != stream:
        return break_capture(stream, CAPTURE_UNMATCHED)
    graph = capture.graph
    if capture.thread != this_thread() and capture.mode != CAPTURE_RELAXED:
        code = CAPTURE_WRONG_THREAD  # and the capture is gone, as on a GPU
    elif capture.broken:
        code = CAPTURE_INVALID
    elif not all_joined(capture):
        code = CAPTURE_UNJOINED
    detach(capture)
    if code:
        free_unless_body(graph)
        return code
    out_graph[0] = graph
    return 0


cdef void free_unless_body(Graph* graph) noexcept nogil:
    if graph != NULL and graph.within == NULL:
        free_graph(graph)


cdef void abandon(HostStream* stream) noexcept nogil:
    cdef Capture* capture = stream.capture
    cdef HostStream** link
    cdef Graph* graph
    if capture == NULL:
        return
    if capture.origin == stream:
        graph = capture.graph
        detach(capture)
        free_unless_body(graph)
    else:
        capture.unjoined = True
        stream.capture = NULL
        link = &capture.streams
        while link[0] != stream:
            link = &link[0].captured
        link[0] = stream.captured


# --- nodes -------------------------------------------------------------------------------------------------

cdef int add_node(HostStream* stream, const Work* work) noexcept nogil:
    cdef Graph* graph = stream.capture.graph
    cdef Node* larger
    cdef Frontier itself
    cdef int place
    if stream.capture.broken:
        return CAPTURE_INVALID
    if work.across:
        return break_capture(stream, CAPTURE_UNSUPPORTED)
    if work.kind == CALL and graph.within != NULL:
        return break_capture(stream, NOT_SUPPORTED)  # a body holds kernels, copies, fills and conditions
    if graph.count == graph.capacity:
        larger = <Node*>realloc(graph.nodes, (2 * graph.capacity + 16) * sizeof(Node))
        if larger == NULL:
            return NO_HOST_MEMORY
        graph.nodes = larger
        graph.capacity = 2 * graph.capacity + 16
    place = graph.count
    memset(&graph.nodes[place], 0, sizeof(Node))
    if copy_frontier(&graph.nodes[place].after, &stream.frontier):
        clear_frontier(&graph.nodes[place].after)
        return NO_HOST_MEMORY
    graph.nodes[place].handle = new_handle()
    graph.nodes[place].work = work[0]
    if work.condition != NULL:
        work.condition.holders += 1
    if work.launch != NULL:
        work.launch.holders += 1
    graph.count += 1
    itself.nodes = &place
    itself.count = 1
    return copy_frontier(&stream.frontier, &itself)


cdef int join(HostStream* stream, uint64_t id, const Frontier* after) noexcept nogil:
    # The stream waits for an event that was recorded in a capture, and so becomes part of it.
    cdef Capture* capture = capture_of(id)
    if capture == NULL:
        return break_capture(stream, INVALID_VALUE)
    if capture.broken:
        return CAPTURE_INVALID
    if stream.capture == NULL:
        if is_legacy(stream):
            capture.broken = True
            return CAPTURE_IMPLICIT
        attach(stream, capture)
        return copy_frontier(&stream.frontier, after)
    if stream.capture != capture:
        stream.capture.broken = True
        capture.broken = True
        return CAPTURE_MERGE
    return join_frontier(&stream.frontier, after)


# --- graphs ------------------------------------------------------------------------------------------------

cdef void lose_body(const Graph* body) noexcept nogil:
    # What is still being captured into it goes nowhere.
    cdef Capture* capture = captures
    while capture != NULL:
        if capture.graph == body:
            capture.broken = True
            capture.graph = NULL
        capture = capture.next


cdef void free_graph(Graph* graph) noexcept nogil:
    cdef Condition* condition = graph.conditions
    cdef Condition* following
    cdef int index
    for index in range(graph.count):
        clear_frontier(&graph.nodes[index].after)
        drop_condition(graph.nodes[index].work.condition)
        drop_launch(graph.nodes[index].work.launch)
        if graph.nodes[index].work.body != NULL:
            free_graph(graph.nodes[index].work.body)
    while condition != NULL:
        following = condition.next
        drop_condition(condition)
        condition = following
    if graph.within != NULL:
        lose_body(graph)
        forget_body(graph)
    free(graph.nodes)
    free(graph)


cdef Plan* new_plan(int room) noexcept nogil:
    # Of no nodes, with room for so many; NULL where the host has no memory.
    cdef Plan* plan = <Plan*>calloc(1, sizeof(Plan))
    if plan == NULL:
        return NULL
    plan.holders = 1
    plan.nodes = <Node*>calloc(room + 1, sizeof(Node))
    if plan.nodes == NULL:
        free(plan)
        return NULL
    return plan


cdef void hold_work(Node* node) noexcept nogil:
    # A plan's node holds what its work shares with the graph's.
    if node.work.condition != NULL:
        node.work.condition.holders += 1
    if node.work.launch != NULL:
        node.work.launch.holders += 1


cdef Plan* plan_of(const Graph* graph) noexcept nogil:
    cdef Plan* plan = new_plan(graph.count)
    cdef int index
    if plan == NULL:
        return NULL
    for index in range(graph.count):
        if plan_node(&plan.nodes[index], &graph.nodes[index]):
            drop_plan(plan)
            return NULL
        plan.count += 1
    return plan


cdef int plan_node(Node* to, const Node* origin) noexcept nogil:
    # Leaves nothing behind where it fails.
    if copy_frontier(&to.after, &origin.after):
        clear_frontier(&to.after)
        return NO_HOST_MEMORY
    to.handle = origin.handle
    to.work = origin.work
    if origin.work.body != NULL:
        to.work.body = NULL
        to.work.plan = plan_of(origin.work.body)
        if to.work.plan == NULL:
            clear_frontier(&to.after)
            return NO_HOST_MEMORY
    hold_work(to)
    return 0


cdef int copy_plan_node(Node* to, const Node* origin, uintptr_t node, Launch* launch, bint* out_found) noexcept nogil:
    # Leaves nothing behind where it fails.
    to.handle = origin.handle
    if copy_frontier(&to.after, &origin.after):
        clear_frontier(&to.after)
        return NO_HOST_MEMORY
    to.work = origin.work
    if origin.work.plan != NULL:
        to.work.plan = change_plan(origin.work.plan, node, launch, out_found)
        if to.work.plan == NULL:
            clear_frontier(&to.after)
            return NO_HOST_MEMORY
    if origin.handle == node and origin.work.kind == KERNEL:
        to.work.launch = launch
        out_found[0] = True
    hold_work(to)
    return 0


cdef Plan* change_plan(const Plan* plan, uintptr_t node, Launch* launch, bint* out_found) noexcept nogil:
    cdef Plan* made = new_plan(plan.count)
    cdef int index
    if made == NULL:
        return NULL
    for index in range(plan.count):
        if copy_plan_node(&made.nodes[index], &plan.nodes[index], node, launch, out_found):
            drop_plan(made)
            return NULL
        made.count += 1
    return made


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
    cdef Node* found = find_node(plan.nodes, plan.count, handle)
    cdef int index
    for index in range(plan.count if found == NULL else 0):
        if found == NULL and plan.nodes[index].work.plan != NULL:
            found = find_planned(plan.nodes[index].work.plan, handle)
    return found


cdef bint same_after(const Frontier* one, const Frontier* other) noexcept nogil:
    cdef int index
    if one.count != other.count:
        return False
    for index in range(one.count):
        if one.nodes[index] != other.nodes[index]:
            return False
    return True


cdef int shape_changed(const Plan* plan, const Graph* graph, uintptr_t* out_node) noexcept nogil:
    cdef int index, changed = 0
    cdef const Node* node
    out_node[0] = 0
    if plan.count != graph.count:
        return TOPOLOGY_CHANGED
    for index in range(plan.count):
        node = &graph.nodes[index]
        if plan.nodes[index].work.kind != node.work.kind or plan.nodes[index].work.repeats != node.work.repeats:
            changed = NODE_TYPE_CHANGED
        elif not same_after(&plan.nodes[index].after, &node.after):
            changed = TOPOLOGY_CHANGED
        elif node.work.body != NULL:
            changed = shape_changed(plan.nodes[index].work.plan, node.work.body, out_node)
        if changed:
            out_node[0] = out_node[0] if out_node[0] else node.handle
            return changed
    return 0


# --- the host device's conditional nodes ------------------------------------------------------------------

cdef AddressMap bodies  # handle -> Graph*


cdef Graph* find_body(uintptr_t handle) noexcept nogil:
    return <Graph*>map_find(&bodies, handle)


cdef void keep_body(Graph* body) noexcept nogil:
    map_insert(&bodies, body.handle, body)


cdef void forget_body(const Graph* body) noexcept nogil:
    map_remove(&bodies, body.handle)


cdef int check_capturing(const HostStream* stream) noexcept nogil:
    if stream.capture == NULL:
        return ILLEGAL_STATE
    return CAPTURE_INVALID if stream.capture.broken else 0


cdef int new_condition(HostStream* stream, uint64_t* out_condition) noexcept nogil:
    cdef Condition* made
    cdef int code = check_capturing(stream)
    if code:
        return code
    made = <Condition*>calloc(1, sizeof(Condition))
    if made == NULL:
        return NO_HOST_MEMORY
    made.holders = 1
    made.next = stream.capture.graph.conditions
    stream.capture.graph.conditions = made
    out_condition[0] = <uintptr_t>&made.value
    return 0


cdef Condition* condition_of(const HostStream* stream, uint64_t condition) noexcept nogil:
    cdef const Graph* graph = stream.capture.graph
    cdef Condition* found = NULL
    while graph != NULL and found == NULL:
        found = graph.conditions
        while found != NULL and <uintptr_t>&found.value != condition:
            found = found.next
        graph = graph.within
    return found


cdef int prepare(HostStream* stream, uint64_t condition, int kind, Work* out_work) noexcept nogil:
    cdef int code = check_capturing(stream)
    memset(out_work, 0, sizeof(Work))
    if code:
        return code
    out_work.kind = kind
    out_work.condition = condition_of(stream, condition)
    return 0 if out_work.condition != NULL else INVALID_VALUE


cdef int prepare_set(HostStream* stream, uint64_t condition, uintptr_t address, Work* out_work) noexcept nogil:
    cdef int code = prepare(stream, condition, SET, out_work)
    if code:
        return code
    out_work.src = address
    out_work.size = sizeof(int)
    out_work.known = SRC_KNOWN
    if address % sizeof(int) or owner_of(address, sizeof(int)) == UNKNOWN_MEMORY:
        return INVALID_VALUE
    return 0


cdef int prepare_branch(HostStream* stream, uint64_t condition, bint repeats, Work* out_work) noexcept nogil:
    cdef int code = prepare(stream, condition, BRANCH, out_work)
    if code == 0:
        code = map_reserve(&bodies)
    if code:
        return code
    out_work.repeats = repeats
    out_work.body = <Graph*>calloc(1, sizeof(Graph))
    if out_work.body == NULL:
        return NO_HOST_MEMORY
    out_work.body.within = stream.capture.graph
    out_work.body.handle = new_handle()
    return 0
