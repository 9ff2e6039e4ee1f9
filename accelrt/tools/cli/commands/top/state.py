"""The knowledge of top between two looks: the sorting, the place in the list, and what was before."""

from collections import deque
from collections.abc import Callable
from typing import Any

from accelrt.tools.cli.commands.top.keys import ENDED, ESCAPE
from accelrt.tools.cli.sample import Device, Process, Sample

LOOKS = 120  # how many a sparkline can show
QUIT = ("q", "Q", ESCAPE, ENDED, "\x03")

# key -> its name, what it sorts by, and whether the greatest comes first
SORTS: dict[str, tuple[str, Callable[[Process, dict[str, int]], Any], bool]] = {
    "m": ("memory", lambda one, order: one.memory, True),
    "r": ("reserved", lambda one, order: one.reserved, True),
    "l": ("live", lambda one, order: one.live, True),
    "p": ("pid", lambda one, order: one.pid, False),
    "d": ("device", lambda one, order: order.get(one.uuid), False),
    "u": ("user", lambda one, order: one.user, False),
    "c": ("command", lambda one, order: one.command, False),
}


class State:
    """Arguments:
    sort: str, a key of SORTS.
    """

    def __init__(self, sort: str = "m") -> None:
        self.sort: str = sort
        self.reversed: bool = False
        self.first: int = 0  # of the processes shown
        self.sample: Sample = Sample(0.0, [], [])
        self.history: dict[tuple[str, str | int], deque[float | None]] = {}
        self.links: dict[str, tuple[float, int]] = {}  # uuid -> time, bytes over NVLink since the beginning
        self.rates: dict[str, float] = {}  # uuid -> bytes a second

    def remember(self, sample: Sample) -> None:
        """Takes a look in."""
        self.sample = sample
        for device in sample.devices:
            self.note(device, "utilization", device.figure("utilization"))
            memory = device.figure("device_memory_info")
            self.note(device, "memory", 100 * memory.used / memory.total if memory and memory.total else None)
            self.note_links(device)
        for process in sample.processes:
            reserved = process.reserved
            self.note(process, process.pid, 100 * (process.live or 0) / reserved if reserved else None)
        here: set[tuple[str, str | int]] = {(one.uuid, one.pid) for one in sample.processes}
        here |= {(one.uuid, name) for one in sample.devices for name in ("utilization", "memory")}
        for uuid in self.history.keys() - here:
            del self.history[uuid]

    def note(self, whose: Device | Process, name: str | int, value: float | None) -> None:
        self.history.setdefault((whose.uuid, name), deque(maxlen=LOOKS)).append(value)

    def note_links(self, device: Device) -> None:
        traffic = device.figure("nvlink_throughput")
        if traffic is None:
            return
        now, total = self.sample.time, traffic.sent + traffic.received
        before = self.links.get(device.uuid)
        if before and now > before[0] and total >= before[1]:
            self.rates[device.uuid] = (total - before[1]) / (now - before[0])
        self.links[device.uuid] = now, total

    def looks(self, whose: Device | Process, name: str | int) -> list[float | None]:
        """Percentages, the oldest first: a device's "utilization" and "memory", and what is live of what a
        process's pool holds, by its pid.
        """
        return list(self.history.get((whose.uuid, name), ()))

    def press(self, key: str) -> bool:
        """Does what a key says.  Returns False where it says to quit."""
        if key in QUIT:
            return False
        if key == self.sort:
            self.reversed = not self.reversed
        elif key in SORTS:
            self.sort, self.reversed, self.first = key, False, 0
        elif key in "jk":
            self.first += 1 if key == "j" else -1
        self.first = max(0, min(self.first, len(self.sample.processes) - 1))
        return True

    def processes(self) -> list[Process]:
        """All, sorted; those that do not have what it goes by come last."""
        order = {device.uuid: place for place, device in enumerate(self.sample.devices)}
        _, value, greatest = SORTS[self.sort]
        rows = sorted(self.sample.processes, key=lambda one: (one.pid, order.get(one.uuid, -1)))
        sortable = [one for one in rows if value(one, order) is not None]
        sortable.sort(key=lambda one: value(one, order), reverse=greatest != self.reversed)
        return sortable + [one for one in rows if value(one, order) is None]
