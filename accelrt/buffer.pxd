# Owners of memory: Buffer on a device, PinnedBuffer on the host, page-locked.
from libc.stdint cimport uintptr_t

from accelrt.stream cimport Stream

cdef class Buffer:
    cdef readonly uintptr_t ptr     # 0 once freed, and for 0 bytes
    cdef readonly size_t nbytes
    cdef readonly int device_index
    cdef readonly Stream stream     # whose order the memory follows; None before __init__
    cdef object __weakref__

cdef class PinnedBuffer:
    cdef readonly uintptr_t ptr     # 0 once freed, and for 0 bytes
    cdef readonly size_t nbytes
    cdef int exports                # views of the bytes that are alive
    cdef object __weakref__
