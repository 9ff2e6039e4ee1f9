"""Compares what memory holds at two moments: for leaks that add up.

A Holding is what was live at a moment, of a device or in a snapshot; two of them are compared block by block.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from accelrt.allocator.readers import KIND_NAMES, holdings
from accelrt.core.printable import printable
from accelrt.devices.device import current_device
from accelrt.memory.caching import ordinal_for_figures
from accelrt.memory.explain import count_text, size_text, stack_text, stream_text
from accelrt.memory.history.recording import is_recording
from accelrt.memory.live_blocks import line_of, live_memory, more, named
from accelrt.memory.mempool import host_memory_stats
from accelrt.runtime.lifetimes import cuda_arrays

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from accelrt.annotations import DeviceArgument

    _Block = dict[str, Any]
    _Change = tuple[Any, int, int]  # what of, bytes, blocks


# Of a block's fields, what a comparison shows.
KEPT = ("address", "size", "stream", "pool", "kind", "frames", "tag")


@dataclass(frozen=True)
class Holding:
    """Memory that was live at a moment.

    Attributes:
        blocks: dict, address -> dict of size, stream, pool, kind ("device", "managed" or "pinned" of what the
            driver's pools gave, else ""), frames (list of dicts) and tag (str).
        reserved: int, bytes.
        arrays: int, bytes of CUDA arrays, which are no part of those.
    """

    blocks: dict[int, _Block]
    reserved: int
    arrays: int = 0

    @property
    def live(self) -> int:
        """int: bytes of the live blocks."""
        return sum(block["size"] for block in self.blocks.values())

    def sizes(self, kind: str = "") -> list[int]:
        """Lists the bytes of each block of a kind."""
        return [block["size"] for block in self.blocks.values() if block["kind"] == kind]


@dataclass(frozen=True, repr=False)
class Mark:
    """A moment to which report(since=mark) compares; mark() makes one.

    Attributes:
        device: int.
        holding: Holding, what the device's memory held.
        page_locked: dict, what the cache of page-locked memory held: reserved, live, live_blocks.
        taken_at: float, by time.monotonic().
    """

    device: int
    holding: Holding
    page_locked: dict[str, Any]
    taken_at: float

    def __repr__(self) -> str:
        live, blocks = size_text(self.holding.live), count_text(len(self.holding.blocks), "block")
        return f"<accelrt.memory.Mark of device {self.device}: {live} in {blocks}>"


def mark(device: DeviceArgument | None = None) -> Mark:
    """Notes a moment to compare with: memory.report(since=mark) tells what grew since.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        Mark.  It keeps some hundred bytes a live block, and no memory of the device.
    Raises:
        ValueError: device names none.

    Stacks are there for what was allocated while history was recorded (record_history), tags for what was
    tagged.  memory.empty_cache() before it takes idle memory out of the comparison.
    """
    ordinal = ordinal_for_figures(device)
    return mark_of(current_device() if ordinal is None else ordinal)


def mark_of(ordinal: int) -> Mark:
    return Mark(ordinal, of_device(ordinal), page_locked(), time.monotonic())


def page_locked() -> dict[str, Any]:
    """Counts what the cache of page-locked memory holds, in bytes and blocks."""
    stats = host_memory_stats()
    reserved, live = stats["allocated_bytes.current"], stats["active_bytes.current"]
    return {
        "reserved": reserved,
        "live": live,
        "idle": reserved - live,
        "live_blocks": stats["active_requests.current"],
        "peak_live": stats["active_bytes.peak"],
    }


def holding_of(blocks: list[_Block], reserved: int, arrays: int) -> Holding:
    return Holding({block["address"]: block for block in blocks}, reserved, arrays)


def of_device(ordinal: int) -> Holding:
    held = holdings(ordinal) or {"reserved": 0}
    blocks = [{name: block[name] for name in KEPT} for block in map(named, live_memory(ordinal))]
    arrays = sum(array["nbytes"] for array in cuda_arrays(ordinal))
    return holding_of(blocks, held["reserved"], arrays)


def of_snapshot(snapshot: dict[str, Any], device: int) -> Holding:
    """Lists what was live on a device in a snapshot, as load_snapshot() gives it."""
    segments = [segment for segment in snapshot.get("segments", ()) if segment.get("device", 0) == device]
    blocks = [
        {
            "address": block.get("address", 0),
            "size": block.get("size", 0),
            "stream": segment.get("stream", 0),
            "pool": tuple(segment.get("segment_pool_id", (0, 0))),
            "kind": "",
            "frames": block.get("frames") or [],
            "tag": block.get("tag") or "",
        }
        for segment in segments
        for block in segment.get("blocks", ())
        if block.get("state") == "active_allocated"
    ]
    reserved = sum(segment.get("total_size", 0) for segment in segments)
    return holding_of(blocks, reserved, array_bytes(snapshot).get(device, 0))


def array_bytes(snapshot: dict[str, Any]) -> dict[int, int]:
    """Sums the bytes of CUDA arrays in a snapshot, by device, where there are any."""
    listed = enumerate(snapshot.get("accelrt", {}).get("cuda_arrays", []))
    return {device: sum(array["nbytes"] for array in arrays) for device, arrays in listed if arrays}


def name_of_stack(block: _Block) -> tuple[tuple[Any, ...], ...]:
    return tuple((one.get("filename"), one.get("line"), one.get("name")) for one in block["frames"])


def changes(before: Holding, after: Holding, key: Callable[[_Block], Any]) -> list[_Change]:
    """Sums changes by a key: (a block's fields, bytes, blocks), what grew most first, no zeros."""
    sums: dict[Any, list[Any]] = {}
    for holding, sign in ((before, -1), (after, 1)):
        for block in holding.blocks.values():
            change = sums.setdefault(key(block), [block, 0, 0])
            change[1] += sign * block["size"]
            change[2] += sign
    rows = [(block, size, count) for block, size, count in sums.values() if size or count]
    return sorted(rows, key=lambda row: (-row[1], -row[2]))


def is_same(block: _Block, other: _Block | None) -> bool:
    """Tells whether the block at an address may be the one that was there: size, stack and tag are equal."""
    return other is not None and all(
        block[name] == other[name] for name in ("size", "frames", "tag", "stream")
    )


def compared(before: Holding, after: Holding, top: int) -> dict[str, Any]:
    """The fields of report_data(since=mark) that blocks tell."""
    new = [each for address, each in after.blocks.items() if not is_same(each, before.blocks.get(address))]
    lost = [each for address, each in before.blocks.items() if not is_same(each, after.blocks.get(address))]
    new.sort(key=lambda block: (-block["size"], block["address"]))
    return {
        "reserved": (before.reserved, after.reserved),
        "live": (sum(before.sizes()), sum(after.sizes())),
        "live_blocks": (len(before.sizes()), len(after.sizes())),
        "cuda_array_bytes": (before.arrays, after.arrays),
        "driver_pools": {
            kind: (sum(before.sizes(kind)), sum(after.sizes(kind))) for kind in KIND_NAMES.values()
        },
        "tags": [(b["tag"], size, count) for b, size, count in changes(before, after, lambda b: b["tag"])],
        "streams": [
            (b["stream"], size, count) for b, size, count in changes(before, after, lambda b: b["stream"])
        ],
        "stacks": [(b["frames"], size, count) for b, size, count in changes(before, after, name_of_stack)],
        "new_blocks": len(new),
        "new_bytes": sum(block["size"] for block in new),
        "gone_blocks": len(lost),
        "gone_bytes": sum(block["size"] for block in lost),
        "blocks": new[:top],
    }


def compare_snapshots(before: dict[str, Any], after: dict[str, Any], top: int = 10) -> str:
    """Tells what is live in one snapshot and was not in an earlier one: by tag, stream and stack, and the
    largest new blocks, of each device.

    Arguments:
        before, after: dict, as of load_snapshot() and snapshot(): accelrt's or torch's.
        top: int, how many of each are listed.
    Returns:
        str, of several lines.
    Raises:
        TypeError: one is no dict.
    """
    for name, snapshot in (("before", before), ("after", after)):
        if not isinstance(snapshot, dict):
            raise TypeError(
                f"{name} is of type {type(snapshot).__name__}; pass a snapshot, as load_snapshot() gives it"
            )
    devices = {segment.get("device", 0) for each in (before, after) for segment in each.get("segments", ())}
    devices |= {device for each in (before, after) for device in array_bytes(each)}
    texts = [
        text_of_growth(
            compared(of_snapshot(before, device), of_snapshot(after, device), top),
            f"Memory of device {device}, compared with the earlier snapshot",
            top,
        )
        for device in sorted(devices)
    ]
    return "\n".join(texts) or "neither snapshot has memory of a device\n"


def growth_since(moment: Mark, top: int) -> dict[str, Any]:
    """Compares a device's memory now with a moment: the fields of report_data(since=moment)."""
    now = mark_of(moment.device)
    names = ("reserved", "live", "live_blocks")
    return {
        "device": moment.device,
        "seconds": now.taken_at - moment.taken_at,
        **compared(moment.holding, now.holding, top),
        "page_locked": {name: (moment.page_locked[name], now.page_locked[name]) for name in names},
        "recording": bool(is_recording(moment.device)),
    }


# --- the text ---------------------------------------------------------------------------------------------


def signed(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{size_text(abs(size))}"


def size_row(name: str, pair: tuple[int, int]) -> str:
    before, now = pair
    return f"  {name:<22}{size_text(before):>14}{size_text(now):>14}{signed(now - before):>14}"


def change_lines(title: str, rows: list[_Change], top: int, text: Callable[[Any], str]) -> list[str]:
    if not rows:
        return []
    lines = [
        f"  {signed(size):>14} in {count:+} {'block' if abs(count) == 1 else 'blocks'}: {text(of)}"
        for of, size, count in rows[:top]
    ]
    return [title, *lines, *more(len(rows), top)]


def text_of_growth(data: dict[str, Any], heading: str, top: int) -> str:
    """The text of compared() or growth_since() under a heading."""
    before, now = data["live_blocks"]
    totals = [
        heading,
        f"  {'':<22}{'before':>14}{'after':>14}{'change':>14}",
        size_row("reserved", data["reserved"]),
        size_row("live", data["live"]),
        f"  {'live blocks':<22}{before:>14}{now:>14}{now - before:>+14}",
    ]
    if any(data["cuda_array_bytes"]):
        totals.append(size_row("CUDA arrays", data["cuda_array_bytes"]))
    pools = data["driver_pools"].items()
    totals += [size_row(f"DriverPools, {kind}", sizes) for kind, sizes in pools if any(sizes)]
    if "page_locked" in data:
        totals.append(size_row("page-locked, live", data["page_locked"]["live"]))
    new, lost = count_text(data["new_blocks"], "block"), count_text(data["gone_blocks"], "block")
    blocks = [f"{new} of {size_text(data['new_bytes'])} came, {lost} of {size_text(data['gone_bytes'])} went"]
    blocks += map(line_of, data["blocks"])
    has_stacks = any(frames for frames, _, _ in data["stacks"])
    has_tags = any(tag for tag, _, _ in data["tags"])
    parts = [
        totals,
        change_lines("By tag", data["tags"], top, lambda tag: printable(tag) or "no tag") if has_tags else [],
        change_lines("By stream", data["streams"], top, stream_text),
        change_lines("By stack", data["stacks"], top, stack_text)
        if has_stacks or not data["stacks"]
        else [
            "By stack",
            "  no stack was recorded; accelrt.memory.record_history() records them from then on",
        ],
        blocks,
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
