# Which backend serves, for the modules beside it.

cdef int require_native(str feature) except -1  # raises NotSupportedError where the backend is another
