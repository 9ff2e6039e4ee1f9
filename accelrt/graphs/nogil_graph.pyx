"""Graphs of nogil code: captured, launched and destroyed without the GIL.

A capture is a transaction here too: where it fails, the stream leaves it and the memory goes back to the pool.
What the driver refuses to destroy is tried again when the next capture begins or graph is destroyed, and whenever
Python's refused objects are tried again.
"""
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport add_count, spin_lock, spin_unlock
from accelrt.core.process cimport FORK_GRAPHS, at_fork
from accelrt.core.slots cimport Slot
from accelrt.driver.capture_guard cimport count_out_capture, expect_capture
cimport accelrt.driver.registry as registry
from accelrt.graphs.nodes cimport instantiate
from accelrt.allocator.private.routes cimport (
    begin_capture_on, end_capture, expect_idle, hide_replays, release_pool, retain_pool,
)
from accelrt.allocator.private.suspended cimport has_suspended_pools, is_pool_suspended
from accelrt.runtime.release_queue cimport (
    GRAPH, GRAPH_EXEC, drain_too, end_capture as end_on_driver, end_capture_again, follow_capture, give_back,
)
from accelrt.status cimport FORKED, ILLEGAL_STATE, INVALID_HANDLE, NO_HOST_MEMORY, SLEEPING
from accelrt.uses.access cimport begin_nogil_use, end_nogil_use

cdef enum:
    OWN_POOL = 1  # second half of the id of a graph's own pool, which no pool of Python's has

cdef struct Graph:
    int state
    int device
    uintptr_t stream    # that is captured
    uint64_t capture    # the driver's id of that capture
    uint64_t[2] pool
    bint retains_pool   # the pool counts this graph
    bint counted        # as a capture under way
    bint uses_pool      # the capture's allocations come from the pool
    uintptr_t raw       # the driver's graph, from the capture's end on
    uintptr_t raw_exec  # the driver's, instantiated
    size_t nodes
    Graph* next         # among the refused

cdef AddressMap graphs         # address -> Graph; under the lock
cdef Graph* refused = NULL     # destroyed, and the driver kept something of it; under the lock
cdef int lock = 0
cdef long own_pools = 0        # how many graphs had a pool of their own


cdef void forget_graphs() noexcept nogil:
    global lock, refused
    lock = 0
    refused = NULL
    memset(&graphs, 0, sizeof(graphs))


cdef Graph* find(uintptr_t graph) noexcept nogil:
    cdef Graph* found
    spin_lock(&lock)
    found = <Graph*>map_find(&graphs, graph)
    spin_unlock(&lock)
    return found


# --- destruction ---------------------------------------------------------------------------------------------

cdef void close_capture(Graph* graph) noexcept nogil:
    # Counted out first: what waited for the capture's end may be given back then.  Takes the pool's lock.
    if graph.counted:
        count_out_capture()
        graph.counted = False
    if graph.uses_pool:
        end_capture(graph.device, graph.capture)
        graph.uses_pool = False
    follow_capture()


cdef int abandon_capture(Graph* graph) noexcept nogil:
    # Ends the capture, broken or not, unless the driver has ended it already.  Takes the pool's lock.  A second attempt
    # comes when the capture is counted no more, so it has to keep other captures from beginning on the stream meanwhile.
    cdef uintptr_t raw = 0
    cdef int code
    if graph.counted:
        code = end_on_driver(graph.device, graph.stream, graph.capture, &raw)
    else:
        code = end_capture_again(graph.device, graph.stream, graph.capture, &raw)
    close_capture(graph)
    if code == 0:
        graph.state = EMPTY
    if raw:
        graph.raw = raw
    return code


cdef int dismantle(Graph* graph) noexcept nogil:
    # Destroys the driver's objects and releases the pool.  Answers the first refusal; a second call tries again only
    # what was refused.  Takes the pool's lock.
    cdef int code = 0, other
    if graph.state == CAPTURING:
        code = abandon_capture(graph)
    if graph.raw_exec:
        other = give_back(GRAPH_EXEC, graph.device, graph.raw_exec)
        graph.raw_exec = 0 if other == 0 else graph.raw_exec
        code = code if code else other
    if graph.raw:
        other = give_back(GRAPH, graph.device, graph.raw)
        graph.raw = 0 if other == 0 else graph.raw
        code = code if code else other
    if graph.retains_pool:
        hide_replays(graph.device, graph.pool[0], graph.pool[1])  # launches are not noted
        release_pool(graph.device, graph.pool[0], graph.pool[1], False)
        graph.retains_pool = False
    graph.nodes = 0
    return code


cdef void discard(Graph* graph) noexcept nogil:
    # Takes the lock where the driver refuses something.
    global refused
    cdef int code = dismantle(graph)
    if code == 0 or code == FORKED:
        free(graph)
        return
    spin_lock(&lock)
    graph.next = refused
    refused = graph
    spin_unlock(&lock)


cdef void retry_refused() noexcept nogil:
    # Takes the lock, but not for the driver's calls.
    global refused
    cdef Graph* left
    cdef Graph* graph
    spin_lock(&lock)
    left = refused
    refused = NULL
    spin_unlock(&lock)
    while left != NULL:
        graph = left
        left = graph.next
        discard(graph)


cdef int destroy_graph(uintptr_t graph) noexcept nogil:
    cdef Graph* found
    spin_lock(&lock)
    found = <Graph*>map_remove(&graphs, graph)
    spin_unlock(&lock)
    retry_refused()
    if found == NULL:
        return INVALID_HANDLE
    discard(found)
    return 0


# --- captures ------------------------------------------------------------------------------------------------

cdef int enlist(Graph* graph) noexcept nogil:
    cdef int code
    spin_lock(&lock)
    code = map_reserve(&graphs)
    if code == 0:
        map_insert(&graphs, <uintptr_t>graph, graph)
    spin_unlock(&lock)
    return code


cdef int begin_capture(Graph* graph, int mode) noexcept nogil:
    # Retains the pool, and begins to capture the stream.  May wait, and takes the pool's lock.
    cdef int code = retain_pool(graph.device, graph.pool[0], graph.pool[1], False, 0)
    if code:
        return code
    graph.retains_pool = True
    expect_idle(graph.device)
    expect_capture()  # before the first moment in which others could disturb it
    graph.counted = True
    code = registry.active().capture_begin(graph.device, graph.stream, mode)
    if code:
        close_capture(graph)
        return code
    graph.state = CAPTURING
    code = begin_capture_on(graph.device, graph.stream, graph.pool[0], graph.pool[1], &graph.capture)
    graph.uses_pool = code == 0
    return code


cdef int begin_graph(int device, uintptr_t stream, int mode, uint64_t id0, uint64_t id1,
                     uintptr_t* out_graph) noexcept nogil:
    cdef Graph* graph = <Graph*>calloc(1, sizeof(Graph))
    cdef int code
    out_graph[0] = 0
    retry_refused()
    if graph == NULL:
        return NO_HOST_MEMORY
    graph.device = device
    graph.stream = stream
    graph.pool[0], graph.pool[1] = id0, id1
    if id0 == 0 and id1 == 0:
        graph.pool[0], graph.pool[1] = <uint64_t>add_count(&own_pools, 1), OWN_POOL
    code = begin_capture(graph, mode)
    if code == 0:
        code = enlist(graph)
    if code:
        discard(graph)
        return code
    out_graph[0] = <uintptr_t>graph
    return 0


cdef int end_graph(uintptr_t graph) noexcept nogil:
    cdef Graph* found = find(graph)
    cdef int code
    if found == NULL:
        return INVALID_HANDLE
    if found.state != CAPTURING:
        return ILLEGAL_STATE
    code = registry.active().capture_end(found.device, found.stream, &found.raw)
    if code == 0:
        found.state = CAPTURED
        close_capture(found)
        code = registry.active().graph_node_count(found.raw, &found.nodes)
    if code:
        dismantle(found)  # a driver that refuses to end a capture must not leave the stream in it
        if found.state != CAPTURING:
            found.state = EMPTY
    return code


cdef int instantiate_graph(uintptr_t graph) noexcept nogil:
    cdef Graph* found = find(graph)
    cdef int code
    if found == NULL:
        return INVALID_HANDLE
    if found.state != CAPTURED:
        return ILLEGAL_STATE
    code = instantiate(found.device, found.raw, &found.raw_exec)
    if code == 0:
        found.state = READY
    return code


cdef int launch_graph(uintptr_t graph, uintptr_t stream) noexcept nogil:
    cdef Graph* found = find(graph)
    cdef Slot* section
    cdef int code
    if found == NULL:
        return INVALID_HANDLE
    if found.state != READY:
        return ILLEGAL_STATE
    section = begin_nogil_use()
    if section == NULL:
        return NO_HOST_MEMORY
    if has_suspended_pools() and is_pool_suspended(found.device, found.pool[0], found.pool[1]):
        code = SLEEPING
    else:
        code = registry.active().graph_launch(found.device, found.raw_exec, stream)
    end_nogil_use(section)
    return code


# --- figures -------------------------------------------------------------------------------------------------

cdef int read_graph(uintptr_t graph, int* out_state, size_t* out_nodes) noexcept nogil:
    cdef Graph* found = find(graph)
    if found == NULL:
        return INVALID_HANDLE
    out_state[0] = found.state
    out_nodes[0] = found.nodes
    return 0


cdef int read_graph_pool(uintptr_t graph, uint64_t* out_id0, uint64_t* out_id1) noexcept nogil:
    cdef Graph* found = find(graph)
    if found == NULL:
        return INVALID_HANDLE
    out_id0[0], out_id1[0] = found.pool[0], found.pool[1]
    return 0


cdef int read_raw_graph(uintptr_t graph, uintptr_t* out_graph, uintptr_t* out_exec) noexcept nogil:
    cdef Graph* found = find(graph)
    if found == NULL:
        return INVALID_HANDLE
    out_graph[0], out_exec[0] = found.raw, found.raw_exec
    return 0


drain_too(retry_refused)
at_fork("graphs.nogil_graph", FORK_GRAPHS, NULL, NULL, &forget_graphs)
