"""The identities of the page-locked memory; memory/DESIGN.md lists them."""
from libc.stdint cimport uintptr_t

from accelrt.addresses cimport map_find
from accelrt.memory.pinned_block cimport FREE, LEAVING, LIVE, PENDING, PinnedBlock, PinnedSegment
from accelrt.memory.pinned_sizes cimport CLASSES, PAGE, STEP, class_below
from accelrt.memory.queues cimport Entry, Queue

cdef struct Walk:      # what a walk over all segments counts
    size_t bytes
    size_t live        # live and pending blocks
    size_t live_bytes
    size_t free
    size_t doomed
    long events

cdef extern from *:
    int count_bits "__builtin_popcountll" (unsigned long long value) noexcept nogil


cdef const char* check_block(PinnedPool* pool, PinnedBlock* block, Walk* walk) noexcept nogil:
    cdef PinnedSegment* segment = block.segment
    cdef size_t index = (block.address - segment.address) // segment.unit
    if block.size == 0 or block.size % STEP or (block.address - segment.address) % segment.unit:
        return "a pinned block is empty or not aligned"
    if not segment.starts[index >> 6] >> (index & 63) & 1:
        return "a pinned block's start has no bit"
    if block.state == FREE:
        walk.free += 1
        if block.after != NULL and block.after.state == FREE:
            return "two pinned neighbours are both free"
        if segment.uncached:
            return "a block of an uncached pinned segment is in a free list"
    elif block.state == LEAVING:
        walk.doomed += 1
        if not segment.uncached or block.size != segment.size:
            return "a pinned block is leaving that is no uncached segment"
    else:
        walk.live += 1
        walk.live_bytes += block.size
        walk.events += block.events
        if map_find(&pool.live, block.address) != block:
            return "a live pinned block is not in the address map"
        if block.state == LIVE and block.events:
            return "a live pinned block waits for events"
    return NULL


cdef const char* check_segment(PinnedPool* pool, PinnedSegment* segment, Walk* walk) noexcept nogil:
    cdef PinnedBlock* block = segment.first
    cdef PinnedBlock* before = NULL
    cdef size_t offset = 0, blocks = 0, bits = 0, word
    cdef const char* found
    while block != NULL:
        if block.segment != segment or block.before != before or block.address != segment.address + offset:
            return "the blocks of a pinned segment do not follow each other"
        found = check_block(pool, block, walk)
        if found != NULL:
            return found
        offset += block.size
        blocks += 1
        before, block = block, block.after
    for word in range((segment.size // segment.unit + 63) // 64):
        bits += count_bits(segment.starts[word])
    if offset != segment.size or segment.size % PAGE:
        return "the blocks of a pinned segment do not add up to it"
    if bits != blocks:
        return "a pinned segment has bits where no block starts"
    walk.bytes += segment.size
    return NULL


cdef const char* check_lists(PinnedPool* pool, size_t expected) noexcept nogil:
    cdef PinnedBlock* block
    cdef PinnedBlock* left
    cdef size_t listed = 0
    cdef int kind, place
    for kind in range(2):
        for place in range(CLASSES):
            block, left = pool.free[kind][place], NULL
            if (block != NULL) != (pool.filled[kind][place >> 6] >> (place & 63) & 1):
                return "the bit of a pinned free list is wrong"
            while block != NULL:
                if block.state != FREE or block.left != left or block.segment.kind != kind:
                    return "a pinned free list holds what is not its"
                if class_below(block.size) != place:
                    return "a free pinned block is in the list of another size"
                listed += 1
                left, block = block, block.right
    if listed != expected:
        return "a free pinned block is in no list, or in two"
    return NULL


cdef const char* check_queues(PinnedPool* pool, long events) noexcept nogil:
    cdef Queue* queue = pool.queues
    cdef Entry* entry
    cdef PinnedBlock* block = pool.deferred
    cdef long entries = 0
    while queue != NULL:
        entry = queue.head
        while entry != NULL:
            entries += 1
            if (<PinnedBlock*>entry.block).state != PENDING:
                return "a pinned block is waited for that is not pending"
            entry = entry.next
        queue = queue.next
    while block != NULL:
        if block.state != PENDING or block.uses == NULL:
            return "a deferred pinned block has nothing to wait for"
        block = block.right
    if entries != pool.pending or (pool.awaited == 0 and entries != events):
        return "the pinned blocks' events are not those of the queues"
    return NULL


cdef const char* check_counts(PinnedPool* pool, Walk* walk) noexcept nogil:
    cdef PinnedSegment* segment = pool.doomed
    while segment != NULL and walk.doomed:
        walk.doomed -= 1
        segment = segment.next
    if segment != NULL or walk.doomed:
        return "the doomed pinned segments are not those in the list"
    if walk.live != pool.live.count:
        return "the pinned address map holds what is in no segment"
    if pool.stats.segments.current != <long long>pool.segment_count \
            or pool.stats.segment_bytes.current != <long long>walk.bytes:
        return "the figures of pinned segments are wrong"
    if pool.stats.blocks.current != <long long>walk.live or pool.stats.block_bytes.current != <long long>walk.live_bytes:
        return "the figures of pinned blocks are wrong"
    return NULL


cdef const char* violated(PinnedPool* pool) noexcept nogil:
    cdef Walk walk = Walk(0, 0, 0, 0, 0, 0)
    cdef const char* found
    cdef uintptr_t end = 0
    cdef size_t index
    for index in range(pool.segment_count):
        if pool.segments[index].address < end:
            return "pinned segments overlap or are out of order"
        end = pool.segments[index].address + pool.segments[index].size
        found = check_segment(pool, pool.segments[index], &walk)
        if found != NULL:
            return found
    found = check_lists(pool, walk.free)
    if found == NULL:
        found = check_queues(pool, walk.events)
    return check_counts(pool, &walk) if found == NULL else found
