# Streams, events, and which stream is current on each thread.
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.runtime.lifetimes cimport PooledStream
from accelrt.driver.guard cimport PooledEvent

cdef struct Attribute:              # of a stream, as the rows stream_attribute_set and _get have it; attribute 0 ends a list
    int attribute
    int first
    int second

cdef class Stream:
    cdef uintptr_t handle           # the driver's; 0 is the device's legacy default stream; for work, see mark_used
    cdef readonly int device_index
    cdef bint used                  # other code may have put work in: had the handle, or had the stream for its work
    cdef PooledStream* pooled       # returned to the pool of driver streams when the object dies; NULL: others own it
    cdef object owner               # kept alive as long as this object, for a stream of others
    cdef bint has_window            # an access policy window was set on a driver stream of the pool
    cdef Attribute* changed         # attributes of a driver stream of the pool as they were before; NULL: none was set
    cdef bint initialised           # False: a class that derives from it may have forgotten to
    cdef object __weakref__
    # Up to 128 bytes: streams that the main thread makes for others share no cache line, in which each counts references.
    cdef uint64_t[3] unused

    cdef int open_by_id(self, object stream_id, int ordinal) except -1
    cdef int note_changed(self, int attribute, int first, int second) except -1

cdef class Event:
    cdef readonly uintptr_t handle  # the driver's; 0 before the first record
    cdef PooledEvent* pooled        # the same; NULL where it is another process's
    cdef readonly int device_index  # of the stream that it was first recorded on; -1 before
    cdef unsigned int flags
    cdef bint external              # in a capture it becomes a node
    cdef bint captured              # the last record was in a capture of accelrt's
    cdef uint64_t record_number     # of the last record, among all records of all events; 0 before
    cdef object __weakref__

    cdef int ensure_handle(self, int ordinal, bint fresh=*) except -1
    cdef int check_timed(self, str place) except -1
    cdef int raise_unrecorded(self, int code, uintptr_t stream) except -1
    cdef int record_in(self, Stream stream) except -1
    cdef int wait_in(self, Stream stream) except -1

cdef inline uintptr_t mark_used(Stream stream) noexcept:
    # The handle, for whoever may put work in.  What stream_of, current_of and exchange_current answered or got is marked.
    stream.used = True
    return stream.handle

cdef inline bint is_of(object stream, int ordinal):
    # Whether it is a Stream of that device, which needs no judgement.
    return isinstance(stream, Stream) and (<Stream>stream).device_index == ordinal and (<Stream>stream).initialised

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
    cdef long open                  # how often it is entered and not left, on all threads; each entry holds a reference

    cdef bint leave_slow(self) except -1

cdef int ordinal_beside(object stream) except -1  # the device of a Stream; beside anything else the current one
cdef uintptr_t current_handle(int ordinal) noexcept nogil  # this thread's stream of a device; no driver call
cdef Stream current_of(int ordinal)
cdef PyObject* exchange_current(Stream stream) except NULL  # the same; answers the one before, whose reference it gives
cdef void put_back(PyObject* before) noexcept  # makes current what exchange_current answered, and takes the reference
# None is that device's current one.  A handle is judged here: the answer's device is the one that it belongs to.
cdef Stream stream_of(object stream, int ordinal)
# The same, and a ValueError where the stream is on another device than the memory; what names that: "the buffer".
cdef Stream stream_for(object stream, int ordinal, str what)
