"""Checks the identities of allocator/DESIGN.md.

Level 1 compares counters, level 2 walks every segment, list, slot and queue.  The caller holds all locks; nothing is
changed.  Between two operations the block in a heap's last-freed cache (Heap.cached) may be CACHED: freed by its owner,
but live in lists, map and counters.  It is checked as it is: an audit that flushed the cache first would hide the state
that the next hit finds.
"""
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from accelrt.allocator.heaps cimport NOWHERE, RANKED, counted, has_pages, heap_at, serves_others, total_of
from accelrt.allocator.inline.block_map cimport block_in
from accelrt.allocator.backing.pages cimport slot_index
from accelrt.allocator.history_types cimport TagFigures
from accelrt.allocator.inline.block_ops cimport Change, is_quiescent, is_split, joined_size, of_freeing
from accelrt.allocator.inline.free_list cimport class_of, precedes
from accelrt.allocator.inline.heap_stats cimport current, cumulative
from accelrt.allocator.pinned.block cimport (
    CLASSES as PINNED_CLASSES, FREE as PINNED_FREE, LEAVING, LIVE as PINNED_LIVE, PAGE, PENDING as PINNED_PENDING, STEP,
    class_below, PinnedBlock, PinnedPool, PinnedSegment, PinnedStats,
)
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.core.handle_map cimport map_find
from accelrt.allocator.sizes cimport UNIT
from accelrt.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, BOTH, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
    RESERVED_BYTES, SEGMENT, PER_HEAP, SPLITS, SPLIT_BYTES, HeapStats,
)
from accelrt.allocator.types cimport (
    CACHED, CLASSES, FREE, HOLE, LIVE, PENDING, PLAIN, STITCHED, WORDS, Block, Heap, Page, Segment, Slot,
)
from accelrt.status cimport BROKEN
from accelrt.driver.guard cimport next_filled, PooledEvent, Queue

cdef struct Count:
    int64_t[9][2] counters
    size_t free_blocks
    unsigned long long events
    int64_t tagged        # bytes of live blocks that have a tag
    int64_t tagged_requested
    int64_t tagged_blocks


cdef inline bint is_counted_live(const Block* block) noexcept nogil:
    return block.state == LIVE or block.state == CACHED


cdef void count_block(Count* count, const Block* block, int split_kind) noexcept nogil:
    # Adds a block to the counts that the pool's counters are compared with.
    cdef int kind = block.kind
    if is_counted_live(block) or block.state == PENDING:
        count.events += block.events
        count.counters[ACTIVE][kind] += 1
        count.counters[ACTIVE_BYTES][kind] += block.size
        count.counters[REQUESTED_BYTES][kind] += block.requested
    if is_counted_live(block):
        count.counters[ALLOCATION][kind] += 1
        count.counters[ALLOCATED_BYTES][kind] += block.size
    if block.state == LIVE and block.tag:
        count.tagged += block.size
        count.tagged_requested += block.requested
        count.tagged_blocks += 1
    if block.state == FREE:
        count.free_blocks += 1
        if is_split(block):
            count.counters[INACTIVE_SPLIT][split_kind] += 1
            count.counters[INACTIVE_SPLIT_BYTES][split_kind] += block.size


cdef const char* walk_block(const Segment* segment, const Block* block, size_t offset) noexcept nogil:
    # Checks one block against its segment, its neighbours, its heap's map and the address table.
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
        return "a free block has no requested bytes, no uses and no events"
    listed = block_in(block.heap, block.address)
    if (is_counted_live(block) or block.state == PENDING) and (listed != block or heap_at(block.address) != block.heap):
        return "a live or pending block is in its heap's map, and its heap in the address table"
    if (block.state == FREE or block.state == HOLE) and listed != NULL:
        return "a free block or a hole is not in its heap's map"
    if block.state == CACHED and (block.heap.cached != block or block.uses != NULL):
        return "a block in state CACHED is its heap's cached block and has no uses"
    if is_counted_live(block) and (block.events or not 0 < block.requested <= block.size):
        return "a live block holds its requested bytes and waits for no event"
    return NULL


cdef const char* walk_slots(const Segment* segment, int64_t* resident_bytes) noexcept nogil:
    # A slot is a hole, one block for one slot, exactly when no page is resident in it.  Adds the resident bytes.
    cdef size_t index, offset = 0, evicted = 0
    cdef const Slot* slot
    for index in range(segment.slot_count):
        slot = segment.slots[index]
        if slot.address != segment.address + offset or slot.segment != segment:
            return "the slots of a segment lie end to end"
        offset += slot.size
        if slot.page != NULL and slot.page.resident == slot:
            resident_bytes[0] += slot.size
            if slot.hole != NULL or not (slot.mapped or slot.page.suspended):
                return "a page is resident in a slot where it is mapped, unless it is suspended, and that is no hole"
        else:
            evicted += 1
            if slot.hole == NULL or slot.hole.state != HOLE or slot.hole.address != slot.address:
                return "a slot without a resident page is a hole"
            if slot.hole.size != slot.size:
                return "a hole is as long as its slot"
    if segment.shape != PLAIN and offset != segment.size:
        return "the slots of a segment lie end to end"
    if segment.shape == STITCHED and evicted != segment.evicted:
        return "a stitched segment counts its evicted slots"
    return NULL


cdef const char* walk_segment(const Segment* segment, Count* count, int64_t* resident_bytes) noexcept nogil:
    # Checks the blocks and slots of one segment, and counts them.
    cdef const Block* block = segment.first
    cdef const char* failure
    cdef size_t offset = 0
    while block != NULL:
        failure = walk_block(segment, block, offset)
        if failure != NULL:
            return failure
        count_block(count, block, segment.kind)
        offset += block.size
        if block.after == NULL and block != segment.last:
            return "a segment's last block ends its list of blocks"
        block = block.after
    if offset != segment.size or segment.size > segment.held:
        return "every byte of a segment is in exactly one block"
    return walk_slots(segment, resident_bytes)


cdef bint keeps_slots(const Page* page) noexcept nogil:
    # Whether the list of a page's slots is linked both ways and every slot names the page.
    cdef const Slot* before = NULL
    cdef const Slot* slot = page.slots
    while slot != NULL and slot.page == page and slot.before == before:
        before = slot
        slot = slot.after
    return slot == NULL


cdef const char* walk_segments(const Pool* pool, Count* count) noexcept nogil:
    # Checks all segments and pages of a pool, and counts what they hold.
    cdef const Segment* segment = pool.first
    cdef const Heap* heap = pool.heaps
    cdef const Page* page = pool.first_page
    cdef const char* failure
    cdef int64_t resident_bytes = 0, pages = 0, sleeping = 0, managed = 0
    cdef uint64_t guarded = 0, guards = 0, guarding = 0
    while segment != NULL:
        failure = walk_segment(segment, count, &resident_bytes)
        if failure != NULL:
            return failure
        if segment.after != NULL and segment.after.serial <= segment.serial:
            return "segments are in order of serial"
        count.counters[SEGMENT][segment.kind] += 1
        if segment.shape == PLAIN:
            count.counters[RESERVED_BYTES][segment.kind] += segment.size
        if segment.source != NULL and segment.source.managed:
            managed += segment.size
        segment = segment.after
    while heap != NULL:
        segment = heap.first_stitched
        while segment != NULL:
            failure = walk_segment(segment, count, &resident_bytes)
            if failure != NULL:
                return failure
            segment = segment.after
        guards += heap.guards
        guarding += heap.guarding
        heap = heap.next
    while page != NULL:
        if page.suspended:
            sleeping += page.size
            if page.primary.segment.heap.owner == NULL or page.primary.segment.heap.owner.suspension == NULL:
                return "only pages of a suspended private pool are suspended"
        else:
            count.counters[RESERVED_BYTES][1] += page.size
        if page.resident != NULL:
            pages += page.size
        if page.guard != NULL:
            guarded += 1
            if page.resident != page.primary or page.guard == page.primary.segment.heap:
                return "a guarded page is resident in another heap's expandable segment"
        if not keeps_slots(page):
            return "the slots of a page name the page and each other"
        page = page.after
    if pool.first_page == NULL and pool.peers and not pool.stays_open:
        return "a pool without pages is open to no other device"
    if guarded != pool.guarding or guards != guarded or guarding != guarded:
        return "the heaps and the pool count the guarded pages"
    if resident_bytes != pages:
        return "a page is resident in exactly one slot"
    if sleeping != pool.stats.sleeping_bytes:
        return "the suspended pages add up to the sleeping bytes"
    if managed != pool.stats.managed_bytes:
        return "the segments of managed memory add up to the managed bytes"
    return NULL


cdef inline bint serves_instead(const Heap* heap, const Block* free) noexcept nogil:
    # Whether a free block would be the better fit than the cached block, once that is freed and merged with the block
    # after it.
    cdef const Block* cached = heap.cached
    cdef size_t merged
    if cached == NULL or free == cached.after or free.size < cached.size:
        return False
    merged = joined_size(cached)
    return free.size < merged or (free.size == merged and free.order < cached.order)


cdef const char* check_freed_last(const Heap* heap) noexcept nogil:
    cdef const Block* block = heap.freed_last
    if block == NULL:
        return NULL
    if block.state != FREE or block.heap != heap or not 0 < heap.freed_last_size <= block.size:
        return "the block that the last hit freed begins a free block of its heap"
    return NULL


cdef inline bint lacks_split_headroom(const HeapStats* stats, Change change) noexcept nogil:
    return stats.headroom[SPLITS] < change.blocks or stats.headroom[SPLIT_BYTES] < change.bytes


cdef const char* check_cached(const Heap* heap) noexcept nogil:
    # Neither state of the cached block passes a limit, which is why its rounds need not be counted one by one.
    cdef const Block* block = heap.cached
    cdef Change change
    if block == NULL:
        return NULL
    if block.heap != heap or not is_counted_live(block) or heap.cached_rounds < 0:
        return "the cached block is a live or CACHED block of its heap"
    if block.before != NULL and block.before.state == FREE:
        return "the cached block keeps its address when it is freed"
    change = of_freeing(block)
    if lacks_split_headroom(&heap.stats[block.segment.kind], change) or lacks_split_headroom(&heap.stats[BOTH], change):
        return "the cached block passes no limit in either state"
    return NULL


cdef const char* walk_tree(const Heap* heap, int index, const Block* node, size_t* listed, int depth) noexcept nogil:
    # Checks the blocks of one class, which is a tree by size and order with weights; counts them in listed.
    cdef const char* failure
    if node == NULL:
        return NULL
    if node.state != FREE or node.heap != heap or node.index != index or class_of(node.size) != index:
        return "a free list holds free blocks of its own heap and class"
    if serves_instead(heap, node):
        return "the cached block is the best fit for its size once it is freed"
    if depth > 512 or (node.left != NULL and (precedes(node, node.left) or node.left.weight > node.weight)):
        return "a free list is ordered by size and order"
    if node.right != NULL and (precedes(node.right, node) or node.right.weight > node.weight):
        return "a free list is ordered by size and order"
    listed[0] += 1
    failure = walk_tree(heap, index, node.left, listed, depth + 1)
    if failure == NULL:
        failure = walk_tree(heap, index, node.right, listed, depth + 1)
    return failure


cdef inline bint holds_trees(const Heap* heap, int first) noexcept nogil:
    # Whether any class of a word has a tree: one pointer is not NULL, or differs from the next.
    return heap.trees[first] != NULL or memcmp(&heap.trees[first], &heap.trees[first + 1], 63 * sizeof(Block*)) != 0


cdef const char* walk_classes(const Heap* heap, size_t* listed) noexcept nogil:
    # Checks the free lists of a heap, a word of the bit set at a time, for nearly all of the classes are empty.
    cdef const char* failure
    cdef int word, index
    cdef bint filled
    for word in range(WORDS):
        filled = heap.filled[word] != 0
        if filled != (heap.summary >> word & 1) or filled != holds_trees(heap, 64 * word):
            return "a bit says which free lists are not empty"
        if not filled:
            continue
        for index in range(64 * word, 64 * word + 64):
            filled = heap.filled[word] >> (index & 63) & 1
            if filled != (heap.trees[index] != NULL):
                return "a bit says which free lists are not empty"
            failure = walk_tree(heap, index, heap.trees[index], listed, 0)
            if failure != NULL:
                return failure
    return NULL


cdef const char* walk_heaps(const Pool* pool, size_t* listed) noexcept nogil:
    # Checks the free lists of every heap; counts free blocks in listed.
    cdef const Heap* heap = pool.heaps
    cdef const char* failure
    while heap != NULL:
        failure = walk_classes(heap, listed)
        if failure == NULL:
            failure = check_freed_last(heap)
        if failure != NULL:
            return failure
        heap = heap.next
    return NULL


cdef size_t quiescent_pages(const Heap* heap, const Block* node) noexcept nogil:
    # Adds up the quiescent free pages of a free list, as a search marked them; SIZE_MAX if a mark is wrong.
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
    # The free pages of a ranked heap (heaps.pxd) are marked, and it has the right sum of their bytes.
    cdef size_t total = 0, pages
    cdef int index
    for index in range(CLASSES):
        pages = quiescent_pages(heap, heap.trees[index])
        if pages == SIZE_MAX:
            return "the free pages of a ranked heap are marked"
        total += pages
    if total != heap.pages:
        return "a ranked heap counts the bytes of its free pages"
    return NULL


cdef const char* walk_filed(const Pool* pool) noexcept nogil:
    # Checks that sleeping heaps with free pages are filed where a search finds them.
    cdef const Heap* heap = pool.heaps
    cdef const char* failure
    cdef size_t ranked = 0, stuck = 0
    while heap != NULL:
        if heap.filed != NOWHERE and (heap.awake or not has_pages(pool, heap)):
            return "only heaps that are asleep and have pages are filed"
        if heap.filed == NOWHERE and not heap.awake and has_pages(pool, heap) and serves_others(heap):
            if pool.settings.virtual_memory:
                return "a heap that is asleep and has pages for others is filed"
        if heap.filed == RANKED:
            failure = check_ranked(heap)
            if failure != NULL:
                return failure
            ranked += heap.pages
            stuck += heap.stuck
        heap = heap.next
    if ranked != pool.ranked_pages or stuck != pool.ranked_stuck:
        return "the free pages of ranked heaps add up to the pool's"
    return NULL


cdef const char* walk_queues(const Pool* pool, const Count* count) noexcept nogil:
    # Checks the queues of events and the deferred blocks against the pending blocks that were counted.
    cdef const Queue* queue = next_filled(&pool.queues, 0)
    cdef const PooledEvent* event
    cdef const Block* block = pool.deferred
    cdef const Block* waiting
    cdef long entries = 0
    while queue != NULL:
        event = queue.head
        while event != NULL:
            waiting = <const Block*>event.block
            if waiting == NULL or waiting.state != PENDING or waiting.events == 0:
                return "a queued event names a pending block"
            entries += 1
            event = event.next
        queue = next_filled(&pool.queues, queue.number + 1)
    while block != NULL:
        if block.state != PENDING:
            return "a deferred block is pending"
        block = block.left
    if entries != count.events or entries != pool.queues.pending:
        return "a pending block's events are the queue entries that name it"
    return NULL


cdef const char* compare_asleep(const Pool* pool) noexcept nogil:
    # The pool's sums over sleeping heaps equal what those heaps hold.
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
                return "the statistics of heaps that are asleep add up to the pool's"
    return NULL


cdef const char* compare_counters(const Pool* pool, const Count* count) noexcept nogil:
    # The pool's counters equal what the walk counted, and no current value is above its peak.
    cdef int stat, kind
    for kind in range(2):
        for stat in range(PER_HEAP):
            if pool.total[kind][stat] != count.counters[stat][kind]:
                return "every counter equals what the walk counts"
            if pool.stats.counters[stat][kind].peak < counted(pool, stat, kind):
                return "no statistic is above its peak"
        for stat in range(PER_HEAP, 9):
            if pool.stats.counters[stat][kind].current != count.counters[stat][kind]:
                return "every counter equals what the walk counts"
    return NULL


cdef const char* compare_tags(const Pool* pool, const Count* count) noexcept nogil:
    cdef const TagFigures* sums
    if pool.history == NULL:
        return NULL
    sums = pool.history.tags
    if sums.bytes_ != count.tagged or sums.requested != count.tagged_requested or sums.blocks != count.tagged_blocks:
        return "the figures of all tags add up to the live blocks that have one"
    return NULL


cdef const char* walk_privates(const Pool* pool) noexcept nogil:
    cdef const PrivatePool* owner = pool.privates
    cdef size_t ended = 0
    while owner != NULL:
        ended += 0 if owner.uses else owner.reserved
        owner = owner.next
    if ended != pool.ended:
        return "the bytes of private pools without a use are counted"
    return NULL


cdef const char* walk(const Pool* pool) noexcept nogil:
    # Makes the checks of level 2, which need a walk; returns the first failed identity, or NULL.
    cdef Count count
    cdef size_t listed = 0
    cdef const char* failure
    memset(&count, 0, sizeof(Count))
    failure = walk_segments(pool, &count)
    if failure == NULL:
        failure = walk_heaps(pool, &listed)
    if failure == NULL and listed != count.free_blocks:
        failure = "a free block is in exactly one free list"
    if failure == NULL:
        failure = walk_queues(pool, &count)
    if failure == NULL:
        failure = compare_asleep(pool)
    if failure == NULL:
        failure = walk_filed(pool)
    if failure == NULL:
        failure = walk_privates(pool)
    if failure == NULL:
        failure = compare_tags(pool, &count)
    return compare_counters(pool, &count) if failure == NULL else failure


cdef const char* compare_cheaply(const Pool* pool) noexcept nogil:
    # Level 1: compares sums of counters.
    cdef int64_t reserved = pool.stats.counters[RESERVED_BYTES][0].current + pool.stats.counters[RESERVED_BYTES][1].current
    cdef int64_t active = total_of(pool, ACTIVE_BYTES), live = total_of(pool, ALLOCATED_BYTES)
    cdef int64_t split = total_of(pool, INACTIVE_SPLIT_BYTES)
    if not 0 <= live <= active or not 0 <= split or active + split > reserved + pool.stats.sleeping_bytes:
        return "reserved + sleeping = live + pending + free"
    return NULL


cdef inline bint is_mid_operation(const Pool* pool, int stat) noexcept nogil:
    # Whether another thread is between two steps of an operation, which counts its splits only at the end.
    cdef bint is_split_stat = stat == INACTIVE_SPLIT or stat == INACTIVE_SPLIT_BYTES
    return is_split_stat and (counted(pool, stat, 0) < pool.total[0][stat] or counted(pool, stat, 1) < pool.total[1][stat])


cdef const char* check_limits(const Pool* pool, int stat, int kind) noexcept nogil:
    # Up to its limit a heap's statistic may rise without a look at other heaps, so the sum of the limits may not pass
    # the peak.
    cdef const Heap* heap = pool.heaps
    cdef int64_t sum = 0
    cdef int64_t peak = pool.stats.peak_all[stat] if kind == BOTH else pool.stats.counters[stat][kind].peak
    while heap != NULL:
        if heap.awake and current(heap, kind, stat) > heap.stats[kind].limit[stat]:
            return "no heap is above its limit"
        sum += heap.stats[kind].limit[stat] if heap.awake else current(heap, kind, stat)
        heap = heap.next
    if sum > peak:
        return "the limits of all heaps add up to no more than the peak"
    return NULL


cdef const char* compare_limits(const Pool* pool) noexcept nogil:
    # Checks the limits of every per-heap statistic, of both kinds and of their sum.
    cdef int stat, kind
    cdef const char* failure
    for stat in range(PER_HEAP):
        if is_mid_operation(pool, stat):
            continue
        for kind in range(3):
            failure = check_limits(pool, stat, kind)
            if failure != NULL:
                return failure
    return NULL


cdef const char* check_cached_blocks(const Pool* pool) noexcept nogil:
    # Checks the cached block of every heap.
    cdef const Heap* heap = pool.heaps
    cdef const char* failure
    while heap != NULL:
        failure = check_cached(heap)
        if failure != NULL:
            return failure
        heap = heap.next
    return NULL


cdef const char* audit_between(Pool* pool, int level) noexcept nogil:
    # Also checks what holds only outside the exclusive section: limits and cached blocks.
    cdef const char* failure = compare_limits(pool)
    if failure == NULL:
        failure = check_cached_blocks(pool)
    return audit_pool(pool, level) if failure == NULL else failure


cdef const char* audit_pool(Pool* pool, int level) noexcept nogil:
    # In the exclusive section.
    cdef const char* failure = compare_cheaply(pool)
    if failure == NULL and level >= 2:
        failure = walk(pool)
    return failure


cdef int inspected(Pool* pool, int code) noexcept nogil:
    if pool.debug and pool.failed_identity == NULL:
        pool.failed_identity = audit_pool(pool, pool.debug)
    return BROKEN if pool.failed_identity != NULL and code == 0 else code


# --- the identities of the page-locked memory; memory/DESIGN.md lists them --------------------------------

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
    if block.state == PINNED_FREE:
        walk.free += 1
        if block.after != NULL and block.after.state == PINNED_FREE:
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
        if block.state == PINNED_LIVE and block.events:
            return "a live pinned block waits for events"
    return NULL


cdef const char* check_segment(PinnedPool* pool, PinnedSegment* segment, Walk* walk) noexcept nogil:
    cdef PinnedBlock* block = segment.first
    cdef PinnedBlock* before = NULL
    cdef size_t offset = 0, blocks = 0, bits = 0, word
    cdef const char* failure
    while block != NULL:
        if block.segment != segment or block.before != before or block.address != segment.address + offset:
            return "the blocks of a pinned segment do not follow each other"
        failure = check_block(pool, block, walk)
        if failure != NULL:
            return failure
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
        for place in range(PINNED_CLASSES):
            block, left = pool.free[kind][place], NULL
            if (block != NULL) != (pool.filled[kind][place >> 6] >> (place & 63) & 1):
                return "the bit of a pinned free list is wrong"
            while block != NULL:
                if block.state != PINNED_FREE or block.left != left or block.segment.kind != kind:
                    return "a pinned free list holds what is not its"
                if class_below(block.size) != place:
                    return "a free pinned block is in the list of another size"
                listed += 1
                left, block = block, block.right
    if listed != expected:
        return "a free pinned block is in no list, or in two"
    return NULL


cdef const char* check_queues(PinnedPool* pool, long events) noexcept nogil:
    cdef Queue* queue = next_filled(&pool.queues, 0)
    cdef const PooledEvent* event
    cdef PinnedBlock* block = pool.deferred
    cdef long entries = 0
    while queue != NULL:
        event = queue.head
        while event != NULL:
            entries += 1
            if (<PinnedBlock*>event.block).state != PINNED_PENDING:
                return "a pinned block is waited for that is not pending"
            event = event.next
        queue = next_filled(&pool.queues, queue.number + 1)
    while block != NULL:
        if block.state != PINNED_PENDING or block.uses == NULL:
            return "a deferred pinned block has nothing to wait for"
        block = block.right
    if entries != pool.queues.pending or (pool.awaited == 0 and entries != events):
        return "the pinned blocks' events are not those of the queues"
    return NULL


cdef const char* check_counts(PinnedPool* pool, Walk* walk, const PinnedStats* others) noexcept nogil:
    # others: of the pools whose figures are in this one's.
    cdef PinnedSegment* segment = pool.doomed
    while segment != NULL and walk.doomed:
        walk.doomed -= 1
        segment = segment.next
    if segment != NULL or walk.doomed:
        return "the doomed pinned segments are not those in the list"
    if walk.live != pool.live.count:
        return "the pinned address map holds what is in no segment"
    if pool.stats.segments.current - others.segments.current != <long long>pool.segment_count \
            or pool.stats.segment_bytes.current - others.segment_bytes.current != <long long>walk.bytes:
        return "the figures of pinned segments are wrong"
    if pool.stats.blocks.current - others.blocks.current != <long long>walk.live \
            or pool.stats.block_bytes.current - others.block_bytes.current != <long long>walk.live_bytes:
        return "the figures of pinned blocks are wrong"
    if pool.limit != SIZE_MAX and walk.bytes > pool.limit:
        return "a pinned pool has more segments than its limit allows"
    return NULL


cdef const char* find_pinned_failure(PinnedPool* pool, const PinnedStats* others) noexcept nogil:
    # Under order and lock; NULL where all hold.
    cdef Walk walk = Walk(0, 0, 0, 0, 0, 0)
    cdef const char* failure
    cdef uintptr_t end = 0
    cdef size_t index, carved = 0
    for index in range(pool.segment_count):
        carved += pool.segments[index].size * pool.segments[index].carved
        if pool.segments[index].address < end:
            return "pinned segments overlap or are out of order"
        end = pool.segments[index].address + pool.segments[index].size
        failure = check_segment(pool, pool.segments[index], &walk)
        if failure != NULL:
            return failure
    if carved > pool.reserve.used or pool.reserve.used > pool.reserve.size:
        return "more was carved of the pinned reserve than it has"
    failure = check_lists(pool, walk.free)
    if failure == NULL:
        failure = check_queues(pool, walk.events)
    return check_counts(pool, &walk, others) if failure == NULL else failure
