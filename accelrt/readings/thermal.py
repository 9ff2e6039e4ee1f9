"""Temperatures and fans.  Source: NVML API Reference Guide, "Device Queries"."""

from functools import partial

from accelrt.annotations import DeviceArgument
from accelrt.nvml.library import Target, function_number, read_fields, read_number
from accelrt.readings.reading import figures, reading, refusal
from accelrt.readings.records import TemperatureLimits

__all__ = ["fan_speed", "fan_speeds", "memory_temperature", "temperature", "temperature_limits"]

TEMPERATURE = function_number("nvmlDeviceGetTemperature")
THRESHOLD = function_number("nvmlDeviceGetTemperatureThreshold")
FAN = function_number("nvmlDeviceGetFanSpeed")
FANS = function_number("nvmlDeviceGetNumFans")
FAN_OF = function_number("nvmlDeviceGetFanSpeed_v2")

DIE = 0  # NVML_TEMPERATURE_GPU
SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX = range(4)  # nvmlTemperatureThresholds_t
MEMORY_FIELD = 82  # NVML_FI_DEV_MEMORY_TEMP


def temperature(device: DeviceArgument | Target | None = None) -> int:
    """Returns the temperature of a device's die, in degrees Celsius (nvmlDeviceGetTemperature).

    Arguments:
        device: int, "cuda:1", a device object, a UUID "GPU-..." or "MIG-..." of any card that NVML lists, a
            row of accelrt.identity, or None for the current device.  Every reading takes the same.
    Returns:
        int.
    Raises:
        NotSupportedError: the device has no such reading; the text names both.
        DriverNotFoundError: there is no NVML.
        ReadingError: NVML failed.
        ValueError, TypeError: it names no device.
    """
    return read_number("temperature", TEMPERATURE, device, DIE)


@reading
def memory_temperature(target: Target) -> int:
    """Returns the temperature of a device's memory, in degrees Celsius (field NVML_FI_DEV_MEMORY_TEMP).

    Arguments, Raises: as temperature.
    """
    (value,) = read_fields("memory_temperature", target, [(MEMORY_FIELD, 0)])
    if not value:  # a card without the sensor answers an error, or 0
        raise refusal("memory_temperature", target)
    return int(value)


@reading
def temperature_limits(target: Target) -> TemperatureLimits:
    """Returns where a device slows down and shuts down, in degrees Celsius
    (nvmlDeviceGetTemperatureThreshold).

    Arguments, Raises: as temperature.
    """
    kinds = (SHUTDOWN, SLOWDOWN, GPU_MAX, MEMORY_MAX)
    calls = (partial(read_number, "temperature_limits", THRESHOLD, target, kind) for kind in kinds)
    return TemperatureLimits(*figures("temperature_limits", target, calls, zeros=False))


def fan_speed(device: DeviceArgument | Target | None = None) -> int:
    """Returns the speed that a device's fans are meant to have, in percent of the highest
    (nvmlDeviceGetFanSpeed).

    Arguments, Raises: as temperature.

    A blocked fan may stand still all the same.  A card cooled from outside has none: NotSupportedError.
    """
    return read_number("fan_speed", FAN, device)


@reading
def fan_speeds(target: Target) -> list[int]:
    """Returns fan_speed of each fan, in percent, a list of ints (nvmlDeviceGetFanSpeed_v2).

    Arguments, Raises: as temperature.
    """
    fans = read_number("fan_speeds", FANS, target)
    if not fans:
        raise refusal("fan_speeds", target)
    return [read_number("fan_speeds", FAN_OF, target, fan) for fan in range(fans)]
