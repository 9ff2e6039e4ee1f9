# The public face of private pools: retain and release them, route allocations to them, read them.  A private pool is named
# by the two numbers of its id; devices are valid ordinals.  Each function takes the pool's mutex or enters the exclusive
# section, so it is called without the GIL and with no lock held.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.stats cimport STATS

cdef struct PrivateStats:  # by the statistics of stats.pxd, except those of splits
    bint known             # the device has such a pool
    int uses               # graphs, captures, MemPools and contexts that retain it
    size_t limit           # most bytes to reserve; SIZE_MAX: none
    size_t sleeping        # bytes of its pages that the device has back; not among the reserved ones
    int64_t[STATS] current
    int64_t[STATS] peak

# By a graph, or by a user's MemPool; made if need be.  A MemPool keeps its idle memory until it is emptied or a request
# finds no memory; limit is the most bytes that it reserves, SIZE_MAX for any number, and unused where a graph retains
# it.  Before a graph releases its pool, it names the streams that it was replayed on.
cdef int retain_pool(int device, uint64_t first, uint64_t second, bint user, size_t limit) noexcept nogil
# Before anything is allocated in a pool that the caller retains: where its segments come from (NULL: the device), whether
# they are never split, and whether its free blocks serve the common pool before that refuses a request.
cdef int set_up_pool(int device, uint64_t first, uint64_t second, const Source* source, bint whole,
                     bint lends) noexcept nogil
cdef int release_pool(int device, uint64_t first, uint64_t second, bint user) noexcept nogil
cdef void note_replays(int device, uint64_t first, uint64_t second, uintptr_t stream) noexcept nogil
cdef void hide_replays(int device, uint64_t first, uint64_t second) noexcept nogil  # their streams are unknown
cdef PrivateStats read_private(int device, uint64_t first, uint64_t second, bint reset) noexcept nogil  # its peaks
# The id of the pool that the calling thread's allocations on a stream go to; zeros for none.
cdef void private_of(int device, uintptr_t stream, uint64_t* out_id) noexcept nogil

# Before a capture begins: polls progress, since the capturing stream cannot be queried until the capture ends.
cdef void expect_idle(int device) noexcept nogil
cdef int begin_capture(int device, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil
# After the driver's capture_begin on the stream: gets the capture's id and begins its route.  CAPTURE_INVALID, with
# id 0, if the capture was invalidated or ended already; the caller then ends whatever capture the stream is in.
cdef int begin_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second,
                          uint64_t* out_capture) noexcept nogil
cdef int end_capture(int device, uint64_t capture) noexcept nogil
# For a capture that another library is about to begin on the stream, into a pool that is retained.  Its allocations are
# routed as soon as it runs; until then, and until end_expected_capture, the fast path is disabled.
cdef int expect_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil
cdef int end_expected_capture(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil

# From begin to end, allocations of the calling thread go to the pool, which is made if need be and retained meanwhile.
# thread: thread_number() of the thread that began.
cdef int begin_pool(int device, uint64_t first, uint64_t second) noexcept nogil
cdef int end_pool(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil
cdef int end_thread_route(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil  # still retained
