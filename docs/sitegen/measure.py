"""What pictures show, measured in a process of its own on the host device: prints it as JSON.

python -m sitegen.measure trace NAME    a trace of benchmarks/traces through the allocator
python -m sitegen.measure stitching     six blocks, of which three are freed, and a larger one that takes their pages
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
    """The segments of the device: whether each is stitched, its address, and (size, is live) of its blocks."""
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
    """Replays a trace: what is live and reserved at points of it, and the blocks where most is reserved so far."""
    with np.load(TRACES / f"{name}.npz") as arrays:
        columns = [arrays[key].tolist() for key in ("op", "id", "size", "stream")]
    streams = [cuda.Stream() for _ in range(max(columns[3]) + 1)]
    addresses: dict[int, int] = {}
    count = len(columns[0])
    step = count // POINTS + 1
    live, reserved, most, at_most = [], [], 0, None
    highest_live = highest_reserved = 0
    for index, (op, key, size, stream) in enumerate(zip(*columns, strict=True)):
        if op:
            addresses[key] = cuda.caching_allocator_alloc(size, stream=streams[stream])
            highest_live = max(highest_live, cuda.memory_allocated())
            highest_reserved = max(highest_reserved, cuda.memory_reserved())
        else:
            cuda.caching_allocator_delete(addresses.pop(key))
        if index % step == step - 1:
            live.append(highest_live)
            reserved.append(highest_reserved)
            if highest_live > most:
                most, at_most = highest_live, blocks()
            highest_live = highest_reserved = 0
    return {"events": count, "live": live, "reserved": reserved, "blocks": at_most}


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
