"""A heap's share of the figures, where it is not a hit that changes it."""
from libc.string cimport memset

from accelrt.memory.allocator.stats cimport REQUESTED_BYTES


cdef int64_t least_headroom(const HeapStats* stats, int count, int plain, int active) noexcept nogil:
    # Below the ceilings of what is live and of what is active, which rise together in a hit.
    return min(stats.limit[plain], stats.limit[active] - stats.pending[count])


cdef void update_headroom(Heap* heap) noexcept nogil:
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
    cdef int kind, stat
    for kind in range(3):
        for stat in range(PER_HEAP):
            heap.stats[kind].limit[stat] = max(heap.stats[kind].limit[stat], current(heap, kind, stat))
    update_headroom(heap)


cdef void lower_limits(Heap* heap) noexcept nogil:
    cdef int kind, stat
    for kind in range(3):
        for stat in range(PER_HEAP):
            heap.stats[kind].limit[stat] = current(heap, kind, stat)
    heap.stale = True


cdef void add_to(HeapStats* stats, int stat, int64_t amount) noexcept nogil:
    # A block that is live is active too, so what only one of the two figures counts is pending.
    cdef int count = count_of(stat)
    if stat == ACTIVE or stat == ACTIVE_BYTES:
        stats.pending[count] += amount
        return
    stats.headroom[count] -= amount
    if stat == ALLOCATION or stat == ALLOCATED_BYTES:
        stats.pending[count] -= amount


cdef void add_to_cumulative(HeapStats* stats, int stat, int64_t amount) noexcept nogil:
    cdef int count = count_of(stat)
    if stat == ACTIVE or stat == ACTIVE_BYTES:
        stats.renewed[count] -= amount
        return
    stats.cumulative[count] += amount
    if stat == ALLOCATION or stat == ALLOCATED_BYTES:
        stats.renewed[count] += amount


cdef void add_stat(Heap* heap, int kind, int stat, int64_t amount) noexcept nogil:
    add_to(&heap.stats[kind], stat, amount)
    add_to(&heap.stats[BOTH], stat, amount)
    heap.stale = True
    if amount > 0:
        add_to_cumulative(&heap.stats[kind], stat, amount)


cdef void reset_cumulative(Heap* heap) noexcept nogil:
    cdef int kind
    for kind in range(2):
        memset(heap.stats[kind].cumulative, 0, sizeof(heap.stats[kind].cumulative))
        memset(heap.stats[kind].renewed, 0, sizeof(heap.stats[kind].renewed))
