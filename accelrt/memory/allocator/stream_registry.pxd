# Which streams live as long as the process, and from which stream each one of the stream pool was taken last.
from libc.stdint cimport uintptr_t

# A stream of the stream pool (streams/stream_pool.pyx); written under the GIL, read in any pool's exclusive section.
cdef struct Lineage:
    uintptr_t parent  # the stream that was current when it was handed out last
    int returned      # it is back in the stream pool

cdef extern from *:
    """
    #define accelrt_load(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define accelrt_store(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    """
    uintptr_t load_parent "accelrt_load"(const uintptr_t* place) noexcept nogil
    void store_parent "accelrt_store"(uintptr_t* place, uintptr_t value) noexcept nogil
    int load_returned "accelrt_load"(const int* place) noexcept nogil
    void store_returned "accelrt_store"(int* place, int value) noexcept nogil

# Streams that live as long as the process: those of the stream pool, and the legacy default stream.  The owner of another
# stream may destroy it, so the allocator never queries one.  Any thread may call these, with or without other locks.
cdef int trust_stream(uintptr_t stream, Lineage* lineage) noexcept nogil
cdef const Lineage* lineage_of(uintptr_t stream) noexcept nogil  # NULL for a stream that is not of the stream pool
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
