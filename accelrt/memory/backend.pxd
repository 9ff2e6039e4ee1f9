# Which backend serves, for the modules beside it.

cdef str backend_name()  # "native", "cudaMallocAsync" or "pluggable"
cdef int require_native(str feature) except -1  # raises NotSupportedError where the backend is another
