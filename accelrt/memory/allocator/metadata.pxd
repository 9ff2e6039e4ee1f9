# The records that describe memory, recycled by each heap and pool.  In the exclusive section.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport HEAP_SLOTS, MAX_PROBES, Block, Heap, Pool, PrivatePool, Segment, Use

cdef extern from *:
    """
    #define load_heap(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_heap(place, heap) __atomic_store_n(place, heap, __ATOMIC_RELEASE)
    """
    # Of a pool's list and its near heaps, which are read outside too; inside, where nobody writes, a plain read does.
    Heap* load_heap(Heap** place) noexcept nogil
    void store_heap(Heap** place, Heap* heap) noexcept nogil

cdef int ensure_blocks(Heap* heap, size_t wanted) noexcept nogil  # that many spare records; 0 or NO_HOST_MEMORY
cdef Block* append_hole(Segment* segment, size_t size) noexcept nogil  # behind its last block; after see_to_blocks
cdef Use* new_use(Pool* pool) noexcept nogil  # NULL where the host has no memory
cdef void recycle_use(Pool* pool, Use* use) noexcept nogil
cdef bint has_use(const Use* uses, int device, uintptr_t stream) noexcept nogil
# First of them, on a stream of that device; 0 or NO_HOST_MEMORY.
cdef int add_use(Pool* pool, Use** uses, int device, uintptr_t stream) noexcept nogil
cdef Heap* find_heap(const Pool* pool, const PrivatePool* owner, uintptr_t stream, int kind) noexcept nogil  # NULL
cdef void retire_heap(Pool* pool, Heap* heap) noexcept nogil  # its private pool is gone; for another one to use
cdef int heap_of(Pool* pool, PrivatePool* owner, uintptr_t stream, int kind, Heap** out_heap) noexcept nogil  # made if need be


cdef inline int hash_stream(uintptr_t stream) noexcept nogil:
    # The first place of a stream's common heap: handles are addresses, or small numbers.
    return <int>((stream ^ (stream >> 6) ^ (stream >> 12)) & (HEAP_SLOTS - 1))


cdef inline Heap* lookup_heap(Heap** places, uintptr_t stream) noexcept nogil:
    # A common heap, in its first place but where others were there before it; NULL where it has none.
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
    # The stream of heaps whose private pool is gone, which no driver has.
    return ~<uintptr_t>0
