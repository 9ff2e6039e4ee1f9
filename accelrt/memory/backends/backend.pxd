# Which backend serves, for the modules beside it; and the backend pluggable: a library's two functions, in the ABI of
# torch's CUDAPluggableAllocator.
from accelrt.memory.backends.external_types cimport Backend

# One a CUDAPluggableAllocator; it lives as long as the process, as the pools on it do.
cdef struct Pluggable:
    Backend backend  # the first field, so that a pool's backend is its plug
    void* (*alloc)(size_t size, int device, void* stream) noexcept nogil
    void (*free)(void* address, size_t size, int device, void* stream) noexcept nogil

cdef void fill_pluggable(Pluggable* plug) noexcept nogil  # all but the two functions

# Which backend serves, for the modules beside it.

cdef int require_native(str feature) except -1  # raises NotSupportedError where the backend is another
