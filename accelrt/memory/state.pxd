# One device's allocator, and what it waits for.  Guarded by the pool's mutex, unless a comment says otherwise.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.addresses cimport AddressMap
from accelrt.driver.table cimport Table
from accelrt.memory.block cimport Block, Heap, Piece, Segment, Use
from accelrt.memory.foreign cimport Foreign
from accelrt.memory.queues cimport Entry, Queue
from accelrt.memory.stats cimport SHARED, Stats
from accelrt.memory.terms cimport Policy, Private, Route
from accelrt.mutex cimport pthread_mutex_t

cdef enum:
    NEAR = 256         # places for the common heaps of streams,
    REACH = 8          # of which each may be in so many

# A block that was freed as of somebody's event: streams that wait for the event may take it at once.
cdef struct Offer:
    Block* block       # PENDING, with one entry in the queue of the pool's watch
    uint64_t record    # which record of the event: no other one will do
    Use* takers
    Offer* next

# One device's allocator.  reserved = live + pending + free, in bytes.
cdef struct Pool:
    pthread_mutex_t lock     # inner; held for bookkeeping and calls that cannot wait
    pthread_mutex_t growth   # outer; held by the one thread that takes from or gives to the device
    Table* table             # fixed
    int device               # fixed
    Pool* whole              # fixed; itself, or where it stands in for an audited pool, that pool; NULL: not made
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
    int64_t credit           # for windows, see credit.pyx; below 0 it is overdrawn
    int64_t earned           # allocations that are in it
    size_t refused           # the reserved bytes that the device last refused to slack; SIZE_MAX: none
    Heap* heaps
    Heap* last_heap
    int heap_count
    AddressMap heap_index    # by heap_key (records.pyx); heaps of one key are chained
    char* heap_slab          # records of heaps that were taken at once,
    int unused_heaps         # and how many of them are left
    Heap* spare_heaps        # whose private pools are gone, chained by sibling
    Heap* awake              # those that the world locks; a hit needs one of them
    int awake_count
    Heap* paged              # of the others, all that have free pages, and some that had
    int64_t lingering        # heaps with pages that linger
    bint risen               # a figure of a heap that is asleep rose: the ceilings are to be shared out anew
    int64_t asleep_made      # allocations in heaps that are asleep
    int64_t[2][SHARED] asleep  # the sums over the heaps that are asleep
    Heap* near[2][NEAR + REACH]  # by kind and stream; read without a lock
    Private* privates
    AddressMap private_index  # by the numbers of their ids
    Private* ending          # whose graphs are gone while replays may not be
    Private* only            # whose idle memory alone is being given back; NULL: everybody's that may
    Route* routes            # captures under way, and threads in pools of their own; the latest first
    uint64_t captures        # routes that are captures
    uint64_t routed          # routes that are threads; read without a lock
    Queue* queues            # one a stream that was ever recorded
    uint64_t pending         # entries in the queues
    Offer* offers
    uintptr_t watch          # a stream of the pool's own, which waits for the events of offers; 0 before the first
    Block* deferred          # PENDING without events yet, chained by left
    Entry* spare_entries     # records to use again; their events are created and idle
    Entry* awaited           # whose event a thread waits for, the world left: not to be used again meanwhile; or NULL
    Use* spare_uses
    const char* broken       # the identity that a debug audit found violated
    uint64_t audited_hits    # calls that took the fast path and were audited; 0 at level 0
    uint64_t audited_swings  # of these, what a swing answered
    int64_t[2][SHARED] total  # the sums over the heaps, while all of them are held
    int64_t[2][2] split_base  # total of INACTIVE_SPLIT and _BYTES that is counted; while nobody is inside, less total
    int64_t[2][SHARED] freed_base  # allocated - freed, less current, of the sums
    Stats stats              # the current figures of the shared ones are not kept here


cdef inline bint is_of(const Block* block, const Pool* pool) noexcept nogil:
    # May be asked without a lock, as a record stays with its heap and a heap with its pool.
    return block.heap.policy == &pool.policy
