# A heap's share of the figures, under its lock.  What a hit does to it is done at once and taken back where it
# passes a ceiling, for such an answer is for the exclusive section to give (stats.pxd).
from libc.stdint cimport int64_t

from accelrt.memory.allocator.block_ops cimport Change
from accelrt.memory.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, ASKED, BLOCKS, BOTH, BYTES, COUNTS, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, SHARED, SPLITS, SPLIT_BYTES, Share,
)
from accelrt.memory.allocator.types cimport Block, Heap


cdef inline void use_room(Share* share, int64_t sign, size_t size, size_t requested) noexcept nogil:
    share.room[BLOCKS] -= sign
    share.room[BYTES] -= sign * <int64_t>size
    share.room[ASKED] -= sign * <int64_t>requested


cdef inline void make(Share* share, int64_t sign, size_t size, size_t requested) noexcept nogil:
    share.made[BLOCKS] += sign
    share.made[BYTES] += sign * <int64_t>size
    share.made[ASKED] += sign * <int64_t>requested


cdef inline void use_split_room(Share* share, int64_t sign, Change change) noexcept nogil:
    share.room[SPLITS] -= sign * change.blocks
    share.room[SPLIT_BYTES] -= sign * change.bytes


cdef inline void add_split(Heap* heap, int kind, int64_t sign, Change change) noexcept nogil:
    use_split_room(&heap.share[kind], sign, change)
    use_split_room(&heap.share[BOTH], sign, change)
    heap.share[kind].made[SPLITS] += sign * max(change.blocks, <int64_t>0)
    heap.share[kind].made[SPLIT_BYTES] += sign * max(change.bytes, <int64_t>0)


cdef inline bint passes(const Share* share) noexcept nogil:
    return (share.room[BLOCKS] | share.room[BYTES] | share.room[ASKED]) < 0


cdef inline bint passes_split(const Share* share) noexcept nogil:
    return (share.room[SPLITS] | share.room[SPLIT_BYTES]) < 0


cdef inline bint add_taken(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    # Whether a ceiling is passed by it.
    use_room(&heap.share[kind], 1, size, requested)
    use_room(&heap.share[BOTH], 1, size, requested)
    make(&heap.share[kind], 1, size, requested)
    add_split(heap, split_kind, 1, change)
    return (passes(&heap.share[kind]) | passes(&heap.share[BOTH]) | passes_split(&heap.share[split_kind])
            | passes_split(&heap.share[BOTH]))


cdef inline void take_back_taken(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    use_room(&heap.share[kind], -1, size, requested)
    use_room(&heap.share[BOTH], -1, size, requested)
    make(&heap.share[kind], -1, size, requested)
    add_split(heap, split_kind, -1, change)


cdef inline bint add_given(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    # Whether a ceiling is passed by it; what is live only falls.
    use_room(&heap.share[kind], -1, size, requested)
    use_room(&heap.share[BOTH], -1, size, requested)
    add_split(heap, split_kind, 1, change)
    return passes_split(&heap.share[split_kind]) | passes_split(&heap.share[BOTH])


cdef inline void take_back_given(
    Heap* heap, int kind, size_t size, size_t requested, int split_kind, Change change,
) noexcept nogil:
    use_room(&heap.share[kind], 1, size, requested)
    use_room(&heap.share[BOTH], 1, size, requested)
    add_split(heap, split_kind, -1, change)


cdef inline void add_made_rounds(Heap* heap, const Block* block, int64_t rounds, Change change) noexcept nogil:
    # So often a block was given back and taken again, each of which counts what it makes.
    cdef Share* share = &heap.share[block.kind]
    cdef Share* split = &heap.share[block.segment.kind]
    share.made[BLOCKS] += rounds
    share.made[BYTES] += rounds * <int64_t>block.size
    share.made[ASKED] += rounds * <int64_t>block.requested
    split.made[SPLITS] += rounds * max(change.blocks, -change.blocks)
    split.made[SPLIT_BYTES] += rounds * max(change.bytes, -change.bytes)


# --- the figures, as the exclusive section and their readers see them ---

cdef inline int count_of(int figure) noexcept nogil:
    # Which count a figure rests on.
    if figure == ALLOCATION or figure == ACTIVE:
        return BLOCKS
    if figure == ALLOCATED_BYTES or figure == ACTIVE_BYTES:
        return BYTES
    if figure == INACTIVE_SPLIT:
        return SPLITS
    return SPLIT_BYTES if figure == INACTIVE_SPLIT_BYTES else ASKED


cdef inline int64_t current(const Heap* heap, int kind, int figure) noexcept nogil:
    cdef const Share* share = &heap.share[kind]
    cdef int count = count_of(figure)
    cdef int64_t answer = share.full[count] - share.room[count]
    return answer + share.pending[count] if figure == ACTIVE or figure == ACTIVE_BYTES else answer


cdef inline int64_t made(const Heap* heap, int kind, int figure) noexcept nogil:
    cdef const Share* share = &heap.share[kind]
    cdef int count = count_of(figure)
    return share.made[count] - share.renewed[count] if figure == ACTIVE or figure == ACTIVE_BYTES else share.made[count]


cdef void add_figure(Heap* heap, int kind, int figure, int64_t amount) noexcept nogil  # of a kind, and of both
cdef void carry(Heap* origin, Heap* to, int kind, int figure, int64_t amount) noexcept nogil  # the sum stays
cdef void forget_made(Heap* heap) noexcept nogil
cdef void raise_ceilings(Heap* heap) noexcept nogil  # the sole heap's, for which a ceiling is a peak
cdef void lower_ceilings(Heap* heap) noexcept nogil  # to what is there
cdef void measure_room(Heap* heap) noexcept nogil    # after a change of ceilings or of what is pending
