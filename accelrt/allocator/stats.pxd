# The counters behind memory_stats: nine statistics, each for the small and the large kind.
#
# The first seven change with every allocation, so each heap counts them by itself and no two heaps write to one cache
# line.  Peak statistics are exact although the fast path reads only its own heap: each heap holds a budget, its limit,
# up to which its statistics may rise, and the limits of all heaps add up to at most the peak.  A thread that would pass
# a limit takes headroom from other heaps (inline/fast_path.pxd); where they have too little, it takes all locks and
# distributes the limits anew (heaps.pyx).  The only heap of a pool raises its limits itself: they are the peaks.  Without a
# GIL the peaks may be somewhat too high, for threads that allocate side by side (inline/fast_path.pxd).
#
# The fast path changes five counts.  For each it keeps the headroom below the limit rather than the value, so one test
# of signs finds a limit that is passed.  Active differs from allocated by what is pending, which the fast path leaves.
from libc.stdint cimport int64_t
from libc.string cimport memset

cdef enum:
    ALLOCATION = 0            # live blocks
    ACTIVE = 1                # live and pending blocks
    INACTIVE_SPLIT = 2        # free blocks with a neighbour; in stitched and expandable segments all free blocks
    ALLOCATED_BYTES = 3
    ACTIVE_BYTES = 4
    INACTIVE_SPLIT_BYTES = 5
    REQUESTED_BYTES = 6
    PER_HEAP = 7              # so many are counted by each heap, the others by the pool
    SEGMENT = 7
    RESERVED_BYTES = 8
    STATS = 9

cdef enum:  # what the fast path counts
    BLOCKS = 0                # live blocks
    BYTES = 1                 # their bytes
    ASKED = 2                 # bytes requested
    SPLITS = 3                # as INACTIVE_SPLIT
    SPLIT_BYTES = 4
    COUNTS = 5

cdef enum:
    BOTH = 2                  # in a kind's place: the sum of both

cdef struct HeapStats:  # one heap's, of one kind or of both together; guarded by the heap's lock
    int64_t[COUNTS] headroom     # how far each count may rise before it passes a limit
    int64_t[COUNTS] count_limit  # headroom + the count itself
    int64_t[COUNTS] cumulative   # the sum of all increases since the last reset_accumulated; not kept in BOTH
    int64_t[2] pending           # blocks and bytes that are active but not allocated
    int64_t[2] renewed           # the part of cumulative that had stayed active: handed over while pending
    int64_t[PER_HEAP] limit      # how far each statistic may rise without the exclusive section

cdef struct Counter:
    int64_t current
    int64_t peak
    int64_t allocated
    int64_t freed

cdef struct Stats:  # a pool's; peak_all is the peak of the sum of both kinds, not the sum of their peaks
    Counter[STATS][2] counters
    int64_t[STATS] peak_all
    # Counts of what happened since the last reset_accumulated, the first to the last of them (clear_counts).
    int64_t num_alloc_retries
    int64_t num_ooms
    int64_t num_oom_rejections    # of num_ooms, those that throw_on_cudamalloc_oom refused at once
    int64_t num_sync_all_streams
    int64_t num_device_alloc
    int64_t num_device_free
    int64_t virtual_memory_calls  # calls of the driver's virtual memory functions
    # What there is now.
    int64_t stitched_bytes        # mapped in stitched segments
    int64_t reserved_addresses    # bytes of address space reserved, mapped or not
    int64_t sleeping_bytes        # of suspended pages, which the device has back
    int64_t managed_bytes         # of segments of managed memory, which the device holds as far as it has room
    Counter oversize_allocations
    Counter oversize_segments
    int64_t news                  # grows with each event that logging is told of; note_news alone writes it


cdef extern from *:
    """
    #define load_news(stats) __atomic_load_n(&(stats)->news, __ATOMIC_RELAXED)
    #define note_news(stats) ((void)__atomic_add_fetch(&(stats)->news, 1, __ATOMIC_RELAXED))
    """
    int64_t load_news(const Stats* stats) noexcept nogil  # under no lock
    void note_news(Stats* stats) noexcept nogil           # a retry, a refusal, or memory that went back to the device


cdef inline void clear_counts(Stats* stats) noexcept nogil:
    memset(&stats.num_alloc_retries, 0, <char*>&stats.stitched_bytes - <char*>&stats.num_alloc_retries)

# Statistics that the pool counts (SEGMENT, RESERVED_BYTES).  In the exclusive section.

cdef inline int64_t current_of(const Stats* stats, int stat) noexcept nogil:
    return stats.counters[stat][0].current + stats.counters[stat][1].current


cdef inline void increase(Stats* stats, int stat, int kind, int64_t amount) noexcept nogil:
    # Adds to the current value and the accumulated one, and raises the peaks.
    cdef Counter* counter = &stats.counters[stat][kind]
    counter.current += amount
    counter.allocated += amount
    counter.peak = max(counter.peak, counter.current)
    stats.peak_all[stat] = max(stats.peak_all[stat], current_of(stats, stat))


cdef inline void decrease(Stats* stats, int stat, int kind, int64_t amount) noexcept nogil:
    stats.counters[stat][kind].current -= amount
    stats.counters[stat][kind].freed += amount


cdef inline void change(Stats* stats, int stat, int kind, int64_t amount) noexcept nogil:
    # Adds a positive or negative amount.
    if amount > 0:
        increase(stats, stat, kind, amount)
    else:
        decrease(stats, stat, kind, -amount)
