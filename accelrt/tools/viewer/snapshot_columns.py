"""A snapshot as columns: events, the lifetimes of allocations, the ranges that were mapped, stacks and names.

Everything that draws reads these instead of the snapshot's dicts.  Keys that torch's snapshots lack may be
missing, and so may the traces: then the segments alone say what is live.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import merge
from itertools import zip_longest
from reprlib import Repr
from typing import Any, NamedTuple

import numpy as np

from accelrt.memory.history.memory_history import VERSION
from accelrt.memory.history.snapshot_checks import OWN, check_snapshot
from accelrt.tools.viewer.memory_ranges import (
    CHANGES,
    EXPANDABLE,
    PLAIN,
    START,
    Range,
    find_ranges,
    mark_stitched,
)

# Of allocations, with what each does to one: it begins, its free is asked for, it ends.  Others as they come.
FIRST_ACTIONS = ("alloc", "free_requested", "free_completed", "pool_alloc", "pool_free")
BEGINS, FREED, ENDS = range(3)
STEPS = np.array([BEGINS, FREED, ENDS, BEGINS, ENDS])
MOVES = ("segment_map", "segment_unmap", "stitch", "unstitch")  # of pages
RESERVES = dict.fromkeys(("segment_alloc", "segment_map", "wake"), 1)  # or gives back
RESERVES |= dict.fromkeys(("segment_free", "segment_unmap", "sleep"), -1)
POOL_KEYS = ("pool", "segment_pool_id", "pool_id")
ADDRESS_BITS, SIZE_BITS = 64, 63
ACTION_LIMIT = 256
MOST_FRAMES = 4096  # of a stack, the innermost
SHOWN = 120  # characters of a value in an error
LONGEST = 4096  # characters of a text
SHORT, LONG = Repr(), Repr()
SHORT.maxlevel, LONG.maxlevel = 2, 3
LONG.maxdict = LONG.maxlist = LONG.maxtuple = 64
LONG.maxstring = LONG.maxother = LONGEST
Column = Any  # an array of one dimension


class Places(dict[Any, int]):
    """The place of each value, in the order in which they are asked for."""

    def __missing__(self, value: Any) -> int:
        index = self[value] = len(self)
        return index

    def column(self, values: Iterable[Any]) -> Column:
        return np.array([self[value] for value in values], np.int32)


def plain(value: Any) -> str:
    """A value as text, of a bounded length."""
    return (value if type(value) is str else LONG.repr(value))[:LONGEST]


def bounded(values: list[int], bits: int, what: str, key: str) -> list[int]:
    """Integers as they are; ValueError says which one has too many bits."""
    if values and max(values) >= 1 << bits:
        index = next(index for index, value in enumerate(values) if value >= 1 << bits)
        raise ValueError(
            f"{what} {index}: {key} is {brief(values[index])}; a number below 2**{bits} is needed"
        )
    return values


HOST = -1  # in place of an ordinal: page-locked memory


def brief(value: Any) -> str:
    """Returns what a value is, in a few words, however large what it refers to is."""
    return SHORT.repr(value)[:SHOWN]


class Recording:
    """The contents of a snapshot.

    Arguments:
        snapshot: dict, torch's or accelrt's.
    Attributes:
        strings: list of str; frames: list of (file, line, name), file and name being places in strings.
        stacks: list of tuples of places in frames, innermost first; the first is empty.
        devices: list of DeviceRecording, one for each device with segments or events, and behind them one of
            page-locked memory, where that was recorded.
        settings: dict of str, the allocator's.
    Raises:
        ValueError: something in it is not what torch's format has there; the text says where.
    """

    def __init__(self, snapshot: Mapping[str, Any]):
        if "segments" not in snapshot and "device_traces" not in snapshot:
            raise ValueError("this is no snapshot: it has neither 'segments' nor 'device_traces'")
        own = snapshot.get(OWN, {})
        if type(own) is dict:
            own = {"version": VERSION, "events": [], "dropped": [], "tags": [], **own}
        snapshot = {"segments": [], "device_traces": [], **snapshot, OWN: own}
        check_snapshot(snapshot, "the snapshot")
        self.string_places: Places = Places({"": 0})
        self.frame_places: Places = Places()
        self.stack_places: Places = Places({(): 0})
        self.known_stacks: dict[int, int] = {}  # by id() of a list of the snapshot
        self.settings: dict[str, str] = {
            plain(key): plain(value) for key, value in snapshot.get("allocator_settings", {}).items()
        }
        segments = defaultdict(list)
        for segment in snapshot["segments"]:
            segments[segment["device"]].append(segment)
        traces: list[Any] = [*zip_longest(snapshot["device_traces"], own["events"], fillvalue=[])]
        used = segments.keys() | {device for device, lists in enumerate(traces) if any(lists)}
        dropped = dict(enumerate(own["dropped"]))
        self.devices: list[DeviceRecording] = []
        for device in sorted(used) or [0]:
            lists = traces[device] if device < len(traces) else ()
            self.devices.append(DeviceRecording(self, device, lists, segments[device]))
            self.devices[-1].dropped = dropped.get(device, 0)
            self.devices[-1].read_annotations(snapshot.get("external_annotations", []))
        host = snapshot.get("host_traces", []), snapshot.get("host_segments", [])
        if any(host[0]) or host[1]:
            self.devices.append(DeviceRecording(self, HOST, *host))
        self.strings: list[str] = list(self.string_places)
        self.frames: list[tuple[int, int, int]] = list(self.frame_places)
        self.stacks: list[tuple[int, ...]] = list(self.stack_places)

    def string(self, text: Any) -> int:
        return self.string_places[text if type(text) is str else plain(text)]

    def stack(self, frames: Any) -> int:
        """The place of a stack; a list that was seen before is known by its identity."""
        if not frames:
            return 0
        index = self.known_stacks.get(id(frames))
        if index is None:
            frame_indices = []
            for frame in frames[:MOST_FRAMES]:
                line = frame["line"] if frame["line"] < 1 << 31 else 0
                key = self.string(frame["filename"]), line, self.string(frame["name"])
                frame_indices.append(self.frame_places[key])
            index = self.known_stacks[id(frames)] = self.stack_places[tuple(frame_indices)]
        return index

    def frame_texts(self, stack: int) -> list[tuple[str, int, str]]:
        """(filename, line, name) of a stack's frames, innermost first."""
        return [
            (self.strings[file], line, self.strings[name])
            for file, line, name in map(self.frames.__getitem__, self.stacks[stack])
        ]


class Block(NamedTuple):
    """A block that is live at the end."""

    address: int
    size: int  # bytes as requested
    whole: int
    is_pending: bool
    stream: int
    pool: int
    stack: int
    tag: int


class DeviceRecording:
    """The contents of a snapshot of one device.  Indices of events count from 0; -1 is before the first.

    Arguments:
        traces: lists of its events, torch's and those that only accelrt has, each in order of time.
        segments: list of dicts, its segments.
    Attributes:
        device: int, the ordinal, or HOST; dropped: int, events that the ring lost before the first.
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

    def __init__(self, recording: Recording, device: int, traces: Iterable[list[Any]], segments: list[Any]):
        self.recording = recording
        self.device = device
        self.dropped = 0
        self.stream_places: Places = Places()
        self.pool_places: Places = Places({(0, 0): 0})
        self.annotations: list[tuple[float, float, int, int]] = []
        self.final: list[Range] = []
        blocks = self.read_segments(segments)
        self.read_events(list(merge(*filter(None, traces), key=lambda entry: entry.get("time_us", 0))))
        self.find_lifetimes(blocks)
        self.find_mapped()

    @property
    def count(self) -> int:
        return len(self.action)

    @property
    def title(self) -> str:
        """The name that a reader is shown: of the device, or page-locked memory."""
        return "page-locked memory" if self.device == HOST else f"device {self.device}"

    # --- what the snapshot holds ---

    def read_segments(self, segments: list[Any]) -> dict[int, Block]:
        """Notes what is mapped at the end.  Returns the live blocks, by address."""
        recording = self.recording
        blocks: dict[int, Block] = {}
        for index, segment in enumerate(segments):
            title = f"device {self.device}: segment {index}"
            at, total = segment["address"], segment["total_size"]
            stream, pool = self.stream_places[segment["stream"]], self.pool_of(segment, title) or 0
            kind = EXPANDABLE if segment.get("is_expandable") else PLAIN
            stack = recording.stack(segment.get("frames"))
            self.final.append(Range(at, total, -1, 0, stream, pool, stack, kind))
            last = at + total
            for block in segment["blocks"]:
                at, whole, state = block.get("address", at), block["size"], block["state"]
                if state != "inactive":
                    size = block.get("requested_size") or whole
                    stack, tag = recording.stack(block.get("frames")), recording.string(block.get("tag", ""))
                    pending = state == "active_pending_free"
                    blocks[at] = Block(at, size, whole, pending, stream, pool, stack, tag)
                    last = max(last, at + size)
                at += whole
            if max(last, at) >= 1 << ADDRESS_BITS:
                end = brief(max(last, at))
                raise ValueError(f"{title} ends at {end}; an address below 2**{ADDRESS_BITS} is needed")
        self.final.sort()
        return blocks

    def pool_of(self, entry: Mapping[str, Any], what: str) -> int | None:
        """The place of an entry's pool; None where it does not say it."""
        for key in POOL_KEYS:
            pool = entry.get(key)
            if pool is not None:  # of two integers: the hash of tuples in tuples may take any time
                if type(pool) not in (tuple, list) or [*map(type, pool[:3])] != [int, int]:
                    raise ValueError(f"{what}: {key} is {brief(pool)}; two integers are needed")
                return self.pool_places[tuple(pool)]
        return None

    def read_events(self, entries: list[Any]) -> None:
        recording, what = self.recording, f"device {self.device}: event"

        def column(key: str, bits: int = ADDRESS_BITS) -> list[Any]:
            return bounded([entry.get(key, 0) for entry in entries], bits, what, key)

        times = column("time_us")
        self.first_us = times[0] if times else 0
        self.times: Column = np.maximum.accumulate(np.array(times, np.float64)) - self.first_us
        names = Places({name: index for index, name in enumerate(FIRST_ACTIONS)})
        actions = names.column(plain(entry["action"]) for entry in entries)
        self.actions: list[str] = list(names)
        if len(self.actions) > ACTION_LIMIT:
            raise ValueError(f"{what}s have {len(self.actions)} actions; at most {ACTION_LIMIT} can be shown")
        self.action: Column = actions.astype(np.uint8)
        addresses = [entry["device_free"] if "device_free" in entry else entry["addr"] for entry in entries]
        self.address: Column = np.array(bounded(addresses, ADDRESS_BITS, what, "addr"), np.uint64)
        self.size: Column = np.array(column("size", SIZE_BITS), np.float64)
        self.stream: Column = self.stream_places.column(column("stream"))
        self.stack: Column = np.array([recording.stack(entry.get("frames")) for entry in entries], np.int32)
        tags = (
            entry.get("tag") or entry.get("name") or entry.get("user_metadata") or "" for entry in entries
        )
        self.tag: Column = np.array([recording.string(tag) for tag in tags], np.int32)
        self.thread: Column = np.array(column("thread"), np.float64)
        pools = [self.pool_of(entry, f"{what} {index}") for index, entry in enumerate(entries)]
        pools_known = [
            self.pool_at(at) if pool is None else pool for at, pool in zip(addresses, pools, strict=True)
        ]
        self.pool: Column = np.array(pools_known, np.int32)
        self.streams: list[int] = list(self.stream_places)
        self.pools: list[tuple[int, int]] = list(self.pool_places)

    # --- what follows from it ---

    def pool_at(self, address: int) -> int:
        """The pool of the segment that holds an address at the end, where the event does not say it."""
        index = bisect_right(self.final, address, key=START) - 1
        if index >= 0 and address < self.final[index].address + self.final[index].size:
            return self.final[index].pool
        return 0

    def find_lifetimes(self, blocks: dict[int, Block]) -> None:
        """The columns of allocations, from the events that began and ended them, and from what is live."""
        never = self.count
        rows: list[list[int]] = []  # of each allocation: its first event, begin, freed, end
        open_at: dict[int, int] = {}
        events = np.flatnonzero(self.action < len(FIRST_ACTIONS))
        steps = STEPS[self.action[events]]
        owners = []
        for index, step, address in zip(
            events.tolist(), steps.tolist(), self.address[events].tolist(), strict=True
        ):
            row = open_at.get(address)
            if row is None and step != BEGINS:  # allocated before the first event
                row = open_at[address] = len(rows)
                rows.append([index, -1, never, never])
            if row is not None:
                rows[row][2] = index if step == FREED else min(rows[row][2], index)
                if step != FREED:  # if it is allocated anew, its free was not recorded
                    rows[row][3] = index
                    del open_at[address]
            if step == BEGINS:
                row = open_at[address] = len(rows)
                rows.append([index, index, never, never])
            owners.append(row)
        first, begin, freed, end = np.array(rows, np.int32).reshape(-1, 4).T
        whole, stack = np.zeros(len(rows)), np.where(begin < 0, 0, self.stack[first])
        for at in blocks.keys() & open_at.keys():
            row, block = open_at[at], blocks[at]
            whole[row], stack[row] = block.whole, stack[row] or block.stack
        # Those that no event tells of were allocated before the first one.
        others = [block for at, block in blocks.items() if at not in open_at]
        order = np.argsort(np.append(begin, [-1] * len(others)), kind="stable")

        def joined(column: Column, *values: Any) -> Column:
            return np.append(column, np.array(values, column.dtype))[order]

        self.alloc_begin: Column = joined(begin, *[-1] * len(others))
        self.alloc_freed: Column = joined(freed, *(-1 if block.is_pending else never for block in others))
        self.alloc_end: Column = joined(end, *[never] * len(others))
        self.alloc_address: Column = joined(self.address[first], *(block.address for block in others))
        self.alloc_size: Column = joined(self.size[first], *(block.size for block in others))
        self.alloc_block: Column = joined(whole, *(block.whole for block in others))
        self.alloc_stream: Column = joined(self.stream[first], *(block.stream for block in others))
        self.alloc_pool: Column = joined(self.pool[first], *(block.pool for block in others))
        self.alloc_stack: Column = joined(stack, *(block.stack for block in others))
        self.alloc_tag: Column = joined(self.tag[first], *(block.tag for block in others))
        new_index = np.empty(len(order), np.int32)
        new_index[order] = np.arange(len(order))
        self.allocation: Column = np.full(self.count, -1, np.int32)
        self.allocation[events] = new_index[np.array(owners, np.intp)]

    def find_mapped(self) -> None:
        moved = self.size * np.array([RESERVES.get(name, 0) for name in self.actions])[self.action]
        changes = []
        for index in self.events_of(*CHANGES):
            names = self.stream[index].item(), self.pool[index].item(), self.stack[index].item()
            change = Range(
                int(self.address[index]),
                int(self.size[index]),
                index,
                self.count,
                *names,
                CHANGES[self.actions[self.action[index]]],
            )
            changes.append(change if moved[index] > 0 else change._replace(begin=-1, end=index, stack=0))
        ranges = find_ranges([each._replace(end=self.count) for each in self.final], changes)
        stitches = self.events_of("stitch", "unstitch")
        stitched = {int(self.address[at]): int(self.size[at]) for at in stitches}
        self.ranges: list[Range] = mark_stitched(ranges, stitched)
        total = np.cumsum(moved)
        asleep = max(0.0, -moved[self.events_of("sleep", "wake")].sum())  # of segments that are listed
        at_end = sum(each.size for each in self.final) - asleep
        least = -min(0.0, total.min()) if self.count else 0.0
        self.reserved_before: float = max(at_end - (total[-1] if self.count else 0.0), least)
        self.reserved: Column = self.reserved_before + total
        self.level_moves()

    def events_of(self, *names: str) -> list[int]:
        """The indices of the events with one of these actions."""
        numbers = [number for number, name in enumerate(self.actions) if name in names]
        indices: list[int] = np.flatnonzero(np.isin(self.action, numbers)).tolist()
        return indices

    def level_moves(self) -> None:
        """While pages move from one range to another they are reserved though they are mapped nowhere."""
        moves = np.zeros(self.count + 2, bool)
        moves[1:-1][self.events_of(*MOVES)] = True
        firsts = np.flatnonzero(moves[1:] & ~moves[:-1])
        lasts = np.flatnonzero(moves[:-1] & ~moves[1:])
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):  # of a run, and behind it
            before = self.reserved[first - 1] if first else self.reserved_before
            least = min(before, self.reserved[last - 1])
            np.maximum(self.reserved[first:last], least, out=self.reserved[first:last])

    def live(self, chosen: Column = slice(None)) -> Column:
        """Bytes requested by what is live, or by some of it, after each event, led by those before the first:
        count + 1 figures."""
        moved = np.zeros(self.count + 2)
        np.add.at(moved, self.alloc_begin[chosen] + 1, self.alloc_size[chosen])
        np.add.at(moved, self.alloc_end[chosen] + 1, -self.alloc_size[chosen])
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
                    time = float(abs(int(mark["time_us"])) - self.first_us)
                    edges.append((mark["stage"] == "START", time, recording.string(mark["name"]), 0))
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise ValueError(
                    f"external_annotations[{place}] is {brief(mark)}; a dict with stage, name, device and "
                    f"time_us is needed ({type(error).__name__}: {error})"
                ) from None
        if not edges:
            for index in self.events_of("annotation_begin", "annotation_end"):
                begins = self.actions[self.action[index]] == "annotation_begin"
                edges.append(
                    (begins, self.times[index].item(), int(self.tag[index]), int(self.thread[index]))
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
