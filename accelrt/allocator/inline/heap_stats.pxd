# A heap's statistics, under the heap's lock.  The fast path counts an operation at once and takes it back if it passed a
# limit (stats.pxd): then the exclusive section does the operation, where the sums over all heaps are known.
from libc.stdint cimport int64_t
from libc.string cimport memset

from accelrt.allocator.inline.block_ops cimport Change
from accelrt.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, ASKED, BLOCKS, BOTH, BYTES, COUNTS, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, PER_HEAP, REQUESTED_BYTES, SPLITS, SPLIT_BYTES, HeapStats,
)
from accelrt.allocator.types cimport Block, Heap
from accelrt.core.locks cimport WITHOUT_GIL


cdef inline void use_headroom(HeapStats* stats, int64_t sign, size_t size, size_t requested) noexcept nogil:
    # Counts a live block: sign 1 adds it, -1 removes it.
    stats.headroom[BLOCKS] -= sign
    stats.headroom[BYTES] -= sign * <int64_t>size
    stats.headroom[ASKED] -= sign * <int64_t>requested


cdef inline void add_cumulative(HeapStats* stats, int64_t sign, size_t size, size_t requested) noexcept nogil:
    # Counts a live block among all that were ever allocated.
    stats.cumulative[BLOCKS] += sign
    stats.cumulative[BYTES] += sign * <int64_t>size
    stats.cumulative[ASKED] += sign * <int64_t>requested


cdef inline void use_split_headroom(HeapStats* stats, int64_t sign, Change change) noexcept nogil:
    # Counts a change of the free blocks with neighbours; sign -1 takes it back.
    stats.headroom[SPLITS] -= sign * change.blocks
    stats.headroom[SPLIT_BYTES] -= sign * change.bytes


cdef inline void add_split(Heap* heap, int kind, int64_t sign, Change change) noexcept nogil:
    # The same for a kind and for BOTH, and among all increases.
    use_split_headroom(&heap.stats[kind], sign, change)
    use_split_headroom(&heap.stats[BOTH], sign, change)
    heap.stats[kind].cumulative[SPLITS] += sign * max(change.blocks, <int64_t>0)
    heap.stats[kind].cumulative[SPLIT_BYTES] += sign * max(change.bytes, <int64_t>0)


cdef inline bint is_over_limit(const HeapStats* stats) noexcept nogil:
    return (stats.headroom[BLOCKS] | stats.headroom[BYTES] | stats.headroom[ASKED]) < 0


cdef inline bint is_over_split_limit(const HeapStats* stats) noexcept nogil:
    return (stats.headroom[SPLITS] | stats.headroom[SPLIT_BYTES]) < 0


cdef inline bint add_taken(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    # Counts an allocation of the fast path; whether it passes a limit.  kind is the block's, split_kind its segment's.
    use_headroom(&heap.stats[kind], 1, size, requested)
    use_headroom(&heap.stats[BOTH], 1, size, requested)
    add_cumulative(&heap.stats[kind], 1, size, requested)
    add_split(heap, split_kind, 1, change)
    return (is_over_limit(&heap.stats[kind]) | is_over_limit(&heap.stats[BOTH])
            | is_over_split_limit(&heap.stats[split_kind]) | is_over_split_limit(&heap.stats[BOTH]))


cdef inline void take_back_taken(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    # Undoes add_taken.
    use_headroom(&heap.stats[kind], -1, size, requested)
    use_headroom(&heap.stats[BOTH], -1, size, requested)
    add_cumulative(&heap.stats[kind], -1, size, requested)
    add_split(heap, split_kind, -1, change)


cdef inline bint add_given(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    # Counts a free of the fast path; whether it passes a limit.  Only splits can: the other statistics fall.
    use_headroom(&heap.stats[kind], -1, size, requested)
    use_headroom(&heap.stats[BOTH], -1, size, requested)
    add_split(heap, split_kind, 1, change)
    return is_over_split_limit(&heap.stats[split_kind]) | is_over_split_limit(&heap.stats[BOTH])


cdef inline void take_back_given(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    # Undoes add_given.
    use_headroom(&heap.stats[kind], 1, size, requested)
    use_headroom(&heap.stats[BOTH], 1, size, requested)
    add_split(heap, split_kind, -1, change)


cdef inline void add_cached_rounds(Heap* heap, const Block* block, int64_t rounds, Change change) noexcept nogil:
    # Counts rounds of a free and an allocation of the same block.  Either the free or the allocation raises the number of
    # splits, likewise their bytes, so each round adds the absolute value of the change.
    cdef HeapStats* stats = &heap.stats[block.kind]
    cdef HeapStats* split = &heap.stats[block.segment.kind]
    stats.cumulative[BLOCKS] += rounds
    stats.cumulative[BYTES] += rounds * <int64_t>block.size
    stats.cumulative[ASKED] += rounds * <int64_t>block.requested
    split.cumulative[SPLITS] += rounds * max(change.blocks, -change.blocks)
    split.cumulative[SPLIT_BYTES] += rounds * max(change.bytes, -change.bytes)


# --- the statistics as the exclusive section and their readers use them ---

cdef inline int count_of(int stat) noexcept nogil:
    # The count from which a statistic is computed.
    if stat == ALLOCATION or stat == ACTIVE:
        return BLOCKS
    if stat == ALLOCATED_BYTES or stat == ACTIVE_BYTES:
        return BYTES
    if stat == INACTIVE_SPLIT:
        return SPLITS
    return SPLIT_BYTES if stat == INACTIVE_SPLIT_BYTES else ASKED


cdef inline int64_t current(const Heap* heap, int kind, int stat) noexcept nogil:
    # The statistic's value.  Under the heap's lock; for a heap that is asleep, the pool's mutex suffices.
    cdef const HeapStats* stats = &heap.stats[kind]
    cdef int count = count_of(stat)
    cdef int64_t answer = stats.count_limit[count] - stats.headroom[count]
    return answer + stats.pending[count] if stat == ACTIVE or stat == ACTIVE_BYTES else answer


cdef inline int64_t cumulative(const Heap* heap, int kind, int stat) noexcept nogil:
    # The sum of its increases since the last reset_accumulated.  Locks as for current.
    cdef const HeapStats* stats = &heap.stats[kind]
    cdef int count = count_of(stat)
    cdef int64_t answer = stats.cumulative[count]
    return answer - stats.renewed[count] if stat == ACTIVE or stat == ACTIVE_BYTES else answer


cdef inline int64_t least_headroom(const HeapStats* stats, int count, int plain, int active) noexcept nogil:
    # The count of live blocks or bytes that meets the nearer of two limits, that of allocated and that of active memory:
    # the fast path raises both by the same amount.
    return min(stats.limit[plain], stats.limit[active] - stats.pending[count])


cdef inline void update_headroom(Heap* heap) noexcept nogil:
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


cdef inline void pass_headroom(HeapStats* giver, HeapStats* taker, int count, int plain, int active) noexcept nogil:
    # What the taker lacks of a count, as far as the giver has it, and half of what the giver has left; but without a GIL no
    # more than it lacks, or the giver would lack it soon, and peaks would rise for it (fast_path.pxd).  The sums of their
    # limits stay.  Under both heaps' locks.
    cdef int64_t lacking = -taker.headroom[count]
    cdef int64_t amount = giver.headroom[count]
    if lacking <= 0 or amount <= 0:
        return
    if lacking < amount:
        amount = lacking if WITHOUT_GIL else lacking + (amount - lacking) // 2
    giver.headroom[count] -= amount
    giver.count_limit[count] -= amount
    giver.limit[plain] -= amount
    taker.headroom[count] += amount
    taker.count_limit[count] += amount
    taker.limit[plain] += amount
    if active != plain:
        giver.limit[active] -= amount
        taker.limit[active] += amount


cdef inline bint pass_all_headroom(Heap* giver, Heap* taker) noexcept nogil:
    # Of every count; whether the taker is within its limits afterwards.  Under both heaps' locks.
    cdef HeapStats* gives
    cdef HeapStats* takes
    cdef int kind
    cdef bint over = False
    for kind in range(3):
        gives, takes = &giver.stats[kind], &taker.stats[kind]
        if is_over_limit(takes):
            pass_headroom(gives, takes, BLOCKS, ALLOCATION, ACTIVE)
            pass_headroom(gives, takes, BYTES, ALLOCATED_BYTES, ACTIVE_BYTES)
            pass_headroom(gives, takes, ASKED, REQUESTED_BYTES, REQUESTED_BYTES)
        if is_over_split_limit(takes):
            pass_headroom(gives, takes, SPLITS, INACTIVE_SPLIT, INACTIVE_SPLIT)
            pass_headroom(gives, takes, SPLIT_BYTES, INACTIVE_SPLIT_BYTES, INACTIVE_SPLIT_BYTES)
        over |= is_over_limit(takes) | is_over_split_limit(takes)
    return not over


cdef inline void raise_limits(Heap* heap) noexcept nogil:
    # The fast path passed a limit in a pool with one heap: the peak rises with the value.  Under the heap's lock.
    cdef int kind, stat
    for kind in range(3):
        for stat in range(PER_HEAP):
            heap.stats[kind].limit[stat] = max(heap.stats[kind].limit[stat], current(heap, kind, stat))
    update_headroom(heap)


cdef inline void lower_limits(Heap* heap) noexcept nogil:
    # Gives the headroom back, so that the pool may distribute it.  In the exclusive section; update_headroom has to follow.
    cdef int kind, stat
    for kind in range(3):
        for stat in range(PER_HEAP):
            heap.stats[kind].limit[stat] = current(heap, kind, stat)
    heap.stale = True


cdef inline void add_to(HeapStats* stats, int stat, int64_t amount) noexcept nogil:
    # A live block is also active, so what only one of the two statistics counts changes pending.  Under the heap's lock.
    cdef int count = count_of(stat)
    if stat == ACTIVE or stat == ACTIVE_BYTES:
        stats.pending[count] += amount
        return
    stats.headroom[count] -= amount
    if stat == ALLOCATION or stat == ALLOCATED_BYTES:
        stats.pending[count] -= amount


cdef inline void add_to_cumulative(HeapStats* stats, int stat, int64_t amount) noexcept nogil:
    # Allocations raise both; an increase of ALLOCATION without one of ACTIVE is memory handed over while pending.
    cdef int count = count_of(stat)
    if stat == ACTIVE or stat == ACTIVE_BYTES:
        stats.renewed[count] -= amount
        return
    stats.cumulative[count] += amount
    if stat == ALLOCATION or stat == ALLOCATED_BYTES:
        stats.renewed[count] += amount


cdef inline void add_stat(Heap* heap, int kind, int stat, int64_t amount) noexcept nogil:
    # Changes one statistic and, if it rises, the sum of its increases.  In the exclusive section.
    add_to(&heap.stats[kind], stat, amount)
    add_to(&heap.stats[BOTH], stat, amount)
    heap.stale = True
    if amount > 0:
        add_to_cumulative(&heap.stats[kind], stat, amount)


cdef inline void reset_cumulative(Heap* heap) noexcept nogil:
    # For reset_accumulated.  In the exclusive section.
    cdef int kind
    for kind in range(2):
        memset(heap.stats[kind].cumulative, 0, sizeof(heap.stats[kind].cumulative))
        memset(heap.stats[kind].renewed, 0, sizeof(heap.stats[kind].renewed))
