"""DriverPool: the driver's own stream-ordered pool of a device, its attributes, trims and peers."""

from __future__ import annotations

from accelrt.devices.context_limits import ordinal_of
from accelrt.driver.registry import Rows
from accelrt.status import status_error

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any, Literal

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
SWITCHES = tuple(ATTRIBUTES)[:3]
READ_ONLY = ("reserved_mem_current", "used_mem_current")
ACCESS = {"none": 0, "r": 1, "rw": 3}
NAMES = {number: name for name, number in ACCESS.items()}


class DriverPool:
    """The pool of a device that cuMemAllocAsync allocates from, as the backend "cudaMallocAsync" does.

        pool = accelrt.memory.DriverPool()
        pool.release_threshold = 1 << 30     # bytes that it keeps when a stream is waited for
        pool.trim_to(0)

    Other libraries of the process use the same pool.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        NotSupportedError: by what asks the driver, where it has no such pool, as the host device.
    """

    device_index: int

    def __init__(self, device: DeviceArgument | None = None) -> None:
        object.__setattr__(self, "device_index", ordinal_of(device))

    def __getattr__(self, name: str) -> int | bool:
        if name not in ATTRIBUTES:
            raise AttributeError(f"a DriverPool has no {name!r}; its attributes are {', '.join(ATTRIBUTES)}")
        code, value = Rows().async_get(self.device_index, ATTRIBUTES[name])
        if code:
            raise self.error(code, "async_get", name)
        return bool(value) if name in SWITCHES else int(value)

    def __setattr__(self, name: str, value: int) -> None:
        if name not in ATTRIBUTES or name in READ_ONLY:
            raise AttributeError(
                f"{name!r} of a DriverPool cannot be set; these can: {', '.join(settable())}"
            )
        if not isinstance(value, int) or value < 0 or value >> 64:
            raise ValueError(f"{name} is {value!r}; pass an int from 0 to 2**64 - 1, or a bool")
        if name.endswith("_high") and value:
            raise ValueError(f"{name} is {value}; it is set to 0, which begins it anew at what there is")
        code = Rows().async_set(self.device_index, ATTRIBUTES[name], int(value))
        if code:
            raise self.error(code, "async_set", name)

    def attributes(self) -> dict[str, int | bool]:
        """All attributes, by their names (CUmemPool_attribute in lower case)."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    def trim_to(self, nbytes: int = 0) -> None:
        """Gives idle memory back to the device, but for so many bytes (cuMemPoolTrimTo).

        Memory that was freed counts as idle once its stream was waited for.

        Arguments:
            nbytes: int, what the pool may keep.
        """
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0 or nbytes >> 63:
            raise ValueError(f"nbytes is {nbytes!r}; pass bytes as int, 0 or more")
        code = Rows().async_trim(self.device_index, 0, nbytes)
        if code:
            raise self.error(code, "async_trim", "trim_to")

    def access(self, peer: DeviceArgument) -> Literal["none", "r", "rw"]:
        """What a device may do with the pool's memory (cuMemPoolGetAccess): "none", "r" or "rw"."""
        code, number = Rows().async_access_get(self.device_index, ordinal_of(peer))
        if code:
            raise self.error(code, "async_access_get", "access")
        return NAMES.get(number, "none")  # type: ignore[return-value]

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
        """The error of what the driver answered."""
        return status_error(code, row, ("device", self.device_index, "attribute", name))

    def __reduce__(self) -> tuple[Any, ...]:
        return DriverPool, (self.device_index,)

    def __repr__(self) -> str:
        return f"<accelrt.memory.DriverPool of device {self.device_index}>"


def settable() -> list[str]:
    return [name for name in ATTRIBUTES if name not in READ_ONLY]
