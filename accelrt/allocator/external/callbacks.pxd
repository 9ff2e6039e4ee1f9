# The backend whose memory comes from two Python functions, such as the methods of another library's memory resource.
from cpython.ref cimport PyObject

from accelrt.allocator.external.backend cimport Allocator
from accelrt.allocator.external.external_types cimport Backend

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
