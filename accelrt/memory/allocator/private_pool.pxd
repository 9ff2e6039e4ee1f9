# Private pools: the heaps that captures and threads allocate from, and the routes that lead there.  Inside the
# section, but for what asks about the calling thread.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.memory.allocator.types cimport Pool, PrivatePool, Replay

cdef PrivatePool* find_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil
# One use more, and one less; a user is a MemPool or a context, all others are graphs.  Made if need be.
cdef int retain(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil
cdef int release_hold(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil
cdef PrivatePool* first_ending(Pool* pool) noexcept nogil  # of those whose graphs are gone while replays may not be
cdef bint has_graphs(const PrivatePool* owner) noexcept nogil
cdef void note_replay(PrivatePool* owner, uintptr_t stream) noexcept nogil  # of a graph that is about to let go
cdef void drop_replay(Pool* pool, Replay** link) noexcept nogil
cdef void forget_replays(Pool* pool, PrivatePool* owner) noexcept nogil  # they are past

# capture is the driver's id of one, or 0 for the calling thread
cdef int begin_route(Pool* pool, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil
# thread is the number of the one that began it, 0 for a capture
cdef int end_route(Pool* pool, const PrivatePool* owner, uint64_t capture, uint64_t thread) noexcept nogil
cdef int pool_for(Pool* pool, uintptr_t stream, PrivatePool** out_owner) noexcept nogil  # NULL where no route leads
cdef PrivatePool* entered_pool(const Pool* pool) noexcept nogil  # by use_mem_pool, of this thread; NULL
cdef bint is_captured(const Pool* pool, const PrivatePool* owner) noexcept nogil  # a capture allocates from it
cdef bint is_routed() noexcept nogil  # the calling thread has a route, on whatever device
cdef uint64_t thread_number() noexcept nogil  # the calling thread's, of no other

cdef int64_t sum_of(const Pool* pool, const PrivatePool* owner, int stat) noexcept nogil
cdef void note_peaks(Pool* pool, PrivatePool* owner) noexcept nogil  # after what may have raised a shared figure
cdef void reset_private_peaks(Pool* pool, PrivatePool* owner) noexcept nogil
cdef void drop_empty(Pool* pool) noexcept nogil  # under the growth lock too
