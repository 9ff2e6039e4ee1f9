# Resources of memory, for the modules beside this one.

cdef class Resource:
    cdef readonly int device_index
    cdef bint is_cached  # each piece of its memory is a block of the caching allocator, which knows who uses it
    cdef object __weakref__

cdef class Adaptor(Resource):
    cdef readonly Resource upstream

cdef int refuse(Resource resource, object nbytes, str why) except -1  # raises OutOfMemoryError
cdef int tell_unraisable(object error, object where) noexcept         # sys.unraisablehook hears of it
cdef int end_put_off() except -1  # gives back what had to wait for the end of a capture, where that is over
