"""A history as a file of sections, each with its length and checksums; DESIGN.md has the format.

Writers append: what a section needs stands before it, so that a file that ends early can be read up to there.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from accelrt.errors import SnapshotError
from accelrt.memory.history.memory_history import History, numbers_in
from accelrt.memory.history.packed_events import ACTIONS, EVENT, EVENT_BYTES, NO_EVENTS

if TYPE_CHECKING:
    from typing import IO, Any

    from accelrt.memory.history.memory_history import Recorder
    from accelrt.memory.history.packed_events import Frames

__all__ = [
    "MAGIC",
    "RECORDING",
    "SNAPSHOT",
    "Tables",
    "beginning",
    "ending",
    "event_section",
    "outline",
    "read",
    "recorded",
    "written",
]

Parts = list[bytes]  # of a file, one after the other

MAGIC = b"\x89ACRT\r\n\x1a"  # as PNG's: a transfer that changes line ends or strips a bit is seen at once
FORMAT = 1
SNAPSHOT, RECORDING = 1, 2
HEADER = struct.Struct("<8sHHI")  # magic, format, kind, checksum of what is before it
SECTION = struct.Struct("<4sQII")  # name, bytes that follow, their checksum, checksum of what is before it
EVENTS_HEAD = struct.Struct("<IIQ")  # device, 0, the ring's number of the first event
COUNT = struct.Struct("<I")
COUNTS = struct.Struct("<II")
FOREIGN = 1 << 31  # stacks from here on are of segments alone: the recorder's events name none of them
MOST_DEVICES = 1 << 10
MOST_JSON = 1 << 26  # bytes
U4 = np.dtype("<u4")
SEGMENT = np.dtype(
    [
        ("device", "<u2"),
        ("flags", "<u2"),  # LARGE, EXPANDABLE, ASLEEP
        ("stack", "<u4"),
        ("address", "<u8"),
        ("total_size", "<u8"),
        ("allocated_size", "<u8"),
        ("active_size", "<u8"),
        ("requested_size", "<u8"),
        ("stream", "<u8"),
        ("segment_pool_id", "<u8", (2,)),
        ("serial", "<u8"),
        ("blocks", "<u4"),  # how many of the blocks are its own, in order
        ("reserved", "<u4"),  # 0
    ]
)
BLOCK = np.dtype(
    [
        ("address", "<u8"),
        ("size", "<u8"),
        ("requested_size", "<u8"),
        ("stack", "<u4"),
        ("tag", "<u4"),  # the number of its text
        ("state", "<u4"),  # index into STATES
        ("reserved", "<u4"),  # 0
    ]
)
LARGE, EXPANDABLE, ASLEEP = 1, 2, 4
STATES = ("inactive", "active_allocated", "active_pending_free")
SIZES = ("address", "total_size", "allocated_size", "active_size", "requested_size", "stream")


# --- writing -----------------------------------------------------------------------------------------------


def beginning(kind: int) -> bytes:
    """The file's header and its section of facts about the process."""
    head = HEADER.pack(MAGIC, FORMAT, kind, 0)[:-4]
    facts = {"pid": os.getpid(), "command": sys.argv[:64], "python": sys.version.split()[0]}
    return b"".join([head, COUNT.pack(zlib.crc32(head)), *json_section(b"INFO", facts)])


def section(name: bytes, *parts: Any) -> Parts:
    """A section as pieces to write one after the other."""
    checksum = length = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
        length += len(memoryview(part).cast("B"))
    head = SECTION.pack(name, length, checksum, 0)[:-4]
    return [head, COUNT.pack(zlib.crc32(head)), *parts]


def json_section(name: bytes, what: object) -> Parts:
    return section(name, json.dumps(what, default=str).encode())


def event_section(device: int, first: int, content: Any) -> Parts:
    """Packed events of one device; first is the ring's number of the first one."""
    return section(b"EVTS", EVENTS_HEAD.pack(device, 0, first), content)


def numbers(*columns: list[int]) -> bytes:
    return b"".join(np.array(column, U4).tobytes() for column in columns)


class Tables:
    """The strings, stacks and tags that a file has so far; what is new to it becomes sections."""

    def __init__(self) -> None:
        self.strings = {"": 0}
        self.stacks = {0}
        self.tags = {0}
        self.names: set[int] = set()
        self.foreign: dict[tuple[tuple[int, int, int], ...], int] = {(): 0}
        self.listed: dict[int, int] = {}  # id() of a list of frames -> its number
        self.kept: list[Frames] = []  # so that no other list gets such an id()

    def text(self, words: str, fresh: list[str]) -> int:
        number = self.strings.get(words)
        if number is None:
            number = self.strings[words] = len(self.strings)
            fresh.append(words)
        return number

    def frame_numbers(self, frames: Frames, fresh: list[str]) -> tuple[tuple[int, int, int], ...]:
        return tuple(
            (
                self.text(frame["filename"], fresh),
                min(max(frame["line"], 0), FOREIGN),
                self.text(frame["name"], fresh),
            )
            for frame in frames
        )

    def of_events(self, numbers: tuple[set[int], set[int], set[int]], recorder: Names) -> Parts:
        """Sections for those stacks, tags and annotations that the file does not have."""
        fresh: list[str] = []
        known = self.stacks, self.tags, self.names
        stacks, tags, names = (sorted(wanted - had) for wanted, had in zip(numbers, known, strict=True))
        found = {}
        for number in stacks:
            frames = recorder.frames_of(number)
            found[number] = self.frame_numbers(frames, fresh)
            self.listed[id(frames)] = number
            self.kept.append(frames)
        of_tags = [self.text(recorder.tag_name(number), fresh) for number in tags]
        of_names = [self.text(recorder.annotation_name(number), fresh) for number in names]
        self.stacks.update(stacks)
        self.tags.update(tags)
        self.names.update(names)
        parts = string_section(fresh) + stack_section(found)
        return parts + name_section(b"TAGS", tags, of_tags) + name_section(b"NOTE", names, of_names)

    def of_segments(self, segments: list[dict[str, Any]]) -> Parts:
        """Segments, their blocks and what these name."""
        fresh: list[str] = []
        found: dict[int, tuple[tuple[int, int, int], ...]] = {}

        def stack(frames: Frames) -> int:
            number = self.listed.get(id(frames))
            if number is None:
                plain = self.frame_numbers(frames, fresh)
                number = self.foreign.get(plain)
                if number is None:
                    number = self.foreign[plain] = FOREIGN + len(self.foreign)
                    found[number] = plain
                self.listed[id(frames)] = number
                self.kept.append(frames)
            return number

        rows = [
            (
                segment["device"],
                flags_of(segment),
                stack(segment["frames"]),
                *(segment[key] for key in SIZES),
                segment["segment_pool_id"],
                segment.get("serial", 0),
                len(segment["blocks"]),
                0,
            )
            for segment in segments
        ]
        blocks = [
            (
                block["address"],
                block["size"],
                block["requested_size"],
                stack(block["frames"]),
                self.text(block.get("tag", ""), fresh),
                STATES.index(block["state"]),
                0,
            )
            for segment in segments
            for block in segment["blocks"]
        ]
        content = np.array(rows, SEGMENT).tobytes(), np.array(blocks, BLOCK).tobytes()
        head = COUNTS.pack(len(rows), len(blocks))
        return string_section(fresh) + stack_section(found) + section(b"SEGS", head, *content)


def string_section(fresh: list[str]) -> Parts:
    if not fresh:
        return []
    texts = [words.encode("utf-8", "surrogatepass") for words in fresh]
    lengths = numbers([len(text) for text in texts])
    return section(b"STRS", COUNT.pack(len(texts)), lengths, b"".join(texts))


def stack_section(stacks: dict[int, tuple[tuple[int, int, int], ...]]) -> Parts:
    if not stacks:
        return []
    frames = [number for stack in stacks.values() for frame in stack for number in frame]
    lengths = [len(stack) for stack in stacks.values()]
    return section(b"STKS", COUNT.pack(len(stacks)), numbers(list(stacks), lengths, frames))


def name_section(name: bytes, ids: list[int], texts: list[int]) -> Parts:
    return section(name, COUNT.pack(len(ids)), numbers(ids, texts)) if ids else []


def flags_of(segment: dict[str, Any]) -> int:
    return (
        (LARGE if segment["segment_type"] == "large" else 0)
        | (EXPANDABLE if segment["is_expandable"] else 0)
        | (ASLEEP if segment.get("asleep") else 0)
    )


def ending(
    tables: Tables, segments: list[dict[str, Any]], settings: object, dropped: object, figures: object
) -> Parts:
    """The last sections; a file without them is not complete."""
    last = {"allocator_settings": settings, "dropped": dropped, "tags": figures}
    return tables.of_segments(segments) + json_section(b"LAST", last)


class Names(Protocol):
    """What tells the stacks, tags and annotations that events name: a recorder, or KnownNames."""

    def frames_of(self, number: int) -> Frames: ...
    def tag_name(self, number: int) -> str: ...
    def annotation_name(self, number: int) -> str: ...


class KnownNames:
    """Those of a history."""

    def __init__(self, history: History) -> None:
        self.numbers = set(history.frames), set(history.tags), set(history.names)
        self.frames_of = history.frames.__getitem__
        self.tag_name = history.tags.__getitem__
        self.annotation_name = history.names.__getitem__


def written(history: History, kind: int = SNAPSHOT) -> Parts:
    """A history as the content of a file."""
    tables, names = Tables(), KnownNames(history)
    parts = [beginning(kind), *tables.of_events(names.numbers, names)]
    for device, events in enumerate(history.events):
        first = history.dropped[device]
        parts += event_section(device, first, events.tobytes())
    return parts + ending(tables, history.segments, history.settings, history.dropped, history.tag_figures)


def recorded(tables: Tables, recorder: Recorder, device: int, first: int, content: bytes) -> Parts:
    """Sections of events that were just copied from a recorder, after what they name."""
    parts = tables.of_events(numbers_in(np.frombuffer(content, EVENT)), recorder)
    return parts + event_section(device, first, content)


# --- reading -----------------------------------------------------------------------------------------------


class Reader:
    """A file being read; `at` is the byte at which the section at hand begins."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.file = file
        self.name = name
        self.size = os.fstat(file.fileno()).st_size
        self.at = 0
        self.kind = SNAPSHOT
        self.history = History(complete=False)
        self.strings = [""]
        self.chunks: dict[int, list[Any]] = {}
        self.following: Counter[int] = Counter()  # a device's next event, by the ring's numbers
        self.missing: Counter[int] = Counter()

    def fail(self, what: str) -> Any:
        raise SnapshotError(f"{self.name}: at byte {self.at:,}: {what}", self.at)

    def read(self) -> History:
        """The whole file."""
        self.read_header()
        readers = {
            b"INFO": self.read_info,
            b"STRS": self.read_strings,
            b"STKS": self.read_stacks,
            b"TAGS": self.read_tags,
            b"NOTE": self.read_names,
            b"EVTS": self.read_events,
            b"SEGS": self.read_segments,
            b"LAST": self.read_last,
        }
        while (found := self.next_section()) is not None:
            name, content = found
            if self.history.complete:
                self.fail("the file was expected to end after its section LAST")
            if name not in readers:
                self.fail(f"a section {name!r}, where one of {', '.join(map(repr, readers))} was expected")
            readers[name](content)
            self.at += SECTION.size + len(content)
        if not self.history.complete and self.kind == SNAPSHOT:
            self.fail("the section LAST was expected: the file is cut short")
        return self.finished()

    def read_header(self) -> None:
        head = self.file.read(HEADER.size)
        if len(head) < HEADER.size or head[:8] != MAGIC:
            self.fail(f"{MAGIC!r} was expected, as every file of accelrt's begins; found {head[:8]!r}")
        _, version, self.kind, checksum = HEADER.unpack(head)
        if checksum != zlib.crc32(head[:-4]):
            self.fail("the header's checksum does not match: the file is damaged")
        if version != FORMAT or self.kind not in (SNAPSHOT, RECORDING):
            self.fail(
                f"format {version}, kind {self.kind}; this accelrt reads format {FORMAT}, kinds 1 and 2"
            )
        self.at = HEADER.size

    def next_head(self) -> tuple[bytes, int, int] | None:
        """Name, length and checksum; None where the file ends, and where a recording breaks off."""
        left = self.size - self.at
        if left == 0:
            return None
        head = self.file.read(SECTION.size)
        if len(head) < SECTION.size:
            self.check_cut(f"{SECTION.size} bytes of a section's head were expected, {len(head)} are left")
            return None
        name, length, checksum, own = SECTION.unpack(head)
        if own != zlib.crc32(head[:-4]):
            self.fail("the checksum of a section's head does not match: the file is damaged")
        if length > left - SECTION.size:
            self.check_cut(f"a section {name!r} of {length:,} bytes was expected, {left:,} are left")
            return None
        return name, length, checksum

    def next_section(self) -> tuple[bytes, bytes] | None:
        """Name and content, or None likewise."""
        head = self.next_head()
        if head is None:
            return None
        name, length, checksum = head
        content = self.file.read(length)
        if len(content) != length or checksum != zlib.crc32(content):
            self.fail(f"the checksum of the section {name!r} does not match: the file is damaged")
        return name, content

    def check_cut(self, what: str) -> None:
        if self.kind == SNAPSHOT:
            self.fail(f"{what}: the file is cut short")

    # Each of these has a content whose checksum is right: what is wrong in it, a writer wrote.

    def numbers(self, content: bytes, at: int, count: int) -> list[int]:
        if at + 4 * count > len(content):
            self.fail(f"{count:,} numbers were expected in a section of {len(content):,} bytes")
        found: list[int] = np.frombuffer(content, U4, count, at).tolist()
        return found

    def exactly(self, content: bytes, size: int) -> None:
        if len(content) != size:
            self.fail(
                f"a section of {size:,} bytes was expected, by what it declares; it has {len(content):,}"
            )

    def head(self, content: bytes, form: struct.Struct) -> tuple[int, ...]:
        if len(content) < form.size:
            self.fail(f"a section of at least {form.size} bytes was expected; it has {len(content)}")
        return form.unpack_from(content)

    def read_json(self, content: bytes) -> dict[str, Any]:
        found: Any = None
        if len(content) <= MOST_JSON:
            try:
                found = json.loads(content)
            except (ValueError, RecursionError):
                found = None
        if not isinstance(found, dict):
            self.fail("an object in JSON was expected")
        return dict(found)

    def read_info(self, content: bytes) -> None:
        self.read_json(content)

    def read_strings(self, content: bytes) -> None:
        (count,) = self.head(content, COUNT)
        lengths = self.numbers(content, 4, count)
        at = 4 + 4 * count
        self.exactly(content, at + sum(lengths))
        for length in lengths:
            try:
                self.strings.append(content[at : at + length].decode("utf-8", "surrogatepass"))
            except UnicodeDecodeError:
                self.fail("text in UTF-8 was expected")
            at += length

    def string(self, number: int) -> str:
        if number >= len(self.strings):
            self.fail(f"text {number:,} is named, and the file has {len(self.strings):,} so far")
        return self.strings[number]

    def read_stacks(self, content: bytes) -> None:
        (count,) = self.head(content, COUNT)
        ids = self.numbers(content, 4, count)
        lengths = self.numbers(content, 4 + 4 * count, count)
        at = 4 + 8 * count
        self.exactly(content, at + 12 * sum(lengths))
        for number, length in zip(ids, lengths, strict=True):
            plain = iter(self.numbers(content, at, 3 * length))
            self.history.frames[number] = [
                {"filename": self.string(file), "line": line, "name": self.string(name)}
                for file, line, name in zip(plain, plain, plain, strict=True)
            ]
            at += 12 * length

    def read_tags(self, content: bytes) -> None:
        self.history.tags.update(self.texts(content))

    def read_names(self, content: bytes) -> None:
        self.history.names.update(self.texts(content))

    def texts(self, content: bytes) -> dict[int, str]:
        (count,) = self.head(content, COUNT)
        self.exactly(content, 4 + 8 * count)
        ids, texts = self.numbers(content, 4, count), self.numbers(content, 4 + 4 * count, count)
        return dict(zip(ids, map(self.string, texts), strict=True))

    def read_events(self, content: bytes) -> None:
        device, _, first = self.head(content, EVENTS_HEAD)
        size = len(content) - EVENTS_HEAD.size
        self.check_device(device)
        self.exactly(content, EVENTS_HEAD.size + size // EVENT_BYTES * EVENT_BYTES)
        events = np.frombuffer(content, EVENT, size // EVENT_BYTES, EVENTS_HEAD.size)
        if len(events):
            if int(events["action"].max()) >= len(ACTIONS):
                self.fail(
                    f"an event of action {events['action'].max()}, where 0 to {len(ACTIONS) - 1} are known"
                )
            stacks, tags, names = numbers_in(events)
            self.check_known("stack", stacks, self.history.frames)
            self.check_known("tag", tags, self.history.tags)
            self.check_known("annotation", names, self.history.names)
        self.chunks.setdefault(device, []).append(events)
        self.missing[device] += max(first - self.following[device], 0)
        self.following[device] = first + len(events)

    def check_device(self, device: int) -> None:
        if device >= MOST_DEVICES:
            self.fail(f"device {device:,}, where a number below {MOST_DEVICES:,} was expected")

    def check_known(self, what: str, used: set[int], known: Any) -> None:
        missing = used - known.keys()
        if missing:
            self.fail(f"{what} {min(missing):,} is named, and the file has not told it so far")

    def read_segments(self, content: bytes) -> None:
        segments, blocks = self.head(content, COUNTS)
        middle = COUNTS.size + segments * SEGMENT.itemsize
        self.exactly(content, middle + blocks * BLOCK.itemsize)
        rows = np.frombuffer(content, SEGMENT, segments, COUNTS.size)
        parts = np.frombuffer(content, BLOCK, blocks, middle)
        if int(rows["blocks"].sum(dtype=np.uint64)) != blocks:
            self.fail(f"the segments declare {rows['blocks'].sum():,} blocks, and {blocks:,} are there")
        if blocks and int(parts["state"].max()) >= len(STATES):
            self.fail(f"a block in state {parts['state'].max()}, where 0 to {len(STATES) - 1} are known")
        used = set(np.unique(rows["stack"]).tolist()) | set(np.unique(parts["stack"]).tolist())
        self.check_known("stack", used, self.history.frames)
        made = iter([self.block(part) for part in parts.tolist()])
        self.history.segments = [
            self.segment(row, [next(made) for _ in range(row[-2])]) for row in rows.tolist()
        ]

    def block(self, part: tuple[Any, ...]) -> dict[str, Any]:
        address, size, requested, stack, tag, state, _ = part
        return {
            "address": address,
            "size": size,
            "requested_size": requested,
            "state": STATES[state],
            "frames": self.history.frames[stack],
            "tag": self.string(tag),
        }

    def segment(self, row: tuple[Any, ...], blocks: list[dict[str, Any]]) -> dict[str, Any]:
        device, flags, stack, *sizes, pool, serial, _, _ = row
        self.check_device(device)
        found = {
            "device": device,
            **dict(zip(SIZES, sizes, strict=True)),
            "segment_type": "large" if flags & LARGE else "small",
            "segment_pool_id": tuple(map(int, pool)),
            "is_expandable": bool(flags & EXPANDABLE),
            "serial": serial,
            "frames": self.history.frames[stack],
            "blocks": blocks,
        }
        return found | {"asleep": bool(flags & ASLEEP)}

    def read_last(self, content: bytes) -> None:
        found = self.read_json(content)
        settings, dropped, figures = (found.get(key) for key in ("allocator_settings", "dropped", "tags"))
        if not (isinstance(settings, dict) and isinstance(figures, list) and is_counts(dropped)):
            self.fail('"allocator_settings", "dropped" and "tags" were expected in the section LAST')
        self.history.settings, self.history.dropped = settings or {}, dropped or []
        self.history.tag_figures = figures or []
        self.history.complete = True

    def finished(self) -> History:
        history = self.history
        devices = max(len(history.dropped), 1 + max(self.chunks, default=-1))
        history.dropped += [self.missing[device] for device in range(len(history.dropped), devices)]
        history.tag_figures += [{}] * (devices - len(history.tag_figures))
        for device in range(devices):
            chunks = self.chunks.get(device, [NO_EVENTS])
            history.events.append(np.concatenate(chunks) if len(chunks) > 1 else chunks[0])
        return history


@dataclass
class Outline:
    """What a file has, by the heads of its sections alone.

    Attributes:
        events: int.
        missing: int, those that the ring lost before they were written.
        complete: bool, whether the file has its end.
    """

    events: int = 0
    missing: int = 0
    complete: bool = False


def outline(file: IO[bytes], name: str) -> Outline:
    """How many events a file has, without reading them; raises as read() does for what it looks at."""
    reader, found = Reader(file, name), Outline()
    reader.read_header()
    while (head := reader.next_head()) is not None:
        section_name, length, _ = head
        if section_name == b"EVTS":
            device, _, first = reader.head(file.read(EVENTS_HEAD.size), EVENTS_HEAD)
            count = (length - EVENTS_HEAD.size) // EVENT_BYTES
            found.events += count
            found.missing += max(first - reader.following[device], 0)
            reader.following[device] = first + count
        found.complete |= section_name == b"LAST"
        reader.at += SECTION.size + length
        file.seek(reader.at)
    return found


def is_counts(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) <= MOST_DEVICES
        and all(isinstance(count, int) and count >= 0 for count in found)
    )


def read(file: IO[bytes], name: str) -> History:
    """The history that a file holds.

    Arguments:
        file: open at its beginning, a regular file.
        name: str, for errors.
    Raises:
        SnapshotError: it is damaged, cut short, or none of these files; a recording may be cut short, and is
            not complete then.
    """
    return Reader(file, name).read()
