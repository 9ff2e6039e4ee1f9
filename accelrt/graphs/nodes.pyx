"""The driver's graphs: what one is made of, and what is instantiated from it or updated by it."""
import os
from collections import namedtuple

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.errors import CudaError
from accelrt.status cimport GRAPH_UPDATE_FAILURE, raise_status
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


class GraphNode(namedtuple("GraphNode", "id type dependencies")):
    """A node of a captured graph.

    Attributes:
        id: int, the driver's handle (CUgraphNode).
        type: str: "kernel", "memcpy", "memset", "host", "graph", "empty", "wait_event", "event_record",
            "conditional", ...: CUgraphNodeType in lower case; "type 99" for one that is not known.
        dependencies: tuple of int, the ids of the nodes that it comes after.
    """

    __slots__ = ()


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


def list_nodes(uintptr_t graph):
    """The GraphNodes of a driver's graph, in the driver's order."""
    cdef dict before = {}
    for origin, target in list_edges(graph):
        before.setdefault(target, []).append(origin)
    return [GraphNode(node, type_of(graph, node), tuple(before.get(node, ()))) for node in node_handles(graph)]


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
