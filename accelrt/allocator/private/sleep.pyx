"""Pools that sleep: their contents are kept elsewhere, and their pages given back, until they wake."""
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memset

from accelrt.allocator.backing.pages cimport close_file, count_owner, open_range
from accelrt.allocator.event_ring cimport record_event
from accelrt.allocator.heaps cimport (
    block_at, call_unlocked, count_pool, find_private, lock_all, release_hold, reserved, retain, sum_of,
    unlock_all,
)
from accelrt.allocator.history_types cimport SLEPT, WOKEN
from accelrt.allocator.miss cimport leave_audited, record_events, release_free, wait_all, wait_by
from accelrt.allocator.pinned.cache cimport allocate_unshared, release_pinned, use_pinned_on
from accelrt.allocator.pool cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.private.private_types cimport Kept, PrivatePool, Range, Suspension
from accelrt.allocator.sizes cimport LARGE
from accelrt.allocator.stats cimport ACTIVE, RESERVED_BYTES
from accelrt.allocator.types cimport LIVE, STITCHED, Block, Heap, Page, Pool, Segment, Slot
from accelrt.core.growing cimport count_to
from accelrt.core.locks cimport add_count, pthread_mutex_lock, pthread_mutex_unlock, spin_lock, spin_unlock, store_count
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.core.threads cimport now
from accelrt.driver.guard cimport DONE, GONE, is_device_lost, meaning_of, Use
from accelrt.driver.table cimport STREAM_NON_BLOCKING
from accelrt.status cimport CAP_REACHED, NO_HOST_MEMORY, NOT_READY, OUT_OF_MEMORY, SLEEPING, raise_status


# --- suspended --------------------------------------------------------------------------------------------------------
# The records of suspended pools: which there are, whether memory is theirs, and the contents that the host keeps of it.
#
# Whether memory is theirs is what everybody asks before memory is used.  The list of all of them is under a spin lock of
# this module's own, the last in the order of locks; contents are noted and copied under the growth lock, and dropped once no
# record leads to them.

cdef enum:
    CHUNK = 256 << 20    # bytes of page-locked memory in one piece: a copy of 64 MiB and more runs at the link's full speed
    BRIDGED = 64 << 10   # free bytes between two live blocks that are copied along, rather than begin another copy

# Counts the owner's segments in a list, or what is in them, on top of a count, and notes each unless entries is NULL.
ctypedef size_t (*Count)(const PrivatePool* owner, const Segment* segment, void* entries, size_t count) noexcept nogil

cdef Suspension* suspensions = NULL  # under the lock
cdef int lock = 0


cdef inline bint is_of(const Suspension* suspension, int device, uint64_t first, uint64_t second) noexcept nogil:
    return (suspension.device == device and suspension.id[0] == first and suspension.id[1] == second
            and not suspension.orphan)


cdef bint is_pool_suspended(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef const Suspension* suspension
    spin_lock(&lock)
    suspension = suspensions
    while suspension != NULL and not is_of(suspension, device, first, second):
        suspension = suspension.next
    spin_unlock(&lock)
    return suspension != NULL


cdef bint has_address(const Suspension* suspension, uintptr_t address) noexcept nogil:
    cdef size_t index = count_to(&suspension.ranges[0].high, suspension.range_count, sizeof(Range), address)
    return index < suspension.range_count and suspension.ranges[index].low <= address


cdef int device_of(uintptr_t address) noexcept nogil:
    # Returns the device of the suspended pool that had this address in a segment when it was suspended, or -1.
    cdef const Suspension* suspension
    cdef int device
    spin_lock(&lock)
    suspension = suspensions
    while suspension != NULL and not has_address(suspension, address):
        suspension = suspension.next
    device = -1 if suspension == NULL else suspension.device
    spin_unlock(&lock)
    return device


cdef bint is_of_suspended(int device, uint64_t first, uint64_t second, uintptr_t address) noexcept nogil:
    cdef const Suspension* suspension
    cdef bint suspended
    spin_lock(&lock)
    suspension = suspensions
    while suspension != NULL and not is_of(suspension, device, first, second):
        suspension = suspension.next
    suspended = suspension != NULL and has_address(suspension, address)
    spin_unlock(&lock)
    return suspended


cdef inline bint is_in(const Segment* segment, uintptr_t address) noexcept nogil:
    # Whether one of the listed segments is a suspended pool's and has the address.
    while segment != NULL:
        if address - segment.address < segment.size:
            return segment.heap.owner != NULL and segment.heap.owner.suspension != NULL
        segment = segment.after
    return False


cdef bint is_suspended(uintptr_t address) noexcept nogil:
    # The segments of a pool that nothing retains may be gone, and their addresses may be others', so the second look is at
    # the segments that there are.  It walks them all: only memory that sleeps comes here.
    cdef int device = device_of(address)
    cdef Pool* pool = NULL if device < 0 else pool_if_made(device)
    cdef const Heap* heap
    cdef bint suspended
    if pool == NULL:
        return False
    lock_all(pool)
    suspended = is_in(pool.first, address)
    heap = pool.heaps
    while heap != NULL and not suspended:
        suspended = is_in(heap.first_stitched, address)
        heap = heap.next
    unlock_all(pool, NULL)
    return suspended


cdef int refuse_suspended(uintptr_t address, str name) except -1:
    cdef bint suspended
    if device_of(address) < 0:
        return 0
    with nogil:
        suspended = is_suspended(address)
    if suspended:
        raise_status(SLEEPING, "use", ("memory", name, "address", address))
    return 0


# --- the list ----------------------------------------------------------------------------------------------------

cdef int by_low(const void* one, const void* other) noexcept nogil:
    # For qsort of ranges.
    return -1 if (<const Range*>one).low < (<const Range*>other).low else 1


cdef size_t count_in(Pool* pool, const PrivatePool* owner, Count count_of, void* entries) noexcept nogil:
    # What a function counts in all of the lists that have segments of the owner.
    cdef const Heap* heap = <const Heap*>owner.heaps
    cdef size_t count = count_of(owner, pool.first, entries, 0)
    while heap != NULL:
        count = count_of(owner, heap.first_stitched, entries, count)
        heap = heap.sibling
    return count


cdef size_t count_segments(const PrivatePool* owner, const Segment* segment, void* entries, size_t count) noexcept nogil:
    cdef Range* ranges = <Range*>entries
    while segment != NULL:
        if segment.heap.owner == owner:
            if ranges != NULL:
                ranges[count].low = segment.address
                ranges[count].high = segment.address + segment.size
            count += 1
        segment = segment.after
    return count


cdef int note_ranges(Pool* pool, const PrivatePool* owner, Suspension* suspension) noexcept nogil:
    # Notes the addresses of the pool's segments for is_suspended.  The caller is in the exclusive section.
    cdef size_t count = count_in(pool, owner, count_segments, NULL)
    suspension.ranges = <Range*>malloc((count + 1) * sizeof(Range))
    if suspension.ranges == NULL:
        return NO_HOST_MEMORY
    suspension.range_count = count_in(pool, owner, count_segments, suspension.ranges)
    qsort(suspension.ranges, count, sizeof(Range), &by_low)
    return 0


cdef void enlist(Suspension* suspension) noexcept nogil:
    # The caller holds the growth lock, as for delist.
    global suspensions
    spin_lock(&lock)
    suspension.next = suspensions
    suspensions = suspension
    add_count(&suspended_pools, 1)
    spin_unlock(&lock)


cdef void delist(Suspension* gone) noexcept nogil:
    cdef Suspension** link = &suspensions
    spin_lock(&lock)
    while link[0] != gone:
        link = &link[0].next
    link[0] = gone.next
    add_count(&suspended_pools, -1)
    spin_unlock(&lock)


cdef void count_suspension(int more) noexcept nogil:
    add_count(&suspended_pools, more)


cdef void forget_suspensions() noexcept nogil:
    # At import, and in a forked child: the pools are the parent's.
    global suspensions, lock
    suspensions = NULL
    lock = 0
    memset(spare_streams, 0, sizeof(spare_streams))
    memset(spares_copy, 0, sizeof(spares_copy))
    store_count(&suspended_pools, 0)


cdef void discard(Suspension* suspension) noexcept nogil:
    # It is in no list, and no pool names it any more; no copy is under way, and no lock is held.
    release_chunks(suspension)
    free(suspension.ranges)
    free(suspension)


# --- contents ----------------------------------------------------------------------------------------------------

cdef size_t count_live(const PrivatePool* owner, const Segment* segment, void* entries, size_t count) noexcept nogil:
    cdef Kept* kept = <Kept*>entries
    cdef const Block* block
    while segment != NULL:
        block = segment.first if segment.heap.owner == owner else NULL
        while block != NULL:
            if block.state == LIVE:
                if kept != NULL:
                    kept[count].address = block.address
                    kept[count].size = block.size
                count += 1
            block = block.after
        segment = segment.after
    return count


cdef int note_contents(Pool* pool, const PrivatePool* owner, Suspension* suspension) noexcept nogil:
    # Lists the live memory, laid end to end on the host; a small gap between two blocks is copied with them.  Such a gap is
    # mapped: it is smaller than a page, so each of its pages has bytes of one of the blocks.  Returns 0 or NO_HOST_MEMORY.
    cdef size_t count = count_in(pool, owner, count_live, NULL)
    cdef size_t index, last
    cdef Kept* before
    suspension.kept = <Kept*>malloc((count + 1) * sizeof(Kept))
    if suspension.kept == NULL:
        return NO_HOST_MEMORY
    suspension.kept_count = count_in(pool, owner, count_live, suspension.kept)
    suspension.kept_bytes = 0
    for index in range(suspension.kept_count):
        if index:
            before = &suspension.kept[index - 1]
            last = before.address + before.size
            if suspension.kept[index].address - last <= BRIDGED:
                suspension.kept_bytes += suspension.kept[index].address - last
        suspension.kept[index].offset = suspension.kept_bytes
        suspension.kept_bytes += suspension.kept[index].size
    suspension.chunk_size = CHUNK
    count = (suspension.kept_bytes + CHUNK - 1) // CHUNK
    suspension.chunks = <uintptr_t*>calloc(count + 1, sizeof(uintptr_t))
    if suspension.chunks == NULL:
        return NO_HOST_MEMORY
    suspension.chunk_count = count
    return 0


cdef int take_chunks(Pool* pool, Suspension* suspension, Moved* moved) noexcept nogil:
    # Takes all of the host memory before the first copy, so that a refusal costs no copy.
    cdef size_t index, size
    cdef int64_t start = now()
    cdef int code = 0
    for index in range(suspension.chunk_count):
        if code == 0:
            size = min(suspension.chunk_size, suspension.kept_bytes - index * suspension.chunk_size)
            code = allocate_unshared(pool.device, size, &suspension.chunks[index])
    moved.host_ns = now() - start
    if code:
        moved.row = "host_alloc"
    return code


cdef int copy_piece(Pool* pool, const Suspension* suspension, uintptr_t stream, uintptr_t address, size_t size,
                    size_t offset, bint out) noexcept nogil:
    # Copies contiguous memory, cut where the chunks end.
    cdef size_t part
    cdef uintptr_t host
    cdef int code = 0
    while size and code == 0:
        part = min(size, suspension.chunk_size - offset % suspension.chunk_size)
        host = suspension.chunks[offset // suspension.chunk_size] + offset % suspension.chunk_size
        if out:
            code = pool.table.copy_async(pool.device, stream, host, address, part)
        else:
            code = pool.table.copy_async(pool.device, stream, address, host, part)
        address += part
        offset += part
        size -= part
    return code


cdef int copy_pieces(Pool* pool, const Suspension* suspension, uintptr_t stream, bint out, Moved* moved) noexcept nogil:
    # Blocks that follow each other on the host as they do on the device are copied as one.  A block that was freed since
    # has size 0 and ends a piece.
    cdef const Kept* block
    cdef uintptr_t address = 0
    cdef size_t index, size = 0, offset = 0
    cdef int code = 0
    for index in range(suspension.kept_count):
        block = &suspension.kept[index]
        if size and block.size and block.address - address == block.offset - offset and (
                block.address - address - size <= BRIDGED):
            size = block.address + block.size - address
            continue
        if code == 0:
            code = copy_piece(pool, suspension, stream, address, size, offset, out)
            moved.copied += size
        address, size, offset = block.address, block.size, block.offset
    if code == 0:
        code = copy_piece(pool, suspension, stream, address, size, offset, out)
        moved.copied += size
    return code


# Holds for each device a stream that the driver refused to take back or to wait for: the next contents are copied on it,
# so that they come behind what it may still copy.  The growth lock guards it.
cdef uintptr_t[MAX_DEVICES] spare_streams
cdef bint[MAX_DEVICES] spares_copy  # it may have copies under way, which use the pages and the chunks of a failed call


cdef bint may_still_copy(const Pool* pool) noexcept nogil:
    # An earlier call, whose copies could not be waited for.
    return spares_copy[pool.device]


cdef int await_copies(Pool* pool, Moved* moved) noexcept nogil:
    # Before pages are changed again: copies that an earlier call could not wait for.
    cdef int code = 0
    if spares_copy[pool.device]:
        code = pool.table.stream_synchronize(pool.device, spare_streams[pool.device])
        if code == 0 or is_device_lost(code):
            spares_copy[pool.device] = False
        else:
            moved.row = "stream_synchronize"
    return code


cdef int take_stream(Pool* pool, uintptr_t* out_stream) noexcept nogil:
    out_stream[0] = spare_streams[pool.device]
    spare_streams[pool.device] = 0
    return pool.table.stream_create(pool.device, STREAM_NON_BLOCKING, 0, out_stream) if out_stream[0] == 0 else 0


cdef int copy_contents(Pool* pool, Suspension* suspension, bint out, Moved* moved) noexcept nogil:
    # Copies on a stream of its own, and waits for it whatever happened: the chunks and the pages may go then, unless even
    # the wait for the device is refused (may_still_copy).
    cdef uintptr_t stream = 0
    cdef int64_t start
    cdef size_t index
    cdef int code, waited, settled
    moved.copied = 0
    if suspension.kept_count == 0:
        return 0
    code = take_stream(pool, &stream)
    if code:
        moved.row = "stream_create"
        return code
    start = now()
    code = copy_pieces(pool, suspension, stream, out, moved)
    waited = pool.table.stream_synchronize(pool.device, stream)
    settled = 0 if is_device_lost(waited) else waited
    if settled:
        settled = pool.table.device_synchronize(pool.device)
    spares_copy[pool.device] = settled != 0 and not is_device_lost(settled)
    moved.copy_ns = now() - start
    if spares_copy[pool.device]:
        for index in range(suspension.chunk_count):
            use_pinned_on(suspension.chunks[index], pool.device, stream)  # who gives a chunk back waits for the copies
    if spares_copy[pool.device] or meaning_of(pool.table.stream_destroy(pool.device, stream)) not in (DONE, GONE):
        spare_streams[pool.device] = stream
    if code or waited:
        moved.row = "copy_async" if code else "stream_synchronize"
    return code if code else waited


cdef void drop_freed(Pool* pool, PrivatePool* owner, Suspension* suspension) noexcept nogil:
    # Contents; failures leave the driver's row in moved.  What is live, in the exclusive section: of what was noted.
    # Contents of blocks that were freed meanwhile are not copied back.
    cdef const Block* block
    cdef Kept* kept
    cdef size_t index
    for index in range(suspension.kept_count):
        kept = &suspension.kept[index]
        block = block_at(pool, kept.address)
        if block == NULL or block.state != LIVE or block.heap.owner != owner or block.size != kept.size:
            kept.size = 0


cdef void release_chunks(Suspension* suspension) noexcept nogil:
    # A chunk that a copy may still use was said to be used by its stream (copy_contents).
    cdef size_t index
    for index in range(suspension.chunk_count):
        if suspension.chunks[index]:
            release_pinned(suspension.chunks[index])
    free(suspension.chunks)
    free(suspension.kept)
    suspension.chunks = NULL
    suspension.kept = NULL
    suspension.chunk_count = suspension.kept_count = suspension.kept_bytes = 0


# --- the end ---------------------------------------------------------------------------------------------------

cdef Suspension* unlink_orphans(int device) noexcept nogil:
    # Returns those whose private pool's record is gone, chained by `next`.
    cdef Suspension** link = &suspensions
    cdef Suspension* gone = NULL
    cdef Suspension* suspension
    spin_lock(&lock)
    while link[0] != NULL:
        suspension = link[0]
        if suspension.device == device and suspension.orphan:
            link[0] = suspension.next
            add_count(&suspended_pools, -1)
            suspension.next = gone
            gone = suspension
        else:
            link = &suspension.next
    spin_unlock(&lock)
    return gone


cdef Suspension* take_copies(Pool* pool, Suspension* gone) noexcept nogil:
    # Moves the copies for pools that nothing retains and in which nothing is live to records chained to those given.
    cdef PrivatePool* owner = pool.privates
    cdef Suspension* shell
    while owner != NULL:
        if owner.suspension != NULL and owner.suspension.kept != NULL and owner.uses == 0 and (
                sum_of(pool, owner, ACTIVE) == 0):
            shell = <Suspension*>calloc(1, sizeof(Suspension))
            if shell == NULL:
                break
            shell.kept, owner.suspension.kept = owner.suspension.kept, NULL
            shell.chunks, owner.suspension.chunks = owner.suspension.chunks, NULL
            shell.chunk_count = owner.suspension.chunk_count
            owner.suspension.chunk_count = owner.suspension.kept_count = 0
            shell.next = gone
            gone = shell
        owner = owner.next
    return gone


cdef void sweep_suspended(int device) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef Suspension* gone
    cdef Suspension* after
    if pool == NULL or not has_suspended_pools():
        return
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    gone = take_copies(pool, unlink_orphans(device))
    unlock_all(pool, NULL)
    pthread_mutex_unlock(&pool.growth)
    while gone != NULL:
        after = gone.next
        discard(gone)
        gone = after


forget_suspensions()
at_fork("allocator.private.sleep", FORK_POOLS, NULL, NULL, &forget_suspensions)


# --- suspend ----------------------------------------------------------------------------------------------------------
# Sleep and wake: a private pool's pages go back to the device and come again at the same addresses.
#
# Segments, blocks, lists and the pages' records stay as they are.  A suspended page has no memory and is mapped nowhere, and
# nothing is allocated from its pool; blocks may be freed meanwhile.  So captured graphs, and whoever has an address, find
# everything in its place once the pool is resumed.  DESIGN.md (Sleep and wake) gives the order of the steps.
#
# A pool is suspended in two halves, between which no lock is held: the first refuses its memory to later users, the second
# takes it away; in between the caller waits for the uses that began before (driver/USES.md).  The second half, and resuming,
# hold the growth lock from beginning to end: nobody else maps pages, or adds and removes segments and slots.  Driver calls
# and copies are made outside the exclusive section, and only then do records change.

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


cdef int create_all(Pool* pool, Work* work) noexcept nogil:
    # Creates pages of the sizes that they had; stops at the first refusal.
    cdef const Page* page
    cdef size_t index
    cdef int code = 0
    for index in range(work.page_count):
        if work.handles[index] == 0 and code == 0:
            page = work.pages[index]
            code = pool.table.physical_create(pool.device, page.size, page.shareable, &work.handles[index])
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
        pool, work.slots[first].segment.heap, work.slots[first].address,
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
    cdef int code
    if is_exported(pool, owner):
        return EXPORTED
    if pool.captures:
        return BESIDE_CAPTURE
    code = record_events(pool)  # the driver may have refused one before
    return code if code else FREED_CAPTURED if is_deferred(pool, owner) else 0


cdef bint is_exported(Pool* pool, const PrivatePool* owner) noexcept nogil:
    # Whether other processes may have pages of the pool: they would keep the memory, and see nothing of what comes back.
    cdef const Page* page = pool.first_page
    while page != NULL and (page.exports == 0 or page.primary.segment.heap.owner != owner):
        page = page.after
    return page != NULL


cdef uint64_t users_devices(Pool* pool, const PrivatePool* owner) noexcept nogil:
    # The devices whose streams were recorded on live memory of the pool, a bit each.
    cdef const Heap* heap = <const Heap*>owner.heaps
    cdef uint64_t devices = devices_in(pool.first, owner)
    while heap != NULL:
        devices |= devices_in(heap.first_stitched, owner)
        heap = heap.sibling
    return devices


cdef uint64_t devices_in(const Segment* segment, const PrivatePool* owner) noexcept nogil:
    cdef const Block* block
    cdef const Use* use
    cdef uint64_t devices = 0
    while segment != NULL:
        block = segment.first if segment.heap.owner == owner else NULL
        while block != NULL:
            use = block.uses if block.state == LIVE else NULL
            while use != NULL:
                devices |= <uint64_t>1 << use.device
                use = use.next
            block = block.after
        segment = segment.after
    return devices


cdef Suspension* close_pool(Pool* pool, PrivatePool* owner) noexcept nogil:
    # From here on nothing is allocated from the pool, and its memory is refused to users.  NULL means no host memory.
    cdef Suspension* suspension = <Suspension*>calloc(1, sizeof(Suspension))
    if suspension == NULL or note_ranges(pool, owner, suspension):
        free(suspension)
        return NULL
    suspension.device = pool.device
    suspension.id = owner.id
    suspension.closing = True
    owner.suspension = suspension
    enlist(suspension)
    return suspension


cdef void open_pool(PrivatePool* owner) noexcept nogil:
    # The caller discards the suspension once it has left the locks.
    delist(owner.suspension)
    owner.suspension = NULL


cdef int await_work(Pool* pool, Work* work) noexcept nogil:
    # After it no work uses memory that was freed before, of whatever stream.
    cdef int code = wait_by(pool, await_devices, work)
    return BESIDE_CAPTURE if code == NOT_READY else code


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
    return leave_audited(pool, code)


cdef void cancel_suspension(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner = begin(pool, first, second)
    cdef Suspension* gone = owner.suspension
    open_pool(owner)
    release_hold(pool, first, second, True)
    leave_audited(pool, 0)
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
    code = leave_audited(pool, code)
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
    code = leave_audited(pool, code)
    if gone != NULL:
        discard(gone)
    moved.ns = now() - start
    return code
