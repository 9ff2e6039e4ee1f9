"""The cache of page-locked memory."""
from libc.stdint cimport SIZE_MAX, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, memset

from accelrt.allocator.heaps cimport heap_stream
from accelrt.allocator.pinned.block cimport (
    CLASSES, FREE, LARGE, LEAVING, LIVE, PAGE, PENDING, HOST_ROUND_LIMIT, SMALL, SMALL_SEGMENT, STEP, class_below,
    class_size, kind_of, log2_floor, PinnedBlock, PinnedSegment, PinnedSettings, reset_peak, reset_sums,
    reset_timing, round_up, time_call,
)
from accelrt.core.handle_map cimport map_find
from accelrt.core.integers cimport exact_int
from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.core.process import call_at_exit
from accelrt.core.threads cimport (
    now, pthread_cond_init, pthread_cond_signal, pthread_cond_t, pthread_cond_wait, pthread_create, pthread_join,
    pthread_t, wait_on,
)
from accelrt.driver.guard cimport (
    GONE, enter_wait, go_relaxed, is_captured_event, is_capturing, is_device_lost, leave_wait, meaning_of,
    restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.status cimport FORKED, INVALID_DEVICE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY, OUT_OF_MEMORY
from accelrt.uses.events cimport (
    MAX_DEVICES, PooledEvent, Queue, Use, UseStore, add_use, ask_event, busy_queue, destroy_spare, drop_use, hand_on,
    next_filled, poll_queues, put_back, queue_use, return_event, take_oldest,
)


# --- heap -------------------------------------------------------------------------------------------------------------
# Blocks of page-locked memory: free lists, the driver's segments, and blocks in use when they are given back.
#
# The lists, splitting and merging are under the pool's lock, and know no driver.  Segments are taken and given back
# under no lock.  What is known of uses is under the pool's order, and never under its lock.

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
    # Of no pool yet; NULL: no room.
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
    # Its one block becomes free.
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
    # Its one block is free, or LEAVING.
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
    # Of an uncached segment, in no list.
    block.state = LEAVING
    block.segment.next = pool.doomed
    pool.doomed = block.segment


cdef PinnedSegment* detach_doomed(PinnedPool* pool) noexcept nogil:
    # A list.
    cdef PinnedSegment* segments = pool.doomed
    cdef PinnedSegment* segment = segments
    pool.doomed = NULL
    while segment != NULL:
        detach(pool, segment)
        segment = segment.next
    return segments


cdef PinnedSegment* detach_idle(PinnedPool* pool) noexcept nogil:
    # With those that are one free block.
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
    # As find, for sizes of no class.
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
    # That contains it; or NULL.
    cdef size_t index = position(pool, address)
    cdef PinnedSegment* segment
    if index == 0:
        return NULL
    segment = pool.segments[index - 1]
    return segment if address - segment.address < segment.size else NULL


cdef PinnedBlock* block_of(PinnedPool* pool, uintptr_t address) noexcept nogil:
    # Live, contains it; or NULL.
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

cdef extern from "<sys/mman.h>" nogil:
    enum: PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void* MAP_FAILED
    void* mmap(void* address, size_t length, int protection, int flags, int file, long offset)
    int munmap(void* address, size_t length)

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
    # A segment in no pool yet; device -1 is the calling thread's current one.
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
    start = now()
    code = take_relaxed(device, size, &settings, &address)
    if code:
        drop_segment(segment)
        return code
    segment.address = address
    segment.device = device
    segment.registered = settings.use_register
    spin_lock(&pool.lock)
    time_call(&pool.stats.take, (now() - start) // 1000)
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
    # Gives a list of detached segments back, after the work of their devices; those that the driver keeps are attached
    # again.
    return give_segments(pool, segments, True)


cdef int give_unused(PinnedPool* pool, PinnedSegment* segments) noexcept nogil:
    # The same for what no work ever used: waits for nothing, so that it may be called beside a capture.
    return give_segments(pool, segments, False)


cdef int give_segments(PinnedPool* pool, PinnedSegment* segments, bint used) noexcept nogil:
    cdef PinnedSegment* segment
    cdef long long start
    cdef int code = 0
    while segments != NULL:
        segment = segments
        segments = segment.next
        start = now()
        if code == 0:
            code = give_relaxed(segment, used)
            if code == 0:
                spin_lock(&pool.lock)
                time_call(&pool.stats.give, (now() - start) // 1000)
                spin_unlock(&pool.lock)
                drop_segment(segment)
                continue
        spin_lock(&pool.lock)
        take_back(pool, segment)
        spin_unlock(&pool.lock)
    return code


# blocks that were given back while a stream may still use them

cdef void finish(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # Of a PENDING block: no stream uses it any more.
    spin_lock(&pool.lock)
    count_freed(pool, block)
    if block.segment.uncached:
        doom(pool, block)
    else:
        set_free(pool, block)
    spin_unlock(&pool.lock)


cdef void take_back_uses(PinnedPool* pool, UseStore* dropped) noexcept nogil:
    # Records that were dropped under order alone, into a store of their own: under lock they go to the pool's.
    cdef Use** end = &dropped.spare
    while end[0] != NULL:
        end = &end[0].next
    spin_lock(&pool.lock)
    end[0] = pool.uses.spare
    pool.uses.spare = dropped.spare
    pool.uses.count += dropped.count  # which is below 0
    spin_unlock(&pool.lock)


cdef void put_deferred(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    block.right = pool.deferred
    pool.deferred = block


cdef void defer(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # A PENDING block with uses.
    # A block whose events cannot be recorded now waits with the rest of its uses, and is tried again.
    cdef UseStore dropped = UseStore(NULL, 0)
    while block.uses != NULL:
        if queue_use(registry.active(), &pool.queues, &dropped, &block.uses, block, &block.events):
            break
    take_back_uses(pool, &dropped)
    if block.uses != NULL:
        put_deferred(pool, block)
    elif block.events == 0:
        finish(pool, block)


cdef void record_all_events(PinnedPool* pool) noexcept nogil:
    # Of PENDING blocks that had to be deferred.
    cdef PinnedBlock* left = pool.deferred
    cdef PinnedBlock* block
    pool.deferred = NULL
    while left != NULL:
        block = left
        left = block.right
        defer(pool, block)


cdef void complete(const Queue* queue, PooledEvent* event, void* owner) noexcept nogil:
    # For poll_queues.
    cdef PinnedPool* pool = <PinnedPool*>owner
    cdef PinnedBlock* block = <PinnedBlock*>event.block
    return_event(event)
    block.events -= 1
    if block.events == 0 and block.uses == NULL:
        finish(pool, block)


cdef int poll(PinnedPool* pool) noexcept nogil:
    # Frees what is complete; never waits.
    if pool.deferred != NULL:
        record_all_events(pool)
    return poll_queues(registry.active(), &pool.queues, complete, pool) if pool.queues.pending else 0


cdef int wait_oldest(PinnedPool* pool, Queue* queue) noexcept nogil:
    # The event is this thread's alone while it waits; order is open, for the work before the event may be a host
    # function that gives memory back.
    cdef PooledEvent* event = take_oldest(&pool.queues, queue)
    cdef int code
    pool.awaited += 1
    pthread_mutex_unlock(&pool.order)
    code = ask_event(registry.active(), event, True)
    pthread_mutex_lock(&pool.order)
    pool.awaited -= 1
    if code == 0 or is_device_lost(code):
        complete(queue, event, pool)
        return 0
    if is_captured_event(code) or meaning_of(code) == GONE:  # the next poll records it anew
        event.captured = True
        code = 0
    put_back(&pool.queues, queue, event)
    return code


cdef int wait_unrecorded(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # No event can be recorded: the whole device's work is waited for instead.  Meanwhile the use may go with its stream.
    cdef const Use* use
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
            spin_lock(&pool.lock)
            drop_use(&pool.uses, &block.uses)
            spin_unlock(&pool.lock)
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
    # Frees what is pending now.
    # What is given back while this waits is not waited for.
    cdef Queue* queue
    cdef long left
    cdef int code = poll(pool)
    left = pool.queues.pending
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
        if pool.queues.pending == 0 and pool.deferred == NULL:
            pthread_cond_wait(&it.changed, &pool.order)
            continue
        poll(pool)
        give_doomed_back(pool)
        if not it.stopping:
            wait_on(&it.changed, &pool.order, PERIOD)
    pthread_mutex_unlock(&pool.order)
    return NULL


cdef void watch(PinnedPool* pool) noexcept nogil:
    # Under order: something is pending; starts or wakes the thread.
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
    # Waits for it; no lock held.
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
    # Under order.
    return it != NULL and it.running and not it.stopping


cdef void forget_watch() noexcept nogil:
    # In a forked child, which has no such thread.
    global it
    it = NULL


# --- pool -------------------------------------------------------------------------------------------------------------
# The cache of page-locked host memory: the hit, the miss, and the steps before an out-of-memory error.
#
# Two locks, always taken in this order: order, held around events, and lock, a spin lock held for bookkeeping.
# Neither is held while the GIL is taken or while something is waited for; memory comes and goes under none.

cdef PinnedPool pool
cdef bint forked = False  # the parent had such memory: what this process gives back may be the parent's


# --- the hit ---------------------------------------------------------------------------------------------

cdef inline bint caches(size_t size) noexcept nogil:
    return size <= pool.settings.cache_limit


cdef inline size_t block_size(size_t size) noexcept nogil:
    if size > pool.settings.round_limit or not caches(size):
        return round_up(size, PAGE)
    return class_size(size)


cdef inline int take_cached(size_t requested, uintptr_t* out_address) noexcept nogil:
    cdef size_t size = block_size(requested)
    cdef PinnedBlock* block
    cdef int code
    if not caches(requested):
        return NOT_READY
    block = find(&pool, size) if class_size(size) == size else find_unrounded(&pool, size)
    if block == NULL:
        return NOT_READY
    code = hand_out(&pool, block, size)
    if code == 0:
        out_address[0] = block.address
    return code


cdef int try_allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil:
    cdef int code
    # One comparison for 0 and for absurd sizes; the slow path distinguishes them.
    if (size - 1) >> HOST_ROUND_LIMIT:
        return NOT_READY
    spin_lock(&pool.lock)
    code = take_cached(size, out_address)
    spin_unlock(&pool.lock)
    return code


cdef int try_release_pinned(uintptr_t address) noexcept nogil:
    cdef PinnedBlock* block
    cdef int code = NOT_READY
    spin_lock(&pool.lock)
    block = <PinnedBlock*>map_find(&pool.live, address)
    if block != NULL and block.state == LIVE and block.uses == NULL and not block.segment.uncached:
        count_freed(&pool, block)
        set_free(&pool, block)
        code = 0
    spin_unlock(&pool.lock)
    return code


cdef int allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil:
    return allocate_pinned_on(-1, size, out_address)


cdef int allocate_pinned_on(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef int code = try_allocate_pinned(size, out_address)
    return allocate_slow(device, size, out_address) if code == NOT_READY else code


cdef int release_pinned(uintptr_t address) noexcept nogil:
    cdef int code = try_release_pinned(address)
    return release_slow(address) if code == NOT_READY else code


# --- the miss --------------------------------------------------------------------------------------------

cdef int give_back(bint idle_too) noexcept nogil:
    # The doomed segments, and those that are one free block where these shall go too.  To give back waits for the
    # device's work, which the driver refuses beside a capture; tidy tries again.
    cdef PinnedSegment* segments
    cdef int code
    if not enter_wait():
        return 0
    spin_lock(&pool.lock)
    segments = detach_idle(&pool) if idle_too else detach_doomed(&pool)
    spin_unlock(&pool.lock)
    code = give_memory(&pool, segments)
    leave_wait()
    return code


cdef int tidy_pinned() noexcept nogil:
    cdef int code
    pthread_mutex_lock(&pool.order)
    code = poll(&pool)
    pthread_mutex_unlock(&pool.order)
    return code if code else give_back(False)


cdef void hand_on_uses(int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # Under order.
    cdef PinnedBlock** link = &pool.deferred
    cdef PinnedBlock* block
    cdef size_t index
    spin_lock(&pool.lock)
    for index in range(pool.live.capacity):
        block = <PinnedBlock*>pool.live.slots[index].value
        if block != NULL:
            hand_on(&pool.uses, &block.uses, device, stream, heir)
    spin_unlock(&pool.lock)
    while link[0] != NULL:
        block = link[0]
        if block.uses != NULL:
            link = &block.right
            continue
        link[0] = block.right
        if block.events == 0:
            finish(&pool, block)


cdef void record_deferred_pinned() noexcept nogil:
    pthread_mutex_lock(&pool.order)
    record_all_events(&pool)
    pthread_mutex_unlock(&pool.order)


cdef void forget_stream_pinned(int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    pthread_mutex_lock(&pool.order)
    record_all_events(&pool)
    hand_on_uses(device, heap_stream(stream), heir)
    pthread_mutex_unlock(&pool.order)


cdef int poll_unless_watched() noexcept nogil:
    cdef int code = 0
    pthread_mutex_lock(&pool.order)
    if not watching():
        code = poll(&pool)
    pthread_mutex_unlock(&pool.order)
    return code if code else give_back(False)


cdef int grow(int device, size_t requested, uintptr_t* out_address) noexcept nogil:
    # The new segment's block is handed out in the same breath, before another thread finds it.
    cdef PinnedSegment* segment = NULL
    cdef size_t size
    cdef bint uncached
    cdef int code, kind
    spin_lock(&pool.lock)
    size = block_size(requested)
    uncached = not caches(requested)
    spin_unlock(&pool.lock)
    kind = LARGE if uncached else kind_of(size)
    code = take_memory(&pool, device, SMALL_SEGMENT if kind == SMALL else round_up(size, PAGE), kind, &segment)
    if code:
        return code
    segment.uncached = uncached
    spin_lock(&pool.lock)
    code = attach(&pool, segment)
    if code == 0:
        code = hand_out(&pool, segment.first, size)
        if code == 0:
            out_address[0] = segment.address
        spin_unlock(&pool.lock)
        return code
    spin_unlock(&pool.lock)
    give_unused(&pool, segment)
    return code


cdef int allocate_slow(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    # Every step that frees something is followed by a search.
    cdef int code
    out_address[0] = 0
    if size == 0:
        return 0
    if size >> HOST_ROUND_LIMIT:
        return OUT_OF_MEMORY
    code = poll_unless_watched()
    if code == 0:
        code = try_allocate_pinned(size, out_address)
    if code == NOT_READY:
        code = grow(device, size, out_address)
    if code != OUT_OF_MEMORY:
        return code
    pthread_mutex_lock(&pool.order)
    code = wait_all(&pool)
    pthread_mutex_unlock(&pool.order)
    if code == 0:
        code = try_allocate_pinned(size, out_address)
    if code == NOT_READY:
        code = give_back(True)
        if code == 0:
            code = grow(device, size, out_address)
    return code


cdef int release_slow(uintptr_t address) noexcept nogil:
    cdef PinnedBlock* block
    cdef bint background
    if address == 0:
        return 0
    spin_lock(&pool.lock)
    block = <PinnedBlock*>map_find(&pool.live, address)
    if block == NULL or block.state != LIVE:
        spin_unlock(&pool.lock)
        return FORKED if forked else NOT_ALLOCATED
    if block.uses == NULL:  # another thread made it free of uses, or it is not cached
        count_freed(&pool, block)
        if block.segment.uncached:
            doom(&pool, block)
        else:
            set_free(&pool, block)
        spin_unlock(&pool.lock)
        give_back(False)  # what the driver keeps is tried again
        return 0
    block.state = PENDING
    background = pool.settings.background
    spin_unlock(&pool.lock)
    pthread_mutex_lock(&pool.order)
    defer(&pool, block)
    if background:
        watch(&pool)
    else:
        poll(&pool)  # a refusal is told to the next miss
    pthread_mutex_unlock(&pool.order)
    give_back(False)
    return 0


cdef int use_pinned_on(uintptr_t address, int device, uintptr_t stream) noexcept nogil:
    cdef PinnedBlock* block
    cdef int code = FORKED if forked else NOT_ALLOCATED
    if device < 0 or device >= MAX_DEVICES:
        return INVALID_DEVICE
    spin_lock(&pool.lock)
    block = block_of(&pool, address)
    if block != NULL:
        code = add_use(&pool.uses, &block.uses, device, heap_stream(stream))
    spin_unlock(&pool.lock)
    return code


cdef bint is_cached_pinned(uintptr_t address) noexcept nogil:
    cdef bint answer
    spin_lock(&pool.lock)
    answer = block_of(&pool, address) != NULL
    spin_unlock(&pool.lock)
    return answer


cdef int empty_pinned() noexcept nogil:
    cdef int code, device
    pthread_mutex_lock(&pool.order)
    code = wait_all(&pool)
    pthread_mutex_unlock(&pool.order)
    if code == 0:
        code = give_back(True)
    if code == 0:
        for device in range(MAX_DEVICES):
            code = destroy_spare(registry.active(), device) if code == 0 else code
    return code


# --- figures and the process -----------------------------------------------------------------------------

cdef PinnedStats read_pinned_stats() noexcept nogil:
    cdef PinnedStats stats
    spin_lock(&pool.lock)
    stats = pool.stats
    spin_unlock(&pool.lock)
    return stats


cdef void reset_pinned_peaks() noexcept nogil:
    spin_lock(&pool.lock)
    reset_peak(&pool.stats.segments)
    reset_peak(&pool.stats.segment_bytes)
    reset_peak(&pool.stats.blocks)
    reset_peak(&pool.stats.block_bytes)
    spin_unlock(&pool.lock)


cdef void reset_pinned_sums() noexcept nogil:
    spin_lock(&pool.lock)
    reset_sums(&pool.stats.segments)
    reset_sums(&pool.stats.segment_bytes)
    reset_sums(&pool.stats.blocks)
    reset_sums(&pool.stats.block_bytes)
    reset_timing(&pool.stats.take)
    reset_timing(&pool.stats.give)
    spin_unlock(&pool.lock)


cdef const char* pinned_audit_failure() noexcept nogil:
    cdef const char* found
    pthread_mutex_lock(&pool.order)
    spin_lock(&pool.lock)
    found = audit_failure(&pool)
    spin_unlock(&pool.lock)
    pthread_mutex_unlock(&pool.order)
    return found


cdef void forget_in_child() noexcept nogil:
    # The parent's memory, and whatever locks its threads held, are not the child's; the settings are.
    global forked
    cdef PinnedSettings settings = pool.settings
    forked = forked or pool.segment_count > 0
    memset(&pool, 0, sizeof(PinnedPool))
    pool.settings = settings
    pthread_mutex_init(&pool.order, NULL)
    forget_watch()


# --- settings ------------------------------------------------------------------------------------------------

# stub: MAX_REGISTER_THREADS: int
MAX_REGISTER_THREADS = 128


cdef PinnedSettings read_settings() noexcept nogil:
    cdef PinnedSettings settings
    spin_lock(&pool.lock)
    settings = pool.settings
    spin_unlock(&pool.lock)
    return settings


cdef bint checked_switch(object value, str name) except -1:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; pass True or False")
    return value


cdef size_t checked_limit(object value, str name) except? 0:
    if value is None:
        return SIZE_MAX
    value = exact_int(value, name, "MiB as int, or None for no limit")
    if not 0 <= value < 1 << 40:
        raise ValueError(f"{name} is {value}; it goes from 0 to 2**40 - 1 MiB, or is None for no limit")
    return value << 20


cdef int checked_threads(object value) except -1:
    value = exact_int(value, "pinned_num_register_threads", "an int")
    if not 1 <= value <= MAX_REGISTER_THREADS or value & value - 1:
        raise ValueError(f"pinned_num_register_threads is {value}; it is a power of two from 1 to {MAX_REGISTER_THREADS}")
    return value


def change_pinned(values: dict[str, object]) -> None:
    """Sets the settings of page-locked memory that a dict has under the names of configure_pinned; all are checked before
    any takes effect."""
    cdef PinnedSettings settings = read_settings()
    for name, value in values.items():
        if name == "pinned_use_cuda_host_register":
            settings.use_register = checked_switch(value, name)
        elif name == "pinned_num_register_threads":
            settings.register_threads = checked_threads(value)
        elif name == "pinned_max_round_threshold_mb":
            settings.round_limit = checked_limit(value, name)
        elif name == "pinned_max_cached_size_mb":
            settings.cache_limit = checked_limit(value, name)
        else:
            settings.background = checked_switch(value, name)
    with nogil:
        spin_lock(&pool.lock)
        pool.settings = settings
        spin_unlock(&pool.lock)
        if not settings.background:
            stop_watch(&pool, False)


cdef object in_mib(size_t limit):
    return None if limit == SIZE_MAX else limit >> 20


def pinned_settings() -> dict[str, int | None]:
    """Returns what configure_pinned set, or the defaults: name -> value, as dict."""
    cdef PinnedSettings settings = read_settings()
    return {
        "pinned_use_cuda_host_register": bool(settings.use_register),
        "pinned_num_register_threads": settings.register_threads,
        "pinned_max_round_threshold_mb": in_mib(settings.round_limit),
        "pinned_max_cached_size_mb": in_mib(settings.cache_limit),
        "pinned_use_background_threads": bool(settings.background),
    }


def close_pinned() -> None:
    """Before the driver is closed: ends the thread that polls for page-locked memory; none is started any more."""
    with nogil:
        stop_watch(&pool, True)


pool.settings.round_limit = SIZE_MAX
pool.settings.cache_limit = SIZE_MAX
pool.settings.register_threads = 1
pthread_mutex_init(&pool.order, NULL)
at_fork("allocator.pinned.cache", FORK_POOLS, NULL, NULL, &forget_in_child)
call_at_exit("allocator.pinned.cache", "pools", close_pinned)


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
    if block.state == FREE:
        walk.free += 1
        if block.after != NULL and block.after.state == FREE:
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
        if block.state == LIVE and block.events:
            return "a live pinned block waits for events"
    return NULL


cdef const char* check_segment(PinnedPool* pool, PinnedSegment* segment, Walk* walk) noexcept nogil:
    cdef PinnedBlock* block = segment.first
    cdef PinnedBlock* before = NULL
    cdef size_t offset = 0, blocks = 0, bits = 0, word
    cdef const char* found
    while block != NULL:
        if block.segment != segment or block.before != before or block.address != segment.address + offset:
            return "the blocks of a pinned segment do not follow each other"
        found = check_block(pool, block, walk)
        if found != NULL:
            return found
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
        for place in range(CLASSES):
            block, left = pool.free[kind][place], NULL
            if (block != NULL) != (pool.filled[kind][place >> 6] >> (place & 63) & 1):
                return "the bit of a pinned free list is wrong"
            while block != NULL:
                if block.state != FREE or block.left != left or block.segment.kind != kind:
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
            if (<PinnedBlock*>event.block).state != PENDING:
                return "a pinned block is waited for that is not pending"
            event = event.next
        queue = next_filled(&pool.queues, queue.number + 1)
    while block != NULL:
        if block.state != PENDING or block.uses == NULL:
            return "a deferred pinned block has nothing to wait for"
        block = block.right
    if entries != pool.queues.pending or (pool.awaited == 0 and entries != events):
        return "the pinned blocks' events are not those of the queues"
    return NULL


cdef const char* check_counts(PinnedPool* pool, Walk* walk) noexcept nogil:
    cdef PinnedSegment* segment = pool.doomed
    while segment != NULL and walk.doomed:
        walk.doomed -= 1
        segment = segment.next
    if segment != NULL or walk.doomed:
        return "the doomed pinned segments are not those in the list"
    if walk.live != pool.live.count:
        return "the pinned address map holds what is in no segment"
    if pool.stats.segments.current != <long long>pool.segment_count \
            or pool.stats.segment_bytes.current != <long long>walk.bytes:
        return "the figures of pinned segments are wrong"
    if pool.stats.blocks.current != <long long>walk.live or pool.stats.block_bytes.current != <long long>walk.live_bytes:
        return "the figures of pinned blocks are wrong"
    return NULL


cdef const char* audit_failure(PinnedPool* pool) noexcept nogil:
    # Under order and lock; NULL where all hold.
    cdef Walk walk = Walk(0, 0, 0, 0, 0, 0)
    cdef const char* found
    cdef uintptr_t end = 0
    cdef size_t index
    for index in range(pool.segment_count):
        if pool.segments[index].address < end:
            return "pinned segments overlap or are out of order"
        end = pool.segments[index].address + pool.segments[index].size
        found = check_segment(pool, pool.segments[index], &walk)
        if found != NULL:
            return found
    found = check_lists(pool, walk.free)
    if found == NULL:
        found = check_queues(pool, walk.events)
    return check_counts(pool, &walk) if found == NULL else found
