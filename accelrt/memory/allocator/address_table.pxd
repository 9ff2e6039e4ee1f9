# From an address to the block that begins there, without a search: a table of three levels, by bits 34-49,
# 21-33 and 9-20 of the address.  Entries are read without a lock; a thread that writes one holds the lock of
# the block's heap, and one that read it takes that lock and looks again.  Tables are never given back.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport Block

cdef extern from *:
    """
    #define load_place(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_place(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    """
    Block* load_block "load_place"(Block** cell) noexcept nogil
    void store_block "store_place"(Block** cell, Block* block) noexcept nogil
    Block** load_leaf "load_place"(Block*** place) noexcept nogil
    void store_leaf "store_place"(Block*** place, Block** leaf) noexcept nogil
    Block*** load_region "load_place"(Block**** place) noexcept nogil
    void store_region "store_place"(Block**** place, Block*** region) noexcept nogil

cdef enum:
    REGIONS = 1 << 16  # of 16 GiB
    LEAVES = 1 << 13    # of 2 MiB in a region
    CELLS = 1 << 12    # of 512 bytes in a page

cdef Block*** regions[REGIONS]

cdef Block** make_cell(uintptr_t address) noexcept nogil  # NULL where the host has no memory, or beyond 2**50


cdef inline Block** find_cell(uintptr_t address) noexcept nogil:
    # NULL where nothing near the address was ever handed out.
    cdef Block*** region
    cdef Block** leaf
    if address >> 50:
        return NULL
    region = load_region(&regions[address >> 34])
    if region == NULL:
        return NULL
    leaf = load_leaf(&region[(address >> 21) & (LEAVES - 1)])
    return NULL if leaf == NULL else &leaf[(address >> 9) & (CELLS - 1)]


cdef inline Block* block_at(uintptr_t address) noexcept nogil:
    cdef Block** cell = find_cell(address)
    if cell == NULL or address & 511:
        return NULL
    return load_block(cell)
