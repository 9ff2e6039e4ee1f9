# The records that describe memory, recycled by each pool.  All under the pool's lock.
from libc.stdint cimport uintptr_t, uint32_t

from accelrt.addresses cimport AddressMap
from accelrt.memory.block cimport Block, Entry, Heap, Pool, Private, Use

cdef Block* new_block_slow(Pool* pool) noexcept nogil
cdef Use* new_use(Pool* pool) noexcept nogil  # NULL where the host has no memory
cdef void recycle_use(Pool* pool, Use* use) noexcept nogil
cdef int new_entry(Pool* pool, Entry** out_entry) noexcept nogil  # with an event that is created
cdef void recycle_entry(Pool* pool, Entry* entry) noexcept nogil
cdef int drop_spare_events(Pool* pool) noexcept nogil  # gives the idle events back to the driver
cdef int heap_of(Pool* pool, Private* owner, uintptr_t stream, Heap** out_heap) noexcept nogil  # made if need be


cdef inline Block* new_block(Pool* pool) noexcept nogil:
    # NULL where the host has no memory.
    cdef Block* block = pool.spare_blocks
    if block == NULL:
        return new_block_slow(pool)
    pool.spare_blocks = block.left
    return block


cdef inline void recycle_block(Pool* pool, Block* block) noexcept nogil:
    block.left = pool.spare_blocks
    pool.spare_blocks = block
