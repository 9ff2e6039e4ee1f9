"""Reads what the allocator holds, for Python: statistics, segments and live blocks."""
from libc.stdint cimport SIZE_MAX, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from accelrt.allocator.audit cimport audit_between, find_pinned_failure
from accelrt.allocator.backing.stitching cimport restart_budget_count
from accelrt.allocator.event_ring cimport (
    drop_stack, exchange_tag, record_event, record_host, reset_tag_peaks, take_host_stack, take_stack,
)
from accelrt.allocator.external.external_pool cimport (
    external_audit, external_limit, external_reset_accumulated, external_reset_peaks, external_stats,
)
from accelrt.allocator.heaps cimport (
    counted, has_graphs, is_captured, lock_all, lock_to_read, reserved, sum_of, total_of, try_lock_to_read,
    unlock_after_read, unlock_all,
)
from accelrt.allocator.history_types cimport (
    ALLOCATED, ARRAY_GONE, ARRAY_MADE, CONTEXT_ALL, CONTEXT_ALLOC, CONTEXT_STATE, FREE_COMPLETED, FREE_REQUESTED,
    POOL_ALLOCATED, POOL_FREED, SNAPSHOT,
)
from accelrt.allocator.inline.fast_path cimport flush_cached
from accelrt.allocator.inline.free_list cimport next_class
from accelrt.allocator.inline.heap_stats cimport cumulative, current, lower_limits, reset_cumulative
from accelrt.allocator.pinned.block cimport (
    ANY_NODE, NO_FILE, PinnedBlock, PinnedPool, PinnedSegment, PinnedStats, reset_peak, reset_sums, reset_timing,
)
from accelrt.allocator.pinned.cache cimport pinned_pool
from accelrt.allocator.pool cimport pool_if_made, recorded_pool, take_stack_of
from accelrt.allocator.pool_settings cimport rounded
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.sizes cimport LARGE, ROUND_LIMIT, SMALL
from accelrt.allocator.stats cimport (
    ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, BOTH, PER_HEAP, RESERVED_BYTES, STATS, clear_counts, Counter,
    current_of, Stats,
)
from accelrt.allocator.types cimport CLASSES, FREE, HOLE, LIVE, PENDING, PLAIN, Block, Heap, Pool, Segment, Slot
from accelrt.core.growing cimport ensure_room
from accelrt.core.handle_map cimport AddressMap, map_clear, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport (
    add_count, load_count, pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock, spin_lock, spin_unlock,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.guard cimport next_filled, PooledEvent, Queue
from accelrt.driver.memory cimport KIND_DEVICE, KIND_HOST, KIND_MANAGED


# --- read stats -------------------------------------------------------------------------------------------------------
# A pool's statistics, each read at one moment, and its segments as torch's snapshots describe them.

cdef int64_t external_current(Pool* pool, int stat) noexcept nogil:
    cdef Stats stats = external_stats(pool.external)
    return current_of(&stats, stat)


cdef int64_t sum_up(Pool* pool, int stat) noexcept nogil:
    # Under the pool's mutex; takes the lock of one awake heap at a time, some nanoseconds each.
    cdef int64_t total
    cdef Heap* heap = pool.awake
    if stat == RESERVED_BYTES:
        return reserved(pool)
    total = pool.asleep[0][stat] + pool.asleep[1][stat]
    while heap != NULL:
        spin_lock(&heap.lock)
        flush_cached(heap)
        total += current(heap, BOTH, stat)
        spin_unlock(&heap.lock)
        heap = heap.next_awake
    return total


cdef int64_t read_current(Pool* pool, int stat) noexcept nogil:
    cdef int64_t total
    if pool == NULL:
        return 0
    if pool.external != NULL:
        return external_current(pool, stat)
    pthread_mutex_lock(&pool.lock)
    total = sum_up(pool, stat)
    pthread_mutex_unlock(&pool.lock)
    return total


cdef bint try_current(Pool* pool, int stat, int64_t* out_answer) noexcept nogil:
    if pool == NULL or pool.external != NULL or pthread_mutex_trylock(&pool.lock):
        return False
    out_answer[0] = sum_up(pool, stat)
    pthread_mutex_unlock(&pool.lock)
    return True


cdef int64_t allocated_bytes(Pool* pool) noexcept nogil:
    return read_current(pool, ALLOCATED_BYTES)


cdef int64_t active_bytes(Pool* pool) noexcept nogil:
    return read_current(pool, ACTIVE_BYTES)


cdef int64_t reserved_bytes(Pool* pool) noexcept nogil:
    return read_current(pool, RESERVED_BYTES)


cdef int64_t peak_of(Pool* pool, int stat) noexcept nogil:
    cdef int64_t peak
    if pool == NULL:
        return 0
    if pool.external != NULL:
        return external_stats(pool.external).peak_all[stat]
    lock_all(pool)
    peak = pool.stats.peak_all[stat]
    unlock_all(pool, NULL)
    return peak


cdef size_t largest_in(const Heap* heap) noexcept nogil:
    # The last block of the highest class that is not empty.  In the exclusive section.
    cdef int index = next_class(heap, -1), last = -1
    cdef const Block* block
    while index >= 0:
        last = index
        index = next_class(heap, index) if index + 1 < CLASSES else -1
    if last < 0:
        return 0
    block = heap.trees[last]
    while block.right != NULL:
        block = block.right
    return block.size


cdef size_t largest_free(Pool* pool) noexcept nogil:
    # 0 for a pool without free blocks.
    cdef size_t largest = 0
    cdef Heap* heap
    if pool == NULL:
        return 0
    lock_all(pool)
    heap = pool.heaps
    while heap != NULL:
        largest = max(largest, largest_in(heap))
        heap = heap.next
    unlock_all(pool, NULL)
    return largest


cdef size_t limit_of(Pool* pool) noexcept nogil:
    cdef size_t limit
    if pool == NULL:
        return SIZE_MAX
    if pool.external != NULL:
        return external_limit(pool.external)
    lock_all(pool)
    limit = pool.limit
    unlock_all(pool, NULL)
    return limit


cdef int64_t max_split_of(Pool* pool) noexcept nogil:
    cdef size_t limit = SIZE_MAX
    if pool != NULL:
        lock_all(pool)
        limit = pool.settings.max_split
        unlock_all(pool, NULL)
    return -1 if limit == SIZE_MAX else limit


cdef int64_t accumulated(const Pool* pool, int stat, int kind) noexcept nogil:
    # The sum of every increase since the last reset.  In the exclusive section.
    cdef const Heap* heap = pool.awake
    cdef int64_t total = pool.asleep_cumulative[kind][stat]
    while heap != NULL:
        total += cumulative(heap, kind, stat)
        heap = heap.next_awake
    return total


cdef Stats read_stats(Pool* pool) noexcept nogil:
    # freed = allocated - current + current at the last reset, so that no counter of frees is kept by heaps.
    cdef Stats stats
    cdef int stat, kind
    cdef Counter* counter
    if pool == NULL:
        memset(&stats, 0, sizeof(Stats))
        return stats
    if pool.external != NULL:
        return external_stats(pool.external)
    lock_all(pool)
    stats = pool.stats
    for stat in range(PER_HEAP):
        for kind in range(2):
            counter = &stats.counters[stat][kind]
            counter.current = counted(pool, stat, kind)
            counter.allocated = accumulated(pool, stat, kind)
            counter.freed = counter.allocated - counter.current + pool.freed_base[kind][stat]
    unlock_all(pool, NULL)
    return stats


cdef void reset_peaks(Pool* pool) noexcept nogil:
    # The new peaks are the current values; leaving the exclusive section distributes the limits anew below them.
    cdef int stat, kind
    cdef Heap* heap
    if pool == NULL:
        return
    if pool.external != NULL:
        external_reset_peaks(pool.external)
        return
    lock_all(pool)
    heap = pool.heaps
    while heap != NULL:
        memset(heap.excess, 0, sizeof(heap.excess))
        if heap.awake:
            lower_limits(heap)
        heap = heap.next
    pool.peaked = True
    for stat in range(STATS):
        for kind in range(2):
            if stat < PER_HEAP:
                pool.stats.counters[stat][kind].current = pool.total[kind][stat]
            pool.stats.counters[stat][kind].peak = pool.stats.counters[stat][kind].current
        pool.stats.peak_all[stat] = pool.stats.counters[stat][0].current + pool.stats.counters[stat][1].current
    pool.stats.oversize_allocations.peak = pool.stats.oversize_allocations.current
    pool.stats.oversize_segments.peak = pool.stats.oversize_segments.current
    if pool.history != NULL:
        reset_tag_peaks(pool.history)
    unlock_all(pool, NULL)


cdef void reset_counter(Counter* counter) noexcept nogil:
    counter.allocated = counter.freed = 0


cdef void reset_accumulated(Pool* pool) noexcept nogil:
    # Sets every counter of increases to 0; current values and peaks stay.
    cdef int stat, kind
    cdef Heap* heap
    if pool == NULL:
        return
    if pool.external != NULL:
        external_reset_accumulated(pool.external)
        return
    lock_all(pool)
    restart_budget_count(pool)
    heap = pool.heaps
    while heap != NULL:
        reset_cumulative(heap)
        heap = heap.next
    memset(pool.asleep_cumulative, 0, sizeof(pool.asleep_cumulative))
    for kind in range(2):
        for stat in range(PER_HEAP):
            pool.freed_base[kind][stat] = pool.total[kind][stat]
        for stat in range(PER_HEAP, STATS):
            reset_counter(&pool.stats.counters[stat][kind])
    reset_counter(&pool.stats.oversize_allocations)
    reset_counter(&pool.stats.oversize_segments)
    clear_counts(&pool.stats)
    unlock_all(pool, NULL)


cdef const char* look_for_audit_failure(Pool* pool) noexcept nogil:
    # Returns what a debug audit found earlier, or what an audit of level 2 finds now; locks to read only.
    cdef const char* failure
    if pool.external != NULL:
        return external_audit(pool.external)
    lock_to_read(pool)
    failure = pool.failed_identity if pool.failed_identity != NULL else audit_between(pool, 2)
    unlock_after_read(pool)
    return failure


cdef object find_audit_failure(Pool* pool):
    cdef const char* failure
    if pool == NULL:
        return None
    with nogil:
        failure = look_for_audit_failure(pool)
    return None if failure == NULL else failure.decode()


# --- a pool's segments, as torch's snapshots describe them-------------------------------------------------

# stub: STATES: dict[int, str]
STATES = {LIVE: "active_allocated", PENDING: "active_pending_free"}


cdef size_t count_blocks(const Segment* segment) noexcept nogil:
    # Counts those of a list of segments.  In the exclusive section.
    cdef const Block* block
    cdef size_t count = 0
    while segment != NULL:
        block = segment.first
        while block != NULL:
            count += 1
            block = block.after
        segment = segment.after
    return count


cdef void view_block(View* view, const Segment* segment, const Block* block) noexcept nogil:
    view.address = block.address
    view.size = block.size
    view.requested = block.requested
    view.state = block.state
    view.opens = block.before == NULL or block.before.state == HOLE
    view.serial = segment.serial
    view.kind = segment.kind
    view.shape = segment.shape
    view.stream = segment.heap.stream
    view.stack = block.stack
    view.tag = block.tag
    view.segment_stack = segment.stack
    view.managed = segment.source != NULL and segment.source.managed
    view.asleep = segment.heap.owner != NULL and segment.heap.owner.suspension != NULL
    view.owner[0] = view.owner[1] = 0
    if segment.heap.owner != NULL:
        view.owner[0] = segment.heap.owner.id[0]
        view.owner[1] = segment.heap.owner.id[1]


cdef size_t view_segments(View* views, const Segment* segment, size_t index) noexcept nogil:
    # Copies the blocks from index on; returns the next index.  Pages are shown where they are resident: holes are left
    # out.
    cdef const Block* block
    while segment != NULL:
        block = segment.first
        while block != NULL:
            if block.state != HOLE:
                view_block(&views[index], segment, block)
                index += 1
            block = block.after
        segment = segment.after
    return index


cdef View* copy_blocks(Pool* pool, size_t* out_count, uint64_t* out_mark) noexcept nogil:
    # Enters the exclusive section.  NULL where the host has no memory for the copy.  The mark: the next event's number.
    cdef const Heap* heap
    cdef View* views
    lock_all(pool)
    out_count[0] = count_blocks(pool.first)
    heap = pool.heaps
    while heap != NULL:
        out_count[0] += count_blocks(heap.first_stitched)
        heap = heap.next
    views = <View*>malloc((out_count[0] + 1) * sizeof(View))
    if views != NULL:
        out_count[0] = view_segments(views, pool.first, 0)
        heap = pool.heaps
        while heap != NULL:
            out_count[0] = view_segments(views, heap.first_stitched, out_count[0])
            heap = heap.next
    if pool.history != NULL:
        out_mark[0] = pool.history.next
    unlock_all(pool, NULL)
    return views


cdef dict block_dict(const View* view):
    cdef bint live = view.state in (LIVE, PENDING)
    return {
        "address": view.address,
        "size": view.size,
        "requested_size": view.requested,
        "state": STATES.get(view.state, "inactive"),
        "frames": view.stack if live else 0,
        "tag": view.tag if live else 0,
    }


cdef dict segment_dict(int device, const View* view):
    return {
        "device": device,
        "address": view.address,
        "total_size": 0,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": view.stream,
        "segment_type": "large" if view.kind == LARGE else "small",
        "segment_pool_id": (view.owner[0], view.owner[1]),
        "is_expandable": view.shape != PLAIN,
        "asleep": bool(view.asleep),
        "managed": bool(view.managed),
        "serial": view.serial,
        "frames": view.segment_stack,
        "blocks": [],
    }


cdef list segments_of(int device, const View* views, size_t count):
    # One dict for each run of blocks between holes, with the sums over its blocks.
    cdef size_t index
    cdef const View* view
    cdef list segments = []
    cdef dict segment = {}
    for index in range(count):
        view = &views[index]
        if view.opens:
            segment = segment_dict(device, view)
            segments.append(segment)
        segment["blocks"].append(block_dict(view))
        segment["total_size"] += view.size
        if view.state == LIVE:
            segment["allocated_size"] += view.size
        if view.state == LIVE or view.state == PENDING:
            segment["active_size"] += view.size
            segment["requested_size"] += view.requested
    return segments


def record_snapshot(int device) -> None:
    """Notes in a device's history that a snapshot was made, which has its events: as torch's, with the active bytes."""
    cdef Pool* pool = pool_if_made(device)
    if pool == NULL or pool.external != NULL or pool.history == NULL:
        return
    with nogil:
        lock_all(pool)
        record_event(pool, SNAPSHOT, 0, total_of(pool, ACTIVE_BYTES), 0, NULL)
        unlock_all(pool, NULL)


cdef void record_array(int device, bint came, uintptr_t handle, size_t size) noexcept:
    record_beside(device, ARRAY_MADE if came else ARRAY_GONE, handle, size, 0)


cdef void record_beside(int device, int action, uintptr_t address, size_t size, uintptr_t stream) noexcept:
    cdef Pool* pool = pool_if_made(device)
    cdef bint came = action in (ARRAY_MADE, POOL_ALLOCATED)
    if pool == NULL and not came:  # a destructor makes no pool
        return
    with nogil:
        pool = recorded_pool(device)
    if pool == NULL:
        return
    take_stack(pool, CONTEXT_ALLOC if came else CONTEXT_ALL, NULL)
    with nogil:
        lock_all(pool)
        record_event(pool, action, address, size, stream, NULL)
        unlock_all(pool, NULL)
        drop_stack()


def segments(int device) -> tuple[list[dict[str, Any]], int]:
    """The segments of one device's pool, in the order in which they were taken.

    Arguments:
        device: int, an ordinal.
    Returns:
        A list of dicts with torch's keys (torch.cuda.memory_snapshot), "serial", "asleep" and "managed", and the number of
        the first event that came later; [] and 0 where the device's pool was never used.  "frames" and "tag" are numbers
        (memory/history/recording.pyx, name_all).
    Raises:
        MemoryError: the host has no memory for the copy.
    """
    cdef Pool* pool = pool_if_made(device)
    cdef View* views
    cdef size_t count = 0
    cdef uint64_t mark = 0
    if pool == NULL:
        return [], 0
    with nogil:
        views = copy_blocks(pool, &count, &mark)
    if views == NULL:
        raise MemoryError(f"no host memory for a snapshot of {count} blocks")
    try:
        return segments_of(device, views, count), mark
    finally:
        free(views)


# --- page-locked memory -----------------------------------------------------------------------------------------------

cdef struct PinnedView:   # a block, and the segment that it is in
    PinnedBlock block
    PinnedSegment segment


cdef size_t count_pinned(const PinnedPool* pool) noexcept nogil:
    cdef const PinnedBlock* block
    cdef size_t index, count = 0
    for index in range(pool.segment_count):
        block = pool.segments[index].first
        while block != NULL:
            count += 1
            block = block.after
    return count


cdef void view_pinned(const PinnedPool* pool, PinnedView* views) noexcept nogil:
    cdef const PinnedBlock* block
    cdef size_t index, at = 0
    for index in range(pool.segment_count):
        block = pool.segments[index].first
        while block != NULL:
            views[at].block, views[at].segment = block[0], pool.segments[index][0]
            at += 1
            block = block.after


cdef PinnedView* copy_pinned(PinnedPool* pool, size_t* out_count) noexcept nogil:
    # Room is made without the lock, and is too small where the pool has grown meanwhile.  NULL: no host memory.
    cdef PinnedView* views
    cdef size_t room = 64
    while True:
        views = <PinnedView*>malloc(room * sizeof(PinnedView))
        if views == NULL:
            return NULL
        spin_lock(&pool.lock)
        out_count[0] = count_pinned(pool)
        if out_count[0] <= room:
            view_pinned(pool, views)
            spin_unlock(&pool.lock)
            return views
        spin_unlock(&pool.lock)
        free(views)
        room = out_count[0] + 64


cdef dict pinned_dict(const PinnedView* view, long number, int node):
    return {
        "address": view.segment.address, "total_size": view.segment.size, "device": view.segment.device, "pool": number,
        "numa_node": None if node == ANY_NODE else node, "registered": bool(view.segment.registered),
        "shared": view.segment.file != NO_FILE, "blocks": [],
    }


cdef list pinned_states = ["inactive", "active_allocated", "active_pending_free", "inactive"]  # by PinnedBlock.state


def pinned_segments() -> list[dict[str, Any]]:
    """Lists the segments of page-locked memory of every pool, each pool at one moment (memory.host_memory_snapshot()).

    Raises:
        MemoryError: the host has no memory for the copy.
    """
    cdef PinnedView* views
    cdef size_t count = 0, index
    cdef long number = 0
    cdef list segments = []
    while pinned_pool(number) != NULL:
        with nogil:
            views = copy_pinned(pinned_pool(number), &count)
        if views == NULL:
            raise MemoryError(f"no host memory for a snapshot of {count} blocks")
        try:
            for index in range(count):
                if views[index].block.before == NULL:
                    segments.append(pinned_dict(&views[index], number, pinned_pool(number).node))
                segments[len(segments) - 1]["blocks"].append({
                    "address": views[index].block.address, "size": views[index].block.size,
                    "state": pinned_states[views[index].block.state],
                })
        finally:
            free(views)
        number += 1
    return segments


# --- holdings ---------------------------------------------------------------------------------------------------------
# What a device's pool holds at one moment: by private pool, by stream, and by the events that pending memory waits for.
#
# For errors and reports, which need figures that agree with each other.  The exclusive section is entered once, records are
# copied in it, and Python's objects are made after it was left.

cdef struct HeapHolding:      # of one heap
    uintptr_t stream
    int kind                  # of its plain segments
    uint64_t[2] owner         # the private pool's id; zeros: common
    size_t live               # bytes, as those below
    size_t pending
    size_t idle
    size_t largest_free       # one free block
    size_t largest_small      # one that serves requests up to 1 MiB, for which plain segments have heaps of their own
    size_t largest_large      # and one for those above
    size_t largest_freeable   # neighbours that are free or pending
    size_t releasable         # whole pages and plain segments that are free
    size_t releasable_later   # likewise, once what is pending is free too
    size_t live_blocks
    size_t pending_blocks

cdef struct PoolHolding:      # of one private pool
    uint64_t[2] id
    int uses
    bint graphs               # a graph or a capture uses it
    bint captured             # a capture under way allocates from it
    bint asleep               # the device has its pages back; what is live in it lies on the host, or nowhere
    size_t limit
    size_t reserved
    size_t sleeping           # bytes of these pages, which are not reserved
    bint managed              # its memory is managed

cdef struct EventHolding:     # of one stream's queue
    uintptr_t stream
    int device
    bint offers               # the events are those of free_after
    size_t events
    size_t bytes

cdef struct StackHolding:     # of one recorded stack
    uint32_t stack
    size_t live
    size_t blocks

cdef struct Holdings:
    int64_t reserved
    int64_t live
    int64_t pending
    size_t limit
    size_t granule
    size_t page_size          # 0: chosen by what is reserved
    size_t largest_page
    bint splits               # there is no limit on splitting
    size_t deferred           # bytes pending without an event: a capture used them
    bint virtual_memory
    bint stitching
    bint captures
    int64_t stitched
    int64_t sleeping          # bytes of pools that sleep, which are not reserved
    int64_t managed           # bytes of segments of managed memory, among the reserved ones
    size_t heap_count
    size_t pool_count
    size_t queue_count
    size_t stack_count
    size_t stack_room
    HeapHolding* heaps
    PoolHolding* pools
    EventHolding* queues
    StackHolding* stacks
    AddressMap stack_index    # number of a stack -> its index + 1 in stacks


cdef void count_block(HeapHolding* into, const Block* block, size_t* run) noexcept nogil:
    # run: bytes of the free or pending neighbours up to here.
    if block.state == LIVE:
        into.live += block.size
        into.live_blocks += 1
    elif block.state == PENDING:
        into.pending += block.size
        into.pending_blocks += 1
    elif block.state == FREE:
        into.idle += block.size
        into.largest_free = max(into.largest_free, block.size)
    run[0] = run[0] + block.size if block.state == FREE or block.state == PENDING else 0
    into.largest_freeable = max(into.largest_freeable, run[0])


cdef void count_pages(HeapHolding* into, const Segment* segment) noexcept nogil:
    # Of an expandable or stitched segment: blocks and slots are both in the order of addresses, so that one walk suffices.
    # A page counts where it is resident.
    cdef const Block* block = segment.first
    cdef const Slot* slot
    cdef bint can, free_          # all blocks over the page so far are free or pending; are free
    cdef size_t number
    for number in range(segment.slot_count):
        slot = segment.slots[number]
        if slot.page == NULL or slot.page.resident != slot:
            continue
        while block != NULL and block.address + block.size <= slot.address:
            block = block.after
        can = free_ = block != NULL
        while can and block != NULL:
            can = block.state == FREE or block.state == PENDING
            free_ = free_ and block.state == FREE
            if not can or block.address + block.size >= slot.address + slot.size:
                break
            block = block.after
        if can and block != NULL:
            into.releasable_later += slot.size
            if free_:
                into.releasable += slot.size


cdef void count_stack(Holdings* answer, const Block* block) noexcept nogil:
    # Leaves the stack out if there is no host memory for one more.
    cdef size_t number = <size_t>map_find(&answer.stack_index, block.stack)
    if number == 0:
        if ensure_room(&answer.stacks, answer.stack_count, &answer.stack_room, sizeof(StackHolding)):
            return
        if map_reserve(&answer.stack_index):
            return
        memset(&answer.stacks[answer.stack_count], 0, sizeof(StackHolding))
        answer.stacks[answer.stack_count].stack = block.stack
        answer.stack_count += 1
        number = answer.stack_count
        map_insert(&answer.stack_index, block.stack, <void*>number)
    answer.stacks[number - 1].live += block.size
    answer.stacks[number - 1].blocks += 1


cdef void count_segments(AddressMap* index, Holdings* answer, const Segment* segment) noexcept nogil:
    # Adds those of a list to their heaps' figures.  In the exclusive section.
    cdef HeapHolding* into
    cdef const Block* block
    cdef size_t run, live
    while segment != NULL:
        into = <HeapHolding*>map_find(index, <uintptr_t>segment.heap)
        block = segment.first
        run, live = 0, into.live
        while block != NULL:
            count_block(into, block, &run)
            if block.state == LIVE and block.stack:
                count_stack(answer, block)
            block = block.after
        if segment.shape != PLAIN:
            count_pages(into, segment)
        elif into.live == live:
            into.releasable_later += segment.size
            if segment.first.state == FREE and segment.first.after == NULL:
                into.releasable += segment.size
        segment = segment.after


cdef bint list_heaps(Pool* pool, Holdings* answer, AddressMap* index) noexcept nogil:
    # False where the host has no memory.  In the exclusive section.
    cdef Heap* heap = pool.heaps
    cdef HeapHolding* into
    while heap != NULL:
        answer.heap_count += 1
        heap = heap.next
    answer.heaps = <HeapHolding*>calloc(answer.heap_count + 1, sizeof(HeapHolding))
    if answer.heaps == NULL:
        return False
    into = answer.heaps
    heap = pool.heaps
    while heap != NULL:
        if map_reserve(index):
            return False
        map_insert(index, <uintptr_t>heap, into)
        into.stream = heap.stream
        into.kind = heap.kind
        if heap.owner != NULL:
            into.owner[0], into.owner[1] = heap.owner.id[0], heap.owner.id[1]
        into += 1
        heap = heap.next
    return True


cdef bint list_pools(Pool* pool, Holdings* answer) noexcept nogil:
    # As list_heaps.
    cdef PrivatePool* owner = pool.privates
    cdef PoolHolding* into
    while owner != NULL:
        answer.pool_count += 1
        owner = owner.next
    answer.pools = <PoolHolding*>calloc(answer.pool_count + 1, sizeof(PoolHolding))
    if answer.pools == NULL:
        return False
    into = answer.pools
    owner = pool.privates
    while owner != NULL:
        into.id[0], into.id[1] = owner.id[0], owner.id[1]
        into.uses = owner.uses
        into.graphs = has_graphs(owner)
        into.captured = is_captured(pool, owner)
        into.asleep, into.sleeping = owner.suspension != NULL, owner.sleeping
        into.managed = owner.source != NULL and owner.source.managed
        into.limit = owner.limit
        into.reserved = owner.reserved
        into += 1
        owner = owner.next
    return True


cdef bint list_queues(Pool* pool, Holdings* answer) noexcept nogil:
    # As list_heaps.
    cdef const Queue* queue
    cdef const PooledEvent* event
    cdef EventHolding* into
    answer.queues = <EventHolding*>calloc(pool.queues.count + 1, sizeof(EventHolding))
    if answer.queues == NULL:
        return False
    queue = next_filled(&pool.queues, 0)
    while queue != NULL:
        into = &answer.queues[answer.queue_count]
        answer.queue_count += 1
        into.stream, into.device = queue.stream, queue.device
        into.offers = pool.watch != 0 and queue.stream == pool.watch
        event = queue.head
        while event != NULL:
            into.events += 1
            if event.block != NULL:
                into.bytes += (<const Block*>event.block).size
            event = event.next
        queue = next_filled(&pool.queues, queue.number + 1)
    return True


cdef bint copy_holdings(Pool* pool, Holdings* answer) noexcept nogil:
    # False where the host has no memory for all of it: what is there is right.
    cdef AddressMap index
    cdef const Heap* heap
    cdef const Block* block
    cdef bint whole
    cdef size_t number
    memset(&index, 0, sizeof(AddressMap))
    lock_all(pool)
    answer.reserved = reserved(pool)
    answer.live = total_of(pool, ALLOCATED_BYTES)
    answer.pending = total_of(pool, ACTIVE_BYTES) - answer.live
    answer.limit = pool.limit
    answer.granule, answer.page_size = pool.granule, pool.settings.page_size
    answer.splits = pool.settings.max_split == SIZE_MAX
    answer.virtual_memory, answer.stitching = pool.settings.virtual_memory, pool.settings.stitching
    answer.captures = pool.captures > 0
    answer.stitched, answer.sleeping = pool.stats.stitched_bytes, pool.stats.sleeping_bytes
    answer.managed = pool.stats.managed_bytes
    block = pool.deferred
    while block != NULL:
        answer.deferred += block.size
        block = block.left
    whole = list_heaps(pool, answer, &index) and list_pools(pool, answer) and list_queues(pool, answer)
    if whole:
        count_segments(&index, answer, pool.first)
        heap = pool.heaps
        while heap != NULL:
            count_segments(&index, answer, heap.first_stitched)
            heap = heap.next
        if pool.last_page != NULL:
            answer.largest_page = pool.last_page.size
    unlock_all(pool, NULL)
    map_clear(&index)
    for number in range(answer.heap_count if whole else 0):
        sort_by_kind(&answer.heaps[number], answer.virtual_memory)
    return whole


cdef void sort_by_kind(HeapHolding* heap, bint virtual_memory) noexcept nogil:
    if virtual_memory or heap.kind == SMALL:
        heap.largest_small = heap.largest_free
    if virtual_memory or heap.kind != SMALL:
        heap.largest_large = heap.largest_free


cdef void copy_totals(Pool* pool, Holdings* answer) noexcept nogil:
    # The pool's memory comes from another backend, whose lock this takes.
    cdef Stats stats = read_stats(pool)
    answer.reserved, answer.live = current_of(&stats, RESERVED_BYTES), current_of(&stats, ALLOCATED_BYTES)
    answer.pending = current_of(&stats, ACTIVE_BYTES) - answer.live
    answer.limit = limit_of(pool)


cdef void forget(Holdings* answer) noexcept nogil:
    free(answer.heaps)
    free(answer.pools)
    free(answer.queues)
    free(answer.stacks)
    map_clear(&answer.stack_index)


# --- as Python's objects ---------------------------------------------------------------------------------------

cdef dict stream_dict(const HeapHolding* heap):
    return {
        "stream": heap.stream, "pool": (heap.owner[0], heap.owner[1]), "live": heap.live, "pending": heap.pending,
        "idle": heap.idle, "largest_free": heap.largest_free, "largest_freeable": heap.largest_freeable,
        "largest_small": heap.largest_small, "largest_large": heap.largest_large,
        "releasable": heap.releasable, "releasable_later": heap.releasable_later,
        "live_blocks": heap.live_blocks, "pending_blocks": heap.pending_blocks,
    }


cdef list streams_of(const Holdings* held):
    # Makes one dict for each stream and private pool: with plain segments these have two heaps.
    cdef dict merged = {}
    cdef size_t number
    for number in range(held.heap_count):
        fresh = stream_dict(&held.heaps[number])
        if not (fresh["live"] or fresh["pending"] or fresh["idle"]):
            continue
        known = merged.setdefault((fresh["pool"], fresh["stream"]), fresh)
        if known is not fresh:
            for key in ("live", "pending", "idle", "releasable", "releasable_later", "live_blocks", "pending_blocks"):
                known[key] += fresh[key]
            for key in ("largest_free", "largest_freeable", "largest_small", "largest_large"):
                known[key] = max(known[key], fresh[key])
    return list(merged.values())


cdef dict pool_dict(const PoolHolding* pool):
    return {
        "id": (pool.id[0], pool.id[1]), "uses": pool.uses, "graphs": bool(pool.graphs), "captured": bool(pool.captured),
        "limit": None if pool.limit == SIZE_MAX else pool.limit, "reserved": pool.reserved, "asleep": bool(pool.asleep),
        "sleeping": pool.sleeping, "managed": bool(pool.managed),
    }


cdef dict common_pool(const Holdings* held):
    cdef size_t number
    common = held.reserved - sum([held.pools[number].reserved for number in range(held.pool_count)])
    return {
        "id": (0, 0), "uses": 0, "graphs": False, "captured": False, "limit": None, "reserved": common, "asleep": False,
        "sleeping": 0, "managed": False,
    }


cdef list pools_of(const Holdings* held, list streams):
    cdef size_t number
    cdef list pools = [common_pool(held)]
    cdef dict by_id
    pools.extend([pool_dict(&held.pools[number]) for number in range(held.pool_count)])
    for pool in pools:
        pool.update({"live": 0, "pending": 0, "idle": 0, "largest_free": 0, "largest_freeable": 0,
                     "releasable": 0, "releasable_later": 0})
    by_id = {pool["id"]: pool for pool in pools}
    for stream in streams:
        pool = by_id.get(stream["pool"])
        if pool is not None:
            for key in ("live", "pending", "idle", "releasable", "releasable_later"):
                pool[key] += stream[key]
            for key in ("largest_free", "largest_freeable"):
                pool[key] = max(pool[key], stream[key])
    return [pool for pool in pools if pool["id"] == (0, 0) or pool["reserved"] or pool["uses"] or pool["sleeping"]]


# What only memory on the device has.
# stub: AWAKE: set[str]
AWAKE = {"idle", "largest_free", "largest_freeable", "largest_small", "largest_large", "releasable", "releasable_later"}


cdef int put_aside(list streams, list pools) except -1:
    # Nothing of a pool that sleeps is on the device, or free to serve or to go back.
    asleep = {pool["id"] for pool in pools if pool["asleep"]}
    for entry in [stream for stream in streams if stream["pool"] in asleep] + [pool for pool in pools if pool["asleep"]]:
        for key in entry.keys() & AWAKE:
            entry[key] = 0
    return 0


cdef list events_of(const Holdings* held):
    cdef const EventHolding* queue
    cdef size_t number
    cdef list queues = []
    for number in range(held.queue_count):
        queue = &held.queues[number]
        queues.append({
            "device": queue.device, "stream": queue.stream, "events": queue.events, "bytes": queue.bytes,
            "offers": bool(queue.offers),
        })
    return queues


cdef list stacks_of(const Holdings* held):
    cdef size_t number
    cdef list stacks = [
        (held.stacks[number].stack, held.stacks[number].live, held.stacks[number].blocks)
        for number in range(held.stack_count)
    ]
    stacks.sort(key=bytes_of, reverse=True)
    return stacks


def bytes_of(entry: tuple[object, int, int]) -> int:
    return entry[1]


def holdings(int device) -> dict[str, Any] | None:
    """Returns what the pool of a device holds, all of it at one moment.

    Arguments:
        device: int, an ordinal.
    Returns:
        dict, sizes in bytes: reserved, live, pending, idle, largest_free; limit, None without one; granule, page_size (0:
        chosen), largest_page; virtual_memory, stitching, splits, capturing; deferred, of the pending bytes those that wait
        for a capture to end; stitched; sleeping; managed, of the reserved bytes; pools, streams and events, lists of dicts;
        stacks, list of (number, bytes, blocks) of live memory, the most bytes first.  The pool (0, 0) is the common one.
        What is live in a pool that is asleep counts as live, and is not on the device.  external: memory comes from
        another backend, and there are totals alone.  None before the first use.
    """
    cdef Pool* pool = pool_if_made(device)
    cdef Holdings held
    cdef bint whole = False
    if pool == NULL:
        return None
    memset(&held, 0, sizeof(Holdings))
    with nogil:
        if pool.external == NULL:
            whole = copy_holdings(pool, &held)
        else:
            copy_totals(pool, &held)
    try:
        return holdings_dict(device, &held, whole) | {"external": pool.external != NULL}
    finally:
        forget(&held)


cdef dict holdings_dict(int device, const Holdings* held, bint whole):
    # Leaves the lists out unless `whole` says that they are complete.
    streams = streams_of(held) if whole else []
    pools = pools_of(held, streams) if whole else []
    put_aside(streams, pools)
    away = sum([pool["live"] + pool["pending"] for pool in pools if pool["asleep"]])
    return {
        "device": device, "reserved": held.reserved, "live": held.live, "pending": held.pending,
        "idle": held.reserved + away - held.live - held.pending,
        "largest_free": max([stream["largest_free"] for stream in streams], default=0),
        "limit": None if held.limit == SIZE_MAX else held.limit, "granule": held.granule,
        "page_size": held.page_size, "largest_page": held.largest_page, "deferred": held.deferred,
        "virtual_memory": bool(held.virtual_memory), "stitching": bool(held.stitching),
        "splits": bool(held.splits), "capturing": bool(held.captures), "stitched": held.stitched,
        "sleeping": held.sleeping, "managed": held.managed, "streams": streams,
        "pools": pools, "events": events_of(held) if whole else [],
        "stacks": stacks_of(held),
    }


def rounded_request(int device, size_t size) -> int:
    """The bytes that a request takes of a device's pool, by the settings in force there; size where there is no pool."""
    cdef Pool* pool = pool_if_made(device)
    if pool == NULL or pool.external != NULL or size == 0 or size >> ROUND_LIMIT:
        return size
    return rounded(&pool.settings, size)


# --- memory of the driver's pools -------------------------------------------------------------------------------------
# What is live of it, by address: the one record that histories, figures, reports and leaks go by.

KIND_NAMES = {KIND_DEVICE: "device", KIND_MANAGED: "managed", KIND_HOST: "pinned"}
# stub: KIND_NAMES: dict[int, str]

cdef AddressMap pool_memory  # address -> PoolMemory
cdef int pool_memory_lock = 0


cdef void note_pooled(const PoolMemory* memory, bint came) noexcept:
    # In the history of its kind of memory.
    cdef uint32_t around = exchange_tag(memory.tag)
    if memory.kind != KIND_HOST:
        record_beside(memory.device, POOL_ALLOCATED if came else POOL_FREED, memory.address, memory.size, memory.stream)
    elif came:
        take_host_stack()
        record_host(ALLOCATED, memory.address, memory.size)
        drop_stack()
    else:
        record_host(FREE_REQUESTED, memory.address, memory.size)
        record_host(FREE_COMPLETED, memory.address, memory.size)
    exchange_tag(around)


cdef void add_pooled(int device, int kind, uintptr_t address, size_t size, uintptr_t stream) noexcept:
    cdef PoolMemory* memory = <PoolMemory*>malloc(sizeof(PoolMemory))
    if memory == NULL:
        return
    memory.address, memory.size, memory.stream, memory.device, memory.kind = address, size, stream, device, kind
    memory.tag = exchange_tag(0)
    exchange_tag(memory.tag)
    take_stack_of(device, CONTEXT_STATE)
    memory.stack = drop_stack()
    keep_pooled(memory)


cdef void keep_pooled(PoolMemory* memory) noexcept:
    cdef bint is_kept
    if memory == NULL:
        return
    spin_lock(&pool_memory_lock)
    is_kept = map_reserve(&pool_memory) == 0
    if is_kept:
        map_insert(&pool_memory, memory.address, memory)
    spin_unlock(&pool_memory_lock)
    if not is_kept:
        free(memory)
        return
    add_count(&pool_bytes[memory.kind][memory.device], <long>memory.size)
    note_pooled(memory, True)


cdef PoolMemory* take_pooled(uintptr_t address) noexcept:
    cdef PoolMemory* memory
    spin_lock(&pool_memory_lock)
    memory = <PoolMemory*>map_remove(&pool_memory, address)
    spin_unlock(&pool_memory_lock)
    if memory != NULL:
        add_count(&pool_bytes[memory.kind][memory.device], -<long>memory.size)
        note_pooled(memory, False)
    return memory


cdef void end_pooled(PoolMemory* memory, bint is_gone) noexcept:
    if is_gone:
        free(memory)
    else:
        keep_pooled(memory)


def driver_pool_bytes(int device) -> dict[str, int]:
    """Counts the bytes of a device's streams that this process has of the driver's pools: "device" memory, "managed" memory
    and "pinned" memory."""
    return {name: load_count(&pool_bytes[kind][device]) for kind, name in KIND_NAMES.items()}


def pool_blocks(int device) -> list[dict[str, Any]]:
    """Lists the memory of the driver's pools that is live, in streams of a device: address, size, requested_size, stream,
    pool, kind, a name of driver_pool_bytes, and the numbers of the stack ("frames") and the tag.

    Raises:
        MemoryError: the host has no memory for the copy.
    """
    cdef size_t index, count = 0
    cdef PoolMemory* memory
    cdef PoolMemory* copies
    spin_lock(&pool_memory_lock)
    copies = <PoolMemory*>malloc((pool_memory.count + 1) * sizeof(PoolMemory))
    for index in range(pool_memory.capacity if copies != NULL else 0):
        memory = <PoolMemory*>pool_memory.slots[index].value
        if memory != NULL and memory.device == device:
            copies[count] = memory[0]
            count += 1
    spin_unlock(&pool_memory_lock)
    if copies == NULL:
        raise MemoryError
    blocks = [
        {
            "address": copies[index].address, "size": copies[index].size, "requested_size": copies[index].size,
            "stream": copies[index].stream, "pool": (0, 0), "kind": KIND_NAMES[copies[index].kind],
            "frames": copies[index].stack, "tag": copies[index].tag,
        }
        for index in range(count)
    ]
    free(copies)
    return blocks


cdef void list_pooled(int device, LiveBlock* blocks, size_t room, size_t* out_count, size_t* out_bytes) noexcept nogil:
    cdef const PoolMemory* memory
    cdef size_t index
    spin_lock(&pool_memory_lock)
    for index in range(pool_memory.capacity):
        memory = <const PoolMemory*>pool_memory.slots[index].value
        if memory != NULL and memory.device == device:
            keep_largest(blocks, room, out_count[0], LiveBlock(memory.address, memory.size, memory.stream))
            out_count[0] += 1
            out_bytes[0] += memory.size
    spin_unlock(&pool_memory_lock)


cdef void forget_pooled() noexcept nogil:
    # In a forked child, whose parent has the memory.
    global pool_memory_lock
    pool_memory_lock = 0
    map_clear(&pool_memory)
    memset(pool_bytes, 0, sizeof(pool_bytes))


at_fork("allocator.readers", FORK_POOLS, NULL, NULL, &forget_pooled)


# --- at the end of the process: without Python -----------------------------------------------------------------

cdef void keep_largest(LiveBlock* blocks, size_t room, size_t count, LiveBlock block) noexcept nogil:
    # Inserts a block into the first ones, which are in order of size; `count` came before it.
    cdef size_t position = min(count, room)
    if position == room and (room == 0 or blocks[room - 1].size >= block.size):
        return
    if position == room:
        position -= 1
    while position and blocks[position - 1].size < block.size:
        blocks[position] = blocks[position - 1]
        position -= 1
    blocks[position] = block


cdef void list_segments(
    const Segment* segment, LiveBlock* blocks, size_t room, size_t* out_count, size_t* out_bytes,
) noexcept nogil:
    cdef const Block* block
    while segment != NULL:
        block = segment.first
        while block != NULL:
            if block.state == LIVE:
                keep_largest(blocks, room, out_count[0], LiveBlock(block.address, block.size, block.heap.stream))
                out_count[0] += 1
                out_bytes[0] += block.size
            block = block.after
        segment = segment.after


cdef bint list_live(int device, LiveBlock* blocks, size_t room, size_t* out_count, size_t* out_bytes) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef const Heap* heap
    cdef Stats stats
    out_count[0] = out_bytes[0] = 0
    list_pooled(device, blocks, room, out_count, out_bytes)
    if pool == NULL:
        return True
    if pool.external != NULL:
        stats = read_stats(pool)
        out_count[0] += current_of(&stats, ALLOCATION)
        out_bytes[0] += current_of(&stats, ALLOCATED_BYTES)
        return True
    if not try_lock_to_read(pool):
        return False
    list_segments(pool.first, blocks, room, out_count, out_bytes)
    heap = pool.heaps
    while heap != NULL:
        list_segments(heap.first_stitched, blocks, room, out_count, out_bytes)
        heap = heap.next
    unlock_after_read(pool)
    return True


cdef size_t list_live_pools(int device, LivePool* pools, size_t room) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef const PrivatePool* owner
    cdef LivePool* into
    cdef size_t count = 0, live
    if pool == NULL or pool.external != NULL or not try_lock_to_read(pool):
        return 0
    owner = pool.privates
    while owner != NULL and count < room:
        live = sum_of(pool, owner, ALLOCATED_BYTES)
        if owner.uses or live:
            into = &pools[count]
            into.first, into.second = owner.id[0], owner.id[1]
            into.users, into.graphs = owner.users, owner.uses - owner.users
            into.reserved, into.live = owner.reserved, live
            count += 1
        owner = owner.next
    unlock_after_read(pool)
    return count


# --- figures of page-locked memory ------------------------------------------------------------------------------

cdef void reset_pinned_pool(PinnedPool* at) noexcept nogil:
    spin_lock(&at.lock)
    reset_peak(&at.stats.segments)
    reset_peak(&at.stats.segment_bytes)
    reset_peak(&at.stats.blocks)
    reset_peak(&at.stats.block_bytes)
    spin_unlock(&at.lock)


cdef void reset_pinned_peaks() noexcept nogil:
    reset_pinned_pool(pinned_pool(0))


cdef void reset_pinned_sums() noexcept nogil:
    cdef PinnedPool* pool = pinned_pool(0)
    spin_lock(&pool.lock)
    reset_sums(&pool.stats.segments)
    reset_sums(&pool.stats.segment_bytes)
    reset_sums(&pool.stats.blocks)
    reset_sums(&pool.stats.block_bytes)
    reset_timing(&pool.stats.take)
    reset_timing(&pool.stats.give)
    spin_unlock(&pool.lock)


cdef void add_current(PinnedStats* sums, const PinnedStats* of_pool) noexcept nogil:
    sums.segments.current += of_pool.segments.current
    sums.segment_bytes.current += of_pool.segment_bytes.current
    sums.blocks.current += of_pool.blocks.current
    sums.block_bytes.current += of_pool.block_bytes.current


cdef const char* pinned_audit_failure() noexcept nogil:
    # All pools that there are at one moment, the first one's lock taken last.
    cdef PinnedStats nothing, others
    cdef const char* failure = NULL
    cdef long index, count = 0
    memset(&nothing, 0, sizeof(PinnedStats))
    memset(&others, 0, sizeof(PinnedStats))
    while pinned_pool(count) != NULL:
        pthread_mutex_lock(&pinned_pool(count).order)
        count += 1
    for index in range(1, count):
        spin_lock(&pinned_pool(index).lock)
    spin_lock(&pinned_pool(0).lock)
    for index in range(1, count):
        add_current(&others, &pinned_pool(index).stats)
        if failure == NULL:
            failure = find_pinned_failure(pinned_pool(index), &nothing)
    if failure == NULL:
        failure = find_pinned_failure(pinned_pool(0), &others)
    for index in range(count):
        spin_unlock(&pinned_pool(index).lock)
        pthread_mutex_unlock(&pinned_pool(index).order)
    return failure
