"""Nodes of graphs, which may be changed between replays; and graphs for code without Python."""
import os
from collections import namedtuple
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.allocator.private.routes cimport (
    begin_capture_on, end_capture, expect_idle, hide_replays, release_pool, retain_pool,
)
from accelrt.arrays.array cimport Buffer, load_live, load_ptr
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.integers cimport checked_int
from accelrt.core.locks cimport add_count, spin_lock, spin_unlock
from accelrt.core.process cimport FORK_GRAPHS, at_fork
from accelrt.core.slots cimport Slot
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport count_out_capture, expect_capture, go_relaxed, leaves_nodes_out, restore_mode
from accelrt.driver.node_params cimport (
    ATTRIBUTE_CLUSTER, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_PRIORITY, EdgeData, NODE_ALLOCATE, NODE_CHILD, NODE_COPY, NODE_FILL,
    NODE_FREE, NODE_HOST, NODE_KERNEL, NODE_RECORD, NODE_WAIT, NodeParams,
)
cimport accelrt.driver.registry as registry
from accelrt.errors import CudaError, NotSupportedError
from accelrt.kernels.kernel cimport (
    Dimensions, keep_memory, Kernel, make_kernel, Packed, POINTER, PORTABLE_CLUSTER, read_dimensions, read_shared, triple,
    uses_of,
)
from accelrt.runtime import init
from accelrt.runtime.lifetimes cimport (
    GRAPH, GRAPH_EXEC, dispose_capture, drain_too, end_capture as end_on_driver, end_capture_again, find_call,
    follow_capture, give_back, note_side, note_sides, open_capture, pool_of, PoolUse, Record, Side, side_ordinal, Sleeper,
)
from accelrt.status cimport (
    FORKED, GRAPH_UPDATE_FAILURE, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, NO_HOST_MEMORY, SLEEPING,
    raise_status, refuse_copy,
)
from accelrt.status import status_error
from accelrt.runtime.access cimport begin_nogil_use, end_nogil_use
cimport accelrt.runtime.access as watch


# --- nodes ------------------------------------------------------------------------------------------------------------
# The driver's graphs: what one is made of, and what is instantiated from it or updated by it.

cdef enum:
    DOT_VERBOSE = 1  # CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE

# CUgraphNodeType and CUgraphExecUpdateResult, by number (CUDA driver API, "Data types used by CUDA driver").
# stub: TYPES: tuple[str, ...]
# stub: RESULTS: tuple[tuple[str, str], ...]
TYPES = (
    "kernel", "memcpy", "memset", "host", "graph", "empty", "wait_event", "event_record", "ext_semas_signal",
    "ext_semas_wait", "mem_alloc", "mem_free", "batch_mem_op", "conditional",
)
RESULTS = (
    ("SUCCESS", "it fits"),
    ("ERROR", "for an unexpected reason"),
    ("ERROR_TOPOLOGY_CHANGED", "the number of nodes or their order differ"),
    ("ERROR_NODE_TYPE_CHANGED", "a node is of another type"),
    ("ERROR_FUNCTION_CHANGED", "a kernel node has another function"),
    ("ERROR_PARAMETERS_CHANGED", "a node's parameters differ in a way that cannot be changed"),
    ("ERROR_NOT_SUPPORTED", "a node is of a kind that cannot be changed"),
    ("ERROR_UNSUPPORTED_FUNCTION_CHANGE", "a kernel node has another function, which cannot take its place"),
    ("ERROR_ATTRIBUTES_CHANGED", "a node's attributes differ in a way that cannot be changed"),
)


cdef str LAUNCH_FIELDS = "kernel name function grid block shared arguments cluster cooperative priority"


class KernelParams(namedtuple("KernelParams", LAUNCH_FIELDS, defaults=(None, False, 0))):
    """The launch of a kernel node.

    Attributes:
        kernel: Kernel, or None where others launched it.
        name: str, the kernel's; "" where it is not known.
        function: int, the driver's handle (CUfunction).
        grid, block: (x, y, z), blocks and threads of a block.
        shared: int, bytes of dynamic shared memory.
        arguments: tuple of bytes, the values as they lie in memory; None where the driver does not tell their sizes
            (before CUDA 12.4).  To change them pass what a launch takes, or bytes.
        cluster: (x, y, z), blocks of a cluster; None of single blocks.
        cooperative: bool, all blocks run at once.
        priority: int, as of the stream that it was captured from.
    """
    # stub: kernel: Kernel | None
    # stub: name: str
    # stub: function: int
    # stub: grid: tuple[int, int, int]
    # stub: block: tuple[int, int, int]
    # stub: shared: int
    # stub: arguments: tuple[object, ...] | None
    # stub: cluster: tuple[int, int, int] | None = None
    # stub: cooperative: bool = False
    # stub: priority: int = 0

    __slots__ = ()


class CopyParams(namedtuple("CopyParams", "dst src width height depth dst_pitch dst_lines src_pitch src_lines")):
    """Describes the copy of a copy node: addresses, bytes of a row, rows, slices, and of both sides bytes from row to row
    and rows of a slice, which say nothing of one row."""
    # stub: dst: int
    # stub: src: int
    # stub: width: int
    # stub: height: int
    # stub: depth: int
    # stub: dst_pitch: int
    # stub: dst_lines: int
    # stub: src_pitch: int
    # stub: src_lines: int

    __slots__ = ()


class FillParams(namedtuple("FillParams", "dst value width elements height pitch")):
    """Describes the fill of a fill node: address, element and its bytes, elements of a row, rows, bytes from row to row."""
    # stub: dst: int
    # stub: value: int
    # stub: width: int
    # stub: elements: int
    # stub: height: int
    # stub: pitch: int

    __slots__ = ()


class GraphNode(namedtuple("GraphNode", "id type dependencies")):
    """A node of a captured graph.

    Attributes:
        id: int, the driver's handle (CUgraphNode).
        type: str: "kernel", "memcpy", "memset", "host", "graph", "empty", "wait_event", "event_record",
            "conditional", ...: CUgraphNodeType in lower case; "type 99" for one that is not known.
        dependencies: tuple of int, the ids of the nodes that it comes after.
        params: KernelParams of a kernel node, as CUDAGraph.kernel_node_params reads them; to assign it changes the node
            as CUDAGraph.set_kernel_node_params does.
    """
    # stub: id: int
    # stub: type: str
    # stub: dependencies: tuple[int, ...]

    _owner = None  # a weak reference to the CUDAGraph that listed it; a copy has none

    def __reduce__(self):
        return GraphNode, tuple(self)

    def _graph(self):
        graph = None if self._owner is None else self._owner()
        if graph is None:
            raise RuntimeError("the CUDAGraph of this node is gone; take nodes from CUDAGraph.nodes(), and keep the graph")
        return graph

    @property
    def params(self) -> KernelParams:
        """The launch of a kernel node, as KernelParams; to assign one changes the node.

        Raises: as CUDAGraph.kernel_node_params; RuntimeError where the CUDAGraph is gone.
        """
        return self._graph().kernel_node_params(self)

    @params.setter
    def params(self, params: KernelParams) -> None:
        now = self.params
        options = {name: getattr(params, name) for name in OPTIONS if getattr(params, name) != getattr(now, name)}
        if options.get("cluster", 0) is None:
            options["cluster"] = 1
        self._graph().set_kernel_node_params(
            self, kernel=params.kernel, grid=params.grid, block=params.block, shared=params.shared, args=params.arguments,
            **options)


cdef str type_name(int number):
    return TYPES[number] if 0 <= number < len(TYPES) else f"type {number}"


cdef class Handles:
    """Room for handles that a row writes."""

    def __cinit__(self, size_t room):
        self.array = <uintptr_t*>calloc(room + 1, sizeof(uintptr_t))
        if self.array == NULL:
            raise MemoryError(f"no host memory for a list of {room} handles")

    def __dealloc__(self):
        free(self.array)


cdef list node_handles(uintptr_t graph):
    cdef size_t room = 0, count = 0, index
    cdef Handles handles
    cdef int code = registry.active().graph_nodes(graph, 0, NULL, &room)
    if code == 0 and room:
        handles = Handles(room)
        code = registry.active().graph_nodes(graph, room, handles.array, &count)
    if code:
        raise_status(code, "graph_nodes", ("graph", graph))
    return [handles.array[index] for index in range(count)] if room else []


def list_edges(uintptr_t graph) -> list[tuple[int, int]]:
    """Pairs (id, id of the node after it) of a driver's graph, in the driver's order."""
    return [edge[:2] for edge in list_edge_data(graph)]


cdef list list_edge_data(uintptr_t graph):
    cdef size_t room = 0, count = 0, index
    cdef Handles origins, targets, carried
    cdef const EdgeData* data
    cdef int code = registry.active().graph_edges(graph, 0, NULL, NULL, NULL, &room)
    if code == 0 and room:
        origins, targets, carried = Handles(room), Handles(room), Handles(room)
        code = registry.active().graph_edges(graph, room, origins.array, targets.array, carried.array, &count)
    if code:
        raise_status(code, "graph_edges", ("graph", graph))
    if room == 0:
        return []
    data = <const EdgeData*>carried.array
    return [(origins.array[index], targets.array[index], data[index].type, data[index].from_port) for index in range(count)]


cdef str type_of(uintptr_t graph, uintptr_t node):
    cdef int type_ = 0
    cdef int code = registry.active().graph_node_type(graph, node, &type_)
    if code:
        raise_status(code, "graph_node_type", ("graph", graph, "node", node))
    return TYPES[type_] if 0 <= type_ < len(TYPES) else f"type {type_}"


cdef bint fits_body(int type_, uintptr_t child) except -1:
    # A driver may take the rest in a body of a condition too, and refuses to instantiate the whole graph then.
    cdef NodeParams params
    cdef int code
    if type_ != NODE_CHILD:
        return type_ not in (NODE_HOST, NODE_RECORD, NODE_WAIT, NODE_ALLOCATE, NODE_FREE)
    for node in node_handles(child):
        memset(&params, 0, sizeof(NodeParams))
        code = registry.active().graph_node_type(child, node, &params.type)
        if code == 0 and params.type == NODE_CHILD:
            code = registry.active().graph_node_params(child, node, &params)
        if code:
            raise_status(code, "graph_node_params", ("graph", child, "node", node))
        if not fits_body(params.type, params.graph):
            return False
    return True


cdef object params_of(const NodeParams* params):
    # Describes a copy or a fill; None for the rest.
    if params.type == NODE_COPY:
        return CopyParams(params.dst, params.src, params.width, params.height, params.depth, params.dst_pitch,
                          params.dst_lines, params.src_pitch, params.src_lines)
    if params.type == NODE_FILL:
        return FillParams(params.dst, params.value, params.element, params.width, params.height, params.dst_pitch)
    return None


cdef int put_params(object work, NodeParams* params) except -1:
    memset(params, 0, sizeof(NodeParams))
    if isinstance(work, FillParams):
        params.type, params.depth = NODE_FILL, 1
        params.dst, params.value, params.element, params.width, params.height, params.dst_pitch = work
    else:
        params.type = NODE_COPY
        (params.dst, params.src, params.width, params.height, params.depth, params.dst_pitch, params.dst_lines,
         params.src_pitch, params.src_lines) = work
    return 0


cdef object work_of(uintptr_t graph, uintptr_t node):
    cdef NodeParams params
    return params_of(&params) if registry.active().graph_node_params(graph, node, &params) == 0 else None


cdef dict calls_within(uintptr_t graph, list calls):
    cdef dict within = {}
    if calls:
        gather_calls(graph, calls, within)
    return within


cdef list gather_calls(uintptr_t graph, list calls, dict within):
    # Gathers those of all nodes of a graph, and fills in those of each child.
    cdef NodeParams params
    cdef list run = []
    for node in node_handles(graph):
        memset(&params, 0, sizeof(NodeParams))
        if registry.active().graph_node_params(graph, node, &params):
            continue
        if params.type == NODE_HOST:
            call = find_call(calls, params.data)
            run += [] if call is None else [call]
        elif params.type == NODE_CHILD:
            within[node] = gather_calls(params.graph, calls, within)
            run += within[node]
    return run


def list_nodes(uintptr_t graph, owner: CUDAGraph | None = None) -> list[GraphNode]:
    """The GraphNodes of a driver's graph, in the driver's order.

    Arguments:
        owner: CUDAGraph that the nodes' params are of.
    """
    cdef dict before = {}
    for origin, target in list_edges(graph):
        before.setdefault(target, []).append(origin)
    nodes = [GraphNode(node, type_of(graph, node), tuple(before.get(node, ()))) for node in node_handles(graph)]
    for node in nodes:
        node._owner = None if owner is None else PyWeakref_NewRef(owner, None)
    return nodes


# --- kernel nodes ----------------------------------------------------------------------------------------------

# stub: class Change:
cdef class Change:
    """Base of what a graph uses since a node was changed, or memory was given a name; by itself it uses nothing."""

    cdef bint note(self, int device, uintptr_t stream) except *:
        return False

    cdef int refuse_asleep(self) except -1:
        return 0

    cdef list foreign(self, int device, uintptr_t stream, Change after):
        # Returns what has to live until a stream is past its replays once this change gives way to another: functions,
        # events, and memory of no allocator of accelrt's.
        return None


# stub: class MemoryChange(Change):
cdef class MemoryChange(Change):
    """The memory that a name was given."""

    cdef bint note(self, int device, uintptr_t stream) except *:
        self.is_others = note_side(self.ordinal, self.block, device, stream)
        return self.is_others

    cdef int refuse_asleep(self) except -1:
        return 0 if self.pool is None else self.pool.refuse_asleep()

    cdef list foreign(self, int device, uintptr_t stream, Change after):
        cdef bint stays = isinstance(after, MemoryChange) and (<MemoryChange>after).keeper is self.keeper
        return [self.keeper] if self.is_others and not stays else None


cdef long node_changes = 0


# stub: class NodeChange(Change):
cdef class NodeChange(Change):
    """The work of a node since it was changed, and what it uses."""

    def __cinit__(self):
        self.serial = <uint64_t>add_count(&node_changes, 1)

    cdef bint note(self, int device, uintptr_t stream) except *:
        cdef bint others = False
        for things in self.things:
            others = note_sides(things, device, stream) or others
        return others

    cdef int refuse_asleep(self) except -1:
        for things in self.things or ():
            refuse_asleep(things)
        return 0

    cdef list foreign(self, int device, uintptr_t stream, Change after):
        cdef list leftover = None, things
        cdef list later = (<NodeChange>after).things if isinstance(after, NodeChange) else []
        cdef Py_ssize_t place, index
        cdef bint is_leftover
        cdef Side side
        for place in range(len(self.things)):
            things = self.things[place]
            if not things or (place < len(later) and later[place] is things):  # all of it stays
                continue
            for index in range(len(things)):
                if isinstance(things[index], Side):
                    continue
                is_leftover = self.kernel is None
                if index + 1 < len(things) and isinstance(things[index + 1], Side):
                    side = things[index + 1]
                    is_leftover = note_side(side.ordinal, side.address, device, stream)
                if is_leftover:
                    leftover = leftover or []
                    leftover.append(things[index])
        return leftover if leftover is None else not_among(leftover, later)

    cdef list uses(self):
        return [thing for things in self.things for thing in things or ()]


cdef list not_among(list things, list others):
    # As memory of accelrt's allocators is not, most changes leave none.
    stays = {id(thing) for each in others if each for thing in each}
    return [thing for thing in things if id(thing) not in stays]


cdef class DefinitionBase:
    """Base of GraphDefinition: of which graph it is."""


cdef class NodeBase:
    """Base of DefinitionNode: which node it is."""


cdef class HeldPool(PoolUse):
    """The private pool of a captured graph, for a copy of it within another graph, whose replays the pool is not told of."""

    def __dealloc__(self):
        if self.is_held:
            with nogil:
                hide_replays(self.ordinal, self.id[0], self.id[1])
                release_pool(self.ordinal, self.id[0], self.id[1], False)

    def __reduce__(self):
        refuse_copy(self, "it is a use of one pool")


cdef HeldPool hold_pool(int ordinal, const uint64_t* pool):
    cdef HeldPool held = HeldPool.__new__(HeldPool)
    cdef int code
    held.ordinal, held.id[0], held.id[1] = ordinal, pool[0], pool[1]
    with nogil:
        code = retain_pool(ordinal, held.id[0], held.id[1], False, 0)
    if code:
        raise_status(code, "graph_node_add", ("pool", (held.id[0], held.id[1])))
    held.is_held = True
    return held


cdef int refuse_asleep(list things) except -1:
    for thing in things or ():
        if isinstance(thing, Sleeper):
            (<Sleeper>thing).refuse_asleep()
    return 0


cdef Record record_capture(
    int kind, int ordinal, uintptr_t origin, uint64_t capture, list kept, Record other, const uint64_t* pool
):
    try:
        return open_capture(ordinal, origin, capture, kept, other, pool)
    except BaseException:
        with nogil:
            end_capture(ordinal, capture)
        dispose_capture(kind, ordinal, origin, capture)
        raise


cdef class Names:
    """Base of the names of an instance's memory."""

    cdef object work_of_node(self, uintptr_t node, NodeChange change):
        return None

    cdef int require_bound(self, object graph) except -1:
        return 0


cdef class NodePast:
    """The work that nodes of a graph had before they were changed, which instances have still."""

    def __cinit__(self):
        self.params = {}


cdef tuple begin_past(list pasts):
    cdef NodePast past
    cdef list alive = [each for each in pasts or () if each() is not None]
    past = alive[len(alive) - 1]() if alive else None
    if past is None or past.params:
        past = NodePast.__new__(NodePast)
        alive.append(PyWeakref_NewRef(past, None))
    return alive, past


cdef int note_past(list pasts, object node, object former) except -1:
    cdef NodePast past
    for each in pasts or ():
        past = each()
        if past is not None:
            past.params.setdefault(node, former)
    return 0


cdef str WAS_CAPTURED = "captured"  # the role, of nothing, of nodes that were captured with the graph that they are in
cdef dict AS_CAPTURED = {WAS_CAPTURED: []}


cdef tuple take_apart(uintptr_t graph, list kept, dict changes):
    cdef list base = list(kept)
    cdef dict by_node = {}
    take_functions(graph, base, by_node)
    for node, change in (changes or {}).items():
        note_roles(by_node, node, {"change": (<NodeChange>change).uses()})
    return base, by_node


cdef int take_functions(uintptr_t graph, list base, dict by_node) except -1:
    cdef NodeParams params
    cdef Py_ssize_t index
    for node in node_handles(graph):
        by_node[node] = AS_CAPTURED
        memset(&params, 0, sizeof(NodeParams))
        if registry.active().graph_node_params(graph, node, &params):
            continue
        if params.type == NODE_CHILD:
            by_node[node] = {WAS_CAPTURED: [], "child": []}
            take_functions(params.graph, base, by_node)
        call = find_call(base, params.data) if params.type == NODE_HOST else None
        if call is not None:
            by_node[node] = {WAS_CAPTURED: [], "function": [call]}
            index = 0
            while base[index] is not call:
                index += 1
            del base[index]
    return 0


cdef list all_things(list base, dict by_node):
    return base + [thing for roles in by_node.values() for things in roles.values() for thing in things]


cdef dict without_mark(dict roles):
    return {role: things for role, things in roles.items() if role != WAS_CAPTURED}


cdef int note_roles(dict by_node, object node, dict roles) except -1:
    by_node[node] = {**by_node.get(node, AS_CAPTURED), **roles}
    return 0


cdef bint is_made(dict made_by_hand, dict instantiated, object node) except -1:
    cdef dict roles
    if instantiated is not None and node in instantiated:
        return True
    roles = None if made_by_hand is None else made_by_hand.get(node)
    return roles is None or WAS_CAPTURED in roles


cdef int require_made(dict made_by_hand, dict instantiated, object node) except -1:
    # What is instantiated has the nodes of then, and the driver calls another one an invalid value.
    if not is_made(made_by_hand, instantiated, node):
        raise RuntimeError(f"node {node:#x} was added after the graph was instantiated, and what is instantiated has the "
                           "nodes of then alone; instantiate the graph anew, with the node as it is to be")
    return 0


cdef object params_of_instance(NodeChange change, NodePast past, object node):
    if change is None or not change.is_apart:
        return past.params.get(node)
    return params_of(&change.params) if change.kernel is None else describe_launch(
        change.kernel, change.kernel.name, change.kernel.handle, &change.size, change.values, ())


cdef object describe_launch(
    Kernel kernel, str name, uintptr_t function, const Dimensions* size, tuple values, tuple options
):
    return KernelParams(kernel, name, function, triple(size.grid), triple(size.block), size.shared, values, *options)


cdef dict kernels_in(list kept):
    return {(<Kernel>thing).handle: thing for thing in kept if isinstance(thing, Kernel)}


cdef Kernel kernel_of(uintptr_t function, dict kernels, NodeChange change):
    # The one that the graph keeps, or None.
    if change is not None and change.kernel is not None and change.kernel.handle == function:
        return change.kernel
    return kernels.get(function)


cdef Record recorded():
    cdef Record record = Record.__new__(Record)
    record.kept = []
    return record


cdef int gather_uses(NodeChange after, Kernel kernel, tuple arguments, NodeChange change, tuple values) except -1:
    # Arguments that are bytes may be the values that the node had; they then use what those did.
    cdef Py_ssize_t index, slot
    cdef Record record
    after.kernel = kernel
    if change is not None and change.kernel is kernel:
        after.things = [change.things[0]]
    else:
        record = recorded()
        kernel.keep_with(record, ())
        after.things = [record.kept]
    for index in range(len(arguments)):
        argument, record = arguments[index], None
        if isinstance(argument, bytes) and change is not None:
            record = recorded()
            for slot in range(len(values or ())):
                if values[slot] == argument and slot + 1 < len(change.things) and change.things[slot + 1]:
                    record.kept += change.things[slot + 1]
        elif type(argument) is Buffer and load_live(&(<Buffer>argument).live):
            after.things.append(uses_of_buffer(<Buffer>argument, load_ptr(&(<Buffer>argument).ptr)))
            continue
        elif not isinstance(argument, (bytes, int, float)):
            record = recorded()
            keep_memory(kernel.takes, arguments, index, index + 1, record)
        after.things.append(None if record is None else record.kept)
    return 0


cdef list uses_of_buffer(Buffer buffer, uintptr_t address):
    cdef PoolUse pool = pool_of(buffer.device_index, address)
    cdef Side side = Side.__new__(Side)
    side.ordinal, side.address = side_ordinal(buffer.device_index, address), address
    return [buffer, side] if pool is None else [pool, buffer, side]


cdef tuple read_arguments(uintptr_t function, const void** values):
    # Returns them as bytes, or None if the driver does not tell how many there are.
    cdef size_t offset = 0, size = 0, index = 0
    cdef list arguments = []
    cdef int code = registry.active().function_parameter(function, 0, &offset, &size)
    while code == 0 and values != NULL:
        arguments.append((<const char*>values[index])[:size])
        index += 1
        code = registry.active().function_parameter(function, index, &offset, &size)
    return tuple(arguments) if code == INVALID_VALUE else None


def argument_kinds(given: Kernel | None, int count) -> list[str]:
    """Of each argument "reads" or "writes" where it is a pointer by the kernel's signature, "value", or "unknown"."""
    cdef list kinds = ["unknown"] * count
    cdef Kernel kernel = given
    cdef int index
    for index in range(count if kernel is not None and kernel.takes.has_signature else 0):
        kinds[index] = "value" if kernel.takes.each[index].kind != POINTER else (
            "writes" if kernel.takes.each[index].writes else "reads")
    return kinds


cdef void** copy_arguments(uintptr_t function, void** values) except? NULL:
    # One block: the pointers, and what they point at.
    cdef size_t offset = 0, size = 0, count = 0, total = 0, index
    cdef void** arguments
    cdef char* place
    while registry.active().function_parameter(function, count, &offset, &size) == 0:
        total += (size + 15) & ~<size_t>15
        count += 1
    arguments = <void**>calloc(1, (count + 2) * sizeof(void*) + total + 16)
    if arguments == NULL:
        raise MemoryError("no host memory for a kernel's arguments")
    place = <char*>((<uintptr_t>(arguments + count + 1) + 15) & ~<uintptr_t>15)
    for index in range(count):
        registry.active().function_parameter(function, index, &offset, &size)
        arguments[index] = place
        memcpy(place, values[index], size)
        place += (size + 15) & ~<size_t>15
    return arguments


cdef object read_kernel_node(uintptr_t graph, uintptr_t node, dict kernels, NodeChange change):
    cdef NodeParams params
    read_launch(graph, node, &params)
    return launch_of(&params, kernels, change, options_of(graph, node))


cdef int read_launch(uintptr_t graph, uintptr_t node, NodeParams* params) except -1:
    cdef int code = registry.active().graph_node_params(graph, node, params)
    if params.type != NODE_KERNEL and code in (0, NOT_SUPPORTED):
        code = INVALID_VALUE
    if code:
        raise_status(code, "graph_node_params", ("graph", graph, "node", node),
                     "it is no kernel node of this graph" if code == INVALID_VALUE else "")
    return 0


cdef object launch_of(const NodeParams* params, dict kernels, NodeChange change, tuple options):
    cdef Kernel kernel = kernel_of(params.function, kernels, change)
    cdef Dimensions size
    size.grid, size.block, size.shared = params.grid, params.block, params.shared_bytes
    return describe_launch(kernel, "" if kernel is None else kernel.name, params.function, &size,
                           read_arguments(params.function, <const void**>params.arguments), options)


# What a kernel node has beside its params: (cluster, cooperative, priority), by name, by the driver's number.
cdef tuple OPTIONS = ("cluster", "cooperative", "priority")
cdef int[3] ATTRIBUTES = [ATTRIBUTE_CLUSTER, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_PRIORITY]


cdef tuple checked_options(object cluster, object cooperative, object priority):
    cdef unsigned int[3] lengths
    if cluster is None and cooperative is None and priority is None:
        return None
    if cluster is not None:
        read_dimensions(cluster, "cluster", lengths)
        cluster = triple(lengths)
    if priority is not None:
        priority = checked_int(priority, "priority", -0x80000000, 0x7FFFFFFF, "an int, as of a Stream")
    return cluster, None if cooperative is None else bool(cooperative), priority


cdef tuple options_of(uintptr_t graph, uintptr_t node):
    cdef int[3] values
    cdef list options = []
    cdef int place, code
    for place in range(3):
        code = registry.active().kernel_node_attribute_get(
            graph, node, ATTRIBUTES[place], &values[0], &values[1], &values[2])
        if code in (INVALID_VALUE, NOT_SUPPORTED) and ATTRIBUTES[place] == ATTRIBUTE_CLUSTER:
            values[0] = 0  # of a device that has no clusters
        elif code:
            raise_status(code, "kernel_node_attribute_get", ("graph", graph, "node", node, "attribute", OPTIONS[place]))
        if ATTRIBUTES[place] == ATTRIBUTE_CLUSTER:
            options.append((values[0], values[1], values[2]) if values[0] * values[1] * values[2] > 1 else None)
        else:
            options.append(values[0] != 0 if ATTRIBUTES[place] == ATTRIBUTE_COOPERATIVE else values[0])
    return tuple(options)


cdef int put_option(uintptr_t graph, uintptr_t node, int place, object option) except? -1:
    # Returns the driver's code; a cluster of None is one of single blocks.
    cdef tuple values = (option or (1, 1, 1)) if ATTRIBUTES[place] == ATTRIBUTE_CLUSTER else (option, 0, 0)
    return registry.active().kernel_node_attribute_set(graph, node, ATTRIBUTES[place], values[0], values[1], values[2])


cdef int put_options(uintptr_t graph, uintptr_t node, tuple options) except -1:
    cdef int place, code
    for place in range(3):
        code = 0 if options[place] is None else put_option(graph, node, place, options[place])
        if code:
            raise_status(code, "kernel_node_attribute_set", ("graph", graph, "node", node, OPTIONS[place], options[place]),
                         "the device has no clusters (compute capability 9.0)" if ATTRIBUTES[place] == ATTRIBUTE_CLUSTER
                         and code in (INVALID_VALUE, NOT_SUPPORTED) else "")
    return 0


cdef int put_launch(uintptr_t graph, uintptr_t exec_, uintptr_t node, Kernel kernel, const Dimensions* size, tuple arguments,
                    tuple options, tuple former_options, NodeParams* former, bint* out_begun) except -1:
    # A driver compares a cluster with the grid that the node has, so that there is none while that changes.  What is refused
    # leaves the node as it was; where the driver tells nothing of arguments, with the new ones.
    cdef size_t offset, nbytes
    cdef int place
    former.arguments = copy_arguments(former.function, former.arguments)
    try:
        if options[0] is not None:
            put_options(graph, node, ((1, 1, 1), None, None))
        set_launch(kernel, graph, exec_, node, size, arguments, None, out_begun)
        put_options(graph, node, options)
    except BaseException:
        if registry.active().function_parameter(former.function, 0, &offset, &nbytes) != NOT_SUPPORTED:
            registry.active().graph_node_set(kernel.device_index, graph, 0, node, former)
        for place in range(3):
            if options[place] is not None:
                put_option(graph, node, place, former_options[place])
        raise
    finally:
        free(former.arguments)
    return 0


cdef tuple with_options(tuple former, tuple options):
    return tuple([former[place] if options[place] is None else options[place] for place in range(3)])


cdef int require_launchable(Kernel kernel, const Dimensions* size, tuple options) except -1:
    # What a launch is refused for is refused of a node before it is there; drivers do so once the graph is instantiated.
    cdef object cluster = options[0]
    if cluster is None and not options[1]:
        return 0
    if size.shared > kernel.most_shared:
        kernel.permit_shared(size.shared)
    if cluster is not None and cluster[0] * cluster[1] * cluster[2] > PORTABLE_CLUSTER:
        init.later("accelrt.kernels.attributes").permit_wide_clusters(kernel)
    init.later("accelrt.kernels.occupancy").require_launchable(
        kernel, triple(size.grid), triple(size.block), size.shared, cluster, options[1])
    return 0


cdef int set_launch(Kernel kernel, uintptr_t graph, uintptr_t exec_, uintptr_t node, const Dimensions* size,
                    tuple arguments, NodeChange apart, bint* out_begun) except -1:
    # A kernel node becomes a launch of the kernel: in an instance, unless exec_ is 0, and then in the graph.  apart: the
    # instance's change, of which it is known from then on, where the graph is another's; or None.  Where it raises and
    # out_begun is set, the instance took it.
    cdef Packed packed
    cdef NodeParams params
    cdef object _room = kernel.describe_node(size, arguments, &packed, &params)
    cdef tuple values = None if apart is None else as_bytes(kernel, &packed, PyTuple_GET_SIZE(arguments))
    cdef int code = 0
    with nogil:
        if exec_:
            code = registry.active().graph_node_set(kernel.device_index, graph, exec_, node, &params)
        if apart is None and code == 0:
            out_begun[0], exec_ = exec_ != 0, 0
            code = registry.active().graph_node_set(kernel.device_index, graph, 0, node, &params)
    if code:
        kernel.raise_unchanged(code, exec_, node, size)
    if apart is not None:
        apart.is_apart, apart.size, apart.values = True, size[0], values
    return 0


cdef tuple as_bytes(Kernel kernel, const Packed* packed, Py_ssize_t count):
    # As read_arguments has them.
    cdef tuple values
    cdef Py_ssize_t index
    if kernel.takes.count < 0:
        return read_arguments(kernel.handle, <const void**>packed.pointers)
    values = PyTuple_New(count)
    for index in range(count):
        value = PyBytes_FromStringAndSize(<const char*>packed.pointers[index], kernel.takes.each[index].size)
        Py_INCREF(value)
        PyTuple_SET_ITEM(values, index, value)
    return values


cdef tuple addresses_in(arguments):
    # Returns what may be pointers among a node's or a caller's arguments: ints, and bytes of 8.
    return tuple([
        int.from_bytes(each, "little") if isinstance(each, bytes) else each
        for each in arguments or () if isinstance(each, bytes) and len(each) == sizeof(void*) or type(each) is int
    ])


cdef bint has_bytes(tuple arguments) noexcept:
    # Whether values may be those that the node has; None leaves all of those.
    cdef Py_ssize_t index
    for index in range(0 if arguments is None else len(arguments)):
        if isinstance(arguments[index], bytes):
            return True
    return arguments is None


cdef int change_kernel_node(uintptr_t graph, uintptr_t exec_, uintptr_t node, int ordinal, uint64_t capture, dict kernels,
                            NodeChange change, NodeChange after, bint* out_begun, object kernel, object grid, object block,
                            object shared, object arguments, tuple options, NodePast past, bint tells,
                            Names bound, bint is_there) except -1:
    # before: what the node launched, which takes longer to tell than to change and is not always asked for.
    # known: by the last change.
    cdef bint known = past is not None and change is not None and change.is_apart and change.kernel is not None
    cdef object before = None if past is None or known else past.params.get(node)
    cdef tuple new_arguments = None if arguments is None else tuple(arguments)
    if new_arguments is None and past is not None and bound is not None:
        new_arguments = bound.work_of_node(node, change)
    cdef bint watched = watch.detects_races(), asked = tells or watched or has_bytes(new_arguments)
    cdef Kernel to = kernel
    cdef NodeParams params
    cdef Dimensions size
    cdef tuple former = None
    if past is not None and options is not None:
        raise NotSupportedError("no driver changes cluster, cooperative or priority in an instance; change the definition's "
                                "node, and call instance.update(definition.graph), or instantiate it anew")
    out_begun[0] = False
    if not (known and is_there):
        read_launch(graph, node, &params)
    if known:
        size = change.size
        before = params_of_instance(change, past, node) if asked else None
    elif before is not None:
        read_dimensions(before.grid, "grid", size.grid)
        read_dimensions(before.block, "block", size.block)
        size.shared = read_shared(before.shared)
    else:
        size.grid, size.block, size.shared = params.grid, params.block, params.shared_bytes
        before = launch_of(&params, kernels, change, ()) if asked else None
    if tells:
        after.former = before
    if grid is not None:
        read_dimensions(grid, "grid", size.grid)
    if block is not None:
        read_dimensions(block, "block", size.block)
    if shared is not None:
        size.shared = read_shared(shared)
    if new_arguments is None:
        if before.arguments is None:
            raise NotSupportedError("this driver does not tell a kernel's arguments (CUDA 12.4 does); pass args")
        new_arguments = before.arguments
    if to is None:
        to = change.kernel if known else kernel_of(params.function, kernels, change) if before is None else before.kernel
    if to is None:  # of another library
        function = params.function if before is None else before.function
        to = make_kernel(None, function, ordinal, f"function {function:#x}", None)
    if to.device_index != ordinal:
        raise ValueError(f"kernel {to.name!r} is on device {to.device_index}, the graph on {ordinal}")
    if past is None and not (options is None and kernel is None and grid is None and block is None and shared is None):
        former = options_of(graph, node)
        require_launchable(to, &size, former if options is None else with_options(former, options))
    gather_uses(after, to, new_arguments, change, None if before is None else before.arguments)
    if options is None:
        set_launch(to, graph, exec_, node, &size, new_arguments, None if past is None else after, out_begun)
    else:
        put_launch(graph, exec_, node, to, &size, new_arguments, options, former, &params, out_begun)
    out_begun[0] = exec_ != 0
    if watched:
        watch.note_changed(capture, (before.name, addresses_in(before.arguments)),
                           (to.name, addresses_in(new_arguments), tuple(uses_of(to.takes, new_arguments))))
    return 0


# By their bits, 1 << index (CUgraphDebugDot_flags).
# stub: DOT_FLAGS: tuple[str, ...]
DOT_FLAGS = (
    "verbose", "runtime_types", "kernel_node_params", "memcpy_node_params", "memset_node_params", "host_node_params",
    "event_node_params", "ext_semas_signal_node_params", "ext_semas_wait_node_params", "kernel_node_attributes", "handles",
    "mem_alloc_node_params", "mem_free_node_params", "batch_mem_op_node_params", "extra_topo_info",
    "conditional_node_params",
)


def write_dot(uintptr_t graph, path: str | os.PathLike[str], bint verbose, names: Iterable[str] = ()) -> None:
    """Writes a driver's graph as text for Graphviz to a file, with what DOT_FLAGS of these names draw."""
    cdef bytes encoded = os.fsencode(path)
    if b"\0" in encoded:  # the driver would write to what stands before it
        raise ValueError(f"debug_path is {path!r}, with an embedded null character; pass the path of a file")
    cdef const char* to = encoded
    cdef unsigned int flags = DOT_VERBOSE if verbose else 0
    cdef int code
    if not hasattr(names, "__iter__"):
        raise TypeError(f"flags is {names!r:.60} of type {type(names).__name__}; pass some of {', '.join(DOT_FLAGS)}")
    for name in [names] if isinstance(names, str) else names:
        if name not in DOT_FLAGS:
            raise ValueError(f"flags has {name!r}; it may have {', '.join(DOT_FLAGS)}")
        flags |= <unsigned int>1 << <int>DOT_FLAGS.index(name)
    with nogil:
        code = registry.active().graph_dot(graph, to, flags)
    if code:
        raise_status(code, "graph_dot", ("graph", graph, "path", path))


# --- memory of graphs ----------------------------------------------------------------------------------------------

def graph_memory(device: object, attribute: int) -> int:
    """Bytes that allocations of graphs have on a device, by a number of CUgraphMem_attribute."""
    cdef uint64_t value = 0
    cdef int ordinal = ordinal_of(device)
    cdef int number = attribute, code
    with nogil:
        code = registry.active().graph_memory_get(ordinal, number, &value)
    if code:
        raise_status(code, "graph_memory_get", ("device", ordinal, "attribute", attribute))
    return value


def change_graph_memory(device: object, bint trims) -> None:
    """Gives memory of graphs that no launch has back to the device, or resets the peaks."""
    cdef int ordinal = ordinal_of(device)
    cdef int code = 0, number
    with nogil:
        if trims:
            code = registry.active().graph_memory_trim(ordinal)
        for number in range(1, 4, 2):
            if code == 0 and not trims:
                code = registry.active().graph_memory_reset(ordinal, number)
    if code:
        raise_status(code, "graph_memory_trim" if trims else "graph_memory_reset", ("device", ordinal))


# --- instantiated graphs ---------------------------------------------------------------------------------------

cdef int instantiate(int ordinal, uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil:
    # Refused while another thread captures in global mode, which it would break, unless the caller is relaxed.
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    code = registry.active().graph_instantiate(ordinal, graph, flags, out_exec)
    restore_mode(registry.active(), mode)
    return code


cdef int instantiate_anew(int ordinal, uintptr_t graph, uintptr_t* before, uintptr_t* out_exec) noexcept nogil:
    cdef int code = instantiate(ordinal, graph, 0, out_exec)
    if code == NOT_SUPPORTED and before != NULL and before[0] and give_back(GRAPH_EXEC, ordinal, before[0]) == 0:
        before[0] = 0
        code = instantiate(ordinal, graph, 0, out_exec)
    return code


cdef str instance_hint(int code):
    if code == INVALID_VALUE:
        return "one reason is edges that make a circle, of which remove_edge() takes one out"
    if code != NOT_SUPPORTED:
        return ""
    return ("a graph with conditions or allocations has one instance at a time: drop or reset() the other one, or bring it "
            "up to date by its update(); clones and children that were made of it before count too; or the driver takes no "
            "such flags, or not with these nodes")


cdef str launch_hint(int code):
    if code != INVALID_VALUE:
        return ""
    return ("one reason is memory that the last launch allocated and nothing has freed, or that this one frees and nothing "
            "allocated: free_graph_memory(node) frees it, instantiate(auto_free=True) makes launches that do")


# A driver pairs the nodes of an instance with those of the graph that it is updated by: by their order among those that
# come after the same, which edges change that were added and are gone again (580.159; what makes the pairing determinate
# the driver API's reference tells of cuGraphExecUpdate).  Of a node that is left out it is the instance's that stays so.
# So it is certain which ones are left out where an instance is updated by the graph that it was made of, whose nodes and
# edges are those of then, and nowhere else.
cdef int update_exec(uintptr_t exec_, uintptr_t graph, bint is_own) except -1:
    cdef uintptr_t node = 0
    cdef int reason = 0, mode
    cdef int code = NOT_SUPPORTED if not is_own and leaves_nodes_out(exec_) else go_relaxed(registry.active(), &mode)
    if code == 0:
        with nogil:
            code = registry.active().graph_update(exec_, graph, &reason, &node)
        restore_mode(registry.active(), mode)
    if code == GRAPH_UPDATE_FAILURE:
        explain_update(code, reason, graph, node)
    if code:
        raise_status(code, "graph_update", ("graph_exec", exec_, "graph", graph),
                     "an instance that leaves nodes out takes what its own definition does, with the nodes and edges that "
                     "it had then; have it do them again before: node.set_enabled(instance, True)"
                     if code == NOT_SUPPORTED else "")
    return 0


cdef int set_condition(int ordinal, uintptr_t stream, uint64_t condition, uintptr_t address) except -1:
    cdef int code
    watch.note_access(ordinal, stream, address, FLAG_BYTES, "r", "condition")
    with nogil:
        code = registry.active().conditional_set(ordinal, stream, condition, address)
    if code:
        raise_status(code, "conditional_set", ("stream", stream, "address", address))
    return 0


cdef int explain_update(int code, int result, uintptr_t graph, uintptr_t node) except -1:
    name, text = RESULTS[result] if 0 <= result < len(RESULTS) else (f"result {result}", "for a reason not known here")
    handles = node_handles(graph)
    where = ""
    if node in handles:
        where = f", at node {handles.index(node)} of {len(handles)}, {node:#x}, a {type_of(graph, node)} node"
    refused = status_error(code, "graph_update", ("graph", graph))
    raise CudaError(
        f"{refused}; the driver's reason is CU_GRAPH_EXEC_UPDATE_{name}: {text}{where}", code, refused.name, refused.call)


# --- nogil graph ------------------------------------------------------------------------------------------------------
# Graphs of nogil code: captured, launched and destroyed without the GIL.
#
# A capture is a transaction here too: where it fails, the stream leaves it and the memory goes back to the pool.
# What the driver refuses to destroy is tried again when the next capture begins or graph is destroyed, and whenever
# Python's refused objects are tried again.

cdef enum:
    OWN_POOL = 1  # second half of the id of a graph's own pool, which no pool of Python's has

cdef struct Graph:
    int state
    int device
    uintptr_t stream    # that is captured
    uint64_t capture    # the driver's id of that capture
    uint64_t[2] pool
    bint retains_pool   # the pool counts this graph
    bint counted        # as a capture under way
    bint uses_pool      # the capture's allocations come from the pool
    uintptr_t raw       # the driver's graph, from the capture's end on
    uintptr_t raw_exec  # the driver's, instantiated
    size_t nodes
    Graph* next         # among the refused

cdef AddressMap graphs         # address -> Graph; under the lock
cdef Graph* refused = NULL     # destroyed, and the driver kept something of it; under the lock
cdef int lock = 0
cdef long own_pools = 0        # how many graphs had a pool of their own


cdef void forget_graphs() noexcept nogil:
    global lock, refused
    lock = 0
    refused = NULL
    memset(&graphs, 0, sizeof(graphs))


cdef Graph* find(uintptr_t graph) noexcept nogil:
    cdef Graph* entry
    spin_lock(&lock)
    entry = <Graph*>map_find(&graphs, graph)
    spin_unlock(&lock)
    return entry


# --- destruction ---------------------------------------------------------------------------------------------

cdef void close_capture(Graph* graph) noexcept nogil:
    # Counts the capture out first: what waited for its end may be given back then.  Takes the pool's lock.
    if graph.counted:
        count_out_capture()
        graph.counted = False
    if graph.uses_pool:
        end_capture(graph.device, graph.capture)
        graph.uses_pool = False
    follow_capture()


cdef int abandon_capture(Graph* graph) noexcept nogil:
    # Ends the capture, broken or not, unless the driver has ended it already.  Takes the pool's lock.  A second attempt
    # comes when the capture is counted no more, so it has to keep other captures from beginning on the stream meanwhile.
    cdef uintptr_t raw = 0
    cdef int code
    if graph.counted:
        code = end_on_driver(graph.device, graph.stream, graph.capture, &raw)
    else:
        code = end_capture_again(graph.device, graph.stream, graph.capture, &raw)
    close_capture(graph)
    if code == 0:
        graph.state = EMPTY
    if raw:
        graph.raw = raw
    return code


cdef int dismantle(Graph* graph) noexcept nogil:
    # Destroys the driver's objects and releases the pool.  Answers the first refusal; a second call tries again only
    # what was refused.  Takes the pool's lock.
    cdef int code = 0, other
    if graph.state == CAPTURING:
        code = abandon_capture(graph)
    if graph.raw_exec:
        other = give_back(GRAPH_EXEC, graph.device, graph.raw_exec)
        graph.raw_exec = 0 if other == 0 else graph.raw_exec
        code = code if code else other
    if graph.raw:
        other = give_back(GRAPH, graph.device, graph.raw)
        graph.raw = 0 if other == 0 else graph.raw
        code = code if code else other
    if graph.retains_pool:
        hide_replays(graph.device, graph.pool[0], graph.pool[1])  # launches are not noted
        release_pool(graph.device, graph.pool[0], graph.pool[1], False)
        graph.retains_pool = False
    graph.nodes = 0
    return code


cdef void discard(Graph* graph) noexcept nogil:
    # Takes the lock where the driver refuses something.
    global refused
    cdef int code = dismantle(graph)
    if code == 0 or code == FORKED:
        free(graph)
        return
    spin_lock(&lock)
    graph.next = refused
    refused = graph
    spin_unlock(&lock)


cdef void retry_refused() noexcept nogil:
    # Takes the lock, but not for the driver's calls.
    global refused
    cdef Graph* left
    cdef Graph* graph
    spin_lock(&lock)
    left = refused
    refused = NULL
    spin_unlock(&lock)
    while left != NULL:
        graph = left
        left = graph.next
        discard(graph)


cdef int destroy_graph(uintptr_t graph) noexcept nogil:
    cdef Graph* entry
    spin_lock(&lock)
    entry = <Graph*>map_remove(&graphs, graph)
    spin_unlock(&lock)
    retry_refused()
    if entry == NULL:
        return INVALID_HANDLE
    discard(entry)
    return 0


# --- captures ------------------------------------------------------------------------------------------------

cdef int enlist(Graph* graph) noexcept nogil:
    cdef int code
    spin_lock(&lock)
    code = map_reserve(&graphs)
    if code == 0:
        map_insert(&graphs, <uintptr_t>graph, graph)
    spin_unlock(&lock)
    return code


cdef int begin_capture(Graph* graph, int mode) noexcept nogil:
    # Retains the pool, and begins to capture the stream.  May wait, and takes the pool's lock.
    cdef int code = retain_pool(graph.device, graph.pool[0], graph.pool[1], False, 0)
    if code:
        return code
    graph.retains_pool = True
    expect_idle(graph.device)
    expect_capture()  # before the first moment in which others could disturb it
    graph.counted = True
    code = registry.active().capture_begin(graph.device, graph.stream, mode)
    if code:
        close_capture(graph)
        return code
    graph.state = CAPTURING
    code = begin_capture_on(graph.device, graph.stream, graph.pool[0], graph.pool[1], &graph.capture)
    graph.uses_pool = code == 0
    return code


cdef int begin_graph(int device, uintptr_t stream, int mode, uint64_t id0, uint64_t id1,
                     uintptr_t* out_graph) noexcept nogil:
    cdef Graph* graph = <Graph*>calloc(1, sizeof(Graph))
    cdef int code
    out_graph[0] = 0
    retry_refused()
    if graph == NULL:
        return NO_HOST_MEMORY
    graph.device = device
    graph.stream = stream
    graph.pool[0], graph.pool[1] = id0, id1
    if id0 == 0 and id1 == 0:
        graph.pool[0], graph.pool[1] = <uint64_t>add_count(&own_pools, 1), OWN_POOL
    code = begin_capture(graph, mode)
    if code == 0:
        code = enlist(graph)
    if code:
        discard(graph)
        return code
    out_graph[0] = <uintptr_t>graph
    return 0


cdef int end_graph(uintptr_t graph) noexcept nogil:
    cdef Graph* entry = find(graph)
    cdef int code
    if entry == NULL:
        return INVALID_HANDLE
    if entry.state != CAPTURING:
        return ILLEGAL_STATE
    code = registry.active().capture_end(entry.device, entry.stream, &entry.raw)
    if code == 0:
        entry.state = CAPTURED
        close_capture(entry)
        code = registry.active().graph_node_count(entry.raw, &entry.nodes)
    if code:
        dismantle(entry)  # a driver that refuses to end a capture must not leave the stream in it
        if entry.state != CAPTURING:
            entry.state = EMPTY
    return code


cdef int instantiate_graph(uintptr_t graph) noexcept nogil:
    cdef Graph* entry = find(graph)
    cdef int code
    if entry == NULL:
        return INVALID_HANDLE
    if entry.state != CAPTURED:
        return ILLEGAL_STATE
    code = instantiate(entry.device, entry.raw, 0, &entry.raw_exec)
    if code == 0:
        entry.state = READY
    return code


cdef int launch_graph(uintptr_t graph, uintptr_t stream) noexcept nogil:
    cdef Graph* entry = find(graph)
    cdef Slot* section
    cdef int code
    if entry == NULL:
        return INVALID_HANDLE
    if entry.state != READY:
        return ILLEGAL_STATE
    section = begin_nogil_use()
    if section == NULL:
        return NO_HOST_MEMORY
    if watch.is_pool_awake(entry.device, entry.pool[0], entry.pool[1]):
        code = registry.active().graph_launch(entry.device, entry.raw_exec, stream)
    else:
        code = SLEEPING
    end_nogil_use(section)
    return code


# --- figures -------------------------------------------------------------------------------------------------

cdef int read_graph(uintptr_t graph, int* out_state, size_t* out_nodes) noexcept nogil:
    cdef Graph* entry = find(graph)
    if entry == NULL:
        return INVALID_HANDLE
    out_state[0] = entry.state
    out_nodes[0] = entry.nodes
    return 0


cdef int read_graph_pool(uintptr_t graph, uint64_t* out_id0, uint64_t* out_id1) noexcept nogil:
    cdef Graph* entry = find(graph)
    if entry == NULL:
        return INVALID_HANDLE
    out_id0[0], out_id1[0] = entry.pool[0], entry.pool[1]
    return 0


cdef int read_raw_graph(uintptr_t graph, uintptr_t* out_graph, uintptr_t* out_exec) noexcept nogil:
    cdef Graph* entry = find(graph)
    if entry == NULL:
        return INVALID_HANDLE
    out_graph[0], out_exec[0] = entry.raw, entry.raw_exec
    return 0


drain_too(retry_refused)
at_fork("graphs.nodes", FORK_GRAPHS, NULL, NULL, &forget_graphs)
