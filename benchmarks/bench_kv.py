"""A stand-in for a KV cache: contiguous caches of sequences that grow token by token and end at random.

Every sequence needs its bytes in one piece.  accelrt reserves addresses for as many of the longest sequence,
and commits a page when one is needed, so nothing is copied, and what is too much is the rest of a page.
torch, with expandable segments, takes a tensor that is half as large again when one is full, and copies.  A
step is one token of one sequence; its time has the wait for the device's work at the end in it.  The ratio is
the most that was reserved to the most that the sequences needed at a time; with --quick sequences are short,
and the rests of pages much of it.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, perf_counter_ns

import peers  # noqa: F401 - its import lets an accelrt that is not installed be found
from replay_subjects import EXPANDABLE, ROOMY
from rows import Goal, Row
from suite import Suite, options
from words import say_rows

KIB, MIB = 1 << 10, 1 << 20
TOKEN = 64 * KIB  # of all layers
SEQUENCES = 64  # at a time
LONGEST = 1024  # tokens
ENDED = 400  # sequences
QUICK_LONGEST, QUICK_ENDED = 64, 80
SECONDS = 20.0
ROWS = [
    Row("token", "a token of a sequence"),
    Row("kv.ratio", "reserved / needed", Goal(1.1), "ratio"),
    Row("copied", "bytes copied within the device", unit="GiB"),
]


@dataclass
class Caches:
    """The caches of the sequences, each in a slot."""

    grow: Callable[[int, int], int]  # has a slot hold so many bytes; answers how many were copied
    end: Callable[[int], None]  # the slot's sequence is over
    reserved: Callable[[], int]  # the most bytes held of the device
    settle: Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """How a column's caches are opened."""

    module: str
    open: Callable[[int], Caches]  # given the bytes of the longest sequence
    environment: dict[str, str] = field(default_factory=dict)


def open_accelrt(longest: int) -> Caches:
    """One reservation, of which each slot has the addresses of the longest: pages go from one to another."""
    import accelrt

    cache = accelrt.reserve(SEQUENCES * longest)
    page, held = cache.page_bytes, [0] * SEQUENCES
    accelrt.reset_peak_memory_stats()

    def grow(slot: int, nbytes: int) -> int:
        if nbytes > held[slot]:
            cache.commit(slot * longest + held[slot], page)
            held[slot] += page
        return 0

    def end(slot: int) -> None:
        cache.decommit(slot * longest, held[slot])
        held[slot] = 0

    return Caches(grow, end, accelrt.max_memory_reserved, accelrt.synchronize)


def open_torch(longest: int) -> Caches:
    """A tensor a slot, which a larger one takes the place of."""
    import torch

    slots: list[torch.Tensor | None] = [None] * SEQUENCES
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()

    def grow(slot: int, nbytes: int) -> int:
        before = slots[slot]
        if before is not None and nbytes <= before.numel():
            return 0
        size = min(longest, max(4 * TOKEN, nbytes + nbytes // 2))
        made = slots[slot] = torch.empty(size, dtype=torch.uint8, device="cuda")
        if before is None:
            return 0
        made[: before.numel()].copy_(before)
        return before.numel()

    def end(slot: int) -> None:
        slots[slot] = None

    return Caches(grow, end, torch.cuda.max_memory_reserved, torch.cuda.synchronize)


SUBJECTS = {
    "accelrt": Subject("accelrt", open_accelrt, ROOMY),
    "torch expandable": Subject("torch", open_torch, EXPANDABLE),
}


def measure(column: str, quick: bool) -> dict[str, dict]:
    """The cells of one column: the same sequences for each."""
    longest, ended = (QUICK_LONGEST, QUICK_ENDED) if quick else (LONGEST, ENDED)
    chosen = random.Random(7)
    caches = SUBJECTS[column].open(longest * TOKEN)
    tokens, lengths = [0] * SEQUENCES, [chosen.randint(32, longest) for _ in range(SEQUENCES)]
    steps = copied = over = most = 0
    deadline = perf_counter() + SECONDS
    start = perf_counter_ns()
    while over < ended and perf_counter() < deadline:
        for slot in range(SEQUENCES):
            tokens[slot] += 1
            copied += caches.grow(slot, tokens[slot] * TOKEN)
        steps += SEQUENCES
        most = max(most, sum(tokens) * TOKEN)
        for slot in range(SEQUENCES):
            if tokens[slot] == lengths[slot]:
                caches.end(slot)
                tokens[slot], lengths[slot], over = 0, chosen.randint(32, longest), over + 1
    caches.settle()
    taken = perf_counter_ns() - start
    reserved = caches.reserved()
    return {
        "token": {"value": taken / steps, "steps": steps, "ended": over},
        "kv.ratio": {"value": reserved / most, "reserved": reserved, "live": most},
        "copied": {"value": copied / (1 << 30)},
    }


def main() -> None:
    """Every column in turn."""
    given = options()
    if given.peer:
        column = given.peer
        say_rows(SUBJECTS[column].module, {"token": lambda: measure(column, given.quick)})
        return
    suite = Suite("kv", ROWS, list(SUBJECTS), given.quick)
    for column, subject in SUBJECTS.items():
        command = [sys.executable, str(Path(__file__).resolve()), "--peer", column]
        suite.fill(column, command, subject.environment)
    suite.print(given.json)


if __name__ == "__main__":
    main()
