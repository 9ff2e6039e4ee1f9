# A pool's figures, each read at one moment.  A NULL pool was never used: all its figures are 0.  A pool's lock is held in
# calls of the driver that may wait for a function of Python's, so all but try_current are called without the GIL.
from libc.stdint cimport int64_t, uint64_t

from accelrt.memory.allocator.stats cimport Stats
from accelrt.memory.allocator.types cimport Pool

# Of a figure that heaps share, or the reserved bytes.  The second answers False where it would have to wait.
cdef int64_t read_current(Pool* pool, int stat) noexcept nogil
cdef bint try_current(Pool* pool, int stat, int64_t* out_answer) noexcept nogil
cdef int64_t allocated_bytes(Pool* pool) noexcept nogil
cdef int64_t active_bytes(Pool* pool) noexcept nogil
cdef int64_t reserved_bytes(Pool* pool) noexcept nogil
cdef int64_t peak_of(Pool* pool, int stat) noexcept nogil  # of both kinds together
cdef size_t largest_free(Pool* pool) noexcept nogil  # bytes of the largest free block; walks the lists' edges
cdef int64_t max_split_of(Pool* pool) noexcept nogil  # -1 where there is no limit
cdef size_t limit_of(Pool* pool) noexcept nogil
cdef Stats read_stats(Pool* pool) noexcept nogil
cdef void reset_peaks(Pool* pool) noexcept nogil
cdef void reset_accumulated(Pool* pool) noexcept nogil
cdef object find_violation(Pool* pool)  # str, or None; lets go of the GIL

cdef struct Holders:  # of idle memory that not every request may have, in bytes
    int64_t graphs       # in pools that graphs use
    int64_t pools        # in MemPools that no graph uses
    uint64_t[2] largest  # the id of the one of these that holds most
    bint capturing       # a capture is under way on the device

cdef Holders holders_of_idle(Pool* pool) noexcept nogil
