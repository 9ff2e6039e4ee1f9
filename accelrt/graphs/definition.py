"""Graphs made by hand: nodes and edges that are put together, and captured graphs that are taken apart."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from accelrt.annotations import DeviceArgument, Memory
from accelrt.core.arguments import checked_type
from accelrt.errors import NotSupportedError
from accelrt.graphs import edits
from accelrt.graphs.definition_node import DefinitionNode, require_node
from accelrt.graphs.definition_parts import DefinitionParts
from accelrt.graphs.graph import CUDAGraph, capture_body
from accelrt.graphs.hooks import RemovableHandle, add_hook, run_hooks
from accelrt.graphs.node_values import (
    Condition,
    DefinitionEdge,
    drawn_name,
    port_of,
    require_condition,
    write_names,
)
from accelrt.graphs.nodes import write_dot
from accelrt.kernels.kernel import Kernel
from accelrt.streams.stream import Event, Stream

Nodes: TypeAlias = DefinitionNode | Iterable[DefinitionNode]
KINDS = ("if", "while", "switch")
AUTO_FREE, DEVICE_LAUNCH, NODE_PRIORITIES = 1, 4, 8  # flags of cuGraphInstantiate


def draw(
    graph: int, ordinal: int, base: Any, by_node: Any, path: str | os.PathLike[str], verbose: bool,
    flags: Iterable[str],
) -> None:  # fmt: skip
    """Writes a driver's graph, for edit()."""
    write_dot(graph, path, verbose, flags)


class GraphDefinition(DefinitionParts):
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
        if graph is not None:
            checked_type(graph, "graph", CUDAGraph, "a CUDAGraph")
        if graph is None:
            graph = CUDAGraph(keep_graph=True)
            edits.begin_graph_by_hand(graph, device)
        else:
            edits.raw_graph_of(graph, None)
        super().__init__(graph)

    def __repr__(self) -> str:
        kind = "graph" if self._owner is None else "body"
        try:
            return f"<accelrt.GraphDefinition {kind} of {len(self.nodes())} nodes>"
        except RuntimeError as error:
            return f"<accelrt.GraphDefinition {kind}: {error}>"

    @property
    def graph(self) -> CUDAGraph:
        """The CUDAGraph that keeps the driver's graph: to dump it, or to update another one from it."""
        return self._graph

    def raw_cuda_graph(self) -> int:
        """Returns the driver's graph (CUgraph) as int; of a body or a child, the one that its node owns.

        Raises:
            RuntimeError: as CUDAGraph.raw_cuda_graph; or the node is gone.
        """
        return edits.raw_graph_of(self._graph, self)

    # --- what there is ---

    def nodes(self) -> list[DefinitionNode]:
        """Returns the nodes, in the order that the driver gives."""
        return self._look()[0]

    def edges(self) -> list[DefinitionEdge]:
        """Returns the dependencies, each a DefinitionEdge (node, node after it), which has its kind too."""
        return self._look()[1]

    # --- nodes ---

    @property
    def device_index(self) -> int:
        """The ordinal of the graph's device."""
        return edits.device_of_graph(self._graph)

    def kernel(
        self, kernel: Kernel, grid: int | Sequence[int], block: int | Sequence[int],
        args: Sequence[object] = (), *, shared: int = 0, cluster: int | Sequence[int] | None = None,
        cooperative: bool = False, priority: int | None = None, after: Nodes = (), name: str = "",
    ) -> DefinitionNode:  # fmt: skip
        """Adds a launch of a kernel; the arguments are those of Kernel.launch, but for `programmatic`: edges
        say which of the kernels before it a node may overlap with (add_edge).

        Arguments:
            kernel: Kernel.
            grid, block: int or sequence of up to 3, blocks of the grid and threads of a block.
            args: sequence of the kernel's arguments.
            shared: int, bytes of dynamic shared memory of a block.
            cluster: int or sequence of up to 3, blocks of a cluster, which divide the grid (compute
                capability 9.0); for more than 8 of them the kernel is permitted more, once.
            cooperative: bool, all blocks run at once, so that they may wait for each other.
            priority: int, as of a Stream, for instances that keep priorities; None is 0.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        Raises:
            CudaError: the clusters do not divide the grid, or the device has no such clusters; or not all
                blocks of a cooperative launch run at once.
        """
        work = edits.kernel_work(
            self.device_index, kernel, grid, block, shared, args, cluster, bool(cooperative), priority
        )
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
            graph: GraphDefinition, or a CUDAGraph that was kept, without allocations, conditions and random
                numbers; it may be this graph itself, or one that this is within, as it is before.
            after: DefinitionNode, or several, that the node comes after.
            name: str, of the node; "" is none.
        Returns:
            DefinitionNode.
        Raises:
            TypeError, ValueError: as of child_work.
            NotSupportedError: graph holds allocations or conditions, or draws random numbers; or this is a
                body of a condition, or within one, and graph holds what bodies do not.
            RuntimeError: graph is being captured, or another thread changes it.
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
        graph = checked_type(graph, "graph", GraphDefinition, "a GraphDefinition")
        if graph.device_index != self.device_index:
            raise ValueError(f"the child is on device {graph.device_index}, the graph on {self.device_index}")
        work = edits.child_work(graph, graph._graph is self._graph)
        work.is_governed = self._is_governed()
        return work

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
        """Makes a value that one conditional node of this graph, or of one within it, depends on; any number
        of kernels set it.

        Arguments:
            value: int from 0 to 2**32 - 1, what it is when a launch begins.
            keep: bool, it begins instead with what the launch before left.
        """
        handle = edits.edit(self._graph, self, edits.make_condition, value, bool(keep))
        return Condition(handle, value, bool(keep), weakref.ref(self._graph))

    def _conditional(
        self, kind: str, condition: Condition, count: int, after: Any, name: str
    ) -> DefinitionNode:
        require_condition(condition, self._graph)
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
        require_condition(condition, self._graph)
        return self._add(edits.setter_work(self.device_index, condition.handle, flag), "kernel", after, name)

    def capture(self) -> AbstractContextManager[None]:
        """Returns the context in which work is captured into this body of a condition.

        It is for a graph that is being captured, whose stream is current where the context is entered. Inside
        a stream of its own is current, which begins behind nothing, also behind no node that is there.

        Raises:
            RuntimeError: this is no body, or one that is gone; or, where it is entered, no capture of its
                graph is under way.
        """
        if not self._body:
            raise RuntimeError(
                "only the body of a condition is captured into; capture a graph by accelrt.graph"
            )
        return capture_body(self._graph, edits.raw_graph_of(self._graph, self))

    # --- changes ---

    def add_edge(
        self, before: DefinitionNode, after: DefinitionNode, *, kind: str = "default", port: str | None = None
    ) -> None:
        """Has one node come after another (cuGraphAddDependencies).

        Arguments:
            before: DefinitionNode of this graph, which comes first.
            after: DefinitionNode of this graph.
            kind: "default", or "programmatic" between two kernels: the later one may begin before the earlier
                one is over, and waits itself for its memory (cudaGridDependencySynchronize).
            port: when what comes after a kernel may begin: "default", when it is over; "programmatic", when
                each of its blocks has allowed it (cudaTriggerProgrammaticLaunchCompletion) or is over;
                "launch_order", when each of its blocks has begun, which a driver may tell of a programmatic
                edge as "programmatic".  None is "programmatic" for an edge of that kind, which takes no
                "default", and else "default".
        Raises:
            TypeError: one of them is no node.
            CudaError: it does already, or one of them is none of this graph, or is no kernel where kind or
                port needs one.  A circle is refused by instantiate().
            NotSupportedError: the driver has no such edges.
            ValueError: there is no such kind, no such port, or a port does not go with the kind.
        """
        require_node(before, "before")
        require_node(after, "after")
        edits.edit(self._graph, self, edits.add_edge, self._graph, before, after, kind, port_of(kind, port))

    def remove_edge(self, before: DefinitionNode, after: DefinitionNode) -> None:
        """Takes back that one node comes after another (cuGraphRemoveDependencies).

        Arguments:
            before: DefinitionNode of this graph, which comes first.
            after: DefinitionNode of this graph.
        Raises:
            TypeError: one of them is no node.
            CudaError: it does not come directly after it, or the graph has allocations.
            RuntimeError: the graph is being captured.
        """
        if self._graph.is_capturing:
            raise RuntimeError("edges are removed once the capture has ended")
        require_node(before, "before")
        require_node(after, "after")
        edits.edit(self._graph, self, edits.remove_edge, self._graph, before, after)

    def retain_object(self, thing: object) -> None:
        """Keeps an object alive as long as the graph, and what is instantiated of it from now on.

        Arguments:
            thing: any object.
        """
        edits.edit(self._graph, self, edits.keep_object, thing)

    def clone(self) -> GraphDefinition:
        """Clones the graph (cuGraphClone); find_in_clone tells which node is which.

        Returns:
            GraphDefinition.
        Raises:
            CudaError: it has allocations or conditions.
            RuntimeError: this is the body of a condition.
        """
        if self._owner is not None:
            raise RuntimeError(
                "the body of a condition cannot be cloned by itself; clone the definition that it is within"
            )
        copy = CUDAGraph(keep_graph=True)
        edits.clone_into(self._graph, self, copy)
        clone = GraphDefinition(copy)
        for node in self.nodes():
            if node.name:
                clone.find_in_clone(node).name = node.name
        return clone

    def find_in_clone(self, node: DefinitionNode) -> DefinitionNode:
        """Returns the node of this clone that is the copy of a node of the graph that was cloned.

        Arguments:
            node: DefinitionNode of the graph that was cloned.
        Raises:
            TypeError: node is none.
        """
        require_node(node, "node")
        origin = node.definition
        handle = edits.edit(origin._graph, origin, edits.find_clone, self._graph, node)
        return edits.edit(self._graph, self, self._known, handle, node.type)

    def _known(
        self, graph: int, ordinal: int, base: Any, by_node: Any, node: int, kind: str
    ) -> DefinitionNode:
        return self._node(node, kind)

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
            node_priorities: bool, kernels have the priorities that they were given, or of the streams that
                they were captured from.
            upload: Stream, or handle, in whose order it is put onto the device now rather than with the first
                replay.
        Returns:
            CUDAGraph; changes of the definition leave it as it is.
        Raises:
            NotSupportedError: the graph has conditions or allocations and another instance is alive, of which
                it has one at a time: drop or reset() that one, or call instance.update(definition.graph).
            CudaError: the nodes come after themselves, or the driver refused for another reason.
            Exception: whatever a hook raised.
        """
        self._require_whole()
        run_hooks(self._hooks, self, True)
        wanted = ((AUTO_FREE, auto_free), (DEVICE_LAUNCH, device_launch), (NODE_PRIORITIES, node_priorities))
        flags = sum(flag for flag, is_wanted in wanted if is_wanted)
        instance = edits.instance_of(self._graph, self, flags)
        if upload is not None:
            instance.upload(upload)
        run_hooks(self._hooks, instance, False)
        return instance

    def register_instantiate_pre_hook(self, hook: Callable[[GraphDefinition], object]) -> RemovableHandle:
        """Has a function called as hook(definition) before each instantiate(); what it raises is raised
        there.

        Arguments:
            hook: callable of one argument, the definition.
        Returns:
            RemovableHandle, whose remove() ends it.
        Raises:
            TypeError: hook is not callable.
            RuntimeError: this is a graph within another one.
        """
        self._require_whole()
        return add_hook(self._hooks, hook, True)

    def register_instantiate_hook(self, hook: Callable[[CUDAGraph], object]) -> RemovableHandle:
        """Has a function called as hook(graph) with each CUDAGraph that was instantiated.

        Arguments:
            hook: callable of one argument, the CUDAGraph.
        Returns:
            RemovableHandle, whose remove() ends it.
        Raises:
            TypeError: hook is not callable.
            RuntimeError: this is a graph within another one.
        """
        self._require_whole()
        return add_hook(self._hooks, hook, False)

    # --- to be read elsewhere ---

    def debug_dump(
        self, debug_path: str | os.PathLike[str], verbose: bool = False, *, flags: Iterable[str] = ()
    ) -> None:
        """Writes a drawing in the language of Graphviz, with the nodes' names; of a body or a child, what it
        holds.  See CUDAGraph.debug_dump.

        Arguments:
            debug_path: str or PathLike, the file to write.
            verbose: bool, whether all that the driver knows of the nodes is written.
            flags: iterable of str, as of CUDAGraph.debug_dump.
        """
        self._graph.raw_cuda_graph()  # which raises while it is captured
        edits.edit(self._graph, self, draw, debug_path, verbose, flags)
        named = {node: node.name for node in self._all_nodes() if node.name}
        if not named:
            return
        try:
            lines = [drawn_name(node.tools_id, name) for node, name in named.items()]
        except NotSupportedError:
            lines = [f"// {node.id:#x} is {name!r}\n" for node, name in named.items()]
        write_names(debug_path, lines)

    def tool_names(self, instance: CUDAGraph | None = None) -> dict[int, str]:
        """Tells which name stands behind the numbers of nodes in a trace (CUPTI's graphNodeId; CUDA 13.1).

        Arguments:
            instance: CUDAGraph of instantiate(), whose replays were traced; None gives the numbers that nodes
                have in the definition itself.
        Returns:
            dict: number -> name, of the nodes of this graph that have one.
        Raises:
            NotSupportedError: the driver tells no such numbers.
            RuntimeError: the nodes are none of the graph that instance was instantiated from.
        """
        if instance is not None and not edits.is_instance(instance, self._graph):
            raise RuntimeError(
                "instance was instantiated from another graph's nodes; pass what instantiate() of this "
                "definition made"
            )
        named = [node for node in self.nodes() if node.name]
        numbers = edits.edit(self._graph, self, edits.tools_ids, named)
        if instance is not None:
            high = edits.exec_tools_id(instance) << 32
            numbers = [high | number & 0xFFFFFFFF for number in numbers]
        return dict(zip(numbers, [node.name for node in named], strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Describes the graph as plain data.

        Returns:
            dict: "device", and "nodes", a list of dicts in the driver's order: "id", its place; "type";
                "name"; "after", the places of the nodes that it comes directly after; "ports", of those that
                it comes after by a kind or a port other than "default", a list of [place, kind, port];
                "params", a dict; "graphs", of a child and a condition, a list of such dicts.
        """
        nodes, edges = self._look()
        places = {node: place for place, node in enumerate(nodes)}
        after: dict[DefinitionNode, list[DefinitionEdge]] = {node: [] for node in nodes}
        for edge in edges:
            after[edge[1]].append(edge)
        described = [node._describe(places, after[node]) for node in nodes]
        return {"device": self.device_index, "nodes": described}

    def to_json(self, indent: int | None = None) -> str:
        """Returns what to_dict() describes, as JSON.

        Arguments:
            indent: int, spaces of each level; None is all on one line.
        """
        return json.dumps(self.to_dict(), indent=indent)
