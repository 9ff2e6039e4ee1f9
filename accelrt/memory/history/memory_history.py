"""Events with what they name: stacks, tags, segments and settings; what every file of snapshots holds."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from accelrt.memory.history.packed_events import (
    EVENT,
    EVENT_BYTES,
    NO_EVENTS,
    TORCH_ACTIONS,
    annotations,
    entries,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from accelrt.memory.history.packed_events import Events, Frames

__all__ = ["CHUNK", "VERSION", "History", "Recorder", "collected", "copied", "gc_paused", "tables_of"]

CHUNK = 1 << 16  # events of one copy
VERSION = 1  # of what a snapshot's key "accelrt" holds


class Recorder(Protocol):
    """What is asked of the recorder; accelrt.memory.history.recording has these functions."""

    def copy_events(self, device: int, start: int, count: int) -> tuple[bytes, int, int]: ...
    def dropped_events(self, device: int) -> int: ...
    def frames_of(self, stack: int) -> Frames: ...
    def tag_name(self, tag: int) -> str: ...
    def tag_stats(self, device: int) -> dict[str, Any]: ...


@dataclass
class History:
    """What was recorded.

    Attributes:
        events: an array a device, of dtype EVENT, in order.
        dropped: int a device, events that the ring lost before they were read.
        frames, tags: stacks and tags by the numbers in the events; 0 is none of either.
        segments: as memory_snapshot gives them; [] where the process ended without telling.
        settings: as allocator_settings gives them.
        tag_figures: a dict a device, as tag_stats gives it.
        complete: bool, False for the record of a process that was stopped before it could end it.
    """

    events: list[Events] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    frames: dict[int, Frames] = field(default_factory=lambda: {0: []})
    tags: dict[int, str] = field(default_factory=lambda: {0: ""})
    segments: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    tag_figures: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = True

    def snapshot(self) -> dict[str, Any]:
        """All of it as a dict with torch's keys, and "accelrt" for what is ours alone."""
        with gc_paused():
            every = [entries(events, self.frames, self.tags) for events in self.events]
            traces = [
                [found[index] for index in np.flatnonzero(events["action"] < TORCH_ACTIONS).tolist()]
                for events, found in zip(self.events, every, strict=True)
            ]
        return {
            "segments": self.segments,
            "device_traces": traces,
            "allocator_settings": self.settings,
            "external_annotations": self.annotations(),
            "accelrt": self.own_part(every),
        }

    def annotations(self) -> list[dict[str, Any]]:
        """The annotations of all devices, in the order of their times."""
        found = [
            end for device, events in enumerate(self.events) for end in annotations(events, device, self.tags)
        ]
        return sorted(found, key=lambda end: int(end["time_us"]))

    def own_part(self, every: list[Any]) -> dict[str, Any]:
        """What a snapshot has under "accelrt"."""
        found = {"version": VERSION, "events": every, "dropped": self.dropped, "tags": self.tag_figures}
        return found if self.complete else found | {"complete": False}


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keeps the collector from looking again and again through millions of new objects."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def copied(recorder: Recorder, device: int) -> Events:
    """A device's events from the oldest one that the ring still has."""
    chunks = []
    following = 0
    while True:
        content, _, following = recorder.copy_events(device, following, CHUNK)
        chunks.append(np.frombuffer(content, EVENT))
        if len(content) < CHUNK * EVENT_BYTES:
            return np.concatenate(chunks) if len(chunks) > 1 else chunks[0]


def tables_of(recorder: Recorder, history: History, events: Events) -> None:
    """Adds to a history the stacks and tags that some of its events name."""
    for number in np.unique(events["stack"]).tolist():
        if number not in history.frames:
            history.frames[number] = recorder.frames_of(number)
    for number in np.unique(events["tag"]).tolist():
        if number not in history.tags:
            history.tags[number] = recorder.tag_name(number)


def collected(recorder: Recorder, devices: int) -> History:
    """What this process's recorder holds now; accelrt has been initialised."""
    from accelrt.memory.settings.apply import allocator_settings
    from accelrt.memory.statistics import memory_snapshot

    history = History(settings=allocator_settings())
    for device in range(devices):
        history.segments += memory_snapshot(device)
        events = copied(recorder, device) if devices else NO_EVENTS
        history.events.append(events)
        history.dropped.append(recorder.dropped_events(device))
        history.tag_figures.append(recorder.tag_stats(device))
        tables_of(recorder, history, events)
    return history
