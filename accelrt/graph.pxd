# Graphs: work that was captured once and is replayed.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.stream cimport Stream

cdef class CUDAGraph:
    cdef readonly uintptr_t raw_cuda_graph_exec  # the driver's; 0 before capture_end and after reset
    cdef readonly size_t node_count
    cdef int ordinal
    cdef bint capturing    # a capture is under way
    cdef uintptr_t origin  # handle of the stream that it began on
    cdef Stream stream     # that stream, kept alive; a destructor may find it cleared
    cdef uint64_t capture  # the driver's id of that capture
    cdef uint64_t[2] pool_id
    cdef bint holds        # the private pool counts this graph
    cdef list kept         # what the nodes point at
    cdef list calls        # the host functions among them
    cdef list pinned       # the page-locked memory among them
    cdef uintptr_t noted   # the stream that the page-locked memory was last said to be used on
    cdef list capture_hooks  # RemovableHandles, before and after; a list of its own once there was one
    cdef list replay_hooks

    cdef int abandon(self) noexcept
    cdef int require_free(self) except -1
    cdef int finish_hooked(self) except -1
    cdef int launch(self) except -1
    cdef list own_capture_hooks(self)
    cdef list own_replay_hooks(self)
    cdef int leave_capture(self) except -1
    cdef int note_pinned(self, Stream stream) except -1
