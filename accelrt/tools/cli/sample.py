"""One look at all devices and all processes on them: what top shows, export exports and info reports.

It opens no driver and makes no context.  A reading that a device lacks is asked for once and then left out.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from accelrt import identity, nvml, readings
from accelrt.core.printable import printable
from accelrt.errors import NotSupportedError, ReadingError
from accelrt.readings import amd
from accelrt.runtime import init
from accelrt.tools import publish

__all__ = ["UNITS", "Device", "Process", "Sample", "Sampler"]

# In the order in which they are shown.  What takes long (20 ms each way) is asked for only by who wants it.
QUICK: dict[str, Callable[[Any], Any]] = {
    "utilization": readings.utilization,
    "memory_usage": readings.memory_usage,
    "device_memory_info": readings.device_memory_info,
    "temperature": readings.temperature,
    "memory_temperature": readings.memory_temperature,
    "power_draw": readings.power_draw,
    "power_limits": readings.power_limits,
    "energy": readings.energy,
    "clock_rates": readings.clock_rates,
    "max_clock_rates": readings.max_clock_rates,
    "performance_state": readings.performance_state,
    "throttle_reasons": readings.throttle_reasons,
    "fan_speed": readings.fan_speed,
    "ecc_errors": readings.ecc_errors,
    "remapped_rows": readings.remapped_rows,
    "pcie_link": readings.pcie_link,
    "nvlink_throughput": readings.nvlink_throughput,
}
SLOW: dict[str, Callable[[Any], Any]] = {"pcie_throughput": readings.pcie_throughput}
UNITS = {
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
    "fan_speed": "percent of the highest",
    "nvlink_throughput": "bytes since the driver was loaded",
    "pcie_throughput": "bytes a second",
}
SECONDS_BETWEEN_LISTINGS = 30.0


@dataclass
class Device:
    """One device; readings by the names of accelrt.readings, None for one that it lacks."""

    uuid: str
    name: str
    ordinal: int | None
    nvml_index: int | None
    pci_bus_id: str | None
    mig_parent: str | None
    host: bool
    readings: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    def figure(self, name: str, part: str | None = None) -> Any:
        """A reading, or a part of one that has several; None where there is none."""
        found = self.readings.get(name)
        if part is None or found is None:
            return found
        return found.get(part) if isinstance(found, dict) else getattr(found, part)


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
        """What --json prints."""
        found: dict[str, Any] = {
            "time": self.time,
            "problem": self.problem,
            "units": UNITS | {"memory": "bytes", "reserved": "bytes", "live": "bytes"},
            "devices": [asdict(one) for one in self.devices],
            "processes": [asdict(one) for one in self.processes],
        }
        for device in found["devices"]:
            device["readings"] = {name: plain(value) for name, value in device["readings"].items()}
        return found


def plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


class Sampler:
    """Looks again and again.

    Arguments:
        slow: bool, whether readings that take tens of milliseconds are wanted too.
    """

    def __init__(self, slow: bool = False) -> None:
        self.readings = QUICK | SLOW if slow else QUICK
        self.refused: set[tuple[str, str]] = set()
        self.rows: list[tuple[Any, Device]] = []
        self.listed_at: float | None = None
        self.problem: str | None = None
        self.names: dict[tuple[int, int | None], tuple[str, str]] = {}

    def sample(self) -> Sample:
        """A look."""
        self.list_devices()
        devices = []
        for key, row in self.rows:
            device = Device(**(vars(row) | {"readings": {}}))
            self.read(key, device)
            devices.append(device)
        told = publish.published()
        parents = {device.mig_parent for device in devices}  # their MIG devices say who uses them
        asked = [device for device in devices if device.uuid not in parents]
        processes = [process for device in asked for process in self.processes_of(device)]
        add_hosts(devices, told)
        add_pools(devices, processes, told, self.process)
        return Sample(time.time(), devices, processes, self.problem if not devices else None)

    def list_devices(self) -> None:
        now = time.monotonic()
        if self.listed_at is not None and now - self.listed_at < SECONDS_BETWEEN_LISTINGS:
            return
        self.listed_at, self.problem = now, None
        others = amd.other_targets()
        if others is not None:
            self.rows = [
                (ordinal, device_of_place(ordinal, place, init.chosen_driver() == "host"))
                for ordinal, place in enumerate(others)
            ]
            return
        self.rows = [(row.uuid, device_of_row(row)) for row in identity.physical()]
        if not self.rows:
            self.problem = why_none()

    def read(self, key: Any, device: Device) -> None:
        for name, read in self.readings.items():
            if (device.uuid, name) in self.refused:
                device.readings[name] = None
                continue
            try:
                device.readings[name] = read(key)
            except NotSupportedError:
                self.refused.add((device.uuid, name))
                device.readings[name] = None
            except (ReadingError, RuntimeError) as error:
                device.readings[name] = None
                device.problem = device.problem or str(error)

    def processes_of(self, device: Device) -> list[Process]:
        if device.host:
            return []  # each process has host devices of its own, and says so itself
        try:
            found = readings.gpu_processes(device.uuid if device.nvml_index is not None else device.ordinal)
        except (NotSupportedError, ReadingError, RuntimeError):
            return []
        made = [self.process(one.pid, device.uuid, one.kind) for one in found]
        for process, one in zip(made, found, strict=True):
            process.memory = one.memory
        return made

    def process(self, pid: int, uuid: str, kind: str) -> Process:
        return Process(pid, uuid, *self.name_of(pid), kind)

    def name_of(self, pid: int) -> tuple[str, str]:
        """Its user and its command."""
        key = pid, publish.started(pid)
        if key not in self.names:
            if len(self.names) > 1 << 12:
                self.names.clear()
            self.names[key] = (user_of(pid), command_of(pid))
        return self.names[key]


def device_of_place(ordinal: int, place: Any, host: bool) -> Device:
    return Device(place.uuid, place.name, ordinal, None, f"host:{ordinal}" if host else None, None, host)


def device_of_row(row: identity.Identity) -> Device:
    place, parent = row.pci_bus_id, row.mig_parent
    return Device(row.uuid, row.name, row.ordinal, row.nvml_index, place, parent, False)


def why_none() -> str:
    try:
        found, _ = nvml.listing()
    except (ReadingError, RuntimeError) as error:
        return f"no NVIDIA device was found: {error}; {init.HOST_ADVICE}"
    return "no NVIDIA device was found" if not found else f"none of {len(found)} cards can be read"


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
        given = b" ".join(word for word in words if word) or Path(f"/proc/{pid}/comm").read_bytes()
        text = given.decode(errors="replace")
    except OSError:
        return "?"
    return printable(text).strip()


def add_pools(
    devices: list[Device],
    processes: list[Process],
    told: list[publish.Published],
    made: Callable[[int, str, str], Process],
) -> None:
    """Puts what processes publish beside what NVML says of them; one that NVML does not list is added."""
    there = {(one.pid, identity.digits(one.uuid)): one for one in processes}
    uuids = {identity.digits(one.uuid): one.uuid for one in devices}
    for one in told:
        for pool in one.pools:
            process = there.get((one.pid, pool.uuid))
            if process is None:
                if not pool.peak_reserved and not pool.used:
                    continue  # it has never used that device
                kind = "compute" if one.driver == "cuda" else "host"
                process = made(one.pid, uuids.get(pool.uuid, pool.uuid), kind)
                process.memory = pool.used
                processes.append(process)
            process.reserved, process.live, process.peak_reserved = (
                pool.reserved,
                pool.live,
                pool.peak_reserved,
            )


def add_hosts(devices: list[Device], told: list[publish.Published]) -> None:
    """Host devices as the processes that have them tell: the sum over all, for each has its own."""
    there = {identity.digits(one.uuid): one for one in devices}
    sums: dict[str, list[int]] = {}
    for one in told:
        for pool in one.pools:
            if pool.used is None or pool.total is None:
                continue
            if pool.uuid not in there:
                uuid = str(UUID(pool.uuid))
                place = f"host:{pool.ordinal}"
                there[pool.uuid] = Device(uuid, pool.name, pool.ordinal, None, place, None, True)
                devices.append(there[pool.uuid])
            both = sums.setdefault(pool.uuid, [0, 0])
            both[0] += pool.used
            both[1] += pool.total
    for digits, (used, total) in sums.items():
        info = readings.MemoryInfo(total, 0, total - used, used)
        there[digits].readings["device_memory_info"] = info
