"""Utilization, memory and its errors, clocks.  Source: NVML API Reference Guide, "Device Queries"."""

from functools import partial

from accelrt.annotations import DeviceArgument
from accelrt.nvml.library import (
    Target,
    function_number,
    read_large,
    read_memory,
    read_number,
    read_of_pair,
    read_several,
)
from accelrt.readings.reading import figures, reading
from accelrt.readings.records import EccErrors, MemoryInfo, RemappedRows

__all__ = [
    "application_clock_rates",
    "clock_rate",
    "clock_rates",
    "decoder_utilization",
    "device_memory_info",
    "device_memory_used",
    "ecc_errors",
    "ecc_mode",
    "encoder_utilization",
    "max_clock_rates",
    "memory_usage",
    "remapped_rows",
    "utilization",
]

RATES = function_number("nvmlDeviceGetUtilizationRates")
ENCODER = function_number("nvmlDeviceGetEncoderUtilization")
DECODER = function_number("nvmlDeviceGetDecoderUtilization")
GPU, MEMORY = 0, 1  # fields of nvmlUtilization_t


def utilization(device: DeviceArgument | Target | None = None) -> int:
    """Returns the part of the last sampling period, a sixth of a second to a second, in which a kernel ran,
    in percent (nvmlDeviceGetUtilizationRates).

    Arguments, Raises: as temperature.
    """
    return read_of_pair("utilization", RATES, device, GPU)


def memory_usage(device: DeviceArgument | Target | None = None) -> int:
    """Returns the part of the period of utilization in which the device's memory was read or written, in
    percent of time, not of bytes.

    Arguments, Raises: as temperature.
    """
    return read_of_pair("memory_usage", RATES, device, MEMORY)


@reading
def encoder_utilization(target: Target) -> int:
    """Returns how busy the video encoders are, in percent (nvmlDeviceGetEncoderUtilization).

    Arguments, Raises: as temperature.
    """
    return read_several("encoder_utilization", ENCODER, target, 2)[0]


@reading
def decoder_utilization(target: Target) -> int:
    """Returns how busy the video decoders are, in percent (nvmlDeviceGetDecoderUtilization).

    Arguments, Raises: as temperature.
    """
    return read_several("decoder_utilization", DECODER, target, 2)[0]


@reading
def device_memory_used(target: Target) -> int:
    """Returns the bytes of a device's memory in use by all processes, as nvidia-smi gives them
    (nvmlDeviceGetMemoryInfo_v2).

    What the driver keeps for itself is not in it where the driver tells the two apart.  Arguments, Raises: as
    temperature.
    """
    return read_memory("device_memory_used", target)[3]


@reading
def device_memory_info(target: Target) -> MemoryInfo:
    """Returns the bytes of a device's memory: total, reserved by the driver, free, used
    (nvmlDeviceGetMemoryInfo_v2).

    Arguments, Raises: as temperature.
    """
    return MemoryInfo(*read_memory("device_memory_info", target))


NOW = function_number("nvmlDeviceGetClockInfo")
MOST = function_number("nvmlDeviceGetMaxClockInfo")
ASKED = function_number("nvmlDeviceGetApplicationsClock")

KINDS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # nvmlClockType_t
SM = KINDS["sm"]


def clock_rate(device: DeviceArgument | Target | None = None) -> int:
    """Returns the clock of a device's multiprocessors now, in MHz (nvmlDeviceGetClockInfo).

    Arguments, Raises: as temperature.
    """
    return read_number("clock_rate", NOW, device, SM)


@reading
def clock_rates(target: Target) -> dict[str, int | None]:
    """Returns a device's clocks now, in MHz: "graphics", "sm", "memory", "video"; None for one that it
    lacks.

    Arguments, Raises: as temperature.
    """
    return every_kind("clock_rates", NOW, target)


@reading
def max_clock_rates(target: Target) -> dict[str, int | None]:
    """Returns the highest that the clocks of clock_rates can be, in MHz (nvmlDeviceGetMaxClockInfo).

    Arguments, Raises: as temperature.
    """
    return every_kind("max_clock_rates", MOST, target)


@reading
def application_clock_rates(target: Target) -> dict[str, int | None]:
    """Returns the clocks that programs are given at most as it is set now, in MHz
    (nvmlDeviceGetApplicationsClock), as clock_rates does.

    Arguments, Raises: as temperature.
    """
    return every_kind("application_clock_rates", ASKED, target)


def every_kind(name: str, number: int, target: Target) -> dict[str, int | None]:
    calls = (partial(read_number, name, number, target, kind) for kind in KINDS.values())
    return dict(zip(KINDS, figures(name, target, calls, zeros=False), strict=True))


TOTAL = function_number("nvmlDeviceGetTotalEccErrors")
MODE = function_number("nvmlDeviceGetEccMode")
ROWS = function_number("nvmlDeviceGetRemappedRows")

CORRECTED, UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
VOLATILE, AGGREGATE = 0, 1  # nvmlEccCounterType_t


@reading
def ecc_errors(target: Target) -> EccErrors:
    """Returns how many errors of memory a device found, corrected ones and others
    (nvmlDeviceGetTotalEccErrors).

    Arguments: as temperature.
    Raises:
        NotSupportedError: the device has no error correction, or it is off.
    """
    counters = ((kind, since) for since in (VOLATILE, AGGREGATE) for kind in (CORRECTED, UNCORRECTED))
    calls = (partial(read_large, "ecc_errors", TOTAL, target, *counter) for counter in counters)
    return EccErrors(*figures("ecc_errors", target, calls, zeros=True))


@reading
def ecc_mode(target: Target) -> bool:
    """Tells whether a device's error correction is on now (nvmlDeviceGetEccMode).

    Arguments, Raises: as temperature.
    """
    return read_several("ecc_mode", MODE, target, 2)[0] == 1


@reading
def remapped_rows(target: Target) -> RemappedRows:
    """Counts the rows of memory that a device has replaced by spare ones (nvmlDeviceGetRemappedRows).

    Arguments, Raises: as temperature.
    Returns:
        RemappedRows.
    """
    corrected, uncorrected, pending, failed = read_several("remapped_rows", ROWS, target, 4)
    return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))
