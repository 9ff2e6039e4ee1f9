# The allocator's records: the settings that a pool reads, private pools, blocks and what they lie in, the heaps of
# the free ones, and the pool of a device.
#
# The fields of a heap and of its blocks are guarded by the heap's lock, everything else by the pool's mutex, unless a
# comment says otherwise; a thread in the exclusive section (exclusive.pxd) has all of them.  What of the settings the
# fast path reads is in policy.pxd.  audit.pyx walks the identities of memory/allocator/DESIGN.md.
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.core.locks cimport pthread_mutex_t
from accelrt.driver.table cimport Table
from accelrt.memory.allocator.event_queue cimport Entry, Queues
from accelrt.memory.allocator.stats cimport STATS, PER_HEAP, HeapStats, Stats
from accelrt.memory.backends.external_types cimport Foreign

# What the settings string says, as the pool reads it; sizes in bytes.
cdef struct PoolSettings:
    bint virtual_memory
    bint stitching
    double slack       # of the peak of live bytes; below 0: by the credit for windows
    size_t page_size     # 0: by what is reserved
    size_t max_split   # plain blocks above are never split; SIZE_MAX where there is no such limit
    size_t large_segment
    size_t max_rounding  # how much larger than asked a block above max_split may be
    double collect     # of the limit; 0: never
    double fraction    # of the device's memory that pools may reserve
    bint rounds        # divisions hold one that is not 0
    unsigned char[64] divisions  # steps between a power of two and the next, by the lower one's exponent; 0: none

# A stream that graphs were replayed on which are gone: their last replay may be under way.
cdef struct Replay:
    uintptr_t stream
    bint waited        # for, just now, or it cannot be
    void* progress_event       # an Entry of event_queue.pxd, whose event may be recorded behind the last of them; NULL
    bint progress_epoch        # it is
    Replay* next

# The heaps that captures of one graph pool handle, or a MemPool, allocate from.
cdef struct PrivatePool:
    uint64_t[2] id
    int uses           # graphs, captures, MemPools and contexts that hold it; at 0 its segments may go back
    int users          # those of them that are MemPools and contexts, so that no graph needs what is idle
    bint emptied       # what is idle is being given back, where no graph holds the pool
    uint64_t segments
    size_t limit       # most bytes to reserve
    size_t reserved
    int rest           # 2: no replay of a graph that is gone is left; 1: the device is being waited for, to be so
    Replay* replays    # of graphs that are gone; while rest is 0
    bint hidden        # they may run on streams that nobody knows, or that cannot be asked
    void* heaps        # the first of its Heaps, chained by sibling
    PrivatePool* same_key  # in the pool's index
    PrivatePool* before
    bint ending        # in the pool's list of those whose graphs are gone while replays may not be
    PrivatePool* before_ending
    PrivatePool* next_ending
    int64_t[STATS] peak  # of reserved bytes and segments, and of what is live; not of splits
    PrivatePool* next

# A capture under way, or a thread inside use_mem_pool: its allocations go to a private pool.
cdef struct Route:
    uint64_t capture   # the id that the driver gave it; 0 for a thread
    uint64_t thread    # see private_pool.pyx; 0 for a capture
    PrivatePool* owner
    Route* next

cdef enum:  # Block.state
    FREE = 0      # in a free list of its heap, or its designated victim
    LIVE = 1      # handed out
    PENDING = 2   # given back, until no stream uses it any more
    HOLE = 3      # one slot whose page serves another slot, or that has none
    CACHED = 4    # freed to the last-freed cache (fast_path.pxd), to be FREE before another operation looks

cdef enum:  # Segment.shape
    PLAIN = 0     # one allocation of the driver
    EXPANDABLE = 1      # addresses in which pages have their home; grows at its end
    STITCHED = 2    # addresses in which pages of spans are mapped a second time

cdef enum:
    CLASSES = 1600     # of free blocks by size; see free_list.pxd
    WORDS = 25         # of bits, one a class

# A stream other than the block's own that was said to use it.
cdef struct Use:
    uintptr_t stream
    int device         # the stream's: default streams of all devices have the same handles
    Use* next

# A run of a segment.  size is a multiple of UNIT; the sizes of a segment's blocks add up to its own.  Two lines of
# cache: the first is what the last-freed cache needs, and most of what a hit does.
cdef struct Block:
    uintptr_t address
    size_t size
    size_t requested   # bytes asked for; 0 while free
    Heap* heap         # the segment's; fixed for a record's life, so that it may be read without a lock
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
    uint32_t[5] filler  # up to the line's end

# A physical piece of memory.  It is mapped in one slot of a span and any number of slots of windows, and at
# home in at most one of them: only there may its bytes be in blocks other than a HOLE.
cdef struct Page:
    uintptr_t handle
    uint64_t serial    # which piece it is; handles are used again
    size_t size
    Slot* resident         # never NULL once mapped
    Slot* primary      # in a span
    Slot* slots        # all that it is mapped in
    Block* cover       # valid while mark is current: a block at or before home, in the list of its segment
    uint64_t mark      # the search that found it wholly free
    Page* before      # the pool's pieces, in the order in which they were made
    Page* after

cdef struct Slot:
    uintptr_t address
    Segment* segment
    Page* page       # NULL where it was given back: the addresses stay
    Block* hole        # the block over it while its piece is at home elsewhere
    size_t size
    bint mapped
    Slot* before       # of the same piece
    Slot* after

# Addresses [address, address + size), all in its blocks.
cdef struct Segment:
    uintptr_t address
    size_t size
    size_t held        # bytes of addresses held
    uint64_t serial
    int shape
    int kind           # SMALL or LARGE; spans and windows are LARGE
    bint incomplete       # a window that lost a page: of no more use
    Heap* heap         # the heap that asked for it; its blocks return there
    Block* first       # the block at its start
    Block* last
    Slot** slots       # by address; none where PLAIN
    size_t slot_count
    size_t slot_capacity
    size_t evicted        # slots of a window whose pieces are at home elsewhere
    size_t least_slot  # of its slots, the size of the smallest
    uint32_t used      # a window's: the heap's epoch when the last of its bytes was freed
    uint64_t idle_since  # PLAIN: the pool's count of slow allocations when it became one free block
    Segment* before    # the pool's segments in order of serial; a heap's windows likewise
    Segment* after

# A window as revive looks for it, close together in memory: for sizes from least to most.
cdef struct Fit:
    size_t least
    size_t most
    Segment* stitched
    Page* missing     # of its pieces, one that was not free when it was looked at last; NULL: none

# The free blocks of one stream in one set of addresses.  Never given back: another may take its record over.
cdef struct Heap:
    int lock
    bint fast          # hits need nothing but this heap
    bint sole          # the only heap of its pool
    bint trusted       # its stream is one that lives as long as the process: it may be asked at any time
    uintptr_t stream
    const PoolSettings* settings  # its pool's, which no other pool has
    Block* cached      # LIVE or CACHED: freed and allocated by turns, or NULL; none in the exclusive section
    int64_t cached_rounds  # how often it was allocated so
    AddressMap blocks  # LIVE, CACHED and PENDING, by address (address_table.pxd)
    PrivatePool* owner     # NULL in the common heaps
    int kind           # of plain segments; LARGE with virtual memory, which serves both
    uint32_t seed      # of the weights
    uint64_t pending   # blocks given back that another stream may still use
    uint64_t offered   # blocks of any heap that its stream may take at once
    uint32_t epoch     # of blocks freed now
    uint32_t last_freed  # the epoch of its last free
    uint32_t waited    # the last epoch that ended before the device was waited for
    uint32_t quiescent_epoch   # blocks freed up to this epoch are used by no work of the stream any more
    uint32_t progress_epoch    # the epoch that is settled once marker is complete
    Entry* progress_event      # an event recorded on the stream, or NULL
    bint awake         # hits may run in it; else the pool has its figures, and the exclusive section does not lock it
    Heap* next_awake   # of those that are awake
    bint stale         # its room is to be measured: a ceiling changed, or what is pending
    int64_t seen       # the room for live blocks when the exclusive section was left last
    uint32_t rounds_idle  # how often the exclusive section was entered in a row without a hit in between
    int filed          # where the pool finds its free pages while it is asleep (free_pages.pxd)
    Heap* filed_after  # its neighbours there in a list, or what hangs below it in a tree
    size_t gaps        # addresses of its spans, by slots, that lost their pages
    bint keeps_pages       # pages of other heaps are free in its windows until its stream's work is done
    Block* spare       # records to use again, chained by left
    Block* victim      # FREE and in no list, or NULL: what the last hit left or merged; none in the exclusive section
    const Block* freed_last  # by a hit, where it did not merge downwards and nothing was allocated since
    size_t freed_last_size  # before it merged
    HeapStats[3] stats     # SMALL, LARGE, BOTH
    uint64_t summary   # which words of filled are not 0
    uint64_t filled[WORDS]  # which trees are not empty
    Block* trees[CLASSES]
    Segment* first_stitched
    Segment* last_stitched
    Fit* fits          # of its windows that are not spoiled, oldest first
    size_t fit_count
    size_t fit_capacity
    Segment* expandable      # the last one, which grows
    size_t moves       # while a window is made: pages that leave it
    Heap* filed_before  # see filed_after
    uint64_t found     # the search that marked its free pages last,
    size_t pages       # how many bytes they have,
    size_t top_size    # the largest block that holds any of them, the first by order among equals,
    uint64_t top_order  # and its order
    int slab           # how many records of blocks were taken at once last
    Heap* next         # of the pool
    Heap* sibling      # of the same private pool; of the records that wait to be used again
    Heap* same_key     # in the pool's index

cdef enum:
    HEAP_SLOTS = 256         # places for the common heaps of streams,
    MAX_PROBES = 8          # of which each may be in so many

# A block that was freed as of somebody's event: streams that wait for the event may take it at once.
cdef struct Offer:
    Block* block       # PENDING, with one entry in the queue of the pool's watch
    uint64_t record    # which record of the event: no other one will do
    Use* claimants
    Offer* next

# One device's allocator.  reserved = live + pending + free, in bytes.
cdef struct Pool:
    pthread_mutex_t lock     # inner; held for bookkeeping and calls that cannot wait
    pthread_mutex_t growth   # outer; held by the one thread that takes from or gives to the device
    Table* table             # fixed
    int device               # fixed
    Pool* whole              # fixed; itself, or where it stands in for an audited pool, that pool; NULL: not made
    int debug                # ACCELRT_DEBUG when it was made
    PoolSettings settings
    size_t granule           # the least physical piece
    Foreign* foreign         # fixed; NULL: its memory is this allocator's own, else the rest is idle
    size_t limit             # most bytes to reserve
    uint64_t next_serial
    uint64_t next_page
    uint64_t allocations     # slow ones
    uint64_t search          # of wholly free pieces; the last one's mark
    bint finds_ranked        # it found those of heaps that are ranked, too
    Segment* first           # segments in order of serial, without windows
    Segment* last
    Page* first_page
    Page* last_page
    size_t stitched_size      # of addresses mapped in windows
    uint64_t stitched_count
    int64_t stitch_budget           # for windows, see policy.pyx; below 0 it is overdrawn
    int64_t budget_allocations           # allocations that are in it
    size_t refused           # the reserved bytes that the device last refused to slack; SIZE_MAX: none
    Heap* heaps
    Heap* last_heap
    int heap_count
    AddressMap heap_index    # by heap_key (metadata.pyx); heaps of one key are chained
    char* heap_slab          # records of heaps that were taken at once,
    int unused_heaps         # and how many of them are left
    Heap* spare_heaps        # whose private pools are gone, chained by sibling
    Heap* awake              # those that the exclusive section locks; a hit needs one of them
    int awake_count
    Heap* busy               # of the others, those whose free pages are not all settled
    Heap* unsearched         # and those whose free pages are to be marked
    Heap* ranked             # and those whose free pages are marked, by the largest block that holds any,
    size_t ranked_pages      # and how many bytes they have
    int64_t heaps_keeping_pages        # heaps with pages that linger
    bint risen               # a figure of a heap that is asleep rose: the ceilings are to be shared out anew
    bint peaked              # a peak changed since the ceilings were last set
    int64_t[2][PER_HEAP] asleep  # the sums over the heaps that are asleep
    int64_t[2][PER_HEAP] asleep_cumulative  # of what they made (stats.pxd)
    Heap* heap_table[2][HEAP_SLOTS + MAX_PROBES]  # by kind and stream; read without a lock
    PrivatePool* privates
    AddressMap private_index  # by the numbers of their ids
    PrivatePool* ending          # whose graphs are gone while replays may not be
    PrivatePool* only            # whose idle memory alone is being given back; NULL: everybody's that may
    Route* routes            # captures under way, and threads in pools of their own; the latest first
    uint64_t captures        # routes that are captures
    uint64_t routed          # routes that are threads; read without a lock
    Queues queues            # one a stream that was ever recorded
    uint64_t pending         # entries in the queues
    Offer* offers
    uintptr_t watch          # a stream of the pool's own, which waits for the events of offers; 0 before the first
    Block* deferred          # PENDING without events yet, chained by left
    Entry* spare_entries     # records to use again; their events are created and idle
    Entry* awaited           # whose event a thread waits for, all locks left: not to be used again meanwhile; or NULL
    Use* spare_uses
    const char* failed_identity       # the identity that a debug audit found violated
    uint64_t audited_hits    # calls that took the fast path and were audited; 0 at level 0
    uint64_t audited_cached  # of these, what the last-freed cache answered
    int64_t[2][PER_HEAP] total  # the sums over the heaps, while all of them are held
    int64_t[2][2] split_base  # total of INACTIVE_SPLIT and _BYTES that is counted; while nobody is inside, less total
    int64_t[2][PER_HEAP] freed_base  # allocated - freed, less current, of the sums
    Stats stats              # the current figures of the shared ones are not kept here
