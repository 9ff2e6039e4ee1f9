"""Which driver a command runs on.

The library never falls back to the host device by itself; the commands do, and say so.

And the packages that some commands need beyond accelrt's own.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from accelrt import env
from accelrt.devices.device import device_count, get_device_name
from accelrt.errors import DriverNotFoundError
from accelrt.runtime import init

__all__ = ["Chosen", "need", "open_driver"]

MEMORY = "ACCELRT_HOST_MEMORY"


@dataclass(frozen=True)
class Chosen:
    """The driver that a command runs on.

    Attributes:
        name: "cuda" or "host".
        reason: why the host device stands in for an NVIDIA one; None where it does not.
    """

    name: str
    reason: str | None = None

    @property
    def line(self) -> str:
        """What a command's first line says."""
        if self.reason is not None:
            return f"driver: host (fell back to it, because no NVIDIA device was found: {self.reason})"
        return f"driver: {self.name} ({device_count()} x {get_device_name(0)})"


def open_driver(asked: str | None, memory: str | None = None, needed: int = 0) -> Chosen:
    """Initialises the driver that was asked for; auto, without an NVIDIA device, is the host device.

    Arguments:
        asked: "auto", "cuda" or "host"; None is the environment's ACCELRT_DRIVER, and without it "auto".
        memory: size of the host device, as ACCELRT_HOST_MEMORY has it; None is what the environment says, and
            without it what is needed.
        needed: bytes.
    Raises:
        DriverNotFoundError: "cuda" was asked for, and there is none.
        ValueError: ACCELRT_DRIVER or memory is malformed, or memory is given for a GPU.
    """
    wanted = asked or env.value("ACCELRT_DRIVER")
    if wanted == "host":
        return open_host(memory, needed)
    if wanted != "auto":
        init.init(asked)
        return opened(memory)
    try:
        init.init("cuda")
    except (DriverNotFoundError, ImportError) as error:
        reason = (
            str(error).removeprefix("no NVIDIA device can be used: ").removesuffix(f"; {init.HOST_ADVICE}")
        )
        return open_host(memory, needed, reason)
    return opened(memory)


def opened(memory: str | None) -> Chosen:
    if memory is not None:
        raise ValueError("--memory is the size of the host device, but this runs on a GPU; add --driver host")
    return Chosen(init.chosen_driver())


def open_host(memory: str | None, needed: int, reason: str | None = None) -> Chosen:
    if memory is not None:
        os.environ[MEMORY] = str(env.read_size("--memory", memory))
    elif needed:
        os.environ.setdefault(MEMORY, str(needed))
    init.init("host")
    return Chosen("host", reason)


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
