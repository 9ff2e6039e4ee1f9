"""A history as a pickle that torch's viewers open, and such pickles read back.

The pickle is of plain dicts and lists, of protocol 2 (PEP 307), which pytorch.org/memory_viz reads too.  That
reader cannot count with integers from 2**63 on, and appends at most some 100,000 objects at a time.  All
events are written by one template of opcodes whose gaps numpy fills: a pickler takes them one by one.
"""

from __future__ import annotations

import io
import pickle
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from accelrt.memory.history import plain_pickle
from accelrt.memory.history.memory_history import (
    ACTIONS,
    NUMBERS,
    OOM,
    are_annotations,
    gc_paused,
    of_accelrt,
    of_torch,
)
from accelrt.memory.history.snapshot_checks import OWN, check_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

    from numpy.typing import NDArray

    from accelrt.memory.history.memory_history import Events, History

    _Table = tuple[NDArray[np.uint32], NDArray[np.uint32]]  # numbers, and where the pickle has what they name

PROTOCOL, STOP, MARK = b"\x80\x02", b".", b"("
EMPTY_DICT, SETITEMS, EMPTY_LIST, APPENDS = b"}", b"u", b"]", b"e"
GET, LONG_GET, LONG1 = b"h", b"j", b"\x8a"
SHARED = "shared"
BATCH = 1000  # objects of one APPENDS, as Python's own pickler has it
KEYS = (
    *("addr", "device_free", "action", "size", "stream", "time_us", "frames"),
    *("tag", *NUMBERS, "pool", "pool_id", "name"),
)


# --- writing -----------------------------------------------------------------------------------------------


class PartPickler(pickle.Pickler):
    """The parts of one pickle, in order; what stands in an earlier one is referred to."""

    def __init__(self) -> None:
        self.content: io.BytesIO = io.BytesIO()
        super().__init__(self.content, protocol=2)

    def opcodes(self, value: object) -> bytes:
        """Those of plain data, without a pickle's beginning and end."""
        self.content.seek(0)
        self.content.truncate()
        self.dump(value)
        return self.content.getvalue()[len(PROTOCOL) : -len(STOP)]

    def reducer_override(self, value: object) -> NoReturn:
        raise TypeError(f"a {type(value).__name__} is not plain data")


class EventPickler:
    """Events as opcodes.  What they refer to is written before them: `vocabulary` holds it.

    Arguments:
        pickler: PartPickler that has written little yet, so that keys and actions get numbers of one byte.
    """

    def __init__(self, pickler: PartPickler, history: History) -> None:
        self.pickler = pickler
        self.vocabulary: list[bytes] = []
        words = self.numbers_of([*KEYS, *ACTIONS]).astype(np.uint8)
        self.keys: dict[str, np.uint8] = dict(zip(KEYS, words, strict=False))
        self.actions: NDArray[np.uint8] = words[len(KEYS) :]
        self.stacks: _Table
        self.tags: _Table
        self.names: _Table
        self.stacks, self.tags, self.names = (
            (np.array(list(table), np.uint32), self.numbers_of(list(table.values())))
            for table in (
                dict(sorted(each.items())) for each in (history.frames, history.tags, history.names)
            )
        )

    def numbers_of(self, objects: list[Any]) -> NDArray[np.uint32]:
        """Adds strings, lists or tuples to the vocabulary; the numbers by which the pickle refers to them."""
        self.vocabulary.append(self.pickler.opcodes(objects))
        memo = self.pickler.memo.copy()
        if not all(id(each) in memo for each in objects):
            raise TypeError("events refer to strings, lists and tuples alone")
        return np.array([memo[id(each)][0] for each in objects], np.uint32)

    def trace(self, events: Events) -> list[bytes]:
        """A list of events, in pieces."""
        return batched(self.rows(events)) if len(events) else [EMPTY_LIST]

    def rows(self, events: Events) -> NDArray[np.uint8]:
        """The opcodes of each event."""
        noted = are_annotations(events)
        pools = self.pools_of(events["pool"])
        of_pool = references(pools)
        address_key = np.where(events["action"] == OOM, self.keys["device_free"], self.keys["addr"])
        parts: list[bytes | NDArray[Any]] = [
            *(EMPTY_DICT + MARK, *self.key("action"), GET, self.actions[events["action"]]),
            *(GET, address_key, *integers(events["address"])),
            *(*self.key("size"), *integers(events["size"])),
            *(*self.key("stream"), *integers(events["stream"])),
            *(*self.key("time_us"), *integers(events["time_ns"] // 1000)),
            *(part for name in NUMBERS for part in (*self.key(name), *integers(events[name]))),
            *(*self.key("frames"), *references(looked_up(self.stacks, events["stack"]))),
            *(*self.key("tag"), *references(looked_up(self.tags, np.where(noted, 0, events["tag"])))),
            *(*self.key("pool"), *of_pool, *self.key("pool_id"), *of_pool),  # the latter is torch's word
        ]
        if noted.any():  # other events have pool_id once more, so that all have one length
            names = looked_up(self.names, np.where(noted, events["tag"], self.names[0][0]))
            parts += [GET, np.where(noted, self.keys["name"], self.keys["pool_id"])]
            parts += references(np.where(noted, names, pools))
        return np.hstack([as_rows(part, len(events)) for part in [*parts, SETITEMS]])

    def pools_of(self, pairs: NDArray[np.uint64]) -> NDArray[np.uint32]:
        used, group = distinct(pairs)
        numbers: NDArray[np.uint32] = self.numbers_of(list(map(tuple, used.tolist())))[group]
        return numbers

    def key(self, word: str) -> list[bytes]:
        return [GET, self.keys[word].tobytes()]


def integers(values: NDArray[Any]) -> list[bytes | NDArray[Any]]:
    """LONG1 of as many bytes as the greatest value takes, its sign among them."""
    width = int(values.max()).bit_length() // 8 + 1
    return [LONG1 + bytes((width,)), little_endian(values, width)]


def references(numbers: NDArray[Any]) -> list[bytes | NDArray[Any]]:
    return [LONG_GET, little_endian(numbers, 4)]


def little_endian(values: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """The low bytes of each value; one more than 8 is a sign that is 0."""
    low = np.ascontiguousarray(values, "<u4" if width <= 4 else "<u8").view(np.uint8).reshape(len(values), -1)
    return np.pad(low, ((0, 0), (0, 1))) if width > 8 else low[:, :width]


def as_rows(part: bytes | NDArray[Any], count: int) -> NDArray[np.uint8]:
    """Bytes that all rows have, or those of each."""
    if isinstance(part, bytes):
        return np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part)))
    return part.reshape(count, -1)


def batched(rows: NDArray[np.uint8]) -> list[bytes]:
    """A list of objects whose opcodes are rows, in pieces."""
    whole = len(rows) // BATCH * BATCH
    batches = rows[:whole].reshape(whole // BATCH, BATCH * rows.shape[1])
    edges = [as_rows(edge, len(batches)) for edge in (MARK, APPENDS)]
    parts: list[Any] = [EMPTY_LIST, np.hstack([edges[0], batches, edges[1]]).reshape(-1).data]
    return parts if whole == len(rows) else [*parts, MARK, rows[whole:].tobytes(), APPENDS]


def distinct(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    """The different ones of many pairs, and the index into them of each."""
    if not pairs.any():
        return pairs[:1], np.zeros(len(pairs), np.intp)
    _, first = np.unique(pairs[:, 0], return_inverse=True)
    seconds, second = np.unique(pairs[:, 1], return_inverse=True)
    _, index, group = np.unique(first * len(seconds) + second, return_index=True, return_inverse=True)
    return pairs[index], group


def looked_up(table: tuple[NDArray[Any], NDArray[Any]], numbers: NDArray[Any]) -> NDArray[Any]:
    values: NDArray[Any] = table[1][np.searchsorted(table[0], numbers)]
    return values


def items(opcodes: Iterable[bytes]) -> list[bytes]:
    """A list of few items that are opcodes already."""
    return [EMPTY_LIST, MARK, *opcodes, APPENDS]


def written(history: History) -> list[bytes]:
    """A history as the content of a file, in pieces."""
    pickler = PartPickler()
    # What events refer to stands first, under a key that readers pass over.
    first = [PROTOCOL, EMPTY_DICT, MARK, pickler.opcodes(OWN), EMPTY_DICT, MARK, pickler.opcodes(SHARED)]
    maker = EventPickler(pickler, history)
    traces = [maker.trace(of_torch(events)) for events in history.events]
    others = [maker.trace(of_accelrt(events)) for events in history.events]
    of_host = [] if history.host_events is None else maker.trace(history.host_events)
    return [
        *(*first, *items(maker.vocabulary), pickler.opcodes("events"), *items(chain.from_iterable(others))),
        *(pickler.opcodes(part) for pair in history.own_part().items() for part in pair),
        *(SETITEMS, pickler.opcodes("segments"), pickler.opcodes(history.segments)),
        *(pickler.opcodes("device_traces"), *items(chain.from_iterable(traces))),
        *(pickler.opcodes("allocator_settings"), pickler.opcodes(history.settings)),
        *(pickler.opcodes("external_annotations"), pickler.opcodes(history.annotations())),
        *(host_part(pickler, history, of_host) if of_host else ()),
        *(SETITEMS, STOP),
    ]


def host_part(pickler: PartPickler, history: History, events: list[bytes]) -> list[bytes]:
    """The keys that tell of page-locked memory, with their values."""
    return [
        *(pickler.opcodes("host_segments"), pickler.opcodes(history.host_segments)),
        *(pickler.opcodes("host_traces"), *items(events)),
    ]


# --- reading -----------------------------------------------------------------------------------------------


def read(content: bytes, name: str) -> dict[str, Any]:
    """The snapshot that a pickle holds, of torch's or of accelrt's.

    Arguments:
        name: str, the file, for errors.
    Raises:
        SnapshotError: it holds something else than plain data, is damaged, or is no snapshot.
    """
    with gc_paused():
        snapshot: Any = plain_pickle.loads(content, name)
        check_snapshot(snapshot, name)
    if OWN in snapshot:
        snapshot[OWN].pop(SHARED, None)
    return dict(snapshot)
