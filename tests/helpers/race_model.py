"""Races by definition: a graph of everything that a program does, and who can be reached from whom.

Slow and plain; the race detector's vector clocks have to agree with it.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st

HOST = "host"
STREAMS = ("legacy", "blocking", "one", "two", "three")
BLOCKING = ("legacy", "blocking")
CELLS = 3


@dataclass
class Node:
    before: set[int]  # every node that this one comes after
    spans: tuple = ()  # (begin, end, writes) of an access


@dataclass
class Model:
    """Nodes in the order of the calls; the last of the host, of each stream and of each event."""

    nodes: list[Node] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)
    launched: dict[int, int] = field(default_factory=dict)  # each graph's last launch
    points: dict[int, tuple[str, int]] = field(default_factory=dict)  # of a capture: nodes that are events

    def add(self, who, *others, spans=()):
        """A new last node of somebody, after what it follows by itself and after others; its number."""
        follows = [*others, self.last.get(who), self.last.get(HOST)]
        if who in BLOCKING:
            follows += [self.last.get(other) for other in BLOCKING if "legacy" in (who, other)]
        before = set()
        for node in follows:
            if node is not None:
                before |= {node} | self.nodes[node].before
        self.nodes.append(Node(before, spans))
        self.last[who] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def access(self, who, spans):
        """The earlier accesses that a new one races with; it is taken back if there are any."""
        was = self.last.get(who)
        number = self.add(who, spans=spans)
        before = self.nodes[number].before
        racing = {
            other
            for other, node in enumerate(self.nodes[:number])
            if other not in before and any(clash(mine, its) for mine in spans for its in node.spans)
        }
        if racing:
            self.nodes[number] = Node(before)
            assert was is None or was in before
        return number, racing

    def record(self, who, event):
        self.events[event] = self.add(who)

    def wait(self, who, event):
        if event in self.events:
            self.add(who, self.events[event])

    def point(self, who, kind, event):
        """In a capture: a node at which each launch records an event, or waits for it."""
        self.points[self.add(who)] = kind, event

    def launch(self, who, key, graph):
        """The earlier accesses that a captured Model's race with; it is taken back if there are any."""
        before = len(self.nodes), dict(self.last), dict(self.events)
        start = self.add(who, self.launched.get(key))
        racing: set[int] = set()
        places: list[int] = []
        for number, node in enumerate(graph.nodes):
            kind, event = graph.points.get(number, ("", -1))
            follows = {start, *(places[other] for other in node.before)}
            if kind == "wait" and event in self.events:
                follows.add(self.events[event])
            follows |= {earlier for one in follows for earlier in self.nodes[one].before}
            racing |= {
                other
                for other, one in enumerate(self.nodes[:start])
                if other not in follows and any(clash(mine, its) for mine in node.spans for its in one.spans)
            }
            self.nodes.append(Node(follows, node.spans))
            places.append(len(self.nodes) - 1)
            if kind == "record":
                self.events[event] = places[-1]
        if racing:
            del self.nodes[before[0] :]
            self.last, self.events = before[1:]
        else:
            self.launched[key] = self.add(who, *places)
        return racing

    def synchronize(self, who):
        self.add(HOST, self.add(who))

    def synchronize_event(self, event):
        if event in self.events:
            self.add(HOST, self.events[event])

    def synchronize_all(self):
        for who in STREAMS:
            self.synchronize(who)


def clash(mine, its):
    return mine[0] < its[1] and its[0] < mine[1] and (mine[2] or its[2])


def spans():
    """One to two ranges of cells, each read or written."""
    begins = st.integers(0, CELLS - 1)
    span = st.builds(lambda a, b, w: (min(a, b), max(a, b) + 1, w), begins, begins, st.booleans())
    return st.lists(span, min_size=1, max_size=2).map(tuple)


def steps(streams, accesses):
    """One step of a program, as a tuple that begins with its name."""
    who, event = st.sampled_from(streams), st.integers(0, 2)
    return st.one_of(
        accesses,
        accesses,
        accesses,
        st.tuples(st.just("record"), who, event),
        st.tuples(st.just("wait"), who, event),
        st.tuples(st.just("synchronize"), who),
        st.tuples(st.just("synchronize_event"), event),
        st.tuples(st.just("synchronize_all")),
    )
