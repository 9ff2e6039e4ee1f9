# What serves a pool whose memory comes from another allocator; its records are in external_types.pxd.
from cpython.ref cimport PyObject
from libc.stdint cimport uintptr_t

from accelrt.driver.table cimport Table
from accelrt.allocator.stats cimport Stats
from accelrt.allocator.external.external_types cimport Backend, ExternalPool
from accelrt.allocator.private.private_types cimport Source

# Which backend the pools are made on; NULL is accelrt's own.  RuntimeError, for the call, once one was made on another.
cdef int choose_backend(const Backend* backend, str call) except -1
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


# The backend pluggable: a library's two functions, in the ABI of torch's CUDAPluggableAllocator.
# One a CUDAPluggableAllocator; it lives as long as the process, as the pools on it do.
cdef struct Pluggable:
    Backend backend  # the first field, so that a pool's backend is its plug
    void* (*alloc)(size_t size, int device, void* stream) noexcept nogil
    void (*free)(void* address, size_t size, int device, void* stream) noexcept nogil


cdef struct Visit:  # what a thread was before it went to a pool's device
    int device
    int mode


cdef class Allocator:
    cdef Backend* backend  # NULL before __init__; pools may stand on it for as long as the process lives
    cdef Source* source    # the same for one MemPool, and as long; NULL: it cannot be one's
    cdef object __weakref__

cdef list chosen_allocators  # their libraries stay loaded
# For a MemPool: the functions of a CUDAPluggableAllocator, whose library stays loaded from now on; else a TypeError.
cdef const Source* source_of(object allocator) except NULL


# The backend whose memory comes from two Python functions, such as the methods of another library's memory resource.
# One a CallbackAllocator; it and its references live as long as the process, as the pools on it do.
cdef struct Callbacks:
    Backend backend      # the first field, so that a pool's backend is its callbacks
    PyObject* name       # bytes, which backend.name points into
    PyObject* allocate   # callable as allocate(size, device, stream)
    PyObject* free       # callable as free(address, size, device, stream)

cdef class CallbackAllocator(Allocator):
    cdef readonly object allocate
    cdef readonly object free
    cdef readonly str name

# Set by the module that raises for allocations: called, with the GIL, on the thread that allocates, with what an allocate
# function raised: a MemoryError before the request is retried, another exception before it fails.
cdef void (*on_failure)(object error) noexcept
