# Stitching: blocks out of pages that lie apart.  Under the growth lock and in the exclusive section.
from accelrt.memory.allocator.types cimport Block, Heap, Pool, Segment

cdef struct Run:  # a free block that holds whole pages, of so many bytes
    Block* block
    size_t pages

cdef struct Found:  # the finder's, who frees the array; one at a time, under the growth lock.  Not of heaps that are ranked
    Run* runs
    size_t count
    size_t capacity

cdef size_t find_pages(Pool* pool, Heap* heap, bint across, Found* found) noexcept nogil  # marks what it may have; its bytes
cdef void mark_leaving(Pool* pool) noexcept nogil  # marks every piece that is wholly free, settled, and may go back
cdef bint reuse_stitched(Pool* pool, Heap* heap, size_t size) noexcept nogil  # out of marked pieces, without the driver
cdef int stitch(Pool* pool, Heap* heap, size_t size, Found* found) noexcept nogil  # likewise, with a new window
cdef void free_block(Pool* pool, Block* block) noexcept nogil  # from LIVE or PENDING; likewise
cdef void return_pages(Pool* pool, Block* block) noexcept nogil  # a free block of a window; no growth lock needed
cdef void return_all_pages(Pool* pool) noexcept nogil  # what lingers
cdef bint has_too_many_stitched(const Pool* pool) noexcept nogil  # too many windows: those that are idle should go
cdef int drop_idle_stitched(Pool* pool) noexcept nogil  # those that are idle
cdef void forget_missing(Pool* pool) noexcept nogil  # after pieces were released
