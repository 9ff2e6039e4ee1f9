"""The results of readings of several figures.  A figure that a device lacks is None."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from accelrt.errors import NotSupportedError

__all__ = [
    "EccErrors",
    "GpuProcess",
    "MemoryInfo",
    "NvlinkTraffic",
    "PcieLink",
    "PcieTraffic",
    "PowerLimits",
    "RemappedRows",
    "TemperatureLimits",
]

T = TypeVar("T")


def supported(ask: Callable[[], T]) -> T | None:
    """Returns what a call answers; None where the device lacks it."""
    try:
        return ask()
    except NotSupportedError:
        return None


@dataclass(frozen=True)
class MemoryInfo:
    """A device's memory, as device_memory_info reads it.

    Attributes:
        total: int, bytes: what is reserved, free and used together.
        reserved: int, bytes that the driver keeps for itself.
        free, used: int, bytes.
    """

    total: int
    reserved: int
    free: int
    used: int


@dataclass(frozen=True)
class TemperatureLimits:
    """Temperatures of a device that have consequences.

    Attributes:
        shutdown, slowdown: int, degrees Celsius; there it shuts down, and slows down.
        gpu_max, memory_max: int, degrees Celsius, the most in operation.
    """

    shutdown: int | None
    slowdown: int | None
    gpu_max: int | None
    memory_max: int | None


@dataclass(frozen=True)
class PowerLimits:
    """The limits of a device's power.

    Attributes:
        enforced: int, milliwatts: the limit in force, the least of all.
        requested, default: int, milliwatts: as it was set, and as delivered.
        minimum, maximum: int, milliwatts: the range that may be set.
    """

    enforced: int | None
    requested: int | None
    default: int | None
    minimum: int | None
    maximum: int | None


@dataclass(frozen=True)
class EccErrors:
    """Counts of memory errors.

    Attributes:
        corrected_volatile, uncorrected_volatile: int, since the driver was loaded.
        corrected_aggregate, uncorrected_aggregate: int, in the card's life.
    """

    corrected_volatile: int | None
    uncorrected_volatile: int | None
    corrected_aggregate: int | None
    uncorrected_aggregate: int | None


@dataclass(frozen=True)
class RemappedRows:
    """Rows of memory that spare ones replace.

    Attributes:
        corrected, uncorrected: int, rows replaced after such errors.
        is_pending: bool, whether one is replaced at the next reset.
        has_failed: bool, whether one could not be replaced.
    """

    corrected: int
    uncorrected: int
    is_pending: bool
    has_failed: bool


@dataclass(frozen=True)
class PcieLink:
    """A device's PCIe link.

    Attributes:
        generation, width: int, as it is; the width in lanes.
        max_generation, max_width: int, as it can be at most.
        replays: int, counted since the last reset.
    """

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None
    replays: int | None


@dataclass(frozen=True)
class PcieTraffic:
    """Traffic over PCIe.

    Attributes:
        sent, received: int, bytes a second over the last 20 ms, by the device.
    """

    sent: int
    received: int


@dataclass(frozen=True)
class NvlinkTraffic:
    """Traffic over all of a device's NVLinks.

    Attributes:
        sent, received: int, bytes since the driver was loaded, by the device.
    """

    sent: int
    received: int


@dataclass(frozen=True)
class GpuProcess:
    """A process that has a context on a device.

    Attributes:
        pid: int, in the namespace that the driver sees it in.
        memory: int, bytes of the device that it holds; None where the driver does not tell.
        kind: "compute" or "graphics".
        gpu_instance, compute_instance: int, ids of the MIG device that it runs on; None on a whole card.
    """

    pid: int
    memory: int | None
    kind: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
