# A heap's map of its live, cached and pending blocks, by address.  Under the heap's lock, or in the exclusive section if the
# heap is asleep.  It is at most a quarter full: most searches end at the first slot, as the processor's branch prediction
# expects.
from libc.stdint cimport uintptr_t

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve_more
from accelrt.allocator.types cimport Block, Heap

cdef enum:
    MORE_PLACES = 60   # places that a slow allocation leaves for hits


cdef inline Block* block_in(const Heap* heap, uintptr_t address) noexcept nogil:
    # The live, cached or pending block that begins at the address, or NULL.
    return <Block*>map_find(&heap.blocks, address)


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
