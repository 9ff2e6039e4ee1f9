# The exclusive section: the pool's mutex and the locks of all heaps that are awake.  Everything runs in it but the fast
# path, routes (which send the allocations of a capture or thread to a private pool) and the reading of one statistic.
# It is left for calls of the driver that wait or may take long, and other threads' fast paths run meanwhile.  Order of
# locks: growth, lock, the heaps in the order of Pool.awake.
from libc.stdint cimport int64_t

from accelrt.allocator.stats cimport Counter
from accelrt.allocator.types cimport Block, Heap, Pool

cdef void lock_all(Pool* pool) noexcept nogil
cdef void unlock_all(Pool* pool, Heap* requester) noexcept nogil  # requester: the heap that gets most headroom; or NULL
# The same locks for a reader: no cache is flushed and no limit changes, so the next hit finds what it
# would have found.
cdef void lock_to_read(Pool* pool) noexcept nogil
cdef bint try_lock_to_read(Pool* pool) noexcept nogil  # False if another thread holds the pool's mutex
cdef void unlock_after_read(Pool* pool) noexcept nogil
# In the exclusive section: locks a sleeping heap, for the fast path to use from the next unlock_all on.
cdef void wake(Pool* pool, Heap* heap) noexcept nogil
cdef void link_awake(Pool* pool, Heap* heap) noexcept nogil  # a new heap, which the caller has locked
# Enables or disables the fast path in each heap, after the first capture began or the last one ended.  Under the pool's
# mutex alone, which guards private pools and routes; locks the heaps one by one.
cdef void update_fast_path(Pool* pool) noexcept nogil
# Makes a call of the driver that may take long, or that the driver refuses while any thread captures unless the calling
# thread is in relaxed mode.  Releases all locks but growth meanwhile, and puts the thread in relaxed mode.
ctypedef int (*UnlockedCall)(Pool* pool, void* about) noexcept nogil
cdef int call_unlocked(Pool* pool, UnlockedCall call, void* about) noexcept nogil  # the call's status
# Counters, in the exclusive section.
cdef void count(Pool* pool, Heap* heap, int stat, int kind, int64_t amount) noexcept nogil
cdef void count_pool(Pool* pool, int stat, int kind, int64_t amount) noexcept nogil  # of SEGMENT or RESERVED_BYTES
cdef void count_splits(Pool* pool, Heap* heap) noexcept nogil  # at the end of each operation, for the heap that it was in
cdef void count_oversize(Counter* counter, int64_t amount) noexcept nogil
cdef int64_t counted(const Pool* pool, int stat, int kind) noexcept nogil  # a per-heap statistic as readers see it
cdef int64_t total_of(const Pool* pool, int stat) noexcept nogil  # of a per-heap statistic, both kinds
cdef int64_t reserved(const Pool* pool) noexcept nogil

# What the fast path does too, counted for the pool.  In the exclusive section.
cdef void hand_out(Pool* pool, Block* block, size_t size, size_t requested, bint splits) noexcept nogil
cdef void hand_over(Pool* pool, Block* block, size_t requested) noexcept nogil  # makes a PENDING block LIVE, whole
cdef void count_freed(Pool* pool, Block* block) noexcept nogil  # counts a block as no longer LIVE
cdef Block* set_free(Pool* pool, Block* block) noexcept nogil  # makes a LIVE or PENDING block FREE; the merged block
cdef void put_free(Pool* pool, Block* block) noexcept nogil  # merges a block in no list, and inserts it into its list
cdef void take_free(Pool* pool, Block* block) noexcept nogil  # removes a free block from its list
