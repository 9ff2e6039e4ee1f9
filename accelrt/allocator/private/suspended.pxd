# The records of suspended pools (suspend.pxd): which there are, whether memory is theirs, and the contents that are kept.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.core.locks cimport load_count
from accelrt.allocator.private.private_types cimport Moved, PrivatePool, Suspension
from accelrt.allocator.types cimport Pool

# Whether memory may be used.  Callers ask has_suspended_pools first: whether a pool of any device sleeps.
cdef long suspended_pools  # written by suspended.pyx alone

cdef inline bint has_suspended_pools() noexcept nogil:
    return load_count(&suspended_pools) != 0

cdef bint is_pool_suspended(int device, uint64_t first, uint64_t second) noexcept nogil  # with or without the GIL
cdef bint is_suspended(uintptr_t address) noexcept nogil  # any address in it; takes pools' locks, so without the GIL
# Whether the address lies in a segment that the pool had when it was closed; while the pool is suspended, or about to be.
cdef bint is_of_suspended(int device, uint64_t first, uint64_t second, uintptr_t address) noexcept nogil
# Raises SleepingMemoryError where it is suspended; name says what was given.  With the GIL.
cdef int refuse_suspended(uintptr_t address, str name) except -1
# Gives back the host's copies for pools that nothing retains and in which nothing is live.  With no lock held.
cdef void sweep_suspended(int device) noexcept nogil

# For suspend.pyx.
cdef int note_ranges(Pool* pool, const PrivatePool* owner, Suspension* made) noexcept nogil  # in the exclusive section
cdef void enlist(Suspension* made) noexcept nogil  # under the growth lock, as delist
cdef void delist(Suspension* gone) noexcept nogil
cdef void discard(Suspension* suspension) noexcept nogil  # in no list any more; no copy is under way, no lock is held

# Contents; failures leave the driver's row in moved.  What is live, in the exclusive section:
cdef int note_contents(Pool* pool, const PrivatePool* owner, Suspension* made) noexcept nogil  # 0 or NO_HOST_MEMORY
cdef void drop_freed(Pool* pool, PrivatePool* owner, Suspension* suspension) noexcept nogil  # of what was noted
# Outside of it: page-locked memory for what was noted; the copies to it (out) or back, which are waited for.
cdef int take_chunks(Pool* pool, Suspension* made, Moved* moved) noexcept nogil
cdef bint may_still_copy(const Pool* pool) noexcept nogil  # an earlier call, whose copies could not be waited for
cdef int await_copies(Pool* pool, Moved* moved) noexcept nogil
cdef int copy_contents(Pool* pool, Suspension* made, bint out, Moved* moved) noexcept nogil
cdef int64_t now() noexcept nogil  # nanoseconds of the monotonic clock
