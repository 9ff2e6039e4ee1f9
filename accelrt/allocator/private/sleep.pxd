# Pools that sleep: which there are, whether memory is theirs, and how they are suspended and resumed.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.allocator.private.private_types cimport Moved, PrivatePool, Suspension
from accelrt.allocator.types cimport Pool
from accelrt.core.locks cimport load_count

# Whether memory may be used.  Callers ask has_suspended_pools first: whether a pool of any device sleeps, or a communicator.
cdef long suspended_pools  # written by sleep.pyx alone
cdef void count_suspension(int more) noexcept nogil  # 1 before and -1 after that of a communicator

cdef inline bint has_suspended_pools() noexcept nogil:
    return load_count(&suspended_pools) != 0

cdef bint is_pool_suspended(int device, uint64_t first, uint64_t second) noexcept nogil  # with or without the GIL
cdef bint is_suspended(uintptr_t address) noexcept nogil  # any address in it; takes pools' locks, so without the GIL
# Whether the address lies in a segment that the pool had when it was closed; while the pool is suspended, or about to be.
cdef bint is_of_suspended(int device, uint64_t first, uint64_t second, uintptr_t address) noexcept nogil
# Raises SleepingMemoryError where the memory is suspended; `name` says what the caller passed.  The caller has the GIL.
cdef int refuse_suspended(uintptr_t address, str name) except -1
# Gives back the host's copies for pools that nothing retains and in which nothing is live.  With no lock held.
cdef void sweep_suspended(int device) noexcept nogil


# Sleep and wake: a private pool's pages go back to the device and come again at the same addresses.  Heaps sleep too, which
# is another matter (heaps.pyx), so here the pool is suspended and resumed.  Called with no lock held and, but for what
# says otherwise, without the GIL.
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
