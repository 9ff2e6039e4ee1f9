"""The pool of driver streams.

A Stream that dies returns its driver stream, which is handed out again only when its work is complete.
So no two live Streams share a handle, none is destroyed while the allocator still has memory filed under
it, and memory that a stream freed stays useful after the Stream is gone.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

cimport accelrt.driver.registry as registry
from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.driver.table cimport CAPTURE_NONE, CAPTURE_RELAXED, STREAM_NON_BLOCKING
from accelrt.memory.idle cimport trust_stream
from accelrt.memory.pool cimport MAX_DEVICES
from accelrt.status cimport NOT_READY, raise_status
cimport accelrt.watch as watch

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef struct Lease:
    uintptr_t handle
    Lease* next

cdef struct Returned:  # driver streams of one device and priority, oldest first
    Lease* oldest
    Lease* newest

cdef enum:
    LEVELS = 8  # priorities kept apart

cdef Returned returned[MAX_DEVICES][LEVELS]  # guarded by the GIL


cdef void forget_leases() noexcept nogil:
    cdef int ordinal, level
    for ordinal in range(MAX_DEVICES):
        for level in range(LEVELS):
            returned[ordinal][level].oldest = NULL
            returned[ordinal][level].newest = NULL


cdef bint idle(int ordinal, uintptr_t handle) except -1:
    # Asking a capturing stream, or asking at all while another thread captures in global mode, would break
    # the capture; so a capturing stream counts as busy, and the question is put in relaxed mode.  The answer
    # may be that the device's work failed, which nobody else may be told again.
    cdef int status = 0, mode
    cdef uint64_t capture = 0
    cdef int code = registry.active().capture_status(ordinal, handle, &status, &capture)
    if code:
        raise_status(code, "capture_status", ("stream", handle))
    if status != CAPTURE_NONE:
        return False
    code = go_relaxed(registry.active(), &mode)
    if code:
        raise_status(code, "capture_mode_exchange", ("mode", CAPTURE_RELAXED))
    code = registry.active().stream_query(ordinal, handle)
    restore_mode(registry.active(), mode)
    if code and code != NOT_READY:
        raise_status(code, "stream_query", ("stream", handle))
    return code == 0


cdef uintptr_t lease(int ordinal, int priority) except? 0:
    cdef Returned* shelf = &returned[ordinal][-priority & (LEVELS - 1)]
    cdef Lease* oldest = shelf.oldest
    cdef uintptr_t handle = 0
    cdef int code
    if oldest != NULL and idle(ordinal, oldest.handle):
        handle = oldest.handle
        shelf.oldest = oldest.next
        free(oldest)
        if watch.sanitizing:
            watch.note_stream(ordinal, handle)
        return handle
    with nogil:
        code = registry.active().stream_create(ordinal, STREAM_NON_BLOCKING, priority, &handle)
    if code:
        raise_status(code, "stream_create", ("device", ordinal, "priority", priority))
    trust_stream(handle)  # where that fails, its pages serve no other stream
    if watch.sanitizing:
        watch.note_stream(ordinal, handle)
    return handle


cdef void give_back(int ordinal, int priority, uintptr_t handle) noexcept:
    cdef Returned* shelf = &returned[ordinal][-priority & (LEVELS - 1)]
    cdef Lease* entry = <Lease*>malloc(sizeof(Lease))
    if entry == NULL:
        return
    entry.handle = handle
    entry.next = NULL
    if shelf.oldest == NULL:
        shelf.oldest = entry
    else:
        shelf.newest.next = entry
    shelf.newest = entry


pthread_atfork(NULL, NULL, &forget_leases)
