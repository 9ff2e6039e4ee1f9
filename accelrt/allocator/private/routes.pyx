"""Routes of allocations to private pools, and checkpoints of these."""
from libc.stdint cimport SIZE_MAX
from libc.stdlib cimport calloc, malloc
from libc.string cimport memset

from accelrt.allocator.backing.pages cimport open_private, unlock_growth
from accelrt.allocator.backing.stitching cimport poll_all
from accelrt.allocator.event_ring cimport record_allocation, record_event, record_free_completed, record_free_requested
from accelrt.allocator.external.external_pool cimport external_begin_capture, external_end_capture
from accelrt.allocator.heaps cimport (
    append_hole, begin_expected_route, begin_route, block_at, count, count_splits, end_expected_route, end_route,
    ensure_blocks, find_private, is_captured, lock_all, note_peaks, note_replay, pool_for, put_free, release_hold,
    reset_private_peaks, retain, sum_of, take_free, unlock_all, update_fast_path,
)
from accelrt.allocator.inline.block_map cimport ensure_places, list_block, unlist_block
from accelrt.allocator.history_types cimport SEGMENT_MAPPED, SEGMENT_UNMAPPED
from accelrt.allocator.inline.block_ops cimport recycle
from accelrt.allocator.miss cimport leave_audited, poll, release_ended
from accelrt.allocator.pool cimport pool_if_made, pool_of
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.stats cimport ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, REQUESTED_BYTES
from accelrt.allocator.types cimport EXPANDABLE, FREE, HOLE, LIVE, PLAIN, STITCHED, Block, Heap, Page, Pool, Slot
from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_unlock
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE
from accelrt.status cimport (
    CAPTURE_INVALID, FORKED, INVALID_VALUE, NO_HOST_MEMORY, NOT_READY, NOT_SUPPORTED, PEER_ACCESS_UNSUPPORTED, SLEEPING,
)


# --- routes -----------------------------------------------------------------------------------------------------------
# The public face of private pools: retain and release them, route allocations to them, read them.
#
# What changes records of private pools and routes takes the pool's mutex alone, so that it does not stop the fast path;
# what reads or polls heaps enters the exclusive section.

cdef enum:
    ENDED_LIMIT = 128 << 20  # bytes that graphs may leave behind until a capture begins


cdef Pool* enter_made(int device) noexcept nogil:
    # Enters the exclusive section of the device's pool.  NULL if there is no pool, or if a fork left it with the parent.
    cdef Pool* pool = pool_if_made(device)
    if pool != NULL:
        lock_all(pool)
    return pool


cdef int retain_free(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil:
    # Not of a reservation, in which nothing lies but what is committed.
    cdef const PrivatePool* owner = find_private(pool, first, second)
    return INVALID_VALUE if owner != NULL and owner.fixed else retain(pool, first, second, user)


cdef int retain_pool(int device, uint64_t first, uint64_t second, bint user, size_t limit) noexcept nogil:
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    pthread_mutex_lock(&pool.lock)
    code = retain_free(pool, first, second, user)
    if code == 0 and user:
        find_private(pool, first, second).limit = limit
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int set_up_pool(int device, uint64_t first, uint64_t second, const Source* source, bint whole,
                     bint lends) noexcept nogil:
    cdef Pool* pool
    cdef PrivatePool* owner
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    pthread_mutex_lock(&pool.lock)
    owner = find_private(pool, first, second)
    if owner != NULL:
        owner.source = source
        owner.whole = whole
        owner.lends = lends
    pthread_mutex_unlock(&pool.lock)
    return INVALID_VALUE if owner == NULL else 0


cdef int open_pool_to(int device, uint64_t first, uint64_t second, int peer, int access) noexcept nogil:
    # Takes the growth lock, under which private pools with pages neither come nor go.
    cdef Pool* pool
    cdef PrivatePool* owner
    cdef int can = 0
    cdef int code = pool_of(device, &pool)
    if code == 0 and (pool.external != NULL or not pool.settings.virtual_memory):
        code = NOT_SUPPORTED
    if code == 0 and access:
        code = pool.table.can_access_peer(peer, device, &can)
        code = PEER_ACCESS_UNSUPPORTED if code == 0 and not can else code
    if code:
        return code
    pthread_mutex_lock(&pool.growth)
    pthread_mutex_lock(&pool.lock)
    owner = find_private(pool, first, second)
    pthread_mutex_unlock(&pool.lock)
    if owner == NULL or owner.source != NULL or owner.whole:
        code = NOT_SUPPORTED
    else:
        code = open_private(pool, owner, peer, access)
    pthread_mutex_unlock(&pool.growth)
    return code


cdef int read_peers(int device, uint64_t first, uint64_t second, uint64_t* out_readers,
                    uint64_t* out_writers) noexcept nogil:
    # With those that may use all of the device's pool.
    cdef Pool* pool = pool_if_made(device)
    cdef const PrivatePool* owner
    out_readers[0] = out_writers[0] = 0
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.growth)
    pthread_mutex_lock(&pool.lock)
    owner = find_private(pool, first, second)
    out_readers[0] = pool.peers | (owner.readers if owner != NULL else 0)
    out_writers[0] = pool.peers | (owner.writers if owner != NULL else 0)
    pthread_mutex_unlock(&pool.lock)
    pthread_mutex_unlock(&pool.growth)
    return 0


cdef int release_pool(int device, uint64_t first, uint64_t second, bint user) noexcept nogil:
    # FORKED if the pool belongs to the parent process.
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.lock)
    code = release_hold(pool, first, second, user)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef void note_replays_as(int device, uint64_t first, uint64_t second, uintptr_t stream, bint hidden) noexcept nogil:
    # A pool that the parent process retained is ignored.
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner
    if pool == NULL:
        return
    pthread_mutex_lock(&pool.lock)
    owner = find_private(pool, first, second)
    if owner != NULL and hidden:
        owner.hidden = True
    elif owner != NULL:
        note_replay(owner, stream)
    pthread_mutex_unlock(&pool.lock)


cdef void note_replays(int device, uint64_t first, uint64_t second, uintptr_t stream) noexcept nogil:
    note_replays_as(device, first, second, stream, False)


cdef void hide_replays(int device, uint64_t first, uint64_t second) noexcept nogil:
    note_replays_as(device, first, second, 0, True)


cdef void read_figures(Pool* pool, PrivatePool* owner, PrivateStats* stats, bint reset) noexcept nogil:
    # In the exclusive section.
    cdef int stat
    if reset:
        reset_private_peaks(pool, owner)
    stats.known = True
    stats.uses = owner.uses
    stats.limit = owner.limit
    stats.sleeping = owner.sleeping
    for stat in range(STATS):
        stats.current[stat] = sum_of(pool, owner, stat)
        stats.peak[stat] = owner.peak[stat]


cdef PrivateStats read_private(int device, uint64_t first, uint64_t second, bint reset) noexcept nogil:
    # known is False if the device has no such pool.
    cdef Pool* pool = enter_made(device)
    cdef PrivatePool* owner
    cdef PrivateStats stats
    memset(&stats, 0, sizeof(PrivateStats))
    stats.limit = SIZE_MAX
    if pool == NULL:
        return stats
    owner = find_private(pool, first, second)
    if owner != NULL:
        read_figures(pool, owner, &stats, reset)
    unlock_all(pool, NULL)
    return stats


def pool_of_request(int device, uintptr_t stream) -> tuple[int, int]:
    """The id of the private pool that a request of the calling thread's on a stream goes to: (int, int); zeros if no
    route leads to one, or the query of the stream's capture fails."""
    cdef PrivatePool* owner = NULL
    cdef uint64_t[2] name
    cdef Pool* pool
    name[0] = name[1] = 0
    with nogil:
        pool = enter_made(device)
        if pool != NULL:
            if pool_for(pool, stream, &owner) == 0 and owner != NULL:
                name[0], name[1] = owner.id[0], owner.id[1]
            unlock_all(pool, NULL)
    return name[0], name[1]


# --- routes --------------------------------------------------------------------------------------------------

cdef bint has_much_to_release(Pool* pool) noexcept nogil:
    # Whether ended pools have reserved so much more since it was tried last.
    pool.ended_kept = min(pool.ended_kept, pool.ended)
    return pool.ended - pool.ended_kept > ENDED_LIMIT


cdef void expect_idle(int device) noexcept nogil:
    # Polls the streams of all heaps whose pages may serve others.  What graphs left behind serves no other graph, and a
    # capture cannot wait for the device to give it back: beyond a bound that is done here.
    cdef Pool* pool = pool_if_made(device)
    cdef bint much
    if pool == NULL or pool.external != NULL:
        return
    lock_all(pool)
    poll_all(pool)
    much = has_much_to_release(pool)
    unlock_all(pool, NULL)
    if much:
        pthread_mutex_lock(&pool.growth)
        lock_all(pool)
        if release_ended(pool) != NOT_READY:  # what cannot go back, such as pages with live memory, stays as it is
            pool.ended_kept = pool.ended
        unlock_all(pool, NULL)
        unlock_growth(pool)


cdef int begin_capture(int device, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil:
    # No capture has the id 0, which stands for a thread's route.  The first capture disables the fast path.
    cdef Pool* pool
    cdef int code = pool_of(device, &pool) if capture else CAPTURE_INVALID
    if code:
        return code
    if pool.external != NULL:
        return external_begin_capture(pool.external)
    pthread_mutex_lock(&pool.lock)
    code = begin_route(pool, first, second, capture)
    if pool.captures == 1:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int begin_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second,
                          uint64_t* out_capture) noexcept nogil:
    cdef int status = CAPTURE_NONE
    cdef int code
    out_capture[0] = 0
    code = registry.active().capture_status(device, stream, &status, out_capture)
    if code == 0 and status != CAPTURE_ACTIVE:
        code = CAPTURE_INVALID
    return code if code else begin_capture(device, first, second, out_capture[0])


cdef int end_capture(int device, uint64_t capture) noexcept nogil:
    # The end of the last capture enables the fast path again.
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL or capture == 0:
        return FORKED if pool == NULL else CAPTURE_INVALID
    if pool.external != NULL:
        return external_end_capture(pool.external)
    pthread_mutex_lock(&pool.lock)
    code = end_route(pool, NULL, capture, 0)
    if pool.captures == 0:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int expect_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil:
    # NOT_SUPPORTED for a device whose memory comes from another backend.
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code == 0 and pool.external != NULL:
        code = NOT_SUPPORTED
    if code:
        return code
    pthread_mutex_lock(&pool.lock)
    code = begin_expected_route(pool, first, second, stream)
    if code == 0 and pool.captures == 1:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int end_expected_capture(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.lock)
    code = end_expected_route(pool, find_private(pool, first, second), stream)
    if code == 0 and pool.captures == 0:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int begin_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    # NOT_SUPPORTED for a device whose memory comes from another backend.  If the route fails, the pool is released
    # again.
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        return NOT_SUPPORTED
    pthread_mutex_lock(&pool.lock)
    code = retain_and_route(pool, first, second)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int retain_and_route(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    cdef int code = retain_free(pool, first, second, True)
    if code == 0:
        code = begin_route(pool, first, second, 0)
        if code:
            release_hold(pool, first, second, True)
    return code


cdef int begin_pool_for_common(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner = NULL
    cdef int code
    if pool == NULL or pool.external != NULL:
        return NOT_SUPPORTED
    pthread_mutex_lock(&pool.lock)
    code = pool_for(pool, stream, &owner)
    if code == 0 and owner == NULL:
        owner = find_private(pool, first, second)
        if owner == NULL or owner.suspension != NULL:
            code = NOT_READY
        else:
            code = retain_and_route(pool, first, second)
    elif code == 0:
        code = NOT_READY
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int begin_managed_pool(int device, uintptr_t stream, uint64_t second, const Source* source) noexcept nogil:
    cdef Pool* pool
    cdef PrivatePool* owner = NULL
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        return NOT_SUPPORTED
    pthread_mutex_lock(&pool.lock)
    code = pool_for(pool, stream, &owner)
    if code == 0 and owner != NULL and owner.source != NULL and owner.source.managed:
        code = NOT_READY
    elif code == 0:
        code = retain_and_route(pool, 0, second)
        if code == 0:
            find_private(pool, 0, second).source = source
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int end_pool(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil:
    # Ends the thread's latest route to the pool, then releases the pool.
    cdef int code = end_thread_route(device, first, second, thread)
    return code if code else release_pool(device, first, second, True)


cdef int end_thread_route(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.lock)
    code = end_route(pool, find_private(pool, first, second), 0, thread)
    pthread_mutex_unlock(&pool.lock)
    return code


# --- checkpoint -------------------------------------------------------------------------------------------------------
# Checkpoints: the state of a private pool, saved to be restored later.
#
# A saved state names segments and pages by their serials.  While a private pool is in use, its segments, its stitched
# segments and their mappings stay, so a restore is bookkeeping: in which slot each page is resident, and where the blocks
# begin.  Every condition is checked before anything is changed.  What the pool took from the device since then stays in
# it and is free.  All functions between begin() and leave_audited() run in the exclusive section, under the growth lock.

# --- the pool's segments: plain and expandable ones by serial, then the stitched ones, heap by heap ----------------

cdef Segment* plain_from(Segment* segment, const PrivatePool* owner) noexcept nogil:
    while segment != NULL and segment.heap.owner != owner:
        segment = segment.after
    return segment


cdef Segment* stitched_from(Heap* heap, const PrivatePool* owner) noexcept nogil:
    while heap != NULL and (heap.owner != owner or heap.first_stitched == NULL):
        heap = heap.next
    return NULL if heap == NULL else heap.first_stitched


cdef Segment* first_of(Pool* pool, const PrivatePool* owner) noexcept nogil:
    cdef Segment* segment = plain_from(pool.first, owner)
    return segment if segment != NULL else stitched_from(pool.heaps, owner)


cdef Segment* next_of(Pool* pool, const PrivatePool* owner, const Segment* segment) noexcept nogil:
    # The segment after this one, in the order of first_of; NULL at the end.
    cdef Segment* after
    if segment.shape == STITCHED:
        return segment.after if segment.after != NULL else stitched_from(segment.heap.next, owner)
    after = plain_from(segment.after, owner)
    return after if after != NULL else stitched_from(pool.heaps, owner)


# --- checks ----------------------------------------------------------------------------------------------------

cdef int look_at(Pool* pool, const PrivatePool* owner) noexcept nogil:
    # What prevents a save as well as a restore; 0 if nothing does.
    cdef const Heap* heap = pool.heaps
    cdef const Segment* segment
    cdef const Page* page
    cdef size_t index
    if owner == NULL:
        return NO_SUCH_POOL
    if owner.fixed:
        return FIXED
    if owner.suspension != NULL:
        return SLEEPING
    while heap != NULL:
        if heap.owner == owner and heap.pending:
            return WAITS
        heap = heap.next
    segment = first_of(pool, owner)
    while segment != NULL:
        for index in range(segment.slot_count):
            page = segment.slots[index].page
            if page != NULL and (page.resident == NULL or page.resident.segment.heap.owner != owner):
                return LENT
        segment = next_of(pool, owner, segment)
    return 0


cdef int begin(int device, uint64_t first, uint64_t second, Pool** out_pool, PrivatePool** out_owner) noexcept nogil:
    # Takes the locks, polls pending blocks, and checks.  Under the growth lock no other thread maps or unmaps pages.
    # The caller calls leave_audited() whatever the answer.
    cdef Pool* pool = pool_if_made(device)
    cdef int code = 0
    out_pool[0] = pool
    if pool == NULL or pool.external != NULL:
        out_pool[0] = NULL
        return NO_SUCH_POOL
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    if pool.captures == 0:
        code = poll(pool)
    out_owner[0] = find_private(pool, first, second)
    return code if code else look_at(pool, out_owner[0])


# --- saving ----------------------------------------------------------------------------------------------------

cdef void count_pool(Pool* pool, const PrivatePool* owner, Saved* saved) noexcept nogil:
    # How many segments, blocks and slots the state needs.
    cdef const Segment* segment = first_of(pool, owner)
    cdef const Block* block
    while segment != NULL:
        saved.segment_count += 1
        saved.slot_count += segment.slot_count
        block = segment.first
        while block != NULL:
            saved.block_count += 1
            block = block.after
        segment = next_of(pool, owner, segment)


cdef void save_segment(SavedSegment* into, const Segment* segment, Saved* saved) noexcept nogil:
    # Copies a segment, its blocks and its slots; the arrays are allocated and zeroed.
    cdef const Block* block = segment.first
    cdef SavedBlock* copy = &saved.blocks[into.first_block]
    cdef size_t index
    into.serial = segment.serial
    into.address = segment.address
    into.size = segment.size
    into.shape = segment.shape
    into.kind = segment.kind
    into.stream = segment.heap.stream
    into.slot_count = segment.slot_count
    while block != NULL:
        copy.address = block.address
        copy.size = block.size
        copy.requested = block.requested
        copy.state = block.state
        copy.kind = block.kind
        copy += 1
        into.block_count += 1
        block = block.after
    for index in range(segment.slot_count):
        if segment.slots[index].page != NULL:
            saved.slots[into.first_slot + index].page = segment.slots[index].page.serial
            saved.slots[into.first_slot + index].resident = segment.slots[index].page.resident == segment.slots[index]


cdef int save_all(Pool* pool, const PrivatePool* owner, Saved* saved) noexcept nogil:
    # Allocates the arrays and fills them; NO_HOST_MEMORY if that fails, and the caller frees what there is.
    cdef const Segment* segment = first_of(pool, owner)
    cdef SavedSegment* into
    count_pool(pool, owner, saved)
    saved.segments = <SavedSegment*>calloc(saved.segment_count + 1, sizeof(SavedSegment))
    saved.blocks = <SavedBlock*>calloc(saved.block_count + 1, sizeof(SavedBlock))
    saved.slots = <SavedSlot*>calloc(saved.slot_count + 1, sizeof(SavedSlot))
    if saved.segments == NULL or saved.blocks == NULL or saved.slots == NULL:
        return NO_HOST_MEMORY
    into = saved.segments
    while segment != NULL:
        save_segment(into, segment, saved)
        into[1].first_block = into.first_block + into.block_count
        into[1].first_slot = into.first_slot + into.slot_count
        into += 1
        segment = next_of(pool, owner, segment)
    return 0


cdef int save_pool(int device, uint64_t first, uint64_t second, Saved* saved) noexcept nogil:
    cdef Pool* pool
    cdef PrivatePool* owner
    cdef int code = begin(device, first, second, &pool, &owner)
    saved.device = device
    saved.id[0], saved.id[1] = first, second
    if code == 0:
        code = save_all(pool, owner, saved)
    return leave_audited(pool, code)


# --- restoring: conditions -------------------------------------------------------------------------------------------

cdef bint is_there(const SavedSegment* saved, const Segment* segment, const SavedSlot* slots) noexcept nogil:
    # Whether a segment still has the saved address and shape, and the saved pages in the same slots.  It may have more
    # slots.
    cdef size_t index
    if saved.address != segment.address or saved.shape != segment.shape or saved.slot_count > segment.slot_count:
        return False
    if saved.shape == PLAIN:
        return saved.size == segment.size
    for index in range(saved.slot_count):
        if slots[index].page and (segment.slots[index].page == NULL
                                  or segment.slots[index].page.serial != slots[index].page):
            return False
    return True


cdef SavedSegment* saved_of(Saved* saved, const Segment* segment, size_t* index) noexcept nogil:
    # The saved state of a segment; NULL if the segment is newer.  Saved segments are in the order of first_of and
    # next_of, so one walk with one index finds all.
    cdef SavedSegment* one = &saved.segments[index[0]]
    if index[0] == saved.segment_count or one.serial != segment.serial:
        return NULL
    index[0] += 1
    return one


cdef int match(Pool* pool, const PrivatePool* owner, Saved* saved) noexcept nogil:
    # WENT unless every saved segment is still there.
    cdef Segment* segment = first_of(pool, owner)
    cdef SavedSegment* one
    cdef size_t index = 0
    while segment != NULL:
        one = saved_of(saved, segment, &index)
        if one != NULL and not is_there(one, segment, &saved.slots[one.first_slot]):
            return WENT
        segment = next_of(pool, owner, segment)
    return 0 if index == saved.segment_count else WENT


cdef int find_kept(Pool* pool, const PrivatePool* owner, Saved* saved, Turned* turned) noexcept nogil:
    # Marks the blocks that are live now exactly as they were saved: they stay with their owners, with their uses.  USED
    # if another live block has uses.  Allocates the arrays of the answer.
    cdef const Segment* segment = first_of(pool, owner)
    cdef const Block* block
    cdef size_t index, lives = 0
    cdef long used = 0
    while segment != NULL:
        block = segment.first
        while block != NULL:
            lives += block.state == LIVE
            used += block.state == LIVE and block.uses != NULL
            block = block.after
        segment = next_of(pool, owner, segment)
    for index in range(saved.block_count):
        saved.blocks[index].kept = False
        if saved.blocks[index].state == LIVE:
            block = block_at(pool, saved.blocks[index].address)
            saved.blocks[index].kept = (
                block != NULL and block.heap.owner == owner and block.state == LIVE
                and block.size == saved.blocks[index].size and block.requested == saved.blocks[index].requested
                and block.kind == saved.blocks[index].kind
            )
            used -= saved.blocks[index].kept and block.uses != NULL
    turned.live = <uintptr_t*>malloc((saved.block_count + 1) * sizeof(uintptr_t))
    turned.freed = <uintptr_t*>malloc((lives + 1) * sizeof(uintptr_t))
    if turned.live == NULL or turned.freed == NULL:
        return NO_HOST_MEMORY
    return USED if used else 0


cdef int ensure_all(Pool* pool, const PrivatePool* owner, Saved* saved) noexcept nogil:
    # Ensures block records and places in the maps of live blocks, so that nothing can fail after the first change.
    cdef Heap* heap = pool.heaps
    cdef const Segment* segment
    cdef size_t wanted
    cdef int code = 0
    while heap != NULL and code == 0:
        wanted = 0
        segment = first_of(pool, owner)
        while segment != NULL:
            if segment.heap == heap:
                wanted += segment.slot_count + 1
            segment = next_of(pool, owner, segment)
        if wanted:
            code = ensure_blocks(heap, wanted + saved.block_count)
        if wanted and code == 0:
            code = ensure_places(heap, saved.block_count)
        heap = heap.next
    return code


# --- restoring: the changes -------------------------------------------------------------------------------------------

cdef void count_live(Pool* pool, const Block* block, int sign) noexcept nogil:
    # Counts a block as live (sign 1) or no longer live (sign -1).
    count(pool, block.heap, ALLOCATION, block.kind, sign)
    count(pool, block.heap, ALLOCATED_BYTES, block.kind, sign * <long long>block.size)
    count(pool, block.heap, ACTIVE, block.kind, sign)
    count(pool, block.heap, ACTIVE_BYTES, block.kind, sign * <long long>block.size)
    count(pool, block.heap, REQUESTED_BYTES, block.kind, sign * <long long>block.requested)


cdef void take_blocks(Pool* pool, Segment* segment, Turned* turned) noexcept nogil:
    # Takes every block out of the free lists and the map of live blocks.  A live block with requested == 0 is kept.
    cdef Block* block = segment.first
    while block != NULL:
        if block.state == FREE:
            take_free(pool, block)
        elif block.state == LIVE:
            unlist_block(block)
            if block.requested:
                count_live(pool, block, -1)
                record_free_requested(pool, block)
                record_free_completed(pool, block)
                turned.freed[turned.freed_count] = block.address
                turned.freed_count += 1
        block = block.after


cdef void drop_blocks(Segment* segment) noexcept nogil:
    # Recycles the records of all blocks of a segment.
    cdef Block* block = segment.first
    cdef Block* after
    while block != NULL:
        after = block.after
        block.state = FREE
        block.requested = 0
        block.uses = NULL
        recycle(segment.heap, block)
        block = after
    segment.first = segment.last = NULL


cdef void restore_block(Pool* pool, Block* block, const SavedBlock* saved, Turned* turned) noexcept nogil:
    # Makes a block live as it was saved; a kept one is counted live already.
    block.state = LIVE
    block.requested = saved.requested
    block.kind = saved.kind
    block.uses = saved.uses
    block.stack = saved.stack
    block.tag = saved.tag
    list_block(block)
    if not saved.kept:
        count_live(pool, block, 1)
        record_allocation(pool, block, False)
        turned.live[turned.live_count] = block.address
        turned.live_count += 1


cdef inline void move_here(Pool* pool, Slot* slot) noexcept nogil:
    cdef Slot* before = slot.page.resident
    cdef Heap* heap = slot.segment.heap
    if before == slot:
        return
    if before != NULL:
        record_event(pool, SEGMENT_UNMAPPED, before.address, before.size, heap.stream, heap.owner)
    slot.page.resident = slot
    record_event(pool, SEGMENT_MAPPED, slot.address, slot.size, heap.stream, heap.owner)


cdef void make_pages_resident(Pool* pool, Segment* segment, const SavedSegment* one, const SavedSlot* slots) noexcept nogil:
    # Saved pages become resident where they were; pages of slots that are newer, in their expandable segments.
    cdef size_t index
    cdef Slot* slot
    for index in range(segment.slot_count):
        slot = segment.slots[index]
        slot.hole = NULL
        if one != NULL and index < one.slot_count and slots[index].page:
            if slots[index].resident:
                move_here(pool, slot)
        elif segment.shape == EXPANDABLE and slot.page != NULL:
            move_here(pool, slot)


cdef void lay_blocks(Pool* pool, Segment* segment, const SavedSegment* one, const SavedBlock* blocks,
                     Turned* turned) noexcept nogil:
    # Makes the saved blocks, and one block for each newer slot.  A block that is not live is a hole for now.
    cdef size_t index, number = 0, slots = 0
    cdef Block* block
    if one != NULL:
        for index in range(one.block_count):
            block = append_hole(segment, blocks[index].size)
            if blocks[index].state == LIVE:
                restore_block(pool, block, &blocks[index], turned)
            while number < one.slot_count and segment.slots[number].address < block.address + block.size:
                if blocks[index].state == HOLE:
                    segment.slots[number].hole = block
                number += 1
        slots = one.slot_count
    elif segment.shape == PLAIN:
        append_hole(segment, segment.size)
    for index in range(slots, segment.slot_count):
        segment.slots[index].hole = append_hole(segment, segment.slots[index].size)


cdef void free_blocks(Pool* pool, Segment* segment, const SavedSegment* one, const SavedBlock* blocks) noexcept nogil:
    # Frees the holes that are to be free, once all neighbours exist to merge with.
    cdef Block* block = segment.first
    cdef Block* after
    cdef Slot* slot
    cdef size_t index
    if one == NULL and segment.shape == PLAIN:
        put_free(pool, block)
    for index in range(one.block_count if one != NULL else 0):
        after = block.after
        if blocks[index].state == FREE:
            put_free(pool, block)
        block = after
    segment.evicted = 0
    for index in range(segment.slot_count):
        slot = segment.slots[index]
        if slot.page == NULL or slot.page.resident != slot:
            segment.evicted += segment.shape == STITCHED
        elif slot.hole != NULL:
            block = slot.hole
            slot.hole = NULL
            put_free(pool, block)
    segment.used = segment.heap.epoch
    segment.idle_since = pool.allocations


cdef void turn_back(Pool* pool, PrivatePool* owner, Saved* saved, Turned* turned) noexcept nogil:
    # The five steps of a restore, each over all segments.  find_kept marked the kept blocks, ensure_all ensured what the
    # steps need.
    cdef Segment* segment
    cdef SavedSegment* one
    cdef size_t index, step
    cdef Block* block
    for index in range(saved.block_count):
        saved.blocks[index].uses = NULL
        saved.blocks[index].stack = saved.blocks[index].tag = 0
        if saved.blocks[index].kept:
            block = block_at(pool, saved.blocks[index].address)
            saved.blocks[index].uses = block.uses
            saved.blocks[index].stack = block.stack
            saved.blocks[index].tag = block.tag
            block.requested = 0
    for step in range(5):
        segment = first_of(pool, owner)
        index = 0
        while segment != NULL:
            one = saved_of(saved, segment, &index)
            if step == 0:
                take_blocks(pool, segment, turned)
            elif step == 1:
                drop_blocks(segment)
            elif step == 2:
                make_pages_resident(pool, segment, one, &saved.slots[one.first_slot] if one != NULL else NULL)
            elif step == 3:
                lay_blocks(pool, segment, one, &saved.blocks[one.first_block] if one != NULL else NULL, turned)
            else:
                free_blocks(pool, segment, one, &saved.blocks[one.first_block] if one != NULL else NULL)
            segment = next_of(pool, owner, segment)
    pool.search += 1  # invalidates the marks of pages: their covering blocks are recycled


cdef int restore_pool(Saved* saved, Turned* turned) noexcept nogil:
    # Conditions first, then turn_back, which cannot fail.
    cdef Pool* pool
    cdef PrivatePool* owner
    cdef int code = begin(saved.device, saved.id[0], saved.id[1], &pool, &owner)
    if code == 0 and is_captured(pool, owner):
        code = CAPTURED
    if code == 0:
        code = match(pool, owner, saved)
    if code == 0:
        code = find_kept(pool, owner, saved, turned)
    if code == 0:
        code = ensure_all(pool, owner, saved)
    if code == 0:
        turn_back(pool, owner, saved, turned)
        if first_of(pool, owner) != NULL:
            count_splits(pool, first_of(pool, owner).heap)
        note_peaks(pool, owner)
    return leave_audited(pool, code)
