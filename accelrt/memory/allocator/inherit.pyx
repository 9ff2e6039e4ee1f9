"""Plain segments of returned streams: they are left to the parent, the stream that was current when a returned stream
was handed out from the stream pool.

No segment moves before the parent misses.  Until then a stream that is handed out again under the same handle finds the
memory that its predecessor freed, so a loop of short-lived streams does not grow.  Everything here runs in the
exclusive section, under the growth lock.
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
    GENERATIONS = 64  # of returned streams to follow; handles are used again, so their parents may form a cycle


cdef bint descends(uintptr_t stream, uintptr_t origin) noexcept nogil:
    # Whether a returned stream descends from origin: handed out while origin was current, or while a returned stream was
    # that descends from it.
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
    # Segments move whole.  Live blocks of a returned stream move too: its parent is the one to free them.  Of a stream
    # that was handed out again, only segments that were wholly free before that move.
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
    # The better of best and the best fit among a heap's segments that may move.
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
    # The best fit among the segments left to the heap's stream; NULL if there is none.
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
    # Moves a block's part of the statistics from one heap to the other; the sums do not change.
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
    # Replaces the block's record by one of the new heap.  A thread that read the old record without a lock then finds it
    # FREE under the old heap's lock.
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
    # Ensures all records before anything moves, so that a failure changes nothing.
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
