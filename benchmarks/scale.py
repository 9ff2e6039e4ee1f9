"""How costs grow with the number of devices, streams, live blocks and graphs, on the host device.

    python benchmarks/scale.py [--quick] [--out benchmarks/SCALE.md] [--json]

Each column is a process of its own, which makes as many as its head says.  Times are means, in microseconds
unless the row says otherwise, and the least of three processes, for others use the machine too; memory is
what the process has more of than before, in KiB for each (RSS, without pages of the devices that nothing
wrote to).  The host device's own work is in all of them: a stream there is a queue of its own, a device
memory of the process.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import count as counted
from pathlib import Path

from bench_scaling import mean
from run_all import processor
from words import listen, resident_bytes, say

MIB = 1 << 20
SAMPLE = 1000  # calls that a mean is of
ROUNDS = 3
SECONDS = 900  # for a process
PAGE = Path(__file__).with_name("SCALE.md")
SETTINGS = {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "0"}

Cells = dict[str, float]


def resident() -> float:
    """KiB of this process that are in memory."""
    return resident_bytes() / 1024


def microseconds(action: Callable[[], object], calls: int) -> float:
    """The mean of so many calls, each of which is the first of its kind."""
    return mean(action, calls) / 1000


def repeated(action: Callable[[], object], calls: int = SAMPLE) -> float:
    """The mean of so many calls after one that is not counted."""
    action()
    return microseconds(action, calls)


def enter(context: AbstractContextManager[object]) -> None:
    with context:
        pass


def devices(count: int) -> Cells:
    """Of so many devices, each with a stream and a block."""
    import accelrt

    start = microseconds(lambda: accelrt.init(driver="host"), 1)
    before = resident()
    ordinals = iter(range(count))
    kept: list[object] = []

    def first() -> None:
        with accelrt.device(next(ordinals)):
            kept.append(accelrt.Buffer(1000, stream=accelrt.Stream()))

    firsts = microseconds(first, count)
    memory = (resident() - before) / count
    alloc, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    turns = counted()
    return {
        "init()": start,
        "the first stream and allocation of a device": firsts,
        "alloc + free, 512 B, on the last device": repeated(lambda: free(alloc(512, count - 1))),
        "alloc + free, 512 B, on devices in turn": repeated(
            lambda: free(alloc(512, next(turns) % count)), SAMPLE * 10
        ),
        "with device(last)": repeated(lambda: enter(accelrt.device(count - 1))),
        "memory_stats() of a device": repeated(lambda: accelrt.memory_stats(count - 1)),
        "empty_cache() of all": repeated(accelrt.empty_cache, 10),
        "memory.snapshot() of all, ms": repeated(accelrt.memory.snapshot, 3) / 1000,
        "threads of the process": len(os.listdir("/proc/self/task")),
        "host memory for each device, KiB": memory,
    }


def streams(count: int) -> Cells:
    """Of so many streams, each with work and a block."""
    import accelrt

    accelrt.init(driver="host")
    accelrt.Buffer(1)
    before = resident()
    made: list[accelrt.Stream] = []
    kept: list[accelrt.Buffer] = []
    makes = microseconds(lambda: made.append(accelrt.Stream()), count)
    firsts = iter(made)
    first = microseconds(lambda: kept.append(accelrt.Buffer(1000, stream=next(firsts))), count)
    memory = (resident() - before) / count
    alloc, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    turns = counted()

    def pair() -> None:
        free(alloc(512, stream=made[next(turns) % count]))

    def across() -> None:
        number = next(turns)
        block = accelrt.Buffer(512, stream=made[number % count])
        block.record_stream(made[(number + 1) % count])
        block.free()

    cells = {
        "Stream()": makes,
        "the first allocation on a stream": first,
        "alloc + free, 512 B, on one of them": repeated(lambda: free(alloc(512, stream=made[0]))),
        "alloc + free, 512 B, on streams in turn": repeated(pair, SAMPLE * 10),
        "the same, used on the next stream too": repeated(across, SAMPLE * 10),
        "wait_stream(), streams in turn": repeated(
            lambda: made[next(turns) % count].wait_stream(made[next(turns) % count])
        ),
        "an empty synchronize() of the device": repeated(accelrt.synchronize, 20),
        "memory_stats()": repeated(accelrt.memory_stats, 100),
    }
    kept.clear()
    cells["empty_cache() of what all have, ms"] = microseconds(accelrt.empty_cache, 1) / 1000
    return {**cells, "host memory for each stream, KiB": memory}


def blocks(count: int) -> Cells:
    """Of so many live blocks of 512 bytes; what is freed to make room is every third."""
    import accelrt

    accelrt.init(driver="host")
    alloc, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    free(alloc(512))
    before = resident()
    kept = [0] * count
    places = iter(range(count))

    def take() -> None:
        kept[next(places)] = alloc(512)

    takes = microseconds(take, count)
    memory = (resident() - before) / count
    cells = {
        "an allocation, mean of all": takes,
        "alloc + free, 512 B, beside them": repeated(lambda: free(alloc(512))),
        "alloc + free, 3 MiB, beside them": repeated(lambda: free(alloc(3 * MIB))),
        "memory_allocated()": repeated(accelrt.memory_allocated),
        "memory_stats()": repeated(accelrt.memory_stats, 100),
        "memory.report_data(), ms": repeated(accelrt.memory.report_data, 1) / 1000,
        "memory.snapshot(), ms": repeated(accelrt.memory.snapshot, 1) / 1000,
    }
    thirds, holes = iter(kept[::3]), len(kept[::3])
    spots = iter(range(0, count, 3))

    def fill() -> None:
        kept[next(spots)] = alloc(512)

    cells["a free in the middle of others"] = microseconds(lambda: free(next(thirds)), holes)
    cells["an allocation into such a hole"] = microseconds(fill, holes)
    rest = iter(kept)
    cells["a free, mean of all"] = microseconds(lambda: free(next(rest)), count)
    cells["empty_cache() after all, ms"] = microseconds(accelrt.empty_cache, 1) / 1000
    return {**cells, "host memory for each block, KiB": memory}


def graphs(count: int) -> Cells:
    """Of so many live graphs, each of which fills a block of its own, of the one pool of all."""
    import accelrt

    accelrt.init(driver="host")
    stream, pool = accelrt.Stream(), accelrt.graph_pool_handle()
    kept: list[tuple[accelrt.CUDAGraph, accelrt.Buffer]] = []

    def capture() -> None:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, pool=pool, stream=stream):
            block = accelrt.Buffer(1000)
            block.fill(1)
        kept.append((graph, block))

    capture()
    before = resident()
    captures = microseconds(capture, count)
    memory = (resident() - before) / count
    sample = min(count, SAMPLE)
    beside = microseconds(capture, sample)
    turns = counted()
    accelrt.set_stream(stream)
    cells = {
        "a capture, mean of all": captures,
        "a capture beside them": beside,
        "replay() of one of them": repeated(kept[-1][0].replay),
        "replay() of them in turn": repeated(lambda: kept[next(turns) * 7 % count][0].replay()),
        "alloc + free, 512 B, outside": repeated(
            lambda: accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(512))
        ),
        "memory_stats()": repeated(accelrt.memory_stats, 100),
    }
    stream.synchronize()
    cells["reset() of one of them"] = microseconds(lambda: kept.pop()[0].reset(), sample)
    cells["the end of all others, for each"] = mean(kept.clear, 1) / 1000 / (count + 1)
    cells["empty_cache() after all, ms"] = microseconds(accelrt.empty_cache, 1) / 1000
    return {**cells, "host memory for each graph, KiB": memory}


# What is counted -> who measures it, how many, and the settings that make room.
SWEEPS: dict[str, tuple[Callable[[int], Cells], tuple[int, ...], dict[str, str]]] = {
    "devices": (devices, (1, 4, 16, 64), {"ACCELRT_HOST_MEMORY": "64MiB"}),
    "streams": (streams, (1, 10, 100, 1000), {"ACCELRT_HOST_MEMORY": "8GiB"}),
    "live blocks": (blocks, (1000, 10_000, 100_000, 1_000_000), {"ACCELRT_HOST_MEMORY": "4GiB"}),
    "live graphs": (graphs, (100, 1000, 10_000, 100_000), {"ACCELRT_HOST_MEMORY": "4GiB"}),
}
QUICK = 20  # at most, of each


def measure(subject: str, count: int, rounds: int) -> Cells:
    """A column: of each cell the least that so many processes found, one after the other.

    Raises:
        RuntimeError: that process failed.
    """
    _, _, settings = SWEEPS[subject]
    room = {"ACCELRT_HOST_DEVICES": str(count)} if subject == "devices" else {}
    command = [sys.executable, str(Path(__file__).resolve()), "--subject", subject, "--count", str(count)]
    columns = []
    for _ in range(rounds):
        said, end = listen(command, SECONDS, {**SETTINGS, **settings, **room})
        if end or not said:
            raise RuntimeError(f"{count} {subject}: {end}")
        columns.append(said[0]["cells"])
    return {name: min(each[name] for each in columns) for name in columns[0]}


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(subject: str, columns: dict[int, Cells]) -> str:
    lines = [
        f"## {subject.capitalize()}\n",
        f"| {subject} | " + " | ".join(f"{count:,}" for count in columns) + " | last / first |",
        "| --- | " + " | ".join("---:" for _ in (*columns, "growth")) + " |",
    ]
    for name in next(iter(columns.values())):
        values = [cells[name] for cells in columns.values()]
        growth = f"{values[-1] / values[0]:.1f}" if values[0] > 0 else "-"
        lines.append(f"| {name} | " + " | ".join([*map(number, values), growth]) + " |")
    return "\n".join(lines)


def page(found: dict[str, dict[int, Cells]]) -> str:
    """The page: how it was measured, and a table for each subject."""
    import accelrt

    how = " ".join((__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].split())
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    where = f"{processor()}, Python {platform.python_version()}, accelrt {accelrt.__version__}"
    head = (
        "# How costs grow\n\n"
        f"Written by `python benchmarks/scale.py` on {today}: {where}, the host device. {how}\n\n"
        "[Benchmarks](RESULTS.md) has a GPU's figures beside 8,000 streams and 20,000 graphs, under "
        '"Costs beside much else".\n'
    )
    return "\n".join([head, *(f"{table(subject, columns)}\n" for subject, columns in found.items())])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"no more than {QUICK} of each")
    parser.add_argument("--out", type=Path, help="the page; benchmarks/SCALE.md, or none with --quick")
    parser.add_argument("--json", action="store_true", help="print the figures, and write no page")
    parser.add_argument("--subject", choices=SWEEPS, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subject:
        say(cells=SWEEPS[options.subject][0](options.count))
        return
    found: dict[str, dict[int, Cells]] = {}
    for subject, (_, counts, _) in SWEEPS.items():
        kept = [each for each in counts if each <= QUICK] or [QUICK] if options.quick else counts
        found[subject] = {each: measure(subject, each, 1 if options.quick else ROUNDS) for each in kept}
        if not options.json:
            print(table(subject, found[subject]), flush=True)
    if options.json:
        print(json.dumps(found))
    elif out := options.out or (None if options.quick else PAGE):
        out.write_text(page(found))


if __name__ == "__main__":
    main()
