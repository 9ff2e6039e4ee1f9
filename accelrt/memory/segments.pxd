# What a pool takes from its device and gives back.  The caller holds both locks; the inner one is open
# while the driver works, so that other threads keep hitting.
from accelrt.memory.block cimport Heap, Pool

cdef int grow(Pool* pool, Heap* heap, int kind, size_t size) noexcept nogil  # CAP_REACHED past the limit
cdef int release_free(Pool* pool) noexcept nogil  # every segment that is one free block and is not held
