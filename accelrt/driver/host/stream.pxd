# The host driver's streams, events and captures.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.driver.host.work cimport Capture, Frontier, Graph, HostStream, Launch, Node, Plan, Ticket, Work
from accelrt.driver.table cimport Table

cdef void fill_stream(Table* table) noexcept nogil
# Under the queue's lock: into the stream's queue, or into its capture.
cdef int put_in(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil


# Whether a row of the host driver may do its work: asked first by every one.

cdef int gate(int device) noexcept nogil  # 0, or the refusal; devices from 0
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
cdef void abandon_tickets(const Plan* plan, void* given) noexcept nogil  # of a launch that was not enqueued


# Captures, and graphs as lists of nodes.  All under the queue's lock.

cdef enum:  # numbers of CUgraphExecUpdateResult
    TOPOLOGY_CHANGED = 2
    NODE_TYPE_CHANGED = 3

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
cdef Capture* capture_of(uint64_t id) noexcept nogil  # NULL where it ended
cdef int join_capture(HostStream* stream, uint64_t id, const Frontier* after) noexcept nogil

cdef void free_graph(Graph* graph) noexcept nogil
cdef Plan* plan_of(const Graph* graph) noexcept nogil  # NULL where the host has no memory
# A copy of a plan in which a KERNEL node, of a body too, launches something else; NULL as above.
cdef Plan* change_plan(const Plan* plan, uintptr_t node, Launch* launch, bint* out_found) noexcept nogil
cdef Node* find_node(Node* nodes, int count, uintptr_t handle) noexcept nogil  # of a graph or a plan; NULL where it is none
cdef Node* find_planned(const Plan* plan, uintptr_t handle) noexcept nogil  # the same, of its bodies too
# 0, or what changed, and at which node of the graph
cdef int shape_changed(const Plan* plan, const Graph* graph, uintptr_t* out_node) noexcept nogil


# The host device's conditions and the bodies that they govern.  All under the queue's lock.

cdef Graph* find_body(uintptr_t handle) noexcept nogil  # NULL where it is none
cdef void keep_body(Graph* body) noexcept nogil  # of a node that was added; prepare_branch made room for it
cdef void forget_body(const Graph* body) noexcept nogil  # the caller frees it

# Of the graph that the stream captures into, and of those that it is within.  What is prepared is the caller's to
# add, or where that fails to free.
cdef int new_condition(HostStream* stream, uint64_t* out_condition) noexcept nogil
cdef int prepare_set(HostStream* stream, uint64_t condition, uintptr_t address, Work* out_work) noexcept nogil
cdef int prepare_branch(HostStream* stream, uint64_t condition, bint repeats, Work* out_work) noexcept nogil
