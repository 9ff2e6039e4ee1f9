"""Graphs made by hand: nodes and edges that are put together, and captured graphs that are taken apart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TypeAlias, cast
from weakref import WeakValueDictionary

from accelrt.annotations import DeviceArgument, Memory
from accelrt.graphs import edits
from accelrt.graphs.graph import CUDAGraph, capture_body
from accelrt.graphs.hooks import RemovableHandle, add_hook, run_hooks
from accelrt.graphs.node_values import CHANGES, AllocationParams, Condition, ConditionParams, plain_params
from accelrt.kernels.kernel import Kernel
from accelrt.streams.stream import Event, Stream, current_stream
from accelrt.streams.stream import stream as using_stream

Nodes: TypeAlias = "DefinitionNode | Iterable[DefinitionNode]"
KINDS = ("if", "while", "switch")
AUTO_FREE, DEVICE_LAUNCH, NODE_PRIORITIES = 1, 4, 8  # flags of cuGraphInstantiate
ATTRIBUTES = ("used", "used_peak", "reserved", "reserved_peak")  # CUgraphMem_attribute


class DefinitionNode:
    """A node of a GraphDefinition, made by GraphDefinition.kernel and the other methods that add one.

    Attributes:
        definition: GraphDefinition that it is in.
        id: int, the driver's handle (CUgraphNode).
        type: str, as of a GraphNode: "kernel", "memcpy", "memset", "host", "graph", "empty", "wait_event",
            "event_record", "mem_alloc", "mem_free", "conditional".
    """

    __slots__ = ("__weakref__", "definition", "id", "type")

    def __init__(self, definition: GraphDefinition, node: int, kind: str) -> None:
        self.definition, self.id, self.type = definition, node, kind

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a DefinitionNode cannot be pickled or copied: it is of one graph; clone the definition"
        )

    def __repr__(self) -> str:
        return f"<accelrt.DefinitionNode {self.type} {self.name or hex(self.id)}>"

    @property
    def name(self) -> str:
        """The name that it was given when it was added, or since; "" where there is none.

        Raises:
            RuntimeError: it is set, and the node was taken out of its graph.
        """
        return self.definition._root._names.get(self.id, "")

    @name.setter
    def name(self, name: str) -> None:
        self.definition._root._names[self._live_id()] = str(name)

    @property
    def is_valid(self) -> bool:
        """Tells that it is in its graph still: it was not removed, nor what it is within."""
        return self.id != 0

    @property
    def predecessors(self) -> tuple[DefinitionNode, ...]:
        """The nodes that it comes directly after."""
        return tuple(origin for origin, target in self.definition.edges() if target is self)

    @property
    def successors(self) -> tuple[DefinitionNode, ...]:
        """The nodes that come directly after it."""
        return tuple(target for origin, target in self.definition.edges() if origin is self)

    @property
    def params(self) -> Any:
        """Its work: KernelParams; CopyParams; FillParams; the function of a host node; the Event of a
        record or a wait; AllocationParams; the address of a free; the GraphDefinition of a child;
        ConditionParams, or None of a condition that was captured; None of an empty node."""
        return self.definition._read(self)

    @property
    def address(self) -> int:
        """The address of the memory of an allocation.

        Raises:
            TypeError: the node is no allocation.
        """
        if self.type != "mem_alloc":
            raise TypeError(
                f"a {self.type} node allocates nothing; a node of GraphDefinition.allocate has an address"
            )
        return int(self.params.address)

    @property
    def bodies(self) -> tuple[GraphDefinition, ...]:
        """The graphs that a condition runs, for more nodes; () of a node of another kind, and of one that was
        captured."""
        made = self.definition._condition_of(self)
        return () if made is None else made.bodies

    def update(self, *, instance: CUDAGraph | None = None, **changes: object) -> None:
        """Changes what the node does, in the definition or in an instance of it.

        Arguments:
            instance: CUDAGraph of GraphDefinition.instantiate: it alone is changed; launches under way are
                left alone. None changes the definition, and so what is instantiated of it later.
            changes: of a kernel node kernel, grid, block, shared, args; of a copy dst, src, nbytes, or those
                of copy_3d; of a fill dst, value, count, width, height, pitch; of a host node function; of a
                record or a wait event; of a child graph.  What is not named stays.
        Raises:
            TypeError: the node has no such argument.
            RuntimeError: the node is none of the graph that instance was instantiated from; or another thread
                uses that graph.
            CudaError: the driver refused; nothing is changed.
        """
        definition = self.definition
        replaces = instance is None and self.type == "graph"
        graphs = definition._graphs_within(self) if replaces else []
        inner = [each for graph in graphs for each in graph.nodes()]
        definition._update(self, instance, changes)
        gone = [each.id for each in inner]
        if gone:
            edits.edit(definition._graph, definition._body, edits.drop_nodes, gone)
        definition._forget(gone, graphs)
        for each in inner:
            each.id = 0

    def set_enabled(self, instance: CUDAGraph, enabled: bool) -> None:
        """Has an instance do a kernel, a copy or a fill, or leave it out (cuGraphNodeSetEnabled).

        Arguments:
            instance: CUDAGraph of GraphDefinition.instantiate.
            enabled: bool, whether its launches do the node's work from now on.
        Raises:
            CudaError: the node is of another kind, or none of the instance's.
        """
        edits.switch_node(instance, self, bool(enabled))

    def is_enabled(self, instance: CUDAGraph) -> bool:
        """Tells whether an instance does a kernel, a copy or a fill.

        Arguments:
            instance: CUDAGraph of GraphDefinition.instantiate.
        """
        return edits.switch_node(instance, self, None)

    def remove(self) -> None:
        """Takes the node out of its graph, with its edges.

        Raises:
            CudaError: the graph has allocations; then its nodes and edges stay.
            RuntimeError: the graph is being captured.
        """
        self.definition._remove(self)

    def _live_id(self) -> int:
        if not self.id:
            raise RuntimeError("the node was taken out of its graph")
        return self.id


class GraphDefinition:
    """A graph that is made by hand, or that was captured and is changed (cuGraphCreate, cuGraphAddNode; CUDA
    12.3).

        d = accelrt.GraphDefinition()
        first = d.fill(x, 0)
        second = d.kernel(kernel, 4, 64, (x, y), after=first)
        d.copy(z, y, after=[second])
        g = d.instantiate()
        g.replay()

    Arguments:
        graph: CUDAGraph(keep_graph=True) that holds a capture: its nodes are listed, changed and removed, and
            others added.  What was instantiated of it before is as it was.  Or a CUDAGraph whose capture is
            under way: see below.  None makes a new graph.
        device: the device of a new graph; None is the current one.
    Raises:
        RuntimeError: graph holds no graph that was kept.
        NotSupportedError: the driver makes no graphs by hand.
        TypeError: graph is no CUDAGraph.

    Each method that adds a node takes `after`, a node or several that it comes after, and `name`, and returns
    a DefinitionNode.  What a node points at, memory, functions, events and kernels, is kept alive as long as
    the definition and what was instantiated of it, or until the node is removed.  Where a method takes memory
    it also takes an int, the address of memory that is the caller's to keep, such as that of an allocation of
    the graph.  Nodes of captured copies read memory that is neither the device's nor page-locked at each
    launch, as it is then.

    While a CUDAGraph is being captured, its definition has the nodes that streams do not make: conditions
    that kernels set, ifs with else and switches, children, allocations.  A node that `after` names nothing
    for goes where the current stream's next work goes, and that comes after it:

        with accelrt.graph(g):
            d = accelrt.GraphDefinition(g)
            c = d.condition(1)
            loop = d.while_(c)
            with loop.bodies[0].capture():
                ...                     # kernels; one of them sets c

    Where the current stream does not capture into this graph, or into this body, it comes after nothing.
    Nodes and edges are not removed before the capture's end, after which the definition is that of a
    CUDAGraph(keep_graph=True), and of no other.
    """

    def __init__(self, graph: CUDAGraph | None = None, *, device: DeviceArgument | None = None) -> None:
        if graph is not None and not isinstance(graph, CUDAGraph):
            raise TypeError(f"graph is {graph!r} of type {type(graph).__name__}; pass a CUDAGraph")
        if graph is None:
            graph = CUDAGraph(keep_graph=True)
            edits.begin_graph_by_hand(graph, device)
        else:
            edits.raw_graph_of(graph)
        self._graph, self._body = graph, 0
        self._parent: GraphDefinition | None = None
        # Of all nodes, those of graphs within it too.
        self._nodes: WeakValueDictionary[int, DefinitionNode] = WeakValueDictionary()
        self._views: WeakValueDictionary[int, GraphDefinition] = WeakValueDictionary()
        self._names: dict[int, str] = {}
        self._conditions: dict[int, tuple[str, Condition, list[int]]] = {}
        self._hooks: list[RemovableHandle] = []

    def __reduce__(self) -> NoReturn:
        raise TypeError("a GraphDefinition cannot be pickled or copied: it owns a graph; use clone()")

    def __repr__(self) -> str:
        if self._handle is None:
            return "<accelrt.GraphDefinition of a node that was removed>"
        kind = "body" if self._body else "graph"
        return f"<accelrt.GraphDefinition {kind} of {len(self.nodes())} nodes>"

    @property
    def _body(self) -> int:
        # The driver's graph that a node owns, or 0; None once the node is gone.
        if self._handle is None:
            raise RuntimeError("the node that this graph was within was removed, or given another")
        return self._handle

    @_body.setter
    def _body(self, body: int) -> None:
        self._handle: int | None = body

    @property
    def graph(self) -> CUDAGraph:
        """The CUDAGraph that keeps the driver's graph: to dump it, or to update another one from it."""
        return self._graph

    def raw_cuda_graph(self) -> int:
        """Returns the driver's graph (CUgraph) as int; of a body or a child, the one that its node owns.

        Raises:
            RuntimeError: as CUDAGraph.raw_cuda_graph.
        """
        return self._body or edits.raw_graph_of(self._graph)

    # --- what there is ---

    def nodes(self) -> list[DefinitionNode]:
        """Returns the nodes, in the order that the driver gives."""
        return self._look()[0]

    def edges(self) -> list[tuple[DefinitionNode, DefinitionNode]]:
        """Returns the dependencies, as (node, node that comes after it)."""
        return self._look()[1]

    def _look(self) -> tuple[list[DefinitionNode], list[tuple[DefinitionNode, DefinitionNode]]]:
        """The nodes and the edges at one moment."""
        found, pairs = edits.edit(self._graph, self._body, edits.look)
        nodes = [self._node(each.id, each.type) for each in found]
        by_id = dict(zip([each.id for each in found], nodes, strict=True))
        return nodes, [(by_id[origin], by_id[target]) for origin, target in pairs]

    def _node(self, node: int, kind: str) -> DefinitionNode:
        known = self._root._nodes.get(node)
        if known is None:
            known = self._root._nodes[node] = DefinitionNode(self, node, kind)
        return known

    def _read(self, node: DefinitionNode) -> Any:
        if node.type == "kernel" and not self._body:
            return self._graph.kernel_node_params(cast(Any, node))
        if node.type in ("kernel", "conditional"):
            return self._condition_of(node)
        found = edits.edit(self._graph, self._body, edits.read_node, node)
        if node.type == "graph":
            assert isinstance(found, int)
            return self._within(found)
        if isinstance(found, tuple) and node.type == "mem_alloc":
            return AllocationParams(*found)
        return found

    def _within(self, body: int) -> GraphDefinition:
        """A graph that a node of this one owns."""
        known = self._root._views.get(body)
        if known is not None:
            return known
        made = GraphDefinition.__new__(GraphDefinition)
        made._graph, made._body, made._parent = self._graph, body, self._root
        self._root._views[body] = made
        return made

    @property
    def _root(self) -> GraphDefinition:
        return self if self._parent is None else self._parent

    def _condition_of(self, node: DefinitionNode) -> ConditionParams | None:
        known = self._root._conditions.get(node.id)
        if known is None:
            return None
        kind, condition, bodies = known
        return ConditionParams(kind, condition, tuple(map(self._within, bodies)))

    # --- nodes ---

    def _add(
        self,
        work: edits.NodeWork,
        kind: str,
        after: Any,
        name: str,
        condition: tuple[str, Condition] | None = None,
    ) -> DefinitionNode:
        nodes = [after] if isinstance(after, DefinitionNode) else list(after)
        for node in nodes:
            if not isinstance(node, DefinitionNode) or node.definition._body != self._body:
                raise TypeError(f"after has {node!r}, which is no node of this graph")
            if node.definition._root is not self._root:
                raise ValueError(f"after has {node!r}, which is of another GraphDefinition")
        if self._graph.is_capturing and not nodes:
            handle, _, found = edits.edit(self._graph, self._body, edits.add_node_here, work)
        else:
            handle, _, found = edits.edit(self._graph, self._body, edits.add_node, work, nodes)
        made = self._node(handle, kind)
        if name:
            made.name = name
        if condition is not None:
            self._root._conditions[handle] = (*condition, found)
        return made

    @property
    def device_index(self) -> int:
        """The ordinal of the graph's device."""
        return edits.device_of_graph(self._graph)

    def kernel(
        self, kernel: Kernel, grid: int | Sequence[int], block: int | Sequence[int],
        args: Sequence[object] = (), *, shared: int = 0, after: Nodes = (), name: str = "",
    ) -> DefinitionNode:  # fmt: skip
        """Adds a launch of a kernel; the arguments are those of Kernel.launch.

        Arguments:
            kernel: Kernel.
            grid, block: int or sequence of up to 3, blocks of the grid and threads of a block.
            args: sequence of the kernel's arguments.
            shared: int, bytes of dynamic shared memory of a block.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        work = edits.kernel_work(self.device_index, kernel, grid, block, shared, args)
        return self._add(work, "kernel", after, name)

    def copy(
        self, dst: Memory | int, src: Memory | int, nbytes: int | None = None, *, dst_offset: int = 0,
        src_offset: int = 0, after: Nodes = (), name: str = "",
    ) -> DefinitionNode:  # fmt: skip
        """Adds a copy of bytes.

        Arguments:
            dst, src: memory as accelrt.copy takes it, of the graph's device or of the host, or addresses.
            nbytes: int; None is as many as both sides have, which have to be the same.
            dst_offset, src_offset: int, bytes to skip.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        work = edits.copy_work(self.device_index, dst, src, nbytes, dst_offset, src_offset)
        return self._add(work, "memcpy", after, name)

    def copy_3d(
        self, dst: Memory | int, src: Memory | int, width: int, height: int = 1, depth: int = 1, *,
        dst_pitch: int | None = None, dst_lines: int | None = None, src_pitch: int | None = None,
        src_lines: int | None = None, dst_offset: int = 0, src_offset: int = 0, after: Nodes = (),
        name: str = "",
    ) -> DefinitionNode:  # fmt: skip
        """Adds a copy of slices of rows.

        Arguments:
            dst, src: device memory or page-locked memory, or addresses of such.
            width: int, bytes of a row.
            height, depth: int, rows of a slice, and slices.
            dst_pitch, src_pitch: int, bytes from row to row; None is width.
            dst_lines, src_lines: int, rows from slice to slice; None is height.
            dst_offset, src_offset: int, bytes to skip.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        work = edits.copy_3d_work(
            self.device_index, dst, src, (width, height, depth), (dst_pitch, dst_lines),
            (src_pitch, src_lines), dst_offset, src_offset,
        )  # fmt: skip
        return self._add(work, "memcpy", after, name)

    def fill(
        self, dst: Memory | int, value: int = 0, count: int | None = None, *, width: int = 1, offset: int = 0,
        height: int = 1, pitch: int | None = None, after: Nodes = (), name: str = "",
    ) -> DefinitionNode:  # fmt: skip
        """Adds a fill of elements with one value.

        Arguments:
            dst: device memory or page-locked memory, or an address.
            value: int from 0 to 2**(8 * width) - 1.
            count: int, elements of a row; None is all of dst, as one row.
            width: int, bytes of an element: 1, 2 or 4.
            offset: int, bytes to skip.
            height: int, rows.
            pitch: int, bytes from row to row; None is as long as a row.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        work = edits.fill_work(self.device_index, dst, value, count, width, offset, height, pitch)
        return self._add(work, "memset", after, name)

    def host_function(
        self, function: Callable[[], object], *, after: Nodes = (), name: str = ""
    ) -> DefinitionNode:
        """Adds a call of a function, on a thread of the driver's; as Stream.launch_host_func has it.

        Arguments:
            function: callable of no arguments.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._add(edits.host_work(self.device_index, function), "host", after, name)

    def record(self, event: Event, *, after: Nodes = (), name: str = "") -> DefinitionNode:
        """Adds a record of an event: each launch records it.

        Arguments:
            event: Event.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._add(edits.event_work(self.device_index, event, True), "event_record", after, name)

    def wait(self, event: Event, *, after: Nodes = (), name: str = "") -> DefinitionNode:
        """Adds a wait for an event: each launch waits for the last record before it.

        Arguments:
            event: Event.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._add(edits.event_work(self.device_index, event, False), "wait_event", after, name)

    def empty(self, *, after: Nodes = (), name: str = "") -> DefinitionNode:
        """Adds a node that does nothing, for many that come after many.

        Arguments:
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._add(edits.empty_work(), "empty", after, name)

    def child(
        self, graph: GraphDefinition | CUDAGraph, *, after: Nodes = (), name: str = ""
    ) -> DefinitionNode:
        """Adds a copy of a graph as it is now, as one node.

        Arguments:
            graph: GraphDefinition, or a CUDAGraph that was kept, without allocations and conditions.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._add(self.child_work(graph), "graph", after, name)

    def child_work(self, graph: object) -> edits.NodeWork:
        """Describes a node that is a copy of a graph; child() adds one, and update() changes one to it.

        Arguments:
            graph: GraphDefinition or CUDAGraph, as of child.
        Returns:
            NodeWork, which the graph's methods add.
        Raises:
            TypeError: graph is neither.
            ValueError: graph is of another device.
        """
        if isinstance(graph, CUDAGraph):
            graph = GraphDefinition(graph)
        if not isinstance(graph, GraphDefinition):
            raise TypeError(f"graph is {graph!r} of type {type(graph).__name__}; pass a GraphDefinition")
        if graph.device_index != self.device_index:
            raise ValueError(f"the child is on device {graph.device_index}, the graph on {self.device_index}")
        return edits.child_work(graph._body or graph._graph.raw_cuda_graph(), graph._graph)

    def allocate(
        self, nbytes: int, *, peers: Iterable[int] = (), device: DeviceArgument | None = None,
        kind: str = "device", after: Nodes = (), name: str = "",
    ) -> DefinitionNode:  # fmt: skip
        """Adds an allocation of memory, at the address that the node has from now on (its `address`).

        Arguments:
            nbytes: int.
            peers: ordinals of other devices that reach the memory.
            device: int, "cuda:1", ...: whose memory it is; None is the graph's.
            kind: "device", "host" (page-locked memory) or "managed"; the last two need CUDA 13.0.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.

        The bytes are the graph's from a launch on until a node, of this graph or another, frees them, or
        free_graph_memory does, or the next launch where it was instantiated with auto_free=True.  Nodes and
        edges of a graph with allocations cannot be removed, it can be neither cloned nor be a child, and has
        one instance at a time.
        """
        work = edits.allocate_work(self.device_index, nbytes, peers, device, kind)
        return self._add(work, "mem_alloc", after, name)

    def free(self, memory: DefinitionNode | int, *, after: Nodes = (), name: str = "") -> DefinitionNode:
        """Adds a free of what an allocation of a graph has, named by its node or its address.

        Arguments:
            memory: DefinitionNode of an allocation, or its address as int.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        address = memory.address if isinstance(memory, DefinitionNode) else memory
        return self._add(edits.free_work(address), "mem_free", after, name)

    # --- conditions ---

    def condition(self, value: int = 0, *, keep: bool = False) -> Condition:
        """Makes a value that nodes of this graph, and of the graphs within it, depend on.

        Arguments:
            value: int from 0 to 2**32 - 1, what it is when a launch begins.
            keep: bool, it begins instead with what the launch before left.
        """
        handle = edits.edit(self._graph, self._body, edits.make_condition, value, bool(keep))
        return Condition(handle, value, bool(keep))

    def _conditional(
        self, kind: str, condition: Condition, count: int, after: Any, name: str
    ) -> DefinitionNode:
        if not isinstance(condition, Condition):
            raise TypeError(f"condition is {condition!r}; pass what GraphDefinition.condition returns")
        work = edits.condition_work(condition.handle, KINDS.index(kind), count)
        return self._add(work, "conditional", after, name, (kind, condition))

    def if_(
        self, condition: Condition, *, else_: bool = False, after: Nodes = (), name: str = ""
    ) -> DefinitionNode:
        """Adds a node whose first body runs unless the condition is 0; with else_, whose second runs if it is
        0.

        The bodies are empty graphs (`node.bodies`), which take kernels, copies, fills, empty nodes, children
        and conditions. A second one needs CUDA 12.8.

        Arguments:
            condition: Condition of this graph, or of one that it is within.
            else_: bool, whether there is a second body.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._conditional("if", condition, 2 if else_ else 1, after, name)

    def while_(self, condition: Condition, *, after: Nodes = (), name: str = "") -> DefinitionNode:
        """Adds a node whose body is repeated while the condition is not 0.

        Arguments:
            condition: Condition of this graph, or of one that it is within.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._conditional("while", condition, 1, after, name)

    def switch(
        self, condition: Condition, count: int, *, after: Nodes = (), name: str = ""
    ) -> DefinitionNode:
        """Adds a node with count bodies, of which the one with the condition's value as number runs, if any
        (CUDA 12.8).

        Arguments:
            condition: Condition of this graph, or of one that it is within.
            count: int, bodies, from 1 to 65536.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        Raises:
            ValueError: count is none of these.
        """
        if not isinstance(count, int) or not 1 <= count <= 1 << 16:
            raise ValueError(f"count is {count!r}; pass how many bodies the switch has, from 1 to {1 << 16}")
        return self._conditional("switch", condition, count, after, name)

    def set_condition(
        self, condition: Condition, flag: Memory | int, *, after: Nodes = (), name: str = ""
    ) -> DefinitionNode:
        """Adds a node that gives a condition the value of an integer in device memory.

        Arguments:
            condition: Condition of this graph, or of one that it is within.
            flag: device memory, whose first 4 bytes are read, or an address.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        """
        return self._add(edits.setter_work(self.device_index, condition.handle, flag), "kernel", after, name)

    def capture(self) -> AbstractContextManager[None]:
        """Returns the context in which work is captured into this body of a condition.

        It is for a graph that is being captured, whose stream is current where the context is entered. Inside
        a stream of its own is current, which begins behind nothing, also behind no node that is there.

        Raises:
            RuntimeError: this is no body, or, where it is entered, no capture of its graph is under way.
        """
        if not self._body:
            raise RuntimeError(
                "only the body of a condition is captured into; capture a graph by accelrt.graph"
            )
        return capture_body(self._graph, self._body)

    # --- changes ---

    def add_edge(self, before: DefinitionNode, after: DefinitionNode) -> None:
        """Has one node come after another (cuGraphAddDependencies).

        Arguments:
            before: DefinitionNode of this graph, which comes first.
            after: DefinitionNode of this graph.
        Raises:
            CudaError: it does already, or one of them is none of this graph.  A circle is refused by
                instantiate().
        """
        edits.edit(self._graph, self._body, edits.change_edges, True, [before], [after])

    def remove_edge(self, before: DefinitionNode, after: DefinitionNode) -> None:
        """Takes back that one node comes after another (cuGraphRemoveDependencies).

        Arguments:
            before: DefinitionNode of this graph, which comes first.
            after: DefinitionNode of this graph.
        Raises:
            CudaError: it does not come directly after it, or the graph has allocations.
            RuntimeError: the graph is being captured.
        """
        if self._graph.is_capturing:
            raise RuntimeError("edges are removed once the capture has ended")
        edits.edit(self._graph, self._body, edits.change_edges, False, [before], [after])

    def _remove(self, node: DefinitionNode) -> None:
        if self._graph.is_capturing:
            raise RuntimeError("nodes are removed once the capture has ended")
        graphs = self._graphs_within(node)
        inner = [each for graph in graphs for each in graph.nodes()]
        gone = [each.id for each in (node, *inner)]
        edits.edit(self._graph, self._body, edits.remove_node, node, inner)
        self._forget(gone, graphs)

    def _forget(self, nodes: list[int], graphs: list[GraphDefinition]) -> None:
        """Drops what is known of nodes that are gone, and of the graphs that they owned."""
        root = self._root
        for handle in nodes:
            for known in (root._nodes, root._names, root._conditions):
                known.pop(handle, None)
        for graph in graphs:
            root._views.pop(graph._body, None)
            graph._handle = None

    def _graphs_within(self, node: DefinitionNode) -> list[GraphDefinition]:
        graphs = list(self._graphs_of(node))
        return graphs + [
            deep for graph in graphs for each in graph.nodes() for deep in graph._graphs_within(each)
        ]

    def _graphs_of(self, node: DefinitionNode) -> tuple[GraphDefinition, ...]:
        return (self._read(node),) if node.type == "graph" else node.bodies

    def _update(self, node: DefinitionNode, instance: CUDAGraph | None, changes: dict[str, Any]) -> None:
        target = self._graph if instance is None else instance
        if instance is not None and not edits.is_instance(instance, self._graph):
            raise RuntimeError(f"{node!r} is no node of the graph that the instance was instantiated from")
        if node.type == "kernel":
            if self._body:
                raise NotImplementedError(
                    "a kernel of a body or a child is changed by removing it and adding another"
                )
            target.set_kernel_node_params(cast(Any, node), **changes)
            return
        maker = CHANGES.get(node.type)
        if maker is None:
            raise TypeError(f"{node!r} cannot be changed; remove it and add another")
        try:
            work = maker(self, self._current(node, target), **changes)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise TypeError(f"a {node.type} node has no such argument: {', '.join(changes)}") from None
        edits.change_node(target, node, work, self._body)

    def _current(self, node: DefinitionNode, target: CUDAGraph) -> Any:
        changed = edits.changed_params(target, node.id)
        return self._read(node) if changed is None else changed

    def retain_object(self, thing: object) -> None:
        """Keeps an object alive as long as the graph, and what is instantiated of it from now on.

        Arguments:
            thing: any object.
        """
        edits.edit(self._graph, 0, edits.keep_object, thing)

    def clone(self) -> GraphDefinition:
        """Clones the graph (cuGraphClone); find_in_clone tells which node is which.

        Returns:
            GraphDefinition.
        Raises:
            CudaError: it has allocations or conditions.
            RuntimeError: this is the body of a condition.
        """
        if self._body:
            raise RuntimeError("the body of a condition cannot be cloned by itself")
        made = CUDAGraph(keep_graph=True)
        edits.clone_into(self._graph, made)
        clone = GraphDefinition(made)
        for node in self.nodes():
            if node.name:
                clone.find_in_clone(node).name = node.name
        return clone

    def find_in_clone(self, node: DefinitionNode) -> DefinitionNode:
        """Returns the node of this clone that is the copy of a node of the graph that was cloned.

        Arguments:
            node: DefinitionNode of the graph that was cloned.
        """
        (found,) = edits.find_clones(self._graph.raw_cuda_graph(), [node._live_id()]).values()
        return self._node(found, node.type)

    # --- instances ---

    def instantiate(
        self, *, auto_free: bool = False, device_launch: bool = False, node_priorities: bool = False,
        upload: Stream | int | None = None,
    ) -> CUDAGraph:  # fmt: skip
        """Makes a CUDAGraph that replays the graph as it is now (cuGraphInstantiate).

        Arguments:
            auto_free: bool, each launch first frees what the one before left allocated.
            device_launch: bool, kernels may launch it; it then takes kernels, copies, fills and children
                alone.
            node_priorities: bool, nodes keep the priorities of the streams that they were captured from.
            upload: Stream, or handle, in whose order it is put onto the device now rather than with the first
                replay.
        Returns:
            CUDAGraph; changes of the definition leave it as it is.
        Raises:
            CudaError: the nodes come after themselves, or the driver refused for another reason.
            Exception: whatever a hook raised.
        """
        if self._body:
            raise RuntimeError("the body of a condition is instantiated with the graph that it is within")
        run_hooks(self._hooks, self, True)
        flags = AUTO_FREE * auto_free | DEVICE_LAUNCH * device_launch | NODE_PRIORITIES * node_priorities
        made = edits.instance_of(self._graph, flags)
        if upload is not None:
            made.upload(upload)
        run_hooks(self._hooks, made, False)
        return made

    def register_instantiate_pre_hook(self, hook: Callable[[GraphDefinition], object]) -> RemovableHandle:
        """Has a function called as hook(definition) before each instantiate(); what it raises is raised
        there.

        Arguments:
            hook: callable of one argument, the definition.
        Returns:
            RemovableHandle, whose remove() ends it.
        Raises:
            TypeError: hook is not callable.
        """
        return add_hook(self._hooks, hook, True)

    def register_instantiate_hook(self, hook: Callable[[CUDAGraph], object]) -> RemovableHandle:
        """Has a function called as hook(graph) with each CUDAGraph that was instantiated.

        Arguments:
            hook: callable of one argument, the CUDAGraph.
        Returns:
            RemovableHandle, whose remove() ends it.
        Raises:
            TypeError: hook is not callable.
        """
        return add_hook(self._hooks, hook, False)

    # --- to be read elsewhere ---

    def debug_dump(
        self, debug_path: str | os.PathLike[str], verbose: bool = False, *, flags: Iterable[str] = ()
    ) -> None:
        """Writes a drawing in the language of Graphviz; see CUDAGraph.debug_dump.

        Arguments:
            debug_path: str or PathLike, the file to write.
            verbose: bool, whether all that the driver knows of the nodes is written.
            flags: iterable of str, as of CUDAGraph.debug_dump.
        """
        self._graph.debug_dump(debug_path, verbose, flags=flags)

    def to_dict(self) -> dict[str, Any]:
        """Describes the graph as plain data.

        Returns:
            dict: "device", and "nodes", a list of dicts in the driver's order: "id", its place; "type";
                "name"; "after", the places of the nodes that it comes directly after; "params", a dict;
                "graphs", of a child and a condition, a list of such dicts.
        """
        nodes, edges = self._look()
        places = {node: place for place, node in enumerate(nodes)}
        after: dict[DefinitionNode, list[int]] = {node: [] for node in nodes}
        for origin, target in edges:
            after[target].append(places[origin])
        described = [self._describe(node, places[node], after[node]) for node in nodes]
        return {"device": self.device_index, "nodes": described}

    def _describe(self, node: DefinitionNode, place: int, after: list[int]) -> dict[str, Any]:
        return {
            **{"id": place, "type": node.type, "name": node.name, "after": after},
            "params": plain_params(node.type, self._read(node)),
            "graphs": [each.to_dict() for each in self._graphs_of(node)],
        }

    def to_json(self, indent: int | None = None) -> str:
        """Returns what to_dict() describes, as JSON.

        Arguments:
            indent: int, spaces of each level; None is all on one line.
        """
        return json.dumps(self.to_dict(), indent=indent)


def graph_memory_stats(device: DeviceArgument | None = None) -> dict[str, int]:
    """Returns the bytes of a device that allocations of graphs hold (cuDeviceGetGraphMemAttribute).

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        dict of bytes: "used", "used_peak", "reserved" and "reserved_peak": what graphs use, what the driver
            holds for them, and the most of both since the peaks were reset.
    """
    return {name: edits.graph_memory(device, number) for number, name in enumerate(ATTRIBUTES)}


def reset_peak_graph_memory_stats(device: DeviceArgument | None = None) -> None:
    """Has the peaks of graph_memory_stats begin anew with what there is.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    edits.change_graph_memory(device, False)


def free_graph_memory(memory: DefinitionNode | int, stream: Stream | int | None = None) -> None:
    """Frees what an allocation of a graph has left, in a stream's order, behind its launches.

    Arguments:
        memory: DefinitionNode of the allocation, or its address as int.
        stream: Stream, or handle as int; None is the current one.
    Raises:
        TypeError: the node is no allocation.
        CudaError: the address is none that an allocation of a graph has, or no launch has it now.
    """
    where = current_stream() if stream is None else Stream.from_any(stream)
    definition = GraphDefinition(device=where.device_index)
    definition.free(memory)
    instance = definition.instantiate()
    with using_stream(where):
        instance.replay()


def graph_memory_trim(device: DeviceArgument | None = None) -> None:
    """Gives what the driver holds for graphs, and no launch has, back to the device
    (cuDeviceGraphMemTrim).

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    edits.change_graph_memory(device, True)
