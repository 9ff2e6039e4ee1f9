# The host device's streams, events and captures: what they are made of, under one lock.
#
# Work waits for tickets: a record makes one; waits, synchronisation and the legacy stream's implicit order hold it.
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove, memset

from accelrt.driver.host.frontier cimport Frontier
from accelrt.driver.host.ranges cimport UNKNOWN_MEMORY, owner_of
from accelrt.driver.host.shared_event cimport SharedEvent, drop_shared_event
from accelrt.driver.table cimport host_fn
from accelrt.driver.guard cimport pthread_cond_t

cdef enum:  # kinds of work
    COPY = 0
    FILL = 1
    CALL = 2      # a host function
    REPLAY = 3    # every node of a plan, in order; never a node itself
    RECORD = 4    # marks a ticket done; as a node, that of the launch for an event
    WAIT = 5      # goes on when a ticket is done; as a node, that which an event had at the launch
    SET = 6       # a condition becomes what memory holds; only ever a node, as is the next
    BRANCH = 7    # runs a body if, or while, its condition is not 0
    COPY_3D = 8   # a copy of slices of rows
    KERNEL = 9

cdef enum:  # Work.known
    DST_KNOWN = 1
    SRC_KNOWN = 2

cdef struct Ticket:
    int holders
    bint done
    double time_ms  # when it was marked, on the monotonic clock
    SharedEvent* shared  # one of its holders: an event that other processes have too, and
    uint64_t number      # which record of that this is; NULL where it is this process's own

cdef struct Condition:
    unsigned int value  # one launch that reads it runs at a time; its address is the handle, where kernels set it
    int holders         # its graph, and every node that names it
    Condition* next     # of the same graph

# What a kernel is told of the block that it is called for: accelrt_block of kernels/DESIGN.md.
cdef struct Block:
    unsigned int[3] grid       # blocks in the grid
    unsigned int[3] block      # threads in a block
    unsigned int[3] index      # which block
    unsigned int shared_bytes
    void* shared               # so many bytes of this launch alone; NULL for none
    int* failed                # set by a kernel that fails: the device is lost

ctypedef void (*kernel_fn)(const Block* where, void** arguments) noexcept nogil

cdef struct HostFunction:
    uintptr_t handle
    HostModule* module
    kernel_fn fn
    char* name
    size_t count       # parameters, each of
    size_t* sizes      # bytes, at
    size_t* offsets
    int most_shared    # bytes of dynamic shared memory that a launch may have
    HostFunction* next  # of the module

cdef struct HostModule:
    uintptr_t handle
    int device
    int holders        # 1 until it is unloaded, and one for each launch in a queue or a graph
    void* library      # dlopen's; NULL where a pointer was registered
    HostFunction* functions
    HostModule* next   # unused, and not closed yet

cdef struct Launch:
    int holders        # operations and nodes
    HostFunction* function
    unsigned int[3] grid
    unsigned int[3] block
    unsigned int shared_bytes
    void** arguments   # pointers to copies of the values

cdef struct Side:      # of a COPY_3D
    size_t pitch       # bytes from row to row
    size_t lines       # pitches from slice to slice
    size_t span        # bytes from the first row's begin to the last one's end

cdef struct Work:
    int kind
    uintptr_t dst
    uintptr_t src
    size_t size        # bytes of a COPY, elements of a FILL, bytes of a row of a COPY_3D
    size_t height      # rows of a slice
    size_t depth       # slices
    Side to            # of a COPY_3D
    Side origin
    unsigned int value
    int width
    host_fn fn
    void* data
    uintptr_t event    # of a RECORD or WAIT that is a node
    Plan* plan         # of a REPLAY, one of its holders; of a plan's BRANCH, its body
    Graph* body        # of a graph's BRANCH, which owns it
    Condition* condition  # of a SET or a BRANCH, one of its holders
    Launch* launch     # of a KERNEL, one of its holders
    bint repeats       # a BRANCH that runs while, not if
    int known          # DST_KNOWN, SRC_KNOWN: memory that the driver knew, and has to know when it runs
    bint across        # a COPY of copy_peer or copy_across, which no capture takes

cdef struct Operation:
    Work work
    Ticket* ticket     # one of its holders
    void* staged       # freed after use: a copy of pageable source bytes; of a REPLAY, a Ticket* for each node
    Operation* next

cdef struct Node:
    uintptr_t handle
    Work work
    Frontier after

cdef struct Plan:      # an instantiated graph, fixed
    int holders
    Node* nodes        # in an order that respects every dependency
    int count

cdef struct Graph:
    Node* nodes
    int count
    int capacity
    Graph* within      # whose body it is; NULL for a graph of its own
    uintptr_t handle   # of a body
    Condition* conditions  # made for its nodes

cdef struct Capture:
    uint64_t id
    HostStream* origin
    int mode
    uint64_t thread    # that began it
    bint broken
    bint ending        # a thread is in capture_end, where a delay lets others come between
    bint unjoined      # a stream that had joined it was destroyed
    Graph* graph       # NULL where it was another's body, and that one is gone
    HostStream* streams  # all that are in it, chained by captured
    Capture* next

cdef struct HostStream:
    uintptr_t handle
    int device
    unsigned int flags
    int priority
    Operation* head    # the one being executed, until it is done
    Operation* tail
    bint busy          # a worker thread serves it
    bint dropped       # destroyed by its owner; freed when drained
    pthread_cond_t wake
    Capture* capture
    HostStream* captured  # the next stream of the same capture
    Frontier frontier  # within the capture
    HostStream* before  # streams that have operations
    HostStream* after

cdef struct HostEvent:
    uintptr_t handle
    int device
    unsigned int flags
    Ticket* ticket     # of the last record; NULL if never, or if that was captured
    uint64_t capture   # id of the capture that holds the last record, or 0
    Frontier frontier
    SharedEvent* shared  # one of its holders; NULL unless it was made for several processes

cdef HostStream* working  # the first of those that have operations, dropped ones too; guarded by the lock

cdef void queue_open(long delay_us, long end_delay_us) noexcept nogil
cdef void lock() noexcept nogil
cdef void unlock() noexcept nogil

# All of the following under the lock.
cdef uintptr_t new_handle() noexcept nogil
cdef HostStream* add_stream(int device, unsigned int flags, int priority) noexcept nogil
cdef HostStream* find_stream(int device, uintptr_t stream) noexcept nogil  # NULL where it is none of the device's
cdef HostStream* find_of_any_device(int device, uintptr_t stream) noexcept nogil  # a default stream: of device
cdef void drop_stream(HostStream* stream) noexcept nogil
cdef bint is_legacy(const HostStream* stream) noexcept nogil
cdef size_t count_streams() noexcept nogil
cdef HostStream* peek_stream(int device, uintptr_t stream) noexcept nogil  # for what may be asked while a capture ends
cdef size_t count_gone_calls() noexcept nogil  # that named a destroyed stream
cdef size_t count_calls_beside_ends() noexcept nogil
cdef void note_beside_end(const Capture* capture) noexcept nogil  # a call is about it, or an event of it; or NULL
cdef bint hold_end_open(HostStream* stream) noexcept nogil  # opens the lock while it waits; whether it did
cdef void delay_ends(long delay_us, bint hold) noexcept nogil  # hold: until it is called again
cdef int count_held_ends() noexcept nogil
cdef size_t count_operations() noexcept nogil
cdef int enqueue(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil
cdef Ticket* mark(HostStream* stream, int* out_code) noexcept nogil  # NULL where nothing is left to do
cdef int follow_legacy_order(HostStream* stream) noexcept nogil
# A ticket that is marked when a record of another process is done: a thread of its own sleeps on that.  NULL: no memory.
cdef Ticket* follow_shared(SharedEvent* event, uint64_t number) noexcept nogil
cdef int wait_for(Ticket* ticket) noexcept nogil  # 0 or INTERRUPTED; opens the lock while it waits
cdef int drain_device(int device) noexcept nogil   # -1 is all; opens the lock while it waits
cdef void drop_plan(Plan* plan) noexcept nogil
cdef void drop_condition(Condition* condition) noexcept nogil
cdef void drop_launch(Launch* launch) noexcept nogil
cdef void drop_module(HostModule* module) noexcept nogil
cdef HostModule* take_unused_modules() noexcept nogil  # for the caller to close, without the lock


cdef inline Ticket* new_ticket() noexcept nogil:
    # With one holder; NULL where there is no memory.  Not by calloc, which takes no block from the thread's own cache.
    cdef Ticket* made = <Ticket*>malloc(sizeof(Ticket))
    if made != NULL:
        memset(made, 0, sizeof(Ticket))
        made.holders = 1
    return made


cdef inline Ticket* hold_ticket(Ticket* ticket) noexcept nogil:
    if ticket != NULL:
        ticket.holders += 1
    return ticket


cdef inline void drop_ticket(Ticket* ticket) noexcept nogil:
    if ticket == NULL:
        return
    ticket.holders -= 1
    if ticket.holders == 0:
        drop_shared_event(ticket.shared)
        free(ticket)


cdef inline void drop_tickets(Ticket** tickets, int count) noexcept nogil:
    cdef int index
    for index in range(count):
        drop_ticket(tickets[index])


# What the host device's work does to bytes.

cdef inline void copy_rows(const Work* work) noexcept nogil:
    cdef size_t slice_, row
    for slice_ in range(work.depth):
        for row in range(work.height):
            memmove(<void*>(work.dst + (slice_ * work.to.lines + row) * work.to.pitch),
                    <const void*>(work.src + (slice_ * work.origin.lines + row) * work.origin.pitch), work.size)


cdef inline void fill_memory(const Work* work) noexcept nogil:
    cdef size_t index
    if work.width == 1:
        memset(<void*>work.dst, work.value, work.size)
    elif work.width == 2:
        for index in range(work.size):
            (<unsigned short*>work.dst)[index] = work.value
    else:
        for index in range(work.size):
            (<unsigned int*>work.dst)[index] = work.value


cdef inline bint touches_nothing(const Work* work) noexcept nogil:
    # A replay may come when the memory that was captured is gone.
    cdef size_t size = work.size * work.width if work.kind == FILL else work.size
    cdef bint pitched = work.kind == COPY_3D
    if work.known & DST_KNOWN and owner_of(work.dst, work.to.span if pitched else size) == UNKNOWN_MEMORY:
        return True
    return work.known & SRC_KNOWN and owner_of(work.src, work.origin.span if pitched else size) == UNKNOWN_MEMORY


# What the host device's work does when its turn comes.

cdef void perform(const Work* work, const void* staged, int device) noexcept nogil  # on a worker, without the lock
cdef void clear_conditions(const Plan* plan) noexcept nogil  # when a launch begins
cdef int lost_device() noexcept nogil    # 0, or 1 + the device whose work touched memory that is gone, or failed
cdef int lost_code() noexcept nogil      # what it answers from then on
cdef bint in_callback() noexcept nogil   # the calling thread runs a host function

# Threads that help with kernels.
cdef enum:
    MOST_CREW = 64

cdef void crew_open(int wanted) noexcept nogil  # 0: as many as the process may use processors
