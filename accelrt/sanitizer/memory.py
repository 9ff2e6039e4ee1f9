"""What the caches handed out, and what they had back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from accelrt.sanitizer.intervals import IntervalMap
from accelrt.sanitizer.order import Timeline
from accelrt.sanitizer.report import Allocation

__all__ = ["LiveMemory"]


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
        found = self.at(address)
        if found is None or found.address != address:
            return None
        self.live.remove(address, address + found.nbytes)
        return found

    def keep_home(self, allocation: Allocation) -> None:
        """What was given back serves the same stream at once, and others when it is no longer in use."""
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
