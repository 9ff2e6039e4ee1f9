"""A device's and a process's figures as the cells of a table."""

from __future__ import annotations

from rich.text import Text

from accelrt.tools.cli.commands.top.state import State
from accelrt.tools.cli.sample import Device
from accelrt.tools.cli.text import short

__all__ = [
    "clock_of",
    "heat_of",
    "held_back",
    "link_of",
    "memory_of",
    "name_of",
    "percent",
    "place_of",
    "power_of",
    "sparkline",
]

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "._-=+*%#"
HOT, BUSY = 85, 90  # degrees Celsius, percent


def sparkline(looks: list[float | None], width: int, has_bars: bool) -> str:
    """Percentages as bars, the newest at the right; a blank where there was no reading."""
    bars = BARS if has_bars else PLAIN_BARS
    last = looks[-width:]
    drawn = [" " if one is None else bars[min(int(one * len(bars) / 100), len(bars) - 1)] for one in last]
    return "".join(drawn).rjust(width)


def place_of(device: Device) -> Text:
    return Text("-" if device.ordinal is None else str(device.ordinal))


def name_of(device: Device) -> Text:
    name = ("  " if device.mig_parent else "") + device.name.removeprefix("NVIDIA ").removeprefix("accelrt ")
    return Text(f"{name}: {device.problem}", "red") if device.problem else Text(name)


def percent(value: int | None) -> Text:
    return Text("-") if value is None else Text(f"{value}%", "bold" if value >= BUSY else "")


def memory_of(device: Device) -> Text:
    memory = device.figure("device_memory_info")
    if memory is None:
        return Text("-")
    used, whole = short(memory.used), short(memory.total)
    if used.rpartition(" ")[2] == whole.rpartition(" ")[2]:
        used = used.partition(" ")[0]
    return Text(f"{used}/{whole}".replace(" ", "" if len(used) + len(whole) > 16 else " "))


def heat_of(device: Device) -> Text:
    heat = device.figure("temperature")
    return Text("-") if heat is None else Text(f"{heat}C", "red" if heat >= HOT else "")


def power_of(device: Device) -> Text:
    draw, limit = device.figure("power_draw"), device.figure("power_limits", "enforced")
    if draw is None:
        return Text("-")
    most = "" if limit is None else f"/{limit / 1000:.0f}"
    return Text(f"{draw / 1000:.0f}{most} W")


def clock_of(device: Device) -> Text:
    clock = device.figure("clock_rates", "sm")
    return Text("-") if clock is None else Text(f"{clock} MHz")


def link_of(state: State, device: Device) -> Text:
    rate = state.rates.get(device.uuid)
    return Text("-") if rate is None else Text(f"{short(int(rate))}/s")


def held_back(device: Device) -> Text:
    reasons = device.figure("throttle_reasons")
    return Text("-") if reasons is None else Text(", ".join(reasons))
