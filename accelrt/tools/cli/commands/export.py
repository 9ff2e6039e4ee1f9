"""accelrt export: serve readings of devices and of processes' pools to Prometheus, over HTTP.

Units are Prometheus's base units (seconds, bytes, watts, joules, hertz, ratios from 0 to 1; Prometheus
documentation, "Metric and label naming").  A device that lacks a reading has no such metric.
"""

import argparse
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from accelrt.devices.versions import kernel_driver_version
from accelrt.tools.cli import options
from accelrt.tools.cli.choice import need
from accelrt.tools.cli.interrupts import HeldInterrupts
from accelrt.tools.cli.sample import Device, Process, Sampler
from accelrt.tools.cli.text import put

PORT = 9484
LABELS = ("uuid", "device", "name")
OF_PROCESS = ("uuid", "device", "pid", "user", "program")


@dataclass(frozen=True)
class Metric:
    """One figure of a device, or several that its own labels tell apart.

    Attributes:
        name, help: str.
        reading: str, of accelrt.readings.
        parts: str, the parts of the reading that are told, by spaces; "" is all of it.
        unit: what is divided by.
        labels: their names; the values are the words of a part, or of a reading that is a list of words.
        counts: whether it is a counter, whose name gets _total.
    """

    name: str
    help: str
    reading: str
    parts: str = ""
    unit: float = 1
    labels: tuple[str, ...] = ()
    counts: bool = False

    def rows(self, device: Device) -> Iterator[tuple[list[str], float]]:
        """The labels' values and the figure of each; none where the device lacks it."""
        for part in self.parts.split() or [""]:
            figure = device.figure(self.reading, part or None)
            if isinstance(figure, (list, tuple)):
                yield from (([word], 1.0) for word in figure)
            elif figure is not None:
                yield part.split("_") if self.labels else [], figure / self.unit


CLOCKS = "graphics sm memory video"
ECC = "corrected_volatile uncorrected_volatile corrected_aggregate uncorrected_aggregate"
WAYS = "sent received"
IN_USE = "Part of the last period in which memory was in use."
ECC_HELP = "Errors of memory; volatile: since the driver was loaded."
REMAPPED_HELP = "Rows of memory replaced by spare ones."
PCIE_HELP = "Over PCIe, in the last 20 ms."
NVLINK_HELP = "Over all NVLinks since the driver was loaded."
HELD_BACK = "1 for each reason that holds the clocks back."
METRICS = (
    Metric("utilization_ratio", "Part of the last period in which a kernel ran.", "utilization", unit=100),
    Metric("memory_busy_ratio", IN_USE, "memory_usage", unit=100),
    Metric("memory_used_bytes", "Memory in use by all processes.", "device_memory_info", "used"),
    Metric("memory_total_bytes", "All of the device's memory.", "device_memory_info", "total"),
    Metric("temperature_celsius", "Temperature of the die.", "temperature"),
    Metric("memory_temperature_celsius", "Temperature of the memory.", "memory_temperature"),
    Metric("power_watts", "What the device draws.", "power_draw", unit=1000),
    Metric("power_limit_watts", "The limit in force.", "power_limits", "enforced", 1000),
    Metric("energy_joules", "Used since the driver was loaded.", "energy", unit=1000, counts=True),
    Metric("clock_hertz", "Clocks now.", "clock_rates", CLOCKS, 1e-6, ("clock",)),
    Metric("clock_max_hertz", "The highest that they can be.", "max_clock_rates", CLOCKS, 1e-6, ("clock",)),
    Metric("fan_ratio", "Speed that the fans are meant to have.", "fan_speed", unit=100),
    Metric("performance_state", "0 (fastest) to 15.", "performance_state"),
    Metric("throttled", HELD_BACK, "throttle_reasons", labels=("reason",)),
    Metric("ecc_errors", ECC_HELP, "ecc_errors", ECC, labels=("kind", "since")),
    Metric("remapped_rows", REMAPPED_HELP, "remapped_rows", "corrected uncorrected", labels=("kind",)),
    Metric("pcie_bytes_per_second", PCIE_HELP, "pcie_throughput", WAYS, labels=("way",)),
    Metric("nvlink_bytes", NVLINK_HELP, "nvlink_throughput", WAYS, labels=("way",), counts=True),
)
PROCESS_METRICS = (
    ("process_memory_bytes", "Memory of a device that a process holds.", "memory"),
    ("pool_reserved_bytes", "What a process's accelrt pool holds.", "reserved"),
    ("pool_live_bytes", "What of that is handed out.", "live"),
    ("pool_reserved_peak_bytes", "The most that it has held.", "peak_reserved"),
)


class Collector:
    """The collector that prometheus_client asks at every scrape; each is a look of its own.

    Arguments:
        sampler: Sampler.
        core: the module prometheus_client.core.
    """

    def __init__(self, sampler: Sampler, core: Any) -> None:
        self.sampler = sampler
        self.core = core
        self.lock: threading.Lock = threading.Lock()  # scrapes come on threads; the Sampler is for one

    def describe(self) -> list[Any]:
        """None ahead: registering must not look."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics of one look."""
        with self.lock:
            sample = self.sampler.sample()
        gauge, counter = self.core.GaugeMetricFamily, self.core.CounterMetricFamily
        labelled = [(device, device_labels(device)) for device in sample.devices]
        is_up = [(labels, 0 if device.problem else 1) for device, labels in labelled]
        yield filled(gauge, "device_up", "1, or 0 where the device answers with an error.", LABELS, is_up)
        driver = self.core.InfoMetricFamily("accelrt_driver", "The driver in the kernel.")
        driver.add_metric([], {"version": kernel_driver_version() or ""})
        yield driver
        for each in METRICS:
            rows = [
                ([*labels, *own], figure) for device, labels in labelled for own, figure in each.rows(device)
            ]
            kind = counter if each.counts else gauge
            yield filled(kind, f"device_{each.name}", each.help, (*LABELS, *each.labels), rows)
        by_uuid = {device.uuid: labels for device, labels in labelled}
        for name, text, attribute in PROCESS_METRICS:
            figures = [(process, getattr(process, attribute)) for process in sample.processes]
            rows = [
                (process_labels(process, by_uuid), figure)
                for process, figure in figures
                if figure is not None
            ]
            yield filled(gauge, name, text, OF_PROCESS, rows)


def filled(
    kind: Any, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[list[str], float]]
) -> Any:
    """A family of prometheus_client's with these rows: the labels' values, and the figure."""
    family = kind(f"accelrt_{name}", text, labels=labels)
    for values, figure in rows:
        family.add_metric(values, figure)
    return family


def device_labels(device: Device) -> list[str]:
    return [device.uuid, "" if device.ordinal is None else str(device.ordinal), device.name]


def process_labels(process: Process, devices: dict[str, list[str]]) -> list[str]:
    uuid, ordinal, _ = devices.get(process.uuid, [process.uuid, "", ""])
    program = PurePath(process.command.partition(" ")[0]).name  # arguments can hold what is nobody's business
    return [uuid, ordinal, str(process.pid), process.user, program]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "to listen at; default: this machine alone"
    parser.add_argument("--address", default="127.0.0.1", help=text)
    port = options.number_from(int, 0, 1 << 16, "a port, 0 to 65535")
    parser.add_argument("--port", type=port, default=PORT, help=f"default: {PORT}; 0 takes a free one")
    options.add_once(parser)


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
