"""The identities of memory/allocator/DESIGN.md, walked.

Level 1 compares counters, level 2 walks every segment, list, slot and queue.  The caller holds all locks; nothing
is changed.  Between two operations a heap may keep its last freed block out of its lists (Heap.victim), and a
block that is freed and allocated by turns may be CACHED: free to its owner, but live in lists, tables and counters.
Both are checked as they are, for an audit that filed them first would hide what the next hit finds.
"""
from libc.stdint cimport SIZE_MAX, int64_t
from libc.string cimport memcpy, memset

from accelrt.memory.allocator.address_table cimport block_in, heap_at
from accelrt.memory.allocator.backing.free_pages cimport NOWHERE, RANKED, has_pages, serves_others
from accelrt.memory.allocator.backing.pages cimport slot_index
from accelrt.memory.allocator.block_ops cimport Change, is_quiescent, is_split, joined_size, of_freeing
from accelrt.memory.allocator.event_queue cimport Entry, Queue, next_filled
from accelrt.memory.allocator.exclusive cimport counted, total_of
from accelrt.memory.allocator.free_list cimport class_of, precedes
from accelrt.memory.allocator.heap_stats cimport current, cumulative
from accelrt.memory.allocator.sizes cimport UNIT
from accelrt.memory.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, BOTH, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
    RESERVED_BYTES, SEGMENT, PER_HEAP, SPLITS, SPLIT_BYTES, HeapStats,
)
from accelrt.memory.allocator.types cimport (
    CACHED, CLASSES, FREE, HOLE, LIVE, PENDING, PLAIN, STITCHED, WORDS, Block, Heap, Page, Segment, Slot,
)

cdef struct Count:
    int64_t[9][2] counters
    size_t free_blocks
    unsigned long long events


cdef inline bint is_counted_live(const Block* block) noexcept nogil:
    return block.state == LIVE or block.state == CACHED


cdef void count_block(Count* count, const Block* block, int split_kind) noexcept nogil:
    cdef int kind = block.kind
    if is_counted_live(block) or block.state == PENDING:
        count.events += block.events
        count.counters[ACTIVE][kind] += 1
        count.counters[ACTIVE_BYTES][kind] += block.size
        count.counters[REQUESTED_BYTES][kind] += block.requested
    if is_counted_live(block):
        count.counters[ALLOCATION][kind] += 1
        count.counters[ALLOCATED_BYTES][kind] += block.size
    if block.state == FREE:
        count.free_blocks += 1
        if is_split(block):
            count.counters[INACTIVE_SPLIT][split_kind] += 1
            count.counters[INACTIVE_SPLIT_BYTES][split_kind] += block.size


cdef const char* walk_block(const Segment* segment, const Block* block, size_t offset) noexcept nogil:
    cdef const Block* listed
    if block.segment != segment or block.heap != segment.heap:
        return "a block names the segment and the heap that it is in"
    if block.address != segment.address + offset or block.size == 0 or block.size % UNIT:
        return "the blocks of a segment lie end to end in whole units"
    if block.order != (segment.serial << 32) + offset // UNIT:
        return "a block's order is its segment's serial and its offset"
    if block.after != NULL and block.after.before != block:
        return "neighbours name each other"
    if block.state == FREE and block.after != NULL and block.after.state == FREE:
        return "two neighbours are never both free"
    if block.state == FREE and (block.requested or block.uses != NULL or block.events):
        return "a free block is used by nobody"
    listed = block_in(block.heap, block.address)
    if (is_counted_live(block) or block.state == PENDING) and (listed != block or heap_at(block.address) != block.heap):
        return "a live or pending block is in the table of addresses"
    if (block.state == FREE or block.state == HOLE) and listed != NULL:
        return "a free block is not in the table of addresses"
    if block.state == CACHED and (block.heap.cached != block or block.uses != NULL):
        return "only the block that its heap allocates and frees by turns is marked so"
    if is_counted_live(block) and (block.events or not 0 < block.requested <= block.size):
        return "a live block holds what was asked for and waits for nothing"
    return NULL


cdef const char* walk_slots(const Segment* segment, int64_t* resident_bytes) noexcept nogil:
    # A slot is a hole, block for slot, exactly when its piece is at home elsewhere.
    cdef size_t index, offset = 0, evicted = 0
    cdef const Slot* slot
    for index in range(segment.slot_count):
        slot = segment.slots[index]
        if slot.address != segment.address + offset or slot.segment != segment:
            return "the slots of a segment lie end to end"
        offset += slot.size
        if slot.page != NULL and slot.page.resident == slot:
            resident_bytes[0] += slot.size
            if slot.hole != NULL or not slot.mapped:
                return "a piece is at home where it is mapped and no hole is"
        else:
            evicted += 1
            if slot.hole == NULL or slot.hole.state != HOLE or slot.hole.address != slot.address:
                return "a slot whose piece is at home elsewhere is a hole"
            if slot.hole.size != slot.size:
                return "a hole is as long as its slot"
    if segment.shape != PLAIN and offset != segment.size:
        return "the slots of a segment lie end to end"
    if segment.shape == STITCHED and evicted != segment.evicted:
        return "a window knows how many of its pages are away"
    return NULL


cdef const char* walk_segment(const Segment* segment, Count* count, int64_t* resident_bytes) noexcept nogil:
    cdef const Block* block = segment.first
    cdef const char* found
    cdef size_t offset = 0
    while block != NULL:
        found = walk_block(segment, block, offset)
        if found != NULL:
            return found
        count_block(count, block, segment.kind)
        offset += block.size
        if block.after == NULL and block != segment.last:
            return "a segment knows its last block"
        block = block.after
    if offset != segment.size or segment.size > segment.held:
        return "every byte of a segment is in exactly one block"
    return walk_slots(segment, resident_bytes)


cdef bint keeps_slots(const Page* page) noexcept nogil:
    cdef const Slot* before = NULL
    cdef const Slot* slot = page.slots
    while slot != NULL and slot.page == page and slot.before == before:
        before = slot
        slot = slot.after
    return slot == NULL


cdef const char* walk_segments(const Pool* pool, Count* count) noexcept nogil:
    cdef const Segment* segment = pool.first
    cdef const Heap* heap = pool.heaps
    cdef const Page* page = pool.first_page
    cdef const char* found
    cdef int64_t resident_bytes = 0, pages = 0
    while segment != NULL:
        found = walk_segment(segment, count, &resident_bytes)
        if found != NULL:
            return found
        if segment.after != NULL and segment.after.serial <= segment.serial:
            return "segments are in order of serial"
        count.counters[SEGMENT][segment.kind] += 1
        if segment.shape == PLAIN:
            count.counters[RESERVED_BYTES][segment.kind] += segment.size
        segment = segment.after
    while heap != NULL:
        segment = heap.first_stitched
        while segment != NULL:
            found = walk_segment(segment, count, &resident_bytes)
            if found != NULL:
                return found
            segment = segment.after
        heap = heap.next
    while page != NULL:
        count.counters[RESERVED_BYTES][1] += page.size
        if page.resident != NULL:
            pages += page.size
        if not keeps_slots(page):
            return "the slots that a piece is mapped in name it, and each other"
        page = page.after
    if resident_bytes != pages:
        return "a piece is at home in exactly one slot"
    return NULL


cdef inline bint serves_instead(const Heap* heap, const Block* free) noexcept nogil:
    # Whether a free block would be taken rather than the one that is freed and allocated by turns, once that is free
    # and merged with the block after it.
    cdef const Block* cached = heap.cached
    cdef size_t merged
    if cached == NULL or free == cached.after or free.size < cached.size:
        return False
    merged = joined_size(cached)
    return free.size < merged or (free.size == merged and free.order < cached.order)


cdef const char* check_victim(const Heap* heap) noexcept nogil:
    cdef const Block* block = heap.victim
    if heap.freed_last != NULL and heap.freed_last != block:
        return "what a heap's last hit gave back is its last freed block"
    if block == NULL:
        return NULL
    if block.state != FREE or block.heap != heap:
        return "the last freed block of a heap is free and its own"
    if (block.segment.first if block.before == NULL else block.before.after) != block:
        return "the last freed block of a heap is in its segment"
    if heap.freed_last != NULL and not 0 < heap.freed_last_size <= block.size:
        return "what a heap's last hit gave back is its last freed block"
    if serves_instead(heap, block):
        return "a block that is freed and allocated by turns is the best fit for its size"
    return NULL


cdef inline bint lacks_split_headroom(const HeapStats* stats, Change change) noexcept nogil:
    return stats.headroom[SPLITS] < change.blocks or stats.headroom[SPLIT_BYTES] < change.bytes


cdef const char* check_cached(const Heap* heap) noexcept nogil:
    # Neither of its two states passes a ceiling, so that its rounds need not be counted one by one.
    cdef const Block* block = heap.cached
    cdef Change change
    if block == NULL:
        return NULL
    if block.heap != heap or not is_counted_live(block) or heap.cached_rounds < 0:
        return "a block that is freed and allocated by turns is live or marked, and its heap's own"
    if block.before != NULL and block.before.state == FREE:
        return "a block that is freed and allocated by turns keeps its address"
    change = of_freeing(block)
    if lacks_split_headroom(&heap.stats[block.segment.kind], change) or lacks_split_headroom(&heap.stats[BOTH], change):
        return "a block that is freed and allocated by turns passes no ceiling"
    return NULL


cdef const char* walk_tree(const Heap* heap, int index, const Block* node, size_t* listed, int depth) noexcept nogil:
    cdef const char* found
    if node == NULL:
        return NULL
    if node.state != FREE or node.heap != heap or node.index != index or class_of(node.size) != index:
        return "a free list holds free blocks of its own heap and class"
    if serves_instead(heap, node):
        return "a block that is freed and allocated by turns is the best fit for its size"
    if depth > 512 or (node.left != NULL and (precedes(node, node.left) or node.left.weight > node.weight)):
        return "a free list is ordered by size and order"
    if node.right != NULL and (precedes(node.right, node) or node.right.weight > node.weight):
        return "a free list is ordered by size and order"
    listed[0] += 1
    found = walk_tree(heap, index, node.left, listed, depth + 1)
    if found == NULL:
        found = walk_tree(heap, index, node.right, listed, depth + 1)
    return found


cdef const char* walk_heaps(const Pool* pool, size_t* listed) noexcept nogil:
    cdef const Heap* heap = pool.heaps
    cdef const char* found
    cdef int index
    cdef bint filled
    while heap != NULL:
        for index in range(CLASSES):
            filled = heap.filled[index >> 6] >> (index & 63) & 1
            if filled != (heap.trees[index] != NULL):
                return "a bit says which free lists are not empty"
            if filled:
                found = walk_tree(heap, index, heap.trees[index], listed, 0)
                if found != NULL:
                    return found
        for index in range(WORDS):
            if (heap.summary >> index & 1) != (heap.filled[index] != 0):
                return "a bit says which free lists are not empty"
        found = check_victim(heap)
        if found != NULL:
            return found
        listed[0] += heap.victim != NULL
        heap = heap.next
    return NULL


cdef size_t quiescent_pages(const Heap* heap, const Block* node) noexcept nogil:
    # Of a free list, as a search marked them; SIZE_MAX where it did not.
    cdef const Segment* segment
    cdef size_t index, bytes_, low, high
    if node == NULL:
        return 0
    segment = node.segment
    low, high = quiescent_pages(heap, node.left), quiescent_pages(heap, node.right)
    if low == SIZE_MAX or high == SIZE_MAX or not is_quiescent(node):
        return SIZE_MAX if low == SIZE_MAX or high == SIZE_MAX else low + high
    bytes_ = 0
    for index in range(slot_index(segment, node.address), segment.slot_count):
        if segment.slots[index].address + segment.slots[index].size > node.address + node.size:
            break
        if segment.slots[index].page.mark != heap.found or segment.slots[index].page.cover != node:
            return SIZE_MAX
        bytes_ += segment.slots[index].size
    if bytes_ and (node.size > heap.top_size or (node.size == heap.top_size and node.order < heap.top_order)):
        return SIZE_MAX
    return low + high + bytes_


cdef const char* check_ranked(const Heap* heap) noexcept nogil:
    cdef size_t total = 0, pages
    cdef int index
    for index in range(CLASSES):
        pages = quiescent_pages(heap, heap.trees[index])
        if pages == SIZE_MAX:
            return "the free pages of a heap that is ranked are marked"
        total += pages
    if total != heap.pages:
        return "a heap that is ranked knows how many of its pages are free"
    return NULL


cdef const char* walk_filed(const Pool* pool) noexcept nogil:
    cdef const Heap* heap = pool.heaps
    cdef const char* found
    cdef size_t ranked = 0
    while heap != NULL:
        if heap.filed != NOWHERE and (heap.awake or not has_pages(pool, heap)):
            return "only heaps that are asleep and have pages are filed"
        if heap.filed == NOWHERE and not heap.awake and has_pages(pool, heap) and serves_others(heap):
            if pool.settings.virtual_memory:
                return "a heap that is asleep and has pages for others is filed"
        if heap.filed == RANKED:
            found = check_ranked(heap)
            if found != NULL:
                return found
            ranked += heap.pages
        heap = heap.next
    if ranked != pool.ranked_pages:
        return "the free pages of heaps that are ranked add up to the pool's"
    return NULL


cdef const char* walk_queues(const Pool* pool, const Count* count) noexcept nogil:
    cdef const Queue* queue = next_filled(&pool.queues, 0)
    cdef const Entry* entry
    cdef const Block* block = pool.deferred
    cdef const Block* waiting
    cdef unsigned long long entries = 0
    while queue != NULL:
        entry = queue.head
        while entry != NULL:
            waiting = <const Block*>entry.block
            if waiting == NULL or waiting.state != PENDING or waiting.events == 0:
                return "a queued event names a pending block"
            entries += 1
            entry = entry.next
        queue = next_filled(&pool.queues, queue.number + 1)
    while block != NULL:
        if block.state != PENDING:
            return "a deferred block is pending"
        block = block.left
    if entries != count.events or entries != pool.pending:
        return "a pending block's events are the queue entries that name it"
    return NULL


cdef const char* compare_asleep(const Pool* pool) noexcept nogil:
    cdef const Heap* heap = pool.heaps
    cdef int64_t[2][PER_HEAP] left, left_made
    cdef int stat, kind
    memcpy(left, pool.asleep, sizeof(left))
    memcpy(left_made, pool.asleep_cumulative, sizeof(left_made))
    while heap != NULL:
        for kind in range(2):
            for stat in range(PER_HEAP):
                left[kind][stat] -= 0 if heap.awake else current(heap, kind, stat)
                left_made[kind][stat] -= 0 if heap.awake else cumulative(heap, kind, stat)
        heap = heap.next
    for kind in range(2):
        for stat in range(PER_HEAP):
            if left[kind][stat] or left_made[kind][stat]:
                return "the figures of heaps that are asleep add up to the pool's"
    return NULL


cdef const char* compare_counters(const Pool* pool, const Count* count) noexcept nogil:
    cdef int stat, kind
    for kind in range(2):
        for stat in range(PER_HEAP):
            if pool.total[kind][stat] != count.counters[stat][kind]:
                return "every counter equals what the walk counts"
            if pool.stats.counters[stat][kind].peak < counted(pool, stat, kind):
                return "no figure is above its peak"
        for stat in range(PER_HEAP, 9):
            if pool.stats.counters[stat][kind].current != count.counters[stat][kind]:
                return "every counter equals what the walk counts"
    return NULL


cdef const char* walk(const Pool* pool) noexcept nogil:
    cdef Count count
    cdef size_t listed = 0
    cdef const char* found
    memset(&count, 0, sizeof(Count))
    found = walk_segments(pool, &count)
    if found == NULL:
        found = walk_heaps(pool, &listed)
    if found == NULL and listed != count.free_blocks:
        found = "a free block is in exactly one free list, or the last freed block of its heap"
    if found == NULL:
        found = walk_queues(pool, &count)
    if found == NULL:
        found = compare_asleep(pool)
    if found == NULL:
        found = walk_filed(pool)
    return compare_counters(pool, &count) if found == NULL else found


cdef const char* compare_cheaply(const Pool* pool) noexcept nogil:
    cdef int64_t reserved = pool.stats.counters[RESERVED_BYTES][0].current + pool.stats.counters[RESERVED_BYTES][1].current
    cdef int64_t active = total_of(pool, ACTIVE_BYTES), live = total_of(pool, ALLOCATED_BYTES)
    cdef int64_t split = total_of(pool, INACTIVE_SPLIT_BYTES)
    if not 0 <= live <= active or not 0 <= split or active + split > reserved:
        return "reserved = live + pending + free"
    return NULL


cdef inline bint is_mid_operation(const Pool* pool, int stat) noexcept nogil:
    # Another thread is between two steps of an operation, which counts what it split at its end.
    cdef bint is_split_stat = stat == INACTIVE_SPLIT or stat == INACTIVE_SPLIT_BYTES
    return is_split_stat and (counted(pool, stat, 0) < pool.total[0][stat]
                                or counted(pool, stat, 1) < pool.total[1][stat])


cdef const char* check_limits(const Pool* pool, int stat, int kind) noexcept nogil:
    # Up to them heaps rise on their own, so their sum may not be above the peak.
    cdef const Heap* heap = pool.heaps
    cdef int64_t sum = 0
    cdef int64_t peak = pool.stats.peak_all[stat] if kind == BOTH else pool.stats.counters[stat][kind].peak
    while heap != NULL:
        if heap.awake and current(heap, kind, stat) > heap.stats[kind].limit[stat]:
            return "no heap is above its ceiling"
        sum += heap.stats[kind].limit[stat] if heap.awake else current(heap, kind, stat)
        heap = heap.next
    if sum > peak:
        return "the ceilings of all heaps add up to no more than the peak"
    return NULL


cdef const char* compare_ceilings(const Pool* pool) noexcept nogil:
    cdef int stat, kind
    cdef const char* found
    for stat in range(PER_HEAP):
        if is_mid_operation(pool, stat):
            continue
        for kind in range(3):
            found = check_limits(pool, stat, kind)
            if found != NULL:
                return found
    return NULL


cdef const char* check_turns(const Pool* pool) noexcept nogil:
    cdef const Heap* heap = pool.heaps
    cdef const char* found
    while heap != NULL:
        found = check_cached(heap)
        if found != NULL:
            return found
        heap = heap.next
    return NULL


cdef const char* audit_between(Pool* pool, int level) noexcept nogil:
    cdef const char* found = compare_ceilings(pool)
    if found == NULL:
        found = check_turns(pool)
    return audit_pool(pool, level) if found == NULL else found


cdef const char* audit_pool(Pool* pool, int level) noexcept nogil:
    cdef const char* found = compare_cheaply(pool)
    if found == NULL and level >= 2:
        found = walk(pool)
    return found
