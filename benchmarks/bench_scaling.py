"""How costs grow with what there is already: streams, live graphs, memory pools.

Each row is the mean over operations that happen once in a program's life, so no row repeats: a first
allocation is first only once.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from replay_subjects import ROOMY
from rows import Goal, Row
from suite import Suite, options
from worker import Worker, work

COLD, EMPTIED, GRAPHS, POOLS = 4000, 1024, 20_000, 8000
QUICK = 16  # of each, which shows that all runs
SAMPLE = 100  # operations that a mean is of

ROWS = [
    Row("empty_cache", f"empty_cache() after {EMPTIED} streams", Goal(50_000_000)),
    Row("cold", f"the first allocation on each of {COLD} streams", Goal(100_000)),
    Row("capture_alone", "a capture that allocates, beside no other graph"),
    Row("capture_beside", f"the same beside {GRAPHS} live graphs"),
    Row("pool_alone", "MemPool(), beside none"),
    Row("pool_beside", f"MemPool(), beside {POOLS}"),
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


def measure(worker: Worker) -> None:
    """All rows, in the process of accelrt."""

    def size(count: int) -> int:
        return QUICK if worker.quick else count

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
    """Of accelrt alone: what grows with what is a property of one allocator."""
    chosen = options()
    if chosen.peer:
        work(chosen.peer, [], measure, chosen.quick)
        return
    suite = Suite("scaling", ROWS, ["accelrt"], chosen.quick)
    command = [sys.executable, str(Path(sys.argv[0]).resolve()), "--peer", "accelrt"]
    suite.fill("accelrt", command, ROOMY)
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
