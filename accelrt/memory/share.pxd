# What a hit counts, in its heap's share of the figures and under its lock: no other heap is looked at.  Whether it
# may is asked first, for an answer that rises beyond a ceiling is for the world to give (stats.pxd).
from libc.stdint cimport int64_t

from accelrt.memory.block cimport Heap
from accelrt.memory.heap cimport Change
from accelrt.memory.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES, SHARED,
)


cdef inline bint rises(const Heap* heap, int figure, int kind, int64_t amount) noexcept nogil:
    return (heap.share[kind].current[figure] + amount > heap.share[kind].ceiling[figure]
            or heap.share[0].current[figure] + heap.share[1].current[figure] + amount > heap.ceiling_all[figure])


cdef inline void add(Heap* heap, int figure, int kind, int64_t amount) noexcept nogil:
    heap.share[kind].current[figure] += amount
    heap.share[kind].allocated[figure] += amount


cdef inline void add_change(Heap* heap, int kind, Change change) noexcept nogil:
    heap.share[kind].current[INACTIVE_SPLIT] += change.blocks
    heap.share[kind].current[INACTIVE_SPLIT_BYTES] += change.bytes
    if change.blocks > 0:
        heap.share[kind].allocated[INACTIVE_SPLIT] += change.blocks
    if change.bytes > 0:
        heap.share[kind].allocated[INACTIVE_SPLIT_BYTES] += change.bytes


cdef inline bint change_rises(const Heap* heap, int kind, Change change) noexcept nogil:
    return ((change.blocks > 0 and rises(heap, INACTIVE_SPLIT, kind, change.blocks))
            or (change.bytes > 0 and rises(heap, INACTIVE_SPLIT_BYTES, kind, change.bytes)))


cdef inline bint live_rises(const Heap* heap, int kind, size_t size, size_t requested) noexcept nogil:
    return (rises(heap, ALLOCATION, kind, 1) or rises(heap, ALLOCATED_BYTES, kind, size)
            or rises(heap, ACTIVE, kind, 1) or rises(heap, ACTIVE_BYTES, kind, size)
            or rises(heap, REQUESTED_BYTES, kind, requested))


cdef inline void add_live(Heap* heap, int kind, size_t size, size_t requested) noexcept nogil:
    add(heap, ALLOCATION, kind, 1)
    add(heap, ALLOCATED_BYTES, kind, size)
    add(heap, ACTIVE, kind, 1)
    add(heap, ACTIVE_BYTES, kind, size)
    add(heap, REQUESTED_BYTES, kind, requested)


cdef inline void take_live(Heap* heap, int kind, size_t size, size_t requested) noexcept nogil:
    heap.share[kind].current[ALLOCATION] -= 1
    heap.share[kind].current[ALLOCATED_BYTES] -= size
    heap.share[kind].current[ACTIVE] -= 1
    heap.share[kind].current[ACTIVE_BYTES] -= size
    heap.share[kind].current[REQUESTED_BYTES] -= requested


cdef inline void raise_ceilings(Heap* heap) noexcept nogil:
    # By the sole heap, for which a ceiling is a peak.
    cdef int figure, kind
    for figure in range(SHARED):
        for kind in range(2):
            if heap.share[kind].current[figure] > heap.share[kind].ceiling[figure]:
                heap.share[kind].ceiling[figure] = heap.share[kind].current[figure]
        if heap.share[0].current[figure] + heap.share[1].current[figure] > heap.ceiling_all[figure]:
            heap.ceiling_all[figure] = heap.share[0].current[figure] + heap.share[1].current[figure]
