# The thread that polls page-locked blocks in use, where the settings ask for one.
from accelrt.memory.pinned_block cimport PinnedPool

cdef void watch(PinnedPool* pool) noexcept nogil  # under order: something is pending; starts or wakes the thread
cdef void stop_watch(PinnedPool* pool, bint for_good) noexcept nogil  # waits for it; no lock held
cdef bint watching() noexcept nogil  # under order
cdef void forget_watch() noexcept nogil  # in a forked child, which has no such thread
