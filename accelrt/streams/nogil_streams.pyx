"""Driver streams and events that nogil code leases and returns.

They are never destroyed: a stream that was returned is handed out again once its work is complete, an event at
once, for recording it anew leaves those who wait for its old record alone.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_NONE, STREAM_NON_BLOCKING
from accelrt.memory.allocator.pool cimport MAX_DEVICES
from accelrt.memory.allocator.stream_registry cimport trust_stream
from accelrt.status cimport INVALID_HANDLE, NOT_READY, NO_HOST_MEMORY

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef enum:
    LEVELS = 8   # kinds of streams: priorities kept apart
    EVENTS = 8   # the kind of events without flags; from it on one for each combination
    KINDS = 12   # EVENTS, and EVENT_BLOCKING_SYNC and EVENT_DISABLE_TIMING in every combination

cdef struct Lease:
    uintptr_t handle
    int device
    int kind     # level of a stream, EVENTS + flags of an event
    bint out     # leased and not returned
    Lease* next  # on its shelf

cdef struct Shelf:  # of what was returned, oldest first
    Lease* oldest
    Lease* newest

cdef Shelf shelves[MAX_DEVICES][KINDS]  # under the lock
cdef AddressMap leases                  # handle -> Lease; under the lock
cdef int lock = 0


cdef void forget_leases() noexcept nogil:
    # In a forked child: the parent's handles, and a lock that some thread of the parent's may have held.
    global lock
    lock = 0
    memset(shelves, 0, sizeof(shelves))
    memset(&leases, 0, sizeof(leases))


cdef Lease* take(Shelf* shelf) noexcept nogil:
    cdef Lease* found
    spin_lock(&lock)
    found = shelf.oldest
    if found != NULL:
        shelf.oldest = found.next
        found.out = True
    spin_unlock(&lock)
    return found


cdef void put_back(Lease* entry) noexcept nogil:
    # Under the lock.
    cdef Shelf* shelf = &shelves[entry.device][entry.kind]
    entry.out = False
    entry.next = NULL
    if shelf.oldest == NULL:
        shelf.oldest = entry
    else:
        shelf.newest.next = entry
    shelf.newest = entry


cdef int enlist(int device, int kind, uintptr_t handle) noexcept nogil:
    cdef Lease* entry = <Lease*>calloc(1, sizeof(Lease))
    cdef int code = NO_HOST_MEMORY
    if entry == NULL:
        return code
    entry.handle = handle
    entry.device = device
    entry.kind = kind
    entry.out = True
    spin_lock(&lock)
    code = map_reserve(&leases)
    if code == 0:
        map_insert(&leases, handle, entry)
    spin_unlock(&lock)
    if code:
        free(entry)
    elif kind < EVENTS:
        trust_stream(handle)  # where that fails, its memory serves no other stream
    return code


cdef int give_back(int device, uintptr_t handle, bint is_event) noexcept nogil:
    cdef Lease* found
    cdef int code = INVALID_HANDLE
    spin_lock(&lock)
    found = <Lease*>map_find(&leases, handle)
    if found != NULL and found.out and found.device == device and (found.kind >= EVENTS) == is_event:
        put_back(found)
        code = 0
    spin_unlock(&lock)
    return code


# --- streams -------------------------------------------------------------------------------------------------

cdef int ask_idle(int device, uintptr_t stream) noexcept nogil:
    # 0 where its work is complete, else NOT_READY.  A capturing stream must not be asked, and no stream beside
    # a capture in global mode unless in relaxed mode.
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE, mode
    cdef int code = registry.active().capture_status(device, stream, &status, &capture)
    if code == 0 and status != CAPTURE_NONE:
        return NOT_READY
    if code == 0:
        code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().stream_query(device, stream)
        restore_mode(registry.active(), mode)
    return code


cdef int clamp_priority(int device, int* priority) noexcept nogil:
    cdef int least = 0, greatest = 0
    cdef int code
    if priority[0] == 0:
        return 0
    code = registry.active().stream_priority_range(device, &least, &greatest)
    priority[0] = max(greatest, min(least, priority[0]))
    return code


cdef int lease_stream(int device, int priority, uintptr_t* out_stream) noexcept nogil:
    cdef int code = clamp_priority(device, &priority)
    cdef int level = -priority & (LEVELS - 1)
    cdef Lease* found
    out_stream[0] = 0
    if code:
        return code
    found = take(&shelves[device][level])
    if found != NULL:
        code = ask_idle(device, found.handle)
        if code == 0:
            out_stream[0] = found.handle
            return 0
        spin_lock(&lock)
        put_back(found)
        spin_unlock(&lock)
        if code != NOT_READY:
            return code
    code = registry.active().stream_create(device, STREAM_NON_BLOCKING, priority, out_stream)
    if code == 0:
        code = enlist(device, level, out_stream[0])
        if code:
            registry.active().stream_destroy(device, out_stream[0])
            out_stream[0] = 0
    return code


cdef int return_stream(int device, uintptr_t stream) noexcept nogil:
    return give_back(device, stream, False)


# --- events --------------------------------------------------------------------------------------------------

cdef int lease_event(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    cdef Lease* found = take(&shelves[device][EVENTS + flags])
    cdef int code
    out_event[0] = 0
    if found != NULL:
        out_event[0] = found.handle
        return 0
    code = registry.active().event_create(device, flags, out_event)
    if code == 0:
        code = enlist(device, EVENTS + flags, out_event[0])
        if code:
            registry.active().event_destroy(device, out_event[0])
            out_event[0] = 0
    return code


cdef int return_event(int device, uintptr_t event) noexcept nogil:
    return give_back(device, event, True)


pthread_atfork(NULL, NULL, &forget_leases)
