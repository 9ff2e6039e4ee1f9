# One device's caching allocator: the entry points.  A device is a valid ordinal; its pool is made at the first use.
# Addresses are those that allocate returned; 0 stands for no memory.  Callers hold none of the pool's locks and, unless a
# comment says otherwise, not the GIL: a thread that holds a lock may be waiting for Python.
from libc.stdint cimport uint64_t, uintptr_t

# Allocates, and frees, by the fast path if it can; else in the exclusive section, and a miss under the growth lock too.
# Size 0 gives address 0, and freeing address 0 does nothing.
cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
# For callers that can raise: on the main thread, a wait for memory in use ends with INTERRUPTED (driver/waiting.pxd) if
# the handler of a signal raised an exception.
cdef int allocate_interruptibly(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int release(int device, uintptr_t address) noexcept nogil
# The same for callers that hold the GIL: they never wait, and answer NOT_READY if the caller has to release the GIL and
# call the full function.
cdef int try_allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int try_release(int device, uintptr_t address) noexcept nogil

cdef int locate(int hint, uintptr_t address, int* out_device) noexcept nogil  # hint: tried first; or NOT_ALLOCATED
# Whether it is live memory of a private pool, and which one's.
cdef bint in_private(int device, uintptr_t address, uint64_t* out_id) noexcept nogil
cdef int empty_named(int device, const uint64_t* name) noexcept nogil  # the same of one private pool, unless graphs use it
cdef int empty(int device) noexcept nogil  # waits for pending blocks, then releases idle memory
cdef int set_limit(int device, size_t limit) noexcept nogil

# Memory that streams other than its own use: these streams are recorded, or an event says when the memory is free.
cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil  # record_stream
# The same for a stream of device stream_on.
cdef int use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
# The same for callers that hold the GIL, as try_allocate.  The device has to be valid.
cdef int try_use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
# Whether memory was allocated on the stream and the stream lives as long as the process: then it is of this device.  Takes
# no lock, and may answer False for such a stream.
cdef bint knows_stream(int device, uintptr_t stream) noexcept nogil
# After the end of a capture, while its streams live: what was freed beside it is put behind their work, on all devices.
cdef void record_deferred_uses() noexcept nogil
# Before a stream is destroyed that others own: the same, and what used memory on it did so on its heir from now on, a
# stream of the same device's that waits for its work; 0: it has no work.
cdef void forget_stream(int stream_on, uintptr_t stream, uintptr_t heir) noexcept nogil
# Frees memory as of a recorded event; a stream that waits for the same recording may get the memory at once.  record is
# the number of the recording, unique in the process.
cdef int release_after(int device, uintptr_t address, uintptr_t event, uint64_t record) noexcept nogil
cdef int stream_waits(int device, uintptr_t stream, uint64_t record) noexcept nogil  # after the driver's call
