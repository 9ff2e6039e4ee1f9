# Which streams live as long as the process.
from libc.stdint cimport uintptr_t

# Streams that live as long as the process: those of the stream pool, and the legacy default stream.  The owner of another
# stream may destroy it, so the allocator never queries one.  Any thread may call these, with or without other locks.
cdef int trust_stream(uintptr_t stream) noexcept nogil
cdef bint is_trusted(uintptr_t stream) noexcept nogil


# Memory on the per-thread default stream, whose one handle is another stream on every thread.
#
# It belongs to the heap of the legacy default stream, which is ordered after all earlier work of the threads' streams,
# as their later work is after its.  It is also recorded as used on the legacy stream, so an event there says when it is
# free.  So the work of the thread that frees it is ordered before that of the thread that gets it next.

cdef enum:
    LEGACY = 0
    PER_THREAD = 2  # CU_STREAM_PER_THREAD


cdef inline uintptr_t heap_stream(uintptr_t stream) noexcept nogil:
    return LEGACY if stream == PER_THREAD else stream
