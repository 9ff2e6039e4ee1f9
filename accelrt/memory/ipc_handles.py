"""The handle of a driver's pool, and descriptors of its memory, which processes send each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from accelrt.core.process import Descriptor, Owned, close_answer, take_over
from accelrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

_T = TypeVar("_T")

PAYLOAD_BYTES = 64  # CUmemPoolPtrExportData


@dataclass(frozen=True)
class IPCBufferDescriptor:
    """Memory of a DriverPool as another process opens it, beside the pool's handle: a value that pickles.

    Attributes:
        payload: bytes, 64, the driver's.
        nbytes: int.
    Raises:
        ValueError, TypeError: payload is no bytes of that length, or nbytes no int from 1 on.
    """

    payload: bytes
    nbytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.payload, bytes) or len(self.payload) != PAYLOAD_BYTES:
            raise ArgumentError(f"payload is {self.payload!r:.60}; it has {PAYLOAD_BYTES} bytes")
        if isinstance(self.nbytes, bool) or not isinstance(self.nbytes, int) or self.nbytes < 1:
            raise ArgumentError(f"nbytes is {self.nbytes!r}; pass bytes as int, 1 or more")


class IPCAllocationHandle:
    """A pool as another process opens it: a file descriptor with an owner, of DriverPool.allocation_handle.

    It pickles where multiprocessing sends it, to a process that is started, through a pipe or a queue, and is
    a descriptor of that process's there.  Others send fileno() by their own means (SCM_RIGHTS).

    Attributes:
        pinned: bool, whether the pool is of page-locked memory.
    Raises:
        TypeError: it is made otherwise, or copied.
    """

    __slots__ = ("__weakref__", "_owned", "pinned")

    _owned: Owned[tuple[int, Descriptor]]
    pinned: bool

    def __init__(self) -> None:
        raise TypeError("an IPCAllocationHandle is made by DriverPool.allocation_handle")

    @classmethod
    def _of(cls, owned: Owned[tuple[int, Descriptor]], pinned: bool) -> Self:
        handle = cls.__new__(cls)
        handle._owned, handle.pinned = owned, pinned
        return handle

    def fileno(self) -> int:
        """Returns the number of the descriptor.

        Raises:
            ValueError: it was closed.
        """
        owned = self._owned.value
        if owned is None:
            raise ArgumentError("the handle was closed; ask the pool for another one")
        return owned[1].fileno()

    def close(self) -> None:
        """Closes the descriptor; again, it does nothing.  Who has opened the pool keeps it."""
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return receive, (with_file(self, DupFd), self.pinned)

    def __copy__(self) -> Self:
        raise TypeError(
            "an IPCAllocationHandle cannot be copied: it owns a descriptor; ask the pool for another one"
        )

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()

    def __repr__(self) -> str:
        owned = self._owned.value
        return f"<accelrt.memory.IPCAllocationHandle {'closed' if owned is None else owned[1].fileno()}>"


def receive(sent: Any, pinned: bool) -> IPCAllocationHandle:
    """Makes the handle of a process that multiprocessing sent one to."""
    return IPCAllocationHandle._of(Owned(lambda: (0, take_over(sent.detach())), (), close_answer), pinned)


def with_file(handle: IPCAllocationHandle | int, call: Callable[[int], _T]) -> _T:
    """Calls a function with a file descriptor: of a handle, which stays open meanwhile, or given as int."""
    if isinstance(handle, IPCAllocationHandle):
        with handle._owned.hold() as owned:
            return call(handle.fileno() if owned is None else owned[1].fileno())
    if isinstance(handle, bool) or not isinstance(handle, int):
        raise ArgumentTypeError(
            f"handle is of type {type(handle).__name__}; pass an IPCAllocationHandle, or a file descriptor "
            "as int"
        )
    if not 0 <= handle < 1 << 31:
        raise ArgumentError(f"handle is {handle}; a file descriptor is an int from 0 on")
    return call(handle)
