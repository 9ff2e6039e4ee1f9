# The host device's captures and graphs.  All under the queue's lock.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.host.frontier cimport Frontier
from accelrt.driver.host.queue cimport Capture, Graph, HostStream, Launch, Node, Plan, Work

cdef enum:  # numbers of CUgraphExecUpdateResult
    TOPOLOGY_CHANGED = 2
    NODE_TYPE_CHANGED = 3

cdef int exchange_mode(int mode) noexcept nogil  # of the calling thread; answers the one before
# A call that could depend on what captures record: refused, and the captures broken, as the modes say.
cdef int check_unsafe() noexcept nogil
cdef int check_device(int device) noexcept nogil  # waiting for a device that has a capture: never permitted
cdef bint beside_capture(HostStream* legacy) noexcept nogil  # a blocking stream of its device is capturing
cdef int check_implicit(HostStream* stream) noexcept nogil  # use of the legacy stream beside a blocking capture
cdef int begin(HostStream* stream, Graph* body, int mode) noexcept nogil  # into a body, or NULL: a new graph
cdef int end(HostStream* stream, Graph** out_graph) noexcept nogil
cdef void abandon(HostStream* stream) noexcept nogil  # the stream is destroyed
cdef int break_capture(HostStream* stream, int code) noexcept nogil  # answers the code
cdef int add_node(HostStream* stream, const Work* work) noexcept nogil
cdef Capture* capture_of(uint64_t id) noexcept nogil  # NULL where it ended
cdef int join(HostStream* stream, uint64_t id, const Frontier* after) noexcept nogil

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
