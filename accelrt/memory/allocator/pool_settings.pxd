# A pool's settings, as the settings string gives them, and its stitching budget.
from libc.stdint cimport uint64_t

from accelrt.memory.allocator.sizes cimport UNIT, round_up
from accelrt.memory.allocator.types cimport PoolSettings, Pool

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

# For pools that are made from now on; set before the first, under the lock making (pool.pyx).
cdef PoolSettings wanted

cdef void take_settings(Pool* pool) noexcept nogil  # while the pool is made: what is wanted, if the device has it
cdef void replace_settings(Pool* pool, const PoolSettings* settings) noexcept nogil  # in the exclusive section


cdef inline size_t rounded(const PoolSettings* settings, size_t size) noexcept nogil:
    # A request's size rounded up: to the next of `divisions` steps between two powers of two, else to the next unit.  size
    # is above 0.  Any thread, without a lock.
    cdef int power = 63 - leading_zeros(size)
    cdef size_t steps = load_steps(&settings.divisions[power])
    if steps > 1 and size > UNIT * steps:
        return round_up(size, (<size_t>1 << power) // steps)
    return round_up(size, UNIT)


# The stitching budget: whether new stitched segments are worth what they cost.  In the exclusive section, but for
# reset_budget of a pool that is being made.

cdef void reset_budget(Pool* pool) noexcept nogil  # to the most, as for an empty pool
cdef bint is_over_budget(Pool* pool) noexcept nogil
cdef void restart_budget_count(Pool* pool) noexcept nogil  # before the allocation counters restart at 0
cdef void charge_budget(Pool* pool, size_t pages) noexcept nogil  # for a new stitched segment of so many pages
cdef void refund_budget(Pool* pool, size_t pages) noexcept nogil  # for a stitched segment that is reused
