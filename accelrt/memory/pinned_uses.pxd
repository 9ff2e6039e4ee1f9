# Page-locked blocks that were given back while a stream may still use them.  All under the pool's order, which
# wait_all opens while it waits; none of it under the pool's lock.
from accelrt.memory.pinned_block cimport PinnedBlock, PinnedPool

cdef void defer(PinnedPool* pool, PinnedBlock* block) noexcept nogil  # a PENDING block with uses
cdef int poll(PinnedPool* pool) noexcept nogil  # frees what is complete; never waits
cdef int wait_all(PinnedPool* pool) noexcept nogil  # frees what is pending now
cdef int drop_spare_events(PinnedPool* pool) noexcept nogil  # gives the idle events back to the driver
