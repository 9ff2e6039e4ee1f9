# What the settings string says, as the pools read it.
from accelrt.memory.block cimport Policy, Pool
from accelrt.memory.sizes cimport UNIT, round_up

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long word) noexcept nogil

cdef Policy wanted  # of pools that are made from now on; written under the GIL

cdef void take_policy(Pool* pool) noexcept nogil  # while it is made: what is wanted and what the device has


cdef inline size_t rounded(const Policy* policy, size_t size) noexcept nogil:
    # Up to the next of so many steps between two powers of two, or to the next unit.
    cdef int power = 63 - leading_zeros(size)
    cdef size_t steps = policy.divisions[power]
    if steps > 1 and size > UNIT * steps:
        return round_up(size, (<size_t>1 << power) // steps)
    return round_up(size, UNIT)
