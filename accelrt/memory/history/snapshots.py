"""The state of memory and what led to it, as torch.cuda.memory._snapshot's dict."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from accelrt.memory.history import recording
from accelrt.memory.settings.apply import allocator_settings
from accelrt.memory.statistics import read_states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from accelrt.annotations import DeviceArgument

__all__ = ["ACTIONS", "EVENT", "snapshot"]

# struct Event of memory/allocator/history_types.pxd: time in ns, address, size, stream, pool id, stack, tag,
# thread, action, device.
EVENT = struct.Struct("<QQQQQQIIIHH")
# By the number of an event's action; torch knows the first TORCH of them.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "stitch",
    "unstitch",
    "offer",
    "claim",
    "borrow",
    "annotation_begin",
    "annotation_end",
    "sleep",
    "wake",
)
TORCH = 9
OOM = 8
ANNOTATIONS = {14: "START", 15: "END"}


def trace_entries(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each event of copy_events with the number of its action, as an entry of torch's traces."""
    frames_of, tag_name = recording.frames_of, recording.tag_name
    for event in EVENT.iter_unpack(data):
        time_ns, address, size, stream, pool, more, stack, tag, thread, action, _ = event
        entry = {
            "action": ACTIONS[action],
            "device_free" if action == OOM else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time_ns // 1000,
            "frames": frames_of(stack),
            "tag": "" if action in ANNOTATIONS else tag_name(tag),
            "thread": thread,
            "pool": (pool, more),
        }
        if action in ANNOTATIONS:
            entry["name"] = recording.annotation_name(tag)
        yield action, entry


def snapshot(device: DeviceArgument | None = None) -> dict[str, Any]:
    """The allocator's state and the recorded events: torch.cuda.memory._snapshot.

    Arguments:
        device: as in memory_stats, but None means all devices.
    Returns:
        dict with torch's keys: "segments" as memory_snapshot gives them, "device_traces" (a list of events
        for each device), "allocator_settings" and "external_annotations"; and "accelrt", a dict of
        "version" 1, and for each device "events" (what torch's viewers do not know: stitching, offers,
        annotations), "dropped" (events that are kept no longer) and "tags" (their figures).
    Raises:
        NotSupportedError: the backend is not accelrt's own pool.
    """
    states = read_states(device, "snapshot")
    count = max((ordinal + 1 for ordinal, _, _ in states), default=0)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    events: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    dropped: list[int] = [0] * count
    tags: list[dict[str, Any]] = [{} for _ in range(count)]
    held, annotations = [], []
    for ordinal, found, mark in states:
        held += found
        data, first, _ = recording.copy_events(ordinal, 0, mark)
        data, dropped[ordinal] = data[: max(mark - first, 0) * EVENT.size], first
        tags[ordinal] = recording.tag_stats(ordinal)
        for action, entry in trace_entries(data):
            (traces if action < TORCH else events)[ordinal].append(entry)
            if action in ANNOTATIONS:
                about = {"name": entry["name"], "device": ordinal, "time_us": entry["time_us"]}
                annotations.append({"stage": ANNOTATIONS[action], **about})
    return {
        "segments": held,
        "device_traces": traces,
        "allocator_settings": allocator_settings(),
        "external_annotations": annotations,
        "accelrt": {"version": 1, "events": events, "dropped": dropped, "tags": tags},
    }
