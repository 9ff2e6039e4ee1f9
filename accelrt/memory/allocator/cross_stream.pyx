"""Memory that more than one stream uses: the other streams are recorded, or an event says when it is free.

Each function enters the exclusive section itself unless it says otherwise.
"""
from accelrt.memory.allocator.exclusive cimport lock_all, unlock_all
from accelrt.memory.allocator.metadata cimport add_use, has_use, lookup_heap
from accelrt.memory.allocator.pending cimport load_offers, note_wait, offer
from accelrt.memory.allocator.pool cimport inspected, live_at, pool_if_made, pool_of
from accelrt.memory.allocator.sizes cimport LARGE, SMALL
from accelrt.memory.allocator.stream_registry cimport heap_stream
from accelrt.memory.allocator.types cimport Block, Heap, Pool
from accelrt.memory.backends.external_pool cimport external_use_on
from accelrt.status cimport NOT_ALLOCATED, NOT_SUPPORTED


cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil:
    return use_across(device, address, device, stream)


cdef int use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil:
    # A use of the block's own stream is not recorded, nor one that is recorded already.
    cdef Pool* pool
    cdef Block* block
    cdef int code = pool_of(device, &pool)
    if code or address == 0:
        return code
    stream = heap_stream(stream)
    if pool.external != NULL:
        return external_use_on(pool.external, address, stream_on, stream)
    lock_all(pool)
    block = live_at(pool, address)
    if block == NULL:
        code = NOT_ALLOCATED
    elif (block.heap.stream != stream or stream_on != device) and not has_use(block.uses, stream_on, stream):
        code = add_use(pool, &block.uses, stream_on, stream)
    unlock_all(pool, NULL)
    return code


cdef int release_after(int device, uintptr_t address, uintptr_t event, uint64_t record) noexcept nogil:
    # Frees a live block as of the event, and offers it to the streams that wait for this recording.
    cdef Pool* pool
    cdef Block* block
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        return NOT_SUPPORTED
    lock_all(pool)
    block = live_at(pool, address)
    if block == NULL:
        code = NOT_ALLOCATED
    else:
        code = offer(pool, block, event, record)
        code = inspected(pool, code)
    unlock_all(pool, NULL)
    return code


cdef int stream_waits(int device, uintptr_t stream, uint64_t record) noexcept nogil:
    # Most waits find no offer: those take no lock.
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL or load_offers(&pool.offers) == NULL:
        return 0
    lock_all(pool)
    code = note_wait(pool, stream, record)
    unlock_all(pool, NULL)
    return code


cdef bint knows_stream(int device, uintptr_t stream) noexcept nogil:
    # Without a lock: looks only in the table of common heaps, in which some heaps may have no slot.
    cdef Pool* pool = pool_if_made(device)
    cdef Heap* heap = NULL
    if pool != NULL and pool.external == NULL:
        heap = lookup_heap(pool.heap_table[LARGE], stream)
        if heap == NULL:
            heap = lookup_heap(pool.heap_table[SMALL], stream)
    return heap != NULL and heap.trusted
