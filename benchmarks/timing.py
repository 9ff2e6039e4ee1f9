"""How one piece of work is timed.

Work is called in batches; a batch's time is divided by its calls, and the median over many batches counts.
The loop itself costs tens of nanoseconds, so the same loop around an empty call is timed just before, and its
median is subtracted, for every library alike.  Each batch starts with the device idle, so that no queue is
ever full; garbage collection is off while a batch runs.
"""

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter_ns


def nothing() -> None:
    """The empty call: what the loop costs."""


@dataclass(frozen=True)
class Work:
    """Something to time."""

    call: Callable[[], object]
    empty: Callable[[], object] = nothing  # the call without what is timed
    per: int = 1  # operations in one call
    nbytes: int = 0  # bytes that one call moves; a rate is timed up to the completion of its batch


@dataclass(frozen=True)
class Budget:
    """How long one figure may take."""

    seconds: float
    least: int  # batches, however long they take
    most: int


FULL = Budget(0.2, 7, 400)
QUICK = Budget(0.01, 3, 20)


def time_batch(call: Callable[[], object], batch: int) -> int:
    """Nanoseconds of a loop of calls."""
    start = perf_counter_ns()
    for _ in repeat(None, batch):
        call()
    return perf_counter_ns() - start


def time_rate(call: Callable[[], object], batch: int, settle: Callable[[], object]) -> int:
    """Nanoseconds of a loop of calls and of the wait for what they put in."""
    start = perf_counter_ns()
    for _ in repeat(None, batch):
        call()
    settle()
    return perf_counter_ns() - start


def repeated(once: Callable[[], float], budget: Budget) -> list[float]:
    """What a function answers, over and over: after one call to warm up, as often as the budget has room."""
    once()
    answers: list[float] = []
    deadline = perf_counter_ns() + int(budget.seconds * 1e9)
    while len(answers) < budget.least or (len(answers) < budget.most and perf_counter_ns() < deadline):
        answers.append(once())
    return answers


def summary(samples: list[float], loop: float = 0.0, factor: float = 1.0) -> dict:
    """The figures of one cell: (sample - loop) * factor at the median and at the two outer tenths."""
    ordered = sorted((sample - loop) * factor for sample in samples)
    edge = len(ordered) // 10
    return {
        "value": statistics.median(ordered),
        "p10": ordered[edge],
        "p90": ordered[-1 - edge],
        "loop": loop * factor,
        "batches": len(ordered),
    }


def measure(work: Work, batch: int, settle: Callable[[], object], budget: Budget) -> dict:
    """Times work.

    Arguments:
        work: what to time.
        batch: calls between two waits for the device.
        settle: waits until the device is idle.
        budget: how often.
    Returns:
        the cell: nanoseconds per operation, or GB/s where the work moves bytes.
    """
    gc.collect()
    gc.disable()
    try:
        if work.nbytes:
            times = repeated(lambda: time_rate(work.call, batch, settle) / batch, budget)
            return summary([work.nbytes / each for each in times])
        loop = statistics.median(repeated(lambda: time_batch(work.empty, batch), budget)) / batch

        def once() -> float:
            taken = time_batch(work.call, batch) / batch
            settle()
            return taken

        return summary(repeated(once, budget), loop, 1 / work.per)
    finally:
        gc.enable()
