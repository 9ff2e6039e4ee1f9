# What the settings string says, as the pools read it.
from libc.stdint cimport uint64_t

from accelrt.memory.allocator.sizes cimport UNIT, round_up
from accelrt.memory.allocator.types cimport PoolSettings, Pool

cdef extern from *:
    """
    /* What a hit reads before it has a lock; each is one value, so a request has the old one or the new one. */
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

# Of pools that are made from now on; set before the first, under the lock under which they are made (pool.pyx).
cdef PoolSettings wanted

cdef void take_settings(Pool* pool) noexcept nogil  # while it is made: what is wanted and what the device has
cdef void replace_settings(Pool* pool, const PoolSettings* settings) noexcept nogil  # in the exclusive section


cdef inline size_t rounded(const PoolSettings* settings, size_t size) noexcept nogil:
    # Up to the next of so many steps between two powers of two, or to the next unit.
    cdef int power = 63 - leading_zeros(size)
    cdef size_t steps = load_steps(&settings.divisions[power])
    if steps > 1 and size > UNIT * steps:
        return round_up(size, (<size_t>1 << power) // steps)
    return round_up(size, UNIT)


# Whether new windows are worth what they cost.  In the exclusive section.

cdef void reset_budget(Pool* pool) noexcept nogil  # in full, as while a pool is empty
cdef bint is_over_budget(Pool* pool) noexcept nogil
cdef void restart_budget_count(Pool* pool) noexcept nogil  # the count of allocations begins anew
cdef void charge_budget(Pool* pool, size_t pages) noexcept nogil  # for a window that was made of so many
cdef void refund_budget(Pool* pool, size_t pages) noexcept nogil   # for one that was used again
