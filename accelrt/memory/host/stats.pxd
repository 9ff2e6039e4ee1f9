# Figures of the page-locked memory.
from libc.string cimport memset

cdef struct Tally:
    long long current
    long long peak       # the most that current was since the start or the last reset
    long long allocated  # sum of increases since the start or the last reset
    long long freed      # sum of decreases, likewise

cdef struct Timing:      # of driver calls, in microseconds
    long long total
    long long largest
    long long least      # 0 while count is
    long long count

cdef struct PinnedStats:
    Tally segments        # taken from the driver and not given back
    Tally segment_bytes
    Tally blocks          # live and pending
    Tally block_bytes     # of those, rounded as handed out
    Timing take           # host_alloc, or mapping and host_register; its count is num_host_alloc
    Timing give           # host_free, or host_unregister and unmapping


cdef inline void add(Tally* tally, long long amount) noexcept nogil:
    tally.current += amount
    tally.allocated += amount
    if tally.current > tally.peak:
        tally.peak = tally.current


cdef inline void subtract(Tally* tally, long long amount) noexcept nogil:
    tally.current -= amount
    tally.freed += amount


cdef inline void time_call(Timing* timing, long long microseconds) noexcept nogil:
    timing.total += microseconds
    timing.largest = max(timing.largest, microseconds)
    timing.least = microseconds if timing.count == 0 else min(timing.least, microseconds)
    timing.count += 1


cdef inline void reset_peak(Tally* tally) noexcept nogil:
    tally.peak = tally.current


cdef inline void reset_sums(Tally* tally) noexcept nogil:
    tally.allocated = tally.freed = 0


cdef inline void reset_timing(Timing* timing) noexcept nogil:
    memset(timing, 0, sizeof(Timing))
