"""The state of memory and what led to it, as torch.cuda.memory._snapshot's dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelrt.allocator.readers import record_snapshot
from accelrt.allocator.settings.apply import allocator_settings
from accelrt.memory.caching import read_states
from accelrt.memory.history import recording
from accelrt.memory.history.memory_history import History, collected

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
        annotations), "dropped" (events that are kept no longer) and "tags" (their figures).
    Raises:
        NotSupportedError: the backend is not accelrt's own pool.
    """
    return history_now(device, "snapshot").snapshot()


def history_now(device: DeviceArgument | None, call: str) -> History:
    """Returns what this process holds and its recorder has, of a device or of all.

    Arguments:
        call: str, who asks, for the error of another backend.
    """
    states = read_states(device, call)
    history = collected(recording, states, allocator_settings())
    for ordinal, _, _ in states:
        record_snapshot(ordinal)
    return history
