"""Random graphs made by hand, for long_runs.py; definition_model.py says what replays leave in memory.

Where two nodes of a graph use one memory and one of them writes to it, an edge orders them, so that the order
in which the model does the nodes is one that the device may take.
"""

import gc
import random
from itertools import pairwise

import numpy as np
from definition_changes import CHANGED, Changes, changes_to, place
from definition_model import (
    BODIES,
    BYTES,
    PITCH,
    Allocation,
    Counter,
    DifferenceError,
    Made,
    Memory,
    Model,
    Node,
)

import accelrt

MEMORIES = 8
MOST_NODES, MOST_GRAPHS, MOST_INSTANCES = 12, 4, 5
KINDS = ("fill", "copy", "kernel") * 3 + ("host", "empty", "child", "condition", "rows", "allocation")
SOURCE = """
extern "C" __global__ void mix(unsigned char* to, const unsigned char* from, int count, int number) {
    for (int index = threadIdx.x; index < count; index += blockDim.x)
        to[index] = to[index] * 3 + from[index] + number;
}
"""
SIGNATURE = "unsigned char* to, const unsigned char* from, int count, int number"


class Definitions(Changes):
    """Definitions and instances, on which random operations are done.

    Arguments:
        is_exact: as of Changes; a GPU's driver refuses graphs whose edges were added in another order.
    """

    def __init__(self, chosen: random.Random, is_exact: bool) -> None:
        self.chosen, self.is_exact = chosen, is_exact
        self.kernel = accelrt.compile(SOURCE).function("mix", SIGNATURE)
        self.stream = accelrt.Stream()
        self.keys = iter(range(1 << 62))
        self.counters: list[Counter] = []
        self.memories = [Memory(chosen) for _ in range(MEMORIES)]
        self.graphs: list[Made] = []
        self.instances: list[Made] = []
        self.replays = 0
        often = (self.add, self.update, self.instantiate, self.replay) * 3
        rare = (
            self.remove,
            self.join,
            self.part,
            self.clone,
            self.update_within,
            self.switch,
            self.update_from,
            self.rebind,
            self.drop,
            self.begin,
            self.capture,
        )
        self.operations = often + rare
        self.begin()

    def step(self) -> None:
        """One operation."""
        self.chosen.choice(self.operations)()

    def memory(self) -> Memory:
        """One that has its Buffer still."""
        having = [each for each in self.memories if each.buffer is not None]
        return self.chosen.choice(having)

    def work(self, kind: str) -> Node:
        """A node's work, by chance."""
        to, origin = self.memory(), self.memory()
        while origin is to:
            origin = self.memory()
        if kind == "host":
            self.counters.append(Counter())
            return Node(kind, self.counters[-1])
        if kind == "empty":
            return Node(kind)
        origin = None if kind == "fill" else origin
        most = PITCH if kind == "rows" else BYTES
        return Node(kind, to, origin, self.chosen.randint(1, most), self.chosen.randrange(256))

    def put(self, graph: Made, node: Node) -> accelrt.DefinitionNode:
        """Adds a node behind those that it has to come after."""
        key, model = next(self.keys), graph.model
        after = [graph.node(first) for first in model.needed_by(node)]
        model.edges |= {(first, key) for first in model.needed_by(node)}
        real = place(graph.real, node, self.kernel, after)
        if node.kind == "child":
            node.graphs = [node.graphs[0].model.copied()]
        model.nodes[key] = node
        return real

    def put_condition(self, graph: Made) -> None:
        """Adds a condition that memory decides, with nodes in all of its bodies; one that repeats ends."""
        condition, flag = graph.real.condition(), self.memory()
        kind = self.chosen.choice(list(BODIES))
        if kind == "switch":
            self.put(graph, Node("number", flag, None, 4, self.chosen.randrange(BODIES[kind] + 1)))
        self.put(graph, Node("set", condition, flag))
        works = [[self.work(self.chosen.choice(CHANGED[:3])) for _ in range(2)] for _ in range(BODIES[kind])]
        if kind == "while":
            works[0] += [Node("number", flag, None, 4, 0), Node("set", condition, flag)]
        node = Node(kind, None, condition, graphs=[Model() for _ in works])
        for body, nodes in zip(node.graphs, works, strict=True):
            body.nodes = {next(self.keys): each for each in nodes}
            body.edges = set(pairwise(body.nodes))
        for body, nodes in zip(self.put(graph, node).bodies, works, strict=True):
            last: list[accelrt.DefinitionNode] = []
            for each in nodes:
                last = [place(body, each, self.kernel, last)]

    def put_allocation(self, graph: Made) -> None:
        """Adds memory that comes and goes with launches, and what is done with it."""
        memory, count = Allocation(), self.chosen.randint(1, BYTES)
        self.put(graph, Node("allocate", memory))
        self.put(graph, Node("fill_allocated", memory, None, count, self.chosen.randrange(256)))
        self.put(graph, Node("copy_allocated", self.memory(), memory, count))
        self.put(graph, Node("free", memory))

    # --- operations ---

    def begin(self) -> None:
        """Begins another definition."""
        if len(self.graphs) < MOST_GRAPHS:
            self.graphs.append(Made(Model(), accelrt.GraphDefinition()))

    def capture(self) -> None:
        """Begins another definition, of what a stream did."""
        if len(self.graphs) >= MOST_GRAPHS:
            return
        works = [self.work(self.chosen.choice(("fill", "copy", "kernel", "host"))) for _ in range(3)]
        graph, model = accelrt.CUDAGraph(keep_graph=True), Model({next(self.keys): each for each in works})
        model.edges = set(pairwise(model.nodes))
        with accelrt.graph(graph):
            for node in works:
                if node.kind == "fill":
                    node.to.buffer[: node.count].fill_(node.number)
                elif node.kind == "copy":
                    accelrt.copy(node.to.buffer, node.origin.buffer, node.count, blocking=False)
                elif node.kind == "kernel":
                    self.kernel[1, 64](*changes_to(node)["args"])
                else:
                    accelrt.current_stream().launch_host_func(node.to)
        self.graphs.append(Made(model, accelrt.GraphDefinition(graph)))

    def add(self) -> None:
        graph, kind = self.chosen.choice(self.graphs), self.chosen.choice(KINDS)
        if len(graph.model.nodes) >= MOST_NODES:
            return
        if kind == "condition":
            self.put_condition(graph)
        elif kind == "allocation":
            self.put_allocation(graph)
        elif kind != "child":
            self.put(graph, self.work(kind))
        else:
            other = self.chosen.choice(self.graphs)
            if not other.is_single() and other.model.depth() < 3:
                self.put(graph, Node(kind, graphs=[other]))

    def remove(self) -> None:
        """Takes a node out; those that were ordered by it are ordered by edges instead."""
        graph = self.chosen.choice(self.graphs)
        keys = [key for key, node in graph.model.nodes.items() if node.kind not in ("set", *BODIES)]
        if not keys or graph.is_fixed():
            return
        key = self.chosen.choice(keys)
        real = graph.node(key)
        del graph.model.nodes[key]
        graph.model.edges = {edge for edge in graph.model.edges if key not in edge}
        real.remove()
        graph.reshapes += 1
        self.order(graph)

    def order(self, graph: Made) -> None:
        """Adds the edges that are needed."""
        while (edge := next(graph.model.unordered(), None)) is not None:
            graph.real.add_edge(*map(graph.node, edge))
            graph.model.edges.add(edge)
            graph.reshapes += 1

    def join(self) -> None:
        """Adds an edge that is not needed."""
        graph = self.chosen.choice(self.graphs)
        if len(graph.model.nodes) > 1 and not graph.is_fixed():
            keys = list(graph.model.nodes)
            before, after = sorted(self.chosen.sample(range(len(keys)), 2))
            edge = keys[before], keys[after]
            if edge not in graph.model.edges:
                graph.real.add_edge(*map(graph.node, edge))
                graph.model.edges.add(edge)
                graph.reshapes += 1

    def part(self) -> None:
        """Takes an edge back, and adds those that are needed then."""
        graph = self.chosen.choice(self.graphs)
        if graph.model.edges and not graph.is_fixed():
            edge = self.chosen.choice(sorted(graph.model.edges))
            graph.real.remove_edge(*map(graph.node, edge))
            graph.model.edges.discard(edge)
            graph.reshapes += 1
            self.order(graph)

    def clone(self) -> None:
        graph = self.chosen.choice(self.graphs)
        if len(self.graphs) < MOST_GRAPHS and not graph.is_single():
            self.graphs.append(Made(graph.model.copied(), graph.real.clone()))

    def instantiate(self) -> None:
        graph = self.chosen.choice(self.graphs)
        if graph.is_single() or len(self.instances) >= MOST_INSTANCES:
            self.instances = [each for each in self.instances[1:] if each.first is not graph]
            gc.collect()
        if not graph.model.nodes:
            return
        try:
            real = graph.real.instantiate()
        except accelrt.NotSupportedError:
            if not graph.is_single():
                raise
            return  # clones and children that were made of it before its conditions count as instances
        first = graph.model.copied()
        self.instances.append(Made(graph.model.copied(), real, graph, graph, first, reshapes=graph.reshapes))

    def drop(self) -> None:
        """Drops a definition, an instance or a Buffer; what is used stays."""
        what = self.chosen.choice([self.graphs, self.instances, self.memories])
        if what is self.memories:
            self.memory().buffer = None
            self.memories.append(Memory(self.chosen))
        elif len(what) > 1:
            dropped = what.pop(self.chosen.randrange(len(what)))
            for each in self.instances:
                each.source = None if each.source is dropped else each.source
        used = set().union(
            *(one | other for one, other in (each.model.uses() for each in self.graphs + self.instances))
        )
        self.memories = [each for each in self.memories if each.buffer is not None or each in used]
        gc.collect()

    def replay(self) -> None:
        """Replays instances, one after the other, and compares all memory."""
        replayed = self.chosen.choices(self.instances, k=2) if self.instances else []
        with accelrt.stream(self.stream):
            for instance in replayed:
                instance.real.replay()
                instance.model.run({})
                self.replays += 1
            for memory in self.memories:
                memory.reader.replay()
        self.stream.synchronize()
        for memory in self.memories:
            places = np.flatnonzero(memory.seen != memory.expected)
            if places.size:
                with accelrt.stream(self.stream):
                    memory.reader.replay()
                self.stream.synchronize()
                again = np.count_nonzero(memory.seen != memory.expected)
                deeds = "; ".join(each for instance in replayed for each in instance.model.writers(memory))
                raise DifferenceError(
                    f"{places.size} bytes differ ({again} when read again), the first of them "
                    f"at {places[0]}; there write: {deeds}"
                )
        for counter in self.counters:
            if counter.calls != counter.expected:
                raise DifferenceError(f"a function was called {counter.calls} times, not {counter.expected}")
