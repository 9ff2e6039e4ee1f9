"""Readings of devices that are not NVIDIA's: what they have none of is refused by name.

The embedded host device is one of them, and says its memory and who uses it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from accelrt import identity
from accelrt.devices.device import mem_get_info
from accelrt.errors import not_supported
from accelrt.readings.records import GpuProcess, MemoryInfo
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Callable


class OtherVendor:
    """One device: a method for each reading that it has, with the reading's name and unit.

    Attributes:
        uuid, name: str, as in accelrt.identity.
    """

    uuid: str
    name: str

    def refuse(self, reading: str) -> NoReturn:
        raise not_supported(
            f"{reading} of {self.name} ({self.uuid}): this device has no such reading", reading
        )

    def device_memory_used(self) -> int:
        return int(self.device_memory_info().used)

    def __getattr__(self, reading: str) -> Callable[[], NoReturn]:
        """A reading that the device lacks, which refuses."""
        if reading in ("uuid", "name") or reading.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {reading!r}")
        return partial(self.refuse, reading)


class Host(OtherVendor):
    """A host device.  It belongs to this process alone, and before init holds nothing."""

    def __init__(self, row: identity.Identity) -> None:
        self.uuid: str = row.uuid
        self.name: str = row.name
        self.ordinal: int | None = row.ordinal
        self.memory: int = row.memory

    def device_memory_info(self) -> MemoryInfo:
        if not init.is_initialized():
            return MemoryInfo(self.memory, 0, self.memory, 0)
        free, total = mem_get_info(self.ordinal)
        return MemoryInfo(total, 0, free, total - free)

    def gpu_processes(self) -> list[GpuProcess]:
        if not init.is_initialized():
            return []
        return [GpuProcess(os.getpid(), self.device_memory_used(), "compute")]
