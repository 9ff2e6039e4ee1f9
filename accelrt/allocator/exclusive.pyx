"""The exclusive section of a pool, and its counters while a thread is in it.

On entry the heaps' statistics are added up, and the sums are kept up to date in the section, so that peaks are exact.
On leaving, the distance from the sums to the peaks is distributed over the heaps as headroom: how far the statistics of
each may rise in the fast path.  Functions without a note of their locks run in the section.
"""
from libc.string cimport memcpy

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
from accelrt.allocator.backing.free_pages cimport file_heap
from accelrt.allocator.event_ring cimport record_allocation, record_free_completed, record_free_requested
from accelrt.allocator.inline.block_ops cimport (
    Change, is_split, join, join_freed, make_live, of_freeing, of_taking, split_off,
)
from accelrt.allocator.inline.fast_path cimport flush_cached
from accelrt.allocator.inline.free_list cimport insert, remove
from accelrt.allocator.inline.heap_stats cimport (
    add_stat, count_of, current, cumulative, lower_limits, update_headroom, is_over_limit, is_over_split_limit,
    use_split_headroom,
)
from accelrt.allocator.sizes cimport kind_of
from accelrt.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, ASKED, BLOCKS, BOTH, BYTES, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, REQUESTED_BYTES, RESERVED_BYTES, PER_HEAP, SPLITS, SPLIT_BYTES, Counter, HeapStats, change,
    current_of,
)
from accelrt.allocator.types cimport LIVE

cdef enum:
    MOST_AWAKE = 16  # heaps awake up to which none is put to sleep: each slow call locks and adds up all of them
    PATIENCE = 8     # a heap falls asleep after more entries of the exclusive section than this without a hit in it


cdef void lock_all(Pool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)
    lock_heaps(pool, True)


cdef void lock_to_read(Pool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)
    lock_heaps(pool, False)


cdef bint try_lock_to_read(Pool* pool) noexcept nogil:
    if pthread_mutex_trylock(&pool.lock):
        return False
    lock_heaps(pool, False)
    return True


cdef inline void lock_heaps(Pool* pool, bint tidies) noexcept nogil:
    # Locks all heaps that are awake and sums the statistics, under the pool's mutex.  tidies: flushes the last-freed caches
    # first.
    cdef Heap* heap = pool.awake
    memcpy(pool.total, pool.asleep, sizeof(pool.total))
    while heap != NULL:
        spin_lock(&heap.lock)
        if tidies:
            heap.rounds_idle = 0 if was_hit(heap) else heap.rounds_idle + 1
            flush_cached(heap)
            heap.freed_last = NULL
            heap.freed_last_size = 0
        add_up(pool, heap)
        heap = heap.next_awake
    move_split_base(pool, 1)


# --- sleeping heaps ------------------------------------------------------------------------------------------
#
# The exclusive section locks and adds up only the heaps that are awake, so its cost does not grow with the number of
# streams.  If there are many, those in which no hit ran for a while are put to sleep: their statistics are added to
# Pool.asleep once, and the fast path refuses them.  A thread that uses one in the slow path wakes it on leaving.

cdef inline bint was_hit(const Heap* heap) noexcept nogil:
    # Whether the fast path ran in the heap since the exclusive section was left last.  Under the heap's lock.
    if heap.cached != NULL or heap.freed_last_size:
        return True
    return heap.stats[BOTH].headroom[BLOCKS] != heap.seen


cdef void add_asleep(Pool* pool, const Heap* heap, int64_t sign) noexcept nogil:
    # Adds a heap's statistics to the sums of the sleeping heaps (sign 1) or subtracts them (-1).  In the exclusive section.
    cdef int stat, kind
    for kind in range(2):
        for stat in range(PER_HEAP):
            pool.asleep[kind][stat] += sign * current(heap, kind, stat)
            pool.asleep_cumulative[kind][stat] += sign * cumulative(heap, kind, stat)


cdef void wake(Pool* pool, Heap* heap) noexcept nogil:
    if heap.awake:
        return
    spin_lock(&heap.lock)
    add_asleep(pool, heap, -1)
    lower_limits(heap)
    link_awake(pool, heap)
    file_heap(pool, heap)


cdef void link_awake(Pool* pool, Heap* heap) noexcept nogil:
    heap.awake = True
    heap.rounds_idle = 0
    heap.next_awake = pool.awake
    pool.awake = heap
    pool.awake_count += 1


cdef inline bint may_sleep(const Pool* pool, const Heap* heap) noexcept nogil:
    return pool.awake_count > MOST_AWAKE and heap.rounds_idle > PATIENCE and heap.cached == NULL


cdef void put_to_sleep(Pool* pool, Heap* heap) noexcept nogil:
    # The heap is out of the list Pool.awake already, and still locked.  In the exclusive section.
    heap.awake = heap.fast = False
    pool.awake_count -= 1
    add_asleep(pool, heap, 1)
    file_heap(pool, heap)


cdef inline void add_up(Pool* pool, const Heap* heap) noexcept nogil:
    # Adds a heap's statistics to the totals.  The limits of a pool's only heap rise in the fast path: they become the peaks.
    cdef int stat, kind
    for kind in range(2):
        add_stats(pool.total[kind], &heap.stats[kind])
    if heap.sole:
        for stat in range(PER_HEAP):
            for kind in range(2):
                pool.stats.counters[stat][kind].peak = heap.stats[kind].limit[stat]
            pool.stats.peak_all[stat] = heap.stats[BOTH].limit[stat]


cdef inline void add_stats(int64_t* sums, const HeapStats* stats) noexcept nogil:
    # Adds all per-heap statistics of one kind, as current() computes them.
    cdef int64_t blocks = stats.count_limit[BLOCKS] - stats.headroom[BLOCKS]
    cdef int64_t bytes_ = stats.count_limit[BYTES] - stats.headroom[BYTES]
    sums[ALLOCATION] += blocks
    sums[ACTIVE] += blocks + stats.pending[BLOCKS]
    sums[ALLOCATED_BYTES] += bytes_
    sums[ACTIVE_BYTES] += bytes_ + stats.pending[BYTES]
    sums[REQUESTED_BYTES] += stats.count_limit[ASKED] - stats.headroom[ASKED]
    sums[INACTIVE_SPLIT] += stats.count_limit[SPLITS] - stats.headroom[SPLITS]
    sums[INACTIVE_SPLIT_BYTES] += stats.count_limit[SPLIT_BYTES] - stats.headroom[SPLIT_BYTES]


cdef inline void move_split_base(Pool* pool, int64_t sign) noexcept nogil:
    # Keeps split_base relative to the totals while the section is left, so that an operation that leaves it before its
    # end still counts as one operation.
    cdef int kind
    for kind in range(2):
        pool.split_base[kind][0] += sign * pool.total[kind][INACTIVE_SPLIT]
        pool.split_base[kind][1] += sign * pool.total[kind][INACTIVE_SPLIT_BYTES]


cdef void unlock_after_read(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.awake
    move_split_base(pool, -1)
    while heap != NULL:
        spin_unlock(&heap.lock)
        heap = heap.next_awake
    pthread_mutex_unlock(&pool.lock)


cdef inline int64_t headroom(const Heap* heap, int stat, int kind) noexcept nogil:
    # How far a heap's statistic may still rise.
    return heap.stats[kind].limit[stat] - current(heap, kind, stat)


cdef int64_t least_for(const Heap* requester, int stat, int kind, int64_t room) noexcept nogil:
    # The requester's least headroom: what it had, or an eighth of its current value if half of what is distributed allows
    # that, so that a heap that grows does not enter the exclusive section at each step.
    return min(room, max(headroom(requester, stat, kind), min(room // 2, current(requester, kind, stat) // 8)))


cdef void distribute_stat(Pool* pool, Heap* requester, int stat, int kind, int64_t room) noexcept nogil:
    # Distributes the pool's headroom (room) of one statistic: the requester's least first, then the others keep what they
    # had as far as it goes, and the requester gets the remainder.
    cdef Heap* heap = pool.awake
    cdef int64_t kept = 0, least = 0, mine
    if requester != NULL:
        least = least_for(requester, stat, kind, room)
    while heap != NULL:
        if heap != requester:
            mine = max(headroom(heap, stat, kind), <int64_t>0)
            mine = min(mine, room - least - kept)
            heap.stats[kind].limit[stat] = current(heap, kind, stat) + mine
            kept += mine
        heap = heap.next_awake
    if requester != NULL:
        requester.stats[kind].limit[stat] = current(requester, kind, stat) + room - kept


cdef void distribute_headroom(Pool* pool, Heap* requester) noexcept nogil:
    # Distributes the distance from the totals to the peaks, for all per-heap statistics.  In the exclusive section.
    cdef int stat, kind
    cdef Heap* heap = pool.awake
    for stat in range(PER_HEAP):
        for kind in range(2):
            distribute_stat(pool, requester, stat, kind, pool.stats.counters[stat][kind].peak - pool.total[kind][stat])
        distribute_stat(pool, requester, stat, BOTH, pool.stats.peak_all[stat] - total_of(pool, stat))
    while heap != NULL:
        update_headroom(heap)
        heap = heap.next_awake


cdef void raise_sole(Pool* pool, Heap* heap) noexcept nogil:
    # The limits of a pool's only heap are the peaks.
    cdef int stat
    for stat in range(PER_HEAP):
        heap.stats[0].limit[stat] = pool.stats.counters[stat][0].peak
        heap.stats[1].limit[stat] = pool.stats.counters[stat][1].peak
        heap.stats[BOTH].limit[stat] = pool.stats.peak_all[stat]
    update_headroom(heap)


cdef inline bint exceeds(const Heap* heap) noexcept nogil:
    # Whether the heap is above a limit.  Its headroom must be up to date.
    cdef int kind
    for kind in range(3):
        if is_over_limit(&heap.stats[kind]) | is_over_split_limit(&heap.stats[kind]):
            return True
    return False


cdef bint any_exceeds(const Pool* pool) noexcept nogil:
    # If no heap is above a limit, the limits still hold and need not be distributed again: in the section peaks only rise.
    cdef const Heap* heap = pool.awake
    while heap != NULL and not exceeds(heap):
        heap = heap.next_awake
    return heap != NULL


cdef void renew_headroom(Pool* pool, Heap* requester) noexcept nogil:
    # Brings the headroom of all heaps up to date, and distributes the limits again if need be.  Only stale heaps are
    # recomputed: most slow calls change neither a limit nor what is pending.
    cdef Heap* heap = pool.awake
    while heap != NULL:
        if heap.stale:
            update_headroom(heap)
        heap = heap.next_awake
    if pool.heap_count == 1:
        if pool.peaked:
            raise_sole(pool, pool.heaps)
    elif pool.risen or any_exceeds(pool):
        distribute_headroom(pool, requester)
    pool.risen = pool.peaked = False


cdef void raise_shown(Pool* pool, int stat) noexcept nogil:
    # Raises the peaks of a split statistic to the values that readers see: while an operation had left the section, other
    # threads may have raised a total that the operation had lowered.
    cdef int kind
    cdef int64_t one, both = 0
    for kind in range(2):
        one = counted(pool, stat, kind)
        both += one
        if one > pool.stats.counters[stat][kind].peak:
            pool.stats.counters[stat][kind].peak = one
            pool.peaked = True
    if both > pool.stats.peak_all[stat]:
        pool.stats.peak_all[stat] = both
        pool.peaked = True


cdef inline bint suffices(const Pool* pool, const Heap* heap) noexcept nogil:
    # Whether the fast path may use the heap: no capture is under way, no block of the pool is deferred, and none is pending
    # in the heap or offered to its stream.  An external pool has no fast path.
    return (pool.captures == 0 and pool.deferred == NULL and pool.external == NULL
            and heap.pending == 0 and heap.offered == 0)


cdef void update_fast_path(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.awake
    while heap != NULL:
        spin_lock(&heap.lock)
        flush_cached(heap)
        heap.fast = suffices(pool, heap)
        spin_unlock(&heap.lock)
        heap = heap.next_awake


cdef void unlock_all(Pool* pool, Heap* requester) noexcept nogil:
    # Wakes the requester's heap, distributes headroom, puts idle heaps to sleep and enables the fast path in the others.
    cdef Heap** link = &pool.awake
    cdef Heap* heap
    if requester != NULL:
        wake(pool, requester)
    raise_shown(pool, INACTIVE_SPLIT)
    raise_shown(pool, INACTIVE_SPLIT_BYTES)
    move_split_base(pool, -1)
    renew_headroom(pool, requester)
    while link[0] != NULL:
        heap = link[0]
        if may_sleep(pool, heap):
            link[0] = heap.next_awake
            lower_limits(heap)
            update_headroom(heap)
            put_to_sleep(pool, heap)
        else:
            link = &heap.next_awake
            heap.sole = pool.heap_count == 1
            heap.fast = suffices(pool, heap)
        heap.seen = heap.stats[BOTH].headroom[BLOCKS]
        spin_unlock(&heap.lock)
    pthread_mutex_unlock(&pool.lock)


cdef int call_unlocked(Pool* pool, UnlockedCall call, void* about) noexcept nogil:
    cdef int mode, code
    unlock_all(pool, NULL)
    code = go_relaxed(pool.table, &mode)
    if code == 0:
        code = call(pool, about)
        restore_mode(pool.table, mode)
    lock_all(pool)
    return code


cdef int64_t counted(const Pool* pool, int stat, int kind) noexcept nogil:
    # A total as readers may see it.  If another thread has left the section during an operation, the splits of that
    # operation are not counted yet, or others may have used what it removed: the lesser of both sums is below the peak.
    cdef int64_t total = pool.total[kind][stat]
    if stat == INACTIVE_SPLIT:
        return min(total, pool.split_base[kind][0])
    if stat == INACTIVE_SPLIT_BYTES:
        return min(total, pool.split_base[kind][1])
    return total


cdef int64_t total_of(const Pool* pool, int stat) noexcept nogil:
    return pool.total[0][stat] + pool.total[1][stat]


cdef int64_t reserved(const Pool* pool) noexcept nogil:
    return current_of(&pool.stats, RESERVED_BYTES)


cdef void count_asleep(Pool* pool, int stat, int kind, int64_t amount) noexcept nogil:
    # For a sleeping heap.  A rise lowers the headroom to distribute, so the next unlock_all distributes anew.
    pool.asleep[kind][stat] += amount
    pool.risen |= amount > 0


cdef void count(Pool* pool, Heap* heap, int stat, int kind, int64_t amount) noexcept nogil:
    # Changes a heap's statistic and the pool's total, and raises the peaks.
    cdef Counter* counter = &pool.stats.counters[stat][kind]
    add_stat(heap, kind, stat, amount)
    pool.total[kind][stat] += amount
    if not heap.awake:
        count_asleep(pool, stat, kind, amount)
        pool.asleep_cumulative[kind][stat] += max(amount, <int64_t>0)
    if amount > 0 and pool.total[kind][stat] > counter.peak:
        counter.peak = pool.total[kind][stat]
        pool.peaked = True
    if amount > 0 and total_of(pool, stat) > pool.stats.peak_all[stat]:
        pool.stats.peak_all[stat] = total_of(pool, stat)
        pool.peaked = True


cdef void count_pool(Pool* pool, int stat, int kind, int64_t amount) noexcept nogil:
    change(&pool.stats, stat, kind, amount)


cdef void count_change(Pool* pool, Heap* heap, int kind, Change net) noexcept nogil:
    # Counts a change of the split blocks; count_splits raises peak and accumulated value at the operation's end.
    use_split_headroom(&heap.stats[kind], 1, net)
    use_split_headroom(&heap.stats[BOTH], 1, net)
    pool.total[kind][INACTIVE_SPLIT] += net.blocks
    pool.total[kind][INACTIVE_SPLIT_BYTES] += net.bytes
    if not heap.awake:
        count_asleep(pool, INACTIVE_SPLIT, kind, net.blocks)
        count_asleep(pool, INACTIVE_SPLIT_BYTES, kind, net.bytes)


cdef void count_split(Pool* pool, Heap* heap, int stat, int kind, int64_t* base) noexcept nogil:
    # Adds the net increase since the last operation's end to the accumulated value.
    cdef int64_t net = pool.total[kind][stat] - base[0]
    base[0] = pool.total[kind][stat]
    if net > 0:
        heap.stats[kind].cumulative[count_of(stat)] += net
        if not heap.awake:
            pool.asleep_cumulative[kind][stat] += net


cdef void count_splits(Pool* pool, Heap* heap) noexcept nogil:
    # An operation counts its net change of the split blocks once, not at each step.  Readers may see more afterwards though
    # the change is negative: another operation, which has left the section, had lowered the total meanwhile.
    cdef int kind
    for kind in range(2):
        count_split(pool, heap, INACTIVE_SPLIT, kind, &pool.split_base[kind][0])
        count_split(pool, heap, INACTIVE_SPLIT_BYTES, kind, &pool.split_base[kind][1])
    raise_shown(pool, INACTIVE_SPLIT)
    raise_shown(pool, INACTIVE_SPLIT_BYTES)


cdef void count_oversize(Counter* counter, int64_t amount) noexcept nogil:
    counter.current += amount
    if amount > 0:
        counter.allocated += amount
        counter.peak = max(counter.peak, counter.current)
    else:
        counter.freed -= amount


cdef void hand_out(Pool* pool, Block* block, size_t size, size_t requested, bint splits) noexcept nogil:
    # Hands out a free block, split or whole.  The caller has ensured a spare record and a place in the heap's map.
    cdef Heap* heap = block.heap
    cdef int kind = kind_of(size)
    count_change(pool, heap, block.segment.kind, of_taking(block, size, splits))
    remove(heap, block)
    if splits:
        split_off(heap, block, size)
        insert(heap, block.after)
    if not heap.awake:
        file_heap(pool, heap)
    make_live(block, requested, kind)
    count(pool, heap, ALLOCATION, kind, 1)
    count(pool, heap, ALLOCATED_BYTES, kind, block.size)
    count(pool, heap, ACTIVE, kind, 1)
    count(pool, heap, ACTIVE_BYTES, kind, block.size)
    count(pool, heap, REQUESTED_BYTES, kind, requested)
    if block.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_allocations, 1)
    count_splits(pool, heap)
    record_allocation(pool, block, False)


cdef void hand_over(Pool* pool, Block* block, size_t requested) noexcept nogil:
    # Hands out a pending block to a claimant.  It was active all the time, so ACTIVE does not change.
    cdef int kind = block.kind
    count(pool, block.heap, REQUESTED_BYTES, kind, <int64_t>requested - <int64_t>block.requested)
    block.state = LIVE
    block.requested = requested
    count(pool, block.heap, ALLOCATION, kind, 1)
    count(pool, block.heap, ALLOCATED_BYTES, kind, block.size)
    if block.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_allocations, 1)
    record_allocation(pool, block, True)


cdef void count_freed(Pool* pool, Block* block) noexcept nogil:
    count(pool, block.heap, ALLOCATION, block.kind, -1)
    count(pool, block.heap, ALLOCATED_BYTES, block.kind, -<int64_t>block.size)
    if block.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_allocations, -1)
    record_free_requested(pool, block)


cdef Block* set_free(Pool* pool, Block* block) noexcept nogil:
    # Frees, as of now, a block that was LIVE or PENDING: counts it, merges it and inserts it into its list.
    cdef Heap* heap = block.heap
    record_free_completed(pool, block)
    count(pool, heap, ACTIVE, block.kind, -1)
    count(pool, heap, ACTIVE_BYTES, block.kind, -<int64_t>block.size)
    count(pool, heap, REQUESTED_BYTES, block.kind, -<int64_t>block.requested)
    count_change(pool, heap, block.segment.kind, of_freeing(block))
    block = join_freed(heap, block)
    insert(heap, block)
    if not heap.awake:
        file_heap(pool, heap)
    return block


cdef void put_free(Pool* pool, Block* block) noexcept nogil:
    # Makes a block in no list FREE, of whatever epoch: for new memory and for pages that are made resident.
    count_change(pool, block.heap, block.segment.kind, of_freeing(block))
    block = join(block.heap, block)
    insert(block.heap, block)
    if not block.heap.awake:
        file_heap(pool, block.heap)


cdef void take_free(Pool* pool, Block* block) noexcept nogil:
    # Removes a free block from its list, whole; the caller then changes its state.
    cdef Change gone
    if is_split(block):
        gone.blocks = -1
        gone.bytes = -<int64_t>block.size
        count_change(pool, block.heap, block.segment.kind, gone)
    remove(block.heap, block)
    if not block.heap.awake:
        file_heap(pool, block.heap)
