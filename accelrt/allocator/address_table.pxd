# The address table: from an address to the block that begins there, in two steps.  A table of two levels, indexed by bits
# 34-49 and 21-33 of the address, has a place for each 2 MiB: the heap that the addresses belong to.  The heap's map of live
# blocks (Heap.blocks) has the block.  Places are read without a lock, so the answer may be stale: then the block is not in
# that heap's map, and the caller looks it up again in the exclusive section.  A map is read and written under its heap's
# lock.  So the memory that a lookup reads grows with the live blocks, not with the addresses.  Tables are never freed.
from libc.stdint cimport uintptr_t

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve_more
from accelrt.allocator.types cimport Block, Heap, Pool

cdef extern from *:
    """
    #define load_place(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_place(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    """
    Heap* load_heap_at "load_place"(Heap** place) noexcept nogil
    void store_heap_at "store_place"(Heap** place, Heap* heap) noexcept nogil
    Heap** load_region "load_place"(Heap*** place) noexcept nogil
    void store_region "store_place"(Heap*** place, Heap** region) noexcept nogil
    uintptr_t load_border "load_place"(const uintptr_t* place) noexcept nogil
    void store_border "store_place"(uintptr_t* place, uintptr_t border) noexcept nogil

cdef enum:
    REGIONS = 1 << 16  # of 16 GiB each
    PLACES = 1 << 13   # in a region, of 2 MiB each
    PLACE = 1 << 21    # bytes of addresses
    MORE_PLACES = 60   # places that a slow allocation leaves for hits

# Two heaps that share a place, since plain segments need not begin at a multiple of 2 MiB.  The place has its address plus
# one.  Never freed.
cdef struct Border:
    uintptr_t border  # the first address of the upper heap
    Heap* lower
    Heap* upper

cdef Heap** regions[REGIONS]

# Enters the addresses of one of the heap's segments, or of a part of one, at least 2 MiB, before blocks there are handed
# out.  0 or NO_HOST_MEMORY.  In the exclusive section.
cdef int claim_addresses(Heap* heap, uintptr_t address, size_t size) noexcept nogil


cdef inline Heap* heap_beside(const Border* found, uintptr_t address) noexcept nogil:
    if address >= load_border(&found.border):
        return load_heap_at(<Heap**>&found.upper)
    return load_heap_at(<Heap**>&found.lower)


cdef inline Heap* heap_at(uintptr_t address) noexcept nogil:
    # The heap that the address belongs to, or belonged to last; NULL: it never belonged to one.  Any thread, without a lock.
    cdef Heap** region
    cdef Heap* heap
    if address >> 50:
        return NULL
    region = load_region(&regions[address >> 34])
    if region == NULL:
        return NULL
    heap = load_heap_at(&region[(address >> 21) & (PLACES - 1)])
    if <uintptr_t>heap & 1:
        return heap_beside(<const Border*>(<uintptr_t>heap - 1), address)
    return heap


# The map of live blocks.  Under the heap's lock, or in the exclusive section if the heap is asleep.

cdef inline Block* block_in(const Heap* heap, uintptr_t address) noexcept nogil:
    # The live, cached or pending block that begins at the address, or NULL.
    return <Block*>map_find(&heap.blocks, address)


# The map is at most a quarter full: most searches end at the first slot, as the processor's branch prediction expects.

cdef inline bint has_place(const Heap* heap) noexcept nogil:
    # Whether the map can take one more block.
    return 4 * heap.blocks.count + 2 <= heap.blocks.capacity


cdef inline int ensure_places(Heap* heap, size_t count) noexcept nogil:
    # Makes places for count more blocks, and for those of hits that follow; 0 or NO_HOST_MEMORY.
    return map_reserve_more(&heap.blocks, heap.blocks.count + 2 * max(count, <size_t>MORE_PLACES))


cdef inline void list_block(Block* block) noexcept nogil:
    # The caller has ensured a place.
    map_insert(&block.heap.blocks, block.address, block)


cdef inline void unlist_block(Block* block) noexcept nogil:
    map_remove(&block.heap.blocks, block.address)


cdef inline Block* block_at(const Pool* pool, uintptr_t address) noexcept nogil:
    # The live, cached or pending block of the pool that begins at the address, or NULL.  In the exclusive section.
    cdef Heap* heap = heap_at(address)
    if heap == NULL or heap.settings != &pool.settings:
        return NULL
    return block_in(heap, address)
