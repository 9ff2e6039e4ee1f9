# What the host device's queues, captures and graphs are made of, all under the queue's lock.
# Work waits for tickets: a record makes one; waits, synchronisation and the legacy stream's implicit order hold it.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from accelrt.core.descriptors cimport KeptFile
from accelrt.core.threads cimport pthread_cond_t
from accelrt.driver.node_params cimport EdgeData
from accelrt.driver.table cimport host_fn
from accelrt.status cimport NO_HOST_MEMORY

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
    MANAGE = 10   # managed memory goes elsewhere, or loses its contents, or both; never a node
    CHILD = 11    # a graph within a graph; only ever a node, as are the following
    NOTHING = 12
    ALLOCATE = 13  # memory of graphs, which launches take and give back when they are put in
    RELEASE = 14

cdef enum:  # Work.known
    DST_KNOWN = 1
    SRC_KNOWN = 2

# An event's state in memory that several processes map: what was recorded last, and what of it is done.  The holders are
# counted under the queue's lock; the words are atomic.
cdef struct EventWords:
    uint64_t recorded   # the number of the last record
    uint64_t completed  # the greatest number that is done
    int recorder        # the process that made the last record
    uint32_t wakeups    # counts completions: what waiters sleep on

cdef struct SharedEvent:
    EventWords* words
    KeptFile file  # of the words
    int holders

cdef struct Ticket:
    int holders
    bint done
    double time_ms  # when it was marked, on the monotonic clock
    SharedEvent* shared  # one of its holders: an event that other processes have too, and
    uint64_t number      # which record of that this is; NULL where it is this process's own

cdef struct Condition:
    unsigned int value  # one launch that reads it runs at a time; its address is the handle, where kernels set it
    unsigned int initial  # what it is when a launch begins
    bint kept           # it is what the launch before left instead
    int holders         # its graph, and every node that names it
    bint governs        # it has, or had, its one conditional node
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
    int[16] attributes  # by the numbers of CUfunction_attribute of CUDA 13
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

cdef struct Allocation:  # memory of an ALLOCATE; its addresses are taken with the node
    int holders          # nodes and plans, and a launch that did not give it back
    int device
    uintptr_t address
    size_t size          # bytes, of whole pages
    size_t asked         # bytes that a node asked for
    int kind             # ALLOCATE_ numbers; it is the device's memory, which the host reaches here
    uint64_t peers       # as they were asked for
    long offset          # in the device's file, while
    bint backed          # there are bytes behind the addresses
    bint live            # a launch has it; what comes later in the launches' order may give it back
    bint was_live        # before the launch that is being put in
    bint instantiated    # an instance has its node
    int running          # launches with it in the queues
    Allocation* before   # of all
    Allocation* after

cdef struct Side:      # of a COPY_3D; `to` is also of a FILL of several rows
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
    Plan* plan         # of a REPLAY, one of its holders; of a plan's BRANCH, its first body; of a plan's CHILD
    Graph* body        # of a graph's BRANCH or CHILD, which owns it and its siblings
    Condition* condition  # of a SET or a BRANCH, one of its holders
    Launch* launch     # of a KERNEL, one of its holders
    bint programmatic, cooperative  # a KERNEL that may begin before the one before it is over; whose blocks all run at once
    int[3] cluster     # of a KERNEL: blocks; 0 for none
    Allocation* allocation  # of an ALLOCATE or a RELEASE, one of its holders
    int flow           # of a BRANCH: CONDITION_IF, _WHILE or _SWITCH
    bint disabled      # a node that an instance leaves out
    int known          # DST_KNOWN, SRC_KNOWN: memory that the driver knew, and has to know when it runs
    bint across        # a COPY of copy_peer or copy_across, or a MANAGE, which no capture takes
    int priority, place  # of a KERNEL that is a node; of a MANAGE: a device or HOST_MEMORY
    bint discards, moves  # a MANAGE that lets the contents go, or has the memory in its place

cdef struct Operation:
    Work work
    Ticket* ticket     # one of its holders: of a WAIT what it waits for, else marked when the work is done; or NULL
    void* staged       # freed after use: a copy of pageable source bytes; of a REPLAY, a Ticket* for each point
    Operation* next

# Nodes that an event, or the next work of a stream, comes after.
cdef struct Frontier:
    int* nodes
    EdgeData* data     # what the edge from each carries; NULL where none carries anything
    int count
    int capacity

cdef struct Node:
    uintptr_t handle
    uintptr_t origin   # the node that it was cloned from, or 0
    Work work
    Frontier after

cdef struct Plan:      # an instantiated graph, fixed
    int holders
    Node* nodes        # in the order of the graph, which is that of their handles
    int count
    int* order         # places of nodes in an order that respects every dependency; NULL where theirs does
    int points         # records of events and waits for them, those of graphs within it too
    bint allocates     # it has an ALLOCATE or a RELEASE, or a graph within it has
    Plan* sibling      # the next body of the same BRANCH, which holds it

cdef struct Graph:
    Node* nodes
    int count
    size_t capacity
    Graph* within      # whose body or child it is; NULL for a graph of its own
    bint governed      # it is a body of a BRANCH, or within one
    Graph* sibling     # the next body of the same BRANCH
    uintptr_t handle, origin  # of what is captured, of a body or a child too; of what it is a clone of, or 0
    int instances      # of a graph of its own, that are alive
    Condition* conditions  # made for its nodes

cdef struct Capture:
    uint64_t id
    HostStream* origin
    int mode
    uint64_t thread    # that began it
    bint broken, ending  # ending: a thread is in capture_end, where a delay lets others come between
    bint unjoined      # a stream that had joined it was destroyed
    Graph* graph       # NULL where it was another's body, and that one is gone
    HostStream* streams  # all that are in it, chained by captured
    Capture* next

cdef struct HostStream:
    uintptr_t handle
    int device
    unsigned int flags
    int priority
    int sync_policy    # CUsynchronizationPolicy numbers; kept, and of no effect, as is
    int sync_domain    # the logical domain of memory synchronisation
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


cdef inline void begin_work(Work* work, int kind) noexcept nogil:
    memset(work, 0, sizeof(Work))
    work.kind = kind


# Who waits for whom within a capture: sets of a graph's nodes.

cdef inline void clear_frontier(Frontier* frontier) noexcept nogil:
    free(frontier.nodes)
    free(frontier.data)
    memset(frontier, 0, sizeof(Frontier))


cdef inline int add_to_frontier(Frontier* frontier, int node) noexcept nogil:
    cdef EdgeData nothing
    cdef int index
    for index in range(frontier.count):
        if frontier.nodes[index] == node:
            return 0
    memset(&nothing, 0, sizeof(EdgeData))
    return add_edge(frontier, node, &nothing)


cdef inline bint carries(const EdgeData* data) noexcept nogil:
    return data.from_port != 0 or data.to_port != 0 or data.type != 0


cdef inline const EdgeData* edge_data(const Frontier* frontier, int index) noexcept nogil:
    # Of the edge from its node with this index; NULL where it carries nothing.
    if frontier.data == NULL or not carries(&frontier.data[index]):
        return NULL
    return &frontier.data[index]


cdef inline int add_edge(Frontier* frontier, int node, const EdgeData* data) noexcept nogil:
    # From a node that is not in it yet.
    cdef int* larger
    cdef EdgeData* carried
    cdef int room = frontier.capacity
    if frontier.count == room:
        room = 2 * room + 4
        larger = <int*>realloc(frontier.nodes, room * sizeof(int))
        if larger == NULL:
            return NO_HOST_MEMORY
        frontier.nodes = larger
    if carries(data) or frontier.data != NULL:
        carried = <EdgeData*>realloc(frontier.data, room * sizeof(EdgeData))
        if carried == NULL:
            return NO_HOST_MEMORY
        if frontier.data == NULL:
            memset(carried, 0, room * sizeof(EdgeData))
        frontier.data = carried
        frontier.data[frontier.count] = data[0]
    frontier.capacity = room
    frontier.nodes[frontier.count] = node
    frontier.count += 1
    return 0


cdef inline int place_of(const Plan* plan, int step) noexcept nogil:
    return plan.order[step] if plan.order != NULL else step


cdef inline int copy_frontier(Frontier* to, const Frontier* origin) noexcept nogil:
    cdef EdgeData nothing
    cdef const EdgeData* data
    cdef int index, code = 0
    to.count = 0
    memset(&nothing, 0, sizeof(EdgeData))
    for index in range(origin.count):
        data = edge_data(origin, index)
        code = code or add_edge(to, origin.nodes[index], data if data != NULL else &nothing)
    return code
