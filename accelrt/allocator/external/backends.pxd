# Which backend serves, for the modules beside it; and the backend pluggable: a library's two functions, in the ABI of
# torch's CUDAPluggableAllocator.
from cpython.ref cimport PyObject

from libc.stdint cimport uint64_t

from accelrt.allocator.external.external_types cimport Backend, ExternalPool
from accelrt.allocator.external.torch_types cimport TorchTable
from accelrt.allocator.private.private_types cimport Source

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

# For a MemPool: the functions of a CUDAPluggableAllocator, whose library stays loaded from now on; else a TypeError.
cdef const Source* source_of(object allocator) except NULL

# Which backend serves, for the modules beside it.

cdef int require_native(str feature) except -1  # raises NotSupportedError where the backend is another


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

# For torch_table.pyx, which serves torch's allocator object beside the hooks of a plugged one.
cdef bint is_outside(int device) noexcept nogil
cdef int explain(char* text, const char* call, int device, int code) noexcept nogil
cdef void* leave_gil() noexcept nogil  # releases the GIL where the thread has it; for enter_gil
cdef void enter_gil(void* state) noexcept nogil
cdef double fraction_of_limit(int device) noexcept nogil
# From torch's name of a pool to accelrt's, and back.
cdef void translate(uint64_t first, uint64_t second, uint64_t* out_id) noexcept nogil
cdef void torchs_name(const uint64_t* id, uint64_t* out_name) noexcept nogil
cdef void fill_hooks(TorchTable* table) noexcept nogil  # what both kinds of allocators call
