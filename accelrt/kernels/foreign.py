"""Functions of the driver's that other libraries loaded, for Kernel.from_handle."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from accelrt.devices.device import device
from accelrt.driver.registry import Rows
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.runtime.cuda_bindings import ask, open_bindings
from accelrt.status import name_of, status_error

if TYPE_CHECKING:
    from typing import Any, SupportsInt

# Function -> the Loaded of accelrt's that has it.
loaded_by_function: WeakValueDictionary[int, Any] = WeakValueDictionary()

UNKNOWN = (1, 400, 500)  # INVALID_VALUE, INVALID_HANDLE, NOT_FOUND: how drivers call a function unknown
THREADS = 0  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, which every function has


def function_of_kernel(kernel: object, ordinal: int) -> int:
    """A device's function of a CUkernel, which is of no device."""
    bindings = open_bindings(
        "a CUkernel is a GPU's; the host device has functions alone", "Kernel.from_handle"
    )
    needs = "kernels of libraries need a driver of CUDA 12.0"
    with device(ordinal):
        return int(ask(bindings, needs, "cuKernelGetFunction", (kernel,), {"device": ordinal}))


def find_function(handle: SupportsInt, ordinal: int) -> tuple[int, str]:
    """Finds what a launch takes.

    Arguments:
        handle: as of Kernel.from_handle.
        ordinal: int, the device's.
    Returns:
        (handle of the function as int, its name).
    Raises:
        ArgumentError: the driver knows no such function.
        TypeError: handle is no int, and has no __int__.
        NotSupportedError: it is a CUkernel, where there are none.
        CudaError: the driver refused to say.
    """
    if isinstance(handle, bool | str | bytes | float) or not hasattr(handle, "__int__"):
        raise ArgumentTypeError(
            f"handle is {handle!r:.80} of type {type(handle).__name__}; pass an int, or an object with "
            "__int__: the driver's function"
        )
    if type(handle).__name__ in ("CUkernel", "cudaKernel_t"):
        handle = function_of_kernel(handle, ordinal)
    number = int(handle)
    if not 0 < number < 1 << 64:
        raise ArgumentError(f"handle is {number}; the handle of a function is an int from 1 to 2**64 - 1")
    rows = Rows()
    code, _ = rows.function_attribute(number, THREADS)
    if code and code not in UNKNOWN:
        raise status_error(code, "function_attribute", ("function", number))
    if code:
        raise ArgumentError(
            f"handle is {number:#x}, which is no function of device {ordinal} that the driver knows "
            f"({name_of(code)}); pass a CUfunction, or a CUkernel of cuda.bindings, that is loaded there"
        )
    code, name = rows.function_name(number)
    return number, name or f"function at {number:#x}"
