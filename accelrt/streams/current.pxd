# Which stream is current on this thread.
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from accelrt.streams.stream cimport Stream

cdef class StreamContext:           # in which a stream is the current one of a thread
    cdef readonly object stream
    cdef bint is_streams            # made by a Stream that is entered itself, which alone leaves it
    cdef int open                   # how often it is entered and not left, on all threads; each entry holds a reference

    cdef bint leave_slow(self) except -1

cdef uintptr_t current_handle(int ordinal) noexcept nogil  # this thread's stream of a device; no driver call
cdef Stream current_of(int ordinal)
cdef int make_current(Stream stream) except -1  # of its own device; the current device stays
cdef PyObject* exchange_current(Stream stream) except NULL  # the same; answers the one before, whose reference it gives
cdef void put_back(PyObject* before) noexcept  # makes current what exchange_current answered, and takes the reference
# None is that device's current one.  A handle is judged here: the answer's device is the one that it belongs to.
cdef Stream stream_of(object stream, int ordinal)
# The same, and a ValueError where the stream is on another device than the memory; what names that: "the buffer".
cdef Stream stream_for(object stream, int ordinal, str what)
