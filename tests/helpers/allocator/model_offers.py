"""Offers in the model of the allocator: a stream that waits for a block's event may claim the block early."""

from dataclasses import dataclass, field

from model_blocks import LIVE, PENDING, Block, Event

WATCH = "watch"  # the pool's own stream, which waits for the events of offers


@dataclass(eq=False, slots=True)
class Offer:
    block: Block
    record: object  # one recording of one event
    claimants: set = field(default_factory=set)  # streams that wait for that recording


class Offers:
    """The offers of a model, the latest first."""

    def free_after(self, place, stream, record):
        """Frees a block as of an event that was just recorded on the stream."""
        block = self.live.pop(place)
        self.enqueue(WATCH, block, stream)
        self.enqueue_uses(block)
        self.offers.insert(0, Offer(block, record))
        self.count()

    def wait_event(self, stream, record):
        """The stream waits for that recording; if that is behind a gate, the caller gates the stream too."""
        for offer in self.offers:
            if offer.record == record and offer.block.segment.heap.pool is None:
                self.heap_for(offer.block.size, stream, None)
                offer.claimants.add(stream)

    def enqueue_uses(self, block):
        block.state = PENDING
        self.touched[block.segment] = True
        for stream in reversed(block.uses):
            self.enqueue(stream, block, stream)

    def enqueue(self, queue, block, stream):
        self.queues.setdefault(queue, []).append(Event(block, stream, stream not in self.gated))
        block.events += 1

    def withdraw(self, block):
        self.offers = [offer for offer in self.offers if offer.block is not block]

    def take_offer(self, heap, n, size):
        """Claims the smallest block offered to the stream that the size nearly fills, or returns None."""
        fits = [
            offer.block
            for offer in self.offers
            if heap.stream in offer.claimants
            and heap.kind == offer.block.segment.heap.kind
            and offer.block.events == 1
            and 0 <= offer.block.size - size <= size // 8
        ]
        if heap.pool is not None or not fits:
            return None
        block = min(fits, key=lambda block: block.size)
        self.queues[WATCH] = [event for event in self.queues[WATCH] if event.block is not block]
        self.withdraw(block)
        block.events = 0
        block.state, block.requested, block.uses = LIVE, n, {heap.stream: True}
        self.live[block.place] = block
        self.touched[block.segment] = True
        self.happened["handed over"] += 1
        self.count()
        return block
