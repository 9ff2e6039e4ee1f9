# Checks the identities of a pool.  Each function returns NULL, or the text of the failed identity.  Level 1 compares
# counters, level 2 walks everything.
from accelrt.allocator.types cimport Pool

cdef const char* audit_pool(Pool* pool, int level) noexcept nogil  # in the exclusive section
cdef const char* audit_between(Pool* pool, int level) noexcept nogil  # after lock_to_read: as the fast path left it
