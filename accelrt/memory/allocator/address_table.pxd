# From an address to the block that begins there, in two steps: a table of two levels, by bits 34-49 and 21-33 of the
# address, names the heap that 2 MiB of addresses belong to; the heap's own map (Heap.blocks) has its live and pending
# blocks.  The table is read without a lock, so its answer may be old: then the heap does not have the block, and the
# caller looks again in the exclusive section.  A heap's map is read and written under the heap's lock.  So the memory
# that a lookup touches grows with the live blocks, not with the addresses.
from libc.stdint cimport uintptr_t

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve_more
from accelrt.memory.allocator.types cimport Block, Heap, Pool

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
    REGIONS = 1 << 16  # of 16 GiB
    PLACES = 1 << 13   # of 2 MiB in a region
    PLACE = 1 << 21
    MORE_PLACES = 60   # a slow allocation leaves a heap's map so many

# Two heaps of one place, where plain segments do not begin at a multiple of 2 MiB; a place refers to it by its address
# plus one.  Never given back.
cdef struct Border:
    uintptr_t border  # the first address of the upper heap
    Heap* lower
    Heap* upper

cdef Heap** regions[REGIONS]

# Addresses of a segment of the heap's, at least 2 MiB, before blocks of theirs are handed out: 0 or NO_HOST_MEMORY.
# In the exclusive section.
cdef int claim_addresses(Heap* heap, uintptr_t address, size_t size) noexcept nogil


cdef inline Heap* heap_beside(const Border* found, uintptr_t address) noexcept nogil:
    if address >= load_border(&found.border):
        return load_heap_at(<Heap**>&found.upper)
    return load_heap_at(<Heap**>&found.lower)


cdef inline Heap* heap_at(uintptr_t address) noexcept nogil:
    # NULL where no heap ever had the address.  Without a lock.
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


# Of a heap that is locked, or in the exclusive section.

cdef inline Block* block_in(const Heap* heap, uintptr_t address) noexcept nogil:
    return <Block*>map_find(&heap.blocks, address)


# The map is at most a quarter full: then most searches end at the first slot, as the processor expects.

cdef inline bint has_place(const Heap* heap) noexcept nogil:
    # For one more block.
    return 4 * heap.blocks.count + 2 <= heap.blocks.capacity


cdef inline int ensure_places(Heap* heap, size_t count) noexcept nogil:
    # For so many more, and for hits that follow; 0 or NO_HOST_MEMORY.
    return map_reserve_more(&heap.blocks, heap.blocks.count + 2 * max(count, <size_t>MORE_PLACES))


cdef inline void list_block(Block* block) noexcept nogil:
    # Where has_place.
    map_insert(&block.heap.blocks, block.address, block)


cdef inline void unlist_block(Block* block) noexcept nogil:
    map_remove(&block.heap.blocks, block.address)


cdef inline Block* block_at(const Pool* pool, uintptr_t address) noexcept nogil:
    # A live or pending block of the pool, or NULL.  In the exclusive section.
    cdef Heap* heap = heap_at(address)
    if heap == NULL or heap.settings != &pool.settings:
        return NULL
    return block_in(heap, address)
