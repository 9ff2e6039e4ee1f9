# Spans, which hold the pages of a heap.  Under the growth lock and inside the world, which is left while the
# driver works.
from accelrt.memory.block cimport Heap
from accelrt.memory.state cimport Pool

cdef int grow_pages(Pool* pool, Heap* heap, size_t need, size_t contiguous) noexcept nogil
cdef int trim_spans(Pool* pool) noexcept nogil  # addresses at the end of spans that hold nothing
