# The exclusive section: the pool's mutex, and the locks of all of its heaps.  Everything but hits,
# routes and single figures runs in here; hits of other threads go on whenever it is left, which it is while the
# driver works or something is waited for.  The order of locks: growth, lock, heaps in the order of the list.
from libc.stdint cimport int64_t

from accelrt.memory.allocator.stats cimport Counter
from accelrt.memory.allocator.types cimport Block, Heap, Pool

cdef void lock_all(Pool* pool) noexcept nogil
cdef void unlock_all(Pool* pool, Heap* asker) noexcept nogil  # who may rise most until the next time; NULL for none
# The same locks for a reader who changes nothing that the next hit sees: no block is filed, no ceiling moves.
cdef void lock_to_read(Pool* pool) noexcept nogil  # the totals are those of the counters as they stand
cdef bint try_lock_to_read(Pool* pool) noexcept nogil  # False where another thread has the pool's mutex
cdef void unlock_after_read(Pool* pool) noexcept nogil
# Heaps that are awake are locked in the exclusive section; the others hits leave alone.  Inside.
cdef void wake(Pool* pool, Heap* heap) noexcept nogil
cdef void link_awake(Pool* pool, Heap* heap) noexcept nogil  # a new one, which the caller locked
# Under the pool's mutex alone, which guards private pools and routes: captures began, or all of them ended.
cdef void disable_fast_path(Pool* pool) noexcept nogil
# What the driver may take long over, or refuses beside a capture of any thread's unless the asker is relaxed, done
# with all locks left and the thread relaxed meanwhile.
ctypedef int (*UnlockedCall)(Pool* pool, void* about) noexcept nogil
cdef int call_unlocked(Pool* pool, UnlockedCall call, void* about) noexcept nogil  # the call's answer
cdef void count(Pool* pool, Heap* heap, int stat, int kind, int64_t amount) noexcept nogil
cdef void count_pool(Pool* pool, int stat, int kind, int64_t amount) noexcept nogil  # SEGMENT, RESERVED_BYTES
cdef void count_splits(Pool* pool, Heap* heap) noexcept nogil  # at an operation's end
cdef void count_oversize(Counter* counter, int64_t amount) noexcept nogil
cdef int64_t counted(const Pool* pool, int stat, int kind) noexcept nogil  # a shared figure, as it is shown
cdef int64_t total_of(const Pool* pool, int stat) noexcept nogil  # of the shared figures; inside only
cdef int64_t reserved(const Pool* pool) noexcept nogil

# What hits do too, counted for the pool.
cdef void hand_out(Pool* pool, Block* block, size_t size, size_t requested, bint splits) noexcept nogil
cdef void hand_over(Pool* pool, Block* block, size_t requested) noexcept nogil  # from PENDING, whole
cdef void count_freed(Pool* pool, Block* block) noexcept nogil  # no longer LIVE
cdef Block* set_free(Pool* pool, Block* block) noexcept nogil  # from LIVE or PENDING; the free block it is in
cdef void put_free(Pool* pool, Block* block) noexcept nogil    # a block in no list, merged with its neighbours
cdef void take_free(Pool* pool, Block* block) noexcept nogil   # out of its list
