# Private pools: the heaps that captures and threads allocate from.  A route says that the allocations of one capture, or
# of one thread inside use_mem_pool, go to a private pool.  Under the pool's mutex, except where a comment says otherwise.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.allocator.private.private_types cimport PrivatePool, Replay
from accelrt.allocator.types cimport Pool

cdef PrivatePool* find_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil
# One use more (makes the pool if need be), and one less.  user: of a MemPool or a use_mem_pool context; else of a graph.
cdef int retain(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil
cdef int release_hold(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil
cdef PrivatePool* first_ending(Pool* pool) noexcept nogil  # the first whose graphs are destroyed but replays may still run
cdef bint has_graphs(const PrivatePool* owner) noexcept nogil  # a graph or a capture uses it
cdef void note_replay(PrivatePool* owner, uintptr_t stream) noexcept nogil  # of a graph, before it releases the pool
cdef void drop_replay(Pool* pool, Replay** link) noexcept nogil  # frees the record that the link leads to
cdef void forget_replays(Pool* pool, PrivatePool* owner) noexcept nogil  # once all of them are over

# capture: the driver's id of a capture, or 0 for the calling thread
cdef int begin_route(Pool* pool, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil
# The same for a capture that another library is about to begin on the stream origin: its id is learned later.
cdef int begin_expected_route(Pool* pool, uint64_t first, uint64_t second, uintptr_t origin) noexcept nogil
cdef int end_expected_route(Pool* pool, const PrivatePool* owner, uintptr_t origin) noexcept nogil
# thread: thread_number() of the thread that began the route, 0 for a capture
cdef int end_route(Pool* pool, const PrivatePool* owner, uint64_t capture, uint64_t thread) noexcept nogil
cdef int pool_for(Pool* pool, uintptr_t stream, PrivatePool** out_owner) noexcept nogil  # NULL: to the common heaps
cdef PrivatePool* entered_pool(const Pool* pool) noexcept nogil  # by use_mem_pool on this thread; NULL
cdef bint is_captured(const Pool* pool, const PrivatePool* owner) noexcept nogil  # a capture under way allocates from it
cdef bint is_routed() noexcept nogil  # the calling thread has a route, on any device; no lock needed
cdef uint64_t thread_number() noexcept nogil  # the calling thread's, never used again; no lock needed

# In the exclusive section.
cdef int64_t sum_of(const Pool* pool, const PrivatePool* owner, int stat) noexcept nogil  # over its heaps
cdef void note_peaks(Pool* pool, PrivatePool* owner) noexcept nogil  # after a per-heap statistic may have risen
cdef void reset_private_peaks(Pool* pool, PrivatePool* owner) noexcept nogil
cdef void drop_empty(Pool* pool) noexcept nogil  # unused pools without segments; under the growth lock too
