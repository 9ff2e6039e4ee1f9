"""Draws it, with rich: a line of facts, the devices, the processes, and the keys."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from accelrt.devices.versions import kernel_driver_version
from accelrt.tools.cli.commands.top.state import SORTS, State
from accelrt.tools.cli.sample import Device, Process
from accelrt.tools.cli.text import short

WIDE = 120  # columns from which there is room for more
FEWEST = 3  # lines for processes, however many devices there are
AROUND = 5  # lines that are neither a device's nor a process's
LIVE = 16  # columns of the sparkline of live of reserved
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "._-=+*%#"
HOT, BUSY = 85, 90  # degrees Celsius, percent

T = TypeVar("T")
Cell = str | tuple[str, str]  # a text, and its style
Column = tuple[
    str, int, str, Callable[[T], Cell]
]  # name, width (0: what is left), side of the text, its cells


@dataclass(frozen=True)
class Page:
    """The page that is drawn on.

    Attributes:
        width, height: int, columns and lines; height None for as many lines as there are.
        has_bars: bool, whether it has the characters of sparklines, or ASCII alone.
    """

    width: int
    height: int | None
    has_bars: bool

    @property
    def wide(self) -> bool:
        """Tells whether there is room for more."""
        return self.width >= WIDE

    def text(self, words: str, style: str = "") -> Text:
        """A line of words as they are, cut where the page ends."""
        if not self.has_bars:
            words = words.encode("ascii", "replace").decode()
        return Text(words, style, no_wrap=True, overflow=self.overflow)  # type: ignore[arg-type]

    @property
    def overflow(self) -> str:
        """Returns the end of what is too long."""
        return "ellipsis" if self.has_bars else "crop"

    def table(self, columns: Sequence[Column[T]], rows: Iterable[T]) -> Table:
        """A row a thing; the texts are taken as they are."""
        grid = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
        for name, width, side, _ in columns:
            room: dict[str, Any] = {"width": width} if width else {"ratio": 1, "min_width": 1}
            room |= {"justify": side, "overflow": self.overflow}
            grid.add_column(name, no_wrap=True, **room)
        for row in rows:
            cells = [cell(row) for *_, cell in columns]
            grid.add_row(*(self.text(one) if isinstance(one, str) else self.text(*one) for one in cells))
        return grid

    def sparkline(self, looks: list[float | None], width: int) -> str:
        """Percentages as bars, the newest at the right; a blank where there was no reading."""
        bars = BARS if self.has_bars else PLAIN_BARS
        last = looks[-width:]
        drawn = [" " if one is None else bars[min(int(one * len(bars) / 100), len(bars) - 1)] for one in last]
        return "".join(drawn).rjust(width)


def picture(state: State, page: Page) -> Group:
    """Returns what is drawn of what is known."""
    devices, processes = state.sample.devices, state.processes()
    shown, rows = len(devices), len(processes)
    if page.height is not None:
        shown = max(1, min(shown, page.height - AROUND - FEWEST))
        rows = max(1, page.height - AROUND - shown)
    first = max(0, min(state.first, len(processes) - rows))
    parts: list[Any] = [title(state, page, shown), page.table(device_columns(state, page), devices[:shown])]
    if state.sample.problem:
        parts.append(Text(state.sample.problem, "red", overflow="fold"))
    parts += [Text(""), page.table(process_columns(state, page), processes[first : first + rows])]
    if page.height is not None:
        parts.append(foot(page, len(processes), first, rows))
    return Group(*parts)


def title(state: State, page: Page, shown: int) -> Text:
    devices, processes = state.sample.devices, state.sample.processes
    clock = time.strftime("%H:%M:%S", time.localtime(state.sample.time))
    facts = [f"accelrt top  {clock}"]
    if version := kernel_driver_version():
        facts.append(f"driver {version}")
    facts.append(counted(len(devices), "device") + (f" ({shown} shown)" if shown < len(devices) else ""))
    facts.append(counted(len({one.pid for one in processes}), "process", "es"))
    return page.text("  ".join(facts), "bold")


def counted(number: int, word: str, ending: str = "s") -> str:
    return f"{number} {word}{'' if number == 1 else ending}"


def device_columns(state: State, page: Page) -> list[Column[Device]]:
    busy, full = (20, 12) if page.wide else (11, 7)  # columns of the sparklines
    columns: list[Column[Device]] = [
        ("#", 3, "right", place_of),
        ("device", 0, "left", name_of),
        ("busy", 4, "right", lambda one: percent(one.figure("utilization"))),
        ("", busy, "left", lambda one: page.sparkline(state.looks(one, "utilization"), busy)),
        ("memory", 17, "right", memory_of),
        ("", full, "left", lambda one: page.sparkline(state.looks(one, "memory"), full)),
        ("temp", 4, "right", heat_of),
        ("power", 9, "right", lambda one: one.power),
    ]
    if page.wide:
        columns += [
            ("clock", 8, "right", lambda one: one.clock),
            ("fan", 4, "right", lambda one: percent(one.figure("fan_speed"))),
            ("NVLink", 11, "right", lambda one: link_of(state, one)),
            ("held back", 16, "left", held_back),
        ]
    return columns


def place_of(device: Device) -> Cell:
    return "-" if device.ordinal is None else str(device.ordinal)


def name_of(device: Device) -> Cell:
    name = ("  " if device.mig_parent else "") + device.name.removeprefix("NVIDIA ").removeprefix("accelrt ")
    return (f"{name}: {device.problem}", "red") if device.problem else name


def percent(value: int | None) -> Cell:
    return "-" if value is None else (f"{value}%", "bold" if value >= BUSY else "")


def memory_of(device: Device) -> Cell:
    memory = device.figure("device_memory_info")
    if memory is None:
        return "-"
    used, whole = short(memory.used), short(memory.total)
    if used.rpartition(" ")[2] == whole.rpartition(" ")[2]:
        used = used.partition(" ")[0]
    return f"{used}/{whole}".replace(" ", "" if len(used) + len(whole) > 16 else " ")


def heat_of(device: Device) -> Cell:
    heat = device.figure("temperature")
    return "-" if heat is None else (f"{heat}C", "red" if heat >= HOT else "")


def link_of(state: State, device: Device) -> Cell:
    rate = state.rates.get(device.uuid)
    return "-" if rate is None else f"{short(int(rate))}/s"


def held_back(device: Device) -> Cell:
    reasons = device.figure("throttle_reasons")
    return "-" if reasons is None else ", ".join(reasons)


def process_columns(state: State, page: Page) -> list[Column[Process]]:
    down = SORTS[state.sort][2] != state.reversed
    arrow = ("▼" if down else "▲") if page.has_bars else ("v" if down else "^")
    names = {key: name for key, (name, _, _) in SORTS.items()} | {"d": "#"}
    names[state.sort] += arrow
    names_of = {device.uuid: place_of(device) for device in state.sample.devices}
    columns: list[Column[Process]] = [
        (names["p"], 8, "right", lambda one: str(one.pid)),
        (names["u"], 8, "left", lambda one: one.user),
        (names["d"], 3, "right", lambda one: names_of.get(one.uuid, "-")),
        (names["m"], 9, "right", lambda one: short(one.memory)),
        (names["r"], 9, "right", lambda one: short(one.reserved)),
        (names["l"], 9, "right", lambda one: short(one.live)),
    ]
    if page.wide:
        columns += [
            ("peak", 9, "right", lambda one: short(one.peak_reserved)),
            ("live of reserved", LIVE, "right", lambda one: page.sparkline(state.looks(one, one.pid), LIVE)),
            ("kind", 8, "left", lambda one: one.kind),
        ]
    return [*columns, (names["c"], 0, "left", lambda one: one.command)]


def foot(page: Page, processes: int, first: int, rows: int) -> Text:
    keys = "  ".join(f"{key} {name}" for key, (name, _, _) in SORTS.items())
    text = f"q quit  sort: {keys}"
    if page.wide:
        text += "  j k scroll"
        if processes > rows:
            text += f"  ({first + 1} to {min(first + rows, processes)} of {processes} rows)"
    return page.text(text, "dim")
