"""Readings of devices that are not NVIDIA's: what they have none of is refused by name.

The embedded host device is one of them, and says its memory and who uses it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from accelrt import identity
from accelrt.devices.device import mem_get_info
from accelrt.errors import NotSupportedError
from accelrt.readings.records import GpuProcess, MemoryInfo
from accelrt.runtime import init

if TYPE_CHECKING:
    from accelrt.readings.records import (
        EccErrors,
        NvlinkTraffic,
        PcieLink,
        PcieTraffic,
        PowerLimits,
        RemappedRows,
        TemperatureLimits,
    )

__all__ = ["Host", "OtherVendor"]


class OtherVendor:
    """One device: a method for each reading, with the reading's name and unit.

    Attributes:
        uuid, name: str, as in accelrt.identity.
    """

    uuid: str
    name: str

    def refuse(self, reading: str) -> NoReturn:
        raise NotSupportedError(
            f"{reading} of {self.name} ({self.uuid}): this device has no such reading",
            801,
            "NOT_SUPPORTED",
            reading,
        )

    def temperature(self) -> int:
        self.refuse("temperature")

    def memory_temperature(self) -> int:
        self.refuse("memory_temperature")

    def temperature_limits(self) -> TemperatureLimits:
        self.refuse("temperature_limits")

    def fan_speed(self) -> int:
        self.refuse("fan_speed")

    def fan_speeds(self) -> list[int]:
        self.refuse("fan_speeds")

    def power_draw(self) -> int:
        self.refuse("power_draw")

    def power_limits(self) -> PowerLimits:
        self.refuse("power_limits")

    def energy(self) -> int:
        self.refuse("energy")

    def performance_state(self) -> int:
        self.refuse("performance_state")

    def throttle_reasons(self) -> tuple[str, ...]:
        self.refuse("throttle_reasons")

    def clock_rate(self) -> int:
        self.refuse("clock_rate")

    def clock_rates(self) -> dict[str, int | None]:
        self.refuse("clock_rates")

    def max_clock_rates(self) -> dict[str, int | None]:
        self.refuse("max_clock_rates")

    def application_clock_rates(self) -> dict[str, int | None]:
        self.refuse("application_clock_rates")

    def utilization(self) -> int:
        self.refuse("utilization")

    def memory_usage(self) -> int:
        self.refuse("memory_usage")

    def encoder_utilization(self) -> int:
        self.refuse("encoder_utilization")

    def decoder_utilization(self) -> int:
        self.refuse("decoder_utilization")

    def device_memory_used(self) -> int:
        self.refuse("device_memory_used")

    def device_memory_info(self) -> MemoryInfo:
        self.refuse("device_memory_info")

    def ecc_errors(self) -> EccErrors:
        self.refuse("ecc_errors")

    def ecc_mode(self) -> bool:
        self.refuse("ecc_mode")

    def remapped_rows(self) -> RemappedRows:
        self.refuse("remapped_rows")

    def pcie_link(self) -> PcieLink:
        self.refuse("pcie_link")

    def pcie_throughput(self) -> PcieTraffic:
        self.refuse("pcie_throughput")

    def nvlink_links(self) -> list[bool]:
        self.refuse("nvlink_links")

    def nvlink_throughput(self) -> NvlinkTraffic:
        self.refuse("nvlink_throughput")

    def gpu_processes(self) -> list[GpuProcess]:
        self.refuse("gpu_processes")


class Host(OtherVendor):
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
