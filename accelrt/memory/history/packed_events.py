"""The recorder's events: 64 packed bytes each, in memory and in files, and as entries of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ACTIONS",
    "EVENT",
    "EVENT_BYTES",
    "NO_EVENTS",
    "OOM",
    "TORCH_ACTIONS",
    "annotation_ends",
    "are_annotations",
    "entries",
]

Events = NDArray[np.void]  # of dtype EVENT
Frames = list[dict[str, Any]]  # filename, line and name of each, the innermost first

# struct Event of allocator/history_types.pxd; little-endian.
EVENT = np.dtype(
    [
        ("time_ns", "<u8"),  # since the epoch
        ("address", "<u8"),  # of an out-of-memory event: the bytes that the device had free
        ("size", "<u8"),  # bytes: as requested, or a segment's or page's
        ("stream", "<u8"),  # the driver's handle
        ("pool", "<u8", (2,)),  # the private pool's id; (0, 0) outside one
        ("stack", "<u4"),
        ("tag", "<u4"),  # of an annotation: the number of its name
        ("thread", "<u4"),  # the operating system's number
        ("action", "<u2"),  # index into ACTIONS
        ("device", "<u2"),
    ]
)
EVENT_BYTES = 64
NO_EVENTS = np.empty(0, EVENT)
ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map"),
    *("segment_unmap", "snapshot", "oom", "stitch", "unstitch", "offer", "claim", "borrow"),
    *("annotation_begin", "annotation_end", "sleep", "wake"),
)
TORCH_ACTIONS = 9  # the first of them, which torch's readers know
OOM = ACTIONS.index("oom")
BEGIN, END = ACTIONS.index("annotation_begin"), ACTIONS.index("annotation_end")


def are_annotations(events: Events) -> NDArray[np.bool_]:
    """Which events are ends of annotations, whose tag numbers a name of another table."""
    found: NDArray[np.bool_] = (events["action"] == BEGIN) | (events["action"] == END)
    return found


def entries(
    events: Events, frames: Mapping[int, Frames], tags: Mapping[int, str], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Events as dicts with torch's keys for a trace, and tag, thread and pool; annotations have a name too.

    Arguments:
        frames, tags, names: stacks, tags and annotations, by the numbers that the events give.
    """
    noted = are_annotations(events)
    stacks = [frames[number] for number in events["stack"].tolist()]
    texts = [tags[number] for number in np.where(noted, 0, events["tag"]).tolist()]
    found = [
        {
            "action": ACTIONS[action],
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time,
            "frames": stack,
            "tag": tag,
            "thread": thread,
            "pool": pool,
            "pool_id": pool,
        }
        for action, address, size, stream, time, stack, tag, thread, pool in zip(
            events["action"].tolist(),
            events["address"].tolist(),
            events["size"].tolist(),
            events["stream"].tolist(),
            (events["time_ns"] // 1000).tolist(),
            stacks,
            texts,
            events["thread"].tolist(),
            pools(events),
            strict=True,
        )
    ]
    for index in np.flatnonzero(events["action"] == OOM).tolist():
        found[index] = {
            ("device_free" if key == "addr" else key): value for key, value in found[index].items()
        }
    for index in np.flatnonzero(noted).tolist():
        found[index]["name"] = names[int(events["tag"][index])]
    return found


def pools(events: Events) -> list[tuple[int, int]]:
    """The pools of events, one tuple for all events of a pool."""
    known: dict[tuple[int, int], tuple[int, int]] = {}
    given = map(tuple, events["pool"].tolist())
    return [known.setdefault(pool, pool) for pool in given]


def annotation_ends(events: Events, device: int, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """The ends of annotations among a device's events, as torch's snapshots tell them."""
    ends = events[are_annotations(events)]
    return [
        {
            "stage": "START" if action == BEGIN else "END",
            "name": names[tag],
            "device": device,
            "time_us": time_ns // 1000,
        }
        for action, tag, time_ns in zip(
            ends["action"].tolist(), ends["tag"].tolist(), ends["time_ns"].tolist(), strict=True
        )
    ]
