# The user's own host memory, page-locked for as long as an object lives; and arrays on the cache's.
from cpython.buffer cimport Py_buffer
from libc.stdint cimport uintptr_t

cdef class RegisteredMemory:
    cdef readonly uintptr_t ptr   # 0 once unregistered, and for 0 bytes
    cdef readonly size_t nbytes
    cdef int device_index         # whose driver locked it
    cdef Py_buffer view           # keeps the memory where it is
    cdef bint viewed
    cdef object __weakref__
