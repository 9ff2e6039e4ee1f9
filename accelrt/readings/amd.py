"""Readings of AMD devices, through the optional package amdsmi.  Unverified on hardware.

Built after AMD's documentation, "AMD SMI Python API reference" of ROCm 6.4 to 7.2, and tested with a
stand-in of that API alone.  accelrt does not run on these devices, it reads their state.  HIP counts as the
platform where there is no libnvidia-ml, amdsmi can be imported, and it lists devices.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from accelrt import identity, visible
from accelrt.core import procfs
from accelrt.errors import ReadingError, not_supported
from accelrt.nvml.library import open_code
from accelrt.readings.other_vendors import Host, OtherVendor
from accelrt.readings.records import EccErrors, GpuProcess, MemoryInfo, PcieLink, PowerLimits, supported
from accelrt.runtime import init

LIBRARY_NOT_FOUND = 12  # nvmlReturn_t
NOT_SUPPORTED = 2  # AMDSMI_STATUS_NOT_SUPPORTED
MISSING = ("N/A", None)
MIB = 1 << 20

_session_pid: int | None = None


def other_targets() -> Sequence[OtherVendor] | None:
    """Returns what answers for each device of this process, in the order of the ordinals; None where NVML
    does."""
    if init.chosen_driver() != "cuda":
        return [Host(row) for row in identity.table()]
    return targets() if is_the_platform() else None


def is_the_platform() -> bool:
    """Tells whether AMD's library answers for the devices here.  Opens a session with it where it may."""
    if open_code() != LIBRARY_NOT_FOUND or procfs.listed() is not None:
        return False
    try:
        return importlib.util.find_spec("amdsmi") is not None and bool(handles())
    except Exception:  # the package raises what it likes where ROCm itself is not installed
        return False


def library() -> Any:
    """The package with this process's own session; a child of a fork opens another."""
    global _session_pid
    amdsmi = importlib.import_module("amdsmi")
    if _session_pid != os.getpid():
        amdsmi.amdsmi_init()
        _session_pid = os.getpid()
    return amdsmi


def handles() -> list[Any]:
    return list(library().amdsmi_get_processor_handles())


def targets() -> list[Amd]:
    """The devices that a HIP program in this environment sees, in the order of its ordinals."""
    devices = sorted((Amd(handle) for handle in handles()), key=lambda device: device.hip_id)
    if len({device.hip_id for device in devices}) < len(devices):
        raise not_supported(
            "amdsmi does not tell which device has which HIP ordinal; that needs ROCm 6.4 or later"
        )
    chosen = visible.resolve_amd(
        os.environ.get("ROCR_VISIBLE_DEVICES"),
        os.environ.get("HIP_VISIBLE_DEVICES"),
        [device.uuid for device in devices],
    )
    return [devices[index] for index in chosen]


class Amd(OtherVendor):
    """One AMD device, by amdsmi's handle.  Unverified on hardware, like every reading of it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        amdsmi = library()
        facts = amdsmi.amdsmi_get_gpu_asic_info(handle)
        self.name: str = str(facts.get("market_name", "AMD device"))
        order = amdsmi.amdsmi_get_gpu_enumeration_info(handle)
        self.hip_id: int = int(order.get("hip_id", -1))
        digits = str(facts.get("asic_serial", "")).removeprefix("0x")
        self.uuid: str = str(order.get("hip_uuid") or f"GPU-{digits.lower().rjust(16, '0')}")
        self.pci_bus_id: str = str(amdsmi.amdsmi_get_gpu_device_bdf(handle))

    def ask(self, reading: str, call: str, *arguments: Any) -> Any:
        """Returns what a function of amdsmi answers of this device."""
        amdsmi = library()
        try:
            return getattr(amdsmi, call)(self.handle, *arguments)
        except (AttributeError, amdsmi.AmdSmiException) as error:
            code = error.get_error_code() if hasattr(error, "get_error_code") else NOT_SUPPORTED
            text = f"{reading} of {self.name} ({self.uuid}): {call} answered {error}"
            if code == NOT_SUPPORTED:
                raise not_supported(text, reading) from error
            raise ReadingError(text, code, str(error), reading) from error

    def figure(self, reading: str, reply: dict[str, Any], *keys: str) -> Any:
        """The first of several entries that holds a figure."""
        for key in keys:
            if reply.get(key) not in MISSING:
                return reply[key]
        return self.refuse(reading)

    def number(self, reading: str, source: dict[str, Any], key: str, unit: int = 1) -> int | None:
        """An entry's figure in another unit; None where it holds none."""
        return supported(lambda: int(self.figure(reading, source, key)) // unit)

    def sensor(self, reading: str, kinds: Sequence[str]) -> int:
        amdsmi = library()
        current = amdsmi.AmdSmiTemperatureMetric.CURRENT
        kind = next(kind for kind in kinds if hasattr(amdsmi.AmdSmiTemperatureType, kind))
        degrees = self.ask(
            reading, "amdsmi_get_temp_metric", getattr(amdsmi.AmdSmiTemperatureType, kind), current
        )
        return self.refuse(reading) if degrees in MISSING else int(degrees)

    def temperature(self) -> int:
        """Degrees Celsius, of the junction (the hottest spot), as torch reads it."""
        return self.sensor("temperature", ("JUNCTION", "HOTSPOT"))

    def memory_temperature(self) -> int:
        return self.sensor("memory_temperature", ("VRAM",))

    def fan_speed(self) -> int:
        most = self.ask("fan_speed", "amdsmi_get_gpu_fan_speed_max", 0)
        if most in MISSING or not most:
            self.refuse("fan_speed")
        return round(100 * int(self.ask("fan_speed", "amdsmi_get_gpu_fan_speed", 0)) / int(most))

    def fan_speeds(self) -> list[int]:
        return [self.fan_speed()]

    def power_draw(self) -> int:
        """Milliwatts; amdsmi says watts."""
        reply = self.ask("power_draw", "amdsmi_get_power_info")
        watts = self.figure(
            "power_draw", reply, "average_socket_power", "current_socket_power", "socket_power"
        )
        return int(watts) * 1000

    def power_limits(self) -> PowerLimits:
        reply = self.ask("power_limits", "amdsmi_get_power_cap_info")
        cap, default, least, most = (
            self.number("power_limits", reply, key, 1000)
            for key in ("power_cap", "default_power_cap", "min_power_cap", "max_power_cap")
        )
        return PowerLimits(cap, cap, default, least, most)

    def energy(self) -> int:
        """Millijoules: amdsmi's counter, which counts in its own steps of so many microjoules."""
        reply = self.ask("energy", "amdsmi_get_energy_count")
        steps = self.figure("energy", reply, "energy_accumulator", "power")
        return int(steps * self.figure("energy", reply, "counter_resolution") / 1000)

    def clock(self, reading: str, kind: str, *keys: str) -> int:
        kinds = library().AmdSmiClkType
        reply = self.ask(reading, "amdsmi_get_clock_info", getattr(kinds, kind))
        return int(self.figure(reading, reply, *keys))

    def clock_rate(self) -> int:
        return self.clock("clock_rate", "GFX", "clk", "cur_clk")

    def clocks(self, reading: str, *keys: str) -> dict[str, int | None]:
        kinds = {"graphics": "GFX", "sm": "GFX", "memory": "MEM", "video": "VCLK0"}
        rates = {name: supported(partial(self.clock, reading, kind, *keys)) for name, kind in kinds.items()}
        return rates if any(rates.values()) else self.refuse(reading)

    def clock_rates(self) -> dict[str, int | None]:
        return self.clocks("clock_rates", "clk", "cur_clk")

    def max_clock_rates(self) -> dict[str, int | None]:
        return self.clocks("max_clock_rates", "max_clk")

    def utilization(self) -> int:
        reply = self.ask("utilization", "amdsmi_get_gpu_activity")
        return int(self.figure("utilization", reply, "gfx_activity"))

    def memory_usage(self) -> int:
        reply = self.ask("memory_usage", "amdsmi_get_gpu_activity")
        return int(self.figure("memory_usage", reply, "umc_activity"))

    def device_memory_info(self) -> MemoryInfo:
        reply = self.ask("device_memory_info", "amdsmi_get_gpu_vram_usage")  # in MB of 2**20 bytes
        total, used = (
            int(self.figure("device_memory_info", reply, key)) * MIB for key in ("vram_total", "vram_used")
        )
        return MemoryInfo(total, 0, total - used, used)

    def ecc_errors(self) -> EccErrors:
        reply = self.ask("ecc_errors", "amdsmi_get_gpu_total_ecc_count")
        corrected, others = (
            int(self.figure("ecc_errors", reply, key)) for key in ("correctable_count", "uncorrectable_count")
        )
        return EccErrors(corrected, others, None, None)

    def pcie_link(self) -> PcieLink:
        reply = self.ask("pcie_link", "amdsmi_get_pcie_info")
        static, now = reply["pcie_static"], reply["pcie_metric"]
        number = partial(self.number, "pcie_link")
        width, replays = number(now, "pcie_width"), number(now, "pcie_replay_count")
        newest, most = number(static, "pcie_interface_version"), number(static, "max_pcie_width")
        return PcieLink(None, width, newest, most, replays)

    def gpu_processes(self) -> list[GpuProcess]:
        processes = []
        for one in self.ask("gpu_processes", "amdsmi_get_gpu_process_list"):
            held = one.get("memory_usage", {}).get("vram_mem", one.get("mem"))
            processes.append(GpuProcess(int(one["pid"]), None if held in MISSING else int(held), "compute"))
        return processes
