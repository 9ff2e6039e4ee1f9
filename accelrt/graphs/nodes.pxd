# The driver's graphs.
from libc.stdint cimport uintptr_t

cdef int instantiate(int ordinal, uintptr_t graph, uintptr_t* out_exec) noexcept nogil  # a status code
cdef int update_exec(uintptr_t exec_, uintptr_t graph) except -1  # raises why it was refused
