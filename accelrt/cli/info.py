"""accelrt info: what is installed, which driver is chosen and why, and which devices it has."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import UUID

from accelrt import __version__, lazy, nvml
from accelrt.caching import empty_cache
from accelrt.cli.text import human, pairs, table
from accelrt.device import device_count, mem_get_info
from accelrt.driver.rows import Rows
from accelrt.errors import CudaError
from accelrt.properties import get_device_properties
from accelrt.status import status_error

__all__ = ["collect", "run"]

SETTINGS = {  # name -> what holds where it is not set
    "ACCELRT_DRIVER": "auto",
    "ACCELRT_HOST_DEVICES": "2",
    "ACCELRT_HOST_MEMORY": "1GiB",
    "ACCELRT_HOST_DELAY_US": "0",
    "ACCELRT_DEBUG": "0",
    "CUDA_VISIBLE_DEVICES": "all",
    "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
}
NOTHING = "NVML is not there, or lists none"
ADVICE = "set ACCELRT_DRIVER=host, or call accelrt.init(driver='host')"
BUILD_SETTINGS = ("ACCELRT_BUILD", "ACCELRT_SANITIZE_BUILD")  # setup.py reads these


def collect() -> dict[str, Any]:
    """Everything that the command says, as a JSON object.  Opens the driver that is chosen."""
    driver = driver_facts()
    return {
        "versions": versions(),
        "driver": driver,
        "nvidia": nvidia_facts(),
        "devices": [device_facts(ordinal) for ordinal in range(device_count())] if driver["open"] else [],
        "settings": settings(),
    }


def versions() -> dict[str, str | None]:
    return {
        "accelrt": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "cython": cython_version(),
        "cuda-bindings": installed("cuda-bindings"),
        "numpy": installed("numpy"),
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
    setting = os.environ.get("ACCELRT_DRIVER")
    facts: dict[str, Any] = {
        "name": None,
        "why": f"ACCELRT_DRIVER={setting}" if setting else "auto, because ACCELRT_DRIVER is not set",
        "open": False,
        "version": None,
        "problem": None,
    }
    try:
        facts["name"] = lazy.chosen_driver()
        lazy.init()
        facts["open"] = True
        facts["version"] = driver_version()
    except (RuntimeError, ValueError, ImportError) as error:  # what is wrong is what a report is for
        facts["problem"] = str(error)
    return facts


def driver_version() -> str:
    code, number = Rows().driver_version()
    if code:
        raise status_error(code, "driver_version")
    return f"{number // 1000}.{number % 1000 // 10}"


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


def asked(row: str, ordinal: int) -> Any:
    code, found = getattr(Rows(), row)(ordinal)
    if code:
        raise status_error(code, row, ("device", ordinal))
    return found


def settings() -> dict[str, str]:
    """The variables that accelrt reads, and those that look as if it did."""
    found = {name: os.environ.get(name, f"{default} (not set)") for name, default in SETTINGS.items()}
    known = (*SETTINGS, *BUILD_SETTINGS)
    strange = sorted(name for name in os.environ if name.startswith("ACCELRT_") and name not in known)
    return found | {name: f"{os.environ[name]} (accelrt has no such setting)" for name in strange}


def describe(facts: dict[str, Any]) -> str:
    """The report as text to paste."""
    sections = [
        ("versions", pairs([(name, text or "not known") for name, text in facts["versions"].items()])),
        ("driver", pairs(driver_lines(facts["driver"], facts["nvidia"]))),
        ("devices", device_lines(facts["devices"]) if facts["devices"] else "  none"),
        ("settings", pairs(list(facts["settings"].items()))),
    ]
    return "\n".join(f"{title}\n{body}" for title, body in sections)


def driver_lines(driver: dict[str, Any], nvidia: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [("name", driver["name"] or "none"), ("why", driver["why"])]
    if driver["version"]:
        lines.append(("version", driver["version"]))
    if driver["problem"]:
        lines.append(("problem", driver["problem"]))
    found = ", ".join(nvidia["uuids"]) or f"none found: {nvidia['problem'] or NOTHING}"
    lines.append(("NVIDIA devices", found))
    if not driver["open"]:
        lines.append(("to use the host device", ADVICE))
    return lines


def device_lines(devices: list[dict[str, Any]]) -> str:
    header = ("device", "name", "capability", "memory", "free", "uuid", "pci")
    rows = [[shown(name, value) for name, value in one.items() if name != "problem"] for one in devices]
    problems = [f"  device {one['ordinal']}: {one['problem']}" for one in devices if one["problem"]]
    return "\n".join([table(header, rows), *problems])


def shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return human(value) if name.endswith("_memory") else str(value)


def run(as_json: bool = False) -> int:
    """The command.  Returns its exit status, 0: that a driver does not open is part of the report."""
    facts = collect()
    print(json.dumps(facts, indent=2) if as_json else describe(facts))
    return 0
