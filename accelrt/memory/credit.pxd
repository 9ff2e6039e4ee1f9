# Whether new windows are worth what they cost.  Inside the world.
from accelrt.memory.state cimport Pool

cdef void open_credit(Pool* pool) noexcept nogil  # in full, as while a pool is empty
cdef bint is_overdrawn(Pool* pool) noexcept nogil
cdef void forget_earned(Pool* pool) noexcept nogil  # the count of allocations begins anew
cdef void charge(Pool* pool, size_t pages) noexcept nogil  # for a window that was made of so many
cdef void repay(Pool* pool, size_t pages) noexcept nogil   # for one that was used again
