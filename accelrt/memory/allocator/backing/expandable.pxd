# Spans, which hold the pages of a heap.  Under the growth lock and in the exclusive section, which is left while the
# driver works.
from accelrt.memory.allocator.types cimport Heap, Pool

cdef size_t need_at_end(const Pool* pool, const Heap* heap, size_t size) noexcept nogil  # for a block of the size
cdef int grow_pages(Pool* pool, Heap* heap, size_t need, bint at_end) noexcept nogil  # by need, anywhere or at the end
cdef int trim_all_expandable(Pool* pool) noexcept nogil  # addresses at the end of spans that hold nothing
