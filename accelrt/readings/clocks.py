"""Clocks.  Source: NVML API Reference Guide, "Device Queries"."""

from accelrt.annotations import DeviceArgument
from accelrt.errors import NotSupportedError
from accelrt.nvml.library import function_number
from accelrt.readings.nvml_calls import Place, place_for, read_number, reading_error

__all__ = ["application_clock_rates", "clock_rate", "clock_rates", "max_clock_rates"]

NOW = function_number("nvmlDeviceGetClockInfo")
MOST = function_number("nvmlDeviceGetMaxClockInfo")
ASKED = function_number("nvmlDeviceGetApplicationsClock")

KINDS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # nvmlClockType_t
SM = KINDS["sm"]
UNSUPPORTED = 3


def clock_rate(device: DeviceArgument | None = None) -> int:
    """The clock of a device's multiprocessors now, in MHz (nvmlDeviceGetClockInfo).

    Arguments, Raises: as temperature.
    """
    return read_number("clock_rate", NOW, device, SM)


def clock_rates(device: DeviceArgument | None = None) -> dict[str, int | None]:
    """A device's clocks now, in MHz: "graphics", "sm", "memory", "video"; None for one that it lacks."""
    return every_kind("clock_rates", NOW, device)


def max_clock_rates(device: DeviceArgument | None = None) -> dict[str, int | None]:
    """The highest that the same clocks can be, in MHz (nvmlDeviceGetMaxClockInfo)."""
    return every_kind("max_clock_rates", MOST, device)


def application_clock_rates(device: DeviceArgument | None = None) -> dict[str, int | None]:
    """What programs are given at most as it is set now, in MHz (nvmlDeviceGetApplicationsClock)."""
    return every_kind("application_clock_rates", ASKED, device)


def every_kind(reading: str, number: int, device: DeviceArgument | None) -> dict[str, int | None]:
    place = place_for(device)
    if not isinstance(place, Place):
        return dict(getattr(place, reading)())
    found: dict[str, int | None] = {}
    for name, kind in KINDS.items():
        try:
            found[name] = read_number(reading, number, place, kind)
        except NotSupportedError:
            found[name] = None
    if not any(found.values()):
        raise reading_error(reading, place, UNSUPPORTED)
    return found
