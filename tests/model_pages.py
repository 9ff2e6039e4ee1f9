"""The model of the allocator with virtual memory: windows show pages of spans a second time."""

import itertools
import math
from dataclasses import dataclass

from model_blocks import FREE, MIB, WINDOW, Block, Heap
from model_pieces import GRANULE, Pieces, append_slot, whole_slots

AUTO = -1.0  # growth slack by credit
MOST_CREDIT, WINDOW_PRICE, THRIFTY_SLACK = 8192, 64, 0.25


@dataclass(slots=True)
class Progress:
    """What is known of the stream of a heap: by the clock, when its work was done."""

    settled: int = 0
    last_freed: int = 0  # nothing newer is free in it
    mark: int = 0  # settled once marker is complete
    marker: bool = False  # an event is out
    complete: bool = False
    lingers: bool = False


class PagedModel(Pieces):
    """A pool with virtual memory; piece is the size of its pieces, 0 by what is reserved."""

    def __init__(self, capacity, first_serial=0, stitching=True, piece=0, slack=AUTO):
        super().__init__(capacity, first_serial, piece)
        self.stitching, self.slack = stitching, slack
        self.windows = []  # oldest first
        self.credit, self.earned = MOST_CREDIT, 0  # for windows; the allocations that are in it
        self.progress = {}  # heap -> Progress

    def everywhere(self):
        return self.segments + self.windows

    def heap_for(self, size, stream, pool):
        heap = Heap(pool, stream, "large")
        self.progress.setdefault(heap, Progress())
        return heap

    def splits(self, block, rest):
        return rest > 0

    # an allocation without a fit

    def keeps_apart(self, size):
        return self.stitching and (size <= MIB or self.reserved() + size <= 16 * MIB)

    def serve(self, heap, size, across=True):
        block = self.fit(heap, size)
        while not block and self.obtain(heap, size, across):
            block = self.fit(heap, size)
        return block

    def last_resort(self, heap, size):
        return None

    def lend(self, heap, size):
        found = []
        for other in self.progress:
            if other.pool == heap.pool and other != heap and self.fit(other, size):
                self.look(other)
                found += [
                    block
                    for segment in self.everywhere()
                    if segment.heap == other
                    for block in segment.blocks
                    if block.state is FREE and block.size >= size and self.is_settled(block)
                ]
        return min(found, key=lambda block: (block.size, block.place), default=None)

    def obtain(self, heap, size, across):
        if not self.stitching:
            return self.grow_at_end(heap, size)
        if self.grow_within(heap, size, self.slack):
            return True
        self.send_home()
        if self.fit(heap, size):
            return True
        found = self.free_pages(heap, across)
        available = sum(slot.size for slots in found.values() for slot in slots)
        window = self.old_window(heap, size, found) if available >= size else None
        if window:
            self.happened["revived"] += 1
            self.count_credit(WINDOW_PRICE + len(window.slots))
        elif self.slack == AUTO and self.is_overdrawn():
            refused = self.refused
            if self.grow_within(heap, size, THRIFTY_SLACK):
                self.happened["thrifty"] += 1
                return True
            if self.refused != refused:
                return True
        if available < size:
            return self.grow_by(heap, size - available, fills=True)
        if not window:
            self.happened["stitched"] += 1
            window = self.new_window(heap, size, found)
            self.count_credit(-WINDOW_PRICE - len(window.slots))
        self.move_in(window)
        return True

    def grow_within(self, heap, size, slack):
        peak, live = (self.statistics.flat[f"allocated_bytes.all.{part}"] for part in ("peak", "current"))
        need = self.need_at_end(heap, size)
        total = self.reserved() + need
        if slack <= 0 or total > (1 + slack) * max(peak, live + size) or total >= self.refused:
            return False
        if self.grow_at_end(heap, size):
            return True
        if total <= self.limit:
            self.refused = total
            self.happened["refused"] += 1
        return False

    # whether windows pay

    def count_credit(self, amount):
        self.credit = min(MOST_CREDIT, self.credit + self.allocations - self.earned)
        self.credit = max(-MOST_CREDIT, min(MOST_CREDIT, self.credit + amount))
        self.earned = self.allocations

    def is_overdrawn(self):
        self.count_credit(0)
        return self.credit < 0

    def free_pages(self, heap, across):
        """{free block: [the slots wholly in it]}, that a heap may have; others' only if across."""
        for other in self.progress if across else ():
            if other.pool == heap.pool and other != heap and self.has_page(other):
                self.look(other)
        return {
            block: slots
            for segment in self.everywhere()
            if segment.heap.pool == heap.pool
            for block in segment.blocks
            if block.state is FREE and (segment.heap == heap or (across and self.is_settled(block)))
            if (slots := whole_slots(block))
        }

    def old_window(self, heap, size, found):
        free = set(itertools.chain(*found.values()))
        for window in self.windows:
            if window.heap != heap or window.spoiled or window.size < size:
                continue
            if window.size - window.slots[-1].size >= size and window.size > size + size // 6:
                continue
            if not any(slot.at_home() for slot in window.slots) and all(
                slot.piece.home in free for slot in window.slots
            ):
                return window
        return None

    def new_window(self, heap, size, found):
        chosen = []
        for block in sorted(found, key=lambda block: (-block.size, block.place)):
            for slot in found[block]:
                if sum(each.size for each in chosen) < size:
                    chosen.append(slot)
        window = self.new_segment(heap, WINDOW, sum(slot.size for slot in chosen))
        for slot in chosen:
            append_slot(window, slot.piece)
        self.windows.append(window)
        self.count_calls(1 + len(chosen) + 1)
        self.statistics.count("stitched_bytes", window.room)
        self.statistics.count("reserved_addresses", window.room)
        return window

    def move_in(self, window):
        for slot in window.slots:
            self.happened["lent"] += slot.piece.home.segment.heap != window.heap
            self.vacate(slot.piece)
            slot.piece.home = slot
        self.clock += 1
        window.blocks = [Block(window, 0, window.size, freed=self.clock)]
        self.progress[window.heap].last_freed = self.clock
        self.touched[window] = True

    # pages go home

    def freed(self, block):
        self.progress[block.segment.heap].last_freed = self.clock
        if block.segment.shape is WINDOW:
            self.go_home(block)

    def go_home(self, block):
        heap, freed = block.segment.heap, block.freed
        for slot in whole_slots(block):
            home = slot.piece.slots[0]
            own = home.segment.heap == heap
            if not own and freed > self.progress[heap].settled:
                self.look(heap)
                if freed > self.progress[heap].settled:
                    self.progress[heap].lingers = True
                    self.happened["lingered"] += 1
                    continue
            self.vacate(slot.piece)
            self.settle_in(home, freed if own else 0)

    def send_home(self):
        for heap, progress in self.progress.items():
            if progress.lingers:
                progress.lingers = False
                self.look(heap)
                for window in self.windows:
                    if window.heap == heap:
                        for block in [block for block in window.blocks if block.state is FREE]:
                            self.go_home(block)

    # streams

    def has_page(self, heap):
        return any(
            block.state is FREE and block.size >= GRANULE
            for each in self.everywhere()
            if each.heap == heap
            for block in each.blocks
        )

    def is_settled(self, block):
        return block.freed <= self.progress[block.segment.heap].settled

    def look(self, heap):
        progress = self.progress[heap]
        if progress.last_freed <= progress.settled:
            return
        if progress.marker and progress.complete:
            progress.settled, progress.marker = max(progress.settled, progress.mark), False
        if progress.last_freed <= progress.settled:
            return
        if heap.stream not in self.gated:
            progress.settled = self.clock
        elif not progress.marker:
            progress.mark, progress.marker, progress.complete = self.clock, True, False

    def open_gate(self, stream):
        super().open_gate(stream)
        for heap, progress in self.progress.items():
            if heap.stream == stream:
                progress.complete = True

    def wait(self):
        super().wait()
        self.wait_for_device()

    def wait_for_device(self):
        if not self.pieces and not self.windows:
            return
        if self.gated:
            self.wait_for_gates()
        for progress in self.progress.values():
            progress.settled = self.clock
        self.send_home()

    # the device

    def give_back(self):
        self.wait_for_device()
        for window in list(self.windows):
            if window.heap.pool not in self.held and not any(slot.at_home() for slot in window.slots):
                self.drop(window)
        for piece in list(self.pieces):
            slot = piece.home
            if slot.segment.heap.pool not in self.held and any(
                block.state is FREE and slot.within(block) for block in slot.segment.blocks
            ):
                self.vacate(piece)
                self.release_piece(piece)
        self.refused = math.inf
        if not self.pieces and not self.windows:
            self.credit = MOST_CREDIT
        self.trim()
        for progress in self.progress.values():
            progress.marker = False

    def drop(self, window):
        mapped = [slot for slot in window.slots if slot.piece]
        self.count_calls(len(mapped) + 1)
        self.statistics.count("stitched_bytes", -sum(slot.size for slot in mapped))
        self.statistics.count("reserved_addresses", -window.room)
        for slot in mapped:
            slot.piece.slots.remove(slot)
        self.windows.remove(window)
        self.touched[window] = True
        window.blocks = []
