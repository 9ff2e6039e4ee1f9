# Where the free pages are of heaps that are asleep, so that a search looks at none in vain.  In the exclusive section, or
# under the pool's mutex, which is enough for heaps that are asleep.
from accelrt.memory.allocator.types cimport Heap, Pool, PrivatePool

cdef enum:  # Heap.filed
    NOWHERE = 0     # awake, or without pages that others may have
    BUSY = 1        # in a list: some of what is free is not settled, and its stream may be asked
    UNSEARCHED = 2  # in a list: its pages are to be marked
    RANKED = 3      # its pages are marked, and stay so; in a tree where there are any

cdef bint has_pages(const Pool* pool, const Heap* heap) noexcept nogil  # a free block as large as the least page
cdef void file_heap(Pool* pool, Heap* heap) noexcept nogil  # after whatever changed where it belongs
cdef void file_heaps(Pool* pool, PrivatePool* owner) noexcept nogil  # those of a private pool
cdef void rank(Pool* pool, Heap* heap) noexcept nogil  # UNSEARCHED; its figures are those of the search
cdef Heap* first_ranked(const Pool* pool) noexcept nogil  # the one with the largest block that holds pages; NULL


cdef inline bint serves_others(const Heap* heap) noexcept nogil:
    # Its settled pages are for every common heap to take.
    return heap.owner == NULL or (heap.owner.uses == 0 and heap.owner.rest == 2)
