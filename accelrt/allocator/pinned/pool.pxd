# The cache of page-locked host memory: the public nogil face of allocator/pinned/.  Addresses are what
# allocate_pinned wrote; 0 stands for no memory.  A function answers a status code.
from libc.stdint cimport uintptr_t

from accelrt.allocator.pinned.block cimport PinnedPool, PinnedSettings, PinnedStats

# size bytes, page-locked, for every device; a multiple of 64, of 4096 from 32 KiB on, 0 for size 0.  A miss takes
# more from the driver of the calling thread's current device.
cdef int allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil
cdef int allocate_pinned_on(int device, size_t size, uintptr_t* out_address) noexcept nogil  # of that device's driver
cdef int release_pinned(uintptr_t address) noexcept nogil  # NOT_ALLOCATED where it is not live
# The same for callers that hold the GIL: no driver call; NOT_READY where the full one has to be called without it.
cdef int try_allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil
cdef int try_release_pinned(uintptr_t address) noexcept nogil

# Work on the stream uses the memory that contains the address: once released, it is not handed out before that
# work is done.  NOT_ALLOCATED where no live memory of the cache contains it.
cdef int use_pinned_on(uintptr_t address, int device, uintptr_t stream) noexcept nogil
cdef bint is_cached_pinned(uintptr_t address) noexcept nogil  # whether live memory of the cache contains it
cdef int empty_pinned() noexcept nogil  # waits for what is pending, then gives idle segments back
# After the end of a capture, while its streams live; and before a stream is destroyed that others own
# (allocator/pool.pxd).
cdef void record_deferred_pinned() noexcept nogil
cdef void forget_stream_pinned(int device, uintptr_t stream, uintptr_t heir) noexcept nogil
cdef int tidy_pinned() noexcept nogil   # what had to wait for the end of a capture; never waits for work in use

cdef PinnedStats read_pinned_stats() noexcept nogil
cdef void reset_pinned_peaks() noexcept nogil
cdef void reset_pinned_sums() noexcept nogil
cdef PinnedSettings read_pinned_settings() noexcept nogil
cdef void set_pinned_settings(PinnedSettings settings) noexcept nogil
cdef void close_pinned() noexcept nogil  # at exit: the polling thread ends
cdef const char* pinned_audit_failure() noexcept nogil  # NULL where every identity holds


# The identities of the page-locked memory, walked.

cdef const char* audit_failure(PinnedPool* pool) noexcept nogil  # under order and lock; NULL where all hold
