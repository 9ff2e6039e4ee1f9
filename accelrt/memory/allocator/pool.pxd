# One device's caching allocator: the public nogil face of memory/.  Devices are valid ordinals; a device's
# pool is made at its first use.  Addresses are what allocate wrote; 0 stands for no memory.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport Block, PoolSettings, Pool

cdef enum:
    MAX_DEVICES = 64

cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
# For callers that can raise: on the main thread a wait for memory in use ends, INTERRUPTED (driver/waiting.pxd), where
# the handler of a signal raised.
cdef int allocate_interruptibly(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int release(int device, uintptr_t address) noexcept nogil
# The same for callers that hold the GIL: they never wait, and answer NOT_READY where the full one has to be
# called without it.
cdef int try_allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int try_release(int device, uintptr_t address) noexcept nogil

cdef int locate(int hint, uintptr_t address, int* out_device) noexcept nogil  # NOT_ALLOCATED where none has it
cdef bint in_private(int device, uintptr_t address) noexcept nogil  # live memory of a private pool
cdef int empty(int device) noexcept nogil  # waits for pending blocks, then gives free segments back
cdef int set_limit(int device, size_t limit) noexcept nogil

cdef int pool_of(int device, Pool** out_pool) noexcept nogil  # made if need be
cdef void want_settings(const PoolSettings* settings) noexcept nogil  # of pools that are made from now on; the GIL is not held
cdef void want_level(int level) noexcept nogil  # of audits, likewise: 0 none, 1 counters, 2 everything
cdef Pool* pool_if_made(int device) noexcept nogil  # NULL before the device's first allocation

# In the exclusive section.
cdef Block* live_at(Pool* pool, uintptr_t address) noexcept nogil  # NULL for what is no live block of this pool
cdef int inspected(Pool* pool, int code) noexcept nogil  # the debug audit after an operation; code, or BROKEN
