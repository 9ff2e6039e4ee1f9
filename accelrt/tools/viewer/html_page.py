"""One HTML file with all that the page needs in it: text, style, script and the recording's columns.

The columns are little-endian arrays, compressed by zlib and written in base64, so that nothing of a snapshot
is ever HTML or script.  The page's policy (Content-Security-Policy) lets it run the script and the style that
are in it, by their hashes, and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import struct
import zlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from accelrt.core import files
from accelrt.tools.viewer.difference import difference_of
from accelrt.tools.viewer.memory_ranges import Range
from accelrt.tools.viewer.snapshot_columns import Column, DeviceRecording, Recording

FORMAT = 1
LEVEL = 3  # of zlib: a tenth larger than at 6, in a third of the time
SCRIPTS = ("data.js", "colours.js", "timeline.js", "map.js", "flame.js", "tables.js", "main.js")
SHARED_COLUMNS = ["address", "size", "stream", "pool", "stack", "tag"]
EVENT_COLUMNS = ["times", "action", "allocation", "reserved", *SHARED_COLUMNS]
ALLOCATION_COLUMNS = ["block", "begin", "freed", "end", *SHARED_COLUMNS]


class ColumnWriter:
    """Arrays one behind the other, each from a multiple of 8 bytes on."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length: int = 0

    def add(self, column: Column) -> list[Any]:
        """Appends an array.  Returns its type, place and length, as the page reads them."""
        little = np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<"), copy=False)
        content = little.tobytes()
        described = [f"{column.dtype.kind}{column.dtype.itemsize}", self.length, len(column)]
        content += bytes(-len(content) % 8)
        self.parts.append(content)
        self.length += len(content)
        return described


def describe_device(recording: DeviceRecording, writer: ColumnWriter) -> dict[str, Any]:
    mapped = list(zip(*recording.ranges, strict=True)) or [()] * len(Range._fields)
    kinds = {"address": np.uint64, "size": np.float64}
    return {
        "device": recording.device,
        "dropped": recording.dropped,
        "count": recording.count,
        "first_us": recording.first_us,
        "streams": [f"{stream:#x}" if stream else "0" for stream in recording.streams],
        "pools": [f"{first}, {second}" for first, second in recording.pools],
        "actions": recording.actions,
        "reserved_before": recording.reserved_before,
        "events": {name: writer.add(getattr(recording, name)) for name in EVENT_COLUMNS},
        "allocations": {name: writer.add(getattr(recording, f"alloc_{name}")) for name in ALLOCATION_COLUMNS},
        "ranges": {
            name: writer.add(np.array(column, kinds.get(name, np.int32)))
            for name, column in zip(Range._fields, mapped, strict=True)
        },
        "annotations": [[begin, end, name] for begin, end, name, _ in recording.annotations],
    }


def pack(recording: Recording, title: str, difference: list[dict[str, Any]] | None = None) -> bytes:
    """The recording as the page reads it: the length of a JSON text, that text, and the columns that it
    names."""
    writer = ColumnWriter()
    ends = np.cumsum([len(stack) for stack in recording.stacks])
    frames = list(zip(*recording.frames, strict=True)) or [()] * 3
    described = {
        "format": FORMAT,
        "title": title,
        "strings": recording.strings,
        "frames": [writer.add(np.array(column, np.int32)) for column in frames],
        "stack_ends": writer.add(ends.astype(np.int32)),
        "stack_frames": writer.add(np.array([f for stack in recording.stacks for f in stack], np.int32)),
        "devices": [describe_device(each, writer) for each in recording.devices],
        "settings": recording.settings,
        "difference": difference,
    }
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 4) % 8)
    return struct.pack("<I", len(header)) + header + b"".join(writer.parts)


def make_page(snapshot: Mapping[str, Any], title: str, since: Mapping[str, Any] | None = None) -> str:
    """The page of a snapshot.

    Arguments:
        snapshot: dict, torch's or accelrt's.
        title: str, what the page is called, such as the file's name.
        since: dict, an earlier snapshot; the page then shows first what is live and was not in that one.
    Raises:
        ValueError: the snapshot is not what torch's format says; the text says where.
    """
    recording, difference = Recording(snapshot), None
    if since is not None:
        Recording(since)  # raises where it is not what torch's format says
        difference = difference_of(since, snapshot)
    packed = zlib.compress(pack(recording, title, difference), LEVEL)
    assets = resources.files("accelrt.tools.viewer") / "assets"
    style = (assets / "viewer.css").read_text("utf-8")
    script = "\n".join((assets / name).read_text("utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    parts = {
        "TITLE": html.escape(title),
        "POLICY": (
            f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": base64.b64encode(packed).decode(),
    }
    pieces = (assets / "viewer.html").read_text("utf-8").split("@@")  # text, a part's name, text, ...
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_page(
    snapshot: Mapping[str, Any],
    path: str | Path,
    title: str | None = None,
    since: Mapping[str, Any] | None = None,
) -> int:
    """Writes the page of a snapshot; arguments and raises as of make_page.  Returns its size in bytes."""
    path = Path(path)
    page = make_page(snapshot, path.stem if title is None else title, since).encode("utf-8", "replace")
    files.write(path, [page])
    return len(page)
