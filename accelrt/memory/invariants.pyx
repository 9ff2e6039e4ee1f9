"""The identities of memory/DESIGN.md, walked.

Level 1 compares counters, level 2 walks every segment, list, table and queue.  The caller holds the
pool's lock; nothing is changed.
"""
from libc.stdint cimport int64_t
from libc.string cimport memset

from accelrt.addresses cimport AddressMap, map_find
from accelrt.memory.block cimport FREE, LEAVING, LIVE, PENDING, Block, Entry, Heap, Private, Queue, Segment
from accelrt.memory.freelist cimport precedes
from accelrt.memory.sizes cimport UNIT
from accelrt.memory.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, FIGURES, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES,
    REQUESTED_BYTES, RESERVED_BYTES, SEGMENT,
)

cdef struct Count:
    int64_t[FIGURES][2] figure
    size_t free_blocks
    size_t table_blocks
    unsigned long long events


cdef void count_block(Count* count, const Block* block, int kind) noexcept nogil:
    if block.state == LIVE or block.state == PENDING:
        count.table_blocks += 1
        count.events += block.events
        count.figure[ACTIVE][kind] += 1
        count.figure[ACTIVE_BYTES][kind] += block.size
        count.figure[REQUESTED_BYTES][kind] += block.requested
    if block.state == LIVE:
        count.figure[ALLOCATION][kind] += 1
        count.figure[ALLOCATED_BYTES][kind] += block.size
    if block.state == FREE:
        count.free_blocks += 1
        if block.before != NULL or block.after != NULL:
            count.figure[INACTIVE_SPLIT][kind] += 1
            count.figure[INACTIVE_SPLIT_BYTES][kind] += block.size


cdef const char* walk_block(Pool* pool, const Segment* segment, const Block* block, size_t offset) noexcept nogil:
    if block.segment != segment:
        return "a block names the segment that it is in"
    if block.address != segment.address + offset or block.size == 0 or block.size % UNIT:
        return "the blocks of a segment lie end to end in whole units"
    if block.order != (segment.serial << 32) + offset // UNIT:
        return "a block's order is its segment's serial and its offset"
    if block.after != NULL and block.after.before != block:
        return "neighbours name each other"
    if block.state == FREE and block.after != NULL and block.after.state == FREE:
        return "two neighbours are never both free"
    if (block.state == FREE or block.state == LEAVING) and (block.requested or block.uses != NULL or block.events):
        return "a free block is used by nobody"
    if (block.state == LIVE or block.state == PENDING) and map_find(&pool.blocks, block.address) != block:
        return "a live or pending block is in the address table"
    if block.state == LIVE and (block.events or not 0 < block.requested <= block.size):
        return "a live block holds what was asked for and waits for nothing"
    return NULL


cdef const char* walk_segments(Pool* pool, Count* count) noexcept nogil:
    cdef const Segment* segment = pool.first
    cdef const Block* block
    cdef const char* found
    cdef size_t offset
    while segment != NULL:
        offset = 0
        block = segment.first
        if block.before != NULL:
            return "a segment's first block has nothing before it"
        while block != NULL:
            found = walk_block(pool, segment, block, offset)
            if found != NULL:
                return found
            count_block(count, block, segment.kind)
            offset += block.size
            block = block.after
        if offset != segment.size:
            return "every byte of a segment is in exactly one block"
        if segment.after != NULL and segment.after.serial <= segment.serial:
            return "segments are in order of serial"
        count.figure[SEGMENT][segment.kind] += 1
        count.figure[RESERVED_BYTES][segment.kind] += segment.size
        segment = segment.after
    return NULL


cdef const char* walk_tree(const Heap* heap, int kind, const Block* node, size_t* listed, int depth) noexcept nogil:
    cdef const char* found
    if node == NULL:
        return NULL
    if node.state != FREE or node.segment.heap != heap or node.segment.kind != kind:
        return "a free list holds free blocks of its own heap and kind"
    if depth > 512 or (node.left != NULL and (precedes(node, node.left) or node.left.weight > node.weight)):
        return "a free list is ordered by size and order"
    if node.right != NULL and (precedes(node.right, node) or node.right.weight > node.weight):
        return "a free list is ordered by size and order"
    listed[0] += 1
    found = walk_tree(heap, kind, node.left, listed, depth + 1)
    if found == NULL:
        found = walk_tree(heap, kind, node.right, listed, depth + 1)
    return found


cdef const char* walk_heaps(const AddressMap* heaps, const Private* owner, size_t* listed) noexcept nogil:
    cdef const Heap* heap
    cdef const char* found
    cdef size_t index
    cdef int kind
    for index in range(heaps.capacity):
        heap = <const Heap*>heaps.slots[index].value
        if heap == NULL:
            continue
        if heap.owner != owner or heap.stream != heaps.slots[index].key:
            return "a heap is where its stream and its owner say"
        for kind in range(2):
            found = walk_tree(heap, kind, heap.free[kind], listed, 0)
            if found != NULL:
                return found
    return NULL


cdef const char* walk_queues(const Pool* pool, const Count* count) noexcept nogil:
    cdef const Queue* queue = pool.queues
    cdef const Entry* entry
    cdef const Block* block = pool.deferred
    cdef unsigned long long entries = 0
    while queue != NULL:
        entry = queue.head
        while entry != NULL:
            if entry.block == NULL or entry.block.state != PENDING or entry.block.events == 0:
                return "a queued event names a pending block"
            entries += 1
            entry = entry.next
        queue = queue.next
    while block != NULL:
        if block.state != PENDING:
            return "a deferred block is pending"
        block = block.left
    if entries != count.events or entries != pool.pending:
        return "a pending block's events are the queue entries that name it"
    return NULL


cdef const char* compare_counters(const Pool* pool, const Count* count) noexcept nogil:
    cdef int figure, kind
    for figure in range(FIGURES):
        for kind in range(2):
            if pool.stats.figure[figure].kind[kind].current != count.figure[figure][kind]:
                return "every counter equals what the walk counts"
    if pool.blocks.count != count.table_blocks:
        return "the address table holds the live and pending blocks and nothing else"
    return NULL


cdef const char* walk(Pool* pool) noexcept nogil:
    cdef Count count
    cdef Private* owner = pool.privates
    cdef size_t listed = 0
    cdef const char* found
    memset(&count, 0, sizeof(Count))
    found = walk_segments(pool, &count)
    if found == NULL:
        found = walk_heaps(&pool.heaps, NULL, &listed)
    while owner != NULL and found == NULL:
        found = walk_heaps(&owner.heaps, owner, &listed)
        owner = owner.next
    if found == NULL and listed != count.free_blocks:
        found = "a free block is in exactly one free list"
    if found == NULL:
        found = walk_queues(pool, &count)
    return compare_counters(pool, &count) if found == NULL else found


cdef const char* compare_cheaply(const Pool* pool) noexcept nogil:
    cdef int kind
    cdef int64_t reserved, active, live, split
    for kind in range(2):
        reserved = pool.stats.figure[RESERVED_BYTES].kind[kind].current
        active = pool.stats.figure[ACTIVE_BYTES].kind[kind].current
        live = pool.stats.figure[ALLOCATED_BYTES].kind[kind].current
        split = pool.stats.figure[INACTIVE_SPLIT_BYTES].kind[kind].current
        if not 0 <= live <= active or not 0 <= split or active + split > reserved:
            return "reserved = live + pending + free"
    return NULL


cdef const char* violated(Pool* pool, int level) noexcept nogil:
    cdef const char* found = compare_cheaply(pool)
    if found == NULL and level >= 2:
        found = walk(pool)
    return found
