# The records of blocks and heaps, which heaps and pools recycle; and what the allocator knows of a heap's stream.
# In the exclusive section, but for lookup_heap and what says otherwise.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.allocator.inline.block_map cimport block_in
from accelrt.allocator.private.private_types cimport PrivatePool, Replay
from accelrt.allocator.stats cimport Counter
from accelrt.allocator.types cimport HEAP_SLOTS, MAX_PROBES, Block, Heap, Pool, Segment

cdef extern from *:
    """
    #define load_heap(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_heap(place, heap) __atomic_store_n(place, heap, __ATOMIC_RELEASE)
    """
    # For a pool's list of heaps and its heap table, which are also read without a lock.  Only threads in the exclusive
    # section write them, so there a plain read suffices.
    Heap* load_heap(Heap** place) noexcept nogil
    void store_heap(Heap** place, Heap* heap) noexcept nogil

cdef void* take_lines(size_t size) noexcept nogil  # zeros that share no cache line with other memory; NULL: no host memory
cdef int ensure_blocks(Heap* heap, size_t wanted) noexcept nogil  # so many spare records; 0 or NO_HOST_MEMORY
cdef Block* append_hole(Segment* segment, size_t size) noexcept nogil  # after its last block; uses a spare record
cdef int heap_of(Pool* pool, PrivatePool* owner, uintptr_t stream, int kind, Heap** out_heap) noexcept nogil  # or makes it


cdef inline int hash_stream(uintptr_t stream) noexcept nogil:
    # A stream's hash value in the heap table.  Handles are addresses or small numbers.
    return <int>((stream ^ (stream >> 6) ^ (stream >> 12)) & (HEAP_SLOTS - 1))


cdef inline Heap* lookup_heap(Heap** places, uintptr_t stream) noexcept nogil:
    # A stream's common heap in one half of the heap table (places), or NULL if it is not there: the slow path may still
    # find it.  Usually one probe.  Any thread, without a lock.
    cdef Heap** place = places + hash_stream(stream)
    cdef Heap* heap = load_heap(place)
    cdef int step
    if heap.stream == stream:
        return heap
    for step in range(1, MAX_PROBES):
        heap = load_heap(place + step)
        if heap.stream == stream:
            return heap
    return NULL


cdef inline uintptr_t gone() noexcept nogil:
    # The stream of heaps without a stream: no driver has this handle.
    return ~<uintptr_t>0


# --- a heap's stream --------------------------------------------------------------------------------------

# Streams that live as long as the process: those of the stream pool, and the legacy default stream.  The owner of another
# stream may destroy it, so the allocator never queries one to learn how far its work is.  Any thread may call these,
# with or without other locks.
cdef int trust_stream(uintptr_t stream) noexcept nogil
cdef bint is_trusted(uintptr_t stream) noexcept nogil


# Memory on the per-thread default stream, whose one handle is another stream on every thread.
#
# It belongs to the heap of the legacy default stream, which is ordered after all earlier work of the threads' streams,
# as their later work is after its.  A use by a thread's stream is recorded as one by the legacy stream, also where the
# block belongs to that: two threads' streams are not ordered by themselves, so an event on the legacy stream has to say
# when the block is free.

cdef enum:
    LEGACY = 0
    PER_THREAD = 2  # CU_STREAM_PER_THREAD


cdef inline uintptr_t heap_stream(uintptr_t stream) noexcept nogil:
    return LEGACY if stream == PER_THREAD else stream


# Sleeping heaps, filed by whether they have free pages, so that a search opens only heaps that have some.  In the exclusive
# section, or under the pool's mutex alone, which suffices for sleeping heaps.
cdef enum:  # Heap.filed
    NOWHERE = 0     # awake, or without free pages for other heaps
    BUSY = 1        # in a list: some free blocks are not quiescent, and its stream may be queried
    UNSEARCHED = 2  # in a list: the next search marks its free pages
    RANKED = 3      # its free pages are marked and stay so; in the tree if there are any

cdef bint has_pages(const Pool* pool, const Heap* heap) noexcept nogil  # a free block of at least a granule
cdef void file_heap(Pool* pool, Heap* heap) noexcept nogil  # files it anew, after any change of its free lists
cdef void file_heaps(Pool* pool, PrivatePool* owner) noexcept nogil  # the sleeping heaps of a private pool
cdef void rank(Pool* pool, Heap* heap) noexcept nogil  # from UNSEARCHED; Heap.pages, stuck and top_* are set
cdef Heap* first_ranked(const Pool* pool) noexcept nogil  # its largest block comes first; NULL: none


cdef inline bint serves_others(const Heap* heap) noexcept nogil:
    # Whether every common heap may take its quiescent pages.  Those of a suspended pool have no memory.
    return heap.owner == NULL or (heap.owner.uses == 0 and heap.owner.rest == 2 and heap.owner.suspension == NULL)


# Private pools: the heaps that captures and threads allocate from.  A route says that the allocations of one capture, or
# of one thread inside use_mem_pool, go to a private pool.  Under the pool's mutex, except where a comment says otherwise.
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


# The exclusive section: the pool's mutex and the locks of all heaps that are awake.  Everything runs in it but the fast
# path, routes (which send the allocations of a capture or thread to a private pool) and the reading of one statistic.
# It is left for calls of the driver that wait or may take long, and other threads' fast paths run meanwhile.  Order of
# locks: growth, lock, the heaps in the order of Pool.awake.
cdef void lock_all(Pool* pool) noexcept nogil
cdef void unlock_all(Pool* pool, Heap* requester) noexcept nogil  # requester: the heap that gets most headroom; or NULL
# The same locks for a reader: no cache is flushed and no limit changes, so the next hit finds what it
# would have found.
cdef void lock_to_read(Pool* pool) noexcept nogil
cdef bint try_lock_to_read(Pool* pool) noexcept nogil  # False if another thread holds the pool's mutex
cdef void unlock_after_read(Pool* pool) noexcept nogil
# In the exclusive section: locks a sleeping heap, for the fast path to use from the next unlock_all on.
cdef void wake(Pool* pool, Heap* heap) noexcept nogil
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
# A block in no free list, whole.  The caller has ensured a place in the heap's map.
cdef void hand_out_unlisted(Pool* pool, Block* block, size_t requested, int kind) noexcept nogil
cdef void hand_over(Pool* pool, Block* block, size_t requested) noexcept nogil  # makes a PENDING block LIVE, whole
cdef void count_freed(Pool* pool, Block* block) noexcept nogil  # counts a block as no longer LIVE
cdef Block* set_free(Pool* pool, Block* block) noexcept nogil  # makes a LIVE or PENDING block FREE; the merged block
cdef void put_free(Pool* pool, Block* block) noexcept nogil  # merges a block in no list, and inserts it into its list
cdef void take_free(Pool* pool, Block* block) noexcept nogil  # removes a free block from its list


# The address table: from an address to the block that begins there, in two steps.  A table of two levels, indexed by bits
# 34-49 and 21-33 of the address, has a place for each 2 MiB: the heap that the addresses belong to.  The heap's map of live
# blocks (Heap.blocks) has the block.  Places are read without a lock, so the answer may be stale: then the block is not in
# that heap's map, and the caller looks it up again in the exclusive section.  A map is read and written under its heap's
# lock.  So the memory that a lookup reads grows with the live blocks, not with the addresses.  Tables are never freed.
cdef extern from *:
    """
    #define load_place(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_place(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    """
    Heap* load_heap_at "load_place"(Heap** place) noexcept nogil
    void store_heap_at "store_place"(Heap** place, Heap* heap) noexcept nogil
    Heap** load_region "load_place"(Heap*** place) noexcept nogil
    void store_region "store_place"(Heap*** place, Heap** region) noexcept nogil
    uintptr_t load_border "load_place"(const uintptr_t* place) noexcept nogil
    void store_border "store_place"(uintptr_t* place, uintptr_t border) noexcept nogil

cdef enum:
    REGIONS = 1 << 16  # of 16 GiB each
    PLACES = 1 << 13   # in a region, of 2 MiB each
    PLACE = 1 << 21    # bytes of addresses

# Two heaps that share a place, since plain segments need not begin at a multiple of 2 MiB.  The place has its address plus
# one.  Never freed.
cdef struct Border:
    uintptr_t border  # the first address of the upper heap
    Heap* lower
    Heap* upper

cdef Heap** regions[REGIONS]

# Enters the addresses of one of the heap's segments, or of a part of one, at least 2 MiB, before blocks there are handed
# out.  0 or NO_HOST_MEMORY.  In the exclusive section.
cdef int claim_addresses(Heap* heap, uintptr_t address, size_t size) noexcept nogil


cdef inline Heap* heap_beside(const Border* shared, uintptr_t address) noexcept nogil:
    if address >= load_border(&shared.border):
        return load_heap_at(<Heap**>&shared.upper)
    return load_heap_at(<Heap**>&shared.lower)


cdef inline Heap* heap_at(uintptr_t address) noexcept nogil:
    # The heap that the address belongs to, or belonged to last; NULL: it never belonged to one.  Any thread, without a lock.
    cdef Heap** region
    cdef Heap* heap
    if address >> 50:
        return NULL
    region = load_region(&regions[address >> 34])
    if region == NULL:
        return NULL
    heap = load_heap_at(&region[(address >> 21) & (PLACES - 1)])
    if <uintptr_t>heap & 1:
        return heap_beside(<const Border*>(<uintptr_t>heap - 1), address)
    return heap


cdef inline Block* block_at(const Pool* pool, uintptr_t address) noexcept nogil:
    # The live, cached or pending block of the pool that begins at the address, or NULL.  In the exclusive section.
    cdef Heap* heap = heap_at(address)
    if heap == NULL or heap.settings != &pool.settings:
        return NULL
    return block_in(heap, address)
