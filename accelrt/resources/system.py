"""SystemResource: memory of the system's own allocator, on devices that reach it."""

from __future__ import annotations

from accelrt.devices.device import get_device_properties
from accelrt.errors import not_supported
from accelrt.resources.checks import refuse
from accelrt.resources.resource import Resource
from accelrt.runtime.lifetimes import keep_until_past

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from accelrt.annotations import DeviceArgument
    from accelrt.streams.stream import Stream

ALIGNMENT = 256  # bytes, of a GPU's allocations


class SystemResource(Resource):
    """Memory of the system's own allocator (malloc), which the host and the device use at one address: on
    systems with HMM or ATS, where the device's pageable_memory_access is 1.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        ValueError, TypeError: device names none.
        NotSupportedError: the device does not reach such memory.

    It goes back once the stream is past the work that came before, since the system's allocator knows no
    streams.
    """

    __slots__ = ("_held",)

    def __init__(self, device: DeviceArgument | None = None) -> None:
        super().__init__(device)
        self._held: dict[int, Any] = {}  # address -> the NumPy array that has the memory
        if not get_device_properties(self.device_index).pageable_memory_access:
            raise not_supported(
                f"device {self.device_index} does not reach memory of the system's allocator (its "
                "pageable_memory_access is 0), for which the system needs HMM or ATS; use a ManagedResource, "
                "or a PinnedResource for memory of the host",
                "device_attribute",
            )

    def take(self, nbytes: int, stream: Stream) -> int:
        """Takes memory from the system, as of Resource.take."""
        import numpy as np  # not needed by who has no such resource

        try:
            memory = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
        except MemoryError:
            refuse(self, nbytes, "the system has no such memory")
        address = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._held[address] = memory
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        """Gives memory back to the system, as of Resource.give_back."""
        memory = self._held.get(address)
        if memory is None:
            raise ValueError(f"{address:#x} is not allocated from {self!r}, or was given back")
        keep_until_past(self.device_index, stream.handle, memory)  # before an interruption can drop it
        del self._held[address]
