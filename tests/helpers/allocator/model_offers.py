"""Memory that is freed as of an event, in the model of the allocator: who waits for the event may take it."""

from dataclasses import dataclass, field

from model_blocks import LIVE, PENDING, Block, Event

WATCH = "watch"  # the allocator's own stream, which waits for the events


@dataclass(eq=False, slots=True)
class Offer:
    block: Block
    record: object  # which record of which event
    takers: set = field(default_factory=set)  # streams that wait for it


class Offers:
    """What a model offers, the latest first."""

    def free_after(self, place, stream, record):
        """Frees as of an event that was recorded on the stream just now."""
        block = self.live.pop(place)
        self.enqueue(WATCH, block, stream)
        self.enqueue_uses(block)
        self.offers.insert(0, Offer(block, record))
        self.count()

    def wait_event(self, stream, record):
        """The stream waits for that record; behind a gated stream it is gated itself, which is told apart."""
        for offer in self.offers:
            if offer.record == record and offer.block.segment.heap.pool is None:
                self.heap_for(offer.block.size, stream, None)
                offer.takers.add(stream)

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
        """The smallest block that the stream was handed and that the size nearly fills, or None."""
        fits = [
            offer.block
            for offer in self.offers
            if heap.stream in offer.takers
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
