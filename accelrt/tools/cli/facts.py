"""The facts of accelrt info: what is installed, which driver is chosen and why, which devices it has."""

import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import accelrt
from accelrt import env, identity, nvml
from accelrt.devices import versions
from accelrt.kernels import arch
from accelrt.runtime.init import chosen_driver
from accelrt.tools.cli.sample import Device, Sampler

DEFAULTS = {name: variable.default or "empty" for name, variable in env.VARIABLES.items()} | {
    "CUDA_VISIBLE_DEVICES": "all",
    "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
}


def collect() -> dict[str, Any]:
    """Everything that the command says; the devices' state are Devices.  Opens the driver that is chosen."""
    driver = driver_facts()
    # Every card with all its names, those too that this process does not see.  That the driver and NVML
    # disagree is worth a report.
    cards = listed("rows", lambda: [asdict(row) for row in identity.physical()])
    addresses = {row["ordinal"]: row["pci_bus_id"] for row in cards["rows"]}
    ordinals = range(accelrt.device_count()) if driver["open"] else ()
    return {
        "versions": packages(),
        "driver": driver,
        "kernels": kernel_facts() if driver["open"] else None,
        "nvidia": listed("uuids", nvml.physical_uuids),
        "devices": [device_facts(ordinal, addresses.get(ordinal)) for ordinal in ordinals],
        "identity": cards,
        "state": listed("devices", lambda: Sampler().sample().devices)["devices"],  # cards say why none
        "settings": settings(),
    }


def listed(name: str, ask: Callable[[], list[Any]]) -> dict[str, Any]:
    """Returns what is asked for, or none of it and the problem."""
    try:
        return {name: ask(), "problem": None}
    except (RuntimeError, ValueError, ImportError) as error:
        return {name: [], "problem": str(error)}


def packages() -> dict[str, str | None]:
    optional = ("cuda-bindings", "numpy", "rich", "prometheus-client")
    return {
        "accelrt": accelrt.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "cython": cython_version(),
        **{package: installed(package) for package in optional},
        "platform": platform.platform(),
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cython_version() -> str | None:
    """The Cython that accelrt was built with, which is part of the name of its functions' type's module."""
    prefix, _, number = type(accelrt.empty_cache).__module__.partition("_cython_")
    return number.replace("_", ".") if number and not prefix else None


def driver_facts() -> dict[str, Any]:
    setting = env.text("ACCELRT_DRIVER")
    facts: dict[str, Any] = {
        "name": None,
        "why": f"ACCELRT_DRIVER={setting}" if setting else "auto, because ACCELRT_DRIVER is not set",
        "open": False,
        "version": None,
        "built_for": versions.number(versions.stack().cuda),
        "bindings": versions.number(accelrt.runtime_version()),
        "kernel_module": versions.kernel_driver_version(),
        "complaints": [],
        "problem": None,
    }
    try:
        facts["name"] = chosen_driver()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are among the facts
            accelrt.init()
        facts["open"] = True
        facts["version"] = versions.number(accelrt.driver_version())
        facts["complaints"] = versions.complaints() if facts["name"] == "cuda" else []
    except (RuntimeError, ValueError, ImportError) as error:  # what is wrong is what a report is for
        facts["problem"] = str(error)
    return facts


def kernel_facts() -> dict[str, Any]:
    """Returns what kernels can be compiled for, and by what."""
    compiler = arch.nvrtc_version()
    return {
        "nvrtc": compiler and versions.number(compiler),
        "architectures": accelrt.get_arch_list(),
        "bf16": accelrt.is_bf16_supported(including_emulation=False),
    }


def device_facts(ordinal: int, place: str | None) -> dict[str, Any]:
    """One device; a figure that it refuses is None, and the refusals are its problem."""
    questions: dict[str, Callable[[], Any]] = {
        "name": lambda: accelrt.get_device_name(ordinal),
        "capability": lambda: versions.number(accelrt.get_device_capability(ordinal)),
        "total_memory": lambda: accelrt.get_device_properties(ordinal).total_memory,
        "free_memory": lambda: accelrt.mem_get_info(ordinal)[0],
        "uuid": lambda: str(accelrt.get_device_properties(ordinal).uuid),
        "pci_bus_id": lambda: place,
    }
    facts: dict[str, Any] = {"ordinal": ordinal}
    problems = []
    for name, question in questions.items():
        try:
            facts[name] = question()
        except accelrt.CudaError as error:
            facts[name] = None
            problems.append(str(error))
    return facts | {"problem": "; ".join(dict.fromkeys(problems)) or None}


def state_of(device: Device) -> dict[str, Any]:
    """Returns how a device is, for JSON: the readings that it has, and its problem."""
    readings = {name: value for name, value in asdict(device)["readings"].items() if value is not None}
    return {"uuid": device.uuid, "problem": device.problem} | readings


def settings() -> dict[str, str]:
    """The variables that accelrt reads, and those that look as if it did."""
    texts = {name: os.environ.get(name, f"{default} (not set)") for name, default in DEFAULTS.items()}
    texts |= {name: "set (it is not shown)" for name in env.SECRETS if env.text(name)}
    names = (*DEFAULTS, *env.BUILD_VARIABLES)
    strange = sorted(name for name in os.environ if name.startswith("ACCELRT_") and name not in names)
    return texts | {name: f"{os.environ[name]} (accelrt has no such setting)" for name in strange}
