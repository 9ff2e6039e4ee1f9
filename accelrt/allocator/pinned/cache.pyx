"""The caches of page-locked memory."""
from libc.stdint cimport SIZE_MAX, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from accelrt.allocator.heaps cimport heap_stream
from accelrt.allocator.pinned.block cimport (
    ANY_NODE, FREE, LARGE, LEAVING, LIVE, NO_FILE, PAGE, PENDING, HOST_ROUND_LIMIT, SMALL, SMALL_SEGMENT, STEP, class_below,
    class_size, count_held, kind_of, log2_floor, PinnedBlock, PinnedSegment, PinnedSettings, Reserve, SEGMENTS,
    round_up, time_call,
)
from accelrt.core.descriptors cimport close_kept, keep_number, lift, number_of
from accelrt.core.growing cimport ensure_room
from accelrt.core.handle_map cimport map_find
from accelrt.core.host_pages cimport (
    close_file, copy_file, has_room, host_room, make_file, map_pages, prefer_node, size_of_file, threads_for,
)
from accelrt.core.integers cimport exact_int
from accelrt.core.locks cimport (
    load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, spin_lock, spin_unlock, store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.core.process import call_at_exit
from accelrt.core.threads cimport (
    now, pthread_cond_init, pthread_cond_signal, pthread_cond_t, pthread_cond_wait, pthread_create, pthread_join,
    pthread_t, wait_on,
)
from accelrt.driver.guard cimport (
    add_use, ask_event, can_wait_for, destroy_spare, drop_use, enter_wait, go_relaxed, GONE, hand_on, is_captured_event,
    is_capturing, is_device_lost, leave_wait, length_of, MAX_DEVICES, meaning_of, next_filled, poll_queues, PooledEvent,
    put_back, Queue, queue_use, restore_mode, return_event, take_oldest, Use, UseStore,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.registry cimport MOST_NODES
from accelrt.status cimport (
    FORKED, INVALID_DEVICE, INVALID_VALUE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY, OPERATING_SYSTEM, OUT_OF_MEMORY,
    POOL_CAP_REACHED,
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
    # It is in no pool yet; NULL: no room.
    cdef PinnedSegment* segment = <PinnedSegment*>calloc(1, sizeof(PinnedSegment))
    if segment == NULL:
        return NULL
    segment.address = address
    segment.size = size
    segment.kind = kind
    segment.unit = STEP if kind == SMALL else PAGE
    segment.file = NO_FILE
    segment.starts = <uint64_t*>calloc((size // segment.unit + 63) // 64, sizeof(uint64_t))
    if segment.starts == NULL:
        free(segment)
        return NULL
    return segment


cdef void drop_segment(PinnedSegment* segment) noexcept nogil:
    close_kept(segment.file)
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


cdef int attach(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    # Its one block becomes free.
    cdef PinnedBlock* block = pool.spare_blocks
    cdef size_t index
    if block == NULL:
        block = new_block_slow(pool)
    if block == NULL or ensure_room(&pool.segments, pool.segment_count, &pool.segment_room, sizeof(PinnedSegment*)):
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
    count_held(pool, SEGMENTS, 1, segment.size)
    note_host(SEGMENT_ALLOCATED, segment.address, segment.size)
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
    count_held(pool, SEGMENTS, -1, -<long long>segment.size)
    note_host(SEGMENT_FREED, segment.address, segment.size)


cdef void doom(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # The block is of an uncached segment, and in no list.
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
        if segment.first.state == FREE and segment.first.after == NULL and not segment.carved:
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
    enum: PROT_READ, PROT_WRITE, MAP_SHARED
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


cdef int map_and_register(const PinnedPool* at, int device, size_t size, int threads, uintptr_t* out_address) noexcept nogil:
    cdef void* room = map_pages(size, at.unshared)
    cdef int code
    if room == NULL:
        return OUT_OF_MEMORY
    if at.node != ANY_NODE:
        prefer_node(room, size, at.node)  # what the node has no room for lies elsewhere: that is no reason to refuse
    touch_all(<uintptr_t>room, size, threads if threads > 1 else threads_for(size))
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


cdef int map_file(int device, int file, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef void* room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
    cdef int mode, code
    if room == MAP_FAILED:
        return OUT_OF_MEMORY
    code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().host_register(device, <uintptr_t>room, size)
        restore_mode(registry.active(), mode)
    if code:
        munmap(room, size)
        return code
    out_address[0] = <uintptr_t>room
    return 0


cdef int take_relaxed(
    const PinnedPool* pool, int device, size_t size, const PinnedSettings* settings, bint* out_registered,
    uintptr_t* out_address
) noexcept nogil:
    cdef bint has_to = settings.use_register or pool.node != ANY_NODE  # no call of the driver's takes a node
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode) if has_room(size) else OUT_OF_MEMORY
    if code:
        return code
    out_registered[0] = has_to or pool.unshared
    if out_registered[0]:
        code = map_and_register(pool, device, size, settings.register_threads, out_address)
        out_registered[0] = has_to or code == 0
    if not out_registered[0]:
        code = registry.active().host_alloc(device, size, out_address)
    restore_mode(registry.active(), mode)
    return code


cdef int take_reserve(PinnedPool* pool, int device, const PinnedSettings* settings) noexcept nogil:
    # At the first miss since there is to be one; a thread that misses meanwhile does without.  It lasts as long as the
    # process: nothing would tell when the last of its segments could go.
    cdef Reserve* reserve = &pool.reserve
    cdef size_t size = round_up(settings.reserve, SMALL_SEGMENT)
    cdef uintptr_t address = 0
    cdef long long start
    cdef bint ours, registered
    cdef int code
    spin_lock(&pool.lock)
    ours = settings.reserve and reserve.address == 0 and not reserve.wanted
    reserve.wanted = reserve.wanted or ours
    spin_unlock(&pool.lock)
    if not ours:
        return 0
    start = now()
    code = take_relaxed(pool, device, size, settings, &registered, &address)
    spin_lock(&pool.lock)
    reserve.wanted = False
    if code == 0:
        time_call(&pool.stats.take, (now() - start) // 1000)
        reserve.address, reserve.size, reserve.used = address, size, 0
        reserve.device, reserve.registered = device, registered
    spin_unlock(&pool.lock)
    return code


cdef bint carve(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    # Gives a segment its size of the reserve, where that has so much left.
    cdef Reserve* reserve = &pool.reserve
    spin_lock(&pool.lock)
    segment.carved = reserve.address != 0 and segment.size <= reserve.size - reserve.used
    if segment.carved:
        segment.address = reserve.address + reserve.used
        segment.device, segment.registered = reserve.device, reserve.registered
        reserve.used += segment.size
    spin_unlock(&pool.lock)
    return segment.carved


cdef void uncarve(PinnedPool* pool, const PinnedSegment* segment) noexcept nogil:
    # Of a segment that came to no pool: the reserve has it back, unless another one was carved behind it meanwhile.
    cdef Reserve* reserve = &pool.reserve
    spin_lock(&pool.lock)
    if segment.address + segment.size == reserve.address + reserve.used:
        reserve.used -= segment.size
    spin_unlock(&pool.lock)


cdef int take_memory(
    PinnedPool* pool, int device, size_t size, int kind, bint uncached, PinnedSegment** out_segment
) noexcept nogil:
    # A segment in no pool yet, of the first pool's reserve where there is one, unless it is uncached.
    cdef PinnedSettings settings
    cdef PinnedSegment* segment
    cdef uintptr_t address = 0
    cdef long long start
    cdef int code = 0
    spin_lock(&pool.lock)
    settings = pool.settings
    spin_unlock(&pool.lock)
    segment = new_segment(0, size, kind)  # first: with the memory in hand nothing may fail
    if segment == NULL:
        return NO_HOST_MEMORY if has_room(size) else OUT_OF_MEMORY
    segment.uncached = uncached
    if not uncached and pool.whole == NULL:
        code = take_reserve(pool, device, &settings)
        if code == 0 and carve(pool, segment):
            out_segment[0] = segment
            return 0
    start = now()
    if code == 0:
        code = take_relaxed(pool, device, size, &settings, &segment.registered, &address)
    if code:
        drop_segment(segment)
        return code
    segment.address = address
    segment.device = device
    count_time(pool, False, (now() - start) // 1000)
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


cdef void uncount_return(PinnedPool* pool, size_t size) noexcept nogil:
    pool.stats.segments.allocated -= 1
    pool.stats.segments.freed -= 1
    pool.stats.segment_bytes.allocated -= size
    pool.stats.segment_bytes.freed -= size


cdef void count_time(PinnedPool* pool, bint gives, long long microseconds) noexcept nogil:
    spin_lock(&pool.lock)
    time_call(&pool.stats.give if gives else &pool.stats.take, microseconds)
    spin_unlock(&pool.lock)
    if pool.whole != NULL:
        count_time(pool.whole, gives, microseconds)


cdef void take_back(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    # As if it had never been detached.  attach finds the record that detach put back; should another thread have
    # used it up and the host have no more, the memory is lost to the cache.
    if attach(pool, segment):
        return
    uncount_return(pool, segment.size)
    if pool.whole != NULL:
        spin_lock(&pool.whole.lock)
        uncount_return(pool.whole, segment.size)
        spin_unlock(&pool.whole.lock)
    if segment.uncached:
        remove(pool, segment.first)
        doom(pool, segment.first)


cdef int give_memory(PinnedPool* pool, PinnedSegment* segments) noexcept nogil:
    # Gives a list of detached segments back, after the work of their devices; those that the driver keeps are attached
    # again.
    return give_segments(pool, segments, True)


cdef int give_segments(PinnedPool* pool, PinnedSegment* segments, bint used) noexcept nogil:
    cdef PinnedSegment* segment
    cdef long long start
    cdef int code = 0
    while segments != NULL:
        segment = segments
        segments = segment.next
        if segment.carved:
            uncarve(pool, segment)
            drop_segment(segment)
            continue
        start = now()
        if code == 0:
            code = give_relaxed(segment, used)
            if code == 0:
                count_time(pool, True, (now() - start) // 1000)
                drop_segment(segment)
                continue
        spin_lock(&pool.lock)
        take_back(pool, segment)
        spin_unlock(&pool.lock)
    return code


# blocks that were given back while a stream may still use them

cdef void finish(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # The block is PENDING, and no stream uses it any more.
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
    # For PENDING blocks that had to be deferred.
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
    # Frees what is pending now: as many events of each queue are waited for as it has, so that what is given back
    # meanwhile takes no place of what was before.
    cdef int code = poll(pool)
    cdef size_t count = pool.queues.count
    cdef Queue* queue = next_filled(&pool.queues, 0)
    cdef long left
    while queue != NULL and queue.number < count and code == 0:
        left = length_of(queue)
        while left and code == 0 and can_wait_for(queue):
            left -= 1
            code = wait_oldest(pool, queue)
        queue = next_filled(&pool.queues, queue.number + 1)
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


cdef inline Watch* watch_of(PinnedPool* pool) noexcept nogil:
    return <Watch*>pool.watch


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
    cdef Watch* it
    pthread_mutex_lock(&pool.order)
    it = watch_of(pool)
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
    cdef Watch* it = watch_of(pool)
    if it == NULL:
        it = <Watch*>calloc(1, sizeof(Watch))
        if it == NULL:
            return
        pthread_cond_init(&it.changed, NULL)
        pool.watch = it
    if it.running:
        pthread_cond_signal(&it.changed)
    elif not it.closed:
        it.running = pthread_create(&it.thread, NULL, run, pool) == 0


cdef void stop_watch(PinnedPool* pool, bint for_good) noexcept nogil:
    # Waits for it; no lock held.
    cdef bint join = False
    cdef Watch* it
    pthread_mutex_lock(&pool.order)
    it = watch_of(pool)
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


cdef bint watching(PinnedPool* pool) noexcept nogil:
    # Under order.
    cdef const Watch* it = watch_of(pool)
    return it != NULL and it.running and not it.stopping


# --- pools ------------------------------------------------------------------------------------------------------------
# The first pool, those of NUMA nodes and those of users; which one a thread's allocations come from.
#
# Pools are never freed, so that a list of them is read without a lock: one whose user let go of it serves the next user
# once its memory is gone.

cdef enum:
    MOST_POOLS = 1024

cdef extern from *:
    """
    static __thread void* accelrt_entered_pool;  /* the PinnedPool that the thread's allocations come from, or NULL */
    """
    void* entered "accelrt_entered_pool"

cdef PinnedPool pool                   # the first
cdef PinnedPool* pools[MOST_POOLS]     # written under `making`
cdef long pool_count = 0               # written under `making`, behind the entry
cdef int making = 0
# Common ones, each made when it is needed, under `making`: by whether it is unshared, and by its node, from ANY_NODE on.
cdef PinnedPool* common_pools[2][MOST_NODES + 1]
cdef bint forked = False  # the parent had such memory: what this process gives back may be the parent's


cdef bint is_spent(PinnedPool* at) noexcept nogil:
    # Nothing is left of it, and nobody holds it.
    cdef bint spent
    pthread_mutex_lock(&at.order)
    spin_lock(&at.lock)
    spent = (at.holders == 0 and not at.common and at.segment_count == 0 and at.live.count == 0
             and at.queues.pending == 0 and at.deferred == NULL and at.growing == 0 and at.awaited == 0)
    if spent:
        at.holders = 1
    spin_unlock(&at.lock)
    pthread_mutex_unlock(&at.order)
    return spent


cdef PinnedPool* add_pool() noexcept nogil:
    # Under `making`.  Has one holder.
    cdef PinnedPool* added
    cdef long index
    for index in range(1, pool_count):
        if is_spent(pools[index]):
            memset(&pools[index].stats, 0, sizeof(PinnedStats))
            return pools[index]
    if pool_count == MOST_POOLS:
        return NULL
    added = <PinnedPool*>calloc(1, sizeof(PinnedPool))
    if added == NULL:
        return NULL
    pthread_mutex_init(&added.order, NULL)
    added.whole = &pool
    added.holders = 1
    spin_lock(&pool.lock)
    added.settings = pool.settings
    spin_unlock(&pool.lock)
    pools[pool_count] = added
    store_count(&pool_count, pool_count + 1)
    return added


cdef PinnedPool* make_pinned_pool(size_t limit, int node) noexcept nogil:
    cdef PinnedPool* new_pool
    spin_lock(&making)
    new_pool = add_pool()
    if new_pool != NULL:
        new_pool.limit = limit
        new_pool.node = node
    spin_unlock(&making)
    return new_pool


cdef void hold_pinned_pool(PinnedPool* at) noexcept nogil:
    spin_lock(&at.lock)
    at.holders += 1
    spin_unlock(&at.lock)


cdef int drop_pinned_pool(PinnedPool* at) noexcept nogil:
    cdef long left
    spin_lock(&at.lock)
    at.holders -= 1
    left = at.holders
    spin_unlock(&at.lock)
    if left:
        return 0
    pthread_mutex_lock(&at.order)
    poll(at)
    pthread_mutex_unlock(&at.order)
    return give_back(at, True)


cdef PinnedPool* enter_pinned_pool(PinnedPool* at) noexcept nogil:
    global entered
    cdef PinnedPool* before = <PinnedPool*>entered
    entered = at
    return before


cdef PinnedPool* pool_of_node(int node, bint unshared) noexcept nogil:
    # The first one where there is no room for another.
    cdef PinnedPool** place = &common_pools[unshared][node - ANY_NODE]
    cdef PinnedPool* of_node
    if node == ANY_NODE and not unshared:
        return &pool
    if place[0] != NULL:
        return place[0]
    spin_lock(&making)
    of_node = place[0]
    if of_node == NULL:
        of_node = add_pool()
        if of_node != NULL:
            of_node.common, of_node.limit, of_node.node, of_node.unshared = True, SIZE_MAX, node, unshared
            place[0] = of_node
    spin_unlock(&making)
    return &pool if of_node == NULL else of_node


cdef PinnedPool* common_pool(int device, bint unshared) noexcept nogil:
    # That of a device, or of the calling thread's current one.
    if not registry.tells_nodes_apart() or device < 0 and registry.active().current_device(&device):
        return pool_of_node(ANY_NODE, unshared)
    return pool_of_node(registry.nearest_node(max(device, 0)), unshared)


cdef inline PinnedPool* pool_here(int device, bint unshared) noexcept nogil:
    return <PinnedPool*>entered if entered != NULL else common_pool(device, unshared)


# --- the hit ---------------------------------------------------------------------------------------------

cdef inline bint caches(const PinnedPool* at, size_t size) noexcept nogil:
    return size <= at.settings.cache_limit


cdef inline size_t block_size(const PinnedPool* at, size_t size) noexcept nogil:
    if size > at.settings.round_limit or not caches(at, size):
        return round_up(size, PAGE)
    return class_size(size)


cdef inline int take_cached(PinnedPool* at, size_t requested, uintptr_t* out_address) noexcept nogil:
    cdef size_t size = block_size(at, requested)
    cdef PinnedBlock* block
    cdef int code
    if not caches(at, requested):
        return NOT_READY
    block = find(at, size) if class_size(size) == size else find_unrounded(at, size)
    if block == NULL:
        return NOT_READY
    code = hand_out(at, block, size)
    if code == 0:
        out_address[0] = block.address
    return code


cdef int try_in(PinnedPool* at, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef int code
    # One comparison for 0 and for absurd sizes; the slow path distinguishes them.
    if (size - 1) >> HOST_ROUND_LIMIT:
        return NOT_READY
    spin_lock(&at.lock)
    code = take_cached(at, size, out_address)
    spin_unlock(&at.lock)
    return code


cdef int try_allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil:
    if entered == NULL and not registry.knows_nodes():  # to learn of them may take a driver's start
        return NOT_READY
    return try_in(pool_here(-1, False), size, out_address)


cdef int try_release_in(PinnedPool* at, uintptr_t address) noexcept nogil:
    # NOT_ALLOCATED where the memory is not this pool's.
    cdef PinnedBlock* block
    cdef int code = NOT_READY
    spin_lock(&at.lock)
    block = <PinnedBlock*>map_find(&at.live, address)
    if block == NULL:
        code = NOT_ALLOCATED
    elif block.state == LIVE and block.uses == NULL and not block.segment.uncached:
        count_freed(at, block)
        set_free(at, block)
        code = 0
    spin_unlock(&at.lock)
    return code


cdef int try_release_pinned(uintptr_t address) noexcept nogil:
    cdef long index
    cdef int code = NOT_ALLOCATED
    for index in range(load_count(&pool_count)):
        code = try_release_in(pools[index], address)
        if code != NOT_ALLOCATED:
            return code
    return NOT_READY


cdef int allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil:
    return allocate_pinned_on(-1, size, out_address)


cdef int allocate_in(PinnedPool* at, int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef int code = try_in(at, size, out_address)
    return allocate_slow(at, device, size, out_address) if code == NOT_READY else code


cdef int allocate_pinned_on(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    return allocate_in(pool_here(device, False), device, size, out_address)


cdef int allocate_unshared(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    return allocate_in(pool_here(device, True), device, size, out_address)


cdef int release_pinned(uintptr_t address) noexcept nogil:
    cdef int code = try_release_pinned(address)
    return release_slow(address) if code == NOT_READY else code


# --- the miss --------------------------------------------------------------------------------------------

cdef int give_back(PinnedPool* at, bint idle_too) noexcept nogil:
    # The doomed segments, and those that are one free block where these shall go too.  To give back waits for the
    # device's work, which the driver refuses beside a capture; tidy tries again.
    cdef PinnedSegment* segments
    cdef int code
    if not enter_wait():
        return 0
    spin_lock(&at.lock)
    segments = detach_idle(at) if idle_too else detach_doomed(at)
    spin_unlock(&at.lock)
    code = give_memory(at, segments)
    leave_wait()
    return code


cdef int tidy_pool(PinnedPool* at) noexcept nogil:
    cdef int code
    pthread_mutex_lock(&at.order)
    code = poll(at)
    pthread_mutex_unlock(&at.order)
    return code if code else give_back(at, at.holders == 0 and not at.common)


cdef int tidy_pinned() noexcept nogil:
    cdef long index
    cdef int code = 0
    for index in range(load_count(&pool_count)):
        code = tidy_pool(pools[index]) if code == 0 else code
    return code


cdef void hand_on_uses(PinnedPool* at, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # Under order.
    cdef PinnedBlock** link = &at.deferred
    cdef PinnedBlock* block
    cdef size_t index
    spin_lock(&at.lock)
    for index in range(at.live.capacity):
        block = <PinnedBlock*>at.live.slots[index].value
        if block != NULL:
            hand_on(&at.uses, &block.uses, device, stream, heir)
    spin_unlock(&at.lock)
    while link[0] != NULL:
        block = link[0]
        if block.uses != NULL:
            link = &block.right
            continue
        link[0] = block.right
        if block.events == 0:
            finish(at, block)


cdef void record_deferred_pinned() noexcept nogil:
    cdef long index
    for index in range(load_count(&pool_count)):
        pthread_mutex_lock(&pools[index].order)
        record_all_events(pools[index])
        pthread_mutex_unlock(&pools[index].order)


cdef void forget_stream_pinned(int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    cdef long index
    for index in range(load_count(&pool_count)):
        pthread_mutex_lock(&pools[index].order)
        record_all_events(pools[index])
        hand_on_uses(pools[index], device, heap_stream(stream), heir)
        pthread_mutex_unlock(&pools[index].order)


cdef int poll_unless_watched(PinnedPool* at) noexcept nogil:
    cdef int code = 0
    pthread_mutex_lock(&at.order)
    if not watching(at):
        code = poll(at)
    pthread_mutex_unlock(&at.order)
    return code if code else give_back(at, False)


cdef bint reserve_growth(PinnedPool* at, size_t size) noexcept nogil:
    # What another thread is taking counts already.
    cdef bint fits
    spin_lock(&at.lock)
    fits = size <= at.limit and at.stats.segment_bytes.current + at.growing <= at.limit - size
    if fits:
        at.growing += size
    spin_unlock(&at.lock)
    return fits


cdef int grow(PinnedPool* at, int device, size_t requested, uintptr_t* out_address) noexcept nogil:
    # The new segment's block is handed out in the same breath, before another thread finds it.  Device -1 is the calling
    # thread's current one, which is asked for first: where that initialises, the settings come with it.
    cdef PinnedSegment* segment = NULL
    cdef size_t size, whole
    cdef bint uncached
    cdef int kind, code = 0
    if device < 0:
        code = registry.active().current_device(&device)
        device = max(device, 0)
    if code:
        return code
    spin_lock(&at.lock)
    size = block_size(at, requested)
    uncached = not caches(at, requested)
    spin_unlock(&at.lock)
    kind = LARGE if uncached else kind_of(size)
    whole = SMALL_SEGMENT if kind == SMALL else round_up(size, PAGE)
    if not reserve_growth(at, whole):
        return POOL_CAP_REACHED
    code = take_memory(at, device, whole, kind, uncached, &segment)
    spin_lock(&at.lock)
    at.growing -= whole
    if code:
        spin_unlock(&at.lock)
        return code
    code = attach(at, segment)
    if code == 0:
        code = hand_out(at, segment.first, size)
        if code == 0:
            out_address[0] = segment.address
        spin_unlock(&at.lock)
        return code
    spin_unlock(&at.lock)
    give_segments(at, segment, False)  # which waits for nothing, and so may be called beside a capture
    return code


cdef int take_file(PinnedPool* at, int device, int file, size_t size, uintptr_t* out_address) noexcept nogil:
    # The file is the segment's where this succeeds.
    cdef PinnedSegment* segment
    cdef uintptr_t address = 0
    cdef int code
    if not reserve_growth(at, size):
        return POOL_CAP_REACHED
    segment = new_segment(0, size, LARGE)
    code = NO_HOST_MEMORY if segment == NULL else registry.active().current_device(&device) if device < 0 else 0
    device = max(device, 0)
    if code == 0:
        code = map_file(device, file, size, &address)
    spin_lock(&at.lock)
    at.growing -= size
    if code == 0:
        segment.address, segment.device = address, device
        segment.registered = segment.uncached = True
        code = attach(at, segment)
        if code == 0:
            code = hand_out(at, segment.first, size)
            if code:
                detach(at, segment)
    spin_unlock(&at.lock)
    if code and address:
        unregister_and_unmap(device, address, size, False)
    if code and segment != NULL:
        drop_segment(segment)
    elif code == 0:
        segment.file = keep_number(file)
        out_address[0] = address
    return code


cdef int share_pinned(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef int file, code
    out_address[0] = 0
    if size == 0 or size >> HOST_ROUND_LIMIT:
        return OUT_OF_MEMORY
    size = round_up(size, PAGE)
    file = lift(make_file(size)) if has_room(size) else -1
    if file < 0:
        return OUT_OF_MEMORY
    code = take_file(pool_here(device, False), device, file, size, out_address)
    if code:
        close_file(file)
    return code


cdef int adopt_pinned(int device, int file, size_t* out_size, uintptr_t* out_address) noexcept nogil:
    cdef int own, code
    out_address[0] = 0
    out_size[0] = size_of_file(file)
    if out_size[0] == 0 or out_size[0] % PAGE:
        return INVALID_VALUE
    own = copy_file(file)
    if own < 0:
        return OPERATING_SYSTEM
    code = take_file(pool_here(device, False), device, own, out_size[0], out_address)
    if code:
        close_file(own)
    return code


cdef int pinned_file(uintptr_t address) noexcept nogil:
    cdef PinnedBlock* block
    cdef long index
    cdef int file = NO_FILE
    for index in range(load_count(&pool_count)):
        spin_lock(&pools[index].lock)
        block = block_of(pools[index], address)
        if block != NULL and block.segment.file != NO_FILE:
            file = copy_file(number_of(block.segment.file))
        spin_unlock(&pools[index].lock)
        if block != NULL:
            break
    return file


cdef int give_others_back(PinnedPool* at) noexcept nogil:
    # What the driver refused one pool others may have idle.
    cdef long index
    cdef int code = 0
    for index in range(load_count(&pool_count)):
        if pools[index] != at and code == 0:
            code = give_back(pools[index], True)
    return code


cdef int allocate_slow(PinnedPool* at, int device, size_t size, uintptr_t* out_address) noexcept nogil:
    # Every step that frees something is followed by a search.
    cdef int code, refusal
    out_address[0] = 0
    if size == 0:
        return 0
    if size >> HOST_ROUND_LIMIT:
        return OUT_OF_MEMORY
    code = poll_unless_watched(at)
    if code == 0:
        code = try_in(at, size, out_address)
    if code == NOT_READY:
        code = grow(at, device, size, out_address)
    if code != OUT_OF_MEMORY and code != POOL_CAP_REACHED:
        return code
    refusal = code
    pthread_mutex_lock(&at.order)
    code = wait_all(at)
    pthread_mutex_unlock(&at.order)
    if code == 0:
        code = try_in(at, size, out_address)
    if code == NOT_READY:
        code = give_back(at, True)
        if code == 0 and refusal == OUT_OF_MEMORY:
            code = give_others_back(at)
        if code == 0:
            code = grow(at, device, size, out_address)
    return code


cdef int release_in(PinnedPool* at, uintptr_t address) noexcept nogil:
    # NOT_ALLOCATED where the memory is not this pool's.
    cdef PinnedBlock* block
    cdef bint background
    spin_lock(&at.lock)
    block = <PinnedBlock*>map_find(&at.live, address)
    if block == NULL or block.state != LIVE:
        spin_unlock(&at.lock)
        return NOT_ALLOCATED
    if block.uses == NULL:  # another thread made it free of uses, or it is not cached
        count_freed(at, block)
        if block.segment.uncached:
            doom(at, block)
        else:
            set_free(at, block)
        spin_unlock(&at.lock)
        give_back(at, False)  # what the driver keeps is tried again
        return 0
    block.state = PENDING
    note_host(FREE_REQUESTED, address, block.size)
    background = at.settings.background
    spin_unlock(&at.lock)
    pthread_mutex_lock(&at.order)
    defer(at, block)
    if background:
        watch(at)
    else:
        poll(at)  # a refusal is told to the next miss
    pthread_mutex_unlock(&at.order)
    give_back(at, False)
    return 0


cdef int release_slow(uintptr_t address) noexcept nogil:
    cdef long index
    cdef int code
    if address == 0:
        return 0
    for index in range(load_count(&pool_count)):
        code = release_in(pools[index], address)
        if code != NOT_ALLOCATED:
            return code
    return FORKED if forked else NOT_ALLOCATED


cdef PinnedPool* lock_around(uintptr_t address, PinnedBlock** out_block) noexcept nogil:
    # The pool, which the caller unlocks, of the live block that contains the address; or NULL.
    cdef PinnedPool* at
    cdef long index
    for index in range(load_count(&pool_count)):
        at = pools[index]
        spin_lock(&at.lock)
        out_block[0] = block_of(at, address)
        if out_block[0] != NULL:
            return at
        spin_unlock(&at.lock)
    return NULL


cdef int use_pinned_on(uintptr_t address, int device, uintptr_t stream) noexcept nogil:
    cdef PinnedBlock* block = NULL
    cdef PinnedPool* at
    cdef int code
    if device < 0 or device >= MAX_DEVICES:
        return INVALID_DEVICE
    at = lock_around(address, &block)
    if at == NULL:
        return FORKED if forked else NOT_ALLOCATED
    code = add_use(&at.uses, &block.uses, device, heap_stream(stream))
    spin_unlock(&at.lock)
    return code


cdef bint pinned_around(uintptr_t address, uintptr_t* out_low, uintptr_t* out_high) noexcept nogil:
    cdef PinnedBlock* block = NULL
    cdef PinnedPool* at = lock_around(address, &block)
    if at == NULL:
        return False
    out_low[0] = block.address
    out_high[0] = block.address + block.size
    spin_unlock(&at.lock)
    return True


cdef bint is_cached_pinned(uintptr_t address) noexcept nogil:
    cdef uintptr_t low, high
    return pinned_around(address, &low, &high)


cdef int empty_pinned_pool(PinnedPool* at) noexcept nogil:
    cdef int code
    pthread_mutex_lock(&at.order)
    code = wait_all(at)
    pthread_mutex_unlock(&at.order)
    return code if code else give_back(at, True)


cdef int empty_pinned() noexcept nogil:
    # What users hold keeps its idle memory.
    cdef int code = 0, device
    cdef long index
    for index in range(load_count(&pool_count)):
        if code == 0 and (pools[index].common or pools[index].holders == 0):
            code = empty_pinned_pool(pools[index])
    if code == 0:
        for device in range(MAX_DEVICES):
            code = destroy_spare(registry.active(), device) if code == 0 else code
    return code


# --- figures and the process -----------------------------------------------------------------------------

cdef PinnedStats read_pinned_pool(PinnedPool* at) noexcept nogil:
    cdef PinnedStats stats
    spin_lock(&at.lock)
    stats = at.stats
    spin_unlock(&at.lock)
    return stats


cdef PinnedPool* pinned_pool(long number) noexcept nogil:
    return pools[number] if number < load_count(&pool_count) else NULL


cdef PinnedStats read_pinned_stats() noexcept nogil:
    return read_pinned_pool(&pool)


cdef PinnedStats read_pinned_node(int node) noexcept nogil:
    # What is told of a node alone: whether it ever had segments, and bytes.
    cdef PinnedStats total, stats
    cdef int unshared
    memset(&total, 0, sizeof(PinnedStats))
    for unshared in range(2):
        if common_pools[unshared][node - ANY_NODE] != NULL:
            stats = read_pinned_pool(common_pools[unshared][node - ANY_NODE])
            total.segments.peak += stats.segments.peak
            total.segment_bytes.current += stats.segment_bytes.current
            total.block_bytes.current += stats.block_bytes.current
    return total


cdef size_t pinned_limit_here() noexcept nogil:
    return (<PinnedPool*>entered).limit if entered != NULL else SIZE_MAX


cdef void forget_in_child() noexcept nogil:
    # The parent's memory, and whatever locks its threads held, are not the child's; the settings are, and the pools that
    # objects name.
    global forked, making
    cdef PinnedPool kept
    cdef long index
    for index in range(pool_count):
        forked = forked or pools[index].segment_count > 0
        kept = pools[index][0]
        memset(pools[index], 0, sizeof(PinnedPool))
        pools[index].settings, pools[index].whole, pools[index].limit = kept.settings, kept.whole, kept.limit
        pools[index].node, pools[index].common, pools[index].holders = kept.node, kept.common, kept.holders
        pthread_mutex_init(&pools[index].order, NULL)
    making = 0


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
    cdef long index
    for name, value in values.items():
        if name == "pinned_use_cuda_host_register":
            settings.use_register = checked_switch(value, name)
        elif name == "pinned_num_register_threads":
            settings.register_threads = checked_threads(value)
        elif name == "pinned_max_round_threshold_mb":
            settings.round_limit = checked_limit(value, name)
        elif name == "pinned_max_cached_size_mb":
            settings.cache_limit = checked_limit(value, name)
        elif name == "pinned_reserve_segment_size_mb":
            settings.reserve = checked_limit(0 if value is None else value, name)
        else:
            settings.background = checked_switch(value, name)
    with nogil:
        for index in range(load_count(&pool_count)):
            spin_lock(&pools[index].lock)
            pools[index].settings = settings
            spin_unlock(&pools[index].lock)
            if not settings.background:
                stop_watch(pools[index], False)


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
        "pinned_reserve_segment_size_mb": settings.reserve >> 20,
    }


def available_bytes() -> int | None:
    """Of the host's memory, with its swap and within the container's limit; None where the system does not tell."""
    cdef size_t room = host_room()
    return None if room == SIZE_MAX else room


def close_pinned() -> None:
    """Before the driver is closed: ends the thread that polls for page-locked memory; none is started any more."""
    cdef long index
    with nogil:
        for index in range(load_count(&pool_count)):
            stop_watch(pools[index], True)


pool.settings.round_limit = SIZE_MAX
pool.settings.cache_limit = SIZE_MAX
pool.settings.register_threads = 1
pool.limit = SIZE_MAX
pool.node = ANY_NODE
pool.common = True
pools[0] = &pool
pool_count = 1
pthread_mutex_init(&pool.order, NULL)
at_fork("allocator.pinned.cache", FORK_POOLS, NULL, NULL, &forget_in_child)
call_at_exit("allocator.pinned.cache", "pools", close_pinned)
