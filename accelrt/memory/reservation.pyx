"""Addresses that are reserved at once and given memory page by page: reserve().

A Reservation is a private pool (allocator/private/DESIGN.md) with one heap and one expandable segment, which is never cut
off: its slots, a page's addresses each, get pages when they are committed, wherever in the segment that is.  A committed
page is one live block.  What is decommitted is a free block of the heap, whose pages stay mapped where they are: in the
order of the Reservation's stream they are ready to be committed again without a call of the driver, and as idle memory of a
pool they go back to the device where a request would be refused otherwise.  So pages made ahead are free blocks too.
"""
cimport cython
from _thread import RLock
import weakref
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

from accelrt.allocator.audit cimport inspected
from accelrt.allocator.backing.pages cimport (
    add_gap, drop_slot, ELSEWHERE, link_segment, link_slot, make_page_for, make_resident, new_segment, open_slots,
    release_page, reserve_addresses, slot_index, unlock_growth, unmap_slot, within_limits,
)
from accelrt.allocator.backing.stitching cimport evict, free_block, poll_progress
from accelrt.allocator.event_ring cimport drop_stack, take_stack
from accelrt.allocator.heaps cimport (
    block_at, count_freed, count_splits, ensure_blocks, find_private, hand_out_unlisted, heap_of, heap_stream, lock_all,
    note_peaks, put_free, sum_of, take_free, unlock_all,
)
from accelrt.allocator.history_types cimport CONTEXT_ALL, CONTEXT_STATE
from accelrt.allocator.inline.block_map cimport ensure_places
from accelrt.allocator.inline.block_ops cimport is_quiescent, split_off
from accelrt.allocator.inline.free_list cimport largest
from accelrt.allocator.miss cimport (
    await_all, beside_capture, defer, poll, record_events, release_ended, release_free, release_own, wait_all,
)
from accelrt.allocator.pool cimport pool_if_made, pool_of, use_across
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.sizes cimport LARGE
from accelrt.allocator.stats cimport ACTIVE_BYTES
from accelrt.allocator.types cimport EXPANDABLE, FREE, HOLE, LIVE, Block, Heap, Page, Pool, Segment, Slot
from accelrt.core.integers cimport checked_address_int, exact_int
from accelrt.core.locks cimport pthread_mutex_lock
from accelrt.core.process cimport ForkSafeLock
from accelrt.core.process import call_at_exit, call_at_fork
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport (
    add_use, begin_main_slice, drop_use, end_slice, INTERRUPTED, is_main_thread, is_to_end, LOOK_NS, raise_interruption, Use,
)
from accelrt.driver.memory cimport MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN
from accelrt.errors import CudaError
from accelrt.memory.caching cimport is_lack, raise_refusal, require_native
from accelrt.memory.caching import views_of_memory
from accelrt.memory.mempool cimport forget_reservation, MemPool, note_reservation, put_to_sleep, wake_up
from accelrt.runtime.lifetimes cimport any_capture, record_on
from accelrt.status cimport (
    FORKED, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, NO_HOST_MEMORY, POOL_CAP_REACHED, SLEEPING,
    raise_status, refuse_copy, refuse_unmade,
)
from accelrt.streams.stream cimport ordinal_beside, Stream, stream_for, stream_of
cimport accelrt.runtime.access as watch


# --- the pages of a reservation -----------------------------------------------------------------------------------
# Nogil code, under the pool's locks.  A reservation is named by the number of its private pool: its segment is there while
# that pool is fixed.

cdef enum:  # answered beside codes of the driver and of status.pxd
    COMMITTED = -101    # the page at out_index is committed already
    UNCOMMITTED = -102  # it is not committed
    IN_CAPTURE = -103   # its last use waits for the end of a capture
    SHARED = -104       # other processes have it

cdef dict UNRESERVED = {
    NOT_SUPPORTED: "the device lacks virtual memory, or ACCELRT_ALLOC_CONF turned it off (expandable_segments:False)",
    ELSEWHERE: "something lies at these addresses, or the device can have no memory there; pass others, or none",
}

cdef struct Figures:
    size_t committed  # bytes of pages
    size_t ready      # of pages that are mapped and not committed
    size_t pending    # of those that a stream may still use


cdef int open_reserved(int device, uint64_t number, uintptr_t stream, size_t room, uintptr_t* address) noexcept nogil:
    # The private pool is retained.  The address is the one that is asked for, or 0.
    cdef Pool* pool
    cdef PrivatePool* owner
    cdef Heap* heap = NULL
    cdef Segment* segment = NULL
    cdef int code = pool_of(device, &pool)
    if code == 0 and (pool.external != NULL or not pool.settings.virtual_memory):
        code = NOT_SUPPORTED
    if code:
        return code
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    if address[0]:  # which a closed reservation may have, until memory goes back; beside a capture it keeps them
        code = release_ended(pool)
    owner = find_private(pool, 0, number)
    if code in (0, NOT_READY) or beside_capture(code):
        code = heap_of(pool, owner, heap_stream(stream), LARGE, &heap)
    if code == 0:
        segment = new_segment(pool, heap, EXPANDABLE)
        code = NO_HOST_MEMORY if segment == NULL else reserve_addresses(pool, segment, room, address[0])
    if code == 0:
        link_segment(pool, segment)
        owner.fixed = True
        address[0] = segment.address
    else:
        free(segment)
    code = inspected(pool, code)
    unlock_all(pool, heap)
    unlock_growth(pool)
    return code


cdef Segment* segment_of(Pool* pool, uint64_t number, uintptr_t address) noexcept nogil:
    # NULL once it is closed.  The heap's map leads to it, but for a reservation that has no page yet.
    cdef const PrivatePool* owner = find_private(pool, 0, number)
    cdef Segment* segment = pool.last if owner != NULL and owner.fixed else NULL
    while segment != NULL and segment.address != address:
        segment = segment.before
    return segment


cdef Block* block_over(const Pool* pool, const Segment* segment, size_t index) noexcept nogil:
    # Whatever its state: a free block may begin some slots before.
    cdef const Slot* slot = segment.slots[index]
    cdef Block* block
    cdef size_t below = index
    if slot.hole != NULL:
        return slot.hole
    block = block_at(pool, slot.address)
    while block == NULL and below:
        below -= 1
        block = segment.slots[below].hole
        if block == NULL:
            block = block_at(pool, segment.slots[below].address)
    if block == NULL:
        block = segment.first
    while slot.address - block.address >= block.size:
        block = block.after
    return block


cdef int ensure_gaps(Segment* segment, size_t end, size_t page) noexcept nogil:
    cdef int code = 0
    while code == 0 and segment.slot_count < end:
        code = add_gap(segment, page)
    return code


cdef int check_free(const Pool* pool, const Segment* segment, size_t first, size_t end, size_t* out_index) noexcept nogil:
    # COMMITTED, NOT_READY where a page waits for its last use, or 0.
    cdef const Block* block
    cdef size_t index
    cdef int code = 0
    for index in range(first, min(end, segment.slot_count)):
        block = block_at(pool, segment.slots[index].address)
        if block != NULL:
            out_index[0] = index
            if block.state == LIVE:
                return COMMITTED
            code = NOT_READY
    return code


cdef bint are_ready(const Segment* segment, size_t first, size_t end) noexcept nogil:
    cdef size_t index
    if segment.slot_count < end:
        return False
    for index in range(first, end):
        if segment.slots[index].hole != NULL:
            return False
    return True


cdef bint has_idle(const Segment* segment, const Block* block, size_t first, size_t end, size_t* out_index) noexcept nogil:
    # Whether a block has a page outside of the range that is free and that no work uses any more, and its last one.
    cdef size_t index
    if block == NULL or block.state != FREE or not is_quiescent(block):
        return False
    index = slot_index(segment, block.address + block.size) - 1
    if first <= index < end:
        index = first - 1 if first and segment.slots[first].address > block.address else end
    out_index[0] = index
    return index < segment.slot_count and block.address <= segment.slots[index].address < block.address + block.size


cdef Block* find_idle(const Segment* segment, size_t first, size_t end, size_t* out_index) noexcept nogil:
    # A page to move, and the block over it; or NULL.  The end of the longest run is needed there last, if what grows from
    # the run's start is committed there again.
    cdef Block* block = largest(segment.heap)
    if has_idle(segment, block, first, end, out_index):
        return block
    block = segment.last
    while block != NULL and not has_idle(segment, block, first, end, out_index):
        block = block.before
    return block


cdef int move_idle(Pool* pool, Segment* segment, size_t first, size_t end, Slot* to) noexcept nogil:
    # Gives a slot the page of another one, not mapped yet; NOT_READY where there is none to move.
    cdef Slot* origin
    cdef Page* page
    cdef size_t index = 0
    cdef Block* block = find_idle(segment, first, end, &index)
    cdef int code
    if block == NULL or ensure_blocks(segment.heap, 2):
        return NOT_READY
    origin = segment.slots[index]
    page = origin.page
    page.cover = block
    evict(pool, page)
    code = unmap_slot(pool, origin)
    if code:
        make_resident(pool, origin)
        return code
    drop_slot(origin)
    link_slot(to, page)
    page.primary = to
    return 0


cdef int fill_slot(Pool* pool, Segment* segment, size_t first, size_t end, size_t keep, Slot* slot) noexcept nogil:
    # With an idle page, if there are more of them than are to be kept where they are, or with a new one.
    cdef PrivatePool* owner = segment.heap.owner
    cdef int64_t active = sum_of(pool, owner, ACTIVE_BYTES)
    cdef int code = NOT_READY
    if <int64_t>owner.reserved > active + <int64_t>keep:
        code = move_idle(pool, segment, first, end, slot)
    if code == NOT_READY:
        code = within_limits(pool, segment.heap, slot.size)
        if code == 0:
            code = make_page_for(pool, slot)
    return code


cdef int fill_run(Pool* pool, Segment* segment, size_t first, size_t end, size_t keep, size_t index) noexcept nogil:
    # The gaps from index on, in one call of the driver.  What other threads decommit meanwhile stays as it is.
    cdef size_t stop = index
    cdef int code = 0
    while code == 0 and stop < end and segment.slots[stop].page == NULL:
        code = fill_slot(pool, segment, first, end, keep, segment.slots[stop])
        stop += code == 0
    return open_slots(pool, segment, index, stop - index, code)


cdef int make_room(Pool* pool, PrivatePool* owner, int refusal, int attempt) noexcept nogil:
    # As a miss does (miss.pyx, retry): what was freed and is still in use is waited for, then idle memory goes back, the
    # common one's before this pool's own.
    cdef int code
    if attempt == 0:
        pool.stats.num_sync_all_streams += 1
        code = await_all(pool)
        return 0 if beside_capture(code) else code
    return release_own(pool, owner) if attempt == 2 or refusal == POOL_CAP_REACHED else release_free(pool)


cdef int fill_gaps(Pool* pool, Segment* segment, size_t page, size_t first, size_t end, size_t keep) noexcept nogil:
    # Where the driver or a limit refuses, others' memory serves first (make_room).  That may make gaps again, and cut off
    # those at the end.  A page that the driver did not take back is resident nowhere.
    cdef size_t index = first
    cdef int attempt = 0, code = ensure_gaps(segment, end, page)
    poll_progress(pool, segment.heap)
    while code == 0 and index < end:
        if segment.slots[index].page != NULL and segment.slots[index].page.resident == NULL:
            code = release_page(pool, segment.slots[index].page)
        if code == 0 and segment.slots[index].page == NULL:
            code = fill_run(pool, segment, first, end, keep, index)
        if is_lack(code) and attempt < 3:
            code = make_room(pool, segment.heap.owner, code, attempt)
            attempt += 1
            index = first
            if code == 0:
                code = ensure_gaps(segment, end, page)
        elif code == 0:
            index += 1
    return code


cdef int take_page(Pool* pool, Segment* segment, size_t index, int device, uintptr_t stream) noexcept nogil:
    # A page that is mapped and free becomes a live block.  The caller has ensured a place in the map.
    cdef const Slot* slot = segment.slots[index]
    cdef Heap* heap = segment.heap
    cdef Block* block = block_over(pool, segment, index)
    cdef Block* rest
    cdef int code = ensure_blocks(heap, 2)
    if code:
        return code
    take_free(pool, block)
    block.state = HOLE
    if block.address < slot.address:
        split_off(heap, block, slot.address - block.address)
        rest = block.after
        rest.state = HOLE
        put_free(pool, block)
        block = rest
    if block.size > slot.size:
        split_off(heap, block, slot.size)
        block.after.state = HOLE
        put_free(pool, block.after)
    hand_out_unlisted(pool, block, slot.size, LARGE)
    if stream != heap.stream or device != pool.device:
        code = add_use(&pool.uses, &block.uses, device, stream)
    return code


cdef int take_pages(Pool* pool, Segment* segment, size_t first, size_t end, int device, uintptr_t stream) noexcept nogil:
    cdef size_t index, done = first
    cdef int code = ensure_places(segment.heap, end - first)
    while code == 0 and done < end:
        code = take_page(pool, segment, done, device, stream)
        done += 1
    if code:  # the last one may be live, without its use
        for index in range(first, done):
            if block_at(pool, segment.slots[index].address) != NULL:
                give_page(pool, block_at(pool, segment.slots[index].address))
    count_splits(pool, segment.heap)
    note_peaks(pool, segment.heap.owner)
    return code


cdef int commit_pages(int device, uint64_t number, uintptr_t address, size_t page, size_t first, size_t end, size_t keep,
                      int stream_on, uintptr_t stream, size_t* out_index) noexcept nogil:
    # Pages that are ready are taken in the exclusive section alone: whoever makes pages has the growth lock for long.
    cdef Pool* pool = pool_if_made(device)
    cdef Segment* segment
    cdef int code = 0
    cdef bint grows = False
    if pool == NULL:
        return FORKED
    stream = heap_stream(stream)
    while True:
        if grows:
            pthread_mutex_lock(&pool.growth)
        lock_all(pool)
        segment = segment_of(pool, number, address)
        if grows:
            keep_addresses(segment, True)
        code = commit_in(pool, segment, number, page, first, end, keep, stream_on, stream, grows, out_index)
        if grows:
            keep_addresses(segment, False)
        if code != NOT_READY or grows:
            code = inspected(pool, code)
        unlock_all(pool, NULL if segment == NULL else segment.heap)
        if grows:
            unlock_growth(pool)
        if code != NOT_READY or grows:
            break
        grows = True
    drop_stack()
    return IN_CAPTURE if code == NOT_READY else code


cdef void keep_addresses(Segment* segment, bint keep) noexcept nogil:
    # While the driver is called others may close the Reservation, and then this thread itself gives idle memory back.
    if segment != NULL:
        segment.heap.owner.filling = keep


cdef int check_open_in(Pool* pool, const Segment* segment, uint64_t number) noexcept nogil:
    # The segment itself stays while a thread has the growth lock (keep_addresses).
    if segment == NULL or segment_of(pool, number, segment.address) != segment:
        return NOT_ALLOCATED
    return SLEEPING if segment.heap.owner.suspension != NULL else 0


cdef int commit_in(Pool* pool, Segment* segment, uint64_t number, size_t page, size_t first, size_t end, size_t keep,
                   int stream_on, uintptr_t stream, bint grows, size_t* out_index) noexcept nogil:
    # NOT_READY where it takes the growth lock; and with it, where a capture has to end first.
    cdef int code = check_open_in(pool, segment, number)
    if code:
        return code
    # Driver calls leave the exclusive section, in which others may commit, decommit and close: so all is looked at again.
    while True:
        code = check_free(pool, segment, first, end, out_index)
        if code == NOT_READY and pool.captures == 0:
            code = poll(pool)
            if code == 0:
                code = check_free(pool, segment, first, end, out_index)
        if code == NOT_READY and grows:
            code = wait_all(pool)
            if code == 0:
                code = check_free(pool, segment, first, end, out_index)
        if code == 0:
            code = check_open_in(pool, segment, number)
        if code or are_ready(segment, first, end):
            break
        if not grows:
            return NOT_READY
        code = fill_gaps(pool, segment, page, first, end, keep)
        if code:
            return code
    return code if code else take_pages(pool, segment, first, end, stream_on, stream)


cdef int make_pages(int device, uint64_t number, uintptr_t address, size_t page, size_t first, size_t end,
                    size_t keep) noexcept nogil:
    # Ahead: those that there are stay as they are.
    cdef Pool* pool = pool_if_made(device)
    cdef Segment* segment
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    segment = segment_of(pool, number, address)
    code = NOT_ALLOCATED if segment == NULL else SLEEPING if segment.heap.owner.suspension != NULL else 0
    if code == 0:
        keep_addresses(segment, True)
        code = fill_gaps(pool, segment, page, first, end, keep)
        keep_addresses(segment, False)
        count_splits(pool, segment.heap)
    code = inspected(pool, code)
    unlock_all(pool, NULL if segment == NULL else segment.heap)
    unlock_growth(pool)
    drop_stack()
    return code


cdef bint goes_on(int code, long long* ns) except -1:
    # Behind a call in a slice: whether it is to be made again.  Signals' handlers run here, with no lock held and outside of
    # the gate, for they may allocate and capture.
    if is_main_thread():
        end_slice()
    if code != INTERRUPTED:
        return False
    if is_to_end():
        raise_interruption()
    ns[0] *= 2
    return True


cdef int give_page(Pool* pool, Block* block) noexcept nogil:
    # Who used the reservation may have used the page.
    cdef const PrivatePool* owner = block.heap.owner
    cdef const Use* use = owner.streams
    cdef int code = 0
    while use != NULL and code == 0:
        code = add_use(&pool.uses, &block.uses, use.device, use.stream)
        use = use.next
    if code:
        return code
    count_freed(pool, block)
    if block.uses == NULL:
        free_block(pool, block)
    else:
        defer(pool, block)
    return 0


cdef int decommit_pages(int device, uint64_t number, uintptr_t address, size_t first, size_t end, int stream_on,
                        uintptr_t stream, size_t* out_index) noexcept nogil:
    # All of them, or none where one is not committed.
    cdef Pool* pool = pool_if_made(device)
    cdef Segment* segment
    cdef Block* block
    cdef size_t index
    cdef int code = 0
    if pool == NULL:
        return FORKED
    stream = heap_stream(stream)
    lock_all(pool)
    segment = segment_of(pool, number, address)
    if segment == NULL:
        code = NOT_ALLOCATED
    for index in range(first, end if segment != NULL else first):
        block = block_at(pool, segment.slots[index].address) if index < segment.slot_count else NULL
        if block == NULL or block.state != LIVE:
            out_index[0] = index
            code = UNCOMMITTED
            break
        if segment.slots[index].page.exports:
            out_index[0] = index
            code = SHARED
            break
    for index in range(first, end if code == 0 and (stream != segment.heap.stream or stream_on != device) else first):
        block = block_at(pool, segment.slots[index].address)
        code = code or add_use(&pool.uses, &block.uses, stream_on, stream)
    if code == 0:
        for index in range(first, end):
            if code == 0:
                code = give_page(pool, block_at(pool, segment.slots[index].address))
        record_events(pool)  # where it fails the blocks stay pending, and the next poll tries again
        count_splits(pool, segment.heap)
    code = inspected(pool, code)
    unlock_all(pool, NULL if segment == NULL else segment.heap)
    drop_stack()
    return code


cdef int close_reserved(int device, uint64_t number, uintptr_t address) noexcept nogil:
    # All pages are decommitted; the segment is idle memory's from then on.
    cdef Pool* pool = pool_if_made(device)
    cdef Segment* segment
    cdef Block* block
    cdef size_t index
    cdef int code = 0
    if pool == NULL:
        return 0
    lock_all(pool)
    segment = segment_of(pool, number, address)
    if segment != NULL:
        for index in range(segment.slot_count):
            block = block_at(pool, segment.slots[index].address)
            if block != NULL and block.state == LIVE and code == 0:
                code = give_page(pool, block)
        if code == 0:
            segment.heap.owner.fixed = False
            while segment.heap.owner.streams != NULL:
                drop_use(&pool.uses, &segment.heap.owner.streams)
        record_events(pool)
        count_splits(pool, segment.heap)
        code = inspected(pool, code)
    unlock_all(pool, NULL if segment == NULL else segment.heap)
    drop_stack()
    return code


cdef int read_states(int device, uint64_t number, uintptr_t address, size_t first, size_t end, char* states,
                     Figures* out_figures) noexcept nogil:
    # states: NULL, or a byte for each page that is 1 where it is committed.
    cdef Pool* pool = pool_if_made(device)
    cdef const Segment* segment
    cdef const Block* block
    cdef const Slot* slot
    cdef size_t index
    memset(out_figures, 0, sizeof(Figures))
    if pool == NULL:
        return FORKED
    lock_all(pool)
    segment = segment_of(pool, number, address)
    for index in range(first, min(end, segment.slot_count) if segment != NULL else first):
        slot = segment.slots[index]
        block = block_at(pool, slot.address)
        if block == NULL:
            out_figures.ready += slot.size if slot.hole == NULL else 0
        elif block.state == LIVE:
            out_figures.committed += slot.size
            if states != NULL:
                states[index - first] = 1
        else:
            out_figures.pending += slot.size
    unlock_all(pool, NULL)
    return 0 if segment != NULL else NOT_ALLOCATED


cdef int protect_pages(int device, uint64_t number, uintptr_t address, size_t first, size_t end, int access,
                       size_t* out_index) noexcept nogil:
    # The pages are committed.  Under the growth lock, under which alone pages are mapped and go.
    cdef Pool* pool = pool_if_made(device)
    cdef const Segment* segment
    cdef const Block* block
    cdef uintptr_t start = 0
    cdef size_t index, size = 0
    cdef int code = 0
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    segment = segment_of(pool, number, address)
    code = NOT_ALLOCATED if segment == NULL else SLEEPING if segment.heap.owner.suspension != NULL else 0
    for index in range(first, end if code == 0 else first):
        block = NULL if index >= segment.slot_count else block_at(pool, segment.slots[index].address)
        if block == NULL or block.state != LIVE:
            out_index[0] = index
            code = UNCOMMITTED
            break
        start = start or segment.slots[index].address
        size += segment.slots[index].size
    unlock_all(pool, NULL)
    if code == 0:
        code = pool.table.memory_access(start, size, device, access)
    unlock_growth(pool)
    return code


# --- pages made ahead, by a thread -------------------------------------------------------------------------------

cdef object errands = None  # a queue of (a weak reference to a Reservation, first page, pages), or None: the end
cdef object maker = None    # the thread
cdef ForkSafeLock making = ForkSafeLock()  # of the two; a signal's handler may commit while the thread starts


def make_ahead(queued: object) -> None:
    """Makes pages as the queue says, until it says None.  What is refused now is made when it is committed."""
    while True:
        errand = queued.get()
        if errand is None:
            return
        reference, first, count = errand
        try:
            reservation = reference()
            if reservation is not None:
                reservation.prepare(first * reservation.page_bytes, count * reservation.page_bytes)
        except (CudaError, MemoryError, ValueError, RuntimeError):
            pass  # out of memory, asleep or closed
        finally:
            errand = reference = reservation = None


def ask_ahead(errand: tuple[object, int, int]) -> None:
    """Puts an errand into the queue.  Where no thread can be started, nothing is made ahead."""
    with making:
        if maker is None or not maker.is_alive():
            try:
                start_making()
            except RuntimeError:
                return
        errands.put(errand)


def start_making() -> None:
    global errands, maker
    import queue
    import threading

    queued = queue.SimpleQueue()
    started = threading.Thread(target=make_ahead, args=(queued,), name="accelrt-pages", daemon=True)
    try:
        started.start()
    except BaseException:
        queued.put(None)  # it may run all the same
        raise
    if maker is not None and maker.is_alive():  # a handler's call started one
        queued.put(None)
    else:
        errands, maker = queued, started


def stop_making() -> None:
    with making:
        if maker is not None and maker.is_alive():
            errands.put(None)
            maker.join(10)


def forget_in_child() -> None:
    global errands, maker
    errands = maker = None


call_at_exit("memory.reservation", "pools", stop_making)
call_at_fork("memory.reservation", "tools", child=forget_in_child)


# --- Reservation -------------------------------------------------------------------------------------------------

cdef enum:
    KEPT = 8  # pages that stay where they are decommitted, unless `ahead` says more

cdef dict ACCESS = {"none": MEMORY_CLOSED, "r": MEMORY_READ, "rw": MEMORY_WRITTEN}


@cython.no_gc_clear  # __dealloc__ needs the pool
cdef class Reservation:
    """Reservation()\n--\n\n\
    Addresses on a device that are given memory page by page; made by accelrt.reserve().

        cache = accelrt.reserve(1 << 36)
        cache.commit(0, 2 << 20)                # the first page
        keys = cache.array((512, 2048), "f2")   # may reach into what is not committed yet
        cache.decommit(0, 2 << 20)

    What is committed is memory of the device's allocator like any other: it counts in memory_stats() and memory_summary(),
    is recorded in the history with its stack and tag, is within limits, and sleeps.  All offsets and sizes are multiples
    of page_bytes.  Work on memory that is not committed fails as work on freed memory does.

    Attributes:
        ptr: int, the first address.
        nbytes: int, of addresses.
        page_bytes: int, of a page.
        device_index: int, the ordinal of the device.
        stream: Stream, whose order commits and decommits follow.
    """

    cdef readonly uintptr_t ptr         # the first address
    cdef readonly size_t nbytes         # of addresses
    cdef readonly size_t page_bytes     # of a page
    cdef readonly int device_index
    cdef readonly Stream stream         # whose order commits and decommits follow
    cdef MemPool pool                   # None once closed
    cdef uint64_t number                # the pool's
    cdef size_t ahead                   # pages to make behind each commit
    cdef dict accesses                  # page -> the access it has, where that is not "rw"
    cdef object turns                   # a lock: pages and their accesses change together
    cdef Py_ssize_t views               # Buffers on it that are alive
    cdef object __weakref__

    def __init__(self) -> None:
        raise TypeError("a Reservation is made by accelrt.reserve(nbytes)")

    def __dealloc__(self):
        if self.number:
            forget_reservation(self.device_index, self.number)
        if self.ptr and self.pool is not None:
            with nogil:
                close_reserved(self.device_index, self.number, self.ptr)

    cdef int check_open(self) except -1:
        if self.ptr == 0:
            refuse_unmade(self)
        if self.pool is None:
            raise ValueError("the Reservation is closed")
        return 0

    cdef MemPool opened(self):
        # With a reference: another thread may close it meanwhile, and what an attribute has is asked without one.
        cdef MemPool pool
        self.check_open()
        pool = self.pool
        return pool

    cdef int check_range(self, object offset, object nbytes, size_t* out_first, size_t* out_end) except -1:
        cdef object start = exact_int(offset, "offset", "bytes as int")
        cdef object size
        self.check_open()
        size = self.nbytes - start if nbytes is None else exact_int(nbytes, "nbytes", "bytes as int")
        if start < 0 or size < 0 or start + size > self.nbytes:
            raise ValueError(f"offset {start} and nbytes {size} are not within the {self.nbytes} bytes that are reserved")
        if start % self.page_bytes or size % self.page_bytes:
            raise ValueError(f"offset {start} and nbytes {size} have to be multiples of page_bytes, {self.page_bytes}")
        out_first[0] = start // self.page_bytes
        out_end[0] = (start + size) // self.page_bytes
        return 0

    cdef object turn(self, str call):
        # A forked child may find the lock taken by a thread that it does not have.
        self.check_open()
        if pool_if_made(self.device_index) == NULL:
            raise_status(FORKED, call, ("reservation", self.ptr))
        return self.turns

    cdef size_t kept(self) noexcept:
        return max(self.ahead, <size_t>KEPT) * self.page_bytes

    cdef Stream order(self, object stream):
        # The caller's code comes first.
        return self.stream if stream is None else stream_for(stream, self.device_index, "the reservation")

    cdef int raise_code(self, int code, str call, size_t first, size_t size, Stream stream) except -1:
        at = first * self.page_bytes
        if code == COMMITTED:
            raise ValueError(f"{call}: the page at offset {at} is committed already")
        if code == UNCOMMITTED:
            raise ValueError(f"{call}: the page at offset {at} is not committed")
        if code == NOT_ALLOCATED:
            raise ValueError(f"{call}: the Reservation is closed")
        if code == SHARED:
            raise RuntimeError(f"{call}: other processes have the page at offset {at} (accelrt.sharing); it can be "
                               "decommitted once they have let go of it")
        if code == IN_CAPTURE:
            raise RuntimeError(f"{call}: the page at offset {at} was decommitted beside a capture that used it; end that "
                               "first")
        if is_lack(code):
            raise_refusal(code, self.device_index, size, stream.handle)
        return raise_status(code, call, ("device", self.device_index, "reservation", self.ptr, "offset", at, "size", size))

    def commit(self, offset: int = 0, nbytes: int | None = None, *, stream: Stream | int | None = None) -> None:
        """Gives a range memory, which work that is put into the stream from then on may use.

        Pages that are ready, made ahead or decommitted here before, take no call of the driver.

        Arguments:
            offset, nbytes: int, bytes, multiples of page_bytes; None is all from offset on.
            stream: Stream or handle as int, whose work comes first; None is the Reservation's own.  Another one waits for
                that, and counts as a user of the memory.
        Raises:
            OutOfMemoryError: the device has no room, even after what is freed and in use was waited for, and idle memory
                went back; nothing is committed then.
            ValueError: some of it is committed already, or the range is none.
            RuntimeError: the stream captures, and is not the Reservation's own.
            SleepingMemoryError: the Reservation sleeps.
            CudaError: the driver refused.
        """
        cdef size_t first = 0, end = 0, index = 0, keep
        cdef Stream worker = self.order(stream)
        cdef int code, other = worker.device_index
        cdef uintptr_t handle = worker.handle
        cdef long long ns = LOOK_NS
        self.check_range(offset, nbytes, &first, &end)
        if first == end:
            return
        if handle != self.stream.handle:
            if any_capture() and record_on(worker.device_index, worker.handle) is not None:
                raise RuntimeError("commit: the stream captures, and cannot wait for the Reservation's; commit before the "
                                   "capture begins")
        keep = self.kept()
        while True:
            take_stack_for(self.device_index, CONTEXT_STATE)
            with nogil:
                begin_main_slice(ns)
                code = commit_pages(self.device_index, self.number, self.ptr, self.page_bytes, first, end, keep, other,
                                    handle, &index)
            if not goes_on(code, &ns):
                break
        if code:
            self.raise_code(code, "commit", index, (end - first) * self.page_bytes, worker)
        if handle != self.stream.handle:
            self.put_behind_own(worker, first, end)
        watch.note_allocated(self.device_index, handle, self.ptr + first * self.page_bytes, (end - first) * self.page_bytes)
        if self.ahead and end * self.page_bytes < self.nbytes:
            try:
                ask_ahead((weakref.ref(self), end, min(self.ahead, self.nbytes // self.page_bytes - end)))
            except BaseException:  # Ctrl-C, as the thread starts
                self.give_pages(first, end, worker)
                watch.note_forgotten(self.ptr + first * self.page_bytes, (end - first) * self.page_bytes)
                raise

    cdef int put_behind_own(self, Stream worker, size_t first, size_t end) except -1:
        # Once the pages are live: until then other threads may commit, use and decommit them in the Reservation's stream.
        try:
            worker.wait_stream(self.stream)
        except BaseException:
            self.give_pages(first, end, worker)
            raise
        return 0

    def decommit(self, offset: int = 0, nbytes: int | None = None, *, stream: Stream | int | None = None) -> None:
        """Takes the memory of a range back, in the order of the stream: work that it has so far may still use it.

        The pages stay mapped, ready to be committed again, until other ranges or other requests need them.

        Arguments:
            offset, nbytes: as for commit.
            stream: Stream or handle as int, after whose work the memory is free; None is the Reservation's own.  Streams
                that copies, fills, exports and record_stream() named before are waited for as well.
        Raises:
            ValueError: some of it is not committed, and nothing is changed; or the range is none.
            RuntimeError: other processes have some of it.
            CudaError: the driver refused.
        """
        cdef size_t first = 0, end = 0
        cdef Stream worker = self.order(stream)
        self.check_range(offset, nbytes, &first, &end)
        with self.turn("decommit"):
            pool = self.opened()
            protected = [page for page in self.accesses if first <= page < end]
            awake = not pool.is_asleep()  # else there are no pages, and those of wake() are protected then
            try:
                for page in protected if awake else ():
                    self.set_access(page, page + 1, MEMORY_WRITTEN)
                self.give_pages(first, end, worker)
            except BaseException:
                self.protect_again(protected if awake else [])
                raise
            for page in protected:
                del self.accesses[page]
        watch.note_forgotten(self.ptr + first * self.page_bytes, (end - first) * self.page_bytes)

    cdef int give_pages(self, size_t first, size_t end, Stream worker) except -1:
        cdef size_t index = 0
        cdef uintptr_t handle = worker.handle
        cdef int code, other = worker.device_index
        take_stack_for(self.device_index, CONTEXT_ALL)
        with nogil:
            code = decommit_pages(self.device_index, self.number, self.ptr, first, end, other, handle, &index)
        if code:
            self.raise_code(code, "decommit", index, (end - first) * self.page_bytes, worker)
        return 0

    def prepare(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Makes the pages of a range ahead, so that commits of it take no call of the driver.  What has pages stays.

        Arguments:
            offset, nbytes: as for commit.
        Raises:
            OutOfMemoryError, SleepingMemoryError, CudaError: as commit.
        """
        cdef size_t first = 0, end = 0, keep
        cdef long long ns = LOOK_NS
        cdef int code
        self.check_range(offset, nbytes, &first, &end)
        if first == end:
            return
        keep = self.kept() + (end - first) * self.page_bytes
        while True:
            take_stack_for(self.device_index, CONTEXT_ALL)
            with nogil:
                begin_main_slice(ns)
                code = make_pages(self.device_index, self.number, self.ptr, self.page_bytes, first, end, keep)
            if not goes_on(code, &ns):
                break
        if code:
            self.raise_code(code, "prepare", first, (end - first) * self.page_bytes, self.stream)

    def protect(self, offset: int, nbytes: int, access: Literal["none", "r", "rw"], *,
                stream: Stream | int | None = None) -> None:
        """Says what the device may do with committed memory, behind the stream's work so far.

        The driver's call takes effect at once, so where less is permitted than before the stream is waited for.

        Arguments:
            offset, nbytes: int, bytes, multiples of page_bytes, of committed memory.
            access: "none", "r" or "rw".  Work that does more fails and loses the device's context.
            stream: Stream or handle as int, whose work comes first; None is the Reservation's own.
        Raises:
            ValueError: access is none of these, or some of the range is not committed.
            RuntimeError: the stream captures, which could not be waited for.
            CudaError: the driver refused.
        """
        cdef size_t first = 0, end = 0, page
        cdef Stream worker = self.order(stream)
        if not isinstance(access, str) or access not in ACCESS:
            raise ValueError(f"access is {access!r}; it may be 'none', 'r' or 'rw'")
        self.check_range(offset, nbytes, &first, &end)
        if first == end:
            return
        if any_capture() and record_on(worker.device_index, worker.handle) is not None:
            raise RuntimeError("protect: the stream captures, and cannot be waited for; protect the memory before or after")
        if access != "rw":
            worker.synchronize()
        with self.turn("protect"):
            self.set_access(first, end, ACCESS[access])
            for page in range(first, end):
                if access == "rw":
                    self.accesses.pop(page, None)
                else:
                    self.accesses[page] = access

    cdef int set_access(self, size_t first, size_t end, int access) except -1:
        cdef size_t index = first
        cdef int code
        with nogil:
            code = protect_pages(self.device_index, self.number, self.ptr, first, end, access, &index)
        if code:
            self.raise_code(code, "protect", index, (end - first) * self.page_bytes, self.stream)
        return 0

    def access(self, offset: int = 0) -> Literal["none", "r", "rw"]:
        """Tells what the device may do with the page at an offset, where it is committed.

        Arguments:
            offset: int, bytes.
        Returns:
            "none", "r" or "rw".
        Raises:
            ValueError: the Reservation is closed, or offset is outside of it.
        """
        cdef object start = exact_int(offset, "offset", "bytes as int")
        self.check_open()
        if not 0 <= start < self.nbytes:
            raise ValueError(f"offset {start} is not within the {self.nbytes} bytes that are reserved")
        return self.accesses.get(start // self.page_bytes, "rw")

    def record_stream(self, stream: Stream | int) -> None:
        """Says that a stream uses memory of it: what is decommitted from then on is not reused before its work is done.

        Copies, fills, launches and exports of accelrt's record their streams by themselves.

        Arguments:
            stream: Stream, of another device too, or a handle as int.
        Raises:
            ValueError: the driver knows no such stream, or the Reservation is closed.
        """
        cdef Stream worker = stream_of(stream, self.device_index)
        cdef uintptr_t handle = worker.handle
        cdef int code
        self.check_open()
        with nogil:
            code = use_across(self.device_index, self.ptr, worker.device_index, handle)
        if code and code != NOT_ALLOCATED:  # without a page there is nothing to use
            raise_status(code, "record_stream", ("ptr", self.ptr, "stream", handle))

    cdef Figures read(self) except *:
        cdef Figures figures
        self.check_open()
        with nogil:
            read_states(self.device_index, self.number, self.ptr, 0, self.nbytes // self.page_bytes, NULL, &figures)
        return figures

    @property
    def committed_bytes(self) -> int:
        """The bytes that are committed."""
        return self.read().committed

    @property
    def ready_bytes(self) -> int:
        """The bytes of pages that are mapped and not committed: made ahead, or decommitted and kept."""
        return self.read().ready

    def committed(self) -> list[tuple[int, int]]:
        """Lists the ranges that are committed, in ascending order.

        Returns:
            list of (offset, bytes).
        Raises:
            ValueError: the Reservation is closed.
        """
        cdef size_t count, page, begin = 0
        cdef Figures figures
        cdef bytearray states
        cdef char* bytes_
        cdef list ranges = []
        self.check_open()
        count = self.nbytes // self.page_bytes
        states = bytearray(count)
        bytes_ = states
        with nogil:
            read_states(self.device_index, self.number, self.ptr, 0, count, bytes_, &figures)
        for page in range(count):
            if bytes_[page] and (page == 0 or not bytes_[page - 1]):
                begin = page
            if bytes_[page] and (page + 1 == count or not bytes_[page + 1]):
                ranges.append((begin * self.page_bytes, (page + 1 - begin) * self.page_bytes))
        return ranges

    def stats(self) -> dict[str, int]:
        """Returns the figures of its memory, as MemPool.stats gives them; a committed page is one allocation.

        Raises:
            ValueError: the Reservation is closed.
        """
        return self.opened().stats()

    @property
    def peer_access(self) -> dict[int, Literal["r", "rw"]]:
        """The other devices that may use the memory, see MemPool.peer_access.

        Raises:
            ValueError: the Reservation is closed.
        """
        return self.opened().peer_access

    def grant_access(self, peer: DeviceArgument, access: Literal["r", "rw"] = "rw") -> None:
        """Lets another device use the memory, what is committed and what will be; see MemPool.grant_access.

        Arguments:
            peer: int, "cuda:1", ...: the other device.
            access: "r" or "rw".
        Raises:
            ValueError: the Reservation is closed, or as of MemPool.grant_access.
            CudaError: as of MemPool.grant_access.
        """
        self.opened().grant_access(peer, access)

    def revoke_access(self, peer: DeviceArgument) -> None:
        """Takes away what grant_access() gave; see MemPool.revoke_access.

        Arguments:
            peer: int, "cuda:1", ...: the other device.
        Raises:
            ValueError: the Reservation is closed, or as of MemPool.revoke_access.
            CudaError: the driver refused.
        """
        self.opened().revoke_access(peer)

    def empty_cache(self) -> None:
        """Gives the pages that are not committed back to the device, after waiting for what still uses them.

        Raises:
            ValueError: the Reservation is closed.
        """
        self.opened().empty_cache()

    def buffer(self, offset: int = 0, nbytes: int | None = None) -> Buffer:
        """Makes a Buffer on some of the addresses, committed or not; it keeps the Reservation open, and frees nothing.

        Arguments:
            offset, nbytes: int, bytes, of any size; None is all from offset on.
        Returns:
            Buffer, of the Reservation's stream, for copies, fills, views, DLPack and the CUDA Array Interface.
        Raises:
            ValueError: the range is none, or the Reservation is closed.
        """
        start = exact_int(offset, "offset", "bytes as int")
        size = self.nbytes - start if nbytes is None else exact_int(nbytes, "nbytes", "bytes as int")
        self.check_open()
        if start < 0 or size < 0 or start + size > self.nbytes:
            raise ValueError(f"offset {start} and nbytes {size} are not within the {self.nbytes} bytes that are reserved")
        return views_of_memory()[0](ReservedView(self), self.device_index, self.stream, self.ptr + start, size)

    def array(self, shape: Shape, dtype: DTypeLike = "u1", offset: int = 0) -> Array:
        """Makes an Array on some of the addresses, committed or not: torch.from_dlpack(reservation.array(shape, "f2")).

        Arguments:
            shape: int or sequence of ints.
            dtype: of plain values.
            offset: int, bytes.
        Returns:
            Array, in C order.
        Raises:
            ValueError: it does not fit, or the Reservation is closed.
        """
        array = views_of_memory()[1]
        nbytes = array(self.buffer(offset), shape, dtype).nbytes  # refuses what does not fit
        return array(self.buffer(offset, nbytes), shape, dtype)

    def sleep(self, keep: str = "host", *, exports: str = "refuse") -> SleepResult:
        """Gives the memory back to the device until wake(); see MemPool.sleep.

        Arguments:
            keep, exports: as of MemPool.sleep.
        Returns:
            SleepResult.
        Raises:
            ValueError: the Reservation is closed, or as of MemPool.sleep.
            RuntimeError, CudaError: as of MemPool.sleep.
        """
        cdef size_t page
        with self.turn("sleep"):
            pool = self.opened()
            try:
                # The contents of what may not be read are kept too.
                for page, access in () if pool.is_asleep() else self.accesses.items():
                    if access == "none":
                        self.set_access(page, page + 1, MEMORY_READ)
                return put_to_sleep("Reservation.sleep", self.device_index, 0, self.number, keep, exports, self.ptr)
            except BaseException:
                if not pool.is_asleep():  # it may be, where Ctrl-C came behind the last step
                    self.protect_again(list(self.accesses))
                raise

    def wake(self) -> SleepResult:
        """Takes memory for what is committed again, at the same addresses; see MemPool.wake.

        Returns:
            SleepResult.
        Raises:
            ValueError: the Reservation is closed.
            RuntimeError, CudaError: as of MemPool.wake; or it is awake, and access() tells what is not protected again.
        """
        with self.turn("wake"):
            pool = self.opened()
            try:
                return wake_up("Reservation.wake", self.device_index, 0, self.number, self.ptr)
            finally:
                if not pool.is_asleep():
                    self.protect_again(list(self.accesses))

    cdef int protect_again(self, list pages) except -1:
        # All that the driver takes.  What it refuses stays open, and is told so.
        cdef object refusal = None
        for page in pages:
            try:
                self.set_access(page, page + 1, ACCESS[self.accesses[page]])
            except CudaError as error:
                del self.accesses[page]
                refusal = error
        if refusal is not None:
            raise refusal
        return 0

    def is_asleep(self) -> bool:
        """Tells whether it sleeps."""
        cdef MemPool pool = self.pool
        return pool is not None and pool.is_asleep()

    def close(self) -> None:
        """Decommits everything, and gives the addresses back once no work uses the memory.  Doing it again does nothing.

        Raises:
            BufferError: Buffers on it are alive.
            CudaError: the driver refused; it stays open.
        """
        if self.pool is None:
            return
        if pool_if_made(self.device_index) == NULL:  # in a forked child
            self.pool = None
            return
        with self.turn("close"):
            self.close_alone()

    cdef int close_alone(self) except -1:
        cdef MemPool pool = self.pool
        cdef int code
        if pool is None:
            return 0
        with cython.critical_section(self):
            if self.views:
                raise BufferError(f"{self.views} Buffers or Arrays on the Reservation are alive; drop them, and views of "
                                  "them, first")
            self.pool = None  # nobody makes a Buffer on it meanwhile
        try:
            for page in () if pool.is_asleep() else list(self.accesses):  # asleep there are no pages
                self.set_access(page, page + 1, MEMORY_WRITTEN)
                del self.accesses[page]
            with nogil:
                code = close_reserved(self.device_index, self.number, self.ptr)
            if code:
                raise_status(code, "close", ("reservation", self.ptr))
        except BaseException:
            self.pool = pool
            raise
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return self.nbytes

    def __reduce__(self):
        refuse_copy(self, "it owns its addresses and memory; copy the bytes, or share the object among threads")

    def __repr__(self):
        if self.pool is None:
            return "<accelrt.memory.Reservation, closed>"
        return (f"<accelrt.memory.Reservation {self.committed_bytes} of {self.nbytes} bytes at {self.ptr:#x} on device "
                f"{self.device_index}, pages of {self.page_bytes}{', asleep' if self.is_asleep() else ''}>")


cdef void take_stack_for(int device, int level) noexcept:
    # For the history, with the GIL; the nogil functions drop it.
    cdef const Pool* pool = pool_if_made(device)
    if pool != NULL:
        take_stack(pool, level, NULL)


cdef int count_view(Reservation reservation, int change) except -1:
    with cython.critical_section(reservation):
        if change > 0 and reservation.pool is None:
            raise ValueError("the Reservation is closed")
        reservation.views += change
    return 0


@cython.no_gc_clear  # the destructor counts it out
cdef class ReservedView:  # what a Buffer on a Reservation keeps
    """ReservedView(reservation)\n--\n\n\
    What keeps a Reservation open for a Buffer on it."""

    cdef readonly Reservation reservation

    def __init__(self, Reservation reservation not None) -> None:
        if self.reservation is not None:
            raise RuntimeError("a ReservedView is initialised once")
        count_view(reservation, 1)
        self.reservation = reservation

    def __dealloc__(self):
        if self.reservation is not None:
            count_view(self.reservation, -1)

    def __reduce__(self):
        refuse_copy(self, "it counts as one user of the reservation")


def reserve(
    nbytes: int, *, page_bytes: int | None = None, ahead: int = 0, device: DeviceArgument | None = None,
    stream: Stream | int | None = None, limit: int | None = None, address: int = 0,
) -> Reservation:
    """Reserves addresses on a device, ranges of which are then given memory and let go of.

        cache = accelrt.reserve(64 << 30, ahead=16 << 20)
        cache.commit(0, 2 << 20)

    Arguments:
        nbytes: int, of addresses, rounded up to page_bytes; they may be more than the device has memory.
        page_bytes: int, what is committed at a time, rounded up to the device's granularity; None is that: 2 MiB.
        ahead: int, bytes that a thread makes ready behind each commit, so that the next one there takes no call of the
            driver; 0 is none.
        device: int, "cuda:1", ...; None is the stream's device, or the current one.
        stream: Stream or handle as int, in whose order memory is committed and decommitted; None is the current one.
        limit: int, the most bytes of memory; None is no limit of its own.
        address: int, the first address, a multiple of the granularity, for which the device is waited for; 0: any.
    Returns:
        Reservation; a context manager, which closes it.
    Raises:
        ValueError, TypeError: an argument is out of range or of the wrong kind.
        NotSupportedError: the device lacks virtual memory, or expandable_segments:False or a backend of others is set.
        OutOfMemoryError: there are not so many addresses.
        CudaError: something lies at the addresses from `address` on, or the device can have no memory there.
    """
    cdef Reservation reservation
    cdef object size = exact_int(nbytes, "nbytes", "bytes as int")
    cdef object page = 1 if page_bytes is None else exact_int(page_bytes, "page_bytes", "bytes as int")
    cdef object more = exact_int(ahead, "ahead", "bytes as int")
    cdef uintptr_t first = checked_address_int(address, "address")
    cdef Pool* pool = NULL
    cdef int ordinal, code
    if size <= 0 or size >> 47 or page <= 0 or page > size or more < 0 or more >> 47:
        raise ValueError(f"nbytes is {size}, page_bytes {page_bytes} and ahead {more}; nbytes is from 1 byte to 2**47, "
                         "page_bytes from 1 to nbytes, and ahead 0 or more")
    require_native("reserve")
    ordinal = ordinal_of(device) if device is not None else ordinal_beside(stream)
    reservation = Reservation.__new__(Reservation)
    reservation.stream, reservation.device_index = stream_for(stream, ordinal, "the reservation"), ordinal
    reservation.accesses, reservation.turns, reservation.ptr = {}, RLock(), first
    with nogil:
        code = pool_of(ordinal, &pool)
    if code:
        raise_status(code, "reserve", ("device", ordinal))
    if first % pool.granule:
        raise ValueError(f"address is {first:#x}; it has to be a multiple of {pool.granule}, the device's granularity")
    reservation.page_bytes = -(-page // pool.granule) * pool.granule
    reservation.nbytes = -(-size // reservation.page_bytes) * reservation.page_bytes
    reservation.ahead = -(-more // reservation.page_bytes)
    reservation.pool = MemPool(limit=limit, device=ordinal)
    reservation.number = reservation.pool.number
    with nogil:
        code = open_reserved(ordinal, reservation.number, reservation.stream.handle, reservation.nbytes, &reservation.ptr)
    if is_lack(code):
        raise_refusal(code, ordinal, reservation.nbytes, reservation.stream.handle)
    if code:
        raise_status(INVALID_VALUE if code == ELSEWHERE else code, "reserve",
                     ("device", ordinal, "nbytes", reservation.nbytes, "address", first), UNRESERVED.get(code, ""))
    note_reservation(ordinal, reservation.number, weakref.ref(reservation))
    return reservation
