# The driver's graphs, their kernel nodes, and graphs of nogil code.

from libc.stdint cimport uint64_t, uintptr_t

from accelrt.arrays.array cimport Buffer
from accelrt.driver.node_params cimport NodeParams
from accelrt.kernels.kernel cimport Dimensions, Kernel
from accelrt.runtime.lifetimes cimport PoolUse, Record

cdef int instantiate(int ordinal, uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil  # a status code
# The same; where the graph has one instance at a time, the one before is given back first, and 0 then; NULL is none.
cdef int instantiate_anew(int ordinal, uintptr_t graph, uintptr_t* before, uintptr_t* out_exec) noexcept nogil
cdef str instance_hint(int code)  # for errors
cdef str launch_hint(int code)
# Raises why it was refused.  is_own: the graph is the one that the instance was made of, with the nodes and edges of then.
cdef int update_exec(uintptr_t exec_, uintptr_t graph, bint is_own) except -1

cdef enum:
    FLAG_BYTES = 4  # of a condition, which memory decides:

cdef int set_condition(int ordinal, uintptr_t stream, uint64_t condition, uintptr_t address) except -1

# Opens the Record of a capture that has begun, which ends where Python has no memory for one.
cdef Record record_capture(
    int kind, int ordinal, uintptr_t origin, uint64_t capture, list kept, Record other, const uint64_t* pool
)

cdef str type_name(int number)  # of a node: TYPES

cdef class Handles:          # room for handles that a row writes
    cdef uintptr_t* array

cdef class Change:           # what a graph uses since a node was changed, or since memory was given a name
    cdef Change before       # where the graph refused what its instance took: what the graph's node still uses; or None

    cdef bint note(self, int device, uintptr_t stream) except *  # as note_sides
    cdef int refuse_asleep(self) except -1
    cdef list foreign(self, int device, uintptr_t stream, Change after)  # or None


cdef class NodeChange(Change):
    cdef Kernel kernel       # None of a node of another kind
    cdef dict roles          # of another kind: role -> list of what it uses
    cdef bint is_apart       # it is an instance's alone, whose graph has other params:
    cdef NodeParams params   # of a copy or a fill; a kernel node has
    cdef Dimensions size     # these, with kernel
    cdef tuple values        # and these arguments as bytes; or None where nobody knows their sizes
    cdef object former       # those of the graph's node before, until keep_change has them; or None
    cdef list things         # of the kernel, and of each argument: objects, each with its Side, and PoolUses; or None
    cdef uint64_t serial     # which no other change has: an instance has those of its graph too

    cdef list uses(self)     # all of them in one list


cdef class MemoryChange(Change):  # what a name was given
    cdef object keeper       # what has the memory
    cdef int ordinal         # of the device where that lies, as of a Side
    cdef uintptr_t block     # where that begins
    cdef PoolUse pool        # the private pool that it is of, or None
    cdef bint is_others      # whether it is of no allocator of accelrt, once a stream was told
    cdef uintptr_t address   # where it begins
    cdef int place           # the name's, among those of the Bindings


cdef class Names:            # of an instance's memory: Bindings
    # What a node does with the memory that names gave it: CopyParams, FillParams, or a kernel's arguments as bytes.  None
    # where they gave it none, or since it was changed by hand; change: the node's last one, or None.
    cdef object work_of_node(self, uintptr_t node, NodeChange change)
    cdef int require_bound(self, object graph) except -1  # what they gave the CUDAGraph is what it has


cdef class NodePast:
    cdef dict params         # handle -> what the node did until it was first changed since the instances were made
    cdef object __weakref__

# What is looked up whenever a node is changed.
cdef class DefinitionBase:       # of GraphDefinition
    cdef public object _graph    # CUDAGraph
    cdef public object _owner    # DefinitionNode that the graph is a part of, or None
    cdef public uintptr_t _body  # the driver's graph of a condition's body; else 0
    cdef public uint64_t _generation  # of the CUDAGraph's graphs, the one that it is of


cdef class NodeBase:             # of DefinitionNode
    cdef public DefinitionBase definition
    cdef public uintptr_t id     # 0 once it was taken out
    cdef public str type


cdef class HeldPool(PoolUse):
    cdef bint is_held    # this is one of the pool's uses
    cdef object __weakref__

cdef HeldPool hold_pool(int ordinal, const uint64_t* pool)
cdef int refuse_asleep(list things) except -1  # a replay that uses what a Sleeper stands for; None is nothing
# Weak references to those that instances of a graph have, and the one for an instance that is made now.
cdef tuple begin_past(list pasts)
cdef int note_past(list pasts, object node, object former) except -1  # before a node of the graph is changed
# CUDAGraph.base and by_node of a graph that was captured, of what it keeps and its changes: functions go to their nodes.
cdef tuple take_apart(uintptr_t graph, list kept, dict changes)
cdef list all_things(list base, dict by_node)  # what nodes point at: CUDAGraph.base and by_node
cdef dict without_mark(dict roles)  # those of a node's copy, which was not captured with the graph that it is in
cdef int note_roles(dict by_node, object node, dict roles) except -1  # what a node of the graph itself uses from now on
# Whether what is instantiated has a node, which may have been made by hand since; require_made refuses it.
cdef bint is_made(dict made_by_hand, dict instantiated, object node) except -1
cdef int require_made(dict made_by_hand, dict instantiated, object node) except -1
# What an instance's node does where it may not be what the graph's does now; else None.  change: the instance's, or None.
cdef object params_of_instance(NodeChange change, NodePast past, object node)
cdef object params_of(const NodeParams* params)  # of a copy or a fill; None of the rest
cdef int put_params(object work, NodeParams* params) except -1  # of CopyParams or FillParams
cdef object work_of(uintptr_t graph, uintptr_t node)  # the same of a node of a driver's graph
cdef dict calls_within(uintptr_t graph, list calls)  # handles of children in a driver's graph -> those that they run
cdef list list_edge_data(uintptr_t graph)  # (id, id of the node after it, type, port that it is from), in the driver's order
cdef tuple read_arguments(uintptr_t function, const void** values)  # as bytes; None where nobody knows their sizes
cdef void** copy_arguments(uintptr_t function, void** values) except? NULL  # a kernel's, in one block to be freed
cdef bint fits_body(int type_, uintptr_t child) except -1  # whether a body of a condition may hold such a node
cdef Record recorded()        # of no capture
cdef list uses_of_buffer(Buffer buffer, uintptr_t address)  # what keep_side has such a Record keep of one
cdef dict kernels_in(list kept)  # by the driver's handle
# KernelParams of a kernel node; kernels: those of the graph's capture; change: the node's last one, or None
cdef object read_kernel_node(uintptr_t graph, uintptr_t node, dict kernels, NodeChange change)
# Changes a node of an instance, unless exec_ is 0, and of the graph, unless it is another's, as past says; None leaves
# what there is.  is_there: it is known to be a kernel node that is still in the graph.  change is the node's last one, or
# None; `after` is filled.  Where it raises and out_begun is set, the instance launches the new values nevertheless.  tells:
# other instances are told what the node did.  bound: names of the instance's memory, or None.
cdef int change_kernel_node(uintptr_t graph, uintptr_t exec_, uintptr_t node, int ordinal, uint64_t capture, dict kernels,
                            NodeChange change, NodeChange after, bint* out_begun, object kernel, object grid, object block,
                            object shared, object arguments, tuple options, NodePast past, bint tells,
                            Names bound, bint is_there) except -1
# (cluster, cooperative, priority) of a kernel node; None leaves one as it is, and where all are None it is None.
cdef tuple checked_options(object cluster, object cooperative, object priority)
cdef int put_options(uintptr_t graph, uintptr_t node, tuple options) except -1
cdef int require_launchable(Kernel kernel, const Dimensions* size, tuple options) except -1


# Graphs of nogil code, for api.pyx.  A graph is named by the address of its record; one that is not, or no longer,
# a graph's answers INVALID_HANDLE.  Any thread, without the GIL; what changes a graph, one thread at a time.
cdef enum:  # states
    EMPTY = 0      # its capture failed
    CAPTURING = 1
    CAPTURED = 2
    READY = 3      # to be launched

cdef int begin_graph(int device, uintptr_t stream, int mode, uint64_t id0, uint64_t id1, uintptr_t* out_graph) noexcept nogil
cdef int end_graph(uintptr_t graph) noexcept nogil
cdef int instantiate_graph(uintptr_t graph) noexcept nogil
cdef int launch_graph(uintptr_t graph, uintptr_t stream) noexcept nogil
cdef int read_graph(uintptr_t graph, int* out_state, size_t* out_nodes) noexcept nogil
cdef int read_graph_pool(uintptr_t graph, uint64_t* out_id0, uint64_t* out_id1) noexcept nogil
cdef int read_raw_graph(uintptr_t graph, uintptr_t* out_graph, uintptr_t* out_exec) noexcept nogil
cdef int destroy_graph(uintptr_t graph) noexcept nogil  # in any state
