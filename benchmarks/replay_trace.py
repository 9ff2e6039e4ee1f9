"""The process of one allocator: replays every trace and says what it took (words.py).

    python replay_trace.py COLUMN [--quick]

replay.py starts it, with the environment that the allocator needs.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import numpy as np
from replay_subjects import SUBJECTS, Allocator
from words import say_rows

FOLDER = Path(__file__).with_name("traces")
TRACES = ("gnn", "resnet", "gpt2", "lstm_small", "unet_multistream", "moe_train", "llama_serve", "vit_serve")
QUICK_EVENTS = 3_000
PASSES = 4
Event = tuple[int, int, int, object]


def read(name: str, quick: bool, folder: Path = FOLDER) -> tuple[list[tuple[int, int, int, int]], int]:
    """A trace's events (op, id, size, stream index), and the most bytes that were live."""
    with np.load(folder / f"{name}.npz") as arrays:
        parts = [arrays[key].tolist() for key in ("op", "id", "size", "stream")]
    events = list(zip(*parts, strict=True))[: QUICK_EVENTS if quick else None]
    sizes: dict[int, int] = {}
    live = peak = 0
    for op, key, size, _ in events:
        if op:
            sizes[key] = size
            live += size
            peak = max(peak, live)
        else:
            live -= sizes.pop(key)
    return events, peak


def play(events: list[Event], live: dict, alloc: Callable, free: Callable) -> int:
    """One pass through an allocator.  Answers its nanoseconds; live holds what the trace did not free."""
    start = perf_counter_ns()
    for op, key, size, stream in events:
        if op:
            live[key] = alloc(size, stream=stream)
        else:
            free(live.pop(key))
    return perf_counter_ns() - start


def play_bare(events: list[Event]) -> int:
    """The same loop without an allocator."""
    live: dict[int, int] = {}
    start = perf_counter_ns()
    for op, key, size, _ in events:
        if op:
            live[key] = size
        else:
            live.pop(key)
    return perf_counter_ns() - start


def one_pass(events: list[Event], allocator: Allocator) -> int:
    """A pass that leaves nothing allocated, whatever happens.  Answers its nanoseconds."""
    live: dict[int, object] = {}
    try:
        return play(events, live, allocator.alloc, allocator.free)
    finally:
        while live:
            allocator.free(live.popitem()[1])
        allocator.settle()


def replay(name: str, column: str, quick: bool) -> dict[str, dict]:
    """One trace through one allocator, which starts empty.  Answers its cells by row."""
    recorded, peak = read(name, quick)
    allocator = SUBJECTS[column].open(1 + max(event[3] for event in recorded))
    events = [(op, key, size, allocator.streams[index]) for op, key, size, index in recorded]
    loop = min(play_bare(events) for _ in range(3)) / len(events)
    times = [one_pass(events, allocator) / len(events) - loop for _ in range(PASSES)]
    reserved = allocator.reserved()
    return {
        f"{name}.ratio": {"value": reserved / peak, "reserved": reserved, "live": peak},
        f"{name}.first": {"value": times[0], "loop": loop, "events": len(events)},
        f"{name}.fourth": {"value": times[-1], "loop": loop, "events": len(events)},
    }


def main(column: str, quick: bool) -> None:
    """All traces through one allocator."""
    say_rows(SUBJECTS[column].module, {name: partial(replay, name, column, quick) for name in TRACES})


if __name__ == "__main__":
    main(sys.argv[1], "--quick" in sys.argv[2:])
