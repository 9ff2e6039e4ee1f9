# What serves a pool whose memory comes from another allocator; its records are in external_types.pxd.
from libc.stdint cimport uintptr_t

from accelrt.driver.table cimport Table
from accelrt.allocator.stats cimport Stats
from accelrt.allocator.external.external_types cimport Backend, ExternalPool

# Which backend the pools are made on; NULL is accelrt's own.  RuntimeError, for the call, once one was made on another.
cdef int choose_backend(const Backend* backend, str call) except -1
cdef str backend_name()  # "native", "cudaMallocAsync" or "pluggable": the one that is chosen now
# For the maker of a device's pool, once: NULL where accelrt's own allocator serves.  It fixes the choice.
cdef int external_attach(int device, Table* table, int debug, ExternalPool** out_pool) noexcept nogil

# What allocator/pool.pxd promises, for a pool with an external one.
cdef int external_allocate(ExternalPool* pool, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int external_release(ExternalPool* pool, uintptr_t address) noexcept nogil
cdef int external_use_on(ExternalPool* pool, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
cdef bint external_holds(ExternalPool* pool, uintptr_t address) noexcept nogil
cdef int external_empty(ExternalPool* pool) noexcept nogil
cdef int external_set_limit(ExternalPool* pool, size_t limit) noexcept nogil
cdef void external_forget_stream(ExternalPool* pool, int device, uintptr_t stream, uintptr_t heir) noexcept nogil
cdef int external_begin_capture(ExternalPool* pool) noexcept nogil
cdef int external_end_capture(ExternalPool* pool) noexcept nogil


# Its figures; each but the last takes its lock.

cdef Stats external_stats(ExternalPool* pool) noexcept nogil
cdef size_t external_limit(ExternalPool* pool) noexcept nogil
cdef void external_reset_peaks(ExternalPool* pool) noexcept nogil
cdef void external_reset_accumulated(ExternalPool* pool) noexcept nogil
cdef const char* external_audit(ExternalPool* pool) noexcept nogil  # what is violated now, or was in a debug audit
