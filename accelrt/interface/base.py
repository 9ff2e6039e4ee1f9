"""What a backend has to offer, in the shape that torch's device_interface.py gave to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, Self

from accelrt.streams.stream import Event, Stream

__all__ = ["DeviceGuard", "DeviceInterface", "EventBase", "StreamBase", "Worker"]


class StreamBase(ABC):
    """What the Stream of an interface derives from; accelrt.Stream counts as one.

    A class that cannot derive from it is made one by StreamBase.register(TheirStream).
    """

    @abstractmethod
    def query(self) -> bool:
        """Whether all work of the stream is complete."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until it is."""

    @abstractmethod
    def wait_event(self, event: Any) -> None:
        """Later work waits for an event."""

    @abstractmethod
    def wait_stream(self, stream: Any) -> None:
        """Later work waits for what another stream has now."""

    @abstractmethod
    def record_event(self, event: Any = None) -> Any:
        """Records an event, a new one where none is given, and returns it."""


class EventBase(ABC):
    """What the Event of an interface derives from; accelrt.Event counts as one.

    A class that cannot derive from it is made one by EventBase.register(TheirEvent).
    """

    @abstractmethod
    def record(self, stream: Any = None) -> None:
        """Marks what a stream has now, the current one where none is given."""

    @abstractmethod
    def wait(self, stream: Any = None) -> None:
        """Later work of a stream, the current one where none is given, waits for what was marked."""

    @abstractmethod
    def query(self) -> bool:
        """Whether what was marked is complete."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until it is."""

    @abstractmethod
    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


StreamBase.register(Stream)
EventBase.register(Event)


class Worker:
    """What a process may ask that must not touch the driver, such as one forked after its parent's use of it.

    accelrt.interface.CachingWorker keeps the answers; most interfaces derive theirs from it.
    """

    @staticmethod
    def set_device(device: int) -> None:
        """Notes which device such a process calls the current one."""
        raise NotImplementedError

    @staticmethod
    def current_device() -> int:
        """The ordinal that was noted, or else the driver's."""
        raise NotImplementedError

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        """The properties of a device as the process that may touch the driver read them."""
        raise NotImplementedError


class DeviceInterface:
    """A backend.  It is used as a class, never made an object of; so its methods are static or class
    methods.

    Those that raise NotImplementedError here must be there for it to be registered, but for memory_allocated
    and is_bf16_supported; register_interface_for_device names those that are missing.

    Attributes:
        device: the device guard, a context manager made of an ordinal or None.
        Event, Stream: classes that derive from EventBase and StreamBase.
        Worker: a class with the methods of accelrt.interface.Worker.
    """

    device: type
    Event: type
    Stream: type
    Worker: type

    @staticmethod
    def current_device() -> int:
        """The ordinal of the calling thread's current device."""
        raise NotImplementedError

    @staticmethod
    def set_device(device: Any) -> None:
        """Makes a device the current one of the calling thread."""
        raise NotImplementedError

    @staticmethod
    def exchange_device(device: int) -> int:
        """The same; returns the ordinal of the one that was current.  A negative one does nothing and returns
        -1.
        """
        raise NotImplementedError

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        """The same, but need not make a context on a device that has none yet."""
        raise NotImplementedError

    @staticmethod
    def device_count() -> int:
        """How many devices this backend has in this process; 0 where it cannot be used."""
        raise NotImplementedError

    @staticmethod
    def is_available() -> bool:
        """Whether there is one."""
        raise NotImplementedError

    @staticmethod
    def stream(stream: Any) -> Any:
        """The context in which a stream is the current one; does nothing for None."""
        raise NotImplementedError

    @staticmethod
    def current_stream(device: Any = None) -> Any:
        """The calling thread's current stream of a device."""
        raise NotImplementedError

    @staticmethod
    def set_stream(stream: Any) -> None:
        """Makes a stream the current one of its device, for the calling thread."""
        raise NotImplementedError

    @classmethod
    def _set_stream_by_id(cls, stream_id: int, device_index: int, device_type: int) -> None:
        """Makes the stream that has these three properties the current one of its device."""
        kind: Any = cls.Stream
        cls.set_stream(kind(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """The current stream of a device as the number that the backend's own calls take."""
        raise NotImplementedError

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Waits for all work of a device."""
        raise NotImplementedError

    @classmethod
    def get_device_properties(cls, device: Any = None) -> Any:
        """A device's constants; by default those that the Worker has."""
        worker: Any = cls.Worker
        return worker.get_device_properties(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> Any:
        """What kernels are compiled for: a number, a str or a mapping, as the backend has it."""
        raise NotImplementedError

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Whether the current device computes with bfloat16."""
        raise NotImplementedError

    @classmethod
    def is_dtype_supported(cls, dtype: Any, including_emulation: bool = False) -> bool:
        """Whether it computes with a type, of numpy's or torch's or by name; bfloat16 is the one in doubt."""
        return not str(dtype).endswith("bfloat16") or cls.is_bf16_supported(including_emulation)

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        """Bytes that the backend's allocator has handed out on a device."""
        raise NotImplementedError


class NoDevice:
    """DeviceInterface.device, in whose place an interface has its own: the context in which a device, an
    ordinal or None, is the current one.
    """

    def __new__(cls, device: Any) -> Self:
        raise NotImplementedError


DeviceInterface.device, DeviceInterface.Worker = NoDevice, Worker


class DeviceGuard:
    """The context in which a device of any interface is the current one.

    Arguments:
        device_interface: a DeviceInterface, the class.
        index: int or None, the ordinal; the context does nothing for None.
    """

    def __init__(self, device_interface: type[DeviceInterface], index: int | None) -> None:
        self.device_interface = device_interface
        self.idx = index
        self.prev_idx = -1

    def __enter__(self) -> Self:
        if self.idx is not None:
            self.prev_idx = self.device_interface.exchange_device(self.idx)
        return self

    def __exit__(self, *error: object) -> Literal[False]:
        if self.idx is not None:
            self.device_interface.maybe_exchange_device(self.prev_idx)
        return False
