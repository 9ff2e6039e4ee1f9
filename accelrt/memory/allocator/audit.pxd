# Walks every identity of a pool.  Each answers NULL, or the identity that is violated; level 1 is cheap, 2 walks.
from accelrt.memory.allocator.types cimport Pool

cdef const char* audit_pool(Pool* pool, int level) noexcept nogil  # in the exclusive section
cdef const char* audit_between(Pool* pool, int level) noexcept nogil  # after lock_to_read: heaps as hits left them
