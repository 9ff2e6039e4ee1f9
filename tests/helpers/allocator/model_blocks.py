"""What the model of the allocator is made of: blocks, segments, and their figures."""

from dataclasses import dataclass, field
from typing import NamedTuple

from model_statistics import KINDS, SHARED

MIB = 1 << 20
UNIT = 512
LIVE, PENDING, FREE, HOLE = "active_allocated", "active_pending_free", "inactive", "hole"
PLAIN, SPAN, WINDOW = "plain", "span", "window"
SHARED_KINDS = [(figure, kind) for kind in KINDS for figure in SHARED]


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
    kind: str = ""  # by the size that was handed out
    requested: int = 0
    uses: dict = field(default_factory=dict)  # the other streams that were recorded on it, as keys
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
    room: int  # bytes of addresses
    blocks: list = field(default_factory=list)  # by offset
    slots: list = field(default_factory=list)  # by offset; none where plain
    spoiled: bool = False  # a window that lost a page
    told: tuple = (0,) * len(SHARED_KINDS)  # the figures that the statistics have of it

    @property
    def size(self):
        return self.blocks[-1].end if self.blocks else 0

    def figures(self):
        """What the segment adds to each of SHARED_KINDS."""
        sums = {kind: [0] * len(SHARED) for kind in KINDS}
        for block in self.blocks:
            if block.state is FREE:
                if self.shape is not PLAIN or len(self.blocks) > 1:
                    sums[self.heap.kind][5] += 1
                    sums[self.heap.kind][6] += block.size
            elif block.state is not HOLE:
                told = sums[block.kind]
                if block.state is LIVE:
                    told[0] += 1
                    told[1] += block.size
                told[2] += 1
                told[3] += block.size
                told[4] += block.requested
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
