# On what terms memory is held: the settings, and whom a private pool is kept for.  Guarded as the pool is
# (state.pxd), but for what of the settings a hit reads (policy.pxd).
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.memory.stats cimport FIGURES

# What the settings string says, as the pool reads it; sizes in bytes.
cdef struct Policy:
    bint virtual_memory
    bint stitching
    double slack       # of the peak of live bytes; below 0: by the credit for windows
    size_t piece       # 0: by what is reserved
    size_t max_split   # plain blocks above are never split; SIZE_MAX where there is no such limit
    size_t large_segment
    size_t max_rounding  # how much larger than asked a block above max_split may be
    double collect     # of the limit; 0: never
    double fraction    # of the device's memory that pools may reserve
    bint rounds        # divisions hold one that is not 0
    unsigned char[64] divisions  # steps between a power of two and the next, by the lower one's exponent; 0: none

# A stream that graphs were replayed on which are gone: their last replay may be under way.
cdef struct Replay:
    uintptr_t stream
    bint waited        # for, just now, or it cannot be
    void* marker       # an Entry of queues.pxd, whose event may be recorded behind the last of them; NULL
    bint marked        # it is
    Replay* next

# The heaps that captures of one graph pool handle, or a MemPool, allocate from.
cdef struct Private:
    uint64_t[2] id
    int uses           # graphs, captures, MemPools and contexts that hold it; at 0 its segments may go back
    int users          # those of them that are MemPools and contexts, so that no graph needs what is idle
    bint emptied       # what is idle is being given back, where no graph holds the pool
    uint64_t segments
    size_t limit       # most bytes to reserve
    size_t reserved
    int rest           # 2: no replay of a graph that is gone is left; 1: the device is being waited for, to be so
    Replay* replays    # of graphs that are gone; while rest is 0
    bint hidden        # they may run on streams that nobody knows, or that cannot be asked
    void* heaps        # the first of its Heaps, chained by sibling
    Private* same_key  # in the pool's index
    Private* before
    bint ending        # in the pool's list of those whose graphs are gone while replays may not be
    Private* next_ending
    int64_t[FIGURES] peak  # of reserved bytes and segments, and of what is live; not of splits
    Private* next

# A capture under way, or a thread inside use_mem_pool: its allocations go to a private pool.
cdef struct Route:
    uint64_t capture   # the id that the driver gave it; 0 for a thread
    uint64_t thread    # see private.pyx; 0 for a capture
    Private* owner
    Route* next
