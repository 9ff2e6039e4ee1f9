# Physical memory in pieces, and where they are mapped.  Under the growth lock and in the exclusive section, which is
# left while the driver works.
from libc.stdint cimport uintptr_t

from accelrt.memory.allocator.types cimport Heap, Page, Pool, Segment, Slot

cdef int make_page(Pool* pool, size_t size, Page** out_page) noexcept nogil  # or a smaller one
cdef int release_page(Pool* pool, Page* page) noexcept nogil  # one that is at home nowhere
cdef int map_run(Pool* pool, Segment* segment, size_t first, size_t count) noexcept nogil  # slots with pieces
cdef int unmap_slot(Pool* pool, Slot* slot) noexcept nogil
cdef int add_slot(Segment* segment, Page* page) noexcept nogil  # at its end, with its HOLE
cdef void link_slot(Slot* slot, Page* page) noexcept nogil  # into its piece's list
cdef void drop_slot(Slot* slot) noexcept nogil  # out of its piece's list
cdef size_t slot_index(const Segment* segment, uintptr_t address) noexcept nogil  # first at or after; the count if none
cdef Segment* new_segment(Pool* pool, Heap* heap, int shape) noexcept nogil  # NULL where the host has no memory
cdef int hold_addresses(Pool* pool, Segment* segment, size_t room) noexcept nogil
cdef int free_addresses(Pool* pool, Segment* segment) noexcept nogil
cdef void evict(Pool* pool, Page* page) noexcept nogil  # a marked one: its home becomes a HOLE
cdef void make_resident(Pool* pool, Slot* slot) noexcept nogil  # its piece's home is here, and free
