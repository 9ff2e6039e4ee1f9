"""Long runs of random work whose every result is checked: graphs, their changes, and committed memory.

    python benchmarks/long_runs.py updates [--count 1000000]
    python benchmarks/long_runs.py commits [--count 1000000]
    python benchmarks/long_runs.py graphs [--count 100000]
    python benchmarks/long_runs.py definitions [--count 100000]
    python benchmarks/long_runs.py streams [--count 100000]
        [--seconds 600] [--seed 1] [--json]

"updates" gives a kernel node of one instance another pointer so many times, and says what a change took at
first and at last, and how much memory the process has more.  "commits" commits and decommits random ranges
of a reservation, and compares what is committed, and what lies there, with a model.  "graphs" captures random
graphs of fills, copies and kernels, replays each with random memory in place of what it was captured with,
and compares all of that memory with what the same work does without a graph.  "definitions" adds, changes,
removes, copies and instantiates nodes of graphs made by hand, drops what they use, and compares what replays
leave in memory with a model.  "streams" has six streams work on memory of all kinds, which is freed and
allocated with the work under way, and compares it with a model.  A run ends early when the seconds are over,
and says how far it came.  The exit status is 1 where anything differs, or where memory grows.
ACCELRT_DRIVER=host runs it without a GPU.
"""

import argparse
import gc
import json
import random
import statistics
from collections.abc import Callable
from time import perf_counter, perf_counter_ns

import numpy as np
import peers
from checked_run import LOOK, Run, check
from peers.with_accelrt import Accelrt
from random_commits import commits
from random_definitions import Definitions, DifferenceError
from random_streams import Streams
from words import resident_bytes

import accelrt

MIB = 1 << 20
COUNTS = {
    **{"updates": 1_000_000, "commits": 1_000_000},
    **dict.fromkeys(("graphs", "definitions", "streams"), 100_000),
}
GROWTH = 8 * MIB  # of the process over a run, which caches and the interpreter take
ELEMENTS = 256
ARRAYS = 4
ROUNDS = 3  # replays of each graph
OPERATIONS = {"definitions": 200, "streams": 1000}  # of one subject
NUMBERS = 1 << 18  # that arrays begin with parts of


# --- a kernel node's pointer -------------------------------------------------------------------------------


def updates(run: Run) -> None:
    """Changes one node again and again, LOOK times a sample."""
    update = Accelrt(False).update_1()
    for _ in range(LOOK):
        update()
    gc.collect()
    before, live, samples = resident_bytes(), accelrt.memory_allocated(), []
    done = 0
    while done < run.count and not run.over():
        start = perf_counter_ns()
        for _ in range(LOOK):
            update()
        samples.append((perf_counter_ns() - start) / LOOK)
        done += LOOK
    gc.collect()
    grown = resident_bytes() - before
    tenth = max(1, len(samples) // 10)
    run.said = {
        "done": done,
        "first_ns": statistics.median(samples[:tenth]),
        "last_ns": statistics.median(samples[-tenth:]),
        "grown_bytes": grown,
    }
    check(grown <= GROWTH, f"the process grew by {grown} bytes in {done} changes")
    check(accelrt.memory_allocated() == live, "the changes left memory allocated")


# --- random graphs ------------------------------------------------------------------------------------------

Operation = tuple[str, int, int, int]


def random_work(chosen: random.Random) -> list[Operation]:
    """Operations on the arrays: a kind, which array it writes, which it reads, and a number."""
    kinds = ("fill", "copy", "double", "add")
    return [
        (chosen.choice(kinds), chosen.randrange(ARRAYS), chosen.randrange(ARRAYS), chosen.randrange(1 << 16))
        for _ in range(chosen.randint(1, 12))
    ]


def perform(work: list[Operation], arrays: list[accelrt.Array], kernels: dict[str, Callable]) -> None:
    """Puts the operations into the current stream."""
    for kind, to, origin, number in work:
        if kind == "fill":
            arrays[to].fill_(number)
        elif kind == "copy" and to != origin:
            accelrt.copy(arrays[to], arrays[origin], blocking=False)
        elif kind == "double":
            kernels["double"](arrays[origin], out=arrays[to])
        elif kind == "add":
            kernels["add"](arrays[to], arrays[origin], out=arrays[to])


def used_by(work: list[Operation]) -> list[int]:
    """Which arrays a graph of the operations uses."""
    used = set()
    for kind, to, origin, _ in work:
        if kind != "copy" or to != origin:
            used |= {to} if kind == "fill" else {to, origin}
    return sorted(used)


class Graphs:
    """What all graphs of a run share: kernels, numbers to begin with, and a place to compare arrays in.

    Both are page-locked, so that copies only join the stream: the host waits once for each replay.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.kernels = {
            "double": accelrt.elementwise("T x", "T y", "y = 2 * x", name="doubled"),
            "add": accelrt.elementwise("T x, T y", "T z", "z = x + y", name="added"),
        }
        self.numbers = accelrt.empty(NUMBERS, np.int32, pin_memory=True)
        random_numbers = np.random.default_rng(run.random.randrange(1 << 31))
        self.numbers.numpy()[:] = random_numbers.integers(0, 1 << 16, NUMBERS, np.int32)
        self.compared = accelrt.empty((2 * ARRAYS, ELEMENTS), np.int32, pin_memory=True)
        self.seen = self.compared.numpy()
        self.rows = [self.compared[row] for row in range(2 * ARRAYS)]

    def copies(self, of: list[accelrt.Array]) -> list[accelrt.Array]:
        """Arrays with what others hold."""
        arrays = [accelrt.empty(ELEMENTS, np.int32) for _ in of]
        accelrt.copy_many(arrays, of)
        return arrays

    def fresh(self, count: int) -> list[accelrt.Array]:
        """Arrays of random integers."""
        firsts = [self.run.random.randrange(NUMBERS - ELEMENTS) for _ in range(count)]
        return self.copies([self.numbers[first : first + ELEMENTS] for first in firsts])

    def compare(self, have: list[accelrt.Array], wanted: list[accelrt.Array], work: list[Operation]) -> None:
        """Waits, and ends the program where an array differs."""
        self.seen[:ARRAYS], self.seen[ARRAYS:] = 1, 2  # so that a copy that is not made is seen
        accelrt.copy_many(self.rows, have + wanted)
        accelrt.current_stream().synchronize()
        differ = (self.seen[:ARRAYS] != self.seen[ARRAYS:]).any(1)
        check(not differ.any(), f"arrays {np.flatnonzero(differ).tolist()} differ after {work}")

    def parameters(
        self, graph: accelrt.CUDAGraph, work: list[Operation], arrays: list[accelrt.Array]
    ) -> tuple:
        """The names of the arrays that the graph uses, bound; the others are refused, one by one."""
        used = used_by(work)
        for index in set(range(ARRAYS)).difference(used):
            try:
                accelrt.GraphParameters(graph, m=arrays[index])
            except ValueError as error:
                check("no node of the graph uses m" in str(error), str(error))
            else:
                check(False, f"array {index} was found in a graph of {work}")
        return used, accelrt.GraphParameters(graph, **{f"m{index}": arrays[index] for index in used})

    def one(self) -> int:
        """Captures a graph and replays it with other memory; answers how often."""
        chosen = self.run.random
        work, arrays = random_work(chosen), self.fresh(ARRAYS)
        if not used_by(work):
            return 0
        graph = accelrt.CUDAGraph(keep_graph=True)
        with accelrt.graph(graph):
            perform(work, arrays, self.kernels)
        used, bound = self.parameters(graph, work, arrays)
        for _ in range(ROUNDS):
            named = [index for index in used if chosen.random() < 0.5]
            changed = dict(zip(named, self.fresh(len(named)), strict=True))
            arrays = [changed.get(index, each) for index, each in enumerate(arrays)]
            expected = self.copies(arrays)
            perform(work, expected, self.kernels)
            bound.replay(**{f"m{index}": each for index, each in changed.items()})
            self.compare(arrays, expected, work)
        return ROUNDS


def graphs(run: Run) -> None:
    """Random graphs with random memory."""
    done = replays = 0
    with accelrt.stream(accelrt.Stream()):
        shared = Graphs(run)
        while done < run.count and not run.over():
            replays += shared.one()
            done += 1
            if done % LOOK == 0:
                accelrt.memory.audit()
    accelrt.synchronize()
    run.said = {"done": done, "replays": replays}


# --- subjects that come and go ------------------------------------------------------------------------------


def definitions(run: Run) -> None:
    """Random operations on random definitions, of which nothing is left."""
    replays = 0

    def begin(seed: int) -> Definitions:
        return Definitions(random.Random(seed), peers.on_host())

    def end(subject: Definitions) -> None:
        nonlocal replays
        replays += subject.replays

    run.said = {"done": operate(run, OPERATIONS["definitions"], begin, end)}
    run.said["replays"] = replays


def streams(run: Run) -> None:
    """Random work of streams on memory that comes and goes."""

    def end(subject: Streams) -> None:
        subject.look()
        subject.close()

    run.said = {"done": operate(run, OPERATIONS["streams"], lambda seed: Streams(random.Random(seed)), end)}


def operate(run: Run, operations: int, begin: Callable, end: Callable) -> int:
    """So many operations on one subject after the other; answers how many there were.

    Each subject has a seed that the one before it gives, so that a run with that seed begins with it.
    """
    done, live, seed = 0, accelrt.memory_allocated(), run.seed
    while done < run.count and not run.over():
        subject = begin(seed)
        first = done
        try:
            while done < min(first + operations, run.count):
                done += 1
                subject.step()
            end(subject)
        except DifferenceError as error:
            check(False, f"{error}, after {done - first} operations with --seed {seed}")
        seed = random.Random(seed + 1).getrandbits(32)
        del subject
        for _ in range(2):  # what a replay under way kept of a cycle goes with the next collection
            gc.collect()
            accelrt.synchronize()
        check(accelrt.memory_allocated() == live, "subjects that were dropped left memory allocated")
        accelrt.memory.audit()
    return done


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=COUNTS)
    parser.add_argument("--count", type=int, help="changes, steps or graphs")
    parser.add_argument("--seconds", type=float, default=600, help="after which it ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON on one line")
    options = parser.parse_args()
    count = COUNTS[options.mode] if options.count is None else options.count
    run = Run(count, options.seconds, options.seed)
    start = perf_counter()
    modes = (updates, commits, graphs, definitions, streams)
    {mode.__name__: mode for mode in modes}[options.mode](run)
    said = {"mode": options.mode, "of": count, **run.said, "seconds": round(perf_counter() - start, 3)}
    words = (value if isinstance(value, str) else f"{key} {value:,}" for key, value in said.items())
    print(json.dumps(said) if options.json else "  ".join(words))


if __name__ == "__main__":
    main()
