"""The table from addresses to blocks: 8 bytes for each 512 of memory that was ever the start of a block's
page; the host's pages of it that nothing is written to cost nothing."""
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.zero_pages cimport take_fresh

cdef enum:
    SLAB = 1 << 20  # bytes for tables, taken at once

cdef int making = 0  # the lock under which tables are hung in; nothing else is taken under it
cdef char* slab
cdef size_t left = 0  # bytes of the slab


cdef void* take_table(size_t size) noexcept nogil:
    global slab, left
    if left < size:
        slab = <char*>take_fresh(SLAB)
        left = 0 if slab == NULL else SLAB
    if slab == NULL:
        return NULL
    left -= size
    return slab + left


cdef Block** make_cell(uintptr_t address) noexcept nogil:
    cdef Block**** root
    cdef Block*** place
    cdef Block** leaf = NULL
    if address >> 50:
        return NULL
    root = &regions[address >> 34]
    spin_lock(&making)
    if root[0] == NULL:
        store_region(root, <Block***>take_table(LEAVES * sizeof(void*)))
    if root[0] != NULL:
        place = &root[0][(address >> 21) & (LEAVES - 1)]
        if place[0] == NULL:
            store_leaf(place, <Block**>take_table(CELLS * sizeof(void*)))
        leaf = place[0]
    spin_unlock(&making)
    return NULL if leaf == NULL else &leaf[(address >> 9) & (CELLS - 1)]
