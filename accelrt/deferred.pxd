# Driver objects on their way out: given back now, or when it is safe.
from libc.stdint cimport uintptr_t

cdef enum:  # kinds
    GRAPH = 0
    GRAPH_EXEC = 1
    HOST_MEMORY = 2
    EVENT = 3

cdef void dispose(int kind, int device, uintptr_t handle) noexcept  # for destructors: never raises, never waits
cdef void drain() noexcept  # tries again what could not be given back
