"""Sleep and wake: a private pool's pages go back to the device and come again at the same addresses.

Segments, blocks, lists and the pages' records stay as they are.  A suspended page has no memory and is mapped nowhere, and
nothing is allocated from its pool; blocks may be freed meanwhile.  So captured graphs, and whoever has an address, find
everything in its place once the pool is resumed.  DESIGN.md (Sleep and wake) gives the order of the steps.

A pool is suspended in two halves, between which no lock is held: the first refuses its memory to later users, the second
takes it away; in between the caller waits for the uses that began before (accelrt/uses).  The second half, and resuming,
hold the growth lock from beginning to end: nobody else maps pages, or adds and removes segments and slots.  Driver calls
and copies are made outside the exclusive section, and only then do records change.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memset

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_unlock
from accelrt.driver.capture_guard cimport enter_wait, leave_wait
from accelrt.allocator.audit cimport audit_pool
from accelrt.allocator.backing.pages cimport close_file, open_range
from accelrt.allocator.backing.plain cimport count_owner
from accelrt.allocator.backing.stitching cimport return_all_pages
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.event_ring cimport drop_stack, record_event
from accelrt.allocator.exclusive cimport call_unlocked, count_pool, count_splits, lock_all, reserved, unlock_all
from accelrt.allocator.history_types cimport SLEPT, WOKEN
from accelrt.allocator.miss cimport release_free
from accelrt.allocator.pending cimport wait_all
from accelrt.allocator.private.private_pool cimport find_private, release_hold, retain
from accelrt.allocator.private.private_types cimport PrivatePool, Suspension
from accelrt.allocator.private.suspended cimport (
    await_copies, copy_contents, delist, discard, drop_freed, enlist, may_still_copy, note_contents, note_ranges, now,
    sweep_suspended, take_chunks,
)
from accelrt.allocator.sizes cimport LARGE
from accelrt.allocator.stats cimport RESERVED_BYTES
from accelrt.allocator.stream_epochs cimport cancel_device_wait, close_epochs, mark_all_quiescent
from accelrt.allocator.types cimport LIVE, STITCHED, Block, Heap, Page, Pool, Segment, Slot, Use
from accelrt.status cimport BROKEN, CAP_REACHED, NO_HOST_MEMORY, OUT_OF_MEMORY

# The pages and slots that a call changes, and what the driver has done to them so far.
cdef struct Work:
    Suspension* suspension
    Page** pages
    uintptr_t* handles    # of the pages; 0: the device has the memory
    size_t page_count
    Slot** slots          # of these pages, in ascending order of their addresses
    bint* mapped
    size_t slot_count
    bint keep             # contents are copied
    uint64_t devices      # to be waited for, a bit each
    long calls            # of the driver's virtual memory functions
    Moved* moved


# --- what a call changes -----------------------------------------------------------------------------------------

cdef int by_address(const void* one, const void* other) noexcept nogil:
    # For qsort of slots.
    return -1 if (<Slot* const*>one)[0].address < (<Slot* const*>other)[0].address else 1


cdef bint is_own(const PrivatePool* owner, const Page* page, bint suspended) noexcept nogil:
    # Whether the page is the pool's and may be suspended, or is suspended.  Pages that serve other pools, since nothing
    # retained this one for a while, stay; so does a page that the driver refused to release.
    if page.primary.segment.heap.owner != owner:
        return False
    if suspended:
        return page.suspended
    return page.resident != NULL and page.resident.segment.heap.owner == owner


cdef int gather(Pool* pool, const PrivatePool* owner, bint suspended, Work* work) noexcept nogil:
    # The pages, all slots that they are mapped in, and their state.  The caller calls end_work whatever the answer.
    cdef Page* page = pool.first_page
    cdef Slot* slot
    cdef size_t index
    work.page_count = work.slot_count = 0
    while page != NULL:
        if is_own(owner, page, suspended):
            work.page_count += 1
            slot = page.slots
            while slot != NULL:
                work.slot_count += 1
                slot = slot.after
        page = page.after
    work.pages = <Page**>malloc((work.page_count + 1) * sizeof(Page*))
    work.handles = <uintptr_t*>malloc((work.page_count + 1) * sizeof(uintptr_t))
    work.slots = <Slot**>malloc((work.slot_count + 1) * sizeof(Slot*))
    work.mapped = <bint*>malloc((work.slot_count + 1) * sizeof(bint))
    if work.pages == NULL or work.handles == NULL or work.slots == NULL or work.mapped == NULL:
        return NO_HOST_MEMORY
    work.page_count = work.slot_count = 0
    page = pool.first_page
    while page != NULL:
        if is_own(owner, page, suspended):
            work.pages[work.page_count] = page
            work.handles[work.page_count] = page.handle
            work.page_count += 1
            slot = page.slots
            while slot != NULL:
                work.slots[work.slot_count] = slot
                work.slot_count += 1
                slot = slot.after
        page = page.after
    qsort(work.slots, work.slot_count, sizeof(Slot*), &by_address)
    for index in range(work.slot_count):
        work.mapped[index] = work.slots[index].mapped
    return 0


cdef void end_work(Work* work) noexcept nogil:
    free(work.pages)
    free(work.handles)
    free(work.slots)
    free(work.mapped)
    work.pages = NULL
    work.handles = NULL
    work.slots = NULL
    work.mapped = NULL


cdef void record_runs(Pool* pool, const Work* work, int action) noexcept nogil:
    # For the history: where the pages are resident, run by run.
    cdef const Segment* segment = NULL
    cdef const Slot* slot
    cdef uintptr_t address = 0
    cdef size_t index, size = 0
    for index in range(work.slot_count):
        slot = work.slots[index]
        if slot.page.resident != slot:
            continue
        if slot.segment != segment or slot.address != address + size:
            if size:
                record_event(pool, action, address, size, segment.heap.stream, segment.heap.owner)
            segment, address, size = slot.segment, slot.address, 0
        size += slot.size
    if size:
        record_event(pool, action, address, size, segment.heap.stream, segment.heap.owner)


cdef void apply(Pool* pool, Work* work, bint suspended) noexcept nogil:
    # Brings the records up to what the driver has done.
    cdef size_t index
    cdef Page* page
    cdef Slot* slot
    cdef int64_t bytes_
    if work.page_count and work.pages[0].suspended != suspended:
        record_runs(pool, work, SLEPT if suspended else WOKEN)
    for index in range(work.slot_count):
        slot = work.slots[index]
        if slot.segment.shape == STITCHED and slot.mapped != work.mapped[index]:
            pool.stats.stitched_bytes += <int64_t>slot.size if work.mapped[index] else -<int64_t>slot.size
        slot.mapped = work.mapped[index]
    for index in range(work.page_count):
        page = work.pages[index]
        page.handle = work.handles[index]
        if page.suspended == suspended:
            continue
        bytes_ = page.size
        page.suspended = suspended
        pool.stats.sleeping_bytes += bytes_ if suspended else -bytes_
        page.primary.segment.heap.owner.sleeping += page.size if suspended else -page.size
        count_owner(pool, page.primary.segment.heap, -bytes_ if suspended else bytes_)
        count_pool(pool, RESERVED_BYTES, LARGE, -bytes_ if suspended else bytes_)
        if suspended:
            pool.stats.num_device_free += 1
        else:
            pool.stats.num_device_alloc += 1
        work.moved.bytes += page.size
    pool.stats.virtual_memory_calls += work.calls
    work.calls = 0


# --- the driver: by call_unlocked, outside the exclusive section ----------------------------------------------------

cdef int await_devices(Pool* pool, void* about) noexcept nogil:
    # The pool's device, and those whose streams were recorded on its memory.
    cdef int device
    cdef int code = pool.table.device_synchronize(pool.device)
    for device in range(MAX_DEVICES):
        if code == 0 and device != pool.device and (<Work*>about).devices >> device & 1:
            code = pool.table.device_synchronize(device)
    if code:
        (<Work*>about).moved.row = "device_synchronize"
    return code


cdef int copy_out(Pool* pool, void* about) noexcept nogil:
    cdef Work* work = <Work*>about
    cdef int code = take_chunks(pool, work.suspension, work.moved)
    return code if code else copy_contents(pool, work.suspension, True, work.moved)


cdef int unmap_all(Pool* pool, Work* work) noexcept nogil:
    # Stops at the first refusal.
    cdef size_t index
    cdef int code = 0
    for index in range(work.slot_count):
        if work.mapped[index] and code == 0:
            code = pool.table.memory_unmap(work.slots[index].address, work.slots[index].size)
            work.calls += 1
            work.mapped[index] = code != 0
    if code and work.moved.row == NULL:
        work.moved.row = "memory_unmap"
    return code


cdef int release_all(Pool* pool, Work* work) noexcept nogil:
    # Stops at the first refusal.
    cdef size_t index
    cdef int code = 0
    for index in range(work.page_count):
        if work.handles[index] and code == 0:
            close_file(work.handles[index])
            code = pool.table.physical_release(work.handles[index])
            work.calls += 1
            if code == 0:
                work.handles[index] = 0
    if code and work.moved.row == NULL:
        work.moved.row = "physical_release"
    return code


cdef int create_like(Pool* pool, const Page* page, uintptr_t* out_handle) noexcept nogil:
    # The page's record changes once all of it is done.
    if page.shareable:
        return pool.table.physical_create_shared(pool.device, page.size, out_handle)
    return pool.table.physical_create(pool.device, page.size, out_handle)


cdef int create_all(Pool* pool, Work* work) noexcept nogil:
    # Of the sizes that the pages had: stops at the first refusal.
    cdef size_t index
    cdef int code = 0
    for index in range(work.page_count):
        if work.handles[index] == 0 and code == 0:
            code = create_like(pool, work.pages[index], &work.handles[index])
            work.calls += 1
            if code:
                work.handles[index] = 0
    if code and work.moved.row == NULL:
        work.moved.row = "physical_create"
    return code


cdef uintptr_t handle_of(const Work* work, const Page* page) noexcept nogil:
    # Binary search: pages are in order of their serials, in which they were made.
    cdef size_t low = 0, high = work.page_count, middle
    while low < high:
        middle = (low + high) // 2
        if work.pages[middle].serial < page.serial:
            low = middle + 1
        else:
            high = middle
    return work.handles[low]


cdef int open_run(Pool* pool, Work* work, size_t first, size_t end) noexcept nogil:
    return open_range(
        pool, work.slots[first].address,
        work.slots[end - 1].address + work.slots[end - 1].size - work.slots[first].address, &work.calls)


cdef int map_all(Pool* pool, Work* work) noexcept nogil:
    # Each run of slots is opened at once.  Stops at the first refusal.
    cdef const char* row = NULL
    cdef int code = map_slots(pool, work, &row)
    if code and work.moved.row == NULL:
        work.moved.row = row
    return code


cdef int map_slots(Pool* pool, Work* work, const char** out_row) noexcept nogil:
    cdef size_t index, first = 0
    cdef Slot* slot
    cdef int code = 0
    for index in range(work.slot_count):
        out_row[0] = "memory_map"
        slot = work.slots[index]
        if not work.mapped[index]:
            code = pool.table.memory_map(slot.address, slot.size, handle_of(work, slot.page))
            work.calls += 1
            if code:
                return code
            work.mapped[index] = True
        if index + 1 == work.slot_count or work.slots[index + 1].segment != slot.segment or (
                work.slots[index + 1].address != slot.address + slot.size):
            out_row[0] = "memory_access"
            code = open_run(pool, work, first, index + 1)
            if code:
                return code
            first = index + 1
    return 0


cdef int take_down(Pool* pool, void* about) noexcept nogil:
    # Unmaps every slot, then releases every page: a refusal of the first kind is undone without any loss.
    cdef Work* work = <Work*>about
    cdef int code = unmap_all(pool, work)
    if code:
        work.moved.down = map_all(pool, work) != 0
        return code
    code = release_all(pool, work)
    work.moved.down = True
    return code


cdef int bring_up(Pool* pool, void* about) noexcept nogil:
    # Creates pages, maps them and copies the contents; what fails is undone.  Without the contents the pool is of no use.
    cdef Work* work = <Work*>about
    cdef int code = await_copies(pool, work.moved)
    if code:
        work.moved.down = True
        return code
    code = create_all(pool, work)
    if code == 0:
        code = map_all(pool, work)
    if code == 0:
        code = copy_contents(pool, work.suspension, False, work.moved)
    work.moved.down = code != 0
    if code:
        work.moved.copied = 0
        # A page that stays mapped somewhere keeps its memory, for the next attempt.
        if not may_still_copy(pool) and unmap_all(pool, work) == 0:
            release_all(pool, work)
    return code


# --- suspend ---------------------------------------------------------------------------------------------------

cdef bint is_deferred(const Pool* pool, const PrivatePool* owner) noexcept nogil:
    # Whether memory of the pool was freed that a stream uses which captures.
    cdef const Block* block = pool.deferred
    while block != NULL and block.heap.owner != owner:
        block = block.left
    return block != NULL


cdef int judge(Pool* pool, const PrivatePool* owner) noexcept nogil:
    # Why the pool cannot be suspended now; 0: it can.
    if owner == NULL or owner.uses == 0:
        return NOT_RETAINED
    if not pool.settings.virtual_memory or owner.source != NULL or owner.whole:
        return IN_PLAIN
    return SUSPENDED if owner.suspension != NULL else judge_work(pool, owner)


cdef int judge_work(Pool* pool, const PrivatePool* owner) noexcept nogil:
    # The part of it that may have changed once the uses under way have ended.
    if is_exported(pool, owner):
        return EXPORTED
    return BESIDE_CAPTURE if pool.captures else FREED_CAPTURED if is_deferred(pool, owner) else 0


cdef bint is_exported(Pool* pool, const PrivatePool* owner) noexcept nogil:
    # Whether other processes may have pages of the pool: they would keep the memory, and see nothing of what comes back.
    cdef const Page* page = pool.first_page
    while page != NULL and (page.exports == 0 or page.primary.segment.heap.owner != owner):
        page = page.after
    return page != NULL


cdef uint64_t users_devices(Pool* pool, const PrivatePool* owner) noexcept nogil:
    # The devices whose streams were recorded on live memory of the pool, a bit each.
    cdef const Heap* heap = <const Heap*>owner.heaps
    cdef uint64_t answer = devices_in(pool.first, owner)
    while heap != NULL:
        answer |= devices_in(heap.first_stitched, owner)
        heap = heap.sibling
    return answer


cdef uint64_t devices_in(const Segment* segment, const PrivatePool* owner) noexcept nogil:
    cdef const Block* block
    cdef const Use* use
    cdef uint64_t answer = 0
    while segment != NULL:
        block = segment.first if segment.heap.owner == owner else NULL
        while block != NULL:
            use = block.uses if block.state == LIVE else NULL
            while use != NULL:
                answer |= <uint64_t>1 << use.device
                use = use.next
            block = block.after
        segment = segment.after
    return answer


cdef Suspension* close_pool(Pool* pool, PrivatePool* owner) noexcept nogil:
    # From here on nothing is allocated from the pool, and its memory is refused to users.  NULL: no host memory.
    cdef Suspension* made = <Suspension*>calloc(1, sizeof(Suspension))
    if made == NULL or note_ranges(pool, owner, made):
        free(made)
        return NULL
    made.device = pool.device
    made.id = owner.id
    made.closing = True
    owner.suspension = made
    enlist(made)
    return made


cdef void open_pool(PrivatePool* owner) noexcept nogil:
    # The caller discards the suspension once it has left the locks.
    delist(owner.suspension)
    owner.suspension = NULL


cdef int await_work(Pool* pool, Work* work) noexcept nogil:
    # After it no work uses memory that was freed before, of whatever stream.
    cdef int code
    if pool.captures or not enter_wait():
        return BESIDE_CAPTURE
    close_epochs(pool)
    code = call_unlocked(pool, await_devices, work)
    leave_wait()
    if code:
        cancel_device_wait(pool)
        return code
    mark_all_quiescent(pool)
    return_all_pages(pool)
    return 0


cdef int empty_out(Pool* pool, PrivatePool* owner, Work* work) noexcept nogil:
    # The steps after the pool was closed: wait, copy, give back.
    cdef int code
    work.devices = users_devices(pool, owner)
    code = await_work(pool, work)
    if code == 0:
        code = gather(pool, owner, False, work)
    if code == 0 and work.keep:
        code = note_contents(pool, owner, work.suspension)
    if code == 0 and work.keep:
        code = call_unlocked(pool, copy_out, work)
    if code == 0:
        code = call_unlocked(pool, take_down, work)
        apply(pool, work, work.moved.down)
    return code


cdef int suspend_locked(Pool* pool, PrivatePool* owner, Work* work, Suspension** out_gone) noexcept nogil:
    # A release that the driver refused half way is undone by resuming the pool.
    cdef const char* row
    cdef int code
    work.suspension = owner.suspension
    owner.suspension.closing = False
    code = empty_out(pool, owner, work)
    end_work(work)
    if code and work.moved.down:
        row = work.moved.row
        resume_locked(pool, owner, work, out_gone)
        work.moved.row = row
    elif code:
        out_gone[0] = owner.suspension
        open_pool(owner)
    return code


cdef int begin_suspension(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner
    cdef int code
    sweep_suspended(device)
    owner = begin(pool, first, second)
    code = judge(pool, owner) if pool != NULL else NOT_RETAINED
    if code == 0:
        code = retain(pool, first, second, True)  # its record stays until the end of the suspension's other half
    if code == 0 and close_pool(pool, owner) == NULL:
        code = NO_HOST_MEMORY
        release_hold(pool, first, second, True)
    return end(pool, code)


cdef void cancel_suspension(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner = begin(pool, first, second)
    cdef Suspension* gone = owner.suspension
    open_pool(owner)
    release_hold(pool, first, second, True)
    end(pool, 0)
    discard(gone)


cdef int finish_suspension(int device, uint64_t first, uint64_t second, bint keep, Moved* moved) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner
    cdef Suspension* gone = NULL
    cdef Work work
    cdef int64_t start = now()
    cdef int code
    memset(moved, 0, sizeof(Moved))
    memset(&work, 0, sizeof(Work))
    work.keep = keep
    work.moved = moved
    owner = begin(pool, first, second)
    pool.stats.num_sync_all_streams += 1
    code = wait_all(pool)
    if code == 0:
        code = judge_work(pool, owner)
    if code == 0:
        code = suspend_locked(pool, owner, &work, &gone)
    else:
        gone = owner.suspension
        open_pool(owner)
    release_hold(pool, first, second, True)
    code = end(pool, code)
    if gone != NULL:
        discard(gone)
    moved.ns = now() - start
    return code


cdef PrivatePool* begin(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    # Takes the locks, if there is a pool; NULL: there is no such private pool.
    if pool == NULL:
        return NULL
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    return find_private(pool, first, second) if pool.external == NULL else NULL


cdef int end(Pool* pool, int code) noexcept nogil:
    # Audits at ACCELRT_DEBUG 1 and 2, then releases the locks that begin() took.
    if pool == NULL:
        return code
    if pool.heaps != NULL:
        count_splits(pool, pool.heaps)
    if pool.debug and pool.failed_identity == NULL:
        pool.failed_identity = audit_pool(pool, pool.debug)
    if pool.failed_identity != NULL and code == 0:
        code = BROKEN
    unlock_all(pool, NULL)
    pthread_mutex_unlock(&pool.growth)
    drop_stack()
    return code


# --- resume ----------------------------------------------------------------------------------------------------

cdef int fill_in(Pool* pool, PrivatePool* owner, Work* work) noexcept nogil:
    # One attempt to get the pages back; a failure leaves the pool suspended.
    cdef size_t index, bytes_ = 0
    cdef int code = gather(pool, owner, True, work)
    for index in range(work.page_count if code == 0 else 0):
        bytes_ += work.pages[index].size
    if code == 0 and reserved(pool) + bytes_ > pool.limit:
        code = CAP_REACHED
    if code == 0:
        drop_freed(pool, owner, work.suspension)
        code = call_unlocked(pool, bring_up, work)
        apply(pool, work, code != 0)
    end_work(work)
    return code


cdef int resume_locked(Pool* pool, PrivatePool* owner, Work* work, Suspension** out_gone) noexcept nogil:
    # What is idle elsewhere goes back to the device, as before any request is refused.
    cdef int code
    work.suspension = owner.suspension
    code = fill_in(pool, owner, work)
    if code == OUT_OF_MEMORY or code == CAP_REACHED:
        code = wait_all(pool)
        if code == 0:
            code = release_free(pool)
        work.moved.row = NULL
        if code == 0:
            code = fill_in(pool, owner, work)
    if code == 0:
        out_gone[0] = owner.suspension
        open_pool(owner)
    return code


cdef int resume_pool(int device, uint64_t first, uint64_t second, Moved* moved) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner
    cdef Suspension* gone = NULL
    cdef Work work
    cdef int64_t start = now()
    cdef int code
    memset(moved, 0, sizeof(Moved))
    memset(&work, 0, sizeof(Work))
    work.moved = moved
    owner = begin(pool, first, second)
    if owner == NULL:
        code = NOT_RETAINED
    elif owner.suspension == NULL or owner.suspension.closing:
        code = NOT_SUSPENDED
    else:
        code = retain(pool, first, second, True)
        if code == 0:
            code = resume_locked(pool, owner, &work, &gone)
            release_hold(pool, first, second, True)
    code = end(pool, code)
    if gone != NULL:
        discard(gone)
    moved.ns = now() - start
    return code
