"""How costs grow with what there is already: streams, live graphs, memory pools, segments.

Each row is a mean.  Most are of operations that happen once in a program's life, so no row repeats: a first
allocation is first only once.  On streams in turn every allocation and free is on another stream than the
one before.  The rows of segments are of a process with plain segments (expandable_segments:False), as many
as the device has room for.  The raw driver's column has what takes no allocator: a page for each stream, and
captures.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from replay_subjects import ROOMY
from rows import Goal, Row
from suite import RAW, Suite, options
from worker import Worker, work

COLD, EMPTIED, GRAPHS, POOLS = 4000, 1024, 20_000, 8000
TURNS, SEGMENTS = 200, 60_000  # Linux gives a process 65,530 mappings; on the host device a segment is one
MIB = 1 << 20
PLAIN = {"ACCELRT_ALLOC_CONF": "expandable_segments:False", "ACCELRT_HOST_MEMORY": "256GiB"}
QUICK = 16  # of each, which shows that all runs
SAMPLE = 100  # operations that a mean is of

ROWS = [
    Row("empty_cache", f"empty_cache() after {EMPTIED} streams", Goal(50_000_000)),
    Row("cold", f"the first allocation on each of {COLD} streams", Goal(100_000)),
    Row("capture_alone", "a capture that allocates, beside no other graph"),
    Row("capture_beside", f"the same beside {GRAPHS} live graphs"),
    Row("pool_alone", "MemPool(), beside none"),
    Row("pool_beside", f"MemPool(), beside {POOLS}"),
    Row("turn_pair", f"alloc + free, 512 B, {TURNS} streams in turn"),
    Row("turn_large", f"alloc + free, 32 MiB, {TURNS} streams in turn"),
    Row("segment_alone", "an allocation that takes a segment, beside none"),
    Row("segment_beside", f"the same beside {SEGMENTS} segments"),
    Row("segment_pair", f"alloc + free, 512 B, beside {SEGMENTS} segments"),
]


def mean(action: Callable[[], object], count: int) -> float:
    """Nanoseconds of one of count calls."""
    start = perf_counter_ns()
    for _ in range(count):
        action()
    return (perf_counter_ns() - start) / count


def first_allocations(count: int) -> float:
    """Of one byte on each of as many new streams, all of which stay live until the last."""
    import accelrt

    streams = iter([accelrt.Stream() for _ in range(count)])
    kept: list[accelrt.Buffer] = []
    return mean(lambda: kept.append(accelrt.Buffer(1, stream=next(streams))), count)


def empty_after(count: int) -> float:
    """What empty_cache takes for the idle memory of as many streams."""
    import accelrt

    accelrt.empty_cache()
    for buffer in [accelrt.Buffer(1, stream=accelrt.Stream()) for _ in range(count)]:
        buffer.free()
    accelrt.synchronize()
    return mean(accelrt.empty_cache, 1)


def captures(count: int, sample: int) -> tuple[float, float]:
    """The means of the first captures, and of those after count others."""
    import accelrt

    stream = accelrt.Stream()
    kept: list[tuple[accelrt.CUDAGraph, accelrt.Buffer]] = []

    def capture() -> None:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            buffer = accelrt.Buffer(1000)
            buffer.fill(1)
        kept.append((graph, buffer))

    alone = mean(capture, sample)
    mean(capture, count)
    return alone, mean(capture, sample)


def pools(count: int, sample: int) -> tuple[float, float]:
    """Likewise of MemPools."""
    import accelrt

    kept: list[accelrt.MemPool] = []
    alone = mean(lambda: kept.append(accelrt.MemPool()), sample)
    mean(lambda: kept.append(accelrt.MemPool()), count)
    return alone, mean(lambda: kept.append(accelrt.MemPool()), sample)


def in_turn(nbytes: int, count: int, rounds: int) -> float:
    """An allocation and its free, on as many streams in turn, after a round that warms up."""
    import accelrt

    alloc, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    streams = [accelrt.Stream() for _ in range(count)]

    def turn() -> None:
        for stream in streams:
            free(alloc(nbytes, stream=stream))

    turn()
    return mean(turn, rounds) / count


def segments(count: int, sample: int) -> tuple[float, float, float]:
    """The means of the first segments, of those after count others, and of a pair beside them."""
    import accelrt

    alloc, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    count = min(count, accelrt.mem_get_info()[0] // (2 * MIB) - 3 * sample)  # what the device has
    kept: list[int] = []

    def take() -> None:
        kept.append(alloc(MIB))  # half of a small segment, whose other half is taken beside the clock

    def grow(times: int) -> float:
        total = 0.0
        for _ in range(times):
            total += mean(take, 1)
            take()
        return total / times

    alone = grow(sample)
    grow(count)
    beside = grow(sample)
    pair = mean(lambda: free(alloc(512)), 10 * sample)
    for address in kept:
        free(address)
    return alone, beside, pair


def measure(worker: Worker) -> None:
    """All rows, in the process of accelrt."""

    def size(count: int) -> int:
        return QUICK if worker.quick else count

    if PLAIN.items() <= os.environ.items():
        values = segments(size(SEGMENTS), size(SAMPLE))
        for key, value in zip(("segment_alone", "segment_beside", "segment_pair"), values, strict=True):
            worker.attempt(key, partial(dict, value=value))
        return
    worker.attempt("turn_pair", lambda: {"value": in_turn(512, size(TURNS), size(SAMPLE))})
    worker.attempt("turn_large", lambda: {"value": in_turn(32 * MIB, size(TURNS), size(SAMPLE))})

    worker.attempt("empty_cache", lambda: {"value": empty_after(size(EMPTIED))})
    worker.attempt("cold", lambda: {"value": first_allocations(size(COLD))})
    for first, second, run, count in (
        ("capture_alone", "capture_beside", captures, GRAPHS),
        ("pool_alone", "pool_beside", pools, POOLS),
    ):
        values = run(size(count), size(SAMPLE))
        for key, value in zip((first, second), values, strict=True):
            worker.attempt(key, partial(dict, value=value))


def main() -> None:
    """Of accelrt, beside the driver's part of it: what grows with what is a property of one allocator."""
    chosen = options()
    if chosen.peer:
        work(chosen.peer, [], measure, chosen.quick)
        return
    suite = Suite("scaling", ROWS, ["accelrt", RAW], chosen.quick)
    command = [sys.executable, str(Path(sys.argv[0]).resolve()), "--peer", "accelrt"]
    suite.fill("accelrt", command, ROOMY)
    suite.fill("accelrt", command, PLAIN)
    suite.fill_raw()
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
