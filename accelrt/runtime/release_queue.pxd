# Driver objects on their way out: given back now, or when it is safe.
from libc.stdint cimport uint64_t, uintptr_t

ctypedef void (*draining)() noexcept nogil

cdef enum:  # kinds
    GRAPH = 0
    GRAPH_EXEC = 1
    HOST_REGISTRATION = 2
    EVENT = 3
    CAPTURE = 4  # dispose_capture's
    BODY = 5     # the same, of what is captured into a conditional node
    REPLAYS = 6  # keep_until_passed's
    DEVICE_BYTES = 7  # an address of the caching allocator's
    HOST_BYTES = 8    # of its page-locked memory's
    MODULE = 9

cdef void dispose(int kind, int device, uintptr_t handle) noexcept  # for destructors: never raises, never waits
# The same for a capture that did not end when it was told to, known by its stream and the driver's id; its id is
# 0 where the driver did not say.  kind is CAPTURE or BODY.
cdef void dispose_capture(int kind, int device, uintptr_t stream, uint64_t capture) noexcept
# After the end of each capture of accelrt's: memory that was freed beside it is put behind the work of its streams, which
# their owners may destroy from then on.  Takes the pools' locks, so it is called without the GIL.
cdef void follow_capture() noexcept nogil
# For nogil code, which does its own waiting: each answers the driver's code.
cdef int give_back(int kind, int device, uintptr_t handle) noexcept nogil
# out_graph is left alone where the stream is not in that capture any more.
cdef int end_capture(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil
# The same for a capture that is not counted (capture_guard.pxd) any more: NOT_READY where others are open.
cdef int end_capture_again(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil
# Keeps a thing alive until the work that is in a stream now is complete.
cdef void keep_until_passed(int device, uintptr_t stream, object thing) noexcept
cdef void drain() noexcept  # tries again what could not be given back
cdef bint any_waits() noexcept  # whether there is something
# Around a host function, on the driver's thread: it must not call the driver, and what dies there waits.
cdef void begin_host_function() noexcept nogil
cdef void end_host_function() noexcept nogil
cdef void drain_too(draining more) noexcept  # and what nogil code could not; one, once and for all
