"""What the embedded host device can say of its state: its memory, and who uses it."""

from __future__ import annotations

import os

from accelrt import identity
from accelrt.devices.device import mem_get_info
from accelrt.readings.other_vendors import Elsewhere
from accelrt.readings.records import GpuProcess, MemoryInfo
from accelrt.runtime import init

__all__ = ["Host", "places"]


def places() -> list[Host]:
    return [Host(row) for row in identity.table()]


class Host(Elsewhere):
    """A host device.  It belongs to this process alone, and before init holds nothing."""

    def __init__(self, row: identity.Identity) -> None:
        self.uuid, self.name = row.uuid, row.name
        self.ordinal, self.memory = row.ordinal, row.memory

    def device_memory_info(self) -> MemoryInfo:
        if not init.is_initialized():
            return MemoryInfo(self.memory, 0, self.memory, 0)
        free, total = mem_get_info(self.ordinal)
        return MemoryInfo(total, 0, free, total - free)

    def device_memory_used(self) -> int:
        return self.device_memory_info().used

    def gpu_processes(self) -> list[GpuProcess]:
        if not init.is_initialized():
            return []
        return [GpuProcess(os.getpid(), self.device_memory_used(), "compute")]
