"""accelrt export: the readings of all devices and the pools of processes that publish them, for Prometheus.

Units are Prometheus's base units (seconds, bytes, watts, joules, hertz, ratios from 0 to 1; Prometheus
documentation, "Metric and label naming").  A device that lacks a reading has no such metric.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from accelrt.devices import versions
from accelrt.tools.cli.choice import need
from accelrt.tools.cli.interrupts import HeldInterrupts
from accelrt.tools.cli.sample import Device, Process, Sample, Sampler
from accelrt.tools.cli.text import put

__all__ = ["Collector", "run"]

LABELS = ("uuid", "device", "name")
OF_PROCESS = ("uuid", "device", "pid", "user", "program")


@dataclass(frozen=True)
class Metric:
    """One figure of a device: its name and help, the labels it has of its own, and how to get it.

    rows returns pairs of those labels' values and the figure; [] where the device lacks it.
    """

    name: str
    help: str
    rows: Callable[[Device], list[tuple[tuple[str, ...], float]]]
    labels: tuple[str, ...] = ()
    counts: bool = False  # a counter, whose name gets _total


def one(reading: str, part: str | None = None, unit: float = 1) -> Any:
    """The rows of a figure that is a single number, by what it is divided by."""

    def rows(device: Device) -> list[tuple[tuple[str, ...], float]]:
        found = device.figure(reading, part)
        return [] if found is None else [((), found / unit)]

    return rows


def several(reading: str, parts: Mapping[str, tuple[str, ...]], unit: float = 1) -> Any:
    """The rows of a figure with parts: the part's name -> its labels' values."""

    def rows(device: Device) -> list[tuple[tuple[str, ...], float]]:
        found = [(labels, device.figure(reading, part)) for part, labels in parts.items()]
        return [(labels, value / unit) for labels, value in found if value is not None]

    return rows


def throttled(device: Device) -> list[tuple[tuple[str, ...], float]]:
    return [((reason,), 1.0) for reason in device.figure("throttle_reasons") or ()]


CLOCKS = {kind: (kind,) for kind in ("graphics", "sm", "memory", "video")}
WAYS = {"sent": ("sent",), "received": ("received",)}
ECC = {
    "corrected_volatile": ("corrected", "volatile"),
    "uncorrected_volatile": ("uncorrected", "volatile"),
    "corrected_aggregate": ("corrected", "aggregate"),
    "uncorrected_aggregate": ("uncorrected", "aggregate"),
}
ROWS = {"corrected": ("corrected",), "uncorrected": ("uncorrected",)}
METRICS = (
    Metric(
        "utilization_ratio", "Part of the last period in which a kernel ran.", one("utilization", unit=100)
    ),
    Metric(
        "memory_busy_ratio",
        "Part of the last period in which memory was in use.",
        one("memory_usage", unit=100),
    ),
    Metric("memory_used_bytes", "Memory in use by all processes.", one("device_memory_info", "used")),
    Metric("memory_total_bytes", "All of the device's memory.", one("device_memory_info", "total")),
    Metric("temperature_celsius", "Temperature of the die.", one("temperature")),
    Metric("memory_temperature_celsius", "Temperature of the memory.", one("memory_temperature")),
    Metric("power_watts", "What the device draws.", one("power_draw", unit=1000)),
    Metric("power_limit_watts", "The limit in force.", one("power_limits", "enforced", 1000)),
    Metric("energy_joules", "Used since the driver was loaded.", one("energy", unit=1000), counts=True),
    Metric("clock_hertz", "Clocks now.", several("clock_rates", CLOCKS, 1e-6), ("clock",)),
    Metric(
        "clock_max_hertz",
        "The highest that they can be.",
        several("max_clock_rates", CLOCKS, 1e-6),
        ("clock",),
    ),
    Metric("fan_ratio", "Speed that the fans are meant to have.", one("fan_speed", unit=100)),
    Metric("performance_state", "0 (fastest) to 15.", one("performance_state")),
    Metric("throttled", "1 for each reason that holds the clocks back.", throttled, ("reason",)),
    Metric(
        "ecc_errors",
        "Errors of memory; volatile: since the driver was loaded.",
        several("ecc_errors", ECC),
        ("kind", "since"),
    ),
    Metric(
        "remapped_rows", "Rows of memory replaced by spare ones.", several("remapped_rows", ROWS), ("kind",)
    ),
    Metric(
        "pcie_bytes_per_second", "Over PCIe, in the last 20 ms.", several("pcie_throughput", WAYS), ("way",)
    ),
    Metric(
        "nvlink_bytes",
        "Over all NVLinks since the driver was loaded.",
        several("nvlink_throughput", WAYS),
        ("way",),
        True,
    ),
)
PROCESS_METRICS: tuple[tuple[str, str, Callable[[Process], int | None]], ...] = (
    ("process_memory_bytes", "Memory of a device that a process holds.", lambda process: process.memory),
    ("pool_reserved_bytes", "What a process's accelrt pool holds.", lambda process: process.reserved),
    ("pool_live_bytes", "What of that is handed out.", lambda process: process.live),
    ("pool_reserved_peak_bytes", "The most that it has held.", lambda process: process.peak_reserved),
)


class Collector:
    """What prometheus_client asks at every scrape; each is a look of its own.

    Arguments:
        sampler: Sampler.
        core: the module prometheus_client.core.
    """

    def __init__(self, sampler: Sampler, core: Any) -> None:
        self.sampler = sampler
        self.core = core
        self.lock = threading.Lock()  # scrapes come on threads; the Sampler is for one

    def describe(self) -> list[Any]:
        """None ahead: registering must not look."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics of one look."""
        with self.lock:
            sample = self.sampler.sample()
        yield self.up(sample)
        yield self.build()
        for metric in METRICS:
            yield self.of_devices(metric, sample.devices)
        places = {device.uuid: device for device in sample.devices}
        for name, text, value in PROCESS_METRICS:
            family = self.core.GaugeMetricFamily(f"accelrt_{name}", text, labels=OF_PROCESS)
            for process in sample.processes:
                figure = value(process)
                if figure is not None:
                    family.add_metric(process_labels(process, places.get(process.uuid)), figure)
            yield family

    def up(self, sample: Sample) -> Any:
        family = self.core.GaugeMetricFamily(
            "accelrt_device_up", "1, or 0 where the device answers with an error.", labels=LABELS
        )
        for device in sample.devices:
            family.add_metric(device_labels(device), 0 if device.problem else 1)
        return family

    def build(self) -> Any:
        family = self.core.InfoMetricFamily("accelrt_driver", "The driver in the kernel.")
        family.add_metric([], {"version": versions.kernel_driver_version() or ""})
        return family

    def of_devices(self, metric: Metric, devices: list[Device]) -> Any:
        kind = self.core.CounterMetricFamily if metric.counts else self.core.GaugeMetricFamily
        family = kind(f"accelrt_device_{metric.name}", metric.help, labels=[*LABELS, *metric.labels])
        for device in devices:
            for labels, value in metric.rows(device):
                family.add_metric([*device_labels(device), *labels], value)
        return family


def device_labels(device: Device) -> list[str]:
    return [device.uuid, "" if device.ordinal is None else str(device.ordinal), device.name]


def process_labels(process: Process, device: Device | None) -> list[str]:
    uuid = process.uuid if device is None else device.uuid
    ordinal = "" if device is None or device.ordinal is None else str(device.ordinal)
    program = PurePath(process.command.partition(" ")[0]).name  # arguments can hold what is nobody's business
    return [uuid, ordinal, str(process.pid), process.user, program]


def run(address: str, port: int, once: bool) -> int:
    """The command.  Serves until it is interrupted or terminated.  Returns the exit status, 0.

    Raises:
        ImportError: prometheus-client is not installed.
        OSError: the port is in use.
    """
    client: Any = need("prometheus-client", "prometheus_client", "export")
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(
        Collector(Sampler(slow=True), need("prometheus-client", "prometheus_client.core", "export"))
    )
    if once:
        sys.stdout.buffer.write(client.generate_latest(registry))  # UTF-8, whatever the locale says
        return 0
    over: queue.SimpleQueue[None] = queue.SimpleQueue()  # which a signal's handler may put into at any time
    with HeldInterrupts(lambda: over.put(None)):
        before = signal.signal(signal.SIGTERM, lambda number, frame: over.put(None))
        try:
            serve(client, address, port, registry, over)
        finally:
            signal.signal(signal.SIGTERM, before)
    return 0


def serve(client: Any, address: str, port: int, registry: Any, over: queue.SimpleQueue[None]) -> None:
    server, thread = client.start_http_server(port, address, registry)
    try:
        host = f"[{address}]" if ":" in address else address
        put(f"serving http://{host}:{server.server_port}/metrics", flush=True)
        over.get()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
