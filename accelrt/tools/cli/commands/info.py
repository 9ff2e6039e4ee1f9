"""accelrt info: print versions, the driver and why it was chosen, devices and settings.

The report is plain text, to be pasted into a question, and needs no other package; where rich is installed
and a person looks on, its titles and problems stand out.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from accelrt import env
from accelrt.core.printable import printable_lines, size_text
from accelrt.tools.cli import facts, options, process_order
from accelrt.tools.cli.choice import need
from accelrt.tools.cli.sample import Device
from accelrt.tools.cli.text import pairs, put, table

WIDTH = 80
NOTHING = "NVML is not there, or lists none"
ADVICE = "set ACCELRT_DRIVER=host, or call accelrt.init(driver='host')"
PROBLEMS = r"(?m)^  (problem|old|device \S+:) .*$"
TITLES = r"(?m)^\w.*$"


def describe(report: dict[str, Any], every_setting: bool) -> str:
    """The report as text to paste; of what facts.collect gives.  Settings are those that differ from their
    defaults, or every one."""
    settings = report["settings"]
    changed = {name: value for name, value in settings.items() if not value.endswith(" (not set)")}
    shown = settings if every_setting else changed
    left = len(settings) - len(shown)
    sections = [
        ("driver", pairs(driver_lines(report["driver"], report["nvidia"], report["kernels"]))),
        ("devices", device_lines(report["devices"]) or "  none"),
        ("state", state_lines(report)),
        (
            "settings",
            "\n".join([*setting_lines(shown), *([f"  {left} have their defaults: --all"] if left else [])]),
        ),
        ("versions", pairs([(name, text or "not installed") for name, text in report["versions"].items()])),
        ("identity", identity_lines(report["identity"])),
    ]
    return "\n".join(f"{title}\n{body}" for title, body in sections if body)


def setting_lines(settings: dict[str, str]) -> list[str]:
    """Each setting's value, and below it what the setting means."""
    lines = []
    for name, value in settings.items():
        lines.append(f"  {name}={value}")
        if name in env.VARIABLES:
            text = env.VARIABLES[name].meaning
            lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


def driver_lines(
    driver: dict[str, Any], nvidia: dict[str, Any], kernels: dict[str, Any] | None
) -> list[tuple[str, str]]:
    lines = [
        ("name", driver["name"] or "none"),
        ("why", driver["why"]),
        ("version", driver["version"] and f"CUDA {driver['version']}"),
        ("built for", f"CUDA {driver['built_for']}, cuda-bindings of {driver['bindings']}"),
        ("kernel module", driver["kernel_module"] or "not loaded, or not shown"),
        ("NVRTC", kernels and (kernels["nvrtc"] or "not installed")),
        ("kernels for", kernels and (" ".join(kernels["architectures"]) or "none")),
        ("problem", driver["problem"]),
        *(("old", text) for text in driver["complaints"]),
        ("NVIDIA devices", ", ".join(nvidia["uuids"]) or f"none found: {nvidia['problem'] or NOTHING}"),
        ("to use the host device", None if driver["open"] else ADVICE),
    ]
    return [(name, text) for name, text in lines if text]


def device_table(header: Sequence[str], rows: list[list[Any]], problems: Sequence[str | None] = ()) -> str:
    """A row a device, which begins with its ordinal, and below the problems; empty without devices."""
    shown = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    lines = [f"  device {row[0]}: {text}" for row, text in zip(shown, problems, strict=False) if text]
    return "\n".join([table(["device", *header], shown), *lines]) if rows else ""


def device_lines(devices: list[dict[str, Any]]) -> str:
    names = ("ordinal", "name", "capability", "total_memory", "free_memory")
    rows = [[one[name] for name in names] for one in devices]
    rows = [[*row[:3], *(size if size is None else size_text(size) for size in row[3:])] for row in rows]
    return device_table(("name", "capability", "memory", "free"), rows, [one["problem"] for one in devices])


def identity_lines(cards: dict[str, Any]) -> str:
    if cards["problem"]:
        return f"  problem  {cards['problem']}"
    names = ("ordinal", "uuid", "pci_bus_id", "nvml_index")
    rows = [
        [*(row[name] for name in names), row["mig_instance"] and "{}/{}".format(*row["mig_instance"])]
        for row in cards["rows"]
    ]
    return device_table(("uuid", "pci", "NVML", "MIG"), rows)


def state_lines(report: dict[str, Any]) -> str:
    """The readings that tell most: a line for each device that has any."""
    ordinals = {row["uuid"]: row["ordinal"] for row in report["identity"]["rows"]}
    header = ("busy", "used", "temperature", "power", "clock", "ECC uncorrected", "held back by")
    rows = [[ordinals.get(one.uuid), *cells_of(one)] for one in report["state"]]
    return device_table(header, rows, [one.problem for one in report["state"]])


def cells_of(one: Device) -> list[Any]:
    busy, used = one.figure("utilization"), one.figure("device_memory_info", "used")
    heat = one.figure("temperature")
    return [
        None if busy is None else f"{busy} %",
        None if used is None else size_text(used),
        None if heat is None else f"{heat} C",
        one.power,
        one.clock,
        one.figure("ecc_errors", "uncorrected_volatile"),
        ", ".join(one.figure("throttle_reasons") or ()) or None,
    ]


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "instead: what accelrt does around a fork and at the end of a process, in order"
    parser.add_argument("--process", action="store_true", help=text)
    parser.add_argument(
        "--all", action="store_true", dest="every", help="list settings at their defaults too"
    )
    options.add_json(parser)


def run(process: bool, as_json: bool, every: bool) -> int:
    """The command.  Returns its exit status, 0: that a driver does not open is part of the report."""
    if process:
        lists = process_order.collect()
        print(json.dumps(lists, indent=2)) if as_json else put(process_order.describe(lists))
        return 0
    report = facts.collect()
    if as_json:
        print(json.dumps({"schema": options.SCHEMA} | report, indent=2, default=facts.state_of))
    else:
        show(describe(report, every))
    return 0
