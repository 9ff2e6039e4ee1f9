"""DeviceBuffer: bytes of a resource that can be resized."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from accelrt.arrays.array import Array, Buffer
from accelrt.arrays.copy import copy
from accelrt.arrays.managed import is_managed, prefetch
from accelrt.core.arguments import checked_number
from accelrt.core.process import ForkSafeLock
from accelrt.errors import ArgumentError, ArgumentTypeError, refuse_copy
from accelrt.resources.current import current_resource
from accelrt.resources.resource import Resource
from accelrt.streams.stream import Stream, current_stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from accelrt.annotations import DeviceArgument, Memory

_exchanges = ForkSafeLock()  # of what DeviceBuffers hold; no call is made with it


class Held(NamedTuple):
    """Holds what a DeviceBuffer has at a moment: each change and each copy into it makes another one."""

    memory: Buffer
    size: int


class DeviceBuffer:
    """Bytes of a resource, which can be resized; what is on them beforehand stays.

        growing = accelrt.resources.DeviceBuffer.from_host(b"abc")
        growing.resize(1000)
        assert growing.to_bytes()[:3] == b"abc"

    Arguments:
        nbytes: int, bytes.
        stream: Stream, handle as int, or None for the current stream: the one whose order the memory follows.
        resource: Resource that it comes from; None is the current one.
    Raises:
        MemoryError: the resource has no room.
        ValueError, TypeError: an argument is out of range, or of the wrong kind.
    Attributes:
        resource: Resource, that it came from, and that more of it will come from.
        stream: Stream, whose order the memory follows: resize and reserve on another one change it.

    Work that uses it is told of `buffer`, a Buffer, or takes the DeviceBuffer itself where memory is taken by
    DLPack or __cuda_array_interface__.  Reserving or resizing moves it, so that addresses of before are void.
    Threads may call its methods at once; what else uses `buffer` is theirs to keep apart from what moves it.
    """

    __slots__ = ("__weakref__", "_held", "resource")
    resource: Resource

    def __init__(
        self, nbytes: int = 0, stream: Stream | int | None = None, resource: Resource | None = None
    ) -> None:
        if resource is None:
            resource = current_resource(stream.device_index if isinstance(stream, Stream) else None)
        if not isinstance(resource, Resource):
            kind = type(resource).__name__
            raise ArgumentTypeError(f"resource is {resource!r} of type {kind}; pass a Resource, or None")
        self.resource = resource
        memory = resource.buffer(nbytes, stream)
        self._held = Held(memory, memory.nbytes)

    @classmethod
    def from_host(
        cls, source: Memory, stream: Stream | int | None = None, resource: Resource | None = None
    ) -> DeviceBuffer:
        """Makes one of bytes on the host.

        Arguments:
            source: bytes, or another buffer of unsigned bytes with one axis, without gaps.
            stream, resource: as of DeviceBuffer.
        Returns:
            DeviceBuffer, to which the bytes were copied.
        Raises:
            TypeError: source is no buffer.
            ValueError: it has other elements, several axes, or gaps.
        """
        view = flat_bytes(source)
        buffer = cls(view.nbytes, stream, resource)
        buffer.copy_from(view)
        return buffer

    @property
    def buffer(self) -> Buffer:
        """The memory itself, all of its capacity, as a Buffer: another one after a resize that needs more."""
        return self._held.memory

    @property
    def stream(self) -> Stream:
        """The stream whose order the memory follows."""
        return self._held.memory.stream

    @property
    def ptr(self) -> int:
        """int: the address; 0 for 0 bytes."""
        return self._held.memory.ptr

    @property
    def nbytes(self) -> int:
        """int: bytes."""
        return self._held.size

    @property
    def capacity(self) -> int:
        """int: bytes up to which resize() takes no other memory."""
        return self._held.memory.nbytes

    def __len__(self) -> int:
        return self._held.size

    def __sizeof__(self) -> int:
        return self._held.size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes as they are now (CUDA Array Interface, version 3); on the host device too, where copies,
        fills and kernels take them by it.
        """
        memory, size = self._held
        stream = memory.stream.handle or 1
        here = {
            "typestr": "|u1",
            "data": (memory.ptr, False),
            "version": 3,
            "strides": None,
            "stream": stream,
        }
        return {**getattr(memory, "__cuda_array_interface__", here), "shape": (size,)}

    def _array(self) -> Any:
        memory, size = self._held
        return Array(memory, (size,))

    def _accelrt_array(self) -> Any:
        """Returns what asarray does: the current stream comes behind the buffer's, as by DLPack."""
        array = self._array()
        current = current_stream(array.device_index)
        if current != array.stream and not current.is_capturing:
            current.wait_stream(array.stream)
        return array

    def __dlpack__(self, **arguments: Any) -> object:
        """Returns the bytes as a DLPack capsule, as accelrt.Array.__dlpack__ does: as they are now.

        Arguments:
            arguments: stream, max_version, dl_device and copy, as there.
        """
        return self._array().__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the type of its device and the ordinal, as DLPack numbers them."""
        device: tuple[int, int] = self._array().__dlpack_device__()
        return device

    def reserve(self, nbytes: int, stream: Stream | int | None = None) -> None:
        """Sees to it that there is room for so many bytes; the size stays.

        Arguments:
            nbytes: int.
            stream: Stream, handle as int, or None for the buffer's: where contents that move are copied.
        Raises:
            MemoryError: the resource has no room; the buffer is as it was.
            ValueError, TypeError: nbytes is negative or no int, or the stream is none of the device's.
        """
        nbytes = checked_number(nbytes, "nbytes", 0, wanted="bytes as int")
        self._change(lambda capacity, size: (max(capacity, nbytes), size), stream)

    def resize(self, nbytes: int, stream: Stream | int | None = None) -> None:
        """Sets the size.  Bytes that are there before and after stay; others are undefined.

        Arguments:
            nbytes: int.
            stream: as of reserve.
        Raises:
            as reserve.
        """
        nbytes = checked_number(nbytes, "nbytes", 0, wanted="bytes as int")
        self._change(lambda capacity, size: (max(capacity, nbytes), nbytes), stream)

    def shrink_to_fit(self, stream: Stream | int | None = None) -> None:
        """Has no more memory than it has bytes.

        Arguments:
            stream: as of reserve.
        Raises:
            MemoryError: the resource has no room for the smaller memory beside the larger one.
        """
        self._change(lambda capacity, size: (size, size), stream)

    def _change(self, wanted: Callable[[int, int], tuple[int, int]], stream: Stream | int | None) -> None:
        """Has the capacity and the size that `wanted` makes of those that there are.

        Where another thread changed it meanwhile, or copied into it, what was moved is out of date.
        """
        while True:
            before = self._held
            capacity, size = wanted(before.memory.nbytes, before.size)
            try:
                memory = before.memory
                if capacity != memory.nbytes:
                    memory = self._moved(before, capacity, stream)
            except ValueError:
                if self._held is before:
                    raise
                continue  # another thread freed it
            if self._exchange(before, Held(memory, size)):
                return

    def _moved(self, before: Held, nbytes: int, stream: Stream | int | None) -> Buffer:
        former = before.memory.stream
        memory = self.resource.buffer(nbytes, former if stream is None else stream)
        if before.size:
            memory.stream.wait_stream(former)
            copy(memory, before.memory, min(before.size, nbytes), stream=memory.stream, blocking=False)
        if memory.stream != former:
            former.wait_stream(memory.stream)  # the old memory goes back behind the copy
        return memory

    def _exchange(self, before: Held, after: Held) -> bool:
        with _exchanges:
            if self._held is not before:
                return False
            self._held = after
            return True

    def copy_from(self, source: Memory, stream: Stream | int | None = None, *, offset: int = 0) -> None:
        """Copies bytes into it, and waits for the copy.

        Arguments:
            source: bytes or another buffer of the host, a DeviceBuffer, or device memory, as of accelrt.copy.
            stream: Stream, handle as int, or None for the buffer's.
            offset: int, bytes to skip here.
        Raises:
            ValueError: there is no room for all of source, or offset is negative.
            TypeError: source is no memory, or offset no int.
        """
        held = source._held if isinstance(source, DeviceBuffer) else None
        origin, count = (source, nbytes_of(source)) if held is None else held
        offset = checked_number(offset, "offset", 0, wanted="bytes as int")
        while True:
            before = self._held
            memory, size = before
            if count > size - offset:
                room = max(0, size - offset)
                raise ArgumentError(
                    f"source has {count} bytes; there is room for {room} from offset {offset}"
                )
            if count:
                order = memory.stream if stream is None else stream
                copy(memory, origin, count, dst_offset=offset, stream=order)
            if self._exchange(before, Held(memory, size)):  # who moves it begins again
                return

    def copy_to(self, target: Memory | None = None, stream: Stream | int | None = None) -> Memory:
        """Copies all bytes out of it, and waits for the copy.

        Arguments:
            target: a writable buffer of the host, or device memory, with room; None makes a NumPy array.
            stream: Stream, handle as int, or None for the buffer's.
        Returns:
            target, or the array of uint8.
        Raises:
            ValueError: target is too small.
            TypeError: it is no memory, or not writable.
        """
        memory, size = self._held
        if target is None:
            target = np.empty(size, np.uint8)
        if nbytes_of(target) < size:
            raise ArgumentError(f"target has {nbytes_of(target)} bytes; the buffer has {size}")
        order = memory.stream if stream is None else stream
        if isinstance(target, DeviceBuffer):
            target.copy_from(memory if memory.nbytes == size else memory[:size], order)
        elif size:
            copy(target, memory, size, stream=order)
        return target

    def to_bytes(self, stream: Stream | int | None = None) -> bytes:
        """Copies all bytes to the host.

        Arguments:
            stream: Stream, handle as int, or None for the buffer's.
        Returns:
            bytes.
        """
        memory, size = self._held
        array = np.empty(size, np.uint8)
        if size:
            copy(array, memory, size, stream=memory.stream if stream is None else stream)
        return array.tobytes()

    def __bytes__(self) -> bytes:
        return self.to_bytes()

    def clone(self, stream: Stream | int | None = None, resource: Resource | None = None) -> DeviceBuffer:
        """Makes another one with the same bytes.

        Arguments:
            stream: Stream, handle as int, or None for this one's.
            resource: Resource; None is this one's.
        Returns:
            DeviceBuffer.
        Raises:
            MemoryError: the resource has no room.
        """
        memory, size = self._held
        order = memory.stream if stream is None else stream
        copied = DeviceBuffer(size, order, self.resource if resource is None else resource)
        if copied.stream != memory.stream:
            copied.stream.wait_stream(memory.stream)
        if size:
            copy(copied.buffer, memory, size, stream=copied.stream)
        return copied

    def prefetch(self, location: DeviceArgument | None = None, stream: Stream | int | None = None) -> None:
        """Brings managed memory to a device, or to the host (accelrt.memory.prefetch); other memory stays.

        Arguments:
            location: a device, "cpu", or None for the device of the current stream.
            stream: Stream, handle as int, or None for the buffer's.
        """
        memory, size = self._held
        if size and is_managed(memory):
            order = memory.stream if stream is None else stream
            where = current_stream().device_index if location is None else location
            prefetch(memory, where, order)

    def free(self) -> None:
        """Gives the memory back now; size and capacity are 0 then.  Doing it again does nothing.

        Raises:
            BufferError: other libraries' arrays on the memory are alive; it is as it was.
        """
        while not self._exchange(before := self._held, emptied := Held(before.memory, 0)):
            pass
        try:
            before.memory.free()
        except Exception:
            self._exchange(emptied, before)
            raise

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns its memory; clone() it, or send to_bytes()")

    def __repr__(self) -> str:
        memory, size = self._held
        return f"<accelrt.resources.DeviceBuffer {size} of {memory.nbytes} bytes at {memory.ptr:#x}>"


def flat_bytes(source: Memory) -> memoryview:
    """A view of a buffer of unsigned bytes with one axis, without gaps.

    Arguments:
        source: the buffer.
    """
    view = memoryview(source)
    if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
        raise ArgumentError(
            f"source has format {view.format!r}, shape {view.shape} and strides {view.strides}; "
            "pass unsigned bytes with one axis, without gaps"
        )
    return view


def nbytes_of(memory: Memory) -> int:
    """Bytes of memory that accelrt.copy takes.

    Arguments:
        memory: Buffer, Array, DeviceBuffer, buffer of the host, or object with __cuda_array_interface__.
    """
    nbytes = getattr(memory, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    return memoryview(memory).nbytes
