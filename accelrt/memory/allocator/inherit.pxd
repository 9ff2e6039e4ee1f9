# Plain segments of streams that were returned to the stream pool.  In the exclusive section, under the growth lock.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport Heap, Pool

# Moves one segment into a common heap: of those left to the heap's stream, the one with the best fit; False if none fits.
cdef bint inherit(Pool* pool, Heap* heap, size_t size) noexcept nogil
