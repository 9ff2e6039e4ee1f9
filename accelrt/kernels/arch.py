"""Names the architectures that kernels can be compiled for."""

from __future__ import annotations

from functools import cache

from accelrt.devices.device import device_count, get_device_capability
from accelrt.errors import CompilerNotFoundError
from accelrt.kernels import nvrtc
from accelrt.runtime import init

NATIVE_BF16 = (8, 0)


def get_arch_list() -> list[str]:
    """Returns the architectures that kernels can be compiled for in this process.

    Where NVRTC is installed they are those that it makes code for (nvrtcGetSupportedArchs), and the newest of
    them as PTX, which the driver compiles for devices that are newer still.  Elsewhere the driver's own
    compiler is all there is: it compiles PTX for the devices at hand, which this initialises.

    Returns:
        A list such as ["sm_75", ..., "sm_120", "compute_120"], oldest first; [] where no device is available,
        as in torch, and on the host device, which runs no compiled kernels.
    """
    if init.chosen_driver() == "host" or not init.is_available():
        return []
    compiler = installed_nvrtc()
    if compiler is not None and compiler.numbers:
        numbers = sorted(compiler.numbers)
        return [*(f"sm_{number}" for number in numbers), f"compute_{numbers[-1]}"]
    pairs = {get_device_capability(ordinal) for ordinal in range(device_count())} - {(0, 0)}
    numbers = sorted(major * 10 + minor for major, minor in pairs)
    return [*(f"sm_{number}" for number in numbers), *(f"compute_{number}" for number in numbers[:1])]


def get_gencode_flags() -> str:
    """Returns get_arch_list as nvcc takes it (CUDA Compiler Driver NVCC, "--generate-code"):
    "-gencode arch=compute_90,code=sm_90 ..."; "" where the list is empty.

    torch writes compute=compute_90 for the first part, which nvcc does not know.
    """
    pairs = [arch.split("_") for arch in get_arch_list()]
    return " ".join(f"-gencode arch=compute_{number},code={kind}_{number}" for kind, number in pairs)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Tells whether the current device computes with bfloat16.

    Arguments:
        including_emulation: bool, whether cuda_bf16.h's arithmetic in float counts, which it has for all
            devices before compute capability 8.0.
    Returns:
        bool; False where there is no device, and on the host device, which has no compute capability though
        its kernels take bfloat16.
    """
    if init.chosen_driver() == "host" or not init.is_available():
        return False
    return including_emulation or get_device_capability() >= NATIVE_BF16


def is_tf32_supported() -> bool:
    """Tells whether the current device computes with TF32: where it does with bfloat16 itself, as in
    torch."""
    return is_bf16_supported(including_emulation=False)


def nvrtc_version() -> tuple[int, int] | None:
    """The version of NVRTC, CUDA's compiler at run time; None where it is not installed.  Loads it."""
    compiler = installed_nvrtc()
    return None if compiler is None else compiler.version


@cache
def installed_nvrtc() -> nvrtc.Compiler | None:
    try:
        return nvrtc.load()
    except (CompilerNotFoundError, nvrtc.Failure):
        return None
