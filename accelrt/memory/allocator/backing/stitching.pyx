"""Stitching: blocks out of pages that lie apart.

A window maps whole free pages a second time, one after the other, and is kept.  When bytes in it are freed,
pages that are wholly free go home at once, so what is free where depends on what is live and on nothing
else; and the oldest window that fits is taken first.  Therefore work that repeats finds, at every step, the
windows of the round before, and calls the driver no more.
"""
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc, qsort, realloc

from accelrt.memory.allocator.backing.free_pages cimport RANKED, file_heap, first_ranked, rank, serves_others
from accelrt.memory.allocator.backing.pages cimport (
    add_slot, drop_slot, free_addresses, hold_addresses, map_run, new_segment, settle_in, slot_index, unmap_slot,
    vacate,
)
from accelrt.memory.allocator.backing.plain cimport is_at_rest
from accelrt.memory.allocator.block_ops cimport absorb, is_settled
from accelrt.memory.allocator.exclusive cimport count_splits, put_free, set_free, wake
from accelrt.memory.allocator.free_list cimport class_of, next_class
from accelrt.memory.allocator.metadata cimport see_to_blocks
from accelrt.memory.allocator.policy cimport charge, repay
from accelrt.memory.allocator.stream_epochs cimport look, look_at_others
from accelrt.memory.allocator.types cimport CLASSES, FREE, HOLE, PLAIN, WINDOW, Fit, Piece, Private, Slot
from accelrt.status cimport NO_HOST_MEMORY, OUT_OF_MEMORY

cdef enum:
    MOST_WINDOWS = 16384       # then those that are idle are dropped
    WASTE = 8                  # a window may be larger than asked by one part in this


cdef int keep(Found* found, Block* block, size_t pages) noexcept nogil:
    cdef Run* larger
    if found.count == found.room:
        larger = <Run*>realloc(found.runs, (2 * found.room + 64) * sizeof(Run))
        if larger == NULL:
            return NO_HOST_MEMORY
        found.runs = larger
        found.room = 2 * found.room + 64
    found.runs[found.count].block = block
    found.runs[found.count].pages = pages
    found.count += 1
    return 0


cdef size_t mark_block(Pool* pool, Block* block) noexcept nogil:
    cdef const Segment* segment = block.segment
    cdef size_t index = slot_index(segment, block.address)
    cdef size_t bytes_ = 0
    cdef Slot* slot
    while index < segment.slot_count:
        slot = segment.slots[index]
        if slot.address + slot.size > block.address + block.size:
            break
        slot.piece.mark = pool.search
        slot.piece.cover = block
        bytes_ += slot.size
        index += 1
    return bytes_


cdef size_t mark_tree(Pool* pool, Block* node, bint own, Found* found) noexcept nogil:
    cdef size_t bytes_ = 0, marked
    while node != NULL:
        bytes_ += mark_tree(pool, node.left, own, found)
        if own or is_settled(node):
            marked = mark_block(pool, node)
            if marked and (found == NULL or keep(found, node, marked) == 0):
                bytes_ += marked
                note_top(node)
        node = node.right
    return bytes_


cdef inline void note_top(const Block* block) noexcept nogil:
    cdef Heap* heap = block.heap
    if block.size > heap.top_size or (block.size == heap.top_size and block.order < heap.top_order):
        heap.top_size = block.size
        heap.top_order = block.order


cdef size_t mark_heap(Pool* pool, Heap* heap, bint own, Found* found) noexcept nogil:
    cdef int index = next_class(heap, class_of(pool.granule) - 1)
    if heap.filed == RANKED:
        file_heap(pool, heap)
    heap.found = pool.search
    heap.pages = heap.top_size = 0
    while index >= 0:
        heap.pages += mark_tree(pool, heap.trees[index], own, found)
        index = next_class(heap, index) if index + 1 < CLASSES else -1
    return heap.pages


cdef inline bint is_found(const Pool* pool, const Piece* piece) noexcept nogil:
    # By this search, or by an earlier one in a heap that is ranked since.
    cdef const Heap* heap
    if piece.home == NULL:
        return False
    heap = piece.home.segment.heap
    return piece.mark == heap.found and (heap.found == pool.search or (pool.finds_ranked and heap.filed == RANKED))


cdef size_t find_among(Pool* pool, Heap* heap, Found* found) noexcept nogil:
    # What is settled of those that are awake or busy, and what the heap itself has.
    cdef Heap* other = pool.awake
    cdef size_t bytes_ = 0
    while other != NULL:
        if other == heap or serves_others(other):
            bytes_ += mark_heap(pool, other, other == heap, found)
        other = other.next_awake
    other = pool.busy
    while other != NULL:
        if serves_others(other):
            bytes_ += mark_heap(pool, other, False, found)
        other = other.filed_after
    return bytes_


cdef size_t find_in_private(Pool* pool, Heap* heap, Found* found) noexcept nogil:
    cdef Heap* other = <Heap*>heap.owner.heaps
    cdef size_t bytes_ = 0
    while other != NULL:
        bytes_ += mark_heap(pool, other, other == heap, found)
        other = other.sibling
    return bytes_


cdef size_t find_pages(Pool* pool, Heap* heap, bint across, Found* found) noexcept nogil:
    # Own pages at once; those of other streams when their work is done; those of private pools when nothing
    # uses the pool any more, and only for the common heaps: a pool's pages are never another's to give back.
    found.count = 0
    pool.search += 1
    pool.finds_ranked = False
    if not across:
        return mark_heap(pool, heap, True, found)
    look_at_others(pool, heap)
    wake(pool, heap)
    if heap.owner != NULL:
        return find_in_private(pool, heap, found)
    while pool.unsearched != NULL:
        mark_heap(pool, pool.unsearched, False, NULL)
        rank(pool, pool.unsearched)
    pool.finds_ranked = True
    return find_among(pool, heap, found) + pool.ranked_pages


cdef void mark_asleep(Pool* pool, Heap* heap) noexcept nogil:
    while heap != NULL:
        if is_at_rest(pool, heap):
            mark_heap(pool, heap, False, NULL)
        heap = heap.filed_after


cdef void mark_leaving(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.awake
    cdef Private* owner = pool.privates
    pool.search += 1
    while pool.ranked != NULL:
        file_heap(pool, pool.ranked)
    mark_asleep(pool, pool.busy)
    mark_asleep(pool, pool.unsearched)
    while heap != NULL:
        if is_at_rest(pool, heap):
            mark_heap(pool, heap, False, NULL)
        heap = heap.next_awake
    while owner != NULL:
        heap = <Heap*>owner.heaps if owner.emptied else NULL
        while heap != NULL:
            if is_at_rest(pool, heap) and not heap.awake:
                mark_heap(pool, heap, False, NULL)
            heap = heap.sibling
        owner = owner.next


cdef int see_to_moves(Pool* pool, Piece** pieces, size_t count) noexcept nogil:
    # Two records for each piece that leaves its home, whichever heap's.
    cdef size_t index
    cdef int code = 0
    cdef Heap* heap
    for index in range(count):
        pieces[index].home.segment.heap.moves += 1
    for index in range(count):
        heap = pieces[index].home.segment.heap
        if heap.moves and code == 0:
            code = see_to_blocks(heap, 2 * heap.moves + 2)
        heap.moves = 0
    return code


# --- windows that exist --------------------------------------------------------------------------------------

cdef int add_fit(Segment* window) noexcept nogil:
    # It serves sizes for which it would be made, or which are only a little smaller.
    cdef Heap* heap = window.heap
    cdef Fit* larger
    if heap.fit_count == heap.fit_room:
        larger = <Fit*>realloc(heap.fits, (2 * heap.fit_room + 32) * sizeof(Fit))
        if larger == NULL:
            return NO_HOST_MEMORY
        heap.fits = larger
        heap.fit_room = 2 * heap.fit_room + 32
    larger = &heap.fits[heap.fit_count]
    larger.most = window.size
    larger.least = min(
        window.size - window.slots[window.slot_count - 1].size + 1, window.size - window.size // (WASTE + 1),
    )
    larger.window = window
    larger.blocker = NULL
    heap.fit_count += 1
    return 0


cdef void drop_fit(Segment* window) noexcept nogil:
    cdef Heap* heap = window.heap
    cdef size_t index, kept = 0
    for index in range(heap.fit_count):
        if heap.fits[index].window != window:
            heap.fits[kept] = heap.fits[index]
            kept += 1
    heap.fit_count = kept


cdef bint is_ready(const Pool* pool, Fit* fit) noexcept nogil:
    # What was missing last time is looked at first: most windows are refused without a look at themselves.
    cdef const Segment* window = fit.window
    cdef size_t index
    if fit.blocker != NULL and not is_found(pool, fit.blocker):
        return False
    if window.spoiled or window.away != window.slot_count:
        return False
    for index in range(window.slot_count):
        if not is_found(pool, window.slots[index].piece):
            fit.blocker = window.slots[index].piece
            return False
    return True


cdef void forget_blockers(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.heaps
    cdef size_t index
    while heap != NULL:
        for index in range(heap.fit_count):
            heap.fits[index].blocker = NULL
        heap = heap.next


cdef void open_window(Pool* pool, Segment* window) noexcept nogil:
    # All of its holes become one free block.
    cdef Block* block = window.first
    cdef size_t index
    for index in range(window.slot_count):
        window.slots[index].piece.home = window.slots[index]
        window.slots[index].hole = NULL
    window.away = 0
    while block.after != NULL:
        absorb(window.heap, block, block.after)
    block.epoch = window.heap.last_freed = window.heap.epoch
    put_free(pool, block)


cdef bint move_in(Pool* pool, Segment* window) noexcept nogil:
    cdef size_t index
    for index in range(window.slot_count):
        if see_to_blocks(window.slots[index].piece.home.segment.heap, 2):
            return False
    for index in range(window.slot_count):
        see_to_blocks(window.slots[index].piece.home.segment.heap, 2)
        vacate(pool, window.slots[index].piece)
    open_window(pool, window)
    return True


cdef bint revive(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    cdef Fit* found = heap.fits
    cdef const Fit* end = found + heap.fit_count
    while found != end:
        if found.least <= size <= found.most and is_ready(pool, found):
            repay(pool, found.window.slot_count)
            return move_in(pool, found.window)
        found += 1
    return False


cdef void go_home(Pool* pool, Block* block) noexcept nogil:
    cdef Segment* window = block.segment
    cdef Heap* heap = window.heap
    cdef size_t first = slot_index(window, block.address)
    cdef size_t index = first
    cdef Slot* slot
    cdef Slot* primary
    cdef uint32_t epoch = block.epoch
    if <int>(epoch - window.used) > 0:
        window.used = epoch
    while index < window.slot_count:
        slot = window.slots[index]
        if slot.address + slot.size > block.address + block.size:
            break
        index += 1
        primary = slot.piece.primary
        if primary.segment.heap != heap and not is_settled(block):
            look(pool, heap)
            if not is_settled(block):
                pool.lingering += not heap.lingers
                heap.lingers = True
                continue
        if see_to_blocks(heap, 2):
            return
        slot.piece.cover = block
        vacate(pool, slot.piece)
        primary.hole.epoch = epoch if primary.segment.heap == heap else primary.segment.heap.settled
        settle_in(pool, primary)
        block = slot.hole.after
        if block == NULL or block.state != FREE:
            break


cdef void retire(Pool* pool, Block* block) noexcept nogil:
    cdef Heap* heap = block.heap
    block = set_free(pool, block)
    if block.segment.shape == WINDOW:
        go_home(pool, block)
    elif block.segment.shape == PLAIN:
        block.segment.idle_since = pool.allocations
    count_splits(pool, heap)


cdef void send_home(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.heaps
    cdef Segment* window
    cdef Block* block
    cdef Block* after
    cdef int64_t left = pool.lingering
    while heap != NULL and left:
        if heap.lingers:
            left -= 1
            pool.lingering -= 1
            heap.lingers = False
            look(pool, heap)
            window = heap.first_window
            while window != NULL:
                block = window.first
                while block != NULL:
                    after = block.after
                    while after != NULL and after.state == HOLE:
                        after = after.after
                    if block.state == FREE:
                        go_home(pool, block)
                    block = after
                window = window.after
        heap = heap.next


# --- new windows ---------------------------------------------------------------------------------------------

cdef int by_size(const void* one, const void* other) noexcept nogil:
    cdef const Block* a = (<const Run*>one).block
    cdef const Block* b = (<const Run*>other).block
    if a.size != b.size:
        return -1 if a.size > b.size else 1
    return -1 if a.order < b.order else 1


cdef bint suffices_before(const Found* found, const Heap* ranked, size_t size) noexcept nogil:
    # The blocks that come before all of the heap's have enough pages.
    cdef const Block* block
    cdef size_t index, total = 0
    for index in range(found.count):
        block = found.runs[index].block
        if block.size < ranked.top_size or (block.size == ranked.top_size and block.order > ranked.top_order):
            break
        total += found.runs[index].pages
    return total >= size


cdef void sort_found(Pool* pool, Found* found, size_t size) noexcept nogil:
    # By size, with the blocks of as many ranked heaps as are needed; each round takes twice as many.
    cdef size_t _step, wanted = 1
    cdef Heap* heap
    qsort(found.runs, found.count, sizeof(Run), &by_size)
    heap = first_ranked(pool) if pool.finds_ranked else NULL
    while heap != NULL and not suffices_before(found, heap, size):
        for _step in range(wanted):
            if heap == NULL:
                break
            mark_heap(pool, heap, False, found)
            heap = first_ranked(pool)
        wanted *= 2
        qsort(found.runs, found.count, sizeof(Run), &by_size)


cdef size_t choose(Pool* pool, Found* found, size_t size, Piece** pieces) noexcept nogil:
    # From the largest free blocks, so that few blocks are cut.
    cdef size_t index, number, count = 0, total = 0
    cdef const Segment* segment
    cdef const Block* block
    sort_found(pool, found, size)
    for index in range(found.count):
        block = found.runs[index].block
        segment = block.segment
        number = slot_index(segment, block.address)
        while total < size and number < segment.slot_count:
            if segment.slots[number].piece == NULL or segment.slots[number].piece.cover != block:
                break
            if segment.slots[number].piece.mark != pool.search:
                break
            pieces[count] = segment.slots[number].piece
            count += 1
            total += segment.slots[number].size
            number += 1
    return count if total >= size else 0


cdef void link_window(Pool* pool, Segment* window) noexcept nogil:
    cdef Heap* heap = window.heap
    window.before = heap.last_window
    if heap.last_window == NULL:
        heap.first_window = window
    else:
        heap.last_window.after = window
    heap.last_window = window
    pool.windows += 1


cdef int drop_window(Pool* pool, Segment* window) noexcept nogil:
    # One that is idle, or was never opened.  What a failure leaves is spoiled, and tried again.
    cdef Heap* heap = window.heap
    cdef size_t index
    cdef int code = 0
    window.spoiled = True
    drop_fit(window)
    for index in range(window.slot_count):
        if code == 0:
            code = unmap_slot(pool, window.slots[index])
    if code == 0 and window.room:
        code = free_addresses(pool, window)
    if code:
        return code
    if window.before != NULL:
        window.before.after = window.after
    else:
        heap.first_window = window.after
    if window.after != NULL:
        window.after.before = window.before
    else:
        heap.last_window = window.before
    pool.windows -= 1
    for index in range(window.slot_count):
        drop_slot(window.slots[index])
        window.slots[index].hole.state = FREE
        window.slots[index].hole.left = heap.spare
        heap.spare = window.slots[index].hole
        free(window.slots[index])
    free(window.slots)
    free(window)
    return 0


cdef int drop_windows(Pool* pool) noexcept nogil:
    # Not those that work may still run in, though their pages serve the same stream again.
    cdef Heap* heap = pool.heaps
    cdef Segment* window
    cdef Segment* after
    cdef int code = 0
    while heap != NULL and code == 0:
        window = heap.first_window if is_at_rest(pool, heap) else NULL
        while window != NULL and code == 0:
            after = window.after
            if window.away == window.slot_count and <int>(heap.settled - window.used) >= 0:
                code = drop_window(pool, window)
            window = after
        heap = heap.next
    return code


cdef int make_window(Pool* pool, Heap* heap, Piece** pieces, size_t count) noexcept nogil:
    # The pieces are at home nowhere meanwhile, so that no hit takes them while the driver works.
    cdef Segment* window = new_segment(pool, heap, WINDOW)
    cdef Slot** homes = <Slot**>malloc(count * sizeof(Slot*))
    cdef size_t index, size = 0
    cdef int code = see_to_moves(pool, pieces, count)
    if window == NULL or homes == NULL or code:
        free(window)
        free(homes)
        return NO_HOST_MEMORY
    window.serial = pool.next_serial
    window.used = heap.settled
    pool.next_serial += 1
    for index in range(count):
        size += pieces[index].size
        homes[index] = pieces[index].home
    for index in range(count):
        vacate(pool, pieces[index])
    link_window(pool, window)
    code = hold_addresses(pool, window, size)
    for index in range(count):
        if code == 0:
            code = add_slot(window, pieces[index])
    window.away = window.slot_count
    if code == 0:
        code = add_fit(window)
    if code == 0:
        code = map_run(pool, window, 0, count)
    for index in range(window.slot_count):
        if window.slots[index].mapped:
            pool.stats.stitched_bytes += window.slots[index].size
    if code == 0:
        charge(pool, count)
        open_window(pool, window)
    else:
        for index in range(count):
            settle_in(pool, homes[index])
        drop_window(pool, window)
    free(homes)
    return code


cdef bint is_crowded(const Pool* pool) noexcept nogil:
    return pool.windows >= MOST_WINDOWS


cdef int stitch(Pool* pool, Heap* heap, size_t size, Found* found) noexcept nogil:
    cdef Piece** pieces = <Piece**>malloc((size // pool.granule + 1) * sizeof(Piece*))
    cdef size_t count
    cdef int code = OUT_OF_MEMORY
    if pieces == NULL:
        return NO_HOST_MEMORY
    count = choose(pool, found, size, pieces)
    if count:
        code = make_window(pool, heap, pieces, count)
    free(pieces)
    return code
