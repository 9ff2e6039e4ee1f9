# Private pools as others use them: held, routed to and read.  A pool is named by the two numbers of its
# id; devices are valid ordinals.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.memory.allocator.stats cimport STATS

cdef struct PrivateStats:  # of blocks, segments and bytes, by the figures of stats.pxd but for splits
    bint known             # there is such a pool
    int uses
    size_t limit           # SIZE_MAX: none
    int64_t[STATS] current
    int64_t[STATS] peak

# By a graph, or by a user's MemPool; made if need be.  A MemPool keeps its idle memory until it is emptied or a request
# finds no memory; limit is the most bytes that it reserves, SIZE_MAX for any number, and unused where a graph retains
# it.  Before a graph releases its pool, it names the streams that it was replayed on.
cdef int retain_pool(int device, uint64_t first, uint64_t second, bint user, size_t limit) noexcept nogil
cdef int release_pool(int device, uint64_t first, uint64_t second, bint user) noexcept nogil
cdef void note_replays(int device, uint64_t first, uint64_t second, uintptr_t stream) noexcept nogil
cdef void hide_replays(int device, uint64_t first, uint64_t second) noexcept nogil  # their streams are unknown
cdef PrivateStats read_private(int device, uint64_t first, uint64_t second, bint reset) noexcept nogil  # its peaks
# The id of the pool that the calling thread's allocations on a stream go to; zeros for none.
cdef void private_of(int device, uintptr_t stream, uint64_t* out_id) noexcept nogil

# Before a capture begins: while it is under way, its stream cannot be asked what it has done with idle memory.
cdef void expect_idle(int device) noexcept nogil
cdef int begin_capture(int device, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil
# After the driver's capture_begin on the stream: asks for the capture's id, and begins it.  CAPTURE_INVALID where
# somebody broke or ended it already; the id is 0 then, and the caller disposes of what the stream is in.
cdef int begin_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second,
                          uint64_t* out_capture) noexcept nogil
cdef int end_capture(int device, uint64_t capture) noexcept nogil

# What the calling thread allocates goes to the pool, which is made if need be and held meanwhile, until the end.
# thread is thread_number() of the thread that began.
cdef int begin_pool(int device, uint64_t first, uint64_t second) noexcept nogil
cdef int end_pool(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil
