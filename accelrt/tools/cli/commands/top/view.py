"""How it looks, on rich: a line of facts, the devices, the processes, and the keys."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from accelrt.devices.versions import kernel_driver_version
from accelrt.tools.cli.commands.top import cells
from accelrt.tools.cli.commands.top.state import SORTS, State
from accelrt.tools.cli.sample import Device, Process
from accelrt.tools.cli.text import short

__all__ = ["Page", "picture"]

WIDE = 120  # columns from which there is room for more
FEWEST = 3  # lines for processes, however many devices there are
AROUND = 5  # lines that are neither a device's nor a process's

# name, columns (0: what is left), side on which the text stands
Columns = tuple[tuple[str, int, str], ...]
OF_DEVICE: Columns = (("#", 3, "right"), ("device", 0, "left"), ("busy", 4, "right"))
MORE_OF_DEVICE: Columns = (
    ("clock", 8, "right"),
    ("fan", 4, "right"),
    ("NVLink", 11, "right"),
    ("held back", 16, "left"),
)
MORE_OF_PROCESS: Columns = (("peak", 9, "right"), ("live of reserved", 16, "right"), ("kind", 8, "left"))
LIVE = 16  # columns of the sparkline of live of reserved


@dataclass(frozen=True)
class Page:
    """What is drawn on.

    Attributes:
        width, height: int, columns and lines; height None for as many lines as there are.
        has_bars: bool, whether it has the characters of sparklines, or ASCII alone.
    """

    width: int
    height: int | None
    has_bars: bool

    @property
    def wide(self) -> bool:
        """Whether there is room for more."""
        return self.width >= WIDE

    def text(self, words: str, style: str = "") -> Text:
        """A line of words as they are, cut where the page ends."""
        if not self.has_bars:
            words = words.encode("ascii", "replace").decode()
        return Text(words, style, no_wrap=True, overflow=self.overflow)  # type: ignore[arg-type]

    @property
    def overflow(self) -> str:
        """How what is too long ends."""
        return "ellipsis" if self.has_bars else "crop"

    def table(self, *columns: tuple[str, int, str]) -> Table:
        """An empty one."""
        made = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
        for name, width, side in columns:
            room: dict[str, Any] = {"width": width} if width else {"ratio": 1, "min_width": 1}
            room |= {"justify": side, "overflow": self.overflow}
            made.add_column(name, no_wrap=True, **room)
        return made

    def add(self, table: Table, *found: Text | str) -> None:
        """Adds a row; its texts are taken as they are."""
        table.add_row(
            *[
                self.text(one) if isinstance(one, str) else self.text(one.plain, str(one.style))
                for one in found
            ]
        )


def picture(state: State, page: Page) -> Group:
    """What is drawn of what is known."""
    devices, processes = state.sample.devices, state.processes()
    shown, rows = len(devices), len(processes)
    if page.height is not None:
        shown = max(1, min(shown, page.height - AROUND - FEWEST))
        rows = max(1, page.height - AROUND - shown)
    first = max(0, min(state.first, len(processes) - rows))
    parts: list[Any] = [title(state, page, shown), device_table(state, page, devices[:shown])]
    if state.sample.problem:
        parts.append(Text(state.sample.problem, "red", overflow="fold"))
    parts += [Text(""), process_table(state, page, processes[first : first + rows])]
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


def device_table(state: State, page: Page, devices: list[Device]) -> Table:
    busy, full = (20, 12) if page.wide else (11, 7)  # columns of the sparklines
    figures: Columns = (("", busy, "left"), ("memory", 17, "right"), ("", full, "left"))
    figures += (("temp", 4, "right"), ("power", 9, "right"))
    table = page.table(*OF_DEVICE, *figures, *(MORE_OF_DEVICE if page.wide else ()))
    for device in devices:
        row: list[Text | str] = [
            cells.place_of(device),
            cells.name_of(device),
            cells.percent(device.figure("utilization")),
            cells.sparkline(state.looks(device, "utilization"), busy, page.has_bars),
            cells.memory_of(device),
            cells.sparkline(state.looks(device, "memory"), full, page.has_bars),
            cells.heat_of(device),
            cells.power_of(device),
        ]
        if page.wide:
            row += [
                cells.clock_of(device),
                cells.percent(device.figure("fan_speed")),
                cells.link_of(state, device),
                cells.held_back(device),
            ]
        page.add(table, *row)
    return table


def process_table(state: State, page: Page, processes: list[Process]) -> Table:
    down = SORTS[state.sort][2] != state.reversed
    arrow = ("▼" if down else "▲") if page.has_bars else ("v" if down else "^")
    names = {key: name for key, (name, _, _) in SORTS.items()} | {"d": "#"}
    names[state.sort] += arrow
    columns: list[tuple[str, int, str]] = [(names["p"], 8, "right"), (names["u"], 8, "left")]
    columns += [(names["d"], 3, "right"), *((names[key], 9, "right") for key in "mrl")]
    columns += [*(MORE_OF_PROCESS if page.wide else ()), (names["c"], 0, "left")]
    table = page.table(*columns)
    places = {device.uuid: cells.place_of(device) for device in state.sample.devices}
    for one in processes:
        row: list[Text | str] = [str(one.pid), one.user, places.get(one.uuid, "-")]
        row += [short(one.memory), short(one.reserved), short(one.live)]
        if page.wide:
            row += [
                short(one.peak_reserved),
                cells.sparkline(state.looks(one, one.pid), LIVE, page.has_bars),
                one.kind,
            ]
        page.add(table, *row, one.command)
    return table


def foot(page: Page, processes: int, first: int, rows: int) -> Text:
    keys = "  ".join(f"{key} {name}" for key, (name, _, _) in SORTS.items())
    text = f"q quit  sort: {keys}"
    if page.wide:
        text += "  j k scroll"
        if processes > rows:
            text += f"  ({first + 1} to {min(first + rows, processes)} of {processes} rows)"
    return page.text(text, "dim")
