"""Physical memory in pieces, and where they are mapped.

A piece has its first home in a span of the heap that asked for it.  A window maps pieces a second time, one
beside the other; while it is used, their slots in the spans are holes.  A piece serves one of its slots at a
time, so no byte is ever in two blocks.
"""
from libc.stdlib cimport calloc, free, realloc

from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.memory.block cimport FREE, HOLE, SPAN, WINDOW, Block
from accelrt.memory.heap cimport split_off
from accelrt.memory.records cimport new_block, see_to_blocks
from accelrt.memory.segments cimport count_owner, link_segment, unlink_segment, within_limits
from accelrt.memory.sizes cimport LARGE, UNIT, round_up
from accelrt.memory.stats cimport RESERVED_BYTES
from accelrt.memory.world cimport count_pool, enter, leave, put_free, reserved, take_free
from accelrt.status cimport NO_HOST_MEMORY, OUT_OF_MEMORY

cdef enum:
    PIECES_WANTED = 64    # a piece is about this part of what is reserved, so that what it wastes stays small
    MOST_PIECES = 512     # beside it; but no larger than the next, unless there were more than these
    LARGEST_PIECE = 16 << 20
    FIRST_ROOM = 32       # addresses of a heap's first span, 4 GiB, as a power of two
    LATER_ROOM = 34       # and of the spans that follow it


# --- slots and blocks over them ------------------------------------------------------------------------------

cdef size_t slot_index(const Segment* segment, uintptr_t address) noexcept nogil:
    cdef size_t low = 0, high = segment.slot_count, middle
    while low < high:
        middle = (low + high) // 2
        if segment.slots[middle].address < address:
            low = middle + 1
        else:
            high = middle
    return low


cdef int see_to_slots(Segment* segment) noexcept nogil:
    cdef Slot** larger
    if segment.slot_count < segment.slot_room:
        return 0
    larger = <Slot**>realloc(segment.slots, (2 * segment.slot_room + 8) * sizeof(Slot*))
    if larger == NULL:
        return NO_HOST_MEMORY
    segment.slots = larger
    segment.slot_room = 2 * segment.slot_room + 8
    return 0


cdef void append_hole(Segment* segment, Slot* slot) noexcept nogil:
    # The caller saw to a record.
    cdef Block* block = new_block(segment.heap)
    block.address = slot.address
    block.size = slot.size
    block.order = (segment.serial << 32) + (slot.address - segment.address) // UNIT
    block.segment = segment
    block.epoch = segment.heap.settled  # fresh: no work uses it yet
    block.state = HOLE
    block.before = segment.last
    block.after = NULL
    if segment.last == NULL:
        segment.first = block
    else:
        segment.last.after = block
    segment.last = block
    segment.size += slot.size
    slot.hole = block


cdef int add_slot(Segment* segment, uintptr_t address, size_t size, Piece* piece) noexcept nogil:
    cdef Slot* slot
    cdef int code = see_to_slots(segment)
    if code == 0:
        code = see_to_blocks(segment.heap, 1)
    if code:
        return code
    slot = <Slot*>calloc(1, sizeof(Slot))
    if slot == NULL:
        return NO_HOST_MEMORY
    slot.address = address
    slot.size = size
    slot.segment = segment
    slot.piece = piece
    slot.next = piece.slots
    piece.slots = slot
    segment.slots[segment.slot_count] = slot
    segment.slot_count += 1
    append_hole(segment, slot)
    return 0


cdef void drop_slot(Slot* slot) noexcept nogil:
    cdef Slot** link
    if slot.piece == NULL:
        return
    link = &slot.piece.slots
    while link[0] != slot:
        link = &link[0].next
    link[0] = slot.next
    slot.piece = NULL
    slot.mapped = False


cdef void vacate(Pool* pool, Piece* piece) noexcept nogil:
    # The caller saw to two records of the home's heap.
    cdef Slot* slot = piece.home
    cdef Block* block = piece.cover
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
    piece.home = NULL
    if slot.segment.shape == WINDOW:
        slot.segment.away += 1


cdef void settle_in(Pool* pool, Slot* slot) noexcept nogil:
    cdef Block* block = slot.hole
    slot.hole = NULL
    slot.piece.home = slot
    if slot.segment.shape == WINDOW:
        slot.segment.away -= 1
    put_free(pool, block)


# --- the driver ----------------------------------------------------------------------------------------------

cdef int hold_addresses(Pool* pool, Segment* segment, size_t room) noexcept nogil:
    cdef int code
    leave(pool, NULL)
    code = pool.table.address_reserve(room, pool.granule, &segment.address)
    enter(pool)
    pool.stats.virtual_memory_calls += 1
    if code == 0:
        segment.room = room
        pool.stats.reserved_addresses += room
    return code


cdef int free_addresses(Pool* pool, Segment* segment) noexcept nogil:
    cdef int code
    leave(pool, NULL)
    code = pool.table.address_free(segment.address, segment.room)
    enter(pool)
    pool.stats.virtual_memory_calls += 1
    if code == 0:
        pool.stats.reserved_addresses -= segment.room
        segment.room = 0
    return code


cdef int map_slots(Pool* pool, Segment* segment, size_t first, size_t count) noexcept nogil:
    # Outside the world.  One call opens the whole run, whatever it is made of.
    cdef size_t index
    cdef int code = 0
    cdef Slot* slot
    for index in range(first, first + count):
        slot = segment.slots[index]
        code = pool.table.memory_map(slot.address, slot.size, slot.piece.handle)
        if code:
            return code
        slot.mapped = True
    slot = segment.slots[first + count - 1]
    return pool.table.memory_access(
        segment.slots[first].address, slot.address + slot.size - segment.slots[first].address, pool.device,
    )


cdef int map_run(Pool* pool, Segment* segment, size_t first, size_t count) noexcept nogil:
    cdef int mode
    cdef int code
    leave(pool, NULL)
    code = go_relaxed(pool.table, &mode)
    if code == 0:
        code = map_slots(pool, segment, first, count)
        restore_mode(pool.table, mode)
    enter(pool)
    pool.stats.virtual_memory_calls += count + 1
    return code


cdef int unmap_slot(Pool* pool, Slot* slot) noexcept nogil:
    cdef int code
    if not slot.mapped:
        return 0
    leave(pool, NULL)
    code = pool.table.memory_unmap(slot.address, slot.size)
    enter(pool)
    pool.stats.virtual_memory_calls += 1
    if code == 0:
        slot.mapped = False
        if slot.segment.shape == WINDOW:
            pool.stats.stitched_bytes -= slot.size
    return code


cdef int make_piece(Pool* pool, size_t size, Piece** out_piece) noexcept nogil:
    # Halves what is refused, down to the least piece.
    cdef Piece* piece = <Piece*>calloc(1, sizeof(Piece))
    cdef int mode, code, calls = 1
    if piece == NULL:
        return NO_HOST_MEMORY
    leave(pool, NULL)
    code = go_relaxed(pool.table, &mode)
    if code == 0:
        code = pool.table.physical_create(pool.device, size, &piece.handle)
        while code == OUT_OF_MEMORY and size > pool.granule:
            size = round_up(size // 2, pool.granule)
            code = pool.table.physical_create(pool.device, size, &piece.handle)
            calls += 1
        restore_mode(pool.table, mode)
    enter(pool)
    pool.stats.virtual_memory_calls += calls
    if code:
        free(piece)
        return code
    piece.serial = pool.next_piece = pool.next_piece + 1
    piece.size = size
    piece.before = pool.last_piece
    if pool.last_piece == NULL:
        pool.first_piece = piece
    else:
        pool.last_piece.after = piece
    pool.last_piece = piece
    count_pool(pool, RESERVED_BYTES, LARGE, size)
    pool.stats.num_device_alloc += 1
    out_piece[0] = piece
    return 0


cdef void forget_piece(Pool* pool, Piece* piece) noexcept nogil:
    cdef Slot* slot
    while piece.slots != NULL:
        slot = piece.slots
        if slot.segment.shape == WINDOW:
            slot.segment.spoiled = True
        else:
            count_owner(slot.segment.heap, -<long long>piece.size)
        drop_slot(slot)
    if piece.before == NULL:
        pool.first_piece = piece.after
    else:
        piece.before.after = piece.after
    if piece.after == NULL:
        pool.last_piece = piece.before
    else:
        piece.after.before = piece.before
    count_pool(pool, RESERVED_BYTES, LARGE, -<long long>piece.size)
    pool.stats.num_device_free += 1
    free(piece)


cdef int release_piece(Pool* pool, Piece* piece) noexcept nogil:
    # What a failure leaves is at home nowhere, and is tried again when pages are released next.
    cdef Slot* slot = piece.slots
    cdef int code = 0
    while slot != NULL and code == 0:
        code = unmap_slot(pool, slot)
        slot = slot.next
    if code:
        return code
    leave(pool, NULL)
    code = pool.table.physical_release(piece.handle)
    enter(pool)
    pool.stats.virtual_memory_calls += 1
    if code == 0:
        forget_piece(pool, piece)
    return code


# --- spans ---------------------------------------------------------------------------------------------------

cdef Segment* new_segment(Pool* pool, Heap* heap, int shape) noexcept nogil:
    cdef Segment* segment = <Segment*>calloc(1, sizeof(Segment))
    if segment != NULL:
        segment.shape = shape
        segment.kind = LARGE
        segment.heap = heap
    return segment


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


cdef void trim_span(Pool* pool, Segment* span) noexcept nogil:
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
        span.slot_count -= 1
        span.size -= slot.size
        free(slot)


cdef int trim_spans(Pool* pool) noexcept nogil:
    # A span that is refused stays, empty, and is tried again when pages are released next.
    cdef Segment* span = pool.first
    cdef Segment* after
    cdef int code = 0
    while span != NULL and code == 0:
        after = span.after
        if span.shape == SPAN:
            trim_span(pool, span)
            if span.size == 0:
                code = drop_span(pool, span)
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
    cdef size_t share = min(total // PIECES_WANTED, max(<size_t>LARGEST_PIECE, total // MOST_PIECES))
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
    slot.piece = piece
    slot.next = NULL
    piece.slots = piece.primary = slot
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
    cdef Segment* span = pool.first
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
            code = add_slot(span, span.address + span.size, piece.size, piece)
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
    trim_spans(pool)


cdef int grow_pages(Pool* pool, Heap* heap, size_t need, size_t contiguous) noexcept nogil:
    # need bytes more; where contiguous is not 0, so that a block of that size fits at the end of a span.
    cdef Segment* span = heap.span
    cdef size_t first, index, count = 0
    cdef int code
    if contiguous:
        need = contiguous
        if span != NULL and span.last != NULL and span.last.state == FREE and span.last.size < contiguous:
            need = contiguous - span.last.size
            if span.room - span.size < round_up(need, pool.granule):
                need = contiguous
    need = round_up(need, pool.granule)
    code = within_limits(pool, heap, need)
    if code:
        return code
    if not contiguous:
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
