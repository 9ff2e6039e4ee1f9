"""Blocks that were freed while another stream may still use them, in the pool's queues (event_queue.pxd).

Everything here runs in the exclusive section, which is released only while an event is waited for.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from accelrt.driver.capture_guard cimport (
    GONE, go_relaxed, is_captured_event, is_capturing, meaning_of, restore_mode,
)
from accelrt.driver.table cimport STREAM_NON_BLOCKING
from accelrt.allocator.backing.stitching cimport free_block
from accelrt.allocator.event_queue cimport (
    Entry, Queue, busy_queue, enqueue, next_filled, push, put_entry, queue_of, take_complete, take_entry, take_of,
)
from accelrt.allocator.event_ring cimport record_event
from accelrt.allocator.exclusive cimport call_unlocked, count_freed
from accelrt.allocator.history_types cimport OFFERED
from accelrt.allocator.metadata cimport PER_THREAD, add_use, has_use, heap_of, recycle_use
from accelrt.allocator.types cimport LIVE, PENDING, Use
from accelrt.status cimport CAPTURED_EVENT, NOT_READY, NO_HOST_MEMORY


cdef void defer(Pool* pool, Block* block) noexcept nogil:
    block.state = PENDING
    block.heap.pending += 1
    block.left = pool.deferred
    pool.deferred = block


cdef void complete(Pool* pool, Block* block) noexcept nogil:
    # Frees a pending block that waits for no event and has no use without an event.
    block.heap.pending -= 1
    free_block(pool, block)


cdef int record_use(Pool* pool, Block* block, const Use* use) noexcept nogil:
    # Records an event behind the stream's work and queues it for the block; NOT_READY if the stream captures.
    cdef int code = enqueue(pool.table, &pool.queues, &pool.spare_entries, use.device, use.stream, block)
    if code == 0:
        block.events += 1
        pool.pending += 1
    return code


cdef bint drop_entry(Pool* pool, Entry* entry) noexcept nogil:
    # For an entry that is in no queue any more.  Returns whether its block waits for nothing else.  The entry of an
    # event that a thread waits for stays: that thread recycles it.
    cdef Block* block = <Block*>entry.block
    if entry == pool.awaited:
        entry.block = NULL
    else:
        put_entry(&pool.spare_entries, entry)
    pool.pending -= 1
    block.events -= 1
    return block.events == 0 and block.uses == NULL


cdef int record_block_events(Pool* pool, Block* block) noexcept nogil:
    # Records an event for each of the block's uses.  Uses on streams that capture stay, and the answer is NOT_READY; a
    # stream that was destroyed uses nothing any more.
    cdef Use** link = &block.uses
    cdef Use* use
    cdef int code, answer = 0
    while link[0] != NULL:
        use = link[0]
        code = record_use(pool, block, use)
        if code == NOT_READY:
            answer = code
            link = &use.next
            continue
        if code and meaning_of(code) != GONE:
            return code
        link[0] = use.next
        recycle_use(pool, use)
    return answer


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
    cdef Entry* entry
    cdef int code = take_entry(pool.table, pool.device, &pool.spare_entries, &entry)
    if code:
        return code
    code = pool.table.stream_wait_event(pool.device, pool.watch, event)
    if code == 0 and is_capturing(pool.table, pool.device, pool.watch, &code):
        code = CAPTURED_EVENT
    if code == 0:
        code = pool.table.event_record(pool.device, entry.event, pool.watch)
    if code:
        put_entry(&pool.spare_entries, entry)
        return code
    push(&pool.queues, queue, entry, block)
    block.events += 1
    pool.pending += 1
    return 0


cdef int offer(Pool* pool, Block* block, uintptr_t event, uint64_t record) noexcept nogil:
    # Frees a live block as of the event.  On failure the block stays live.
    cdef Queue* queue
    cdef Offer* made
    cdef int code = ensure_watch(pool)
    if code:
        return code
    queue = queue_of(&pool.queues, pool.device, pool.watch)
    made = <Offer*>calloc(1, sizeof(Offer))
    if queue == NULL or made == NULL:
        free(made)
        return NO_HOST_MEMORY
    code = watch(pool, queue, block, event)
    if code:
        free(made)
        return code
    count_freed(pool, block)
    if record_block_events(pool, block):  # deferred: recorded again later, and not offered
        free(made)
        defer(pool, block)
        return 0
    block.state = PENDING
    block.heap.pending += 1
    record_event(pool, OFFERED, block.address, block.requested, block.heap.stream, block.heap.owner)
    made.block = block
    made.record = record
    made.next = pool.offers
    store_offers(&pool.offers, made)
    return 0


cdef void drop_claimant(Pool* pool, const Offer* found, Use** link) noexcept nogil:
    cdef Use* claimant = link[0]
    cdef Heap* heap
    link[0] = claimant.next
    if heap_of(pool, NULL, claimant.stream, found.block.heap.kind, &heap) == 0:
        heap.offered -= 1
    recycle_use(pool, claimant)


cdef void withdraw(Pool* pool, Block* block) noexcept nogil:
    # Removes the block's offer, if it has one: its event is complete, or it was claimed.
    cdef Offer** link = &pool.offers
    cdef Offer* found
    while link[0] != NULL and link[0].block != block:
        link = &link[0].next
    found = link[0]
    if found == NULL:
        return
    store_offers(link, found.next)
    while found.claimants != NULL:
        drop_claimant(pool, found, &found.claimants)
    free(found)


cdef int note_wait(Pool* pool, uintptr_t stream, uint64_t record) noexcept nogil:
    # Makes the stream a claimant of the recording's offers: its work from now on runs behind the event.  Memory of a
    # private pool stays in that pool, whose graphs may be replayed while the memory is free.
    cdef Offer* found = pool.offers
    cdef Heap* heap
    cdef int code
    if stream == PER_THREAD:  # one handle for many streams: which of them waits is unknown
        return 0
    while found != NULL:
        if found.record == record and found.block.heap.owner == NULL and not has_use(found.claimants, pool.device, stream):
            code = heap_of(pool, NULL, stream, found.block.heap.kind, &heap)
            if code == 0:
                code = add_use(pool, &found.claimants, pool.device, stream)
            if code:
                return code
            heap.offered += 1
        found = found.next
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
    cdef Offer* found = pool.offers
    cdef Offer* best = NULL
    cdef Block* block
    while found != NULL:
        if fits_claimant(pool, found, heap, size) and (best == NULL or found.block.size < best.block.size):
            best = found
        found = found.next
    if best == NULL:
        return NULL
    block = best.block
    drop_entry(pool, take_of(&pool.queues, queue_of(&pool.queues, pool.device, pool.watch), block))
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


cdef void hand_on_uses_of(Pool* pool, Block* block, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    cdef Use** link = &block.uses
    cdef Use* use
    cdef bint known = heir == 0 or has_use(block.uses, device, heir)
    while link[0] != NULL:
        use = link[0]
        if use.stream == stream and use.device == device:
            if not known:
                known = True
                use.stream = heir
                link = &use.next
                continue
            link[0] = use.next
            recycle_use(pool, use)
        else:
            link = &use.next


cdef void hand_on_uses(Pool* pool, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # Live blocks have uses by the stream if they were recorded, borrowed or claimed for it.  What it could still claim, a
    # later stream of the same handle may not.
    cdef Block** link = &pool.deferred
    cdef Heap* heap = pool.heaps
    cdef Offer* found = pool.offers if device == pool.device else NULL
    cdef Use** claimant
    cdef Block* block
    cdef size_t index
    while found != NULL:
        claimant = &found.claimants
        while claimant[0] != NULL:
            if claimant[0].stream == stream:
                drop_claimant(pool, found, claimant)
            else:
                claimant = &claimant[0].next
        found = found.next
    while link[0] != NULL:
        block = link[0]
        hand_on_uses_of(pool, block, device, stream, heir)
        if block.uses != NULL:
            link = &block.left
            continue
        link[0] = block.left
        if block.events == 0:
            complete(pool, block)
    while heap != NULL and pool.uses:
        for index in range(heap.blocks.capacity):
            block = <Block*>heap.blocks.slots[index].value
            if block != NULL and block.state == LIVE:
                hand_on_uses_of(pool, block, device, stream, heir)
        heap = heap.next


cdef int poll_queue(Pool* pool, Queue* queue) noexcept nogil:
    # Frees what the complete events of one queue release.  In relaxed capture mode.
    cdef Block* block
    cdef bint last
    cdef int code
    cdef Entry* entry = take_complete(pool.table, &pool.queues, queue, &code)
    while entry != NULL:
        block = <Block*>entry.block
        last = drop_entry(pool, entry)
        if queue.stream == pool.watch:
            withdraw(pool, block)
        if last:
            complete(pool, block)
        entry = take_complete(pool.table, &pool.queues, queue, &code)
    return code


cdef int poll(Pool* pool) noexcept nogil:
    # A query of an event breaks a global-mode capture of any thread, unless the thread that queries is in relaxed mode.
    cdef Queue* queue = next_filled(&pool.queues, 0)
    cdef int mode
    cdef int code = record_events(pool)
    if code or pool.pending == 0:
        return code
    code = go_relaxed(pool.table, &mode)
    if code:
        return code
    while queue != NULL and code == 0:
        code = poll_queue(pool, queue)
        queue = next_filled(&pool.queues, queue.number + 1)
    restore_mode(pool.table, mode)
    return code


cdef int await_event(Pool* pool, void* entry) noexcept nogil:
    return pool.table.event_synchronize((<Entry*>entry).device, (<Entry*>entry).event)


cdef int wait_oldest(Pool* pool, Entry* entry) noexcept nogil:
    # Waits outside the exclusive section: the work before the event may be a host function that frees memory.  While it
    # is pool.awaited no thread records the event again, so it cannot join a capture, which the wait would break.  The
    # poll that follows handles events that were captured and those of destroyed streams.
    cdef int code
    pool.awaited = entry
    code = call_unlocked(pool, await_event, entry)
    pool.awaited = NULL
    if entry.block == NULL:
        put_entry(&pool.spare_entries, entry)
    elif is_captured_event(code):
        entry.lost = True
    return 0 if is_captured_event(code) or meaning_of(code) == GONE else code


cdef int wait_all(Pool* pool) noexcept nogil:
    # Waits for as many events as are queued now; blocks that are freed later are not waited for.
    cdef Queue* queue
    cdef int code = record_events(pool)
    cdef unsigned long long left = pool.pending
    while left and code == 0:
        left -= 1
        queue = busy_queue(&pool.queues)
        if queue == NULL:
            break
        code = wait_oldest(pool, queue.head)
        if code == 0:
            code = poll(pool)
    return code
