# What a returned stream leaves behind, with plain segments.  In the exclusive section, under the growth lock.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport Heap, Pool

# Moves the segment with the best fit, among those left to a common heap's stream, into that heap.
cdef bint inherit(Pool* pool, Heap* heap, size_t size) noexcept nogil
