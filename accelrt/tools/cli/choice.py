"""Chooses the driver that a command runs on.

The library never falls back to the host device by itself; the commands do, and say so.

And the packages that some commands need beyond accelrt's own.
"""

import importlib
import os
from typing import Any

import accelrt
from accelrt import env
from accelrt.runtime.init import HOST_ADVICE, chosen_driver

MEMORY = "ACCELRT_HOST_MEMORY"


def open_driver(asked: str | None, memory: str | None = None, needed: int = 0) -> str:
    """Initialises the driver that was asked for; auto, without an NVIDIA device, is the host device.

    Arguments:
        asked: "auto", "cuda" or "host"; None is the environment's ACCELRT_DRIVER, and without it "auto".
        memory: size of the host device, as ACCELRT_HOST_MEMORY has it; None is what the environment says, and
            without it what is needed.
        needed: bytes.
    Returns:
        which driver it is, and why the host device where it stands in for another: a command's first line.
    Raises:
        DriverNotFoundError: "cuda" was asked for, and there is none.
        ValueError: ACCELRT_DRIVER or memory is malformed, or memory is given for a GPU.
    """
    driver = asked or env.value("ACCELRT_DRIVER")
    reason = None
    if driver == "auto":
        try:
            accelrt.init("cuda")
        except (accelrt.DriverNotFoundError, ImportError) as error:
            driver, reason = "host", str(error)
    elif driver != "host":
        accelrt.init(asked)
    if driver == "host":
        if memory is not None:
            os.environ[MEMORY] = str(env.read_size("--memory", memory))
        elif needed:
            os.environ.setdefault(MEMORY, str(needed))
        accelrt.init("host")
    elif memory is not None:
        raise ValueError("--memory is the size of the host device, but this runs on a GPU; add --driver host")
    if reason is not None:
        reason = reason.removeprefix("no NVIDIA device can be used: ").removesuffix(f"; {HOST_ADVICE}")
        return f"driver: host (fell back to it, because no NVIDIA device was found: {reason})"
    return f"driver: {chosen_driver()} ({accelrt.device_count()} x {accelrt.get_device_name(0)})"


def need(package: str, module: str, command: str) -> Any:
    """Imports a module of an optional package.

    Arguments:
        package, module: str, its names on PyPI and in Python.
        command: str, who needs it.
    Raises:
        ImportError: it is not installed; the text says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):
            raise  # it is there, but one of its own is not
        raise ImportError(
            f"'accelrt {command}' needs the package {package}, which is not installed: "
            "python -m pip install 'accelrt[cli]'"
        ) from None
