# Driver objects on their way out: given back now, or when it is safe.
from libc.stdint cimport uint64_t, uintptr_t

cdef enum:  # kinds
    GRAPH = 0
    GRAPH_EXEC = 1
    HOST_REGISTRATION = 2
    EVENT = 3
    CAPTURE = 4  # dispose_capture's

cdef void dispose(int kind, int device, uintptr_t handle) noexcept  # for destructors: never raises, never waits
# The same for a capture that did not end when it was told to, known by its stream and the driver's id; its id is
# 0 where the driver did not say.
cdef void dispose_capture(int device, uintptr_t stream, uint64_t capture) noexcept
cdef void drain() noexcept  # tries again what could not be given back
