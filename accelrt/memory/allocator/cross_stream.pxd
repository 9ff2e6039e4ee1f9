# Memory that streams other than its own use.  Devices and addresses as in pool.pxd.  Called with no lock held and without
# the GIL, unless a comment says that no lock is taken.
from libc.stdint cimport uint64_t, uintptr_t

cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil  # record_stream
# The same for a stream of device stream_on.
cdef int use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
# Whether memory was allocated on the stream and the stream lives as long as the process: then it is of this device.  Takes
# no lock, and may answer False for such a stream.
cdef bint knows_stream(int device, uintptr_t stream) noexcept nogil
# Frees memory as of a recorded event; a stream that waits for the same recording may get the memory at once.  record is
# the number of the recording, unique in the process.
cdef int release_after(int device, uintptr_t address, uintptr_t event, uint64_t record) noexcept nogil
cdef int stream_waits(int device, uintptr_t stream, uint64_t record) noexcept nogil  # after the driver's call
