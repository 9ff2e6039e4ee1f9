"""Page-locked blocks that were given back while a stream may still use them.

When such a block is given back, one event is recorded on each stream that used it.  Each stream has a queue of
(event, block), oldest first; events of one stream complete in order, so a poll stops at the first that has not.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.capture cimport captures_open
cimport accelrt.driver.registry as registry
from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.driver.table cimport CAPTURE_NONE, EVENT_DISABLE_TIMING
from accelrt.memory.lock cimport spin_lock, spin_unlock
from accelrt.memory.pinned_block cimport DEVICES, PinnedEntry, PinnedQueue, PinnedUse
from accelrt.memory.pinned_heap cimport count_freed, doom, set_free
from accelrt.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from accelrt.status cimport CAPTURE_IMPLICIT, NO_HOST_MEMORY, NOT_READY


cdef int new_entry(PinnedPool* pool, int device, PinnedEntry** out_entry) noexcept nogil:
    cdef PinnedEntry* entry = pool.spare[device]
    cdef int code
    if entry != NULL:
        pool.spare[device] = entry.next
        out_entry[0] = entry
        return 0
    entry = <PinnedEntry*>calloc(1, sizeof(PinnedEntry))
    if entry == NULL:
        return NO_HOST_MEMORY
    code = registry.active().event_create(device, EVENT_DISABLE_TIMING, &entry.event)
    if code:
        free(entry)
        return code
    entry.device = device
    out_entry[0] = entry
    return 0


cdef void recycle_entry(PinnedPool* pool, PinnedEntry* entry) noexcept nogil:
    entry.block = NULL
    entry.next = pool.spare[entry.device]
    pool.spare[entry.device] = entry


cdef int drop_spare_events(PinnedPool* pool) noexcept nogil:
    cdef PinnedEntry* entry
    cdef int device, code
    for device in range(DEVICES):
        while pool.spare[device] != NULL:
            entry = pool.spare[device]
            code = registry.active().event_destroy(device, entry.event)
            if code:
                return code
            pool.spare[device] = entry.next
            free(entry)
    return 0


cdef PinnedQueue* queue_of(PinnedPool* pool, int device, uintptr_t stream) noexcept nogil:
    # Kept: as many as streams that were ever behind when page-locked memory came back.
    cdef PinnedQueue** link = &pool.queues
    while link[0] != NULL and not (link[0].stream == stream and link[0].device == device):
        link = &link[0].next
    if link[0] == NULL:
        link[0] = <PinnedQueue*>calloc(1, sizeof(PinnedQueue))
        if link[0] != NULL:
            link[0].device = device
            link[0].stream = stream
    return link[0]


cdef bint capturing(int device, uintptr_t stream, int* out_code) noexcept nogil:
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(device, stream, &status, &capture)
    out_code[0] = 0 if code == CAPTURE_IMPLICIT else code
    return code == CAPTURE_IMPLICIT or (code == 0 and status != CAPTURE_NONE)


cdef int enqueue(PinnedPool* pool, PinnedBlock* block, int device, uintptr_t stream) noexcept nogil:
    # NOT_READY where the stream captures: an event recorded there would become part of the capture and never be
    # complete.
    cdef PinnedQueue* queue = queue_of(pool, device, stream)
    cdef PinnedEntry* entry
    cdef int code
    if queue == NULL:
        return NO_HOST_MEMORY
    if capturing(device, stream, &code):
        return NOT_READY
    if code == 0:
        code = new_entry(pool, device, &entry)
    if code:
        return code
    code = registry.active().event_record(device, entry.event, stream)
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


cdef void drop_use(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    cdef PinnedUse* use = block.uses
    spin_lock(&pool.lock)
    block.uses = use.next
    use.next = pool.spare_uses
    pool.spare_uses = use
    spin_unlock(&pool.lock)


cdef void finish(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # No stream uses it any more.
    spin_lock(&pool.lock)
    count_freed(pool, block)
    if block.segment.uncached:
        doom(pool, block)
    else:
        set_free(pool, block)
    spin_unlock(&pool.lock)


cdef void put_deferred(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    block.right = pool.deferred
    pool.deferred = block


cdef void defer(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # A block whose events cannot be recorded now waits with the rest of its uses, and is tried again.
    while block.uses != NULL and enqueue(pool, block, block.uses.device, block.uses.stream) == 0:
        drop_use(pool, block)
    if block.uses != NULL:
        put_deferred(pool, block)
    elif block.events == 0:
        finish(pool, block)


cdef void settle(PinnedPool* pool) noexcept nogil:
    cdef PinnedBlock* left = pool.deferred
    cdef PinnedBlock* block
    pool.deferred = NULL
    while left != NULL:
        block = left
        left = block.right
        defer(pool, block)


cdef void complete(PinnedPool* pool, PinnedEntry* entry) noexcept nogil:
    # Of an entry in no queue any more.
    cdef PinnedBlock* block = entry.block
    recycle_entry(pool, entry)
    block.events -= 1
    if block.events == 0 and block.uses == NULL:
        finish(pool, block)


cdef int poll_queue(PinnedPool* pool, PinnedQueue* queue) noexcept nogil:
    cdef PinnedEntry* entry
    cdef int code
    while queue.head != NULL:
        entry = queue.head
        code = registry.active().event_query(queue.device, entry.event)
        if code:
            return 0 if code == NOT_READY else code
        queue.head = entry.next
        pool.pending -= 1
        complete(pool, entry)
    return 0


cdef int poll(PinnedPool* pool) noexcept nogil:
    # Asking for an event breaks a global-mode capture of any thread, unless the asker is relaxed.
    cdef PinnedQueue* queue = pool.queues
    cdef int mode
    cdef int code
    if pool.deferred != NULL:
        settle(pool)
    if pool.pending == 0:
        return 0
    code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    while queue != NULL and code == 0:
        code = poll_queue(pool, queue)
        queue = queue.next
    restore_mode(registry.active(), mode)
    return code


cdef PinnedQueue* busy_queue(PinnedPool* pool) noexcept nogil:
    cdef PinnedQueue* queue = pool.queues
    while queue != NULL and queue.head == NULL:
        queue = queue.next
    return queue


cdef int synchronize(int device, uintptr_t event) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().event_synchronize(device, event)
        restore_mode(registry.active(), mode)
    return code


cdef int wait_oldest(PinnedPool* pool, PinnedQueue* queue) noexcept nogil:
    # The entry is this thread's alone while it waits; order is open, for the work before the event may be a host
    # function that gives memory back.
    cdef PinnedEntry* entry = queue.head
    cdef int code
    queue.head = entry.next
    pool.pending -= 1
    pool.awaited += 1
    pthread_mutex_unlock(&pool.order)
    code = synchronize(entry.device, entry.event)
    pthread_mutex_lock(&pool.order)
    pool.awaited -= 1
    if code == 0:
        complete(pool, entry)
        return 0
    entry.next = queue.head
    if queue.head == NULL:
        queue.tail = entry
    queue.head = entry
    pool.pending += 1
    return code


cdef int wait_unrecorded(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # No event can be recorded, for the stream is gone, say: the whole device's work is waited for instead.
    cdef int code = 0
    while block.uses != NULL and code == 0:
        if capturing(block.uses.device, block.uses.stream, &code):
            return NOT_READY
        pthread_mutex_unlock(&pool.order)
        code = registry.active().device_synchronize(block.uses.device)
        pthread_mutex_lock(&pool.order)
        if code == 0:
            drop_use(pool, block)
    return code


cdef int wait_deferred(PinnedPool* pool) noexcept nogil:
    cdef PinnedBlock* left = pool.deferred
    cdef PinnedBlock* block
    cdef int code = 0
    if captures_open():  # the device cannot be waited for then
        return 0
    pool.deferred = NULL
    pool.awaited += 1
    while left != NULL:
        block = left
        left = block.right
        if code == 0 or code == NOT_READY:
            code = wait_unrecorded(pool, block)
        if block.uses != NULL:
            put_deferred(pool, block)
        elif block.events == 0:
            finish(pool, block)
    pool.awaited -= 1
    return 0 if code == NOT_READY else code


cdef int wait_all(PinnedPool* pool) noexcept nogil:
    # What is given back while this waits is not waited for.
    cdef PinnedQueue* queue
    cdef long left
    cdef int code = poll(pool)
    left = pool.pending
    while left and code == 0:
        left -= 1
        queue = busy_queue(pool)
        if queue == NULL:
            break
        code = wait_oldest(pool, queue)
    if code == 0 and pool.deferred != NULL:
        code = wait_deferred(pool)
    return code
