# Resources of memory, for the modules beside this one.

from accelrt.streams.stream cimport Stream

cdef enum:
    MOST_TRIES = 8  # to give back what the driver refuses to take

cdef class Resource:
    cdef readonly int device_index
    cdef bint is_cached  # each piece of its memory is a block of the caching allocator, which knows who uses it
    cdef object __weakref__

cdef class Adaptor(Resource):
    cdef readonly Resource upstream

cdef object this_thread()  # an int, which no thread has after it
cdef int refuse(Resource resource, object nbytes, str why) except -1  # raises OutOfMemoryError
cdef object take_from(Resource resource, object nbytes, Stream stream)  # take(), whose answer is an address
cdef bint is_back(object error, object address) noexcept              # the memory is back all the same
cdef bint is_refused(object error, object address) noexcept           # by the driver, for now
cdef int tell_unraisable(object error, object where) noexcept         # sys.unraisablehook hears of it
cdef int put_off_end(object thing) except -1  # until a Buffer is made, or a pool releases
cdef int end_put_off() except -1  # gives back what had to wait for the end of a capture, where that is over
