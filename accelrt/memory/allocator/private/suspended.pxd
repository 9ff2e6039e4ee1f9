# Which pools are suspended (suspend.pxd), and whether memory is theirs.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.memory.allocator.private.private_types cimport PrivatePool, Suspension
from accelrt.memory.allocator.types cimport Pool

# Whether memory may be used.  Callers test suspended_pools first, which is 0 unless a pool of some device sleeps.
cdef int suspended_pools  # written by suspended.pyx alone
cdef bint is_pool_suspended(int device, uint64_t first, uint64_t second) noexcept nogil  # with or without the GIL
cdef bint is_suspended(uintptr_t address) noexcept nogil  # any address in it; takes pools' locks, so without the GIL
# Raises SleepingMemoryError where it is suspended; name says what was given.  With the GIL.
cdef int refuse_suspended(uintptr_t address, str name) except -1
# Gives back the host's copies for pools that nothing retains and in which nothing is live.  With no lock held.
cdef void sweep_suspended(int device) noexcept nogil

# For suspend.pyx.
cdef int note_ranges(Pool* pool, const PrivatePool* owner, Suspension* made) noexcept nogil  # in the exclusive section
cdef void enlist(Suspension* made) noexcept nogil  # under the growth lock, as delist
cdef void delist(Suspension* gone) noexcept nogil
cdef void discard(Suspension* suspension) noexcept nogil  # in no list any more; no copy is under way, no lock is held
