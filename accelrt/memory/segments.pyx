"""Segments: what a pool takes from its device and gives back to it."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.memory.block cimport FREE, LEAVING, Block, Private, Segment, pthread_mutex_lock, pthread_mutex_unlock
from accelrt.memory.heap cimport put_free, take_free
from accelrt.memory.private cimport drop_empty
from accelrt.memory.records cimport new_block, recycle_block
from accelrt.memory.stats cimport RESERVED_BYTES, SEGMENT, current_of, decrease, increase
from accelrt.status cimport CAP_REACHED, NO_HOST_MEMORY


cdef int take_bytes(Pool* pool, size_t size, uintptr_t* out_address) noexcept nogil:
    # Plain allocation breaks a global-mode capture of any thread, unless this one is relaxed meanwhile.
    cdef int mode, code
    pthread_mutex_unlock(&pool.lock)
    code = go_relaxed(pool.table, &mode)
    if code == 0:
        code = pool.table.memory_alloc(pool.device, size, out_address)
        restore_mode(pool.table, mode)
    pthread_mutex_lock(&pool.lock)
    return code


cdef int give_bytes(Pool* pool, uintptr_t address) noexcept nogil:
    cdef int mode, code
    pthread_mutex_unlock(&pool.lock)
    code = go_relaxed(pool.table, &mode)
    if code == 0:
        code = pool.table.memory_free(pool.device, address)
        restore_mode(pool.table, mode)
    pthread_mutex_lock(&pool.lock)
    return code


cdef void link_segment(Pool* pool, Segment* segment) noexcept nogil:
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
    pool.stats.num_device_alloc += 1
    increase(&pool.stats, SEGMENT, segment.kind, 1)
    increase(&pool.stats, RESERVED_BYTES, segment.kind, segment.size)


cdef void unlink_segment(Pool* pool, Segment* segment) noexcept nogil:
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
    pool.stats.num_device_free += 1
    decrease(&pool.stats, SEGMENT, segment.kind, 1)
    decrease(&pool.stats, RESERVED_BYTES, segment.kind, segment.size)


cdef int grow(Pool* pool, Heap* heap, int kind, size_t size) noexcept nogil:
    cdef Segment* segment
    cdef Block* block
    cdef int code
    if current_of(&pool.stats, RESERVED_BYTES) + size > pool.limit:
        return CAP_REACHED
    segment = <Segment*>calloc(1, sizeof(Segment))
    block = new_block(pool)
    if segment == NULL or block == NULL:
        free(segment)
        if block != NULL:
            recycle_block(pool, block)
        return NO_HOST_MEMORY
    code = take_bytes(pool, size, &segment.address)
    if code:
        free(segment)
        recycle_block(pool, block)
        return code
    segment.size = size
    segment.kind = kind
    segment.heap = heap
    segment.first = block
    link_segment(pool, segment)
    block.address = segment.address
    block.size = size
    block.order = segment.serial << 32
    block.segment = segment
    block.before = block.after = NULL
    put_free(pool, block)
    return 0


cdef bint may_leave(const Segment* segment) noexcept nogil:
    cdef const Private* owner = segment.heap.owner
    return segment.first.state == FREE and segment.first.after == NULL and (owner == NULL or owner.uses == 0)


cdef int release_segment(Pool* pool, Segment* segment) noexcept nogil:
    cdef Block* block = segment.first
    cdef int code
    take_free(pool, block)
    block.state = LEAVING
    code = give_bytes(pool, segment.address)
    if code:
        put_free(pool, block)
        return code
    unlink_segment(pool, segment)
    recycle_block(pool, block)
    free(segment)
    return 0


cdef int release_free(Pool* pool) noexcept nogil:
    # Only the holder of the growth lock links and unlinks, so the walk survives the open inner lock.
    cdef Segment* segment = pool.first
    cdef Segment* after
    cdef int code = 0
    while segment != NULL and code == 0:
        after = segment.after
        if may_leave(segment):
            code = release_segment(pool, segment)
        segment = after
    drop_empty(pool)
    return code
