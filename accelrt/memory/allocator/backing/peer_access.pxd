# Which devices may use a pool's pages beside its own.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport Pool

# Opens mapped addresses for the pool's device and for those that may use its pages.  Under the growth lock.
cdef int open_range(Pool* pool, uintptr_t address, size_t size, long* calls) noexcept nogil
# A pool that nobody uses yet.  Takes other pools' growth locks; a failure leaves it out.
cdef int join_peers(Pool* pool) noexcept nogil
# From now on devices that have pools may use each other's pages, as far as they can.  Takes the pools' growth locks.
cdef int connect_peers() noexcept nogil
