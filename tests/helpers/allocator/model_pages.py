"""The model of the allocator with virtual memory: stitched segments map pages a second time."""

import itertools
import math
from dataclasses import dataclass

from model import OutOfMemory
from model_blocks import FREE, MIB, STITCHED, UNIT, Block, Heap
from model_physical import GRANULE, PhysicalPages, append_slot, whole_slots

AUTO = -1.0  # growth slack: by the stitching budget
MAX_BUDGET, STITCH_PRICE, CALL_PRICE, THRIFTY_SLACK = 65536, 64, 12, 0.25
NOVEL_RESERVE = MAX_BUDGET * 3 // 4  # of the budget, for work whose sizes recur
SMALL_SLACK = 1 / 1024
MOST_FITS = 4096


@dataclass(slots=True)
class Progress:
    """What is known of the progress of a heap's stream, as moments of the model's clock."""

    quiescent_until: int = 0  # no work of the stream uses what was freed until then
    last_freed: int = 0  # nothing newer is free in the heap
    recorded_at: int = 0  # of the progress event: once it is complete, what was freed until then is quiescent
    progress_event: bool = False  # one is recorded
    complete: bool = False
    keeps_pages: bool = False  # pages of other heaps are free in its stitched segments, not returned yet


class PagedModel(PhysicalPages):
    """A pool with virtual memory; page_size is the size of its pages, 0 for one by the reserved bytes."""

    def __init__(self, capacity, first_serial=0, stitching=True, page_size=0, slack=AUTO):
        super().__init__(capacity, first_serial, page_size)
        self.stitching, self.slack = stitching, slack
        self.stitched = []  # stitched segments, oldest first
        self.fits = []  # their parts that were used, oldest first: (segment, number of the first slot, count)
        self.stitch_budget, self.budget_allocations = MAX_BUDGET, 0  # budget; the allocations that earned it
        self.past_sizes, self.recurring, self.novel = {}, 0, 0  # of requests that looked for pages
        self.credit_from = (0, 0)  # allocations and calls since which the credit for calls is counted
        self.progress = {}  # heap -> Progress
        self.guarded = {}  # page that went home before its stream was asked -> slot where it was freed, when

    def all_segments(self):
        return self.segments + self.stitched

    def heap_for(self, size, stream, pool):
        heap = Heap(pool, stream, "large")
        self.progress.setdefault(heap, Progress())
        return heap

    def splits(self, block, rest):
        return rest > 0

    # an allocation without a fit

    def grows_first(self, heap, size):
        if not self.stitching:
            return False
        if size > MIB or self.reserved() + size <= 16 * MIB:
            return self.reserved() + size <= 16 * MIB
        if self.last_expandable(heap) is None and len(self.segments) < 32:
            return True
        return not self.has_much_budget() or self.is_within_slack(heap, size, SMALL_SLACK)

    def find_or_grow(self, heap, size, across=True):
        self.before_use(heap)
        block = self.fit(heap, size)
        while not block and self.grow_or_stitch(heap, size, across):
            self.before_use(heap)
            block = self.fit(heap, size)
        return block

    def last_growth(self, heap, size):
        return None

    def borrow(self, heap, size):
        self.confirm_pages()
        found = []
        for other in self.progress:
            if other.pool == heap.pool and other != heap and self.fit(other, size):
                self.poll_progress(other)
                found += [
                    block
                    for segment in self.all_segments()
                    if segment.heap == other
                    for block in segment.blocks
                    if block.state is FREE and block.size >= size and self.is_quiescent(block)
                ]
        return min(found, key=lambda block: (block.size, block.place), default=None)

    def grow_or_stitch(self, heap, size, across):
        if not self.stitching:
            return self.grow_at_end(heap, size)
        if self.grow_within(heap, size, self.slack):
            return True
        self.return_all_pages()
        if self.fit(heap, size):
            return True
        if not self.searched:
            self.searched = True
            self.note_size(size)
        found = self.find_pages(heap, across)
        available = sum(slot.size for slots in found.values() for slot in slots)
        part = self.reusable_part(heap, size, found) if available >= size else None
        if part:
            self.happened["reused"] += 1
        elif self.slack == AUTO and self.is_over_budget():
            refused = self.refused
            if self.grow_within(heap, size, THRIFTY_SLACK):
                self.happened["grown over budget"] += 1
                return True
            if self.refused != refused:
                return True
        if available < size:
            return self.grow_pages(heap, size - available, fills=True)
        if not part:
            self.happened["stitched"] += 1
            self.confirm_pages()
            found = {
                block: slots for block in self.free_blocks(heap, across) if (slots := whole_slots(block))
            }
            segment = self.make_stitched(heap, size, found)
            self.change_budget(-STITCH_PRICE - CALL_PRICE * len(segment.slots))
            part = segment, 0, len(segment.slots)
            self.fits.append(part)
        self.move_pages_in(*part)
        return True

    def is_within_slack(self, heap, size, slack):
        peak, live = (self.statistics.flat[f"allocated_bytes.all.{part}"] for part in ("peak", "current"))
        total = self.reserved() + self.need_at_end(heap, size)
        return slack > 0 and total <= (1 + slack) * max(peak, live + size) and total < self.refused

    def grow_within(self, heap, size, slack):
        if not self.is_within_slack(heap, size, slack):
            return False
        total = self.reserved() + self.need_at_end(heap, size)
        if self.grow_at_end(heap, size):
            return True
        if total <= self.limit:
            self.refused = total
            self.happened["refused"] += 1
        return False

    # the stitching budget

    def change_budget(self, amount):
        """First earns 1 for each allocation since the last change."""
        earned = self.allocations - self.budget_allocations
        self.stitch_budget = min(MAX_BUDGET, self.stitch_budget + earned)
        self.stitch_budget = max(-MAX_BUDGET, min(MAX_BUDGET, self.stitch_budget + amount))
        self.budget_allocations = self.allocations

    def is_over_budget(self):
        self.change_budget(0)
        return self.stitch_budget < (0 if self.sizes_recur() else NOVEL_RESERVE)

    def has_much_budget(self):
        self.change_budget(0)
        return self.sizes_recur() and self.stitch_budget >= MAX_BUDGET // 2

    def note_size(self, size):
        unit = size // UNIT
        place = (unit * 0x9E3779B1 & 0xFFFFFFFF) >> 22
        recurs = self.past_sizes.get(place) == unit
        self.past_sizes[place] = unit
        self.recurring += recurs
        self.novel += not recurs
        if self.recurring + self.novel > 1024:
            self.recurring //= 2
            self.novel //= 2

    def sizes_recur(self):
        return 4 * self.recurring >= self.recurring + self.novel

    # stitched segments

    def find_pages(self, heap, across):
        self.confirm_pages(heap)
        with_pages = self.heaps_with_pages() if across else ()
        for other in self.progress if with_pages else ():
            if other.pool == heap.pool and other != heap and other in with_pages:
                self.poll_progress(other)
        blocks = self.free_blocks(heap, across)
        found = {block: slots for block in blocks if (slots := whole_slots(block))}
        self.stuck = sum(block.size for block in blocks) - sum(
            slot.size for slots in found.values() for slot in slots
        )
        total = self.reserved()
        credit = self.allocations - self.credit_from[0] - 12 * (self.calls - self.credit_from[1])
        self.fits_closely = (
            self.stuck > total // 100 and self.has_much_budget() and credit + 12 * (total // (MIB // 2)) >= 0
        )
        self.happened["fitted closely"] += self.fits_closely
        return found

    def free_blocks(self, heap, across):
        """As large as a page may be, of which a heap may have the pages; those of others only if across."""
        return [
            block
            for segment in self.all_segments()
            if segment.heap.pool == heap.pool
            for block in segment.blocks
            if block.size >= GRANULE and block.state is FREE
            if segment.heap == heap or (across and self.is_quiescent(block))
        ]

    def reusable_part(self, heap, size, found):
        """What was used before, the oldest first, or a new part of the oldest segment with one; or None."""
        free = set(itertools.chain(*found.values()))
        for segment, first, count in self.fits:
            slots = segment.slots[first : first + count]
            held = sum(slot.size for slot in slots)
            if segment.heap != heap or segment.incomplete or held < size:
                continue
            if held - slots[-1].size >= size and held > size + size // 6:
                continue
            if all(slot.page.resident in free for slot in slots):
                self.change_budget(STITCH_PRICE + CALL_PRICE * count)
                return segment, first, count
        return self.new_part(heap, size, free)

    def new_part(self, heap, size, free):
        """Of the oldest segment that has one: the fewest bytes in a row, the first among equals."""
        looks, most = 0, size + max(GRANULE, size // 6 + 1)
        for segment in self.stitched:
            if segment.heap != heap or segment.incomplete or segment.size < size or looks >= 16384:
                continue
            slots = segment.slots
            looks += len(slots)
            rows, first = [], 0
            for last, end in enumerate([slot.end for slot in slots]):
                while first < last and end - slots[first + 1].offset >= size:
                    first += 1
                held = end - slots[first].offset
                if held >= size and all(slot.page.resident in free for slot in slots[first : last + 1]):
                    rows.append((held, first, last + 1 - first))
            if rows and min(rows)[0] < most:
                self.happened["reused in part"] += 1
                part = segment, *min(rows)[1:]
                if sum(fit[0].heap == heap for fit in self.fits) < MOST_FITS:
                    self.fits.append(part)
                return part
        return None

    def make_stitched(self, heap, size, found):
        chosen = self.choose(found, size)
        segment = self.new_segment(heap, STITCHED, sum(slot.size for slot in chosen))
        for slot in chosen:
            append_slot(segment, slot.page)
        self.stitched.append(segment)
        self.take_addresses(segment)
        self.count_calls(len(chosen) + 1)
        self.statistics.count("stitched_bytes", segment.held)
        return segment

    def choose(self, found, size):
        """Slots of the largest blocks first, in which the size fits."""
        most = size + size // 64 if self.fits_closely else math.inf
        chosen, passed, total = [], [], 0
        for block in sorted(found, key=lambda block: (-block.size, block.place)):
            for slot in found[block] if total < size else ():
                if total >= size:
                    break
                if total + slot.size <= most:
                    chosen.append(slot)
                    total += slot.size
                else:
                    passed.append(slot)
        if total >= size:
            return chosen
        last = min(passed, key=lambda slot: slot.size)
        spare = total + last.size - size
        for slot in reversed(list(chosen)):
            if slot.size <= spare:
                chosen.remove(slot)
                spare -= slot.size
        return [*chosen, last]

    def move_pages_in(self, stitched, first, count):
        slots = stitched.slots[first : first + count]
        for slot in slots:
            self.happened["from other heaps"] += slot.page.resident.segment.heap != stitched.heap
            self.evict(slot.page)
        for slot in slots:
            slot.page.resident = slot
        self.clock += 1
        block = Block(stitched, slots[0].offset, slots[-1].end - slots[0].offset, freed=self.clock)
        low = slots[0].index()
        stitched.blocks[low : slots[-1].index() + 1] = [block]
        self.merge(block)
        self.progress[stitched.heap].last_freed = self.clock
        self.touched[stitched] = True

    # pages return to their expandable segments

    def after_free(self, block):
        self.progress[block.segment.heap].last_freed = self.clock
        if block.segment.shape is STITCHED:
            self.return_pages(block, True)

    def return_pages(self, block, now):
        """now: right after the block was freed; what a heap keeps is not guarded."""
        heap, freed = block.segment.heap, block.freed
        for slot in whole_slots(block):
            primary = slot.page.slots[0]
            own = primary.segment.heap == heap
            guards = not own and freed > self.progress[heap].quiescent_until
            if guards and not (now and self.may_guard(heap, primary.segment.heap)):
                guards = False
                self.poll_progress(heap)
                if freed > self.progress[heap].quiescent_until:
                    self.progress[heap].keeps_pages = True
                    self.happened["kept pages"] += 1
                    continue
            self.evict(slot.page)
            self.make_resident(primary, freed if own else 0)
            if guards:
                self.guarded[slot.page] = (slot, freed)
                self.happened["guarded"] += 1

    def may_guard(self, heap, home):
        return not (self.progress[heap].progress_event or heap.pool or home.pool)

    def evict(self, page):
        self.guarded.pop(page, None)
        super().evict(page)

    def before_use(self, heap):
        if any(page.resident.segment.heap == heap for page in self.guarded):
            self.confirm_pages(heap)

    def confirm_pages(self, requester=None):
        """Asks the streams that may still use guarded pages, but for the requester's own."""
        for page, (slot, freed) in reversed(list(self.guarded.items())):
            heap = slot.segment.heap
            if heap == requester:
                continue
            self.poll_progress(heap)
            if freed <= self.progress[heap].quiescent_until:
                del self.guarded[page]
                continue
            self.evict(page)
            self.make_resident(slot, freed)
            self.progress[heap].keeps_pages = True
            self.happened["taken back"] += 1

    def return_all_pages(self):
        for heap, progress in self.progress.items():
            if progress.keeps_pages:
                progress.keeps_pages = False
                self.poll_progress(heap)
                for segment in self.stitched:
                    if segment.heap == heap:
                        for block in [block for block in segment.blocks if block.state is FREE]:
                            self.return_pages(block, False)

    # streams

    def heaps_with_pages(self):
        """The heaps with a free block that is as large as a page may be."""
        found = set()
        for segment in self.all_segments():
            for block in segment.blocks if segment.heap not in found else ():
                if block.size >= GRANULE and block.state is FREE:
                    found.add(segment.heap)
                    break
        return found

    def is_quiescent(self, block):
        return block.freed <= self.progress[block.segment.heap].quiescent_until

    def poll_progress(self, heap):
        progress = self.progress[heap]
        if progress.last_freed <= progress.quiescent_until:
            return
        if progress.progress_event and progress.complete:
            progress.quiescent_until = max(progress.quiescent_until, progress.recorded_at)
            progress.progress_event = False
        if progress.last_freed <= progress.quiescent_until:
            return
        if heap.stream not in self.gated:
            progress.quiescent_until = self.clock
        elif not progress.progress_event:
            progress.recorded_at, progress.progress_event, progress.complete = self.clock, True, False

    def open_gate(self, stream):
        super().open_gate(stream)
        for heap, progress in self.progress.items():
            if heap.stream == stream:
                progress.complete = True

    def wait(self):
        super().wait()
        self.wait_for_device()

    def wait_for_device(self):
        if not self.pages and not self.stitched:
            return
        if self.gated:
            self.wait_for_gates()
        for progress in self.progress.values():
            progress.quiescent_until = self.clock
        self.return_all_pages()

    # sleep and wake

    def sleep(self, pool):
        self.waited = False
        self.wait()
        for page in self.pages_of(pool, suspended=False):
            self.suspend(page)
        self.suspended.add(pool)
        self.happened["slept"] += 1
        self.count()

    def wake(self, pool):
        self.waited = False
        woken = self.resume(self.pages_of(pool, suspended=True))
        if not woken:
            self.wait_for_events()
            self.give_back()
            woken = self.resume(self.pages_of(pool, suspended=True))
        self.count()
        if not woken:
            self.happened["slept on"] += 1
            raise OutOfMemory
        self.suspended.discard(pool)
        self.happened["woken"] += 1

    def holds_idle_pools(self):
        return {pool for pool in self.retained if self.pages_of(pool, suspended=False)}

    # the device

    def give_back(self):
        self.wait_for_device()
        self.confirm_pages()
        for segment in list(self.stitched):
            if segment.heap.pool not in self.retained and not any(
                slot.is_resident() for slot in segment.slots
            ):
                self.drop_stitched(segment)
        for page in list(self.pages):
            slot = page.resident
            if slot.segment.heap.pool not in self.retained and slot.is_free():
                self.evict(page)
                self.release_page(page)
        self.refused = math.inf
        self.trim_all_expandable()
        if not self.pages and not self.stitched:
            self.stitch_budget = MAX_BUDGET
            self.past_sizes, self.recurring, self.novel = {}, 0, 0
            self.credit_from = (self.allocations, self.calls)
        for progress in self.progress.values():
            progress.progress_event = False

    def drop_stitched(self, stitched):
        held = [slot for slot in stitched.slots if slot.page]
        mapped = [slot for slot in held if not slot.page.suspended]
        self.count_calls(len(mapped))
        self.statistics.count("stitched_bytes", -sum(slot.size for slot in mapped))
        self.free_addresses(stitched)
        for slot in held:
            slot.page.slots.remove(slot)
        self.stitched.remove(stitched)
        self.fits = [fit for fit in self.fits if fit[0] is not stitched]
        self.touched[stitched] = True
        stitched.blocks = []
