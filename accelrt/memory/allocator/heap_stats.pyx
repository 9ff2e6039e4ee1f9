"""A heap's statistics: what the exclusive section changes of them (the fast path's part is in heap_stats.pxd)."""
from libc.string cimport memset

from accelrt.memory.allocator.stats cimport REQUESTED_BYTES


cdef int64_t least_headroom(const HeapStats* stats, int count, int plain, int active) noexcept nogil:
    # The count of live blocks or bytes that meets the nearer of two limits, that of allocated and that of active memory:
    # the fast path raises both by the same amount.
    return min(stats.limit[plain], stats.limit[active] - stats.pending[count])


cdef void update_headroom(Heap* heap) noexcept nogil:
    # Recomputes the counts' limits and headrooms from the statistics' limits, without changing the counts.
    cdef HeapStats* stats
    cdef int64_t[COUNTS] count_limit
    cdef int kind, count
    for kind in range(3):
        stats = &heap.stats[kind]
        count_limit[BLOCKS] = least_headroom(stats, BLOCKS, ALLOCATION, ACTIVE)
        count_limit[BYTES] = least_headroom(stats, BYTES, ALLOCATED_BYTES, ACTIVE_BYTES)
        count_limit[ASKED] = stats.limit[REQUESTED_BYTES]
        count_limit[SPLITS] = stats.limit[INACTIVE_SPLIT]
        count_limit[SPLIT_BYTES] = stats.limit[INACTIVE_SPLIT_BYTES]
        for count in range(COUNTS):
            stats.headroom[count] += count_limit[count] - stats.count_limit[count]
            stats.count_limit[count] = count_limit[count]
    heap.stale = False


cdef void raise_limits(Heap* heap) noexcept nogil:
    # The fast path passed a limit in a pool with one heap: the peak rises with the value.  Under the heap's lock.
    cdef int kind, stat
    for kind in range(3):
        for stat in range(PER_HEAP):
            heap.stats[kind].limit[stat] = max(heap.stats[kind].limit[stat], current(heap, kind, stat))
    update_headroom(heap)


cdef void lower_limits(Heap* heap) noexcept nogil:
    # Gives the headroom back, so that the pool may distribute it.  In the exclusive section.
    cdef int kind, stat
    for kind in range(3):
        for stat in range(PER_HEAP):
            heap.stats[kind].limit[stat] = current(heap, kind, stat)
    heap.stale = True


cdef void add_to(HeapStats* stats, int stat, int64_t amount) noexcept nogil:
    # A live block is also active, so what only one of the two statistics counts changes pending.  Under the heap's lock.
    cdef int count = count_of(stat)
    if stat == ACTIVE or stat == ACTIVE_BYTES:
        stats.pending[count] += amount
        return
    stats.headroom[count] -= amount
    if stat == ALLOCATION or stat == ALLOCATED_BYTES:
        stats.pending[count] -= amount


cdef void add_to_cumulative(HeapStats* stats, int stat, int64_t amount) noexcept nogil:
    # Allocations raise both; an increase of ALLOCATION without one of ACTIVE is memory handed over while pending.
    cdef int count = count_of(stat)
    if stat == ACTIVE or stat == ACTIVE_BYTES:
        stats.renewed[count] -= amount
        return
    stats.cumulative[count] += amount
    if stat == ALLOCATION or stat == ALLOCATED_BYTES:
        stats.renewed[count] += amount


cdef void add_stat(Heap* heap, int kind, int stat, int64_t amount) noexcept nogil:
    # Changes one statistic and, if it rises, the sum of its increases.  In the exclusive section.
    add_to(&heap.stats[kind], stat, amount)
    add_to(&heap.stats[BOTH], stat, amount)
    heap.stale = True
    if amount > 0:
        add_to_cumulative(&heap.stats[kind], stat, amount)


cdef void reset_cumulative(Heap* heap) noexcept nogil:
    # For reset_accumulated.  In the exclusive section.
    cdef int kind
    for kind in range(2):
        memset(heap.stats[kind].cumulative, 0, sizeof(heap.stats[kind].cumulative))
        memset(heap.stats[kind].renewed, 0, sizeof(heap.stats[kind].renewed))
