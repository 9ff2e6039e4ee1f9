# Stream contexts: in which a stream is the current one of a thread.

cdef class StreamContext:
    cdef readonly object stream
    cdef int open        # how often it is entered and not left, on all threads; each entry holds a reference to it

    cdef bint leave_slow(self) except -1
