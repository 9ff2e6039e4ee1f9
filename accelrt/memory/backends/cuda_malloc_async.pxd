# The backend cudaMallocAsync.
from accelrt.memory.backends.external_types cimport Backend

cdef const Backend* cuda_malloc_async_backend() noexcept nogil
