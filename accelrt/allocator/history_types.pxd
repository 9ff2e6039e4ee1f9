# The records of a device's history: what happened to its memory, and how much of it has which tag.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef enum:  # Event.action
    ALLOCATED = 0          # torch's "alloc"
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2     # no stream uses it any more
    SEGMENT_ALLOCATED = 3  # of a plain segment
    SEGMENT_FREED = 4
    SEGMENT_MAPPED = 5     # a page became resident at the address
    SEGMENT_UNMAPPED = 6   # it is resident there no more
    SNAPSHOT = 7
    REFUSED = 8            # torch's "oom"; the address is the number of the device's free bytes
    STITCHED_TOGETHER = 9  # a stitched segment was made
    TAKEN_APART = 10       # its addresses were freed
    OFFERED = 11           # freed as of an event
    CLAIMED = 12           # allocated by a stream that waits for that event
    BORROWED = 13          # allocated from another stream's heap; the stream is the one that requested it
    ANNOTATION_BEGIN = 14  # the tag is the annotation's number
    ANNOTATION_END = 15
    SLEPT = 16
    WOKEN = 17
    ARRAY_MADE = 18        # a CUDA array or a mipmap; the address is its handle
    ARRAY_GONE = 19
    POOL_ALLOCATED = 20    # memory of a driver's pool, device or managed memory
    POOL_FREED = 21

cdef enum:
    MAX_TAGS = 4096  # with 0, which stands for none

cdef enum:  # History.context: which operations keep their stack; each level has those below
    CONTEXT_NONE = 0
    CONTEXT_STATE = 1  # allocations, as long as they are live
    CONTEXT_ALLOC = 2  # allocations, in the events too
    CONTEXT_ALL = 3    # frees as well

# 64 bytes, as copy_events hands them out and snapshot files keep them.
cdef struct Event:
    uint64_t time_ns   # since 1970
    uint64_t address
    uint64_t size      # bytes requested; of segments and pages, theirs
    uint64_t stream
    uint64_t[2] pool   # the private pool's id, or 0, 0
    uint32_t stack     # 0: none
    uint32_t tag       # 0: none
    uint32_t thread    # the system's number of it
    uint16_t action
    uint16_t device

# What is recorded of every device.
cdef struct HistorySettings:
    bint records      # events
    int context
    size_t capacity   # events of the ring
    uint32_t skipped  # a bit for each action whose events are not kept
    bint tags         # some thread has used a tag: never false again

cdef struct TagFigures:
    int64_t bytes_       # of live blocks, as allocated
    int64_t peak_bytes
    int64_t allocated_bytes
    int64_t requested    # the bytes that were asked for
    int64_t peak_requested
    int64_t allocated_requested
    int64_t blocks
    int64_t peak_blocks
    int64_t allocated_blocks

# A device's history.  Its lock is a spin lock, taken under any other of the pool's, and held for no call.
cdef struct History:
    int lock
    int context        # read without the lock
    bint records       # events are recorded
    bint followed      # and are told, as they happen, to the follower (event_ring.pxd)
    uint32_t skipped   # a bit for each action whose events are not
    size_t capacity    # events
    size_t place       # where the next one goes
    uint64_t next      # its number
    uint64_t first     # the number of the oldest that is kept
    uint64_t begin     # the number of the first since the history was cleared: those from there to first were dropped
    Event* events      # a ring; NULL: none yet
    TagFigures* tags   # MAX_TAGS of them; the first is of all tagged memory
