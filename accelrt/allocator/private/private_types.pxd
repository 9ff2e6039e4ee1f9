# The records of private pools: the heaps that captures and threads allocate from, the routes that lead there, the sleep of
# a pool, and the replays after which its memory may serve others.
#
# The pool's mutex guards them, unless a comment says otherwise.  A thread in the exclusive section (heaps.pxd) may read
# and write all of them.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.allocator.stats cimport STATS
from accelrt.driver.guard cimport PooledEvent, Use
from accelrt.driver.table cimport Table

# A stream on which graphs were replayed that are destroyed now: their last replay may still be running.
cdef struct Replay:
    uintptr_t stream
    bint waited                  # the wait under way has waited for it already, or cannot
    PooledEvent* progress_event  # recorded behind the last replay; NULL: none
    Replay* next

# Live memory of a suspended pool whose contents the host keeps, and where: offset bytes from the start of its chunks.
cdef struct Kept:
    uintptr_t address
    size_t size
    size_t offset

cdef struct Range:
    uintptr_t low
    uintptr_t high  # exclusive

# A private pool that is suspended (sleep.pyx), or about to be.  The list of all of them, and ranges, are under the lock
# of sleep.pyx; the rest is under the growth lock and in the exclusive section.
cdef struct Suspension:
    int device
    uint64_t[2] id
    bint closing         # uses that began before are still waited for: the memory is all there, and stays
    bint orphan          # the private pool's record is gone
    Kept* kept           # by order; NULL: nothing is kept
    size_t kept_count
    size_t kept_bytes    # of the chunks that hold contents
    uintptr_t* chunks    # page-locked memory, of chunk_size bytes each but for the last
    size_t chunk_count
    size_t chunk_size
    Range* ranges        # addresses of its segments, in ascending order
    size_t range_count
    Suspension* next

# What one call of sleep.pxd moved.
cdef struct Moved:
    size_t bytes         # physical memory that the device has back, or gave
    size_t copied        # contents
    int64_t ns           # the whole call took
    int64_t copy_ns      # from the first copy on to the end of the last one
    int64_t host_ns      # page-locked memory was made ready
    const char* row      # of the driver's table, that answered an error; NULL: none did
    bint down            # after a failed call: the pool is suspended

# Where a private pool takes plain segments from in place of the driver's plain memory: a library's functions, managed
# memory, or two Python functions; it lives as long as the process.  A library's functions are called with the device
# current, in relaxed capture mode and outside the exclusive section; take and give, which do as much for Python's, without
# any lock.
cdef struct Source:
    bint managed      # the driver's managed memory, in place of functions
    bint prefetches   # of managed memory: each segment goes to the device when it comes
    size_t headroom   # of managed memory: what does not leave so much of the device free stays on the host; SIZE_MAX: none
    void* (*alloc)(size_t size, int device, void* stream) noexcept nogil
    void (*free)(void* address, size_t size, int device, void* stream) noexcept nogil
    # NULL but of Python's
    int (*take)(const Source* source, Table* table, int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil  # no-cython-lint
    void (*give)(const Source* source, Table* table, int device, uintptr_t address, size_t size, uintptr_t stream) noexcept nogil  # no-cython-lint
    const void* functions

# A private pool: the heaps that the captures of one graph pool handle, or a MemPool, allocate from.
cdef struct PrivatePool:
    uint64_t[2] id
    int uses               # graphs, captures, MemPools and contexts that retain it; at 0 its segments may be released
    int users              # those uses that are MemPools or contexts; equal to uses: no graph needs the idle memory
    bint emptied           # its idle memory is being released although MemPools use it; no graph does
    uint64_t segments
    size_t limit           # most bytes to reserve
    const Source* source   # where its segments come from; NULL: the driver
    bint whole             # its segments are never split
    bint filling           # a thread makes pages of such a segment, which stays until that is over, closed or not
    bint fixed             # its one segment is a reservation (memory/reservation.pyx): whoever made it says where pages go
    Use* streams           # of a fixed one: others than its heap's that may use any of its memory
    uint64_t readers       # other devices that may read its pages, a bit each; under the growth lock, as the next
    uint64_t writers       # those of them that may write them too
    bint lends             # its free blocks may serve requests of the common pool that would be refused otherwise
    size_t reserved
    size_t sleeping        # bytes of its suspended pages
    Suspension* suspension  # NULL: it is in use; else nothing is allocated from it
    int rest               # 2: no replay of a destroyed graph can run; 1: none after the wait that is under way; 0: may run
    Replay* replays        # of destroyed graphs, while rest is 0
    bint hidden            # replays may run on streams that are unknown or may not be queried: only the device tells
    void* heaps            # the first of its Heaps, chained by sibling
    PrivatePool* same_key  # next with the same key in Pool.private_index
    PrivatePool* before    # in Pool.privates
    bint ending            # in the list Pool.ending
    PrivatePool* before_ending
    PrivatePool* next_ending
    int64_t[STATS] peak    # exact, but for the statistics of splits, which are read at allocations only
    PrivatePool* next      # in Pool.privates

# A route: a capture under way, or a thread in use_mem_pool, whose allocations go to a private pool.
cdef struct Route:
    uint64_t capture  # the driver's id of the capture; 0 for a thread, and until an expected capture is seen to run
    uint64_t thread   # the thread's number (heaps.pyx); 0 for a capture
    uintptr_t origin  # the stream on which another library begins a capture that is expected; 0 for every other route
    PrivatePool* owner
    Route* next
