"""Physical pieces of memory in the model of the allocator, and where they are at home."""

import math
from dataclasses import dataclass, field

from model import Model
from model_blocks import FREE, HOLE, MIB, SPAN, WINDOW, Block, Segment, round_up

GRANULE = 2 * MIB
GIB = 1 << 30


@dataclass(eq=False, slots=True)
class Piece:
    size: int
    slots: list = field(default_factory=list)  # all that it is mapped in; the first is in a span
    home: "Slot" = None


@dataclass(eq=False, slots=True)
class Slot:
    segment: Segment
    offset: int
    size: int
    piece: Piece

    def at_home(self):
        return self.piece is not None and self.piece.home is self

    def within(self, block):
        return block.offset <= self.offset and self.offset + self.size <= block.end


class Pieces(Model):
    """Pieces of memory, the spans that they have their first home in, and growth."""

    def __init__(self, capacity, first_serial=0, piece=0):
        super().__init__(capacity, first_serial)
        self.piece = piece  # the size of pieces, 0 by what is reserved
        self.pieces = []  # in the order in which they were made
        self.refused = math.inf  # the reserved bytes that the device last refused to slack

    def reserved(self):
        return sum(piece.size for piece in self.pieces)

    def usual_growth(self, size):
        return round_up(size, GRANULE)

    # where pages are at home

    def vacate(self, piece):
        """The piece's home becomes a hole."""
        slot, blocks = piece.home, piece.home.segment.blocks
        index = next(index for index, block in enumerate(blocks) if slot.within(block))
        block = blocks[index]
        ends = [(block.offset, slot.offset), (slot.offset, slot.offset + slot.size)]
        ends.append((slot.offset + slot.size, block.end))
        blocks[index : index + 1] = [
            Block(slot.segment, low, high - low, HOLE if low == slot.offset else FREE, freed=block.freed)
            for low, high in ends
            if low < high
        ]
        piece.home = None
        self.touched[slot.segment] = True

    def settle_in(self, slot, freed=0):
        """The piece's home is here, and free."""
        block = next(block for block in slot.segment.blocks if block.offset == slot.offset)
        block.state, block.freed = FREE, freed
        slot.piece.home = slot
        self.merge(block)

    # the device

    def count_calls(self, calls):
        self.statistics.count("virtual_memory_calls", calls)

    def make_piece(self, size):
        self.count_calls(1)
        while self.reserved() + size > self.capacity:
            if size == GRANULE:
                return None
            size = round_up(size // 2, GRANULE)
            self.happened["halved"] += 1
            self.count_calls(1)
        piece = Piece(size)
        self.pieces.append(piece)
        self.statistics.change("reserved_bytes", "large", size)
        self.statistics.count("num_device_alloc")
        return piece

    def release_piece(self, piece, mapped=True):
        self.count_calls(len(piece.slots) * mapped + 1)
        for slot in piece.slots:
            slot.piece = None
            if slot.segment.shape is WINDOW:
                slot.segment.spoiled = True
                self.statistics.count("stitched_bytes", -slot.size)
        self.pieces.remove(piece)
        self.statistics.change("reserved_bytes", "large", -piece.size)
        self.statistics.count("num_device_free")

    def piece_size(self, need, whole):
        """For what is still needed of a growth, and what was in the beginning."""
        total = max(self.reserved(), need)
        live, blocks = (
            self.statistics.flat[f"{name}.all.current"] for name in ("allocated_bytes", "allocation")
        )
        share = min(total // 64, max(16 * MIB, total // 512))
        mean = (live + whole) // (blocks + 1)
        if mean >= 256 * MIB:
            share = max(share, min(max(total, whole), mean) // 4)
        size = self.piece or GRANULE
        while not self.piece and size * 2 <= share:
            size *= 2
        return min(size, need)

    def need_at_end(self, heap, size):
        """So that a block of the size fits at the end of a span."""
        span = self.last_span(heap)
        if span and span.blocks and span.blocks[-1].state is FREE and span.blocks[-1].size < size:
            need = round_up(size - span.blocks[-1].size, GRANULE)
            if span.room - span.size >= need:
                return need
        return round_up(size, GRANULE)

    def grow_at_end(self, heap, size):
        return self.grow_by(heap, self.need_at_end(heap, size), fills=False)

    def grow_by(self, heap, need, fills):
        need = round_up(need, GRANULE)
        if self.reserved() + need > self.limit:
            return False
        gaps = [slot for span in self.segments if span.heap == heap for slot in span.slots if not slot.piece]
        for slot in gaps if fills else ():
            if slot.size <= need:
                if not self.fill(slot):
                    return False
                need -= slot.size
        return need == 0 or self.append(self.span_with_room(heap, need), need)

    def fill(self, slot):
        piece = self.make_piece(slot.size)
        if piece and piece.size < slot.size:
            self.release_piece(piece, mapped=False)
            piece = None
        if piece:
            self.happened["filled"] += 1
            self.count_calls(2)
            slot.piece, piece.slots = piece, [slot]
            self.settle_in(slot)
        return piece is not None

    def append(self, span, need):
        made, whole = [], need
        while need > 0:
            piece = self.make_piece(self.piece_size(need, whole))
            if not piece:
                for slot in made:
                    self.release_piece(slot.piece, mapped=False)
                self.trim()
                return False
            made.append(append_slot(span, piece))
            need -= piece.size
        self.count_calls(len(made) + 1)
        for slot in made:
            self.settle_in(slot)
        return True

    def last_span(self, heap):
        return next((span for span in reversed(self.segments) if span.heap == heap), None)

    def span_with_room(self, heap, need):
        span = self.last_span(heap)
        if not span or span.room - span.size < need:
            span = self.new_segment(heap, SPAN, max(need, 16 * GIB if span else 4 * GIB))
            self.segments.append(span)
            self.count_calls(1)
            self.statistics.count("reserved_addresses", span.room)
            self.statistics.change("segment", "large", 1)
        return span

    def trim(self):
        """Addresses at the end of spans that hold nothing."""
        for span in list(self.segments):
            while span.slots and span.slots[-1].piece is None:
                span.slots.pop()
                span.blocks.pop()
                self.touched[span] = True
            if not span.slots:
                self.segments.remove(span)
                self.count_calls(1)
                self.statistics.count("reserved_addresses", -span.room)
                self.statistics.change("segment", "large", -1)


def whole_slots(block):
    return [slot for slot in block.segment.slots if slot.within(block)]


def append_slot(segment, piece):
    slot = Slot(segment, segment.size, piece.size, piece)
    segment.slots.append(slot)
    segment.blocks.append(Block(segment, slot.offset, slot.size, HOLE))
    piece.slots.append(slot)
    return slot
