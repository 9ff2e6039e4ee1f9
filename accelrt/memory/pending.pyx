"""Blocks that were given back while another stream may still use them.

Each stream that used such blocks has a queue of (event, block), oldest first; events of one stream
complete in order, so a poll stops at the first that has not.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.driver.table cimport CAPTURE_NONE, STREAM_NON_BLOCKING
from accelrt.memory.block cimport PENDING, Entry, Heap, Use
from accelrt.memory.records cimport heap_of, new_entry, new_use, recycle_entry, recycle_use
from accelrt.memory.state cimport Offer, Queue
from accelrt.memory.windows cimport retire
from accelrt.memory.world cimport count_freed, outside
from accelrt.status cimport CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, NO_HOST_MEMORY, NOT_READY


cdef void defer(Pool* pool, Block* block) noexcept nogil:
    block.state = PENDING
    block.heap.pending += 1
    block.left = pool.deferred
    pool.deferred = block


cdef void finish(Pool* pool, Block* block) noexcept nogil:
    block.heap.pending -= 1
    retire(pool, block)


cdef Queue* queue_of(Pool* pool, uintptr_t stream) noexcept nogil:
    # One a stream, kept, in the order of their first use: as many as streams that ever shared memory.
    cdef Queue** link = &pool.queues
    while link[0] != NULL and link[0].stream != stream:
        link = &link[0].next
    if link[0] == NULL:
        link[0] = <Queue*>calloc(1, sizeof(Queue))
        if link[0] != NULL:
            link[0].stream = stream
    return link[0]


cdef void push(Pool* pool, Queue* queue, Entry* entry, Block* block) noexcept nogil:
    entry.block = block
    entry.next = NULL
    if queue.head == NULL:
        queue.head = entry
    else:
        queue.tail.next = entry
    queue.tail = entry
    block.events += 1
    pool.pending += 1


cdef int enqueue(Pool* pool, Block* block, uintptr_t stream) noexcept nogil:
    # NOT_READY where somebody else captures the stream: an event recorded there would become part of the
    # capture and never be complete.
    cdef Queue* queue = queue_of(pool, stream)
    cdef Entry* entry
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    cdef int code = pool.table.capture_status(pool.device, stream, &status, &capture)
    if code == CAPTURE_IMPLICIT or status != CAPTURE_NONE:
        return NOT_READY
    if code:
        return code
    if queue == NULL:
        return NO_HOST_MEMORY
    code = new_entry(pool, &entry)
    if code:
        return code
    code = pool.table.event_record(pool.device, entry.event, stream)
    if code:
        recycle_entry(pool, entry)
        return code
    push(pool, queue, entry, block)
    return 0


cdef int settle_block(Pool* pool, Block* block) noexcept nogil:
    cdef Use* use
    cdef int code
    while block.uses != NULL:
        use = block.uses
        code = enqueue(pool, block, use.stream)
        if code:
            return code
        block.uses = use.next
        recycle_use(pool, use)
    return 0


# --- blocks that were freed as of an event -------------------------------------------------------------------

cdef int see_to_watch(Pool* pool) noexcept nogil:
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
    # An event of our own behind the caller's, who may record his anew.
    cdef Entry* entry
    cdef int code = new_entry(pool, &entry)
    if code:
        return code
    code = pool.table.stream_wait_event(pool.device, pool.watch, event)
    if code == 0:
        code = pool.table.event_record(pool.device, entry.event, pool.watch)
    if code:
        recycle_entry(pool, entry)
        return code
    push(pool, queue, entry, block)
    return 0


cdef int offer(Pool* pool, Block* block, uintptr_t event, uint64_t record) noexcept nogil:
    cdef Queue* queue
    cdef Offer* made
    cdef int code
    if pool.captures:
        return CAPTURE_UNSUPPORTED
    code = see_to_watch(pool)
    if code:
        return code
    queue = queue_of(pool, pool.watch)
    made = <Offer*>calloc(1, sizeof(Offer))
    if queue == NULL or made == NULL:
        free(made)
        return NO_HOST_MEMORY
    code = watch(pool, queue, block, event)
    if code:
        free(made)
        return code
    count_freed(pool, block)
    if settle_block(pool, block):  # tried again like all that is deferred, and offered to nobody
        free(made)
        defer(pool, block)
        return 0
    block.state = PENDING
    block.heap.pending += 1
    made.block = block
    made.record = record
    made.next = pool.offers
    pool.offers = made
    return 0


cdef void withdraw(Pool* pool, Block* block) noexcept nogil:
    # Where it is offered: it is free now, or taken.
    cdef Offer** link = &pool.offers
    cdef Offer* found
    cdef Use* taker
    cdef Heap* heap
    while link[0] != NULL and link[0].block != block:
        link = &link[0].next
    found = link[0]
    if found == NULL:
        return
    link[0] = found.next
    while found.takers != NULL:
        taker = found.takers
        found.takers = taker.next
        if heap_of(pool, NULL, taker.stream, block.heap.kind, &heap) == 0:
            heap.offered -= 1
        recycle_use(pool, taker)
    free(found)


cdef int note_wait(Pool* pool, uintptr_t stream, uint64_t record) noexcept nogil:
    # The stream's work from now on runs behind the event.
    cdef Offer* found = pool.offers
    cdef Heap* heap
    cdef Use* taker
    cdef int code
    while found != NULL:
        if found.record == record and not takes(found, stream):
            code = heap_of(pool, NULL, stream, found.block.heap.kind, &heap)
            taker = new_use(pool) if code == 0 else NULL
            if taker == NULL:
                return NO_HOST_MEMORY
            taker.stream = stream
            taker.next = found.takers
            found.takers = taker
            heap.offered += 1
        found = found.next
    return 0


cdef bint takes(const Offer* found, uintptr_t stream) noexcept nogil:
    cdef const Use* taker = found.takers
    while taker != NULL and taker.stream != stream:
        taker = taker.next
    return taker != NULL


cdef void drop_entry(Pool* pool, Block* block) noexcept nogil:
    # Out of the watch's queue.
    cdef Queue* queue = queue_of(pool, pool.watch)
    cdef Entry* before = NULL
    cdef Entry* entry = queue.head
    while entry.block != block:
        before = entry
        entry = entry.next
    if before == NULL:
        queue.head = entry.next
    else:
        before.next = entry.next
    if queue.tail == entry:
        queue.tail = before
    recycle_entry(pool, entry)
    pool.pending -= 1
    block.events -= 1


cdef Block* accept(Pool* pool, uintptr_t stream, size_t size) noexcept nogil:
    # The smallest block that the stream was handed and that the size nearly fills; PENDING with no events.
    cdef Offer* found = pool.offers
    cdef Offer* best = NULL
    cdef Block* block
    while found != NULL:
        block = found.block
        if block.events == 1 and block.size >= size and block.size - size <= size // 8 and takes(found, stream):
            if best == NULL or block.size < best.block.size:
                best = found
        found = found.next
    if best == NULL:
        return NULL
    block = best.block
    drop_entry(pool, block)
    withdraw(pool, block)
    return block


cdef int settle(Pool* pool) noexcept nogil:
    # An event recorded on a capturing stream would become part of the capture, so all wait for its end.
    # A block whose events cannot be recorded stays deferred and is tried again next time.
    cdef Block* block
    cdef int code
    if pool.captures:
        return 0
    while pool.deferred != NULL:
        block = pool.deferred
        code = settle_block(pool, block)
        if code:
            return 0 if code == NOT_READY else code
        pool.deferred = block.left
        if block.events == 0:
            finish(pool, block)
    return 0


cdef int poll_queue(Pool* pool, Queue* queue) noexcept nogil:
    cdef Entry* entry
    cdef Block* block
    cdef int code
    while queue.head != NULL:
        entry = queue.head
        code = pool.table.event_query(pool.device, entry.event)
        if code:
            return 0 if code == NOT_READY else code
        queue.head = entry.next
        block = entry.block
        recycle_entry(pool, entry)
        pool.pending -= 1
        block.events -= 1
        if block.events == 0 and block.uses == NULL:
            withdraw(pool, block)
            finish(pool, block)
    return 0


cdef int poll(Pool* pool) noexcept nogil:
    # Asking for an event breaks a global-mode capture of any thread, unless the asker is relaxed.
    cdef Queue* queue = pool.queues
    cdef int mode
    cdef int code = settle(pool)
    if code or pool.pending == 0:
        return code
    code = go_relaxed(pool.table, &mode)
    if code:
        return code
    while queue != NULL and code == 0:
        code = poll_queue(pool, queue)
        queue = queue.next
    restore_mode(pool.table, mode)
    return code


cdef uintptr_t oldest_event(Pool* pool) noexcept nogil:
    cdef Queue* queue = pool.queues
    while queue != NULL and queue.head == NULL:
        queue = queue.next
    return queue.head.event if queue != NULL else 0


cdef int await_event(Pool* pool, void* event) noexcept nogil:
    return pool.table.event_synchronize(pool.device, (<uintptr_t*>event)[0])


cdef int wait_all(Pool* pool) noexcept nogil:
    # The world is left while an event is waited for: the work before it may be a host function that frees
    # memory.  Events are recycled, never destroyed, under the growth lock that our caller holds; waiting
    # for one that was recorded anew meanwhile is only longer.  What is given back later is not waited for.
    cdef uintptr_t event
    cdef int code = settle(pool)
    cdef unsigned long long left = pool.pending
    pool.stats.num_sync_all_streams += 1
    while left and code == 0:
        left -= 1
        event = oldest_event(pool)
        if event == 0:
            break
        code = outside(pool, await_event, &event)
        if code == 0:
            code = poll(pool)
    return code
