"""The driver's streams as timelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident

from accelrt.sanitizer.order import Order, Timeline
from accelrt.sanitizer.report import Line

__all__ = ["Streams"]

PER_THREAD = 2  # CU_STREAM_PER_THREAD: one stream for each thread
LEGACY = (0, 1)  # the null stream, and CU_STREAM_LEGACY


@dataclass(slots=True)
class Streams:
    """Which timeline a device's stream has now.

    Arguments:
        is_blocking: of a stream that accelrt did not make, whether it waits for the legacy default stream.
    """

    is_blocking: Callable[[int, int], bool]
    by_handle: dict[tuple[int, int, int], Timeline] = field(default_factory=dict)
    retired: list[Timeline] = field(default_factory=list)

    def at(self, device: int, handle: int) -> Timeline:
        is_legacy = handle in LEGACY
        handle = 0 if is_legacy else handle
        key = (device, handle, get_ident() if handle == PER_THREAD else 0)
        found = self.by_handle.get(key)
        if found is None:
            name = "the default stream" if is_legacy else f"stream {handle:#x}"
            blocking = is_legacy or handle == PER_THREAD or self.is_blocking(device, handle)
            found = Timeline(f"{name} of device {device}", device, None, is_legacy, blocking)
            self.by_handle[key] = found
        return found

    def begin(self, device: int, handle: int, line: Line | None, order: Order) -> None:
        """A driver stream has a new holder, who can rely on no order with what the last one put in."""
        last = self.by_handle.get((device, handle, 0))
        if last is not None:
            self.retired.append(last)
        self.by_handle[device, handle, 0] = Timeline(f"stream {handle:#x} of device {device}", device, line)
        self.retired = [old for old in self.retired if not order.close(old)]
