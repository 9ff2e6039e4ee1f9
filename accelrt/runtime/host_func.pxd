# Python functions in a stream's order.
from libc.stdint cimport uintptr_t

cdef int enqueue_callback(int device, uintptr_t stream, object function) except -1
cdef list nodes_of(list kept)  # those of what a capture kept that its graph's launches run; empty where none
cdef int begin_runs(list nodes) except -1  # before a launch, which may run them at once
cdef void take_back_runs(list nodes) noexcept  # after a launch that was refused
cdef bint functions_wait() noexcept  # some that were launched from Python have not run yet
cdef int raise_callback_errors() except -1  # what functions raised since it was last asked; several as a group
