"""Driver objects on their way out.

A destructor can run anywhere: in another thread's capture, on a driver that refuses just now, at the
interpreter's exit.  What cannot be given back at once waits here and is tried again by drain, which
synchronising calls, empty_cache and the end of a capture make.
"""
from libc.stdlib cimport free, malloc

from accelrt.capture cimport any_capture
cimport accelrt.driver.registry as registry
from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE
from accelrt.memory.pinned cimport tidy_pinned
from accelrt.status cimport FORKED

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef struct Waiting:
    int kind
    int device
    uintptr_t handle
    uint64_t capture  # of a CAPTURE
    Waiting* next

cdef Waiting* waiting = NULL  # guarded by the GIL
cdef draining drain_more = NULL


cdef void forget_waiting() noexcept nogil:
    global waiting
    waiting = NULL  # the parent's objects


cdef int give_back(int kind, int device, uintptr_t handle) noexcept nogil:
    # A driver refuses some of these beside a capture, and breaks the capture, unless the caller is relaxed.
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = destroy(kind, device, handle)
        restore_mode(registry.active(), mode)
    return code


cdef int destroy(int kind, int device, uintptr_t handle) noexcept nogil:
    if kind == GRAPH:
        return registry.active().graph_destroy(handle)
    if kind == GRAPH_EXEC:
        return registry.active().graph_exec_destroy(handle)
    if kind == HOST_REGISTRATION:
        return registry.active().host_unregister(device, handle)
    return registry.active().event_destroy(device, handle)


cdef void dispose(int kind, int device, uintptr_t handle) noexcept:
    cdef int code
    with nogil:
        code = give_back(kind, device, handle)
    if code and code != FORKED:
        wait(kind, device, handle, 0)


cdef int end_capture(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil:
    # Answers 0 where the stream is not in that capture any more, whoever ended it.  The driver names an
    # active capture only; a broken one has to be ended whichever it is.
    cdef uint64_t found = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(device, stream, &status, &found)
    if code or status == CAPTURE_NONE or (status == CAPTURE_ACTIVE and capture and found != capture):
        return code
    return registry.active().capture_end(device, stream, out_graph)


cdef void dispose_capture(int device, uintptr_t stream, uint64_t capture) noexcept:
    cdef uintptr_t graph = 0
    cdef int code
    with nogil:
        code = end_capture(device, stream, capture, &graph)
    if graph:
        dispose(GRAPH, device, graph)
    if code and code != FORKED:
        wait(CAPTURE, device, stream, capture)


cdef void wait(int kind, int device, uintptr_t handle, uint64_t capture) noexcept:
    global waiting
    cdef Waiting* entry = <Waiting*>malloc(sizeof(Waiting))
    if entry == NULL:
        return  # without 40 bytes for the note the handle is lost, and so, soon, is the process
    entry.kind = kind
    entry.device = device
    entry.handle = handle
    entry.capture = capture
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
        if entry.kind == CAPTURE:
            dispose_capture(entry.device, entry.handle, entry.capture)
        else:
            dispose(entry.kind, entry.device, entry.handle)
        free(entry)
    with nogil:
        if drain_more != NULL:
            drain_more()
        tidy_pinned()  # what it is refused stays pending, and the next miss is told


cdef void drain_too(draining more) noexcept:
    global drain_more
    drain_more = more


pthread_atfork(NULL, NULL, &forget_waiting)
