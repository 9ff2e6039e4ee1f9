"""Checks what readers of a snapshot's dict rely on: torch's keys have the types that torch gives them.

No list but a stack's stands in two places: a small file would hold many times its size for whoever reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelrt.errors import SnapshotError
from accelrt.memory.history.memory_history import VERSION

if TYPE_CHECKING:
    from typing import Any

OWN = "accelrt"

Form = tuple[dict[str, type], dict[str, type]]  # the keys that a dict has, and those that it may have
SEGMENT: Form = ({"device": int, "address": int, "total_size": int, "stream": int, "blocks": list}, {})
BLOCK: Form = ({"size": int, "state": str}, {"address": int, "requested_size": int, "tag": str})
ARRAY: Form = (
    {"nbytes": int, "shape": list, "dtype": str, "channels": int, "levels": int, "kinds": list},
    {},
)
FRAME: Form = ({"filename": str, "line": int, "name": str}, {})
EVENT: Form = (
    {"action": str, "size": int, "stream": int},
    {"time_us": int, "thread": int, "tag": str, "name": str, "pool": tuple},
)


def check_snapshot(snapshot: Any, name: str) -> None:
    """Raises SnapshotError where an object is no snapshot: what its readers rely on is checked throughout.

    Arguments:
        name: str, where it is from, for errors.
    """
    if type(snapshot) is not dict or not {"segments", "device_traces"} <= snapshot.keys():
        raise SnapshotError(f"{name}: a dict with segments and device_traces was expected, as torch's are")
    Checker().check(snapshot, name)


def expect(kind: type, value: object, where: str) -> None:
    if type(value) is not kind:
        raise SnapshotError(f"{where}: a {kind.__name__} was expected, not {type(value).__name__}")


def want(record: dict[str, Any], key: str, kind: type, where: str) -> Any:
    """Returns what a dict has under a key, which has to be of a type; JSON has tuples as lists."""
    value: Any = record.get(key)
    is_right = type(value) is kind or (kind is tuple and type(value) is list)
    if not is_right or (kind is int and value < 0):
        is_short = isinstance(value, (int, str, float))
        description = f"{type(value).__name__} {value!r:.40}" if is_short else type(value).__name__
        words = "an integer from 0 on" if kind is int else f"a {kind.__name__}"
        there = f"not {description}" if key in record else "and is missing"
        raise SnapshotError(f"{where}: {words} was expected under {key!r}, {there}")
    return value


class Checker:
    """One snapshot that is looked through."""

    def __init__(self) -> None:
        self.stacks: set[int] = {id(None)}  # those that were looked at, by id()
        self.lists: set[int] = set()  # the other lists, which stand in one place alone

    def check(self, snapshot: dict[str, Any], name: str) -> None:
        for key in ("segments", *(["host_segments"] if "host_segments" in snapshot else [])):
            for index, segment in enumerate(want(snapshot, key, list, name)):
                self.check_segment(segment, f"{name}: {key}[{index}]")
        self.check_traces(snapshot, "device_traces", name)
        if "host_traces" in snapshot:
            self.check_traces(snapshot, "host_traces", name)
        for key, kind in (("allocator_settings", dict), ("external_annotations", list)):
            if key in snapshot:
                want(snapshot, key, kind, name)
        if OWN in snapshot:
            own, where = want(snapshot, OWN, dict, name), f"{name}: {OWN}"
            version = want(own, "version", int, where)
            if version != VERSION:
                raise SnapshotError(f"{where}: version {version}, of a newer accelrt; {VERSION} was expected")
            self.check_traces(own, "events", where)
            for key in ("dropped", "tags"):
                want(own, key, list, where)
            if "cuda_arrays" in own:
                self.check_arrays(want(own, "cuda_arrays", list, where), f"{where}: cuda_arrays")

    def check_arrays(self, listed: list[Any], where: str) -> None:
        """A list of CUDA arrays for each device."""
        for arrays in listed:
            expect(list, arrays, where)
            for array in arrays:
                self.check_fields(array, ARRAY, where)

    def check_fields(self, record: Any, form: Form, where: str) -> None:
        """A dict's, and its stack's, if it has one."""
        expect(dict, record, where)
        for key, kind in form[0].items():
            want(record, key, kind, where)
        for key, kind in form[1].items():
            if key in record:
                want(record, key, kind, where)
        if id(record.get("frames")) not in self.stacks:
            for frame in want(record, "frames", list, where):
                self.check_fields(frame, FRAME, f"{where}.frames")
            self.stacks.add(id(record["frames"]))

    def check_once(self, items: Any, where: str) -> None:
        expect(list, items, where)
        if items and id(items) in self.lists:
            raise SnapshotError(
                f"{where}: the same list as in another place, where each was expected once; one that stands "
                "in another place too would be shown at many times its size"
            )
        self.lists.add(id(items))

    def check_segment(self, segment: Any, where: str) -> None:
        self.check_fields(segment, SEGMENT, where)
        self.check_once(segment["blocks"], f"{where}.blocks")
        for index, block in enumerate(segment["blocks"]):
            self.check_fields(block, BLOCK, f"{where}.blocks[{index}]")

    def check_traces(self, record: dict[str, Any], key: str, where: str) -> None:
        for device, events in enumerate(want(record, key, list, where)):
            self.check_once(events, f"{where}: {key}[{device}]")
            self.check_events(events, f"{where}: {key}[{device}]")

    def check_events(self, events: list[Any], where: str) -> None:
        stacks = self.stacks
        for index, event in enumerate(events):
            try:  # most are right, and there are many: the slow way only finds the words
                address = event["addr"] if "addr" in event else event["device_free"]
                size, stream = event["size"], event["stream"]
                if (
                    (type(event["action"]) is str and type(address) is type(size) is type(stream) is int)
                    and (address >= 0 and size >= 0 and stream >= 0 and id(event.get("frames")) in stacks)
                    and (type(event.get("time_us", 0)) is type(event.get("thread", 0)) is int)
                    and (type(event.get("tag", "")) is type(event.get("name", "")) is str)
                    and type(event.get("pool", ())) is tuple
                ):
                    continue
            except (KeyError, TypeError, AttributeError):
                pass
            self.check_fields(event, EVENT, f"{where}[{index}]")
            want(event, "addr" if "device_free" not in event else "device_free", int, f"{where}[{index}]")
