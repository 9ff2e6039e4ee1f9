"""Free memory that no work uses any more, and stitched segments: its pages, mapped a second time in a row."""
from libc.stdint cimport SIZE_MAX, int64_t, uint32_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memset

from accelrt.allocator.backing.guarded cimport guard_page, unguard_page
from accelrt.allocator.backing.pages cimport (
    STUCK_PARTS, add_slot, drop_slot, free_addresses, has_no_replays, make_resident, map_run, new_segment,
    reserve_addresses, slot_index, unmap_slot,
)
from accelrt.allocator.event_ring cimport record_event, stack_of_block
from accelrt.allocator.heaps cimport (
    RANKED, count_splits, drop_replay, ensure_blocks, file_heap, file_heaps, first_ending, first_ranked,
    forget_replays, has_graphs, has_pages, put_free, rank, serves_others, set_free, take_free,
    wake,
)
from accelrt.allocator.history_types cimport SEGMENT_MAPPED, SEGMENT_UNMAPPED, STITCHED_TOGETHER, TAKEN_APART
from accelrt.allocator.inline.block_ops cimport absorb, is_heap_quiescent, is_quiescent, split_off
from accelrt.allocator.inline.free_list cimport class_of, next_class
from accelrt.allocator.inline.heap_stats cimport cumulative
from accelrt.allocator.private.private_types cimport PrivatePool, Replay
from accelrt.allocator.sizes cimport LARGE, SMALL, UNIT
from accelrt.allocator.stats cimport ALLOCATION, RESERVED_BYTES, current_of
from accelrt.allocator.types cimport CLASSES, FREE, HOLE, PLAIN, SIZES_KEPT_BITS, STITCHED, Fit, Page, Slot
from accelrt.core.growing cimport ensure_room
from accelrt.driver.guard cimport (
    enter_wait, go_relaxed, is_captured_event, is_capturing, leave_wait, mark_behind, restore_mode, unmark,
)
from accelrt.status cimport NO_HOST_MEMORY, NOT_READY, OUT_OF_MEMORY


# --- stream epochs ----------------------------------------------------------------------------------------------------
# How far each stream has finished with the memory that it freed.
#
# Each free block carries the epoch in which its heap's stream freed it.  An epoch ends when the stream is seen idle, or
# when a progress event is recorded behind its work: once the event is complete, everything that was freed up to that
# epoch is quiescent, without an event for each block.  Everything here runs in the exclusive section.

cdef void mark(Pool* pool, Heap* heap) noexcept nogil:
    # Records a progress event behind the work of a busy stream.  A failure is harmless: other streams get the heap's
    # pages later.
    if mark_behind(pool.table, pool.device, heap.stream, &heap.progress_event) == 0:
        heap.progress_epoch = heap.epoch
        heap.epoch += 1


cdef bint query_progress(Pool* pool, Heap* heap) noexcept nogil:
    # Queries the heap's progress event; whether it says that the stream is busy.  An event that was captured cannot be
    # queried; it is dropped, so that another can be recorded.
    cdef int code
    if heap.progress_event == NULL:
        return False
    code = pool.table.event_query(pool.device, heap.progress_event.handle)
    if code == NOT_READY:
        return True
    if code == 0 and <int>(heap.progress_epoch - heap.quiescent_epoch) > 0:  # else the device was waited for since
        heap.quiescent_epoch = heap.progress_epoch
    unmark(&heap.progress_event)
    return False


cdef void query_stream(Pool* pool, Heap* heap) noexcept nogil:
    # Queries the stream itself; a busy one gets a progress event.  Only between enter_wait and leave_wait, so that no
    # capture of accelrt's begins between the check for one and the query.
    cdef int code
    if query_progress(pool, heap):
        return
    if is_heap_quiescent(heap) or is_capturing(pool.table, pool.device, heap.stream, &code) or code:
        return
    if pool.table.stream_query(pool.device, heap.stream) == 0:
        # A progress event that is still recorded adds nothing then: its epoch is quiescent already.
        heap.quiescent_epoch = heap.progress_epoch = heap.epoch
        heap.epoch += 1
    elif heap.progress_event == NULL:
        mark(pool, heap)


cdef void query_beside_capture(Pool* pool, Heap* heap) noexcept nogil:
    # Uses events alone: the stream may begin to capture before a query, which would break the capture.  An event behind
    # the work of an idle stream is complete at once, or soon.
    query_progress(pool, heap)
    if heap.progress_event == NULL and not is_heap_quiescent(heap):
        mark(pool, heap)
        query_progress(pool, heap)


cdef struct Polls:  # of several heaps: the capture mode changes once for all of them, where one has to be asked
    bint begun
    bint failed
    bint alone  # no capture of accelrt's is open
    int mode    # the thread's before


cdef inline void begin_polls(Polls* polls) noexcept nogil:
    polls.begun = polls.failed = False


cdef void poll_heap(Pool* pool, Heap* heap, Polls* polls) noexcept nogil:
    # A stream that accelrt does not keep alive (not trusted) is never queried.  In relaxed capture mode, so that a query
    # breaks no capture of another thread.
    if is_heap_quiescent(heap) or not heap.trusted or polls.failed:
        return
    if not polls.begun:
        polls.failed = go_relaxed(pool.table, &polls.mode) != 0
        if polls.failed:
            return
        polls.begun = True
        polls.alone = enter_wait()
    if polls.alone:
        query_stream(pool, heap)
    else:
        query_beside_capture(pool, heap)


cdef inline void end_polls(Pool* pool, const Polls* polls) noexcept nogil:
    if not polls.begun:
        return
    if polls.alone:
        leave_wait()
    restore_mode(pool.table, polls.mode)


cdef void poll_progress(Pool* pool, Heap* heap) noexcept nogil:
    cdef Polls polls
    begin_polls(&polls)
    poll_heap(pool, heap, &polls)
    end_polls(pool, &polls)


cdef void poll_others(Pool* pool, Heap* heap) noexcept nogil:
    # Polls the heaps whose pages it may take.
    # Of the heaps that are awake or busy (heaps.pxd), or, for a private pool's heap, of that pool.
    cdef Heap* other = <Heap*>heap.owner.heaps if heap.owner != NULL else pool.awake
    cdef Polls polls
    begin_polls(&polls)
    while other != NULL:
        if other != heap and has_pages(pool, other) and (other.owner == heap.owner or other.owner.uses == 0):
            poll_heap(pool, other, &polls)
        other = other.sibling if heap.owner != NULL else other.next_awake
    if heap.owner == NULL:
        poll_busy(pool, False, &polls)
    end_polls(pool, &polls)


cdef void poll_busy(Pool* pool, bint in_use, Polls* polls) noexcept nogil:
    # Polls the sleeping heaps with free pages that are not quiescent, and files those that became so.  Heaps of private
    # pools in use only if in_use.
    cdef Heap* heap = pool.busy
    cdef Heap* after
    while heap != NULL:
        after = heap.filed_after
        if in_use or heap.owner == NULL or heap.owner.uses == 0:
            poll_heap(pool, heap, polls)
        if is_heap_quiescent(heap):
            file_heap(pool, heap)
        heap = after


cdef void poll_all(Pool* pool) noexcept nogil:
    # Graphs keep the pages of their private pools, so those are not polled.  A stream that may use guarded pages gets its
    # progress event here, for once it captures, none can be recorded; without host memory they stay guarded.
    cdef Heap* heap = pool.awake if pool.settings.virtual_memory else NULL
    cdef PrivatePool* owner = first_ending(pool)
    cdef Polls polls
    confirm_pages(pool, NULL)
    begin_polls(&polls)
    while heap != NULL:
        if has_pages(pool, heap) and (heap.owner == NULL or not has_graphs(heap.owner)):
            poll_heap(pool, heap, &polls)
        heap = heap.next_awake
    poll_busy(pool, True, &polls)
    end_polls(pool, &polls)
    while owner != NULL:
        if owner.rest == 0:
            poll_replays(pool, owner)
        owner = owner.next_ending


# --- replays of destroyed graphs -----------------------------------------------------------------------------

cdef bint is_past(Pool* pool, Replay* found) noexcept nogil:
    # Whether a replay's progress event is complete.  An event may be queried at any time, the stream only inside
    # enter_wait.  An event that was captured has to be recorded again.
    cdef int code
    if found.progress_event == NULL:
        return False
    code = pool.table.event_query(pool.device, found.progress_event.handle)
    if is_captured_event(code):
        unmark(&found.progress_event)
    return code == 0


cdef void query_replays(Pool* pool, PrivatePool* owner, bint may_query_streams) noexcept nogil:
    # Drops the replays that are over.  An idle stream has finished them; behind a busy one a progress event is recorded,
    # which can be queried beside captures too.
    cdef Replay** link = &owner.replays
    cdef Replay* replay
    cdef int code
    while link[0] != NULL:
        replay = link[0]
        if is_past(pool, replay):
            drop_replay(pool, link)
            continue
        if may_query_streams and replay.progress_event == NULL:
            if not is_capturing(pool.table, pool.device, replay.stream, &code) and code == 0 and (
                    pool.table.stream_query(pool.device, replay.stream) == 0):
                drop_replay(pool, link)
                continue
            mark_behind(pool.table, pool.device, replay.stream, &replay.progress_event)
        link = &replay.next


cdef void poll_replays(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Polls the replays of a private pool whose graphs are destroyed, and notes when all of them are over.
    cdef Replay* replay = owner.replays
    cdef int mode
    while replay != NULL:
        replay.waited = False
        replay = replay.next
    if owner.replays != NULL and go_relaxed(pool.table, &mode) == 0:
        if enter_wait():
            query_replays(pool, owner, True)
            leave_wait()
        else:
            query_replays(pool, owner, False)
        restore_mode(pool.table, mode)
    update_replay_state(pool, owner)


cdef void update_replay_state(Pool* pool, PrivatePool* owner) noexcept nogil:
    # When no replay can be under way any more, the pool's pages may be searched: its heaps are filed.
    if owner.replays == NULL and not owner.hidden:
        owner.rest = 2
        file_heaps(pool, owner)


cdef Replay* next_replay(Pool* pool) noexcept nogil:
    # The first that was not waited for, among the private pools that have segments.
    cdef PrivatePool* owner = first_ending(pool)
    cdef Replay* replay
    while owner != NULL:
        replay = owner.replays if owner.rest == 0 and owner.segments else NULL
        while replay != NULL and replay.waited:
            replay = replay.next
        if replay != NULL:
            return replay
        owner = owner.next_ending
    return NULL


cdef void drop_waited(Pool* pool, const Replay* waited) noexcept nogil:
    # Skips a record that was freed, or whose stream replayed again during the wait (no longer marked waited).
    cdef PrivatePool* owner = first_ending(pool)
    cdef Replay** link
    while owner != NULL:
        link = &owner.replays
        while link[0] != NULL and link[0] != waited:
            link = &link[0].next
        if link[0] != NULL and link[0].waited:
            drop_replay(pool, link)
            if owner.rest == 0:
                update_replay_state(pool, owner)
            return
        owner = owner.next_ending


cdef void drop_progress_events(Pool* pool) noexcept nogil:
    # Those of heaps and of replays.  Progress is queried anew when it is needed.
    cdef Heap* heap = pool.heaps
    cdef PrivatePool* owner = first_ending(pool)
    cdef Replay* replay
    while heap != NULL:
        unmark(&heap.progress_event)
        heap = heap.next
    while owner != NULL:
        replay = owner.replays
        while replay != NULL:
            unmark(&replay.progress_event)
            replay = replay.next
        owner = owner.next_ending


cdef void close_epochs(Pool* pool) noexcept nogil:
    # Ends the epoch of every heap, and notes which private pools the wait for the device covers.
    cdef Heap* heap = pool.heaps
    cdef PrivatePool* owner = first_ending(pool)
    while heap != NULL:
        heap.waited = heap.epoch
        heap.epoch += 1
        heap = heap.next
    while owner != NULL:
        if owner.rest == 0:
            owner.rest = 1
        owner = owner.next_ending


cdef void mark_all_quiescent(Pool* pool) noexcept nogil:
    # Everything freed before close_epochs is quiescent, and the replays noted before it are over.
    cdef Heap* heap = pool.heaps
    cdef PrivatePool* owner = pool.ending
    while heap != NULL:
        if <int>(heap.waited - heap.quiescent_epoch) > 0:
            heap.quiescent_epoch = heap.waited
            if not heap.awake:
                file_heap(pool, heap)
        heap = heap.next
    while owner != NULL:
        if owner.rest == 1:
            owner.rest = 2
            forget_replays(pool, owner)
            file_heaps(pool, owner)
        owner = owner.next_ending


cdef void cancel_device_wait(Pool* pool) noexcept nogil:
    cdef PrivatePool* owner = pool.ending
    while owner != NULL:
        if owner.rest == 1:
            owner.rest = 0
        owner = owner.next_ending


# --- stitching --------------------------------------------------------------------------------------------------------
# Stitching: one block made of free pages that are not contiguous.
#
# A stitched segment maps whole free pages a second time, one after the other, and is kept.  When bytes in it are freed,
# wholly free pages return at once to their expandable segments, so the position of free memory depends only on what is
# live; and what was reused before is reused first, the oldest part that fits.  So work that repeats finds at every step the
# parts of the round before, and calls the driver no more.
#
# Every function here runs under the growth lock and in the exclusive section, unless it says otherwise.

cdef enum:
    MAX_STITCHED = 16384       # stitched segments of a pool; above, idle ones are dropped
    WASTE = 6                  # a reused stitched segment may be larger than the size by one part in this
    MAX_BUDGET = 65536         # the stitching budget stays within plus and minus this; an allocation earns 1
    STITCH_PRICE = 64          # besides its pages; work that reuses its segments makes fewer than one in so many allocations
    CALL_PRICE = 12            # a call of the driver, one a page, costs so much; pages fit closely while calls are no more
    CALL_BYTES = 1 << 19       # and once for so many reserved bytes; then a stitched segment is larger than the request
    SPILL_PARTS = 64           # by no more than one part in this, if there are such pages
    LATELY = 1024              # requests that looked for pages: with more, both counts of their sizes are halved
    RECURRING_PARTS = 4        # sizes recur if one in so many of these had a size that came before,
    NOVEL_RESERVE = 49152      # and else the pool is over budget below this
    MOST_FITS = 4096           # of a heap, which then keeps no new part: every search reads them
    MOST_LOOKS = 16384         # slots that a search for a part looks at; a segment more is looked at only below


# Slots of a stitched segment in a row.
cdef struct Part:
    Segment* stitched  # NULL: none
    size_t first       # the number of the first slot
    size_t count
    size_t size


cdef int keep(Found* found, Block* block, size_t pages) noexcept nogil:
    # Appends a block with whole free pages to what was found.
    if ensure_room(&found.runs, found.count, &found.capacity, sizeof(Run)):
        return NO_HOST_MEMORY
    found.runs[found.count].block = block
    found.runs[found.count].pages = pages
    found.count += 1
    return 0


cdef size_t mark_block(Pool* pool, Block* block) noexcept nogil:
    # Marks the pages wholly inside the block, and sets their covering block; their bytes.
    cdef const Segment* segment = block.segment
    cdef size_t index = slot_index(segment, block.address)
    cdef size_t bytes_ = 0
    cdef Slot* slot
    while index < segment.slot_count:
        slot = segment.slots[index]
        if slot.address + slot.size > block.address + block.size:
            break
        slot.page.mark = pool.search
        slot.page.cover = block
        bytes_ += slot.size
        index += 1
    return bytes_


cdef size_t mark_tree(Pool* pool, Block* node, bint own, Found* found) noexcept nogil:
    # Marks the pages of a free list's quiescent blocks, or of all blocks if own; their bytes.
    cdef size_t bytes_ = 0, marked_bytes
    while node != NULL:
        bytes_ += mark_tree(pool, node.left, own, found)
        if own or is_quiescent(node):
            marked_bytes = mark_block(pool, node)
            node.heap.stuck += node.size - marked_bytes
            if marked_bytes and (found == NULL or not found.lists or keep(found, node, marked_bytes) == 0):
                bytes_ += marked_bytes
                note_top(node)
        node = node.right
    return bytes_


cdef inline void note_top(const Block* block) noexcept nogil:
    # Keeps the heap's largest block with pages, the first by order among equals.
    cdef Heap* heap = block.heap
    if block.size > heap.top_size or (block.size == heap.top_size and block.order < heap.top_order):
        heap.top_size = block.size
        heap.top_order = block.order


cdef size_t mark_heap(Pool* pool, Heap* heap, bint own, Found* found) noexcept nogil:
    # Marks the free pages of a heap for this search; found may be NULL.  A ranked heap is filed anew first.
    cdef int index = next_class(heap, class_of(pool.granule) - 1)
    if heap.filed == RANKED:
        file_heap(pool, heap)
    heap.found = heap.confirmed = pool.search
    heap.marked_changes = heap.page_changes
    heap.marked_all = own or is_heap_quiescent(heap)
    heap.pages = heap.stuck = heap.top_size = 0
    while index >= 0:
        heap.pages += mark_tree(pool, heap.trees[index], own, found)
        index = next_class(heap, index) if index + 1 < CLASSES else -1
    if found != NULL:
        found.stuck += heap.stuck
    return heap.pages


cdef size_t mark_again(Pool* pool, Heap* heap, bint own, Found* found) noexcept nogil:
    # The same, but that the marks of an earlier search are confirmed where they still hold: no free block of a page's size
    # or more came or went, and all of them were marked.  Work of one stream changes no other stream's blocks.
    if found.lists or not heap.marked_all or heap.marked_changes != heap.page_changes:
        return mark_heap(pool, heap, own, found)
    if not own and not is_heap_quiescent(heap):
        return mark_heap(pool, heap, own, found)
    heap.confirmed = pool.search
    found.stuck += heap.stuck
    return heap.pages


cdef inline bint is_found(const Pool* pool, const Page* page) noexcept nogil:
    # Whether this search marked the page, or an earlier one did whose marks were confirmed, or in a heap that has been
    # ranked since.
    cdef const Heap* heap
    if page.resident == NULL:
        return False
    heap = page.resident.segment.heap
    return page.mark == heap.found and (heap.confirmed == pool.search or (pool.finds_ranked and heap.filed == RANKED))


cdef size_t find_among(Pool* pool, Heap* heap, Found* found) noexcept nogil:
    # The heap's own free pages, and the quiescent ones of heaps that are awake or BUSY.
    cdef Heap* other = pool.awake
    cdef size_t bytes_ = 0
    while other != NULL:
        if other == heap or serves_others(other):
            bytes_ += mark_again(pool, other, other == heap, found)
        other = other.next_awake
    other = pool.busy
    while other != NULL:
        if serves_others(other):
            bytes_ += mark_again(pool, other, False, found)
        other = other.filed_after
    return bytes_


cdef size_t find_in_private(Pool* pool, Heap* heap, Found* found) noexcept nogil:
    # The heap's own free pages, and the quiescent ones of the same private pool.
    cdef Heap* other = <Heap*>heap.owner.heaps
    cdef size_t bytes_ = 0
    while other != NULL:
        bytes_ += mark_again(pool, other, other == heap, found)
        other = other.sibling
    return bytes_


cdef size_t search_pages(Pool* pool, Heap* heap, Found* found) noexcept nogil:
    # The heap's own pages at once; those of other streams once quiescent; those of private pools once no graph or MemPool
    # uses the pool, and only for common heaps: a private pool takes pages from its own heaps alone.
    pool.search += 1
    pool.finds_ranked = False
    found.count = found.stuck = 0
    if not found.across:
        return mark_again(pool, heap, True, found)
    if heap.owner != NULL:
        return find_in_private(pool, heap, found)
    while pool.unsearched != NULL:
        mark_heap(pool, pool.unsearched, False, NULL)
        rank(pool, pool.unsearched)
    pool.finds_ranked = True
    return find_among(pool, heap, found) + pool.ranked_pages


cdef size_t find_pages(Pool* pool, Heap* heap, bint across, Found* found) noexcept nogil:
    # Without a list of their blocks, for which every heap has to be walked: most requests reuse a segment, or grow.
    # 0 where the host has no memory for what that takes.
    cdef size_t bytes_
    found.across = across
    found.lists = False
    if confirm_pages(pool, heap):
        return 0
    if across:
        wake(pool, heap)
        poll_others(pool, heap)
    bytes_ = search_pages(pool, heap, found)
    pool.stuck = found.stuck + (pool.ranked_stuck if pool.finds_ranked else 0)
    pool.fits_closely = may_fit_closely(pool)
    return bytes_


cdef void mark_asleep(Pool* pool, Heap* heap) noexcept nogil:
    # The heaps of a list of heaps.pxd that may give memory back.
    while heap != NULL:
        if has_no_replays(pool, heap):
            mark_heap(pool, heap, False, NULL)
        heap = heap.filed_after


cdef inline bint is_down(const PrivatePool* owner) noexcept nogil:
    # Whether its pages have no memory: it is suspended, and not only about to be.
    return owner.suspension != NULL and not owner.suspension.closing


cdef int mark_leaving(Pool* pool) noexcept nogil:
    # Heaps that are awake, BUSY or UNSEARCHED; ranked ones, filed anew first; and sleeping heaps of MemPools being emptied
    # and of suspended pools.  Guarded pages are confirmed here, not by the caller: what other threads free in any call of
    # the driver between the two would leave although work uses it.
    cdef Heap* heap = pool.awake
    cdef PrivatePool* owner = pool.privates
    if confirm_pages(pool, NULL):
        return NO_HOST_MEMORY
    pool.search += 1
    while pool.ranked != NULL:
        file_heap(pool, pool.ranked)
    mark_asleep(pool, pool.busy)
    mark_asleep(pool, pool.unsearched)
    while heap != NULL:
        if has_no_replays(pool, heap):
            mark_heap(pool, heap, False, NULL)
        heap = heap.next_awake
    while owner != NULL:
        heap = <Heap*>owner.heaps if owner.emptied or is_down(owner) else NULL
        while heap != NULL:
            if has_no_replays(pool, heap) and not heap.awake:
                mark_heap(pool, heap, False, NULL)
            heap = heap.sibling
        owner = owner.next
    return 0


cdef int ensure_moves(Slot** slots, size_t count) noexcept nogil:
    # Two spare records for each page of these slots, in the heap that it is to be evicted from.
    cdef size_t index
    cdef int code = 0
    cdef Heap* heap
    for index in range(count):
        slots[index].page.resident.segment.heap.moves += 1
    for index in range(count):
        heap = slots[index].page.resident.segment.heap
        if heap.moves and code == 0:
            code = ensure_blocks(heap, 2 * heap.moves + 2)
        heap.moves = 0
    return code


# --- eviction ------------------------------------------------------------------------------------------------
# Pages that lie in a row in one free block are evicted together: the block leaves its list once, and what is left of it
# comes back once.

cdef size_t row_length(Slot** slots, size_t count) noexcept nogil:
    # How many pages of these slots, from the first on, are resident in a row.  All of them are wholly free, so a row is in
    # one block.
    cdef const Slot* last = slots[0].page.resident
    cdef const Slot* slot
    cdef size_t index
    for index in range(1, count):
        slot = slots[index].page.resident
        if slot.segment != last.segment or slot.address != last.address + last.size:
            return index
        last = slot
    return count


cdef void evict_row(Pool* pool, Slot** slots, size_t count, bint noted) noexcept nogil:
    # The caller ensured a spare record for each page of these slots in the heap, and one more.  The first one's page.cover
    # must be current: it is the free block over the slot, or a block before that one.
    # noted: the events are recorded here.
    cdef Slot* slot = slots[0].page.resident
    cdef Block* block = slots[0].page.cover
    cdef Block* low
    cdef Block* rest = NULL
    cdef size_t index
    while block.address + block.size <= slot.address:
        block = block.after
    take_free(pool, block)
    if block.address < slot.address:
        split_off(block.heap, block, slot.address - block.address)
        low = block
        block = block.after
        block.state = HOLE
        put_free(pool, low)
    for index in range(count):
        slot = slots[index].page.resident
        if slot.page.guard != NULL:
            unguard_page(pool, slot.page)
        if index:
            block = rest
        rest = NULL
        if block.size > slot.size:
            split_off(block.heap, block, slot.size)
            rest = block.after
        block.state = HOLE
        slot.hole = block
        slot.page.resident = NULL
        if slot.segment.shape == STITCHED:
            slot.segment.evicted += 1
        if noted:
            note_evicted(pool, slot)
    if rest != NULL:
        put_free(pool, rest)


cdef inline void note_evicted(Pool* pool, const Slot* slot) noexcept nogil:
    record_event(pool, SEGMENT_UNMAPPED, slot.address, slot.size, slot.segment.heap.stream, slot.segment.heap.owner)


cdef void evict_all(Pool* pool, Slot** slots, size_t count) noexcept nogil:
    # The pages of these slots, for which ensure_moves ensured records.
    cdef size_t row
    while count:
        row = row_length(slots, count)
        evict_row(pool, slots, row, True)
        slots += row
        count -= row


cdef void evict(Pool* pool, Page* page) noexcept nogil:
    # The caller ensured two spare records in the heap.
    cdef Slot* slot = page.resident
    evict_row(pool, &slot, 1, True)


# --- reuse ---------------------------------------------------------------------------------------------------

cdef int add_fit(const Part* part) noexcept nogil:
    # Records the sizes that the part serves: those for which it would be made, and those it exceeds by at most a sixth.
    cdef Heap* heap = part.stitched.heap
    cdef Fit* fit
    if ensure_room(&heap.fits, heap.fit_count, &heap.fit_capacity, sizeof(Fit)):
        return NO_HOST_MEMORY
    fit = &heap.fits[heap.fit_count]
    fit.most = part.size
    fit.least = min(
        part.size - part.stitched.slots[part.first + part.count - 1].size + 1, part.size - part.size // (WASTE + 1),
    )
    fit.stitched = part.stitched
    fit.first = part.first
    fit.count = part.count
    fit.missing = NULL
    heap.fit_count += 1
    return 0


cdef void drop_fit(Segment* stitched) noexcept nogil:
    # No part of the segment is reused any more.
    cdef Heap* heap = stitched.heap
    cdef size_t index, kept = 0
    for index in range(heap.fit_count):
        if heap.fits[index].stitched != stitched:
            heap.fits[kept] = heap.fits[index]
            kept += 1
    heap.fit_count = kept


cdef bint is_ready(const Pool* pool, Fit* fit) noexcept nogil:
    # Whether all of its pages are marked.  The page that was missing last time is tested first: that refuses most fits
    # without reading their slots.
    cdef const Segment* stitched = fit.stitched
    cdef size_t index
    if fit.missing != NULL and not is_found(pool, fit.missing):
        return False
    if stitched.incomplete:
        return False
    for index in range(fit.first, fit.first + fit.count):
        if not is_found(pool, stitched.slots[index].page):
            fit.missing = stitched.slots[index].page
            return False
    return True


cdef void forget_missing(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.heaps
    cdef size_t index
    while heap != NULL:
        for index in range(heap.fit_count):
            heap.fits[index].missing = NULL
        heap = heap.next


cdef void open_part(Pool* pool, Segment* stitched, size_t first, size_t count) noexcept nogil:
    # The pages of these slots become resident in them, and their holes one free block, freed now.
    cdef Slot** slots = stitched.slots + first
    cdef Block* block = slots[0].hole
    cdef size_t index
    for index in range(count):
        slots[index].page.resident = slots[index]
        if index:
            absorb(stitched.heap, block, slots[index].hole)
        slots[index].hole = NULL
    record_event(pool, SEGMENT_MAPPED, block.address, block.size, stitched.heap.stream, stitched.heap.owner)
    stitched.evicted -= count
    block.epoch = stitched.heap.last_freed = stitched.heap.epoch
    put_free(pool, block)


cdef bint move_pages_in(Pool* pool, Segment* stitched, size_t first, size_t count) noexcept nogil:
    # Evicts the pages of these slots from where they are resident; False if the host has no memory for the records.
    if ensure_moves(stitched.slots + first, count):
        return False
    evict_all(pool, stitched.slots + first, count)
    open_part(pool, stitched, first, count)
    return True


cdef bint reuse_stitched(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    # Tests what was reused before, oldest first, by its Fits, which are contiguous in memory; then any other slots in a row.
    cdef Fit* fit = heap.fits
    cdef const Fit* end = fit + heap.fit_count
    while fit != end:
        if fit.least <= size <= fit.most and is_ready(pool, fit):
            earn_budget(pool)
            pool.stitch_budget = min(<int64_t>MAX_BUDGET, pool.stitch_budget + price(fit.count))
            return move_pages_in(pool, fit.stitched, fit.first, fit.count)
        fit += 1
    return reuse_part(pool, heap, size)


cdef void find_part(const Pool* pool, Segment* stitched, size_t size, Part* part) noexcept nogil:
    # The fewest bytes of slots in a row that have size and less than part.size, the first among equals, whose pages are all
    # marked.
    cdef size_t index, first = 0, total = 0
    cdef const Slot* slot
    for index in range(stitched.slot_count):
        slot = stitched.slots[index]
        if not is_found(pool, slot.page):
            first = index + 1
            total = 0
            continue
        total += slot.size
        while total - stitched.slots[first].size >= size:
            total -= stitched.slots[first].size
            first += 1
        if size <= total < part.size:
            part.stitched = stitched
            part.first = first
            part.count = index + 1 - first
            part.size = total


cdef bint reuse_part(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    # A part of the oldest stitched segment that has one.  It is a fit of its own from then on: the same request finds it
    # again, whatever parts come later.  The first use of a part proves no repetition, so it refunds nothing.
    cdef Segment* stitched = heap.first_stitched
    cdef size_t looks = 0
    cdef Part part
    part.stitched = NULL
    part.size = size + max(pool.granule, size // WASTE + 1)
    while stitched != NULL and part.stitched == NULL and looks < MOST_LOOKS:
        if stitched.size >= size and not stitched.incomplete:
            looks += stitched.slot_count
            find_part(pool, stitched, size, &part)
        stitched = stitched.after
    if part.stitched == NULL or (heap.fit_count < MOST_FITS and add_fit(&part)):
        return False
    return move_pages_in(pool, part.stitched, part.first, part.count)


cdef inline bint may_guard(const Pool* pool, const Heap* heap, const Heap* home) noexcept nogil:
    # Whether a page that the heap freed may go home before its stream was asked: that was idle when it was asked last.
    return heap.trusted and heap.progress_event == NULL and pool.captures == 0 and heap.owner == NULL and home.owner == NULL


cdef inline Block* block_before(const Slot* slot, Block* near) noexcept nogil:
    # A block at or before the slot, from one that is near, if that is in the same segment.
    if near == NULL or near.segment != slot.segment:
        return slot.segment.first
    while near.address > slot.address:
        near = near.before
    return near


cdef int take_back(Pool* pool, Page* page, Block* near) noexcept nogil:
    # A guarded page whose stream is busy becomes free where it was freed, and the heap keeps it.
    cdef Slot* slot = page.guard_slot
    cdef Heap* heap = page.guard
    cdef uint32_t epoch = page.guard_epoch
    cdef int code = ensure_blocks(page.resident.segment.heap, 2)
    if code:
        return code
    page.cover = block_before(page.resident, near)
    evict(pool, page)
    slot.hole.epoch = epoch
    make_resident(pool, slot)
    pool.heaps_keeping_pages += not heap.keeps_pages
    heap.keeps_pages = True
    return 0


cdef int confirm_pages(Pool* pool, const Heap* requester) noexcept nogil:
    cdef Page* page = pool.guarded
    cdef Page* after
    cdef Heap* asked = NULL
    cdef Block* near = NULL  # the hole of the page taken back last: those of one block follow each other
    cdef Polls polls
    cdef int code = 0
    if pool.guarding == (requester.guarding if requester != NULL else 0):
        return code
    begin_polls(&polls)
    while page != NULL and code == 0:
        after = page.guard_after
        if page.guard != requester:
            if page.guard != asked:  # pages of one heap mostly follow each other
                asked = page.guard
                poll_heap(pool, asked, &polls)
            if <int>(asked.quiescent_epoch - page.guard_epoch) >= 0:
                unguard_page(pool, page)
            else:
                code = take_back(pool, page, near)
                near = page.primary.hole
        page = after
    end_polls(pool, &polls)
    return code


cdef inline bint is_others(const Block* block, const Slot* slot) noexcept nogil:
    # Whether the slot's page is another heap's, and the stream that freed the block around it may still use it.
    return slot.page.primary.segment.heap != block.heap and not is_quiescent(block)


cdef size_t going_home(const Pool* pool, const Block* block, Slot** slots, size_t count, bint guarded) noexcept nogil:
    # How many of these slots, from the first on, have pages wholly inside the free block that go home as the first does.
    cdef const Heap* heap = block.heap
    cdef size_t index
    for index in range(1, count):
        if slots[index].address + slots[index].size > block.address + block.size:
            return index
        if is_others(block, slots[index]) != guarded:
            return index
        if guarded and not may_guard(pool, heap, slots[index].page.primary.segment.heap):
            return index
    return count


cdef void return_pages(Pool* pool, Block* block, bint freed) noexcept nogil:
    # Pages wholly inside the free block become resident in their expandable segments; those of other heaps only if the block
    # is quiescent, or guarded, else the heap keeps them (Heap.keeps_pages).  Exclusive section; no growth lock.
    # freed: right after a free.  What a heap keeps is not guarded: where its stream cannot be asked, a request would find
    # the pages and lose them, again and again.
    cdef Segment* stitched = block.segment
    cdef Heap* heap = stitched.heap
    cdef size_t index = slot_index(stitched, block.address), count, _row
    cdef Slot* slot
    cdef Slot* primary
    cdef bint guards
    cdef uint32_t epoch = block.epoch
    if <int>(epoch - stitched.used) > 0:
        stitched.used = epoch
    while index < stitched.slot_count:
        slot = stitched.slots[index]
        if slot.address + slot.size > block.address + block.size:
            break
        guards = is_others(block, slot)
        if guards and not (freed and may_guard(pool, heap, slot.page.primary.segment.heap)):
            guards = False
            poll_progress(pool, heap)
            if not is_quiescent(block):
                pool.heaps_keeping_pages += not heap.keeps_pages
                heap.keeps_pages = True
                index += 1
                continue
        count = going_home(pool, block, stitched.slots + index, stitched.slot_count - index, guards)
        if ensure_blocks(heap, count + 1):
            return
        slot.page.cover = block
        evict_row(pool, stitched.slots + index, count, False)
        for _row in range(count):
            slot = stitched.slots[index]
            note_evicted(pool, slot)
            primary = slot.page.primary
            primary.hole.epoch = epoch if primary.segment.heap == heap else primary.segment.heap.quiescent_epoch
            make_resident(pool, primary)
            if guards:
                guard_page(pool, slot.page, slot, epoch)
            index += 1
        block = slot.hole.after
        if block == NULL or block.state != FREE:
            break


cdef void free_block(Pool* pool, Block* block) noexcept nogil:
    # Exclusive section; no growth lock.
    cdef Heap* heap = block.heap
    block = set_free(pool, block)
    if block.segment.shape == STITCHED:
        return_pages(pool, block, True)
    elif block.segment.shape == PLAIN:
        block.segment.idle_since = pool.allocations
    count_splits(pool, heap)


cdef void return_all_pages(Pool* pool) noexcept nogil:
    # Tries return_pages again for every free block in the stitched segments of heaps that keep pages.
    cdef Heap* heap = pool.heaps
    cdef Segment* stitched
    cdef int64_t left = pool.heaps_keeping_pages
    while heap != NULL and left:
        if heap.keeps_pages:
            left -= 1
            pool.heaps_keeping_pages -= 1
            heap.keeps_pages = False
            poll_progress(pool, heap)
            stitched = heap.first_stitched
            while stitched != NULL:
                return_free_pages(pool, stitched)
                stitched = stitched.after
        heap = heap.next


cdef void return_free_pages(Pool* pool, Segment* stitched) noexcept nogil:
    cdef Block* block = stitched.first
    cdef Block* after
    while block != NULL:
        after = block.after  # past the holes, which merge as pages are returned
        while after != NULL and after.state == HOLE:
            after = after.after
        if block.state == FREE:
            return_pages(pool, block, False)
        block = after


# --- new stitched segments -----------------------------------------------------------------------------------

cdef int by_size(const void* one, const void* other) noexcept nogil:
    # For qsort: larger first, then by order.
    cdef const Block* a = (<const Run*>one).block
    cdef const Block* b = (<const Run*>other).block
    if a.size != b.size:
        return -1 if a.size > b.size else 1
    return -1 if a.order < b.order else 1


cdef bint suffices_before(const Found* found, const Heap* ranked, size_t size) noexcept nogil:
    # Whether the blocks that precede all blocks of the ranked heap have enough pages.
    cdef const Block* block
    cdef size_t index, total = 0
    for index in range(found.count):
        block = found.runs[index].block
        if block.size < ranked.top_size or (block.size == ranked.top_size and block.order > ranked.top_order):
            break
        total += found.runs[index].pages
    return total >= size


cdef void sort_found(Pool* pool, Found* found, size_t size) noexcept nogil:
    # By (size descending, order).  Ranked heaps are opened until their blocks cannot be needed, twice as many each round;
    # all of them if pages are to fit closely, since any may be passed over.
    cdef size_t _step, wanted = 1
    cdef Heap* heap
    qsort(found.runs, found.count, sizeof(Run), &by_size)
    heap = first_ranked(pool) if pool.finds_ranked else NULL
    while heap != NULL and (pool.fits_closely or not suffices_before(found, heap, size)):
        for _step in range(wanted):
            if heap == NULL:
                break
            mark_heap(pool, heap, False, found)
            heap = first_ranked(pool)
        wanted *= 2
        qsort(found.runs, found.count, sizeof(Run), &by_size)


cdef size_t drop_spare(Page** pages, size_t count, size_t spare) noexcept nogil:
    # Drops pages that are not needed, spare bytes at the most, the latest first; the count of those that stay.
    cdef size_t index, kept = 0
    for index in range(count, 0, -1):
        if pages[index - 1].size <= spare:
            spare -= pages[index - 1].size
            pages[index - 1] = NULL
    for index in range(count):
        if pages[index] != NULL:
            pages[kept] = pages[index]
            kept += 1
    return kept


cdef inline bint is_marked_in(const Pool* pool, const Block* block, size_t number) noexcept nogil:
    # Whether the slot of that number is one that this search marked in the block.
    cdef const Page* page
    if number >= block.segment.slot_count:
        return False
    page = block.segment.slots[number].page
    return page != NULL and page.cover == block and page.mark == pool.search


cdef size_t choose(Pool* pool, Found* found, size_t size, Page** pages) noexcept nogil:
    # Pages from the largest free blocks first, so that few blocks are cut; their count, or 0 if too few are left.  If
    # they are to fit closely, those are passed over that would make the sum too large, and the smallest of these is the last
    # if one has to be.
    cdef size_t index, number, count = 0, total = 0
    cdef size_t most = size + size // SPILL_PARTS if pool.fits_closely else SIZE_MAX
    cdef const Block* block
    cdef Page* page
    cdef Page* last = NULL
    sort_found(pool, found, size)
    for index in range(found.count):
        block = found.runs[index].block
        number = slot_index(block.segment, block.address)
        while total < size and is_marked_in(pool, block, number):
            page = block.segment.slots[number].page
            number += 1
            if total + page.size <= most:
                pages[count] = page
                count += 1
                total += page.size
            elif last == NULL or page.size < last.size:
                last = page
    if total >= size:
        return count
    if last == NULL:
        return 0
    count = drop_spare(pages, count, total + last.size - size)
    pages[count] = last
    return count + 1


cdef void link_stitched(Pool* pool, Segment* stitched) noexcept nogil:
    cdef Heap* heap = stitched.heap
    stitched.before = heap.last_stitched
    if heap.last_stitched == NULL:
        heap.first_stitched = stitched
    else:
        heap.last_stitched.after = stitched
    heap.last_stitched = stitched
    pool.stitched_count += 1


cdef int drop_stitched(Pool* pool, Segment* stitched) noexcept nogil:
    # A segment that is idle, or was never opened.  After a failure it is incomplete, and is tried again when memory is
    # given back next.
    cdef Heap* heap = stitched.heap
    cdef size_t index
    cdef int code = 0
    stitched.incomplete = True
    drop_fit(stitched)
    for index in range(stitched.slot_count):
        if code == 0:
            code = unmap_slot(pool, stitched.slots[index])
    if code == 0 and stitched.held:
        code = free_addresses(pool, stitched)
    if code:
        return code
    if stitched.before != NULL:
        stitched.before.after = stitched.after
    else:
        heap.first_stitched = stitched.after
    if stitched.after != NULL:
        stitched.after.before = stitched.before
    else:
        heap.last_stitched = stitched.before
    pool.stitched_count -= 1
    record_event(pool, TAKEN_APART, stitched.address, stitched.size, heap.stream, heap.owner)
    for index in range(stitched.slot_count):
        drop_slot(stitched.slots[index])
        stitched.slots[index].hole.state = FREE
        stitched.slots[index].hole.left = heap.spare
        heap.spare = stitched.slots[index].hole
        free(stitched.slots[index])
    free(stitched.slots)
    free(stitched)
    return 0


cdef int drop_idle_stitched(Pool* pool) noexcept nogil:
    # Not segments that the stream's work may still use, although their pages already serve the same stream elsewhere.
    cdef Heap* heap = pool.heaps
    cdef Segment* stitched
    cdef Segment* after
    cdef int code = 0
    while heap != NULL and code == 0:
        stitched = heap.first_stitched if has_no_replays(pool, heap) else NULL
        while stitched != NULL and code == 0:
            after = stitched.after
            if stitched.evicted == stitched.slot_count and <int>(heap.quiescent_epoch - stitched.used) >= 0:
                code = drop_stitched(pool, stitched)
            stitched = after
        heap = heap.next
    return code


cdef int make_stitched(Pool* pool, Heap* heap, Page** pages, size_t count) noexcept nogil:
    # The pages are resident nowhere during the driver calls, so that no hit takes them; after a failure they become
    # resident where they were.
    cdef Segment* stitched = new_segment(pool, heap, STITCHED)
    cdef Part whole
    cdef Slot** old_slots = <Slot**>malloc(count * sizeof(Slot*))
    cdef size_t index, size = 0
    cdef int code = 0
    if stitched == NULL or old_slots == NULL:
        free(stitched)
        free(old_slots)
        return NO_HOST_MEMORY
    for index in range(count):
        size += pages[index].size
        old_slots[index] = pages[index].resident
    code = ensure_moves(old_slots, count)
    if code:
        free(stitched)
        free(old_slots)
        return code
    stitched.serial = pool.next_serial
    stitched.used = heap.quiescent_epoch
    pool.next_serial += 1
    evict_all(pool, old_slots, count)
    link_stitched(pool, stitched)
    code = reserve_addresses(pool, stitched, size, 0)
    for index in range(count):
        if code == 0:
            code = add_slot(stitched, pages[index])
    stitched.evicted = stitched.slot_count
    if code == 0:
        whole.stitched, whole.first, whole.count, whole.size = stitched, 0, count, size
        code = add_fit(&whole)
    if code == 0:
        code = map_run(pool, stitched, 0, count)
    for index in range(stitched.slot_count):
        if stitched.slots[index].mapped:
            pool.stats.stitched_bytes += stitched.slots[index].size
    if code == 0:
        earn_budget(pool)
        pool.stitch_budget = max(-<int64_t>MAX_BUDGET, pool.stitch_budget - price(count))
        stitched.stack = stack_of_block(pool)
        record_event(pool, STITCHED_TOGETHER, stitched.address, size, heap.stream, heap.owner)
        open_part(pool, stitched, 0, count)
    else:
        for index in range(count):
            make_resident(pool, old_slots[index])
        drop_stitched(pool, stitched)
    free(old_slots)
    return code


cdef bint has_too_many_stitched(const Pool* pool) noexcept nogil:
    return pool.stitched_count >= MAX_STITCHED


cdef int stitch(Pool* pool, Heap* heap, size_t size, Found* found) noexcept nogil:
    # OUT_OF_MEMORY if the marked pages do not suffice any more.
    cdef Page** pages = <Page**>malloc((size // pool.granule + 1) * sizeof(Page*))
    cdef size_t count
    cdef int code
    if pages == NULL:
        return NO_HOST_MEMORY
    found.lists = True
    code = confirm_pages(pool, NULL)  # a page that goes back after a failure would be guarded no more
    if code:
        free(pages)
        return code
    code = OUT_OF_MEMORY
    search_pages(pool, heap, found)
    count = choose(pool, found, size, pages)
    if count:
        code = make_stitched(pool, heap, pages, count)
    free(pages)
    return code


# --- the stitching budget: whether new stitched segments are worth what they cost ---------------------------

cdef int64_t allocations(const Pool* pool) noexcept nogil:
    # All allocations since the last reset_accumulated, of the fast and the slow path.  In the exclusive section.
    cdef const Heap* heap = pool.awake
    cdef int64_t total = pool.asleep_cumulative[SMALL][ALLOCATION] + pool.asleep_cumulative[LARGE][ALLOCATION]
    while heap != NULL:
        total += cumulative(heap, SMALL, ALLOCATION) + cumulative(heap, LARGE, ALLOCATION)
        heap = heap.next_awake
    return total


cdef void reset_budget(Pool* pool) noexcept nogil:
    earn_budget(pool)
    pool.stitch_budget = MAX_BUDGET
    pool.call_credit = 0
    memset(pool.past_sizes, 0, sizeof(pool.past_sizes))
    pool.recurring = pool.novel = 0
    pool.refused = SIZE_MAX


cdef void earn_budget(Pool* pool) noexcept nogil:
    # Adds the allocations since the last call, so the fast path need not count them.  In the exclusive section.
    cdef int64_t count = allocations(pool)
    pool.stitch_budget = min(<int64_t>MAX_BUDGET, pool.stitch_budget + count - pool.budget_allocations)
    pool.call_credit += count - pool.budget_allocations
    pool.call_credit -= CALL_PRICE * (pool.stats.virtual_memory_calls - pool.paid_calls)
    pool.budget_allocations = count
    pool.paid_calls = pool.stats.virtual_memory_calls


cdef void note_size(Pool* pool, size_t size) noexcept nogil:
    cdef uint32_t unit = <uint32_t>(size // UNIT)
    cdef uint32_t* place = &pool.past_sizes[<uint32_t>(unit * <uint32_t>0x9E3779B1) >> (32 - SIZES_KEPT_BITS)]
    if place[0] == unit:
        pool.recurring += 1
    else:
        pool.novel += 1
    place[0] = unit
    if pool.recurring + pool.novel > LATELY:
        pool.recurring //= 2
        pool.novel //= 2


cdef inline bint sizes_recur(const Pool* pool) noexcept nogil:
    return pool.recurring * RECURRING_PARTS >= pool.recurring + pool.novel


cdef bint is_over_budget(Pool* pool) noexcept nogil:
    earn_budget(pool)
    return pool.stitch_budget < (0 if sizes_recur(pool) else NOVEL_RESERVE)


cdef bint has_much_budget(Pool* pool) noexcept nogil:
    earn_budget(pool)
    return sizes_recur(pool) and pool.stitch_budget >= MAX_BUDGET // 2


cdef bint may_fit_closely(Pool* pool) noexcept nogil:
    cdef size_t total = current_of(&pool.stats, RESERVED_BYTES)
    if pool.stuck <= total // STUCK_PARTS or not has_much_budget(pool):
        return False
    return pool.call_credit + CALL_PRICE * <int64_t>(total // CALL_BYTES) >= 0


cdef void restart_budget_count(Pool* pool) noexcept nogil:
    earn_budget(pool)
    pool.budget_allocations = pool.paid_calls = 0


cdef inline int64_t price(size_t pages) noexcept nogil:
    return STITCH_PRICE + CALL_PRICE * <int64_t>pages
