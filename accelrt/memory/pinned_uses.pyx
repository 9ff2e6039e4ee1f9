"""Page-locked blocks that were given back while a stream may still use them, in their queues (queues.pxd)."""
from libc.stdint cimport uintptr_t

from accelrt.driver.captures cimport GONE, enter_wait, is_captured_event, is_capturing, leave_wait, meaning_of
cimport accelrt.driver.registry as registry
from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.memory.lock cimport spin_lock, spin_unlock
from accelrt.memory.pinned_block cimport DEVICES, PinnedUse
from accelrt.memory.pinned_heap cimport count_freed, doom, set_free
from accelrt.memory.queues cimport (
    Entry, Queue, busy_queue, destroy_entries, enqueue, put_entry, take_complete,
)
from accelrt.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from accelrt.status cimport NOT_READY


cdef int drop_spare_events(PinnedPool* pool) noexcept nogil:
    cdef int device, code = 0
    for device in range(DEVICES):
        if code == 0:
            code = destroy_entries(registry.active(), &pool.spare[device])
    return code


cdef int record_use(PinnedPool* pool, PinnedBlock* block, const PinnedUse* use) noexcept nogil:
    cdef int code = enqueue(
        registry.active(), &pool.queues, &pool.spare[use.device], use.device, use.stream, block,
    )
    if code == 0:
        block.events += 1
        pool.pending += 1
    return 0 if meaning_of(code) == GONE else code  # a stream that is gone uses nothing more


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
    while block.uses != NULL and record_use(pool, block, block.uses) == 0:
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


cdef void complete(PinnedPool* pool, Entry* entry) noexcept nogil:
    # Of an entry in no queue any more.
    cdef PinnedBlock* block = <PinnedBlock*>entry.block
    put_entry(&pool.spare[entry.device], entry)
    block.events -= 1
    if block.events == 0 and block.uses == NULL:
        finish(pool, block)


cdef int poll_queue(PinnedPool* pool, Queue* queue) noexcept nogil:
    cdef int code
    cdef Entry* entry = take_complete(registry.active(), queue, &code)
    while entry != NULL:
        pool.pending -= 1
        complete(pool, entry)
        entry = take_complete(registry.active(), queue, &code)
    return code


cdef int poll(PinnedPool* pool) noexcept nogil:
    # Asking for an event breaks a global-mode capture of any thread, unless the asker is relaxed.
    cdef Queue* queue = pool.queues
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


cdef int synchronize(int device, uintptr_t event) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().event_synchronize(device, event)
        restore_mode(registry.active(), mode)
    return code


cdef int wait_oldest(PinnedPool* pool, Queue* queue) noexcept nogil:
    # The entry is this thread's alone while it waits; order is open, for the work before the event may be a host
    # function that gives memory back.
    cdef Entry* entry = queue.head
    cdef int code
    queue.head = entry.next
    pool.pending -= 1
    pool.awaited += 1
    pthread_mutex_unlock(&pool.order)
    code = synchronize(entry.device, entry.event)
    pthread_mutex_lock(&pool.order)
    pool.awaited -= 1
    if code == 0 or meaning_of(code) == GONE:
        complete(pool, entry)
        return 0
    if is_captured_event(code):  # the next poll records it anew
        entry.lost = True
        code = 0
    entry.next = queue.head
    if queue.head == NULL:
        queue.tail = entry
    queue.head = entry
    pool.pending += 1
    return code


cdef int wait_unrecorded(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # No event can be recorded: the whole device's work is waited for instead.
    cdef int code = 0
    while block.uses != NULL and code == 0:
        if is_capturing(registry.active(), block.uses.device, block.uses.stream, &code):
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
    if not enter_wait():
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
    leave_wait()
    return 0 if code == NOT_READY else code


cdef int wait_all(PinnedPool* pool) noexcept nogil:
    # What is given back while this waits is not waited for.
    cdef Queue* queue
    cdef long left
    cdef int code = poll(pool)
    left = pool.pending
    while left and code == 0:
        left -= 1
        queue = busy_queue(pool.queues)
        if queue == NULL:
            break
        code = wait_oldest(pool, queue)
    if code == 0 and pool.deferred != NULL:
        code = wait_deferred(pool)
    return code
