# Graphs: work that was captured once and is replayed.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.graphs.held cimport HeldGraph
from accelrt.streams.stream cimport Stream

cdef class CUDAGraph(HeldGraph):
    cdef list capture_hooks  # RemovableHandles, before and after; a list of its own once there was one
    cdef list replay_hooks
    cdef uint64_t capture  # the driver's id of the last one, for who watches
    cdef bint counted      # as a capture that is open or about to begin
    cdef Stream stream     # the one that the capture began on, kept alive; a destructor may find it cleared
    cdef bint holds        # the private pool counts this graph
    cdef list calls        # the host functions among them
    cdef list sides        # the memory among them
    cdef dict launched_on  # handles of streams that it was replayed on -> the Stream where others own it, or None
    cdef uintptr_t noted   # the one of them that it was replayed on last
    cdef bint lasting      # its replays use memory that no allocator of ours looks after

    cdef int abandon(self) noexcept
    cdef int let_pool_go(self) noexcept
    cdef int leave_branches(self) noexcept
    cdef int leave_capture(self) noexcept
    cdef int count_out(self) noexcept
    cdef int begin_on(self, Stream stream, int mode, object pool) except -1
    cdef int open_on(self, Stream stream) except -1
    cdef int take_in(self, list kept) except -1
    cdef int take_over(self, CUDAGraph other) except -1
    cdef int require_free(self) except -1
    cdef int require_alike(self, CUDAGraph other) except -1
    cdef int finish_hooked(self) except -1
    cdef int require_ready(self) except -1
    cdef int replay_slow(self, uintptr_t handle) except -1
    cdef int launch(self, uintptr_t handle) except -1
    cdef int note_stream(self, uintptr_t handle) except -1
    cdef list own_capture_hooks(self)
    cdef list own_replay_hooks(self)
