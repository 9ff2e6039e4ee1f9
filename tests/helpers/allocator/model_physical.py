"""Physical pages in the model of the allocator: where they are mapped and resident, and growth."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter

from model import Model
from model_blocks import EXPANDABLE, FREE, HOLE, MIB, STITCHED, Block, Segment, round_up

GRANULE = 2 * MIB
GIB = 1 << 30
RESERVED = 1 << 15  # granules of a reservation
by_offset = attrgetter("offset")


@dataclass(eq=False, slots=True)
class Page:
    size: int
    slots: list = field(default_factory=list)  # all it is mapped in; the first is in an expandable segment
    resident: "Slot" = None
    suspended: bool = False  # its pool sleeps: the device has the memory, and it is mapped nowhere


@dataclass(eq=False, slots=True)
class Slot:
    segment: Segment
    offset: int
    size: int
    page: Page  # None once the page was released: the addresses stay

    def is_resident(self):
        return self.page is not None and self.page.resident is self

    @property
    def end(self):
        return self.offset + self.size

    def index(self):
        """Of the block, in its segment's blocks, that the slot begins in."""
        return bisect_right(self.segment.blocks, self.offset, key=by_offset) - 1

    def is_free(self):
        block = self.segment.blocks[self.index()]
        return block.state is FREE and self.end <= block.end


class PhysicalPages(Model):
    """Physical pages, the expandable segments that they are mapped in first, and growth."""

    def __init__(self, capacity, first_serial=0, page_size=0):
        super().__init__(capacity, first_serial)
        self.wanted_page_size = page_size  # 0: by the reserved bytes
        self.pages = []  # in the order in which they were made
        self.reservations = []  # of addresses: a byte for each granule, 1 where a segment has it
        self.calls = 0  # of the driver's virtual memory
        self.stuck = 0  # bytes free outside whole pages, by the last search
        self.fits_closely = False  # pages are made and chosen so that less is stuck
        self.refused = math.inf  # the reserved bytes that the device last refused to growth within the slack

    def held(self):
        return sum(page.size for page in self.pages if not page.suspended)

    def usual_growth(self, size):
        return round_up(size, GRANULE)

    # where pages are resident

    def evict(self, page):
        """The slot where the page is resident becomes a hole."""
        slot, blocks = page.resident, page.resident.segment.blocks
        index = slot.index()
        block = blocks[index]
        assert slot.end <= block.end
        ends = [(block.offset, slot.offset), (slot.offset, slot.end), (slot.end, block.end)]
        blocks[index : index + 1] = [
            Block(slot.segment, low, high - low, HOLE if low == slot.offset else FREE, freed=block.freed)
            for low, high in ends
            if low < high
        ]
        page.resident = None
        self.touched[slot.segment] = True

    def make_resident(self, slot, freed=0):
        """The slot's page becomes resident in it, and its hole a free block."""
        block = next(block for block in slot.segment.blocks if block.offset == slot.offset)
        block.state, block.freed = FREE, freed
        slot.page.resident = slot
        self.merge(block)

    # the device

    def count_calls(self, calls):
        self.calls += calls
        self.statistics.count("virtual_memory_calls", calls)

    def take_addresses(self, segment):
        """The first run of free granules that is long enough, in the first reservation that has one."""
        wanted = bytes(segment.held // GRANULE)
        found = next((each for each in self.reservations if each.find(wanted) >= 0), None)
        if found is None:
            found = bytearray(max(RESERVED, len(wanted)))
            self.reservations.append(found)
            self.count_calls(1)
        first = found.find(wanted)
        found[first : first + len(wanted)] = b"\1" * len(wanted)
        segment.addresses = (found, first)
        self.statistics.count("reserved_addresses", segment.held)

    def free_addresses(self, segment):
        """A reservation goes back with the last of its segments."""
        found, first = segment.addresses
        count = segment.held // GRANULE
        found[first : first + count] = bytes(count)
        if not any(found):
            self.reservations = [each for each in self.reservations if each is not found]
            self.count_calls(1)
        self.statistics.count("reserved_addresses", -segment.held)

    def make_page(self, size):
        self.count_calls(1)
        while self.reserved() + size > self.capacity:
            if size == GRANULE:
                return None
            size = round_up(size // 2, GRANULE)
            self.happened["halved"] += 1
            self.count_calls(1)
        page = Page(size)
        self.pages.append(page)
        self.statistics.change("reserved_bytes", "large", size)
        self.statistics.count("num_device_alloc")
        return page

    def release_page(self, page, mapped=True):
        for slot in page.slots:
            slot.page = None
            if slot.segment.shape is STITCHED:
                slot.segment.incomplete = True
        self.pages.remove(page)
        if page.suspended:
            self.statistics.count("sleeping_bytes", -page.size)
            return
        self.count_calls(len(page.slots) * mapped + 1)
        self.statistics.count("stitched_bytes", -mapped_twice(page))
        self.statistics.change("reserved_bytes", "large", -page.size)
        self.statistics.count("num_device_free")

    # sleep and wake

    def pages_of(self, pool, suspended):
        """None is resident in another pool's segments here: a pool that nobody retains is emptied at once."""
        return [
            page
            for page in self.pages
            if page.slots[0].segment.heap.pool == pool and page.suspended == suspended
        ]

    def suspend(self, page):
        page.suspended = True
        self.count_calls(len(page.slots) + 1)
        self.statistics.count("stitched_bytes", -mapped_twice(page))
        self.statistics.count("sleeping_bytes", page.size)
        self.statistics.change("reserved_bytes", "large", -page.size)
        self.statistics.count("num_device_free")

    def resume(self, pages):
        """Whether all of the pages could be had again."""
        if self.reserved() + sum(page.size for page in pages) > self.limit:
            return False
        room = self.capacity - self.reserved()
        for index, page in enumerate(pages):
            self.count_calls(1)
            room -= page.size
            if room < 0:
                self.count_calls(index)  # those made before are released
                return False
        slots = [slot for page in pages for slot in page.slots]
        self.count_calls(len(slots) + count_runs(slots))
        for page in pages:
            page.suspended = False
            self.statistics.count("stitched_bytes", mapped_twice(page))
            self.statistics.count("sleeping_bytes", -page.size)
            self.statistics.change("reserved_bytes", "large", page.size)
            self.statistics.count("num_device_alloc")
        return True

    def page_size(self, expandable, need, whole):
        """For a growth by whole, of which need bytes are still missing."""
        total = max(self.reserved(), need)
        live, blocks = (
            self.statistics.flat[f"{name}.all.current"] for name in ("allocated_bytes", "allocation")
        )
        mean = (live + whole) // (blocks + 1)
        largest = 6 * MIB if 4 * MIB <= mean < 20 * MIB and total >= 1024 * MIB else 16 * MIB
        target = min(total // 64, max(largest, total // 512))
        if self.fits_closely:
            target = min(target, total // 100 * largest // self.stuck)
        if MIB <= mean < 256 * MIB and any(each.heap != expandable.heap for each in self.segments):
            target = min(target, max(whole // 4, total // 4096))
        elif MIB <= mean < 20 * MIB:
            target = min(target, max(whole // 4, total // 256))
        elif mean >= 256 * MIB:
            target = max(target, min(max(total, whole), mean) // 3)
        size = self.wanted_page_size or GRANULE
        while not self.wanted_page_size and size * 2 <= target:
            size *= 2
        if not self.wanted_page_size and size < largest <= target:
            size = largest
        if not self.wanted_page_size and mean < MIB:
            need = max(need, self.size_ahead(expandable))
        return min(size, need)

    def size_ahead(self, expandable):
        """How large a page may be although less is needed."""
        size = GRANULE
        while size * 2 <= expandable.size // 256:
            size *= 2
        fits = expandable.held - expandable.size >= size and self.reserved() + size <= self.limit
        return size if fits else 0

    def need_at_end(self, heap, size):
        """The growth after which a block of the size fits at the end of the last expandable segment."""
        last = self.last_expandable(heap)
        if last and last.blocks and last.blocks[-1].state is FREE and last.blocks[-1].size < size:
            need = round_up(size - last.blocks[-1].size, GRANULE)
            if last.held - last.size >= need:
                return need
        return round_up(size, GRANULE)

    def grow_at_end(self, heap, size):
        return self.grow_pages(heap, self.need_at_end(heap, size), fills=False)

    def grow_pages(self, heap, need, fills):
        need = round_up(need, GRANULE)
        if self.reserved() + need > self.limit:
            return False
        if need >= 256 * MIB and self.reserved() + need > self.capacity:
            return False
        gaps = [slot for each in self.segments if each.heap == heap for slot in each.slots if not slot.page]
        for slot in gaps if fills else ():
            if slot.size <= need:
                if not self.fill_slot(slot):
                    return False
                need -= slot.size
        return need == 0 or self.append_pages(self.ensure_capacity(heap, need), need)

    def fill_slot(self, slot):
        page = self.make_page(slot.size)
        if page and page.size < slot.size:
            self.release_page(page, mapped=False)
            page = None
        if page:
            self.happened["filled"] += 1
            self.count_calls(2)
            slot.page, page.slots = page, [slot]
            self.make_resident(slot)
        return page is not None

    def append_pages(self, expandable, need):
        made, whole = [], need
        while need > 0:
            page = self.make_page(self.page_size(expandable, need, whole))
            if not page:
                for slot in made:
                    self.release_page(slot.page, mapped=False)
                self.trim_all_expandable()
                return False
            made.append(append_slot(expandable, page))
            need -= page.size
        self.count_calls(len(made) + 1)
        for slot in made:
            self.make_resident(slot)
        return True

    def last_expandable(self, heap):
        return next((segment for segment in reversed(self.segments) if segment.heap == heap), None)

    def ensure_capacity(self, heap, need):
        """The heap's last expandable segment, or a new one if that has too few addresses left."""
        last = self.last_expandable(heap)
        if not last or last.held - last.size < need:
            room = 16 * GIB if last and last.held >= 4 * GIB else 4 * GIB
            if not last and len(self.segments) >= 64:
                room = 64 * MIB
            last = self.new_segment(heap, EXPANDABLE, max(need, room))
            self.segments.append(last)
            self.take_addresses(last)
            self.statistics.change("segment", "large", 1)
        return last

    def trim_all_expandable(self):
        """Cuts off addresses without pages at the end of expandable segments, and drops empty segments."""
        for segment in list(self.segments):
            while segment.slots and segment.slots[-1].page is None:
                segment.slots.pop()
                segment.blocks.pop()
                self.touched[segment] = True
            if not segment.slots:
                self.segments.remove(segment)
                self.free_addresses(segment)
                self.statistics.change("segment", "large", -1)


def mapped_twice(page):
    return sum(slot.size for slot in page.slots if slot.segment.shape is STITCHED)


def count_runs(slots):
    """How many runs of slots that follow each other in one segment."""
    ends = {(slot.segment.serial, slot.offset + slot.size) for slot in slots}
    return sum((slot.segment.serial, slot.offset) not in ends for slot in slots)


def whole_slots(block):
    if block.size < GRANULE:  # most free blocks
        return []
    slots = block.segment.slots
    first = bisect_left(slots, block.offset, key=by_offset)
    after = bisect_right(slots, block.end, key=attrgetter("end"))
    return slots[first:after]


def append_slot(segment, page):
    slot = Slot(segment, segment.size, page.size, page)
    segment.slots.append(slot)
    segment.blocks.append(Block(segment, slot.offset, slot.size, HOLE))
    page.slots.append(slot)
    return slot
