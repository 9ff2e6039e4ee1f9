# The fast path: an allocation or a free that needs one heap alone, under the heap's lock.  An operation that needs more
# answers NOT_READY, and the caller takes the slow path.
#
# The last-freed cache holds a block that is freed and allocated by turns while nothing else happens in its heap.  The
# first round takes the usual way, which proves that the block is the best fit for its size and that neither of its two
# states passes a limit.  Later rounds only change the block's state.  Lists and statistics stay as with the block live;
# flush_cached() brings them up to date before any other operation or reader uses the heap.
from libc.stdint cimport int64_t, uintptr_t

from accelrt.allocator.inline.block_map cimport block_in, has_place
from accelrt.allocator.inline.block_ops cimport (
    Change, join_freed, joined_size, keeps_rest, make_live, of_freeing, of_taking, split_off,
)
from accelrt.allocator.inline.free_list cimport best_fit, insert, remove
from accelrt.allocator.inline.heap_stats cimport (
    add_cached_rounds, add_given, add_taken, pass_all_headroom, raise_limits, take_back_given, take_back_taken,
)
from accelrt.allocator.sizes cimport UNIT, kind_of
from accelrt.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, ASKED, BLOCKS, BOTH, BYTES, COUNTS, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, REQUESTED_BYTES, SPLITS, SPLIT_BYTES, HeapStats,
)
from accelrt.allocator.types cimport CACHED, LIVE, PLAIN, STITCHED, Block, Heap, Pool
from accelrt.core.locks cimport WITHOUT_GIL, raise_in_turn, spin_briefly, spin_try, spin_unlock
from accelrt.status cimport NOT_READY

cdef enum:
    MOST_LENDERS = 64     # heaps that a thread asks for headroom before it enters the exclusive section
    MOST_BLOCKS = 64      # the most by which the peaks of blocks rise for a heap without a GIL
    MOST_BYTES = 2 << 20  # the same for bytes

cdef extern from *:
    """
    /* For exits that are rare: so the compiler keeps what lies behind them out of the fast path's code and stack frame. */
    #if defined(__GNUC__) && __GNUC__ >= 9
    #define rarely(condition) __builtin_expect_with_probability(!!(condition), 0, 1.0)
    #else
    #define rarely(condition) (condition)
    #endif
    """
    bint rarely(bint condition) noexcept nogil


cdef inline bint allocate_cached(Heap* heap, size_t size, size_t requested, uintptr_t* out_address) noexcept nogil:
    # Allocates from the last-freed cache; False if it has no freed block of exactly this size and request.
    # Under the heap's lock.
    cdef Block* block = heap.cached
    if block == NULL or block.state != CACHED or block.size != size or block.requested != requested:
        return False
    block.state = LIVE
    heap.cached_rounds += 1
    out_address[0] = block.address
    return True


cdef inline bint free_cached(Heap* heap, uintptr_t address) noexcept nogil:
    # Frees to the last-freed cache; False if the address is not that of the cached block, live and unshared.  Under the
    # heap's lock.
    cdef Block* block = heap.cached
    if block == NULL or block.address != address or block.state != LIVE or block.uses != NULL:
        return False
    block.state = CACHED
    return True


# The usual way remembers the block that was freed last: if the next operation allocates it again, the block is cached.
# Under the heap's lock.

cdef inline void note_freed(Heap* heap, const Block* block, const Block* joined, size_t size) noexcept nogil:
    heap.freed_last = joined if joined == block else NULL
    heap.freed_last_size = size


cdef inline void note_allocated(Heap* heap, Block* block, size_t size) noexcept nogil:
    if block == heap.freed_last and size == heap.freed_last_size:
        heap.cached = block
        heap.cached_rounds = 0
    heap.freed_last = NULL


cdef inline void free_counted(Heap* heap, Block* block) noexcept nogil:
    # Merges a block that is counted as freed, and inserts the result into its free list.  Under the heap's lock.
    cdef size_t size = block.size
    cdef Block* joined = join_freed(heap, block)
    insert(heap, joined)
    note_freed(heap, block, joined, size)


cdef inline void flush_cached(Heap* heap) noexcept nogil:
    # Empties the cache: counts its rounds, and merges the block if it is freed.  Under the heap's lock.  No limit can be
    # passed: the first round had both states within the limits, and limits fall only in the exclusive section, which
    # flushes the cache first.
    cdef Block* block = heap.cached
    cdef Change change
    heap.cached = NULL
    heap.freed_last = NULL
    if block == NULL:
        return
    change = of_freeing(block)
    add_cached_rounds(heap, block, heap.cached_rounds, change)
    if block.state == CACHED:
        block.state = LIVE
        add_given(heap, block.kind, block.size, block.requested, block.segment.kind, change)
        free_counted(heap, block)


# Headroom of other heaps (stats.pxd).  A heap's lock keeps every thread out of the exclusive section, so no other heap is
# put to sleep or wakes meanwhile, but for those that a thread which is leaving the section still holds.  Others' locks are
# waited for as long as a hit holds one, and only tried once that was too short: another thread enters the section, or
# gathers from this heap.
#
# Without a GIL threads that allocate side by side would pass each other headroom all the time, and with it some ten cache
# lines: the sum of what each heap ever had at most is more than what all have at once.  Where a thread finds another one at
# work in a heap, the peaks rise instead by what its own lacks, up to a bound (Heap.excess).

cdef extern from *:
    """
    static __thread void *accelrt_gathered_for __attribute__((unused));
    """
    Heap* load_lender "accelrt_load_pointer" (Heap** place) noexcept nogil
    void* gathered_for "accelrt_gathered_for"  # the calling thread's last heap that lacked headroom, of any pool; or NULL


cdef inline int64_t lacking(const Heap* heap, int kind, int count) noexcept nogil:
    # Of the kind or of BOTH; bytes of blocks in whole units, as peaks have them.
    cdef int64_t lack = max(-min(heap.stats[kind].headroom[count], heap.stats[BOTH].headroom[count]), <int64_t>0)
    return (lack + UNIT - 1) // UNIT * UNIT if count == BYTES or count == SPLIT_BYTES else lack


cdef inline int64_t* peak_at(Pool* pool, int stat, int kind) noexcept nogil:
    return &pool.stats.peak_all[stat] if kind == BOTH else &pool.stats.counters[stat][kind].peak


cdef inline void raise_peak(
    Pool* pool, Heap* heap, int kind, int count, int plain, int active, int64_t amount,
) noexcept nogil:
    # With the heap's limit.  Heaps' locks guard the peaks against readers, but not against hits in other heaps.
    cdef HeapStats* stats = &heap.stats[kind]
    stats.headroom[count] += amount
    stats.count_limit[count] += amount
    stats.limit[plain] += amount
    raise_in_turn(peak_at(pool, plain, kind), amount)
    if active != plain:
        stats.limit[active] += amount
        raise_in_turn(peak_at(pool, active, kind), amount)


cdef inline void raise_both(Pool* pool, Heap* heap, int kind, int count, int plain, int active) noexcept nogil:
    # By what the heap lacks of a count, for the kind and for BOTH: so the peak of both is neither below one kind's nor
    # above their sum.
    cdef int64_t amount = lacking(heap, kind, count)
    if amount:
        heap.excess[kind][count] += amount
        raise_peak(pool, heap, kind, count, plain, active, amount)
        raise_peak(pool, heap, BOTH, count, plain, active, amount)


cdef inline bint raises_peaks(Pool* pool, Heap* heap, int kind, int split_kind) noexcept nogil:
    # Whether the peaks rose by what the heap lacks; not where they rose by more than the bound for its sake.
    cdef int count, each
    for count in range(COUNTS):
        each = split_kind if count == SPLITS or count == SPLIT_BYTES else kind
        if heap.excess[each][count] + lacking(heap, each, count) > (
            MOST_BLOCKS if count == BLOCKS or count == SPLITS else MOST_BYTES
        ):
            return False
    raise_both(pool, heap, kind, BLOCKS, ALLOCATION, ACTIVE)
    raise_both(pool, heap, kind, BYTES, ALLOCATED_BYTES, ACTIVE_BYTES)
    raise_both(pool, heap, kind, ASKED, REQUESTED_BYTES, REQUESTED_BYTES)
    raise_both(pool, heap, split_kind, SPLITS, INACTIVE_SPLIT, INACTIVE_SPLIT)
    raise_both(pool, heap, split_kind, SPLIT_BYTES, INACTIVE_SPLIT_BYTES, INACTIVE_SPLIT_BYTES)
    return True


cdef inline bint gather_from(
    Pool* pool, Heap* other, Heap* heap, int kind, int split_kind, bint* waits,
) noexcept nogil:
    # Whether the heap is within its limits afterwards.  The other's cached block has to be within them in both states.
    cdef bint suffices
    if other == heap:
        return False
    if not spin_try(&other.lock):
        if WITHOUT_GIL and raises_peaks(pool, heap, kind, split_kind):
            return True
        waits[0] = waits[0] and spin_briefly(&other.lock)
        if not waits[0]:
            return False
    suffices = False
    if other.awake:
        if other.cached != NULL:
            flush_cached(other)
        other.seen -= other.stats[BOTH].headroom[BLOCKS]
        suffices = pass_all_headroom(other, heap)
        other.seen += other.stats[BOTH].headroom[BLOCKS]
    spin_unlock(&other.lock)
    return suffices


cdef inline bint gather_headroom(Pool* pool, Heap* heap, int kind, int split_kind) noexcept nogil:
    # Takes what a heap that counts too much lacks from others that are awake; whether they have enough.  First from the one
    # that the thread gathered for last: work that goes from stream to stream takes it along.  Then from those behind the
    # heap, so that threads side by side do not all ask the same ones.  kind is the block's, split_kind its segment's.
    global gathered_for
    cdef Heap* other = <Heap*>gathered_for
    cdef bint waits = True
    cdef bint suffices = (other != NULL and other.settings == heap.settings
                          and gather_from(pool, other, heap, kind, split_kind, &waits))
    cdef int steps = MOST_LENDERS
    other = heap
    while not suffices and steps:
        other = load_lender(&other.next_awake)
        if other == NULL:
            other = load_lender(&pool.awake)
        if other == heap:
            break
        suffices = gather_from(pool, other, heap, kind, split_kind, &waits)
        steps -= 1
    if suffices:
        gathered_for = heap
    return suffices


cdef inline int take(Pool* pool, Heap* heap, size_t size, size_t requested, uintptr_t* out_address) noexcept nogil:
    # Allocates size bytes by the best fit; 0 or NOT_READY.  Under the heap's lock.
    cdef Block* block
    cdef Change change
    cdef bint splits
    cdef int kind = kind_of(size)
    if not heap.fast:
        return NOT_READY
    if heap.cached != NULL:
        flush_cached(heap)
    block = best_fit(heap, size) if heap.summary else NULL
    if block == NULL or block.size >= heap.settings.max_split:
        return NOT_READY
    if heap.spare == NULL or not has_place(heap):
        return NOT_READY
    splits = keeps_rest(block, size)
    change = of_taking(block, size, splits)
    if not splits:
        size = block.size
    if rarely(add_taken(heap, kind, size, requested, block.segment.kind, change)):
        if heap.sole:
            raise_limits(heap)
        elif not gather_headroom(pool, heap, kind, block.segment.kind):
            take_back_taken(heap, kind, size, requested, block.segment.kind, change)
            return NOT_READY
    remove(heap, block)
    if splits:
        split_off(heap, block, size)
        insert(heap, block.after)
    make_live(block, requested, kind)
    note_allocated(heap, block, size)
    out_address[0] = block.address
    return 0


cdef inline int put(Pool* pool, Heap* heap, uintptr_t address) noexcept nogil:
    # Frees a block by merging it; 0 or NOT_READY.  Under the heap's lock.  The map of a sleeping heap must not be read: the
    # exclusive section, which may change it, does not lock the heap.
    cdef Block* block
    cdef Change change
    if not heap.fast:
        return NOT_READY
    block = block_in(heap, address)
    if block == NULL or block.state != LIVE or block.uses != NULL:
        return NOT_READY
    if block.size >= heap.settings.max_split:  # also counted as oversize, in the slow path
        return NOT_READY
    if heap.cached != NULL:
        flush_cached(heap)
    if block.segment.shape == STITCHED and joined_size(block) >= block.segment.least_slot:  # pages may have to be returned
        return NOT_READY
    change = of_freeing(block)
    if rarely(add_given(heap, block.kind, block.size, block.requested, block.segment.kind, change)):
        if heap.sole:
            raise_limits(heap)
        elif not gather_headroom(pool, heap, block.kind, block.segment.kind):
            take_back_given(heap, block.kind, block.size, block.requested, block.segment.kind, change)
            return NOT_READY
    if block.segment.shape == PLAIN:
        block.segment.idle_since = pool.allocations
    elif block.segment.shape == STITCHED:
        block.segment.used = heap.epoch
    free_counted(heap, block)
    return 0
