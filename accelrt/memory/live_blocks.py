"""What reports and errors say of live memory beside its sizes: its stacks, and what is asleep."""

from __future__ import annotations

import importlib

from accelrt.memory.statistics import memory_stats

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any


__all__ = ["by_stack", "live_blocks", "recorder", "sleeping_bytes"]


class NoRecorder:
    """Until there is a recorder."""

    is_recording = staticmethod(lambda device=None: False)
    tag_stats: Any = staticmethod(lambda device: {})
    record_history = staticmethod(lambda *arguments: None)


def recorder() -> Any:
    """The module that records allocations."""
    try:
        return importlib.import_module("accelrt.memory.history.recording")
    except ModuleNotFoundError:
        return NoRecorder


def sleeping_bytes(ordinal: int) -> int:
    """Bytes of a device's pools that are asleep."""
    held: int = memory_stats(ordinal).get("sleeping_bytes", 0)
    return held


def live_blocks(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The live blocks of a snapshot, each with its segment's stream and pool, the largest first."""
    found = [
        {
            **{key: block.get(key) for key in ("address", "size", "requested_size", "tag")},
            "frames": block.get("frames") or [],
            "stream": segment["stream"],
            "pool": tuple(segment["segment_pool_id"]),
        }
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return sorted(found, key=lambda block: (-block["size"], block["address"]))


def by_stack(segments: list[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], int, int]]:
    """The stacks that live blocks of a snapshot were allocated by, the most bytes first.

    Arguments:
        segments: list of dicts, as memory_snapshot answers.
    Returns:
        list of (frames, bytes, blocks); blocks without a stack are left out.
    """
    found: dict[tuple[tuple[str, int, str], ...], list[Any]] = {}
    keys: dict[int, tuple[tuple[str, int, str], ...]] = {}  # the recorder gives equal stacks one list
    for block in live_blocks(segments):
        frames = block["frames"]
        if not frames:
            continue
        key = keys.get(id(frames))
        if key is None:
            key = keys[id(frames)] = tuple((one["filename"], one["line"], one["name"]) for one in frames)
        entry = found.setdefault(key, [frames, 0, 0])
        entry[1] += block["size"]
        entry[2] += 1
    return sorted((tuple(entry) for entry in found.values()), key=lambda entry: -entry[1])
