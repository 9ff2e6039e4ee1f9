# Checks the identities of a pool.  Each function returns NULL, or the text of the failed identity.  Level 1 compares
# counters, level 2 walks everything.
from accelrt.allocator.pinned.block cimport PinnedPool, PinnedStats
from accelrt.allocator.types cimport Pool

# For the end of an operation, in the exclusive section: its code, or BROKEN.  Audits at ACCELRT_DEBUG 1 and 2; the first
# failed identity stays in the pool, for readers.
cdef int inspected(Pool* pool, int code) noexcept nogil
cdef const char* audit_between(Pool* pool, int level) noexcept nogil  # after lock_to_read: as the fast path left it
# The same of a pool of page-locked memory, under its order and lock; others: the figures of the pools that are in its own.
cdef const char* find_pinned_failure(PinnedPool* pool, const PinnedStats* others) noexcept nogil
