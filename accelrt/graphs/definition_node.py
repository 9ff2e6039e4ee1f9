"""A node of a graph made by hand: what it tells of itself, and what is changed of it alone.

Its GraphDefinition does the work; that stands above this module (definition.py).
"""

from __future__ import annotations

from typing import Any, NoReturn

from accelrt.core.arguments import checked_type
from accelrt.errors import refuse_copy
from accelrt.graphs import edits
from accelrt.graphs.graph import CUDAGraph
from accelrt.graphs.node_values import CHANGES, DefinitionEdge, plain_params


class DefinitionNode(edits.UpdatedNode):
    """A node of a GraphDefinition, made by GraphDefinition.kernel and the other methods that add one.

    Attributes:
        definition: GraphDefinition that it is in.
        id: int, the driver's handle (CUgraphNode).
        type: str, as of a GraphNode: "kernel", "memcpy", "memset", "host", "graph", "empty", "wait_event",
            "event_record", "mem_alloc", "mem_free", "conditional".
    """

    __slots__ = ("__weakref__",)

    definition: Any
    id: int
    type: str

    def __init__(self, definition: Any, node: int, kind: str) -> None:
        self.definition, self.id, self.type = definition, node, kind

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is of one graph; clone the definition")

    def __repr__(self) -> str:
        return f"<accelrt.DefinitionNode {self.type} {self.name or hex(self.id)}>"

    @property
    def name(self) -> str:
        """The name that it was given when it was added, or since; "" where there is none.

        Raises:
            RuntimeError: it is set, and the node was taken out of its graph.
        """
        names: dict[int, str] = self.definition._root._names
        return names.get(self.id, "")

    @name.setter
    def name(self, name: str) -> None:
        self.definition._root._names[self._live_id()] = str(name)

    @property
    def is_valid(self) -> bool:
        """Tells that it is in its graph still: it was not removed, nor what it is within, and the graph was
        neither reset nor updated."""
        definition = self.definition
        return self.id != 0 and definition._generation == edits.generation_of(definition._graph)

    @property
    def tools_id(self) -> int:
        """The number by which tools of profiling name it (cuGraphNodeGetToolsId, CUDA 13.1), with its graph's
        in the high half; GraphDefinition.tool_names has those of an instance, which traces show.

        Raises:
            NotSupportedError: the driver tells no such numbers.
        """
        definition = self.definition
        return edits.edit(definition._graph, definition, edits.tools_ids, [self])[0]

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
    def bodies(self) -> tuple[Any, ...]:
        """The GraphDefinitions that a condition runs, for more nodes; () of a node of another kind, and of
        one that was captured."""
        condition = self.definition._condition_of(self)
        return () if condition is None else condition.bodies

    def _change(self, target: CUDAGraph, definition: Any, changes: dict[str, Any]) -> None:
        maker: Any = CHANGES.get(self.type)
        if maker is None:
            raise TypeError(f"{self!r} cannot be changed; remove it and add another")
        try:
            work = maker(definition, self.params, **changes)
        except TypeError:
            code = maker.__code__
            self._refuse_names(changes, code.co_varnames[2 : 2 + code.co_kwonlyargcount])
            raise
        self._put(target, work)

    def set_enabled(self, instance: CUDAGraph, enabled: bool) -> None:
        """Has an instance do a kernel, a copy or a fill, or leave it out (cuGraphNodeSetEnabled).

        NVIDIA's driver does not bear this of fills: one that is left out fills one element of unread memory.

        Arguments:
            instance: CUDAGraph of GraphDefinition.instantiate.
            enabled: bool, whether its launches do the node's work from now on, after the instance's update()
                too; one that leaves nodes out is updated by its own definition alone, with the nodes and
                edges that it had then.
        Raises:
            CudaError: the node is of another kind, a fill of several rows, or none of the instance's.
            RuntimeError: the node was added after the graph was instantiated, or the graph is gone.
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
        graph: CUDAGraph = self.definition._graph
        if graph.is_capturing:
            raise RuntimeError("nodes are removed once the capture has ended")
        edits.edit(graph, self.definition, self._take_out)

    def _take_out(self, graph: int, ordinal: int, base: Any, by_node: Any) -> None:
        inner = self._inner(graph, ordinal, base, by_node)
        gone = [each.id for each in (self, *inner)]
        edits.remove_node(graph, ordinal, base, by_node, self.definition._graph, self, inner)
        self.definition._forget(gone)

    def _graphs(self) -> tuple[Any, ...]:
        """The GraphDefinitions that it owns."""
        return (self.params,) if self.type == "graph" else self.bodies

    def _inner(self, graph: int, *things: Any) -> list[DefinitionNode]:
        """The nodes of the graphs that it owns, and of those within them, while no other thread adds any.

        Arguments:
            graph: int, the driver's graph that the node is in.
            things: the rest of what edit() gives.
        """
        inner: list[DefinitionNode] = []
        for part in (self.definition._within(self),) if self.type == "graph" else self.bodies:
            inner += part._see_all(edits.owned_graph(graph, part), *things)
        return inner

    def _describe(self, places: dict[DefinitionNode, int], edges: list[DefinitionEdge]) -> dict[str, Any]:
        """Describes it as plain data, for GraphDefinition.to_dict; edges are those to it."""
        with_ports = [edge for edge in edges if not edge.kind == edge.port == "default"]
        return {
            **{"id": places[self], "type": self.type, "name": self.name},
            "after": [places[edge[0]] for edge in edges],
            "ports": [[places[edge[0]], edge.kind, edge.port] for edge in with_ports],
            "params": plain_params(self.type, self.params),
            "graphs": [each.to_dict() for each in self._graphs()],
        }

    def _live_id(self) -> int:
        if not self.is_valid:
            raise RuntimeError("the node was taken out of its graph, or that is gone")
        return self.id


def require_node(node: object, name: str) -> None:
    checked_type(node, name, DefinitionNode, "a DefinitionNode")
