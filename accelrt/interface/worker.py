"""Properties for processes that may not touch the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from accelrt.interface.base import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CachingWorker"]


class CachingWorker(Worker):
    """A Worker whose process reads every device's properties once, for those that it forks or starts later.

    A child of fork has what its parent read, at its first get_device_properties() or at record().  To one
    that is spawned they are handed over:

        multiprocessing.Pool(4, interface.Worker.restore, (interface.Worker.record(),))

    A class that derives from it has the attribute kind and the methods count, read and current below.

    Attributes:
        kind: str, the type of device, such as "cuda".
        chosen: dict, kind -> the ordinal that set_device noted.
        properties: dict, kind -> a tuple of what was read of each device.
    """

    kind: ClassVar[str]  # the device type: "cuda"
    # By kind, and kept over a fork: that is what they are for.
    chosen: ClassVar[dict[str, int]] = {}
    properties: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @classmethod
    def count(cls) -> int:
        """Returns how many devices there are."""
        raise NotImplementedError

    @classmethod
    def read(cls, ordinal: int, /) -> Any:
        """Returns the properties of a device, from the driver.

        Arguments:
            ordinal: int.
        """
        raise NotImplementedError

    @classmethod
    def current(cls) -> int:
        """Returns the driver's current device."""
        raise NotImplementedError

    @classmethod
    def set_device(cls, device: int) -> None:
        """Notes which device this process calls the current one; the driver is not told."""
        cls.chosen[cls.kind] = device

    @classmethod
    def current_device(cls) -> int:
        """The ordinal that was noted, or else the driver's."""
        noted = cls.chosen.get(cls.kind)
        return cls.current() if noted is None else noted

    @classmethod
    def record(cls) -> tuple[Any, ...]:
        """Returns the properties of every device, read now unless they have been; can be pickled."""
        properties = cls.properties.get(cls.kind)
        if not properties:
            properties = cls.properties[cls.kind] = tuple(cls.read(ordinal) for ordinal in range(cls.count()))
        return properties

    @classmethod
    def restore(cls, properties: Sequence[Any]) -> None:
        """Takes what record() returned in another process.

        Arguments:
            properties: that sequence.
        """
        cls.properties[cls.kind] = tuple(properties)

    @classmethod
    def get_device_properties(cls, device: Any = None) -> Any:
        """The properties of a device, without the driver where they have been recorded.

        Arguments:
            device: int, "cuda:1" and its like, an object with an index, or None for the one that was noted.
        Raises:
            ValueError: there is no such device, or it is of another type.
        """
        ordinal = cls.ordinal_of(device)
        rows = cls.record()
        if not 0 <= ordinal < len(rows):
            raise ValueError(f"device {device!r} does not exist; there are {len(rows)} of type {cls.kind!r}")
        return rows[ordinal]

    @classmethod
    def ordinal_of(cls, device: Any) -> int:
        """Returns the ordinal that a device argument means; whether there is such a device is not asked.

        Arguments:
            device: int, "cuda:1" and its like, an object with an index, or None for the one that was noted.
        Raises:
            ValueError: it is of another type of device.
        """
        index = device
        if isinstance(device, str):
            kind, _, digits = device.partition(":")
            if kind != cls.kind or (digits and not digits.isdecimal()):
                raise ValueError(f"device {device!r} is not of type {cls.kind!r}; write '{cls.kind}:1'")
            index = int(digits) if digits else None
        elif device is not None and not isinstance(device, int):
            index = device.index
        return cls.current_device() if index is None else int(index)
