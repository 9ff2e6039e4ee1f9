"""A device's constants: the record, and reading it from the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from accelrt.devices.attributes import ATTRIBUTES, known_to
from accelrt.driver.registry import Rows
from accelrt.status import status_error

# The driver's names of those that torch calls otherwise.
DRIVER_NAMES = {
    "major": "compute_capability_major",
    "minor": "compute_capability_minor",
    "multi_processor_count": "multiprocessor_count",
    "max_threads_per_multi_processor": "max_threads_per_multiprocessor",
    "regs_per_multiprocessor": "max_registers_per_multiprocessor",
    "shared_memory_per_block": "max_shared_memory_per_block",
    "shared_memory_per_block_optin": "max_shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor": "max_shared_memory_per_multiprocessor",
    "L2_cache_size": "l2_cache_size",
    "memory_bus_width": "global_memory_bus_width",
    "is_integrated": "integrated",
    "is_multi_gpu_board": "multi_gpu_board",
}


@dataclass(frozen=True)
class DeviceProperties:
    """A device's constants; torch's names and units.

    Attributes:
        name: str, such as "NVIDIA H200".
        uuid: uuid.UUID.
        total_memory: int, bytes.
        major, minor: int, the compute capability.
        multi_processor_count: int.
        warp_size: int, threads.
        max_threads_per_block, max_threads_per_multi_processor: int.
        regs_per_multiprocessor: int, registers of 32 bits.
        shared_memory_per_block: int, bytes that a block may have without being asked for more.
        shared_memory_per_block_optin: int, bytes that a block may have where its kernel asks for it.
        shared_memory_per_multiprocessor: int, bytes.
        L2_cache_size: int, bytes.
        clock_rate, memory_clock_rate: int, the highest, in kHz.
        memory_bus_width: int, bits.
        is_integrated: int, 1 where the device shares the host's memory, else 0.
        is_multi_gpu_board: int, 1 where another GPU is on the same board, else 0.
        pci_bus_id, pci_device_id, pci_domain_id: int, where it is on the PCI bus.
        attributes: a mapping of every attribute that the driver has for the device, by its name in
            CUdevice_attribute without the prefix and in lower case ("max_grid_dim_x": 2147483647); each is
            an attribute of this object too (properties.max_grid_dim_x).
    """

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
    attributes: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def gcnArchName(self) -> str:
        """The architecture's name, which on NVIDIA devices is the device's, as in torch."""
        return self.name

    def __getattr__(self, name: str) -> int:
        attributes = self.__dict__.get("attributes", {})  # empty while a copy is being made
        if name not in attributes:
            raise AttributeError(
                f"DeviceProperties has no {name!r}, nor does the driver have such an attribute"
            )
        value: int = attributes[name]
        return value


def ask(call: str, ordinal: int, *more: int) -> Any:
    code, value = getattr(Rows(), call)(ordinal, *more)
    if code:
        raise status_error(code, call, ("device", ordinal, *(("attribute", more[0]) if more else ())))
    return value


def read_properties(ordinal: int) -> DeviceProperties:
    """The properties of a device that exists, asked for one by one: some ten microseconds."""
    rows = Rows()
    code, driver = rows.driver_version()
    if code:
        raise status_error(code, "driver_version")
    attributes = {}
    for name, number in known_to(driver).items():
        code, value = rows.device_attribute(ordinal, number)
        if code == 0:  # a driver may lack one all the same
            attributes[name] = value
    values = {}
    for each in fields(DeviceProperties):
        name = DRIVER_NAMES.get(each.name, each.name)
        if name in ATTRIBUTES:
            values[each.name] = (
                attributes[name] if name in attributes else ask("device_attribute", ordinal, ATTRIBUTES[name])
            )
    return DeviceProperties(
        name=ask("device_name", ordinal),
        uuid=UUID(bytes=ask("device_uuid", ordinal)),
        total_memory=ask("device_memory", ordinal),
        attributes=attributes,
        **values,
    )
