# The page-locked cache's Python border, for the modules beside it.
from libc.stdint cimport uintptr_t

from accelrt.allocator.pinned.block cimport PinnedStats

cdef size_t checked_host_size(object size, str name) except? 0  # bytes; TypeError, ValueError, OutOfMemoryError
cdef uintptr_t allocate_host_bytes(object device, size_t size) except? 0  # raises OutOfMemoryError; device None: current
cdef uintptr_t share_host_bytes(object device, size_t size) except? 0  # the same, of a file (share_pinned)
cdef void release_host_bytes(uintptr_t address) noexcept  # for destructors
cdef dict pinned_figures(PinnedStats stats)  # as host_memory_stats has them
