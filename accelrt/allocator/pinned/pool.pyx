"""The cache of page-locked host memory: the hit, the miss, and the steps before an out-of-memory error.

Two locks, always taken in this order: order, held around events, and lock, a spin lock held for bookkeeping.
Neither is held while the GIL is taken or while something is waited for; memory comes and goes under none.
"""
from libc.stdint cimport SIZE_MAX, uintptr_t
from libc.stdlib cimport calloc
from libc.string cimport memset

from accelrt.core.handle_map cimport map_find
from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.capture_guard cimport enter_wait, leave_wait
from accelrt.allocator.event_queue cimport Entry, Queue, next_filled
from accelrt.allocator.metadata cimport heap_stream
from accelrt.allocator.pinned.block cimport (
    CLASSES, DEVICES, FREE, LARGE, LEAVING, LIVE, PAGE, PENDING, ROUND_LIMIT, SMALL, SMALL_SEGMENT, STEP, PinnedBlock,
    PinnedSegment, PinnedUse, class_below, class_size, kind_of, reset_peak, reset_sums, reset_timing, round_up,
)
from accelrt.allocator.pinned.heap cimport (
    attach, block_of, count_freed, defer, detach_doomed, detach_idle, doom, drop_spare_events, find, find_unrounded,
    finish, forget_watch, give_memory, give_unused, hand_out, poll, record_all_events, set_free, stop_watch, take_memory,
    wait_all, watch, watching,
)
from accelrt.status cimport FORKED, INVALID_DEVICE, NOT_ALLOCATED, NOT_READY, NO_HOST_MEMORY, OUT_OF_MEMORY

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
    if (size - 1) >> ROUND_LIMIT:
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


cdef void hand_on_uses_of(PinnedBlock* block, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # Under lock.  A block that several streams of one heir's used has several uses by it, which is no harm.
    cdef PinnedUse** link = &block.uses
    cdef PinnedUse* use
    while link[0] != NULL:
        use = link[0]
        if use.stream == stream and use.device == device:
            if heir:
                use.stream = heir
                link = &use.next
                continue
            link[0] = use.next
            use.next = pool.spare_uses
            pool.spare_uses = use
        else:
            link = &use.next


cdef void hand_on_uses(int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # Under order.
    cdef PinnedBlock** link = &pool.deferred
    cdef PinnedBlock* block
    cdef size_t index
    spin_lock(&pool.lock)
    for index in range(pool.live.capacity):
        block = <PinnedBlock*>pool.live.slots[index].value
        if block != NULL:
            hand_on_uses_of(block, device, stream, heir)
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
    if size >> ROUND_LIMIT:
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


cdef PinnedUse* new_use() noexcept nogil:
    cdef PinnedUse* use = pool.spare_uses
    if use == NULL:
        return <PinnedUse*>calloc(1, sizeof(PinnedUse))
    pool.spare_uses = use.next
    return use


cdef int note(PinnedBlock* block, int device, uintptr_t stream) noexcept nogil:
    cdef PinnedUse* use = block.uses
    while use != NULL:
        if use.stream == stream and use.device == device:
            return 0
        use = use.next
    use = new_use()
    if use == NULL:
        return NO_HOST_MEMORY
    use.device = device
    use.stream = stream
    use.next = block.uses
    block.uses = use
    return 0


cdef int use_pinned_on(uintptr_t address, int device, uintptr_t stream) noexcept nogil:
    cdef PinnedBlock* block
    cdef int code = FORKED if forked else NOT_ALLOCATED
    if device < 0 or device >= DEVICES:
        return INVALID_DEVICE
    spin_lock(&pool.lock)
    block = block_of(&pool, address)
    if block != NULL:
        code = note(block, device, heap_stream(stream))
    spin_unlock(&pool.lock)
    return code


cdef bint is_cached_pinned(uintptr_t address) noexcept nogil:
    cdef bint answer
    spin_lock(&pool.lock)
    answer = block_of(&pool, address) != NULL
    spin_unlock(&pool.lock)
    return answer


cdef int empty_pinned() noexcept nogil:
    cdef int code
    pthread_mutex_lock(&pool.order)
    code = wait_all(&pool)
    pthread_mutex_unlock(&pool.order)
    if code == 0:
        code = give_back(True)
    if code == 0:
        pthread_mutex_lock(&pool.order)
        code = drop_spare_events(&pool)
        pthread_mutex_unlock(&pool.order)
    return code


# --- figures, settings, process --------------------------------------------------------------------------

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


cdef PinnedSettings read_pinned_settings() noexcept nogil:
    cdef PinnedSettings settings
    spin_lock(&pool.lock)
    settings = pool.settings
    spin_unlock(&pool.lock)
    return settings


cdef void set_pinned_settings(PinnedSettings settings) noexcept nogil:
    spin_lock(&pool.lock)
    pool.settings = settings
    spin_unlock(&pool.lock)
    if not settings.background:
        stop_watch(&pool, False)


cdef void close_pinned() noexcept nogil:
    stop_watch(&pool, True)


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


pool.settings.round_limit = SIZE_MAX
pool.settings.cache_limit = SIZE_MAX
pool.settings.register_threads = 1
pthread_mutex_init(&pool.order, NULL)
at_fork("allocator.pinned.pool", FORK_POOLS, NULL, NULL, &forget_in_child)


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
    cdef Entry* entry
    cdef PinnedBlock* block = pool.deferred
    cdef long entries = 0
    while queue != NULL:
        entry = queue.head
        while entry != NULL:
            entries += 1
            if (<PinnedBlock*>entry.block).state != PENDING:
                return "a pinned block is waited for that is not pending"
            entry = entry.next
        queue = next_filled(&pool.queues, queue.number + 1)
    while block != NULL:
        if block.state != PENDING or block.uses == NULL:
            return "a deferred pinned block has nothing to wait for"
        block = block.right
    if entries != pool.pending or (pool.awaited == 0 and entries != events):
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
