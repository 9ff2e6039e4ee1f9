# The allocator's sizes, in bytes, and their rounding.  No lock is needed.

cdef enum:
    UNIT = 512                      # every block's size is a multiple of it
    SMALL = 0                       # kinds of blocks, and with plain segments of heaps
    LARGE = 1
    SMALL_LIMIT = 1 << 20           # the largest small block
    SMALL_SEGMENT = 2 << 20         # of a plain segment for small blocks
    LARGE_LIMIT = 10 << 20
    GRANULE = 2 << 20               # the least granule of pages; larger plain segments are multiples of it

cdef enum:
    ROUND_LIMIT = 60                # requests of 2**60 bytes and more are refused without a search


cdef inline size_t round_up(size_t size, size_t unit) noexcept nogil:
    # unit is a power of two.
    return (size + unit - 1) & ~(unit - 1)


cdef inline int kind_of(size_t size) noexcept nogil:
    return LARGE if size > SMALL_LIMIT else SMALL


cdef inline bint worth_splitting(size_t rest, int kind) noexcept nogil:
    # Whether the remainder of a plain block is large enough to be a free block.
    return rest >= UNIT if kind == SMALL else rest > SMALL_LIMIT
