# The backend cudaMallocAsync.
from accelrt.memory.backends.external_types cimport Backend

cdef const Backend* ordered_backend() noexcept nogil
