# The pool of driver streams.  Under the GIL.
from libc.stdint cimport uintptr_t


cdef struct Lease:     # one a driver stream, which lives as long as the process
    uintptr_t handle
    int device
    int level          # priority
    Lease* next        # while returned: the next newer one

cdef Lease* lease(int ordinal, int priority) except NULL  # an idle one that no other Stream has
cdef void give_back(Lease* leased) noexcept  # its work may still run
