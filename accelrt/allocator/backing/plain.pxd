# Plain segments: one allocation of the device each.  Under the growth lock and in the exclusive section, which is
# released during driver calls.
from libc.stdint cimport int64_t

from accelrt.allocator.stats cimport RESERVED_BYTES
from accelrt.allocator.types cimport Heap, Pool, Segment

cdef int within_limits(Pool* pool, Heap* heap, size_t size) noexcept nogil  # 0, or which limit growth by size would pass
cdef bint takes_plain(const Pool* pool, const Heap* heap) noexcept nogil  # the heap grows by plain segments
cdef int grow_plain(Pool* pool, Heap* heap, size_t size) noexcept nogil
cdef int release_plain(Pool* pool, size_t wanted) noexcept nogil  # idle segments: wanted bytes, or SIZE_MAX for all
cdef void link_segment(Pool* pool, Segment* segment) noexcept nogil  # plain and expandable segments
cdef void unlink_segment(Pool* pool, Segment* segment) noexcept nogil
cdef bint may_leave(const Pool* pool, const Heap* heap) noexcept nogil  # its idle memory may go back to the device
cdef bint has_no_replays(const Pool* pool, const Heap* heap) noexcept nogil  # and no replay of a destroyed graph may use it


cdef inline void count_owner(Pool* pool, Heap* heap, int64_t size) noexcept nogil:
    # Adds to the reserved bytes of the heap's private pool; the device's pool is counted by count_pool.
    if heap.owner != NULL:
        heap.owner.reserved += size
        if heap.owner.uses == 0:
            pool.ended += size
        heap.owner.peak[RESERVED_BYTES] = max(heap.owner.peak[RESERVED_BYTES], <int64_t>heap.owner.reserved)
