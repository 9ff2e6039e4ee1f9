# The free block that is kept aside: hits look at it first, and it is filed when anything else happens.
from accelrt.memory.block cimport Block, Heap
from accelrt.memory.freelist cimport best_fit, insert, precedes, remove


cdef inline Block* fit_of_hit(const Heap* heap, size_t size) noexcept nogil:
    # As best_fit, with the block aside among the others.
    cdef Block* aside = heap.aside
    cdef Block* best = best_fit(heap, size) if heap.summary else NULL
    if aside != NULL and aside.size >= size and (best == NULL or precedes(aside, best)):
        return aside
    return best


cdef inline void file_aside(Heap* heap) noexcept nogil:
    if heap.aside != NULL:
        insert(heap, heap.aside)
        heap.aside = NULL


cdef inline void put_aside(Heap* heap, Block* block) noexcept nogil:
    file_aside(heap)
    heap.aside = block


cdef inline void unlist(Heap* heap, Block* block) noexcept nogil:
    if block == heap.aside:
        heap.aside = NULL
    else:
        remove(heap, block)
