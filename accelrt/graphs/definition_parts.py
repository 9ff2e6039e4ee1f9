"""The nodes of a graph made by hand by their handles, and the graphs that they own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, Self, cast
from weakref import WeakValueDictionary

from accelrt.errors import refuse_copy
from accelrt.graphs import edits
from accelrt.graphs.definition_node import DefinitionNode
from accelrt.graphs.graph import CUDAGraph
from accelrt.graphs.hooks import RemovableHandle
from accelrt.graphs.node_values import AllocationParams, Condition, ConditionParams, DefinitionEdge
from accelrt.graphs.nodes import DefinitionBase


class DefinitionParts(DefinitionBase):
    """The nodes of a GraphDefinition by their handles, with what the driver does not know of them.

    Those of the graphs within a whole one are with the whole one's.
    """

    _graph: CUDAGraph
    _owner: DefinitionNode | None  # that the graph is a part of

    def __init__(self, graph: CUDAGraph) -> None:
        self._graph, self._body = graph, 0
        self._generation = edits.generation_of(graph)
        self._owner = None
        # Of all nodes, those of graphs within it too.
        self._nodes: WeakValueDictionary[int, DefinitionNode] = WeakValueDictionary()
        self._names: dict[int, str] = {}
        self._conditions: dict[int, tuple[str, Condition, list[int]]] = {}
        self._hooks: list[RemovableHandle] = []

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns a graph; use clone()")

    def _look(self) -> tuple[list[DefinitionNode], list[DefinitionEdge]]:
        """The nodes and the edges at one moment."""
        return edits.edit(self._graph, self, self._see)

    def _see(self, graph: int, *things: Any) -> tuple[list[DefinitionNode], list[DefinitionEdge]]:
        listed, pairs = edits.look(graph, *things)
        nodes = [self._node(each.id, each.type) for each in listed]
        by_id = dict(zip([each.id for each in listed], nodes, strict=True))
        return nodes, [DefinitionEdge(by_id[origin], by_id[target], *told) for origin, target, *told in pairs]

    def _node(self, node: int, kind: str) -> DefinitionNode:
        # While no other thread may take it out.
        known = self._root._nodes.get(node)
        if known is None or known.id != node:  # the driver gave the handle of one that was taken out anew
            known = self._root._nodes[node] = DefinitionNode(self, node, kind)
        return known

    def _read(self, node: DefinitionNode) -> Any:
        if node.type == "kernel":
            read = edits.read_kernel if self._owner is None else edits.read_kernel_within
            return edits.edit(self._graph, self, read, self._graph, node)
        if node.type == "conditional":
            return self._condition_of(node)
        work = edits.edit(self._graph, self, edits.read_node, node)
        if node.type == "graph":
            return self._within(node)
        if isinstance(work, tuple) and node.type == "mem_alloc":
            return AllocationParams(*work)
        return work

    def _within(self, node: DefinitionNode, body: int = 0) -> Self:
        """A graph that a node of this one owns: the body of a condition, or a child."""
        inner = type(self).__new__(type(self))
        inner._graph, inner._body, inner._owner = self._graph, body, node
        inner._generation = self._generation
        return inner

    @property
    def _root(self) -> Self:
        return self if self._owner is None else self._owner.definition._root

    def _condition_of(self, node: DefinitionNode) -> ConditionParams | None:
        known = self._root._conditions.get(node.id)
        if known is None:
            return None
        kind, condition, bodies = known
        return ConditionParams(kind, condition, tuple(self._within(node, body) for body in bodies))

    def _add(
        self, work: edits.NodeWork, kind: str, after: Any, name: str,
        condition: tuple[str, Condition] | None = None,
    ) -> DefinitionNode:  # fmt: skip
        if not isinstance(after, (DefinitionNode, Iterable)):
            kind_given = type(after).__name__
            raise TypeError(f"after is {after!r:.60} of type {kind_given}; pass a DefinitionNode, or several")
        nodes = [after] if isinstance(after, DefinitionNode) else list(after)
        for node in nodes:
            if not isinstance(node, DefinitionNode) or not self._is_same_part(node.definition):
                raise TypeError(
                    f"after has {node!r}, which is no node of this graph; pass what methods of this "
                    "definition, or nodes(), returned"
                )
            if node.definition._root is not self._root:
                raise ValueError(
                    f"after has {node!r}, which is of another GraphDefinition; take it from nodes() of "
                    "this one"
                )
        work.is_governed = self._is_governed()
        once = list(dict.fromkeys(nodes))
        return edits.edit(self._graph, self, self._put, work, once, kind, str(name), condition)

    def _is_governed(self) -> bool:
        """Tells whether it is a body of a condition, or within one."""
        owner = self._owner
        return owner is not None and (owner.type == "conditional" or owner.definition._is_governed())

    def _is_same_part(self, other: DefinitionParts) -> bool:
        """Tells whether both are whole graphs, or the same graph within one."""
        return (self._body, self._owner) == (other._body, other._owner)

    def _put(
        self, graph: int, ordinal: int, base: Any, known: Any, work: edits.NodeWork,
        after: list[DefinitionNode], kind: str, name: str, condition: tuple[str, Condition] | None,
    ) -> DefinitionNode:  # fmt: skip
        root = self._root
        if self._graph.is_capturing and not after:
            handle, _address, bodies = edits.add_node_here(graph, ordinal, base, known, work)
        else:
            handle, _address, bodies = edits.add_node(graph, ordinal, base, known, work, cast(Any, after))
        root._names.pop(handle, None)
        root._conditions.pop(handle, None)
        if condition is not None:
            root._conditions[handle] = (*condition, bodies)
        if name:
            root._names[handle] = name
        return self._node(handle, kind)

    def _forget(self, handles: list[int]) -> None:
        """Drops what is known of nodes that are gone."""
        root = self._root
        for handle in handles:
            for known in (root._nodes, root._names, root._conditions):
                known.pop(handle, None)

    def _all_nodes(self) -> list[DefinitionNode]:
        """The nodes, and those of the graphs that they own."""
        return edits.edit(self._graph, self, self._see_all)

    def _see_all(self, graph: int, *things: Any) -> list[DefinitionNode]:
        nodes = self._see(graph, *things)[0]
        return nodes + [each for node in nodes for each in node._inner(graph, *things)]

    def _require_whole(self) -> None:
        if self._owner is not None:
            raise RuntimeError(
                "the body of a condition is instantiated with the graph that it is within; instantiate that"
            )
