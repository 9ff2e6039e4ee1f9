"""How busy a device is, and how full.  Source: NVML API Reference Guide, "Device Queries"."""

from accelrt.annotations import DeviceArgument
from accelrt.nvml.library import function_number
from accelrt.readings.nvml_calls import Place, place_for, read_memory, read_pair, read_several
from accelrt.readings.records import MemoryInfo

__all__ = [
    "decoder_utilization",
    "device_memory_info",
    "device_memory_used",
    "encoder_utilization",
    "memory_usage",
    "utilization",
]

RATES = function_number("nvmlDeviceGetUtilizationRates")
ENCODER = function_number("nvmlDeviceGetEncoderUtilization")
DECODER = function_number("nvmlDeviceGetDecoderUtilization")
GPU, MEMORY = 0, 1  # fields of nvmlUtilization_t


def utilization(device: DeviceArgument | None = None) -> int:
    """The part of the last sampling period, a sixth of a second to a second, in which a kernel ran, in
    percent (nvmlDeviceGetUtilizationRates).

    Arguments, Raises: as temperature.
    """
    return read_pair("utilization", RATES, device, GPU)


def memory_usage(device: DeviceArgument | None = None) -> int:
    """The part of the same period in which the device's memory was read or written, in percent of time, not
    of bytes.
    """
    return read_pair("memory_usage", RATES, device, MEMORY)


def encoder_utilization(device: DeviceArgument | None = None) -> int:
    """How busy the video encoders are, in percent (nvmlDeviceGetEncoderUtilization)."""
    place = place_for(device)
    if not isinstance(place, Place):
        return int(place.encoder_utilization())
    return read_several("encoder_utilization", ENCODER, place, 2)[0]


def decoder_utilization(device: DeviceArgument | None = None) -> int:
    """How busy the video decoders are, in percent (nvmlDeviceGetDecoderUtilization)."""
    place = place_for(device)
    if not isinstance(place, Place):
        return int(place.decoder_utilization())
    return read_several("decoder_utilization", DECODER, place, 2)[0]


def device_memory_used(device: DeviceArgument | None = None) -> int:
    """Bytes of a device's memory in use by all processes, as nvidia-smi gives them
    (nvmlDeviceGetMemoryInfo_v2).

    What the driver keeps for itself is not in it where the driver tells the two apart.  Arguments, Raises: as
    temperature.
    """
    return int(read_memory("device_memory_used", device, False))


def device_memory_info(device: DeviceArgument | None = None) -> MemoryInfo:
    """Bytes of a device's memory: total, reserved by the driver, free, used (nvmlDeviceGetMemoryInfo_v2)."""
    place = place_for(device)
    if not isinstance(place, Place):
        info: MemoryInfo = place.device_memory_info()
        return info
    return MemoryInfo(*read_memory("device_memory_info", place, True))
