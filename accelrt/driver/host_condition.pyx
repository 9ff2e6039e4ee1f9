"""The host device's conditional nodes.

A condition belongs to the graph that it was made for and is known there and in the bodies within.  Its value
stands beside it, not in the instantiated graph: as on a GPU, launches of one graph run one at a time.
"""
from libc.stdlib cimport calloc
from libc.string cimport memset

from accelrt.addresses cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host_memory cimport UNKNOWN_MEMORY, owner_of
from accelrt.driver.host_queue cimport BRANCH, SET, SRC_KNOWN, Condition, new_handle
from accelrt.status cimport CAPTURE_INVALID, ILLEGAL_STATE, INVALID_VALUE, NO_HOST_MEMORY

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
    made.handle = new_handle()
    made.holders = 1
    made.next = stream.capture.graph.conditions
    stream.capture.graph.conditions = made
    out_condition[0] = made.handle
    return 0


cdef Condition* condition_of(const HostStream* stream, uint64_t condition) noexcept nogil:
    cdef const Graph* graph = stream.capture.graph
    cdef Condition* found = NULL
    while graph != NULL and found == NULL:
        found = graph.conditions
        while found != NULL and found.handle != condition:
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
