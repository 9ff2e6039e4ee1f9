"""Plain segments: one allocation of the device each, and the limits on growth.

Every function here runs under the growth lock and in the exclusive section, unless it says otherwise.
"""
from libc.stdint cimport SIZE_MAX, int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.allocator.address_table cimport claim_addresses
from accelrt.allocator.event_ring cimport record_event, stack_of_block
from accelrt.allocator.exclusive cimport call_unlocked, count_oversize, count_pool, put_free, reserved, take_free
from accelrt.allocator.history_types cimport SEGMENT_ALLOCATED, SEGMENT_FREED
from accelrt.allocator.inline.block_ops cimport recycle
from accelrt.allocator.metadata cimport append_hole, ensure_blocks
from accelrt.allocator.sizes cimport UNIT
from accelrt.allocator.stats cimport RESERVED_BYTES, SEGMENT
from accelrt.allocator.types cimport ANY_REST, BY_KIND, FREE, HOLE, NO_REST, PLAIN, Block
from accelrt.status cimport CAP_REACHED, INVALID_VALUE, NO_HOST_MEMORY, OUT_OF_MEMORY, POOL_CAP_REACHED


cdef int take_bytes(Pool* pool, void* about) noexcept nogil:
    # Run by call_unlocked, outside the exclusive section.
    cdef Segment* segment = <Segment*>about
    cdef int before, code
    if segment.source == NULL:
        return pool.table.memory_alloc(pool.device, segment.size, &segment.address)
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
    code = enter_device(pool, &before)
    if code == 0:
        segment.source.free(<void*>segment.address, segment.size, pool.device, <void*>segment.heap.stream)
        leave_device(pool, before)
    return code


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
    return not pool.settings.virtual_memory or (
        heap.owner != NULL and (heap.owner.source != NULL or heap.owner.whole))


cdef void link_segment(Pool* pool, Segment* segment) noexcept nogil:
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
    # The private pool's limit first: memory elsewhere cannot help against it.
    if heap.owner != NULL and (size > heap.owner.limit or heap.owner.reserved > heap.owner.limit - size):
        return POOL_CAP_REACHED
    return CAP_REACHED if reserved(pool) + size > pool.limit else 0


cdef int grow_plain(Pool* pool, Heap* heap, size_t size) noexcept nogil:
    # Takes one segment from the device, as one free block.  The driver call is made outside the exclusive section.
    cdef Segment* segment
    cdef int code = within_limits(pool, heap, size)
    if code:
        return code
    segment = <Segment*>calloc(1, sizeof(Segment))
    if segment == NULL:
        return NO_HOST_MEMORY
    segment.size = segment.held = size
    segment.heap = heap
    if heap.owner != NULL:
        segment.source = heap.owner.source
        segment.splits = NO_REST if heap.owner.whole else ANY_REST if pool.settings.virtual_memory else BY_KIND
    code = call_unlocked(pool, take_bytes, segment)
    if code == 0:
        code = ensure_blocks(heap, 1)
        if code == 0:
            code = claim_addresses(heap, segment.address, size)
        if code:
            call_unlocked(pool, give_bytes, segment)
    if code:
        free(segment)
        return code
    segment.shape = PLAIN
    segment.kind = heap.kind
    link_segment(pool, segment)
    count_owner(pool, heap, size)
    pool.stats.num_device_alloc += 1
    count_pool(pool, RESERVED_BYTES, segment.kind, size)
    record_event(pool, SEGMENT_ALLOCATED, segment.address, size, heap.stream, heap.owner)
    append_hole(segment, size).epoch = heap.quiescent_epoch  # new memory: no work uses it yet
    put_free(pool, segment.first)
    return 0


cdef bint may_leave(const Pool* pool, const Heap* heap) noexcept nogil:
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


cdef int release_segment(Pool* pool, Segment* segment) noexcept nogil:
    # The block is a HOLE during the driver call, so that no hit takes it.
    cdef Block* block = segment.first
    cdef int code
    take_free(pool, block)
    block.state = HOLE
    code = call_unlocked(pool, give_bytes, segment)
    if code:
        put_free(pool, block)
        return code
    unlink_segment(pool, segment)
    record_event(pool, SEGMENT_FREED, segment.address, segment.size, segment.heap.stream, segment.heap.owner)
    count_owner(pool, segment.heap, -<int64_t>segment.size)
    pool.stats.num_device_free += 1
    count_pool(pool, RESERVED_BYTES, segment.kind, -<long long>segment.size)
    block.state = FREE
    recycle(segment.heap, block)
    free(segment)
    return 0


cdef Segment* longest_idle(Pool* pool) noexcept nogil:
    # Walks all segments of the pool.
    cdef Segment* segment = pool.first
    cdef Segment* found = NULL
    while segment != NULL:
        if is_idle(pool, segment) and (found == NULL or segment.idle_since < found.idle_since):
            found = segment
        segment = segment.after
    return found


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
