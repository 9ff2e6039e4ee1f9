# Sleep and wake: a private pool's pages go back to the device and come again at the same addresses.  Heaps sleep too, which
# is another matter (exclusive.pyx), so here the pool is suspended and resumed.  Called with no lock held and, but for what
# says otherwise, without the GIL.
from libc.stdint cimport uint64_t

from accelrt.allocator.private.private_types cimport Moved

cdef enum:  # reasons for a refusal, beside status codes; nothing was changed then
    NOT_RETAINED = 10101    # nothing retains such a pool on the device
    IN_PLAIN = 10102        # the device's pool has plain segments
    BESIDE_CAPTURE = 10103  # a capture is under way, beside which a device cannot be waited for
    FREED_CAPTURED = 10104  # memory of it was freed that a stream uses which captures
    SUSPENDED = 10105
    NOT_SUSPENDED = 10106
    EXPORTED = 10107        # other processes have memory of it

# Suspending has two halves.  After the first one nothing is allocated from the pool, and uses of its memory are refused.
# Then the caller waits until the uses that began before have ended, and calls one of the other two, whatever happens.
cdef int begin_suspension(int device, uint64_t first, uint64_t second) noexcept nogil
# Waits for the work on the pool's memory, copies live memory to the host if keep, and gives the pages back.  After a
# failure the pool is in use again, unless moved.down says otherwise.
cdef int finish_suspension(int device, uint64_t first, uint64_t second, bint keep, Moved* moved) noexcept nogil
cdef void cancel_suspension(int device, uint64_t first, uint64_t second) noexcept nogil  # it is in use again
cdef int resume_pool(int device, uint64_t first, uint64_t second, Moved* moved) noexcept nogil
