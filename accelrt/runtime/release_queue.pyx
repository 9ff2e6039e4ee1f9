"""Driver objects on their way out.

A destructor can run anywhere: in another thread's capture, on a driver that refuses just now, in a host function,
where a call of the driver may wait for the function's own end, at the interpreter's exit.  What cannot be given
back at once waits here and is tried again by drain, which synchronising calls, empty_cache and the end of a
capture make.
"""
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport calloc, free

from accelrt.core.process cimport FORK_RUNTIME, at_fork
from accelrt.driver.capture_guard cimport (
    GONE, as_refusal, ask_stream, enter_wait, go_relaxed, is_captured_event, is_device_lost, is_idle_or_gone, leave_wait,
    meaning_of, record_behind, restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE, EVENT_DISABLE_TIMING
from accelrt.allocator.pool cimport record_deferred_uses, release
from accelrt.allocator.pinned.pool cimport record_deferred_pinned, release_pinned, tidy_pinned
from accelrt.runtime.capture_record cimport any_capture
from accelrt.status cimport FORKED, NOT_READY

cdef extern from *:
    """
    static __thread int accelrt_in_host_function;
    """
    int in_host_function "accelrt_in_host_function"

cdef struct Waiting:
    int kind
    int device
    uintptr_t handle
    uint64_t capture  # of a CAPTURE
    uintptr_t event   # of REPLAYS: behind them, or 0 where the stream could not take one yet
    PyObject* kept    # of REPLAYS: a reference
    Waiting* next

cdef Waiting* waiting = NULL  # guarded by the GIL
cdef draining drain_more = NULL


cdef void forget_waiting() noexcept nogil:
    global waiting
    waiting = NULL  # the parent's objects


cdef void begin_host_function() noexcept nogil:
    global in_host_function
    in_host_function += 1


cdef void end_host_function() noexcept nogil:
    global in_host_function
    in_host_function -= 1


cdef bint any_waits() noexcept:
    return waiting != NULL


cdef int give_back_bytes(int kind, int device, uintptr_t address) noexcept nogil:
    # A refusal can only mean that the process was forked, or that the bytes are gone already.
    if kind == DEVICE_BYTES:
        release(device, address)
    else:
        release_pinned(address)
    return 0


cdef int give_back(int kind, int device, uintptr_t handle) noexcept nogil:
    # A driver refuses some of these beside a capture, and breaks the capture, unless the caller is relaxed.
    cdef int mode, code
    if kind == DEVICE_BYTES or kind == HOST_BYTES:
        return give_back_bytes(kind, device, handle)
    if kind == GRAPH:
        return registry.active().graph_destroy(handle)
    if kind == EVENT:
        return registry.active().event_destroy(device, handle)
    code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    if kind == GRAPH_EXEC:
        code = registry.active().graph_exec_destroy(handle)
    elif kind == MODULE:
        code = registry.active().module_unload(device, handle)
    else:
        code = registry.active().host_unregister(device, handle)
    restore_mode(registry.active(), mode)
    return code


cdef void dispose(int kind, int device, uintptr_t handle) noexcept:
    cdef int code = NOT_READY
    if not in_host_function:
        with nogil:
            code = give_back(kind, device, handle)
    if code and code != FORKED:
        wait(kind, device, handle)


cdef void follow_capture() noexcept nogil:
    if not in_host_function:
        record_deferred_uses()
        record_deferred_pinned()


cdef bint still_in(int device, uintptr_t stream, uint64_t named) noexcept nogil:
    # Whether the stream is in the capture that had that id, 0 for a broken one, a moment ago.
    cdef uint64_t found = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(device, stream, &status, &found)
    return code != 0 or (status != CAPTURE_NONE and found == named)


cdef int end_capture(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil:
    # Answers 0 where the stream is not in that capture any more, whichever thread ended it.  The driver names an
    # active capture only; a broken one has to be ended whichever it is, and is over although the driver says why.
    cdef uint64_t found = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(device, stream, &status, &found)
    if code or status == CAPTURE_NONE or (status == CAPTURE_ACTIVE and capture and found != capture):
        return code
    code = registry.active().capture_end(device, stream, out_graph)
    return code if code and still_in(device, stream, found) else 0


cdef int end_capture_again(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil:
    # No other capture begins meanwhile, which on the same stream might be taken for this one.
    cdef int code = NOT_READY
    if enter_wait():
        code = end_capture(device, stream, capture, out_graph)
        leave_wait()
    return code


cdef void dispose_capture(int kind, int device, uintptr_t stream, uint64_t capture) noexcept:
    cdef uintptr_t graph = 0
    cdef int code = NOT_READY
    if not in_host_function:
        with nogil:
            code = end_capture(device, stream, capture, &graph)
    close_disposal(kind, device, stream, capture, graph, code)


cdef void dispose_capture_again(const Waiting* entry) noexcept:
    cdef uintptr_t graph = 0
    cdef int code
    with nogil:
        code = end_capture_again(entry.device, entry.handle, entry.capture, &graph)
    close_disposal(entry.kind, entry.device, entry.handle, entry.capture, graph, code)


cdef void close_disposal(int kind, int device, uintptr_t stream, uint64_t capture, uintptr_t graph, int code) noexcept:
    cdef Waiting* entry
    if graph and kind == CAPTURE:  # a body belongs to its node
        dispose(GRAPH, device, graph)
    if code and code != FORKED:
        entry = wait(kind, device, stream)
        if entry != NULL:
            entry.capture = capture


cdef Waiting* wait(int kind, int device, uintptr_t handle) noexcept:
    global waiting
    cdef Waiting* entry = <Waiting*>calloc(1, sizeof(Waiting))
    if entry == NULL:
        return NULL  # without 64 bytes for the note the handle is lost, and so, soon, is the process
    entry.kind = kind
    entry.device = device
    entry.handle = handle
    entry.next = waiting
    waiting = entry
    return entry


# --- what replays use ----------------------------------------------------------------------------------------

cdef int mark(int device, uintptr_t stream, uintptr_t* out_event) noexcept nogil:
    # Puts an event behind the stream's work, unless there is none.
    cdef int code = ask_stream(registry.active(), device, stream)
    if meaning_of(code) == GONE and not is_device_lost(code) and not is_idle_or_gone(registry.active(), device, stream):
        code = NOT_READY
    if code != NOT_READY:
        return code
    code = as_refusal(registry.active().event_create(device, EVENT_DISABLE_TIMING, out_event))
    if code:
        return code
    code = record_behind(registry.active(), device, out_event[0], stream)
    if code:
        registry.active().event_destroy(device, out_event[0])
        out_event[0] = 0
    return code if code else NOT_READY


cdef int look(int device, uintptr_t stream, uintptr_t* event) noexcept nogil:
    # 0 where the work is complete.
    cdef int mode, code
    if event[0] == 0:
        return mark(device, stream, event)
    code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    code = registry.active().event_query(device, event[0])
    restore_mode(registry.active(), mode)
    if is_device_lost(code) or not (is_captured_event(code) or meaning_of(code) == GONE):
        return code
    registry.active().event_destroy(device, event[0])
    event[0] = 0
    return mark(device, stream, event)


cdef bint passed(int device, uintptr_t stream, uintptr_t* event) noexcept nogil:
    # A stream that is gone, or whose device failed, uses nothing more; and what cannot be asked now is asked again.
    cdef int code = look(device, stream, event)
    if code and meaning_of(code) != GONE and not is_device_lost(code):
        return False
    if event[0]:
        registry.active().event_destroy(device, event[0])
    return True


cdef void keep_until_passed(int device, uintptr_t stream, object thing) noexcept:
    cdef uintptr_t event = 0
    cdef Waiting* entry
    cdef bint over = False
    if not in_host_function:
        with nogil:
            over = passed(device, stream, &event)
    if over:
        return
    Py_INCREF(thing)  # for good, where there is no memory for the note
    entry = wait(REPLAYS, device, stream)
    if entry != NULL:
        entry.event = event
        entry.kept = <PyObject*>thing


cdef void drain() noexcept:
    global waiting
    cdef Waiting* left
    cdef Waiting* entry
    if any_capture() or in_host_function:
        return
    left = waiting
    waiting = NULL
    while left != NULL:
        entry = left
        left = entry.next
        if entry.kind == REPLAYS:
            retry_replays(entry)
            continue
        if entry.kind == CAPTURE or entry.kind == BODY:
            dispose_capture_again(entry)
        else:
            dispose(entry.kind, entry.device, entry.handle)
        free(entry)
    with nogil:
        if drain_more != NULL:
            drain_more()
        tidy_pinned()  # what it is refused stays pending, and the next miss is told


cdef void retry_replays(Waiting* entry) noexcept:
    global waiting
    cdef bint over
    with nogil:
        over = passed(entry.device, entry.handle, &entry.event)
    if not over:
        entry.next = waiting
        waiting = entry
        return
    Py_DECREF(<object>entry.kept)
    free(entry)


cdef void drain_too(draining more) noexcept:
    global drain_more
    drain_more = more


at_fork("runtime.release_queue", FORK_RUNTIME, NULL, NULL, &forget_waiting)
