"""What readings of several figures answer.  A figure that a device lacks is None."""

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
    """What a call answers; None where the device lacks it."""
    try:
        return ask()
    except NotSupportedError:
        return None


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes: total is reserved (by the driver) and free and used together."""

    total: int
    reserved: int
    free: int
    used: int


@dataclass(frozen=True)
class TemperatureLimits:
    """Degrees Celsius: where the device shuts down, where it slows down, and what is the most in
    operation.
    """

    shutdown: int | None
    slowdown: int | None
    gpu_max: int | None
    memory_max: int | None


@dataclass(frozen=True)
class PowerLimits:
    """Milliwatts: in force (the least of all), asked for, as delivered, and the range that may be asked
    for.
    """

    enforced: int | None
    requested: int | None
    default: int | None
    minimum: int | None
    maximum: int | None


@dataclass(frozen=True)
class EccErrors:
    """Counts of memory errors: since the driver was loaded (volatile), and in the card's life (aggregate)."""

    corrected_volatile: int | None
    uncorrected_volatile: int | None
    corrected_aggregate: int | None
    uncorrected_aggregate: int | None


@dataclass(frozen=True)
class RemappedRows:
    """Rows of memory replaced by spare ones: after corrected and uncorrected errors; pending until a reset;
    failed.
    """

    corrected: int
    uncorrected: int
    is_pending: bool
    has_failed: bool


@dataclass(frozen=True)
class PcieLink:
    """Generation and width (lanes) as they are and as they can be at most; replays counted since the last
    reset.
    """

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None
    replays: int | None


@dataclass(frozen=True)
class PcieTraffic:
    """Bytes a second over the last 20 ms: sent by the device, received by it."""

    sent: int
    received: int


@dataclass(frozen=True)
class NvlinkTraffic:
    """Bytes since the driver was loaded, over all links: sent by the device, received by it."""

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
