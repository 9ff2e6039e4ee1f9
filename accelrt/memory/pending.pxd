# Blocks that were given back while another stream may still use them.  All inside the world.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.memory.block cimport Block, Heap
from accelrt.memory.state cimport Pool

cdef void defer(Pool* pool, Block* block) noexcept nogil  # makes it PENDING, without events yet
cdef int settle(Pool* pool) noexcept nogil  # records the events of deferred blocks, but on capturing streams
cdef int poll(Pool* pool) noexcept nogil  # frees what is complete; never waits
cdef int wait_all(Pool* pool) noexcept nogil  # frees what is pending now; leaves the world while it waits

# Offers: blocks freed as of somebody's event, of which record says which record it was.
cdef int offer(Pool* pool, Block* block, uintptr_t event, uint64_t record) noexcept nogil  # from LIVE
cdef int note_wait(Pool* pool, uintptr_t stream, uint64_t record) noexcept nogil  # the stream waits for it
cdef Block* accept(Pool* pool, const Heap* heap, size_t size) noexcept nogil  # what its stream may take; NULL
