"""cuda.core: accelrt's memory as a MemoryResource, and cuda.core's resources as accelrt's memory.

    memory = accelrt.interop.cuda_core.MemoryResource()  # cuda.core's buffers from accelrt's pool
    buffer = memory.allocate(1 << 20, stream=stream)
    cuda.core.Device().memory_resource = memory          # and those of Device.allocate, on this thread

    accelrt.memory.change_current_allocator(             # the other way round
        accelrt.interop.cuda_core.from_resource(cuda.core.DeviceMemoryResource(0))
    )

Streams need no more than their protocol: accelrt takes cuda.core's wherever it takes a stream, and
cuda.core.Device().create_stream(accelrt.Stream()) is accelrt's stream as one of cuda.core's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import threading
from typing import TYPE_CHECKING

from accelrt.allocator.external.external_pool import CallbackAllocator
from accelrt.core import process
from accelrt.core.arguments import checked_type
from accelrt.core.process import Owned, Releaser
from accelrt.devices.device import device_ordinal
from accelrt.errors import CudaError, refuse_copy
from accelrt.interop import peers
from accelrt.memory.caching import caching_allocator_alloc, caching_allocator_delete, free_on, record_stream
from accelrt.streams.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from accelrt.annotations import DeviceArgument

    MemoryResource: Any

__all__ = ["MemoryResource", "from_resource"]

_making = threading.RLock()


def _renew_lock() -> None:
    global _making
    _making = threading.RLock()


process.call_at_fork("interop.cuda_core", "tools", child=_renew_lock)


def __getattr__(name: str) -> Any:
    # The class derives from one of cuda.core's, which is imported for it.
    if name != "MemoryResource":
        raise AttributeError(f"module 'accelrt.interop.cuda_core' has no attribute {name!r}")
    try:
        library = _load()
    except ImportError as error:  # getattr with a default, help() and inspect expect this one
        raise AttributeError(f"accelrt.interop.cuda_core.{name} cannot be made: {error}") from error
    with _making:
        return globals().get(name) or globals().setdefault(name, _make_class(library))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _load() -> Any:
    # cuda.core before 0.5 keeps its names in a module experimental.
    library = peers.load("cuda.core", "cuda-core")
    return (
        library if hasattr(library, "MemoryResource") else peers.load("cuda.core.experimental", "cuda-core")
    )


def _streams(library: Any) -> peers.StreamsByHandle:
    defaults = library
    if not hasattr(library, "LEGACY_DEFAULT_STREAM"):  # before 0.7
        defaults = peers.load(f"{library.__name__}._stream", "cuda-core")

    def make(handle: int) -> Any:
        if handle == 0:
            return defaults.LEGACY_DEFAULT_STREAM
        return defaults.PER_THREAD_DEFAULT_STREAM if handle == 2 else library.Stream.from_handle(handle)

    return peers.StreamsByHandle(make)


class _Resource:
    """A resource of cuda.core's whose buffers come from accelrt's pool of a device, in the order of streams.

    Arguments:
        device: int, "cuda:1", an object with an index or a device_id; None is the current device.
    Raises:
        NotSupportedError: accelrt runs on the host device.
        ValueError, TypeError: device names none.

    A buffer's memory belongs to the stream that it was allocated on.  Another one that it is closed on
    counts as one that used the memory, which is not reused before that stream is past the close.  Both have
    to live until then.

    Attributes:
        deallocate: function of ptr, int, the address; size, int, bytes; and stream, the one that the buffer
            is closed on, None being the one that it was allocated on.  It gives a buffer's memory back:
            cuda.core calls it when a buffer is closed or dies.  ValueError: the address is not allocated, or
            was given back before.
    """

    _make_buffer: Any  # cuda.core's, of an address, bytes, a resource and a stream

    def __init__(self, device: DeviceArgument | None = None) -> None:
        peers.prepare_memory("accelrt.interop.cuda_core.MemoryResource")
        self._ordinal = device_ordinal(getattr(device, "device_id", device))
        # By address, until the buffer is closed.
        self._owned: dict[int, Owned[int]] = {}
        # In the object, for a method would be a function of Python's, where an interruption loses the memory.
        self.deallocate = Releaser(_for_free(self._owned, self._ordinal), operator.call)

    def allocate(self, size: int, stream: Any = None) -> Any:
        """Returns a cuda.core.Buffer of accelrt's memory.

        Arguments:
            size: int, bytes.
            stream: cuda.core's Stream or GraphBuilder, accelrt's Stream, or another object that has
                __cuda_stream__; None is accelrt's current stream.
        Raises:
            OutOfMemoryError: the device has no room.
            ValueError, TypeError: size is negative or no int, or stream is none, or is on another device.
        """
        handle = _handle_of(current_stream(self._ordinal) if stream is None else stream)
        owned = Owned(caching_allocator_alloc, (size, self._ordinal, handle), caching_allocator_delete)
        address: Any = owned.value
        self._owned[address] = owned
        try:
            return self._make_buffer(address, size, self, handle)
        except BaseException:
            self._owned.pop(address, None)  # first: from the close on the address may be another buffer's
            owned.close()
            raise

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False."""
        return False

    @property
    def device_id(self) -> int:
        """The device's ordinal."""
        return self._ordinal

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it stands for this process's pool; make another one")

    def __repr__(self) -> str:
        return f"<accelrt.interop.cuda_core.MemoryResource of device {self._ordinal}>"


def _for_free(owned: dict[int, Owned[int]], ordinal: int) -> Callable[..., tuple[Any, ...]]:
    """A function that prepares to give memory of a resource back, called again where it is interrupted."""

    def prepare(ptr: Any, size: int, stream: Any = None) -> tuple[Any, ...]:
        address = int(ptr)
        handle = None if stream is None else _handle_of(stream)
        if address in owned:
            if handle is not None:
                with contextlib.suppress(CudaError, ValueError):  # no work of a stream that is gone
                    record_stream(address, handle)
            return owned.pop, address, None  # the last one who has it, but for allocate()
        if handle is None:
            return caching_allocator_delete, address
        return free_on, address, ordinal, handle

    return prepare


def _make_class(library: Any) -> Any:
    from_handle = library.Buffer.from_handle
    names_stream = "stream" in inspect.signature(from_handle).parameters  # since 1.2; else close() has to
    streams = _streams(library)

    def make_buffer(address: int, size: int, resource: Any, handle: int) -> Any:
        if names_stream:
            return from_handle(address, size, resource, stream=streams.of(handle))
        return from_handle(address, size, resource)

    class MemoryResource(_Resource, library.MemoryResource):  # type: ignore[misc]
        __doc__ = _Resource.__doc__
        __module__ = __name__
        __qualname__ = "MemoryResource"
        _make_buffer = staticmethod(make_buffer)

    return MemoryResource


def _handle_of(stream: Any) -> int:
    if not hasattr(stream, "__cuda_stream__"):
        stream = getattr(stream, "stream", stream)  # of a GraphBuilder
    if not hasattr(stream, "__cuda_stream__"):
        raise TypeError(
            f"stream is {stream!r} of type {type(stream).__name__}; pass a stream of cuda.core's or "
            "accelrt's, or another object with __cuda_stream__"
        )
    return peers.stream_handle(stream)


# --- cuda.core's memory under accelrt ----------------------------------------------------------------------


def _checked(resource: Any, library: Any) -> int:
    checked_type(resource, "resource", library.MemoryResource, "a cuda.core.MemoryResource")
    if isinstance(resource, globals().get("MemoryResource", ())):
        raise ValueError(f"{resource!r} takes its memory from accelrt; pass a resource that does not")
    if not resource.is_device_accessible:
        raise ValueError(
            f"{resource!r} has memory that a device cannot use; pass a resource of a device's memory"
        )
    ordinal = int(resource.device_id)
    if ordinal < 0:
        raise ValueError(f"{resource!r} belongs to no device; pass one of a device's memory")
    return ordinal


def from_resource(*resources: Any) -> CallbackAllocator:
    """Returns an allocator for accelrt.memory.change_current_allocator that takes its memory from cuda.core.

    Arguments:
        resources: cuda.core.MemoryResource, one for each device that is used.
    Returns:
        CallbackAllocator, named "cuda.core".
    Raises:
        ImportError: cuda.core is not installed.
        TypeError: there is no resource, or one is none.
        ValueError: a resource takes its memory from accelrt, or has none of a device's, or two are of one
        device.

    Asking for memory of a device without a resource raises a RuntimeError.  A buffer is closed on the stream
    that it was allocated on, which has to be alive then, once all other streams that were recorded on it are
    done.
    """
    library = _load()
    chosen: dict[int, Any] = {}
    for resource in resources:
        ordinal = _checked(resource, library)
        if chosen.setdefault(ordinal, resource) is not resource:
            raise ValueError(f"{chosen[ordinal]!r} and {resource!r} are both of device {ordinal}; pass one")
    if not chosen:
        raise TypeError(
            "from_resource() was given no resource; pass a cuda.core.MemoryResource for each device"
        )
    streams = _streams(library)
    buffers: dict[int, Owned[Any]] = {}

    def allocate(size: int, device: int, stream: int) -> int:
        if device not in chosen:
            raise ValueError(
                f"from_resource was given resources of the devices {sorted(chosen)}, and none of device "
                f"{device}; pass one for each device that is used"
            )
        theirs = streams.of(stream)
        take = functools.partial(chosen[device].allocate, size, stream=theirs)
        try:
            owned = Owned(take, (), operator.methodcaller("close", theirs))
        except Exception as error:
            if "OUT_OF_MEMORY" in str(error):  # cuda.core has no class for it
                raise MemoryError(str(error)) from error
            raise
        buffer: Any = owned.value
        address = int(buffer.handle)
        buffers[address] = owned
        return address

    def for_free(address: int, size: int, device: int, stream: int) -> tuple[int, None]:
        return address, None

    return CallbackAllocator(allocate, Releaser(for_free, buffers.pop), "cuda.core")
