"""The address table.  It costs 8 bytes for each 512 bytes of every aligned 2 MiB in which a block ever began, less the
host pages of a table that were never written to."""
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.zero_pages cimport take_fresh

cdef enum:
    SLAB = 1 << 20  # bytes that are taken from the host for several tables

cdef int making = 0  # the spin lock under which tables are added; no other lock is taken under it
cdef char* slab
cdef size_t left = 0  # unused bytes of the slab


cdef void* take_table(size_t size) noexcept nogil:
    # Zeroed memory for a table; NULL: no host memory.  Under the lock making.
    global slab, left
    if left < size:
        slab = <char*>take_fresh(SLAB)
        left = 0 if slab == NULL else SLAB
    if slab == NULL:
        return NULL
    left -= size
    return slab + left


cdef Block** make_cell(uintptr_t address) noexcept nogil:
    # Creates the tables on the way to an address's cell if they do not exist.
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
