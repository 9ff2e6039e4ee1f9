# Streams, and which one is current on this thread.
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

cdef class Stream:
    cdef readonly uintptr_t handle  # the driver's; 0 is the device's legacy default stream
    cdef readonly int device_index
    cdef int level                  # priority
    cdef bint leased                # returned to the pool of driver streams when the object dies
    cdef object owner               # kept alive as long as this object, for a stream of others

cdef uintptr_t current_handle(int ordinal) noexcept nogil  # this thread's stream of a device; no driver call
cdef Stream current_of(int ordinal)
cdef int make_current(Stream stream) except -1  # of its own device; the current device stays
cdef Stream stream_of(object stream, int ordinal)  # None is the current one, an int a handle of that device

cdef class StreamContext:
    cdef readonly object stream
    cdef Stream before
    cdef int device_before
