"""DriverPool: the driver's own stream-ordered pool of a device, its attributes, trims and peers."""

from __future__ import annotations

from dataclasses import dataclass

from accelrt.devices.context_limits import ordinal_of
from accelrt.driver.registry import Rows
from accelrt.status import status_error

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Literal

    from accelrt.annotations import DeviceArgument

# CUmemPool_attribute (CUDA driver API): name -> number.
ATTRIBUTES = {
    "reuse_follow_event_dependencies": 1,
    "reuse_allow_opportunistic": 2,
    "reuse_allow_internal_dependencies": 3,
    "release_threshold": 4,
    "reserved_mem_current": 5,
    "reserved_mem_high": 6,
    "used_mem_current": 7,
    "used_mem_high": 8,
}
ACCESS = {"none": 0, "r": 1, "rw": 3}
NAMES = {number: name for name, number in ACCESS.items()}


def read(pool: DriverPool, name: str) -> int:
    code, value = Rows().async_get(pool.device_index, ATTRIBUTES[name])
    if code:
        raise pool.error(code, "async_get", name)
    return bool(value) if name.startswith("reuse_") else int(value)


def attribute(name: str, doc: str) -> property:
    """A property that reads and sets one attribute of the driver's."""

    def write(pool: DriverPool, value: int) -> None:
        if not isinstance(value, int) or value < 0 or value >> 64:
            raise ValueError(f"{name} is {value!r}; pass an int from 0 to 2**64 - 1, or a bool")
        if name.endswith("_high") and value:
            raise ValueError(f"{name} is {value}; it is set to 0, which begins it anew at what there is")
        code = Rows().async_set(pool.device_index, ATTRIBUTES[name], int(value))
        if code:
            raise pool.error(code, "async_set", name)

    return property(lambda pool: read(pool, name), write, doc=doc)


@dataclass(init=False)
class DriverPool:
    """The pool of a device that cuMemAllocAsync allocates from, as the backend "cudaMallocAsync" does.

        pool = accelrt.memory.DriverPool()
        pool.release_threshold = 1 << 30     # bytes that it keeps when a stream is waited for
        pool.trim_to(0)

    Other libraries of the process use the same pool.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Attributes:
        device_index: int, the ordinal of the device.
    Raises:
        NotSupportedError: by what asks the driver, where it has no such pool, as the host device.
    """

    device_index: int

    reuse_follow_event_dependencies = attribute(
        "reuse_follow_event_dependencies", "Whether a stream that waits for another's event reuses its frees."
    )
    reuse_allow_opportunistic = attribute(
        "reuse_allow_opportunistic", "Whether frees are reused whose stream is seen to be past them."
    )
    reuse_allow_internal_dependencies = attribute(
        "reuse_allow_internal_dependencies", "Whether the driver may make a stream wait for another's free."
    )
    release_threshold = attribute(
        "release_threshold",
        "The bytes that the pool keeps when a stream, an event or a device is waited for.",
    )
    reserved_mem_high = attribute("reserved_mem_high", "The peak of reserved bytes; 0 begins it anew.")
    used_mem_high = attribute("used_mem_high", "The peak of allocated bytes; 0 begins it anew.")

    def __init__(self, device: DeviceArgument | None = None) -> None:
        self.device_index = ordinal_of(device)

    @property
    def reserved_mem_current(self) -> int:
        """The bytes that the pool has of the device."""
        return read(self, "reserved_mem_current")

    @property
    def used_mem_current(self) -> int:
        """The bytes that are allocated."""
        return read(self, "used_mem_current")

    def attributes(self) -> dict[str, int]:
        """Returns all attributes, by their names (CUmemPool_attribute in lower case)."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    def trim_to(self, nbytes: int = 0) -> None:
        """Gives idle memory back to the device, but for so many bytes (cuMemPoolTrimTo).

        Memory that was freed counts as idle once its stream was waited for.

        Arguments:
            nbytes: int, what the pool may keep.
        Raises:
            ValueError: nbytes is no int from 0 on.
            CudaError: the driver refused.
        """
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0 or nbytes >> 63:
            raise ValueError(f"nbytes is {nbytes!r}; pass bytes as int, 0 or more")
        code = Rows().async_trim(self.device_index, 0, nbytes)
        if code:
            raise self.error(code, "async_trim", "trim_to")

    def access(self, peer: DeviceArgument) -> str:
        """Tells what a device may do with the pool's memory (cuMemPoolGetAccess).

        Arguments:
            peer: int, "cuda:1", ...: the device.
        Returns:
            "none", "r" or "rw".
        Raises:
            CudaError: the driver refused.
        """
        code, number = Rows().async_access_get(self.device_index, ordinal_of(peer))
        if code:
            raise self.error(code, "async_access_get", "access")
        return NAMES.get(number, "none")

    def set_access(self, peer: DeviceArgument, access: Literal["none", "r", "rw"]) -> None:
        """Grants or revokes it (cuMemPoolSetAccess); drivers may take no "r".

        Arguments:
            peer: int, "cuda:1", ...
            access: "none", "r" or "rw".
        Raises:
            ValueError: access is none of these.
            CudaError: the devices cannot reach each other, or the driver refused.
        """
        if access not in ACCESS:
            raise ValueError(f"access is {access!r}; it may be 'none', 'r' or 'rw'")
        code = Rows().async_access_set(self.device_index, ordinal_of(peer), ACCESS[access])
        if code:
            raise self.error(code, "async_access_set", "access")

    def error(self, code: int, row: str, name: str) -> Exception:
        """Makes the error of what the driver answered.

        Arguments:
            code: int, the driver's status.
            row: str, the call of the driver that gave it.
            name: str, the attribute that the call was about.
        """
        return status_error(code, row, ("device", self.device_index, "attribute", name))
