"""Power, energy, and what holds a device back.  Source: NVML API Reference Guide, "Device Queries"."""

from functools import partial

from accelrt.annotations import DeviceArgument
from accelrt.nvml.library import Target, function_number, read_large, read_number, read_several
from accelrt.readings.reading import reading, refusal
from accelrt.readings.records import PowerLimits, supported

__all__ = ["energy", "performance_state", "power_draw", "power_limits", "throttle_reasons"]

DRAW = function_number("nvmlDeviceGetPowerUsage")
ENFORCED = function_number("nvmlDeviceGetEnforcedPowerLimit")
REQUESTED = function_number("nvmlDeviceGetPowerManagementLimit")
DEFAULT = function_number("nvmlDeviceGetPowerManagementDefaultLimit")
RANGE = function_number("nvmlDeviceGetPowerManagementLimitConstraints")
ENERGY = function_number("nvmlDeviceGetTotalEnergyConsumption")
STATE = function_number("nvmlDeviceGetPerformanceState")
REASONS = function_number("nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons")

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


def power_draw(device: DeviceArgument | Target | None = None) -> int:
    """Returns the power that a device draws, in milliwatts (nvmlDeviceGetPowerUsage): on Ampere and later the
    mean of a second.

    Arguments, Raises: as temperature.
    """
    return read_number("power_draw", DRAW, device)


@reading
def power_limits(target: Target) -> PowerLimits:
    """Returns the limits of a device's power, in milliwatts (nvmlDeviceGetEnforcedPowerLimit and its
    neighbours).

    Arguments, Raises: as temperature.
    """
    numbers = (ENFORCED, REQUESTED, DEFAULT)
    single = [supported(partial(read_number, "power_limits", number, target)) for number in numbers]
    allowed = supported(partial(read_several, "power_limits", RANGE, target, 2)) or (None, None)
    if not any((*single, *allowed)):
        raise refusal("power_limits", target)
    return PowerLimits(*single, *allowed)


@reading
def energy(target: Target) -> int:
    """Returns the energy that a device has used since its driver was loaded, in millijoules
    (nvmlDeviceGetTotalEnergyConsumption).

    Arguments, Raises: as temperature.
    """
    return read_large("energy", ENERGY, target)


@reading
def performance_state(target: Target) -> int:
    """Returns a device's performance state, 0 (fastest) to 15 (nvmlDeviceGetPerformanceState).

    Arguments, Raises: as temperature.
    """
    state = read_number("performance_state", STATE, target)
    if state == UNKNOWN_STATE:
        raise refusal("performance_state", target)
    return state


@reading
def throttle_reasons(target: Target) -> tuple[str, ...]:
    """Tells why a device's clocks are not higher (nvmlDeviceGetCurrentClocksEventReasons).

    Arguments, Raises: as temperature.
    Returns:
        A tuple of str, of gpu_idle, applications_clocks_setting, sw_power_cap, hw_slowdown, sync_boost,
        sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown and display_clock_setting;
        "bit_<n>" for one that a later driver may add; () where nothing holds it back.
    """
    bits = read_large("throttle_reasons", REASONS, target)
    return tuple(
        REASON_NAMES.get(1 << bit, f"bit_{bit}") for bit in range(bits.bit_length()) if bits >> bit & 1
    )
