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
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from accelrt.errors import SnapshotError
from accelrt.memory.history.memory_history import (
    ACTIONS,
    EVENT,
    EVENT_BYTES,
    FORMAT,
    NO_EVENTS,
    History,
    add_names,
    numbers_in,
)
from accelrt.memory.history.snapshot_checks import Checker, expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    from numpy.typing import NDArray

    from accelrt.memory.history.memory_history import Frames, Recorder

Parts = list[bytes]  # of a file, one after the other

MAGIC = b"\x89ACRT\r\n\x1a"  # as PNG's: a transfer that changes line ends or strips a bit is seen at once
SNAPSHOT, RECORDING = 1, 2
HEADER = struct.Struct("<8sHHI")  # magic, format, kind, checksum of what is before it
SECTION = struct.Struct("<4sQII")  # name, bytes that follow, their checksum, checksum of what is before it
EVENTS_HEAD = struct.Struct("<IIQ")  # device, 0, the ring's number of the first event
COUNT = struct.Struct("<I")
FOREIGN = 1 << 31  # stacks from here on are of segments alone: the recorder's events name none of them
MOST_DEVICES = 1 << 10
MOST_JSON = 1 << 26  # bytes
U4 = np.dtype("<u4")
SIZES = ("address", "total_size", "allocated_size", "active_size", "requested_size", "stream")
SEGMENT = np.dtype(
    [
        ("device", "<u2"),
        ("flags", "<u2"),  # LARGE, EXPANDABLE, ASLEEP, MANAGED
        ("stack", "<u4"),
        *((name, "<u8") for name in SIZES),
        ("segment_pool_id", "<u8", (2,)),
        ("serial", "<u8"),
        ("blocks", "<u4"),  # how many of the blocks are its own, in order
        ("reserved", "<u4"),  # 0
    ]
)
BLOCK = np.dtype(
    [
        *((name, "<u8") for name in ("address", "size", "requested_size")),
        ("stack", "<u4"),
        ("tag", "<u4"),  # the number of its text
        ("state", "<u4"),  # index into STATES
        ("reserved", "<u4"),  # 0
    ]
)
LARGE, EXPANDABLE, ASLEEP, MANAGED = 1, 2, 4, 8
STATES = ("inactive", "active_allocated", "active_pending_free")


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
    """The texts, stacks and tags that a file has so far; what is new to it becomes sections."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {"": 0}
        self.fresh: list[str] = []  # texts that are in no section yet
        self.named: History = History()  # what the file's events name
        self.stacks: dict[int, int] = {}  # id() of a list of frames -> its number

    def text(self, words: str) -> int:
        number = self.texts.get(words)
        if number is None:
            number = self.texts[words] = len(self.texts)
            self.fresh.append(words)
        return number

    def stack(self, frames: Frames) -> int:
        return self.stacks[id(frames)] if frames else 0

    def named_sections(self, stacks: dict[int, Frames], tags: dict[int, str], names: dict[int, str]) -> Parts:
        """Sections for stacks, tags and annotations that the file does not have, after their texts."""
        self.stacks |= {id(frames): number for number, frames in stacks.items()}
        frames: list[int] = []
        for frame in chain.from_iterable(stacks.values()):
            line = min(max(frame["line"], 0), FOREIGN)
            frames += (self.text(frame["filename"]), line, self.text(frame["name"]))
        sections = [
            (b"STKS", list(stacks), [*map(len, stacks.values()), *frames]),
            (b"TAGS", list(tags), list(map(self.text, tags.values()))),
            (b"NOTE", list(names), list(map(self.text, names.values()))),
        ]
        texts = [words.encode("utf-8", "surrogatepass") for words in self.fresh]
        self.fresh.clear()
        parts: Parts = []
        if texts:
            parts = section(b"STRS", numbers([len(texts)], list(map(len, texts))), b"".join(texts))
        for name, ids, content in sections:
            if ids:
                parts += section(name, numbers([len(ids)], ids, content))
        return parts

    def segment_sections(self, segments: list[dict[str, Any]]) -> Parts:
        """Segments, their blocks and what these name."""
        blocks = [block for segment in segments for block in segment["blocks"]]
        lists = {id(entry["frames"]): entry["frames"] for entry in (*segments, *blocks) if entry["frames"]}
        unknown = [frames for key, frames in lists.items() if key not in self.stacks]
        stacks = dict(enumerate(unknown, FOREIGN))
        parts = self.named_sections(stacks, {}, {})
        rows = [
            (
                segment["device"],
                LARGE * (segment["segment_type"] == "large")
                | EXPANDABLE * segment["is_expandable"]
                | ASLEEP * segment.get("asleep", False)
                | MANAGED * segment.get("managed", False),
                self.stack(segment["frames"]),
                *(segment[key] for key in SIZES),
                *(segment["segment_pool_id"], segment.get("serial", 0), len(segment["blocks"]), 0),
            )
            for segment in segments
        ]
        block_rows = [
            (
                *(block["address"], block["size"], block["requested_size"], self.stack(block["frames"])),
                *(self.text(block.get("tag", "")), STATES.index(block["state"]), 0),
            )
            for block in blocks
        ]
        content = np.array(rows, SEGMENT).tobytes(), np.array(block_rows, BLOCK).tobytes()
        parts += self.named_sections({}, {}, {})  # the texts of tags
        return parts + section(b"SEGS", numbers([len(rows), len(blocks)]), *content)


def ending(
    tables: Tables,
    segments: list[dict[str, Any]],
    settings: object,
    dropped: object,
    figures: object,
    cuda_arrays: object,
) -> Parts:
    """The last sections; a file without them is not complete."""
    last = {"allocator_settings": settings, "dropped": dropped, "tags": figures}
    last["cuda_arrays"] = cuda_arrays
    return tables.segment_sections(segments) + json_section(b"LAST", last)


def written(history: History, kind: int = SNAPSHOT) -> Parts:
    """A history as the content of a file."""
    tables = Tables()
    stacks = {number: frames for number, frames in history.frames.items() if number}
    tags = {number: tag for number, tag in history.tags.items() if number}
    parts = [beginning(kind), *tables.named_sections(stacks, tags, history.names)]
    for device, events in enumerate(history.events):
        parts += event_section(device, history.dropped[device], events.tobytes())
    last = history.settings, history.dropped, history.tag_figures, history.cuda_arrays
    return parts + ending(tables, history.segments, *last)


def recorded(tables: Tables, recorder: Recorder, device: int, first: int, content: bytes) -> Parts:
    """Sections of events that were just copied from a recorder, after what they name."""
    fresh = add_names(recorder, tables.named, np.frombuffer(content, EVENT))
    return tables.named_sections(*fresh) + event_section(device, first, content)


# --- reading -----------------------------------------------------------------------------------------------


class Reader:
    """A file being read; `at` is the byte at which the section at hand begins.

    Arguments:
        file: open at its beginning, a regular file.
        name: str, for errors.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.file = file
        self.name = name
        self.size: int = os.fstat(file.fileno()).st_size
        self.at: int = 0
        self.content: bytes = b""  # the section at hand
        self.index: int = 0  # how far it was read
        self.kind: int = SNAPSHOT
        self.history: History = History(complete=False)
        self.strings: list[str] = [""]
        self.chunks: dict[int, list[Any]] = {}
        self.following: Counter[int] = Counter()  # a device's next event, by the ring's numbers
        self.events: Counter[int] = Counter()
        self.missing: Counter[int] = Counter()

    def fail(self, what: str) -> Any:
        raise SnapshotError(f"{self.name}: at byte {self.at:,}: {what}", self.at)

    def read(self) -> History:
        """The history that the file holds.

        Raises:
            SnapshotError: it is damaged, cut short, or none of these files; a recording may be cut short, and
                is not complete then.
        """
        self.read_header()
        readers: dict[bytes, Callable[[], object]] = {
            b"INFO": self.read_json,
            b"STRS": self.read_strings,
            b"STKS": self.read_stacks,
            b"TAGS": lambda: self.read_texts(self.history.tags),
            b"NOTE": lambda: self.read_texts(self.history.names),
            b"EVTS": self.read_events,
            b"SEGS": self.read_segments,
            b"LAST": self.read_last,
        }
        while (head := self.next_head()) is not None:
            name, length, checksum = head
            self.content, self.index = self.file.read(length), 0
            if len(self.content) != length or checksum != zlib.crc32(self.content):
                self.fail(f"the checksum of the section {name!r} does not match: the file is damaged")
            if self.history.complete:
                self.fail("the file was expected to end after its section LAST")
            if name not in readers:
                self.fail(f"a section {name!r}, where one of {', '.join(map(repr, readers))} was expected")
            readers[name]()
            self.check_length(self.index == length)
            self.at += SECTION.size + length
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

    def check_cut(self, what: str) -> None:
        if self.kind == SNAPSHOT:
            self.fail(f"{what}: the file is cut short")

    # Each of these has a content whose checksum is right: what is wrong in it, a writer wrote.

    def take(self, kind: Any, count: int = 1) -> NDArray[Any]:
        """The next items of the section."""
        kind, at = np.dtype(kind), self.index
        self.index += count * kind.itemsize
        self.check_length(self.index <= len(self.content))
        return np.frombuffer(self.content, kind, count, at)

    def numbers(self, count: int) -> list[int]:
        values: list[int] = self.take(U4, count).tolist()
        return values

    def check_length(self, is_right: bool) -> None:
        if not is_right:
            size = len(self.content)
            self.fail(f"a section of {self.index:,} bytes was expected, by what it declares; it has {size:,}")

    def read_json(self) -> dict[str, Any]:
        value: Any = None
        self.index = len(self.content)
        if len(self.content) <= MOST_JSON:
            try:
                value = json.loads(self.content)
            except (ValueError, RecursionError):
                value = None
        if not isinstance(value, dict):
            self.fail("an object in JSON was expected")
        return dict(value)

    def read_strings(self) -> None:
        for length in self.numbers(*self.numbers(1)):
            try:
                self.strings.append(self.take(np.uint8, length).tobytes().decode("utf-8", "surrogatepass"))
            except UnicodeDecodeError:
                self.fail("text in UTF-8 was expected")

    def string(self, number: int) -> str:
        if number >= len(self.strings):
            self.fail(f"text {number:,} is named, and the file has {len(self.strings):,} so far")
        return self.strings[number]

    def read_stacks(self) -> None:
        (count,) = self.numbers(1)
        for number, length in zip(self.numbers(count), self.numbers(count), strict=True):
            plain = iter(self.numbers(3 * length))
            self.history.frames[number] = [
                {"filename": self.string(file), "line": line, "name": self.string(name)}
                for file, line, name in zip(plain, plain, plain, strict=True)
            ]

    def read_texts(self, known: dict[int, str]) -> None:
        (count,) = self.numbers(1)
        ids = self.numbers(count)
        known.update(zip(ids, map(self.string, self.numbers(count)), strict=True))

    def read_events(self) -> None:
        device = self.read_events_head((len(self.content) - EVENTS_HEAD.size) // EVENT_BYTES)
        events = self.take(EVENT, (len(self.content) - self.index) // EVENT_BYTES)
        if len(events):
            self.check_below("an event of action", events["action"], ACTIONS)
            for what, used, limit in zip(
                ("stack", "tag", "annotation"),
                numbers_in(events),
                (self.history.frames, self.history.tags, self.history.names),
                strict=True,
            ):
                self.check_known(what, used, limit)
        self.chunks.setdefault(device, []).append(events)

    def read_events_head(self, count: int) -> int:
        """Counts the events of a section, and those that the ring lost before them; their device."""
        (device, _), (first,) = self.numbers(2), self.take("<u8").tolist()
        self.check_device(device)
        self.events[device] += count
        self.missing[device] += max(first - self.following[device], 0)
        self.following[device] = first + count
        return device

    def check_below(self, what: str, numbers: NDArray[Any], known: tuple[str, ...]) -> None:
        if len(numbers) and int(numbers.max()) >= len(known):
            self.fail(f"{what} {numbers.max()}, where 0 to {len(known) - 1} are known")

    def check_device(self, device: int) -> None:
        if device >= MOST_DEVICES:
            self.fail(f"device {device:,}, where a number below {MOST_DEVICES:,} was expected")

    def check_known(self, what: str, used: set[int], known: Any) -> None:
        missing = used - known.keys()
        if missing:
            self.fail(f"{what} {min(missing):,} is named, and the file has not told it so far")

    def read_segments(self) -> None:
        segments, blocks = self.numbers(2)
        rows, parts = self.take(SEGMENT, segments), self.take(BLOCK, blocks)
        if int(rows["blocks"].sum(dtype=np.uint64)) != blocks:
            self.fail(f"the segments declare {rows['blocks'].sum():,} blocks, and {blocks:,} are there")
        self.check_below("a block in state", parts["state"], STATES)
        self.check_known("stack", {*rows["stack"].tolist(), *parts["stack"].tolist()}, self.history.frames)
        members = iter([self.block(part) for part in parts.tolist()])
        self.history.segments = [
            self.segment(row, [next(members) for _ in range(row[-2])]) for row in rows.tolist()
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
        return {
            "device": device,
            **dict(zip(SIZES, sizes, strict=True)),
            "segment_type": "large" if flags & LARGE else "small",
            "segment_pool_id": tuple(map(int, pool)),
            "is_expandable": bool(flags & EXPANDABLE),
            "serial": serial,
            "frames": self.history.frames[stack],
            "blocks": blocks,
            "asleep": bool(flags & ASLEEP),
            "managed": bool(flags & MANAGED),
        }

    def read_last(self) -> None:
        last: Any = self.read_json()
        settings, dropped, figures = map(last.get, ("allocator_settings", "dropped", "tags"))
        if (
            not (isinstance(settings, dict) and isinstance(figures, list) and isinstance(dropped, list))
            or len(dropped) > MOST_DEVICES
            or not all(isinstance(count, int) and count >= 0 for count in dropped)
        ):
            self.fail('"allocator_settings", "dropped" and "tags" were expected in the section LAST')
        self.history.settings, self.history.dropped, self.history.tag_figures = settings, dropped, figures
        arrays = last.get("cuda_arrays", [])  # files of older versions have none
        expect(list, arrays, f"{self.name}: cuda_arrays")
        Checker().check_arrays(arrays, f"{self.name}: cuda_arrays")
        self.history.cuda_arrays = arrays
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


class Outline(NamedTuple):
    """The contents of a file, by the heads of its sections alone."""

    events: int
    missing: int  # that the ring lost before they were written
    complete: bool  # whether the file has its end


def outline(file: IO[bytes], name: str) -> Outline:
    """Returns how many events a file has, without reading them; raises as Reader.read does for what it looks
    at."""
    reader, is_complete = Reader(file, name), False
    reader.read_header()
    while (head := reader.next_head()) is not None:
        section_name, length, _ = head
        if section_name == b"EVTS":
            reader.content, reader.index = file.read(EVENTS_HEAD.size), 0
            reader.read_events_head((length - EVENTS_HEAD.size) // EVENT_BYTES)
        is_complete |= section_name == b"LAST"
        reader.at += SECTION.size + length
        file.seek(reader.at)
    return Outline(reader.events.total(), reader.missing.total(), is_complete)
