"""Blocks that were given back while another stream may still use them.

Each stream that used such blocks has a queue of (event, block), oldest first; events of one stream
complete in order, so a poll stops at the first that has not.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc

from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.driver.table cimport CAPTURE_NONE
from accelrt.memory.block cimport PENDING, Entry, Queue, Use
from accelrt.memory.records cimport new_entry, recycle_entry, recycle_use
from accelrt.memory.windows cimport retire
from accelrt.memory.world cimport enter, leave
from accelrt.status cimport CAPTURE_IMPLICIT, NO_HOST_MEMORY, NOT_READY


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
    entry.block = block
    entry.next = NULL
    if queue.head == NULL:
        queue.head = entry
    else:
        queue.tail.next = entry
    queue.tail = entry
    block.events += 1
    pool.pending += 1
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


cdef int wait_all(Pool* pool) noexcept nogil:
    # The world is left while an event is waited for: the work before it may be a host function that frees
    # memory.  Events are recycled, never destroyed, under the growth lock that our caller holds; waiting
    # for one that was recorded anew meanwhile is only longer.  What is given back later is not waited for.
    cdef uintptr_t event
    cdef int mode
    cdef int code = settle(pool)
    cdef unsigned long long left = pool.pending
    pool.stats.num_sync_all_streams += 1
    while left and code == 0:
        left -= 1
        event = oldest_event(pool)
        if event == 0:
            break
        leave(pool, NULL)
        code = go_relaxed(pool.table, &mode)
        if code == 0:
            code = pool.table.event_synchronize(pool.device, event)
            restore_mode(pool.table, mode)
        enter(pool)
        if code == 0:
            code = poll(pool)
    return code
