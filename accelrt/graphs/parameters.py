"""Graphs with arguments: memory that a graph reads and writes is found, named, and given anew without a
copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from accelrt.annotations import Memory
from accelrt.core.arguments import checked_type
from accelrt.errors import refuse_copy
from accelrt.graphs.bindings import BoundGraph, blocks_of, graph_state, memory_of, nodes_to_bind
from accelrt.graphs.graph import CUDAGraph
from accelrt.graphs.node_values import argument_bytes
from accelrt.graphs.nodes import CopyParams, FillParams, GraphNode, KernelParams, argument_kinds

WORD = 8  # bytes of an address
HARMLESS = ("empty", "event_record", "wait_event", "mem_alloc")  # nodes that name no memory of others


class ParameterUse(NamedTuple):
    """A place in a graph where memory is named.

    Attributes:
        node: int, the id of the node.
        type: str, "kernel", "memcpy" or "memset".
        name: str, the kernel's; else "".
        argument: int, index of the kernel's parameter; "dst" or "src" of a copy or a fill.
        word: int, byte of the parameter where the address begins: 0, but in structures.
        offset: int, bytes from where the memory begins to the address that is named.
        access: str, "r", "w" or "rw", as far as the kernel's signature, or the kind of node, says.
    """

    node: int
    type: str
    name: str
    argument: int | str
    word: int
    offset: int
    access: str


class GraphParameter(NamedTuple):
    """Memory of a graph that has a name.

    Attributes:
        address: int, of what was captured.
        nbytes: int; what takes its place has at least as many.
        device: int, ordinal of its device; -1 for page-locked memory.
        uses: tuple of ParameterUse.
    """

    address: int
    nbytes: int
    device: int
    uses: tuple[ParameterUse, ...]

    @property
    def access(self) -> str:
        """ "r", "w" or "rw": what all uses do together."""
        return "".join(letter for letter in "rw" if any(letter in use.access for use in self.uses))


class GraphParameters(BoundGraph, Mapping[str, GraphParameter]):
    """Names for memory that a graph uses, by which replays are given other memory in its place, without a
    copy.

        g = accelrt.CUDAGraph(keep_graph=True)
        with accelrt.graph(g):
            step(x, y)
        arguments = accelrt.GraphParameters(g, x=x, y=y)
        arguments.replay(x=other)            # reads other instead of x, and writes y

    Arguments:
        graph: CUDAGraph(keep_graph=True), captured; or one that was instantiated from a GraphDefinition.
        twin: CUDAGraph(keep_graph=True) that captured the same work with other memory: what in a kernel's
            arguments is an address shows in what differs.  memory is then given in pairs, (what graph uses,
            what twin uses).
        memory: Buffers, Arrays or page-locked memory that the graph uses, by name; not of a graph's pool.
    Raises:
        ValueError: it cannot be said for sure where the graph uses the memory; the text names the node.  That
            is so of an argument that may be a number or an address, unless the kernel's signature says so or
            there is a twin; of an address that ends where the memory does, of a copy that goes beyond it; of
            conditions, and of children that use it; of page-locked memory where the graph calls host
            functions, which may use it.  Or a copy of rows uses it, which drivers give no other memory in an
            instance; or two names share bytes, or no node uses the memory.
        RuntimeError: the graph is not kept, or another thread uses it.
        TypeError: graph is no CUDAGraph, no memory was named, or with a twin it is not given in pairs.

    A mapping of names to GraphParameter.  A change of a node by hand, an update, a new instance or other
    GraphParameters of the graph end it; the latter go on with the memory that it gave.
    """

    def __init__(self, graph: CUDAGraph, *, twin: CUDAGraph | None = None, **memory: Memory) -> None:
        checked_type(graph, "graph", CUDAGraph, "a CUDAGraph")
        if not memory:
            raise TypeError(
                "no memory was named; pass what the graph uses by name: GraphParameters(graph, x=x)"
            )
        places = {name: Place(name, given, twin is not None) for name, given in memory.items()}
        require_apart(list(places.values()))
        state = graph_state(graph)
        nodes, others = nodes_to_bind(graph), None if twin is None else nodes_to_bind(twin)
        if others is not None and [each.type for each, _ in others] != [each.type for each, _ in nodes]:
            raise ValueError("twin has other nodes than the graph; capture the same work with other memory")
        blocks = blocks_of(graph)
        uses: dict[str, list[ParameterUse]] = {name: [] for name in places}
        for index, (node, params) in enumerate(nodes):
            other = None if others is None else others[index][1]
            for name, use in find_uses(node, params, other, places, blocks):
                uses[name].append(use)
        for name, found in uses.items():
            if not found:
                raise ValueError(
                    f"no node of the graph uses {name}; name memory that its copies, fills and kernels were "
                    "given"
                )
        self._parameters = {
            name: GraphParameter(place.address, place.nbytes, place.device, tuple(uses[name]))
            for name, place in places.items()
        }
        self._bind(graph, [(name, *self._parameters[name]) for name in places], state)

    def __getitem__(self, name: str) -> GraphParameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "they are of one graph; make others")

    def __repr__(self) -> str:
        return f"<accelrt.GraphParameters {', '.join(self._parameters)}>"


class Place:
    """Memory that was named, and in a twin what stands for it."""

    name: str
    twin: int
    address: int
    nbytes: int
    device: int

    def __init__(self, name: str, given: Any, has_twin: bool) -> None:
        self.name, self.twin = name, 0
        if has_twin:
            if not isinstance(given, tuple) or len(given) != 2:
                raise TypeError(
                    f"{name} is {given!r:.60}; with a twin pass (what graph uses, what twin uses)"
                )
            given, other = given
            self.twin = memory_of(other, f"{name}[1]")[0]
        self.address, self.nbytes, self.device = memory_of(given, name)
        if self.twin == self.address:
            raise ValueError(f"{name}: the twin uses the same memory; capture it with other memory")

    def holds(self, begin: int, end: int) -> bool:
        """Tells whether it has a byte of a range, or ends where an empty one is."""
        return begin < self.address + self.nbytes and self.address < end

    def has_all(self, begin: int, end: int) -> bool:
        return self.address <= begin and end <= self.address + self.nbytes


def require_apart(places: list[Place]) -> None:
    """Refuses names that share bytes."""
    ordered = sorted(places, key=lambda place: place.address)
    for one, other in pairwise(ordered):
        if other.address < one.address + one.nbytes:
            raise ValueError(
                f"{one.name} and {other.name} share memory, so that it cannot be said which a node uses"
            )


def label(node: GraphNode, params: Any) -> str:
    """A node, for errors."""
    kernel = f" {params.name!r}" if isinstance(params, KernelParams) and params.name else ""
    return f"the {node.type} node{kernel} {node.id:#x}"


def find_uses(
    node: GraphNode, params: Any, twin: Any, places: dict[str, Place], blocks: set[int]
) -> Iterator[tuple[str, ParameterUse]]:
    """(name, use) of each place that a node names."""
    if isinstance(params, KernelParams):
        yield from uses_of_kernel(node, params, twin, places, blocks)
    elif isinstance(params, CopyParams):
        span = span_of(params.width, params.height, params.depth, params.dst_pitch, params.dst_lines)
        yield from use_of_range(node, params, "dst", params.dst, span, "w", places)
        span = span_of(params.width, params.height, params.depth, params.src_pitch, params.src_lines)
        yield from use_of_range(node, params, "src", params.src, span, "r", places)
    elif isinstance(params, FillParams):
        span = span_of(params.elements * params.width, params.height, 1, params.pitch, 0)
        yield from use_of_range(node, params, "dst", params.dst, span, "w", places)
    elif node.type == "host":
        for place in places.values():
            if place.device < 0:
                raise ValueError(f"{place.name} is host memory, which {label(node, None)} may use")
    elif node.type == "graph":
        for each, inner in params:
            for name, _ in find_uses(each, inner, None, places, blocks):
                raise ValueError(
                    f"{label(each, inner)} uses {name} in a child, whose nodes are not given other memory"
                )
    elif node.type not in HARMLESS:
        raise ValueError(
            f"what {label(node, None)} uses cannot be told, so that no memory of the graph can be named"
        )


def span_of(width: int, height: int, depth: int, pitch: int, lines: int) -> int:
    """Bytes from the first row's begin to the last one's end."""
    if height == depth == 1:
        return width
    return ((depth - 1) * (lines or height) + height - 1) * (pitch or width) + width


def use_of_range(
    node: GraphNode, params: Any, argument: str, begin: int, span: int, access: str, places: dict[str, Place]
) -> Iterator[tuple[str, ParameterUse]]:
    for place in places.values():
        if not place.holds(begin, begin + span):
            continue
        if isinstance(params, CopyParams) and params.height * params.depth > 1:
            raise ValueError(
                f"{label(node, params)} copies rows of {place.name}, and an instance goes on with the copies "
                "of rows that it was made with; have a kernel copy them"
            )
        if not place.has_all(begin, begin + span):
            raise ValueError(
                f"{label(node, params)} goes beyond {place.name}: it uses {begin:#x} to {begin + span:#x}"
            )
        yield place.name, ParameterUse(node.id, node.type, "", argument, 0, begin - place.address, access)


def uses_of_kernel(
    node: GraphNode, params: KernelParams, twin: KernelParams | None, places: dict[str, Place],
    blocks: set[int],
) -> Iterator[tuple[str, ParameterUse]]:  # fmt: skip
    if params.arguments is None:
        raise ValueError(f"the driver does not tell the arguments of {label(node, params)} (CUDA 12.4 does)")
    kinds = argument_kinds(params.kernel, len(params.arguments))
    for index, data in enumerate(params.arguments):
        value = argument_bytes(data)
        other = None if twin is None or twin.arguments is None else argument_bytes(twin.arguments[index])
        taken = -WORD
        for word in range(len(value) - WORD + 1):
            match = named_at(node, params, index, kinds[index], value, other, word, places, blocks)
            if match is None or word < taken + WORD:
                continue
            taken = word
            name, offset = match
            access = "r" if kinds[index] == "reads" else "rw"
            yield name, ParameterUse(node.id, node.type, params.name, index, word, offset, access)


def named_at(
    node: GraphNode, params: KernelParams, index: int, kind: str, value: bytes, other: bytes | None, word:
        int,
    places: dict[str, Place], blocks: set[int],
) -> tuple[str, int] | None:  # fmt: skip
    """(name, offset) where the word there is an address of named memory; ValueError where it may be one."""
    address = int.from_bytes(value[word : word + WORD], "little")
    place = next((each for each in places.values() if each.has_all(address, address + 1)), None)
    if place is None and address not in blocks:
        place = next((each for each in places.values() if address == each.address + each.nbytes), None)
    if place is None:
        return None
    offset, where = address - place.address, f"argument {index} of {label(node, params)}"
    if other is not None:
        there = int.from_bytes(other[word : word + WORD], "little")
        if there == place.twin + offset and word % WORD == 0:
            return place.name, offset
        if there == address:  # the same with other memory: no address of it
            return None
        raise ValueError(f"{where} lies in {place.name}, and in the twin it does not")
    if offset == place.nbytes:
        raise ValueError(f"{where} is where {place.name} ends: it may belong to it, or begin other memory")
    if kind in ("reads", "writes") and len(value) == WORD:
        return place.name, offset
    raise ValueError(
        f"{where} may be an address of {place.name}, or a number: give the kernel a signature that says it "
        "is a pointer, or pass a twin"
    )
