"""A pool's memory of the device: plain segments, pages, and the expandable segments that they are mapped in."""
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from accelrt.allocator.event_ring cimport record_event, stack_of_block
from accelrt.allocator.heaps cimport (
    append_hole, call_unlocked, claim_addresses, count_oversize, count_pool, ensure_blocks, lock_all, put_free,
    reserved, take_free, take_lines, total_of, unlock_all,
)
from accelrt.allocator.history_types cimport SEGMENT_ALLOCATED, SEGMENT_FREED, SEGMENT_MAPPED
from accelrt.allocator.inline.block_ops cimport recycle
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.sizes cimport LARGE, UNIT, round_up
from accelrt.allocator.stats cimport ALLOCATED_BYTES, ALLOCATION, RESERVED_BYTES, SEGMENT, current_of, note_news
from accelrt.allocator.types cimport (
    ANY_REST, BY_KIND, EXPANDABLE, FREE, HOLE, NO_REST, PLAIN, STITCHED, Block, Page, Reservation, Segment, Slot,
)
from accelrt.core.descriptors cimport close_kept, keep_number, KeptFile, number_of
from accelrt.core.growing cimport count_to, ensure_room
from accelrt.core.locks cimport (
    load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, spin_lock, spin_unlock,
    store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.guard cimport MAX_DEVICES, go_relaxed, is_capturing, restore_mode
from accelrt.driver.managed cimport (
    LOCATION_DEVICE, LOCATION_HOST, MANAGED_GLOBAL, ManagedRange, SET_ACCESSED_BY, SET_PREFERRED,
)
from accelrt.driver.memory cimport MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN
from accelrt.status cimport (
    CAP_REACHED, INVALID_VALUE, NO_HOST_MEMORY, NOT_SUPPORTED, OUT_OF_MEMORY, PEER_ACCESS_UNSUPPORTED,
    POOL_CAP_REACHED,
)


# --- plain ------------------------------------------------------------------------------------------------------------
# Plain segments: one allocation of the device each, and the limits on growth.
#
# Every function here runs under the growth lock and in the exclusive section, unless it says otherwise.

cdef int take_bytes(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.
    cdef Segment* segment = <Segment*>about
    cdef int before, code
    if segment.source == NULL:
        return pool.table.memory_alloc(pool.device, segment.size, &segment.address)
    if segment.source.managed:
        return take_managed(pool, segment)
    code = enter_device(pool, &before)
    if code:
        return code
    segment.address = <uintptr_t>segment.source.alloc(segment.size, pool.device, <void*>segment.heap.stream)
    if segment.address & (UNIT - 1):
        segment.source.free(<void*>segment.address, segment.size, pool.device, <void*>segment.heap.stream)
        code = INVALID_VALUE
    leave_device(pool, before)
    return code if code or segment.address else OUT_OF_MEMORY


cdef int give_bytes(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.
    cdef Segment* segment = <Segment*>about
    cdef int before, code
    if segment.source == NULL:
        return pool.table.memory_free(pool.device, segment.address)
    if segment.source.managed:
        forget_managed(segment.address)  # before others may have the addresses
        code = pool.table.memory_free(pool.device, segment.address)
        if code:
            note_managed(segment.address, segment.size)
        return code
    code = enter_device(pool, &before)
    if code == 0:
        segment.source.free(<void*>segment.address, segment.size, pool.device, <void*>segment.heap.stream)
        leave_device(pool, before)
    return code


# Managed memory: the spans of addresses that are managed, which exports ask for, and the places of segments.

cdef struct Span:
    uintptr_t start
    uintptr_t end

cdef enum:
    NEAR_UNIT = 2 << 20  # the part of a segment that shall lie on the device is a multiple

cdef Span* spans = NULL       # of managed segments, by address; under spans_lock
cdef size_t span_count = 0
cdef size_t span_room = 0
cdef int spans_lock = 0
cdef long managed_total = 0   # their bytes; written under spans_lock


cdef size_t spans_below(uintptr_t address) noexcept nogil:
    # How many begin at most there.  Under spans_lock.
    return count_to(&spans[0].start, span_count, sizeof(Span), address)


cdef bint note_managed(uintptr_t address, size_t size) noexcept nogil:
    # False where the host has no memory.
    global span_count
    cdef size_t index
    spin_lock(&spans_lock)
    if ensure_room(&spans, span_count, &span_room, sizeof(Span)):
        spin_unlock(&spans_lock)
        return False
    index = spans_below(address)
    memmove(&spans[index + 1], &spans[index], (span_count - index) * sizeof(Span))
    spans[index].start, spans[index].end = address, address + size
    span_count += 1
    store_count(&managed_total, load_count(&managed_total) + <long>size)
    spin_unlock(&spans_lock)
    return True


cdef void forget_managed(uintptr_t address) noexcept nogil:
    global span_count
    cdef size_t index
    spin_lock(&spans_lock)
    index = spans_below(address)
    if index and spans[index - 1].start == address:
        store_count(&managed_total, load_count(&managed_total) - <long>(spans[index - 1].end - address))
        memmove(&spans[index - 1], &spans[index], (span_count - index) * sizeof(Span))
        span_count -= 1
    spin_unlock(&spans_lock)


cdef bint is_managed(uintptr_t address) noexcept nogil:
    cdef size_t index
    cdef bint managed
    if load_count(&managed_total) == 0:
        return False
    spin_lock(&spans_lock)
    index = spans_below(address)
    managed = index > 0 and address < spans[index - 1].end
    spin_unlock(&spans_lock)
    return managed


cdef inline bint is_managed_segment(const Segment* segment) noexcept nogil:
    return segment.source != NULL and segment.source.managed


cdef int take_managed(Pool* pool, Segment* segment) noexcept nogil:
    # Where the memory shall lie is advice, so that a refusal of it is no matter.
    cdef size_t near = segment.size
    cdef int code = pool.table.managed_alloc(pool.device, segment.size, MANAGED_GLOBAL, &segment.address)
    if code == 0 and (segment.address & (UNIT - 1) or not note_managed(segment.address, segment.size)):
        pool.table.memory_free(pool.device, segment.address)
        return NO_HOST_MEMORY
    if code == 0 and segment.source.headroom != SIZE_MAX:
        near = leave_headroom(pool, segment)
    if code == 0 and segment.source.prefetches and near:
        prefetch_segment(pool, segment, near)
    return code


cdef size_t leave_headroom(Pool* pool, const Segment* segment) noexcept nogil:
    # The bytes from its start on that shall lie on the device, which has its headroom left beside them.
    cdef size_t room = 0, total = 0, near
    if pool.table.memory_info(pool.device, &room, &total):
        return 0
    room = room - segment.source.headroom if room > segment.source.headroom else 0
    near = segment.size if room >= segment.size else room & ~<size_t>(NEAR_UNIT - 1)
    if near:
        pool.table.managed_advise(pool.device, segment.address, near, SET_PREFERRED, LOCATION_DEVICE, pool.device)
    if near < segment.size:
        pool.table.managed_advise(pool.device, segment.address + near, segment.size - near, SET_PREFERRED, LOCATION_HOST, 0)
        pool.table.managed_advise(
            pool.device, segment.address + near, segment.size - near, SET_ACCESSED_BY, LOCATION_DEVICE, pool.device)
    return near


cdef void prefetch_segment(Pool* pool, const Segment* segment, size_t size) noexcept nogil:
    # A capture takes no prefetch.
    cdef ManagedRange moved = ManagedRange(segment.address, size, LOCATION_DEVICE, pool.device)
    cdef int code = 0
    if not is_capturing(pool.table, pool.device, segment.heap.stream, &code) and code == 0:
        pool.table.managed_prefetch(pool.device, segment.heap.stream, &moved, 1)


cdef int enter_device(const Pool* pool, int* out_before) noexcept nogil:
    # A library's functions allocate on the current device.
    cdef int code = pool.table.current_device(out_before)
    if code == 0 and out_before[0] != pool.device:
        code = pool.table.set_device(pool.device)
    return code


cdef void leave_device(const Pool* pool, int before) noexcept nogil:
    if before != pool.device:
        pool.table.set_device(before)  # -1 where the thread had no device


cdef bint takes_plain(const Pool* pool, const Heap* heap) noexcept nogil:
    return not pool.settings.virtual_memory or (heap.owner != NULL and (heap.owner.source != NULL or heap.owner.whole))


cdef void link_segment(Pool* pool, Segment* segment) noexcept nogil:
    # Plain and expandable segments.
    # Gives the segment its serial, appends it to the pool's list and counts it.
    segment.stack = stack_of_block(pool)
    segment.serial = pool.next_serial
    pool.next_serial += 1
    segment.before = pool.last
    segment.after = NULL
    if pool.last == NULL:
        pool.first = segment
    else:
        pool.last.after = segment
    pool.last = segment
    if segment.heap.owner != NULL:
        segment.heap.owner.segments += 1
        segment.heap.owner.peak[SEGMENT] = max(segment.heap.owner.peak[SEGMENT], <int64_t>segment.heap.owner.segments)
    count_pool(pool, SEGMENT, segment.kind, 1)
    if segment.shape == PLAIN and segment.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_segments, 1)


cdef void unlink_segment(Pool* pool, Segment* segment) noexcept nogil:
    # Takes the segment out of the pool's list and the counts.
    if segment.before == NULL:
        pool.first = segment.after
    else:
        segment.before.after = segment.after
    if segment.after == NULL:
        pool.last = segment.before
    else:
        segment.after.before = segment.before
    if segment.heap.owner != NULL:
        segment.heap.owner.segments -= 1
    count_pool(pool, SEGMENT, segment.kind, -1)
    if segment.shape == PLAIN and segment.size >= pool.settings.max_split:
        count_oversize(&pool.stats.oversize_segments, -1)


cdef int within_limits(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    # 0, or which limit growth by size would pass.
    # The private pool's limit first: memory elsewhere cannot help against it.
    if heap.owner != NULL and (size > heap.owner.limit or heap.owner.reserved > heap.owner.limit - size):
        return POOL_CAP_REACHED
    # Managed memory takes as much of the device as that has room for, whatever there is of it.
    if heap.owner != NULL and heap.owner.source != NULL and heap.owner.source.managed:
        return 0
    return CAP_REACHED if reserved(pool) - pool.stats.managed_bytes + size > pool.limit else 0


cdef int grow_plain(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    # Takes one segment from the device, as one free block.  The driver call is made outside the exclusive section.
    cdef Segment* segment
    cdef int code = within_limits(pool, heap, size)
    if code:
        return code
    segment = new_plain(pool, heap, size)
    if segment == NULL:
        return NO_HOST_MEMORY
    code = call_unlocked(pool, take_bytes, segment)
    if code == 0:
        code = add_plain(pool, segment)
        if code:
            call_unlocked(pool, give_bytes, segment)
    if code:
        free(segment)
    return code


cdef int grow_plain_at(Pool* pool, Heap* heap, size_t size, uintptr_t address) noexcept nogil:
    # The same of memory that was taken from the heap's functions already, which may be of this pool's own.
    cdef Segment* segment = pool.first
    cdef int code = within_limits(pool, heap, size)
    while segment != NULL:
        if address < segment.address + segment.held and segment.address < address + size:
            code = INVALID_VALUE
        segment = segment.after
    if code:
        return code
    segment = new_plain(pool, heap, size)
    if segment == NULL:
        return NO_HOST_MEMORY
    segment.address = address
    code = add_plain(pool, segment)
    if code:
        free(segment)
    return code


cdef Segment* new_plain(const Pool* pool, Heap* heap, size_t size) noexcept nogil:
    cdef Segment* segment = <Segment*>take_lines(sizeof(Segment))
    if segment == NULL:
        return NULL
    segment.size = segment.held = size
    segment.heap = heap
    if heap.owner != NULL:
        segment.source = heap.owner.source
        segment.splits = NO_REST if heap.owner.whole else ANY_REST if pool.settings.virtual_memory else BY_KIND
    return segment


cdef int add_plain(Pool* pool, Segment* segment) noexcept nogil:
    # Once it has its address.
    cdef Heap* heap = segment.heap
    cdef size_t size = segment.size
    cdef int code = ensure_blocks(heap, 1)
    if code == 0:
        code = claim_addresses(heap, segment.address, size)
    if code:
        return code
    segment.shape = PLAIN
    segment.kind = heap.kind
    link_segment(pool, segment)
    count_owner(pool, heap, size)
    pool.stats.num_device_alloc += 1
    count_pool(pool, RESERVED_BYTES, segment.kind, size)
    if is_managed_segment(segment):
        pool.stats.managed_bytes += size
    record_event(pool, SEGMENT_ALLOCATED, segment.address, size, heap.stream, heap.owner)
    append_hole(segment, size).epoch = heap.quiescent_epoch  # new memory: no work uses it yet
    put_free(pool, segment.first)
    return 0


cdef bint may_leave(const Pool* pool, const Heap* heap) noexcept nogil:
    # Its idle memory may go back to the device.
    # A MemPool in use keeps its idle memory, unless its user empties it or a request would otherwise fail (emptied).
    # A pool that a graph holds keeps all of it.  pool.only restricts the answer to one private pool, pool.only_ended to
    # those without a use.
    if pool.only != NULL and heap.owner != pool.only or pool.only_ended and heap.owner == NULL:
        return False
    if pool.only_ended and heap.owner.uses:
        return False
    return heap.owner == NULL or heap.owner.uses == (heap.owner.users if heap.owner.emptied else 0)


cdef bint has_no_replays(const Pool* pool, const Heap* heap) noexcept nogil:
    return may_leave(pool, heap) and (heap.owner == NULL or heap.owner.rest == 2)


cdef bint is_idle(const Pool* pool, const Segment* segment) noexcept nogil:
    # Whether a plain segment is one free block and may go back.
    return (segment.shape == PLAIN and segment.first.state == FREE and segment.first.after == NULL
            and may_leave(pool, segment.heap))


# Segments of Python's functions that went back, to be given to these once no lock is held: by device, under its pool's
# growth lock.  A heap may be gone by then, so that idle_since has its stream.
cdef Segment* returned[MAX_DEVICES]


cdef bint is_of_functions(const Heap* heap) noexcept nogil:
    return heap.owner != NULL and heap.owner.source != NULL and heap.owner.source.take != NULL


cdef bint has_returned(const Pool* pool) noexcept nogil:
    return returned[pool.device] != NULL


cdef void unlock_growth(Pool* pool) noexcept nogil:
    cdef Segment* segment = returned[pool.device]
    cdef Segment* after
    returned[pool.device] = NULL
    pthread_mutex_unlock(&pool.growth)
    while segment != NULL:
        after = segment.after
        segment.source.give(
            segment.source, pool.table, pool.device, segment.address, segment.size, <uintptr_t>segment.idle_since)
        free(segment)
        segment = after


cdef int release_segment(Pool* pool, Segment* segment) noexcept nogil:
    # The block is a HOLE during the driver call, so that no hit takes it.
    cdef Block* block = segment.first
    cdef bint waits = segment.source != NULL and segment.source.take != NULL
    cdef int code
    take_free(pool, block)
    block.state = HOLE
    code = 0 if waits else call_unlocked(pool, give_bytes, segment)
    if code:
        put_free(pool, block)
        return code
    unlink_segment(pool, segment)
    record_event(pool, SEGMENT_FREED, segment.address, segment.size, segment.heap.stream, segment.heap.owner)
    count_owner(pool, segment.heap, -<int64_t>segment.size)
    pool.stats.num_device_free += 1
    note_news(&pool.stats)
    count_pool(pool, RESERVED_BYTES, segment.kind, -<long long>segment.size)
    if is_managed_segment(segment):
        pool.stats.managed_bytes -= segment.size
    block.state = FREE
    recycle(segment.heap, block)
    if waits:
        segment.idle_since = segment.heap.stream
        segment.after = returned[pool.device]
        returned[pool.device] = segment
    else:
        free(segment)
    return 0


cdef Segment* longest_idle(Pool* pool) noexcept nogil:
    # Walks all segments of the pool.
    cdef Segment* segment = pool.first
    cdef Segment* longest = NULL
    while segment != NULL:
        if is_idle(pool, segment) and (longest == NULL or segment.idle_since < longest.idle_since):
            longest = segment
        segment = segment.after
    return longest


cdef int release_plain(Pool* pool, size_t wanted) noexcept nogil:
    # All idle segments in order, or the longest idle first until wanted bytes went back.  Only the holder of the growth
    # lock links and unlinks segments, so a walk survives the release of the exclusive section.
    cdef Segment* segment = pool.first
    cdef Segment* after
    cdef size_t size, done = 0
    cdef int code = 0
    while segment != NULL and code == 0 and wanted == SIZE_MAX:
        after = segment.after
        if is_idle(pool, segment):
            code = release_segment(pool, segment)
        segment = after
    while wanted != SIZE_MAX and done < wanted and code == 0:
        segment = longest_idle(pool)
        if segment == NULL:
            break
        size = segment.size
        code = release_segment(pool, segment)
        done += size
    return code


# --- pages ------------------------------------------------------------------------------------------------------------
# Physical pages, the slots in which they are mapped, the devices that may use them, and their file descriptors.
#
# A page is first mapped in an expandable segment of the heap that grew: its primary slot.  Stitched segments map it in
# further slots.  It is resident in at most one of them; the others are holes, so no byte is ever in two blocks.
#
# Every function here runs under the growth lock and in the exclusive section, unless it says otherwise.

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
cdef uint64_t users         # devices that use other devices' memory once connected, a bit each
cdef bint connected
cdef long[DEVICES][DEVICES] reached  # 1: plain segments of both are open to each other, for good
cdef pthread_mutex_t joining  # guards the three above; the growth locks are taken under it

cdef uintptr_t[MOST_FILES] filed  # pages' handles, and their descriptors; under files_lock
cdef KeptFile[MOST_FILES] files
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
    cdef Segment* segment = <Segment*>take_lines(sizeof(Segment))
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


cdef int append_slot(Segment* segment, size_t size) noexcept nogil:
    # Without a page, and the hole over it.
    cdef Slot* slot
    cdef int code = ensure_room(&segment.slots, segment.slot_count, &segment.slot_capacity, sizeof(Slot*))
    if code == 0:
        code = ensure_blocks(segment.heap, 1)
    if code == 0:
        code = claim_addresses(segment.heap, segment.address + segment.size, size)
    if code:
        return code
    slot = <Slot*>calloc(1, sizeof(Slot))
    if slot == NULL:
        return NO_HOST_MEMORY
    slot.address = segment.address + segment.size
    slot.size = size
    slot.segment = segment
    segment.slots[segment.slot_count] = slot
    segment.least_slot = slot.size if segment.slot_count == 0 else min(segment.least_slot, slot.size)
    segment.slot_count += 1
    slot.hole = append_hole(segment, slot.size)
    slot.hole.epoch = segment.heap.quiescent_epoch  # new memory: no work uses it yet
    segment.size += slot.size
    return 0


cdef int add_slot(Segment* segment, Page* page) noexcept nogil:
    # Appends a slot for the page.
    cdef int code = append_slot(segment, page.size)
    if code == 0:
        link_slot(segment.slots[segment.slot_count - 1], page)
    return code


cdef int add_gap(Segment* expandable, size_t size) noexcept nogil:
    cdef int code = append_slot(expandable, size)
    expandable.heap.gaps += code == 0
    return code


cdef void link_slot(Slot* slot, Page* page) noexcept nogil:
    # Into the page's list.
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


cdef void make_resident(Pool* pool, Slot* slot) noexcept nogil:
    record_event(pool, SEGMENT_MAPPED, slot.address, slot.size, slot.segment.heap.stream, slot.segment.heap.owner)
    put_page(pool, slot)


cdef void put_page(Pool* pool, Slot* slot) noexcept nogil:
    # The same without an event.
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
    cdef Reservation* reservation = pool.reservations
    cdef size_t first
    while reservation != NULL:
        first = find_run(reservation, count) if reservation.granules - reservation.taken >= count else reservation.granules
        if first < reservation.granules:
            mark_run(reservation, first, count, True)
            out_address[0] = reservation.address + first * pool.granule
            return True
        reservation = reservation.after
    return False


cdef int reserve(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.
    cdef Reservation* reservation = <Reservation*>about
    cdef size_t size = reservation.granules * pool.granule
    cdef uintptr_t at = reservation.address
    cdef int code
    if at == 0:
        return pool.table.address_reserve(size, pool.granule, &reservation.address)
    code = pool.table.address_reserve_at(size, pool.granule, at, &reservation.address)
    if code == 0 and reservation.address != at:
        code = pool.table.address_free(reservation.address, size)
        code = code if code else ELSEWHERE
    return code


cdef int add_reservation(Pool* pool, size_t count, uintptr_t at) noexcept nogil:
    # Reserves so many granules of addresses, which begin at `at`, unless that is 0.
    cdef Reservation** link = &pool.reservations
    cdef Reservation* reservation = <Reservation*>calloc(1, sizeof(Reservation) + count // 64 * sizeof(uint64_t))
    cdef int code
    if reservation == NULL:
        return NO_HOST_MEMORY
    reservation.granules, reservation.address = count, at
    code = call_unlocked(pool, reserve, reservation)
    pool.stats.virtual_memory_calls += 2 if code == ELSEWHERE else 1
    if code:
        free(reservation)
        return code
    while link[0] != NULL:
        link = &link[0].after
    link[0] = reservation
    return 0


cdef int take_addresses_at(Pool* pool, size_t count, uintptr_t at) noexcept nogil:
    # From the reservation that they are in, or from one of their own.
    cdef Reservation* reservation = pool.reservations
    cdef size_t first, index
    cdef int code
    while reservation != NULL and at - reservation.address >= reservation.granules * pool.granule:
        reservation = reservation.after
    if reservation == NULL:
        code = add_reservation(pool, count, at)
        return code if code else take_addresses_at(pool, count, at)
    first = (at - reservation.address) // pool.granule
    if reservation.granules - first < count:
        return ELSEWHERE
    for index in range(first, first + count):
        if reservation.used[index // 64] >> (index % 64) & 1:
            return ELSEWHERE
    mark_run(reservation, first, count, True)
    return 0


cdef int reserve_addresses(Pool* pool, Segment* segment, size_t room, uintptr_t at) noexcept nogil:
    # Takes room bytes of addresses for the segment; a driver call is made outside the exclusive section.
    cdef size_t count = room // pool.granule
    cdef int code = 0
    if at:
        segment.address = at
        code = take_addresses_at(pool, count, at)
    elif not take_addresses(pool, count, &segment.address):
        code = add_reservation(pool, max(count, <size_t>RESERVED), 0)
        if code and code != NO_HOST_MEMORY and count < RESERVED:  # a limit on the process's addresses, say
            code = add_reservation(pool, count, 0)
        if code == 0:
            take_addresses(pool, count, &segment.address)
    if code == 0:
        segment.held = room
        pool.stats.reserved_addresses += room
    return code


cdef int unreserve(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.
    cdef const Reservation* reservation = <const Reservation*>about
    return pool.table.address_free(reservation.address, reservation.granules * pool.granule)


cdef int free_addresses(Pool* pool, Segment* segment) noexcept nogil:
    # The last segment of a reservation gives that back to the driver.
    cdef Reservation** link = &pool.reservations
    cdef Reservation* reservation
    cdef size_t count = segment.held // pool.granule
    cdef int code = 0
    while segment.address - link[0].address >= link[0].granules * pool.granule:
        link = &link[0].after
    reservation = link[0]
    if reservation.taken == count:
        code = call_unlocked(pool, unreserve, reservation)
        pool.stats.virtual_memory_calls += 1
        if code:
            return code
        link[0] = reservation.after
        free(reservation)
    else:
        mark_run(reservation, (segment.address - reservation.address) // pool.granule, count, False)
    pool.stats.reserved_addresses -= segment.held
    segment.held = 0
    return 0


# --- pages for other processes ---------------------------------------------------------------------------------

cdef long shareable = 0  # atomic; never 0 again


cdef void make_pages_shareable() noexcept nogil:
    store_count(&shareable, 1)


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
    return open_range(pool, first.segment.heap, first.address, slot.address + slot.size - first.address, &run.calls)


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
    cdef Creation* creation = <Creation*>about
    cdef Page* page = creation.page
    cdef int code
    page.shareable = load_count(&shareable) != 0
    code = create_memory(pool, page)
    while code == OUT_OF_MEMORY and page.size > pool.granule:
        page.size = round_up(page.size // 2, pool.granule)
        code = create_memory(pool, page)
        creation.calls += 1
    return code


cdef int create_memory(Pool* pool, Page* page) noexcept nogil:
    # Outside the exclusive section.  A device that cannot make memory for other processes too makes it for this one.
    cdef int code
    if page.shareable:
        code = pool.table.physical_create(pool.device, page.size, True, &page.handle)
        if code == 0 or code == OUT_OF_MEMORY:
            return code
        page.shareable = False
    return pool.table.physical_create(pool.device, page.size, False, &page.handle)


cdef int make_page(Pool* pool, size_t size, Page** out_page) noexcept nogil:
    # Or smaller, if the device refuses the size.
    # The page is in the pool's list and counted, but resident nowhere.
    cdef Page* page = <Page*>calloc(1, sizeof(Page))
    cdef Creation creation
    cdef int code
    if page == NULL:
        return NO_HOST_MEMORY
    page.size = size
    creation.page = page
    creation.calls = 1  # counted even if the call fails before it reaches the driver
    code = call_unlocked(pool, create, &creation)
    pool.stats.virtual_memory_calls += creation.calls
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
        note_news(&pool.stats)
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
# plain segments alone.  Once connect_peers was called, the pages of each pool are open to every device that can reach them
# and has a pool, or other memory that is not accelrt's (join_device).  A device that nothing uses would get a context by
# it, and is left out.  What connect_two opened is the pool's own again with its last page: each open device makes growth
# dearer by a call.

cdef int access_of(const Pool* pool, const PrivatePool* owner, int device) noexcept nogil:
    # What another device may do with the pages of a private pool, or with common ones.
    cdef bint is_writer = pool.peers >> device & 1
    if owner != NULL and not is_writer:
        is_writer = owner.writers >> device & 1
        if not is_writer and owner.readers >> device & 1:
            return MEMORY_READ
    return MEMORY_WRITTEN if is_writer else MEMORY_CLOSED


cdef int open_range(Pool* pool, const Heap* heap, uintptr_t address, size_t size, long* calls) noexcept nogil:
    # calls is raised by the driver's calls.
    cdef uint64_t others = pool.peers | (heap.owner.readers if heap.owner != NULL else 0)
    cdef int device
    cdef int code = pool.table.memory_access(address, size, pool.device, MEMORY_WRITTEN)
    calls[0] += 1
    for device in range(DEVICES if others else 0):
        if code == 0 and others >> device & 1:
            code = pool.table.memory_access(address, size, device, access_of(pool, heap.owner, device))
            calls[0] += 1
    return code


cdef int open_private(Pool* pool, PrivatePool* owner, int device, int access) noexcept nogil:
    # The pages that there are and those to come.  A device that may use all of the pool's may use these in any case.  Where
    # the driver refuses, some of them may be open.
    cdef uint64_t bit = <uint64_t>1 << device
    cdef const Page* page = pool.first_page
    cdef const Slot* slot
    cdef int code = 0
    owner.readers = owner.readers | bit if access else owner.readers & ~bit
    owner.writers = owner.writers | bit if access == MEMORY_WRITTEN else owner.writers & ~bit
    access = access_of(pool, owner, device)
    while page != NULL and code == 0:
        slot = page.slots if page.primary.segment.heap.owner == owner else NULL
        while slot != NULL and code == 0:
            if slot.mapped:
                code = pool.table.memory_access(slot.address, slot.size, device, access)
            slot = slot.after
        page = page.after
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
                code = pool.table.memory_access(slot.address, slot.size, device, MEMORY_WRITTEN)
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
    # With each other device that is in use, both ways.
    cdef int device
    cdef int code = 0
    for device in range(DEVICES):
        if code == 0 and device != pool.device and users >> device & 1:
            code = open_for_good(pool, device)
            if code == 0 and joined[device] != NULL:
                code = open_for_good(joined[device], pool.device)
    return code


cdef int join_peers(Pool* pool) noexcept nogil:
    global users
    cdef int code = 0
    pthread_mutex_lock(&joining)
    if connected:
        code = connect(pool)
    if code == 0:
        joined[pool.device] = pool
        users |= <uint64_t>1 << pool.device
    pthread_mutex_unlock(&joining)
    return code


cdef int join_device(Table* table, int device) noexcept nogil:
    global users
    cdef int mode, owner
    cdef int code = go_relaxed(table, &mode)
    if code:
        return code
    pthread_mutex_lock(&joining)
    for owner in range(DEVICES if connected and not users >> device & 1 else 0):
        if code == 0 and owner != device and joined[owner] != NULL:
            code = open_for_good(joined[owner], device)
    if code == 0:
        users |= <uint64_t>1 << device
    pthread_mutex_unlock(&joining)
    restore_mode(table, mode)
    return code


cdef bint is_in_use(int device) noexcept nogil:
    cdef bint in_use
    pthread_mutex_lock(&joining)
    in_use = users >> device & 1
    pthread_mutex_unlock(&joining)
    return in_use


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


cdef int open_if_connected(Table* table, int device, uintptr_t address, size_t size, int other) noexcept nogil:
    cdef int can = 0
    cdef int code = table.can_access_peer(other, device, &can) if connected and other != device else 0
    return table.memory_access(address, size, other, MEMORY_WRITTEN) if code == 0 and can else code


cdef int open_foreign(Table* table, int device, uintptr_t address, size_t size) noexcept nogil:
    cdef int other
    cdef int code = table.memory_access(address, size, device, MEMORY_WRITTEN)
    pthread_mutex_lock(&joining)
    for other in range(DEVICES):
        if code == 0 and users >> other & 1:
            code = open_if_connected(table, device, address, size, other)
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
    file = number_of(files[place]) if place >= 0 else -1
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
        files[file_count] = keep_number(file)
        store_count(&file_count, file_count + 1)
    spin_unlock(&files_lock)
    return kept


cdef void close_file(uintptr_t handle) noexcept nogil:
    cdef KeptFile file = -1
    cdef int place
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
    close_kept(file)


cdef void close_in_child() noexcept nogil:
    global files_lock, span_count, spans_lock
    files_lock = spans_lock = 0  # a thread of the parent's may have held these, or that
    span_count = 0
    store_count(&managed_total, 0)
    pthread_mutex_init(&joining, NULL)
    for place in range(file_count):
        close_kept(files[place])
    store_count(&file_count, 0)


at_fork("allocator.backing.pages", FORK_POOLS, NULL, NULL, &close_in_child)


# --- expandable -------------------------------------------------------------------------------------------------------
# Expandable segments: how they grow, page by page, and how trailing addresses without pages are cut off.
#
# Every function here runs under the growth lock and in the exclusive section, which is released during driver calls.

cdef enum:
    CHECKED = 256 << 20  # a growth by so much is refused if the device has less, before pages are taken from others in vain
    PAGES_WANTED = 64    # a page is at most this part of the reserved bytes, so that a partly used one wastes little;
    MAX_PAGES = 512      # and at most LARGEST_PAGE, unless that made more pages than this,
    LARGEST_PAGE = 16 << 20
    MEDIUM_PAGE = 6 << 20   # and at most this instead, from ROOMY reserved bytes on, if the blocks have a mean size of
    MEDIUM_LEAST = 4 << 20  # so much and more (smaller ones fill the ends of pages that larger ones leave)
    MEDIUM_MOST = 20 << 20  # and less than this (of larger blocks there are few, so few ends)
    ROOMY = 1 << 30
    GROWTH_PARTS = 4     # and at most this part of the whole growth: a block's end wastes up to a page,
    MOST_PAGES = 4096    # unless that made more pages than this
    SOLE_PAGES = 256     # or, of one stream, than this; there of blocks with a mean size below MEDIUM_MOST alone
    SMALL_MEAN = 1 << 20    # mean size of blocks below which a page may be larger than what is needed,
    AHEAD = 256             # up to this part of its expandable segment
    HUGE = 256 << 20     # mean size of blocks from which on
    HUGE_PARTS = 3       # a page may be this part of it: stitching such a block from more pages would cost too many calls
    FIRST_SIZE = 32      # addresses of a heap's first expandable segment, as a power of two: 4 GiB,
    SMALL_SIZE = 26      # or 64 MiB where the pool has MANY segments: the driver maps pages that are far apart more slowly
    MANY = 64
    LATER_SIZE = 34      # and of each later one: 16 GiB
    INTEGRATED = 18      # CU_DEVICE_ATTRIBUTE_INTEGRATED


cdef int ensure_capacity(Pool* pool, Heap* heap, size_t need) noexcept nogil:
    # Makes a new last segment if the heap's has fewer than need addresses left.
    cdef Segment* expandable = heap.expandable
    cdef size_t room = <size_t>1 << (FIRST_SIZE if current_of(&pool.stats, SEGMENT) < MANY else SMALL_SIZE)
    cdef int code
    if expandable != NULL and expandable.held - expandable.size >= need:
        return 0
    if expandable != NULL:
        room = <size_t>1 << (FIRST_SIZE if expandable.held < <size_t>1 << FIRST_SIZE else LATER_SIZE)
    if pool.room:
        room = round_up(pool.room, pool.granule)
    expandable = new_segment(pool, heap, EXPANDABLE)
    if expandable == NULL:
        return NO_HOST_MEMORY
    code = reserve_addresses(pool, expandable, max(room, need), 0)
    if code:
        free(expandable)
        return code
    link_segment(pool, expandable)
    heap.expandable = expandable
    return 0


cdef int trim_expandable(Pool* pool, Segment* expandable) noexcept nogil:
    # Cuts off trailing slots without pages.  If the driver refuses to free an empty segment's addresses, the segment
    # stays, empty, and is tried again when pages are released next.
    cdef const PrivatePool* owner = expandable.heap.owner
    cdef Slot* slot
    cdef Block* block
    while expandable.slot_count and expandable.slots[expandable.slot_count - 1].page == NULL:
        slot = expandable.slots[expandable.slot_count - 1]
        block = slot.hole
        expandable.last = block.before
        if expandable.last == NULL:
            expandable.first = NULL
        else:
            expandable.last.after = NULL
        block.state = FREE
        block.left = expandable.heap.spare
        expandable.heap.spare = block
        expandable.heap.gaps -= 1
        expandable.slot_count -= 1
        expandable.size -= slot.size
        free(slot)
    if expandable.size or (owner != NULL and (owner.fixed or owner.filling)):
        return 0
    return drop_expandable(pool, expandable)


cdef int trim_all_expandable(Pool* pool) noexcept nogil:
    # Stops at the first failure.
    cdef Segment* expandable = pool.first
    cdef Segment* after
    cdef int code = 0
    while expandable != NULL and code == 0:
        after = expandable.after
        if expandable.shape == EXPANDABLE:
            code = trim_expandable(pool, expandable)
        expandable = after
    return code


cdef int drop_expandable(Pool* pool, Segment* expandable) noexcept nogil:
    # Frees the addresses and the records of an empty segment.
    cdef int code = free_addresses(pool, expandable)
    if code:
        return code
    if expandable.heap.expandable == expandable:
        expandable.heap.expandable = NULL
    unlink_segment(pool, expandable)
    free(expandable.slots)
    free(expandable)
    return 0


cdef size_t doubled(size_t size, size_t most) noexcept nogil:
    # As often as the result is at most that.
    while size * 2 <= most:
        size *= 2
    return size


cdef size_t size_ahead(Pool* pool, const Segment* expandable) noexcept nogil:
    # How large a page may be although less is needed: many small blocks will follow the one that did not fit.
    cdef size_t size = doubled(pool.granule, expandable.size // AHEAD)
    if expandable.held - expandable.size < size or within_limits(pool, expandable.heap, size):
        return 0
    return size


cdef bint has_other_segments(const Pool* pool, const Heap* heap) noexcept nogil:
    # Whether other heaps have memory: the first segments tell, unless all are of one heap, which has few.
    cdef const Segment* segment = pool.first
    while segment != NULL and segment.heap == heap:
        segment = segment.after
    return segment != NULL


cdef size_t largest_part(const Pool* pool, const Heap* heap, size_t mean, size_t whole, size_t total) noexcept nogil:
    # How large a page of a growth by whole may be, as a part of that.
    if mean < SMALL_MEAN or mean >= HUGE:
        return SIZE_MAX
    if has_other_segments(pool, heap):
        return max(whole // GROWTH_PARTS, total // MOST_PAGES)
    return max(whole // GROWTH_PARTS, total // SOLE_PAGES) if mean < MEDIUM_MOST else SIZE_MAX


cdef size_t page_size(Pool* pool, const Segment* expandable, size_t need, size_t whole) noexcept nogil:
    # The size of the next page, of a growth by whole that still needs need; backing/DESIGN.md (Growing) gives the rule.
    cdef size_t size = pool.granule
    cdef size_t total = max(<size_t>reserved(pool), need)
    cdef size_t mean = (total_of(pool, ALLOCATED_BYTES) + whole) // (total_of(pool, ALLOCATION) + 1)
    cdef bint medium = MEDIUM_LEAST <= mean < MEDIUM_MOST and total >= ROOMY
    cdef size_t largest = round_up(MEDIUM_PAGE, pool.granule) if medium else LARGEST_PAGE
    cdef size_t target = min(total // PAGES_WANTED, max(largest, total // MAX_PAGES))
    if pool.fits_closely:  # the more is stuck, the smaller
        target = min(target, total // STUCK_PARTS * largest // pool.stuck)
    target = min(target, largest_part(pool, expandable.heap, mean, whole, total))
    if mean >= HUGE:
        target = max(target, min(max(total, whole), mean) // HUGE_PARTS)
    if pool.settings.page_size:
        size = round_up(pool.settings.page_size, pool.granule)
    else:
        size = doubled(size, target)
        if size < largest <= target:
            size = largest
        if mean < SMALL_MEAN:
            need = max(need, size_ahead(pool, expandable))
    return min(size, need)


cdef int make_page_for(Pool* pool, Slot* slot) noexcept nogil:
    # As large as the slot: what the device refuses whole, it has no room for.
    cdef Page* page
    cdef int code = make_page(pool, slot.size, &page)
    if code:
        return code
    link_slot(slot, page)
    page.primary = slot
    slot.segment.heap.gaps -= 1
    count_owner(pool, slot.segment.heap, page.size)
    if page.size == slot.size:
        return 0
    code = release_page(pool, page)
    return code if code else OUT_OF_MEMORY


cdef int open_slots(Pool* pool, Segment* expandable, size_t first, size_t count, int code) noexcept nogil:
    cdef size_t index
    cdef Slot* slot
    if code == 0:
        code = map_run(pool, expandable, first, count)
    for index in range(first, first + count):
        slot = expandable.slots[index]
        if code:
            release_page(pool, slot.page)
            continue
        slot.hole.epoch = expandable.heap.quiescent_epoch
        make_resident(pool, slot)
    return code


cdef int fill_gaps(Pool* pool, Heap* heap, size_t* need) noexcept nogil:
    # Growth first fills slots that lost their pages, in order, as far as each is no larger than what is still needed.
    cdef Segment* expandable = pool.first if heap.gaps else NULL
    cdef Slot* slot
    cdef size_t index
    cdef int code
    while expandable != NULL:
        for index in range(expandable.slot_count if expandable.heap == heap and expandable.shape == EXPANDABLE else 0):
            slot = expandable.slots[index]
            if slot.page != NULL or slot.size > need[0]:
                continue
            code = make_page_for(pool, slot)
            if code == 0:
                code = open_slots(pool, expandable, index, 1, 0)
            if code:
                return code
            need[0] -= slot.size
        expandable = expandable.after
    return 0


cdef int append_pages(Pool* pool, Heap* heap, size_t need, size_t* count) noexcept nogil:
    # All pages are made before one is mapped, so a refusal only has to release pages.
    cdef Segment* expandable = heap.expandable
    cdef Page* page
    cdef size_t whole = need
    cdef int code = 0
    while need and code == 0:
        code = make_page(pool, page_size(pool, expandable, need, whole), &page)
        if code == 0:
            code = add_slot(expandable, page)
            if code:
                release_page(pool, page)
                return code
            page.primary = page.slots
            count_owner(pool, heap, page.size)
            need -= min(need, page.size)
            count[0] += 1
    return code


cdef void abandon_pages(Pool* pool, Segment* expandable, size_t first) noexcept nogil:
    # After a failure: releases the appended pages that are not resident yet, and cuts off their slots.
    cdef size_t index
    for index in range(first, expandable.slot_count):
        if expandable.slots[index].page != NULL and expandable.slots[index].page.resident == NULL:
            release_page(pool, expandable.slots[index].page)
    trim_expandable(pool, expandable)


cdef size_t need_at_end(const Pool* pool, const Heap* heap, size_t size) noexcept nogil:
    # A free block at the end counts towards the size; it is smaller than the size, else it would have been the fit.
    cdef const Segment* expandable = heap.expandable
    cdef size_t need
    if expandable != NULL and expandable.last != NULL and expandable.last.state == FREE and expandable.last.size < size:
        need = round_up(size - expandable.last.size, pool.granule)
        if expandable.held - expandable.size >= need:
            return need
    return round_up(size, pool.granule)


cdef int read_free(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.  NOT_SUPPORTED for a device that shares the host's memory: what
    # the system would give up, its cache of files say, is not in the driver's figure.
    cdef size_t total = 0
    cdef int shared = 0
    cdef int code = pool.table.device_attribute(pool.device, INTEGRATED, &shared)
    if code == 0 and shared:
        code = NOT_SUPPORTED
    return code if code else pool.table.memory_info(pool.device, <size_t*>about, &total)


cdef bint is_hopeless(Pool* pool, size_t need) noexcept nogil:
    # Whether the device has less than a large growth needs.  Made page by page, it would leave other processes nothing
    # until it is refused.
    cdef size_t free_bytes = 0
    # Managed memory leaves the device where others need the room.
    if need < CHECKED or call_unlocked(pool, read_free, &free_bytes):
        return False
    return need > free_bytes + <size_t>load_count(&managed_total)


cdef int grow_pages(Pool* pool, Heap* heap, size_t need, bint at_end) noexcept nogil:
    # Grows by need, rounded up to granules.  On failure every page made is free, released, or resident nowhere.
    cdef Segment* expandable
    cdef size_t first, index, count = 0
    cdef int code
    need = round_up(need, pool.granule)
    code = within_limits(pool, heap, need)
    if code == 0 and is_hopeless(pool, need):
        code = OUT_OF_MEMORY
    if code:
        return code
    if not at_end:
        code = fill_gaps(pool, heap, &need)
        if code or need == 0:
            return code
    code = ensure_capacity(pool, heap, need)
    if code:
        return code
    expandable = heap.expandable
    first = expandable.slot_count
    code = append_pages(pool, heap, need, &count)
    if code == 0:
        code = map_run(pool, expandable, first, count)
    if code:
        abandon_pages(pool, expandable, first)
        return code
    code = ensure_blocks(heap, 2)
    need = expandable.address + expandable.size - expandable.slots[first].address
    record_event(pool, SEGMENT_MAPPED, expandable.slots[first].address, need, heap.stream, heap.owner)
    for index in range(first, first + count):
        put_page(pool, expandable.slots[index])
    return code
