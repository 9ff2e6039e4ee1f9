"""Notes what the caches handed out and had back; and page-locked memory: whether the host wrote it meanwhile.

No hook sees the host write an array that the device is to read.  So what a stream reads is summed up when the
copy is enqueued, and again when the host comes to know that the copy is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from accelrt.sanitizer.intervals import IntervalMap
from accelrt.sanitizer.order import Clock, Timeline, reached
from accelrt.sanitizer.report import Access, Allocation


@dataclass(slots=True)
class LiveMemory:
    """Live allocations, and the streams that free memory whose last use may be under way is kept for."""

    live: IntervalMap[Allocation] = field(default_factory=IntervalMap)
    homes: IntervalMap[Timeline] = field(default_factory=IntervalMap)

    def add(self, allocation: Allocation) -> None:
        self.live.set(allocation.address, allocation.address + allocation.nbytes, allocation)

    def at(self, address: int) -> Allocation | None:
        """The live allocation that an address is in."""
        parts = self.live.parts(address, address + 1)
        return parts[0][2] if parts else None

    def remove(self, address: int) -> Allocation | None:
        """Ends an allocation, by its first address; None where it was not known."""
        allocation = self.at(address)
        if allocation is None or allocation.address != address:
            return None
        self.live.remove(address, address + allocation.nbytes)
        return allocation

    def keep_home(self, allocation: Allocation) -> None:
        """Notes memory that was given back, which serves the same stream at once, and others later."""
        if allocation.home is not None:
            self.homes.set(allocation.address, allocation.address + allocation.nbytes, allocation.home)

    def reuse(self, begin: int, end: int, home: Timeline | None, forget: Callable[[int, int], None]) -> None:
        """A range is handed out again: forgets what the cache itself waited for, all but its home's order."""
        for low, high, before in self.homes.cover(begin, end):
            if home is None or before is not home:
                forget(low, high)
        self.homes.remove(begin, end)

    def settle(self, forget: Callable[[int, int], None]) -> None:
        """The free memory went back to the device, which was waited for."""
        for begin, end in zip(self.homes.begins, self.homes.ends, strict=True):
            forget(begin, end)
        self.homes = IntervalMap()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    address: int
    nbytes: int
    access: Access
    sum: int


@dataclass(slots=True)
class Fingerprints:
    """The sums of what is being read.

    Arguments:
        summed: gives the sum of so many bytes at an address, or None where they are not to be looked at.
    """

    summed: Callable[[int, int], int | None]
    taken: list[Fingerprint] = field(default_factory=list)

    def take(self, address: int, nbytes: int, access: Access) -> None:
        checksum = self.summed(address, nbytes)
        if checksum is not None:
            self.taken.append(Fingerprint(address, nbytes, access, checksum))

    def drop(self, begin: int, end: int) -> None:
        """A range is written by others than the host, or is gone."""
        self.taken = [old for old in self.taken if old.address >= end or old.address + old.nbytes <= begin]

    def clear(self) -> None:
        self.taken = []

    def changed(self, known: Clock) -> list[Fingerprint]:
        """Those whose read is over and that were written meanwhile; what is over is looked at once."""
        over = [old for old in self.taken if reached(known, old.access.timeline, old.access.epoch)]
        if over:
            self.taken = [old for old in self.taken if old not in over]
        return [old for old in over if self.summed(old.address, old.nbytes) not in (None, old.sum)]
