# Checkpoints: the state of a private pool, saved to be restored later.  Called with no lock held and without the GIL.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free

from accelrt.allocator.types cimport Segment, Use

cdef struct SavedBlock:
    uintptr_t address
    size_t size
    size_t requested   # bytes; 0 while free
    int state
    int kind
    bint kept          # during a restore: the block is live as it was saved, and stays so
    Use* uses          # during a restore: those of a kept block
    uint32_t stack     # likewise
    uint32_t tag       # likewise

cdef struct SavedSlot:
    uint64_t page     # its serial; 0: none
    bint resident          # the page was resident here

cdef struct SavedSegment:
    uint64_t serial
    uintptr_t address
    size_t size
    int shape
    int kind
    uintptr_t stream
    size_t first_block  # its first in Saved.blocks
    size_t block_count
    size_t first_slot   # its first in Saved.slots; a plain segment has none
    size_t slot_count

cdef struct Saved:
    int device
    uint64_t[2] id
    SavedSegment* segments
    size_t segment_count
    SavedBlock* blocks
    size_t block_count
    SavedSlot* slots
    size_t slot_count

# What a restore changed; the caller frees the arrays (forget_turned).
cdef struct Turned:
    uintptr_t* live    # addresses that became live, or live in another way
    size_t live_count
    uintptr_t* freed   # addresses that were live and are free, or live in another way
    size_t freed_count

cdef enum:  # reasons for a refusal, beside status codes; nothing was changed then
    NO_SUCH_POOL = 10001
    WAITS = 10002        # blocks of it are pending
    CAPTURED = 10003     # a capture under way allocates from it
    LENT = 10004         # pages of it are resident in other pools, or nowhere
    WENT = 10005         # saved segments or pages went back to the device
    USED = 10006         # live blocks that would be freed are recorded on other streams

cdef int save_pool(int device, uint64_t first, uint64_t second, Saved* saved) noexcept nogil  # saved: all zeros
cdef int restore_pool(Saved* saved, Turned* turned) noexcept nogil  # turned: all zeros; one thread at a time


cdef inline void forget_saved(Saved* saved) noexcept nogil:
    free(saved.segments)
    free(saved.blocks)
    free(saved.slots)


cdef inline void forget_turned(Turned* turned) noexcept nogil:
    free(turned.live)
    free(turned.freed)
