"""What the model of the allocator is made of: blocks, segments, and their statistics."""

from dataclasses import dataclass, field
from typing import NamedTuple

from model_statistics import KINDS, PER_HEAP

MIB = 1 << 20
UNIT = 512
LIVE, PENDING, FREE, HOLE = "active_allocated", "active_pending_free", "inactive", "hole"
PLAIN, EXPANDABLE, STITCHED = "plain", "expandable", "stitched"
PER_HEAP_KINDS = [(stat, kind) for kind in KINDS for stat in PER_HEAP]


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
    kind: str = ""  # by the block's size when it was allocated
    requested: int = 0
    uses: dict = field(default_factory=dict)  # the other streams recorded on it, as keys
    events: int = 0  # queue entries that name it
    freed: int = 0  # when the last of its bytes was freed, by the model's clock

    @property
    def place(self):
        return self.segment.serial, self.offset

    @property
    def end(self):
        return self.offset + self.size


@dataclass(eq=False, slots=True)
class Segment:
    serial: int
    heap: Heap
    shape: str
    held: int  # bytes of addresses that it has
    blocks: list = field(default_factory=list)  # by offset
    slots: list = field(default_factory=list)  # by offset; none where plain
    incomplete: bool = False  # a stitched segment that lost a page
    addresses: tuple = None  # its reservation, and from which granule of that; none where plain
    counted: tuple = (0,) * len(PER_HEAP_KINDS)  # its stats as the model's statistics hold them

    @property
    def size(self):
        return self.blocks[-1].end if self.blocks else 0

    def stats(self):
        """What the segment adds to each of PER_HEAP_KINDS."""
        sums = {kind: [0] * len(PER_HEAP) for kind in KINDS}
        for block in self.blocks:
            if block.state is FREE:
                if self.shape is not PLAIN or len(self.blocks) > 1:
                    sums[self.heap.kind][5] += 1
                    sums[self.heap.kind][6] += block.size
            elif block.state is not HOLE:
                totals = sums[block.kind]
                if block.state is LIVE:
                    totals[0] += 1
                    totals[1] += block.size
                totals[2] += 1
                totals[3] += block.size
                totals[4] += block.requested
        return (*sums["small"], *sums["large"])

    def idle(self):
        return len(self.blocks) == 1 and self.blocks[0].state is FREE


@dataclass(eq=False, slots=True)
class Event:
    block: Block
    stream: object  # behind whose work it was recorded
    complete: bool


def round_up(size, unit):
    return -(-size // unit) * unit


def kind_of(size):
    return "small" if size <= MIB else "large"
