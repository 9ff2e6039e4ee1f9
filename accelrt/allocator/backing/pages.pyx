"""Physical pages, the slots in which they are mapped, the devices that may use them, and their file descriptors.

A page is first mapped in an expandable segment of the heap that grew: its primary slot.  Stitched segments map it in
further slots.  It is resident in at most one of them; the others are holes, so no byte is ever in two blocks.

Every function here runs under the growth lock and in the exclusive section, unless it says otherwise.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, realloc
from posix.unistd cimport close

from accelrt.core.locks cimport (
    load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, spin_lock, spin_unlock,
    store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
from accelrt.allocator.address_table cimport claim_addresses
from accelrt.allocator.backing.plain cimport count_owner
from accelrt.allocator.event_ring cimport record_event
from accelrt.allocator.exclusive cimport call_unlocked, count_pool, lock_all, put_free, take_free, unlock_all
from accelrt.allocator.history_types cimport SEGMENT_MAPPED, SEGMENT_UNMAPPED
from accelrt.allocator.inline.block_ops cimport split_off
from accelrt.allocator.metadata cimport append_hole, ensure_blocks
from accelrt.allocator.sizes cimport LARGE, round_up
from accelrt.allocator.stats cimport RESERVED_BYTES
from accelrt.allocator.types cimport HOLE, STITCHED, Block, Reservation
from accelrt.status cimport NO_HOST_MEMORY, OUT_OF_MEMORY, PEER_ACCESS_UNSUPPORTED

cdef extern from "<sys/resource.h>" nogil:
    cdef enum:
        RLIMIT_NOFILE
    ctypedef unsigned long rlim_t
    struct rlimit:
        rlim_t rlim_cur
    int getrlimit(int resource, rlimit* limits)

cdef enum:
    RESERVED = 1 << 15  # granules of a reservation: 64 GiB
    DEVICES = 64
    MOST_FILES = 512

cdef Pool* joined[DEVICES]  # all pools with pages; they are never freed
cdef bint connected
cdef long[DEVICES][DEVICES] reached  # 1: plain segments of both are open to each other, for good
cdef pthread_mutex_t joining  # guards joined and connected; the growth locks are taken under it

cdef uintptr_t[MOST_FILES] filed  # pages' handles, and their descriptors; under files_lock
cdef int[MOST_FILES] files
cdef long file_count = 0          # written under files_lock
cdef int files_lock = 0

# Arguments of the calls made by call_unlocked.
cdef struct Run:
    Slot** slots
    size_t count
    long calls

cdef struct Creation:
    Page* page
    int calls


# --- slots and blocks over them ------------------------------------------------------------------------------

cdef Segment* new_segment(Pool* pool, Heap* heap, int shape) noexcept nogil:
    cdef Segment* segment = <Segment*>calloc(1, sizeof(Segment))
    if segment != NULL:
        segment.shape = shape
        segment.kind = LARGE
        segment.heap = heap
    return segment


cdef size_t slot_index(const Segment* segment, uintptr_t address) noexcept nogil:
    # Binary search, O(log slots).
    cdef size_t low = 0, high = segment.slot_count, middle
    while low < high:
        middle = (low + high) // 2
        if segment.slots[middle].address < address:
            low = middle + 1
        else:
            high = middle
    return low


cdef int ensure_slots(Segment* segment) noexcept nogil:
    # Grows the array, if it is full, for one slot more.
    cdef Slot** larger
    if segment.slot_count < segment.slot_capacity:
        return 0
    larger = <Slot**>realloc(segment.slots, (2 * segment.slot_capacity + 8) * sizeof(Slot*))
    if larger == NULL:
        return NO_HOST_MEMORY
    segment.slots = larger
    segment.slot_capacity = 2 * segment.slot_capacity + 8
    return 0


cdef int add_slot(Segment* segment, Page* page) noexcept nogil:
    # Appends a slot for the page, and the hole over it.
    cdef Slot* slot
    cdef int code = ensure_slots(segment)
    if code == 0:
        code = ensure_blocks(segment.heap, 1)
    if code == 0:
        code = claim_addresses(segment.heap, segment.address + segment.size, page.size)
    if code:
        return code
    slot = <Slot*>calloc(1, sizeof(Slot))
    if slot == NULL:
        return NO_HOST_MEMORY
    slot.address = segment.address + segment.size
    slot.size = page.size
    slot.segment = segment
    link_slot(slot, page)
    segment.slots[segment.slot_count] = slot
    segment.least_slot = slot.size if segment.slot_count == 0 else min(segment.least_slot, slot.size)
    segment.slot_count += 1
    slot.hole = append_hole(segment, slot.size)
    slot.hole.epoch = segment.heap.quiescent_epoch  # new memory: no work uses it yet
    segment.size += slot.size
    return 0


cdef void link_slot(Slot* slot, Page* page) noexcept nogil:
    slot.page = page
    slot.before = NULL
    slot.after = page.slots
    if slot.after != NULL:
        slot.after.before = slot
    page.slots = slot


cdef void drop_slot(Slot* slot) noexcept nogil:
    # The addresses stay; the slot has no page any more.
    if slot.page == NULL:
        return
    if slot.before == NULL:
        slot.page.slots = slot.after
    else:
        slot.before.after = slot.after
    if slot.after != NULL:
        slot.after.before = slot.before
    slot.page = NULL
    slot.mapped = False


cdef void evict(Pool* pool, Page* page) noexcept nogil:
    # The caller ensured two spare records in the heap.  page.cover must be current: it is the free block over the slot, or a
    # block before that one.
    cdef Slot* slot = page.resident
    cdef Block* block = page.cover
    while block.address + block.size <= slot.address:
        block = block.after
    take_free(pool, block)
    if block.address < slot.address:
        split_off(block.heap, block, slot.address - block.address)
        block.after.state = HOLE
        put_free(pool, block)
        block = block.after
    if block.size > slot.size:
        split_off(block.heap, block, slot.size)
        block.state = HOLE
        put_free(pool, block.after)
    block.state = HOLE
    slot.hole = block
    page.resident = NULL
    record_event(pool, SEGMENT_UNMAPPED, slot.address, slot.size, block.heap.stream, block.heap.owner)
    if slot.segment.shape == STITCHED:
        slot.segment.evicted += 1


cdef void make_resident(Pool* pool, Slot* slot) noexcept nogil:
    record_event(pool, SEGMENT_MAPPED, slot.address, slot.size, slot.segment.heap.stream, slot.segment.heap.owner)
    put_page(pool, slot)


cdef void put_page(Pool* pool, Slot* slot) noexcept nogil:
    # Without an event.
    cdef Block* block = slot.hole
    slot.hole = NULL
    slot.page.resident = slot
    if slot.segment.shape == STITCHED:
        slot.segment.evicted -= 1
    put_free(pool, block)


# --- addresses -----------------------------------------------------------------------------------------------
#
# The driver's call takes the longer the more reservations there are (35 ns for each, driver 580), so segments share
# large ones.

cdef void mark_run(Reservation* found, size_t first, size_t count, bint taken) noexcept nogil:
    cdef size_t index
    cdef uint64_t bit
    for index in range(first, first + count):
        bit = <uint64_t>1 << (index % 64)
        found.used[index // 64] = found.used[index // 64] | bit if taken else found.used[index // 64] & ~bit
    found.taken = found.taken + count if taken else found.taken - count


cdef size_t find_run(const Reservation* found, size_t count) noexcept nogil:
    # The first run of so many free granules; found.granules if there is none.
    cdef size_t index = 0, run = 0
    cdef uint64_t word
    while index < found.granules and run < count:
        word = found.used[index // 64]
        if index % 64 == 0 and word == ~<uint64_t>0:
            index += 64
            run = 0
        elif index % 64 == 0 and word == 0 and found.granules - index >= 64:
            index += 64
            run += 64
        else:
            run = 0 if word >> (index % 64) & 1 else run + 1
            index += 1
    return index - run if run >= count else found.granules


cdef bint take_addresses(Pool* pool, size_t count, uintptr_t* out_address) noexcept nogil:
    # From the first reservation with a run that is long enough.
    cdef Reservation* found = pool.reservations
    cdef size_t first
    while found != NULL:
        first = find_run(found, count) if found.granules - found.taken >= count else found.granules
        if first < found.granules:
            mark_run(found, first, count, True)
            out_address[0] = found.address + first * pool.granule
            return True
        found = found.after
    return False


cdef int reserve(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.
    cdef Reservation* made = <Reservation*>about
    return pool.table.address_reserve(made.granules * pool.granule, pool.granule, &made.address)


cdef int add_reservation(Pool* pool, size_t count) noexcept nogil:
    # Reserves so many granules of addresses.
    cdef Reservation** link = &pool.reservations
    cdef Reservation* made = <Reservation*>calloc(1, sizeof(Reservation) + count // 64 * sizeof(uint64_t))
    cdef int code
    if made == NULL:
        return NO_HOST_MEMORY
    made.granules = count
    code = call_unlocked(pool, reserve, made)
    pool.stats.virtual_memory_calls += 1
    if code:
        free(made)
        return code
    while link[0] != NULL:
        link = &link[0].after
    link[0] = made
    return 0


cdef int reserve_addresses(Pool* pool, Segment* segment, size_t room) noexcept nogil:
    # Takes room bytes of addresses for the segment; a driver call is made outside the exclusive section.
    cdef size_t count = room // pool.granule
    cdef int code = 0
    if not take_addresses(pool, count, &segment.address):
        code = add_reservation(pool, max(count, <size_t>RESERVED))
        if code and code != NO_HOST_MEMORY and count < RESERVED:  # a limit on the process's addresses, say
            code = add_reservation(pool, count)
        if code == 0:
            take_addresses(pool, count, &segment.address)
    if code == 0:
        segment.held = room
        pool.stats.reserved_addresses += room
    return code


cdef int unreserve(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.
    cdef const Reservation* found = <const Reservation*>about
    return pool.table.address_free(found.address, found.granules * pool.granule)


cdef int free_addresses(Pool* pool, Segment* segment) noexcept nogil:
    # The last segment of a reservation gives that back to the driver.
    cdef Reservation** link = &pool.reservations
    cdef Reservation* found
    cdef size_t count = segment.held // pool.granule
    cdef int code = 0
    while segment.address - link[0].address >= link[0].granules * pool.granule:
        link = &link[0].after
    found = link[0]
    if found.taken == count:
        code = call_unlocked(pool, unreserve, found)
        pool.stats.virtual_memory_calls += 1
        if code:
            return code
        link[0] = found.after
        free(found)
    else:
        mark_run(found, (segment.address - found.address) // pool.granule, count, False)
    pool.stats.reserved_addresses -= segment.held
    segment.held = 0
    return 0


# --- pages for other processes ---------------------------------------------------------------------------------

cdef long shareable = 0  # atomic; never 0 again


cdef void make_pages_shareable() noexcept nogil:
    store_count(&shareable, 1)


cdef bint pages_are_shareable() noexcept nogil:
    return load_count(&shareable) != 0


# --- the driver ----------------------------------------------------------------------------------------------

cdef int map_slots(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.  The whole run of pages is opened at once.
    cdef Run* run = <Run*>about
    cdef Slot* first = run.slots[0]
    cdef Slot* slot = first
    cdef size_t index
    cdef int code
    for index in range(run.count):
        slot = run.slots[index]
        code = pool.table.memory_map(slot.address, slot.size, slot.page.handle)
        run.calls += 1
        if code:
            return code
        slot.mapped = True
    return open_range(pool, first.address, slot.address + slot.size - first.address, &run.calls)


cdef int map_run(Pool* pool, Segment* segment, size_t first, size_t count) noexcept nogil:
    # Maps count slots and opens them; on failure some may be mapped (Slot.mapped).
    cdef int code
    cdef Run run
    run.slots = segment.slots + first
    run.count = count
    run.calls = 0
    code = call_unlocked(pool, map_slots, &run)
    pool.stats.virtual_memory_calls += run.calls
    return code


cdef int unmap_slot(Pool* pool, Slot* slot) noexcept nogil:
    # The driver call is made outside the exclusive section.
    cdef int code
    if not slot.mapped:
        return 0
    unlock_all(pool, NULL)
    code = pool.table.memory_unmap(slot.address, slot.size)
    lock_all(pool)
    pool.stats.virtual_memory_calls += 1
    if code == 0:
        slot.mapped = False
        if slot.segment.shape == STITCHED:
            pool.stats.stitched_bytes -= slot.size
    return code


cdef int create(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.  Halves a size that is refused, down to a granule.
    cdef Creation* made = <Creation*>about
    cdef Page* page = made.page
    cdef int code
    page.shareable = pages_are_shareable()
    code = create_memory(pool, page)
    while code == OUT_OF_MEMORY and page.size > pool.granule:
        page.size = round_up(page.size // 2, pool.granule)
        code = create_memory(pool, page)
        made.calls += 1
    return code


cdef int create_memory(Pool* pool, Page* page) noexcept nogil:
    # A device that cannot make memory for other processes too makes it for this one.
    cdef int code
    if page.shareable:
        code = pool.table.physical_create_shared(pool.device, page.size, &page.handle)
        if code == 0 or code == OUT_OF_MEMORY:
            return code
        page.shareable = False
    return pool.table.physical_create(pool.device, page.size, &page.handle)


cdef int make_page(Pool* pool, size_t size, Page** out_page) noexcept nogil:
    # The page is in the pool's list and counted, but resident nowhere.
    cdef Page* page = <Page*>calloc(1, sizeof(Page))
    cdef Creation made
    cdef int code
    if page == NULL:
        return NO_HOST_MEMORY
    page.size = size
    made.page = page
    made.calls = 1  # counted even if the call fails before it reaches the driver
    code = call_unlocked(pool, create, &made)
    pool.stats.virtual_memory_calls += made.calls
    if code:
        free(page)
        return code
    page.serial = pool.next_page = pool.next_page + 1
    page.before = pool.last_page
    if pool.last_page == NULL:
        pool.first_page = page
    else:
        pool.last_page.after = page
    pool.last_page = page
    count_pool(pool, RESERVED_BYTES, LARGE, page.size)
    pool.stats.num_device_alloc += 1
    out_page[0] = page
    return 0


cdef void forget_page(Pool* pool, Page* page) noexcept nogil:
    # After the driver released it: its slots in stitched segments make these incomplete, its primary slot becomes a gap.
    cdef Slot* slot
    while page.slots != NULL:
        slot = page.slots
        if slot.segment.shape == STITCHED:
            slot.segment.incomplete = True
        else:
            if page.suspended:
                slot.segment.heap.owner.sleeping -= page.size
            else:
                count_owner(pool, slot.segment.heap, -<long long>page.size)
            slot.segment.heap.gaps += 1
        drop_slot(slot)
    if page.before == NULL:
        pool.first_page = page.after
    else:
        page.before.after = page.after
    if page.after == NULL:
        pool.last_page = page.before
    else:
        page.after.before = page.before
    if pool.first_page == NULL and not pool.stays_open:
        pool.peers = 0
    if page.suspended:
        pool.stats.sleeping_bytes -= page.size
    else:
        count_pool(pool, RESERVED_BYTES, LARGE, -<long long>page.size)
        pool.stats.num_device_free += 1
    free(page)


cdef int release_page(Pool* pool, Page* page) noexcept nogil:
    # After a failure the page is resident nowhere, and is tried again when pages are released next.  A suspended page is
    # mapped nowhere, and the device has its memory already.
    cdef Slot* slot = page.slots
    cdef int code = 0
    while slot != NULL and code == 0:
        code = unmap_slot(pool, slot)
        slot = slot.after
    if code == 0 and page.handle:
        unlock_all(pool, NULL)
        close_file(page.handle)
        code = pool.table.physical_release(page.handle)
        lock_all(pool)
        pool.stats.virtual_memory_calls += 1
    if code == 0:
        forget_page(pool, page)
    return code


# --- pages for other devices -----------------------------------------------------------------------------------
#
# Mapped pages are open to a device only where cuMemSetAccess says so; cuCtxEnablePeerAccess, which libraries call, opens
# plain segments alone.  Once connect_peers was called, the pages of each pool are open to every device that has a pool and
# can reach them.  A device without a pool would get a context by it, and is left out until its pool is made.  What
# connect_two opened is the pool's own again with its last page: each open device makes growth dearer by a call.

cdef int open_range(Pool* pool, uintptr_t address, size_t size, long* calls) noexcept nogil:
    # calls is raised by the driver's calls.
    cdef int device
    cdef int code = pool.table.memory_access(address, size, pool.device)
    calls[0] += 1
    for device in range(DEVICES if pool.peers else 0):
        if code == 0 and pool.peers >> device & 1:
            code = pool.table.memory_access(address, size, device)
            calls[0] += 1
    return code


cdef int open_pages(Pool* pool, int device) noexcept nogil:
    # Those that there are and those to come.  Under the growth lock, under which no other thread maps or unmaps.
    cdef const Page* page = pool.first_page if not pool.peers >> device & 1 else NULL
    cdef const Slot* slot
    cdef int code = 0
    while page != NULL and code == 0:
        slot = page.slots
        while slot != NULL and code == 0:
            if slot.mapped:
                code = pool.table.memory_access(slot.address, slot.size, device)
            slot = slot.after
        page = page.after
    if code == 0:
        pool.peers |= <uint64_t>1 << device
    return code


cdef int open_for_good(Pool* pool, int device) noexcept nogil:
    # To a device that can reach it.  Takes the growth lock.
    cdef int can = 0
    cdef int code = pool.table.can_access_peer(device, pool.device, &can)
    if code or not can:
        return code
    pthread_mutex_lock(&pool.growth)
    pool.stays_open = True
    code = open_pages(pool, device)
    pthread_mutex_unlock(&pool.growth)
    return code


cdef int open_while_used(int owner, int device) noexcept nogil:
    # The pool of `owner`, while it has pages.  Takes its growth lock: only under that is it known whether it has any, and
    # who may use them, for another thread may release the last page, or make the first.
    cdef Pool* pool
    cdef int code = 0
    pthread_mutex_lock(&joining)
    pool = joined[owner]
    pthread_mutex_unlock(&joining)
    if pool == NULL:
        return 0
    pthread_mutex_lock(&pool.growth)
    if pool.first_page != NULL:
        code = open_pages(pool, device)
    pthread_mutex_unlock(&pool.growth)
    return code


cdef int connect(Pool* pool) noexcept nogil:
    # With each other pool, both ways.
    cdef Pool* other
    cdef int device
    cdef int code = 0
    for device in range(DEVICES):
        other = joined[device]
        if code == 0 and other != NULL and other != pool:
            code = open_for_good(pool, other.device)
            if code == 0:
                code = open_for_good(other, pool.device)
    return code


cdef int join_peers(Pool* pool) noexcept nogil:
    cdef int code = 0
    pthread_mutex_lock(&joining)
    if connected:
        code = connect(pool)
    if code == 0:
        joined[pool.device] = pool
    pthread_mutex_unlock(&joining)
    return code


cdef int connect_peers() noexcept nogil:
    global connected
    cdef int device
    cdef int code = 0
    pthread_mutex_lock(&joining)
    connected = True
    for device in range(DEVICES):
        if code == 0 and joined[device] != NULL:
            code = connect(joined[device])
    pthread_mutex_unlock(&joining)
    return code


cdef int check_reach(Table* table, int device, int other) noexcept nogil:
    cdef int can = 0
    cdef int code = table.can_access_peer(device, other, &can)
    if code == 0 and can:
        code = table.can_access_peer(other, device, &can)
    return PEER_ACCESS_UNSUPPORTED if code == 0 and not can else code


cdef int open_both(Table* table, int device, int other) noexcept nogil:
    cdef int code = open_while_used(device, other)
    if code == 0:
        code = open_while_used(other, device)
    if code or load_count(&reached[device][other]):
        return code
    code = table.enable_peer(device, other)
    if code == 0:
        code = table.enable_peer(other, device)
    if code == 0:
        store_count(&reached[device][other], 1)
        store_count(&reached[other][device], 1)
    return code


cdef int connect_two(Table* table, int device, int other) noexcept nogil:
    cdef int mode
    cdef int code = 0 if load_count(&reached[device][other]) else check_reach(table, device, other)
    if code == 0:
        code = go_relaxed(table, &mode)
    if code:
        return code
    code = open_both(table, device, other)
    restore_mode(table, mode)
    return code


# --- descriptors ---------------------------------------------------------------------------------------------
#
# At most a quarter of what the process may have open.  A forked child closes its copies: they would keep the memory of its
# parent's pages.

cdef int file_place(uintptr_t handle) noexcept nogil:
    # Under files_lock; -1: none.
    cdef int place = <int>file_count - 1
    while place >= 0 and filed[place] != handle:
        place -= 1
    return place


cdef int kept_file(uintptr_t handle) noexcept nogil:
    cdef int place, file
    spin_lock(&files_lock)
    place = file_place(handle)
    file = files[place] if place >= 0 else -1
    spin_unlock(&files_lock)
    return file


cdef bint has_room() noexcept nogil:
    cdef rlimit limits
    return file_count < MOST_FILES and getrlimit(RLIMIT_NOFILE, &limits) == 0 and <rlim_t>file_count < limits.rlim_cur // 4


cdef bint keep_file(uintptr_t handle, int file) noexcept nogil:
    cdef bint kept
    spin_lock(&files_lock)
    kept = file_place(handle) < 0 and has_room()
    if kept:
        filed[file_count] = handle
        files[file_count] = file
        store_count(&file_count, file_count + 1)
    spin_unlock(&files_lock)
    return kept


cdef void close_file(uintptr_t handle) noexcept nogil:
    cdef int place, file = -1
    if load_count(&file_count) == 0:
        return
    spin_lock(&files_lock)
    place = file_place(handle)
    if place >= 0:
        file = files[place]
        filed[place] = filed[file_count - 1]
        files[place] = files[file_count - 1]
        store_count(&file_count, file_count - 1)
    spin_unlock(&files_lock)
    if file >= 0:
        close(file)


cdef void close_in_child() noexcept nogil:
    global files_lock
    files_lock = 0  # a thread of the parent's may have held this, or that
    pthread_mutex_init(&joining, NULL)
    for place in range(file_count):
        close(files[place])
    store_count(&file_count, 0)


at_fork("allocator.backing.pages", FORK_POOLS, NULL, NULL, &close_in_child)
