"""A heap's share of the figures, where it is not a hit that changes it."""
from libc.string cimport memset

from accelrt.memory.allocator.stats cimport REQUESTED_BYTES


cdef int64_t least_room(const Share* share, int count, int plain, int active) noexcept nogil:
    # Below the ceilings of what is live and of what is active, which rise together in a hit.
    return min(share.ceiling[plain], share.ceiling[active] - share.pending[count])


cdef void measure_room(Heap* heap) noexcept nogil:
    cdef Share* share
    cdef int64_t[COUNTS] full
    cdef int kind, count
    for kind in range(3):
        share = &heap.share[kind]
        full[BLOCKS] = least_room(share, BLOCKS, ALLOCATION, ACTIVE)
        full[BYTES] = least_room(share, BYTES, ALLOCATED_BYTES, ACTIVE_BYTES)
        full[ASKED] = share.ceiling[REQUESTED_BYTES]
        full[SPLITS] = share.ceiling[INACTIVE_SPLIT]
        full[SPLIT_BYTES] = share.ceiling[INACTIVE_SPLIT_BYTES]
        for count in range(COUNTS):
            share.room[count] += full[count] - share.full[count]
            share.full[count] = full[count]


cdef void raise_ceilings(Heap* heap) noexcept nogil:
    cdef int kind, figure
    for kind in range(3):
        for figure in range(SHARED):
            heap.share[kind].ceiling[figure] = max(heap.share[kind].ceiling[figure], current(heap, kind, figure))
    measure_room(heap)


cdef void lower_ceilings(Heap* heap) noexcept nogil:
    cdef int kind, figure
    for kind in range(3):
        for figure in range(SHARED):
            heap.share[kind].ceiling[figure] = current(heap, kind, figure)


cdef void add_to(Share* share, int figure, int64_t amount) noexcept nogil:
    # A block that is live is active too, so what only one of the two figures counts is pending.
    cdef int count = count_of(figure)
    if figure == ACTIVE or figure == ACTIVE_BYTES:
        share.pending[count] += amount
        return
    share.room[count] -= amount
    if figure == ALLOCATION or figure == ALLOCATED_BYTES:
        share.pending[count] -= amount


cdef void add_made(Share* share, int figure, int64_t amount) noexcept nogil:
    cdef int count = count_of(figure)
    if figure == ACTIVE or figure == ACTIVE_BYTES:
        share.renewed[count] -= amount
        return
    share.made[count] += amount
    if figure == ALLOCATION or figure == ALLOCATED_BYTES:
        share.renewed[count] += amount


cdef void add_figure(Heap* heap, int kind, int figure, int64_t amount) noexcept nogil:
    add_to(&heap.share[kind], figure, amount)
    add_to(&heap.share[BOTH], figure, amount)
    if amount > 0:
        add_made(&heap.share[kind], figure, amount)


cdef void carry(Heap* origin, Heap* to, int kind, int figure, int64_t amount) noexcept nogil:
    add_to(&origin.share[kind], figure, -amount)
    add_to(&origin.share[BOTH], figure, -amount)
    add_to(&to.share[kind], figure, amount)
    add_to(&to.share[BOTH], figure, amount)


cdef void forget_made(Heap* heap) noexcept nogil:
    cdef int kind
    for kind in range(2):
        memset(heap.share[kind].made, 0, sizeof(heap.share[kind].made))
        memset(heap.share[kind].renewed, 0, sizeof(heap.share[kind].renewed))
