"""Power, energy, and what holds a device back.  Source: NVML API Reference Guide, "Device Queries"."""

from accelrt.annotations import DeviceArgument
from accelrt.errors import NotSupportedError
from accelrt.nvml.library import function_number
from accelrt.readings.nvml_calls import (
    Target,
    read_large,
    read_number,
    read_several,
    reading_error,
    target_for,
)
from accelrt.readings.records import PowerLimits

__all__ = ["energy", "performance_state", "power_draw", "power_limits", "throttle_reasons"]

DRAW = function_number("nvmlDeviceGetPowerUsage")
ENFORCED = function_number("nvmlDeviceGetEnforcedPowerLimit")
REQUESTED = function_number("nvmlDeviceGetPowerManagementLimit")
DEFAULT = function_number("nvmlDeviceGetPowerManagementDefaultLimit")
RANGE = function_number("nvmlDeviceGetPowerManagementLimitConstraints")
ENERGY = function_number("nvmlDeviceGetTotalEnergyConsumption")
STATE = function_number("nvmlDeviceGetPerformanceState")
REASONS = function_number("nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons")

UNSUPPORTED = 3
UNKNOWN_STATE = 32  # NVML_PSTATE_UNKNOWN

# bits of nvmlClocksEventReasons
REASON_NAMES = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def power_draw(device: DeviceArgument | None = None) -> int:
    """What a device draws, in milliwatts (nvmlDeviceGetPowerUsage): on Ampere and later the mean of a second.

    Arguments, Raises: as temperature.
    """
    return read_number("power_draw", DRAW, device)


def power_limits(device: DeviceArgument | None = None) -> PowerLimits:
    """The limits of a device's power, in milliwatts (nvmlDeviceGetEnforcedPowerLimit and its neighbours)."""
    target = target_for(device)
    if not isinstance(target, Target):
        limits: PowerLimits = target.power_limits()
        return limits
    found: list[int | None] = []
    for number in (ENFORCED, REQUESTED, DEFAULT):
        try:
            found.append(read_number("power_limits", number, target))
        except NotSupportedError:
            found.append(None)
    lowest: tuple[int | None, ...]
    try:
        lowest = read_several("power_limits", RANGE, target, 2)
    except NotSupportedError:
        lowest = (None, None)
    if not any((*found, *lowest)):
        raise reading_error("power_limits", target, UNSUPPORTED)
    return PowerLimits(*found, *lowest)


def energy(device: DeviceArgument | None = None) -> int:
    """What a device has used since its driver was loaded, in millijoules
    (nvmlDeviceGetTotalEnergyConsumption).
    """
    target = target_for(device)
    if not isinstance(target, Target):
        return int(target.energy())
    return read_large("energy", ENERGY, target)


def performance_state(device: DeviceArgument | None = None) -> int:
    """A device's performance state, 0 (fastest) to 15 (nvmlDeviceGetPerformanceState)."""
    state = read_number("performance_state", STATE, device)
    if state == UNKNOWN_STATE:
        raise reading_error("performance_state", target_for(device), UNSUPPORTED)
    return state


def throttle_reasons(device: DeviceArgument | None = None) -> tuple[str, ...]:
    """Why a device's clocks are not higher (nvmlDeviceGetCurrentClocksEventReasons).

    Returns:
        A tuple of str, of gpu_idle, applications_clocks_setting, sw_power_cap, hw_slowdown, sync_boost,
        sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown and display_clock_setting;
        "bit_<n>" for one that a later driver may add; () where nothing holds it back.
    """
    target = target_for(device)
    if not isinstance(target, Target):
        return tuple(target.throttle_reasons())
    bits = read_large("throttle_reasons", REASONS, target)
    return tuple(
        REASON_NAMES.get(1 << bit, f"bit_{bit}") for bit in range(bits.bit_length()) if bits >> bit & 1
    )
