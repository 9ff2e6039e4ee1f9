# Splitting and merging blocks: the steps that the fast and the slow path share.  Everything here needs the heap's lock.
# Nothing here counts (heap_stats.pxd); of_taking and of_freeing tell the change of the counters before it is made.
from libc.stdint cimport int64_t

from accelrt.allocator.inline.block_map cimport list_block, unlist_block
from accelrt.allocator.inline.free_list cimport remove
from accelrt.allocator.pool_settings cimport PoolSettings
from accelrt.allocator.sizes cimport UNIT, worth_splitting
from accelrt.allocator.types cimport ANY_REST, FREE, LIVE, Block, Heap

# The net change that an operation makes to the free blocks that count as splits (is_split).
cdef struct Change:
    int64_t blocks
    int64_t bytes


cdef inline bint is_split(const Block* block) noexcept nogil:
    # Whether a free block has a neighbour.  In an expandable or stitched segment every free block counts as one that has.
    return block.segment.shape or block.before != NULL or block.after != NULL


cdef inline bint keeps_rest(const Block* block, size_t size) noexcept nogil:
    # Whether the remainder becomes a free block.  A plain block of max_split and more is handed out whole (suits).
    if block.segment.shape:
        return block.size > size
    if block.segment.splits:
        return block.segment.splits == ANY_REST and block.size > size
    return worth_splitting(block.size - size, block.segment.kind) and block.size < block.heap.settings.max_split


cdef inline bint suits(const Block* block, size_t size, const PoolSettings* settings) noexcept nogil:
    # A plain block of max_split and more serves no request below max_split, and none smaller by max_rounding or more.
    if block.segment.shape or block.size < settings.max_split:
        return True
    return size >= settings.max_split and block.size < size + settings.max_rounding


cdef inline Change of_taking(const Block* block, size_t size, bint splits) noexcept nogil:
    # The change when a free block is handed out, split or whole.
    cdef Change change
    change.blocks = splits
    change.bytes = block.size - size if splits else 0
    if is_split(block):
        change.blocks -= 1
        change.bytes -= block.size
    return change


cdef inline Change of_freeing(const Block* block) noexcept nogil:
    # The change when a block becomes free and merges with its free neighbours.
    cdef const Block* low = block.before
    cdef const Block* high = block.after
    cdef bint joins_low = low != NULL and low.state == FREE
    cdef bint joins_high = high != NULL and high.state == FREE
    cdef size_t lower = low.size if joins_low else 0
    cdef size_t higher = high.size if joins_high else 0
    cdef Change change
    change.blocks = -<int64_t>joins_low - joins_high
    change.bytes = -<int64_t>(lower + higher)
    if not block.segment.shape:  # whole segments are not split
        if joins_low:
            low = low.before
        if joins_high:
            high = high.after
    if block.segment.shape or low != NULL or high != NULL:
        change.blocks += 1
        change.bytes += block.size + lower + higher
    return change


cdef inline size_t joined_size(const Block* block) noexcept nogil:
    # The block's size once it is merged with its free neighbours.
    cdef size_t size = block.size
    if block.before != NULL and block.before.state == FREE:
        size += block.before.size
    if block.after != NULL and block.after.state == FREE:
        size += block.after.size
    return size


cdef inline void recycle(Heap* heap, Block* block) noexcept nogil:
    block.left = heap.spare
    heap.spare = block


cdef inline void split_off(Heap* heap, Block* block, size_t size) noexcept nogil:
    # Shortens a block to its low end.  The remainder, FREE and in no list, takes a spare record: the caller has ensured
    # that there is one (ensure_blocks).
    cdef Block* rest = heap.spare
    heap.spare = rest.left
    rest.address = block.address + size
    rest.size = block.size - size
    rest.order = block.order + size // UNIT
    rest.segment = block.segment
    rest.epoch = block.epoch
    rest.state = FREE
    rest.requested = 0
    rest.before = block
    rest.after = block.after
    if rest.after != NULL:
        rest.after.before = rest
    else:
        block.segment.last = rest
    block.after = rest
    block.size = size


cdef inline void absorb(Heap* heap, Block* low, Block* high) noexcept nogil:
    # Merges two neighbours that are in no list, and recycles the record of the upper one.  The later epoch stays.
    low.size += high.size
    if <int>(high.epoch - low.epoch) > 0:
        low.epoch = high.epoch
    low.after = high.after
    if low.after != NULL:
        low.after.before = low
    else:
        low.segment.last = low
    recycle(heap, high)


cdef inline Block* join(Heap* heap, Block* block) noexcept nogil:
    # Makes a block that is in no list FREE and merges it with its free neighbours.  The result is in no list.
    cdef Block* neighbour = block.before
    block.state = FREE
    block.requested = 0
    if neighbour != NULL and neighbour.state == FREE:
        remove(heap, neighbour)
        absorb(heap, neighbour, block)
        block = neighbour
    neighbour = block.after
    if neighbour != NULL and neighbour.state == FREE:
        remove(heap, neighbour)
        absorb(heap, block, neighbour)
    return block


cdef inline void make_live(Block* block, size_t requested, int kind) noexcept nogil:
    # Hands out a block that is in no list and for which its heap's map has a place.
    block.state = LIVE
    block.requested = requested
    block.kind = kind
    block.stack = block.tag = 0
    list_block(block)


cdef inline Block* join_freed(Heap* heap, Block* block) noexcept nogil:
    # Frees, as of now, a block that no other stream uses; the result is as join's.
    unlist_block(block)
    block.epoch = heap.last_freed = heap.epoch
    return join(heap, block)


cdef inline bint is_quiescent(const Block* block) noexcept nogil:
    # Whether no work of the heap's stream uses the free block any more.  The difference allows for epochs that wrapped.
    return <int>(block.heap.quiescent_epoch - block.epoch) >= 0


cdef inline bint is_heap_quiescent(const Heap* heap) noexcept nogil:
    # Whether all that was freed in the heap is quiescent.
    return <int>(heap.quiescent_epoch - heap.last_freed) >= 0
