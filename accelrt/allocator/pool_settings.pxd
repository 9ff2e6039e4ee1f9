# A pool's settings, and how the fast path reads them: without a lock.
from libc.stdint cimport SIZE_MAX, uint64_t

from accelrt.allocator.sizes cimport UNIT, round_up

# Sizes in bytes.
cdef struct PoolSettings:
    bint stitching
    double slack                 # growth slack, a fraction of the peak of live bytes; below 0: the stitching budget decides
    size_t max_split             # plain blocks of this size and more are never split; SIZE_MAX: no such limit
    size_t large_segment
    size_t max_rounding          # a block of max_split and more serves a request that is smaller by less than this
    double collect               # fraction of the limit above which growth first releases idle segments; 0: never
    double fraction              # of the device's memory: the most that pools may reserve
    bint rejects                 # what cannot fit below the limit is refused before anything is waited for
    double reserve               # of addresses for a segment: up to 1 part of the device's memory, else bytes; below 0: auto
    # Those above change in the exclusive section.  The next two stay as the pool was made.  The fast path reads
    # virtual_memory and the last two without a lock.
    bint virtual_memory
    size_t page_size             # 0: chosen by what is reserved
    bint rounds                  # some element of divisions is not 0
    unsigned char[64] divisions  # steps from a power of two to the next, by the lower one's exponent; 0: none

cdef extern from *:
    """
    /* What the fast path reads before it has a lock. Each is one value, so a request gets the old or the new one. */
    #define load_setting(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define store_setting(place, value) __atomic_store_n(place, value, __ATOMIC_RELAXED)
    """
    bint load_flag "load_setting"(const bint* place) noexcept nogil
    void store_flag "store_setting"(bint* place, bint value) noexcept nogil
    uint64_t load_routed "load_setting"(const uint64_t* place) noexcept nogil
    void store_routed "store_setting"(uint64_t* place, uint64_t count) noexcept nogil
    size_t load_steps "load_setting"(const unsigned char* place) noexcept nogil
    void store_steps "store_setting"(unsigned char* place, unsigned char value) noexcept nogil
    int leading_zeros "__builtin_clzll"(unsigned long long word) noexcept nogil


cdef inline size_t rounded(const PoolSettings* settings, size_t size) noexcept nogil:
    # A request's size rounded up: to the next of `divisions` steps between two powers of two, else to the next unit.  size
    # is above 0.  Any thread, without a lock.
    cdef int power = 63 - leading_zeros(size)
    cdef size_t steps = load_steps(&settings.divisions[power])
    if steps > 1 and size > UNIT * steps:
        return round_up(size, (<size_t>1 << power) // steps)
    return round_up(size, UNIT)


cdef inline size_t reserve_of(double reserve, size_t total, size_t granule) noexcept nogil:
    # In whole granules, and at most 9/8 of the device's memory, as torch has it; 0: the pool chooses.
    cdef double most = 1.125 * total
    if reserve < 0:
        return 0
    return round_up(max(<size_t>min(reserve * total if reserve <= 1 else reserve, most), 1), granule)


cdef inline size_t limit_of_fraction(double fraction, size_t total) noexcept nogil:
    # To the nearest byte, so that n / total allows n bytes; all of a device is no limit.
    return SIZE_MAX if fraction == 1 else <size_t>(fraction * total + 0.5)
