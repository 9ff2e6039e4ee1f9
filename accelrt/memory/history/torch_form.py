"""A history as a pickle that torch's viewers open, and such pickles read back.

The pickle is of plain dicts and lists, of protocol 2 (PEP 307), which pytorch.org/memory_viz reads too.  That
reader cannot count with integers from 2**63 on, and appends at most some 100,000 objects at a time.  All
events are written by one template of opcodes whose gaps numpy fills: a pickler takes them one by one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from accelrt.errors import SnapshotError
from accelrt.memory.history import unpickler
from accelrt.memory.history.memory_history import VERSION, gc_paused, of_accelrt, of_torch
from accelrt.memory.history.packed_events import ACTIONS, OOM, are_annotations

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from numpy.typing import NDArray

    from accelrt.memory.history.memory_history import History
    from accelrt.memory.history.packed_events import Events

__all__ = ["read", "written"]

PROTOCOL, STOP, MARK = b"\x80\x02", b".", b"("
EMPTY_DICT, SETITEMS, EMPTY_LIST, APPENDS = b"}", b"u", b"]", b"e"
GET, LONG_GET, LONG_PUT, LONG1 = b"h", b"j", b"r", b"\x8a"
OWN, SHARED = "accelrt", "shared"
BATCH = 1000  # objects of one APPENDS, as Python's own pickler has it
KEYS = (
    "addr",
    "device_free",
    "action",
    "size",
    "stream",
    "time_us",
    "frames",
    "tag",
    "thread",
    "pool",
    "pool_id",
    "name",
)


# --- writing -----------------------------------------------------------------------------------------------


class Pickler:
    """Objects as opcodes.  Strings, and what `named` is given, are written once and then referred to."""

    def __init__(self) -> None:
        self.memo: dict[Any, int] = {}
        self.count = 0

    def put(self, content: bytes) -> tuple[bytes, int]:
        """An object's opcodes, and the number by which it is referred to from then on."""
        number = self.count
        self.count += 1
        return content + LONG_PUT + struct.pack("<I", number), number

    def named(self, key: Any, content: Any) -> bytes:
        """An object's opcodes the first time, and from then on a reference to it.

        Arguments:
            content: a function of no arguments that gives the opcodes.
        """
        number = self.memo.get(key)
        if number is not None:
            return get(number)
        made, number = self.put(content())
        self.memo[key] = number
        return made

    def plain(self, value: Any) -> bytes:
        """Any plain data: what is in it is written out, but for strings."""
        kind = type(value)
        if kind is str:
            return self.named(value, lambda: text(value))
        if value is None or kind is bool:
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if kind is int:
            return integer(value)
        if kind is float:
            return b"G" + struct.pack(">d", value)
        if kind is dict:
            return self.pairs((self.plain(key), self.plain(item)) for key, item in value.items())
        if kind is tuple:
            return MARK + b"".join(map(self.plain, value)) + b"t"
        if kind is list:
            return self.items([self.plain(item) for item in value])
        raise TypeError(f"a {kind.__name__} is not plain data")

    def pairs(self, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
        """A dict of keys and values that are opcodes already."""
        return EMPTY_DICT + MARK + b"".join(key + value for key, value in pairs) + SETITEMS

    def items(self, items: list[bytes]) -> bytes:
        """A list of items that are opcodes already."""
        batches = (items[start : start + BATCH] for start in range(0, len(items), BATCH))
        return EMPTY_LIST + b"".join(MARK + b"".join(batch) + APPENDS for batch in batches)

    def frames(self, stack: Any) -> bytes:
        """A list of frames, once for each list."""
        return self.named(("frames", id(stack)), lambda: self.items([self.frame(frame) for frame in stack]))

    def frame(self, frame: dict[str, Any]) -> bytes:
        plain = {part: frame[part] for part in ("filename", "line", "name")}
        return self.named(("frame", *plain.values()), lambda: self.plain(plain))

    def segment(self, segment: dict[str, Any]) -> bytes:
        """A segment or a block: plain data but for frames and blocks."""
        return self.pairs((self.plain(key), self.part(key, value)) for key, value in segment.items())

    def part(self, key: str, value: Any) -> bytes:
        if key == "frames":
            return self.frames(value)
        return self.items([self.segment(block) for block in value]) if key == "blocks" else self.plain(value)


def get(number: int) -> bytes:
    return GET + bytes((number,)) if number < 256 else LONG_GET + struct.pack("<I", number)


def text(words: str) -> bytes:
    content = words.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(content)) + content


def integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    width = value.bit_length() // 8 + 1
    return LONG1 + bytes((width,)) + value.to_bytes(width, "little", signed=True)


class Template:
    """The opcodes of one event, over and over: constant bytes, and gaps for what differs."""

    def __init__(self) -> None:
        self.size = 0
        self.constants: list[tuple[int, bytes]] = []
        self.gaps: list[tuple[int, NDArray[np.uint8]]] = []

    def constant(self, content: bytes) -> None:
        self.constants.append((self.size, content))
        self.size += len(content)

    def gap(self, content: NDArray[np.uint8]) -> None:
        self.gaps.append((self.size, content))
        self.size += content.shape[1]

    def integers(self, values: NDArray[np.uint64]) -> None:
        """LONG1 of as many bytes as the greatest value takes, its sign among them."""
        width = int(values.max()).bit_length() // 8 + 1
        self.constant(LONG1 + bytes((width,)))
        self.gap(little_endian(values, width))

    def references(self, values: NDArray[Any]) -> None:
        self.constant(LONG_GET)
        self.gap(little_endian(values.astype(np.uint64), 4))

    def filled(self, count: int) -> NDArray[np.uint8]:
        found = np.empty((count, self.size), np.uint8)
        for start, content in self.constants:
            found[:, start : start + len(content)] = np.frombuffer(content, np.uint8)
        for start, gap in self.gaps:
            found[:, start : start + gap.shape[1]] = gap
        return found


def little_endian(values: NDArray[np.uint64], width: int) -> NDArray[np.uint8]:
    """The low bytes of each value; one more than 8 is a sign that is 0."""
    found = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(-1, 8)
    return np.pad(found, ((0, 0), (0, 1))) if width > 8 else found[:, :width]


def batched(rows: NDArray[np.uint8]) -> bytes:
    """A list of objects whose opcodes are rows."""
    whole = len(rows) // BATCH * BATCH
    mark, appends = np.frombuffer(MARK, np.uint8), np.frombuffer(APPENDS, np.uint8)
    parts = [EMPTY_LIST]
    if whole:
        batches = rows[:whole].reshape(whole // BATCH, -1)
        edges = [np.broadcast_to(edge, (len(batches), 1)) for edge in (mark, appends)]
        parts.append(np.hstack([edges[0], batches, edges[1]]).tobytes())
    if whole < len(rows):
        parts += [MARK, rows[whole:].tobytes(), APPENDS]
    return b"".join(parts)


class EventPickler:
    """Events as opcodes.  What they refer to is written before them: `vocabulary` holds it.

    Arguments:
        pickler: Pickler that has written nothing yet, so that keys and actions get numbers of one byte.
    """

    def __init__(self, pickler: Pickler, history: History) -> None:
        self.pickler = pickler
        self.vocabulary = [pickler.plain(word) for word in (*KEYS, *ACTIONS)]
        self.keys = {word: get(pickler.memo[word]) for word in KEYS}
        self.actions = np.array([pickler.memo[word] for word in ACTIONS], np.uint8)
        self.stacks = self.table(history.frames, pickler.frames, lambda frames: ("frames", id(frames)))
        self.tags = self.table(history.tags, pickler.plain, lambda name: name)
        self.names = self.table(history.names, pickler.plain, lambda name: name)
        self.pools: dict[tuple[int, int], int] = {}

    def table(self, known: dict[int, Any], write: Any, key: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Writes what has a number in events; those numbers in order, and the pickle's for each."""
        numbers = sorted(known)
        self.vocabulary += [write(known[number]) for number in numbers]
        memo = [self.pickler.memo[key(known[number])] for number in numbers]
        return np.array(numbers, np.uint32), np.array(memo, np.uint32)

    def pools_of(self, events: Events) -> NDArray[Any]:
        """The pickle's numbers for the pools of events, which this adds to the vocabulary."""
        used, which = distinct(events["pool"])
        for pool in map(tuple, used.tolist()):
            if pool not in self.pools:
                content, self.pools[pool] = self.pickler.put(self.pickler.plain(pool))
                self.vocabulary.append(content)
        memo = np.array([self.pools[pool] for pool in map(tuple, used.tolist())], np.uint32)
        found: NDArray[Any] = memo[which]
        return found

    def rows(self, events: Events) -> NDArray[np.uint8]:
        """The opcodes of each event: of annotations alone, or of none."""
        template = Template()
        template.constant(EMPTY_DICT + MARK + self.keys["action"] + GET)
        template.gap(self.actions[events["action"]].reshape(-1, 1))
        template.constant(GET)
        template.gap(np.where(events["action"] == OOM, *self.address_keys()).reshape(-1, 1))
        template.integers(events["address"])
        for key, values in (
            ("size", events["size"]),
            ("stream", events["stream"]),
            ("time_us", events["time_ns"] // 1000),
            ("thread", events["thread"].astype(np.uint64)),
        ):
            template.constant(self.keys[key])
            template.integers(values)
        noted = bool(are_annotations(events[:1]).any())
        pools = self.pools_of(events)
        references = [
            ("frames", looked_up(self.stacks, events["stack"])),
            ("tag", looked_up(self.tags, np.zeros_like(events["tag"]) if noted else events["tag"])),
            ("pool", pools),
            ("pool_id", pools),  # as torch calls it
        ]
        for key, numbers in references + ([("name", looked_up(self.names, events["tag"]))] if noted else []):
            template.constant(self.keys[key])
            template.references(numbers)
        template.constant(SETITEMS)
        return template.filled(len(events))

    def trace(self, events: Events) -> bytes:
        """A list of events, none of them an annotation."""
        return batched(self.rows(events)) if len(events) else EMPTY_LIST

    def mixed(self, events: Events) -> bytes:
        """A list of events of any kind."""
        noted = are_annotations(events)
        kinds = [(noted, events[noted]), (~noted, events[~noted])]
        items: list[bytes] = [b""] * len(events)
        for where, some in kinds:
            if len(some):
                rows = self.rows(some)
                content, size = rows.tobytes(), rows.shape[1]
                for number, index in enumerate(np.flatnonzero(where).tolist()):
                    items[index] = content[number * size : (number + 1) * size]
        return self.pickler.items(items)

    def address_keys(self) -> tuple[np.uint8, np.uint8]:
        """The keys of an out-of-memory event's address field, and of others'."""
        return np.uint8(self.pickler.memo["device_free"]), np.uint8(self.pickler.memo["addr"])


def distinct(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    """The different ones of many pairs, and the index into them of each."""
    if not pairs.any():
        return pairs[:1], np.zeros(len(pairs), np.intp)
    _, first = np.unique(pairs[:, 0], return_inverse=True)
    seconds, second = np.unique(pairs[:, 1], return_inverse=True)
    _, index, which = np.unique(first * len(seconds) + second, return_index=True, return_inverse=True)
    return pairs[index], which


def looked_up(table: tuple[NDArray[Any], NDArray[Any]], numbers: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = table[1][np.searchsorted(table[0], numbers)]
    return found


def written(history: History) -> list[bytes]:
    """A history as the content of a file, in pieces."""
    pickler = Pickler()
    # What events refer to stands first, under a key that readers pass over.
    first = [PROTOCOL, EMPTY_DICT, MARK, pickler.plain(OWN), EMPTY_DICT, MARK, pickler.plain(SHARED)]
    maker = EventPickler(pickler, history)
    traces = [maker.trace(of_torch(events)) for events in history.events]
    others = [maker.mixed(of_accelrt(events)) for events in history.events]
    first.append(pickler.items(maker.vocabulary))
    rest = {key: value for key, value in history.own_part([]).items() if key != "events"}
    own = [
        *(pickler.plain("events"), pickler.items(others)),
        *(pickler.plain(key) + pickler.plain(value) for key, value in rest.items()),
        SETITEMS,
    ]
    segments = [pickler.segment(segment) for segment in history.segments]
    last = [
        *(pickler.plain("segments"), pickler.items(segments)),
        *(pickler.plain("device_traces"), pickler.items(traces)),
        *(pickler.plain("allocator_settings"), pickler.plain(history.settings)),
        *(pickler.plain("external_annotations"), pickler.plain(history.annotations())),
        *(SETITEMS, STOP),
    ]
    return first + own + last


# --- reading -----------------------------------------------------------------------------------------------


def read(content: bytes, name: str) -> dict[str, Any]:
    """The snapshot that a pickle holds, of torch's or of accelrt's.

    Arguments:
        name: str, the file, for errors.
    Raises:
        SnapshotError: it holds something else than plain data, is damaged, or is no snapshot.
    """
    with gc_paused():
        found: Any = unpickler.loads(content, name)
        checked(found, name)
    if OWN in found:
        found[OWN].pop(SHARED, None)
    return dict(found)


def checked(found: Any, name: str) -> None:
    """Raises SnapshotError where an object is no snapshot: what its readers rely on is checked throughout."""
    if not isinstance(found, dict) or not {"segments", "device_traces"} <= found.keys():
        raise SnapshotError(f"{name}: a dict with segments and device_traces was expected, as torch's are")
    known: set[int] = set()  # lists of frames that were looked through, by id()
    seen: set[int] = set()  # the other lists
    segments, traces = (wanted(found, key, list, name) for key in ("segments", "device_traces"))
    for index, segment in enumerate(segments):
        check_segment(segment, f"{name}: segments[{index}]", known, seen)
    for device, trace in enumerate(traces):
        check_once(trace, f"{name}: device_traces[{device}]", seen)
        check_events(trace, f"{name}: device_traces[{device}]", known)
    for key, kind in (("allocator_settings", dict), ("external_annotations", list)):
        if key in found:
            wanted(found, key, kind, name)
    if OWN in found:
        check_own(wanted(found, OWN, dict, name), f"{name}: {OWN}", known, seen)


def check_once(items: Any, where: str, seen: set[int]) -> None:
    """Refuses a list that stands in several places, as only stacks may: a small file could hold many."""
    if items and id(items) in seen:
        raise SnapshotError(f"{where}: the same list as in another place, where each was expected once")
    seen.add(id(items))


def wanted(place: Any, key: str, kind: type, where: str) -> Any:
    """What a dict has under a key, which has to be of a type; integers count something, so from 0 on."""
    if type(place) is not dict:
        raise SnapshotError(f"{where}: a dict was expected, not {type(place).__name__}")
    value: Any = place.get(key)
    is_right = type(value) is kind
    if not is_right or (kind is int and value < 0):
        words = "an integer from 0 on" if kind is int else f"a {kind.__name__}"
        there = f"not {brief(value)}" if key in place else "and is missing"
        raise SnapshotError(f"{where}: {words} was expected under {key!r}, {there}")
    return value


def brief(value: object) -> str:
    kind = type(value).__name__
    return f"{kind} {value!r:.40}" if isinstance(value, (int, str, float)) else kind


def check_segment(segment: Any, where: str, known: set[int], seen: set[int]) -> None:
    for key in ("device", "address", "total_size", "stream"):
        wanted(segment, key, int, where)
    check_frames(segment, where, known)
    check_once(segment.get("blocks"), f"{where}.blocks", seen)
    for index, block in enumerate(wanted(segment, "blocks", list, where)):
        place = f"{where}.blocks[{index}]"
        wanted(block, "size", int, place)
        wanted(block, "state", str, place)
        for key, kind in (("address", int), ("requested_size", int), ("tag", str)):
            if key in block:
                wanted(block, key, kind, place)
        check_frames(block, place, known)


def check_frames(place: dict[str, Any], where: str, known: set[int]) -> None:
    frames = place.get("frames")
    if frames is None or id(frames) in known:
        return
    known.add(id(frames))
    for frame in wanted(place, "frames", list, where):
        for key, kind in (("filename", str), ("line", int), ("name", str)):
            wanted(frame, key, kind, f"{where}.frames")


def check_events(trace: Any, where: str, known: set[int]) -> None:
    if type(trace) is not list:
        raise SnapshotError(f"{where}: a list was expected, not {type(trace).__name__}")
    for index, event in enumerate(trace):
        if type(event) is dict:  # most are right, and there are many: the slow way only finds the words
            address: Any = event.get("addr", event.get("device_free"))
            size: Any = event.get("size")
            stream: Any = event.get("stream")
            if (
                (type(event.get("action")) is str and type(address) is type(size) is type(stream) is int)
                and (address >= 0 and size >= 0 and stream >= 0)
                and id(event.get("frames")) in known
                and type(event.get("time_us", 0)) is int
                and (type(event.get("tag", "")) is str and type(event.get("name", "")) is str)
                and type(event.get("pool", ())) is tuple
            ):
                continue
        check_event(event, f"{where}[{index}]", known)


def check_event(event: Any, where: str, known: set[int]) -> None:
    wanted(event, "action", str, where)
    wanted(event, "device_free" if "device_free" in event else "addr", int, where)
    for key in ("size", "stream"):
        wanted(event, key, int, where)
    for key, kind in (("time_us", int), ("thread", int), ("tag", str), ("name", str), ("pool", tuple)):
        if key in event:
            wanted(event, key, kind, where)
    check_frames(event, where, known)


def check_own(own: dict[str, Any], where: str, known: set[int], seen: set[int]) -> None:
    version = wanted(own, "version", int, where)
    if version != VERSION:
        raise SnapshotError(f"{where}: version {version}, of a newer accelrt; {VERSION} was expected")
    for device, events in enumerate(wanted(own, "events", list, where)):
        check_once(events, f"{where}.events[{device}]", seen)
        check_events(events, f"{where}.events[{device}]", known)
    for key in ("dropped", "tags"):
        wanted(own, key, list, where)
