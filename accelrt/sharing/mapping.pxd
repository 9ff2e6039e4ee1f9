# Memory of other processes at addresses of this one, and when a device is lost.
from libc.stdint cimport uintptr_t

cdef class Mapping:
    cdef readonly int device_index
    cdef readonly uintptr_t base  # 0 once it is closed
    cdef readonly size_t size
    cdef size_t mapped            # bytes from base on
    cdef list sizes               # of the pages that are mapped, in bytes; None of a plain segment
    cdef bint plain               # a plain segment
    cdef bint noted               # streams that use it are noted
    cdef int lost                 # answers in a row that the device is lost
    cdef bint half_closed         # its pages are unmapped, its addresses not given back yet
    cdef readonly long users      # leases that need it; written by mapping.pyx
    cdef bint closing             # a thread unmaps it now
    cdef object __weakref__

    cdef int unmap(self) noexcept
    cdef int close_pages(self) noexcept nogil
