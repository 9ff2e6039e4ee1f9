# Streams, and which one is current on this thread.
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from accelrt.lease cimport Lease

cdef class Stream:
    cdef readonly uintptr_t handle  # the driver's; 0 is the device's legacy default stream
    cdef readonly int device_index
    cdef Lease* leased              # returned to the pool of driver streams when the object dies; NULL: not ours
    cdef object owner               # kept alive as long as this object, for a stream of others
    cdef bint made                  # initialised; a class that derives from it may have forgotten to
    cdef object __weakref__

cdef class Waitable:                # an Event, as streams see it: events stand on streams
    cdef int record_in(self, Stream stream) except -1
    cdef int wait_in(self, Stream stream) except -1

cdef uintptr_t current_handle(int ordinal) noexcept nogil  # this thread's stream of a device; no driver call
cdef Stream current_of(int ordinal)
cdef int make_current(Stream stream) except -1  # of its own device; the current device stays
cdef Stream stream_of(object stream, int ordinal)  # None is the current one, an int a handle of that device

cdef class StreamContext:
    cdef readonly object stream
    cdef int open        # how often it is entered and not left, on all threads; each entry holds a reference to it

    cdef bint leave_slow(self) except -1
