# The identities of the page-locked memory, walked.
from accelrt.memory.pinned_block cimport PinnedPool

cdef const char* violated(PinnedPool* pool) noexcept nogil  # under order and lock; NULL where all hold
