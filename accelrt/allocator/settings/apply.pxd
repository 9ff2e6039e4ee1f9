# The settings in force.
from accelrt.allocator.external.external_types cimport Backend

cdef str backend_name()  # "native", "cudaMallocAsync" or "pluggable": the one that is chosen now
cdef int choose_backend(const Backend* backend, str call) except -1  # NULL is accelrt's own pool
