# Which streams live as long as the process.
from libc.stdint cimport uintptr_t

# Streams that live as long as the process: leased ones, and the legacy default stream.  Others belong to
# somebody who may destroy them, and are never asked.  Any thread, without a lock of ours.
cdef int trust_stream(uintptr_t stream) noexcept nogil
cdef bint is_trusted(uintptr_t stream) noexcept nogil


# Memory on the per-thread default stream, whose one handle is another stream on every thread.
#
# It is filed under the legacy default stream, which follows all work of the threads' streams and which their
# work follows, and counts as used there too: an event on the legacy stream says when it is free.  So whichever
# thread frees it, and whichever is handed it next, their work is in order.

cdef enum:
    LEGACY = 0
    PER_THREAD = 2  # CU_STREAM_PER_THREAD


cdef inline uintptr_t heap_stream(uintptr_t stream) noexcept nogil:
    return LEGACY if stream == PER_THREAD else stream
