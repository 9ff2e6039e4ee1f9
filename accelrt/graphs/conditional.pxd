# Parts of a graph that a replay does or leaves out.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.runtime.capture_record cimport Record
from accelrt.streams.stream cimport Stream, StreamContext

cdef class Branch:
    cdef object graph          # the CUDAGraph
    cdef object flag
    cdef int kind              # CONDITION_IF or CONDITION_WHILE
    cdef int ordinal
    cdef uintptr_t address     # of the flag
    cdef uint64_t condition    # the driver's handle of it
    cdef Stream stream         # captures the body
    cdef StreamContext context
    cdef Record record         # of the body's capture, while it is under way
    cdef unsigned long thread  # that entered it, whose current stream the body's is
    cdef object __weakref__

    cdef int enter_body(self) except -1
    cdef int begin_body(self, Stream before) except -1

# The body's capture is over, whatever became of it; never raises: destructors call it, through the graph.
cdef int leave_branch(Branch branch) noexcept
