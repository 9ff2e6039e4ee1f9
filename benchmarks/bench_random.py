"""Random allocation and free, the method of RMM's own benchmark: sizes that nothing repeats.

Sizes are uniform from 1 byte to the largest; each step allocates with a probability of 73 %, or frees a
random live block, which it also does where more than 16,000 MiB would be live; 100,000 blocks are allocated,
and all are freed.  Every allocator has a process of its own, takes the same steps in the same order and
starts each row empty, so the time, which is that of all steps by their number, less the loop's, holds what it
cost to grow.  RMM's arena takes half of the device at once, whatever is asked of it.  A cell whose time ran
out holds the steps that it took (RESULTS.json says how many); one that ran out of memory is empty and named
below.  With --quick there are few steps, and the ratios mean nothing.
"""

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from random_steps import ALLOCATIONS, MIB, QUICK_ALLOCATIONS, Step, bare, steps
from random_subjects import SUBJECTS, Allocator
from rows import Goal, Row
from suite import Suite, options
from words import say_rows

LARGEST = (1, 4, 64, 256, 1024, 4096)  # MiB
CHUNK = 200  # steps between two looks at the clock
SECONDS = 3.0  # for one row of one allocator
Timed = tuple[list[float], int]  # each chunk's nanoseconds per step, and how many steps there were


def rows() -> list[Row]:
    """First the time of every largest size, then the memory."""
    made = [
        Row(f"{size}.time", f"1 B to {size:,} MiB, per step", Goal(2000 if size == 1 else 5000))
        for size in LARGEST
    ]
    return made + [
        Row(f"{size}.ratio", f"1 B to {size:,} MiB: reserved / live", Goal(1.3), "ratio") for size in LARGEST
    ]


def walk(sequence: list[Step], live: list, play: Callable, alloc: object, free: object) -> tuple[int, Timed]:
    """Takes the steps until they or the seconds end.  Answers the nanoseconds, and what the chunks took."""
    total = done = 0
    each = []
    deadline = perf_counter() + SECONDS
    while done < len(sequence) and perf_counter() < deadline:
        chunk = sequence[done : done + CHUNK]
        taken = play(chunk, live, alloc, free)
        total += taken
        done += len(chunk)
        each.append(taken / len(chunk))
    return total, (each, done)


def clear(live: list, allocator: Allocator) -> None:
    """Frees what a walk that ended early has left."""
    for slot, token in enumerate(live):
        live[slot] = None
        if token is None or allocator.free is None:
            continue
        allocator.free(*token) if isinstance(token, tuple) else allocator.free(token)
    allocator.settle()


def measure(largest: int, column: str, quick: bool) -> dict[str, dict]:
    """One largest size through one allocator, which starts empty.  Answers its two cells."""
    allocations = QUICK_ALLOCATIONS if quick else ALLOCATIONS
    sequence, peak = steps(largest * MIB, allocations)
    live: list[object] = [None] * allocations
    walk(sequence, live, bare, None, None)
    loop_total, (_, count) = walk(sequence, live, bare, None, None)
    loop = loop_total / count
    allocator = SUBJECTS[column].open()
    try:
        total, (each, done) = walk(sequence, live, allocator.play, allocator.alloc, allocator.free)
        allocator.settle()
        reserved = allocator.reserved()
    finally:
        clear(live, allocator)
    time = {"value": total / done - loop, "median": statistics.median(each) - loop, "loop": loop}
    return {
        f"{largest}.time": {**time, "steps": done, "of": len(sequence)},
        f"{largest}.ratio": {"value": reserved / peak, "reserved": reserved, "live": peak},
    }


def work(column: str, quick: bool) -> None:
    """The process of one allocator."""
    say_rows(
        SUBJECTS[column].module,
        {f"{largest}.time": partial(measure, largest, column, quick) for largest in LARGEST},
    )


def main() -> None:
    """Every allocator in turn."""
    chosen = options()
    if chosen.peer:
        work(chosen.peer, chosen.quick)
        return
    suite = Suite("random", rows(), list(SUBJECTS), chosen.quick)
    script = str(Path(__file__).resolve())
    for column, subject in SUBJECTS.items():
        suite.fill(column, [sys.executable, script, "--peer", column], subject.environment)
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
