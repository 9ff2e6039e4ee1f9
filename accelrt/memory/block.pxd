# What memory is described by: blocks, the segments and physical pieces that they lie in, and the heaps of the
# free ones.  The fields of a heap and of its blocks are guarded by the heap's lock, everything else by the
# pool's mutex, unless a comment says otherwise; whoever is in the world (world.pxd) has all of them.  The
# identities in memory/DESIGN.md are walked by invariants.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from accelrt.memory.queues cimport Entry
from accelrt.memory.stats cimport Share
from accelrt.memory.terms cimport Policy, Private

cdef enum:  # Block.state
    FREE = 0      # in a free list of its heap, or aside
    LIVE = 1      # handed out
    PENDING = 2   # given back, until no stream uses it any more
    HOLE = 3      # one slot whose page serves another slot, or that has none
    SWUNG = 4     # given back by a swing (swing.pxd), to be FREE before anybody looks

cdef enum:  # Segment.shape
    PLAIN = 0     # one allocation of the driver
    SPAN = 1      # addresses in which pages have their home; grows at its end
    WINDOW = 2    # addresses in which pages of spans are mapped a second time

cdef enum:
    CLASSES = 1600     # of free blocks by size; see freelist.pxd
    WORDS = 25         # of bits, one a class

# A stream other than the block's own that was said to use it.
cdef struct Use:
    uintptr_t stream
    int device         # the stream's: default streams of all devices have the same handles
    Use* next

# A run of a segment.  size is a multiple of UNIT; the sizes of a segment's blocks add up to its own.  Two lines of
# cache: the first is what a swing needs, and most of what a hit does.
cdef struct Block:
    uintptr_t address
    size_t size
    size_t requested   # bytes asked for; 0 while free
    Heap* heap         # the segment's; fixed for a record's life, so that it may be read without a lock
    Block** cell       # its place in the table of addresses, NULL until it was looked up
    Use* uses          # while LIVE, or PENDING and deferred
    Segment* segment
    short state
    short kind         # SMALL or LARGE, by the size that was handed out
    uint32_t epoch     # of its heap, when the last of its bytes was freed
    Block* before      # neighbour below, NULL at the segment's start
    Block* after       # neighbour above, NULL at the segment's end
    Block* left        # free list's tree; the chain of spare or deferred records
    Block* right
    uint64_t order     # serial of the segment << 32 | offset / UNIT: the tie-break among equal sizes
    uint32_t weight    # free list's tree; fixed for a record's life
    uint32_t events    # entries of the pending queues that name it
    int index          # the class whose list it is in, while in one
    uint32_t[3] filler  # up to the line's end

# A physical piece of memory.  It is mapped in one slot of a span and any number of slots of windows, and at
# home in at most one of them: only there may its bytes be in blocks other than a HOLE.
cdef struct Piece:
    uintptr_t handle
    uint64_t serial    # which piece it is; handles are used again
    size_t size
    Slot* home         # never NULL once mapped
    Slot* primary      # in a span
    Slot* slots        # all that it is mapped in
    Block* cover       # valid while mark is current: a block at or before home, in the list of its segment
    uint64_t mark      # the search that found it wholly free
    Piece* before      # the pool's pieces, in the order in which they were made
    Piece* after

cdef struct Slot:
    uintptr_t address
    Segment* segment
    Piece* piece       # NULL where it was given back: the addresses stay
    Block* hole        # the block over it while its piece is at home elsewhere
    size_t size
    bint mapped
    Slot* next         # of the same piece

# Addresses [address, address + size), all in its blocks.
cdef struct Segment:
    uintptr_t address
    size_t size
    size_t room        # bytes of addresses held
    uint64_t serial
    int shape
    int kind           # SMALL or LARGE; spans and windows are LARGE
    bint spoiled       # a window that lost a page: of no more use
    Heap* heap         # the heap that asked for it; its blocks return there
    Block* first       # the block at its start
    Block* last
    Slot** slots       # by address; none where PLAIN
    size_t slot_count
    size_t slot_room
    size_t away        # slots of a window whose pieces are at home elsewhere
    uint32_t used      # a window's: the heap's epoch when the last of its bytes was freed
    uint64_t idle_since  # PLAIN: the pool's count of slow allocations when it became one free block
    Segment* before    # the pool's segments in order of serial; a heap's windows likewise
    Segment* after

# A window as revive looks for it, close together in memory: for sizes from least to most.
cdef struct Fit:
    size_t least
    size_t most
    Segment* window
    Piece* blocker     # of its pieces, one that was not free when it was looked at last; NULL: none

# The free blocks of one stream in one set of addresses.  Never given back: another may take its record over.
cdef struct Heap:
    int lock
    bint quiet         # hits need nothing but this heap
    bint sole          # the only heap of its pool
    bint trusted       # its stream is one that lives as long as the process: it may be asked at any time
    uintptr_t stream
    const Policy* policy  # its pool's, which no other pool has
    Block* swing       # LIVE or SWUNG: what is given back and taken by turns, or NULL; none while in the world
    int64_t rounds     # how often it was taken so
    Private* owner     # NULL in the common heaps
    int kind           # of plain segments; LARGE with virtual memory, which serves both
    uint32_t seed      # of the weights
    uint64_t pending   # blocks given back that another stream may still use
    uint64_t offered   # blocks of any heap that its stream may take at once
    uint32_t epoch     # of blocks freed now
    uint32_t last_freed  # the epoch of its last free
    uint32_t waited    # the last epoch that ended before the device was waited for
    uint32_t settled   # blocks freed up to this epoch are used by no work of the stream any more
    uint32_t marked    # the epoch that is settled once marker is complete
    Entry* marker      # an event recorded on the stream, or NULL
    bint claimed       # with plain segments: claimant may have what is free in whole segments up to the epoch left
    uintptr_t claimant  # the parent of the stream that had the handle before
    uint32_t left
    bint awake         # hits may run in it; else its figures are in the pool's, and the world need not lock it
    Heap* next_awake   # of those that are awake
    int64_t seen       # the room for live blocks when the world was left last
    uint32_t rounds_idle  # how often the world was entered in a row without a hit in between
    bint paged         # asleep, and in the pool's list of those that may have free pages
    Heap* next_paged
    size_t gaps        # addresses of its spans, by slots, that lost their pages
    bint lingers       # pages of other heaps are free in its windows until its stream's work is done
    Block* spare       # records to use again, chained by left
    Block* aside       # FREE and in no list, or NULL: what the last hit left or merged; none while in the world
    const Block* given  # what the last hit gave back, where it did not merge downwards, and nothing was taken since
    size_t given_size  # its size before it merged
    Share[3] share     # SMALL, LARGE, BOTH
    uint64_t summary   # which words of filled are not 0
    uint64_t filled[WORDS]  # which trees are not empty
    Block* trees[CLASSES]
    Segment* first_window
    Segment* last_window
    Fit* fits          # of its windows that are not spoiled, oldest first
    size_t fit_count
    size_t fit_room
    Segment* span      # the last one, which grows
    size_t moves       # while a window is made: pages that leave it
    Heap* next         # of the pool
    Heap* sibling      # of the same private pool; of the records that wait to be used again
    Heap* same_key     # in the pool's index
