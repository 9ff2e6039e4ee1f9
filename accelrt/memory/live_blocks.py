"""The live blocks of a device, with the stacks and tags that were recorded of them."""

from __future__ import annotations

from accelrt.allocator.readers import pool_blocks, segments
from accelrt.memory.explain import pool_text, size_text, stack_text, stream_text
from accelrt.memory.history.recording import frames_of, tag_name

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any


def live_blocks(ordinal: int) -> list[dict[str, Any]]:
    """The live blocks of a device, the largest first: address, size, requested_size, stream, pool, kind (""),
    and the numbers of the stack ("frames") and the tag, as of read_stats.segments.
    """
    live = [
        {**block, "stream": segment["stream"], "pool": segment["segment_pool_id"], "kind": ""}
        for segment in segments(ordinal)[0]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return largest_first(live)


def largest_first(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(blocks, key=lambda block: (-block["size"], block["address"]))


def live_memory(ordinal: int) -> list[dict[str, Any]]:
    """The live blocks of a device, and what the driver's pools gave in its streams, whose kind is "device",
    "managed" or "pinned"; the largest first.
    """
    return largest_first(live_blocks(ordinal) + pool_blocks(ordinal))


def named(block: dict[str, Any]) -> dict[str, Any]:
    """A block of live_blocks with its frames and the name of its tag in place of their numbers."""
    return block | {"frames": frames_of(block["frames"]), "tag": tag_name(block["tag"])}


def described(block: dict[str, Any]) -> list[str]:
    """Returns what is known of a block of named(): its pool, tag and stack, without those that it lacks."""
    return [
        *([f"{block['kind']} memory of a driver's pool"] if block["kind"] else []),
        *([pool_text(block["pool"])] if block["pool"] != (0, 0) else []),
        *([f"tag {block['tag']!r}"] if block["tag"] else []),
        *([stack_text(block["frames"])] if block["frames"] else []),
    ]


def line_of(block: dict[str, Any]) -> str:
    """A report's line about a block of named()."""
    span = f"{size_text(block['size'])} at {block['address']:#x}"
    return "  " + ", ".join([span, stream_text(block["stream"]), *described(block)])


def more(total: int, shown: int) -> list[str]:
    """A report's line about the entries that it leaves out, if there are any."""
    return [f"  ... and {total - shown} more"] if total > shown else []


def by_stack(stacks: list[tuple[int, int, int]], top: int) -> list[tuple[list[dict[str, Any]], int, int]]:
    """The stacks that most live memory was allocated by, as (frames, bytes, blocks), of holdings' list."""
    return [(frames_of(number), held, count) for number, held, count in stacks[:top]]
