"""The recorder's events: 64 packed bytes each, in memory and in files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ACTIONS",
    "BEGIN",
    "EVENT",
    "EVENT_BYTES",
    "NO_EVENTS",
    "OOM",
    "TORCH_ACTIONS",
    "are_annotations",
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
