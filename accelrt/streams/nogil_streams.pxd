# Driver streams and events that nogil code leases and returns, for api.pyx.  Any thread, without the GIL.
from libc.stdint cimport uintptr_t

cdef int lease_stream(int device, int priority, uintptr_t* out_stream) noexcept nogil
cdef int return_stream(int device, uintptr_t stream) noexcept nogil  # INVALID_HANDLE unless it is out
cdef int lease_event(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil
cdef int return_event(int device, uintptr_t event) noexcept nogil
