"""CallbackResource: memory of two functions of the user's, which an interruption may end anywhere."""

from __future__ import annotations

from accelrt.resources.checks import check_callable, refuse
from accelrt.resources.resource import Resource

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable

    from accelrt.annotations import DeviceArgument
    from accelrt.streams.stream import Stream


class CallbackResource(Resource):
    """Memory of two functions of yours.

    Arguments:
        allocate: callable(nbytes, stream), with bytes as int and a Stream.  It returns an address as int, and
            raises MemoryError, or returns 0 or None, where it has no memory.
        deallocate: callable(address, nbytes, stream).
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        TypeError: one of them cannot be called.

    What allocate raises is raised: a MemoryError, a RuntimeError and what ends a program as they are, others
    as the cause of a RuntimeError.
    """

    __slots__ = ("_allocate", "_deallocate")

    def __init__(
        self,
        allocate: Callable[[int, Stream], int | None],
        deallocate: Callable[[int, int, Stream], object],
        device: DeviceArgument | None = None,
    ) -> None:
        super().__init__(device)
        for name, function in (("allocate", allocate), ("deallocate", deallocate)):
            check_callable(name, function)
        self._allocate, self._deallocate = allocate, deallocate

    def take(self, nbytes: int, stream: Stream) -> int:
        """Takes memory from the first function, as of Resource.take."""
        try:
            address = self._allocate(nbytes, stream)
        except (MemoryError, RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise RuntimeError(f"the function of {self!r} raised {type(error).__name__}: {error}") from error
        if not address:
            refuse(self, nbytes, f"its function returned {address!r}")
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        """Gives memory back to the second function, as of Resource.give_back."""
        self._deallocate(address, nbytes, stream)
