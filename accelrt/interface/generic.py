"""A stream and an event of whichever backend a device has, as torch.Stream and torch.Event are."""

from __future__ import annotations

from typing import Any

from accelrt.interface.base import EventBase, StreamBase
from accelrt.interface.registry import get_interface_for_device

__all__ = ["Event", "Stream"]

DEFAULT = "cuda"  # of whichever driver this process runs on


class OfAnyBackend(type):
    """The class of Stream and Event: every backend's are instances of them."""

    base: type

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.base)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.base)


class Stream(metaclass=OfAnyBackend):
    """A stream of a device of any registered backend: Stream("cuda:1") is an accelrt.Stream.

    Arguments:
        device: str, "cuda:1", or an object with a type and an index; None is the current device of accelrt's.
        priority: int, lower is more urgent.
        stream_id, device_index, device_type: int, what a stream of the backend that device names has: the
            same stream once more.
    Raises:
        NotImplementedError: no backend is registered for the device.
        Whatever the backend's own class raises.

    Every stream of a backend is an instance of this class: isinstance(accelrt.Stream(), interface.Stream).
    """

    base = StreamBase

    def __new__(
        cls,
        device: Any = None,
        *,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
    ) -> Any:
        kind: Any = get_interface_for_device(DEFAULT if device is None else device).Stream
        if stream_id is None and device_index is None and device_type is None:
            return kind(device, priority)
        return kind(stream_id=stream_id, device_index=device_index, device_type=device_type)


class Event(metaclass=OfAnyBackend):
    """An event of a device of any registered backend: Event("cuda") is an accelrt.Event.

    Arguments:
        device: as for Stream; it names the backend, and the stream of the first record the device.
        enable_timing, blocking, interprocess: bool, as accelrt.Event has them.
    Raises:
        as Stream.

    Every event of a backend is an instance of this class.
    """

    base = EventBase

    def __new__(
        cls,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> Any:
        kind: Any = get_interface_for_device(DEFAULT if device is None else device).Event
        return kind(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)
