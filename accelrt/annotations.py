"""Types of arguments, for annotations: `def work(device: accelrt.annotations.DeviceArgument) -> None`.

`import accelrt` does not import it.
"""

from typing import Any, Protocol, SupportsIndex, TypeAlias

__all__ = ["DeviceArgument", "DeviceLike", "Memory"]


class DeviceLike(Protocol):
    """An object that names a device by its index, such as accelrt.device or torch.device; None is the current
    device."""

    @property
    def index(self) -> int | None:
        """The ordinal."""


DeviceArgument: TypeAlias = SupportsIndex | str | DeviceLike  # an ordinal, "cuda:1", an object with an index

# A Buffer, an object with __cuda_array_interface__, or a contiguous buffer: no type before Python 3.12.
Memory: TypeAlias = Any
