# The miss: what an allocation does when its heap has no block that fits.  allocator/DESIGN.md lists the steps.
from libc.stdint cimport uintptr_t

from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.types cimport Heap, Pool

cdef struct Request:
    size_t requested   # bytes
    size_t size        # bytes, rounded up
    int kind           # of the heap: SMALL or LARGE
    uintptr_t stream   # as the caller gave it; may be PER_THREAD
    Heap* heap
    bint across        # may take pages that other streams freed
    bint interruptible  # waits end at a signal: on INTERRUPTED the caller raises what the signal handler raised

# Runs the registered callbacks after a request was refused, with no lock held.  Returns whether one gave memory back;
# NULL while no callback is registered.
cdef int (*on_refusal)(int device, size_t size) noexcept nogil

cdef bint refused(int code) noexcept nogil  # by the device or by a limit, not another failure
cdef int find(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil  # in the exclusive section; no growth
cdef int retry(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil  # and under the growth lock
cdef int release_free(Pool* pool) noexcept nogil  # likewise; gives idle memory back to the device
cdef int release_ended(Pool* pool) noexcept nogil  # that of private pools without a use alone; NOT_READY beside a capture
cdef int release_own(Pool* pool, PrivatePool* owner) noexcept nogil  # only that of a private pool, unless graphs use it
cdef int release_with(Pool* pool, PrivatePool* owner) noexcept nogil  # and that of a MemPool, unless graphs use it
