"""The address table.  It costs 8 bytes for each aligned 2 MiB in which a segment ever had addresses, and the maps of live
blocks 64 bytes or more for each block."""
from libc.stdlib cimport calloc

from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.zero_pages cimport take_fresh
from accelrt.status cimport NO_HOST_MEMORY

cdef int making = 0  # the spin lock under which the table is written; no other lock is taken under it


cdef Heap** make_place(uintptr_t address) noexcept nogil:
    # The address's place; NULL: no host memory, or an address of 2**50 or more.  Under the lock making.
    cdef Heap*** root
    if address >> 50:
        return NULL
    root = &regions[address >> 34]
    if root[0] == NULL:
        store_region(root, <Heap**>take_fresh(PLACES * sizeof(void*)))
    return NULL if root[0] == NULL else &root[0][(address >> 21) & (PLACES - 1)]


cdef int divide(Heap** place, uintptr_t border, Heap* lower, Heap* upper) noexcept nogil:
    # Writes a place that two heaps share, or the one heap if lower and upper are not two.  0 or NO_HOST_MEMORY.  A reader
    # that reads one field new and another old searches the wrong heap's map, which does not have its block.
    cdef Border* found = NULL
    if lower == NULL or lower == upper:
        store_heap_at(place, upper)
        return 0
    if upper == NULL:
        store_heap_at(place, lower)
        return 0
    if <uintptr_t>place[0] & 1:
        found = <Border*>(<uintptr_t>place[0] - 1)
    else:
        found = <Border*>calloc(1, sizeof(Border))
        if found == NULL:
            return NO_HOST_MEMORY
    store_border(&found.border, border)
    store_heap_at(&found.lower, lower)
    store_heap_at(&found.upper, upper)
    store_heap_at(place, <Heap*>(<uintptr_t>found + 1))
    return 0


cdef int claim_addresses(Heap* heap, uintptr_t address, size_t size) noexcept nogil:
    cdef uintptr_t start = address & ~<uintptr_t>(PLACE - 1)
    cdef uintptr_t end = address + size
    cdef Heap** place
    cdef int code = 0
    spin_lock(&making)
    while start < end and code == 0:
        place = make_place(start)
        if place == NULL:
            code = NO_HOST_MEMORY
        elif start < address:
            code = divide(place, address, heap_at(start), heap)
        elif end - start < PLACE:
            # The heap of the place's last byte: behind an old border the place may name one without memory there.
            code = divide(place, end, heap, heap_at(start + PLACE - 1))
        else:
            store_heap_at(place, heap)
        start += PLACE
    spin_unlock(&making)
    return code
