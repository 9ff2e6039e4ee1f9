# What the allocator is made of.  Every field is guarded by its pool's lock unless its comment says
# otherwise.  The identities in memory/DESIGN.md are walked by invariants.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from accelrt.driver.table cimport Table
from accelrt.addresses cimport AddressMap
from accelrt.memory.foreign cimport Foreign
from accelrt.memory.stats cimport Stats

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_trylock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)

cdef enum:  # Block.state
    FREE = 0      # in one free list of its heap
    LIVE = 1      # in the address table
    PENDING = 2   # given back, in the address table until no stream uses it any more
    LEAVING = 3   # a whole segment on its way back to the device, in no list

# A stream other than the block's own that was said to use it.
cdef struct Use:
    uintptr_t stream
    Use* next

# A run of a segment.  size is a multiple of UNIT; the neighbours' sizes and its own add up to the segment's.
cdef struct Block:
    uintptr_t address
    size_t size
    size_t requested   # bytes asked for; 0 while free
    uint64_t order     # serial of the segment << 32 | offset / UNIT: the tie-break among equal sizes
    Segment* segment   # whose heap it returns to
    Block* before      # neighbour below, NULL at the segment's start
    Block* after       # neighbour above, NULL at the segment's end
    Block* left        # free list's tree; the chain of spare records
    Block* right
    Use* uses          # while LIVE, or PENDING and deferred
    uint32_t weight    # free list's tree; fixed for a record's life
    uint32_t events    # entries of the pending queues that name it
    int state

# What one driver call took from the device: bytes [address, address + size), all in its blocks.
cdef struct Segment:
    uintptr_t address
    size_t size
    uint64_t serial
    int kind           # SMALL or LARGE
    Heap* heap         # the heap that asked for it; its blocks return there
    Block* first       # the block at its start
    Segment* before    # the pool's segments in order of serial
    Segment* after

# The free blocks of one stream in one set of addresses.  Lives as long as its owner.
cdef struct Heap:
    uintptr_t stream
    Block* free[2]     # roots of the trees, by kind
    Private* owner     # NULL in the common heaps

# The heaps that captures of one graph pool handle allocate from.
cdef struct Private:
    uint64_t[2] id
    int uses           # graphs and captures that hold it; at 0 its segments may go back
    uint64_t segments
    AddressMap heaps   # stream -> Heap
    Private* next

# A capture under way: allocations of its streams go to a private pool.
cdef struct Route:
    uint64_t capture   # the id that the driver gave it
    Private* owner
    Route* next

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

# One device's allocator.  reserved = live + pending + free, in bytes.
cdef struct Pool:
    pthread_mutex_t lock     # inner; held for bookkeeping and calls that cannot wait
    pthread_mutex_t growth   # outer; held by the one thread that takes from or gives to the device
    Table* table             # fixed
    int device               # fixed
    int debug                # ACCELRT_DEBUG when it was made
    Foreign* foreign         # fixed; NULL: its memory is this allocator's own, else the rest is idle
    bint quiet               # own memory, nothing pending, no capture, no debug: a hit needs no driver call
    size_t limit             # most bytes to reserve
    uint64_t next_serial
    Segment* first           # segments in order of serial
    Segment* last
    AddressMap blocks        # address -> Block, live and pending
    AddressMap heaps         # stream -> Heap of the common ones
    Heap* recent             # the heap found last
    Private* privates
    Route* routes            # captures under way
    Queue* queues            # one a stream that was ever recorded
    uint64_t pending         # entries in the queues
    Block* deferred          # PENDING without events yet, chained by left
    Block* spare_blocks      # records to use again, chained by left
    Entry* spare_entries     # records to use again; their events are created and idle
    Use* spare_uses
    uint32_t seed            # of the weights
    const char* broken       # the identity that a debug audit found violated
    int64_t split_blocks     # net change of the operation under way; 0 between operations
    int64_t split_bytes
    Stats stats
