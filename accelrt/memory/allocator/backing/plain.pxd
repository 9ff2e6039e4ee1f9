# Segments: what a pool takes from its device in one allocation, and gives back to it.  Under the growth lock
# and in the exclusive section, which is left while the driver works.
from libc.stdint cimport int64_t

from accelrt.memory.allocator.stats cimport RESERVED_BYTES
from accelrt.memory.allocator.types cimport Heap, Pool, Segment

cdef int within_limits(Pool* pool, Heap* heap, size_t size) noexcept nogil  # or whose limit refuses so much more
cdef int grow_plain(Pool* pool, Heap* heap, size_t size) noexcept nogil
cdef int release_plain(Pool* pool, size_t wanted) noexcept nogil  # idle ones, longest idle first; bytes, or all
cdef void link_segment(Pool* pool, Segment* segment) noexcept nogil  # plain and spans
cdef void unlink_segment(Pool* pool, Segment* segment) noexcept nogil
cdef bint may_leave(const Pool* pool, const Heap* heap) noexcept nogil  # no graph or pool in use needs its addresses
cdef bint is_at_rest(const Pool* pool, const Heap* heap) noexcept nogil  # nor does a replay of a graph that is gone


cdef inline void count_owner(Heap* heap, int64_t size) noexcept nogil:
    # What a private pool reserves, beside what its device's does.
    if heap.owner != NULL:
        heap.owner.reserved += size
        heap.owner.peak[RESERVED_BYTES] = max(heap.owner.peak[RESERVED_BYTES], <int64_t>heap.owner.reserved)
