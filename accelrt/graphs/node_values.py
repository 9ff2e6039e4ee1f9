"""The work of nodes of graphs made by hand, as values: what they tell, with some of it changed, and as plain
data."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from accelrt.core import files
from accelrt.errors import refuse_copy
from accelrt.graphs.edits import (
    EDGE_KINDS,
    NodeWork,
    event_work,
    host_work,
)
from accelrt.graphs.graph import CUDAGraph
from accelrt.graphs.nodes import CopyParams, FillParams, KernelParams
from accelrt.streams.stream import Event


@dataclass(frozen=True, slots=True)
class Condition:
    """A value of 32 bits that conditions of a graph depend on.

    Attributes:
        handle: int, the driver's (CUgraphConditionalHandle), which a kernel takes to set the value:
            cudaGraphSetConditional(handle, value) on a GPU; on the host device it is the value's address.
        value: int, what it is when a launch begins.
        keep: bool, it is instead what the launch before left.
    """

    handle: int
    value: int
    keep: bool
    # A driver's handles may be those of another graph's conditions too, and it takes these in silence.
    _graph: weakref.ref[CUDAGraph] = field(repr=False, compare=False)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is of one graph; make another by GraphDefinition.condition()")


def require_condition(condition: object, graph: CUDAGraph) -> None:
    """Raises TypeError where it is no Condition, and ValueError where it is of another graph."""
    if not isinstance(condition, Condition):
        raise TypeError(f"condition is {condition!r}; pass what GraphDefinition.condition returns")
    if condition._graph() is not graph:
        raise ValueError("the condition is of another graph; make one with condition() of this definition")


class AllocationParams(NamedTuple):
    """Describes the memory that a node allocates.

    Attributes:
        address: int, of the memory, the same in every launch.
        nbytes: int.
        device: int, ordinal of the device whose memory it is; -1 of host memory.
        kind: str, "device", "host" (page-locked) or "managed".
        peers: tuple of int, ordinals of the other devices that were given access.
    """

    address: int
    nbytes: int
    device: int
    kind: str = "device"
    peers: tuple[int, ...] = ()


class ConditionParams(NamedTuple):
    """Describes a conditional node.

    Attributes:
        kind: str, "if", "while" or "switch".
        condition: Condition.
        bodies: tuple of GraphDefinition.
    """

    kind: str
    condition: Condition
    bodies: tuple[Any, ...]


class DefinitionEdge(tuple[Any, Any]):
    """A dependency in a GraphDefinition: (node, node that comes after it), both of type DefinitionNode.

    Attributes:
        kind: str, "default" or "programmatic", as GraphDefinition.add_edge has it.
        port: str, "default", "programmatic" or "launch_order": when what comes after a kernel may begin.
    """

    kind: str
    port: str

    def __new__(cls, before: object, after: object, kind: str, port: str) -> DefinitionEdge:
        edge = super().__new__(cls, (before, after))
        edge.kind, edge.port = kind, port
        return edge

    def __repr__(self) -> str:
        ports = "" if self.kind == self.port == "default" else f" {self.kind} from port {self.port}"
        return f"<accelrt.DefinitionEdge {self[0]!r} -> {self[1]!r}{ports}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "its nodes are of one graph")


MOST_BYTES = 1 << 30  # of a drawing
PORTS_OF = {"default": ("default", "launch_order"), "programmatic": ("programmatic", "launch_order")}


def port_of(kind: str, port: str | None) -> str:
    """Returns the port that an edge of a kind is from; ValueError where it may not be."""
    if kind not in EDGE_KINDS:
        raise ValueError(f"kind is {kind!r}; it may be {', '.join(map(repr, EDGE_KINDS))}")
    allowed = PORTS_OF[kind]
    if port is not None and port not in allowed:
        raise ValueError(
            f"port is {port!r}; of an edge of kind {kind!r} it may be {', '.join(map(repr, allowed))}"
        )
    return allowed[0] if port is None else port


def drawn_name(number: int, name: str) -> str:
    """Returns a line of a drawing that puts a name beside a node, which the driver calls by its number."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"graph_{number >> 32}_node_{number & 0xFFFFFFFF}" [xlabel="{escaped}"];\n'


def write_names(path: str | os.PathLike[str], lines: list[str]) -> None:
    """Puts lines before the end of a drawing that was written to a regular file."""
    if not os.path.isfile(path):  # such as a pipe, whose reader has it already
        return
    text = files.read(path, MOST_BYTES)
    end = text.rindex(b"}")
    files.write(path, [text[:end], "".join(lines).encode("utf-8", "replace"), text[end:]])


def argument_bytes(argument: object) -> bytes:
    """An argument that a kernel node tells."""
    assert isinstance(argument, bytes)
    return argument


def plain_params(kind: str, params: Any) -> dict[str, Any]:
    """Returns the work of a node as plain data."""
    if isinstance(params, KernelParams):
        arguments = (
            None if params.arguments is None else [argument_bytes(each).hex() for each in params.arguments]
        )
        return {**params._asdict(), "kernel": params.name, "arguments": arguments}
    if isinstance(params, (CopyParams, FillParams, AllocationParams)):
        return dict(params._asdict())
    if isinstance(params, ConditionParams):
        return {"kind": params.kind, "value": params.condition.value, "keep": params.condition.keep}
    if kind == "host":
        return {"function": None if params is None else getattr(params, "__qualname__", repr(params))}
    return {"address": params} if kind == "mem_free" else {}


def change_host(definition: Any, now: object, *, function: Any) -> NodeWork:
    """Describes a host node's call of another function."""
    return host_work(definition.device_index, function)


def change_record(definition: Any, now: object, *, event: Event) -> NodeWork:
    """Describes a record of another event."""
    return event_work(definition.device_index, event, True)


def change_wait(definition: Any, now: object, *, event: Event) -> NodeWork:
    """Describes a wait for another event."""
    return event_work(definition.device_index, event, False)


def change_child(definition: Any, now: object, *, graph: object) -> NodeWork:
    """Describes a child that is a copy of another graph."""
    work: NodeWork = definition.child_work(graph)
    return work


CHANGES: dict[str, Callable[..., NodeWork]] = {
    "host": change_host,
    "event_record": change_record,
    "wait_event": change_wait,
    "graph": change_child,
}
