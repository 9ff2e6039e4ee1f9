"""Captures under way: what their nodes point at has to live as long as the graph."""
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE
from accelrt.status cimport CAPTURE_IMPLICIT, raise_status

cdef dict captures = {}  # id -> list; guarded by the GIL
cdef long count = 0      # of captures, for those who look without the GIL
cdef long bare = 0       # captures of nogil code, which keep nothing alive

cdef extern from *:
    """
    #define accelrt_load_count(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define accelrt_store_count(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    #define accelrt_add_count(place, value) __atomic_add_fetch(place, value, __ATOMIC_ACQ_REL)
    """
    long load_count "accelrt_load_count" (long* place) noexcept nogil
    void store_count "accelrt_store_count" (long* place, long value) noexcept nogil
    long add_count "accelrt_add_count" (long* place, long value) noexcept nogil


cdef class PinnedSide:
    """Page-locked memory that a captured copy reads or writes; kept with what keeps it alive."""


cdef int open_capture(uint64_t capture, list kept) except -1:
    captures[capture] = kept
    store_count(&count, len(captures))
    return 0


cdef int close_capture(uint64_t capture) except -1:
    captures.pop(capture, None)
    store_count(&count, len(captures))
    return 0


cdef bint captures_open() noexcept nogil:
    return load_count(&count) > 0 or load_count(&bare) > 0


cdef bint any_capture() noexcept:
    return captures_open()


cdef void count_bare_captures(long more) noexcept nogil:
    add_count(&bare, more)


cdef int keep_for_capture(int device, uintptr_t stream, object thing) except -1:
    # A thing that is not kept although the capture goes on would be a node's dangling pointer.
    cdef uint64_t capture = 0
    cdef int status = 0
    cdef int code
    if not captures:
        return 0
    code = registry.active().capture_status(device, stream, &status, &capture)
    if code == CAPTURE_IMPLICIT:  # the legacy stream while another one captures: it does not capture itself
        return 0
    if code:
        raise_status(code, "capture_status", ("device", device, "stream", stream))
    if status != CAPTURE_ACTIVE or capture not in captures:
        return 0
    captures[capture].append(thing)
    return 1
