# The backend cudaMallocAsync.
from accelrt.memory.foreign cimport Backend

cdef const Backend* ordered_backend() noexcept nogil
