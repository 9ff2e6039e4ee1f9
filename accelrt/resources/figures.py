"""Figures and entries by which adaptors tell of the memory that is allocated from them."""

from __future__ import annotations

from typing import NamedTuple


class AllocationCounts(NamedTuple):
    """Figures of a StatisticsAdaptor since its counters began.

    Attributes:
        current_bytes, current_count: int, bytes and allocations that are live now, less what was live before
            and freed.
        peak_bytes, peak_count: int, the most of them at once.
        total_bytes, total_count: int, of all that was allocated.
    """

    current_bytes: int
    current_count: int
    peak_bytes: int
    peak_count: int
    total_bytes: int
    total_count: int


class OutstandingAllocation(NamedTuple):
    """Memory of a TrackingAdaptor that is allocated.

    Attributes:
        address: int.
        nbytes: int, bytes.
        stack: str, where it was allocated, as traceback has it; "" without capture_stacks.
    """

    address: int
    nbytes: int
    stack: str
