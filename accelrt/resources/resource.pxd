# What every resource has.

cdef class Resource:
    cdef readonly int device_index
    cdef bint is_cached  # each piece of its memory is a block of the caching allocator, which knows who uses it
    cdef object __weakref__

cdef class Adaptor(Resource):
    cdef readonly Resource upstream
