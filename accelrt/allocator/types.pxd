# The allocator's records: blocks, pages, slots, segments, heaps, and a device's pool.  Those of its settings are in
# pool_settings.pxd, those of private pools and routes in private/private_types.pxd, those of its history in
# history_types.pxd.
#
# A heap's lock guards the heap's fields and its blocks, the pool's mutex (Pool.lock) everything else, unless a comment
# says otherwise.  A thread in the exclusive section (heaps.pxd) may read and write all of them.  audit.pyx checks
# the identities of DESIGN.md.
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.core.locks cimport pthread_mutex_t
from accelrt.driver.table cimport Table
from accelrt.allocator.history_types cimport History
from accelrt.allocator.pool_settings cimport PoolSettings
from accelrt.allocator.private.private_types cimport PrivatePool, Route, Source
from accelrt.allocator.stats cimport COUNTS, PER_HEAP, HeapStats, Stats
from accelrt.allocator.external.external_types cimport ExternalPool
from accelrt.driver.guard cimport PooledEvent, Queues, Use, UseStore

cdef enum:  # Block.state
    FREE = 0     # in a free list of its heap
    LIVE = 1     # handed out
    PENDING = 2  # freed, but another stream may still use it
    HOLE = 3     # one slot whose page is resident elsewhere or nowhere, or was released
    CACHED = 4   # freed to the last-freed cache (fast_path.pxd); made FREE before any other operation in its heap

cdef enum:  # Segment.splits, of plain segments
    BY_KIND = 0   # where the rest is worth splitting off
    ANY_REST = 1
    NO_REST = 2

cdef enum:  # Segment.shape
    PLAIN = 0       # one allocation of the driver
    EXPANDABLE = 1  # addresses where pages are first mapped; grows at its end
    STITCHED = 2    # addresses where pages of expandable segments are mapped a second time

cdef enum:
    CLASSES = 1600  # size classes of free blocks; see free_list.pxd
    WORDS = 25      # words of a bit set with one bit a class
    SIZES_KEPT_BITS = 10
    SIZES_KEPT = 1 << SIZES_KEPT_BITS

# A run of a segment.  size is a multiple of UNIT; the sizes of a segment's blocks add up to the segment's size.  Two cache
# lines: the first has all that the last-freed cache needs, and most of what the fast path reads.
cdef struct Block:
    uintptr_t address
    size_t size
    size_t requested    # bytes requested; 0 while free
    Heap* heap          # the segment's; fixed for the record's life
    Use* uses           # by other streams than its own, while LIVE, or PENDING and deferred
    Segment* segment
    short state
    short kind          # SMALL or LARGE, by the size that was handed out
    uint32_t epoch      # the heap's, when the last of its bytes was freed
    Block* before       # the neighbour below; NULL at the segment's start
    Block* after        # the neighbour above; NULL at the segment's end
    Block* left         # in the free list's tree; next of the spare or deferred records
    Block* right        # in the free list's tree
    uint64_t order      # serial of the segment << 32 | offset / UNIT; breaks ties among equal sizes
    uint32_t weight     # priority in the free list's tree; fixed for the record's life
    uint32_t events     # queued ones that name it
    int index           # the class of the free list that it is in, while it is in one
    uint32_t stack      # of the allocation, while LIVE or PENDING (event_ring.pxd); 0: not taken
    uint32_t tag        # likewise
    uint32_t[3] filler  # up to the end of the second line

# Physical memory, created in one call.  It is mapped in one slot of an expandable segment and any number of slots of
# stitched segments, and resident in at most one of them: only there may a block other than a HOLE contain its bytes.
cdef struct Page:
    uintptr_t handle  # 0: the device has the memory back (suspended)
    uint64_t serial  # identifies the page; the driver uses handles again
    size_t size
    Slot* resident   # where its bytes are in use; NULL while it is evicted
    Slot* primary    # its slot in an expandable segment
    Slot* slots      # all slots that it is mapped in
    bint shareable   # other processes can map it
    uint32_t exports  # how often it is exported now (pool.pyx)
    bint suspended   # its memory was given back, and it is mapped nowhere, until its pool is resumed
    Block* cover     # the covering block: at or before resident, in its segment's list; valid while mark is current
    uint64_t mark    # the search that last found it wholly free
    Heap* guard      # while it is guarded: the heap whose stream may still use it, from which it went home unasked; or NULL
    Slot* guard_slot       # where it was free in that heap
    uint32_t guard_epoch   # that heap's when it was freed
    Page* guard_before     # the pool's guarded pages, the latest first
    Page* guard_after
    Page* before     # the pool's pages, in the order in which they were created
    Page* after

cdef struct Slot:
    uintptr_t address
    Segment* segment
    Page* page    # NULL after the page was released: the addresses stay
    Block* hole   # the block over it while its page is not resident here
    size_t size
    bint mapped
    Slot* before  # the slots of the same page
    Slot* after

# Addresses [address, address + size), each in exactly one of its blocks.
cdef struct Segment:
    uintptr_t address
    size_t size
    size_t held          # bytes of addresses that it has, mapped or not
    uint64_t serial
    int shape
    int kind             # SMALL or LARGE; LARGE unless PLAIN
    int splits           # of a plain one: what rest of its blocks is split off
    const Source* source  # of a plain one: where it came from; NULL: the driver
    bint incomplete      # a stitched segment that lost a page, or is being dropped: not used again
    Heap* heap           # the heap whose free lists its blocks return to
    Block* first         # the block at its start
    Block* last
    Slot** slots         # by address; NULL if PLAIN
    size_t slot_count
    size_t slot_capacity
    size_t evicted       # slots of a stitched segment whose pages are not resident there
    size_t least_slot    # size of its smallest slot
    uint32_t stack       # of the allocation that made it; 0: not taken
    uint32_t used        # STITCHED: the heap's epoch when the last of its bytes was freed
    uint64_t idle_since  # PLAIN: Pool.allocations when it last became one free block
    Segment* before      # the pool's segments in order of serial; stitched ones in their heap's list
    Segment* after

# Addresses that the driver reserved in one call, of which segments take runs of granules.
cdef struct Reservation:
    uintptr_t address
    size_t granules
    size_t taken         # granules that segments have
    Reservation* after   # in the order of their making
    uint64_t[1] used     # a bit for each granule, in as many words as it takes

# Slots of a stitched segment in a row as reuse_stitched searches for them, for sizes from least to most; in an array, to
# read few cache lines.
cdef struct Fit:
    size_t least
    size_t most
    Segment* stitched
    size_t first   # the number of the first slot
    size_t count   # of slots
    Page* missing  # one of their pages that the last check found not free; NULL: none

# The free blocks of one stream in one pool or private pool.  Its record is never freed, but a later heap may reuse it.
cdef struct Heap:
    int lock                      # a spin lock
    bint fast                     # the fast path may use it: an operation needs nothing but this heap
    bint sole                     # the only heap of its pool
    bint trusted                  # its stream lives as long as the process, so it may be queried at any time
    const PoolSettings* settings  # its pool's; no other pool has the same address
    Block* cached                 # the last-freed cache: a LIVE or CACHED block, or NULL; NULL in the exclusive section
    int64_t cached_rounds         # how often it was allocated from the cache
    AddressMap blocks             # its LIVE, CACHED and PENDING blocks by address (inline/block_map.pxd)
    PrivatePool* owner            # NULL for a common heap
    int kind                      # of its plain segments; LARGE with virtual memory, where one heap serves both kinds
    uint32_t seed                 # of the weights of its blocks
    uint64_t pending              # its blocks that are freed but that another stream may still use
    uint64_t offered              # blocks of any heap that its stream may claim
    uint32_t epoch                # given to blocks that are freed now
    uint32_t last_freed           # the epoch of its last free
    uint32_t waited               # the last epoch that ended before the wait for the device began
    uint32_t quiescent_epoch      # no work of its stream uses blocks freed up to this epoch
    uint32_t progress_epoch       # becomes the quiescent epoch when progress_event is complete
    PooledEvent* progress_event   # recorded on the stream, or NULL
    bint awake                    # else its statistics are in Pool.asleep, and neither the fast path nor lock_all uses it
    Heap* next_awake              # of those that are awake
    bint stale                    # update_headroom has to follow: a limit changed, or what is pending
    int64_t seen                  # headroom of BLOCKS, both kinds, when the exclusive section was last left
    uint32_t rounds_idle          # entries of the exclusive section in a row without a hit in between
    int filed                     # while asleep: which of the pool's collections has it (heaps.pxd)
    Heap* filed_after             # next in that list, or a child in that tree
    size_t gaps                   # slots of its expandable segments whose pages were released
    uint64_t guards               # its free pages that other heaps guard: no hit until their streams were asked
    uint64_t guarding             # pages of other heaps that it guards
    bint keeps_pages              # pages of other heaps are free in its stitched segments until its stream's work is done
    Block* spare                  # records to reuse, chained by left
    const Block* freed_last       # freed by the last hit, if it did not merge downwards; NULL: none
    size_t freed_last_size        # of the block that the last hit freed, before it merged; 0 in the exclusive section
    HeapStats[3] stats            # SMALL, LARGE, BOTH
    uint32_t page_changes         # how often a free block of PAGED and above was listed or taken out
    uint64_t summary              # which words of filled are not 0
    uint64_t filled[WORDS]        # which trees are not empty
    Block* trees[CLASSES]
    Segment* first_stitched
    Segment* last_stitched
    Fit* fits                     # of its stitched segments, in the order in which they were first used
    size_t fit_count
    size_t fit_capacity
    Segment* expandable           # the last one, which grows
    size_t moves                  # scratch while a segment is stitched: pages that are evicted from this heap
    Heap* filed_before            # see filed_after
    uint64_t found                # the search that last marked its free pages
    uint64_t confirmed            # the search that last marked them, or saw that the marks still hold
    uint32_t marked_changes       # page_changes when they were marked
    bint marked_all               # those of all its free blocks were marked
    size_t pages                  # bytes of the free pages that it marked
    size_t stuck                  # those of the rest of its free blocks, but for blocks smaller than a granule
    size_t top_size               # the largest block that holds one; among equals the first by order
    uint64_t top_order            # the order of that block
    int64_t[2][COUNTS] excess     # by kind: how far the peaks rose for it beyond what was live (inline/fast_path.pxd)
    Heap* next                    # in Pool.heaps
    Heap* sibling                 # next of the same private pool, or of Pool.spare_heaps
    Heap* same_key                # next with the same key in Pool.heap_index
    uintptr_t stream              # apart from what hits write: threads read it where another stream has the same hash value

cdef enum:
    HEAP_SLOTS = 256  # hash values of the heap table
    MAX_PROBES = 8    # places, from its hash value on, in which a heap may be

# A block that was freed as of an event of the caller: streams that wait for the event may claim it at once.
cdef struct Offer:
    Block* block     # PENDING, with one entry in the queue of Pool.watch
    uint64_t record  # which record of the event; no other record counts
    Use* claimants
    Offer* next

# One device's allocator.  reserved + sleeping = live + pending + free + the pages that are resident nowhere, in bytes.
cdef struct Pool:
    pthread_mutex_t lock             # inner; held for bookkeeping and calls that cannot wait
    pthread_mutex_t growth           # outer; held by the one thread that takes memory from the device or releases it
    Table* table                     # fixed
    int device                       # fixed
    Pool* whole                      # fixed; itself; in a stand-in, the pool that it stands for; NULL: this pool is not made
    Pool* stand_in                   # made when it is first needed, and never freed; NULL: none yet
    History* history                 # made when it is first needed; NULL: nothing is recorded, and no tag was ever used
    int debug                        # ACCELRT_DEBUG when it was made
    PoolSettings settings
    size_t granule                   # the smallest page, in bytes
    uint64_t peers                   # other devices that may use its pages, a bit each; under the growth lock
    bint stays_open                  # to those, without pages too; under the growth lock
    ExternalPool* external           # fixed; NULL: memory is this allocator's own; else the fields below are unused
    size_t limit                     # most bytes to reserve
    size_t room                      # addresses of each new expandable segment; 0: as it comes (backing/pages.pyx)
    uint64_t next_serial
    uint64_t next_page
    uint64_t allocations             # in the slow path
    uint64_t search                  # the number of the last search for wholly free pages
    bint finds_ranked                # that search also found the pages of ranked heaps
    size_t stuck                     # bytes of the free blocks that it saw outside the pages that it marked
    bint fits_closely                # they are many, so pages are made and chosen to leave less, by more calls of the driver
    Segment* first                   # segments in order of serial, without stitched ones
    Segment* last
    Reservation* reservations        # of addresses; under the growth lock
    Page* first_page
    Page* last_page
    uint64_t stitched_count
    int64_t stitch_budget            # see backing/stitching.pyx; below 0: over budget
    int64_t budget_allocations       # allocations that the budget has earned from
    uint32_t[SIZES_KEPT] past_sizes  # in units, of requests that looked for pages, by a hash
    int recurring                    # lately, such requests whose size was among these
    int novel                        # and the others
    int64_t call_credit              # earned by allocations, and spent on calls of the driver's virtual memory
    int64_t paid_calls               # those of Stats.virtual_memory_calls that were subtracted from it
    size_t refused                   # reserved bytes that the device last refused within the growth slack; SIZE_MAX: none
    Heap* heaps
    Heap* last_heap
    int heap_count
    AddressMap heap_index            # by heap_key (heaps.pyx); heaps of one key are chained
    char* heap_slab                  # records of heaps that were allocated together
    int unused_heaps                 # how many of them are left
    Heap* spare_heaps                # heaps of private pools that are gone, chained by sibling
    Heap* awake                      # the heaps that the exclusive section locks; the fast path uses only these
    int awake_count
    Heap* busy                       # sleeping heaps whose free blocks are not all quiescent
    Heap* unsearched                 # sleeping heaps whose free pages are not marked yet
    Heap* ranked                     # sleeping heaps whose free pages are marked: a tree, by the largest block with one
    size_t ranked_pages              # bytes of the marked pages of all ranked heaps
    size_t ranked_stuck              # sum of their Heap.stuck
    int64_t heaps_keeping_pages      # heaps with keeps_pages
    Page* guarded                    # pages that went home before the stream that freed them was asked
    uint64_t guarding                # their count
    bint risen                       # a statistic of a sleeping heap rose: the limits have to be distributed again
    bint peaked                      # a peak changed since the limits were last set
    int64_t[2][PER_HEAP] asleep      # sums over the sleeping heaps
    int64_t[2][PER_HEAP] asleep_cumulative  # sums of their cumulative counts (stats.pxd)
    Heap* heap_table[2][HEAP_SLOTS + MAX_PROBES]  # common heaps by kind and stream; read without a lock
    PrivatePool* privates
    AddressMap private_index         # by their ids
    PrivatePool* ending              # private pools whose graphs are destroyed while replays may be running
    PrivatePool* only                # the one private pool whose idle memory is being released; NULL: all that may be
    bint only_ended                  # only that of private pools without a use is
    size_t ended                     # bytes that private pools without a use have reserved
    size_t ended_kept                # those that could not be given back when it was tried last
    Route* routes                    # the latest first
    uint64_t captures                # routes that are captures
    uint64_t routed                  # routes that are threads; read without a lock
    Queues queues                    # one for each stream on which events were recorded
    Offer* offers
    uintptr_t watch                  # a stream of the pool that waits for the events of offers; 0 before the first
    Block* deferred                  # PENDING, with events still to be recorded, chained by left
    PooledEvent* awaited             # a thread waits for its event, unlocked: not to be reused or recorded again; or NULL
    UseStore uses                    # of blocks and of offers
    const char* failed_identity      # the identity that a debug audit found to fail; NULL: none
    uint64_t audited_hits            # calls that took the fast path and were audited; 0 at level 0
    uint64_t audited_cached          # those of them that the last-freed cache served
    int64_t[2][PER_HEAP] total       # sums over all heaps, while the exclusive section is held
    int64_t[2][2] split_base         # totals of INACTIVE_SPLIT and _BYTES that are counted; outside the section, less total
    int64_t[2][PER_HEAP] freed_base  # totals at the last reset_accumulated: freed = allocated - current + freed_base
    Stats stats                      # without the current values of the per-heap statistics
