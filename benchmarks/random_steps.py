"""The steps of bench_random.py, and the loops that take them through an allocator.

A step is (slot, size): it allocates size bytes into the slot or, where size is 0, frees what the slot holds.
Slots are numbered in the order of allocation, so each is used once.  The loops are alike but for how memory
is given back; the bare one touches no allocator and says what the loop itself costs.
"""

import random
from collections.abc import Callable
from time import perf_counter_ns

MIB = 1 << 20
ALLOCATING = 73  # percent of the steps, as long as there is room
BOUND = 16_000 * MIB  # that may be live
ALLOCATIONS, QUICK_ALLOCATIONS = 100_000, 500
Step = tuple[int, int]


def steps(largest: int, allocations: int, bound: int = BOUND, seed: int = 73) -> tuple[list[Step], int]:
    """A sequence that frees all that it allocates, the same in every process.

    Arguments:
        largest: bytes; sizes are uniform from 1 byte to this.
        allocations: how many; the steps are twice as many.
        bound: bytes; an allocation that would take more than this live is a free instead.
        seed: of the choice.
    Returns:
        the steps, and the most bytes that are live.
    """
    choice = random.Random(f"{seed} {largest}")
    made: list[Step] = []
    live: list[Step] = []
    used = peak = count = 0
    while count < allocations or live:
        size = choice.randint(1, largest)
        wanted = count < allocations and (not live or choice.randrange(100) < ALLOCATING)
        if wanted and used + size <= bound:
            live.append((count, size))
            made.append((count, size))
            used += size
            count += 1
            peak = max(peak, used)
        elif live:
            place = choice.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            slot, size = live.pop()
            made.append((slot, 0))
            used -= size
    return made, peak


def pointers(chunk: list[Step], live: list, alloc: Callable, free: Callable) -> int:
    """For allocators that take and give raw pointers.  Answers nanoseconds, as all loops do."""
    start = perf_counter_ns()
    for slot, size in chunk:
        if size:
            live[slot] = alloc(size)
        else:
            free(live[slot])
            live[slot] = None
    return perf_counter_ns() - start


def sized(chunk: list[Step], live: list, alloc: Callable, free: Callable) -> int:
    """For allocators that want the size again with the pointer."""
    start = perf_counter_ns()
    for slot, size in chunk:
        if size:
            live[slot] = alloc(size), size
        else:
            free(*live[slot])
            live[slot] = None
    return perf_counter_ns() - start


def objects(chunk: list[Step], live: list, alloc: Callable, free: None) -> int:
    """For allocators whose memory is freed with an object."""
    start = perf_counter_ns()
    for slot, size in chunk:
        if size:
            live[slot] = alloc(size)
        else:
            live[slot] = None
    return perf_counter_ns() - start


def bare(chunk: list[Step], live: list, alloc: None = None, free: None = None) -> int:
    """The loop without an allocator."""
    start = perf_counter_ns()
    for slot, size in chunk:
        if size:
            live[slot] = size
        else:
            live[slot] = None
    return perf_counter_ns() - start
