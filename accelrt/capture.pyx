"""Captures under way: what their nodes point at has to live as long as the graph."""
from accelrt.driver cimport registry
from accelrt.driver.table cimport CAPTURE_ACTIVE

cdef dict captures = {}  # id -> list; guarded by the GIL


cdef int open_capture(uint64_t capture, list kept) except -1:
    captures[capture] = kept
    return 0


cdef int close_capture(uint64_t capture) except -1:
    captures.pop(capture, None)
    return 0


cdef bint any_capture() noexcept:
    return len(captures) > 0


cdef int keep_for_capture(int device, uintptr_t stream, object thing) except -1:
    # A refusal means that the stream does not capture: the caller's own call says what is wrong, if anything.
    cdef uint64_t capture = 0
    cdef int status = 0
    if not captures:
        return 0
    if registry.active.capture_status(device, stream, &status, &capture) or status != CAPTURE_ACTIVE:
        return 0
    if capture not in captures:
        return 0
    captures[capture].append(thing)
    return 1
