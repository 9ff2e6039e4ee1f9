# The pool of driver streams, for Python's Streams and for nogil code.
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

cdef struct PooledStream:  # of one driver stream; both live as long as the process
    uintptr_t handle
    int device
    int priority
    bint by_handle         # nogil code has it, and returns it by its handle; under the pool's lock
    bint idle              # in the pool; under its lock
    int sharers            # Streams made by its id, beside the first holder; under the pool's lock
    PooledStream* next     # in the pool: the one that was returned next


cdef size_t streams_in_use() noexcept nogil  # taken and not returned, on all devices

# For nogil code, by handles.  A priority is clamped to what the device has.
cdef int take_handle(int device, int priority, uintptr_t* out_stream) noexcept nogil
cdef int return_handle(int device, uintptr_t stream) noexcept nogil  # INVALID_HANDLE unless take_handle answered it


# Streams.
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

cdef Stream wrap(uintptr_t handle, int ordinal, object owner)  # a stream of others, judged already
# The device of a handle; hint is the answer for those of default streams.  INVALID_HANDLE where the driver does not
# know it, and hint where the driver cannot tell.
cdef int device_of_stream(int hint, uintptr_t stream, int* out_device) noexcept nogil
cdef int judge_handle(uintptr_t handle, int hint, str name) except -1  # the device, or a ValueError


# Which stream is current on this thread.
cdef class StreamContext:           # in which a stream is the current one of a thread
    cdef readonly object stream
    cdef bint is_streams            # made by a Stream that is entered itself, which alone leaves it
    cdef int open                   # how often it is entered and not left, on all threads; each entry holds a reference

    cdef bint leave_slow(self) except -1

cdef uintptr_t current_handle(int ordinal) noexcept nogil  # this thread's stream of a device; no driver call
cdef Stream current_of(int ordinal)
cdef PyObject* exchange_current(Stream stream) except NULL  # the same; answers the one before, whose reference it gives
cdef void put_back(PyObject* before) noexcept  # makes current what exchange_current answered, and takes the reference
# None is that device's current one.  A handle is judged here: the answer's device is the one that it belongs to.
cdef Stream stream_of(object stream, int ordinal)
# The same, and a ValueError where the stream is on another device than the memory; what names that: "the buffer".
cdef Stream stream_for(object stream, int ordinal, str what)
