# Python functions in a stream's order.
from libc.stdint cimport uintptr_t

cdef int enqueue_callback(int device, uintptr_t stream, object function) except -1
cdef int raise_callback_errors() except -1  # the first that a function raised since it was last asked
