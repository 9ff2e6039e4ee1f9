# Segments: what a pool takes from its device in one allocation, and gives back to it.  Under the growth lock
# and inside the world, which is left while the driver works.
from accelrt.memory.block cimport Heap, Pool, Segment

cdef int grow_plain(Pool* pool, Heap* heap, size_t size) noexcept nogil
cdef int release_plain(Pool* pool, size_t wanted) noexcept nogil  # idle ones, longest idle first; bytes, or all
cdef void link_segment(Pool* pool, Segment* segment) noexcept nogil  # plain and spans
cdef void unlink_segment(Pool* pool, Segment* segment) noexcept nogil
cdef bint may_leave(const Heap* heap) noexcept nogil  # no graph or pool in use needs the heap's addresses
