"""What pictures show, measured in a process of its own on the host device: prints it as JSON.

python -m sitegen.measure trace NAME    a trace of benchmarks/traces through the allocator
python -m sitegen.measure stitching     three of six blocks are freed, and a request takes their pages
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import accelrt as cuda

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"
POINTS = 280
MIB = 1 << 20


def blocks() -> list[dict[str, object]]:
    """The device's segments: whether stitched, the address, and (size, is live) of the blocks."""
    return [
        {
            "stitched": segment["serial"] > 0,
            "stream": segment["stream"],
            "address": segment["address"],
            "blocks": [(block["size"], block["state"] != "inactive") for block in segment["blocks"]],
        }
        for segment in cuda.memory_snapshot()
    ]


def replay(name: str) -> dict[str, object]:
    """Replays a trace: what is live and reserved at points of it, and the blocks where most is live."""
    with np.load(TRACES / f"{name}.npz") as arrays:
        columns = [arrays[key].tolist() for key in ("op", "id", "size", "stream")]
    streams = [cuda.Stream() for _ in range(max(columns[3]) + 1)]
    addresses: dict[int, int] = {}
    count = len(columns[0])
    step = count // POINTS + 1
    signs = np.where(np.array(columns[0]), 1, -1) * np.array(columns[2])
    peak, at_peak = int(np.cumsum(signs).argmax()), None
    live, reserved = [], []
    highest_live = highest_reserved = 0
    for index, (op, key, size, stream) in enumerate(zip(*columns, strict=True)):
        if op:
            addresses[key] = cuda.caching_allocator_alloc(size, stream=streams[stream])
            highest_live = max(highest_live, cuda.memory_allocated())
            highest_reserved = max(highest_reserved, cuda.memory_reserved())
        else:
            cuda.caching_allocator_delete(addresses.pop(key))
        if index == peak:
            at_peak = blocks()
        if index % step == step - 1:
            live.append(highest_live)
            reserved.append(highest_reserved)
            highest_live = highest_reserved = 0
    return {"events": count, "live": live, "reserved": reserved, "blocks": at_peak}


def stitch() -> dict[str, object]:
    """The blocks before and after a request that no hole fits."""
    addresses = [cuda.caching_allocator_alloc(12 * MIB) for _ in range(6)]
    for address in addresses[::2]:
        cuda.caching_allocator_delete(address)
    before = blocks()
    cuda.caching_allocator_alloc(30 * MIB)
    return {"before": before, "after": blocks()}


if __name__ == "__main__":
    print(json.dumps(replay(sys.argv[2]) if sys.argv[1] == "trace" else stitch()))
