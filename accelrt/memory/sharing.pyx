"""Memory that more than one stream uses: the others are recorded, or an event says when it is free."""
from accelrt.memory.block cimport Block, Heap
from accelrt.memory.foreign cimport foreign_use_on
from accelrt.memory.idle cimport settle_epoch
from accelrt.memory.pending cimport note_wait, offer
from accelrt.memory.per_thread cimport filed_under
from accelrt.memory.pool cimport inspected, live_at, pool_if_made, pool_of
from accelrt.memory.records cimport add_use, has_use, load_heap, near_heap
from accelrt.memory.sizes cimport LARGE, SMALL
from accelrt.memory.state cimport Pool
from accelrt.memory.world cimport enter, leave
from accelrt.status cimport NOT_ALLOCATED, NOT_SUPPORTED


cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil:
    return use_across(device, address, device, stream)


cdef int use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil:
    cdef Pool* pool
    cdef Block* block
    cdef int code = pool_of(device, &pool)
    if code or address == 0:
        return code
    stream = filed_under(stream)
    if pool.foreign != NULL:
        return foreign_use_on(pool.foreign, address, stream_on, stream)
    enter(pool)
    block = live_at(pool, address)
    if block == NULL:
        code = NOT_ALLOCATED
    elif (block.heap.stream != stream or stream_on != device) and not has_use(block.uses, stream_on, stream):
        code = add_use(pool, &block.uses, stream_on, stream)
    leave(pool, NULL)
    return code


cdef int release_after(int device, uintptr_t address, uintptr_t event, uint64_t record) noexcept nogil:
    cdef Pool* pool
    cdef Block* block
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.foreign != NULL:
        return NOT_SUPPORTED
    enter(pool)
    block = live_at(pool, address)
    if block == NULL:
        code = NOT_ALLOCATED
    else:
        code = offer(pool, block, event, record)
        code = inspected(pool, code)
    leave(pool, NULL)
    return code


cdef int stream_waits(int device, uintptr_t stream, uint64_t record) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL or pool.offers == NULL:
        return 0
    enter(pool)
    code = note_wait(pool, stream, record)
    leave(pool, NULL)
    return code


cdef bint knows_stream(int device, uintptr_t stream) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef Heap* heap = NULL
    if pool != NULL and pool.foreign == NULL:
        heap = near_heap(pool.near[LARGE], stream)
        if heap == NULL:
            heap = near_heap(pool.near[SMALL], stream)
    return heap != NULL and heap.trusted


cdef bint has_left(int device, uintptr_t stream) noexcept nogil:
    # Heaps are never given back, so that the list may be read without a lock; mostly two looks do.
    cdef Pool* pool = pool_if_made(device)
    cdef Heap* heap
    if pool == NULL or pool.foreign != NULL or pool.policy.virtual_memory:
        return False
    if near_heap(pool.near[0], stream) != NULL or near_heap(pool.near[1], stream) != NULL:
        return True
    heap = load_heap(&pool.heaps)
    while heap != NULL and heap.stream != stream:
        heap = load_heap(&heap.next)
    return heap != NULL


cdef void leave_behind(int device, uintptr_t stream, uintptr_t parent) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef Heap* heap
    enter(pool)
    heap = pool.heaps
    while heap != NULL:
        if heap.stream == stream and heap.owner == NULL and heap.summary:
            heap.left = heap.epoch
            heap.claimed = True
            heap.claimant = parent
            settle_epoch(heap)
        heap = heap.next
    leave(pool, NULL)
