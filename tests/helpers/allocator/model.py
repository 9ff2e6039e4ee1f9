"""One device's caching allocator in slow, plain Python: memory/allocator/DESIGN.md, said again in code.

Here is what both modes do and what plain segments do; model_pages.py adds virtual memory.  Nothing imports
accelrt.  Places are (serial of the segment, offset in it), never addresses.  The work of streams is told to
the model: between close_gate(s) and open_gate(s) stream s runs nothing, so an event recorded on it completes
when the gate opens; an event recorded on any other stream is complete at once.
"""

import math
from collections import Counter

from model_audit import Audited
from model_blocks import (
    FREE,
    LIVE,
    MIB,
    PLAIN,
    SHARED_KINDS,
    UNIT,
    Block,
    Heap,
    Segment,
    kind_of,
    round_up,
)
from model_offers import WATCH, Offers
from model_statistics import Statistics


class OutOfMemory(Exception):
    """Raised by the ladder's last step."""


class Model(Audited, Offers):
    """The pool of a device that has capacity bytes, with plain segments; its next one bears first_serial."""

    def __init__(self, capacity, first_serial=0):
        self.capacity, self.limit = capacity, math.inf
        self.next_serial = first_serial
        self.segments = []  # by serial
        self.live = {}  # place -> Block
        self.queues = {}  # stream -> [Event], oldest first; streams in the order of their first use
        self.offers = []
        self.gated = set()  # streams that run nothing now
        self.held = set()  # private pools in use
        self.clock = 0
        self.allocations = 0
        self.statistics = Statistics()
        self.touched = {}  # segments whose figures are not counted yet, as keys
        self.waited = False  # the last allocate or empty_cache had to wait for a gated stream
        self.happened = Counter()  # what is rare, so that tests may require it

    # requests

    def allocate(self, n, stream=0, pool=None):
        self.waited = False
        if n == 0:
            return None
        size = round_up(n, UNIT)
        heap = self.heap_for(size, stream, pool)
        if self.is_pending(heap):
            self.poll()
        block = self.take_offer(heap, n, size)
        if not block:
            block = self.fit(heap, size) or self.climb(heap, size)
            self.take(block, n, size)
            if block.segment.heap != heap:
                self.happened["borrowed"] += 1
                block.uses = {heap.stream: True}
        self.allocations += 1
        return block.place

    def may_climb(self, n, stream=0, pool=None):
        """Whether an allocation can come to wait."""
        size = round_up(n, UNIT)
        heap = self.heap_for(size, stream, pool)
        return n > 0 and not self.fit(heap, size) and not self.has_room(self.usual_growth(size))

    def free(self, place):
        block = self.live.pop(place)
        if not block.uses:
            self.release(block)
            return
        self.enqueue_uses(block)
        self.count()

    def record_stream(self, place, stream):
        block = self.live[place]
        if stream != block.segment.heap.stream:
            block.uses[stream] = True

    def empty_cache(self):
        self.waited = False
        self.wait()
        self.give_back()
        self.count()

    def set_limit(self, fraction):
        self.limit = math.inf if fraction == 1 else int(fraction * self.capacity)

    def close_gate(self, stream):
        self.gated.add(stream)

    def open_gate(self, stream):
        self.gated.discard(stream)
        for queue in self.queues.values():
            for event in queue:
                event.complete |= event.stream == stream

    # the steps of an allocation

    def heap_for(self, size, stream, pool):
        return Heap(pool, stream, kind_of(size))

    def usual_growth(self, size):
        if size <= MIB:
            return 2 * MIB
        return 20 * MIB if size < 10 * MIB else round_up(size, 2 * MIB)

    def reserved(self):
        return sum(segment.size for segment in self.segments)

    def has_room(self, size):
        return self.reserved() + size <= min(self.limit, self.capacity)

    def everywhere(self):
        return self.segments

    def is_pending(self, heap):
        return any(event.block.segment.heap == heap for queue in self.queues.values() for event in queue)

    def fit(self, heap, size):
        best = None
        for segment in self.everywhere():
            if segment.heap == heap:
                for block in segment.blocks:
                    if (
                        block.state is FREE
                        and block.size >= size
                        and (best is None or (block.size, block.place) < (best.size, best.place))
                    ):
                        best = block
        return best

    def keeps_apart(self, size):
        """Whether growth comes before pages that other streams freed."""
        return False

    def serve(self, heap, size, across=True):
        return self.fit(heap, size) or self.grow(heap, self.usual_growth(size))

    def last_resort(self, heap, size):
        return self.grow(heap, round_up(size, 2 * MIB))

    def lend(self, heap, size):
        """The least block of another heap that suffices and that no work uses any more, or None."""

    def climb(self, heap, size):
        self.poll()
        block = self.serve(heap, size, across=not self.keeps_apart(size))
        if not block and self.keeps_apart(size):
            block = self.serve(heap, size)
        if not block and size <= MIB:
            block = self.lend(heap, size)
        if block:
            return block
        self.wait()
        block = self.serve(heap, size)
        if block:
            return block
        self.statistics.count("num_alloc_retries")
        self.give_back()
        block = self.serve(heap, size) or self.last_resort(heap, size) or self.lend(heap, size)
        if not block:
            self.statistics.count("num_ooms")
            self.count()
            raise OutOfMemory
        return block

    def grow(self, heap, size):
        if not self.has_room(size):
            return None
        segment = self.new_segment(heap, PLAIN, size)
        segment.blocks = [Block(segment, 0, size)]
        self.segments.append(segment)
        self.statistics.change("segment", heap.kind, 1)
        self.statistics.change("reserved_bytes", heap.kind, size)
        self.statistics.count("num_device_alloc")
        return segment.blocks[0]

    def new_segment(self, heap, shape, room):
        self.next_serial += 1
        return Segment(self.next_serial - 1, heap, shape, room)

    def splits(self, block, rest):
        return rest >= UNIT if block.segment.heap.kind == "small" else rest > MIB

    def take(self, block, n, size):
        segment, rest = block.segment, block.size - size
        if self.splits(block, rest):
            after = segment.blocks.index(block) + 1
            segment.blocks.insert(after, Block(segment, block.offset + size, rest, freed=block.freed))
            block.size = size
        block.state, block.kind, block.requested, block.uses = LIVE, kind_of(size), n, {}
        self.live[block.place] = block
        self.touched[segment] = True
        self.count()

    # what comes back

    def poll(self):
        for stream, queue in self.queues.items():
            while queue and queue[0].complete:
                if stream is WATCH:
                    self.withdraw(queue[0].block)
                self.finish(queue.pop(0))

    def wait(self):
        self.statistics.count("num_sync_all_streams")
        if not all(event.complete for queue in self.queues.values() for event in queue):
            self.wait_for_gates()
        self.poll()

    def wait_for_gates(self):
        """An operation that waits for one gated stream is let in by opening every gate."""
        self.waited = True
        self.happened["waited"] += 1
        for stream in list(self.gated):
            self.open_gate(stream)

    def finish(self, event):
        event.block.events -= 1
        if event.block.events == 0:
            self.release(event.block)

    def release(self, block):
        self.clock += 1
        block.state, block.requested, block.uses, block.freed = FREE, 0, {}, self.clock
        self.freed(self.merge(block))
        self.count()

    def freed(self, block):
        """What follows, before it is counted."""

    def merge(self, block):
        """Joins a free block with its free neighbours."""
        blocks = block.segment.blocks
        self.touched[block.segment] = True
        index = blocks.index(block)
        for low in (index, index - 1):
            if 0 <= low < len(blocks) - 1 and blocks[low].state is blocks[low + 1].state is FREE:
                high = blocks.pop(low + 1)
                blocks[low].size += high.size
                blocks[low].freed = max(blocks[low].freed, high.freed)
                block = blocks[low]
        return block

    def give_back(self):
        for segment in [segment for segment in self.segments if segment.idle()]:
            if segment.heap.pool in self.held:
                continue
            if self.gated:  # a driver frees memory when the device is idle
                self.wait_for_gates()
            self.segments.remove(segment)
            self.statistics.change("segment", segment.heap.kind, -1)
            self.statistics.change("reserved_bytes", segment.heap.kind, -segment.size)
            self.statistics.count("num_device_free")

    def count(self):
        """Counts the net of what became of the touched segments, decreases first."""
        nets = [0] * len(SHARED_KINDS)
        for segment in self.touched:
            figures = segment.figures()
            nets = [net + new - old for net, new, old in zip(nets, figures, segment.told, strict=True)]
            segment.told = figures
        self.touched = {}
        for net, (figure, kind) in sorted(zip(nets, SHARED_KINDS, strict=True)):
            self.statistics.change(figure, kind, net)
