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
    for log in recording.devices:
        yield event(log, "M", "process_name", args={"name": log.title})
        yield event(log, "M", "thread_name", tid=EVENTS_THREAD, args={"name": "events"})
        yield from counters(log)
        yield from instants(log)
        yield from annotation_slices(log)
        yield from allocation_slices(log, largest)


def event(
    log: DeviceRecording, phase: str, name: str, time: float | None = None, **more: Any
) -> dict[str, Any]:
    """An event of the format; time is in microseconds after the device's first event."""
    at = {} if time is None else {"ts": log.first_us + time}
    return {"pid": log.device, "ph": phase, "name": name, **at, **more}


def described(log: DeviceRecording, size: float, stream: int, pool: int, stack: int) -> dict[str, Any]:
    return {
        "bytes": int(size),
        "stream": f"{log.streams[stream]:#x}",
        "pool": str(log.pools[pool]),
        "stack": [
            f"{name} ({file}:{line})" for file, line, name in log.recording.frame_texts(stack)[:FRAMES]
        ],
    }


def counters(log: DeviceRecording) -> Iterator[dict[str, Any]]:
    """A figure at each event that changes it."""
    for name, figures in (("allocated", log.live()[1:]), ("reserved", log.reserved)):
        for index in np.flatnonzero(np.diff(figures, prepend=np.nan)).tolist():
            yield event(log, "C", name, log.times[index].item(), args={"bytes": int(figures[index])})


def instants(log: DeviceRecording) -> Iterator[dict[str, Any]]:
    quiet = log.events_of(*QUIET)
    for index in np.delete(np.arange(log.count), quiet).tolist():
        name, address = log.actions[log.action[index]], int(log.address[index])
        details = described(log, *(each[index] for each in (log.size, log.stream, log.pool, log.stack)))
        scope = "t"
        if name == "oom":
            name, scope = "out of memory", "p"
            details["free_on_device"] = address
        else:
            details["address"] = f"{address:#x}"
        at = log.times[index].item()
        yield event(log, "i", name, at, tid=EVENTS_THREAD, s=scope, cat="memory", args=details)


def annotation_slices(log: DeviceRecording) -> Iterator[dict[str, Any]]:
    """Puts slices in lanes, where each lies within another or behind it, as the format wants them."""
    lanes: list[list[float]] = []  # the ends of the slices that are open, outermost first
    for begin, end, name, _ in log.annotations:
        for opened in lanes:
            while opened and opened[-1] <= begin:
                opened.pop()
        fits = (lane for lane, opened in enumerate(lanes) if not opened or end <= opened[-1])
        lane = next(fits, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(end)
        text, thread = log.recording.strings[name], FIRST_LANE + lane
        yield event(log, "X", text, begin, tid=thread, cat="annotation", dur=end - begin)
    for lane in range(len(lanes)):
        title = "annotations" if lane == 0 else f"annotations {lane + 1}"
        yield event(log, "M", "thread_name", tid=FIRST_LANE + lane, args={"name": title})


def allocation_slices(log: DeviceRecording, largest: int) -> Iterator[dict[str, Any]]:
    times = np.append(log.times, log.times[-1:] if log.count else 0.0)  # and the time of what does not end
    columns = log.alloc_size, log.alloc_stream, log.alloc_pool, log.alloc_stack
    for each in np.sort(np.argsort(-log.alloc_size, kind="stable")[:largest]).tolist():
        details = described(log, *(column[each] for column in columns))
        tag = log.recording.strings[log.alloc_tag[each]]
        stack = details["stack"]
        common = {"cat": "allocation", "id": f"{log.device}.{each}"}
        name = tag or (stack[0].partition(" (")[0] if stack else "allocation")
        details |= {"address": f"{int(log.alloc_address[each]):#x}", "tag": tag}
        begin = int(log.alloc_begin[each])
        yield event(log, "b", name, times[begin].item() if begin >= 0 else 0.0, **common, args=details)
        yield event(log, "e", name, times[log.alloc_end[each]].item(), **common)


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
