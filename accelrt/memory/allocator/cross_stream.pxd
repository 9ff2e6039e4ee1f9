# Memory of one device's allocator on other streams than its own.  Devices and addresses as in pool.pxd.
from libc.stdint cimport uint64_t, uintptr_t

cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil  # record_stream
# The same for a stream of any device, stream_on.
cdef int use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
# Whether memory was allocated on the stream, which lives as long as the process: it is one of the device.  Asks
# without a lock, and may answer no of a stream for which that is so.
cdef bint knows_stream(int device, uintptr_t stream) noexcept nogil
# Frees as of a recorded event; a stream that waits for the same record of it may take the memory at once.  record
# is a number that no other record has.
cdef int release_after(int device, uintptr_t address, uintptr_t event, uint64_t record) noexcept nogil
cdef int stream_waits(int device, uintptr_t stream, uint64_t record) noexcept nogil  # after the driver was told so
