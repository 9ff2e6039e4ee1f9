# The state of a private pool, kept to be gone back to.
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free

from accelrt.memory.allocator.types cimport Segment, Use

cdef struct SavedBlock:
    uintptr_t address
    size_t size
    size_t requested
    int state
    int kind
    bint kept          # while it is restored: it is live as it was, and stays so
    Use* uses          # likewise, what the kept block had

cdef struct SavedSlot:
    uint64_t page     # its serial; 0: none
    bint resident          # the piece was at home here

cdef struct SavedSegment:
    uint64_t serial
    uintptr_t address
    size_t size
    int shape
    int kind
    uintptr_t stream
    size_t first_block  # of the blocks of all segments
    size_t block_count
    size_t first_slot   # likewise; none where it is plain
    size_t slot_count
    Segment* found     # while it is restored

cdef struct Saved:
    int device
    uint64_t[2] id
    SavedSegment* segments
    size_t segment_count
    SavedBlock* blocks
    size_t block_count
    SavedSlot* slots
    size_t slot_count

# What a restore changed, for the caller to free.
cdef struct Turned:
    uintptr_t* live    # addresses that were not live, or not as they are now
    size_t live_count
    uintptr_t* freed   # and those that were live and are not, or not as they were
    size_t freed_count

cdef enum:  # why it cannot be done, beside status codes; nothing was changed then
    NO_SUCH_POOL = 10001
    WAITS = 10002        # blocks that were given back wait for other streams
    CAPTURED = 10003     # a capture allocates from the pool
    LENT = 10004         # pages serve other pools
    WENT = 10005         # segments or pages went back to the device
    USED = 10006         # blocks that would be freed are used on other streams

cdef int save_pool(int device, uint64_t first, uint64_t second, Saved* saved) noexcept nogil  # which is all zeros
cdef int restore_pool(Saved* saved, Turned* turned) noexcept nogil  # likewise; by one thread at a time


cdef inline void forget_saved(Saved* saved) noexcept nogil:
    free(saved.segments)
    free(saved.blocks)
    free(saved.slots)


cdef inline void forget_turned(Turned* turned) noexcept nogil:
    free(turned.live)
    free(turned.freed)
