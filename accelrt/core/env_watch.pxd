# The environment's variables that say which devices there are, and whether they changed.

cdef bint changed() noexcept nogil  # perhaps, since init; four words are compared, so that hot paths can ask
cdef int warn() except -1  # with the GIL: looks closer, and says once a process that a change has no effect
cdef bint is_same(object one, object other) noexcept  # as current() answered
cdef object current(int which)  # the value's own object, to be compared by identity; None where not set
