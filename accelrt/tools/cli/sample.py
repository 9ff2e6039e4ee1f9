"""One look at all devices and all processes on them: what top shows, export exports and info reports.

It opens no driver and makes no context.  A reading that a device lacks is asked for once and then left out.
"""

import os
import pwd
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from accelrt import NotSupportedError, identity, nvml, readings
from accelrt.core import procfs
from accelrt.core.printable import printable
from accelrt.identity import digits
from accelrt.readings import amd
from accelrt.runtime.init import HOST_ADVICE, chosen_driver
from accelrt.tools import publish

# The readings of accelrt.readings in the order in which they are shown, and their units, if they have one.
READINGS = {
    "utilization": "percent of time",
    "memory_usage": "percent of time",
    "device_memory_info": "bytes",
    "temperature": "degrees Celsius",
    "memory_temperature": "degrees Celsius",
    "power_draw": "milliwatts",
    "power_limits": "milliwatts",
    "energy": "millijoules since the driver was loaded",
    "clock_rates": "MHz",
    "max_clock_rates": "MHz",
    "performance_state": "",
    "throttle_reasons": "",
    "fan_speed": "percent of the highest",
    "ecc_errors": "",
    "remapped_rows": "",
    "pcie_link": "",
    "nvlink_throughput": "bytes since the driver was loaded",
    "pcie_throughput": "bytes a second",
}
SLOW = ("pcie_throughput",)  # takes 20 ms each way, and is asked for only by who wants it
UNITS = {name: unit for name, unit in READINGS.items() if unit}
SECONDS_BETWEEN_LISTINGS = 30.0


@dataclass
class Device:
    """One device; readings by the names of accelrt.readings, None for one that it lacks."""

    uuid: str
    name: str
    ordinal: int | None = None
    nvml_index: int | None = None
    pci_bus_id: str | None = None
    mig_parent: str | None = None
    host: bool = False
    readings: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    def figure(self, name: str, part: str | None = None) -> Any:
        """A reading, or a part of one that has several; None where there is none."""
        reading = self.readings.get(name)
        if part is None or reading is None:
            return reading
        return reading.get(part) if isinstance(reading, dict) else getattr(reading, part)

    @property
    def power(self) -> str:
        """Returns what it draws, of what it may: "70/700 W", or "-"."""
        draw, limit = self.figure("power_draw"), self.figure("power_limits", "enforced")
        most = f"/{limit / 1000:.0f}" if limit else ""
        return "-" if draw is None else f"{draw / 1000:.0f}{most} W"

    @property
    def clock(self) -> str:
        """The clock of the multiprocessors, "1101 MHz", or "-"."""
        rate = self.figure("clock_rates", "sm")
        return "-" if rate is None else f"{rate} MHz"


@dataclass
class Process:
    """One process on one device.

    Attributes:
        memory: bytes of the device by NVML, or of its own host device; None where that is not told.
        reserved, live, peak_reserved: bytes of its accelrt pool; None where it does not publish them.
    """

    pid: int
    uuid: str
    user: str
    command: str
    kind: str
    memory: int | None = None
    reserved: int | None = None
    live: int | None = None
    peak_reserved: int | None = None


@dataclass
class Sample:
    """Everything, at one time (seconds of the Unix clock)."""

    time: float
    devices: list[Device]
    processes: list[Process]
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns what --json prints."""
        return {
            "time": self.time,
            "problem": self.problem,
            "units": UNITS | {"memory": "bytes", "reserved": "bytes", "live": "bytes"},
            "devices": [asdict(one) for one in self.devices],
            "processes": [asdict(one) for one in self.processes],
        }


class Sampler:
    """Looks again and again.

    Arguments:
        slow: bool, whether readings that take tens of milliseconds are wanted too.
    """

    def __init__(self, slow: bool = False) -> None:
        names = [name for name in READINGS if slow or name not in SLOW]
        self.readings: dict[str, Any] = {name: getattr(readings, name) for name in names}
        self.refused: set[tuple[str, str]] = set()
        self.rows: list[tuple[Any, Device]] = []  # what readings ask by, and the device without them
        self.listed_at: float | None = None
        self.problem: str | None = None
        self.names: dict[tuple[int, int | None], tuple[str, str]] = {}

    def sample(self) -> Sample:
        """A look."""
        self.list_devices()
        devices = [self.read(key, row) for key, row in self.rows]
        parents = {device.mig_parent for device in devices}  # their MIG devices say who uses them
        readable = [device for device in devices if device.uuid not in parents]
        processes = [process for device in readable for process in self.processes_of(device)]
        self.add_published(devices, processes)
        return Sample(time.time(), devices, processes, self.problem if not devices else None)

    def list_devices(self) -> None:
        now = time.monotonic()
        if self.listed_at is not None and now - self.listed_at < SECONDS_BETWEEN_LISTINGS:
            return
        self.listed_at, self.problem = now, None
        others = amd.other_targets()
        if others is not None:
            make = host_device if chosen_driver() == "host" else Device
            self.rows = [(place, make(one.uuid, one.name, place)) for place, one in enumerate(others)]
            return
        self.rows = [
            (
                row.uuid,
                Device(row.uuid, row.name, row.ordinal, row.nvml_index, row.pci_bus_id, row.mig_parent),
            )
            for row in identity.physical()
        ]
        if not self.rows:
            self.problem = why_none()

    def read(self, key: Any, row: Device) -> Device:
        device = replace(row, readings={})
        for name, read in self.readings.items():
            device.readings[name] = None
            if (device.uuid, name) in self.refused:
                continue
            try:
                device.readings[name] = read(key)
            except NotSupportedError:
                self.refused.add((device.uuid, name))
            except RuntimeError as error:
                device.problem = device.problem or str(error)
        return device

    def processes_of(self, device: Device) -> list[Process]:
        if device.host:
            return []  # each process has host devices of its own, and says so itself
        try:
            uses = readings.gpu_processes(device.uuid if device.nvml_index is not None else device.ordinal)
        except RuntimeError:
            return []
        return [self.process(one.pid, device.uuid, one.kind, one.memory) for one in uses]

    def process(self, pid: int, uuid: str, kind: str, memory: int | None) -> Process:
        key = pid, procfs.started(pid)
        if key not in self.names:
            if len(self.names) > 1 << 12:
                self.names.clear()
            self.names[key] = (user_of(pid), command_of(pid))
        return Process(pid, uuid, *self.names[key], kind, memory)

    def add_published(self, devices: list[Device], processes: list[Process]) -> None:
        """Puts what processes publish beside what NVML says of them; adds processes that NVML does not list,
        and host devices, which are sums over all processes, for each has its own.
        """
        process_at = {(one.pid, digits(one.uuid)): one for one in processes}
        device_of = {digits(one.uuid): one for one in devices}
        sums: dict[str, tuple[int, int]] = {}
        for one in publish.published():
            for pool in one.pools:
                if pool.used is not None and pool.total is not None:
                    if pool.uuid not in device_of:
                        uuid = str(UUID(pool.uuid))
                        device_of[pool.uuid] = host_device(uuid, pool.name, pool.ordinal)
                        devices.append(device_of[pool.uuid])
                    used, total = sums.get(pool.uuid, (0, 0))
                    sums[pool.uuid] = used + pool.used, total + pool.total
                process = process_at.get((one.pid, pool.uuid))
                if process is None:
                    if not pool.peak_reserved and not pool.used:
                        continue  # it has never used that device
                    uuid = device_of[pool.uuid].uuid if pool.uuid in device_of else pool.uuid
                    kind = "compute" if one.driver == "cuda" else "host"
                    process = self.process(one.pid, uuid, kind, pool.used)
                    processes.append(process)
                process.reserved, process.live = pool.reserved, pool.live
                process.peak_reserved = pool.peak_reserved
        for uuid, (used, total) in sums.items():
            info = readings.MemoryInfo(total, 0, total - used, used)
            device_of[uuid].readings["device_memory_info"] = info


def host_device(uuid: str, name: str, ordinal: int) -> Device:
    return Device(uuid, name, ordinal, pci_bus_id=f"host:{ordinal}", host=True)


def why_none() -> str:
    try:
        cards, _ = nvml.listing()
    except RuntimeError as error:
        return f"no NVIDIA device was found: {error}; {HOST_ADVICE}"
    return "no NVIDIA device was found" if not cards else f"none of {len(cards)} cards can be read"


def user_of(pid: int) -> str:
    try:
        number = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        line = b" ".join(word for word in words if word) or Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return "?"
    return printable(line.decode(errors="replace")).strip()
