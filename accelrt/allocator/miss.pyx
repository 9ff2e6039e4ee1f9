"""The miss: what an allocation does when its heap has no block that fits.

Every step that frees memory is followed by a search, so that no request is refused while a fit exists or could be
made.  Everything here runs in the exclusive section, all but find() also under the growth lock.  Waits, and driver calls
that take or give back memory, release the exclusive section meanwhile.
"""
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_unlock
from accelrt.driver.capture_guard cimport (
    FAILED, GONE, enter_wait, is_captured_event, is_device_lost, leave_wait, meaning_of,
)
from accelrt.driver.waiting cimport INTERRUPTED, LOOK_NS, begin_slice, end_slice, is_to_end
from accelrt.allocator.address_table cimport ensure_places
from accelrt.allocator.backing.expandable cimport grow_pages, need_at_end, trim_all_expandable
from accelrt.allocator.backing.pages cimport release_page, evict
from accelrt.allocator.backing.plain cimport grow_plain, release_plain, takes_plain
from accelrt.allocator.backing.stitching cimport (
    Found, drop_idle_stitched, find_pages, forget_missing, has_too_many_stitched, is_over_budget, mark_leaving,
    reset_budget, return_all_pages, reuse_stitched, stitch,
)
from accelrt.allocator.event_queue cimport Entry, put_entry
from accelrt.allocator.event_ring cimport record_event
from accelrt.allocator.exclusive cimport call_unlocked, hand_out, lock_all, reserved, total_of, unlock_all
from accelrt.allocator.history_types cimport BORROWED, REFUSED
from accelrt.allocator.inline.block_ops cimport is_heap_quiescent, is_quiescent, keeps_rest, suits
from accelrt.allocator.inline.free_list cimport best_fit, class_of, next_class, precedes
from accelrt.allocator.metadata cimport PER_THREAD, add_use, ensure_blocks, heap_of, heap_stream
from accelrt.allocator.pending cimport await_event, poll, wait_all
from accelrt.allocator.private.private_pool cimport drop_empty, has_graphs, pool_for
from accelrt.allocator.private.private_types cimport PrivatePool, Replay
from accelrt.allocator.sizes cimport GRANULE, LARGE_LIMIT, SMALL, SMALL_LIMIT, SMALL_SEGMENT, round_up
from accelrt.allocator.stats cimport ALLOCATED_BYTES
from accelrt.allocator.stream_epochs cimport (
    cancel_device_wait, close_epochs, drop_progress_events, drop_waited, mark_all_quiescent, mark_replay, next_replay,
    poll_all, poll_progress,
)
from accelrt.allocator.types cimport CLASSES, Block, Page, Use
from accelrt.status cimport CAPTURE_UNSUPPORTED, CAP_REACHED, NOT_READY, OUT_OF_MEMORY, POOL_CAP_REACHED, SLEEPING

cdef enum:
    CAPTURE_LAST = 908
    APART = 16 << 20  # up to so many reserved bytes, streams share no pages before growth was refused
    ATTEMPTS = 64  # to grow, since other threads may take the new memory first

cdef double THRIFTY_SLACK = 0.25  # growth slack over budget, as a part of the peak of live bytes


cdef bint refused(int code) noexcept nogil:
    return code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED


cdef int find(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # The best fit of the request's heap, handed out; OUT_OF_MEMORY if there is none.
    cdef Block* block = best_fit(request.heap, request.size)
    if block == NULL or not suits(block, request.size, &pool.settings):
        return OUT_OF_MEMORY
    return give(pool, request, block, out_address)


cdef int give(Pool* pool, Request* request, Block* block, uintptr_t* out_address) noexcept nogil:
    # Hands a free block out.  A block of another stream's heap gets the requesting stream as a use, so that it returns
    # to its heap behind that stream's work.
    cdef Use* use = NULL
    cdef int code = ensure_blocks(block.heap, 1)
    if code == 0:
        code = ensure_places(block.heap, 1)
    if code:
        return code
    if request.stream == PER_THREAD or block.heap != request.heap:
        code = add_use(pool, &use, pool.device, heap_stream(request.stream))
        if code:
            return code
    hand_out(pool, block, request.size, request.requested, keeps_rest(block, request.size))
    block.uses = use
    if block.heap != request.heap:
        record_event(pool, BORROWED, block.address, request.requested, request.stream, block.heap.owner)
    out_address[0] = block.address
    return 0


# --- lending -------------------------------------------------------------------------------------------------

cdef Block* quiescent_fit(Block* node, size_t size) noexcept nogil:
    # The smallest quiescent block of a class's tree, by (size, order), that has at least size bytes; NULL if none.
    cdef Block* best = NULL
    if node == NULL:
        return NULL
    if node.size >= size:
        best = quiescent_fit(node.left, size)
        if best == NULL and is_quiescent(node):
            best = node
    return best if best != NULL else quiescent_fit(node.right, size)


cdef Block* borrowable_in(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    # The smallest quiescent free block of a heap, by (size, order), that suffices; polls the heap's progress first.
    cdef Block* best = NULL
    cdef int index = class_of(size)
    if best_fit(heap, size) == NULL:
        return NULL
    poll_progress(pool, heap)
    while index >= 0 and best == NULL:
        best = quiescent_fit(heap.trees[index], size)
        index = next_class(heap, index) if index + 1 < CLASSES else -1
    return best


cdef bint may_serve(const Heap* heap, const PrivatePool* owner, bint last) noexcept nogil:
    # Whether a heap's free blocks may serve requests of a private pool, or of the common pool (NULL).
    if heap.owner == owner:
        return True
    return last and owner == NULL and heap.owner.lends and not has_graphs(heap.owner) and heap.owner.suspension == NULL


cdef int borrow(Pool* pool, Request* request, int refusal, bint last, uintptr_t* out_address) noexcept nogil:
    # Hands out a quiescent free block of another heap of the same pool; the given refusal if there is none.  Such a
    # block may be part of a page that a live block of its heap keeps there, so that the page cannot be taken as a whole.
    # last: before the request is refused, also of the private pools that lend to the common one.
    cdef Heap* other = pool.heaps if pool.settings.virtual_memory else NULL
    cdef Block* best = NULL
    cdef Block* block
    while other != NULL:
        if other != request.heap and may_serve(other, request.heap.owner, last) and other.summary:
            block = borrowable_in(pool, other, request.size)
            if block != NULL and (best == NULL or precedes(block, best)):
                best = block
        other = other.next
    return refusal if best == NULL else give(pool, request, best, out_address)


# --- growth --------------------------------------------------------------------------------------------------

cdef size_t least_segment(const Pool* pool, size_t size) noexcept nogil:
    # The size of the smallest plain segment for a large request: whole granules, unless that would be a block of max_split
    # and more, which serves no request below max_split (suits).
    cdef size_t whole = round_up(size, GRANULE)
    return size if size < pool.settings.max_split <= whole else whole


cdef size_t plain_size(const Pool* pool, const Request* request) noexcept nogil:
    # The size of the plain segment that a request grows by.
    if request.kind == SMALL or pool.settings.virtual_memory and request.size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if request.heap.owner != NULL and request.heap.owner.whole:
        return least_segment(pool, request.size)
    if request.size < min(<size_t>LARGE_LIMIT, pool.settings.large_segment):
        return pool.settings.large_segment
    return least_segment(pool, request.size)


cdef int collect(Pool* pool, size_t size) noexcept nogil:
    # Before growth beyond the collection threshold: gives idle plain segments back, the longest idle first.
    cdef double allowed = pool.settings.collect * pool.limit
    cdef size_t total = reserved(pool) + size
    if pool.settings.collect == 0 or pool.limit == SIZE_MAX or total <= allowed:
        return 0
    return release_plain(pool, <size_t>(total - allowed))


cdef bint within_slack(const Pool* pool, size_t size, size_t need, double slack) noexcept nogil:
    # Whether reserving need more bytes stays within (1 + slack) times the peak of live bytes, the request counted in,
    # and below what the device last refused.
    cdef int64_t peak = max(pool.stats.peak_all[ALLOCATED_BYTES], total_of(pool, ALLOCATED_BYTES) + <int64_t>size)
    cdef size_t total = reserved(pool) + need
    return slack > 0 and total <= (1 + slack) * peak and total < pool.refused


cdef int grow_within(Pool* pool, Request* request, double slack) noexcept nogil:
    # Grows within a slack; CAP_REACHED beyond it.  What the device refused is not tried again until memory went back to
    # it: creating and releasing the pages that come before the refusal is expensive.
    cdef size_t need = need_at_end(pool, request.heap, request.size)
    cdef int code = CAP_REACHED
    if within_slack(pool, request.size, need, slack):
        code = grow_pages(pool, request.heap, need, True)
        if code == OUT_OF_MEMORY:
            pool.refused = reserved(pool) + need
    return code


cdef int reuse_or_stitch(Pool* pool, Request* request, Found* found) noexcept nogil:
    # Reuses a stitched segment, grows within THRIFTY_SLACK if the pool is over its stitching budget, grows by the
    # missing pages, or stitches a new segment: the first of these that applies.
    cdef size_t available = find_pages(pool, request.heap, request.across, found)
    cdef uint64_t stitched_count
    cdef int code
    if available >= request.size and reuse_stitched(pool, request.heap, request.size):
        return 0
    if pool.settings.slack < 0 and is_over_budget(pool):
        code = grow_within(pool, request, THRIFTY_SLACK)
        if code == OUT_OF_MEMORY:  # other threads may have taken the found pages meanwhile
            return 0
        if not refused(code):
            return code
    if available < request.size:
        return grow_pages(pool, request.heap, request.size - available, False)
    if has_too_many_stitched(pool):
        stitched_count = pool.stitched_count
        code = drop_idle_stitched(pool)
        if code or pool.stitched_count < stitched_count:
            return code
    return stitch(pool, request.heap, request.size, found)


cdef int stitch_pages(Pool* pool, Request* request) noexcept nogil:
    # Makes a fit out of free pages, once kept pages are returned to their expandable segments.  0 may also mean that the
    # caller should search again.
    cdef Found found
    cdef int code
    return_all_pages(pool)
    if best_fit(request.heap, request.size) != NULL:
        return 0
    memset(&found, 0, sizeof(found))
    code = reuse_or_stitch(pool, request, &found)
    free(found.runs)
    return code


cdef int grow_or_stitch(Pool* pool, Request* request) noexcept nogil:
    # Gets more memory for the request's heap, if the device and the limits allow it; 0 means search again.
    cdef int code
    if takes_plain(pool, request.heap):
        code = 0 if pool.settings.virtual_memory else collect(pool, plain_size(pool, request))
        return code if code else grow_plain(pool, request.heap, plain_size(pool, request))
    if not pool.settings.stitching:
        return grow_pages(pool, request.heap, need_at_end(pool, request.heap, request.size), True)
    code = grow_within(pool, request, pool.settings.slack)
    return stitch_pages(pool, request) if refused(code) else code


cdef int find_or_grow(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # Alternately searches and grows, until there is a fit or the device or a limit refuses.
    cdef int _attempt
    cdef int code = find(pool, request, out_address)
    for _attempt in range(ATTEMPTS):
        if code != OUT_OF_MEMORY:
            return code
        code = grow_or_stitch(pool, request)
        if code:
            return code
        code = find(pool, request, out_address)
    return code


# --- what goes back ------------------------------------------------------------------------------------------

cdef int await_device(Pool* pool, void* about) noexcept nogil:
    # For call_unlocked: runs outside the exclusive section.
    return pool.table.device_synchronize(pool.device)


cdef int await_replay(Pool* pool, Replay* found) noexcept nogil:
    # Waits for a replay by its progress event, outside the exclusive section.  The event is taken out of the record
    # first: the record may be freed meanwhile, and the stream may begin to capture.
    cdef Entry* entry
    cdef int code
    found.waited = True
    if not found.recorded:
        mark_replay(pool, found)
    if not found.recorded:  # it captures, or it is the legacy default stream and a stream that it waits for captures
        return 0
    entry = <Entry*>found.progress_event
    found.progress_event = NULL
    found.recorded = False
    code = call_unlocked(pool, await_event, entry)
    put_entry(&pool.spare_entries, entry)
    if code == 0 or is_device_lost(code):
        drop_waited(pool, found)
        return 0
    return 0 if is_captured_event(code) or meaning_of(code) == GONE else code


cdef int wait_progress(Pool* pool, Heap* heap) noexcept nogil:
    # Waits for a heap's progress event, outside the exclusive section.  The event is taken out of the heap first, so
    # that no other thread records it again, perhaps into a capture.
    cdef Entry* entry = heap.progress_event
    cdef unsigned int progress_epoch = heap.progress_epoch
    cdef int code
    heap.progress_event = NULL
    code = call_unlocked(pool, await_event, entry)
    put_entry(&pool.spare_entries, entry)
    if code == 0 and <int>(progress_epoch - heap.quiescent_epoch) > 0:
        heap.quiescent_epoch = progress_epoch
    return code if meaning_of(code) == FAILED and not is_captured_event(code) else 0


cdef int wait_beside_capture(Pool* pool) noexcept nogil:
    # Waits for each stream that does not capture, one by one.  Heap records are never freed, so the walk may go on after
    # each wait, which releases the exclusive section.
    cdef Heap* heap = pool.heaps
    cdef Replay* found
    cdef int code = 0
    end_slice()  # not in slices: after a wait that is given up, a capturing stream cannot get a new progress event
    poll_all(pool)
    while heap != NULL and code == 0:
        if heap.progress_event != NULL and not is_heap_quiescent(heap):
            code = wait_progress(pool, heap)
            poll_progress(pool, heap)
        heap = heap.next
    found = next_replay(pool)
    while code == 0 and found != NULL:
        code = await_replay(pool, found)
        found = next_replay(pool)
    return_all_pages(pool)
    return code


cdef int wait_device(Pool* pool) noexcept nogil:
    # Waits for the device, so that what any stream freed may serve every other.  NOT_READY beside a capture, where the
    # driver refuses to.
    cdef int code
    if pool.captures or not enter_wait():
        return NOT_READY
    close_epochs(pool)
    code = call_unlocked(pool, await_device, NULL)
    leave_wait()
    if code:
        cancel_device_wait(pool)
        return code
    mark_all_quiescent(pool)
    return_all_pages(pool)
    return 0


cdef int wait_streams(Pool* pool) noexcept nogil:
    # For the device, or beside a capture for the streams one by one.
    cdef int code
    if pool.first_page == NULL and pool.stitched_count == 0:
        return 0
    code = wait_device(pool)
    return wait_beside_capture(pool) if code == NOT_READY else code


cdef bint beside_capture(int code) noexcept nogil:
    # The driver refused because of a capture that accelrt did not begin.
    return CAPTURE_UNSUPPORTED <= code <= CAPTURE_LAST


cdef int evict_leaving(Pool* pool) noexcept nogil:
    # Evicts every marked page.  Each may need two block records of its heap.
    cdef Page* page = pool.first_page
    cdef int code = 0
    while page != NULL and code == 0:
        if page.resident != NULL and page.mark == pool.search:
            code = ensure_blocks(page.resident.segment.heap, 2)
            if code == 0:
                evict(pool, page)
        page = page.after
    return code


cdef int release_pages(Pool* pool) noexcept nogil:
    # Gives idle pages back, after the device was waited for.  Marked pages are evicted before any is released, so that
    # the fast path cannot hand them out while the driver works.
    cdef Page* page
    cdef Page* after
    cdef int code = drop_idle_stitched(pool)
    mark_leaving(pool)
    if code == 0:
        code = evict_leaving(pool)
    page = pool.first_page
    while page != NULL and code == 0:
        after = page.after
        if page.resident == NULL:
            code = release_page(pool, page)
        page = after
    forget_missing(pool)
    pool.refused = SIZE_MAX
    if pool.first_page == NULL and pool.stitched_count == 0:
        reset_budget(pool)
    return code if code else trim_all_expandable(pool)


cdef int release_free(Pool* pool) noexcept nogil:
    # Gives all idle memory back.  Pages stay if the driver refuses to wait because of a capture of others.
    cdef int code = release_plain(pool, SIZE_MAX)
    if code == 0 and (pool.first != NULL or pool.stitched_count):
        code = wait_streams(pool)
        if code == 0:
            code = release_pages(pool)
        elif beside_capture(code):
            code = 0
    drop_empty(pool)
    drop_progress_events(pool)
    return code


cdef int release_ended(Pool* pool) noexcept nogil:
    # Gives back the idle memory of private pools without a use, once the device was waited for, after which the events of
    # all pending blocks are complete; beside a capture nothing.  Blocks that become free only then are not known to be
    # quiescent before the device was waited for once more.
    cdef uint64_t pending
    cdef int code = wait_device(pool)
    if code == 0:
        pending = pool.pending
        code = poll(pool)
        if code == 0 and pool.pending < pending:
            code = wait_device(pool)
    if code:
        return code
    pool.only_ended = True
    code = release_plain(pool, SIZE_MAX)
    if code == 0 and pool.settings.virtual_memory:
        code = release_pages(pool)
    drop_empty(pool)
    pool.only_ended = False
    return code


cdef int release_with(Pool* pool, PrivatePool* owner) noexcept nogil:
    # As release_free, with the idle memory of one private pool (NULL: of those marked emptied already).
    cdef int code
    if owner != NULL:
        owner.emptied = True
    code = release_free(pool)
    owner = pool.privates  # the release may have freed the given one's record
    while owner != NULL:
        owner.emptied = False
        owner = owner.next
    return code


cdef int release_own(Pool* pool, PrivatePool* owner) noexcept nogil:
    # After POOL_CAP_REACHED only the private pool's idle memory can lift its own limit.
    cdef int code
    if owner == NULL or has_graphs(owner):
        return 0
    pool.only = owner
    code = release_with(pool, owner)
    pool.only = NULL
    return code


cdef int release_pools(Pool* pool, bint* out_any) noexcept nogil:
    # Before a request is refused: gives back what is idle in MemPools in use that no graph uses.
    cdef PrivatePool* owner = pool.privates
    out_any[0] = False
    while owner != NULL:
        owner.emptied = owner.users and owner.reserved and not has_graphs(owner)
        out_any[0] |= owner.emptied
        owner = owner.next
    return release_with(pool, NULL) if out_any[0] else 0


# --- the retry ladder ----------------------------------------------------------------------------------------

cdef void leave_locks(Pool* pool) noexcept nogil:
    # Leaves the exclusive section and releases the growth lock.
    unlock_all(pool, NULL)
    pthread_mutex_unlock(&pool.growth)


cdef int take_locks(Pool* pool, Request* request) noexcept nogil:
    # Takes both again.  Python may have run meanwhile and have freed the private pool of request.heap, so the heap is
    # looked up again.
    cdef PrivatePool* owner
    cdef int code
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    code = pool_for(pool, request.stream, &owner)
    if code == 0 and owner != NULL and owner.suspension != NULL:
        code = SLEEPING
    if code == 0:
        code = heap_of(pool, owner, heap_stream(request.stream), request.kind, &request.heap)
    return code


cdef int look_for_signals(Pool* pool, Request* request) noexcept nogil:
    # Runs Python's signal handlers with no lock held; INTERRUPTED if one raised.
    cdef bint found
    cdef int code
    leave_locks(pool)
    found = is_to_end()
    code = take_locks(pool, request)
    return INTERRUPTED if found else code


cdef int await_all(Pool* pool) noexcept nogil:
    # Waits for the pending blocks, then for the streams whose free pages other streams may not take yet.
    cdef int code = wait_all(pool)
    return code if code else wait_streams(pool)


cdef int wait_in_slices(Pool* pool, Request* request) noexcept nogil:
    # As await_all, on the main thread: signal handlers run between two slices, with no lock held.  Each slice is twice
    # as long as the one before, so that work which others add cannot prolong the wait for ever.
    cdef long long ns = LOOK_NS
    cdef int code
    while True:
        begin_slice(ns)
        code = await_all(pool)
        end_slice()
        if code != INTERRUPTED:
            return code
        code = look_for_signals(pool, request)
        if code:
            return code
        ns *= 2


cdef int run_callbacks(Pool* pool, Request* request, int refusal, uintptr_t* out_address) noexcept nogil:
    # Runs on_refusal with no lock held, since callbacks may allocate and free; searches again if one freed memory.
    cdef int freed, code
    leave_locks(pool)
    freed = on_refusal(pool.device, request.size)
    code = take_locks(pool, request)
    if code or not freed:
        return code if code else refusal
    code = poll(pool)
    return code if code else find_or_grow(pool, request, out_address)


cdef int last_growth(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # Plain segments: grows by the least size that holds the request.
    cdef size_t least = SMALL_SEGMENT if request.size <= SMALL_LIMIT else least_segment(pool, request.size)
    cdef int code = grow_plain(pool, request.heap, least)
    return code if code else find(pool, request, out_address)


cdef int release_and_retry(Pool* pool, Request* request, int refusal, uintptr_t* out_address) noexcept nogil:
    # Gives idle memory back and searches again; first without, then with the memory of MemPools in use.  If a private
    # pool's limit refused, only that pool's own memory helps.
    cdef int code = refusal
    cdef bint more
    pool.stats.num_alloc_retries += 1
    if refusal == POOL_CAP_REACHED:
        code = release_own(pool, request.heap.owner)
        return code if code else find_or_grow(pool, request, out_address)
    code = release_free(pool)
    if code == 0:
        code = find_or_grow(pool, request, out_address)
    if refused(code) and code != POOL_CAP_REACHED:
        refusal = code
        code = release_pools(pool, &more)
        if code == 0:
            code = find_or_grow(pool, request, out_address) if more else refusal
    return code


cdef int read_free(Pool* pool, void* about) noexcept nogil:
    # For call_unlocked: runs outside the exclusive section.
    cdef size_t total = 0
    return pool.table.memory_info(pool.device, <size_t*>about, &total)


cdef void note_refusal(Pool* pool, const Request* request) noexcept nogil:
    cdef size_t free_bytes = 0
    if pool.history != NULL and pool.history.records:
        call_unlocked(pool, read_free, &free_bytes)
        record_event(pool, REFUSED, free_bytes, request.requested, request.stream, request.heap.owner)


cdef int retry(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # The retry ladder.  A small request, or any request while little is reserved, takes no pages of other streams before
    # growth was refused: otherwise the streams would exchange the same pages again and again.
    cdef int code = poll(pool)
    request.across = request.size > SMALL_LIMIT and reserved(pool) + request.size > APART or not pool.settings.stitching
    if code == 0:
        code = find_or_grow(pool, request, out_address)
    if refused(code) and not request.across:
        request.across = True
        code = find_or_grow(pool, request, out_address)
    if refused(code) and request.size <= SMALL_LIMIT:
        code = borrow(pool, request, code, False, out_address)
    if not refused(code):
        return code
    pool.stats.num_sync_all_streams += 1
    code = wait_in_slices(pool, request) if request.interruptible else await_all(pool)
    if code == 0 or beside_capture(code):
        code = find_or_grow(pool, request, out_address)
    if refused(code) and on_refusal != NULL:
        code = run_callbacks(pool, request, code, out_address)
    if refused(code):
        code = release_and_retry(pool, request, code, out_address)
    if refused(code) and takes_plain(pool, request.heap):
        code = last_growth(pool, request, out_address)
    if refused(code):
        code = borrow(pool, request, code, True, out_address)
    if refused(code):
        pool.stats.num_ooms += 1
        note_refusal(pool, request)
    return code
