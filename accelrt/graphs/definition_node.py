"""A node of a graph made by hand: what it tells of itself, and what is changed of it alone.

Its GraphDefinition does the work; that stands above this module (definition.py).
"""

from __future__ import annotations

from typing import Any, NoReturn

from accelrt.graphs import edits
from accelrt.graphs.graph import CUDAGraph


class DefinitionNode:
    """A node of a GraphDefinition, made by GraphDefinition.kernel and the other methods that add one.

    Attributes:
        definition: GraphDefinition that it is in.
        id: int, the driver's handle (CUgraphNode).
        type: str, as of a GraphNode: "kernel", "memcpy", "memset", "host", "graph", "empty", "wait_event",
            "event_record", "mem_alloc", "mem_free", "conditional".
    """

    __slots__ = ("__weakref__", "definition", "id", "type")

    def __init__(self, definition: Any, node: int, kind: str) -> None:
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
        names: dict[int, str] = self.definition._root._names
        return names.get(self.id, "")

    @name.setter
    def name(self, name: str) -> None:
        self.definition._root._names[self._live_id()] = str(name)

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
            CudaError: the driver refused; nothing is changed, or where the graph alone refused, what was
                instantiated of it.
        """
        self.definition._update(self, instance, changes)

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
        """
        self.definition._remove(self)

    def _live_id(self) -> int:
        if not self.id:
            raise RuntimeError("the node was taken out of its graph")
        return self.id
