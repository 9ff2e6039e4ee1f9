"""The calls of the CUDA runtime that torch.cuda.cudart() offers: what accelrt.cudart() returns.

Each returns a cudaError, 0 for success, and raises nothing for what the runtime refuses; cudaMemGetInfo alone
raises.  On an NVIDIA device cuda.bindings.runtime makes the calls.  On the host device its driver does:
memory is page-locked and streams are made there too, and the profiler's calls succeed and do nothing, as
CUDA's do where no tool listens.
"""

from __future__ import annotations

import ctypes
import operator
from typing import ClassVar, SupportsIndex

from accelrt.driver.registry import Rows
from accelrt.runtime import init
from accelrt.runtime.error_texts import bindings, error_text
from accelrt.status import status_error

__all__ = [
    "cudaError",
    "cudaGetErrorName",
    "cudaGetErrorString",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaMemGetInfo",
    "cudaProfilerStart",
    "cudaProfilerStop",
    "cudaStreamCreate",
    "cudaStreamDestroy",
]

INVALID_VALUE = 1
REGISTER_FLAGS = 0b1111  # cudaHostRegisterPortable, Mapped, IoMemory and ReadOnly


class cudaError(int):
    """The answer of a call of the runtime: an int, 0 for success.

    Attributes:
        name: str, the runtime's name for it, such as "cudaErrorInvalidValue".
    """

    success: ClassVar[cudaError]

    @property
    def name(self) -> str:
        return cudaGetErrorName(self)

    def __repr__(self) -> str:
        return f"<cudaError.{'success' if self == 0 else self.name}: {int(self)}>"


cudaError.success = cudaError(0)


def is_cuda() -> bool:
    """Tells whether the runtime makes the calls, rather than the driver that is in use."""
    return init.chosen_driver() == "cuda"


def answered(error: SupportsIndex, *_: object) -> cudaError:
    return cudaError(operator.index(error))


def current_ordinal() -> int:
    """The calling thread's device; the first where it has chosen none, as in the runtime."""
    code, ordinal = Rows().current_device()
    if code:
        raise status_error(code, "current_device")
    return max(int(ordinal), 0)


def cudaGetErrorString(error: int) -> str:
    """A few words for an error: cudaGetErrorString(cudaError(2)) is "out of memory"."""
    return error_text(error, "cudaGetErrorString")


def cudaGetErrorName(error: int) -> str:
    """An error's name: cudaGetErrorName(cudaError(2)) is "cudaErrorMemoryAllocation"."""
    return error_text(error, "cudaGetErrorName")


def cudaProfilerStart() -> cudaError:
    """Has the profiler that listens collect from now on; see accelrt.profiler."""
    return answered(*bindings().cudaProfilerStart()) if is_cuda() else cudaError.success


def cudaProfilerStop() -> cudaError:
    """Has the profiler that listens collect no more."""
    return answered(*bindings().cudaProfilerStop()) if is_cuda() else cudaError.success


def cudaHostRegister(ptr: int, size: int, flags: int = 0) -> cudaError:
    """Page-locks memory of the host.

    Arguments:
        ptr, size: int, its address and bytes.
        flags: int, the runtime's cudaHostRegister flags: 1 portable, 2 mapped, 4 I/O memory, 8 read-only.
    """
    ptr, size, flags = operator.index(ptr), operator.index(size), operator.index(flags)
    if not (0 < ptr < 1 << 64 and 0 < size < 1 << 64 and 0 <= flags <= REGISTER_FLAGS):
        return cudaError(INVALID_VALUE)
    if is_cuda():
        return answered(*bindings().cudaHostRegister(ptr, size, flags))
    return answered(Rows().host_register(current_ordinal(), ptr, size))


def cudaHostUnregister(ptr: int) -> cudaError:
    """Ends what cudaHostRegister began; ptr is the address that was registered."""
    ptr = operator.index(ptr)
    if not 0 < ptr < 1 << 64:
        return cudaError(INVALID_VALUE)
    if is_cuda():
        return answered(*bindings().cudaHostUnregister(ptr))
    return answered(Rows().host_unregister(current_ordinal(), ptr))


def cudaStreamCreate(ptr: int) -> cudaError:
    """Makes a stream of the current device, one that waits for the legacy default stream.

    Arguments:
        ptr: int, the address of 8 bytes, into which the stream's handle is written.
    """
    ptr = operator.index(ptr)
    if not 0 < ptr < 1 << 64:
        return cudaError(INVALID_VALUE)
    if is_cuda():
        error, stream = bindings().cudaStreamCreate()
    else:
        error, stream = Rows().stream_create(current_ordinal(), 0, 0)
    if int(error) == 0:
        ctypes.c_void_p.from_address(ptr).value = int(stream)
    return answered(error)


def cudaStreamDestroy(ptr: int) -> cudaError:
    """Destroys a stream that cudaStreamCreate made; work that is in it still completes.

    Arguments:
        ptr: int, the stream's handle.
    """
    ptr = operator.index(ptr)
    if not 2 < ptr < 1 << 64:  # a default stream cannot be destroyed
        return cudaError(400)  # cudaErrorInvalidResourceHandle
    if is_cuda():
        return answered(*bindings().cudaStreamDestroy(bindings().cudaStream_t(ptr)))
    return answered(Rows().stream_destroy(current_ordinal(), ptr))


def cudaMemGetInfo(device: int) -> tuple[int, int]:
    """Free and total bytes of a device, as (free, total).

    Arguments:
        device: int, the ordinal; -1 is the current one.
    Raises:
        CudaError: there is no such device, or the driver refused.
    """
    ordinal = operator.index(device)
    ordinal = current_ordinal() if ordinal == -1 else ordinal
    code, free, total = Rows().memory_info(max(-1, min(ordinal, 1 << 30)))
    if code:
        raise status_error(code, "memory_info", ("device", ordinal))
    return free, total
