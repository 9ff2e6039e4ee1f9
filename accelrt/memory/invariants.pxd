# Walks every identity of a pool.
from accelrt.memory.state cimport Pool

cdef const char* violated(Pool* pool, int level) noexcept nogil  # NULL, or the identity; 1 is cheap, 2 walks
