# Sizes of page-locked blocks, in bytes: eight classes a power of two, so that rounding up to the next class
# wastes less than an eighth of the request, or 63 bytes of a small one.
from accelrt.memory.allocator.sizes cimport round_up

cdef enum:
    STEP = 64               # every block is a multiple; the class step up to 512 bytes
    FINE = 9                # log2 of the size from which a power of two has eight classes
    PAGE = 4096             # what the operating system locks; every large block is a multiple
    SMALL = 0               # kinds of segment
    LARGE = 1
    SMALL_LIMIT = 1 << 20   # the largest small block
    SMALL_SEGMENT = 2 << 20
    CLASSES = 448           # of sizes below 2**ROUND_LIMIT: seven words of a bit map
    WORDS = 7
    ROUND_LIMIT = 60        # requests of 2**60 bytes and more are refused unseen

cdef extern from *:
    int log2_floor "63 - __builtin_clzll" (unsigned long long value) noexcept nogil
    int lowest_bit "__builtin_ctzll" (unsigned long long value) noexcept nogil


cdef inline size_t class_size(size_t size) noexcept nogil:
    # The request's size rounded up to its class; size is at least 1.
    if size <= 1 << FINE:
        return round_up(size, STEP)
    return round_up(size, <size_t>1 << (log2_floor(size - 1) - 3))


cdef inline int class_above(size_t size) noexcept nogil:
    # The number of the smallest class of at least size: every block of its list, and of later ones, suffices.
    cdef int power
    if size <= 1 << FINE:
        return <int>((size + STEP - 1) // STEP) - 1
    power = log2_floor(size - 1)
    return 8 * (power - FINE) + <int>((size - 1) >> (power - 3))


cdef inline int class_below(size_t size) noexcept nogil:
    # The number of the largest class of at most size: the list of a free block.
    return class_above(size) if class_size(size) == size else class_above(size) - 1


cdef inline int kind_of(size_t size) noexcept nogil:
    return LARGE if size > SMALL_LIMIT else SMALL
