# What the allocator is made of.  The fields of a heap and of its blocks are guarded by the heap's lock,
# everything else by the pool's mutex, whose holder has the locks of all heaps too (memory/world.pxd), unless
# a comment says otherwise.  The identities in memory/DESIGN.md are walked by invariants.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from accelrt.driver.table cimport Table
from accelrt.memory.foreign cimport Foreign
from accelrt.memory.stats cimport FIGURES, SHARED, Counter, Share, Stats

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)

cdef enum:  # Block.state
    FREE = 0      # in a free list of its heap
    LIVE = 1      # handed out
    PENDING = 2   # given back, until no stream uses it any more
    HOLE = 3      # one slot whose page serves another slot, or that has none

cdef enum:  # Segment.shape
    PLAIN = 0     # one allocation of the driver
    SPAN = 1      # addresses in which pages have their home; grows at its end
    WINDOW = 2    # addresses in which pages of spans are mapped a second time

cdef enum:
    CLASSES = 1600     # of free blocks by size; see freelist.pxd
    WORDS = 25         # of bits, one a class
    NEAR = 256         # places for the common heaps of streams,
    REACH = 8          # of which each may be in so many

# A stream other than the block's own that was said to use it.
cdef struct Use:
    uintptr_t stream
    Use* next

# A run of a segment.  size is a multiple of UNIT; the sizes of a segment's blocks add up to its own.
cdef struct Block:
    uintptr_t address
    size_t size
    size_t requested   # bytes asked for; 0 while free
    uint64_t order     # serial of the segment << 32 | offset / UNIT: the tie-break among equal sizes
    Segment* segment
    Heap* heap         # the segment's; fixed for a record's life, so that it may be read without a lock
    Block* before      # neighbour below, NULL at the segment's start
    Block* after       # neighbour above, NULL at the segment's end
    Block* left        # free list's tree; the chain of spare or deferred records
    Block* right
    Block** cell       # its place in the table of addresses, NULL until it was looked up
    Use* uses          # while LIVE, or PENDING and deferred
    uint32_t weight    # free list's tree; fixed for a record's life
    uint32_t events    # entries of the pending queues that name it
    uint32_t epoch     # of its heap, when the last of its bytes was freed
    short state
    short kind         # SMALL or LARGE, by the size that was handed out

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

# The free blocks of one stream in one set of addresses.  Never given back: another may take its record over.
cdef struct Heap:
    int lock
    bint quiet         # hits need nothing but this heap
    bint sole          # the only heap of its pool
    bint trusted       # its stream is one that lives as long as the process: it may be asked at any time
    uintptr_t stream
    Pool* pool
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
    bint lingers       # pages of other heaps are free in its windows until its stream's work is done
    Block* spare       # records to use again, chained by left
    Share[2] share
    int64_t[SHARED] ceiling_all  # as the shares' ceilings, for the sum of both kinds
    uint64_t summary   # which words of filled are not 0
    uint64_t filled[WORDS]  # which trees are not empty
    Block* trees[CLASSES]
    Segment* first_window
    Segment* last_window
    Fit* fits          # of its windows that are not spoiled, oldest first
    size_t fit_count
    size_t fit_room
    Segment* span      # the last one, which grows
    Heap* next         # of the pool

# The heaps that captures of one graph pool handle, or a MemPool, allocate from.
cdef struct Private:
    uint64_t[2] id
    int uses           # graphs, captures and MemPools that hold it; at 0 its segments may go back
    uint64_t segments
    size_t limit       # most bytes to reserve
    size_t reserved
    int rest           # since the last use ended the device is 1: being waited for, 2: waited for; no replay is left
    int64_t[FIGURES] peak  # of reserved bytes and segments, and of what is live; not of splits
    Private* next

# A capture under way, or a thread inside use_mem_pool: its allocations go to a private pool.
cdef struct Route:
    uint64_t capture   # the id that the driver gave it; 0 for a thread
    uint64_t thread    # see private.pyx; 0 for a capture
    Private* owner
    Route* next

# A block that was freed as of somebody's event: streams that wait for the event may take it at once.
cdef struct Offer:
    Block* block       # PENDING, with one entry in the queue of the pool's watch
    uint64_t record    # which record of the event: no other one will do
    Use* takers
    Offer* next

# Entry of the queue of one stream: the block may be in use until the event is complete.
cdef struct Entry:
    uintptr_t event
    Block* block
    Entry* next

cdef struct Queue:
    uintptr_t stream
    Entry* head        # oldest
    Entry* tail
    Queue* next

# What the settings string says, as the pool reads it; sizes in bytes.
cdef struct Policy:
    bint virtual_memory
    bint stitching
    double slack       # of the peak of live bytes
    size_t piece       # 0: by what is reserved
    size_t max_split   # plain blocks above are never split; SIZE_MAX where there is no such limit
    size_t large_segment
    size_t max_rounding  # how much larger than asked a block above max_split may be
    double collect     # of the limit; 0: never
    double fraction    # of the device's memory that pools may reserve
    bint rounds        # divisions hold one that is not 0
    unsigned char[64] divisions  # steps between a power of two and the next, by the lower one's exponent; 0: none

# One device's allocator.  reserved = live + pending + free, in bytes.
cdef struct Pool:
    pthread_mutex_t lock     # inner; held for bookkeeping and calls that cannot wait
    pthread_mutex_t growth   # outer; held by the one thread that takes from or gives to the device
    Table* table             # fixed
    int device               # fixed
    int debug                # ACCELRT_DEBUG when it was made
    Policy policy
    size_t granule           # the least physical piece
    Foreign* foreign         # fixed; NULL: its memory is this allocator's own, else the rest is idle
    size_t limit             # most bytes to reserve
    uint64_t next_serial
    uint64_t next_piece
    uint64_t allocations     # slow ones
    uint64_t search          # of wholly free pieces; the last one's mark
    Segment* first           # segments in order of serial, without windows
    Segment* last
    Piece* first_piece
    Piece* last_piece
    size_t window_bytes      # of addresses mapped in windows
    uint64_t windows
    Heap* heaps
    int heap_count
    Heap* near[2][NEAR + REACH]  # by kind and stream; read without a lock
    Private* privates
    Route* routes            # captures under way, and threads in pools of their own; the latest first
    uint64_t captures        # routes that are captures
    uint64_t routed          # routes that are threads; read without a lock
    Queue* queues            # one a stream that was ever recorded
    uint64_t pending         # entries in the queues
    Offer* offers
    uintptr_t watch          # a stream of the pool's own, which waits for the events of offers; 0 before the first
    Block* deferred          # PENDING without events yet, chained by left
    Entry* spare_entries     # records to use again; their events are created and idle
    Use* spare_uses
    const char* broken       # the identity that a debug audit found violated
    int64_t[2][SHARED] total  # the sums over the heaps, while all of them are held
    int64_t[2][2] split_base  # total of INACTIVE_SPLIT and _BYTES that is counted; while nobody is inside, less total
    int64_t[2][SHARED] freed_base  # allocated - freed, less current, of the sums
    Stats stats              # the current figures of the shared ones are not kept here
