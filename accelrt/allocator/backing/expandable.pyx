"""Expandable segments: how they grow, page by page, and how trailing addresses without pages are cut off.

Every function here runs under the growth lock and in the exclusive section, which is released during driver calls.
"""
from libc.stdlib cimport free

from accelrt.allocator.backing.pages cimport (
    add_slot, free_addresses, reserve_addresses, link_slot, make_page, map_run, new_segment, put_page, release_page,
    make_resident,
)
from accelrt.allocator.backing.plain cimport count_owner, link_segment, unlink_segment, within_limits
from accelrt.allocator.event_ring cimport record_event
from accelrt.allocator.exclusive cimport call_unlocked, reserved, total_of
from accelrt.allocator.history_types cimport SEGMENT_MAPPED
from accelrt.allocator.metadata cimport ensure_blocks
from accelrt.allocator.sizes cimport round_up
from accelrt.allocator.stats cimport ALLOCATED_BYTES, ALLOCATION, SEGMENT, current_of
from accelrt.allocator.types cimport FREE, EXPANDABLE, Block, Page, Segment, Slot
from accelrt.status cimport NOT_SUPPORTED, NO_HOST_MEMORY, OUT_OF_MEMORY

cdef enum:
    CHECKED = 256 << 20  # a growth by so much is refused if the device has less, before pages are taken from others in vain
    PAGES_WANTED = 64    # a page is at most this part of the reserved bytes, so that a partly used one wastes little;
    MAX_PAGES = 512      # and at most LARGEST_PAGE, unless that made more pages than this,
    LARGEST_PAGE = 16 << 20
    MEDIUM_PAGE = 6 << 20   # and at most this instead, from ROOMY reserved bytes on, if the blocks have a mean size of
    MEDIUM_LEAST = 4 << 20  # so much and more (smaller ones fill the ends of pages that larger ones leave)
    MEDIUM_MOST = 20 << 20  # and less than this (of larger blocks there are few, so few ends)
    ROOMY = 1 << 30
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
    expandable = new_segment(pool, heap, EXPANDABLE)
    if expandable == NULL:
        return NO_HOST_MEMORY
    code = reserve_addresses(pool, expandable, max(room, need))
    if code:
        free(expandable)
        return code
    link_segment(pool, expandable)
    heap.expandable = expandable
    return 0


cdef int trim_expandable(Pool* pool, Segment* expandable) noexcept nogil:
    # Cuts off trailing slots without pages.  If the driver refuses to free an empty segment's addresses, the segment
    # stays, empty, and is tried again when pages are released next.
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
    return drop_expandable(pool, expandable) if expandable.size == 0 else 0


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


cdef size_t page_size(Pool* pool, const Segment* expandable, size_t need, size_t whole) noexcept nogil:
    # The size of the next page, of a growth by whole that still needs need; backing/DESIGN.md (Growing) gives the rule.
    cdef size_t size = pool.granule
    cdef size_t total = max(<size_t>reserved(pool), need)
    cdef size_t mean = (total_of(pool, ALLOCATED_BYTES) + whole) // (total_of(pool, ALLOCATION) + 1)
    cdef bint medium = MEDIUM_LEAST <= mean < MEDIUM_MOST and total >= ROOMY
    cdef size_t largest = round_up(MEDIUM_PAGE, pool.granule) if medium else LARGEST_PAGE
    cdef size_t target = min(total // PAGES_WANTED, max(largest, total // MAX_PAGES))
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


cdef int fill_slot(Pool* pool, Segment* expandable, size_t index) noexcept nogil:
    # Makes and maps a page for a slot that lost its page.  The page must be as large as the slot: one that the device
    # halved is released again, OUT_OF_MEMORY.
    cdef Slot* slot = expandable.slots[index]
    cdef Page* page
    cdef int code = make_page(pool, slot.size, &page)
    if code:
        return code
    link_slot(slot, page)
    page.primary = slot
    expandable.heap.gaps -= 1
    count_owner(pool, expandable.heap, page.size)
    if page.size != slot.size:  # refused whole, so there is no room for it
        code = release_page(pool, page)
        return code if code else OUT_OF_MEMORY
    code = map_run(pool, expandable, index, 1)
    if code:
        release_page(pool, page)
        return code
    slot.hole.epoch = expandable.heap.quiescent_epoch
    make_resident(pool, slot)
    return 0


cdef int fill_gaps(Pool* pool, Heap* heap, size_t* need) noexcept nogil:
    # Growth first fills slots that lost their pages, in order, as far as each is no larger than what is still needed.
    cdef Segment* expandable = pool.first if heap.gaps else NULL
    cdef size_t index
    cdef int code
    while expandable != NULL:
        if expandable.heap == heap and expandable.shape == EXPANDABLE:
            for index in range(expandable.slot_count):
                if expandable.slots[index].page == NULL and expandable.slots[index].size <= need[0]:
                    code = fill_slot(pool, expandable, index)
                    if code:
                        return code
                    need[0] -= expandable.slots[index].size
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
    return need >= CHECKED and call_unlocked(pool, read_free, &free_bytes) == 0 and need > free_bytes


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
