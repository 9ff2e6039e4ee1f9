# What a pool takes from the device and gives back: plain segments, managed memory, pages and expandable segments; and who
# may use pages beside the pool's device.

# Plain segments: one allocation of the device each.  Under the growth lock and in the exclusive section, which is
# released during driver calls.
from libc.stdint cimport int64_t, uintptr_t

from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.stats cimport RESERVED_BYTES
from accelrt.allocator.types cimport Heap, Page, Pool, Segment, Slot
from accelrt.driver.table cimport Table

cdef enum:
    STUCK_PARTS = 100  # pages are to fit closely where more than this part of the reserved bytes is stuck (Pool)
    ELSEWHERE = -111   # answered beside codes of the driver and of status.pxd: the addresses that are wanted are not free

cdef bint takes_plain(const Pool* pool, const Heap* heap) noexcept nogil  # the heap grows by plain segments
cdef int grow_plain(Pool* pool, Heap* heap, size_t size) noexcept nogil
# Memory of two Python functions, which are called with no lock held: what goes back is kept until the growth lock is
# released, so that whoever may have released idle memory releases the lock by unlock_growth.
cdef bint is_of_functions(const Heap* heap) noexcept nogil
cdef int grow_plain_at(Pool* pool, Heap* heap, size_t size, uintptr_t address) noexcept nogil  # by what is taken already
cdef bint has_returned(const Pool* pool) noexcept nogil
cdef void unlock_growth(Pool* pool) noexcept nogil
cdef int release_plain(Pool* pool, size_t wanted) noexcept nogil  # idle segments: wanted bytes, or SIZE_MAX for all
cdef bint has_no_replays(const Pool* pool, const Heap* heap) noexcept nogil  # and no replay of a destroyed graph may use it


cdef inline void count_owner(Pool* pool, Heap* heap, int64_t size) noexcept nogil:
    # Adds to the reserved bytes of the heap's private pool; the device's pool is counted by count_pool.
    if heap.owner != NULL:
        heap.owner.reserved += size
        if heap.owner.uses == 0:
            pool.ended += size
        heap.owner.peak[RESERVED_BYTES] = max(heap.owner.peak[RESERVED_BYTES], <int64_t>heap.owner.reserved)


# Whether managed memory of some pool contains the address.  Any thread, under any lock.
cdef bint is_managed(uintptr_t address) noexcept nogil


# Pages made from now on may be mapped by other processes, if the device can make such memory (which takes a few
# microseconds longer).  Any thread, under any lock.
cdef void make_pages_shareable() noexcept nogil
cdef int release_page(Pool* pool, Page* page) noexcept nogil  # one that is resident nowhere: unmaps it too
cdef int map_run(Pool* pool, Segment* segment, size_t first, size_t count) noexcept nogil  # slots that have pages
cdef int unmap_slot(Pool* pool, Slot* slot) noexcept nogil
cdef int add_slot(Segment* segment, Page* page) noexcept nogil  # at its end, over a HOLE
cdef int add_gap(Segment* expandable, size_t size) noexcept nogil  # the same without a page
cdef int make_page_for(Pool* pool, Slot* slot) noexcept nogil  # that has none, as large as the slot; not mapped yet
cdef void link_slot(Slot* slot, Page* page) noexcept nogil  # into its page's list
# Maps the pages of slots in a row, which are resident nowhere, and makes them free here; or, where code is an error or the
# driver refuses, releases them.  Answers that error.
cdef int open_slots(Pool* pool, Segment* expandable, size_t first, size_t count, int code) noexcept nogil
cdef int within_limits(Pool* pool, Heap* heap, size_t size) noexcept nogil  # 0, or which limit growth by size would pass
cdef void link_segment(Pool* pool, Segment* segment) noexcept nogil  # numbers, lists and counts it
cdef void drop_slot(Slot* slot) noexcept nogil  # out of its page's list
cdef size_t slot_index(const Segment* segment, uintptr_t address) noexcept nogil  # first at or after it; slot_count: none
cdef Segment* new_segment(Pool* pool, Heap* heap, int shape) noexcept nogil  # NULL: no host memory
# Those from `at` on, unless it is 0, whose status is ELSEWHERE where something else lies there.
cdef int reserve_addresses(Pool* pool, Segment* segment, size_t room, uintptr_t at) noexcept nogil
cdef int free_addresses(Pool* pool, Segment* segment) noexcept nogil
cdef void make_resident(Pool* pool, Slot* slot) noexcept nogil  # its page, here and free; no growth lock

# Other devices than a pool's own; outside of the exclusive section.
# Opens mapped addresses of a heap for the pool's device and for those that may use its pages.  Under the growth lock.
cdef int open_range(Pool* pool, const Heap* heap, uintptr_t address, size_t size, long* calls) noexcept nogil
# Says what another device may do with the pages of a private pool (driver/table.pxd, MEMORY_).  Under the growth lock.
cdef int open_private(Pool* pool, PrivatePool* owner, int device, int access) noexcept nogil
# Mapped pages of another process, of a device: for that one and for those that are in use, once connect_peers was called;
# and for one that came to be in use later.
cdef int open_foreign(Table* table, int device, uintptr_t address, size_t size) noexcept nogil
cdef int open_if_connected(Table* table, int device, uintptr_t address, size_t size, int other) noexcept nogil
# For a pool that is not in use yet.  Takes other pools' growth locks; a failure leaves it out.
cdef int join_peers(Pool* pool) noexcept nogil
# A device whose work uses memory, though it may have no pool: it counts as in use for connect_peers.  Breaks no capture.
# Takes the growth locks.
cdef int join_device(Table* table, int device) noexcept nogil
cdef bint is_in_use(int device) noexcept nogil
# From now on devices that are in use may use each other's pages, as far as they can.  Takes the pools' growth locks.
cdef int connect_peers() noexcept nogil
# Opens the memory that two devices have to each other: plain segments for good, and the pages of a pool, with those to come,
# until its last one is released.  So memory that is live meanwhile is open from then on.  PEER_ACCESS_UNSUPPORTED where they
# cannot reach each other.  Breaks no capture.  Takes the growth locks of both.
cdef int connect_two(Table* table, int device, int other) noexcept nogil

# The file descriptors of pages that other processes map, kept while the page lives: to make one can take a driver half a
# millisecond.  A descriptor keeps the page's memory, so it is closed before the page is released.  By the driver's handle of
# the page; any thread, under any lock.
cdef int kept_file(uintptr_t handle) noexcept nogil  # -1: none is kept; the page may not be released meanwhile
# False: there is no room, or another thread was faster; the descriptor stays the caller's.
cdef bint keep_file(uintptr_t handle, int file) noexcept nogil
cdef void close_file(uintptr_t handle) noexcept nogil  # before the page is released


# Expandable segments, in which the pages of a heap are mapped first.  Under the growth lock and in the exclusive
# section, which is released during driver calls.
cdef size_t need_at_end(const Pool* pool, const Heap* heap, size_t size) noexcept nogil  # for a block of the size to fit
cdef int grow_pages(Pool* pool, Heap* heap, size_t need, bint at_end) noexcept nogil  # in gaps too, or only at_end
cdef int trim_all_expandable(Pool* pool) noexcept nogil  # frees trailing addresses without pages
