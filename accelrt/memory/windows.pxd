# Stitching: blocks out of pages that lie apart.  Under the growth lock and inside the world.
from accelrt.memory.block cimport Block, Heap, Segment
from accelrt.memory.state cimport Pool

cdef size_t find_pages(Pool* pool, Heap* heap, bint across) noexcept nogil  # marks the pieces that it may have; their bytes
cdef void mark_leaving(Pool* pool) noexcept nogil  # marks every piece that is wholly free, settled, and may go back
cdef bint revive(Pool* pool, Heap* heap, size_t size) noexcept nogil  # out of marked pieces, without the driver
cdef int stitch(Pool* pool, Heap* heap, size_t size, bint across) noexcept nogil  # likewise, with a new window
cdef void retire(Pool* pool, Block* block) noexcept nogil  # from LIVE or PENDING; likewise
cdef void go_home(Pool* pool, Block* block) noexcept nogil  # a free block of a window; no growth lock needed
cdef void send_home(Pool* pool) noexcept nogil  # what lingers
cdef int drop_windows(Pool* pool) noexcept nogil  # those that are idle
