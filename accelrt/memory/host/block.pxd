# What the cache of page-locked memory is made of.  One such pool a process: the memory is portable, every
# device can use it.  pool.pyx walks the identities of memory/DESIGN.md.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.core.locks cimport pthread_mutex_t
from accelrt.memory.allocator.event_queue cimport Entry, Queues
from accelrt.memory.host.sizes cimport CLASSES, WORDS
from accelrt.memory.host.stats cimport PinnedStats

cdef enum:
    DEVICES = 64  # ordinals that may have spare events

cdef enum:  # PinnedBlock.state
    FREE = 0      # in one free list
    LIVE = 1      # in the address map
    PENDING = 2   # given back, in the address map until no stream uses it any more
    LEAVING = 3   # a whole segment on its way back to the driver, in no list

# A stream that was said to use a live block.
cdef struct PinnedUse:
    int device
    uintptr_t stream
    PinnedUse* next

# A run of a segment.  size is a multiple of STEP; the sizes of a segment's blocks add up to the segment's.
cdef struct PinnedBlock:
    uintptr_t address
    size_t size
    PinnedSegment* segment
    PinnedBlock* before   # neighbour below, NULL at the segment's start
    PinnedBlock* after    # neighbour above, NULL at the segment's end
    PinnedBlock* left     # in its free list; in the deferred list left is NULL
    PinnedBlock* right    # in its free list, the deferred list or the spare records
    PinnedUse* uses       # of a live block; of a pending one those whose events are not recorded yet
    long events           # entries that name it; guarded by order
    int state

# Memory of one driver call.  starts has a bit for each unit of bytes at which a block starts.
cdef struct PinnedSegment:
    uintptr_t address
    size_t size           # bytes, a multiple of PAGE
    uint64_t* starts
    PinnedBlock* first    # the block at address
    PinnedSegment* next   # of those on their way out
    size_t unit           # STEP in small segments, PAGE in large ones
    int kind              # SMALL or LARGE: the sizes of blocks that come from it
    int device            # that took it
    bint registered       # memory of the operating system's, registered, rather than the driver's own
    bint uncached         # one block, given back to the driver when it is free

cdef struct PinnedSettings:   # written under lock
    size_t round_limit        # bytes; larger requests are rounded to pages only
    size_t cache_limit        # bytes; larger blocks are given back at once
    int register_threads      # that touch the pages of memory to be registered
    bint use_register         # segments are the operating system's memory, registered
    bint background           # a thread polls

cdef struct PinnedPool:
    # A spin lock (core/locks.pxd) that guards everything but what order does.  Held for bookkeeping only: no driver
    # call, no GIL, no other lock.  So it may be taken with the GIL held.
    int lock
    PinnedBlock* free[2][CLASSES]    # by kind and class, the latest first
    uint64_t filled[2][WORDS]        # a bit for each list that is not empty
    AddressMap live           # address -> block, live and pending ones
    PinnedSegment** segments  # by address
    size_t segment_count
    size_t segment_room       # how many segments has room for
    PinnedSegment* doomed     # uncached and free, to be given back
    PinnedBlock* spare_blocks
    PinnedUse* spare_uses
    PinnedStats stats
    PinnedSettings settings
    pthread_mutex_t order     # taken before lock; held around events, never while something is waited for
    Queues queues             # guarded by order, with their entries
    PinnedBlock* deferred     # pending, with uses whose events are not recorded yet
    Entry* spare[DEVICES]     # by device
    long pending              # entries in the queues
    long awaited              # entries that some thread took out to wait for them
