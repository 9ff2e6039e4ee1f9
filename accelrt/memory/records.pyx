"""The records that describe memory: taken in slabs, recycled, never given back before the process ends.

Records are small beside what they describe: 120 bytes a block of at least 512.
"""
from libc.stdlib cimport calloc, free

from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.addresses cimport map_find, map_insert, map_reserve
from accelrt.status cimport NO_HOST_MEMORY

cdef enum:
    SLAB = 64  # records taken at once


cdef uint32_t next_weight(Pool* pool) noexcept nogil:
    # xorshift32 (Marsaglia, 2003): the trees need weights without a pattern, nothing more.
    pool.seed ^= pool.seed << 13
    pool.seed ^= pool.seed >> 17
    pool.seed ^= pool.seed << 5
    return pool.seed


cdef Block* new_block_slow(Pool* pool) noexcept nogil:
    cdef Block* slab = <Block*>calloc(SLAB, sizeof(Block))
    cdef int index
    if slab == NULL:
        return NULL
    for index in range(SLAB):
        slab[index].weight = next_weight(pool)
        if index:
            recycle_block(pool, &slab[index])
    return slab


cdef Use* new_use(Pool* pool) noexcept nogil:
    cdef Use* use = pool.spare_uses
    if use == NULL:
        return <Use*>calloc(1, sizeof(Use))
    pool.spare_uses = use.next
    return use


cdef void recycle_use(Pool* pool, Use* use) noexcept nogil:
    use.next = pool.spare_uses
    pool.spare_uses = use


cdef int new_entry(Pool* pool, Entry** out_entry) noexcept nogil:
    cdef Entry* entry = pool.spare_entries
    cdef int code
    if entry != NULL:
        pool.spare_entries = entry.next
        out_entry[0] = entry
        return 0
    entry = <Entry*>calloc(1, sizeof(Entry))
    if entry == NULL:
        return NO_HOST_MEMORY
    code = pool.table.event_create(pool.device, EVENT_DISABLE_TIMING, &entry.event)
    if code:
        free(entry)
        return code
    out_entry[0] = entry
    return 0


cdef void recycle_entry(Pool* pool, Entry* entry) noexcept nogil:
    entry.block = NULL
    entry.next = pool.spare_entries
    pool.spare_entries = entry


cdef int drop_spare_events(Pool* pool) noexcept nogil:
    cdef Entry* entry
    cdef int code
    while pool.spare_entries != NULL:
        entry = pool.spare_entries
        code = pool.table.event_destroy(pool.device, entry.event)
        if code:
            return code
        pool.spare_entries = entry.next
        free(entry)
    return 0


cdef int heap_of(Pool* pool, Private* owner, uintptr_t stream, Heap** out_heap) noexcept nogil:
    cdef AddressMap* heaps = &pool.heaps if owner == NULL else &owner.heaps
    cdef Heap* heap = <Heap*>map_find(heaps, stream)
    if heap == NULL:
        if map_reserve(heaps):
            return NO_HOST_MEMORY
        heap = <Heap*>calloc(1, sizeof(Heap))
        if heap == NULL:
            return NO_HOST_MEMORY
        heap.stream = stream
        heap.owner = owner
        map_insert(heaps, stream, heap)
    out_heap[0] = heap
    return 0
