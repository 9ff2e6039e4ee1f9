"""Sleeping heaps, filed by what a search for free pages has to do with them.

No block of a sleeping heap is allocated or freed, so its free pages stay as the last search marked them.  Once all of
them are quiescent the heap is ranked, by its largest block that holds pages.  A search takes the sum over ranked heaps
from the pool, and opens only those from which it takes pages.

Every function here runs in the exclusive section or under the pool's mutex (free_pages.pxd).
"""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from accelrt.allocator.inline.block_ops cimport is_heap_quiescent
from accelrt.allocator.inline.free_list cimport class_of, next_class


cdef bint has_pages(const Pool* pool, const Heap* heap) noexcept nogil:
    # Asks the bits of the free lists: no list is walked.
    return next_class(heap, class_of(pool.granule) - 1) >= 0


# --- the tree: a treap, largest weight on top --------------------------------------------------------------------

cdef inline uint32_t weight(const Heap* heap) noexcept nogil:
    return <uint32_t>((<uint64_t><uintptr_t>heap * 0x9E3779B97F4A7C15ULL) >> 32)


cdef inline bint outranks(const Heap* one, const Heap* other) noexcept nogil:
    if one.top_size != other.top_size:
        return one.top_size > other.top_size
    return one.top_order < other.top_order


cdef void hang_in(Heap** link, Heap* heap) noexcept nogil:
    # Inserts a heap into the treap.
    cdef Heap** low = &heap.filed_before
    cdef Heap** high = &heap.filed_after
    cdef Heap* rest
    while link[0] != NULL and weight(link[0]) >= weight(heap):
        link = &link[0].filed_before if outranks(heap, link[0]) else &link[0].filed_after
    rest = link[0]
    link[0] = heap
    while rest != NULL:  # split the subtree into heaps before and heaps after this one
        if outranks(rest, heap):
            low[0] = rest
            low = &rest.filed_after
            rest = rest.filed_after
        else:
            high[0] = rest
            high = &rest.filed_before
            rest = rest.filed_before
    low[0] = high[0] = NULL


cdef void take_out(Heap** link, Heap* heap) noexcept nogil:
    # Removes a heap from the treap.
    cdef Heap* low = heap.filed_before
    cdef Heap* high = heap.filed_after
    while link[0] != heap:
        link = &link[0].filed_before if outranks(heap, link[0]) else &link[0].filed_after
    while low != NULL and high != NULL:  # merge its two subtrees
        if weight(low) >= weight(high):
            link[0] = low
            link = &low.filed_after
            low = low.filed_after
        else:
            link[0] = high
            link = &high.filed_before
            high = high.filed_before
    link[0] = low if low != NULL else high


cdef Heap* first_ranked(const Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.ranked
    while heap != NULL and heap.filed_before != NULL:
        heap = heap.filed_before
    return heap


cdef void rank(Pool* pool, Heap* heap) noexcept nogil:
    unfile(pool, heap)
    heap.filed = RANKED
    pool.ranked_pages += heap.pages
    if heap.pages:
        hang_in(&pool.ranked, heap)


# --- the lists ---------------------------------------------------------------------------------------------------

cdef void push(Heap** first, Heap* heap) noexcept nogil:
    heap.filed_before = NULL
    heap.filed_after = first[0]
    if first[0] != NULL:
        first[0].filed_before = heap
    first[0] = heap


cdef void drop(Heap** first, Heap* heap) noexcept nogil:
    if heap.filed_before == NULL:
        first[0] = heap.filed_after
    else:
        heap.filed_before.filed_after = heap.filed_after
    if heap.filed_after != NULL:
        heap.filed_after.filed_before = heap.filed_before


cdef void unfile(Pool* pool, Heap* heap) noexcept nogil:
    # Takes a heap out of its list or tree.
    if heap.filed == BUSY:
        drop(&pool.busy, heap)
    elif heap.filed == UNSEARCHED:
        drop(&pool.unsearched, heap)
    elif heap.filed == RANKED:
        pool.ranked_pages -= heap.pages
        if heap.pages:
            take_out(&pool.ranked, heap)
    heap.filed = NOWHERE


cdef void file_heap(Pool* pool, Heap* heap) noexcept nogil:
    # NOWHERE if it is awake, has no free pages, or graphs hold its pool.  BUSY only if its stream may be queried.
    unfile(pool, heap)
    if heap.awake or not pool.settings.virtual_memory or not has_pages(pool, heap):
        return
    if heap.owner != NULL and heap.owner.uses > heap.owner.users:  # graphs hold it
        return
    if heap.trusted and not is_heap_quiescent(heap):
        heap.filed = BUSY
        push(&pool.busy, heap)
    elif serves_others(heap):
        heap.filed = UNSEARCHED
        push(&pool.unsearched, heap)


cdef void file_heaps(Pool* pool, PrivatePool* owner) noexcept nogil:
    cdef Heap* heap = <Heap*>owner.heaps
    while heap != NULL:
        if not heap.awake:
            file_heap(pool, heap)
        heap = heap.sibling
