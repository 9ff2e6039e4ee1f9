# The pool of driver streams.  Under the GIL.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.stream_registry cimport Lineage

cdef struct Lease:     # one a driver stream, which lives as long as the process
    uintptr_t handle
    int device
    int level          # priority
    Lineage lineage    # for the allocator
    Lease* next        # while returned: the next newer one

cdef Lease* lease(int ordinal, int priority, uintptr_t parent) except NULL  # an idle one that nobody else has
cdef void give_back(Lease* leased) noexcept  # its work may still run
