# Blocks that were given back while another stream may still use them.  All inside the world.
from libc.stdint cimport uintptr_t

from accelrt.memory.block cimport Block, Pool

cdef void defer(Pool* pool, Block* block) noexcept nogil  # makes it PENDING, without events yet
cdef int settle(Pool* pool) noexcept nogil  # records the events of deferred blocks, unless a capture is under way
cdef int poll(Pool* pool) noexcept nogil  # frees what is complete; never waits
cdef int wait_all(Pool* pool) noexcept nogil  # frees what is pending now; leaves the world while it waits
