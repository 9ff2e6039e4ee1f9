"""Versions of what accelrt stands on, and whether they are too old."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from accelrt.devices.attributes import ATTRIBUTES
from accelrt.driver.registry import Rows
from accelrt.status import status_error

MODULE = Path("/sys/module/nvidia/version")
# The first branch that accelrt opens: cuGetProcAddress as it calls it is of CUDA 12.0.
OLDEST_OPENED = (525, "12.0")
COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility"


class Stack(NamedTuple):
    """The needs of a major version of CUDA; the installed cuda-bindings tell which one a process uses."""

    cuda: tuple[int, int]  # the oldest driver's
    branch: int  # of the kernel's driver that has it
    capability: tuple[int, int]  # the least that it compiles for


STACKS = {12: Stack((12, 0), 525, (5, 0)), 13: Stack((13, 0), 580, (7, 5))}


def stack() -> Stack:
    """Returns what the CUDA of the installed cuda-bindings needs."""
    return STACKS[13 if runtime_version()[0] >= 13 else 12]


def driver_version() -> tuple[int, int]:
    """Returns the newest CUDA that the driver in use can run (cuDriverGetVersion).  Initialises accelrt.

    Returns:
        (major, minor), such as (13, 0); the host device says which CUDA it behaves like.
    Raises:
        DriverNotFoundError: there is no driver.
    """
    code, number = Rows().driver_version()
    if code:
        raise status_error(code, "driver_version")
    return number // 1000, number % 1000 // 10


def runtime_version() -> tuple[int, int]:
    """Returns the CUDA whose driver API accelrt speaks: that of the installed cuda-bindings, which goes by
    CUDA's versions.

    accelrt uses no CUDA runtime library (libcudart); this is what torch.version.cuda is to torch.

    Returns:
        (major, minor), such as (13, 3).
    """
    major, minor = version("cuda-bindings").split(".")[:2]
    return int(major), int(minor)


def kernel_driver_version() -> str | None:
    """The version of NVIDIA's driver in the kernel, "580.159.04", read without opening a library.

    Returns:
        str; None where the module is not loaded, or not shown, as in some containers.
    """
    try:
        return MODULE.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def warn_of_what_is_old() -> None:
    """Warns of a driver or devices older than the CUDA of the installed cuda-bindings wants.  Called when a
    driver has opened, once a process.

    Sources: CUDA Compatibility, "Minor Version Compatibility" (CUDA 12 wants branch 525, CUDA 13 branch 580);
    the Release Notes of CUDA 12.0 and 13.0, "Deprecated Architectures" (the least that they compile for).
    """
    for text in complaints():
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def complaints() -> list[str]:
    """Returns what there is to say of the driver in use and its devices; [] where all is new enough."""
    texts = []
    has, needed = driver_version(), stack()
    if has < needed.cuda:
        branch = f" {kernel_driver_version() or ''}".rstrip()
        texts.append(
            f"NVIDIA's driver{branch} has CUDA {number(has)}, but the installed cuda-bindings are of CUDA "
            f"{number(runtime_version())}: what this driver lacks answers NOT_SUPPORTED, and it loads no "
            f"kernels that CUDA {needed.cuda[0]} compiled.  Upgrade it to branch {needed.branch} or later "
            f"({COMPATIBILITY}), or install cuda-bindings {has[0]} and compile kernels for CUDA "
            f"{number(has)}"
        )
    if old := old_devices(needed.capability):
        texts.append(
            f"{'; '.join(old)}: CUDA {needed.cuda[0]} compiles for {number(needed.capability)} and later "
            f"only.  Memory, streams and graphs work; compile the kernels with CUDA {needed.cuda[0] - 1}, or "
            "hide the device with CUDA_VISIBLE_DEVICES"
        )
    return texts


def old_devices(least: tuple[int, int]) -> list[str]:
    rows = Rows()
    texts = []
    for ordinal in range(rows.device_count()[1]):
        capability = tuple(
            rows.device_attribute(ordinal, ATTRIBUTES[f"compute_capability_{part}"])[1]
            for part in ("major", "minor")
        )
        if (0, 0) < capability < least:  # (0, 0): it did not say
            name = rows.device_name(ordinal)[1]
            texts.append(f"device {ordinal} ({name}) has compute capability {number(capability)}")
    return texts


def number(pair: tuple[int, ...]) -> str:
    return ".".join(map(str, pair))


def advice_to_upgrade() -> str:
    """Returns what to do about a driver that could not be opened because it is too old; "" where that is not
    why."""
    has = kernel_driver_version()
    branch = has.partition(".")[0] if has else ""
    if not branch.isdecimal() or int(branch) >= OLDEST_OPENED[0]:
        return ""
    oldest, cuda = OLDEST_OPENED
    return (
        f"; the driver is {has}, but accelrt needs branch {oldest} (CUDA {cuda}), and the installed "
        f"cuda-bindings want branch {stack().branch} (CUDA {number(stack().cuda)}): upgrade it"
    )
