"""What accelrt info reports: what is installed, which driver is chosen and why, which devices it has."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import UUID

from accelrt import __version__, env, identity, nvml
from accelrt.devices import arch, versions
from accelrt.devices.device import device_count, get_device_properties, mem_get_info
from accelrt.driver.registry import Rows
from accelrt.errors import CudaError
from accelrt.memory.caching import empty_cache
from accelrt.runtime import init
from accelrt.status import status_error
from accelrt.tools.cli.sample import Sampler, plain

__all__ = ["collect"]

DEFAULTS = {name: variable.default or "empty" for name, variable in env.VARIABLES.items()} | {
    "CUDA_VISIBLE_DEVICES": "all",
    "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
}


def collect() -> dict[str, Any]:
    """Everything that the command says, as a JSON object.  Opens the driver that is chosen."""
    driver = driver_facts()
    there = range(device_count()) if driver["open"] else ()
    return {
        "versions": packages(),
        "driver": driver,
        "kernels": kernel_facts() if driver["open"] else None,
        "nvidia": nvidia_facts(),
        "devices": [device_facts(ordinal) for ordinal in there],
        "identity": identity_facts(),
        "state": state_facts(),
        "settings": settings(),
    }


def packages() -> dict[str, str | None]:
    return {
        "accelrt": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "cython": cython_version(),
        "cuda-bindings": installed("cuda-bindings"),
        "numpy": installed("numpy"),
        "rich": installed("rich"),
        "prometheus-client": installed("prometheus-client"),
        "platform": platform.platform(),
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cython_version() -> str | None:
    """The Cython that accelrt was built with, which is part of the name of its functions' type's module."""
    prefix, _, number = type(empty_cache).__module__.partition("_cython_")
    return number.replace("_", ".") if number and not prefix else None


def driver_facts() -> dict[str, Any]:
    setting = env.text("ACCELRT_DRIVER")
    facts: dict[str, Any] = {
        "name": None,
        "why": f"ACCELRT_DRIVER={setting}" if setting else "auto, because ACCELRT_DRIVER is not set",
        "open": False,
        "version": None,
        "built_for": versions.number(versions.stack().cuda),
        "bindings": versions.number(versions.runtime_version()),
        "kernel_module": versions.kernel_driver_version(),
        "complaints": [],
        "problem": None,
    }
    try:
        facts["name"] = init.chosen_driver()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are among the facts
            init.init()
        facts["open"] = True
        facts["version"] = versions.number(versions.driver_version())
        facts["complaints"] = versions.complaints() if facts["name"] == "cuda" else []
    except (RuntimeError, ValueError, ImportError) as error:  # what is wrong is what a report is for
        facts["problem"] = str(error)
    return facts


def kernel_facts() -> dict[str, Any]:
    """What kernels can be compiled for, and by what."""
    compiler = arch.nvrtc_version()
    return {
        "nvrtc": compiler and versions.number(compiler),
        "architectures": arch.get_arch_list(),
        "bf16": arch.is_bf16_supported(including_emulation=False),
    }


def nvidia_facts() -> dict[str, Any]:
    try:
        return {"uuids": nvml.physical_uuids(), "problem": None}
    except (RuntimeError, ImportError) as error:
        return {"uuids": [], "problem": str(error)}


def device_facts(ordinal: int) -> dict[str, Any]:
    """One device; a figure that it refuses is None, and the refusals are its problem."""
    questions: dict[str, Callable[[], Any]] = {
        "name": lambda: get_device_properties(ordinal).name,
        "capability": lambda: "{0.major}.{0.minor}".format(get_device_properties(ordinal)),
        "total_memory": lambda: get_device_properties(ordinal).total_memory,
        "free_memory": lambda: mem_get_info(ordinal)[0],
        "uuid": lambda: str(UUID(bytes=asked("device_uuid", ordinal))),
        "pci_bus_id": lambda: asked("device_pci_bus_id", ordinal),
    }
    facts: dict[str, Any] = {"ordinal": ordinal}
    problems = []
    for name, question in questions.items():
        try:
            facts[name] = question()
        except CudaError as error:
            facts[name] = None
            problems.append(str(error))
    return facts | {"problem": "; ".join(dict.fromkeys(problems)) or None}


def identity_facts() -> dict[str, Any]:
    """Every card with all its names, those too that this process does not see."""
    try:
        return {"rows": [asdict(row) for row in identity.physical()], "problem": None}
    except (RuntimeError, ValueError) as error:  # that the driver and NVML disagree is worth a report
        return {"rows": [], "problem": str(error)}


def state_facts() -> list[dict[str, Any]]:
    """How each card is now: the readings that it has, and its problem."""
    try:
        devices = Sampler().sample().devices
    except (RuntimeError, ValueError):
        return []  # the identity says it
    return [
        {"uuid": one.uuid, "problem": one.problem}
        | {name: plain(value) for name, value in one.readings.items() if value is not None}
        for one in devices
    ]


def asked(row: str, ordinal: int) -> Any:
    code, found = getattr(Rows(), row)(ordinal)
    if code:
        raise status_error(code, row, ("device", ordinal))
    return found


def settings() -> dict[str, str]:
    """The variables that accelrt reads, and those that look as if it did."""
    found = {name: os.environ.get(name, f"{default} (not set)") for name, default in DEFAULTS.items()}
    found |= {name: "set (it is not shown)" for name in env.SECRETS if env.text(name)}
    known = (*DEFAULTS, *env.BUILD_VARIABLES)
    strange = sorted(name for name in os.environ if name.startswith("ACCELRT_") and name not in known)
    return found | {name: f"{os.environ[name]} (accelrt has no such setting)" for name in strange}
