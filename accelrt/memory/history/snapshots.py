"""The state of memory and what led to it, as torch.cuda.memory._snapshot's dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelrt.allocator.readers import pinned_segments, record_snapshot
from accelrt.allocator.settings.apply import allocator_settings
from accelrt.memory.caching import read_states
from accelrt.memory.history import recording
from accelrt.memory.history.memory_history import History, add_names, collected, copied
from accelrt.runtime.lifetimes import cuda_arrays

if TYPE_CHECKING:
    from typing import Any

    from accelrt.annotations import DeviceArgument


def snapshot(device: DeviceArgument | None = None) -> dict[str, Any]:
    """Returns the allocator's state and the recorded events: torch.cuda.memory._snapshot.

    Arguments:
        device: as in memory_stats, but None means all devices.
    Returns:
        dict with torch's keys: "segments" as memory_snapshot gives them, "device_traces" (a list of events
        for each device), "allocator_settings" and "external_annotations"; and "accelrt", a dict of
        "version" 1, and for each device "events" (what torch's viewers do not know: stitching, offers,
        annotations, memory of DriverPools), "dropped" (events that are kept no longer), "tags" (their
        figures) and "cuda_arrays" (a list of dicts: CUDAArrays and MipmappedArrays, which are no part of the
        segments).  Where page-locked memory is or was recorded (record_history) also "host_segments", as
        "segments", and "host_traces", a list of one list of events.
    Raises:
        NotSupportedError: the backend is not accelrt's own pool.
    """
    return history_now(device, "snapshot").snapshot()


def add_host_memory(history: History) -> None:
    """Adds what page-locked memory there is, and its events, where it is or was recorded."""
    if not recording.has_host_history():
        return
    _, mark = recording.event_range(recording.HOST)
    history.host_segments = [torchs_segment(each) for each in pinned_segments()]
    history.host_events, _ = copied(recording, recording.HOST, mark)
    add_names(recording, history, history.host_events)


def torchs_segment(segment: dict[str, Any]) -> dict[str, Any]:
    """A segment of page-locked memory with the keys that segments of devices have."""
    blocks = [{**each, "requested_size": each["size"], "frames": []} for each in segment["blocks"]]
    live, pending = (
        sum(each["size"] for each in blocks if each["state"] == state)
        for state in ("active_allocated", "active_pending_free")
    )
    return {
        **{
            key: segment[key]
            for key in ("address", "total_size", "device", "numa_node", "registered", "shared")
        },
        **{"allocated_size": live, "active_size": live + pending, "requested_size": live + pending},
        **{"stream": 0, "segment_type": "host", "segment_pool_id": (0, segment["pool"])},
        **{"is_expandable": False, "frames": [], "blocks": blocks},
    }


def history_now(device: DeviceArgument | None, call: str) -> History:
    """Returns what this process holds and its recorder has, of a device or of all.

    Arguments:
        call: str, who asks, for the error of another backend.
    """
    states = read_states(device, call)
    history = collected(recording, states, allocator_settings())
    history.cuda_arrays = [cuda_arrays(ordinal) for ordinal in range(len(history.events))]
    add_host_memory(history)
    for ordinal, _, _ in states:
        record_snapshot(ordinal)
    return history
