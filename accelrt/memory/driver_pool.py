"""DriverPool: the driver's own stream-ordered pools of a device, of its memory and of managed memory."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import NoReturn

from accelrt.devices.context_limits import ordinal_of
from accelrt.driver.registry import Rows
from accelrt.status import status_error

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Literal

    from accelrt.annotations import DeviceArgument
    from accelrt.streams.stream import Stream

CAPTURE_UNSUPPORTED = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
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
    row = pool._row("get")
    code, value = getattr(Rows(), row)(pool.device_index, ATTRIBUTES[name])
    if code:
        raise pool.error(code, row, name)
    return bool(value) if name.startswith("reuse_") else int(value)


def attribute(name: str, doc: str) -> property:
    """A property that reads and sets one attribute of the driver's."""

    def write(pool: DriverPool, value: int) -> None:
        if not isinstance(value, int) or value < 0 or value >> 64:
            raise ValueError(f"{name} is {value!r}; pass an int from 0 to 2**64 - 1, or a bool")
        if name.endswith("_high") and value:
            raise ValueError(f"{name} is {value}; it is set to 0, which begins it anew at what there is")
        row = pool._row("set")
        code = getattr(Rows(), row)(pool.device_index, ATTRIBUTES[name], int(value))
        if code:
            raise pool.error(code, row, name)

    return property(lambda pool: read(pool, name), write, doc=doc)


# What could not be given back while its stream was captured: (device, stream that is kept alive, address).
left_over: list[tuple[int, Stream, int]] = []
# What the driver refused to take when its owner died, and how often.
refused: list[tuple[int, Stream, int, int]] = []
MOST_TRIES = 8


def give_back(device: int, stream: Stream, address: int) -> int:
    """Gives memory of a managed pool back; later where the stream is captured.  Answers the driver's code."""
    code = Rows().managed_pool_free(device, stream.handle, address)
    if code == CAPTURE_UNSUPPORTED:
        left_over.append((device, stream, address))
        return 0
    return int(code)


def give_back_at_last(device: int, stream: Stream, address: int, tries: int = 0) -> None:
    """Gives memory back whose owner died: what the driver refuses is tried again, some times."""
    code = give_back(device, stream, address)
    if code and tries < MOST_TRIES:
        refused.append((device, stream, address, tries + 1))


def give_left_over_back() -> None:
    """Tries again with what was left over, once each."""
    for _ in range(len(refused)):
        try:
            gone = refused.pop(0)
        except IndexError:  # another thread was as quick
            break
        give_back_at_last(*gone)
    for _ in range(len(left_over)):
        try:
            waiting = left_over.pop(0)
        except IndexError:  # another thread was as quick
            return
        give_back(*waiting)


class DriverMemory:
    """Managed memory of a driver's pool, made by DriverPool.allocate; given back when it dies, or by free().

    Attributes:
        device_index: int, the ordinal of the device that it prefers.
        nbytes: int.
        stream: Stream, in whose order it came and goes back.
    """

    __slots__ = ("__weakref__", "_address", "_finalizer", "device_index", "nbytes", "stream")

    def __init__(self, device: int, nbytes: int, stream: Stream, address: int) -> None:
        self.device_index, self.nbytes, self.stream = device, nbytes, stream
        self._address = address
        self._arm()

    def _arm(self) -> None:
        place = self.device_index, self.stream, self._address
        self._finalizer = weakref.finalize(self, give_back_at_last, *place)
        self._finalizer.atexit = False

    @property
    def ptr(self) -> int:
        """Its address.

        Raises:
            ValueError: it was given back.
        """
        if not self._finalizer.alive:
            raise ValueError(f"{self!r} was given back; allocate other memory")
        return self._address

    def free(self) -> None:
        """Gives the memory back to the pool in its stream's order; again, it does nothing.

        Raises:
            CudaError: the driver refused; the memory stays allocated.
        """
        if self._finalizer.detach() is not None:
            code = give_back(self.device_index, self.stream, self._address)
            if code:
                self._arm()
                raise status_error(code, "managed_pool_free", ("address", self._address))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes as other libraries take them: the CUDA Array Interface, version 3."""
        told = {"shape": (self.nbytes,), "typestr": "|u1", "strides": None, "version": 3}
        return {**told, "data": (self.ptr, False), "stream": self.stream.handle or 1}

    def __enter__(self) -> DriverMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()

    def __reduce__(self) -> NoReturn:
        raise TypeError("DriverMemory cannot be pickled or copied: it owns memory; allocate more")

    def __repr__(self) -> str:
        state = "" if self._finalizer.alive else ", given back"
        return (
            f"<accelrt.memory.DriverMemory {self.nbytes} bytes, managed, device {self.device_index}{state}>"
        )


@dataclass(init=False)
class DriverPool:
    """The pool of a device that cuMemAllocAsync allocates from, as the backend "cudaMallocAsync" does; or the
    one of managed memory that prefers the device (CUDA 13.0).

        pool = accelrt.memory.DriverPool()
        pool.release_threshold = 1 << 30     # bytes that it keeps when a stream is waited for
        pool.trim_to(0)

    Other libraries of the process use the same pool.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
        managed: bool, whether it is the pool of managed memory, whose memory allocate() gives.
    Attributes:
        device_index: int, the ordinal of the device.
        managed: bool.
    Raises:
        NotSupportedError: by what asks the driver, where it has no such pool, as the host device has none of
            device memory.
    """

    device_index: int
    managed: bool = False

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

    def __init__(self, device: DeviceArgument | None = None, *, managed: bool = False) -> None:
        self.device_index = ordinal_of(device)
        self.managed = bool(managed)

    def _row(self, name: str) -> str:
        """The row of the driver table that does something to this pool."""
        return f"managed_pool_{name}" if self.managed else f"async_{name}"

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
        if self.managed:
            give_left_over_back()
            code = Rows().managed_pool_trim(self.device_index, nbytes)
        else:
            code = Rows().async_trim(self.device_index, 0, nbytes)
        if code:
            raise self.error(code, self._row("trim"), "trim_to")

    def allocate(self, nbytes: int, stream: Stream | None = None) -> DriverMemory:
        """Allocates managed memory in a stream's order (cuMemAllocFromPoolAsync).

        Arguments:
            nbytes: int, 1 or more.
            stream: Stream of the device; None is its current one.
        Returns:
            DriverMemory, which copies, fills and memory.prefetch take.  Other streams use it behind an event,
            and are done with it before it is freed.
        Raises:
            ValueError: nbytes is no int from 1 on; stream is of another device; or the pool is one of device
                memory, which Buffers come from with the backend "cudaMallocAsync".
            TypeError: stream is no Stream.
            OutOfMemoryError: the driver has no memory.
            CaptureError: the stream is captured.
            NotSupportedError: the driver has no such pool.
        """
        from accelrt.streams.stream import Stream, current_stream

        if not self.managed:
            raise ValueError(
                "this is the pool of device memory: Buffers come from it with the backend cudaMallocAsync "
                "(ACCELRT_ALLOC_CONF=backend:cudaMallocAsync); pass managed=True for managed memory"
            )
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1 or nbytes >> 63:
            raise ValueError(f"nbytes is {nbytes!r}; pass bytes as int, 1 or more")
        chosen = current_stream(self.device_index) if stream is None else stream
        if not isinstance(chosen, Stream):
            raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream, or None")
        if chosen.device_index != self.device_index:
            raise ValueError(f"stream is of device {chosen.device_index}, the pool of {self.device_index}")
        give_left_over_back()
        code, address = Rows().managed_pool_alloc(self.device_index, chosen.handle, nbytes)
        if code:
            raise status_error(code, "managed_pool_alloc", ("device", self.device_index, "size", nbytes))
        return DriverMemory(self.device_index, nbytes, chosen, address)

    def access(self, peer: DeviceArgument) -> str:
        """Tells what a device may do with the pool's memory (cuMemPoolGetAccess).

        Arguments:
            peer: int, "cuda:1", ...: the device.
        Returns:
            "none", "r" or "rw".
        Raises:
            CudaError: the driver refused.
            ValueError: the pool is one of managed memory, which every device uses.
        """
        self._refuse_managed("access")
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
            ValueError: access is none of these, or the pool is one of managed memory.
            CudaError: the devices cannot reach each other, or the driver refused.
        """
        self._refuse_managed("set_access")
        if access not in ACCESS:
            raise ValueError(f"access is {access!r}; it may be 'none', 'r' or 'rw'")
        code = Rows().async_access_set(self.device_index, ordinal_of(peer), ACCESS[access])
        if code:
            raise self.error(code, "async_access_set", "access")

    def _refuse_managed(self, call: str) -> None:
        if self.managed:
            raise ValueError(
                f"{call}: every device uses managed memory; only device memory is opened to peers"
            )

    def error(self, code: int, row: str, name: str) -> Exception:
        """Makes the error of what the driver answered.

        Arguments:
            code: int, the driver's status.
            row: str, the call of the driver that gave it.
            name: str, the attribute that the call was about.
        """
        return status_error(code, row, ("device", self.device_index, "attribute", name))
