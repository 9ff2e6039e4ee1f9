# A heap's share of the figures, under its lock.  What a hit does to it is done at once and taken back where it
# passes a ceiling, for such an answer is for the exclusive section to give (stats.pxd).
from libc.stdint cimport int64_t

from accelrt.memory.allocator.block_ops cimport Change
from accelrt.memory.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, ASKED, BLOCKS, BOTH, BYTES, COUNTS, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, PER_HEAP, SPLITS, SPLIT_BYTES, HeapStats,
)
from accelrt.memory.allocator.types cimport Block, Heap


cdef inline void use_headroom(HeapStats* stats, int64_t sign, size_t size, size_t requested) noexcept nogil:
    stats.headroom[BLOCKS] -= sign
    stats.headroom[BYTES] -= sign * <int64_t>size
    stats.headroom[ASKED] -= sign * <int64_t>requested


cdef inline void add_cumulative(HeapStats* stats, int64_t sign, size_t size, size_t requested) noexcept nogil:
    stats.cumulative[BLOCKS] += sign
    stats.cumulative[BYTES] += sign * <int64_t>size
    stats.cumulative[ASKED] += sign * <int64_t>requested


cdef inline void use_split_headroom(HeapStats* stats, int64_t sign, Change change) noexcept nogil:
    stats.headroom[SPLITS] -= sign * change.blocks
    stats.headroom[SPLIT_BYTES] -= sign * change.bytes


cdef inline void add_split(Heap* heap, int kind, int64_t sign, Change change) noexcept nogil:
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
    # Whether a ceiling is passed by it.
    use_headroom(&heap.stats[kind], 1, size, requested)
    use_headroom(&heap.stats[BOTH], 1, size, requested)
    add_cumulative(&heap.stats[kind], 1, size, requested)
    add_split(heap, split_kind, 1, change)
    return (is_over_limit(&heap.stats[kind]) | is_over_limit(&heap.stats[BOTH]) | is_over_split_limit(&heap.stats[split_kind])
            | is_over_split_limit(&heap.stats[BOTH]))


cdef inline void take_back_taken(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    use_headroom(&heap.stats[kind], -1, size, requested)
    use_headroom(&heap.stats[BOTH], -1, size, requested)
    add_cumulative(&heap.stats[kind], -1, size, requested)
    add_split(heap, split_kind, -1, change)


cdef inline bint add_given(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    # Whether a ceiling is passed by it; what is live only falls.
    use_headroom(&heap.stats[kind], -1, size, requested)
    use_headroom(&heap.stats[BOTH], -1, size, requested)
    add_split(heap, split_kind, 1, change)
    return is_over_split_limit(&heap.stats[split_kind]) | is_over_split_limit(&heap.stats[BOTH])


cdef inline void take_back_given(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    use_headroom(&heap.stats[kind], 1, size, requested)
    use_headroom(&heap.stats[BOTH], 1, size, requested)
    add_split(heap, split_kind, -1, change)


cdef inline void add_cached_rounds(Heap* heap, const Block* block, int64_t rounds, Change change) noexcept nogil:
    # So often a block was given back and taken again, each of which counts what it makes.
    cdef HeapStats* stats = &heap.stats[block.kind]
    cdef HeapStats* split = &heap.stats[block.segment.kind]
    stats.cumulative[BLOCKS] += rounds
    stats.cumulative[BYTES] += rounds * <int64_t>block.size
    stats.cumulative[ASKED] += rounds * <int64_t>block.requested
    split.cumulative[SPLITS] += rounds * max(change.blocks, -change.blocks)
    split.cumulative[SPLIT_BYTES] += rounds * max(change.bytes, -change.bytes)


# --- the figures, as the exclusive section and their readers see them ---

cdef inline int count_of(int stat) noexcept nogil:
    # Which count a figure rests on.
    if stat == ALLOCATION or stat == ACTIVE:
        return BLOCKS
    if stat == ALLOCATED_BYTES or stat == ACTIVE_BYTES:
        return BYTES
    if stat == INACTIVE_SPLIT:
        return SPLITS
    return SPLIT_BYTES if stat == INACTIVE_SPLIT_BYTES else ASKED


cdef inline int64_t current(const Heap* heap, int kind, int stat) noexcept nogil:
    cdef const HeapStats* stats = &heap.stats[kind]
    cdef int count = count_of(stat)
    cdef int64_t answer = stats.count_limit[count] - stats.headroom[count]
    return answer + stats.pending[count] if stat == ACTIVE or stat == ACTIVE_BYTES else answer


cdef inline int64_t cumulative(const Heap* heap, int kind, int stat) noexcept nogil:
    cdef const HeapStats* stats = &heap.stats[kind]
    cdef int count = count_of(stat)
    return stats.cumulative[count] - stats.renewed[count] if stat == ACTIVE or stat == ACTIVE_BYTES else stats.cumulative[count]


cdef void add_stat(Heap* heap, int kind, int stat, int64_t amount) noexcept nogil  # of a kind, and of both
cdef void reset_cumulative(Heap* heap) noexcept nogil
cdef void raise_limits(Heap* heap) noexcept nogil  # the sole heap's, for which a ceiling is a peak
cdef void lower_limits(Heap* heap) noexcept nogil  # to what is there
cdef void update_headroom(Heap* heap) noexcept nogil    # after a change of ceilings or of what is pending
