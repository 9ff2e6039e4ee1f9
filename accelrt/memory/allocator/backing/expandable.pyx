"""Spans: the addresses in which pages have their first home, how they grow and what is cut off them."""
from libc.stdlib cimport free

from accelrt.memory.allocator.backing.pages cimport (
    add_slot, free_addresses, hold_addresses, link_slot, make_piece, map_run, new_segment, release_piece, settle_in,
)
from accelrt.memory.allocator.backing.plain cimport count_owner, link_segment, unlink_segment, within_limits
from accelrt.memory.allocator.exclusive cimport reserved, total_of
from accelrt.memory.allocator.metadata cimport see_to_blocks
from accelrt.memory.allocator.sizes cimport round_up
from accelrt.memory.allocator.stats cimport ALLOCATED_BYTES, ALLOCATION
from accelrt.memory.allocator.types cimport FREE, SPAN, Block, Piece, Segment, Slot
from accelrt.status cimport NO_HOST_MEMORY, OUT_OF_MEMORY

cdef enum:
    PIECES_WANTED = 64    # a piece is about this part of what is reserved, so that what it wastes stays small
    MOST_PIECES = 512     # beside it; but no larger than the next, unless there were more than these
    LARGEST_PIECE = 16 << 20
    BLOCK_PIECES = 32     # where the mean block is so large that it would be made of more than so many
    FIRST_ROOM = 32       # addresses of a heap's first span, 4 GiB, as a power of two
    LATER_ROOM = 34       # and of the spans that follow it


cdef int see_to_room(Pool* pool, Heap* heap, size_t need) noexcept nogil:
    # A chain of spans, each twice as long as the one before.
    cdef Segment* span = heap.span
    cdef size_t room = <size_t>1 << (FIRST_ROOM if span == NULL else LATER_ROOM)
    cdef int code
    if span != NULL and span.room - span.size >= need:
        return 0
    span = new_segment(pool, heap, SPAN)
    if span == NULL:
        return NO_HOST_MEMORY
    code = hold_addresses(pool, span, max(room, need))
    if code:
        free(span)
        return code
    link_segment(pool, span)
    heap.span = span
    return 0


cdef int trim_span(Pool* pool, Segment* span) noexcept nogil:
    # A span that is refused stays, empty, and is tried again when pages are released next.
    cdef Slot* slot
    cdef Block* block
    while span.slot_count and span.slots[span.slot_count - 1].piece == NULL:
        slot = span.slots[span.slot_count - 1]
        block = slot.hole
        span.last = block.before
        if span.last == NULL:
            span.first = NULL
        else:
            span.last.after = NULL
        block.state = FREE
        block.left = span.heap.spare
        span.heap.spare = block
        span.heap.gaps -= 1
        span.slot_count -= 1
        span.size -= slot.size
        free(slot)
    return drop_span(pool, span) if span.size == 0 else 0


cdef int trim_spans(Pool* pool) noexcept nogil:
    cdef Segment* span = pool.first
    cdef Segment* after
    cdef int code = 0
    while span != NULL and code == 0:
        after = span.after
        if span.shape == SPAN:
            code = trim_span(pool, span)
        span = after
    return code


cdef int drop_span(Pool* pool, Segment* span) noexcept nogil:
    cdef int code = free_addresses(pool, span)
    if code:
        return code
    if span.heap.span == span:
        span.heap.span = NULL
    unlink_segment(pool, span)
    free(span.slots)
    free(span)
    return 0


cdef size_t piece_size(const Pool* pool, size_t need) noexcept nogil:
    cdef size_t size = pool.granule
    cdef size_t total = max(<size_t>reserved(pool), need)
    cdef size_t mean = (total_of(pool, ALLOCATED_BYTES) + need) // (total_of(pool, ALLOCATION) + 1)
    cdef size_t most = max(max(<size_t>LARGEST_PIECE, total // MOST_PIECES), mean // BLOCK_PIECES)
    cdef size_t share = min(total // PIECES_WANTED, most)
    if pool.policy.piece:
        size = round_up(pool.policy.piece, pool.granule)
    else:
        while size * 2 <= share:
            size *= 2
    return min(size, need)


cdef int fill_slot(Pool* pool, Segment* span, size_t index) noexcept nogil:
    # A piece for addresses that lost theirs.
    cdef Slot* slot = span.slots[index]
    cdef Piece* piece
    cdef int code = make_piece(pool, slot.size, &piece)
    if code:
        return code
    link_slot(slot, piece)
    piece.primary = slot
    span.heap.gaps -= 1
    count_owner(span.heap, piece.size)
    if piece.size != slot.size:  # refused whole, so there is no room for it
        code = release_piece(pool, piece)
        return code if code else OUT_OF_MEMORY
    code = map_run(pool, span, index, 1)
    if code:
        release_piece(pool, piece)
        return code
    slot.hole.epoch = span.heap.settled
    settle_in(pool, slot)
    return 0


cdef int fill_gaps(Pool* pool, Heap* heap, size_t* need) noexcept nogil:
    # Pages first where addresses of the heap's spans have none: they were given back in between others.
    cdef Segment* span = pool.first if heap.gaps else NULL
    cdef size_t index
    cdef int code
    while span != NULL:
        if span.heap == heap and span.shape == SPAN:
            for index in range(span.slot_count):
                if span.slots[index].piece == NULL and span.slots[index].size <= need[0]:
                    code = fill_slot(pool, span, index)
                    if code:
                        return code
                    need[0] -= span.slots[index].size
        span = span.after
    return 0


cdef int append_pieces(Pool* pool, Heap* heap, size_t need, size_t* count) noexcept nogil:
    # All pieces are created before one is mapped: a refusal undoes nothing but creations.
    cdef Segment* span = heap.span
    cdef Piece* piece
    cdef int code = 0
    while need and code == 0:
        code = make_piece(pool, piece_size(pool, need), &piece)
        if code == 0:
            code = add_slot(span, piece)
            if code:
                release_piece(pool, piece)
                return code
            piece.primary = piece.slots
            count_owner(heap, piece.size)
            need -= min(need, piece.size)
            count[0] += 1
    return code


cdef void abandon_pieces(Pool* pool, Segment* span, size_t first) noexcept nogil:
    cdef size_t index
    for index in range(first, span.slot_count):
        if span.slots[index].piece != NULL and span.slots[index].piece.home == NULL:
            release_piece(pool, span.slots[index].piece)
    trim_span(pool, span)


cdef size_t need_at_end(const Pool* pool, const Heap* heap, size_t size) noexcept nogil:
    # No free block is as large, else it would serve.
    cdef const Segment* span = heap.span
    cdef size_t need
    if span != NULL and span.last != NULL and span.last.state == FREE and span.last.size < size:
        need = round_up(size - span.last.size, pool.granule)
        if span.room - span.size >= need:
            return need
    return round_up(size, pool.granule)


cdef int grow_pages(Pool* pool, Heap* heap, size_t need, bint at_end) noexcept nogil:
    cdef Segment* span
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
    code = see_to_room(pool, heap, need)
    if code:
        return code
    span = heap.span
    first = span.slot_count
    code = append_pieces(pool, heap, need, &count)
    if code == 0:
        code = map_run(pool, span, first, count)
    if code:
        abandon_pieces(pool, span, first)
        return code
    code = see_to_blocks(heap, 2)
    for index in range(first, first + count):
        settle_in(pool, span.slots[index])
    return code
