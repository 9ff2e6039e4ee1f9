"""Heaps, segments and blocks: their records, the way from an address to its block, and the exclusive section."""
from libc.stdint cimport SIZE_MAX, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.allocator.event_ring cimport record_allocation, record_free_completed, record_free_requested
from accelrt.allocator.inline.block_ops cimport (
    Change, is_heap_quiescent, is_split, join, join_freed, make_live, of_freeing, of_taking, recycle, split_off,
)
from accelrt.allocator.inline.fast_path cimport flush_cached
from accelrt.allocator.inline.free_list cimport class_of, insert, next_class, remove
from accelrt.allocator.inline.heap_stats cimport (
    add_stat, count_of, cumulative, current, is_over_limit, is_over_split_limit, lower_limits, pass_all_headroom,
    update_headroom,
    use_split_headroom,
)
from accelrt.allocator.pool_settings cimport store_routed
from accelrt.allocator.private.private_types cimport Route
from accelrt.allocator.sizes cimport UNIT, kind_of
from accelrt.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, ASKED, BLOCKS, BOTH, BYTES, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, PER_HEAP, REQUESTED_BYTES, RESERVED_BYTES, SEGMENT, SPLIT_BYTES, SPLITS, STATS, change,
    Counter, current_of, HeapStats,
)
from accelrt.allocator.types cimport HOLE, LIVE, MAX_PROBES, Heap
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.guard cimport go_relaxed, restore_mode, unmark
from accelrt.driver.table cimport CAPTURE_ACTIVE
from accelrt.status cimport CAPTURE_IMPLICIT, INVALID_VALUE, NO_HOST_MEMORY


# --- metadata ---------------------------------------------------------------------------------------------------------
# The records of blocks and heaps: allocated in slabs, recycled, and never freed before the process ends.
#
# Records are small beside what they describe: 128 bytes for a block of at least 512.  A block's record stays with its heap,
# so that a hit takes and recycles records under its heap's lock alone.

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>
    static void* accelrt_fresh(size_t size) {
        void* start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) return NULL;
        madvise(start, size, MADV_NOHUGEPAGE);  /* which would be written to whole */
        return start;
    }
    """
    int posix_memalign(void** out, size_t alignment, size_t size) nogil
    # Whole pages of zeros, which cost nothing before they are written to, for records that mostly stay empty and are never
    # given back; calloc may answer with memory that was used before, which it then writes to from end to end.
    void* take_fresh "accelrt_fresh" (size_t size) noexcept nogil  # NULL where the host has none

cdef enum:
    SLAB = 64     # records of blocks that are allocated together
    LINE = 128    # two cache lines: records that different threads use share none
    HEAPS = 16    # records of heaps that are allocated together


cdef void* take_lines(size_t size) noexcept nogil:
    cdef void* lines = NULL
    if posix_memalign(&lines, LINE, (size + LINE - 1) // LINE * LINE):
        return NULL
    return memset(lines, 0, size)


cdef uint32_t next_weight(Heap* heap) noexcept nogil:
    # xorshift32 (Marsaglia, 2003): the treaps only need weights without a pattern.
    heap.seed ^= heap.seed << 13
    heap.seed ^= heap.seed >> 17
    heap.seed ^= heap.seed << 5
    return heap.seed


cdef int ensure_blocks(Heap* heap, size_t wanted) noexcept nogil:
    # Allocates records until the heap has so many spare ones.
    cdef Block* block = heap.spare
    cdef Block* slab
    cdef int index
    while block != NULL and wanted:
        block = block.left
        wanted -= 1
    while wanted:
        slab = <Block*>take_lines(SLAB * sizeof(Block))
        if slab == NULL:
            return NO_HOST_MEMORY
        for index in range(SLAB):
            slab[index].weight = next_weight(heap)
            slab[index].heap = heap
            recycle(heap, &slab[index])
        wanted -= min(wanted, <size_t>SLAB)
    return 0


cdef Block* append_hole(Segment* segment, size_t size) noexcept nogil:
    # The caller has ensured a spare record.
    cdef Heap* heap = segment.heap
    cdef Block* block = heap.spare
    heap.spare = block.left
    block.before = segment.last
    block.after = NULL
    if segment.last == NULL:
        segment.first = block
        block.address = segment.address
    else:
        segment.last.after = block
        block.address = segment.last.address + segment.last.size
    segment.last = block
    block.size = size
    block.order = (segment.serial << 32) + (block.address - segment.address) // UNIT
    block.segment = segment
    block.state = HOLE
    block.requested = 0
    block.epoch = heap.epoch
    return block


cdef Heap* take_heap(Pool* pool) noexcept nogil:
    # A zeroed record, of several that are allocated together: most of it is free lists that stay empty, and take_fresh
    # takes no memory for host pages that are not written to.  NULL: no host memory.
    cdef size_t size = (sizeof(Heap) + LINE - 1) // LINE * LINE
    if pool.unused_heaps == 0:
        pool.heap_slab = <char*>take_fresh(HEAPS * size)
        if pool.heap_slab == NULL:
            return NULL
        pool.unused_heaps = HEAPS
    pool.unused_heaps -= 1
    return <Heap*>(pool.heap_slab + pool.unused_heaps * size)


cdef Heap* make_heap(Pool* pool) noexcept nogil:
    # A heap without stream and index: the record of a heap whose private pool is gone, or a new one, which is then awake
    # and locked like all others in the exclusive section.  NULL: no host memory.
    cdef Heap* heap = pool.spare_heaps
    if heap != NULL:
        pool.spare_heaps = heap.sibling
        heap.sibling = NULL
        return heap
    heap = take_heap(pool)
    if heap == NULL:
        return NULL
    heap.settings = &pool.settings
    heap.seed = 0x2545F491
    spin_lock(&heap.lock)
    link_awake(pool, heap)
    store_heap(&pool.heaps if pool.last_heap == NULL else &pool.last_heap.next, heap)
    pool.last_heap = heap
    pool.heap_count += 1
    return heap


cdef uintptr_t heap_key(const PrivatePool* owner, uintptr_t stream, int kind) noexcept nogil:
    # Different heaps may have the same key; they are chained by same_key.
    return stream ^ <uintptr_t>owner * 0xC2B2AE3D27D4EB4FULL ^ <uintptr_t>kind << 62


cdef Heap* find_heap(const Pool* pool, const PrivatePool* owner, uintptr_t stream, int kind) noexcept nogil:
    # Or NULL.
    cdef Heap* heap = <Heap*>map_find(&pool.heap_index, heap_key(owner, stream, kind))
    while heap != NULL and (heap.stream != stream or heap.owner != owner or heap.kind != kind):
        heap = heap.same_key
    return heap


cdef void index_heap(Pool* pool, Heap* heap) noexcept nogil:
    # Adds a heap to the index and to its private pool.  The caller has called map_reserve.
    cdef uintptr_t key = heap_key(heap.owner, heap.stream, heap.kind)
    heap.same_key = <Heap*>map_remove(&pool.heap_index, key)
    map_insert(&pool.heap_index, key, heap)
    if heap.owner != NULL:
        heap.sibling = <Heap*>heap.owner.heaps
        heap.owner.heaps = heap


cdef void retire_heap(Pool* pool, Heap* heap) noexcept nogil:
    # Its private pool is gone: a later heap reuses it.
    # Removes a heap from the index and keeps its record for the next one.
    cdef uintptr_t key = heap_key(heap.owner, heap.stream, heap.kind)
    cdef Heap* first = <Heap*>map_remove(&pool.heap_index, key)
    cdef Heap** link = &first
    while link[0] != heap:
        link = &link[0].same_key
    link[0] = heap.same_key
    if first != NULL:
        map_insert(&pool.heap_index, key, first)
    heap.owner = NULL
    heap.stream = gone()
    heap.trusted = False
    heap.sibling = pool.spare_heaps
    pool.spare_heaps = heap


cdef void bring_near(Pool* pool, Heap* heap) noexcept nogil:
    # Puts a common heap into the heap table, in the first free entry of its probes.  If all are taken it replaces the heap
    # in the first, which only the slow path finds from then on.
    cdef Heap** entry = &pool.heap_table[heap.kind][hash_stream(heap.stream)]
    cdef int step
    for step in range(MAX_PROBES):
        if entry[step] == heap:
            return
        if entry[step].stream == gone():
            store_heap(entry + step, heap)
            return
    store_heap(entry, heap)


cdef int heap_of(Pool* pool, PrivatePool* owner, uintptr_t stream, int kind, Heap** out_heap) noexcept nogil:
    # Finds or makes a heap, and puts a common one into the heap table.
    cdef Heap* heap = find_heap(pool, owner, stream, kind)
    if heap == NULL:
        heap = NULL if map_reserve(&pool.heap_index) else make_heap(pool)
        if heap == NULL:
            return NO_HOST_MEMORY
        heap.stream = stream
        heap.owner = owner
        heap.kind = kind
        index_heap(pool, heap)
        heap.trusted = is_trusted(stream)
        heap.epoch = heap.quiescent_epoch + 1
        heap.waited = heap.quiescent_epoch
    if owner == NULL:
        bring_near(pool, heap)
    out_heap[0] = heap
    return 0


# --- streams that live as long as the process, so that the allocator may query them at any time --------------

cdef AddressMap trusted  # under the lock below.  A forked child inherits it: harmless, as its handles are others
cdef int trusting = 0  # the spin lock of the map; no lock is taken under it


cdef int trust_stream(uintptr_t stream) noexcept nogil:
    # Adds a stream once; 0 or NO_HOST_MEMORY.
    cdef int code = 0
    spin_lock(&trusting)
    if map_find(&trusted, stream) == NULL:
        code = map_reserve(&trusted)
        if code == 0:
            map_insert(&trusted, stream, &trusted)  # any value but NULL: the map is a set
    spin_unlock(&trusting)
    return code


cdef bint is_trusted(uintptr_t stream) noexcept nogil:
    # 0 and 1 are the legacy default stream; 2, the per-thread default stream, is a different stream on each thread.
    cdef bint trusts
    spin_lock(&trusting)
    trusts = stream < 2 or map_find(&trusted, stream) != NULL
    spin_unlock(&trusting)
    return trusts


# --- free pages -------------------------------------------------------------------------------------------------------
# Sleeping heaps, filed by what a search for free pages has to do with them.
#
# No block of a sleeping heap is allocated or freed, so its free pages stay as the last search marked them.  Once all of
# them are quiescent the heap is ranked, by its largest block that holds pages.  A search takes the sum over ranked heaps
# from the pool, and opens only those from which it takes pages.
#
# Every function here runs in the exclusive section or under the pool's mutex (heaps.pxd).

cdef bint has_pages(const Pool* pool, const Heap* heap) noexcept nogil:
    # Asks the bits of the free lists: no list is walked.
    return next_class(heap, class_of(pool.granule) - 1) >= 0


# --- the tree: a treap, largest weight on top --------------------------------------------------------------------

cdef inline uint32_t weight(const Heap* heap) noexcept nogil:
    return <uint32_t>((<uint64_t><uintptr_t>heap * 0x9E3779B97F4A7C15ULL) >> 32)


cdef inline bint outranks(const Heap* one, const Heap* other) noexcept nogil:
    if one.top_size != other.top_size:
        return one.top_size > other.top_size
    return one.top_order < other.top_order


cdef void hang_in(Heap** link, Heap* heap) noexcept nogil:
    # Inserts a heap into the treap.
    cdef Heap** low = &heap.filed_before
    cdef Heap** high = &heap.filed_after
    cdef Heap* rest
    while link[0] != NULL and weight(link[0]) >= weight(heap):
        link = &link[0].filed_before if outranks(heap, link[0]) else &link[0].filed_after
    rest = link[0]
    link[0] = heap
    while rest != NULL:  # split the subtree into heaps before and heaps after this one
        if outranks(rest, heap):
            low[0] = rest
            low = &rest.filed_after
            rest = rest.filed_after
        else:
            high[0] = rest
            high = &rest.filed_before
            rest = rest.filed_before
    low[0] = high[0] = NULL


cdef void take_out(Heap** link, Heap* heap) noexcept nogil:
    # Removes a heap from the treap.
    cdef Heap* low = heap.filed_before
    cdef Heap* high = heap.filed_after
    while link[0] != heap:
        link = &link[0].filed_before if outranks(heap, link[0]) else &link[0].filed_after
    while low != NULL and high != NULL:  # merge its two subtrees
        if weight(low) >= weight(high):
            link[0] = low
            link = &low.filed_after
            low = low.filed_after
        else:
            link[0] = high
            link = &high.filed_before
            high = high.filed_before
    link[0] = low if low != NULL else high


cdef Heap* first_ranked(const Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.ranked
    while heap != NULL and heap.filed_before != NULL:
        heap = heap.filed_before
    return heap


cdef void rank(Pool* pool, Heap* heap) noexcept nogil:
    unfile(pool, heap)
    heap.filed = RANKED
    pool.ranked_pages += heap.pages
    pool.ranked_stuck += heap.stuck
    if heap.pages:
        hang_in(&pool.ranked, heap)


# --- the lists ---------------------------------------------------------------------------------------------------

cdef void link_heap(Heap** first, Heap* heap) noexcept nogil:
    heap.filed_before = NULL
    heap.filed_after = first[0]
    if first[0] != NULL:
        first[0].filed_before = heap
    first[0] = heap


cdef void unlink_heap(Heap** first, Heap* heap) noexcept nogil:
    if heap.filed_before == NULL:
        first[0] = heap.filed_after
    else:
        heap.filed_before.filed_after = heap.filed_after
    if heap.filed_after != NULL:
        heap.filed_after.filed_before = heap.filed_before


cdef void unfile(Pool* pool, Heap* heap) noexcept nogil:
    # Takes a heap out of its list or tree.
    if heap.filed == BUSY:
        unlink_heap(&pool.busy, heap)
    elif heap.filed == UNSEARCHED:
        unlink_heap(&pool.unsearched, heap)
    elif heap.filed == RANKED:
        pool.ranked_pages -= heap.pages
        pool.ranked_stuck -= heap.stuck
        if heap.pages:
            take_out(&pool.ranked, heap)
    heap.filed = NOWHERE


cdef void file_heap(Pool* pool, Heap* heap) noexcept nogil:
    # NOWHERE if it is awake, has no free pages, or graphs hold its pool.  BUSY only if its stream may be queried.
    unfile(pool, heap)
    if heap.awake or not pool.settings.virtual_memory or not has_pages(pool, heap):
        return
    if heap.owner != NULL and heap.owner.uses > heap.owner.users:  # graphs hold it
        return
    if heap.trusted and not is_heap_quiescent(heap):
        heap.filed = BUSY
        link_heap(&pool.busy, heap)
    elif serves_others(heap):
        heap.filed = UNSEARCHED
        link_heap(&pool.unsearched, heap)


cdef void file_heaps(Pool* pool, PrivatePool* owner) noexcept nogil:
    cdef Heap* heap = <Heap*>owner.heaps
    while heap != NULL:
        if not heap.awake:
            file_heap(pool, heap)
        heap = heap.sibling


# --- private pool -----------------------------------------------------------------------------------------------------
# Private pools: the heaps that captures and threads allocate from, and the routes that lead to them.
#
# The pool's mutex guards their records and lists; heaps.pxd says which functions need more, or no lock.

cdef extern from *:
    """
    /* Numbers of threads, from 1 on, never used again, as the system's are. */
    static uint64_t accelrt_thread_count;
    static __thread uint64_t accelrt_thread;
    static __thread long accelrt_routes;  /* of this thread, into pools of any device */
    static uint64_t accelrt_this_thread(void) {
        if (!accelrt_thread) accelrt_thread = __atomic_add_fetch(&accelrt_thread_count, 1, __ATOMIC_RELAXED);
        return accelrt_thread;
    }
    #define accelrt_routes_here() (accelrt_routes != 0)
    #define accelrt_count_routes(n) (accelrt_routes += (n))
    """
    uint64_t this_thread "accelrt_this_thread" () noexcept nogil
    bint routes_here "accelrt_routes_here" () noexcept nogil
    void count_routes "accelrt_count_routes" (long n) noexcept nogil


cdef uintptr_t private_key(uint64_t first, uint64_t second) noexcept nogil:
    return second ^ first * 0xC2B2AE3D27D4EB4FULL


cdef PrivatePool* find_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    cdef PrivatePool* owner = <PrivatePool*>map_find(&pool.private_index, private_key(first, second))
    while owner != NULL and (owner.id[0] != first or owner.id[1] != second):
        owner = owner.same_key
    return owner


cdef PrivatePool* make_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    # Returns NULL if the host has no memory.
    cdef PrivatePool* owner = NULL if map_reserve(&pool.private_index) else <PrivatePool*>calloc(1, sizeof(PrivatePool))
    if owner == NULL:
        return NULL
    owner.id[0] = first
    owner.id[1] = second
    owner.limit = SIZE_MAX
    owner.rest = 2
    owner.next = pool.privates
    if owner.next != NULL:
        owner.next.before = owner
    pool.privates = owner
    owner.same_key = <PrivatePool*>map_remove(&pool.private_index, private_key(first, second))
    map_insert(&pool.private_index, private_key(first, second), owner)
    return owner


cdef int retain(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil:
    # The first use, and the first by a graph, change which heaps may serve others, so the heaps are filed again.
    cdef PrivatePool* owner = find_private(pool, first, second)
    if owner == NULL:
        owner = make_private(pool, first, second)
        if owner == NULL:
            return NO_HOST_MEMORY
    if owner.uses == 0:
        pool.ended -= owner.reserved
    owner.uses += 1
    owner.users += user
    if not user:
        owner.rest = 0
    if owner.uses == 1 or (not user and owner.uses == owner.users + 1):  # the first, or the first graph
        file_heaps(pool, owner)
    return 0


cdef int release_hold(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil:
    # Returns INVALID_VALUE for a pool that is not retained.  The record stays until its segments are gone, since blocks of a
    # destroyed graph may still be live.  A pool that was never allocated from is freed at once, for programs that
    # capture again and again.
    cdef PrivatePool* owner = find_private(pool, first, second)
    if owner == NULL or owner.uses == 0:
        return INVALID_VALUE
    owner.uses -= 1
    owner.users -= user
    if owner.uses == 0:
        pool.ended += owner.reserved
    if owner.uses == 0 and owner.segments == 0 and owner.heaps == NULL:
        unlink(pool, owner)
        return 0
    if not user and not owner.ending and not has_graphs(owner):
        link_ending(pool, owner)
    if owner.uses == 0 or (not user and not has_graphs(owner)):  # the last, or the last graph
        file_heaps(pool, owner)
    return 0


cdef void link_ending(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Adds a pool to the list of those whose graphs are destroyed while replays may still run.
    owner.ending = True
    owner.before_ending = NULL
    owner.next_ending = pool.ending
    if pool.ending != NULL:
        pool.ending.before_ending = owner
    pool.ending = owner


cdef void unlink_ending(Pool* pool, PrivatePool* owner) noexcept nogil:
    owner.ending = False
    if owner.before_ending == NULL:
        pool.ending = owner.next_ending
    else:
        owner.before_ending.next_ending = owner.next_ending
    if owner.next_ending != NULL:
        owner.next_ending.before_ending = owner.before_ending


cdef void unlink(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Takes the record out of index and lists, and frees it.
    cdef uintptr_t key = private_key(owner.id[0], owner.id[1])
    cdef PrivatePool* first = <PrivatePool*>map_remove(&pool.private_index, key)
    cdef PrivatePool** link = &first
    while link[0] != owner:
        link = &link[0].same_key
    link[0] = owner.same_key
    if first != NULL:
        map_insert(&pool.private_index, key, first)
    if owner.ending:
        unlink_ending(pool, owner)
    if owner.before == NULL:
        pool.privates = owner.next
    else:
        owner.before.next = owner.next
    if owner.next != NULL:
        owner.next.before = owner.before
    forget_replays(pool, owner)
    if owner.suspension != NULL:
        owner.suspension.orphan = True
    free(owner)


cdef PrivatePool* first_ending(Pool* pool) noexcept nogil:
    # Takes pools out of the list whose replays are over, or that a graph uses again.
    cdef PrivatePool* owner = pool.ending
    cdef PrivatePool* after
    while owner != NULL:
        after = owner.next_ending
        if owner.rest == 2 or has_graphs(owner):
            unlink_ending(pool, owner)
        owner = after
    return pool.ending


# --- replays of destroyed graphs -----------------------------------------------------------------------------

cdef bint has_graphs(const PrivatePool* owner) noexcept nogil:
    return owner.uses > owner.users


cdef void note_replay(PrivatePool* owner, uintptr_t stream) noexcept nogil:
    # Keeps one record per stream.  Without host memory for it, or if the stream may be destroyed (not trusted), only a wait
    # for the device shows that the replays are over, and the pool is marked hidden.
    cdef Replay* replay = owner.replays
    while replay != NULL and replay.stream != stream:
        replay = replay.next
    if replay != NULL:
        replay.waited = False
        unmark(&replay.progress_event)
        return
    replay = <Replay*>calloc(1, sizeof(Replay)) if is_trusted(stream) else NULL
    if replay == NULL:
        owner.hidden = True
        return
    replay.stream = stream
    replay.next = owner.replays
    owner.replays = replay


cdef void forget_replays(Pool* pool, PrivatePool* owner) noexcept nogil:
    while owner.replays != NULL:
        drop_replay(pool, &owner.replays)
    owner.hidden = False


cdef void drop_replay(Pool* pool, Replay** link) noexcept nogil:
    cdef Replay* replay = link[0]
    link[0] = replay.next
    unmark(&replay.progress_event)
    free(replay)


# --- routes --------------------------------------------------------------------------------------------------

cdef Route* add_route(Pool* pool, uint64_t first, uint64_t second, int* out_code) noexcept nogil:
    # NULL, with INVALID_VALUE, if there is no such private pool.
    cdef PrivatePool* owner = find_private(pool, first, second)
    cdef Route* route = NULL if owner == NULL else <Route*>calloc(1, sizeof(Route))
    out_code[0] = 0 if route != NULL else INVALID_VALUE if owner == NULL else NO_HOST_MEMORY
    if route != NULL:
        route.owner = owner
        route.next = pool.routes
        pool.routes = route
    return route


cdef int begin_route(Pool* pool, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil:
    # A thread's route disables the fast path for that thread.
    cdef int code
    cdef Route* route = add_route(pool, first, second, &code)
    if code:
        return code
    route.capture = capture
    if capture:
        pool.captures += 1
    else:
        route.thread = this_thread()
        store_routed(&pool.routed, pool.routed + 1)
        count_routes(1)
    return 0


cdef int begin_expected_route(Pool* pool, uint64_t first, uint64_t second, uintptr_t origin) noexcept nogil:
    cdef int code
    cdef Route* route = add_route(pool, first, second, &code)
    if code == 0:
        route.origin = origin
        pool.captures += 1
    return code


cdef int end_expected_route(Pool* pool, const PrivatePool* owner, uintptr_t origin) noexcept nogil:
    # Ends the latest such route, whether its capture began or not.
    cdef Route** link = &pool.routes
    cdef Route* route
    while link[0] != NULL and (link[0].origin != origin or link[0].owner != owner):
        link = &link[0].next
    route = link[0]
    if route == NULL or owner == NULL:
        return INVALID_VALUE
    link[0] = route.next
    pool.captures -= 1
    free(route)
    return 0


cdef int end_route(Pool* pool, const PrivatePool* owner, uint64_t capture, uint64_t thread) noexcept nogil:
    # Ends the latest route of the capture, or of the thread to this pool.  Another thread than the one that began it may
    # end it; the latter's routes are counted too high then, which keeps it from the fast path while any thread has a
    # route.
    cdef Route** link = &pool.routes
    cdef Route* route
    while link[0] != NULL and (link[0].capture != capture or link[0].thread != thread
                               or (capture == 0 and link[0].owner != owner)):
        link = &link[0].next
    route = link[0]
    if route == NULL:
        return INVALID_VALUE
    link[0] = route.next
    if capture:
        pool.captures -= 1
    else:
        store_routed(&pool.routed, pool.routed - 1)
        if thread == this_thread():
            count_routes(-1)
    free(route)
    return 0


cdef bint is_routed() noexcept nogil:
    return routes_here()


cdef uint64_t thread_number() noexcept nogil:
    return this_thread()


cdef int capture_of(Pool* pool, uintptr_t stream, uint64_t* out_capture) noexcept nogil:
    # The id of the stream's capture; 0 if it does not capture.  A query of the legacy stream while a stream that it
    # waits for captures is refused without harm, and means that it does not capture itself.
    cdef uint64_t capture = 0
    cdef int status = 0
    cdef int code = pool.table.capture_status(pool.device, stream, &status, &capture)
    out_capture[0] = capture if code == 0 and status == CAPTURE_ACTIVE else 0
    return 0 if code == CAPTURE_IMPLICIT else code


cdef void learn_capture(Pool* pool, Route* route) noexcept nogil:
    # An expected capture may have begun: its id is the one that its stream has now.
    cdef uint64_t capture = 0
    if route.origin and route.capture == 0 and capture_of(pool, route.origin, &capture) == 0:
        route.capture = capture


cdef int pool_for(Pool* pool, uintptr_t stream, PrivatePool** out_owner) noexcept nogil:
    # The latest route of the calling thread or of the stream's capture decides.  Costs one call of the driver per
    # allocation, and only while captures are under way.
    cdef Route* route = pool.routes
    cdef uint64_t thread = this_thread() if pool.routed else 0
    cdef uint64_t capture = 0
    cdef bint asked = False
    cdef int code
    out_owner[0] = NULL
    while route != NULL:
        if route.thread == 0 and not asked:
            asked = True
            code = capture_of(pool, stream, &capture)
            if code:
                return code
        if route.thread == 0 and capture:
            learn_capture(pool, route)
        if (route.thread and route.thread == thread) or (route.capture and route.capture == capture):
            out_owner[0] = route.owner
            return 0
        route = route.next
    return 0


cdef PrivatePool* entered_pool(const Pool* pool) noexcept nogil:
    cdef Route* route = pool.routes if pool.routed else NULL
    while route != NULL and (route.capture or route.thread != this_thread()):
        route = route.next
    return NULL if route == NULL else route.owner


cdef bint is_captured(const Pool* pool, const PrivatePool* owner) noexcept nogil:
    cdef const Route* route = pool.routes
    while route != NULL and (route.thread or route.owner != owner):
        route = route.next
    return route != NULL


# --- statistics ----------------------------------------------------------------------------------------------

cdef int64_t sum_of(const Pool* pool, const PrivatePool* owner, int stat) noexcept nogil:
    cdef const Heap* heap = <const Heap*>owner.heaps
    cdef int64_t total = 0
    if stat == SEGMENT:
        return owner.segments
    if stat == RESERVED_BYTES:
        return owner.reserved
    while heap != NULL:
        total += current(heap, BOTH, stat)
        heap = heap.sibling
    return total


cdef void note_peaks(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Exact, since the fast path never allocates from private pools: every rise passes here.
    cdef int stat
    for stat in range(PER_HEAP):
        owner.peak[stat] = max(owner.peak[stat], sum_of(pool, owner, stat))


cdef void reset_private_peaks(Pool* pool, PrivatePool* owner) noexcept nogil:
    cdef int stat
    for stat in range(STATS):
        owner.peak[stat] = sum_of(pool, owner, stat)


# --- the end -------------------------------------------------------------------------------------------------

cdef void recycle_heaps(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Their records are kept for the next private pool.
    cdef Heap* heap = <Heap*>owner.heaps
    cdef Heap* after
    while heap != NULL:
        after = heap.sibling
        unmark(&heap.progress_event)
        retire_heap(pool, heap)
        heap = after
    owner.heaps = NULL


cdef void drop_empty(Pool* pool) noexcept nogil:
    # Needs the growth lock, since a thread that grows a private heap releases the exclusive section meanwhile.
    cdef PrivatePool* owner = pool.privates
    cdef PrivatePool* after
    while owner != NULL:
        after = owner.next
        if owner.uses == 0 and owner.segments == 0:
            recycle_heaps(pool, owner)
            unlink(pool, owner)
        owner = after


# --- exclusive --------------------------------------------------------------------------------------------------------
# The exclusive section of a pool, and its counters while a thread is in it.
#
# On entry the heaps' statistics are added up, and the sums are kept up to date in the section, so that peaks are exact.
# On leaving, the distance from the sums to the peaks is distributed over the heaps as headroom: how far the statistics of
# each may rise in the fast path.  Functions without a note of their locks run in the section.

cdef enum:
    MOST_AWAKE = 24  # heaps awake up to which none is put to sleep: each slow call locks and adds up all of them
    ALL_STATS = (1 << 3 * PER_HEAP) - 1  # a bit for each kind's and each of BOTH (stat_bit)
    PATIENCE = 8     # a heap falls asleep after more entries of the exclusive section than this without a hit in it


cdef void lock_all(Pool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)
    lock_heaps(pool, True)


cdef void lock_to_read(Pool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)
    lock_heaps(pool, False)


cdef bint try_lock_to_read(Pool* pool) noexcept nogil:
    if pthread_mutex_trylock(&pool.lock):
        return False
    lock_heaps(pool, False)
    return True


cdef inline void lock_heaps(Pool* pool, bint tidies) noexcept nogil:
    # Locks all heaps that are awake and sums the statistics, under the pool's mutex.  tidies: flushes the last-freed caches
    # first.
    cdef Heap* heap = pool.awake
    memcpy(pool.total, pool.asleep, sizeof(pool.total))
    while heap != NULL:
        spin_lock(&heap.lock)
        if tidies:
            heap.rounds_idle = 0 if was_hit(heap) else heap.rounds_idle + 1
            flush_cached(heap)
            heap.freed_last = NULL
            heap.freed_last_size = 0
        add_up(pool, heap)
        heap = heap.next_awake
    move_split_base(pool, 1)


# --- sleeping heaps ------------------------------------------------------------------------------------------
#
# The exclusive section locks and adds up only the heaps that are awake, so its cost does not grow with the number of
# streams.  If there are many, those in which no hit ran for a while are put to sleep: their statistics are added to
# Pool.asleep once, and the fast path refuses them.  A thread that uses one in the slow path wakes it on leaving.

cdef inline bint was_hit(const Heap* heap) noexcept nogil:
    # Whether the fast path ran in the heap since the exclusive section was left last.  Under the heap's lock.
    if heap.cached != NULL or heap.freed_last_size:
        return True
    return heap.stats[BOTH].headroom[BLOCKS] != heap.seen


cdef void add_asleep(Pool* pool, const Heap* heap, int64_t sign) noexcept nogil:
    # Adds a heap's statistics to the sums of the sleeping heaps (sign 1) or subtracts them (-1).  In the exclusive section.
    cdef int stat, kind
    for kind in range(2):
        for stat in range(PER_HEAP):
            pool.asleep[kind][stat] += sign * current(heap, kind, stat)
            pool.asleep_cumulative[kind][stat] += sign * cumulative(heap, kind, stat)


cdef void wake(Pool* pool, Heap* heap) noexcept nogil:
    if heap.awake:
        return
    spin_lock(&heap.lock)
    add_asleep(pool, heap, -1)
    lower_limits(heap)
    link_awake(pool, heap)
    file_heap(pool, heap)


cdef void link_awake(Pool* pool, Heap* heap) noexcept nogil:
    # A new heap, which the caller has locked.
    heap.awake = True
    heap.rounds_idle = 0
    heap.next_awake = pool.awake
    pool.awake = heap
    pool.awake_count += 1


cdef inline bint may_sleep(const Heap* heap) noexcept nogil:
    return heap.rounds_idle > PATIENCE and heap.cached == NULL


cdef void put_to_sleep(Pool* pool, Heap* heap) noexcept nogil:
    # The heap is out of the list Pool.awake already, and still locked.  In the exclusive section.
    heap.awake = heap.fast = False
    pool.awake_count -= 1
    add_asleep(pool, heap, 1)
    file_heap(pool, heap)


cdef inline void add_up(Pool* pool, const Heap* heap) noexcept nogil:
    # Adds a heap's statistics to the totals.  The limits of a pool's only heap rise in the fast path: they become the peaks.
    cdef int stat, kind
    for kind in range(2):
        add_stats(pool.total[kind], &heap.stats[kind])
    if heap.sole:
        for stat in range(PER_HEAP):
            for kind in range(2):
                pool.stats.counters[stat][kind].peak = heap.stats[kind].limit[stat]
            pool.stats.peak_all[stat] = heap.stats[BOTH].limit[stat]


cdef inline void add_stats(int64_t* sums, const HeapStats* stats) noexcept nogil:
    # Adds all per-heap statistics of one kind, as current() computes them.
    cdef int64_t blocks = stats.count_limit[BLOCKS] - stats.headroom[BLOCKS]
    cdef int64_t bytes_ = stats.count_limit[BYTES] - stats.headroom[BYTES]
    sums[ALLOCATION] += blocks
    sums[ACTIVE] += blocks + stats.pending[BLOCKS]
    sums[ALLOCATED_BYTES] += bytes_
    sums[ACTIVE_BYTES] += bytes_ + stats.pending[BYTES]
    sums[REQUESTED_BYTES] += stats.count_limit[ASKED] - stats.headroom[ASKED]
    sums[INACTIVE_SPLIT] += stats.count_limit[SPLITS] - stats.headroom[SPLITS]
    sums[INACTIVE_SPLIT_BYTES] += stats.count_limit[SPLIT_BYTES] - stats.headroom[SPLIT_BYTES]


cdef inline void move_split_base(Pool* pool, int64_t sign) noexcept nogil:
    # Keeps split_base relative to the totals while the section is left, so that an operation that leaves it before its
    # end still counts as one operation.
    cdef int kind
    for kind in range(2):
        pool.split_base[kind][0] += sign * pool.total[kind][INACTIVE_SPLIT]
        pool.split_base[kind][1] += sign * pool.total[kind][INACTIVE_SPLIT_BYTES]


cdef void unlock_after_read(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.awake
    move_split_base(pool, -1)
    while heap != NULL:
        spin_unlock(&heap.lock)
        heap = heap.next_awake
    pthread_mutex_unlock(&pool.lock)


cdef inline int64_t headroom(const Heap* heap, int stat, int kind) noexcept nogil:
    # How far a heap's statistic may still rise.
    return heap.stats[kind].limit[stat] - current(heap, kind, stat)


cdef int64_t least_for(const Heap* requester, int stat, int kind, int64_t room) noexcept nogil:
    # The requester's least headroom: what it had, or half of what is distributed, so that a heap that grows from little, as
    # that of a thread which serves one request after another, enters the exclusive section a few times.  Free memory comes
    # back to whichever heap has its pages, so of that it takes no more than an eighth of what it has.
    cdef int64_t wanted = room // 2
    if stat == INACTIVE_SPLIT or stat == INACTIVE_SPLIT_BYTES:
        wanted = min(wanted, current(requester, kind, stat) // 8)
    return min(room, max(headroom(requester, stat, kind), wanted))


cdef void distribute_stat(Pool* pool, Heap* requester, int stat, int kind, int64_t room) noexcept nogil:
    # Distributes the pool's headroom (room) of one statistic: the requester's least first, then the others keep what they
    # had as far as it goes, and the requester gets the remainder.
    cdef Heap* heap = pool.awake
    cdef int64_t kept = 0, least = 0, mine
    if requester != NULL:
        least = least_for(requester, stat, kind, room)
    while heap != NULL:
        if heap != requester:
            mine = max(headroom(heap, stat, kind), <int64_t>0)
            mine = min(mine, room - least - kept)
            heap.stats[kind].limit[stat] = current(heap, kind, stat) + mine
            kept += mine
        heap = heap.next_awake
    if requester != NULL:
        requester.stats[kind].limit[stat] = current(requester, kind, stat) + room - kept


cdef inline uint64_t stat_bit(int stat, int kind) noexcept nogil:
    return <uint64_t>1 << (kind * PER_HEAP + stat)


cdef void distribute_headroom(Pool* pool, Heap* requester, uint64_t which) noexcept nogil:
    # Distributes the distance from the totals to the peaks, for the statistics that have their bit in `which`.  In the
    # exclusive section.
    cdef int stat, kind
    cdef Heap* heap = pool.awake
    for stat in range(PER_HEAP):
        for kind in range(2):
            if which & stat_bit(stat, kind):
                distribute_stat(pool, requester, stat, kind, pool.stats.counters[stat][kind].peak - pool.total[kind][stat])
        if which & stat_bit(stat, BOTH):
            distribute_stat(pool, requester, stat, BOTH, pool.stats.peak_all[stat] - total_of(pool, stat))
    while heap != NULL:
        update_headroom(heap)
        heap = heap.next_awake


cdef void raise_sole(Pool* pool, Heap* heap) noexcept nogil:
    # The limits of a pool's only heap are the peaks.
    cdef int stat
    for stat in range(PER_HEAP):
        heap.stats[0].limit[stat] = pool.stats.counters[stat][0].peak
        heap.stats[1].limit[stat] = pool.stats.counters[stat][1].peak
        heap.stats[BOTH].limit[stat] = pool.stats.peak_all[stat]
    update_headroom(heap)


cdef inline uint64_t passed_bits(const HeapStats* stats) noexcept nogil:
    # The statistics of one kind that may be above their limits.
    cdef uint64_t bits = 0
    if not is_over_limit(stats) | is_over_split_limit(stats):
        return bits
    if stats.headroom[BLOCKS] < 0:
        bits |= stat_bit(ALLOCATION, 0) | stat_bit(ACTIVE, 0)
    if stats.headroom[BYTES] < 0:
        bits |= stat_bit(ALLOCATED_BYTES, 0) | stat_bit(ACTIVE_BYTES, 0)
    if stats.headroom[ASKED] < 0:
        bits |= stat_bit(REQUESTED_BYTES, 0)
    if stats.headroom[SPLITS] < 0:
        bits |= stat_bit(INACTIVE_SPLIT, 0)
    if stats.headroom[SPLIT_BYTES] < 0:
        bits |= stat_bit(INACTIVE_SPLIT_BYTES, 0)
    return bits


cdef uint64_t passed_limits(const Pool* pool, const Heap* requester) noexcept nogil:
    # The statistics whose limits have to be distributed again: those of which some heap is above its limit.  The others'
    # still hold, since in the section peaks only rise.  All of them where the requester's heap counts too much live memory:
    # it would pass one after the other else.  The heaps' headroom must be up to date.
    cdef const Heap* heap = pool.awake
    cdef uint64_t bits = 0
    cdef int kind
    while heap != NULL:
        for kind in range(3):
            bits |= passed_bits(&heap.stats[kind]) << (kind * PER_HEAP)
            if heap == requester and is_over_limit(&heap.stats[kind]):
                return ALL_STATS
        heap = heap.next_awake
    return bits


cdef inline bint is_within_limits(const Heap* heap) noexcept nogil:
    cdef bint over = False
    cdef int kind
    for kind in range(3):
        over |= is_over_limit(&heap.stats[kind]) | is_over_split_limit(&heap.stats[kind])
    return not over


cdef bint gather_within(Pool* pool, Heap* heap) noexcept nogil:
    # Takes what a heap lacks from others, as hits do (inline/fast_path.pxd); whether they had enough.
    cdef Heap* other = pool.awake
    cdef bint suffices = is_within_limits(heap)
    while not suffices and other != NULL:
        if other != heap:
            suffices = pass_all_headroom(other, heap)
        other = other.next_awake
    return suffices


cdef void renew_headroom(Pool* pool, Heap* requester) noexcept nogil:
    # Brings the headroom of all heaps up to date.  Heaps that passed a limit take what they lack from others; if that is
    # not enough, since a peak rose, the passed limits are distributed again.  Only stale heaps are recomputed: most slow
    # calls change neither a limit nor what is pending.
    cdef Heap* heap = pool.awake
    cdef bint suffices = not pool.risen
    cdef uint64_t passed
    while heap != NULL:
        if heap.stale:
            update_headroom(heap)
        heap = heap.next_awake
    if pool.heap_count == 1:
        if pool.peaked:
            raise_sole(pool, pool.heaps)
    else:
        heap = pool.awake
        while heap != NULL and suffices:
            suffices = gather_within(pool, heap)
            heap = heap.next_awake
        passed = 0 if suffices else ALL_STATS if pool.risen else passed_limits(pool, requester)
        if passed:
            distribute_headroom(pool, requester, passed)
    pool.risen = pool.peaked = False


cdef void raise_shown(Pool* pool, int stat) noexcept nogil:
    # Raises the peaks of a split statistic to the values that readers see: while an operation had left the section, other
    # threads may have raised a total that the operation had lowered.
    cdef int kind
    cdef int64_t one, both = 0
    for kind in range(2):
        one = counted(pool, stat, kind)
        both += one
        if one > pool.stats.counters[stat][kind].peak:
            pool.stats.counters[stat][kind].peak = one
            pool.peaked = True
    if both > pool.stats.peak_all[stat]:
        pool.stats.peak_all[stat] = both
        pool.peaked = True


cdef inline bint suffices(const Pool* pool, const Heap* heap) noexcept nogil:
    # Whether the fast path may use the heap: no capture is under way, no block of the pool is deferred, and none is pending
    # in the heap or offered to its stream, and none of its pages is guarded.  An external pool has no fast path.
    return (pool.captures == 0 and pool.deferred == NULL and pool.external == NULL
            and heap.pending == 0 and heap.offered == 0 and heap.guards == 0)


cdef void update_fast_path(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.awake
    while heap != NULL:
        spin_lock(&heap.lock)
        flush_cached(heap)
        heap.fast = suffices(pool, heap)
        spin_unlock(&heap.lock)
        heap = heap.next_awake


cdef void unlock_all(Pool* pool, Heap* requester) noexcept nogil:
    # Wakes the requester's heap, distributes headroom, puts idle heaps to sleep and enables the fast path in the others.
    cdef Heap** link = &pool.awake
    cdef Heap* heap
    cdef bint many
    if requester != NULL:
        wake(pool, requester)
    many = pool.awake_count > MOST_AWAKE
    raise_shown(pool, INACTIVE_SPLIT)
    raise_shown(pool, INACTIVE_SPLIT_BYTES)
    move_split_base(pool, -1)
    renew_headroom(pool, requester)
    while link[0] != NULL:
        heap = link[0]
        if many and may_sleep(heap):
            store_heap(link, heap.next_awake)
            lower_limits(heap)
            update_headroom(heap)
            put_to_sleep(pool, heap)
        else:
            link = &heap.next_awake
            heap.sole = pool.heap_count == 1
            heap.fast = suffices(pool, heap)
        heap.seen = heap.stats[BOTH].headroom[BLOCKS]
        spin_unlock(&heap.lock)
    pthread_mutex_unlock(&pool.lock)


cdef int call_unlocked(Pool* pool, UnlockedCall call, void* about) noexcept nogil:
    cdef int mode, code
    unlock_all(pool, NULL)
    code = go_relaxed(pool.table, &mode)
    if code == 0:
        code = call(pool, about)
        restore_mode(pool.table, mode)
    lock_all(pool)
    return code


cdef int64_t counted(const Pool* pool, int stat, int kind) noexcept nogil:
    # A total as readers may see it.  If another thread has left the section during an operation, the splits of that
    # operation are not counted yet, or others may have used what it removed: the lesser of both sums is below the peak.
    cdef int64_t total = pool.total[kind][stat]
    if stat == INACTIVE_SPLIT:
        return min(total, pool.split_base[kind][0])
    if stat == INACTIVE_SPLIT_BYTES:
        return min(total, pool.split_base[kind][1])
    return total


cdef int64_t total_of(const Pool* pool, int stat) noexcept nogil:
    return pool.total[0][stat] + pool.total[1][stat]


cdef int64_t reserved(const Pool* pool) noexcept nogil:
    return current_of(&pool.stats, RESERVED_BYTES)


cdef void count_asleep(Pool* pool, int stat, int kind, int64_t amount) noexcept nogil:
    # For a sleeping heap.  A rise lowers the headroom to distribute, so the next unlock_all distributes anew.
    pool.asleep[kind][stat] += amount
    pool.risen |= amount > 0


cdef void count(Pool* pool, Heap* heap, int stat, int kind, int64_t amount) noexcept nogil:
    # Changes a heap's statistic and the pool's total, and raises the peaks.
    cdef Counter* counter = &pool.stats.counters[stat][kind]
    add_stat(heap, kind, stat, amount)
    pool.total[kind][stat] += amount
    if not heap.awake:
        count_asleep(pool, stat, kind, amount)
        pool.asleep_cumulative[kind][stat] += max(amount, <int64_t>0)
    if amount > 0 and pool.total[kind][stat] > counter.peak:
        counter.peak = pool.total[kind][stat]
        pool.peaked = True
    if amount > 0 and total_of(pool, stat) > pool.stats.peak_all[stat]:
        pool.stats.peak_all[stat] = total_of(pool, stat)
        pool.peaked = True


cdef void count_pool(Pool* pool, int stat, int kind, int64_t amount) noexcept nogil:
    change(&pool.stats, stat, kind, amount)


cdef void count_change(Pool* pool, Heap* heap, int kind, Change net) noexcept nogil:
    # Counts a change of the split blocks; count_splits raises peak and accumulated value at the operation's end.
    use_split_headroom(&heap.stats[kind], 1, net)
    use_split_headroom(&heap.stats[BOTH], 1, net)
    pool.total[kind][INACTIVE_SPLIT] += net.blocks
    pool.total[kind][INACTIVE_SPLIT_BYTES] += net.bytes
    if not heap.awake:
        count_asleep(pool, INACTIVE_SPLIT, kind, net.blocks)
        count_asleep(pool, INACTIVE_SPLIT_BYTES, kind, net.bytes)


cdef void count_split(Pool* pool, Heap* heap, int stat, int kind, int64_t* base) noexcept nogil:
    # Adds the net increase since the last operation's end to the accumulated value.
    cdef int64_t net = pool.total[kind][stat] - base[0]
    base[0] = pool.total[kind][stat]
    if net > 0:
        heap.stats[kind].cumulative[count_of(stat)] += net
        if not heap.awake:
            pool.asleep_cumulative[kind][stat] += net


cdef void count_splits(Pool* pool, Heap* heap) noexcept nogil:
    # An operation counts its net change of the split blocks once, not at each step.  Readers may see more afterwards though
    # the change is negative: another operation, which has left the section, had lowered the total meanwhile.
    cdef int kind
    for kind in range(2):
        count_split(pool, heap, INACTIVE_SPLIT, kind, &pool.split_base[kind][0])
        count_split(pool, heap, INACTIVE_SPLIT_BYTES, kind, &pool.split_base[kind][1])
    raise_shown(pool, INACTIVE_SPLIT)
    raise_shown(pool, INACTIVE_SPLIT_BYTES)


cdef void count_oversize(Counter* counter, int64_t amount) noexcept nogil:
    counter.current += amount
    if amount > 0:
        counter.allocated += amount
        counter.peak = max(counter.peak, counter.current)
    else:
        counter.freed -= amount


cdef void hand_out(Pool* pool, Block* block, size_t size, size_t requested, bint splits) noexcept nogil:
    # Hands out a free block, split or whole.  The caller has ensured a spare record and a place in the heap's map.
    cdef Heap* heap = block.heap
    cdef int kind = kind_of(size)
    count_change(pool, heap, block.segment.kind, of_taking(block, size, splits))
    remove(heap, block)
    if splits:
        split_off(heap, block, size)
        insert(heap, block.after)
    if not heap.awake:
        file_heap(pool, heap)
    hand_out_unlisted(pool, block, requested, kind)


cdef void hand_out_unlisted(Pool* pool, Block* block, size_t requested, int kind) noexcept nogil:
    cdef Heap* heap = block.heap
    make_live(block, requested, kind)
    count(pool, heap, ALLOCATION, kind, 1)
    count(pool, heap, ALLOCATED_BYTES, kind, block.size)
    count(pool, heap, ACTIVE, kind, 1)
    count(pool, heap, ACTIVE_BYTES, kind, block.size)
    count(pool, heap, REQUESTED_BYTES, kind, requested)
    if block.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_allocations, 1)
    count_splits(pool, heap)
    record_allocation(pool, block, False)


cdef void hand_over(Pool* pool, Block* block, size_t requested) noexcept nogil:
    # Hands out a pending block to a claimant.  It was active all the time, so ACTIVE does not change.
    cdef int kind = block.kind
    count(pool, block.heap, REQUESTED_BYTES, kind, <int64_t>requested - <int64_t>block.requested)
    block.state = LIVE
    block.requested = requested
    count(pool, block.heap, ALLOCATION, kind, 1)
    count(pool, block.heap, ALLOCATED_BYTES, kind, block.size)
    if block.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_allocations, 1)
    record_allocation(pool, block, True)


cdef void count_freed(Pool* pool, Block* block) noexcept nogil:
    count(pool, block.heap, ALLOCATION, block.kind, -1)
    count(pool, block.heap, ALLOCATED_BYTES, block.kind, -<int64_t>block.size)
    if block.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_allocations, -1)
    record_free_requested(pool, block)


cdef Block* set_free(Pool* pool, Block* block) noexcept nogil:
    # Frees, as of now, a block that was LIVE or PENDING: counts it, merges it and inserts it into its list.
    cdef Heap* heap = block.heap
    record_free_completed(pool, block)
    count(pool, heap, ACTIVE, block.kind, -1)
    count(pool, heap, ACTIVE_BYTES, block.kind, -<int64_t>block.size)
    count(pool, heap, REQUESTED_BYTES, block.kind, -<int64_t>block.requested)
    count_change(pool, heap, block.segment.kind, of_freeing(block))
    block = join_freed(heap, block)
    insert(heap, block)
    if not heap.awake:
        file_heap(pool, heap)
    return block


cdef void put_free(Pool* pool, Block* block) noexcept nogil:
    # Makes a block in no list FREE, of whatever epoch: for new memory and for pages that are made resident.
    count_change(pool, block.heap, block.segment.kind, of_freeing(block))
    block = join(block.heap, block)
    insert(block.heap, block)
    if not block.heap.awake:
        file_heap(pool, block.heap)


cdef void take_free(Pool* pool, Block* block) noexcept nogil:
    # Removes a free block from its list, whole; the caller then changes its state.
    cdef Change gone
    if is_split(block):
        gone.blocks = -1
        gone.bytes = -<int64_t>block.size
        count_change(pool, block.heap, block.segment.kind, gone)
    remove(block.heap, block)
    if not block.heap.awake:
        file_heap(pool, block.heap)


# --- address table ----------------------------------------------------------------------------------------------------
# It costs 8 bytes for each aligned 2 MiB in which a segment ever had addresses, and the maps of live blocks 64 bytes or more
# for each block.

cdef int table_lock = 0  # the spin lock under which the table is written; no other lock is taken under it


cdef Heap** make_place(uintptr_t address) noexcept nogil:
    # The address's place; NULL: no host memory, or an address of 2**50 or more.  Under the lock table_lock.
    cdef Heap*** root
    if address >> 50:
        return NULL
    root = &regions[address >> 34]
    if root[0] == NULL:
        store_region(root, <Heap**>take_fresh(PLACES * sizeof(void*)))
    return NULL if root[0] == NULL else &root[0][(address >> 21) & (PLACES - 1)]


cdef int divide(Heap** place, uintptr_t border, Heap* lower, Heap* upper) noexcept nogil:
    # Writes a place that two heaps share, or the one heap if lower and upper are not two.  0 or NO_HOST_MEMORY.  A reader
    # that reads one field new and another old searches the wrong heap's map, which does not have its block.
    cdef Border* shared = NULL
    if lower == NULL or lower == upper:
        store_heap_at(place, upper)
        return 0
    if upper == NULL:
        store_heap_at(place, lower)
        return 0
    if <uintptr_t>place[0] & 1:
        shared = <Border*>(<uintptr_t>place[0] - 1)
    else:
        shared = <Border*>calloc(1, sizeof(Border))
        if shared == NULL:
            return NO_HOST_MEMORY
    store_border(&shared.border, border)
    store_heap_at(&shared.lower, lower)
    store_heap_at(&shared.upper, upper)
    store_heap_at(place, <Heap*>(<uintptr_t>shared + 1))
    return 0


cdef int claim_addresses(Heap* heap, uintptr_t address, size_t size) noexcept nogil:
    cdef uintptr_t start = address & ~<uintptr_t>(PLACE - 1)
    cdef uintptr_t end = address + size
    cdef Heap** place
    cdef int code = 0
    spin_lock(&table_lock)
    while start < end and code == 0:
        place = make_place(start)
        if place == NULL:
            code = NO_HOST_MEMORY
        elif start < address:
            code = divide(place, address, heap_at(start), heap)
        elif end - start < PLACE:
            # The heap of the place's last byte: behind an old border the place may name one without memory there.
            code = divide(place, end, heap, heap_at(start + PLACE - 1))
        else:
            store_heap_at(place, heap)
        start += PLACE
    spin_unlock(&table_lock)
    return code


# --- forks ------------------------------------------------------------------------------------------------------------

cdef void renew_locks() noexcept nogil:
    # In a forked child: a thread of the parent's may have held these.
    global trusting, table_lock
    trusting = table_lock = 0


at_fork("allocator.heaps", FORK_POOLS, NULL, NULL, &renew_locks)
