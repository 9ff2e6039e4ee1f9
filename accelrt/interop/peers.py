"""The common parts of the modules for other libraries: finding a library, and refusing what it cannot use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from accelrt.errors import OutOfMemoryError, not_supported
from accelrt.memory import caching
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


__all__ = ["StreamsByHandle", "load", "out_of_memory_class", "prepare_memory", "stream_handle"]

LEGACY = 1  # CU_STREAM_LEGACY; accelrt's handle of that stream is 0
MAX_STREAMS = 1024  # of a library's by handle that are kept


def load(name: str, package: str) -> Any:
    """A library's module.

    Arguments:
        name: str, the module to import.
        package: str, what brings it, as pip knows it.
    Raises:
        ImportError: it does not load; the text says how to install it.
        ModuleNotFoundError: it, or what it imports, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        kind = ModuleNotFoundError if isinstance(error, ModuleNotFoundError) else ImportError
        text = f"{name} cannot be imported ({error}); pip install {package} brings it"
        raise kind(text, name=error.name) from error


def prepare_memory(call: str) -> None:
    """Lets other devices use accelrt's memory, as they may use a library's own.

    Raises:
        NotSupportedError: accelrt runs on the host device, whose memory is no device's of CUDA.
    """
    if init.chosen_driver() == "host":
        raise not_supported(
            f"{call}: accelrt runs on the host device, whose memory no CUDA library can use; set "
            "ACCELRT_DRIVER=cuda",
            call,
        )
    caching.enable_peer_access()


def out_of_memory_class(
    theirs: type[Exception], fields: Callable[[OutOfMemoryError], dict[str, object]]
) -> type[Exception]:
    """The class of an out of memory error that is accelrt's and a library's, made from one of accelrt's.

    Arguments:
        theirs: what programs catch that expect the library's.
        fields: from accelrt's error to the attributes that the library's has beside.
    """

    class Both(theirs, OutOfMemoryError):  # type: ignore[misc, valid-type]
        """accelrt's, which programs catch that expect the library's; pickled, it is accelrt's alone."""

        def __init__(self, error: OutOfMemoryError) -> None:
            OutOfMemoryError.__init__(self, str(error), error.code, error.name, error.call)
            self.__dict__.update(error.__dict__, **fields(error))
            self._plain = error

        def __str__(self) -> str:
            return str(self._plain)

        def __reduce__(self) -> str | tuple[Any, ...]:
            return self._plain.__reduce__()

    Both.__name__ = Both.__qualname__ = "OutOfMemoryError"
    return Both


class StreamsByHandle:
    """A library's streams by the driver's handle; they own nothing.

    Arguments:
        make: from a handle to the stream.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.made: dict[int, Any] = {}

    def of(self, handle: int) -> Any:
        stream = self.made.get(handle)
        if stream is None:
            if len(self.made) >= MAX_STREAMS:
                self.made.clear()
            stream = self.made[handle] = self.make(handle)
        return stream


def stream_handle(stream: Any) -> int:
    """The driver's handle of a library's stream that has __cuda_stream__, 0 for the legacy default stream."""
    handle: int = stream.__cuda_stream__()[1]
    return 0 if handle == LEGACY else handle
