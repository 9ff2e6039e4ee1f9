"""Private pools: the heaps that captures allocate from, and the captures that do."""
from libc.stdint cimport SIZE_MAX
from libc.stdlib cimport calloc, free

from accelrt.driver.table cimport CAPTURE_ACTIVE
from accelrt.memory.block cimport Heap, Route
from accelrt.memory.records cimport gone, recycle_entry
from accelrt.status cimport CAPTURE_IMPLICIT, INVALID_VALUE, NO_HOST_MEMORY

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    pthread_t pthread_self()


cdef Private* find_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    cdef Private* found = pool.privates
    while found != NULL and (found.id[0] != first or found.id[1] != second):
        found = found.next
    return found


cdef int hold(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    cdef Private* found = find_private(pool, first, second)
    if found == NULL:
        found = <Private*>calloc(1, sizeof(Private))
        if found == NULL:
            return NO_HOST_MEMORY
        found.id[0] = first
        found.id[1] = second
        found.limit = SIZE_MAX
        found.next = pool.privates
        pool.privates = found
    found.uses += 1
    return 0


cdef int let_go(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    # The record stays until its segments are gone: blocks of a dead graph may still be live.
    cdef Private* found = find_private(pool, first, second)
    if found == NULL or found.uses == 0:
        return INVALID_VALUE
    found.uses -= 1
    return 0


cdef int begin_route(Pool* pool, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil:
    cdef Route* route = <Route*>calloc(1, sizeof(Route))
    if route == NULL:
        return NO_HOST_MEMORY
    route.owner = find_private(pool, first, second)
    if route.owner == NULL:
        free(route)
        return INVALID_VALUE
    route.capture = capture
    route.thread = 0 if capture else <uint64_t>pthread_self()
    route.next = pool.routes
    pool.routes = route
    pool.captures += capture != 0
    return 0


cdef int end_route(Pool* pool, uint64_t capture) noexcept nogil:
    # The last of the capture, or of this thread.
    cdef Route** link = &pool.routes
    cdef Route* route
    cdef uint64_t thread = 0 if capture else <uint64_t>pthread_self()
    while link[0] != NULL and (link[0].capture != capture or link[0].thread != thread):
        link = &link[0].next
    route = link[0]
    if route == NULL:
        return INVALID_VALUE
    link[0] = route.next
    pool.captures -= capture != 0
    free(route)
    return 0


cdef int owner_for(Pool* pool, uintptr_t stream, Private** out_owner) noexcept nogil:
    # A driver call an allocation, during captures only.  Asking for the legacy stream while another one
    # captures is refused without harm, and means that it does not capture itself.
    cdef Route* route = pool.routes
    cdef uint64_t capture = 0
    cdef int status = 0
    cdef int code
    out_owner[0] = NULL
    while route != NULL and (route.capture or route.thread != <uint64_t>pthread_self()):
        route = route.next
    if route != NULL:
        out_owner[0] = route.owner
        return 0
    if pool.captures == 0:
        return 0
    route = pool.routes
    code = pool.table.capture_status(pool.device, stream, &status, &capture)
    if code == CAPTURE_IMPLICIT:
        return 0
    if code or status != CAPTURE_ACTIVE:
        return code
    while route != NULL and (route.capture == 0 or route.capture != capture):
        route = route.next
    if route != NULL:
        out_owner[0] = route.owner
    return 0


cdef void let_heaps_go(Pool* pool, Private* owner) noexcept nogil:
    # Their records serve the next private pool.
    cdef Heap* heap = pool.heaps
    while heap != NULL:
        if heap.owner == owner:
            heap.owner = NULL
            heap.stream = gone()
            heap.trusted = False
            if heap.marker != NULL:
                recycle_entry(pool, heap.marker)
                heap.marker = NULL
        heap = heap.next


cdef void drop_empty(Pool* pool) noexcept nogil:
    # Under the growth lock: a thread that grows a private heap has let go of the inner lock.
    cdef Private** link = &pool.privates
    cdef Private* found
    while link[0] != NULL:
        found = link[0]
        if found.uses == 0 and found.segments == 0:
            link[0] = found.next
            let_heaps_go(pool, found)
            free(found)
        else:
            link = &found.next
