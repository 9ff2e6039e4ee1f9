"""One device's caching allocator in slow, plain Python: accelrt/memory/DESIGN.md, said again in code.

Nothing here imports accelrt.  Places are (serial of the segment, offset in it), never addresses.  The work
of streams is told to the model: between close_gate(s) and open_gate(s) stream s runs nothing, so an event
recorded on it completes when the gate opens; an event recorded on any other stream is complete at once.
"""

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from model_statistics import FIGURES, NOTHING, Statistics

MIB = 1 << 20
UNIT = 512
LIVE, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"


class OutOfMemory(Exception):
    """Raised by the ladder's last step."""


class Heap(NamedTuple):
    pool: object  # None, or the private pool
    stream: object
    kind: str  # "small" or "large"


@dataclass(eq=False, slots=True)
class Block:
    segment: "Segment"
    offset: int
    size: int
    state: str = FREE
    requested: int = 0
    uses: dict = field(default_factory=dict)  # the other streams that were recorded on it, as keys
    events: int = 0  # queue entries that name it

    @property
    def place(self):
        return self.segment.serial, self.offset


@dataclass(eq=False, slots=True)
class Segment:
    serial: int
    size: int
    heap: Heap
    blocks: list = field(default_factory=list)  # by offset

    def figures(self):
        """What the segment adds to each figure, in the order of FIGURES."""
        live = [block.size for block in self.blocks if block.state is LIVE]
        active = [block for block in self.blocks if block.state is not FREE]
        free = [block.size for block in self.blocks if block.state is FREE]
        split = free if len(self.blocks) > 1 else []
        requested = sum(block.requested for block in active)
        return (
            *(len(live), sum(live)),
            *(len(active), sum(block.size for block in active), requested),
            *(len(split), sum(split)),
            *(1, self.size),
        )

    def idle(self):
        return len(self.blocks) == 1 and self.blocks[0].state is FREE


@dataclass(eq=False, slots=True)
class Event:
    block: Block
    complete: bool


def round_up(size, unit):
    return -(-size // unit) * unit


def usual_growth(size):
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else round_up(size, 2 * MIB)


def least_growth(size):
    return round_up(size, 2 * MIB)


class Model:
    """The pool of a device that has capacity bytes; its next segment bears first_serial."""

    def __init__(self, capacity, first_serial=0):
        self.capacity = self.limit = capacity
        self.next_serial = first_serial
        self.segments = []  # by serial
        self.live = {}  # place -> Block
        self.queues = {}  # stream -> [Event], oldest first; streams in the order of their first use
        self.gated = set()  # streams that run nothing now
        self.held = set()  # private pools in use
        self.statistics = Statistics()
        self.waited = False  # the last allocate or empty_cache had to wait for a gated stream

    # requests

    def allocate(self, n, stream=0, pool=None):
        self.waited = False
        if n == 0:
            return None
        heap, size = self.wanted(n, stream, pool)
        self.poll()
        block = self.fit(heap, size) or self.grow(heap, usual_growth(size)) or self.climb(heap, size)
        self.take(block, n, size)
        return block.place

    def may_climb(self, n, stream=0, pool=None):
        """Whether an allocation climbs the ladder, unless its poll finds room."""
        heap, size = self.wanted(n, stream, pool)
        return n > 0 and not self.fit(heap, size) and not self.has_room(usual_growth(size))

    def free(self, place):
        block = self.live.pop(place)
        with self.counted(block.segment):
            block.state = PENDING
        for stream in reversed(block.uses):
            self.queues.setdefault(stream, []).append(Event(block, stream not in self.gated))
            block.events += 1
        if not block.events:
            self.release(block)

    def record_stream(self, place, stream):
        block = self.live[place]
        if stream != block.segment.heap.stream:
            block.uses[stream] = True

    def empty_cache(self):
        self.waited = False
        self.wait()
        self.give_back()

    def set_limit(self, fraction):
        self.limit = int(fraction * self.capacity)

    def close_gate(self, stream):
        self.gated.add(stream)

    def open_gate(self, stream):
        self.gated.discard(stream)
        for event in self.queues.get(stream, ()):
            event.complete = True

    # the steps of an allocation

    def wanted(self, n, stream, pool):
        size = round_up(n, UNIT)
        return Heap(pool, stream, "small" if size <= MIB else "large"), size

    def has_room(self, size):
        return sum(segment.size for segment in self.segments) + size <= min(self.limit, self.capacity)

    def fit(self, heap, size):
        fitting = [
            block
            for segment in self.segments
            if segment.heap == heap
            for block in segment.blocks
            if block.state is FREE and block.size >= size
        ]
        return min(fitting, key=lambda block: (block.size, block.place), default=None)

    def grow(self, heap, size):
        if not self.has_room(size):
            return None
        segment = Segment(self.next_serial, size, heap)
        segment.blocks = [Block(segment, 0, size)]
        self.next_serial += 1
        self.segments.append(segment)
        self.statistics.change(heap.kind, NOTHING, segment.figures())
        self.statistics.flat["num_device_alloc"] += 1
        return segment.blocks[0]

    def climb(self, heap, size):
        self.wait()
        block = self.fit(heap, size)
        if block:
            return block
        self.statistics.flat["num_alloc_retries"] += 1
        self.give_back()
        block = self.grow(heap, usual_growth(size)) or self.grow(heap, least_growth(size))
        if not block:
            self.statistics.flat["num_ooms"] += 1
            raise OutOfMemory
        return block

    def take(self, block, n, size):
        segment, rest = block.segment, block.size - size
        useful = rest >= UNIT if segment.heap.kind == "small" else rest > MIB
        with self.counted(segment):
            if useful:
                after = segment.blocks.index(block) + 1
                segment.blocks.insert(after, Block(segment, block.offset + size, rest))
                block.size = size
            block.state, block.requested, block.uses = LIVE, n, {}
        self.live[block.place] = block

    # what comes back

    def poll(self):
        for queue in self.queues.values():
            while queue and queue[0].complete:
                self.finish(queue.pop(0))

    def wait(self):
        self.statistics.flat["num_sync_all_streams"] += 1
        for queue in self.queues.values():
            for event in queue:
                self.waited = self.waited or not event.complete
                event.complete = True
        self.poll()

    def finish(self, event):
        event.block.events -= 1
        if event.block.events == 0:
            self.release(event.block)

    def release(self, block):
        blocks = block.segment.blocks
        with self.counted(block.segment):
            block.state, block.requested, block.uses = FREE, 0, {}
            index = blocks.index(block)
            if index + 1 < len(blocks) and blocks[index + 1].state is FREE:
                block.size += blocks.pop(index + 1).size
            if index and blocks[index - 1].state is FREE:
                blocks[index - 1].size += blocks.pop(index).size

    def give_back(self):
        idle = [segment for segment in self.segments if segment.idle()]
        for segment in idle:
            if segment.heap.pool in self.held:
                continue
            self.waited = self.waited or bool(self.gated)  # a driver frees memory when the device is idle
            self.segments.remove(segment)
            self.statistics.change(segment.heap.kind, segment.figures(), NOTHING)
            self.statistics.flat["num_device_free"] += 1

    @contextmanager
    def counted(self, segment):
        before = segment.figures()
        yield
        self.statistics.change(segment.heap.kind, before, segment.figures())

    # what tests look at

    def snapshot(self):
        """[(serial, size, heap, [(offset, size, requested, state)])] by serial."""
        return [
            (
                segment.serial,
                segment.size,
                segment.heap,
                [(block.offset, block.size, block.requested, block.state) for block in segment.blocks],
            )
            for segment in self.segments
        ]

    def audit(self):
        """Asserts every identity by walking everything."""
        events = [event.block for queue in self.queues.values() for event in queue]
        blocks = [block for segment in self.segments for block in segment.blocks]
        for segment in self.segments:
            ends = itertools.accumulate((block.size for block in segment.blocks), initial=0)
            assert [*ends] == [*(block.offset for block in segment.blocks), segment.size]
            assert (FREE, FREE) not in itertools.pairwise(block.state for block in segment.blocks)
        for block in blocks:
            assert block.size >= UNIT
            assert block.size % UNIT == 0
            assert block.events == events.count(block)
            assert (block.state is PENDING) == (block.events > 0)
            assert (block.state is FREE) == (block.requested == 0)
            assert (block.state is LIVE) == (self.live.get(block.place) is block)
        assert len(self.live) == sum(block.state is LIVE for block in blocks)
        assert set(events) <= set(blocks)
        self.audit_statistics(blocks)

    def audit_statistics(self, blocks):
        totals = dict.fromkeys(self.statistics.keys, 0)
        for segment in self.segments:
            for figure, value in zip(FIGURES, segment.figures(), strict=True):
                totals[f"{figure}.all"] += value
                totals[f"{figure}.{segment.heap.kind}_pool"] += value
        flat = self.statistics.flat
        for name, total in totals.items():
            assert flat[f"{name}.current"] == total, (name, flat[f"{name}.current"], total)
            assert flat[f"{name}.peak"] >= total, (name, flat[f"{name}.peak"], total)
        free = sum(block.size for block in blocks if block.state is FREE)
        assert flat["reserved_bytes.all.current"] == flat["active_bytes.all.current"] + free
