"""Versions of what accelrt stands on, and whether they are too old."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path

from accelrt.attributes import ATTRIBUTES
from accelrt.driver.rows import Rows
from accelrt.status import status_error

__all__ = ["driver_version", "kernel_driver_version", "runtime_version", "warn_of_what_is_old"]

MODULE = Path("/sys/module/nvidia/version")
OLDEST_DRIVER = (13, 0)  # of the CUDA major version that accelrt is built for
OLDEST_BRANCH = 580  # of the kernel's driver that has it
OLDEST_OPENED = (525, "12.0")  # cuGetProcAddress as accelrt calls it came with CUDA 12.0
OLDEST_CAPABILITY = (7, 5)  # what CUDA 13 compiles for
COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility"


def driver_version() -> tuple[int, int]:
    """The newest CUDA that the driver in use can run (cuDriverGetVersion).  Initialises accelrt.

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
    """The CUDA whose driver API accelrt speaks: that of the installed cuda-bindings, which goes by CUDA's
    versions.

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
    """Warns of a driver or devices older than the CUDA that accelrt is built for.  Called when a driver has
    opened, once a process.

    Sources: CUDA Compatibility, "Minor Version Compatibility" (CUDA 13 wants branch 580); CUDA 13.0's Release
    Notes, "Deprecated Architectures" (compute capability 7.5 is the least that it compiles for).
    """
    for text in complaints():
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def complaints() -> list[str]:
    """What there is to say of the driver in use and its devices; [] where all is new enough."""
    found = []
    has, wanted = driver_version(), number(OLDEST_DRIVER)
    if has < OLDEST_DRIVER:
        branch = f" {kernel_driver_version() or ''}".rstrip()
        found.append(
            f"NVIDIA's driver{branch} has CUDA {number(has)}, but accelrt is built for CUDA {wanted}: what "
            "this driver lacks answers NOT_SUPPORTED, and it loads no kernels that CUDA "
            f"{OLDEST_DRIVER[0]} compiled.  Upgrade it to branch {OLDEST_BRANCH} or later ({COMPATIBILITY}), "
            f"or compile kernels with CUDA {number(has)}"
        )
    if old := old_devices():
        found.append(
            f"{'; '.join(old)}: CUDA {OLDEST_DRIVER[0]} compiles for {number(OLDEST_CAPABILITY)} and later "
            "only.  Memory, streams and graphs work; compile the kernels with CUDA 12, or hide the device "
            "with CUDA_VISIBLE_DEVICES"
        )
    return found


def old_devices() -> list[str]:
    rows = Rows()
    found = []
    for ordinal in range(rows.device_count()[1]):
        capability = tuple(
            rows.device_attribute(ordinal, ATTRIBUTES[f"compute_capability_{part}"])[1]
            for part in ("major", "minor")
        )
        if (0, 0) < capability < OLDEST_CAPABILITY:  # (0, 0): it did not say
            name = rows.device_name(ordinal)[1]
            found.append(f"device {ordinal} ({name}) has compute capability {number(capability)}")
    return found


def number(pair: tuple[int, ...]) -> str:
    return ".".join(map(str, pair))


def advice_to_upgrade() -> str:
    """What to do about a driver that could not be opened because it is too old; "" where that is not why."""
    has = kernel_driver_version()
    branch = has.partition(".")[0] if has else ""
    if not branch.isdecimal() or int(branch) >= OLDEST_OPENED[0]:
        return ""
    oldest, cuda = OLDEST_OPENED
    return (
        f"; the driver is {has}, but accelrt needs branch {oldest} (CUDA {cuda}) and is built for branch "
        f"{OLDEST_BRANCH} (CUDA {number(OLDEST_DRIVER)}): upgrade it"
    )
