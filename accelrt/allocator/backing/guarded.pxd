# Guarded pages: free in their expandable segments before the streams that freed them elsewhere were asked
# (DESIGN.md).  Everything here needs the exclusive section.
from libc.stdint cimport uint32_t

from accelrt.allocator.types cimport Page, Pool, Slot


cdef inline void guard_page(Pool* pool, Page* page, Slot* slot, uint32_t epoch) noexcept nogil:
    # The page is resident in its expandable segment, but work of the stream that freed it in the slot may still use it.
    page.guard = slot.segment.heap
    page.guard_slot = slot
    page.guard_epoch = epoch
    page.guard_before = NULL
    page.guard_after = pool.guarded
    if pool.guarded != NULL:
        pool.guarded.guard_before = page
    pool.guarded = page
    pool.guarding += 1
    page.guard.guarding += 1
    page.resident.segment.heap.guards += 1


cdef inline void unguard_page(Pool* pool, Page* page) noexcept nogil:
    # While it is still resident there.
    if page.guard_before == NULL:
        pool.guarded = page.guard_after
    else:
        page.guard_before.guard_after = page.guard_after
    if page.guard_after != NULL:
        page.guard_after.guard_before = page.guard_before
    pool.guarding -= 1
    page.guard.guarding -= 1
    page.resident.segment.heap.guards -= 1
    page.guard = NULL
