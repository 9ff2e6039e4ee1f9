"""A pool's statistics, each read at one moment, and its segments as torch's snapshots describe them."""
from libc.stdint cimport SIZE_MAX, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.allocator.audit cimport audit_between
from accelrt.allocator.backing.stitching cimport restart_budget_count
from accelrt.allocator.device_pools cimport pool_if_made
from accelrt.allocator.event_ring cimport record_event, reset_tag_peaks
from accelrt.allocator.exclusive cimport (
    counted, lock_all, lock_to_read, reserved, total_of, unlock_after_read, unlock_all,
)
from accelrt.allocator.history_types cimport SNAPSHOT
from accelrt.allocator.inline.fast_path cimport flush_cached
from accelrt.allocator.inline.free_list cimport next_class
from accelrt.allocator.inline.heap_stats cimport current, reset_cumulative, lower_limits, cumulative
from accelrt.allocator.sizes cimport LARGE
from accelrt.allocator.stats cimport (
    ACTIVE_BYTES, ALLOCATED_BYTES, BOTH, STATS, RESERVED_BYTES, PER_HEAP, Counter, clear_counts, current_of,
)
from accelrt.allocator.types cimport CLASSES, HOLE, LIVE, PENDING, PLAIN, Block, Heap, Pool, Segment
from accelrt.allocator.external.external_pool cimport (
    external_audit, external_limit, external_reset_accumulated, external_reset_peaks, external_stats,
)

cdef int64_t external_current(Pool* pool, int stat) noexcept nogil:
    cdef Stats stats = external_stats(pool.external)
    return current_of(&stats, stat)


cdef int64_t sum_up(Pool* pool, int stat) noexcept nogil:
    # Under the pool's mutex; takes the lock of one awake heap at a time, some nanoseconds each.
    cdef int64_t answer
    cdef Heap* heap = pool.awake
    if stat == RESERVED_BYTES:
        return reserved(pool)
    answer = pool.asleep[0][stat] + pool.asleep[1][stat]
    while heap != NULL:
        spin_lock(&heap.lock)
        flush_cached(heap)
        answer += current(heap, BOTH, stat)
        spin_unlock(&heap.lock)
        heap = heap.next_awake
    return answer


cdef int64_t read_current(Pool* pool, int stat) noexcept nogil:
    cdef int64_t answer
    if pool == NULL:
        return 0
    if pool.external != NULL:
        return external_current(pool, stat)
    pthread_mutex_lock(&pool.lock)
    answer = sum_up(pool, stat)
    pthread_mutex_unlock(&pool.lock)
    return answer


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
    cdef int64_t answer
    if pool == NULL:
        return 0
    if pool.external != NULL:
        return external_stats(pool.external).peak_all[stat]
    lock_all(pool)
    answer = pool.stats.peak_all[stat]
    unlock_all(pool, NULL)
    return answer


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
    cdef int64_t answer = pool.asleep_cumulative[kind][stat]
    while heap != NULL:
        answer += cumulative(heap, kind, stat)
        heap = heap.next_awake
    return answer


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
    heap = pool.awake
    while heap != NULL:
        lower_limits(heap)
        heap = heap.next_awake
    pool.peaked = True
    for stat in range(STATS):
        for kind in range(2):
            if stat < PER_HEAP:
                pool.stats.counters[stat][kind].current = pool.total[kind][stat]
            pool.stats.counters[stat][kind].peak = pool.stats.counters[stat][kind].current
        pool.stats.peak_all[stat] = (
            pool.stats.counters[stat][0].current + pool.stats.counters[stat][1].current
        )
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
    # What a debug audit found earlier, or what an audit of level 2 finds now; locks to read, so that nothing changes.
    cdef const char* found
    if pool.external != NULL:
        return external_audit(pool.external)
    lock_to_read(pool)
    found = pool.failed_identity if pool.failed_identity != NULL else audit_between(pool, 2)
    unlock_after_read(pool)
    return found


cdef object find_audit_failure(Pool* pool):
    cdef const char* found
    if pool == NULL:
        return None
    with nogil:
        found = look_for_audit_failure(pool)
    return None if found == NULL else found.decode()


# --- a pool's segments, as torch's snapshots describe them-------------------------------------------------

cdef struct View:  # a copy of a block's fields, with those of its segment
    uintptr_t address
    size_t size
    size_t requested
    int state
    bint opens          # the first of its segment, or after a hole: shown as a segment of its own
    uint64_t serial
    int kind
    int shape
    bint asleep         # its pool is suspended
    uintptr_t stream
    uint64_t[2] owner
    uint32_t stack
    uint32_t tag
    uint32_t segment_stack

STATES = {LIVE: "active_allocated", PENDING: "active_pending_free"}


cdef size_t count_blocks(const Segment* segment) noexcept nogil:
    # Of a list of segments.  In the exclusive section.
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


def record_snapshot(int device):
    """Notes in a device's history that a snapshot was made, which has its events: as torch's, with the active bytes."""
    cdef Pool* pool = pool_if_made(device)
    if pool == NULL or pool.external != NULL or pool.history == NULL:
        return
    with nogil:
        lock_all(pool)
        record_event(pool, SNAPSHOT, 0, total_of(pool, ACTIVE_BYTES), 0, NULL)
        unlock_all(pool, NULL)


def segments(int device):
    """The segments of one device's pool, in the order in which they were taken.

    Arguments:
        device: int, an ordinal.
    Returns:
        A list of dicts with torch's keys (torch.cuda.memory_snapshot) "serial" and "asleep", and the number of the first
        event that came later; [] and 0 where the device's pool was never used.  "frames" and "tag" are numbers
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
