"""Describes, adds, changes and takes out nodes of graphs by hand.

A NodeWork says what a node is to do, and keeps what it points at.  edit() calls what changes a CUDAGraph's graph, while no
other thread may use it.
"""
cimport cython
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset

from accelrt.allocator.private.routes cimport retain_pool
from accelrt.arrays.array cimport Buffer
from accelrt.arrays.copy cimport enter_use_apart, Operand, read_operand, uses_owner, View
from accelrt.core.arguments import checked_type
from accelrt.core.integers cimport checked_int
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.node_params cimport (
    EDGE_DEFAULT, EdgeData, NODE_ALLOCATE, NODE_CHILD, NODE_CONDITION, NODE_COPY, NODE_EMPTY, NODE_FILL, NODE_FREE,
    NODE_HOST, NODE_KERNEL, NODE_RECORD, NODE_WAIT, NodeParams, PORT_DEFAULT,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.memory cimport MAX_PITCH
from accelrt.errors import CudaError, NotSupportedError
from accelrt.graphs.graph cimport CALLBACKS, CUDAGraph, node_id, source_of
from accelrt.graphs.nodes cimport (
    all_things, checked_options, DefinitionBase, fits_body, Handles, hold_pool, list_edge_data, NodeBase, NodeChange,
    note_roles, params_of, params_of_instance, put_options, put_params, read_kernel_node, recorded, require_launchable,
    require_made, take_apart, type_name, uses_of_buffer, without_mark, work_of,
)
from accelrt.graphs.nodes import CopyParams, FillParams, list_nodes
from accelrt.kernels.kernel cimport Dimensions, Kernel, Packed, read_dimensions, read_shared
from accelrt.memory.mempool cimport next_pool
from accelrt.runtime.lifetimes cimport (
    GRAPH, dispose, drain, find_call, function_of, keep_side, node_call, nodes_of, Record, Side,
)
from accelrt.status cimport ILLEGAL_STATE, INVALID_VALUE, NOT_SUPPORTED, raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport current_of, Event, Stream
from accelrt.runtime.access cimport Access, begin_use, end_use, end_use_of


# --- nodes made by hand ----------------------------------------------------------------------------------------

cdef size_t ANY_BYTES = <size_t>1 << 62  # of memory that is given by its address alone


# stub: _Things = list[object]
# stub: _ByNode = dict[int, dict[str, list[object]]]
# stub: _Answer = TypeVar("_Answer")
# stub: def edit(graph: CUDAGraph, part: object, change: Callable[..., _Answer], *arguments: object) -> _Answer: ...
# stub: class NodeWork:
cdef class NodeWork:
    """Holds a node's work, and the objects that it keeps alive, by role."""

    cdef NodeParams params
    cdef dict things           # role -> list of what it keeps alive
    cdef list memory           # of the caller's, which is looked at again before the driver has its address: (object, role)
    cdef Operand dst
    cdef Operand src
    cdef Kernel kernel         # of a kernel node, with
    cdef Packed packed         # what its params point at
    cdef object room
    cdef tuple arguments
    cdef tuple options         # (cluster, cooperative, priority) of a kernel node, or None
    cdef list bodies           # of a condition: handles, once the node is there
    cdef object child          # GraphDefinition of a child, or None
    cdef tuple version         # of the node that some of it was read from (version_of), or None
    cdef bint is_within        # it is of the same whole as the node, which no other thread changes
    cdef uintptr_t copied      # a clone of it that the driver is given in that case, or 0
    cdef public bint is_governed  # the node is in a body of a condition, or in a graph within one
    cdef dict sources          # of a child: what nodes made by hand of the graph that it is a copy of keep alive
    cdef object __weakref__

    def __cinit__(self):
        memset(&self.params, 0, sizeof(NodeParams))
        self.things, self.memory = {}, []

    def __reduce__(self):
        refuse_copy(self, "it names memory of this process; make another node")

    cdef uintptr_t read(self, Operand* side, object argument, str role, int ordinal, bint writable) except? 0:
        # An int is an address, whose memory is the caller's to keep.
        cdef Record record
        cdef View view
        if isinstance(argument, int) and not isinstance(argument, bool):
            side.address = checked_int(argument, role, 1, 0xFFFFFFFFFFFFFFFF, "an address")
            side.nbytes, side.ordinal = ANY_BYTES, -1
            side.source, side.ordered = NULL, True
            self.things[role] = []
            return side.address
        view = read_operand(side, argument, role, writable)
        if side.ordinal >= 0 and side.ordinal != ordinal:
            raise ValueError(f"{role} is on device {side.ordinal}, the graph on {ordinal}")
        if type(argument) is Buffer:
            self.things[role] = uses_of_buffer(<Buffer>argument, side.block)
        else:
            record = recorded()
            keep_side(record, side.source, argument if view is None else view, side.ordinal, side.block)
            self.things[role] = record.kept
        self.memory.append((argument, role))
        return side.address

    cdef int hold_child(self) except -1:
        # Until release_child no other thread changes or drops the graph that becomes a child.
        cdef CUDAGraph graph
        if self.child is None:
            return 0
        graph = self.child._graph
        with cython.critical_section(graph):
            if not self.is_within:
                graph.kept_graph()
                graph.require_unused()
            elif graph.record is not None:
                raise RuntimeError("a graph has itself as a child, or a graph within it, once its capture has ended")
            if graph.random is not None:
                raise NotSupportedError("a child draws no random numbers, which its replays would repeat; capture its work "
                                        "into the graph instead")
            begin_by_node(graph)
            self.params.graph = part_handle(graph, self.child, graph.graph)
            self.things["child"] = list(graph.things())
            self.sources = dict(graph.by_node)
            graph.uses += 1
        try:
            if self.is_within:
                self.clone_child()
            elif graph.retains_pool:
                self.things["child"].append(hold_pool(graph.ordinal, graph.pool_id))
        except BaseException:
            self.release_child()
            raise
        return 0

    cdef int clone_child(self) except -1:
        # NVIDIA's driver reads what it writes, and dies, where a graph is added to itself, or to a graph within it.
        cdef dict left = self.sources
        cdef int code
        with nogil:
            code = registry.active().graph_clone(self.params.graph, &self.copied)
        if code:
            raise_status(code, "graph_clone", ("graph", self.params.graph),
                         "a child of the graph that it is within itself is cloned first, which the driver refuses of graphs "
                         "with allocations or conditions, or of this one; make it a GraphDefinition of its own")
        self.params.graph, self.sources = self.copied, {}
        move_to_copies(self.copied, left, self.sources)
        return 0

    cdef void release_child(self) noexcept:
        cdef CUDAGraph graph
        if self.child is not None:
            graph = self.child._graph
            if self.copied:
                dispose(GRAPH, graph.ordinal, self.copied)
                self.copied = 0
            with cython.critical_section(graph):
                graph.uses -= 1

    cdef int call(self, uintptr_t graph, uintptr_t exec_, uintptr_t node, int ordinal, list after,
                  uintptr_t* out_node) except -1:
        # Adds a node, or where one is named changes it: the driver's call, behind a look whether memory is what it was.
        cdef Access access
        cdef bint entered = False
        cdef int code
        if self.kernel is not None:
            return self.call_launch(graph, after, ordinal, out_node)
        if len(self.memory) == 2:
            enter_use_apart(&access, &self.dst, self.memory[0][0], &self.src, self.memory[1][0])
            entered = True
        elif self.memory:
            enter_use_apart(&access, &self.dst if self.memory[0][1] == "dst" else &self.src, self.memory[0][0], NULL, None)
            entered = True
        try:
            code = self.put(graph, exec_, node, ordinal, after, out_node)
        finally:
            if entered:
                end_use_of(&access)
        return code

    cdef int call_launch(self, uintptr_t graph, list after, int ordinal, uintptr_t* out_node) except -1:
        cdef Access access
        begin_use(&access, uses_owner, <PyObject*>self.arguments)
        try:
            self.kernel.check_arguments(self.arguments, &self.packed)
            return self.put(graph, 0, 0, ordinal, after, out_node)
        finally:
            end_use(&access)

    cdef int put(self, uintptr_t graph, uintptr_t exec_, uintptr_t node, int ordinal, list after,
                 uintptr_t* out_node) except -1:
        cdef int code = 0
        if node == 0:
            return self.add(graph, ordinal, after, out_node)
        if self.is_governed and not fits_body(self.params.type, self.params.graph):
            code = NOT_SUPPORTED
        with nogil:
            if code == 0:
                code = registry.active().graph_node_set(ordinal, graph, exec_, node, &self.params)
        if code:
            raise_status(code, "graph_node_set", self.described(graph), refusal_of(self, exec_, code))
        return 0

    cdef int add(self, uintptr_t graph, int ordinal, list after, uintptr_t* out_node) except -1:
        cdef Handles places = handles_of(after or [])
        cdef size_t count = len(after or ())
        cdef Handles bodies = Handles(self.params.count)
        cdef int code = 0
        self.params.bodies = bodies.array
        if self.is_governed and not fits_body(self.params.type, self.params.graph):
            code = NOT_SUPPORTED
        with nogil:
            if code == 0:
                code = registry.active().graph_node_add(ordinal, graph, count, places.array, &self.params, out_node)
        self.params.bodies = NULL
        self.bodies = [bodies.array[count] for count in range(self.params.count)]
        if code:
            raise_status(code, "graph_node_add", self.described(graph), refusal_of(self, 0, code))
        if self.options is not None:
            try:
                put_options(graph, out_node[0], self.options)
            except BaseException:
                # Drivers may keep the nodes of a graph that is being captured.
                if registry.active().graph_node_destroy(graph, out_node[0]) == 0:
                    out_node[0] = 0
                raise
        return 0

    cdef tuple described(self, uintptr_t graph):
        # For errors.
        cdef NodeParams* params = &self.params
        facts = ["graph", graph, "type", type_name(params.type)]
        if params.type in (NODE_COPY, NODE_FILL):
            facts += ["dst", params.dst, "width", params.width, "height", params.height]
        if params.type == NODE_COPY:
            facts += ["src", params.src, "depth", params.depth]
        elif params.type == NODE_FILL:
            facts += ["value", params.value, "element", params.element]
        elif params.type == NODE_KERNEL and self.kernel is not None:
            facts += ["kernel", self.kernel.name]
        elif params.type in (NODE_ALLOCATE, NODE_FREE):
            facts += ["address", params.address, "size", params.size]
        return tuple(facts)


# Of an instance (the driver API's cuGraphExecMemcpyNodeSetParams and cuGraphExecMemsetNodeSetParams).
cdef dict STAYS = {
    NODE_COPY: "an instance goes on with the copies of rows that it was made with, and a copy of bytes goes on from and to "
               "what it was made for, device memory or the host's: change the definition's node, and instantiate anew",
    NODE_FILL: "an instance's fill of rows takes other memory and another value alone, and a fill of one row no more rows: "
               "change the definition's node, and instantiate anew",
}
cdef str UNTOLD = "it copies from or to a CUDAArray, of which nothing is told; capture such copies apart"
cdef str refusal_of(NodeWork work, uintptr_t exec_, int code):
    if exec_ and code == INVALID_VALUE and work.params.type in (NODE_COPY, NODE_FILL):
        return STAYS[work.params.type]
    if code == NOT_SUPPORTED:
        return ("the driver has no such nodes (graphs made by hand need CUDA 12.3), or the graph may not hold one: a body "
                "of a condition takes kernels, copies, fills, empty nodes, children and conditions")
    if work.params.type == NODE_FREE:
        return "the address is none that an allocation of a graph has"
    if work.params.type == NODE_CONDITION:
        return "the condition is of another graph, or a node has it already; make one with condition() of this definition"
    if work.params.type == NODE_KERNEL and work.kernel is None:
        return "the condition is of another graph; make one with condition() of this definition"
    if work.params.type == NODE_ALLOCATE:
        return "one reason is a peer that does not exist, or that does not reach the memory of the device"
    return ""


cdef uintptr_t handle_of(object node) except 0:
    # Returns the handle of a definition's node, while no other thread may take it out.
    cdef uintptr_t handle = node_id(node)
    if handle == 0:
        raise RuntimeError("the node was taken out of its graph")
    return handle


cdef uintptr_t part_handle(CUDAGraph graph, object definition, uintptr_t whole) except 0:
    # The driver's graph of a GraphDefinition: of one that a node owns, what it owns now.
    cdef DefinitionBase part = <DefinitionBase?>definition
    if part._generation != graph.generation:
        raise RuntimeError("the definition's graph is gone: its CUDAGraph was reset or updated since; make another "
                           "GraphDefinition")
    if part._owner is None:
        return whole
    return owned_handle(part_handle(graph, part._owner.definition, whole), part)


cdef uintptr_t owned_handle(uintptr_t owner, DefinitionBase part) except 0:
    # The driver's graph of a GraphDefinition that a node of the owner has.
    cdef NodeParams params
    cdef uintptr_t node = handle_of(part._owner)
    cdef int code
    if part._body:
        return part._body
    code = registry.active().graph_node_params(owner, node, &params)
    if code:
        raise_status(code, "graph_node_params", ("graph", owner, "node", node))
    return params.graph


def owned_graph(uintptr_t owner, part: object) -> int:
    """The driver's graph of a GraphDefinition that a node of the owner, the driver's too, has; within edit()."""
    return owned_handle(owner, <DefinitionBase?>part)


cdef Handles handles_of(list nodes):
    cdef Handles handles = Handles(len(nodes))
    cdef Py_ssize_t index
    for index in range(len(nodes)):
        handles.array[index] = handle_of(nodes[index])
    return handles


cdef size_t span(object value, str name, size_t limit) except? 0:
    return checked_int(value, name, 0, limit, "a number of bytes")


def copy_work(int ordinal, dst: object, src: object, nbytes: object, dst_offset: object, src_offset: object) -> NodeWork:
    """Describes a copy of nbytes, or None for as many as both sides have; a side is memory or an address."""
    cdef NodeWork work = NodeWork.__new__(NodeWork)
    cdef size_t to = 0, origin = 0, left
    work.read(&work.dst, dst, "dst", ordinal, True)
    work.read(&work.src, src, "src", ordinal, False)
    to, origin = span(dst_offset, "dst_offset", work.dst.nbytes), span(src_offset, "src_offset", work.src.nbytes)
    left = min(work.dst.nbytes - to, work.src.nbytes - origin)
    if nbytes is None:
        if left > ANY_BYTES >> 1:
            raise ValueError("nbytes is None, and both sides are addresses; say how many bytes to copy")
        if work.dst.nbytes - to != work.src.nbytes - origin and max(work.dst.nbytes, work.src.nbytes) < ANY_BYTES:
            raise ValueError(f"dst has {work.dst.nbytes - to} bytes and src {work.src.nbytes - origin}; pass nbytes")
        nbytes = left
    work.params.type, work.params.height, work.params.depth = NODE_COPY, 1, 1
    work.params.dst, work.params.src = work.dst.address + to, work.src.address + origin
    work.params.width = checked_int(nbytes, "nbytes", 1, left, "the bytes to copy, within both sides")
    return work


def copy_3d_work(
    int ordinal, dst: object, src: object, extent: tuple[int, int, int], dst_pitches: tuple[int | None, int | None],
    src_pitches: tuple[int | None, int | None], dst_offset: object, src_offset: object,
) -> NodeWork:
    """Describes a copy of (bytes of a row, rows, slices); pitches are (bytes from row to row, rows of a slice)."""
    cdef NodeWork work = NodeWork()
    cdef size_t to, origin
    work.read(&work.dst, dst, "dst", ordinal, True)
    work.read(&work.src, src, "src", ordinal, False)
    if not (work.dst.ordered and work.src.ordered):
        raise ValueError("a copy of rows is between device memory and page-locked memory; copy ordinary memory by bytes")
    to, origin = span(dst_offset, "dst_offset", work.dst.nbytes), span(src_offset, "src_offset", work.src.nbytes)
    work.params.type = NODE_COPY
    work.params.width = checked_int(extent[0], "width", 1, ANY_BYTES, "bytes of a row")
    work.params.height = checked_int(extent[1], "height", 1, ANY_BYTES, "rows")
    work.params.depth = checked_int(extent[2], "depth", 1, ANY_BYTES, "slices")
    check_rows(&work.params, "dst", dst_pitches, work.dst.nbytes - to, &work.params.dst_pitch, &work.params.dst_lines)
    check_rows(&work.params, "src", src_pitches, work.src.nbytes - origin, &work.params.src_pitch, &work.params.src_lines)
    work.params.dst, work.params.src = work.dst.address + to, work.src.address + origin
    return work


cdef int check_rows(const NodeParams* params, str name, tuple pitches, size_t room, size_t* out_pitch,
                    size_t* out_lines) except -1:
    pitch, lines = pitches
    pitch = params.width if pitch is None else checked_int(pitch, f"{name}_pitch", params.width, MAX_PITCH, "bytes")
    lines = params.height if lines is None else checked_int(lines, f"{name}_lines", params.height, ANY_BYTES, "rows")
    span = ((params.depth - 1) * lines + params.height - 1) * pitch + params.width
    if span > room:
        raise ValueError(f"the rows take {span} bytes of {name}, which has {room} there")
    out_pitch[0], out_lines[0] = pitch, lines
    return 0


cdef unsigned int checked_value(object value, int element) except? 0:
    return checked_int(value, "value", 0, (<uint64_t>1 << 8 * element) - 1, f"an element of {element} bytes")


def fill_work(
    int ordinal, dst: object, value: object, count: object, width: object, offset: object, height: object, pitch: object,
) -> NodeWork:
    """Describes a fill of rows of count elements of width bytes; a count of None is all of one row."""
    cdef NodeWork work = NodeWork.__new__(NodeWork)
    cdef size_t skip, room, elements
    work.read(&work.dst, dst, "dst", ordinal, True)
    if not work.dst.ordered:
        raise ValueError("a fill is of device memory or page-locked memory; copy to ordinary memory, or fill that by itself")
    work.params.type, work.params.depth = NODE_FILL, 1
    element = checked_int(width, "width", 1, 4, "1, 2 or 4")
    if element == 3:
        raise ValueError("width is 3; an element has 1, 2 or 4 bytes")
    skip = span(offset, "offset", work.dst.nbytes)
    room = work.dst.nbytes - skip
    rows = checked_int(height, "height", 1, ANY_BYTES, "rows")
    if count is None and (work.dst.nbytes == ANY_BYTES or rows > 1 or room % <size_t>element):
        raise ValueError(f"count is None, for all of one row of memory with {room} bytes; say how many elements to fill")
    most = room // <size_t>element
    elements = checked_int(most if count is None else count, "count", 1, most, "elements")
    step = elements * <size_t>element if pitch is None else checked_int(
        pitch, "pitch", elements * <size_t>element, MAX_PITCH, "bytes from row to row")
    if rows > 1 and step % element:
        raise ValueError(f"pitch is {step}; it has to be a multiple of the width {element}")
    if (rows - 1) * step + elements * element > room:
        raise ValueError(f"the rows take {(rows - 1) * step + elements * element} bytes of dst, which has {room} there")
    work.params.dst, work.params.element = work.dst.address + skip, element
    work.params.value = checked_value(value, element)
    work.params.width, work.params.height = elements, rows
    work.params.dst_pitch = step if rows > 1 else 0
    return work


def kernel_work(
    int ordinal, kernel: object, grid: object, block: object, shared: object, args: Sequence[object], cluster: object = None,
    bint cooperative = False, priority: object = None,
) -> NodeWork:
    """Describes a launch; what it takes is what Kernel.launch takes."""
    cdef Kernel launched = checked_type(kernel, "kernel", Kernel, "a Kernel, as Module.function() returns")
    cdef NodeWork work = NodeWork()
    cdef Dimensions size
    cdef Record record = recorded()
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args is {args!r:.60} of type {type(args).__name__}; pass a tuple of arguments")
    if launched.device_index != ordinal:
        raise ValueError(f"kernel {launched.name!r} is on device {launched.device_index}, the graph on {ordinal}")
    read_dimensions(grid, "grid", size.grid)
    read_dimensions(block, "block", size.block)
    size.shared = read_shared(shared)
    work.kernel, work.arguments = launched, tuple(args)
    launched.keep_with(record, work.arguments)
    work.things["kernel"] = record.kept
    work.room = launched.describe_node(&size, work.arguments, &work.packed, &work.params)
    work.options = checked_options(cluster, True if cooperative else None, priority)
    if work.options is not None:
        require_launchable(launched, &size, work.options)
    return work


def host_work(int ordinal, function: object) -> NodeWork:
    """Describes a call of a function of Python's."""
    cdef NodeWork work = NodeWork()
    call = node_call(function, ordinal, &work.params.fn)
    work.params.type, work.params.data = NODE_HOST, <void*>call
    work.things["function"] = [call]
    return work


def event_work(int ordinal, event: object, bint records) -> NodeWork:
    """Describes a record of an event, or a wait for it."""
    cdef Event used = checked_type(event, "event", Event, "an Event")
    cdef NodeWork work = NodeWork()
    used.ensure_handle(ordinal if used.handle == 0 or records else used.device_index)
    work.params.type, work.params.event = NODE_RECORD if records else NODE_WAIT, used.handle
    work.things["event"] = [used]
    return work


def child_work(child: object, bint is_within) -> NodeWork:
    """Describes a graph within the graph, a GraphDefinition, with what its nodes keep alive."""
    cdef NodeWork work = NodeWork()
    work.params.type, work.child, work.is_within = NODE_CHILD, child, is_within
    return work


def empty_work() -> NodeWork:
    """Describes a node that does nothing."""
    cdef NodeWork work = NodeWork()
    work.params.type = NODE_EMPTY
    return work


def allocate_work(
    int ordinal, nbytes: object, peers: Iterable[int], device: object = None, kind: str = "device",
) -> NodeWork:
    """Describes an allocation of memory that peers reach too, of a kind of ALLOCATIONS; device None is ordinal's."""
    cdef NodeWork work = NodeWork()
    if kind not in ALLOCATIONS:
        raise ValueError(f"kind is {kind!r}; it may be {', '.join(map(repr, ALLOCATIONS))}")
    work.params.type, work.params.device = NODE_ALLOCATE, ordinal if device is None else ordinal_of(device)
    work.params.kind = ALLOCATIONS.index(kind)
    work.params.size = checked_int(nbytes, "nbytes", 1, ANY_BYTES, "bytes")
    if not hasattr(peers, "__iter__"):
        raise TypeError(f"peers is {peers!r:.60} of type {type(peers).__name__}; pass ordinals of devices, as a sequence")
    for peer in peers:
        work.params.peers |= <uint64_t>1 << <int>checked_int(peer, "peer", 0, 63, "a device")
    return work


# stub: ALLOCATIONS: tuple[str, ...]
ALLOCATIONS = ("device", "host", "managed")  # by ALLOCATE_ numbers


def free_work(address: int) -> NodeWork:
    """Describes a free of memory that an allocation of a graph has."""
    cdef NodeWork work = NodeWork()
    work.params.type = NODE_FREE
    work.params.address = checked_int(address, "address", 1, 0xFFFFFFFFFFFFFFFF, "an address")
    return work


def condition_work(uint64_t condition, int kind, unsigned int count) -> NodeWork:
    """Describes a node that runs one of count bodies, or repeats its only one."""
    cdef NodeWork work = NodeWork()
    work.params.type, work.params.condition, work.params.kind, work.params.count = NODE_CONDITION, condition, kind, count
    return work


def setter_work(int ordinal, uint64_t condition, flag: object) -> NodeWork:
    """Describes a node that gives a condition the value of an integer of 4 bytes in device memory."""
    cdef NodeWork work = NodeWork()
    work.read(&work.src, flag, "src", ordinal, False)
    if work.src.address % 4:
        raise ValueError(f"flag begins at {work.src.address:#x}, which is no multiple of 4")
    if work.src.nbytes < 4 or (work.src.ordinal != ordinal and work.src.nbytes < ANY_BYTES):
        raise ValueError(f"flag has {work.src.nbytes} bytes on device {work.src.ordinal}; it takes 4 bytes on device "
                         f"{ordinal}")
    work.params.type, work.params.condition, work.params.src = NODE_KERNEL, condition, work.src.address
    return work


# --- changes of graphs, for edit(): each is given the driver's graph, its device, and what its nodes keep alive: those
# captured, and those made by hand

def add_node(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, NodeWork work, after: list[object],
) -> tuple[int, int, list[int]]:
    """Adds a node behind others.

    Returns:
        (int, int, list of int): the node's handle; an allocation's address, else 0; the graphs of a condition's bodies.
    """
    cdef uintptr_t node = 0
    work.hold_child()
    by_node[0] = work.things  # until it has a handle
    try:
        work.call(graph, 0, 0, ordinal, after, &node)
        if work.sources:
            work.things = {"child": spread(graph, node, work, by_node)}
    finally:
        by_node.pop(0)
        if node:
            by_node[node] = work.things
        work.release_child()
    return node, work.params.address, work.bodies


cdef list spread(uintptr_t graph, uintptr_t node, NodeWork work, dict by_node):
    # Has the nodes within a child keep alive what those that they are copies of do; answers what is left to the child.
    cdef NodeParams params
    cdef dict left = dict(work.sources)
    cdef list elsewhere
    if registry.active().graph_node_params(graph, node, &params) == 0:
        move_to_copies(params.graph, left, by_node)
    elsewhere = all_things([], {source: work.sources[source] for source in work.sources if source not in left})
    kept_elsewhere = set(map(id, elsewhere))
    return [thing for thing in work.things["child"] if id(thing) not in kept_elsewhere]


cdef int move_to_copies(uintptr_t copy, dict left, dict by_node) except -1:
    # Has the nodes of a copy of a graph, and of the children in it, keep alive what those that they are copies of do.
    cdef NodeParams params
    cdef uintptr_t copied = 0
    cdef list children = []
    for source in list(left):
        if registry.active().graph_find_in_clone(copy, source, &copied) == 0:
            by_node[copied] = without_mark(left.pop(source))
            if "child" in by_node[copied]:
                children.append(copied)
    for copied in children:
        if registry.active().graph_node_params(copy, copied, &params) == 0 and params.type == NODE_CHILD:
            move_to_copies(params.graph, left, by_node)
    return 0


cdef class Place:
    # A node by its handle alone.
    cdef readonly uintptr_t id


def add_node_here(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, NodeWork work,
) -> tuple[int, int, list[int]]:
    """Adds a node to a graph that is being captured, where the current stream's next work goes, and that after it; a stream
    that captures into another graph, or into none, is left alone.  Returns what add_node does."""
    cdef Stream stream = current_of(ordinal)
    cdef Handles room = Handles(0)
    cdef Place place
    cdef uintptr_t into = 0
    cdef size_t count = 0, index
    cdef list after = []
    cdef int code = registry.active().capture_site(ordinal, stream.handle, 0, NULL, &count, &into)
    if code == 0 and into == graph and count:
        room = Handles(count)
        code = registry.active().capture_site(ordinal, stream.handle, count, room.array, &count, &into)
    if code and code != ILLEGAL_STATE:
        raise_status(code, "capture_site", ("stream", stream.handle))
    if code or into != graph:
        return add_node(graph, ordinal, base, by_node, work, [])
    for index in range(count):
        place = Place()
        place.id = room.array[index]
        after.append(place)
    added = add_node(graph, ordinal, base, by_node, work, after)
    code = registry.active().capture_continue(ordinal, stream.handle, added[0])
    if code:
        raise_status(code, "capture_continue", ("stream", stream.handle, "node", added[0]))
    return added


cdef int put_change(
    CUDAGraph changed, uintptr_t graph, object part, uintptr_t handle, NodeWork work, NodeChange change
) except -1:
    # Fills the change.
    cdef object node = handle
    cdef uintptr_t exec_ = changed.exec_
    cdef bint own = changed.source is None
    cdef bint begun = False
    cdef NodeChange before = changed.changes.get(node)
    cdef list gone = []
    if exec_ and work.params.type in (NODE_HOST, NODE_CHILD):
        gone = called_by(changed, graph, node, before)
    change.kernel = None
    if before is not None and not work.things:
        change.roles, change.things = before.roles, before.things
    else:
        change.roles = dict(work.things) if before is None else {**before.roles, **work.things}
        change.things = list(change.roles.values())
    if own:
        change.former = work_of(graph, handle)
    else:
        change.params, change.is_apart = work.params, work.params.type in (NODE_COPY, NODE_FILL)
    try:
        changed.keep_change(node, change, before)
        if exec_:
            work.call(graph, exec_, handle, changed.ordinal, None, NULL)
            begun = True
            if work.params.type not in (NODE_COPY, NODE_FILL):  # which run none
                for role in work.things:
                    change_calls(changed, part, node, gone, nodes_of(work.things[role]))
        if own:
            work.call(graph, 0, handle, changed.ordinal, None, NULL)
    except BaseException:
        if not begun:  # else the instance does the new work, and what both use is kept
            changed.undo_change(node, change)
        raise
    return changed.finish_change(change)


cdef list called_by(CUDAGraph changed, uintptr_t graph, uintptr_t node, NodeChange before):
    # Which of the functions that launches run are the node's: the graph of an instance may name others by now.
    cdef NodeParams params
    cdef list calls = []
    if node in changed.within:
        calls = changed.within[node]
    elif before is not None and "function" in before.roles:
        calls = before.roles["function"]
    elif node in (changed.by_node or ()) and "function" in changed.by_node[node]:
        calls = changed.by_node[node]["function"]
    elif registry.active().graph_node_params(graph, node, &params) == 0 and params.type == NODE_HOST:
        calls = [find_call(changed.calls, params.data)]
    if any(call not in changed.calls for call in calls):
        raise ValueError("the node calls no function that was given to accelrt; what is instantiated cannot be changed")
    return calls


cdef int change_calls(CUDAGraph changed, object part, uintptr_t node, list gone, list come) except -1:
    # Changes those of what is instantiated, of the node where it is a child, and of the children that it is within.
    cdef list lists = [changed.calls]
    while part._owner is not None:
        lists.append(changed.within.get(part._owner.id, []))
        part = part._owner.definition
    for calls in lists:
        for call in gone:
            calls.remove(call)
        calls += come
    if node in changed.within:
        changed.within[node] = list(come)
    return 0


def look(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode,
) -> tuple[list[GraphNode], list[tuple[int, int, str, str]]]:
    """The nodes and the edges of a graph: (id, id of the node after it, kind, port)."""
    edges = [(origin, target, name_in(EDGE_KINDS, kind), name_in(PORTS, port))
             for origin, target, kind, port in list_edge_data(graph)]
    return list_nodes(graph), edges


cdef str name_in(tuple names, int number):
    return names[number] if number < len(names) else str(number)


def keep_object(uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, thing: object) -> None:
    """Keeps an object alive with the graph."""
    base.append(thing)


def remove_node(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, CUDAGraph whole not None, gone: object,
    inner: Sequence[object],
) -> None:
    """Takes a node out of the graph, with its edges, and the nodes of the graphs that it owns; what was instantiated before
    still does them."""
    cdef uintptr_t node = handle_of(gone)
    cdef int code
    with nogil:
        code = registry.active().graph_node_destroy(graph, node)
    if code:
        raise_status(code, "graph_node_destroy", ("graph", graph, "node", node),
                     "a graph with allocations keeps all nodes and edges" if code == NOT_SUPPORTED else "")
    whole.removals += 1
    whole.reshapes += 1
    forget_nodes(whole, (gone, *inner))


cdef int forget_nodes(CUDAGraph graph, nodes) except -1:
    # Nodes that the graph has no more.  What is instantiated of it alone goes on with what they were given.
    cdef NodeChange change
    for node in nodes:
        graph.by_node.pop(node.id, None)
        change = (graph.changes or {}).pop(node.id, None)
        if change is not None and graph.exec_:
            graph.kept = graph.kept + change.uses()
            graph.sides = graph.sides + [thing for thing in change.uses() if isinstance(thing, Side)]
        node.id = 0
    return 0


# stub: EDGE_KINDS: tuple[str, ...]
# stub: PORTS: tuple[str, ...]
EDGE_KINDS = ("default", "programmatic")
PORTS = ("default", "programmatic", "launch_order")


cdef EdgeData* data_of_edge(EdgeData* data) noexcept nogil:
    # Drivers before CUDA 12.3 take edges that carry nothing alone.
    return NULL if data.type == EDGE_DEFAULT and data.from_port == PORT_DEFAULT else data


def add_edge(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, CUDAGraph whole not None, before: object, after: object,
    kind: str, port: str,
) -> None:
    """Adds an edge of EDGE_KINDS, from a port of PORTS."""
    cdef Handles first = handles_of([before]), second = handles_of([after])
    cdef EdgeData data
    cdef int code
    memset(&data, 0, sizeof(EdgeData))
    data.type, data.from_port = EDGE_KINDS.index(kind), PORTS.index(port)
    with nogil:
        code = registry.active().graph_edges_add(graph, 1, first.array, second.array, data_of_edge(&data))
    if code:
        raise_status(code, "graph_edges_add", ("graph", graph, "kind", kind, "port", port),
                     "there is an edge between the two already, or they are one node, or a node is none of this graph, or "
                     "is no kernel, which ports and programmatic edges are for" if code == INVALID_VALUE
                     else "this driver has no such edges (CUDA 12.3), or none of them in this graph" if code == NOT_SUPPORTED
                     else "")
    whole.reshapes += 1


def remove_edge(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, CUDAGraph whole not None, before: object, after: object,
) -> None:
    """Removes the edge between two nodes, whichever its kind."""
    cdef Handles first = handles_of([before]), second = handles_of([after])
    cdef EdgeData data
    cdef int code
    memset(&data, 0, sizeof(EdgeData))  # where there is no such edge, which the driver refuses
    for origin, target, kind, port in list_edge_data(graph):
        if origin == first.array[0] and target == second.array[0]:
            data.type, data.from_port = kind, port
    with nogil:
        code = registry.active().graph_edges_remove(graph, 1, first.array, second.array, data_of_edge(&data))
    if code:
        raise_status(code, "graph_edges_remove", ("graph", graph, "edges", 1),
                     "there is no edge between the two, or a node is none of this graph" if code == INVALID_VALUE
                     else "the graph has allocations, and keeps its edges" if code == NOT_SUPPORTED else "")
    whole.reshapes += 1


def tools_ids(uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, asked: Sequence[object]) -> list[int]:
    """The numbers by which tools of profiling name nodes."""
    cdef uint64_t number = 0
    cdef list numbers = []
    cdef int code
    for node in asked:
        code = registry.active().graph_node_tools_id(graph, handle_of(node), &number)
        if code:
            raise_status(code, "graph_node_tools_id", ("graph", graph, "node", node.id),
                         "the driver tells no such numbers (CUDA 13.1)" if code == NOT_SUPPORTED else "")
        numbers.append(number)
    return numbers


def exec_tools_id(CUDAGraph graph not None) -> int:
    """The number by which tools of profiling name an instance."""
    cdef unsigned int number = 0
    cdef int code
    with cython.critical_section(graph):
        code = registry.active().graph_exec_id(require_exec(graph), &number)
    if code:
        raise_status(code, "graph_exec_id", ("graph_exec", graph.exec_),
                     "the driver tells no such numbers (CUDA 13.1)" if code == NOT_SUPPORTED else "")
    return number


def make_condition(uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, value: int, bint kept) -> int:
    """The driver's handle of a new value that nodes of the graph depend on."""
    cdef uint64_t condition = 0
    cdef unsigned int first = checked_int(value, "value", 0, 0xFFFFFFFF, "an int")
    cdef int code
    with nogil:
        code = registry.active().graph_condition(ordinal, graph, first, kept, &condition)
    if code:
        raise_status(code, "graph_condition", ("graph", graph, "value", value))
    return condition


def find_clone(uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, CUDAGraph clone not None, node: object) -> int:
    """The node of a graph's clone that is the same."""
    cdef uintptr_t handle = handle_of(node), copied = 0, whole
    cdef int code
    with cython.critical_section(clone):
        whole = clone.graph if clone.graph == graph else clone.kept_graph()
        code = registry.active().graph_find_in_clone(whole, handle, &copied)
    if code:
        raise_status(code, "graph_find_in_clone", ("graph", whole, "node", handle),
                     "this is no clone of the node's graph, or the node came since, or its copy was taken out")
    return copied


def read_node(uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, asked: object) -> object:
    """Returns the work of a node that is no kernel.

    Returns:
        CopyParams; FillParams; a host function, or None of one that is not accelrt's; an Event, or the driver's handle; int,
        the driver's graph of a child; (address, bytes, device, kind, peers) of an allocation; the address of a free; None of
        an empty node.
    Raises:
        CudaError: the node is none of the graph, copies a CUDAArray, or is a condition, whose bodies nobody tells.
    """
    cdef NodeParams params
    cdef uintptr_t node = handle_of(asked)
    cdef int code
    with nogil:
        code = registry.active().graph_node_params(graph, node, &params)
    if code:
        raise_status(code, "graph_node_params", ("graph", graph, "node", node), UNTOLD if code == NOT_SUPPORTED else "")
    if params.type in (NODE_COPY, NODE_FILL):
        return params_of(&params)
    if params.type == NODE_HOST:
        call = find_call(all_things(base, by_node), params.data)
        return None if call is None else function_of(call)
    if params.type in (NODE_RECORD, NODE_WAIT):
        return find_event(all_things(base, by_node), params.event)
    if params.type == NODE_CHILD:
        return params.graph
    if params.type == NODE_ALLOCATE:
        peers = tuple([index for index in range(64) if params.peers >> index & 1])
        return params.address, params.size, params.device, ALLOCATIONS[params.kind], peers
    return params.address if params.type == NODE_FREE else None


cdef object find_event(list things, uintptr_t handle):
    for thing in things:
        if isinstance(thing, Event) and (<Event>thing).handle == handle:
            return thing
    return handle


# --- graphs whose nodes are changed by hand ------------------------------------------------------------------
# What graphs/definition.py stands on.

def begin_graph_by_hand(CUDAGraph graph not None, device: object) -> None:
    """Gives a CUDAGraph that holds nothing a graph without nodes."""
    cdef int ordinal = ordinal_of(device)
    cdef int code
    with nogil:
        code = registry.active().graph_create(ordinal, &graph.graph)
    if code:
        raise_status(code, "graph_create", ("device", ordinal),
                     "graphs made by hand need CUDA 12.3" if code == NOT_SUPPORTED else "")
    graph.ordinal = ordinal
    graph.pool_id[0], graph.pool_id[1] = 0, next_pool()
    graph.keep([])


def device_of_graph(CUDAGraph graph not None) -> int:
    """Returns the ordinal of a graph's device."""
    return graph.ordinal


cdef uintptr_t whole_graph(CUDAGraph graph) except 0:
    # The driver's graph that is kept, or that is being captured.
    cdef uintptr_t handle = 0
    cdef size_t count = 0
    cdef int code
    if graph.record is None:
        return graph.kept_graph()
    graph.require_calm()
    code = registry.active().capture_site(graph.ordinal, graph.record.origin, 0, NULL, &count, &handle)
    if code:
        raise_status(code, "capture_site", ("stream", graph.record.origin),
                     "a graph that is being captured takes nodes by hand from CUDA 12.3 on" if code == NOT_SUPPORTED else "")
    return handle


def raw_graph_of(CUDAGraph graph not None, part: object) -> int:
    """The driver's graph that is kept, or that is being captured; of a GraphDefinition of a part of it, that part."""
    with cython.critical_section(graph):
        return whole_graph(graph) if part is None else part_handle(graph, part, whole_graph(graph))


def edit(CUDAGraph graph not None, object part, object change, *arguments):
    """Calls a function with the driver's graph, its device and what its nodes keep alive, while no other thread may use
    it.

    Arguments:
        part: GraphDefinition of it, or of a graph that a node of it owns, which the function is given instead; or None.
    """
    cdef uintptr_t handle, asked
    cdef bint captures
    cdef list base
    cdef dict by_node
    cdef Py_ssize_t known
    with cython.critical_section(graph):
        captures = graph.record is not None
        handle = whole_graph(graph)
        if captures:
            base, by_node = graph.kept, {}  # the capture keeps all of it alike
        else:
            graph.require_unused()
        asked = handle if part is None else part_handle(graph, part, handle)
        if not captures:
            begin_by_node(graph)
            base, by_node = graph.base, graph.by_node
        graph.busy += 1
    try:
        known = len(by_node)
        outcome = change(asked, graph.ordinal, base, by_node, *arguments)
        if len(by_node) != known:
            graph.kernels = None
        if not captures:
            registry.active().graph_node_count(handle, &graph.node_count)
        return outcome
    finally:
        with cython.critical_section(graph):
            graph.busy -= 1
            if captures:
                base += all_things([], by_node)


cdef int begin_by_node(CUDAGraph graph) except -1:
    # From here on it is known of the nodes of a graph that is kept, each by itself, what they were given since its capture.
    if graph.by_node is None:
        graph.base, graph.by_node = take_apart(graph.graph, graph.kept, graph.changes)
    return 0


cdef uintptr_t require_exec(CUDAGraph graph) except 0:
    if graph.exec_ == 0:
        raise RuntimeError("the graph is not instantiated, and an instance does nodes or leaves them out; instantiate it")
    return graph.exec_


def instance_of(CUDAGraph graph not None, part: object, flags: int) -> CUDAGraph:
    """Instantiates a GraphDefinition's kept graph once more, as a CUDAGraph of its own."""
    with cython.critical_section(graph):
        part_handle(graph, part, graph.kept_graph())
        begin_by_node(graph)
        return graph.make_instance(flags)


def clone_into(CUDAGraph graph not None, part: object, CUDAGraph clone not None) -> None:
    """Clones a GraphDefinition's kept graph into a CUDAGraph that holds nothing."""
    cdef int code
    with cython.critical_section(graph):
        part_handle(graph, part, graph.kept_graph())
        graph.require_unused()
        begin_by_node(graph)
        graph.uses += 1
    try:
        clone.ordinal, clone.pool_id[0], clone.pool_id[1] = graph.ordinal, graph.pool_id[0], graph.pool_id[1]
        with nogil:
            code = retain_pool(clone.ordinal, clone.pool_id[0], clone.pool_id[1], False, 0) if graph.retains_pool else 0
            clone.retains_pool = graph.retains_pool and code == 0
            code = code if code else registry.active().graph_clone(graph.graph, &clone.graph)
        if code:
            raise_status(code, "graph_clone", ("graph", graph.graph),
                         "graphs with allocations or conditions cannot be cloned" if code == NOT_SUPPORTED else "")
        clone.random, clone.node_count = graph.random, graph.node_count
        clone.keep(list(graph.things()))
        clone.base, clone.by_node, left = list(graph.base), {}, dict(graph.by_node)
        move_to_copies(clone.graph, left, clone.by_node)
        clone.base += all_things([], left)
    finally:
        with cython.critical_section(graph):
            graph.uses -= 1


def read_kernel_within(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, CUDAGraph changed, asked: object,
) -> KernelParams | None:
    """Returns the launch of a kernel node of a graph that a node owns; None where the kernel is the driver's."""
    return read_launch(graph, handle_of(asked), changed)


cdef int require_own_child(CUDAGraph graph, DefinitionBase part) except -1:
    # An instance that was given another graph for a child does not have the nodes of the definition's there.
    cdef NodeChange change
    while graph.source is not None and part._owner is not None:
        change = (graph.changes or {}).get(part._owner.id)
        if change is not None and "child" in (change.roles or ()) and (
                (graph.source.changes or {}).get(part._owner.id) is not change):
            raise RuntimeError("the instance was given another graph for the child that the node is within; update the "
                               "child, with a graph whose node is as it is to be")
        part = part._owner.definition
    return 0


def is_instance(CUDAGraph instance not None, CUDAGraph graph not None) -> bool:
    """Tells whether one was instantiated from the other's nodes."""
    return is_made_of(instance, graph)


cdef bint is_made_of(CUDAGraph instance, CUDAGraph graph) noexcept:
    return instance.exec_ != 0 and (instance is graph or (
        instance.source is graph and instance.source_generation == graph.generation))


def generation_of(CUDAGraph graph not None) -> int:
    """Counts the graphs that a CUDAGraph let go of, of which no node or body is known any more."""
    return graph.generation


cdef object params_in_instance(CUDAGraph graph, object node):
    # In its critical section.
    cdef NodeChange change
    cdef object work = None
    if graph.source is None:
        return None
    change = (graph.changes or {}).get(node)
    if graph.bound is not None:
        work = graph.bound.work_of_node(node, change)
    return params_of_instance(change, graph.past, node) if work is None else work


cdef list nodes_within(object node, uintptr_t handle, CUDAGraph graph):
    return node._inner(handle, graph.ordinal, graph.base, graph.by_node)


cdef int forget_within(object part, list inner) except -1:
    part._forget([node.id for node in inner])
    return 0


cdef tuple version_of(CUDAGraph graph, object node):
    # What is another one once a node does other work.
    cdef CUDAGraph source = source_of(graph)
    cdef dict own = graph.changes or {}, others = source.changes or {}
    return graph.generation, source.generation, own.get(node), others.get(node)


cdef int change_node(CUDAGraph graph, object changed, NodeWork work, object part) except -1:
    # Changes what a node of a GraphDefinition that is no kernel does: in the graph, where it is this one's, and in what
    # is instantiated.  Nodes of the graph that it owned are gone then.
    cdef NodeChange change = NodeChange.__new__(NodeChange)
    cdef CUDAGraph source = source_of(graph)
    cdef uintptr_t handle
    cdef object node
    cdef list inner = []
    cdef bint left = False
    with cython.critical_section(graph, source):
        handle = part_handle(source, part, graph.node_graph())
        require_own_child(graph, part)
        graph.require_unreplayed()
        graph.own_kernels()
        node = handle_of(changed)
        if graph.exec_:
            require_made(source.by_node, graph.made_nodes, node)
        if work.version is not None and work.version != version_of(graph, node):
            raise RuntimeError("the node was changed by another thread, or by code of what it is given, while this change "
                               "was made ready; make it again")
        work.is_within = work.child is not None and work.child._graph is source
        graph.begin_change()
        source.uses += 1
        try:
            work.hold_child()
            try:
                if source is graph and work.child is not None:  # here, where no other thread adds any
                    inner = nodes_within(changed, handle, graph)
                left = put_change(graph, handle, part, <uintptr_t>node, work, change) > 0
                if source is graph:
                    if work.sources:
                        work.things = {"child": spread(handle, node, work, graph.by_node)}
                    note_roles(graph.by_node, node, work.things)
                    forget_within(part, inner)
                    forget_nodes(graph, inner)
            finally:
                work.release_child()
        finally:
            graph.edits += graph.changes.get(node) is change  # one that was refused is none
            graph.end_change()
            source.uses -= 1
        if work.child is not None:
            graph.kernels = None
            graph.reshapes += 1
            graph.made_reshapes -= 1  # of an instance: none of its source's from here on
        if graph.exec_:
            graph.rare = graph.rare & ~CALLBACKS | CALLBACKS * (len(graph.calls) > 0)
    if left:
        drain()
    return 0


def switch_node(CUDAGraph graph not None, switched: object, enable: bool | None) -> bool:
    """Has an instance do a node, or leave it out; None asks."""
    cdef unsigned int enabled = enable is True
    cdef CUDAGraph source = source_of(graph)
    cdef uintptr_t handle, exec_, node
    cdef NodeParams params
    cdef NodeParams* had = NULL
    cdef int code
    with cython.critical_section(graph, source):
        handle, exec_, node = graph.node_graph(), require_exec(graph), handle_of(switched)
        require_made(source.by_node, graph.made_nodes, node)
        graph.require_unreplayed()
        work = None if enable else params_in_instance(graph, node)
        if isinstance(work, FillParams):
            put_params(work, &params)
            had = &params
        graph.begin_change()
        source.uses += 1
    with nogil:
        if enable is None:
            code = registry.active().graph_node_enabled(handle, exec_, node, &enabled)
        else:
            code = registry.active().graph_node_enable(graph.ordinal, handle, exec_, node, enabled, had)
    with cython.critical_section(graph, source):
        graph.end_change()
        source.uses -= 1
    if code:
        raise_status(code, "graph_node_enable", ("graph_exec", exec_, "node", node),
                     "only kernels, copies and fills can be left out, by instances of the node's definition"
                     if code == INVALID_VALUE else "a fill of several rows cannot be left out; give it other memory by "
                     "update(instance=graph, dst=...)" if code == NOT_SUPPORTED else "")
    return enabled != 0


def params_to_bind(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, CUDAGraph source,
) -> list[tuple[GraphNode, object]]:
    """The same of a driver's graph."""
    cdef list nodes = []
    for node in list_nodes(graph):
        params = None
        if node.type == "kernel":
            params = read_launch(graph, node.id, source)
        elif node.type in ("memcpy", "memset"):
            params = read_node(graph, ordinal, base, by_node, node)
        elif node.type == "graph":
            params = params_to_bind(read_node(graph, ordinal, base, by_node, node), ordinal, base, by_node, source)
        nodes.append((node, params))
    return nodes


def read_kernel(
    uintptr_t graph, int ordinal, base: _Things, by_node: _ByNode, CUDAGraph changed, asked: object,
) -> KernelParams:
    """Returns the launch of a kernel node."""
    cdef uintptr_t node = handle_of(asked)
    return read_kernel_node(graph, node, changed.own_kernels(), changed.changes.get(node))


cdef object read_launch(uintptr_t graph, uintptr_t node, CUDAGraph source):
    # None of one that the driver has for itself: what sets a condition.
    try:
        return read_kernel_node(graph, node, source.own_kernels(), source.changes.get(node))
    except CudaError:
        return None


# --- changes of nodes, by name -----------------------------------------------------------------------------------------

# What the arguments of update() are by the node's type; CHANGES of graphs/node_values.py has the other types.
cdef tuple LAUNCH = ("kernel", "grid", "block", "shared", "args", "cluster", "cooperative", "priority")
cdef tuple COPY = ("dst", "src", "nbytes", "width", "height", "depth", "dst_pitch", "dst_lines", "src_pitch", "src_lines",
                   "dst_offset", "src_offset")
cdef tuple FILL = ("dst", "value", "count", "width", "height", "pitch", "offset")

cdef enum:
    MOST_NAMES = 12  # of a copy

ctypedef PyObject* Value  # what an argument is changed to, borrowed; NULL: it is not named


cdef int read_changes(dict changes, tuple names, Value* out_values) except -1:
    # Fills in what each of the names is changed to; answers whether all changes are of these names.
    cdef Py_ssize_t entry = 0, index, count = PyTuple_GET_SIZE(names)
    cdef PyObject* name
    cdef PyObject* value
    memset(out_values, 0, count * sizeof(Value))
    while PyDict_Next(changes, &entry, &name, &value):
        index = 0
        while index < count and <PyObject*>PyTuple_GET_ITEM(names, index) != name:  # as written in code they are one object
            index += 1
        if index == count and <str>name in names:
            index = names.index(<str>name)
        if index == count:
            return False
        out_values[index] = value
    return True


cdef class UpdatedNode(NodeBase):
    """Base of DefinitionNode: changes of the node alone."""

    def update(self, *, instance: CUDAGraph | None = None, **changes: object) -> None:
        """Changes what the node does, in the definition or in an instance of it.

        Arguments:
            instance: CUDAGraph of GraphDefinition.instantiate: it alone is changed; launches under way are
                left alone. None changes the definition, and so what is instantiated of it later.
            changes: of a kernel node kernel, grid, block, shared, args, and in the definition alone cluster
                (1 for none), cooperative, priority; of a copy dst, src, nbytes, or those of copy_3d; of a
                fill dst, value, count, width, height, pitch; of a host node function; of a record or a wait
                event; of a child graph.  What is not named stays.
        Raises:
            TypeError: the node has no such argument.
            RuntimeError: the node is none of the graph that instance was instantiated from, or was added
                since, or is within a child for which instance was given another graph; or another thread uses
                that graph, or changed the node meanwhile.
            CudaError: the driver refused; nothing is changed, or where the graph alone refused, what was
                instantiated of it.
            NotSupportedError: an instance was to have another cluster, cooperative or priority.
        """
        cdef DefinitionBase definition = self.definition
        cdef CUDAGraph graph, target
        if definition is None:
            refuse_unmade(self)
        graph = target = definition._graph
        if instance is not None:
            if not (is_made_of(instance, graph) if isinstance(instance, CUDAGraph) else is_instance(instance, graph)):
                raise RuntimeError(f"{self!r} is no node of the graph that the instance was instantiated from")
            target = instance
        try:
            if self.type == "kernel":
                self.change_launch(target, definition, changes)
            elif self.type == "memcpy" or self.type == "memset":
                self.change_memory(target, definition, changes)
            else:
                self._change(target, definition, changes)
        except CudaError as error:
            if definition._owner is None or instance is None:
                raise
            raise type(error)(
                f"{error}; {self!r} is in a body or a child, whose nodes this driver changes in no instance: "
                "change the definition's, and call instance.update(definition.graph)",
                error.code, error.name, error.call,
            ) from error

    def _change(self, target: CUDAGraph, definition: object, changes: dict[str, object]) -> None:
        """Changes a node that is neither a kernel nor a copy nor a fill."""
        raise TypeError(f"{self!r} cannot be changed; remove it and add another")

    def _put(self, CUDAGraph target not None, NodeWork work not None) -> None:
        """Has such a node do other work; nodes of the graph that it owned are gone then."""
        if self.definition is None:
            refuse_unmade(self)
        change_node(target, self, work, self.definition)

    def _refuse_names(self, changes: dict[str, object], arguments: Sequence[str]) -> None:
        """Raises TypeError where names of changes are none of the node's arguments, or the one that it has to be given is
        missing."""
        unknown = [name for name in changes if name not in arguments]
        if unknown:
            raise TypeError(
                f"a {self.type} node has no such argument: {', '.join(unknown)}; it has " + ", ".join(arguments)
            ) from None
        if not changes:
            raise TypeError(f"nothing was given for a {self.type} node; pass {arguments[0]}=") from None

    cdef int change_launch(self, CUDAGraph target, DefinitionBase definition, dict changes) except -1:
        cdef Value[MOST_NAMES] to
        cdef CUDAGraph source
        cdef uintptr_t graph, node
        if not read_changes(changes, LAUNCH, to):
            self._refuse_names(changes, LAUNCH)
        source = source_of(target)
        options = checked_options(unless_null(to[5]), unless_null(to[6]), unless_null(to[7]))
        with cython.critical_section(target, source):
            if definition._owner is None:
                node = node_id(self)
                graph = target.node_graph()
            else:
                require_own_child(target, definition)
                graph = part_handle(source, definition, target.node_graph())
                node = handle_of(self)
            target.change_kernel(source, graph, node, node != 0, unless_null(to[0]), unless_null(to[1]), unless_null(to[2]),
                                 unless_null(to[3]), unless_null(to[4]), options)
        return 0

    cdef int change_memory(self, CUDAGraph target, DefinitionBase definition, dict changes) except -1:
        cdef NodeParams now
        cdef NodeWork work
        cdef bint copies = self.type == "memcpy"
        cdef Value[MOST_NAMES] to
        cdef tuple version = version_of(target, self.id)
        self.read_now(target, &now)
        if not read_changes(changes, COPY if copies else FILL, to):
            self._refuse_names(changes, COPY if copies else FILL)
        try:
            work = copy_anew(target.ordinal, &now, to) if copies else fill_anew(target.ordinal, &now, to)
        except TypeError:
            self._refuse_names(changes, COPY if copies else FILL)
            raise
        work.version = version
        return change_node(target, self, work, definition)

    cdef int read_now(self, CUDAGraph target, NodeParams* out_now) except -1:
        # What a copy or a fill does.
        cdef NodeChange change = None
        cdef object work, node = self.id
        with cython.critical_section(target):
            if target.source is not None and target.bound is None and target.changes is not None:
                change = target.changes.get(node)
            if change is not None and change.is_apart and change.params.type == (
                    NODE_COPY if self.type == "memcpy" else NODE_FILL):
                out_now[0] = change.params
                return 0
            work = params_in_instance(target, node)
        if not isinstance(work, CopyParams if self.type == "memcpy" else FillParams):
            work = self.params
        return put_params(work, out_now)


cdef object unless_null(Value new):
    return None if new == NULL else <object>new


cdef bint is_given(Value new) noexcept:
    return new != NULL and new != <PyObject*>None


cdef bint is_any_given(const Value* to, int first, int end) noexcept:
    cdef int index
    for index in range(first, end):
        if is_given(to[index]):
            return True
    return False


cdef object unless_none(Value new, size_t now):
    # What a change names, or what there is where it names nothing.
    return <object>new if is_given(new) else now


cdef object unless_zero(Value new, size_t now):
    # Of what 0 stands for None.
    return <object>new if is_given(new) else now or None


cdef object offset_of(Value new):
    return 0 if new == NULL else <object>new


cdef NodeWork copy_anew(int ordinal, const NodeParams* now, const Value* to):
    # A copy node's copy with some of it changed: to are those of COPY.
    cdef NodeWork work
    if now.height == 1 and now.depth == 1 and not is_any_given(to, 2, 10) and to[10] == NULL and to[11] == NULL:
        return other_side(ordinal, now, unless_null(to[0]), unless_null(to[1]))
    dst, src = unless_none(to[0], now.dst), unless_none(to[1], now.src)
    size = <object>to[2] if is_given(to[2]) else unless_none(to[3], now.width)
    rows, slices = unless_none(to[4], now.height), unless_none(to[5], now.depth)
    if rows == slices == 1:
        work = copy_work(ordinal, dst, src, size, offset_of(to[10]), offset_of(to[11]))
    else:
        work = copy_3d_work(
            ordinal, dst, src, (size, rows, slices),
            (unless_zero(to[6], now.dst_pitch), unless_zero(to[7], now.dst_lines)),
            (unless_zero(to[8], now.src_pitch), unless_zero(to[9], now.src_lines)), offset_of(to[10]), offset_of(to[11]))
    if not is_given(to[0]):
        del work.things["dst"]  # the node keeps what it has, as it has its address
    if not is_given(to[1]):
        del work.things["src"]
    return work


cdef NodeWork other_side(int ordinal, const NodeParams* now, object dst, object src):
    # The same of a row of bytes; None leaves a side as it is.
    cdef NodeWork work = NodeWork.__new__(NodeWork)
    cdef size_t room = ANY_BYTES
    work.params = now[0]
    work.params.dst_pitch = work.params.dst_lines = work.params.src_pitch = work.params.src_lines = 0
    work.params.sides = 0
    if dst is not None:
        work.params.dst, room = work.read(&work.dst, dst, "dst", ordinal, True), work.dst.nbytes
    if src is not None:
        work.params.src, room = work.read(&work.src, src, "src", ordinal, False), min(room, work.src.nbytes)
    if now.width > room:
        checked_int(now.width, "nbytes", 1, room, "the bytes to copy, within both sides")
    return work


cdef NodeWork fill_anew(int ordinal, const NodeParams* now, const Value* to):
    # A fill node's fill with some of it changed: to are those of FILL.
    cdef NodeWork work
    if now.height == 1 and not is_any_given(to, 2, 6) and to[6] == NULL:
        work = NodeWork.__new__(NodeWork)
        work.params = now[0]
        work.params.dst_pitch, work.dst.ordered, work.dst.nbytes = 0, True, ANY_BYTES
        if is_given(to[0]):
            work.params.dst = work.read(&work.dst, <object>to[0], "dst", ordinal, True)
        if work.dst.ordered and now.width <= work.dst.nbytes // <size_t>now.element:
            if is_given(to[1]):
                work.params.value = checked_value(<object>to[1], now.element)
            return work
    work = fill_work(ordinal, unless_none(to[0], now.dst), unless_none(to[1], now.value), unless_none(to[2], now.width),
                     unless_none(to[3], now.element), offset_of(to[6]), unless_none(to[4], now.height),
                     unless_zero(to[5], now.dst_pitch))
    if not is_given(to[0]):
        del work.things["dst"]
    return work
