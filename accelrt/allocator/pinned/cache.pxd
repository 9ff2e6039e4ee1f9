# The caches of page-locked memory: their blocks, inline; then the public nogil face.

# Blocks of page-locked memory: free lists, splitting and merging, all under the pool's lock and without the driver.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.allocator.event_ring cimport host_history, record_host
from accelrt.allocator.history_types cimport ALLOCATED, FREE_COMPLETED, FREE_REQUESTED, SEGMENT_ALLOCATED, SEGMENT_FREED
from accelrt.allocator.pinned.block cimport (
    BLOCKS, FREE, LIVE, WORDS, class_above, class_below, count_held, kind_of, lowest_bit, PinnedBlock, PinnedPool,
    PinnedSegment, PinnedSettings, PinnedStats,
)
from accelrt.core.handle_map cimport map_insert, map_remove, map_reserve
from accelrt.status cimport NO_HOST_MEMORY, NOT_READY

cdef PinnedBlock* new_block_slow(PinnedPool* pool) noexcept nogil


cdef inline void flip_start(PinnedBlock* block) noexcept nogil:
    cdef size_t index = (block.address - block.segment.address) // block.segment.unit
    block.segment.starts[index >> 6] ^= <uint64_t>1 << (index & 63)


cdef inline void insert(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    cdef int place = class_below(block.size), kind = block.segment.kind
    cdef PinnedBlock** head = &pool.free[kind][place]
    block.state = FREE
    block.left = NULL
    block.right = head[0]
    if head[0] != NULL:
        head[0].left = block
    head[0] = block
    pool.filled[kind][place >> 6] |= <uint64_t>1 << (place & 63)


cdef inline void remove(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    cdef int place, kind
    if block.right != NULL:
        block.right.left = block.left
    if block.left != NULL:
        block.left.right = block.right
        return
    place, kind = class_below(block.size), block.segment.kind
    pool.free[kind][place] = block.right
    if block.right == NULL:
        pool.filled[kind][place >> 6] &= ~(<uint64_t>1 << (place & 63))


cdef inline PinnedBlock* find(PinnedPool* pool, size_t size) noexcept nogil:
    # The latest freed of the smallest class that suffices, or NULL.
    cdef int kind = kind_of(size), place = class_above(size)
    cdef int word = place >> 6
    cdef uint64_t filled = pool.filled[kind][word] & (~<uint64_t>0 << (place & 63))
    while filled == 0:
        word += 1
        if word >= WORDS:
            return NULL
        filled = pool.filled[kind][word]
    return pool.free[kind][64 * word + lowest_bit(filled)]


cdef inline int split_off(PinnedPool* pool, PinnedBlock* block, size_t size) noexcept nogil:
    # Keeps the low end; the rest becomes free.
    cdef PinnedBlock* rest = pool.spare_blocks
    if rest == NULL:
        rest = new_block_slow(pool)
        if rest == NULL:
            return NO_HOST_MEMORY
    pool.spare_blocks = rest.right
    rest.address = block.address + size
    rest.size = block.size - size
    rest.segment = block.segment
    rest.before = block
    rest.after = block.after
    if rest.after != NULL:
        rest.after.before = rest
    block.after = rest
    block.size = size
    flip_start(rest)
    insert(pool, rest)
    return 0


cdef inline void absorb(PinnedPool* pool, PinnedBlock* block, PinnedBlock* upper) noexcept nogil:
    # The neighbour above, in no list, becomes part of the block.
    flip_start(upper)
    block.size += upper.size
    block.after = upper.after
    if block.after != NULL:
        block.after.before = block
    upper.right = pool.spare_blocks
    pool.spare_blocks = upper


cdef inline void set_free(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    # A block in no list goes into one, with its free neighbours.
    cdef PinnedBlock* lower = block.before
    if block.after != NULL and block.after.state == FREE:
        remove(pool, block.after)
        absorb(pool, block, block.after)
    if lower != NULL and lower.state == FREE:
        remove(pool, lower)
        absorb(pool, lower, block)
        block = lower
    insert(pool, block)


cdef inline void note_host(int action, uintptr_t address, size_t size) noexcept nogil:
    if host_history.records:
        record_host(action, address, size)


cdef inline int hand_out(PinnedPool* pool, PinnedBlock* block, size_t size) noexcept nogil:
    # Of a free block that suffices; without room for a record it stays free.
    if map_reserve(&pool.live):
        return NO_HOST_MEMORY
    remove(pool, block)
    if block.size > size and split_off(pool, block, size):
        insert(pool, block)
        return NO_HOST_MEMORY
    block.state = LIVE
    map_insert(&pool.live, block.address, block)
    count_held(pool, BLOCKS, 1, block.size)
    note_host(ALLOCATED, block.address, block.size)
    return 0


cdef inline void count_freed(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    map_remove(&pool.live, block.address)
    count_held(pool, BLOCKS, -1, -<long long>block.size)
    if block.state == LIVE:  # else it was asked for before
        note_host(FREE_REQUESTED, block.address, block.size)
    note_host(FREE_COMPLETED, block.address, block.size)

# The cache of page-locked host memory: the public nogil face of allocator/pinned/.  Addresses are what
# allocate_pinned wrote; 0 stands for no memory.  A function answers a status code.
#
# A thread's allocations come from the pool that it has entered, else from a common one: that of the NUMA node nearest to the
# device, where there are several nodes.  Memory goes back where it came from.

# Allocates size bytes, page-locked, for every device; a multiple of 64, of 4096 above 1 MiB, 0 for size 0.  A miss takes
# more from the driver of the calling thread's current device.
cdef int allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil
cdef int allocate_pinned_on(int device, size_t size, uintptr_t* out_address) noexcept nogil  # of that device's driver
# For what copies alone use: several times as fast where it is new, and no memory of a child of a fork.
cdef int allocate_unshared(int device, size_t size, uintptr_t* out_address) noexcept nogil
cdef int release_pinned(uintptr_t address) noexcept nogil  # NOT_ALLOCATED where it is not live
# The same for callers that hold the GIL: no driver call; NOT_READY where the full one has to be called without it.
cdef int try_allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil
cdef int try_release_pinned(uintptr_t address) noexcept nogil

# Memory of a file, which other processes may map too: whole segments, kept in no cache.  share_pinned makes one of so many
# bytes, at least 1; adopt_pinned takes another process's, whose file stays the caller's, and whose size is answered.
# INVALID_VALUE: it is no such file.
cdef int share_pinned(int device, size_t size, uintptr_t* out_address) noexcept nogil
cdef int adopt_pinned(int device, int file, size_t* out_size, uintptr_t* out_address) noexcept nogil
cdef int pinned_file(uintptr_t address) noexcept nogil  # a descriptor, which the caller closes; NO_FILE where it has none

# Work on the stream uses the memory that contains the address: once released, it is not handed out before that
# work is done.  NOT_ALLOCATED where no live memory of the cache contains it.
cdef int use_pinned_on(uintptr_t address, int device, uintptr_t stream) noexcept nogil
cdef bint is_cached_pinned(uintptr_t address) noexcept nogil  # whether live memory of the cache contains it
# The addresses of the live block that contains it.
cdef bint pinned_around(uintptr_t address, uintptr_t* out_low, uintptr_t* out_high) noexcept nogil
cdef int empty_pinned() noexcept nogil  # waits for what is pending, then gives idle segments back
# After the end of a capture, while its streams live; and before a stream is destroyed that others own
# (allocator/pool.pxd).
cdef void record_deferred_pinned() noexcept nogil
cdef void forget_stream_pinned(int device, uintptr_t stream, uintptr_t heir) noexcept nogil
# Pools of the user's own.  One is held until it was dropped as often as it was made or held; dropped for good, it goes once
# its memory did, and the pointer may serve another.  NULL: there is no room for one.
cdef PinnedPool* make_pinned_pool(size_t limit, int node) noexcept nogil
cdef void hold_pinned_pool(PinnedPool* pool) noexcept nogil
cdef int drop_pinned_pool(PinnedPool* pool) noexcept nogil  # at the last one gives its idle memory back
cdef PinnedPool* enter_pinned_pool(PinnedPool* pool) noexcept nogil  # of the calling thread; the one before, or NULL
cdef int empty_pinned_pool(PinnedPool* pool) noexcept nogil
cdef PinnedStats read_pinned_pool(PinnedPool* pool) noexcept nogil
cdef size_t pinned_limit_here() noexcept nogil  # of the pool that the calling thread has entered; SIZE_MAX: none
cdef PinnedStats read_pinned_node(int node) noexcept nogil  # of the common memory of a node

cdef int tidy_pinned() noexcept nogil   # what had to wait for the end of a capture; never waits for work in use

cdef PinnedPool* pinned_pool(long number) noexcept nogil  # by number, from 0 on, the first pool; NULL: there are no more
cdef PinnedStats read_pinned_stats() noexcept nogil
