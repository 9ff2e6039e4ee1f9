# What happens to a block between a hit and its free list, under its heap's lock.  Nothing here counts (heap_stats.pxd);
# what an operation does to the counters is known before it changes anything (Change).
#
# A heap's designated victim is the free block that the last hit left: the next hit looks at it first, and it goes to
# its free list when another block takes its place or a slow operation comes.
from libc.stdint cimport int64_t

from accelrt.memory.allocator.address_table cimport list_block, unlist_block
from accelrt.memory.allocator.free_list cimport best_fit, insert, precedes, remove
from accelrt.memory.allocator.sizes cimport UNIT, worth_splitting
from accelrt.memory.allocator.types cimport FREE, LIVE, Block, Heap, PoolSettings

cdef inline Block* fit_with_victim(const Heap* heap, size_t size) noexcept nogil:
    # As best_fit, with the designated victim among the others.
    cdef Block* victim = heap.victim
    cdef Block* best = best_fit(heap, size) if heap.summary else NULL
    if victim != NULL and victim.size >= size and (best == NULL or precedes(victim, best)):
        return victim
    return best


cdef inline void file_victim(Heap* heap) noexcept nogil:
    if heap.victim != NULL:
        insert(heap, heap.victim)
        heap.victim = NULL


cdef inline void set_victim(Heap* heap, Block* block) noexcept nogil:
    file_victim(heap)
    heap.victim = block


cdef inline void unlist(Heap* heap, Block* block) noexcept nogil:
    if block == heap.victim:
        heap.victim = NULL
    else:
        remove(heap, block)


# What an operation adds to the free blocks with neighbours, net.
cdef struct Change:
    int64_t blocks
    int64_t bytes


cdef inline bint is_split(const Block* block) noexcept nogil:
    # A span always goes on, so what is free of it is never a segment of its own.
    return block.segment.shape or block.before != NULL or block.after != NULL


cdef inline bint keeps_rest(const Block* block, size_t size) noexcept nogil:
    # Whether what is left of a free block becomes one of its own.  A plain block above the limit of splitting
    # is handed out whole (suits).
    if block.segment.shape:
        return block.size > size
    return worth_splitting(block.size - size, block.segment.kind) and block.size < block.heap.settings.max_split


cdef inline bint suits(const Block* block, size_t size, const PoolSettings* settings) noexcept nogil:
    # A plain block above the limit of splitting serves no request below it, and none that is much smaller.
    if block.segment.shape or block.size < settings.max_split:
        return True
    return size >= settings.max_split and block.size < size + settings.max_rounding


cdef inline Change of_taking(const Block* block, size_t size, bint splits) noexcept nogil:
    cdef Change change
    change.blocks = splits
    change.bytes = block.size - size if splits else 0
    if is_split(block):
        change.blocks -= 1
        change.bytes -= block.size
    return change


cdef inline Change of_freeing(const Block* block) noexcept nogil:
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
        low = low.before if joins_low else low
        high = high.after if joins_high else high
    if block.segment.shape or low != NULL or high != NULL:
        change.blocks += 1
        change.bytes += block.size + lower + higher
    return change


cdef inline size_t joined_size(const Block* block) noexcept nogil:
    # With its free neighbours.
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
    # Keeps the low end; the rest, which takes a spare record that the caller knows to exist, is in no list.
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
    # Neither is in a list; high's record goes.
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
    # Merges a block in no list with its free neighbours; the answer is in no list and FREE.
    cdef Block* neighbour = block.before
    block.state = FREE
    block.requested = 0
    if neighbour != NULL and neighbour.state == FREE:
        unlist(heap, neighbour)
        absorb(heap, neighbour, block)
        block = neighbour
    neighbour = block.after
    if neighbour != NULL and neighbour.state == FREE:
        unlist(heap, neighbour)
        absorb(heap, block, neighbour)
    return block


cdef inline void make_live(Block* block, size_t requested, int kind) noexcept nogil:
    # A block in no list; its heap's map has place for it.
    block.state = LIVE
    block.requested = requested
    block.kind = kind
    list_block(block)


cdef inline Block* join_freed(Heap* heap, Block* block) noexcept nogil:
    # What no stream uses but its own, freed now; the answer is as join's.
    unlist_block(block)
    block.epoch = heap.last_freed = heap.epoch
    return join(heap, block)


cdef inline bint is_quiescent(const Block* block) noexcept nogil:
    # No work uses what is free: epochs are compared as they wrap around.
    return <int>(block.heap.quiescent_epoch - block.epoch) >= 0


cdef inline bint is_heap_quiescent(const Heap* heap) noexcept nogil:
    # Nothing was freed that is not settled.
    return <int>(heap.quiescent_epoch - heap.last_freed) >= 0
