# A pool's figures, each read at one moment.  A NULL pool was never used: all its figures are 0.
from libc.stdint cimport int64_t, uint64_t

from accelrt.memory.state cimport Pool
from accelrt.memory.stats cimport Stats

cdef int64_t current_shared(Pool* pool, int figure) noexcept nogil  # of a figure that heaps share; no other lock
cdef int64_t allocated_bytes(Pool* pool) noexcept nogil
cdef int64_t active_bytes(Pool* pool) noexcept nogil
cdef int64_t reserved_bytes(Pool* pool) noexcept nogil
cdef int64_t peak_of(Pool* pool, int figure) noexcept nogil  # of both kinds together
cdef size_t largest_free(Pool* pool) noexcept nogil  # bytes of the largest free block; walks the lists' edges
cdef int64_t max_split_of(Pool* pool) noexcept nogil  # -1 where there is no limit
cdef size_t limit_of(Pool* pool) noexcept nogil
cdef Stats read_stats(Pool* pool) noexcept nogil
cdef void reset_peaks(Pool* pool) noexcept nogil
cdef void reset_accumulated(Pool* pool) noexcept nogil
cdef object find_violation(Pool* pool)  # str, or None

cdef struct Holders:  # of idle memory that not every request may have, in bytes
    int64_t graphs       # in pools that graphs use
    int64_t pools        # in MemPools that no graph uses
    uint64_t[2] largest  # the id of the one of these that holds most
    bint capturing       # a capture is under way on the device

cdef Holders holders_of_idle(Pool* pool) noexcept nogil
