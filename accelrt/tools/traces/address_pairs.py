"""Allocations and frees by their addresses, made into a trace, in which each allocation has a number.

Records begin and end in the middle of programs, and rings lose events.  Memory that is freed without having
been allocated was there before, so it is allocated first; what is allocated twice was freed in between.
"""

from accelrt.errors import RecordError
from accelrt.tools.traces.trace import EVENT_LIMIT, SIZE_LIMIT, Trace, built


class PairedEvents:
    """A trace being made; the rows are given in order.

    Arguments:
        name: str, the file, for errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.live: dict[int, int] = {}  # address -> slot
        self.pending: set[int] = set()  # addresses of which a free was requested
        self.ops: list[int] = []
        self.slots: list[int] = []
        self.sizes: list[int] = []
        self.streams: list[int] = []
        self.allocated: int = 0  # slots
        self.first: list[tuple[int, int, int]] = []  # slot, size and stream of what was there before
        self.names: dict[object, int] = {}  # a stream's handle or name -> its index
        self.unknown: int = 0
        self.freed_before: int = 0
        self.live_before: int = 0
        self.replaced: int = 0

    def allocate(self, address: int, size: int, stream: object) -> None:
        if address in self.live:
            self.replaced += 1
            self.add(0, self.live[address], 0, stream)
        self.live[address] = self.allocated
        self.pending.discard(address)
        self.add(1, self.allocated, self.checked(size), stream)
        self.allocated += 1

    def free(self, address: int, size: int, stream: object) -> None:
        slot = self.live.pop(address, None)
        if slot is None:
            if size == 0:
                self.unknown += 1
                return
            self.freed_before += 1
            slot = self.before(size, stream)
        self.pending.add(address)
        self.add(0, slot, 0, stream)

    def complete(self, address: int, size: int, stream: object) -> None:
        """A free that is over; it is one of its own only where nothing told that it was requested."""
        if address in self.pending:
            self.pending.discard(address)
        elif address in self.live:
            self.free(address, size, stream)
            self.pending.discard(address)

    def there_at_the_end(self, address: int, size: int, stream: object) -> None:
        """A block that is live when the record ends, which may have been there before it began."""
        if address not in self.live and size:
            self.live_before += 1
            self.live[address] = self.before(size, stream)

    def before(self, size: int, stream: object) -> int:
        self.first.append((self.allocated, self.checked(size), self.index(stream)))
        self.allocated += 1
        return self.allocated - 1

    def checked(self, size: int) -> int:
        if size >= SIZE_LIMIT:
            row = len(self.ops)
            raise RecordError(f"{self.name}: event {row}: size is {size}; it has to be below 2**60", row)
        return size

    def index(self, stream: object) -> int:
        return self.names.setdefault(stream, len(self.names))

    def add(self, op: int, slot: int, size: int, stream: object) -> None:
        if len(self.ops) >= EVENT_LIMIT:
            raise RecordError(f"{self.name}: a trace has at most {EVENT_LIMIT:,} events: split it")
        self.ops.append(op)
        self.slots.append(slot)
        self.sizes.append(size)
        self.streams.append(self.index(stream))

    def trace(self, *notes: str) -> Trace:
        """The trace, and what had to be added to it or left out."""
        slots, sizes, streams = ([row[column] for row in self.first] for column in range(3))
        added = "frees that the record lacks were added, where the same address is allocated again"
        before = "allocations that were made before the record began, and"
        counts = {
            f"{before} freed in it, come first": self.freed_before,
            f"{before} stay, come first": self.live_before,
            "frees of unknown memory without a size were left out": self.unknown,
            added: self.replaced,
        }
        lines = [f"{count:,} {words}" for words, count in counts.items() if count]
        return built(
            [1] * len(self.first) + self.ops,
            slots + self.slots,
            sizes + self.sizes,
            streams + self.streams,
            (*notes, *lines),
        )
