"""accelrt info: a report to paste.

It is plain text and needs no package, for it is asked when things are broken; where rich is installed and a
person looks on, its titles and problems stand out.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from accelrt import env
from accelrt.core.printable import printable_lines
from accelrt.tools.cli.choice import need
from accelrt.tools.cli.facts import collect
from accelrt.tools.cli.text import human, pairs, put, table

__all__ = ["run"]

NOTHING = "NVML is not there, or lists none"
ADVICE = "set ACCELRT_DRIVER=host, or call accelrt.init(driver='host')"
PROBLEMS = r"(?m)^  (problem|old|device \S+:) .*$"
TITLES = r"(?m)^\w.*$"


def describe(facts: dict[str, Any]) -> str:
    """The report as text to paste."""
    sections = [
        ("versions", pairs([(name, text or "not installed") for name, text in facts["versions"].items()])),
        ("driver", pairs(driver_lines(facts["driver"], facts["nvidia"], facts["kernels"]))),
        ("devices", device_lines(facts["devices"]) if facts["devices"] else "  none"),
        ("identity", identity_lines(facts["identity"])),
        ("state", state_lines(facts)),
        ("settings", pairs(setting_lines(facts["settings"]))),
    ]
    return "\n".join(f"{title}\n{body}" for title, body in sections if body)


def setting_lines(settings: dict[str, str]) -> list[tuple[str, str]]:
    """Each setting's value, and behind it what the setting means."""
    width = max(len(value) for value in settings.values())
    meanings = {name: variable.meaning for name, variable in env.VARIABLES.items()}
    return [
        (name, f"{value:<{width}}  {meanings.get(name, '')}".rstrip()) for name, value in settings.items()
    ]


def driver_lines(
    driver: dict[str, Any], nvidia: dict[str, Any], kernels: dict[str, Any] | None
) -> list[tuple[str, str]]:
    lines = [("name", driver["name"] or "none"), ("why", driver["why"])]
    if driver["version"]:
        lines.append(("version", f"CUDA {driver['version']}"))
    lines.append(("built for", f"CUDA {driver['built_for']}, cuda-bindings of {driver['bindings']}"))
    lines.append(("kernel module", driver["kernel_module"] or "not loaded, or not shown"))
    if kernels is not None:
        lines.append(("NVRTC", kernels["nvrtc"] or "not installed"))
        lines.append(("kernels for", " ".join(kernels["architectures"]) or "none"))
    if driver["problem"]:
        lines.append(("problem", driver["problem"]))
    lines += [("old", text) for text in driver["complaints"]]
    found = ", ".join(nvidia["uuids"]) or f"none found: {nvidia['problem'] or NOTHING}"
    lines.append(("NVIDIA devices", found))
    if not driver["open"]:
        lines.append(("to use the host device", ADVICE))
    return lines


def device_lines(devices: list[dict[str, Any]]) -> str:
    header = ("device", "name", "capability", "memory", "free")
    names = ("ordinal", "name", "capability", "total_memory", "free_memory")
    rows = [[shown(name, one[name]) for name in names] for one in devices]
    problems = [f"  device {one['ordinal']}: {one['problem']}" for one in devices if one["problem"]]
    return "\n".join([table(header, rows), *problems])


def identity_lines(found: dict[str, Any]) -> str:
    if found["problem"]:
        return f"  problem  {found['problem']}"
    header = ("device", "uuid", "pci", "NVML", "MIG")
    rows = [
        [
            shown("ordinal", row["ordinal"]),
            row["uuid"],
            row["pci_bus_id"],
            shown("nvml_index", row["nvml_index"]),
            "-" if row["mig_instance"] is None else "{}/{}".format(*row["mig_instance"]),
        ]
        for row in found["rows"]
    ]
    return table(header, rows) if rows else ""


def state_lines(facts: dict[str, Any]) -> str:
    """The readings that tell most: a line for each device that has any."""
    ordinals = {row["uuid"]: row["ordinal"] for row in facts["identity"]["rows"]}
    header = ("device", "busy", "used", "temperature", "power", "clock", "ECC uncorrected", "held back by")
    rows, problems = [], []
    for one in facts["state"]:
        name = shown("ordinal", ordinals.get(one["uuid"]))
        rows.append([name, *state_of(one)])
        if one["problem"]:
            problems.append(f"  device {name}: {one['problem']}")
    return "\n".join([table(header, rows), *problems]) if rows else ""


def state_of(one: dict[str, Any]) -> list[str]:
    memory, power, limits = one.get("device_memory_info"), one.get("power_draw"), one.get("power_limits")
    clock = (one.get("clock_rates") or {}).get("sm")
    errors = (one.get("ecc_errors") or {}).get("uncorrected_volatile")
    most = limits and limits["enforced"]
    return [
        "-" if one.get("utilization") is None else f"{one['utilization']} %",
        "-" if memory is None else human(memory["used"]),
        "-" if one.get("temperature") is None else f"{one['temperature']} C",
        "-" if power is None else f"{power / 1000:.0f}{f'/{most / 1000:.0f}' if most else ''} W",
        "-" if clock is None else f"{clock} MHz",
        shown("errors", errors),
        ", ".join(one.get("throttle_reasons") or ()) or "-",
    ]


def shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return human(value) if name.endswith("_memory") else str(value)


def show(text: str) -> None:
    """Prints it, with colours where a person looks on; never a line broken or cut."""
    text = printable_lines(text)
    if not sys.stdout.isatty():
        put(text)
        return
    try:
        console = need("rich", "rich.console", "info").Console(highlight=False)
        drawn = need("rich", "rich.text", "info").Text(text)
    except ImportError:
        put(text)
        return
    drawn.highlight_regex(TITLES, "bold cyan")
    drawn.highlight_regex(PROBLEMS, "red")
    console.print(drawn, soft_wrap=True)


def run(as_json: bool = False) -> int:
    """The command.  Returns its exit status, 0: that a driver does not open is part of the report."""
    facts = collect()
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        show(describe(facts))
    return 0
