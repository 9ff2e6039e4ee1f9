"""Chrome's trace format (a JSON object with traceEvents), which Perfetto and chrome://tracing open.

A device is a process: counters of what is allocated and reserved, an asynchronous slice for each large
allocation, slices for annotations, and instants for the events of segments and for memory that ran out.
Times are microseconds, as the snapshot has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accelrt.core import files
from accelrt.tools.viewer.snapshot_columns import DeviceRecording, Recording

__all__ = ["trace_events", "write_trace"]

EVENTS_THREAD = 1
FIRST_LANE = 10  # thread of the first lane of annotations
FRAMES = 32  # of a stack, in a slice's arguments
QUIET = ("alloc", "free_requested", "free_completed", "annotation_begin", "annotation_end")


def trace_events(recording: Recording, largest: int = 2000) -> Iterator[dict[str, Any]]:
    """The events of the trace, one after the other.

    Arguments:
        largest: int, how many allocations a device shows as slices: those that are largest.
    """
    if largest < 0:
        raise ValueError(f"largest is {largest}; a number of allocations from 0 on is needed")
    for made in recording.devices:
        process = {"pid": made.device}
        yield {**process, "ph": "M", "name": "process_name", "args": {"name": f"device {made.device}"}}
        yield {**process, "ph": "M", "name": "thread_name", "tid": EVENTS_THREAD, "args": {"name": "events"}}
        yield from counters(made, process)
        yield from instants(made, process)
        yield from annotation_slices(made, process)
        yield from allocation_slices(made, process, largest)


def counters(made: DeviceRecording, process: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A figure at each event that changes it."""
    for name, figures in (("allocated", made.live()[1:]), ("reserved", made.reserved)):
        changes = np.flatnonzero(np.diff(figures, prepend=np.nan))
        for index in changes.tolist():
            time = made.first_us + made.times[index].item()
            yield {**process, "ph": "C", "name": name, "ts": time, "args": {"bytes": int(figures[index])}}


def instants(made: DeviceRecording, process: dict[str, Any]) -> Iterator[dict[str, Any]]:
    quiet = [place for place, name in enumerate(made.actions) if name in QUIET]
    for index in np.flatnonzero(~np.isin(made.action, quiet)).tolist():
        name, address = made.actions[made.action[index]], int(made.address[index])
        where = {"free_on_device": address} if name == "oom" else {"address": f"{address:#x}"}
        yield {
            **process,
            "tid": EVENTS_THREAD,
            "ph": "i",
            "s": "p" if name == "oom" else "t",
            "cat": "memory",
            "name": "out of memory" if name == "oom" else name,
            "ts": made.first_us + made.times[index].item(),
            "args": {
                "bytes": int(made.size[index]),
                **where,
                "stream": f"{made.streams[made.stream[index]]:#x}",
                "pool": str(made.pools[made.pool[index]]),
                "stack": stack_lines(made.recording, int(made.stack[index])),
            },
        }


def annotation_slices(made: DeviceRecording, process: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Slices in lanes, in each of which one lies within the other or behind it, as the format wants them."""
    lanes: list[list[float]] = []  # the ends of the slices that are open, outermost first
    for begin, end, name, _ in made.annotations:
        for opened in lanes:
            while opened and opened[-1] <= begin:
                opened.pop()
        fits = (place for place, opened in enumerate(lanes) if not opened or end <= opened[-1])
        lane = next(fits, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(end)
        yield {
            **process,
            "tid": FIRST_LANE + lane,
            "ph": "X",
            "cat": "annotation",
            "name": made.recording.strings[name],
            "ts": made.first_us + begin,
            "dur": end - begin,
        }
    for lane in range(len(lanes)):
        title = "annotations" if lane == 0 else f"annotations {lane + 1}"
        yield {**process, "ph": "M", "name": "thread_name", "tid": FIRST_LANE + lane, "args": {"name": title}}


def allocation_slices(
    made: DeviceRecording, process: dict[str, Any], largest: int
) -> Iterator[dict[str, Any]]:
    recording = made.recording
    last = made.times[-1].item() if made.count else 0.0
    chosen = np.sort(np.argsort(-made.alloc_size, kind="stable")[:largest])
    for each in chosen.tolist():
        begin, end = int(made.alloc_begin[each]), int(made.alloc_end[each])
        stack = stack_lines(recording, int(made.alloc_stack[each]))
        tag = recording.strings[made.alloc_tag[each]]
        common = {
            **process,
            "cat": "allocation",
            "id": f"{made.device}.{each}",
            "name": tag or (stack[0].partition(" (")[0] if stack else "allocation"),
        }
        said = {
            "bytes": int(made.alloc_size[each]),
            "address": f"{int(made.alloc_address[each]):#x}",
            "stream": f"{made.streams[made.alloc_stream[each]]:#x}",
            "pool": str(made.pools[made.alloc_pool[each]]),
            "tag": tag,
            "stack": stack,
        }
        starts = made.times[begin].item() if begin >= 0 else 0.0
        ends = made.times[end].item() if end < made.count else last
        yield {**common, "ph": "b", "ts": made.first_us + starts, "args": said}
        yield {**common, "ph": "e", "ts": made.first_us + ends}


def stack_lines(recording: Recording, stack: int) -> list[str]:
    return [f"{name} ({file}:{line})" for file, line, name in recording.frame_texts(stack)[:FRAMES]]


def write_trace(snapshot: Mapping[str, Any], path: str | Path, largest: int = 2000) -> None:
    """Writes the trace of a snapshot.

    Arguments:
        snapshot: dict, torch's or accelrt's.
        path: str or Path, a file of JSON that is made or replaced.
        largest: int, how many allocations a device shows as slices: those that are largest.
    Raises:
        ValueError: the snapshot is not what torch's format says, or largest is below 0.
        OSError: the file cannot be written.
    """
    files.write(path, lines(trace_events(Recording(snapshot), largest)))


def lines(events: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    yield b'{"displayTimeUnit": "ns", "traceEvents": [\n'
    for number, event in enumerate(events):
        yield (",\n" if number else "").encode() + json.dumps(event, separators=(",", ":")).encode("ascii")
    yield b"\n]}\n"
