"""The functions that a backend has to offer, in the shape that torch's device_interface.py gave to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from accelrt.core.process import EntryOf
from accelrt.streams.stream import Event, Stream

__all__ = ["DeviceGuard", "DeviceInterface", "EventBase", "StreamBase", "Worker"]


class StreamBase(ABC):
    """The base of the Stream of an interface; accelrt.Stream counts as one.

    A class that cannot derive from it is made one by StreamBase.register(TheirStream).
    """

    @abstractmethod
    def query(self) -> bool:
        """Tells whether all work of the stream is complete."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until it is."""

    @abstractmethod
    def wait_event(self, event: Any) -> None:
        """Makes later work wait for an event.

        Arguments:
            event: an Event of the interface.
        """

    @abstractmethod
    def wait_stream(self, stream: Any) -> None:
        """Makes later work wait for what another stream has now.

        Arguments:
            stream: a Stream of the interface.
        """

    @abstractmethod
    def record_event(self, event: Any = None) -> Any:
        """Records an event.

        Arguments:
            event: an Event of the interface; None makes one.
        Returns:
            the event that was recorded.
        """


class EventBase(ABC):
    """The base of the Event of an interface; accelrt.Event counts as one.

    A class that cannot derive from it is made one by EventBase.register(TheirEvent).
    """

    @abstractmethod
    def record(self, stream: Any = None) -> None:
        """Marks what a stream has now.

        Arguments:
            stream: a Stream of the interface; None is the current one.
        """

    @abstractmethod
    def wait(self, stream: Any = None) -> None:
        """Makes later work of a stream wait for what was marked.

        Arguments:
            stream: a Stream of the interface; None is the current one.
        """

    @abstractmethod
    def query(self) -> bool:
        """Tells whether what was marked is complete."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until it is."""

    @abstractmethod
    def elapsed_time(self, end_event: Any) -> float:
        """Returns the milliseconds from this event to another.

        Arguments:
            end_event: an Event of the interface, the later one.
        """


StreamBase.register(Stream)
EventBase.register(Event)


class Worker:
    """The questions of a process that must not touch the driver: forked after its parent's use of it, say.

    accelrt.interface.CachingWorker keeps the answers; most interfaces derive theirs from it.
    """

    @staticmethod
    def set_device(device: int) -> None:
        """Notes which device such a process calls the current one.

        Arguments:
            device: int, the ordinal.
        """
        raise NotImplementedError

    @staticmethod
    def current_device() -> int:
        """Returns the ordinal that was noted, or else the driver's."""
        raise NotImplementedError

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        """Returns the properties of a device as the process that may touch the driver read them.

        Arguments:
            device: an ordinal or another thing that names a device; None is the one that was noted.
        """
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
        """Returns the ordinal of the calling thread's current device."""
        raise NotImplementedError

    @staticmethod
    def set_device(device: Any) -> None:
        """Makes a device the current one of the calling thread.

        Arguments:
            device: an ordinal or another thing that names a device.
        """
        raise NotImplementedError

    @staticmethod
    def exchange_device(device: int) -> int:
        """Makes a device the current one of the calling thread; a negative one changes nothing.

        Arguments:
            device: int, the ordinal.
        Returns:
            int, the ordinal of the one that was current; -1 for a negative one.
        """
        raise NotImplementedError

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        """Does as exchange_device, but need not make a context on a device that has none yet.

        Arguments, Returns: as exchange_device.
        """
        raise NotImplementedError

    @staticmethod
    def device_count() -> int:
        """Returns how many devices this backend has in this process; 0 where it cannot be used."""
        raise NotImplementedError

    @staticmethod
    def is_available() -> bool:
        """Tells whether this backend has a device in this process."""
        raise NotImplementedError

    @staticmethod
    def stream(stream: Any) -> Any:
        """Returns the context in which a stream is the current one.

        Arguments:
            stream: a Stream of the interface; None is a context that does nothing.
        """
        raise NotImplementedError

    @staticmethod
    def current_stream(device: Any = None) -> Any:
        """Returns the calling thread's current stream of a device.

        Arguments:
            device: an ordinal or another thing that names a device; None is the current one.
        """
        raise NotImplementedError

    @staticmethod
    def set_stream(stream: Any) -> None:
        """Makes a stream the current one of its device, for the calling thread.

        Arguments:
            stream: a Stream of the interface.
        """
        raise NotImplementedError

    @classmethod
    def _set_stream_by_id(cls, stream_id: int, device_index: int, device_type: int) -> None:
        """Makes the stream that has these three properties the current one of its device."""
        kind: Any = cls.Stream
        cls.set_stream(kind(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Returns the current stream of a device as the number that the backend's own calls take.

        Arguments:
            device_idx: int, the ordinal.
        """
        raise NotImplementedError

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Waits for all work of a device.

        Arguments: as current_stream.
        """
        raise NotImplementedError

    @classmethod
    def get_device_properties(cls, device: Any = None) -> Any:
        """Returns a device's constants; by default those that the Worker has.

        Arguments: as current_stream.
        """
        worker: Any = cls.Worker
        return worker.get_device_properties(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> Any:
        """Returns what kernels are compiled for: a number, a str or a mapping, as the backend has it.

        Arguments: as current_stream.
        """
        raise NotImplementedError

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Tells whether the current device computes with bfloat16.

        Arguments:
            including_emulation: bool, whether slower arithmetic by other instructions counts.
        """
        raise NotImplementedError

    @classmethod
    def is_dtype_supported(cls, dtype: Any, including_emulation: bool = False) -> bool:
        """Tells whether the current device computes with a type; bfloat16 is the one in doubt.

        Arguments:
            dtype: a type of numpy's or torch's, or its name.
            including_emulation: as of is_bf16_supported.
        """
        return not str(dtype).endswith("bfloat16") or cls.is_bf16_supported(including_emulation)

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        """Returns the bytes that the backend's allocator has handed out on a device.

        Arguments: as current_stream.
        """
        raise NotImplementedError


class NoDevice:
    """DeviceInterface.device, in whose place an interface has its own: the context in which a device, an
    ordinal or None, is the current one.
    """

    def __new__(cls, device: Any) -> Self:
        raise NotImplementedError


DeviceInterface.device, DeviceInterface.Worker = NoDevice, Worker


class Switch:
    """One time that a DeviceGuard's device is the current one."""

    def __init__(self, guard: DeviceGuard) -> None:
        self.guard = guard
        self.before: int = -1

    def enter(self) -> DeviceGuard:
        guard = self.guard
        if guard.idx is not None:
            self.before = guard.device_interface.current_device()
            guard.prev_idx = guard.device_interface.exchange_device(guard.idx)
        return guard

    def leave(self) -> None:
        if self.before >= 0:
            self.guard.device_interface.maybe_exchange_device(self.before)


class DeviceGuard(EntryOf["DeviceGuard"]):
    """The context in which a device of any interface is the current one.

    Arguments:
        device_interface: a DeviceInterface, the class.
        index: int or None, the ordinal; the context does nothing for None.
    """

    def __init__(self, device_interface: type[DeviceInterface], index: int | None) -> None:
        self.device_interface = device_interface
        self.idx = index
        self.prev_idx: int = -1

    def _entry(self) -> Switch:
        return Switch(self)
