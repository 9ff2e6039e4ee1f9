"""The pool of driver events.

Events without the interprocess flag are handed out again once their holder returns them; to have one costs no driver
call then.  An event that was captured belongs to the graph: a driver crashed when such an event was recorded anew while
the graph was destroyed.  Python's graphs keep the Events that they captured.  What nogil code captured is destroyed when
it is returned.
"""
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.driver.capture_guard cimport is_capturing
cimport accelrt.driver.registry as registry
from accelrt.memory.allocator.pool cimport MAX_DEVICES
from accelrt.status cimport INVALID_HANDLE, NO_HOST_MEMORY

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef enum:
    KINDS = 4  # EVENT_BLOCKING_SYNC and EVENT_DISABLE_TIMING, in every combination

cdef PooledEvent* returned[MAX_DEVICES][KINDS]  # the one returned last first; under the lock
cdef AddressMap by_handle                       # handle -> PooledEvent, of those that nogil code has; under the lock
cdef int lock = 0                               # held for no call of the driver's


cdef void forget_events() noexcept nogil:
    # In a forked child: the parent's events, and a lock that another of its threads may have held.
    global lock
    lock = 0
    memset(returned, 0, sizeof(returned))
    memset(&by_handle, 0, sizeof(by_handle))


cdef PooledEvent* take_event(int device, unsigned int flags) noexcept nogil:
    cdef PooledEvent* found = NULL
    if flags >= KINDS:
        return NULL
    spin_lock(&lock)
    found = returned[device][flags]
    if found != NULL:
        returned[device][flags] = found.next
    spin_unlock(&lock)
    return found


cdef int make_event(int device, unsigned int flags, PooledEvent** out_event) noexcept nogil:
    # Needs no lock; the driver's call may wait.
    cdef PooledEvent* made = <PooledEvent*>calloc(1, sizeof(PooledEvent))
    cdef int code
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.flags = flags
    code = registry.active().event_create(device, flags, &made.handle)
    if code:
        free(made)
        return code
    out_event[0] = made
    return 0


cdef void return_event(PooledEvent* event) noexcept nogil:
    spin_lock(&lock)
    event.next = returned[event.device][event.flags]
    returned[event.device][event.flags] = event
    spin_unlock(&lock)


# --- by handles ----------------------------------------------------------------------------------------------

cdef int lend(PooledEvent* event) noexcept nogil:
    # Takes the lock.
    cdef int code
    spin_lock(&lock)
    code = map_reserve(&by_handle)
    if code == 0:
        map_insert(&by_handle, event.handle, event)
    spin_unlock(&lock)
    return code


cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* event = take_event(device, flags)
    cdef int code = 0
    out_event[0] = 0
    if event == NULL:
        code = make_event(device, flags, &event)
    if code:
        return code
    code = lend(event)
    if code:
        return_event(event)
        return code
    out_event[0] = event.handle
    return 0


cdef int return_event_handle(int device, uintptr_t event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* found
    spin_lock(&lock)
    found = <PooledEvent*>map_find(&by_handle, event)
    if found != NULL and found.device == device:
        map_remove(&by_handle, event)
    else:
        found = NULL
    spin_unlock(&lock)
    if found == NULL:
        return INVALID_HANDLE
    if found.captured:
        registry.active().event_destroy(device, event)
        free(found)
    else:
        return_event(found)
    return 0


cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* found
    cdef int code
    if not is_capturing(registry.active(), device, stream, &code):
        return
    spin_lock(&lock)
    found = <PooledEvent*>map_find(&by_handle, event)
    if found != NULL:
        found.captured = True
    spin_unlock(&lock)


pthread_atfork(NULL, NULL, &forget_events)
