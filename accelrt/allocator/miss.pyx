"""A miss: the steps that find or make a free block; and blocks that were freed while other streams may use them."""
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.allocator.audit cimport inspected
from accelrt.allocator.backing.pages cimport (
    grow_pages, grow_plain, grow_plain_at, has_returned, is_of_functions, need_at_end, release_page,
    release_plain, takes_plain, trim_all_expandable, unlock_growth, within_limits,
)
from accelrt.allocator.backing.stitching cimport (
    cancel_device_wait, close_epochs, confirm_pages, drop_idle_stitched, drop_progress_events, drop_waited, evict,
    find_pages, forget_missing, Found, free_block, has_much_budget, has_too_many_stitched, is_over_budget,
    mark_all_quiescent, mark_leaving, next_replay, note_size, poll_all, poll_progress, reset_budget,
    return_all_pages, reuse_stitched, stitch,
)
from accelrt.allocator.event_ring cimport drop_stack, record_event
from accelrt.allocator.heaps cimport (
    PER_THREAD, call_unlocked, count_freed, count_splits, drop_empty, ensure_blocks, hand_out, has_graphs, heap_of,
    heap_stream, lock_all, pool_for, reserved, total_of, unlock_all,
)
from accelrt.allocator.inline.block_map cimport ensure_places
from accelrt.allocator.history_types cimport BORROWED, OFFERED, REFUSED
from accelrt.allocator.inline.block_ops cimport is_heap_quiescent, is_quiescent, keeps_rest, suits
from accelrt.allocator.inline.free_list cimport best_fit, class_of, next_class, precedes
from accelrt.allocator.private.private_types cimport PrivatePool, Replay, Source
from accelrt.allocator.sizes cimport GRANULE, LARGE_LIMIT, SMALL, SMALL_LIMIT, SMALL_SEGMENT, round_up
from accelrt.allocator.stats cimport ALLOCATED_BYTES, SEGMENT, current_of, note_news
from accelrt.allocator.types cimport CLASSES, LIVE, PENDING, Block, Page
from accelrt.core.locks cimport pthread_mutex_lock
from accelrt.driver.guard cimport (
    add_use, begin_slice, can_wait_for, drop_use, end_slice, enter_wait, FAILED, go_relaxed, GONE, hand_on, has_use,
    INTERRUPTED, is_captured_event, is_capturing, is_device_lost, is_to_end, leave_wait, length_of, LOOK_NS, mark_behind,
    meaning_of, next_filled, poll_queues, PooledEvent, push, Queue, queue_of, queue_use, restore_mode, return_event,
    take_event, take_of, Use,
)
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING
from accelrt.status cimport (
    CAP_REACHED, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, NO_HOST_MEMORY, NOT_READY, OUT_OF_MEMORY,
    POOL_CAP_REACHED, SLEEPING,
)


# --- pending ----------------------------------------------------------------------------------------------------------
# Blocks that were freed while another stream may still use them, in the pool's queues (driver/guard.pxd).
#
# Everything here runs in the exclusive section, which is released only while an event is waited for.

cdef void defer(Pool* pool, Block* block) noexcept nogil:
    block.state = PENDING
    block.heap.pending += 1
    block.left = pool.deferred
    pool.deferred = block


cdef void complete(Pool* pool, Block* block) noexcept nogil:
    # Frees a pending block that waits for no event and has no use without an event.
    block.heap.pending -= 1
    free_block(pool, block)


cdef bint drop_event(Pool* pool, PooledEvent* event) noexcept nogil:
    # For one that is in no queue any more.  Returns whether its block waits for nothing else.  An event that a thread waits
    # for stays: that thread returns it.
    cdef Block* block = <Block*>event.block
    if event == pool.awaited:
        event.block = NULL
    else:
        return_event(event)
    block.events -= 1
    return block.events == 0 and block.uses == NULL


cdef int record_block_events(Pool* pool, Block* block) noexcept nogil:
    # Queues an event for each of the block's uses.  Uses on streams that capture stay, and the answer is NOT_READY.
    cdef Use** link = &block.uses
    cdef int code, outcome = 0
    while link[0] != NULL:
        code = queue_use(pool.table, &pool.queues, &pool.uses, link, block, &block.events)
        if code == NOT_READY:
            outcome = code
            link = &link[0].next
        elif code:
            return code
    return outcome


# --- offers: blocks that are free as of an event --------------------------------------------------------------

cdef int ensure_watch(Pool* pool) noexcept nogil:
    # Creates the pool's watch stream, which waits for the events of offers.
    cdef int mode
    cdef int code
    if pool.watch:
        return 0
    code = go_relaxed(pool.table, &mode)
    if code == 0:
        code = pool.table.stream_create(pool.device, STREAM_NON_BLOCKING, 0, &pool.watch)
        restore_mode(pool.table, mode)
    return code


cdef int watch(Pool* pool, Queue* queue, Block* block, uintptr_t event) noexcept nogil:
    # Queues an event of the pool's own behind the caller's event, which the caller may record again at any time.
    # The watch stream takes part in a capture only where it waited for a captured event, so one look tells: unlike a
    # caller's stream it need not be left alone beside captures that end meanwhile.
    cdef PooledEvent* own
    cdef int code = take_event(pool.table, pool.device, EVENT_DISABLE_TIMING, &own)
    if code:
        return code
    code = pool.table.stream_wait_event(pool.device, pool.watch, event)
    if code == 0 and is_capturing(pool.table, pool.device, pool.watch, &code):
        code = CAPTURED_EVENT
    if code == 0:
        code = pool.table.event_record(pool.device, own.handle, pool.watch)
    if code:
        return_event(own)
        return code
    push(&pool.queues, queue, own, block)
    block.events += 1
    return 0


cdef int offer(Pool* pool, Block* block, uintptr_t event, uint64_t record) noexcept nogil:
    # Frees a live block as of the event.  On failure the block stays live.
    cdef Queue* queue
    cdef Offer* offer
    cdef int code = ensure_watch(pool)
    if code:
        return code
    queue = queue_of(&pool.queues, pool.device, pool.watch)
    offer = <Offer*>calloc(1, sizeof(Offer))
    if queue == NULL or offer == NULL:
        free(offer)
        return NO_HOST_MEMORY
    code = watch(pool, queue, block, event)
    if code:
        free(offer)
        return code
    count_freed(pool, block)
    if record_block_events(pool, block):  # deferred: recorded again later, and not offered
        free(offer)
        defer(pool, block)
        return 0
    block.state = PENDING
    block.heap.pending += 1
    record_event(pool, OFFERED, block.address, block.requested, block.heap.stream, block.heap.owner)
    offer.block = block
    offer.record = record
    offer.next = pool.offers
    store_offers(&pool.offers, offer)
    return 0


cdef void drop_claimant(Pool* pool, const Offer* found, Use** link) noexcept nogil:
    cdef Heap* heap
    if heap_of(pool, NULL, link[0].stream, found.block.heap.kind, &heap) == 0:
        heap.offered -= 1
    drop_use(&pool.uses, link)


cdef void withdraw(Pool* pool, Block* block) noexcept nogil:
    # Removes the block's offer, if it has one: its event is complete, or it was claimed.
    cdef Offer** link = &pool.offers
    cdef Offer* offer
    while link[0] != NULL and link[0].block != block:
        link = &link[0].next
    offer = link[0]
    if offer == NULL:
        return
    store_offers(link, offer.next)
    while offer.claimants != NULL:
        drop_claimant(pool, offer, &offer.claimants)
    free(offer)


cdef int note_wait(Pool* pool, uintptr_t stream, uint64_t record) noexcept nogil:
    # Makes the stream a claimant of the recording's offers: its work from now on runs behind the event.  Memory of a
    # private pool stays in that pool, whose graphs may be replayed while the memory is free.
    cdef Offer* offer = pool.offers
    cdef Heap* heap
    cdef int code
    if stream == PER_THREAD:  # one handle for many streams: which of them waits is unknown
        return 0
    while offer != NULL:
        if offer.record == record and offer.block.heap.owner == NULL and not has_use(offer.claimants, pool.device, stream):
            code = heap_of(pool, NULL, stream, offer.block.heap.kind, &heap)
            if code == 0:
                code = add_use(&pool.uses, &offer.claimants, pool.device, stream)
            if code:
                return code
            heap.offered += 1
        offer = offer.next
    return 0


cdef bint fits_claimant(const Pool* pool, const Offer* found, const Heap* heap, size_t size) noexcept nogil:
    # Whether the heap's stream may claim the block: of the same kind, used by no other stream, and larger than the size
    # by at most an eighth of it.
    cdef const Block* block = found.block
    if block.heap.kind != heap.kind or block.events != 1 or block.size < size or block.size - size > size // 8:
        return False
    return has_use(found.claimants, pool.device, heap.stream)


cdef Block* claim(Pool* pool, const Heap* heap, size_t size) noexcept nogil:
    # The smallest block that suits, withdrawn; it is PENDING without events.  NULL if none suits.
    cdef Offer* offer = pool.offers
    cdef Offer* best = NULL
    cdef Block* block
    while offer != NULL:
        if fits_claimant(pool, offer, heap, size) and (best == NULL or offer.block.size < best.block.size):
            best = offer
        offer = offer.next
    if best == NULL:
        return NULL
    block = best.block
    drop_event(pool, take_of(&pool.queues, queue_of(&pool.queues, pool.device, pool.watch), block))
    withdraw(pool, block)
    return block


cdef int record_events(Pool* pool) noexcept nogil:
    # Records the events of deferred blocks.  The newest is tried first, when it is freed: what can be recorded
    # is recorded then, because the caller's streams may be destroyed later.  A block with a use on a stream that captures
    # stays deferred, and those before it with it: each of them has such a use too.
    cdef Block* block
    cdef int code
    while pool.deferred != NULL:
        block = pool.deferred
        code = record_block_events(pool, block)
        if code:
            return 0 if code == NOT_READY else code
        pool.deferred = block.left
        if block.events == 0:
            complete(pool, block)
    return 0


cdef void record_all_events(Pool* pool) noexcept nogil:
    # For the end of a capture, after which its streams may be destroyed at any time: the driver may not even be asked
    # about one then.  Another capture may go on, so no block keeps those before it from being tried.
    cdef Block** link = &pool.deferred
    cdef Block* block
    while link[0] != NULL:
        block = link[0]
        if record_block_events(pool, block):
            link = &block.left
            continue
        link[0] = block.left
        if block.events == 0:
            complete(pool, block)


cdef void hand_on_uses(Pool* pool, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # Live blocks have uses by the stream if they were recorded, borrowed or claimed for it.  What it could still claim, a
    # later stream of the same handle may not.
    cdef Block** link = &pool.deferred
    cdef Heap* heap = pool.heaps
    cdef PrivatePool* owner = pool.privates
    cdef Offer* offer = pool.offers if device == pool.device else NULL
    cdef Use** claimant
    cdef Block* block
    cdef size_t index
    while offer != NULL:
        claimant = &offer.claimants
        while claimant[0] != NULL:
            if claimant[0].stream == stream:
                drop_claimant(pool, offer, claimant)
            else:
                claimant = &claimant[0].next
        offer = offer.next
    while link[0] != NULL:
        block = link[0]
        hand_on(&pool.uses, &block.uses, device, stream, heir)
        if block.uses != NULL:
            link = &block.left
            continue
        link[0] = block.left
        if block.events == 0:
            complete(pool, block)
    while owner != NULL:
        hand_on(&pool.uses, &owner.streams, device, stream, heir)
        owner = owner.next
    while heap != NULL and pool.uses.count:
        for index in range(heap.blocks.capacity):
            block = <Block*>heap.blocks.slots[index].value
            if block != NULL and block.state == LIVE:
                hand_on(&pool.uses, &block.uses, device, stream, heir)
        heap = heap.next


cdef void complete_event(const Queue* queue, PooledEvent* event, void* owner) noexcept nogil:
    # For poll_queues.
    cdef Pool* pool = <Pool*>owner
    cdef Block* block = <Block*>event.block
    cdef bint last = drop_event(pool, event)
    if queue.stream == pool.watch:
        withdraw(pool, block)
    if last:
        complete(pool, block)


cdef int poll(Pool* pool) noexcept nogil:
    cdef int code = record_events(pool)
    return poll_queues(pool.table, &pool.queues, complete_event, pool) if code == 0 and pool.queues.pending else code


cdef int await_event(Pool* pool, void* event) noexcept nogil:
    # An UnlockedCall (heaps.pxd).
    return pool.table.event_synchronize((<PooledEvent*>event).device, (<PooledEvent*>event).handle)


cdef int wait_oldest(Pool* pool, PooledEvent* event) noexcept nogil:
    # Waits outside the exclusive section: the work before the event may be a host function that frees memory.  While it
    # is pool.awaited no thread records the event again, so it cannot join a capture, which the wait would break.  The
    # poll that follows handles events that were captured and those of destroyed streams.
    cdef int code
    pool.awaited = event
    code = call_unlocked(pool, await_event, event)
    pool.awaited = NULL
    if event.block == NULL:
        return_event(event)
    elif is_captured_event(code):
        event.captured = True
    return 0 if is_captured_event(code) or meaning_of(code) == GONE else code


cdef int wait_all(Pool* pool) noexcept nogil:
    # Waits for as many events of each queue as it has: what others free meanwhile takes no place of what was freed before.
    cdef int code = record_events(pool)
    cdef size_t count = pool.queues.count
    cdef Queue* queue = next_filled(&pool.queues, 0)
    cdef long left
    while queue != NULL and queue.number < count and code == 0:
        left = length_of(queue)
        while left and code == 0 and can_wait_for(queue):
            left -= 1
            code = wait_oldest(pool, queue.head)
            if code == 0:
                code = poll(pool)
        queue = next_filled(&pool.queues, queue.number + 1)
    return code


# --- miss -------------------------------------------------------------------------------------------------------------
# The miss: what an allocation does when its heap has no block that fits.
#
# Every step that frees memory is followed by a search, so that no request is refused while a fit exists or could be
# made.  Everything here runs in the exclusive section, all but find() also under the growth lock.  Waits, and driver calls
# that take or give back memory, release the exclusive section meanwhile.

cdef enum:
    CAPTURE_LAST = 908
    APART = 16 << 20  # up to so many reserved bytes, streams share no pages before growth was refused
    FEW_SEGMENTS = 32  # below so many segments, a stream's first small request takes no page of another stream's either
    ATTEMPTS = 64  # to grow, since other threads may take the new memory first

cdef double SMALL_SLACK = 1 / 1024.0  # within it small requests grow rather than take pages of other streams
cdef double THRIFTY_SLACK = 0.25  # growth slack over budget, as a part of the peak of live bytes


cdef bint refused(int code) noexcept nogil:
    # By the device or by a limit, not another failure.
    return code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED


cdef int find(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # The best fit of the request's heap, handed out; OUT_OF_MEMORY if there is none.
    cdef Block* block
    if request.heap.guards and confirm_pages(pool, request.heap):
        return NO_HOST_MEMORY
    block = best_fit(request.heap, request.size)
    if block == NULL or not suits(block, request.size, &pool.settings):
        return OUT_OF_MEMORY
    return give(pool, request, block, out_address)


cdef int give(Pool* pool, Request* request, Block* block, uintptr_t* out_address) noexcept nogil:
    # Hands a free block out.  A block of another stream's heap gets the requesting stream as a use, so that it returns
    # to its heap behind that stream's work.
    cdef Use* use = NULL
    cdef int code = ensure_blocks(block.heap, 1)
    if code == 0:
        code = ensure_places(block.heap, 1)
    if code:
        return code
    if request.stream == PER_THREAD or block.heap != request.heap:
        code = add_use(&pool.uses, &use, pool.device, heap_stream(request.stream))
        if code:
            return code
    hand_out(pool, block, request.size, request.requested, keeps_rest(block, request.size))
    block.uses = use
    if block.heap != request.heap:
        record_event(pool, BORROWED, block.address, request.requested, request.stream, block.heap.owner)
    out_address[0] = block.address
    return 0


# --- lending -------------------------------------------------------------------------------------------------

cdef Block* quiescent_fit(Block* node, size_t size) noexcept nogil:
    # The smallest quiescent block of a class's tree, by (size, order), that has at least size bytes; NULL if none.
    cdef Block* best = NULL
    if node == NULL:
        return NULL
    if node.size >= size:
        best = quiescent_fit(node.left, size)
        if best == NULL and is_quiescent(node):
            best = node
    return best if best != NULL else quiescent_fit(node.right, size)


cdef Block* borrowable_in(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    # The smallest quiescent free block of a heap, by (size, order), that suffices; polls the heap's progress first.
    cdef Block* best = NULL
    cdef int index = class_of(size)
    if best_fit(heap, size) == NULL:
        return NULL
    poll_progress(pool, heap)
    while index >= 0 and best == NULL:
        best = quiescent_fit(heap.trees[index], size)
        index = next_class(heap, index) if index + 1 < CLASSES else -1
    return best


cdef bint may_serve(const Heap* heap, const PrivatePool* owner, bint last) noexcept nogil:
    # Whether a heap's free blocks may serve requests of a private pool, or of the common pool (NULL).
    if heap.owner == owner:
        return True
    return last and owner == NULL and heap.owner.lends and not has_graphs(heap.owner) and heap.owner.suspension == NULL


cdef int borrow(Pool* pool, Request* request, int refusal, bint last, uintptr_t* out_address) noexcept nogil:
    # Hands out a quiescent free block of another heap of the same pool; the given refusal if there is none.  Such a
    # block may be part of a page that a live block of its heap keeps there, so that the page cannot be taken as a whole.
    # last: before the request is refused, also of the private pools that lend to the common one.
    cdef Heap* other = pool.heaps if pool.settings.virtual_memory else NULL
    cdef Block* best = NULL
    cdef Block* block
    if confirm_pages(pool, NULL):
        return NO_HOST_MEMORY
    while other != NULL:
        if other != request.heap and may_serve(other, request.heap.owner, last) and other.summary:
            block = borrowable_in(pool, other, request.size)
            if block != NULL and (best == NULL or precedes(block, best)):
                best = block
        other = other.next
    return refusal if best == NULL else give(pool, request, best, out_address)


# --- growth --------------------------------------------------------------------------------------------------

cdef size_t least_segment(const Pool* pool, size_t size) noexcept nogil:
    # The size of the smallest plain segment for a large request: whole granules, unless that would be a block of max_split
    # and more, which serves no request below max_split (suits).
    cdef size_t whole = round_up(size, GRANULE)
    return size if size < pool.settings.max_split <= whole else whole


cdef size_t plain_size(const Pool* pool, const Request* request) noexcept nogil:
    # The size of the plain segment that a request grows by.
    if request.kind == SMALL or pool.settings.virtual_memory and request.size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if request.heap.owner != NULL and request.heap.owner.whole:
        return least_segment(pool, request.size)
    if request.size < min(<size_t>LARGE_LIMIT, pool.settings.large_segment):
        return pool.settings.large_segment
    return least_segment(pool, request.size)


cdef int collect(Pool* pool, size_t size) noexcept nogil:
    # Before growth beyond the collection threshold: gives idle plain segments back, the longest idle first.
    cdef double allowed = pool.settings.collect * pool.limit
    cdef size_t total = reserved(pool) + size
    if pool.settings.collect == 0 or pool.limit == SIZE_MAX or total <= allowed:
        return 0
    return release_plain(pool, <size_t>(total - allowed))


cdef bint within_slack(const Pool* pool, size_t size, size_t need, double slack) noexcept nogil:
    # Whether reserving need more bytes stays within (1 + slack) times the peak of live bytes, the request counted in,
    # and below what the device last refused.
    cdef int64_t peak = max(pool.stats.peak_all[ALLOCATED_BYTES], total_of(pool, ALLOCATED_BYTES) + <int64_t>size)
    cdef size_t total = reserved(pool) + need
    return slack > 0 and total <= (1 + slack) * peak and total < pool.refused


cdef int grow_within(Pool* pool, Request* request, double slack) noexcept nogil:
    # Grows within a slack; CAP_REACHED beyond it.  What the device refused is not tried again until memory went back to
    # it: creating and releasing the pages that come before the refusal is expensive.
    cdef size_t need = need_at_end(pool, request.heap, request.size)
    cdef int code = CAP_REACHED
    if within_slack(pool, request.size, need, slack):
        code = grow_pages(pool, request.heap, need, True)
        if code == OUT_OF_MEMORY:
            pool.refused = reserved(pool) + need
    return code


cdef int reuse_or_stitch(Pool* pool, Request* request, Found* found) noexcept nogil:
    # Reuses a stitched segment, grows within THRIFTY_SLACK if the pool is over its stitching budget, grows by the
    # missing pages, or stitches a new segment: the first of these that applies.
    cdef size_t available
    cdef uint64_t stitched_count
    cdef int code
    if not request.searched:
        request.searched = True
        note_size(pool, request.size)
    available = find_pages(pool, request.heap, request.across, found)
    if available >= request.size and reuse_stitched(pool, request.heap, request.size):
        return 0
    if pool.settings.slack < 0 and is_over_budget(pool):
        code = grow_within(pool, request, THRIFTY_SLACK)
        if code == OUT_OF_MEMORY:  # other threads may have taken the found pages meanwhile
            return 0
        if not refused(code):
            return code
    if available < request.size:
        return grow_pages(pool, request.heap, request.size - available, False)
    if has_too_many_stitched(pool):
        stitched_count = pool.stitched_count
        code = drop_idle_stitched(pool)
        if code or pool.stitched_count < stitched_count:
            return code
    return stitch(pool, request.heap, request.size, found)


cdef int stitch_pages(Pool* pool, Request* request) noexcept nogil:
    # Makes a fit out of free pages, once kept pages are returned to their expandable segments.  0 may also mean that the
    # caller should search again.
    cdef Found found
    cdef int code
    return_all_pages(pool)
    if best_fit(request.heap, request.size) != NULL:
        return 0
    memset(&found, 0, sizeof(found))
    code = reuse_or_stitch(pool, request, &found)
    free(found.runs)
    return code


cdef int grow_by_functions(Pool* pool, Request* request, size_t size) noexcept nogil:
    # Asks two Python functions for a segment, with no lock held: they may allocate and free, and wait.  What comes when it
    # is wanted no more goes back; 0 means search again, of the heap that is the request's by then.
    cdef const Source* source = request.heap.owner.source
    cdef uintptr_t stream = request.heap.stream, address = 0
    cdef int code = within_limits(pool, request.heap, size)
    cdef int refusal
    if code:
        return code
    leave_locks(pool)
    refusal = source.take(source, pool.table, pool.device, size, stream, &address)
    code = take_locks(pool, request)
    if refusal:
        return refusal
    if code == 0 and request.heap.owner != NULL and request.heap.owner.source == source and request.heap.stream == stream:
        code = grow_plain_at(pool, request.heap, size, address)
        if code == 0:
            return 0
    leave_locks(pool)
    source.give(source, pool.table, pool.device, address, size, stream)
    refusal = take_locks(pool, request)
    return code if code else refusal


cdef int grow_by(Pool* pool, Request* request, size_t size) noexcept nogil:
    # A plain segment.
    if is_of_functions(request.heap):
        return grow_by_functions(pool, request, size)
    return grow_plain(pool, request.heap, size)


cdef int hand_returned_back(Pool* pool, Request* request) noexcept nogil:
    # Memory that is to serve the device again is still with Python's functions.
    if not has_returned(pool):
        return 0
    leave_locks(pool)
    return take_locks(pool, request)


cdef int grow_or_stitch(Pool* pool, Request* request) noexcept nogil:
    # Gets more memory for the request's heap, if the device and the limits allow it; 0 means search again.
    cdef int code
    if takes_plain(pool, request.heap):
        code = 0 if pool.settings.virtual_memory else collect(pool, plain_size(pool, request))
        return code if code else grow_by(pool, request, plain_size(pool, request))
    if not pool.settings.stitching:
        return grow_pages(pool, request.heap, need_at_end(pool, request.heap, request.size), True)
    code = grow_within(pool, request, pool.settings.slack)
    return stitch_pages(pool, request) if refused(code) else code


cdef int find_or_grow(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # Alternately searches and grows, until there is a fit or the device or a limit refuses.
    cdef int _attempt
    cdef int code = find(pool, request, out_address)
    for _attempt in range(ATTEMPTS):
        if code != OUT_OF_MEMORY:
            return code
        code = grow_or_stitch(pool, request)
        if code:
            return code
        code = find(pool, request, out_address)
    return code


# --- what goes back ------------------------------------------------------------------------------------------

cdef int await_device(Pool* pool, void* about) noexcept nogil:
    # For call_unlocked: runs outside the exclusive section.
    return pool.table.device_synchronize(pool.device)


cdef int await_replay(Pool* pool, Replay* found) noexcept nogil:
    # Waits for a replay by its progress event, outside the exclusive section.  The event is taken out of the record
    # first: the record may be freed meanwhile, and the stream may begin to capture.
    cdef PooledEvent* event
    cdef int code
    found.waited = True
    if found.progress_event == NULL:
        mark_behind(pool.table, pool.device, found.stream, &found.progress_event)
    # It captures, or it is the legacy default stream and a stream that it waits for captures.
    if found.progress_event == NULL:
        return 0
    event = found.progress_event
    found.progress_event = NULL
    code = call_unlocked(pool, await_event, event)
    return_event(event)
    if code == 0 or is_device_lost(code):
        drop_waited(pool, found)
        return 0
    return 0 if is_captured_event(code) or meaning_of(code) == GONE else code


cdef int wait_progress(Pool* pool, Heap* heap) noexcept nogil:
    # Waits for a heap's progress event, outside the exclusive section.  The event is taken out of the heap first, so
    # that no other thread records it again, perhaps into a capture.
    cdef PooledEvent* event = heap.progress_event
    cdef unsigned int progress_epoch = heap.progress_epoch
    cdef int code
    heap.progress_event = NULL
    code = call_unlocked(pool, await_event, event)
    return_event(event)
    if code == 0 and <int>(progress_epoch - heap.quiescent_epoch) > 0:
        heap.quiescent_epoch = progress_epoch
    return code if meaning_of(code) == FAILED and not is_captured_event(code) else 0


cdef int wait_beside_capture(Pool* pool) noexcept nogil:
    # Waits for each stream that does not capture, one by one.  Heap records are never freed, so the walk may go on after
    # each wait, which releases the exclusive section.
    cdef Heap* heap = pool.heaps
    cdef Replay* replay
    cdef int code = 0
    end_slice()  # not in slices: after a wait that is given up, a capturing stream cannot get a new progress event
    poll_all(pool)
    while heap != NULL and code == 0:
        if heap.progress_event != NULL and not is_heap_quiescent(heap):
            code = wait_progress(pool, heap)
            poll_progress(pool, heap)
        heap = heap.next
    replay = next_replay(pool)
    while code == 0 and replay != NULL:
        code = await_replay(pool, replay)
        replay = next_replay(pool)
    return_all_pages(pool)
    return code


cdef int wait_by(Pool* pool, int (*wait)(Pool* pool, void* about) noexcept nogil, void* about) noexcept nogil:
    cdef int code
    if pool.captures or not enter_wait():
        return NOT_READY
    close_epochs(pool)
    code = call_unlocked(pool, wait, about)
    leave_wait()
    if code:
        cancel_device_wait(pool)
        return code
    mark_all_quiescent(pool)
    return_all_pages(pool)
    return 0


cdef int wait_streams(Pool* pool) noexcept nogil:
    # For the device, or beside a capture for the streams one by one.
    cdef int code
    if pool.first_page == NULL and pool.stitched_count == 0:
        return 0
    code = wait_by(pool, await_device, NULL)
    return wait_beside_capture(pool) if code == NOT_READY else code


cdef bint beside_capture(int code) noexcept nogil:
    # The driver refused because of a capture that accelrt did not begin.
    return CAPTURE_UNSUPPORTED <= code <= CAPTURE_LAST


cdef int evict_leaving(Pool* pool) noexcept nogil:
    # Evicts every marked page.  Each may need two block records of its heap.
    cdef Page* page = pool.first_page
    cdef int code = 0
    while page != NULL and code == 0:
        if page.resident != NULL and page.mark == pool.search:
            code = ensure_blocks(page.resident.segment.heap, 2)
            if code == 0:
                evict(pool, page)
        page = page.after
    return code


cdef int release_pages(Pool* pool) noexcept nogil:
    # Gives idle pages back, after the device was waited for.  Marked pages are evicted before any is released, so that
    # the fast path cannot hand them out while the driver works.
    cdef Page* page
    cdef Page* after
    cdef int code = drop_idle_stitched(pool)
    if code == 0:
        code = mark_leaving(pool)
    if code == 0:
        code = evict_leaving(pool)
    page = pool.first_page
    while page != NULL and code == 0:
        after = page.after
        if page.resident == NULL:
            code = release_page(pool, page)
        page = after
    forget_missing(pool)
    pool.refused = SIZE_MAX
    if code == 0:
        code = trim_all_expandable(pool)
    if pool.first_page == NULL and pool.stitched_count == 0:
        reset_budget(pool)
    return code


cdef int release_free(Pool* pool) noexcept nogil:
    # Gives all idle memory back.  Pages stay if the driver refuses to wait because of a capture of others.
    cdef int code = release_plain(pool, SIZE_MAX)
    if code == 0 and (pool.first != NULL or pool.stitched_count):
        code = wait_streams(pool)
        if code == 0:
            code = release_pages(pool)
        elif beside_capture(code):
            code = 0
    drop_empty(pool)
    drop_progress_events(pool)
    return code


cdef int release_ended(Pool* pool) noexcept nogil:
    # Gives back the idle memory of private pools without a use, once the device was waited for, after which the events of
    # all pending blocks are complete; beside a capture nothing.  Blocks that become free only then are not known to be
    # quiescent before the device was waited for once more.
    cdef long pending
    cdef int code = wait_by(pool, await_device, NULL)
    if code == 0:
        pending = pool.queues.pending
        code = poll(pool)
        if code == 0 and pool.queues.pending < pending:
            code = wait_by(pool, await_device, NULL)
    if code:
        return code
    pool.only_ended = True
    code = release_plain(pool, SIZE_MAX)
    if code == 0 and pool.settings.virtual_memory:
        code = release_pages(pool)
    drop_empty(pool)
    pool.only_ended = False
    return code


cdef int release_with(Pool* pool, PrivatePool* owner) noexcept nogil:
    # As release_free, with the idle memory of one private pool (NULL: of those marked emptied already).
    cdef int code
    if owner != NULL:
        owner.emptied = True
    code = release_free(pool)
    owner = pool.privates  # the release may have freed the given one's record
    while owner != NULL:
        owner.emptied = False
        owner = owner.next
    return code


cdef int release_own(Pool* pool, PrivatePool* owner) noexcept nogil:
    # After POOL_CAP_REACHED only the private pool's idle memory can lift its own limit.
    cdef int code
    if owner == NULL or has_graphs(owner):
        return 0
    pool.only = owner
    code = release_with(pool, owner)
    pool.only = NULL
    return code


cdef int release_pools(Pool* pool, bint* out_any) noexcept nogil:
    # Before a request is refused: gives back what is idle in MemPools in use that no graph uses.
    cdef PrivatePool* owner = pool.privates
    out_any[0] = False
    while owner != NULL:
        owner.emptied = owner.users and owner.reserved and not has_graphs(owner)
        out_any[0] |= owner.emptied
        owner = owner.next
    return release_with(pool, NULL) if out_any[0] else 0


# --- the retry ladder ----------------------------------------------------------------------------------------

cdef void leave_locks(Pool* pool) noexcept nogil:
    # Leaves the exclusive section and releases the growth lock.
    unlock_all(pool, NULL)
    unlock_growth(pool)


cdef int leave_audited(Pool* pool, int code) noexcept nogil:
    # The same at the end of a call that may have changed any heap.  Nothing where there is no pool.
    if pool == NULL:
        return code
    if pool.heaps != NULL:
        count_splits(pool, pool.heaps)
    code = inspected(pool, code)
    leave_locks(pool)
    drop_stack()
    return code


cdef int take_locks(Pool* pool, Request* request) noexcept nogil:
    # Takes both again.  Python may have run meanwhile and have freed the private pool of request.heap, so the heap is
    # looked up again.
    cdef PrivatePool* owner
    cdef int code
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    code = pool_for(pool, request.stream, &owner)
    if code == 0 and owner != NULL and owner.suspension != NULL:
        code = SLEEPING
    if code == 0:
        code = heap_of(pool, owner, heap_stream(request.stream), request.kind, &request.heap)
    return code


cdef int look_for_signals(Pool* pool, Request* request) noexcept nogil:
    # Runs Python's signal handlers with no lock held; INTERRUPTED if one raised.
    cdef bint interrupted
    cdef int code
    leave_locks(pool)
    interrupted = is_to_end()
    code = take_locks(pool, request)
    return INTERRUPTED if interrupted else code


cdef int await_all(Pool* pool) noexcept nogil:
    # Waits for the pending blocks, then for the streams whose free pages other streams may not take yet.
    cdef int code = wait_all(pool)
    return code if code else wait_streams(pool)


cdef int wait_in_slices(Pool* pool, Request* request) noexcept nogil:
    # As await_all, on the main thread: signal handlers run between two slices, with no lock held.  Each slice is twice
    # as long as the one before, so that work which others add cannot prolong the wait for ever.
    cdef long long ns = LOOK_NS
    cdef int code
    while True:
        begin_slice(ns)
        code = await_all(pool)
        end_slice()
        if code != INTERRUPTED:
            return code
        code = look_for_signals(pool, request)
        if code:
            return code
        ns *= 2


cdef int run_callbacks(Pool* pool, Request* request, int refusal, uintptr_t* out_address) noexcept nogil:
    # Runs on_refusal with no lock held, since callbacks may allocate and free; searches again if one freed memory.
    cdef int freed, code
    leave_locks(pool)
    freed = on_refusal(pool.device, request.size)
    code = take_locks(pool, request)
    if code or not freed:
        return code if code else refusal
    code = poll(pool)
    return code if code else find_or_grow(pool, request, out_address)


cdef int last_growth(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # Plain segments: grows by the least size that holds the request.
    cdef size_t least = SMALL_SEGMENT if request.size <= SMALL_LIMIT else least_segment(pool, request.size)
    cdef int code = grow_by(pool, request, least)
    return code if code else find(pool, request, out_address)


cdef int release_and_retry(Pool* pool, Request* request, int refusal, uintptr_t* out_address) noexcept nogil:
    # Gives idle memory back and searches again; first without, then with the memory of MemPools in use.  If a private
    # pool's limit refused, only that pool's own memory helps.
    cdef int code = refusal
    cdef bint more
    pool.stats.num_alloc_retries += 1
    note_news(&pool.stats)
    if refusal == POOL_CAP_REACHED:
        code = release_own(pool, request.heap.owner)
        return code if code else find_or_grow(pool, request, out_address)
    code = release_free(pool)
    if code == 0:
        code = hand_returned_back(pool, request)
    if code == 0:
        code = find_or_grow(pool, request, out_address)
    if refused(code) and code != POOL_CAP_REACHED:
        refusal = code
        code = release_pools(pool, &more)
        if code == 0:
            code = hand_returned_back(pool, request)
        if code == 0:
            code = find_or_grow(pool, request, out_address) if more else refusal
    return code


cdef int read_free(Pool* pool, void* about) noexcept nogil:
    # For call_unlocked: runs outside the exclusive section.
    cdef size_t total = 0
    return pool.table.memory_info(pool.device, <size_t*>about, &total)


cdef void note_refusal(Pool* pool, const Request* request) noexcept nogil:
    cdef size_t free_bytes = 0
    if pool.history != NULL and pool.history.records:
        call_unlocked(pool, read_free, &free_bytes)
        record_event(pool, REFUSED, free_bytes, request.requested, request.stream, request.heap.owner)


cdef bint keeps_apart(Pool* pool, const Request* request) noexcept nogil:
    # Whether the request takes no pages of other streams before growth was refused: otherwise the streams would exchange
    # the same pages again and again.  Small ones do where the pool would grow beyond what was live, for each stream would
    # hold as much as it ever used for them; but a stream of few has a page of its own first, since memory in stitched
    # segments returns by the slow path at each free: threads with a stream each would wait for one another.
    if reserved(pool) + request.size <= APART:
        return True
    if request.size > SMALL_LIMIT:
        return False
    if request.heap.expandable == NULL and current_of(&pool.stats, SEGMENT) < FEW_SEGMENTS:
        return True
    return not has_much_budget(pool) or within_slack(
        pool, request.size, need_at_end(pool, request.heap, request.size), SMALL_SLACK)


cdef bint is_rejected(Pool* pool, const Request* request) noexcept nogil:
    # By throw_on_cudamalloc_oom: beside what is live the request does not fit below the limit, whatever else goes back.
    return pool.settings.rejects and pool.limit != SIZE_MAX \
        and <size_t>total_of(pool, ALLOCATED_BYTES) + request.size > pool.limit


cdef int retry(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # The retry ladder.
    cdef int code = poll(pool)
    if code == 0 and is_rejected(pool, request):
        pool.stats.num_ooms += 1
        pool.stats.num_oom_rejections += 1
        note_refusal(pool, request)
        return CAP_REACHED
    request.across = not pool.settings.stitching or not keeps_apart(pool, request)
    if code == 0:
        code = find_or_grow(pool, request, out_address)
    if refused(code) and not request.across:
        request.across = True
        code = find_or_grow(pool, request, out_address)
    if refused(code) and request.size <= SMALL_LIMIT:
        code = borrow(pool, request, code, False, out_address)
    if not refused(code):
        return code
    pool.stats.num_sync_all_streams += 1
    code = wait_in_slices(pool, request) if request.interruptible else await_all(pool)
    if code == 0 or beside_capture(code):
        code = find_or_grow(pool, request, out_address)
    if refused(code) and on_refusal != NULL:
        code = run_callbacks(pool, request, code, out_address)
    if refused(code):
        code = release_and_retry(pool, request, code, out_address)
    if refused(code) and takes_plain(pool, request.heap):
        code = last_growth(pool, request, out_address)
    if refused(code):
        code = borrow(pool, request, code, True, out_address)
    if refused(code):
        pool.stats.num_ooms += 1
        note_news(&pool.stats)
        note_refusal(pool, request)
    return code
