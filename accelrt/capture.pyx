"""Captures under way: what their nodes point at has to live as long as the graph."""
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE
from accelrt.status cimport CAPTURE_IMPLICIT, raise_status

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
    # A thing that is not kept although the capture goes on would be a node's dangling pointer.
    cdef uint64_t capture = 0
    cdef int status = 0
    cdef int code
    if not captures:
        return 0
    code = registry.active.capture_status(device, stream, &status, &capture)
    if code == CAPTURE_IMPLICIT:  # the legacy stream while another one captures: it does not capture itself
        return 0
    if code:
        raise_status(code, "capture_status", ("device", device, "stream", stream))
    if status != CAPTURE_ACTIVE or capture not in captures:
        return 0
    captures[capture].append(thing)
    return 1
