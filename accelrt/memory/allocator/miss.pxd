# The miss: what an allocation does when its heap has no fit, step by step, until one has.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport Heap, Pool, PrivatePool

cdef struct Request:
    size_t requested
    size_t size
    int kind           # of the heap
    uintptr_t stream
    Heap* heap
    bint across        # pages that other streams freed will do
    bint interruptible  # by signals: where the answer is INTERRUPTED, the caller raises what a handler raised

# Asked, outside all locks, whether it gave memory back for a request that was refused; NULL where nobody is.
cdef int (*on_refusal)(int device, size_t size) noexcept nogil

cdef bint refused(int code) noexcept nogil
cdef int find(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil  # in the exclusive section
cdef int retry(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil  # under the growth lock too
cdef int release_free(Pool* pool) noexcept nogil  # likewise: what is idle goes back to the device
cdef int release_with(Pool* pool, PrivatePool* owner) noexcept nogil  # what is idle in a MemPool too, but not of graphs
