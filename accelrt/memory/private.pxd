# Private pools: the heaps that captures allocate from, and the captures that do.  Inside the world.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.memory.block cimport Pool, Private

cdef Private* find_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil
cdef int hold(Pool* pool, uint64_t first, uint64_t second) noexcept nogil  # one use more; made if need be
cdef int let_go(Pool* pool, uint64_t first, uint64_t second) noexcept nogil  # one use less
# capture is the driver's id of one, or 0 for the calling thread
cdef int begin_route(Pool* pool, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil
cdef int end_route(Pool* pool, uint64_t capture) noexcept nogil
cdef int owner_for(Pool* pool, uintptr_t stream, Private** out_owner) noexcept nogil  # NULL outside our captures
cdef void drop_empty(Pool* pool) noexcept nogil  # under the growth lock too
