# What happens to a block between the address table and its free list.  All under the pool's lock.
from libc.stdint cimport uintptr_t

from accelrt.addresses cimport map_insert, map_remove
from accelrt.memory.block cimport FREE, LIVE, Block, Pool
from accelrt.memory.freelist cimport insert, remove
from accelrt.memory.records cimport new_block, recycle_block
from accelrt.memory.sizes cimport UNIT, worth_splitting
from accelrt.memory.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
    change, decrease, increase,
)


cdef inline bint has_neighbour(const Block* block) noexcept nogil:
    return block.before != NULL or block.after != NULL


cdef inline void put_free(Pool* pool, Block* block) noexcept nogil:
    cdef int kind = block.segment.kind
    block.state = FREE
    block.requested = 0
    insert(&block.segment.heap.free[kind], block)
    if has_neighbour(block):
        pool.split_blocks += 1
        pool.split_bytes += block.size


cdef inline void take_free(Pool* pool, Block* block) noexcept nogil:
    remove(&block.segment.heap.free[block.segment.kind], block)
    if has_neighbour(block):
        pool.split_blocks -= 1
        pool.split_bytes -= block.size


cdef inline void count_splits(Pool* pool, int kind) noexcept nogil:
    # What an operation did to the free blocks with neighbours counts once, not step by step.
    if pool.split_blocks:
        change(&pool.stats, INACTIVE_SPLIT, kind, pool.split_blocks)
    if pool.split_bytes:
        change(&pool.stats, INACTIVE_SPLIT_BYTES, kind, pool.split_bytes)
    pool.split_blocks = pool.split_bytes = 0


cdef inline void split_off(Pool* pool, Block* block, size_t size) noexcept nogil:
    # Keeps the low end.  Without a record for the rest the block stays whole: wasteful, never wrong.
    cdef Block* rest = new_block(pool)
    if rest == NULL:
        return
    rest.address = block.address + size
    rest.size = block.size - size
    rest.order = block.order + size // UNIT
    rest.segment = block.segment
    rest.before = block
    rest.after = block.after
    if rest.after != NULL:
        rest.after.before = rest
    block.after = rest
    block.size = size
    put_free(pool, rest)


cdef inline Block* absorb(Pool* pool, Block* low, Block* high) noexcept nogil:
    # Neither is in a list; high's record goes.
    low.size += high.size
    low.after = high.after
    if low.after != NULL:
        low.after.before = low
    recycle_block(pool, high)
    return low


cdef inline void hand_out(Pool* pool, Block* block, size_t size, size_t requested) noexcept nogil:
    # The caller reserved room in the address table.
    cdef int kind = block.segment.kind
    take_free(pool, block)
    if worth_splitting(block.size - size, kind):
        split_off(pool, block, size)
    count_splits(pool, kind)
    block.state = LIVE
    block.requested = requested
    map_insert(&pool.blocks, block.address, block)
    increase(&pool.stats, ALLOCATION, kind, 1)
    increase(&pool.stats, ALLOCATED_BYTES, kind, block.size)
    increase(&pool.stats, ACTIVE, kind, 1)
    increase(&pool.stats, ACTIVE_BYTES, kind, block.size)
    increase(&pool.stats, REQUESTED_BYTES, kind, requested)


cdef inline void count_freed(Pool* pool, Block* block) noexcept nogil:
    decrease(&pool.stats, ALLOCATION, block.segment.kind, 1)
    decrease(&pool.stats, ALLOCATED_BYTES, block.segment.kind, block.size)


cdef inline void set_free(Pool* pool, Block* block) noexcept nogil:
    # From LIVE or PENDING, when nothing uses it any more.
    cdef int kind = block.segment.kind
    cdef Block* neighbour
    decrease(&pool.stats, ACTIVE, kind, 1)
    decrease(&pool.stats, ACTIVE_BYTES, kind, block.size)
    decrease(&pool.stats, REQUESTED_BYTES, kind, block.requested)
    map_remove(&pool.blocks, block.address)
    neighbour = block.before
    if neighbour != NULL and neighbour.state == FREE:
        take_free(pool, neighbour)
        block = absorb(pool, neighbour, block)
    neighbour = block.after
    if neighbour != NULL and neighbour.state == FREE:
        take_free(pool, neighbour)
        absorb(pool, block, neighbour)
    put_free(pool, block)
    count_splits(pool, kind)
