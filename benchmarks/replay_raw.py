"""Replays a folder of traces through accelrt and through torch's raw call, within a time that is given.

    python benchmarks/replay_raw.py [FOLDER] [--seconds N]

Prints for each trace the most reserved to the most live of accelrt, the nanoseconds per event of its
first and its fourth pass, less the loop's, both over those of torch's raw call
(_cuda_cudaCachingAllocator_raw_alloc), and how often each of accelrt's passes called the driver's
virtual memory. accelrt names its device, and both get a stream's handle. Each library has a process of
its own, which is stopped after the seconds (100); what it has measured by then is printed. Without a GPU
accelrt runs on the host device, alone.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType

import peers
from replay_subjects import ROOMY
from replay_trace import FOLDER, PASSES, play_bare, read
from words import listen, say_rows

COLUMNS = ("accelrt", "torch")
HEADER = ("trace", "reserved/live", "first, ns", "over torch", "fourth, ns", "over torch", "calls by pass")


def play(events: list, alloc: Callable, free: Callable, named: bool) -> int:
    """One pass, after which all is freed.  Answers its nanoseconds.  named: alloc takes the device too."""
    live: dict[int, int] = {}
    start = perf_counter_ns()
    for op, key, size, stream in events:
        if op:
            live[key] = alloc(size, 0, stream) if named else alloc(size, stream)
        else:
            free(live.pop(key))
    taken = perf_counter_ns() - start
    while live:
        free(live.popitem()[1])
    return taken


def replay(path: Path, library: ModuleType, alloc: Callable, free: Callable) -> dict[str, dict]:
    """One trace, from an empty cache.  Answers its cells: the passes, the ratio, and calls by pass."""
    recorded, peak = read(path.stem, False, path.parent)
    library.synchronize()
    library.empty_cache()
    library.reset_peak_memory_stats()
    streams = [library.Stream() for _ in range(max(event[3] for event in recorded))]
    handles = [0, *(stream.cuda_stream for stream in streams)]
    events = [(op, key, size, handles[index]) for op, key, size, index in recorded]
    loop = min(play_bare(events) for _ in range(3)) / len(events)
    times, calls = [], []
    for _ in range(PASSES):
        before = library.memory_stats().get("virtual_memory_calls", 0)
        times.append(play(events, alloc, free, library.__name__ == "accelrt") / len(events) - loop)
        library.synchronize()
        calls.append(library.memory_stats().get("virtual_memory_calls", 0) - before)
    ratio = library.max_memory_reserved() / peak
    return {path.stem: {"times": times, "calls": calls, "ratio": ratio}}


def measure(column: str, folder: Path) -> None:
    """The process of one library."""
    traces = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_size)
    if column == "torch":
        from torch import _C, cuda

        cuda.init()
        library = cuda
        alloc, free = _C._cuda_cudaCachingAllocator_raw_alloc, _C._cuda_cudaCachingAllocator_raw_delete
    else:
        import accelrt

        library = accelrt
        alloc, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
    say_rows(column, {path.stem: partial(replay, path, library, alloc, free) for path in traces})


def line(name: str, ours: dict, theirs: dict | None) -> tuple[str, ...]:
    """A trace's line of the table."""
    shown = [name, f"{ours['ratio']:.3f}"]
    for index in (0, -1):
        time = ours["times"][index]
        shown += [f"{time:.0f}", f"{time / theirs['times'][index]:.2f}" if theirs else "-"]
    return (*shown, " ".join(str(count) for count in ours["calls"]))


def main() -> None:
    """Both libraries in turn, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="of traces, *.npz")
    parser.add_argument("--seconds", type=float, default=100, help="for each library")
    parser.add_argument("--be", choices=COLUMNS, help="be the process of one library")
    given = parser.parse_args()
    if given.be:
        measure(given.be, given.folder)
        return
    found: dict[str, dict] = {column: {} for column in COLUMNS}
    for column in COLUMNS[: 1 if peers.on_host() else None]:
        command = [sys.executable, __file__, str(given.folder), "--be", column]
        words, end = listen(command, given.seconds, ROOMY)
        for said in words:
            found[column].update(said.get("cells", {}))
            if "error" in said or "absent" in said:
                print(f"{column}: {said}", file=sys.stderr)
        if end:
            print(f"{column}: {end}", file=sys.stderr)
    print("| " + " | ".join(HEADER) + " |\n" + "| --- " * len(HEADER) + "|")
    for name, ours in found["accelrt"].items():
        print("| " + " | ".join(line(name, ours, found["torch"].get(name))) + " |")


if __name__ == "__main__":
    main()
