"""What a returned stream leaves behind: its free memory is its parent's, the stream that was current when it
was made.

Nothing moves before the parent misses.  Until then a stream that is leased anew under the same handle finds
what the one before it freed, so that a loop of short-lived streams does not grow.
"""
from accelrt.memory.allocator.address_table cimport store_block
from accelrt.memory.allocator.block_ops cimport is_quiescent, is_split, recycle, suits
from accelrt.memory.allocator.exclusive cimport wake
from accelrt.memory.allocator.free_list cimport insert, precedes, remove
from accelrt.memory.allocator.heap_stats cimport carry
from accelrt.memory.allocator.metadata cimport ensure_blocks
from accelrt.memory.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
)
from accelrt.memory.allocator.stream_epochs cimport poll_progress
from accelrt.memory.allocator.stream_registry cimport Lineage, lineage_of, load_parent, load_returned
from accelrt.memory.allocator.types cimport FREE, LIVE, PLAIN, Block, Segment

cdef enum:
    GENERATIONS = 64  # of returned streams; handles are leased again, so that a line may even close


cdef bint descends(uintptr_t stream, uintptr_t origin) noexcept nogil:
    # A returned stream, made while the other one was current, or one that was returned since and descends from it.
    cdef const Lineage* lineage = lineage_of(stream)
    cdef int _step
    for _step in range(GENERATIONS):
        if lineage == NULL or not load_returned(&lineage.returned):
            return False
        if load_parent(&lineage.parent) == origin:
            return True
        lineage = lineage_of(load_parent(&lineage.parent))
    return False


# --- finding -------------------------------------------------------------------------------------------------

cdef bint may_move(const Segment* segment, bint returned) noexcept nogil:
    # A whole segment at a time, the live blocks of a returned stream too: its parent frees them next.  A stream
    # that was leased again keeps what it has used since.
    cdef const Block* block = segment.first
    if segment.shape != PLAIN:
        return False
    if not returned:
        return block.state == FREE and block.after == NULL and <int>(segment.heap.left - block.epoch) >= 0
    while block != NULL:
        if block.state != LIVE and (block.state != FREE or not is_quiescent(block)):
            return False
        block = block.after
    return True


cdef Block* best_in(Pool* pool, const Heap* heap, bint returned, size_t size, Block* best) noexcept nogil:
    cdef Segment* segment = pool.first
    cdef Block* block
    while segment != NULL:
        if segment.heap == heap and may_move(segment, returned):
            block = segment.first
            while block != NULL:
                if block.state == FREE and block.size >= size and suits(block, size, &pool.settings):
                    if best == NULL or precedes(block, best):
                        best = block
                block = block.after
        segment = segment.after
    return best


cdef Block* best_left(Pool* pool, const Heap* heap, size_t size) noexcept nogil:
    cdef Heap* other = pool.heaps
    cdef Block* best = NULL
    while other != NULL:
        if other != heap and other.owner == NULL and other.kind == heap.kind and other.trusted and other.summary:
            if descends(other.stream, heap.stream):
                poll_progress(pool, other)
                best = best_in(pool, other, True, size, best)
            elif other.claimed and (other.claimant == heap.stream or descends(other.claimant, heap.stream)):
                best = best_in(pool, other, False, size, best)
        other = other.next
    return best


# --- moving --------------------------------------------------------------------------------------------------

cdef void carry_figures(Heap* origin, Heap* to, const Block* block) noexcept nogil:
    if block.state == FREE:
        if is_split(block):
            carry(origin, to, block.segment.kind, INACTIVE_SPLIT, 1)
            carry(origin, to, block.segment.kind, INACTIVE_SPLIT_BYTES, block.size)
        return
    carry(origin, to, block.kind, ALLOCATION, 1)
    carry(origin, to, block.kind, ALLOCATED_BYTES, block.size)
    carry(origin, to, block.kind, ACTIVE, 1)
    carry(origin, to, block.kind, ACTIVE_BYTES, block.size)
    carry(origin, to, block.kind, REQUESTED_BYTES, block.requested)


cdef void take_over(Heap* to, Block* block) noexcept nogil:
    # A record of the heap's own in its place: a thread that read the old one without a lock finds that it is free.
    cdef Heap* origin = block.heap
    cdef Block* made = to.spare
    to.spare = made.left
    made.address = block.address
    made.size = block.size
    made.requested = block.requested
    made.order = block.order
    made.segment = block.segment
    made.before = block.before
    made.after = block.after
    made.cell = block.cell
    made.uses = block.uses
    made.state = block.state
    made.kind = block.kind
    made.events = 0
    made.epoch = to.quiescent_epoch
    if made.before != NULL:
        made.before.after = made
    else:
        made.segment.first = made
    if made.after != NULL:
        made.after.before = made
    else:
        made.segment.last = made
    if block.state == FREE:
        remove(origin, block)
        insert(to, made)
    else:
        store_block(made.cell, made)
    block.state = FREE
    block.requested = 0
    block.uses = NULL
    block.cell = NULL
    recycle(origin, block)


cdef bint inherit(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    cdef Block* block = best_left(pool, heap, size) if heap.owner == NULL else NULL
    cdef Block* after
    cdef Segment* segment
    cdef size_t count = 0
    if block == NULL:
        return False
    segment = block.segment
    wake(pool, heap)
    wake(pool, segment.heap)
    block = segment.first
    while block != NULL:
        count += 1
        block = block.after
    if ensure_blocks(heap, count):
        return False
    block = segment.first
    while block != NULL:
        after = block.after
        carry_figures(block.heap, heap, block)
        take_over(heap, block)
        block = after
    segment.heap = heap
    return True
