# The public face of private pools: retain and release them, route allocations to them, read them.  A private pool is named
# by the two numbers of its id; devices are valid ordinals.  Each function takes the pool's mutex or enters the exclusive
# section, so it is called without the GIL and with no lock held.
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free

from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.stats cimport STATS
from accelrt.allocator.types cimport Segment
from accelrt.driver.guard cimport Use

cdef struct PrivateStats:  # by the statistics of stats.pxd, except those of splits
    bint known             # the device has such a pool
    int uses               # graphs, captures, MemPools and contexts that retain it
    size_t limit           # most bytes to reserve; SIZE_MAX: none
    size_t sleeping        # bytes of its pages that the device has back; not among the reserved ones
    int64_t[STATS] current
    int64_t[STATS] peak

# By a graph, or by a user's MemPool; made if need be.  A MemPool keeps its idle memory until it is emptied or a request
# finds no memory; limit is the most bytes that it reserves, SIZE_MAX for any number, and unused where a graph retains
# it.  Before a graph releases its pool, it names the streams that it was replayed on.  INVALID_VALUE: it is a Reservation's.
cdef int retain_pool(int device, uint64_t first, uint64_t second, bint user, size_t limit) noexcept nogil
# Before anything is allocated in a pool that the caller retains: where its segments come from (NULL: the device), whether
# they are never split, and whether its free blocks serve the common pool before that refuses a request.  INVALID_VALUE:
# there is no such pool.
cdef int set_up_pool(int device, uint64_t first, uint64_t second, const Source* source, bint whole,
                     bint lends) noexcept nogil
# What another device may do with the pages of a pool in use (driver/table.pxd, MEMORY_); NOT_SUPPORTED of plain segments.
cdef int open_pool_to(int device, uint64_t first, uint64_t second, int peer, int access) noexcept nogil
cdef int read_peers(int device, uint64_t first, uint64_t second, uint64_t* out_readers, uint64_t* out_writers) noexcept nogil
cdef int release_pool(int device, uint64_t first, uint64_t second, bint user) noexcept nogil
cdef void note_replays(int device, uint64_t first, uint64_t second, uintptr_t stream) noexcept nogil
cdef void hide_replays(int device, uint64_t first, uint64_t second) noexcept nogil  # their streams are unknown
cdef PrivateStats read_private(int device, uint64_t first, uint64_t second, bint reset) noexcept nogil  # its peaks

# Before a capture begins: polls progress, since the capturing stream cannot be queried until the capture ends.
cdef void expect_idle(int device) noexcept nogil
# After the driver's capture_begin on the stream: gets the capture's id and begins its route.  CAPTURE_INVALID, with
# id 0, if the capture was invalidated or ended already; the caller then ends whatever capture the stream is in.
cdef int begin_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second,
                          uint64_t* out_capture) noexcept nogil
cdef int end_capture(int device, uint64_t capture) noexcept nogil
# For a capture that another library is about to begin on the stream, into a pool that is retained.  Its allocations are
# routed as soon as it runs; until then, and until end_expected_capture, the fast path is disabled.
cdef int expect_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil
cdef int end_expected_capture(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil

# From begin to end, allocations of the calling thread go to the pool, which is made if need be and retained meanwhile.
# thread: thread_number() of the thread that began.  INVALID_VALUE: the pool is a Reservation's.
cdef int begin_pool(int device, uint64_t first, uint64_t second) noexcept nogil
# The same where what the thread allocates on the stream would go to the common heaps, and the pool is awake; else NOT_READY.
cdef int begin_pool_for_common(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil
# The same, of the pool (0, second), of managed memory of the source; NOT_READY where what the thread allocates on the stream
# comes from a pool of managed memory already.
cdef int begin_managed_pool(int device, uintptr_t stream, uint64_t second, const Source* source) noexcept nogil
cdef int end_pool(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil
cdef int end_thread_route(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil  # still retained


# Checkpoints: the state of a private pool, saved to be restored later.  Called with no lock held and without the GIL.
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
    FIXED = 10007        # it is a Reservation's, which says itself what is live

cdef int save_pool(int device, uint64_t first, uint64_t second, Saved* saved) noexcept nogil  # saved: all zeros
cdef int restore_pool(Saved* saved, Turned* turned) noexcept nogil  # turned: all zeros; one thread at a time


cdef inline void forget_saved(Saved* saved) noexcept nogil:
    free(saved.segments)
    free(saved.blocks)
    free(saved.slots)


cdef inline void forget_turned(Turned* turned) noexcept nogil:
    free(turned.live)
    free(turned.freed)
