"""Events, 64 packed bytes each, with what they name: stacks, tags, segments and settings; what every file of
snapshots holds."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

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
EVENT_BYTES = EVENT.itemsize
FORMAT = 1  # of compact files; another number for other columns of EVENT
NUMBERS = ("thread",)  # columns that dicts of events have as they are, beyond torch's keys
NO_EVENTS = np.empty(0, EVENT)
ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map"),
    *("segment_unmap", "snapshot", "oom", "stitch", "unstitch", "offer", "claim", "borrow"),
    *("annotation_begin", "annotation_end", "sleep", "wake", "array_create", "array_destroy"),
    *("pool_alloc", "pool_free"),
)
TORCH_ACTIONS = 9  # the first of them, which torch's readers know
OOM = ACTIONS.index("oom")
BEGIN, END = ACTIONS.index("annotation_begin"), ACTIONS.index("annotation_end")
CHUNK = 1 << 16  # events of one copy
FEW = 1 << 22  # numbers below this have a counter each
VERSION = 1  # of what a snapshot's key "accelrt" holds


def are_annotations(events: Events) -> NDArray[np.bool_]:
    """Tells which events are ends of annotations, whose tag numbers a name of another table."""
    ends: NDArray[np.bool_] = (events["action"] == BEGIN) | (events["action"] == END)
    return ends


class Recorder(Protocol):
    """The functions that are asked of the recorder; accelrt.memory.history.recording has these functions."""

    def copy_events(self, device: int, start: int, count: int) -> tuple[bytes, int, int]: ...
    def history_begin(self, device: int) -> int: ...
    def frames_of(self, number: int) -> Frames: ...
    def tag_name(self, number: int) -> str: ...
    def annotation_name(self, number: int) -> str: ...
    def tag_stats(self, device: int) -> dict[str, Any]: ...


@dataclass
class History:
    """The record of what happened.

    Attributes:
        events: an array a device, of dtype EVENT, in order.
        dropped: int a device, events that were recorded and are not among these.
        frames, tags, names: stacks, tags and annotations by the numbers in the events; 0 is no stack, no tag.
        segments: as memory_snapshot gives them; [] where the process ended without telling.
        settings: as allocator_settings gives them.
        tag_figures: a dict a device, as tag_stats gives it.
        complete: bool, False for the record of a process that was stopped before it could end it.
        cuda_arrays: a list a device, as lifetimes.cuda_arrays gives it.
        host_events, host_segments: the same of page-locked memory; None and [] where it was not recorded.
    """

    events: list[Events] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    frames: dict[int, Frames] = field(default_factory=lambda: {0: []})
    tags: dict[int, str] = field(default_factory=lambda: {0: ""})
    names: dict[int, str] = field(default_factory=dict)
    segments: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    tag_figures: list[dict[str, Any]] = field(default_factory=list)
    cuda_arrays: list[list[dict[str, Any]]] = field(default_factory=list)
    complete: bool = True
    host_events: Events | None = None
    host_segments: list[dict[str, Any]] = field(default_factory=list)

    def snapshot(self) -> dict[str, Any]:
        """All of it as a dict with torch's keys, and "accelrt" for what is ours alone."""
        with gc_paused():
            return {
                "segments": self.segments,
                "device_traces": [self.entries(of_torch(events)) for events in self.events],
                "allocator_settings": self.settings,
                "external_annotations": self.annotations(),
                "accelrt": self.own_part()
                | {"events": [self.entries(of_accelrt(events)) for events in self.events]},
                **self.host_part(),
            }

    def host_part(self) -> dict[str, Any]:
        """The keys of a snapshot that tell of page-locked memory; none where that was not recorded."""
        if self.host_events is None:
            return {}
        return {"host_segments": self.host_segments, "host_traces": [self.entries(self.host_events)]}

    def entries(self, events: Events) -> list[dict[str, Any]]:
        """Events as dicts with torch's keys, and with tag, thread and pool; annotations have a name too."""
        noted = are_annotations(events)
        pools: dict[tuple[int, int], tuple[int, int]] = {}  # one tuple for all events of a pool
        entries = [
            {
                "action": ACTIONS[action],
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time,
                "frames": frames,
                "tag": tag,
                "pool": pool,
                "pool_id": pool,
            }
            for action, address, size, stream, time, frames, tag, pool in zip(
                *(events[name].tolist() for name in ("action", "address", "size", "stream")),
                (events["time_ns"] // 1000).tolist(),
                [self.frames[number] for number in events["stack"].tolist()],
                [self.tags[number] for number in np.where(noted, 0, events["tag"]).tolist()],
                [pools.setdefault(pool, pool) for pool in map(tuple, events["pool"].tolist())],
                strict=True,
            )
        ]
        for name in NUMBERS:
            for entry, number in zip(entries, events[name].tolist(), strict=True):
                entry[name] = number
        for index in np.flatnonzero(events["action"] == OOM).tolist():
            entries[index] = {
                ("device_free" if key == "addr" else key): value for key, value in entries[index].items()
            }
        for index in np.flatnonzero(noted).tolist():
            entries[index]["name"] = self.names[int(events["tag"][index])]
        return entries

    def annotations(self) -> list[dict[str, Any]]:
        """The ends of annotations as torch's snapshots tell them, in the order of their times."""
        ends = [
            {
                "stage": "START" if action == BEGIN else "END",
                "name": self.names[tag],
                "device": device,
                "time_us": time_ns // 1000,
            }
            for device, events in enumerate(self.events)
            for action, tag, time_ns in events[are_annotations(events)][["action", "tag", "time_ns"]].tolist()
        ]
        return sorted(ends, key=itemgetter("time_us"))

    def own_part(self) -> dict[str, Any]:
        """Returns what a snapshot has under "accelrt", but for the events that torch does not know."""
        part = {"version": VERSION, "dropped": self.dropped, "tags": self.tag_figures}
        part["cuda_arrays"] = self.cuda_arrays
        return part if self.complete else part | {"complete": False}


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keeps the collector from looking again and again through millions of new objects."""
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()


def of_torch(events: Events) -> Events:
    """The events whose actions torch's readers know."""
    return events[events["action"] < TORCH_ACTIONS]


def of_accelrt(events: Events) -> Events:
    """The others."""
    return events[events["action"] >= TORCH_ACTIONS]


def copy_chunks(
    recorder: Recorder, device: int, start: int, mark: int | None, size: int
) -> Iterator[tuple[bytes, int]]:
    """Packed events from a number on, or up to another, in chunks; and the number of each chunk's first."""
    while True:
        content, first, start = recorder.copy_events(device, start, size)
        if mark is not None:
            content = content[: max(mark - first, 0) * EVENT_BYTES]
        yield content, first
        if len(content) < size * EVENT_BYTES:
            return


def copied(recorder: Recorder, device: int, mark: int) -> tuple[Events, int]:
    """A device's events before a number, and how many older ones the ring has no more."""
    chunks: list[Events] = []
    oldest = following = 0
    for content, first in copy_chunks(recorder, device, 0, mark, CHUNK):
        if first != following:  # overwritten meanwhile, or never there: what is kept begins here
            chunks, oldest = [], first
        chunks.append(np.frombuffer(content, EVENT))
        following = first + len(chunks[-1])
    return np.concatenate(chunks), max(min(oldest, mark) - recorder.history_begin(device), 0)


def add_names(
    recorder: Recorder, history: History, events: Events
) -> tuple[dict[int, Frames], dict[int, str], dict[int, str]]:
    """Adds to a history the stacks, tags and annotations that some events name; those that it lacked."""
    stacks, tags, names = numbers_in(events)
    frames = {number: recorder.frames_of(number) for number in sorted(stacks - history.frames.keys())}
    of_tags = {number: recorder.tag_name(number) for number in sorted(tags - history.tags.keys())}
    of_names = {number: recorder.annotation_name(number) for number in sorted(names - history.names.keys())}
    history.frames |= frames
    history.tags |= of_tags
    history.names |= of_names
    return frames, of_tags, of_names


def numbers_in(events: Events) -> tuple[set[int], set[int], set[int]]:
    """The numbers of stacks, tags and annotations that events name."""
    noted = are_annotations(events)
    tags = events["tag"]
    return distinct(events["stack"]), distinct(tags[~noted]), distinct(tags[noted])


def distinct(numbers: NDArray[np.uint32]) -> set[int]:
    """The different ones of many numbers, most of which are small: counted, which is faster than sorting."""
    if not len(numbers):
        return set()
    few = int(numbers.max()) < FEW
    return set((np.flatnonzero(np.bincount(numbers)) if few else np.unique(numbers)).tolist())


def collected(
    recorder: Recorder, states: list[tuple[int, list[dict[str, Any]], int]], settings: dict[str, Any]
) -> History:
    """Returns what a process's recorder holds now.

    Arguments:
        states: of each device its ordinal, its segments, and the number of the first event after these were
            read (statistics.read_states).
        settings: as allocator_settings gives them.
    """
    devices = max((device + 1 for device, _, _ in states), default=0)
    history = History([NO_EVENTS] * devices, [0] * devices, settings=settings)
    history.tag_figures = [{} for _ in range(devices)]
    for device, segments, mark in states:
        history.segments += segments
        history.events[device], history.dropped[device] = copied(recorder, device, mark)
        history.tag_figures[device] = recorder.tag_stats(device)
        add_names(recorder, history, history.events[device])
    return history
