"""Spans: the addresses in which pages have their first home, how they grow and what is cut off them."""
from libc.stdlib cimport free

from accelrt.memory.allocator.backing.pages cimport (
    add_slot, free_addresses, hold_addresses, link_slot, make_page, map_run, new_segment, release_page, make_resident,
)
from accelrt.memory.allocator.backing.plain cimport count_owner, link_segment, unlink_segment, within_limits
from accelrt.memory.allocator.exclusive cimport reserved, total_of
from accelrt.memory.allocator.metadata cimport ensure_blocks
from accelrt.memory.allocator.sizes cimport round_up
from accelrt.memory.allocator.stats cimport ALLOCATED_BYTES, ALLOCATION
from accelrt.memory.allocator.types cimport FREE, EXPANDABLE, Block, Page, Segment, Slot
from accelrt.status cimport NO_HOST_MEMORY, OUT_OF_MEMORY

cdef enum:
    PAGES_WANTED = 64    # a piece is about this part of what is reserved, so that what it wastes stays small
    MAX_PAGES = 512     # beside it; but no larger than the next, unless there were more than these
    LARGEST_PAGE = 16 << 20
    HUGE = 256 << 20      # where the mean block is so large,
    HUGE_PIECES = 4       # a piece is this part of it: a window of more would cost too many calls of the driver
    FIRST_ROOM = 32       # addresses of a heap's first span, 4 GiB, as a power of two
    LATER_ROOM = 34       # and of the spans that follow it


cdef int ensure_capacity(Pool* pool, Heap* heap, size_t need) noexcept nogil:
    # A chain of spans, each twice as long as the one before.
    cdef Segment* expandable = heap.expandable
    cdef size_t room = <size_t>1 << (FIRST_ROOM if expandable == NULL else LATER_ROOM)
    cdef int code
    if expandable != NULL and expandable.held - expandable.size >= need:
        return 0
    expandable = new_segment(pool, heap, EXPANDABLE)
    if expandable == NULL:
        return NO_HOST_MEMORY
    code = hold_addresses(pool, expandable, max(room, need))
    if code:
        free(expandable)
        return code
    link_segment(pool, expandable)
    heap.expandable = expandable
    return 0


cdef int trim_expandable(Pool* pool, Segment* expandable) noexcept nogil:
    # A span that is refused stays, empty, and is tried again when pages are released next.
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
    cdef int code = free_addresses(pool, expandable)
    if code:
        return code
    if expandable.heap.expandable == expandable:
        expandable.heap.expandable = NULL
    unlink_segment(pool, expandable)
    free(expandable.slots)
    free(expandable)
    return 0


cdef size_t page_size(const Pool* pool, size_t need, size_t whole) noexcept nogil:
    # What is still needed, and what was in the beginning.
    cdef size_t size = pool.granule
    cdef size_t total = max(<size_t>reserved(pool), need)
    cdef size_t mean = (total_of(pool, ALLOCATED_BYTES) + whole) // (total_of(pool, ALLOCATION) + 1)
    cdef size_t target = min(total // PAGES_WANTED, max(<size_t>LARGEST_PAGE, total // MAX_PAGES))
    if mean >= HUGE:
        target = max(target, min(max(total, whole), mean) // HUGE_PIECES)
    if pool.settings.page_size:
        size = round_up(pool.settings.page_size, pool.granule)
    else:
        while size * 2 <= target:
            size *= 2
    return min(size, need)


cdef int fill_slot(Pool* pool, Segment* expandable, size_t index) noexcept nogil:
    # A piece for addresses that lost theirs.
    cdef Slot* slot = expandable.slots[index]
    cdef Page* page
    cdef int code = make_page(pool, slot.size, &page)
    if code:
        return code
    link_slot(slot, page)
    page.primary = slot
    expandable.heap.gaps -= 1
    count_owner(expandable.heap, page.size)
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
    # Pages first where addresses of the heap's spans have none: they were given back in between others.
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
    # All pieces are created before one is mapped: a refusal undoes nothing but creations.
    cdef Segment* expandable = heap.expandable
    cdef Page* page
    cdef size_t whole = need
    cdef int code = 0
    while need and code == 0:
        code = make_page(pool, page_size(pool, need, whole), &page)
        if code == 0:
            code = add_slot(expandable, page)
            if code:
                release_page(pool, page)
                return code
            page.primary = page.slots
            count_owner(heap, page.size)
            need -= min(need, page.size)
            count[0] += 1
    return code


cdef void abandon_pages(Pool* pool, Segment* expandable, size_t first) noexcept nogil:
    cdef size_t index
    for index in range(first, expandable.slot_count):
        if expandable.slots[index].page != NULL and expandable.slots[index].page.resident == NULL:
            release_page(pool, expandable.slots[index].page)
    trim_expandable(pool, expandable)


cdef size_t need_at_end(const Pool* pool, const Heap* heap, size_t size) noexcept nogil:
    # No free block is as large, else it would serve.
    cdef const Segment* expandable = heap.expandable
    cdef size_t need
    if expandable != NULL and expandable.last != NULL and expandable.last.state == FREE and expandable.last.size < size:
        need = round_up(size - expandable.last.size, pool.granule)
        if expandable.held - expandable.size >= need:
            return need
    return round_up(size, pool.granule)


cdef int grow_pages(Pool* pool, Heap* heap, size_t need, bint at_end) noexcept nogil:
    cdef Segment* expandable
    cdef size_t first, index, count = 0
    cdef int code
    need = round_up(need, pool.granule)
    code = within_limits(pool, heap, need)
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
    for index in range(first, first + count):
        make_resident(pool, expandable.slots[index])
    return code
