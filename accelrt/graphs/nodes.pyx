"""The driver's graphs: what one is made of, and what is instantiated from it or updated by it."""
import os
from collections import namedtuple

from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.errors import CudaError, NotSupportedError
from accelrt.kernels.kernel cimport Dimensions, Kernel, make_kernel, read_dimensions, read_shared
from accelrt.kernels.packing cimport keep_memory, uses_of
from accelrt.runtime.capture_record cimport Record, Side, note_sides
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport GRAPH_UPDATE_FAILURE, INVALID_VALUE, raise_status
from accelrt.status import status_error

cdef enum:
    DOT_VERBOSE = 1  # CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE

# CUgraphNodeType and CUgraphExecUpdateResult, by number (CUDA driver API, "Data types used by CUDA driver").
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


class KernelParams(namedtuple("KernelParams", "kernel name function grid block shared arguments")):
    """What a kernel node launches.

    Attributes:
        kernel: Kernel, or None where others launched it.
        name: str, the kernel's; "" where it is not known.
        function: int, the driver's handle (CUfunction).
        grid, block: (x, y, z), blocks and threads of a block.
        shared: int, bytes of dynamic shared memory.
        arguments: tuple of bytes, the values as they lie in memory; None where the driver does not tell their sizes
            (before CUDA 12.4).  To change them pass what a launch takes, or bytes.
    """

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

    _owner = None  # a weak reference to the CUDAGraph that listed it; a copy has none

    def __reduce__(self):
        return GraphNode, tuple(self)

    def _graph(self):
        found = None if self._owner is None else self._owner()
        if found is None:
            raise RuntimeError("the CUDAGraph of this node is gone; take nodes from CUDAGraph.nodes(), and keep the graph")
        return found

    @property
    def params(self):
        return self._graph().kernel_node_params(self)

    @params.setter
    def params(self, params):
        self._graph().set_kernel_node_params(
            self, kernel=params.kernel, grid=params.grid, block=params.block, shared=params.shared, args=params.arguments)


cdef str type_name(int type_):
    return TYPES[type_] if 0 <= type_ < len(TYPES) else f"type {type_}"


cdef class Handles:
    """Room for handles that a row writes."""

    cdef uintptr_t* array

    def __cinit__(self, size_t room):
        self.array = <uintptr_t*>calloc(room + 1, sizeof(uintptr_t))
        if self.array == NULL:
            raise MemoryError(f"no host memory for a list of {room} handles")

    def __dealloc__(self):
        free(self.array)


cdef list node_handles(uintptr_t graph):
    cdef size_t room = 0, count = 0, index
    cdef Handles found
    cdef int code = registry.active().graph_nodes(graph, 0, NULL, &room)
    if code == 0 and room:
        found = Handles(room)
        code = registry.active().graph_nodes(graph, room, found.array, &count)
    if code:
        raise_status(code, "graph_nodes", ("graph", graph))
    return [found.array[index] for index in range(count)] if room else []


def list_edges(uintptr_t graph):
    """Pairs (id, id of the node after it) of a driver's graph, in the driver's order."""
    cdef size_t room = 0, count = 0, index
    cdef Handles origins, targets
    cdef int code = registry.active().graph_edges(graph, 0, NULL, NULL, &room)
    if code == 0 and room:
        origins, targets = Handles(room), Handles(room)
        code = registry.active().graph_edges(graph, room, origins.array, targets.array, &count)
    if code:
        raise_status(code, "graph_edges", ("graph", graph))
    return [(origins.array[index], targets.array[index]) for index in range(count)] if room else []


cdef str type_of(uintptr_t graph, uintptr_t node):
    cdef int type_ = 0
    cdef int code = registry.active().graph_node_type(graph, node, &type_)
    if code:
        raise_status(code, "graph_node_type", ("graph", graph, "node", node))
    return type_name(type_)


def list_nodes(uintptr_t graph, owner=None):
    """The GraphNodes of a driver's graph, in the driver's order.

    Arguments:
        owner: CUDAGraph that the nodes' params are of.
    """
    cdef dict before = {}
    for origin, target in list_edges(graph):
        before.setdefault(target, []).append(origin)
    found = [GraphNode(node, type_of(graph, node), tuple(before.get(node, ()))) for node in node_handles(graph)]
    for node in found:
        node._owner = None if owner is None else PyWeakref_NewRef(owner, None)
    return found


# --- kernel nodes ----------------------------------------------------------------------------------------------

cdef class NodeChange:
    """What a kernel node launches since it was changed, and what that uses."""

    cdef int gather(self, Record record) except -1:
        # What an argument uses, or the kernel; None is room for what uses nothing.
        if record is None:
            self.things.append(None)
            return 0
        self.things.append(record.kept)
        self.sides += [thing for thing in record.kept if isinstance(thing, Side)]
        return 0

    cdef list foreign(self, int device, uintptr_t stream, NodeChange after):
        # What has to live until a stream is past its replays once this change gives way to another: memory of no allocator
        # of accelrt's, and functions.
        cdef list found = [], things
        cdef Py_ssize_t index
        cdef set stays = {id(thing) for things in after.things if things for thing in things}
        for things in self.things:
            for index in range(1, len(things) if things else 0):
                if isinstance(things[index], Side) and id(things[index - 1]) not in stays and note_sides(
                        [things[index]], device, stream):
                    found.append(things[index - 1])
        return found


cdef dict kernels_in(list kept):
    return {(<Kernel>thing).handle: thing for thing in kept if isinstance(thing, Kernel)}


cdef Kernel kernel_of(uintptr_t function, dict kernels, NodeChange change):
    # Of those that the graph keeps.
    if change is not None and change.kernel.handle == function:
        return change.kernel
    return kernels.get(function)


cdef Record recorded():
    cdef Record record = Record.__new__(Record)
    record.kept = []
    return record


cdef int gather_uses(NodeChange made, Kernel kernel, tuple given, NodeChange change, tuple values) except -1:
    # Arguments that are bytes may be the values that the node had: then they use what these did.
    cdef Py_ssize_t index, place
    cdef Record record = recorded()
    cdef list alone = [0] * len(given)
    made.kernel, made.things, made.sides = kernel, [], []
    kernel.keep_with(record, ())
    made.gather(record)
    for index in range(len(given)):
        argument, record = given[index], None
        if isinstance(argument, bytes) and change is not None:
            record = recorded()
            for place in range(len(values or ())):
                if values[place] == argument and place + 1 < len(change.things) and change.things[place + 1]:
                    record.kept += change.things[place + 1]
        elif not isinstance(argument, (bytes, int, float)):
            record, alone[index] = recorded(), argument
            keep_memory(kernel.takes, tuple(alone), record)
            alone[index] = 0
        made.gather(record)
    return 0


cdef tuple read_arguments(uintptr_t function, const void** values):
    # As bytes; None where the driver does not tell how many.
    cdef size_t offset = 0, size = 0, index = 0
    cdef list found = []
    cdef int code = registry.active().function_parameter(function, 0, &offset, &size)
    while code == 0 and values != NULL:
        found.append((<const char*>values[index])[:size])
        index += 1
        code = registry.active().function_parameter(function, index, &offset, &size)
    return tuple(found) if code == INVALID_VALUE else None


cdef object read_kernel_node(uintptr_t graph, uintptr_t node, dict kernels, NodeChange change):
    cdef unsigned int[7] size
    cdef uintptr_t function = 0, arguments = 0
    cdef Kernel kernel
    cdef int code
    with nogil:
        code = registry.active().kernel_node(
            graph, node, &function, &size[0], &size[1], &size[2], &size[3], &size[4], &size[5], &size[6], &arguments)
    if code:
        raise_status(code, "kernel_node", ("graph", graph, "node", node),
                     "it is no kernel node of this graph" if code == INVALID_VALUE else "")
    kernel = kernel_of(function, kernels, change)
    return KernelParams(
        kernel, "" if kernel is None else kernel.name, function, (size[0], size[1], size[2]), (size[3], size[4], size[5]),
        size[6], read_arguments(function, <const void**>arguments))


cdef tuple addresses_in(arguments):
    # What may be pointers among arguments as a node has them, or as they were given: ints, and bytes of 8.
    return tuple([
        int.from_bytes(each, "little") if isinstance(each, bytes) else each
        for each in arguments or () if isinstance(each, bytes) and len(each) == sizeof(void*) or type(each) is int
    ])


cdef int change_kernel_node(uintptr_t graph, uintptr_t exec_, uintptr_t node, int ordinal, uint64_t capture, dict kernels,
                            NodeChange change, NodeChange made, bint* out_begun, object kernel, object grid, object block,
                            object shared, object arguments) except -1:
    cdef object before = read_kernel_node(graph, node, kernels, change)
    cdef Kernel to = kernel if kernel is not None else before.kernel
    cdef Dimensions size
    cdef tuple given
    out_begun[0] = False
    read_dimensions(before.grid if grid is None else grid, "grid", size.grid)
    read_dimensions(before.block if block is None else block, "block", size.block)
    size.shared = read_shared(before.shared if shared is None else shared)
    if arguments is None:
        arguments = before.arguments
    if arguments is None:
        raise NotSupportedError("this driver does not tell a kernel's arguments (CUDA 12.4 does); pass args")
    if to is None:  # of another library
        to = make_kernel(None, before.function, ordinal, f"function {before.function:#x}", None)
    if to.device_index != ordinal:
        raise ValueError(f"kernel {to.name!r} is on device {to.device_index}, the graph on {ordinal}")
    given = tuple(arguments)
    gather_uses(made, to, given, change, before.arguments)
    if exec_:  # which may refuse what the graph takes
        to.change_node(graph, exec_, node, &size, given)
        out_begun[0] = True
    to.change_node(graph, 0, node, &size, given)
    if watch.sanitizing:
        watch.note_changed(capture, (before.name, addresses_in(before.arguments)),
                           (to.name, addresses_in(given), tuple(uses_of(to.takes, given))))
    return 0


def write_dot(uintptr_t graph, path, bint verbose):
    """Writes a driver's graph as text for Graphviz to a file."""
    cdef bytes place = os.fsencode(path)
    if b"\0" in place:  # the driver would write to what stands before it
        raise ValueError(f"debug_path is {path!r}, with an embedded null character; pass the path of a file")
    cdef const char* to = place
    cdef unsigned int flags = DOT_VERBOSE if verbose else 0
    cdef int code
    if b"\0" in place:
        raise ValueError(f"debug_path is {path!r}: embedded null character; C would read the path up to it only")
    with nogil:
        code = registry.active().graph_dot(graph, to, flags)
    if code:
        raise_status(code, "graph_dot", ("graph", graph, "path", path))


# --- instantiated graphs ---------------------------------------------------------------------------------------

cdef int instantiate(int ordinal, uintptr_t graph, uintptr_t* out_exec) noexcept nogil:
    # Refused while another thread captures in global mode, which it would break, unless the caller is relaxed.
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    code = registry.active().graph_instantiate(ordinal, graph, 0, out_exec)
    restore_mode(registry.active(), mode)
    return code


cdef int update_exec(uintptr_t exec_, uintptr_t graph) except -1:
    cdef uintptr_t node = 0
    cdef int result = 0, mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code == 0:
        with nogil:
            code = registry.active().graph_update(exec_, graph, &result, &node)
        restore_mode(registry.active(), mode)
    if code == GRAPH_UPDATE_FAILURE:
        explain_update(code, result, graph, node)
    if code:
        raise_status(code, "graph_update", ("graph_exec", exec_, "graph", graph))
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
