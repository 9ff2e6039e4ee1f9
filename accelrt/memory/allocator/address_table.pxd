# The address table: from an address to the block that begins there.  Three levels, indexed by bits 34-49, 21-33 and 9-20
# of the address; an entry of the last level is a cell.  Cells are read without a lock.  A thread that writes one holds
# the lock of the block's heap or, if the heap is asleep, is in the exclusive section.  A thread that has read one takes
# the lock of the block's heap and checks the block again.  Tables are never freed.
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
    REGIONS = 1 << 16  # of 16 GiB each
    LEAVES = 1 << 13   # in a region, of 2 MiB each
    CELLS = 1 << 12    # in a leaf, for 512 bytes each

cdef Block*** regions[REGIONS]

cdef Block** make_cell(uintptr_t address) noexcept nogil  # any thread; NULL: no host memory, or an address of 2**50 or more


cdef inline Block** find_cell(uintptr_t address) noexcept nogil:
    # The address's cell; NULL if the leaf does not exist, so that no block can begin there.  Any thread, without a lock.
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
    # The block that begins at the address and is not free, or NULL.  Without a lock: it may be freed at any time.
    cdef Block** cell = find_cell(address)
    if cell == NULL or address & 511:
        return NULL
    return load_block(cell)
