# Sleeping heaps, filed by whether they have free pages, so that a search opens only heaps that have some.  In the exclusive
# section, or under the pool's mutex alone, which suffices for sleeping heaps.
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.types cimport Heap, Pool

cdef enum:  # Heap.filed
    NOWHERE = 0     # awake, or without free pages for other heaps
    BUSY = 1        # in a list: some free blocks are not quiescent, and its stream may be queried
    UNSEARCHED = 2  # in a list: the next search marks its free pages
    RANKED = 3      # its free pages are marked and stay so; in the tree if there are any

cdef bint has_pages(const Pool* pool, const Heap* heap) noexcept nogil  # a free block of at least a granule
cdef void file_heap(Pool* pool, Heap* heap) noexcept nogil  # files it anew, after any change of its free lists
cdef void file_heaps(Pool* pool, PrivatePool* owner) noexcept nogil  # the sleeping heaps of a private pool
cdef void rank(Pool* pool, Heap* heap) noexcept nogil  # from UNSEARCHED; Heap.pages and top_* are set
cdef Heap* first_ranked(const Pool* pool) noexcept nogil  # its largest block comes first; NULL: none


cdef inline bint serves_others(const Heap* heap) noexcept nogil:
    # Whether every common heap may take its quiescent pages.  Those of a suspended pool have no memory.
    return heap.owner == NULL or (heap.owner.uses == 0 and heap.owner.rest == 2 and heap.owner.suspension == NULL)
