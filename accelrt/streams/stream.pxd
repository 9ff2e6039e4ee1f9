# Streams.
from libc.stdint cimport uintptr_t

from accelrt.streams.stream_pool cimport PooledStream

cdef class Stream:
    cdef readonly uintptr_t handle  # the driver's; 0 is the device's legacy default stream
    cdef readonly int device_index
    cdef PooledStream* pooled       # returned to the pool of driver streams when the object dies; NULL: others own it
    cdef object owner               # kept alive as long as this object, for a stream of others
    cdef bint has_window            # an access policy window was set on a driver stream of the pool
    cdef bint made                  # initialised; a class that derives from it may have forgotten to
    cdef object __weakref__

    cdef int open_by_id(self, object stream_id, int ordinal) except -1

cdef class Waitable:                # an Event, as streams see it: events stand on streams
    cdef int record_in(self, Stream stream) except -1
    cdef int wait_in(self, Stream stream) except -1

cdef enum:  # handles of default streams
    LEGACY = 0
    PER_THREAD = 2

cdef Stream default_of(int ordinal, uintptr_t handle)  # a device's default stream, LEGACY or PER_THREAD
cdef Stream wrap(uintptr_t handle, int ordinal, object owner)  # a stream of others, judged already
cdef Stream other_stream(object stream, int ordinal)  # what is neither a Stream nor None, as stream_of (current.pxd)
cdef uintptr_t handle_of(object handle, str name) except? 0  # of an int: TypeError, ValueError
# The device of a handle; hint is the answer for those of default streams.  INVALID_HANDLE where the driver does not
# know it, and hint where the driver cannot tell.
cdef int device_of_stream(int hint, uintptr_t stream, int* out_device) noexcept nogil
cdef int judge_handle(uintptr_t handle, int hint, str name) except -1  # the device, or a ValueError

# What current.pyx gives: stream_of; how `with stream:` is entered and left.
ctypedef Stream (*find_fn)(object stream, int ordinal)
ctypedef int (*enter_fn)(Stream stream) except -1
ctypedef bint (*leave_fn)(Stream stream) except -1

cdef void provide_current(find_fn find_, enter_fn enter_, leave_fn leave_) noexcept
