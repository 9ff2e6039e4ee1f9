"""Page-locked memory that the device is to read: whether the host wrote it meanwhile.

No hook sees the host write an array.  So what a stream reads is summed up when the copy is enqueued, and
again when the host comes to know that the copy is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from accelrt.sanitizer.order import Clock, reached
from accelrt.sanitizer.report import Access

__all__ = ["Fingerprints"]


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
        found = self.summed(address, nbytes)
        if found is not None:
            self.taken.append(Fingerprint(address, nbytes, access, found))

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
