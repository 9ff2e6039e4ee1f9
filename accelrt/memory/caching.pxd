# The caching allocator's Python border, for the modules beside it.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.status cimport CAP_REACHED, OUT_OF_MEMORY, POOL_CAP_REACHED

cdef uintptr_t allocate_bytes(int ordinal, size_t size, uintptr_t stream) except? <size_t>-1  # raises OutOfMemoryError

cdef inline bint is_lack(int code) noexcept nogil:  # of room, on the device or within a limit
    return code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED


cdef int raise_refusal(int code, int ordinal, size_t size, uintptr_t stream) except -1  # of a request that was not served
cdef size_t checked_request(object size, str name, object device, object stream) except? <size_t>-1  # of an allocation there
cdef size_t checked_size(object size, str name) except? <size_t>-1  # bytes; TypeError, ValueError, OutOfMemoryError
cdef int empty_pool(int ordinal, const uint64_t* name, str call) except -1  # gives back a private pool's idle memory
cdef object out_of_memory_to_wake(int ordinal, tuple pool, object size, int code, str call, str waking)  # the error
cdef void release_bytes(int ordinal, uintptr_t address) noexcept  # for destructors
# Opens the memory of two devices to each other, for a captured copy between them.  Takes the pools' growth locks.
cdef int connect_devices(int device, int other) noexcept nogil
cdef int tell_log(str name, tuple arguments) except -1  # of accelrt.tools.log, once the program has logging
cdef int require_native(str feature) except -1  # raises NotSupportedError where the backend is another
