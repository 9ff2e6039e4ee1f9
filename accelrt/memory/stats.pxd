# The counters behind memory_stats: nine figures, each for the small and the large kind.
from libc.stdint cimport int64_t

cdef enum:
    ALLOCATION = 0            # live blocks
    SEGMENT = 1
    ACTIVE = 2                # live and pending blocks
    INACTIVE_SPLIT = 3        # free blocks with a neighbour
    ALLOCATED_BYTES = 4
    RESERVED_BYTES = 5
    ACTIVE_BYTES = 6
    INACTIVE_SPLIT_BYTES = 7
    REQUESTED_BYTES = 8
    FIGURES = 9

cdef struct Counter:
    int64_t current
    int64_t peak
    int64_t allocated  # every increase since the last reset_accumulated
    int64_t freed      # every decrease

# peak_all is the peak of the sum, which is not the sum of the peaks
cdef struct Figure:
    Counter[2] kind
    int64_t peak_all

cdef struct Stats:
    Figure[FIGURES] figure
    int64_t num_alloc_retries
    int64_t num_ooms
    int64_t num_sync_all_streams
    int64_t num_device_alloc
    int64_t num_device_free


cdef inline void increase(Stats* stats, int figure, int kind, int64_t amount) noexcept nogil:
    cdef Figure* entry = &stats.figure[figure]
    cdef Counter* counter = &entry.kind[kind]
    cdef int64_t total
    counter.current += amount
    counter.allocated += amount
    if counter.current > counter.peak:
        counter.peak = counter.current
    total = entry.kind[0].current + entry.kind[1].current
    if total > entry.peak_all:
        entry.peak_all = total


cdef inline void decrease(Stats* stats, int figure, int kind, int64_t amount) noexcept nogil:
    stats.figure[figure].kind[kind].current -= amount
    stats.figure[figure].kind[kind].freed += amount


cdef inline int64_t current_of(Stats* stats, int figure) noexcept nogil:
    return stats.figure[figure].kind[0].current + stats.figure[figure].kind[1].current


cdef inline void change(Stats* stats, int figure, int kind, int64_t amount) noexcept nogil:
    if amount > 0:
        increase(stats, figure, kind, amount)
    else:
        decrease(stats, figure, kind, -amount)
