"""Driver objects on their way out.

A destructor can run anywhere: in another thread's capture, on a driver that refuses just now, at the
interpreter's exit.  What cannot be given back at once waits here and is tried again by drain, which
synchronising calls, empty_cache and the end of a capture make.
"""
from libc.stdlib cimport free, malloc

from accelrt.capture cimport any_capture
from accelrt.driver cimport registry
from accelrt.status cimport FORKED

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef struct Waiting:
    int kind
    int device
    uintptr_t handle
    Waiting* next

cdef Waiting* waiting = NULL  # guarded by the GIL


cdef void forget_waiting() noexcept nogil:
    global waiting
    waiting = NULL  # the parent's objects


cdef int give_back(int kind, int device, uintptr_t handle) noexcept nogil:
    if kind == GRAPH:
        return registry.active.graph_destroy(handle)
    if kind == GRAPH_EXEC:
        return registry.active.graph_exec_destroy(handle)
    if kind == HOST_MEMORY:
        return registry.active.host_free(device, handle)
    return registry.active.event_destroy(device, handle)


cdef void dispose(int kind, int device, uintptr_t handle) noexcept:
    # Page-locked memory is freed outside captures only: the driver waits for the device then.
    global waiting
    cdef int code = -1
    cdef Waiting* entry
    if not (kind == HOST_MEMORY and any_capture()):
        with nogil:
            code = give_back(kind, device, handle)
    if code == 0 or code == FORKED:
        return
    entry = <Waiting*>malloc(sizeof(Waiting))
    if entry == NULL:
        return  # without 32 bytes for the note the handle is lost, and so, soon, is the process
    entry.kind = kind
    entry.device = device
    entry.handle = handle
    entry.next = waiting
    waiting = entry


cdef void drain() noexcept:
    global waiting
    cdef Waiting* left = waiting
    cdef Waiting* entry
    if any_capture():
        return
    waiting = NULL
    while left != NULL:
        entry = left
        left = entry.next
        dispose(entry.kind, entry.device, entry.handle)
        free(entry)


pthread_atfork(NULL, NULL, &forget_waiting)
