# Page-locked blocks that were given back while a stream may still use them.  All under the pool's order, which
# wait_all opens while it waits; none of it under the pool's lock.
from accelrt.memory.host.block cimport PinnedBlock, PinnedPool

cdef void defer(PinnedPool* pool, PinnedBlock* block) noexcept nogil  # a PENDING block with uses
cdef int poll(PinnedPool* pool) noexcept nogil  # frees what is complete; never waits
cdef int wait_all(PinnedPool* pool) noexcept nogil  # frees what is pending now
cdef int drop_spare_events(PinnedPool* pool) noexcept nogil  # gives the idle events back to the driver


# The thread that polls page-locked blocks in use, where the settings ask for one.

cdef void watch(PinnedPool* pool) noexcept nogil  # under order: something is pending; starts or wakes the thread
cdef void stop_watch(PinnedPool* pool, bint for_good) noexcept nogil  # waits for it; no lock held
cdef bint watching() noexcept nogil  # under order
cdef void forget_watch() noexcept nogil  # in a forked child, which has no such thread
