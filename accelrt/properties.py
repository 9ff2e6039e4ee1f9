"""What a device is: name, compute capability, memory, and the attributes people ask for."""

from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from accelrt.device import current_device, device
from accelrt.driver.rows import Rows
from accelrt.status import status_error

__all__ = ["DeviceProperties", "get_device_capability", "get_device_name", "get_device_properties"]

# numbers of CUdevice_attribute (CUDA driver API, "Data types used by CUDA driver")
ATTRIBUTES = {
    "major": 75,
    "minor": 76,
    "multi_processor_count": 16,
    "warp_size": 10,
    "max_threads_per_block": 1,
    "max_threads_per_multi_processor": 39,
    "regs_per_multiprocessor": 82,
    "shared_memory_per_block": 8,
    "shared_memory_per_block_optin": 97,
    "shared_memory_per_multiprocessor": 81,
    "L2_cache_size": 38,
    "clock_rate": 13,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
    "is_integrated": 18,
    "is_multi_gpu_board": 84,
    "pci_bus_id": 33,
    "pci_device_id": 34,
    "pci_domain_id": 50,
}


@dataclass(frozen=True)
class DeviceProperties:
    """A device's constants; torch's names and units (bytes, kHz, bits)."""

    name: str
    uuid: UUID
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    warp_size: int
    max_threads_per_block: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    is_integrated: int
    is_multi_gpu_board: int
    pci_bus_id: int
    pci_device_id: int
    pci_domain_id: int


def asked(call: str, ordinal: int, *more: int) -> Any:
    code, answer = getattr(Rows(), call)(ordinal, *more)
    if code:
        raise status_error(code, call, ("device", ordinal, *(("attribute", more[0]) if more else ())))
    return answer


@cache
def properties_of(ordinal: int) -> DeviceProperties:
    attributes = {name: asked("device_attribute", ordinal, number) for name, number in ATTRIBUTES.items()}
    return DeviceProperties(
        name=asked("device_name", ordinal),
        uuid=UUID(bytes=asked("device_uuid", ordinal)),
        total_memory=asked("device_memory", ordinal),
        **attributes,
    )


def get_device_properties(device: Any = None) -> DeviceProperties:
    """A device's constants.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None for the current one.
    Returns:
        DeviceProperties, the same object at every call.
    Raises:
        ValueError, TypeError: it names no device.
    """
    return properties_of(ordinal(device))


def get_device_name(device: Any = None) -> str:
    """A device's name, such as "NVIDIA H200" (cuDeviceGetName); arguments as get_device_properties."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """A device's compute capability, (major, minor); (0, 0) for the host device."""
    found = get_device_properties(device)
    return found.major, found.minor


def ordinal(given: Any) -> int:
    return current_device() if given is None else device(given).index
