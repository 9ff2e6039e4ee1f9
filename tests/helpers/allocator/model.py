"""One device's caching allocator in slow, plain Python: a model of allocator/DESIGN.md.

This module holds what both modes do and what plain segments do; model_pages.py adds virtual memory.  No
module of the model imports accelrt.  A place is (serial of the segment, offset in it), never an address.
The caller says when streams run: between close_gate(s) and open_gate(s) stream s runs nothing, so an event
recorded on it completes when the gate opens; an event recorded on any other stream is complete at once.
"""

import math
from collections import Counter

from model_audit import Audited
from model_blocks import FREE, LIVE, MIB, PER_HEAP_KINDS, PLAIN, UNIT, Block, Heap, Segment, kind_of, round_up
from model_offers import WATCH, Offers
from model_statistics import Statistics


class OutOfMemory(Exception):
    """Raised when the last step of the retry ladder fails."""


class Model(Audited, Offers):
    """The pool of a device with capacity bytes, in plain mode; its next segment has serial first_serial."""

    def __init__(self, capacity, first_serial=0):
        self.capacity, self.limit = capacity, math.inf
        self.next_serial = first_serial
        self.segments = []  # by serial
        self.live = {}  # place -> Block
        self.queues = {}  # stream -> [Event], oldest first; streams in the order of their first use
        self.offers = []
        self.gated = set()  # streams whose gate is closed
        self.retained = set()  # private pools in use, by MemPools alone
        self.suspended = set()  # those of them that sleep
        self.clock = 0
        self.allocations = 0
        self.statistics = Statistics()
        self.touched = {}  # segments whose changes are not in the statistics yet, as keys
        self.waited = False  # whether the last allocate or empty_cache waited for a gated stream
        self.happened = Counter()  # rare events, which tests may require

    # requests

    def allocate(self, n, stream=0, pool=None):
        self.waited = self.searched = False
        if n == 0:
            return None
        size = round_up(n, UNIT)
        heap = self.heap_for(size, stream, pool)
        if self.is_pending(heap):
            self.poll()
        block = self.take_offer(heap, n, size)
        if not block:
            self.before_use(heap)
            block = self.fit(heap, size) or self.retry(heap, size)
            self.hand_out(block, n, size)
            if block.segment.heap != heap:
                self.happened["borrowed"] += 1
                block.uses = {heap.stream: True}
        self.allocations += 1
        return block.place

    def may_retry(self, n, stream=0, pool=None):
        """Whether an allocation may have to wait for a stream."""
        size = round_up(n, UNIT)
        heap = self.heap_for(size, stream, pool)
        return n > 0 and not self.fit(heap, size) and not self.is_within_limits(self.usual_growth(size))

    def free(self, place):
        block = self.live.pop(place)
        self.before_use(block.segment.heap)
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
        """By the statistics, which the audit holds against held()."""
        return self.statistics.flat["reserved_bytes.all.current"]

    def held(self):
        return sum(segment.size for segment in self.segments)

    def is_within_limits(self, size):
        return self.reserved() + size <= min(self.limit, self.capacity)

    def all_segments(self):
        return self.segments

    def is_pending(self, heap):
        return any(event.block.segment.heap == heap for queue in self.queues.values() for event in queue)

    def fit(self, heap, size):
        fits = [
            block
            for segment in self.all_segments()
            if segment.heap == heap
            for block in segment.blocks
            if block.size >= size and block.state is FREE
        ]
        return min(fits, key=lambda block: (block.size, block.place), default=None)

    def before_use(self, heap):
        """Called before a heap's free memory serves a request, or grows."""

    def grows_first(self, heap, size):
        """Whether growth is tried before pages that other streams freed."""
        return False

    def find_or_grow(self, heap, size, across=True):
        return self.fit(heap, size) or self.grow_plain(heap, self.usual_growth(size))

    def last_growth(self, heap, size):
        return self.grow_plain(heap, round_up(size, 2 * MIB))

    def borrow(self, heap, size):
        """The least quiescent free block of another heap that is large enough, or None."""

    def retry(self, heap, size):
        self.poll()
        grows_first = self.grows_first(heap, size)
        block = self.find_or_grow(heap, size, across=not grows_first)
        if not block and grows_first:
            block = self.find_or_grow(heap, size)
        if not block and size <= MIB:
            block = self.borrow(heap, size)
        if block:
            return block
        self.wait()
        block = self.find_or_grow(heap, size)
        if block:
            return block
        self.statistics.count("num_alloc_retries")
        self.give_back()
        block = self.find_or_grow(heap, size)
        if not block and (idle := self.holds_idle_pools()):
            self.retained -= idle
            self.give_back()
            self.retained |= idle
            block = self.find_or_grow(heap, size)
        block = block or self.last_growth(heap, size) or self.borrow(heap, size)
        if not block:
            self.statistics.count("num_ooms")
            self.count()
            raise OutOfMemory
        return block

    def grow_plain(self, heap, size):
        if not self.is_within_limits(size):
            return None
        segment = self.new_segment(heap, PLAIN, size)
        segment.blocks = [Block(segment, 0, size)]
        self.segments.append(segment)
        self.statistics.change("segment", heap.kind, 1)
        self.statistics.change("reserved_bytes", heap.kind, size)
        self.statistics.count("num_device_alloc")
        return segment.blocks[0]

    def new_segment(self, heap, shape, held):
        self.next_serial += 1
        return Segment(self.next_serial - 1, heap, shape, held)

    def splits(self, block, rest):
        return rest >= UNIT if block.segment.heap.kind == "small" else rest > MIB

    def hand_out(self, block, n, size):
        segment, rest = block.segment, block.size - size
        if self.splits(block, rest):
            after = segment.blocks.index(block) + 1
            segment.blocks.insert(after, Block(segment, block.offset + size, rest, freed=block.freed))
            block.size = size
        block.state, block.kind, block.requested, block.uses = LIVE, kind_of(size), n, {}
        self.live[block.place] = block
        self.touched[segment] = True
        self.count()

    # pending and free blocks

    def poll(self):
        for stream, queue in self.queues.items():
            while queue and queue[0].complete:
                if stream is WATCH:
                    self.withdraw(queue[0].block)
                self.complete(queue.pop(0))

    def holds_idle_pools(self):
        """The private pools in use that have memory to give back before a request is refused."""
        return {pool for pool in self.retained if any(each.heap.pool == pool for each in self.segments)}

    def wait(self):
        self.statistics.count("num_sync_all_streams")
        self.wait_for_events()

    def wait_for_events(self):
        if not all(event.complete for queue in self.queues.values() for event in queue):
            self.wait_for_gates()
        self.poll()

    def wait_for_gates(self):
        """The operation waits for a gated stream: the caller opens every gate once it waits."""
        self.waited = True
        self.happened["waited"] += 1
        for stream in list(self.gated):
            self.open_gate(stream)

    def complete(self, event):
        event.block.events -= 1
        if event.block.events == 0:
            self.release(event.block)

    def release(self, block):
        self.clock += 1
        block.state, block.requested, block.uses, block.freed = FREE, 0, {}, self.clock
        self.after_free(self.merge(block))
        self.count()

    def after_free(self, block):
        """Called after a block became free and merged, before it is counted."""

    def merge(self, block):
        """Merges a free block with its free neighbours."""
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
            if segment.heap.pool in self.retained:
                continue
            if self.gated:  # a driver frees memory when the device is idle
                self.wait_for_gates()
            self.segments.remove(segment)
            self.statistics.change("segment", segment.heap.kind, -1)
            self.statistics.change("reserved_bytes", segment.heap.kind, -segment.size)
            self.statistics.count("num_device_free")

    def count(self):
        """Adds the net changes of the touched segments to the statistics, decreases first."""
        nets = [0] * len(PER_HEAP_KINDS)
        for segment in self.touched:
            stats = segment.stats()
            nets = [net + new - old for net, new, old in zip(nets, stats, segment.counted, strict=True)]
            segment.counted = stats
        self.touched = {}
        for net, (stat, kind) in sorted(each for each in zip(nets, PER_HEAP_KINDS, strict=True) if each[0]):
            self.statistics.change(stat, kind, net)
