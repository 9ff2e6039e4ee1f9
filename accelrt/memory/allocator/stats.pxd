# The counters behind memory_stats: nine figures, each for the small and the large kind.
#
# The first seven change with every allocation, so each heap has its share of them and no two heaps write to
# one place.  A peak is that of the sum over the heaps, and exact: each heap's ceiling says how far its share
# may rise before the sum could pass the peak so far.  The ceilings of all heaps add up to no more than the
# peak; a thread that would pass its heap's takes all locks and shares them out anew (exclusive.pyx).  The sole heap
# of a pool raises its ceilings itself: they are the peaks.
#
# A hit changes five counts only, and of those it keeps not what is there but how much room is left below the
# ceilings: what is active differs from what is allocated by what is pending, which no hit changes.
from libc.stdint cimport int64_t
from libc.string cimport memset

cdef enum:
    ALLOCATION = 0            # live blocks
    ACTIVE = 1                # live and pending blocks
    INACTIVE_SPLIT = 2        # free blocks with a neighbour
    ALLOCATED_BYTES = 3
    ACTIVE_BYTES = 4
    INACTIVE_SPLIT_BYTES = 5
    REQUESTED_BYTES = 6
    PER_HEAP = 7                # the figures so far are kept by heaps, the rest by the pool
    SEGMENT = 7
    RESERVED_BYTES = 8
    STATS = 9

cdef enum:  # what a hit counts
    BLOCKS = 0                # live
    BYTES = 1
    ASKED = 2                 # requested bytes
    SPLITS = 3                # free blocks with a neighbour
    SPLIT_BYTES = 4
    COUNTS = 5

cdef enum:
    BOTH = 2                  # in a kind's place: the sum of both

cdef struct HeapStats:  # one heap's, of one kind or of both
    int64_t[COUNTS] headroom      # how far each may rise before a ceiling is passed
    int64_t[COUNTS] count_limit      # room + what is there
    int64_t[COUNTS] cumulative      # every increase since the last reset_accumulated; of a kind only
    int64_t[2] pending        # blocks and bytes that are active but not allocated
    int64_t[2] renewed        # of what was made, since the same reset: blocks and bytes that had stayed active
    int64_t[PER_HEAP] limit   # a figure may rise to it without a look at the other heaps

cdef struct Counter:
    int64_t current
    int64_t peak
    int64_t allocated
    int64_t freed

cdef struct Stats:  # a pool's, as it is read; peak_all is the peak of the sum, not the sum of the peaks
    Counter[STATS][2] counters
    int64_t[STATS] peak_all
    # Counts of what happened since the last reset_accumulated, the first to the last of them (clear_counts).
    int64_t num_alloc_retries
    int64_t num_ooms
    int64_t num_sync_all_streams
    int64_t num_device_alloc
    int64_t num_device_free
    int64_t virtual_memory_calls  # rows of the driver's virtual memory that were called
    # What there is.
    int64_t stitched_bytes        # mapped a second time
    int64_t reserved_addresses    # bytes of address space held, mapped or not
    Counter oversize_allocations
    Counter oversize_segments


cdef inline void clear_counts(Stats* stats) noexcept nogil:
    memset(&stats.num_alloc_retries, 0, <char*>&stats.stitched_bytes - <char*>&stats.num_alloc_retries)


cdef inline int64_t current_of(const Stats* stats, int stat) noexcept nogil:
    return stats.counters[stat][0].current + stats.counters[stat][1].current


cdef inline void increase(Stats* stats, int stat, int kind, int64_t amount) noexcept nogil:
    cdef Counter* counter = &stats.counters[stat][kind]
    counter.current += amount
    counter.allocated += amount
    counter.peak = max(counter.peak, counter.current)
    stats.peak_all[stat] = max(stats.peak_all[stat], current_of(stats, stat))


cdef inline void decrease(Stats* stats, int stat, int kind, int64_t amount) noexcept nogil:
    stats.counters[stat][kind].current -= amount
    stats.counters[stat][kind].freed += amount


cdef inline void change(Stats* stats, int stat, int kind, int64_t amount) noexcept nogil:
    if amount > 0:
        increase(stats, stat, kind, amount)
    else:
        decrease(stats, stat, kind, -amount)
