# Captures that accelrt began and has not ended.
from libc.stdint cimport uint64_t, uintptr_t

cdef int open_capture(uint64_t capture, list kept) except -1  # kept: what its graph will keep alive
cdef int close_capture(uint64_t capture) except -1
cdef bint any_capture() noexcept
cdef bint captures_open() noexcept nogil  # the same, without the GIL
cdef void count_bare_captures(long more) noexcept nogil  # that nogil code began, or with -1 ended
# Answers 1 where the stream captures for one of our graphs, which then keeps the thing alive, else 0.
cdef int keep_for_capture(int device, uintptr_t stream, object thing) except -1

cdef class PinnedSide:
    cdef uintptr_t address  # of page-locked memory of the cache's that a captured copy uses
