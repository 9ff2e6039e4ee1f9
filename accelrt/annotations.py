"""Types of arguments, for annotations: `def work(device: accelrt.annotations.DeviceArgument) -> None`.

`import accelrt` does not import it.
"""

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Protocol, SupportsIndex, TypeAlias

__all__ = ["DeviceArgument", "DeviceLike", "Index", "Memory", "Shape"]


class DeviceLike(Protocol):
    """An object that names a device by its index, such as accelrt.device or torch.device; None is the current
    device."""

    @property
    def index(self) -> int | None:
        """The ordinal."""


DeviceArgument: TypeAlias = SupportsIndex | str | DeviceLike  # an ordinal, "cuda:1", an object with an index

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]  # an int is one axis

_Part: TypeAlias = SupportsIndex | slice | EllipsisType | None
Index: TypeAlias = _Part | tuple[_Part, ...]  # NumPy's basic indexing

# A Buffer, an Array, an object with __cuda_array_interface__, or a contiguous buffer: no type before
# Python 3.12.
Memory: TypeAlias = Any
