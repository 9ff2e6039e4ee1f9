# The host driver's streams, events and captures.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.driver.host.work cimport (
    Capture, Condition, Frontier, Graph, HostFunction, HostStream, Launch, Plan, Ticket, Work,
)
from accelrt.driver.table cimport Table

cdef void fill_stream(Table* table) noexcept nogil
# Under the queue's lock: into the stream's queue, or into its capture.
cdef int put_in(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil

# What rows put into a stream, and nodes do; checked, and under no lock of the queues'.
cdef int prepare_copy_3d(
    Work* out_work, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src, size_t src_pitch, size_t src_lines,
    size_t width, size_t height, size_t depth) noexcept nogil
cdef int prepare_fill(Work* out_work, uintptr_t dst, unsigned int value, int width, size_t count, size_t height,
                      size_t pitch) noexcept nogil
# Of memory of these owners (owner_of, owner_at_launch), where bytes that the driver does not know are allowed.
cdef int prepare_copy(Work* out_work, uintptr_t dst, int to, uintptr_t src, int origin, size_t size) noexcept nogil
cdef int owner_at_launch(uintptr_t address, size_t size, bint written) noexcept nogil  # of memory of graphs too


# Launches of kernels, under the lock.

cdef enum:  # what a device takes, by the numbers of CUdevice_attribute; those of an H200
    MOST_THREADS = 1024
    MOST_DEEP = 64                # threads in a block's z
    MOST_WIDE_GRID = 0x7FFFFFFF   # blocks in x; in y and z:
    MOST_DEEP_GRID = 65535
    THREADS_AT_ONCE = 2048        # of a multiprocessor
    BLOCKS_AT_ONCE = 32
    SHARED = 48 << 10             # bytes of a block's memory, unless the function's attribute was set
    MOST_SHARED = 227 << 10       # up to which it may be
    SHARED_AT_ONCE = 228 << 10
    PORTABLE_CLUSTER = 8          # blocks of a cluster, unless the function's attribute was set
    MOST_CLUSTER = 16
    ATTRIBUTES = 16               # of a function, by the numbers of CUfunction_attribute
    ATTRIBUTE_THREADS = 0
    ATTRIBUTE_DYNAMIC = 8         # MAX_DYNAMIC_SHARED_SIZE_BYTES
    ATTRIBUTE_CARVEOUT = 9
    ATTRIBUTE_WIDE = 14           # NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    ATTRIBUTE_SCHEDULING = 15     # CLUSTER_SCHEDULING_POLICY_PREFERENCE

cdef AddressMap functions  # handle -> HostFunction*
cdef HostFunction* find_function(uintptr_t function) noexcept nogil
cdef size_t aligned(size_t offset, size_t size) noexcept nogil  # as C lays a struct out
cdef bint fits(const unsigned int* grid, const unsigned int* block) noexcept nogil
# A launch with one holder, checked as a GPU checks it, and its arguments copied.
cdef int make_launch(
    HostFunction* function, const unsigned int* grid, const unsigned int* block, unsigned int shared_bytes,
    void** arguments, Launch** out_launch) noexcept nogil
cdef int check_launch(const Work* work) noexcept nogil  # 0, or the refusal of its clusters, or of a cooperative one
cdef bint are_clusters(const HostFunction* function, const unsigned int* grid, const int* cluster) noexcept nogil
cdef unsigned int most_cluster(const HostFunction* function) noexcept nogil  # blocks
cdef int blocks_at_once(size_t threads, size_t shared_bytes) noexcept nogil  # of a multiprocessor


# Whether a row of the host driver may do its work: asked first by every one.

cdef int gate(int device) noexcept nogil  # 0, or the refusal; devices from 0
cdef int gate_device(int device) noexcept nogil  # the same, of a lost device too
cdef int enter(int device) noexcept nogil  # the same for what on a GPU runs in the device's context, and so makes one
cdef int gate_any() noexcept nogil        # the same for rows without a device
cdef bint gate_is_new() noexcept nogil    # never opened in this process or the one it was forked from
cdef void gate_open(int devices) noexcept nogil
cdef void gate_close() noexcept nogil     # the end of the process
cdef int gate_devices() noexcept nogil


# Events.

cdef AddressMap events  # handle -> HostEvent*; under the queue's lock

# Under that lock too: what the nodes of a launch that record events, or wait for them, mark and wait for; an
# array as long as the plan's nodes, or NULL where there are none.
cdef int tickets_for(const Plan* plan, void** out_tickets) noexcept nogil
cdef void abandon_tickets(const Plan* plan, void* argument) noexcept nogil  # of a launch that was not enqueued


# Captures, and graphs as lists of nodes.  All under the queue's lock.

cdef int exchange_mode(int mode) noexcept nogil  # of the calling thread; answers the one before
# A call that could depend on what captures record: refused, and the captures broken, as the modes say.
cdef int check_unsafe() noexcept nogil
cdef int check_device(int device) noexcept nogil  # waiting for a device that has a capture: never permitted
cdef bint beside_capture(HostStream* legacy) noexcept nogil  # a blocking stream of its device is capturing
cdef int check_implicit(HostStream* stream) noexcept nogil  # use of the legacy stream beside a blocking capture
cdef int begin_capture(HostStream* stream, Graph* body, int mode) noexcept nogil  # into a body, or NULL: a new graph
cdef int end_capture(HostStream* stream, Graph** out_graph) noexcept nogil
cdef void abandon_capture(HostStream* stream) noexcept nogil  # the stream is destroyed
cdef int break_capture(HostStream* stream, int code) noexcept nogil  # answers the code
cdef int add_node(HostStream* stream, const Work* work) noexcept nogil
cdef int append_node(Graph* graph, const Work* work, const Frontier* after) noexcept nogil  # of no capture's
cdef Capture* capture_of(uint64_t id) noexcept nogil  # NULL where it ended

cdef bint is_captured_into(const Graph* graph) noexcept nogil
cdef Graph* find_captured(uintptr_t handle) noexcept nogil  # by the handle that capture_site gave it; or NULL
cdef int check_capturing(const HostStream* stream) noexcept nogil  # an error unless it captures
cdef void free_graph(Graph* graph) noexcept nogil  # and its siblings; NULL is none
cdef void hold_work(const Work* work) noexcept nogil  # what a node's work shares with others; drop_work drops it


# The host device's conditions and the bodies that they govern.  All under the queue's lock.

cdef Graph* find_body(uintptr_t handle) noexcept nogil  # NULL where it is none

# Of the graph that the stream captures into, and of those that it is within.  What is prepared is the caller's to
# add, or where that fails to free.
cdef int new_condition(HostStream* stream, uint64_t* out_condition) noexcept nogil
cdef int prepare_set(HostStream* stream, uint64_t condition, uintptr_t address, Work* out_work) noexcept nogil
cdef Condition* condition_of(const Graph* graph, uint64_t condition) noexcept nogil  # NULL where it has none such
cdef AddressMap bodies  # handle -> Graph*
cdef void keep_body(Graph* body) noexcept nogil  # where there is room for it
cdef int prepare_branch(HostStream* stream, uint64_t condition, int flow, Work* out_work) noexcept nogil
# The same of a graph that is made by hand, and with several bodies.
cdef int add_condition(Graph* graph, unsigned int value, bint kept, uint64_t* out_condition) noexcept nogil
cdef int begin_branch(Graph* graph, uint64_t condition, int flow, unsigned int count, Work* out_work) noexcept nogil
