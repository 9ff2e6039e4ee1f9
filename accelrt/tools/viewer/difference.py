"""The live memory of a snapshot that an earlier one lacks, as the page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelrt.memory.explain import stack_text, stream_text
from accelrt.memory.growth import compared, of_snapshot

MOST = 200  # entries of each list


def difference_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compares two snapshots, by device, as accelrt.memory.compare_snapshots() makes it.

    Arguments:
        before, after: dict, torch's or accelrt's.
    Returns:
        list of dicts: device; totals, lists of name, before, after (bytes, or a count), and whether it is
        bytes; tags, streams and stacks, lists of text, title, bytes and blocks by which each changed; blocks,
        lists of size, address, stream, tag, stack and title; came and went, of blocks and bytes.
    """
    snapshots = (dict(before), dict(after))
    devices = {segment.get("device", 0) for each in snapshots for segment in each.get("segments", ())}
    return [described(device, *snapshots) for device in sorted(devices)]


def described(device: int, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    differences = compared(of_snapshot(before, device), of_snapshot(after, device), MOST)
    return {
        "device": device,
        "totals": [
            ["Reserved", *differences["reserved"], True],
            ["Live", *differences["live"], True],
            ["Live blocks", *differences["live_blocks"], False],
        ],
        "tags": [[tag or "no tag", "", *change] for tag, *change in differences["tags"][:MOST]],
        "streams": [[stream_text(stream), "", *change] for stream, *change in differences["streams"][:MOST]],
        "stacks": [[*stack_texts(frames), *change] for frames, *change in differences["stacks"][:MOST]],
        "blocks": [
            [
                *(block["size"], f"{block['address']:#x}", stream_text(block["stream"]), block["tag"] or "-"),
                *stack_texts(block["frames"]),
            ]
            for block in differences["blocks"]
        ],
        "came": [differences["new_blocks"], differences["new_bytes"]],
        "went": [differences["gone_blocks"], differences["gone_bytes"]],
    }


def stack_texts(frames: list[dict[str, Any]]) -> list[str]:
    """Writes a stack in a few words, and whole, a frame a line."""
    if not frames:
        return ["no stack", ""]
    lines = [f"{each.get('name', '?')}  {each.get('filename', '')}:{each.get('line', 0)}" for each in frames]
    return [stack_text(frames), "\n".join(lines)]
