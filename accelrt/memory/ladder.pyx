"""The miss: what an allocation does when its heap has no fit, step by step, until one has.

Every step that frees something is followed by a search, so that nothing is refused while a fit exists or
could be made.
"""
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

from accelrt.driver.captures cimport enter_wait, leave_wait
from accelrt.memory.block cimport Block, Piece, Use
from accelrt.memory.credit cimport is_overdrawn, open_credit
from accelrt.memory.freelist cimport best_fit
from accelrt.memory.heap cimport keeps_rest, suits
from accelrt.memory.idle cimport close_epochs, drop_markers, settle_all
from accelrt.memory.inherit cimport inherit
from accelrt.memory.pending cimport poll, wait_all
from accelrt.memory.per_thread cimport LEGACY, PER_THREAD, filed_under
from accelrt.memory.pieces cimport release_piece, vacate
from accelrt.memory.places cimport make_cell
from accelrt.memory.private cimport drop_empty, owner_for
from accelrt.memory.records cimport add_use, heap_of, see_to_blocks
from accelrt.memory.segments cimport grow_plain, release_plain
from accelrt.memory.sizes cimport GRANULE, LARGE_LIMIT, SMALL, SMALL_LIMIT, SMALL_SEGMENT, round_up
from accelrt.memory.spans cimport grow_pages, need_at_end, trim_spans
from accelrt.memory.stats cimport ALLOCATED_BYTES
from accelrt.memory.terms cimport Private
from accelrt.memory.windows cimport (
    Found, drop_windows, find_pages, forget_blockers, is_crowded, mark_leaving, revive, send_home, stitch,
)
from accelrt.memory.world cimport enter, hand_out, leave, outside, reserved, total_of
from accelrt.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from accelrt.status cimport CAP_REACHED, CAPTURE_UNSUPPORTED, NO_HOST_MEMORY, OUT_OF_MEMORY, POOL_CAP_REACHED

cdef enum:
    CAPTURE_LAST = 908
    APART = 16 << 20  # bytes reserved up to which streams have pages of their own
    ATTEMPTS = 64  # to grow, when other threads take what was gained before we do

cdef double THRIFTY_SLACK = 0.25  # of the peak of live bytes, where windows do not pay


cdef bint refused(int code) noexcept nogil:
    return code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED


cdef int find(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    cdef Block* block = best_fit(request.heap, request.size)
    cdef Use* use = NULL
    cdef int code
    if block == NULL or not suits(block, request.size, &pool.policy):
        return OUT_OF_MEMORY
    code = see_to_blocks(request.heap, 1)
    if code:
        return code
    if block.cell == NULL:
        block.cell = make_cell(block.address)
        if block.cell == NULL:
            return NO_HOST_MEMORY
    if request.stream == PER_THREAD:
        code = add_use(pool, &use, pool.device, LEGACY)
        if code:
            return code
    hand_out(pool, block, request.size, request.requested, keeps_rest(block, request.size))
    block.uses = use
    out_address[0] = block.address
    return 0


# --- growth --------------------------------------------------------------------------------------------------

cdef size_t plain_size(const Pool* pool, const Request* request) noexcept nogil:
    if request.kind == SMALL:
        return SMALL_SEGMENT
    if request.size < min(<size_t>LARGE_LIMIT, pool.policy.large_segment):
        return pool.policy.large_segment
    return round_up(request.size, GRANULE)


cdef int collect(Pool* pool, size_t size) noexcept nogil:
    # Before growth beyond the threshold: what has been idle longest goes back first.
    cdef double allowed = pool.policy.collect * pool.limit
    cdef size_t total = reserved(pool) + size
    if pool.policy.collect == 0 or pool.limit == SIZE_MAX or total <= allowed:
        return 0
    return release_plain(pool, <size_t>(total - allowed))


cdef bint within_slack(const Pool* pool, size_t size, size_t need, double slack) noexcept nogil:
    cdef int64_t peak = max(pool.stats.peak_all[ALLOCATED_BYTES], total_of(pool, ALLOCATED_BYTES) + <int64_t>size)
    cdef size_t total = reserved(pool) + need
    return slack > 0 and total <= (1 + slack) * peak and total < pool.refused


cdef int grow_within(Pool* pool, Request* request, double slack) noexcept nogil:
    # What the device refuses is not tried again before something went back: the pieces made until then cost too much.
    cdef size_t need = need_at_end(pool, request.heap, request.size)
    cdef int code = CAP_REACHED
    if within_slack(pool, request.size, need, slack):
        code = grow_pages(pool, request.heap, need, True)
        if code == OUT_OF_MEMORY:
            pool.refused = reserved(pool) + need
    return code


cdef int draw(Pool* pool, Request* request, Found* found) noexcept nogil:
    # An old window, more memory instead of a new one where those do not pay, a new one, or what is missing for it.
    cdef size_t available = find_pages(pool, request.heap, request.across, found)
    cdef uint64_t windows
    cdef int code
    if available >= request.size and revive(pool, request.heap, request.size):
        return 0
    if pool.policy.slack < 0 and is_overdrawn(pool):
        code = grow_within(pool, request, THRIFTY_SLACK)
        if code == OUT_OF_MEMORY:  # others may have taken meanwhile what was found
            return 0
        if not refused(code):
            return code
    if available < request.size:
        return grow_pages(pool, request.heap, request.size - available, False)
    if is_crowded(pool):
        windows = pool.windows
        code = drop_windows(pool)
        if code or pool.windows < windows:
            return code
    return stitch(pool, request.heap, request.size, found)


cdef int gather(Pool* pool, Request* request) noexcept nogil:
    # A fit out of pages.
    cdef Found found
    cdef int code
    send_home(pool)
    if best_fit(request.heap, request.size) != NULL:
        return 0
    memset(&found, 0, sizeof(found))
    code = draw(pool, request, &found)
    free(found.blocks)
    return code


cdef int obtain(Pool* pool, Request* request) noexcept nogil:
    # More for the heap, if the device and the limit allow it.
    cdef int code
    if not pool.policy.virtual_memory:
        if inherit(pool, request.heap, request.size):
            return 0
        code = collect(pool, plain_size(pool, request))
        return code if code else grow_plain(pool, request.heap, plain_size(pool, request))
    if not pool.policy.stitching:
        return grow_pages(pool, request.heap, need_at_end(pool, request.heap, request.size), True)
    code = grow_within(pool, request, pool.policy.slack)
    return gather(pool, request) if refused(code) else code


cdef int serve(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    cdef int _attempt
    cdef int code = find(pool, request, out_address)
    for _attempt in range(ATTEMPTS):
        if code != OUT_OF_MEMORY:
            return code
        code = obtain(pool, request)
        if code:
            return code
        code = find(pool, request, out_address)
    return code


# --- what goes back ------------------------------------------------------------------------------------------

cdef int await_device(Pool* pool, void* about) noexcept nogil:
    return pool.table.device_synchronize(pool.device)


cdef int wait_streams(Pool* pool) noexcept nogil:
    # Then what any stream freed may serve every other.  Beside a capture the device must not be waited for.
    cdef int code
    if pool.captures or (pool.first_piece == NULL and pool.windows == 0) or not enter_wait():
        return 0
    close_epochs(pool)
    code = outside(pool, await_device, NULL)
    leave_wait()
    if code == 0:
        settle_all(pool)
        send_home(pool)
    return code


cdef bint beside_capture(int code) noexcept nogil:
    # Somebody else's capture, of which this pool knows nothing.
    return CAPTURE_UNSUPPORTED <= code <= CAPTURE_LAST


cdef int see_to_leaving(Pool* pool) noexcept nogil:
    # Two records for each piece that may leave.
    cdef Piece* piece = pool.first_piece
    cdef size_t count = 0
    cdef int code = 0
    while piece != NULL:
        count += 1
        piece = piece.after
    piece = pool.first_piece
    while piece != NULL and code == 0:
        if piece.home != NULL and piece.mark == pool.search:
            code = see_to_blocks(piece.home.segment.heap, 2)
            if code == 0:
                vacate(pool, piece)
        piece = piece.after
    return code


cdef int release_pages(Pool* pool) noexcept nogil:
    # The device was waited for.  What is marked loses its home first, so that no hit takes it meanwhile.
    cdef Piece* piece
    cdef Piece* after
    cdef int code = drop_windows(pool)
    mark_leaving(pool)
    if code == 0:
        code = see_to_leaving(pool)
    piece = pool.first_piece
    while piece != NULL and code == 0:
        after = piece.after
        if piece.home == NULL:
            code = release_piece(pool, piece)
        piece = after
    forget_blockers(pool)
    pool.refused = SIZE_MAX
    if pool.first_piece == NULL and pool.windows == 0:
        open_credit(pool)
    return code if code else trim_spans(pool)


cdef int release_free(Pool* pool) noexcept nogil:
    cdef int code = release_plain(pool, SIZE_MAX)
    if code == 0 and pool.captures == 0 and (pool.first != NULL or pool.windows):
        code = wait_streams(pool)
        if code == 0:
            code = release_pages(pool)
        elif beside_capture(code):
            code = 0
    drop_empty(pool)
    drop_markers(pool)
    return code


# --- the ladder ----------------------------------------------------------------------------------------------

cdef int ask(Pool* pool, Request* request, int refusal, uintptr_t* out_address) noexcept nogil:
    # Outside all locks: who is asked may allocate and free, and whose heap it was may be gone.
    cdef Private* owner
    cdef int freed, code
    leave(pool, NULL)
    pthread_mutex_unlock(&pool.growth)
    freed = on_refusal(pool.device, request.size)
    pthread_mutex_lock(&pool.growth)
    enter(pool)
    code = owner_for(pool, request.stream, &owner)
    if code == 0:
        code = heap_of(pool, owner, filed_under(request.stream), request.kind, &request.heap)
    if code or not freed:
        return code if code else refusal
    code = poll(pool)
    return code if code else serve(pool, request, out_address)


cdef int last_growth(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # The least that serves.
    cdef size_t least = SMALL_SEGMENT if request.kind == SMALL else round_up(request.size, GRANULE)
    cdef int code = grow_plain(pool, request.heap, least)
    return code if code else find(pool, request, out_address)


cdef int climb(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # A small request, or one of a process that has little, takes no pages from other streams before growth was
    # refused: the streams would ask for them back, again and again.
    cdef int code = poll(pool)
    request.across = request.size > SMALL_LIMIT and reserved(pool) + request.size > APART or not pool.policy.stitching
    if code == 0:
        code = serve(pool, request, out_address)
    if refused(code) and not request.across:
        request.across = True
        code = serve(pool, request, out_address)
    if not refused(code):
        return code
    code = wait_all(pool)
    if code == 0:
        code = wait_streams(pool)
    if code == 0 or beside_capture(code):
        code = serve(pool, request, out_address)
    if refused(code) and on_refusal != NULL:
        code = ask(pool, request, code, out_address)
    if refused(code) and code != POOL_CAP_REACHED:  # which what others give back does not lift
        pool.stats.num_alloc_retries += 1
        code = release_free(pool)
        if code == 0:
            code = serve(pool, request, out_address)
    if refused(code) and not pool.policy.virtual_memory:
        code = last_growth(pool, request, out_address)
    if refused(code):
        pool.stats.num_ooms += 1
    return code
