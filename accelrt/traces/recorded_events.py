"""Traces of recordings and snapshots: accelrt's, and torch's, whose device_traces have the same events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accelrt.errors import RecordError
from accelrt.memory.history.memory_history import ACTIONS, History
from accelrt.memory.history.snapshot_file import load_history
from accelrt.traces.address_pairs import PairedEvents

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from accelrt.memory.history.memory_history import Events
    from accelrt.traces.trace import Trace

    Row = tuple[str, int, int, int]

__all__ = ["load"]

WANTED = ("alloc", "free_requested", "free_completed", "free")
NUMBERS = [number for number, action in enumerate(ACTIONS) if action in WANTED]


@dataclass
class Recorded:
    """What is used of a file, by device."""

    rows: list[Iterable[Row]]
    counts: list[int]
    dropped: list[int]
    segments: list[dict[str, Any]]
    complete: bool = True

    def __post_init__(self) -> None:
        devices = max((segment["device"] + 1 for segment in self.segments), default=0)
        if devices > len(self.rows):
            missing = devices - len(self.rows)
            self.rows += [()] * missing
            self.counts += [0] * missing


def load(path: Path, device: int | None = None) -> Trace:
    """The trace of one device.

    Arguments:
        device: int; None is the one with the most events.
    Raises:
        SnapshotError: the file is damaged or holds something else.
        RecordError: the device is none of the file's, or there are too many events.
    """
    found = load_history(path)
    recorded = of_history(found) if isinstance(found, History) else of_snapshot(found)
    chosen = choose(path, recorded.counts, device)
    pairs = PairedEvents(str(path))
    steps = {"alloc": pairs.allocate, "free_completed": pairs.complete}
    for action, address, size, stream in recorded.rows[chosen] if recorded.rows else ():
        steps.get(action, pairs.free)(address, size, stream)
    for segment in recorded.segments:
        if segment["device"] == chosen:
            add_live(pairs, segment)
    return pairs.trace(*notes_of(recorded, chosen, device is None))


def of_history(history: History) -> Recorded:
    kept = [events[np.isin(events["action"], NUMBERS)] for events in history.events]
    rows = [packed_rows(events) for events in kept]
    return Recorded(rows, list(map(len, kept)), history.dropped, history.segments, history.complete)


def packed_rows(events: Events) -> Iterable[Row]:
    return zip(
        [ACTIONS[action] for action in events["action"].tolist()],
        events["address"].tolist(),
        events["size"].tolist(),
        events["stream"].tolist(),
        strict=True,
    )


def of_snapshot(snapshot: dict[str, Any]) -> Recorded:
    traces = [[event for event in trace if event["action"] in WANTED] for trace in snapshot["device_traces"]]
    rows: list[Iterable[Row]] = [
        [(event["action"], event["addr"], event["size"], event["stream"]) for event in trace]
        for trace in traces
    ]
    own = snapshot.get("accelrt", {})
    return Recorded(
        rows, list(map(len, traces)), own.get("dropped", []), snapshot["segments"], own.get("complete", True)
    )


def choose(path: Path, counts: list[int], device: int | None) -> int:
    if device is None:
        return max(range(len(counts)), key=counts.__getitem__, default=0)
    if not 0 <= device < len(counts):
        known = f"0 to {len(counts) - 1}" if counts else "none"
        raise RecordError(f"{path}: device {device} is none of the trace's, which are {known}")
    return device


def add_live(pairs: PairedEvents, segment: dict[str, Any]) -> None:
    address = segment["address"]
    for block in segment["blocks"]:
        if block["state"] == "active_allocated":
            size = block.get("requested_size", block["size"])
            pairs.there_at_the_end(address, size, segment["stream"])
        address += block["size"]


def notes_of(recorded: Recorded, device: int, guessed: bool) -> list[str]:
    notes = []
    others = {other: count for other, count in enumerate(recorded.counts) if count and other != device}
    if guessed and others:
        there = ", ".join(f"{count:,} of device {other}" for other, count in others.items())
        notes.append(
            f"device {device} is replayed; the trace has events of others too, {there}: see --device"
        )
    if recorded.dropped[device : device + 1] > [0]:
        notes.append(f"{recorded.dropped[device]:,} events were recorded and are not in the file")
    if not recorded.complete:
        notes.append("the recording was broken off: the process was stopped before it could end the file")
    return notes
