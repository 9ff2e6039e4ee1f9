# Expandable segments, in which the pages of a heap are mapped first.  Under the growth lock and in the exclusive
# section, which is released during driver calls.
from accelrt.allocator.types cimport Heap, Pool

cdef size_t need_at_end(const Pool* pool, const Heap* heap, size_t size) noexcept nogil  # for a block of the size to fit
cdef int grow_pages(Pool* pool, Heap* heap, size_t need, bint at_end) noexcept nogil  # in gaps too, or only at_end
cdef int trim_all_expandable(Pool* pool) noexcept nogil  # frees trailing addresses without pages
