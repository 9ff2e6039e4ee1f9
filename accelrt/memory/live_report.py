"""Reports what holds a device's memory now, as figures and as text: by pool, stream, tag and stack."""

from __future__ import annotations

from accelrt.allocator.readers import driver_pool_bytes, holdings, pool_blocks
from accelrt.allocator.settings.apply import allocator_settings
from accelrt.core.arguments import checked_number
from accelrt.core.printable import printable
from accelrt.devices.device import mem_get_info
from accelrt.memory.caching import ordinal_for_figures
from accelrt.memory.explain import count_text, pool_text, size_text, stack_text, stream_text
from accelrt.memory.growth import Mark, growth_since, page_locked, text_of_growth
from accelrt.memory.history.recording import is_recording, tag_stats
from accelrt.memory.live_blocks import by_stack, largest_first, line_of, live_blocks, more, named
from accelrt.runtime.lifetimes import cuda_arrays

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from accelrt.annotations import DeviceArgument


WIDTH = 26  # of the column of names


def report_data(
    device: DeviceArgument | None = None, top: int = 10, *, since: Mark | None = None
) -> dict[str, Any]:
    """Lists what holds a device's memory now, or what it grew by.

    Arguments:
        device: int, "cuda:1", ...; None is the current device, or the mark's.
        top: int, how many stacks and blocks are listed.
        since: Mark of mark(), for what changed since that moment.
    Returns:
        dict, sizes in bytes: device; capacity, free; reserved, live, pending, idle, largest_free,
        fragmentation (the part of the idle bytes outside that block), stitched, sleeping, managed; limit,
        None without one; pools, streams and events, lists of dicts, each the largest first; tags, name ->
        bytes; stacks, list of (frames, bytes, blocks); blocks, list of dicts; cuda_array_bytes, which are no
        part of the reserved ones; cuda_arrays, list of dicts, the largest first; driver_pools, dict of the
        bytes that the driver's pools gave of "device", "managed" and "pinned" memory, as to DriverPools and
        DriverPoolResources; driver_pool_blocks, list of dicts, the largest; page_locked, dict;
        recording, bool; settings, str.  A backend that is not accelrt's own gives totals alone.  {} before
        the first use of a device, which this is not.

        With since: device; seconds; reserved, live, live_blocks and cuda_array_bytes, (then, now);
        driver_pools and page_locked, dicts of (then, now); recording, bool; and, of the live blocks and of
        what the driver's pools gave: tags, streams and stacks, lists of (tag, stream or frames, bytes,
        blocks), by how much each changed, what grew most first; new_blocks, new_bytes, gone_blocks,
        gone_bytes; blocks, list of dicts, the largest that came.
    Raises:
        TypeError, ValueError: top is no number from 0 on, device names none, or not the mark's.
    """
    top = checked_number(top, "top", 0, wanted="how many entries to list, as int")
    ordinal = ordinal_for_figures(device)
    if since is not None:
        return growth_since(checked_mark(since, None if device is None else ordinal), top)
    if ordinal is None:
        return {}
    free, capacity = mem_get_info(ordinal)
    data: dict[str, Any] = {"device": ordinal, "capacity": capacity, "free": free}
    data |= holdings(ordinal) or dict.fromkeys(
        ("reserved", "live", "pending", "idle", "largest_free", "stitched", "sleeping", "managed"), 0
    )
    for name in ("pools", "streams", "events"):
        data.setdefault(name, [])
    data["pools"].sort(key=lambda pool: -pool["reserved"])
    data["streams"].sort(key=lambda stream: -(stream["live"] + stream["pending"] + stream["idle"]))
    data["events"].sort(key=lambda queue: -queue["bytes"])
    data["fragmentation"] = 1 - data["largest_free"] / data["idle"] if data["idle"] else 0.0
    blocks = [] if data.get("external") else live_blocks(ordinal)
    arrays = cuda_arrays(ordinal)
    tags = {name: stats["allocated_bytes"]["current"] for name, stats in tag_stats(ordinal).items()}
    return data | {
        "tags": dict(sorted(tags.items(), key=lambda pair: -pair[1])),
        "stacks": by_stack(data.get("stacks", []), top),
        "blocks": [named(block) for block in blocks[:top]],
        "live_blocks": len(blocks),
        "cuda_array_bytes": sum(array["nbytes"] for array in arrays),
        "cuda_arrays": arrays,
        "driver_pools": driver_pool_bytes(ordinal),
        "driver_pool_blocks": [named(block) for block in largest_first(pool_blocks(ordinal))[:top]],
        "page_locked": page_locked(),
        "recording": is_recording(ordinal),
        "settings": allocator_settings()["text"],
    }


def checked_mark(since: Mark, ordinal: int | None) -> Mark:
    if not isinstance(since, Mark):
        raise TypeError(f"since is of type {type(since).__name__}; pass what accelrt.memory.mark() returned")
    if ordinal not in (None, since.device):
        raise ValueError(
            f"device is {ordinal}, and since a mark of device {since.device}; pass one or the same"
        )
    return since


# --- the text ---------------------------------------------------------------------------------------------


def row(name: str, *figures: str) -> str:
    return f"  {name:<{WIDTH}}" + "".join(f"{figure:>14}" for figure in figures)


def sizes(name: str, figures: dict[str, Any], *keys: str) -> str:
    return row(name, *(size_text(figures[key]) for key in keys))


def summary_lines(data: dict[str, Any]) -> list[str]:
    free, capacity = size_text(data["free"]), size_text(data["capacity"])
    limited = data.get("limit") is not None
    return [
        f"Memory of device {data['device']}: {capacity}, of which {free} is free",
        sizes("reserved by accelrt", data, "reserved"),
        sizes("live", data, "live"),
        sizes("freed, in use on a stream", data, "pending"),
        sizes("idle", data, "idle"),
        sizes("largest free block", data, "largest_free"),
        row("fragmentation", f"{data['fragmentation']:.1%}"),
        *([sizes("limit", data, "limit")] if limited else []),
        *(sizes(name, data, name) for name in ("stitched", "sleeping", "managed") if data[name]),
        *([sizes("CUDA arrays, beside it", data, "cuda_array_bytes")] if data["cuda_array_bytes"] else []),
        *(
            sizes(f"DriverPools, {kind}", data["driver_pools"], kind)
            for kind in ("device", "managed")
            if data["driver_pools"][kind]
        ),
    ]


def pool_lines(data: dict[str, Any], top: int) -> list[str]:
    if not data["pools"]:
        return []
    lines = ["By pool", row("", "reserved", "live", "idle", "largest free")]
    for pool in data["pools"][:top]:
        unused = pool["id"] != (0, 0) and not pool["uses"]
        use = "  graphs" if pool["graphs"] else "  no use" if unused else ""
        asleep = f"  asleep {size_text(pool['sleeping'])}" if pool["asleep"] else ""
        figures = sizes(pool_text(pool["id"]), pool, "reserved", "live", "idle", "largest_free")
        managed = "  managed" if pool.get("managed") else ""
        lines.append(figures + use + asleep + managed)
    return lines + more(len(data["pools"]), top)


def stream_lines(data: dict[str, Any], top: int) -> list[str]:
    if not data["streams"]:
        return []
    lines = ["By stream", row("", "live", "pending", "idle", "largest free")]
    for stream in data["streams"][:top]:
        pool = "" if stream["pool"] == (0, 0) else "  " + pool_text(stream["pool"])
        name = stream_text(stream["stream"])
        lines.append(sizes(name, stream, "live", "pending", "idle", "largest_free") + pool)
    lines += more(len(data["streams"]), top)
    for queue in data["events"][:top]:
        where = "events of free_after" if queue["offers"] else stream_text(queue["stream"])
        events = count_text(queue["events"], "event")
        lines.append(f"  {size_text(queue['bytes'])} are pending on {where} ({events})")
    return lines


def tag_lines(data: dict[str, Any], top: int) -> list[str]:
    tags = [(printable(name) or "no tag", held) for name, held in data["tags"].items() if held]
    if not tags:
        return []
    return ["By tag", *(row(name, size_text(held)) for name, held in tags[:top]), *more(len(tags), top)]


def stack_lines(data: dict[str, Any]) -> list[str]:
    lines = [
        f"  {size_text(held)} in {count_text(count, 'block')}: {stack_text(frames)}"
        for frames, held, count in data["stacks"]
    ]
    why = "no live block has a stack" if data["recording"] else "nothing is recorded"
    advice = "accelrt.memory.record_history() records what is allocated from then on"
    return ["By stack", *(lines or [f"  {why}; {advice}"])]


def block_lines(data: dict[str, Any]) -> list[str]:
    lines = [f"Largest live blocks, of {data['live_blocks']}"] if data["blocks"] else []
    pools = ["Largest blocks of DriverPools"] if data["driver_pool_blocks"] else []
    return [*lines, *map(line_of, data["blocks"]), *pools, *map(line_of, data["driver_pool_blocks"])]


def array_lines(data: dict[str, Any], top: int) -> list[str]:
    arrays = data["cuda_arrays"]
    lines = [f"Largest CUDA arrays, of {len(arrays)}"] if arrays and top else []
    for array in arrays[:top]:
        words = [*array["kinds"], *([f"{array['levels']} levels"] if array["levels"] else [])]
        kind = "".join(f", {word}" for word in words)
        where = f": {stack_text(array['frames'])}" if array["frames"] else ""
        what = f"of {tuple(array['shape'])}, {array['channels']} x {array['dtype']}"
        lines.append(f"  {size_text(array['nbytes'])} {what}{kind}{where}")
    return lines + (more(len(arrays), top) if lines else [])


def report(device: DeviceArgument | None = None, top: int = 10, *, since: Mark | None = None) -> str:
    """Tells as text what holds a device's memory now: totals and fragmentation, then by pool, stream, tag and
    stack, the largest blocks, and page-locked memory.  Stacks and tags are there for what was allocated while
    history was recorded.

        mark = accelrt.memory.mark()
        ...                                       # one more step of what should not grow
        print(accelrt.memory.report(since=mark))  # what grew, by tag, stream and stack, and what is new

    Arguments, Raises: as report_data.
    Returns:
        str, of several lines.
    """
    data = report_data(device, top, since=since)
    if since is not None:
        heading = f"Memory of device {data['device']}, compared with {data['seconds']:.1f} s ago"
        return text_of_growth(data, heading, top)
    if not data:
        return "accelrt has not used a device yet: it holds no memory\n"
    locked = [sizes(key, data["page_locked"], key) for key in ("reserved", "live", "idle")]
    if data["driver_pools"]["pinned"]:
        locked.append(sizes("DriverPools, beside it", data["driver_pools"], "pinned"))
    parts = [
        summary_lines(data),
        pool_lines(data, top),
        stream_lines(data, top),
        tag_lines(data, top),
        stack_lines(data),
        block_lines(data),
        array_lines(data, top),
        ["Page-locked memory of the host", *locked],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
