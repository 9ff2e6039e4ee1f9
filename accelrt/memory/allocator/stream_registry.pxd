# Which streams live as long as the process, and where leased ones come from.
from libc.stdint cimport uintptr_t

# Where a stream of the pool of driver streams comes from; written by who takes or returns it, read in the exclusive
# section of any pool.
cdef struct Lineage:
    uintptr_t parent  # the stream that was current when it was leased last
    int returned      # nobody has it now

cdef extern from *:
    """
    #define accelrt_load(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define accelrt_store(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    """
    uintptr_t load_parent "accelrt_load"(const uintptr_t* place) noexcept nogil
    void store_parent "accelrt_store"(uintptr_t* place, uintptr_t value) noexcept nogil
    int load_returned "accelrt_load"(const int* place) noexcept nogil
    void store_returned "accelrt_store"(int* place, int value) noexcept nogil

# Streams that live as long as the process: leased ones, and the legacy default stream.  Others belong to
# somebody who may destroy them, and are never asked.  Any thread, without a lock of ours.
cdef int trust_stream(uintptr_t stream, Lineage* lineage) noexcept nogil
cdef const Lineage* lineage_of(uintptr_t stream) noexcept nogil  # NULL for a stream that is not leased
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
