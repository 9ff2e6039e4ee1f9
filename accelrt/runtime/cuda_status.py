"""The surroundings of the CUDA runtime's calls: cudart(), check_error, and how kernels are loaded."""

from __future__ import annotations

import os
import warnings

from accelrt.driver import registry
from accelrt.errors import CudaError, ForkedError
from accelrt.runtime import init
from accelrt.status import FORK_TEXT, status_error

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from types import ModuleType

VARIABLE = "CUDA_MODULE_LOADING"  # the driver's own, which cuInit reads
MODES = {1: "eager", 2: "lazy"}  # CUmoduleLoadingMode
ADVERBS = {"eager": "eagerly", "lazy": "lazily"}

_asked = ""  # the mode that set_module_loading was given before a driver was open
_watching = False


class cudaStatus:
    """torch.cuda.cudaStatus.

    Attributes:
        SUCCESS: int, 0.
        ERROR_NOT_READY: int, 34, as in torch; what CUDA's calls have answered since 10.1 is 600,
            cudaErrorNotReady.
    """

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


def cudart() -> ModuleType:
    """Returns the calls of the CUDA runtime that torch.cuda.cudart() has, as a module; initialises accelrt.

        accelrt.check_error(accelrt.cudart().cudaProfilerStart())

    Returns:
        a module with cudaError, cudaGetErrorString, cudaGetErrorName, cudaProfilerStart, cudaProfilerStop,
        cudaHostRegister, cudaHostUnregister, cudaStreamCreate, cudaStreamDestroy and cudaMemGetInfo.
    Raises:
        DriverNotFoundError: there is no NVIDIA driver or device.
    """
    init.init()
    module: ModuleType = init.later("accelrt.runtime.cuda_runtime")
    return module


def check_error(res: int) -> None:
    """Raises where a call of the runtime did not succeed.

    Arguments:
        res: int, or the cudaError that a call of cudart() or of cuda.bindings.runtime answered.
    Raises:
        CudaError: it is not 0; the text is the runtime's.
    """
    code = int(res)
    if code:
        raise CudaError(code)


def set_module_loading(mode: str) -> None:
    """Chooses when the driver loads a module's kernels: all with the module, or each at its first use.

    Sets CUDA_MODULE_LOADING, which the driver reads when it starts; it is for CUDA's own libraries too.
    Without it the driver loads lazily, from CUDA 12.2 on.

    Arguments:
        mode: "lazy" or "eager".
    Raises:
        ValueError: it is neither.
        RuntimeError: a driver is open already, and does otherwise.
        ForkedError: this process was forked from one that had initialised.

    Where another library has started CUDA before, the driver has read the variable; a RuntimeWarning at
    accelrt's initialisation says so.
    """
    global _asked, _watching
    if mode not in MODES.values():
        raise ValueError(f"mode is {mode!r}; it may be 'lazy' or 'eager'")
    opened = registry.opened_name()
    if opened == "forked":
        raise ForkedError(FORK_TEXT)
    if opened != "sentinel":
        if opened == "cuda" and get_module_loading() != mode:
            raise RuntimeError(
                f"modules are loaded {ADVERBS[other(mode)]}, and the driver has read {VARIABLE} already; "
                f"call set_module_loading({mode!r}) before the first use of a device, or set "
                f"{VARIABLE}={mode.upper()} for the process"
            )
        return
    os.environ[VARIABLE] = mode.upper()
    _asked = mode
    if not _watching:
        _watching = True
        init.when_opened(tell_of_others)


def other(mode: str) -> str:
    return "eager" if mode == "lazy" else "lazy"


def tell_of_others() -> None:
    """Warns, at initialisation, where the driver does not do as set_module_loading said."""
    if registry.opened_name() == "cuda" and (loading := get_module_loading()) != _asked:
        warnings.warn(
            f"modules are loaded {ADVERBS[loading]} although set_module_loading({_asked!r}) was called: "
            "another library had started CUDA before; call it earlier",
            RuntimeWarning,
            stacklevel=2,
        )


def get_module_loading() -> str:
    """Tells when the driver loads a module's kernels (cuModuleGetLoadingMode); initialises accelrt.

    Returns:
        "eager", all with the module, or "lazy", each at its first use; "eager" on the host device.
    Raises:
        CudaError: the driver does not tell.
    """
    init.init()
    if registry.driver_name() == "host":
        return "eager"
    code, mode = registry.Rows().module_loading()
    if code:
        raise status_error(code, "module_loading")
    return MODES[mode]
