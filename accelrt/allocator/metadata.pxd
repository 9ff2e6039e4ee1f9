# The records of blocks, heaps and uses, which heaps and pools recycle; and what the allocator knows of a heap's stream.
# In the exclusive section, but for lookup_heap and what says otherwise.
from libc.stdint cimport uintptr_t

from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.types cimport HEAP_SLOTS, MAX_PROBES, Block, Heap, Pool, Segment, Use

cdef extern from *:
    """
    #define load_heap(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_heap(place, heap) __atomic_store_n(place, heap, __ATOMIC_RELEASE)
    """
    # For a pool's list of heaps and its heap table, which are also read without a lock.  Only threads in the exclusive
    # section write them, so there a plain read suffices.
    Heap* load_heap(Heap** place) noexcept nogil
    void store_heap(Heap** place, Heap* heap) noexcept nogil

cdef int ensure_blocks(Heap* heap, size_t wanted) noexcept nogil  # so many spare records; 0 or NO_HOST_MEMORY
cdef Block* append_hole(Segment* segment, size_t size) noexcept nogil  # after its last block; uses a spare record
cdef Use* new_use(Pool* pool) noexcept nogil  # NULL: no host memory
cdef void recycle_use(Pool* pool, Use* use) noexcept nogil
cdef bint has_use(const Use* uses, int device, uintptr_t stream) noexcept nogil
# Adds a use by a stream of that device, as the first; 0 or NO_HOST_MEMORY.
cdef int add_use(Pool* pool, Use** uses, int device, uintptr_t stream) noexcept nogil
cdef Heap* find_heap(const Pool* pool, const PrivatePool* owner, uintptr_t stream, int kind) noexcept nogil  # or NULL
cdef void retire_heap(Pool* pool, Heap* heap) noexcept nogil  # its private pool is gone: a later heap reuses it
cdef int heap_of(Pool* pool, PrivatePool* owner, uintptr_t stream, int kind, Heap** out_heap) noexcept nogil  # or makes it


cdef inline int hash_stream(uintptr_t stream) noexcept nogil:
    # A stream's hash value in the heap table.  Handles are addresses or small numbers.
    return <int>((stream ^ (stream >> 6) ^ (stream >> 12)) & (HEAP_SLOTS - 1))


cdef inline Heap* lookup_heap(Heap** places, uintptr_t stream) noexcept nogil:
    # A stream's common heap in one half of the heap table (places), or NULL if it is not there: the slow path may still
    # find it.  Usually one probe.  Any thread, without a lock.
    cdef Heap** place = places + hash_stream(stream)
    cdef Heap* heap = load_heap(place)
    cdef int step
    if heap.stream == stream:
        return heap
    for step in range(1, MAX_PROBES):
        heap = load_heap(place + step)
        if heap.stream == stream:
            return heap
    return NULL


cdef inline uintptr_t gone() noexcept nogil:
    # The stream of heaps without a stream: no driver has this handle.
    return ~<uintptr_t>0


# --- a heap's stream --------------------------------------------------------------------------------------

# Streams that live as long as the process: those of the stream pool, and the legacy default stream.  The owner of another
# stream may destroy it, so the allocator never queries one.  Any thread may call these, with or without other locks.
cdef int trust_stream(uintptr_t stream) noexcept nogil
cdef bint is_trusted(uintptr_t stream) noexcept nogil


# Memory on the per-thread default stream, whose one handle is another stream on every thread.
#
# It belongs to the heap of the legacy default stream, which is ordered after all earlier work of the threads' streams,
# as their later work is after its.  A use by a thread's stream is recorded as one by the legacy stream, also where the
# block belongs to that: two threads' streams are not ordered by themselves, so an event on the legacy stream has to say
# when the block is free.

cdef enum:
    LEGACY = 0
    PER_THREAD = 2  # CU_STREAM_PER_THREAD


cdef inline uintptr_t heap_stream(uintptr_t stream) noexcept nogil:
    return LEGACY if stream == PER_THREAD else stream
