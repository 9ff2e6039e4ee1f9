# The allocator's sizes, in bytes, and the arithmetic on them.

cdef enum:
    UNIT = 512                      # every block is a multiple
    SMALL = 0                       # kinds of free list
    LARGE = 1
    SMALL_LIMIT = 1 << 20           # the largest small block
    SMALL_SEGMENT = 2 << 20
    LARGE_SEGMENT = 20 << 20        # for large blocks below LARGE_LIMIT
    LARGE_LIMIT = 10 << 20
    GRANULE = 2 << 20               # what a device hands out physically

cdef enum:
    ROUND_LIMIT = 60                # requests of 2**60 bytes and more are refused unseen


cdef inline size_t round_up(size_t size, size_t unit) noexcept nogil:
    return (size + unit - 1) & ~(unit - 1)


cdef inline int kind_of(size_t size) noexcept nogil:
    return LARGE if size > SMALL_LIMIT else SMALL


cdef inline size_t segment_size(size_t size) noexcept nogil:
    if size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if size < LARGE_LIMIT:
        return LARGE_SEGMENT
    return round_up(size, GRANULE)


cdef inline bint worth_splitting(size_t rest, int kind) noexcept nogil:
    return rest >= UNIT if kind == SMALL else rest > SMALL_LIMIT
