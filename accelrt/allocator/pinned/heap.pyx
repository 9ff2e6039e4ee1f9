"""Blocks of page-locked memory: free lists, the driver's segments, and blocks in use when they are given back.

The lists, splitting and merging are under the pool's lock, and know no driver.  Segments are taken and given back
under no lock.  What is known of uses is under the pool's order, and never under its lock.
"""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from accelrt.core.handle_map cimport map_find
from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.driver.capture_guard cimport (
    GONE, enter_wait, go_relaxed, is_captured_event, is_capturing, is_device_lost, leave_wait, meaning_of, restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.allocator.event_queue cimport (
    Entry, Queue, busy_queue, destroy_entries, enqueue, next_filled, put_back, put_entry, take_complete, take_oldest,
)
from accelrt.allocator.pinned.block cimport (
    DEVICES, LEAVING, PAGE, SMALL, STEP, PinnedSegment, PinnedSettings, PinnedUse, log2_floor, time_call,
)
from accelrt.status cimport NOT_READY, NO_HOST_MEMORY, OUT_OF_MEMORY

cdef enum:
    SLAB = 64   # records taken at once
    LOOKS = 16  # at blocks of a list that may be too small


cdef PinnedBlock* new_block_slow(PinnedPool* pool) noexcept nogil:
    # Never given back before the process ends: 96 bytes beside blocks of at least 64, mostly far more.
    cdef PinnedBlock* slab = <PinnedBlock*>calloc(SLAB, sizeof(PinnedBlock))
    cdef int index
    if slab == NULL:
        return NULL
    for index in range(SLAB - 1):
        slab[index].right = &slab[index + 1]
    pool.spare_blocks = slab
    return slab


cdef PinnedSegment* new_segment(uintptr_t address, size_t size, int kind) noexcept nogil:
    cdef PinnedSegment* segment = <PinnedSegment*>calloc(1, sizeof(PinnedSegment))
    if segment == NULL:
        return NULL
    segment.address = address
    segment.size = size
    segment.kind = kind
    segment.unit = STEP if kind == SMALL else PAGE
    segment.starts = <uint64_t*>calloc((size // segment.unit + 63) // 64, sizeof(uint64_t))
    if segment.starts == NULL:
        free(segment)
        return NULL
    return segment


cdef void drop_segment(PinnedSegment* segment) noexcept nogil:
    free(segment.starts)
    free(segment)


cdef size_t position(PinnedPool* pool, uintptr_t address) noexcept nogil:
    # How many segments start at or below the address.
    cdef size_t low = 0, high = pool.segment_count, middle
    while low < high:
        middle = (low + high) // 2
        if pool.segments[middle].address <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef int reserve_segment(PinnedPool* pool) noexcept nogil:
    cdef size_t room = 2 * pool.segment_room + 16
    cdef void* larger
    if pool.segment_count < pool.segment_room:
        return 0
    larger = realloc(pool.segments, room * sizeof(PinnedSegment*))
    if larger == NULL:
        return NO_HOST_MEMORY
    pool.segments = <PinnedSegment**>larger
    pool.segment_room = room
    return 0


cdef int attach(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    cdef PinnedBlock* block = pool.spare_blocks
    cdef size_t index
    if block == NULL:
        block = new_block_slow(pool)
    if block == NULL or reserve_segment(pool):
        return NO_HOST_MEMORY
    pool.spare_blocks = block.right
    index = position(pool, segment.address)
    memmove(&pool.segments[index + 1], &pool.segments[index], (pool.segment_count - index) * sizeof(PinnedSegment*))
    pool.segments[index] = segment
    pool.segment_count += 1
    block.address = segment.address
    block.size = segment.size
    block.segment = segment
    block.before = block.after = NULL
    block.uses = NULL
    block.events = 0
    segment.first = block
    segment.next = NULL
    flip_start(block)
    insert(pool, block)
    add(&pool.stats.segments, 1)
    add(&pool.stats.segment_bytes, segment.size)
    return 0


cdef void detach(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    cdef size_t index = position(pool, segment.address) - 1
    cdef PinnedBlock* block = segment.first
    if block.state == FREE:
        remove(pool, block)
    flip_start(block)
    block.right = pool.spare_blocks
    pool.spare_blocks = block
    segment.first = NULL
    pool.segment_count -= 1
    memmove(&pool.segments[index], &pool.segments[index + 1], (pool.segment_count - index) * sizeof(PinnedSegment*))
    subtract(&pool.stats.segments, 1)
    subtract(&pool.stats.segment_bytes, segment.size)


cdef void doom(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    block.state = LEAVING
    block.segment.next = pool.doomed
    pool.doomed = block.segment


cdef PinnedSegment* detach_doomed(PinnedPool* pool) noexcept nogil:
    cdef PinnedSegment* segments = pool.doomed
    cdef PinnedSegment* segment = segments
    pool.doomed = NULL
    while segment != NULL:
        detach(pool, segment)
        segment = segment.next
    return segments


cdef PinnedSegment* detach_idle(PinnedPool* pool) noexcept nogil:
    cdef PinnedSegment* idle = detach_doomed(pool)
    cdef PinnedSegment* segment
    cdef size_t index = pool.segment_count
    while index:
        index -= 1
        segment = pool.segments[index]
        if segment.first.state == FREE and segment.first.after == NULL:
            detach(pool, segment)
            segment.next = idle
            idle = segment
    return idle


cdef PinnedBlock* find_unrounded(PinnedPool* pool, size_t size) noexcept nogil:
    # A size between two classes: blocks of just this size are in the list of the class below it, among others.
    cdef PinnedBlock* block = pool.free[kind_of(size)][class_below(size)]
    cdef int left = LOOKS
    while block != NULL and left:
        if block.size >= size:
            return block
        block = block.right
        left -= 1
    return find(pool, size)


cdef PinnedSegment* segment_of(PinnedPool* pool, uintptr_t address) noexcept nogil:
    cdef size_t index = position(pool, address)
    cdef PinnedSegment* segment
    if index == 0:
        return NULL
    segment = pool.segments[index - 1]
    return segment if address - segment.address < segment.size else NULL


cdef PinnedBlock* block_of(PinnedPool* pool, uintptr_t address) noexcept nogil:
    # Most callers pass a block's start.  Else the bits below the address's own lead to it: 64 units a step.
    cdef PinnedBlock* block = <PinnedBlock*>map_find(&pool.live, address)
    cdef PinnedSegment* segment
    cdef size_t unit, word
    cdef uint64_t bits
    if block == NULL:
        segment = segment_of(pool, address)
        if segment == NULL:
            return NULL
        unit = (address - segment.address) // segment.unit
        word = unit >> 6
        bits = segment.starts[word] & (~<uint64_t>0 >> (63 - (unit & 63)))
        while bits == 0:
            word -= 1
            bits = segment.starts[word]
        unit = 64 * word + log2_floor(bits)
        block = <PinnedBlock*>map_find(&pool.live, segment.address + unit * segment.unit)
    return block if block != NULL and block.state == LIVE else NULL


# segments: the driver's memory, taken and given back

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t* thread, void* attributes, void* (*run)(void*) noexcept, void* argument)
    int pthread_join(pthread_t thread, void** result)

cdef extern from "<sys/mman.h>" nogil:
    enum: PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void* MAP_FAILED
    void* mmap(void* address, size_t length, int protection, int flags, int file, long offset)
    int munmap(void* address, size_t length)

cdef extern from *:
    """
    #include <time.h>
    static inline long long accelrt_microseconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
    }
    """
    long long microseconds "accelrt_microseconds" () noexcept nogil

cdef enum:
    MAX_THREADS = 128

cdef struct Part:       # of a range whose pages are touched
    volatile char* start
    size_t size
    pthread_t thread
    bint started


cdef void* touch(void* data) noexcept nogil:
    cdef Part* part = <Part*>data
    cdef size_t offset = 0
    while offset < part.size:
        part.start[offset] = 0
        offset += PAGE
    return NULL


cdef void touch_all(uintptr_t address, size_t size, int threads) noexcept nogil:
    # A thread that cannot be started leaves its part to this one.
    cdef Part[MAX_THREADS] parts
    cdef size_t pages = size // PAGE, first, last
    cdef int index
    for index in range(threads):
        first, last = pages * index // threads, pages * (index + 1) // threads
        parts[index].start = <volatile char*>(address + first * PAGE)
        parts[index].size = (last - first) * PAGE
        parts[index].started = False
        if index and first < last:
            parts[index].started = pthread_create(&parts[index].thread, NULL, touch, &parts[index]) == 0
    for index in range(threads):
        if parts[index].started:
            pthread_join(parts[index].thread, NULL)
        else:
            touch(&parts[index])


cdef int map_and_register(int device, size_t size, int threads, uintptr_t* out_address) noexcept nogil:
    cdef void* room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef int code
    if room == MAP_FAILED:
        return OUT_OF_MEMORY
    touch_all(<uintptr_t>room, size, threads)
    code = registry.active().host_register(device, <uintptr_t>room, size)
    if code:
        munmap(room, size)
        return code
    out_address[0] = <uintptr_t>room
    return 0


cdef int unregister_and_unmap(int device, uintptr_t address, size_t size, bint used) noexcept nogil:
    # Unregistering does not promise to wait as freeing does, and the pages must not go under a copy.
    cdef int code = registry.active().device_synchronize(device) if used else 0
    if code == 0:
        code = registry.active().host_unregister(device, address)
    if code == 0:
        munmap(<void*>address, size)
    return code


cdef int take_relaxed(int device, size_t size, PinnedSettings* settings, uintptr_t* out_address) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    if settings.use_register:
        code = map_and_register(device, size, settings.register_threads, out_address)
    else:
        code = registry.active().host_alloc(device, size, out_address)
    restore_mode(registry.active(), mode)
    return code


cdef int take_memory(PinnedPool* pool, int device, size_t size, int kind, PinnedSegment** out_segment) noexcept nogil:
    cdef PinnedSettings settings
    cdef PinnedSegment* segment
    cdef uintptr_t address = 0
    cdef long long start
    cdef int code = 0
    if device < 0:
        code = registry.active().current_device(&device)
        device = max(device, 0)
    if code:
        return code
    spin_lock(&pool.lock)
    settings = pool.settings
    spin_unlock(&pool.lock)
    segment = new_segment(0, size, kind)  # first: with the memory in hand nothing may fail
    if segment == NULL:
        return NO_HOST_MEMORY
    start = microseconds()
    code = take_relaxed(device, size, &settings, &address)
    if code:
        drop_segment(segment)
        return code
    segment.address = address
    segment.device = device
    segment.registered = settings.use_register
    spin_lock(&pool.lock)
    time_call(&pool.stats.take, microseconds() - start)
    spin_unlock(&pool.lock)
    out_segment[0] = segment
    return 0


cdef int give_relaxed(PinnedSegment* segment, bint used) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    if segment.registered:
        code = unregister_and_unmap(segment.device, segment.address, segment.size, used)
    else:
        code = registry.active().host_free(segment.device, segment.address)
    restore_mode(registry.active(), mode)
    return code


cdef void take_back(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    # As if it had never been detached.  attach finds the record that detach put back; should another thread have
    # used it up and the host have no more, the memory is lost to the cache.
    if attach(pool, segment):
        return
    pool.stats.segments.allocated -= 1
    pool.stats.segments.freed -= 1
    pool.stats.segment_bytes.allocated -= segment.size
    pool.stats.segment_bytes.freed -= segment.size
    if segment.uncached:
        remove(pool, segment.first)
        doom(pool, segment.first)


cdef int give_memory(PinnedPool* pool, PinnedSegment* segments) noexcept nogil:
    return give_segments(pool, segments, True)


cdef int give_unused(PinnedPool* pool, PinnedSegment* segments) noexcept nogil:
    return give_segments(pool, segments, False)


cdef int give_segments(PinnedPool* pool, PinnedSegment* segments, bint used) noexcept nogil:
    cdef PinnedSegment* segment
    cdef long long start
    cdef int code = 0
    while segments != NULL:
        segment = segments
        segments = segment.next
        start = microseconds()
        if code == 0:
            code = give_relaxed(segment, used)
            if code == 0:
                spin_lock(&pool.lock)
                time_call(&pool.stats.give, microseconds() - start)
                spin_unlock(&pool.lock)
                drop_segment(segment)
                continue
        spin_lock(&pool.lock)
        take_back(pool, segment)
        spin_unlock(&pool.lock)
    return code


# blocks that were given back while a stream may still use them

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


cdef void record_all_events(PinnedPool* pool) noexcept nogil:
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
    # Asking for an event breaks a global-mode capture of any thread, unless the requester is relaxed.
    cdef Queue* queue
    cdef int mode
    cdef int code
    if pool.deferred != NULL:
        record_all_events(pool)
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
    if code == 0 or is_device_lost(code):
        complete(pool, entry)
        return 0
    if is_captured_event(code) or meaning_of(code) == GONE:  # the next poll records it anew
        entry.lost = True
        code = 0
    put_back(&pool.queues, queue, entry)
    pool.pending += 1
    return code


cdef int wait_unrecorded(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # No event can be recorded: the whole device's work is waited for instead.  Meanwhile the use may go with its stream.
    cdef const PinnedUse* use
    cdef int device, code = 0
    while block.uses != NULL and code == 0:
        use = block.uses
        device = use.device
        if is_capturing(registry.active(), device, use.stream, &code):
            return NOT_READY
        pthread_mutex_unlock(&pool.order)
        code = registry.active().device_synchronize(device)
        pthread_mutex_lock(&pool.order)
        if code == 0 and block.uses == use:
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
    ctypedef struct pthread_cond_t:
        pass
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
