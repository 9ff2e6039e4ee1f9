"""What replays of graphs made by hand have to leave in memory: a slow model of their nodes, in NumPy."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import accelrt

BYTES = 256  # of each memory
ROWS, PITCH = 8, 32  # of a copy of rows
BODIES = {"if": 2, "while": 1, "switch": 3}  # of each kind of condition
NUMBERS = iter(range(1 << 62))


class Memory:
    """Device memory and what the model says is in it.  Where its Buffer was dropped, its address is left."""

    def __init__(self, chosen: random.Random) -> None:
        self.number = next(NUMBERS)
        self.expected = np.frombuffer(chosen.randbytes(BYTES), np.uint8).copy()
        self.seen = np.zeros(BYTES, np.uint8)
        self.buffer: accelrt.Buffer | None = accelrt.Buffer(BYTES)
        accelrt.copy(self.buffer, self.expected)
        reader = accelrt.GraphDefinition()
        reader.copy(self.seen, self.buffer.ptr, BYTES)
        self.reader = reader.instantiate()


class DifferenceError(Exception):
    """Memory, or what a graph tells, differs from the model."""


class Allocation:
    """Memory of launches: what the model says is in it, and where it lies."""

    def __init__(self) -> None:
        self.expected, self.address = np.zeros(BYTES, np.uint8), 0


class Counter:
    """A host function that counts its calls."""

    def __init__(self) -> None:
        self.calls = self.expected = 0

    def __call__(self) -> None:
        self.calls += 1


@dataclass
class Node:
    """What a node does."""

    kind: str
    to: Any = None  # Memory, Counter or Condition
    origin: Any = None
    count: int = 0
    number: int = 0
    graphs: list["Model"] = field(default_factory=list)

    def uses(self) -> tuple[set, set]:
        """What it reads and what it writes."""
        inner = [(each if isinstance(each, Model) else each.model).uses() for each in self.graphs]
        reads = {self.origin}.union(*(read for read, _ in inner)) - {None}
        return reads, {self.to}.union(*(written for _, written in inner)) - {None}

    def copied(self) -> "Node":
        return replace(self, graphs=[each.copied() for each in self.graphs])


@dataclass
class Model:
    """Nodes by their keys, in an order in which they may be done."""

    nodes: dict[int, Node] = field(default_factory=dict)
    edges: set[tuple[int, int]] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)

    def copied(self) -> "Model":
        nodes = {key: node.copied() for key, node in self.nodes.items()}
        return Model(nodes, set(self.edges), set(self.left_out))

    def uses(self) -> tuple[set, set]:
        each = [node.uses() for node in self.nodes.values()]
        return set().union(*(read for read, _ in each)), set().union(*(written for _, written in each))

    def writers(self, memory: Memory) -> list[str]:
        """The nodes that write to a memory, in words."""
        words = []
        for key, node in self.nodes.items():
            if memory in node.uses()[1]:
                inner = [each for graph in node.graphs for each in graph.writers(memory)]
                what = f" ({'; '.join(inner)})" if node.graphs else f" of {node.count}, number {node.number}"
                words.append(node.kind + what + ", left out" * (key in self.left_out))
        return words

    def using(self, others: dict[Memory, Memory]) -> "Model":
        """A copy whose nodes use other memory in place of some."""
        model = self.copied()
        for key, node in model.nodes.items():
            to, origin = others.get(node.to, node.to), others.get(node.origin, node.origin)
            model.nodes[key] = replace(node, to=to, origin=origin)
        return model

    def behind(self) -> dict[int, set[int]]:
        """What each node comes after, over other nodes too."""
        behind: dict[int, set[int]] = {}
        for key in self.nodes:
            direct = {before for before, after in self.edges if after == key}
            behind[key] = direct.union(*(behind[before] for before in direct))
        return behind

    def unordered(self) -> Iterator[tuple[int, int]]:
        """Pairs of nodes that need an edge and have none."""
        behind, keys = self.behind(), list(self.nodes)
        uses = {key: node.uses() for key, node in self.nodes.items()}
        for place, after in enumerate(keys):
            for before in keys[:place]:
                (reads, writes), (first_reads, first_writes) = uses[after], uses[before]
                if before not in behind[after] and (
                    writes & (first_reads | first_writes) or reads & first_writes
                ):
                    yield before, after

    def needed_by(self, node: Node) -> list[int]:
        """Which nodes another one has to come after."""
        new = -1
        return [before for before, _ in Model({**self.nodes, new: node}, self.edges).unordered()]

    def depth(self) -> int:
        """How many graphs are within each other."""
        return 1 + max((each.depth() for node in self.nodes.values() for each in node.graphs), default=0)

    def run(self, conditions: dict) -> None:
        """Does the nodes."""
        for key, node in self.nodes.items():
            if key not in self.left_out:
                DEEDS[node.kind](node, conditions)


def fill(node: Node, conditions: dict) -> None:
    node.to.expected[: node.count] = node.number


def copy(node: Node, conditions: dict) -> None:
    node.to.expected[: node.count] = node.origin.expected[: node.count]


def mix(node: Node, conditions: dict) -> None:
    target, origin = node.to.expected, node.origin.expected
    target[: node.count] = target[: node.count] * np.uint8(3) + origin[: node.count] + np.uint8(node.number)


def call(node: Node, conditions: dict) -> None:
    node.to.expected += 1


def run_child(node: Node, conditions: dict) -> None:
    node.graphs[0].run(conditions)


def set_condition(node: Node, conditions: dict) -> None:
    conditions[node.to] = int(node.origin.expected[:4].view(np.uint32)[0])


def choose(node: Node, conditions: dict) -> None:
    node.graphs[0 if conditions[node.origin] else 1].run(conditions)


def repeat(node: Node, conditions: dict) -> None:
    while conditions[node.origin]:
        node.graphs[0].run(conditions)


def switch(node: Node, conditions: dict) -> None:
    if conditions[node.origin] < len(node.graphs):
        node.graphs[conditions[node.origin]].run(conditions)


def fill_number(node: Node, conditions: dict) -> None:
    node.to.expected[: node.count].view(np.uint32)[0] = node.number


def copy_rows(node: Node, conditions: dict) -> None:
    target, origin = (each.expected.reshape(ROWS, PITCH) for each in (node.to, node.origin))
    target[:, : node.count] = origin[:, : node.count]


DEEDS: dict[str, Callable[[Node, dict], None]] = {
    **{"fill": fill, "copy": copy, "kernel": mix, "host": call},
    **{"child": run_child, "set": set_condition, "if": choose, "while": repeat, "switch": switch},
    **{"number": fill_number, "rows": copy_rows, "fill_allocated": fill, "copy_allocated": copy},
    **dict.fromkeys(("empty", "allocate", "free"), lambda node, conditions: None),
}


@dataclass
class Made:
    """A definition, or an instance of one, with its model."""

    model: Model
    real: Any
    source: Any = None  # of an instance: the definition whose nodes change it, or None
    first: Any = None  # of an instance: the definition that it was instantiated from, and
    first_model: Any = None  # what that did then, and
    rebound: dict[Memory, Memory] = field(
        default_factory=dict
    )  # what names gave it in place of that's memory
    reshapes: int = 0  # edges and nodes that came and went; of an instance: its source's, then

    def node(self, key: int) -> accelrt.DefinitionNode:
        """A definition's node."""
        return dict(zip(self.model.nodes, self.real.nodes(), strict=True))[key]

    def is_single(self) -> bool:
        """Whether it has one instance at a time, and cannot be copied."""
        return any(node.kind in (*BODIES, "allocate") for node in self.model.nodes.values())

    def is_fixed(self) -> bool:
        """Whether its nodes and edges stay, as those of graphs with allocations."""
        return any(node.kind == "allocate" for node in self.model.nodes.values())
