"""Traces of recordings and snapshots: accelrt's, and torch's, whose device_traces have the same events."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from accelrt.errors import RecordError
from accelrt.memory.history.memory_history import ACTIONS, Events, History
from accelrt.memory.history.snapshot_file import load_history
from accelrt.tools.traces.address_pairs import PairedEvents
from accelrt.tools.traces.trace import Trace

WANTED = ("alloc", "free_requested", "free_completed", "free")
NUMBERS = [number for number, action in enumerate(ACTIONS) if action in WANTED]


def load(path: Path, device: int | None = None) -> Trace:
    """The trace of one device.

    Arguments:
        device: int; None is the one with the most events.
    Raises:
        SnapshotError: the file is damaged or holds something else.
        RecordError: the device is none of the file's, or there are too many events.
    """
    record = load_history(path)
    if isinstance(record, History):
        events: list[Any] = [each[np.isin(each["action"], NUMBERS)] for each in record.events]
        segments, dropped, complete = record.segments, record.dropped, record.complete
    else:
        traces = record["device_traces"]
        events = [[event for event in trace if event["action"] in WANTED] for trace in traces]
        own = record.get("accelrt", {})
        segments, dropped, complete = record["segments"], own.get("dropped", []), own.get("complete", True)
    counts = [len(each) for each in events]
    counts += [0] * (max((segment["device"] + 1 for segment in segments), default=0) - len(counts))
    chosen = choose(path, counts, device)
    pairs = PairedEvents(str(path))
    steps = {"alloc": pairs.allocate, "free_completed": pairs.complete}
    of_device = events[chosen] if chosen < len(events) else []
    rows = packed_rows(of_device) if isinstance(of_device, np.ndarray) else dict_rows(of_device)
    for action, address, size, stream in rows:
        steps.get(action, pairs.free)(address, size, stream)
    for segment in segments:
        if segment["device"] == chosen:
            add_live(pairs, segment)
    return pairs.trace(*notes_of(counts, dropped, complete, chosen, device is None))


def packed_rows(events: Events) -> Iterable[tuple[str, int, int, int]]:
    return zip(
        [ACTIONS[action] for action in events["action"].tolist()],
        events["address"].tolist(),
        events["size"].tolist(),
        events["stream"].tolist(),
        strict=True,
    )


def dict_rows(events: list[dict[str, Any]]) -> Iterable[tuple[str, int, int, int]]:
    return ((event["action"], event["addr"], event["size"], event["stream"]) for event in events)


def choose(path: Path, counts: list[int], device: int | None) -> int:
    if device is None:
        return max(range(len(counts)), key=counts.__getitem__, default=0)
    if not 0 <= device < len(counts):
        devices = f"0 to {len(counts) - 1}" if counts else "none"
        raise RecordError(f"{path}: device {device} is none of the trace's, which are {devices}")
    return device


def add_live(pairs: PairedEvents, segment: dict[str, Any]) -> None:
    address = segment["address"]
    for block in segment["blocks"]:
        if block["state"] == "active_allocated":
            size = block.get("requested_size", block["size"])
            pairs.there_at_the_end(address, size, segment["stream"])
        address += block["size"]


def notes_of(counts: list[int], dropped: list[int], complete: bool, device: int, guessed: bool) -> list[str]:
    notes = []
    others = [
        f"{count:,} of device {other}" for other, count in enumerate(counts) if count and other != device
    ]
    if guessed and others:
        there = ", ".join(others)
        notes.append(
            f"device {device} is replayed; the trace has events of others too, {there}: see --device"
        )
    if dropped[device : device + 1] > [0]:
        notes.append(f"{dropped[device]:,} events were recorded and are not in the file")
    if not complete:
        notes.append("the recording was broken off: the process was stopped before it could end the file")
    return notes
