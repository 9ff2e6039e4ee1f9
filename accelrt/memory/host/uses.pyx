"""Page-locked blocks that were given back while a stream may still use them, in their queues (event_queue.pxd)."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.driver.capture_guard cimport (
    GONE, enter_wait, go_relaxed, is_captured_event, is_capturing, leave_wait, meaning_of, restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.memory.allocator.event_queue cimport (
    Entry, Queue, busy_queue, destroy_entries, enqueue, next_filled, put_back, put_entry, take_complete, take_oldest,
)
from accelrt.memory.host.block cimport DEVICES, PinnedSegment, PinnedUse
from accelrt.memory.host.heap cimport count_freed, detach_doomed, doom, set_free
from accelrt.memory.host.memory cimport give_memory
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
    cdef Entry* entry = take_complete(registry.active(), &pool.queues, queue, &code)
    while entry != NULL:
        pool.pending -= 1
        complete(pool, entry)
        entry = take_complete(registry.active(), &pool.queues, queue, &code)
    return code


cdef int poll(PinnedPool* pool) noexcept nogil:
    # Asking for an event breaks a global-mode capture of any thread, unless the asker is relaxed.
    cdef Queue* queue
    cdef int mode
    cdef int code
    if pool.deferred != NULL:
        settle(pool)
    if pool.pending == 0:
        return 0
    code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    queue = next_filled(&pool.queues, 0)
    while queue != NULL and code == 0:
        code = poll_queue(pool, queue)
        queue = next_filled(&pool.queues, queue.number + 1)
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
    cdef Entry* entry = take_oldest(&pool.queues, queue)
    cdef int code
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
    put_back(&pool.queues, queue, entry)
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
        queue = busy_queue(&pool.queues)
        if queue == NULL:
            break
        code = wait_oldest(pool, queue)
    if code == 0 and pool.deferred != NULL:
        code = wait_deferred(pool)
    return code


# --- the thread that polls page-locked blocks in use, so that no allocation has to ------------------------

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    enum: CLOCK_REALTIME
    int clock_gettime(int clock, timespec* out_now)

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t* thread, void* attributes, void* (*run)(void*) noexcept, void* argument)
    int pthread_join(pthread_t thread, void** result)
    int pthread_cond_init(pthread_cond_t* condition, void* attributes)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until)

cdef enum:
    PERIOD = 100000  # nanoseconds between two polls

# Guarded by the pool's order.  In memory of its own: a child starts with a new one, for a condition that some
# thread waited on at the fork cannot be initialised anew.
cdef struct Watch:
    pthread_t thread
    pthread_cond_t changed
    bint running
    bint stopping
    bint closed    # the process ends: no thread is started any more

cdef Watch* it = NULL


cdef void sleep_a_period(PinnedPool* pool) noexcept nogil:
    cdef timespec until
    clock_gettime(CLOCK_REALTIME, &until)
    until.tv_nsec += PERIOD
    if until.tv_nsec >= 1000000000:
        until.tv_sec += 1
        until.tv_nsec -= 1000000000
    pthread_cond_timedwait(&it.changed, &pool.order, &until)


cdef void give_doomed_back(PinnedPool* pool) noexcept nogil:
    # Order is open, for the driver waits for the device's work.
    cdef PinnedSegment* segments
    if not enter_wait():
        return
    spin_lock(&pool.lock)
    segments = detach_doomed(pool)
    spin_unlock(&pool.lock)
    if segments != NULL:
        pthread_mutex_unlock(&pool.order)
        give_memory(pool, segments)
        pthread_mutex_lock(&pool.order)
    leave_wait()


cdef void* run(void* data) noexcept nogil:
    # What a poll is refused stays pending, and the next wait_all tells its caller of it.
    cdef PinnedPool* pool = <PinnedPool*>data
    pthread_mutex_lock(&pool.order)
    while not it.stopping:
        if pool.pending == 0 and pool.deferred == NULL:
            pthread_cond_wait(&it.changed, &pool.order)
            continue
        poll(pool)
        give_doomed_back(pool)
        if not it.stopping:
            sleep_a_period(pool)
    pthread_mutex_unlock(&pool.order)
    return NULL


cdef void watch(PinnedPool* pool) noexcept nogil:
    # Without a thread, misses poll as they do without the setting.
    global it
    if it == NULL:
        it = <Watch*>calloc(1, sizeof(Watch))
        if it == NULL:
            return
        pthread_cond_init(&it.changed, NULL)
    if it.running:
        pthread_cond_signal(&it.changed)
    elif not it.closed:
        it.running = pthread_create(&it.thread, NULL, run, pool) == 0


cdef void stop_watch(PinnedPool* pool, bint for_good) noexcept nogil:
    cdef bint join = False
    pthread_mutex_lock(&pool.order)
    if it != NULL:
        it.closed = it.closed or for_good
        join = it.running and not it.stopping
        it.stopping = it.running
        pthread_cond_signal(&it.changed)
    pthread_mutex_unlock(&pool.order)
    if join:
        pthread_join(it.thread, NULL)
        pthread_mutex_lock(&pool.order)
        it.running = it.stopping = False
        pthread_mutex_unlock(&pool.order)


cdef bint watching() noexcept nogil:
    return it != NULL and it.running and not it.stopping


cdef void forget_watch() noexcept nogil:
    global it
    it = NULL
