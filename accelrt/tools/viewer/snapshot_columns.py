"""A snapshot as columns: events, the lifetimes of allocations, the ranges that were mapped, stacks and names.

Everything that draws reads these instead of the snapshot's dicts.  Keys that torch's snapshots lack may be
missing,
and so may the traces: then the segments alone say what is live.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from reprlib import Repr
from typing import Any

import numpy as np

from accelrt.tools.viewer.memory_ranges import (
    EXPANDABLE,
    MAPS,
    PLAIN,
    UNMAPS,
    Range,
    RangeChange,
    find_ranges,
    mark_stitched,
)

__all__ = ["DeviceRecording", "Recording"]

FIRST_ACTIONS = ("alloc", "free_requested", "free_completed")  # of allocations; the others as they come
MOVES = ("segment_map", "segment_unmap", "stitch", "unstitch")  # of pages
POOL_KEYS = ("pool", "segment_pool_id", "pool_id")
SIZE_LIMIT = 1 << 63
ACTION_LIMIT = 256
MOST_FRAMES = 4096  # of a stack, the innermost
SHOWN = 120  # characters of a value in an error
LONGEST = 4096  # characters of a setting
ABSENT: Any = object()
SHORT, LONG = Repr(), Repr()
SHORT.maxlevel, LONG.maxlevel = 2, 3
LONG.maxdict = LONG.maxlist = LONG.maxtuple = 64
LONG.maxstring = LONG.maxother = LONGEST
Column = Any  # an array of one dimension


class Index:
    """Values, each once, and the place of each."""

    def __init__(self, *first: Any):
        self.values: list[Any] = []
        self.places: dict[Any, int] = {}
        for value in first:
            self.place(value)

    def place(self, value: Any) -> int:
        found = self.places.get(value)
        if found is None:
            found = self.places[value] = len(self.values)
            self.values.append(value)
        return found


def brief(value: Any) -> str:
    """What a value is, in a few words, however large what it refers to is."""
    return SHORT.repr(value)[:SHOWN]


def plain(value: Any) -> str:
    """A value as text, of a bounded length."""
    return (value if type(value) is str else LONG.repr(value))[:LONGEST]


def number(value: Any, what: str) -> int:
    """An integer from 0 on, below 2**64.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{what} is {brief(value)}; an integer from 0 to 2**64 - 1 is needed")
    return value


def size_of(value: Any, what: str) -> int:
    if number(value, what) >= SIZE_LIMIT:
        raise ValueError(f"{what} is {value}; a number of bytes below 2**63 is needed")
    return int(value)


def listed(value: Any, what: str) -> Any:
    """A list, tuple or other sized iterable as it is; None as an empty one."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection):
        raise ValueError(f"{what} is {brief(value)}; a list is needed")
    return value


def described(value: Any, what: str) -> Mapping[str, Any]:
    """A dict as it is; None as an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is {brief(value)}; a dict is needed")
    return value


def check_integers(values: list[Any], what: str, key: str) -> None:
    """Raises ValueError for the first value that is no integer in range."""
    if values and (set(map(type, values)) != {int} or min(values) < 0 or max(values) >= SIZE_LIMIT):
        for place, value in enumerate(values):
            (size_of if key == "size" else number)(value, f"{what} {place}: {key}")


class Recording:
    """What a snapshot says.

    Arguments:
        snapshot: dict, torch's or accelrt's.
    Attributes:
        strings: list of str; frames: list of (file, line, name), file and name being places in strings.
        stacks: list of tuples of places in frames, innermost first; the first is empty.
        devices: list of DeviceRecording, one for each device with segments or events.
        settings: dict of str, the allocator's.
    Raises:
        ValueError: something in it is not what torch's format has there; the text says where.
    """

    def __init__(self, snapshot: Mapping[str, Any]):
        if "segments" not in snapshot and "device_traces" not in snapshot:
            raise ValueError("this is no snapshot: it has neither 'segments' nor 'device_traces'")
        self.string_index = Index("")
        self.frame_index = Index()
        self.stack_index = Index(())
        self.known_lists: dict[int, tuple[Any, int]] = {}
        self.seen: dict[
            int, Any
        ] = {}  # lists that may stand in one place alone; kept, as those of known_lists
        more = described(snapshot.get("accelrt"), "accelrt")
        traces = self.of_devices(snapshot, "device_traces")
        events = self.of_devices(more, "events")
        by_device: dict[int, list[Mapping[str, Any]]] = {}
        for place, each in enumerate(listed(snapshot.get("segments"), "segments")):
            segment = described(each, f"segments[{place}]")
            device = number(segment.get("device", 0), f"segments[{place}]: device")
            by_device.setdefault(device, []).append(segment)
        used = set(by_device) | {n for n, each in enumerate(traces) if len(each)}
        used |= {n for n, each in enumerate(events) if len(each)}
        settings = described(snapshot.get("allocator_settings"), "allocator_settings")
        self.settings = {plain(key): plain(value) for key, value in settings.items()}
        marks = list(listed(snapshot.get("external_annotations"), "external_annotations"))
        dropped = list(listed(more.get("dropped"), "dropped"))
        self.devices = []
        for device in sorted(used) or [0]:
            made = DeviceRecording(self, device)
            made.dropped = number(dropped[device], "dropped") if device < len(dropped) else 0
            own = traces[device] if device < len(traces) else ()
            others = events[device] if device < len(events) else ()
            made.read(merged(own, others), by_device.get(device, []))
            made.read_annotations(marks)
            self.devices.append(made)
        self.known_lists.clear()
        self.seen.clear()

    def of_devices(self, source: Mapping[str, Any], key: str) -> list[Any]:
        return [self.once(each, f"{key}[{place}]") for place, each in enumerate(listed(source.get(key), key))]

    def once(self, value: Any, what: str) -> Any:
        """A list as it is.  One that stands in several places would be shown at many times its size."""
        found = listed(value, what)
        if len(found) and id(found) in self.seen:
            raise ValueError(f"{what} is a list that stands in another place too; a snapshot has each once")
        self.seen[id(found)] = found
        return found

    @property
    def strings(self) -> list[str]:
        return self.string_index.values

    @property
    def frames(self) -> list[tuple[int, int, int]]:
        return self.frame_index.values

    @property
    def stacks(self) -> list[tuple[int, ...]]:
        return self.stack_index.values

    def string(self, text: Any) -> int:
        return self.string_index.place(text if type(text) is str else plain(text))

    def stack(self, frames: Any) -> int:
        """The place of a stack; a list that was seen before is known by its identity."""
        if not frames:
            return 0
        known = self.known_lists.get(id(frames))
        if known is not None:
            return known[1]
        places = []
        for frame in islice(listed(frames, "frames"), MOST_FRAMES):
            if not isinstance(frame, Mapping):
                raise ValueError(f"a frame is {brief(frame)}; a dict of filename, line and name is needed")
            line = frame.get("line", 0)
            key = (
                self.string(frame.get("filename", "")),
                line if type(line) is int and abs(line) < 1 << 31 else 0,
                self.string(frame.get("name", "")),
            )
            places.append(self.frame_index.place(key))
        found = self.stack_index.place(tuple(places))
        self.known_lists[id(frames)] = (frames, found)  # kept, so that its identity stays its own
        return found

    def frame_texts(self, stack: int) -> list[tuple[str, int, str]]:
        """(filename, line, name) of a stack's frames, innermost first."""
        return [
            (self.strings[file], line, self.strings[name])
            for file, line, name in map(self.frames.__getitem__, self.stacks[stack])
        ]


def merged(own: Collection[Any], others: Collection[Any]) -> Iterator[Any]:
    """Torch's events and those that only accelrt has, in order of time."""
    return merge(own, others, key=time_of) if len(others) else iter(own)


def time_of(entry: Any) -> int:
    return number(described(entry, "an event").get("time_us", 0), "an event's time_us")


class DeviceRecording:
    """What a snapshot says of one device.  Indices of events count from 0; -1 is before the first.

    Attributes:
        device: int, the ordinal; dropped: int, events that the ring lost before the first.
        streams, pools, actions: lists of int, of (int, int) and of str, which the columns index.  Tags are
            strings of the recording.
        first_us: int, the time of the first event; times: microseconds since then, never falling.
        action, address, size, stream, pool, stack, tag, thread: columns of the events; allocation: which
            allocation an event is of, or -1.
        alloc_address, alloc_size (requested), alloc_block (its block's size, 0 where that is not known),
            alloc_begin, alloc_freed (its free was asked for), alloc_end (its memory was free), alloc_stream,
            alloc_pool, alloc_stack, alloc_tag: columns of the allocations, in order of their begin; "count"
            where freed or end did not come.
        ranges: list of Range.
        reserved: bytes reserved after each event; reserved_before: int, before the first.
        annotations: list of (begin us, end us, string, thread), since first_us.
    """

    def __init__(self, recording: Recording, device: int):
        self.recording = recording
        self.device = device
        self.dropped = 0
        self.stream_index = Index()
        self.pool_index = Index((0, 0))
        self.action_index = Index(*FIRST_ACTIONS)
        self.first_us = 0
        self.annotations: list[tuple[float, float, int, int]] = []

    @property
    def streams(self) -> list[int]:
        return self.stream_index.values

    @property
    def pools(self) -> list[tuple[int, int]]:
        return self.pool_index.values

    @property
    def actions(self) -> list[str]:
        return self.action_index.values

    @property
    def count(self) -> int:
        return len(self.action)

    def read(self, entries: Iterable[Any], segments: list[Mapping[str, Any]]) -> None:
        """Fills the columns."""
        self.read_segments(segments)
        self.read_events(entries)
        lifetimes = self.find_lifetimes()
        self.sort_lifetimes(lifetimes)
        self.find_mapped()
        del self.blocks, self.final, self.entry_pools

    # --- what the snapshot holds ---

    def read_segments(self, segments: list[Mapping[str, Any]]) -> None:
        recording = self.recording
        self.final: list[Range] = []
        self.blocks: dict[int, tuple[int, ...]] = {}  # address -> size, requested, pending, stream, ...
        for place, segment in enumerate(segments):
            what = f"device {self.device}: segment {place}"
            address = number(segment.get("address"), f"{what}: address")
            stream = self.stream_index.place(number(segment.get("stream", 0), f"{what}: stream"))
            pool = self.pool_of(segment, what) or 0
            kind = EXPANDABLE if segment.get("is_expandable") else PLAIN
            total = size_of(segment.get("total_size"), f"{what}: total_size")
            stack = recording.stack(segment.get("frames"))
            self.final.append(Range(address, total, -1, 0, stream, pool, stack, kind))
            at = address
            for each in recording.once(segment.get("blocks"), f"{what}: blocks"):
                block = described(each, f"{what}: a block")
                at = number(block.get("address", at), f"{what}: a block's address")
                size = size_of(block.get("size"), f"{what}: a block's size")
                state = block.get("state")
                if state != "inactive":
                    requested = size_of(block.get("requested_size", size), f"{what}: requested_size")
                    pending = int(state == "active_pending_free")
                    tag = recording.string(block.get("tag") or "")
                    stack = recording.stack(block.get("frames"))
                    self.blocks[at] = (size, requested, pending, stream, pool, stack, tag)
                at += size
        self.final.sort()

    def pool_of(self, entry: Mapping[str, Any], what: str) -> int | None:
        for key in POOL_KEYS:
            found = entry.get(key)
            if found is not None:
                try:
                    first, second = found
                except (TypeError, ValueError):
                    raise ValueError(f"{what}: {key} is {brief(found)}; two integers are needed") from None
                return self.pool_index.place((number(first, f"{what}: {key}"), number(second, key)))
        return None

    def read_events(self, entries: Iterable[Any]) -> None:
        recording, what = self.recording, f"device {self.device}: event"
        known = recording.known_lists
        names: list[Any] = []
        addresses: list[Any] = []
        sizes: list[Any] = []
        streams: list[Any] = []
        times: list[Any] = []
        threads: list[Any] = []
        stacks, tags, pools = [], [], []
        pool_places: dict[Any, int | None] = {}
        index, entry = -1, None
        try:
            for index, entry in enumerate(entries):
                name, get = entry["action"], entry.get
                names.append(name)
                addresses.append(entry["device_free"] if name == "oom" else get("addr", 0))
                sizes.append(entry["size"])
                streams.append(get("stream", 0))
                times.append(get("time_us", 0))
                threads.append(get("thread", 0))
                frames = get("frames")
                seen = known.get(id(frames)) if frames else None
                stacks.append(seen[1] if seen else recording.stack(frames))
                tags.append(recording.string(get("tag") or get("name") or get("user_metadata") or ""))
                pool = get("pool")
                # Of two integers: the hash of tuples in tuples may take any time.
                is_pair = type(pool) is tuple and len(pool) == 2 and type(pool[0]) is type(pool[1]) is int
                place = pool_places.get(pool, ABSENT) if is_pair else ABSENT
                if place is ABSENT:
                    place = self.pool_of(entry, f"{what} {index}")
                    if is_pair:
                        pool_places[pool] = place
                pools.append(place)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{what} {index} is {brief(entry)}; a dict with action, addr, size, stream and time_us is "
                f"needed ({type(error).__name__}: {error})"
            ) from None
        columns = {"addr": addresses, "size": sizes, "stream": streams, "time_us": times, "thread": threads}
        for key, column in columns.items():
            check_integers(column, what, key)
        self.first_us = times[0] if times else 0
        self.times = np.maximum.accumulate(np.array(times, np.float64)) - self.first_us
        actions = [self.action_index.place(plain(name)) for name in names]
        if len(self.actions) > ACTION_LIMIT:
            raise ValueError(f"{what}s have {len(self.actions)} actions; at most {ACTION_LIMIT} can be shown")
        self.action = np.array(actions, np.uint8)
        self.address = np.array(addresses, np.uint64)
        self.size = np.array(sizes, np.float64)
        self.stream = np.array([self.stream_index.place(stream) for stream in streams], np.int32)
        self.stack = np.array(stacks, np.int32)
        self.tag = np.array(tags, np.int32)
        self.thread = np.array(threads, np.float64)
        self.entry_pools = pools

    # --- what follows from it ---

    def pool_at(self, address: int) -> int:
        """The pool of the segment that holds an address at the end, where the event does not say it."""
        place = bisect_right(self.final, address, key=lambda each: each.address) - 1
        if place >= 0 and address < self.final[place].address + self.final[place].size:
            return self.final[place].pool
        return 0

    def find_lifetimes(self) -> list[list[int]]:
        """[address, size, block, begin, freed, end, stream, pool, stack, tag] of each allocation."""
        alloc, requested, completed = range(len(FIRST_ACTIONS))
        pools = [
            self.pool_at(a) if p is None else p
            for a, p in zip(self.address.tolist(), self.entry_pools, strict=True)
        ]
        self.pool = np.array(pools, np.int32)
        found: list[list[int]] = []
        open_at: dict[int, int] = {}
        of_event = []
        never = self.count
        rows = zip(
            self.action.tolist(),
            self.address.tolist(),
            self.size.tolist(),
            self.stream.tolist(),
            pools,
            self.stack.tolist(),
            self.tag.tolist(),
            strict=True,
        )
        for index, (action, address, size, stream, pool, stack, tag) in enumerate(rows):
            if action > completed:
                of_event.append(-1)
                continue
            place = open_at.get(address)
            if action == alloc:
                if place is not None:  # its free was not recorded
                    found[place][4] = min(found[place][4], index)
                    found[place][5] = index
                place = open_at[address] = len(found)
                found.append([address, size, 0, index, never, never, stream, pool, stack, tag])
            else:
                if place is None:  # allocated before the first event
                    place = open_at[address] = len(found)
                    found.append([address, size, 0, -1, never, never, stream, pool, 0, tag])
                if action == requested:
                    found[place][4] = index
                else:
                    found[place][4] = min(found[place][4], index)
                    found[place][5] = index
                    del open_at[address]
            of_event.append(place)
        self.allocation = np.array(of_event, np.int32)
        for address, (size, asked, pending, stream, pool, stack, tag) in self.blocks.items():
            place = open_at.get(address)
            if place is not None:
                found[place][2] = size
                found[place][8] = found[place][8] or stack
            else:  # allocated before the first event and never freed
                freed = -1 if pending else never
                found.append([address, asked or size, size, -1, freed, never, stream, pool, stack, tag])
        return found

    def sort_lifetimes(self, found: list[list[int]]) -> None:
        columns = list(zip(*found, strict=True)) or [()] * 10
        begin = np.array(columns[3], np.int32)
        order = np.argsort(begin, kind="stable")
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        of_one = self.allocation >= 0
        self.allocation[of_one] = places[self.allocation[of_one]]
        self.alloc_address = np.array(columns[0], np.uint64)[order]
        self.alloc_size = np.array(columns[1], np.float64)[order]
        self.alloc_block = np.array(columns[2], np.float64)[order]
        self.alloc_begin = begin[order]
        (
            self.alloc_freed,
            self.alloc_end,
            self.alloc_stream,
            self.alloc_pool,
            self.alloc_stack,
            self.alloc_tag,
        ) = (np.array(columns[column], np.int32)[order] for column in range(4, 10))

    def find_mapped(self) -> None:
        names = self.actions
        changes = []
        moved = np.zeros(self.count)
        for index in self.events_of(*MAPS, *UNMAPS):
            name, size = names[self.action[index]], int(self.size[index])
            maps = name in MAPS
            where = (int(self.address[index]), size, int(self.stream[index]), int(self.pool[index]))
            kind = MAPS[name] if maps else UNMAPS[name]
            changes.append(RangeChange(index, maps, *where, int(self.stack[index]), kind))
            moved[index] = size if maps else -size
        found = find_ranges([each._replace(end=self.count) for each in self.final], changes)
        stitched = {
            int(self.address[index]): int(self.size[index]) for index in self.events_of("stitch", "unstitch")
        }
        self.ranges = mark_stitched(found, stitched)
        asleep, awake = self.events_of("sleep"), self.events_of("wake")
        moved[asleep] = -self.size[asleep]
        moved[awake] = self.size[awake]
        total = np.cumsum(moved)
        still_asleep = max(
            0.0, self.size[asleep].sum() - self.size[awake].sum()
        )  # of segments that are listed
        at_end = sum(each.size for each in self.final) - still_asleep
        least = -min(0.0, total.min()) if self.count else 0.0
        self.reserved_before = max(at_end - (total[-1] if self.count else 0.0), least)
        self.reserved = self.reserved_before + total
        self.level_moves()

    def events_of(self, *names: str) -> list[int]:
        """The indices of the events with one of these actions."""
        wanted = [place for place, name in enumerate(self.actions) if name in names]
        found: list[int] = np.flatnonzero(np.isin(self.action, wanted)).tolist()
        return found

    def level_moves(self) -> None:
        """While pages move from one range to another they are reserved though they are mapped nowhere."""
        moves = np.zeros(self.count + 2, bool)
        moves[1:-1][self.events_of(*MOVES)] = True
        firsts = np.flatnonzero(moves[1:] & ~moves[:-1])
        lasts = np.flatnonzero(moves[:-1] & ~moves[1:])
        for first, last in zip(
            firsts.tolist(), lasts.tolist(), strict=True
        ):  # of runs of moves; last is behind it
            before = self.reserved[first - 1] if first else self.reserved_before
            least = min(before, self.reserved[last - 1])
            np.maximum(self.reserved[first:last], least, out=self.reserved[first:last])

    def live(self) -> Column:
        """Bytes requested by what is live after each event, led by those before the first: count + 1
        figures."""
        moved = np.zeros(self.count + 2)
        np.add.at(moved, self.alloc_begin + 1, self.alloc_size)
        np.add.at(moved, self.alloc_end + 1, -self.alloc_size)
        return np.cumsum(moved)[: self.count + 1]

    def live_at(self, index: int) -> Column:
        """The places of the allocations that are live after an event."""
        return np.flatnonzero((self.alloc_begin <= index) & (self.alloc_end > index))

    def read_annotations(self, marks: list[Any]) -> None:
        """Pairs their begins and ends; what lacks one lasts from the first or to the last event."""
        recording = self.recording
        last = float(self.times[-1]) if self.count else 0.0
        edges = []
        for place, mark in enumerate(marks):
            try:
                if int(mark.get("device", self.device)) == self.device:
                    time = number(int(mark["time_us"]), "time_us") - self.first_us
                    edges.append((mark["stage"] == "START", float(time), recording.string(mark["name"]), 0))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ValueError(
                    f"external_annotations[{place}] is {brief(mark)}; a dict with stage, name, device and "
                    f"time_us is needed ({type(error).__name__}: {error})"
                ) from None
        if not edges:
            kinds = {self.action_index.place(name): name for name in ("annotation_begin", "annotation_end")}
            for index in self.events_of(*kinds.values()):
                begins = kinds[int(self.action[index])] == "annotation_begin"
                edges.append(
                    (begins, float(self.times[index]), int(self.tag[index]), int(self.thread[index]))
                )
        begun: dict[tuple[int, int], list[float]] = {}
        for begins, when, name, thread in edges:
            if begins:
                begun.setdefault((name, thread), []).append(when)
            else:
                opened = begun.get((name, thread))
                self.annotations.append((opened.pop() if opened else 0.0, when, name, thread))
        for (name, thread), opened in begun.items():
            self.annotations += [(when, max(when, last), name, thread) for when in opened]
        self.annotations.sort(key=lambda each: (each[0], -each[1]))
