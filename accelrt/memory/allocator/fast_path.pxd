# The fast path: an allocation or a free that one heap serves alone, under its lock.  Whatever needs more answers NOT_READY
# and is left to the slow path.
#
# The last-freed cache serves a block that is freed and allocated by turns while nothing else happens in its heap.  The
# first round goes the usual way, and proves that this very block is the best fit for its size and that neither state
# passes a ceiling.  From then on a round only changes the block's state: lists and statistics stay as they are with
# the block live, and flush_cached() brings them up to date before anything else is done or read in the heap.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.address_table cimport block_in, has_place
from accelrt.memory.allocator.block_ops cimport (
    Change, fit_with_victim, join_freed, joined_size, keeps_rest, make_live, of_freeing, of_taking, set_victim,
    split_off, unlist,
)
from accelrt.memory.allocator.heap_stats cimport add_given, add_taken, raise_limits, take_back_given, take_back_taken
from accelrt.memory.allocator.sizes cimport kind_of
from accelrt.memory.allocator.types cimport CACHED, LIVE, PLAIN, STITCHED, Block, Heap, PoolSettings, Pool
from accelrt.status cimport NOT_READY

cdef void flush_cached(Heap* heap) noexcept nogil  # under the heap's lock; afterwards none is cached


cdef inline bint allocate_cached(Heap* heap, size_t size, size_t requested, uintptr_t* out_address) noexcept nogil:
    cdef Block* block = heap.cached
    if block == NULL or block.state != CACHED or block.size != size or block.requested != requested:
        return False
    block.state = LIVE
    heap.cached_rounds += 1
    out_address[0] = block.address
    return True


cdef inline bint free_cached(Heap* heap, uintptr_t address) noexcept nogil:
    cdef Block* block = heap.cached
    if block == NULL or block.address != address or block.state != LIVE or block.uses != NULL:
        return False
    block.state = CACHED
    return True


# Of the usual way: what was freed last, so that the block is cached if it is allocated again at once.

cdef inline void note_freed(Heap* heap, const Block* block, const Block* joined, size_t size) noexcept nogil:
    heap.freed_last = joined if joined == block else NULL
    heap.freed_last_size = size


cdef inline void note_allocated(Heap* heap, Block* block, size_t size) noexcept nogil:
    if block == heap.freed_last and size == heap.freed_last_size:
        heap.cached = block
        heap.cached_rounds = 0
    heap.freed_last = NULL


cdef inline int take(
    Heap* heap, const PoolSettings* settings, size_t size, size_t requested, uintptr_t* out_address,
) noexcept nogil:
    cdef Block* block
    cdef Change change
    cdef bint splits
    cdef int kind = kind_of(size)
    if not heap.fast:
        return NOT_READY
    if heap.cached != NULL:
        flush_cached(heap)
    block = fit_with_victim(heap, size)
    if block == NULL or block.size >= settings.max_split:
        return NOT_READY
    if heap.spare == NULL or not has_place(heap):
        return NOT_READY
    splits = keeps_rest(block, size)
    change = of_taking(block, size, splits)
    if not splits:
        size = block.size
    if add_taken(heap, kind, size, requested, block.segment.kind, change):
        if not heap.sole:
            take_back_taken(heap, kind, size, requested, block.segment.kind, change)
            return NOT_READY
        raise_limits(heap)
    unlist(heap, block)
    if splits:
        split_off(heap, block, size)
        set_victim(heap, block.after)
    make_live(block, requested, kind)
    note_allocated(heap, block, size)
    out_address[0] = block.address
    return 0


cdef inline void free_to_victim(Heap* heap, Block* block) noexcept nogil:
    # A block that is freed and counted becomes the designated victim.
    cdef size_t size = block.size
    cdef Block* joined = join_freed(heap, block)
    set_victim(heap, joined)
    note_freed(heap, block, joined, size)


cdef inline int put(const Pool* pool, Heap* heap, uintptr_t address) noexcept nogil:
    # Of a heap that is asleep not even the map may be read: the exclusive section does not lock it.
    cdef Block* block
    cdef Change change
    if not heap.fast:
        return NOT_READY
    block = block_in(heap, address)
    if block == NULL or block.state != LIVE or block.uses != NULL:
        return NOT_READY
    if block.size >= heap.settings.max_split:  # one figure more
        return NOT_READY
    if heap.cached != NULL:
        flush_cached(heap)
    if block.segment.shape == STITCHED and joined_size(block) >= block.segment.least_slot:  # pages may go home
        return NOT_READY
    change = of_freeing(block)
    if add_given(heap, block.kind, block.size, block.requested, block.segment.kind, change):
        if not heap.sole:
            take_back_given(heap, block.kind, block.size, block.requested, block.segment.kind, change)
            return NOT_READY
        raise_limits(heap)
    if block.segment.shape == PLAIN:
        block.segment.idle_since = pool.allocations
    elif block.segment.shape == STITCHED:
        block.segment.used = heap.epoch
    free_to_victim(heap, block)
    return 0
