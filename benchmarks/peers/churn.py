"""Mixed sizes with 200 blocks live: the work of a program whose memory turns over."""

import random
from collections.abc import Callable

from timing import Work

LIVE = 200


def plan() -> list[tuple[int, int]]:
    """Which slot is replaced by how many bytes: each of 200 slots five times, at random, 512 B to 4 MiB."""
    random.seed(20)
    slots = [slot for _ in range(5) for slot in random.sample(range(LIVE), LIVE)]
    return [(slot, int(512 * 2 ** random.uniform(0, 13))) for slot in slots]


def churn(alloc: Callable[[int], object], free: Callable[[object], object]) -> Work:
    """For libraries that take and give raw pointers."""
    steps = plan()
    live = [alloc(size) for _, size in steps[:LIVE]]
    beside = list(live)

    def turn() -> None:
        for slot, size in steps:
            free(live[slot])
            live[slot] = alloc(size)

    return Work(turn, bare(steps, beside), len(steps))


def churn_objects(make: Callable[[int], object]) -> Work:
    """For libraries whose memory is freed with an object."""
    steps = plan()
    live = [make(size) for _, size in steps[:LIVE]]
    beside: list[object] = [None] * LIVE

    def turn() -> None:
        for slot, size in steps:
            live[slot] = None
            live[slot] = make(size)

    return Work(turn, bare(steps, beside), len(steps))


def churn_sized(alloc: Callable[[int], int], free: Callable[[int, int], object]) -> Work:
    """For libraries that want the size again with the pointer."""
    steps = plan()
    live = [(alloc(size), size) for _, size in steps[:LIVE]]
    beside: list[object] = list(live)

    def turn() -> None:
        for slot, size in steps:
            free(*live[slot])
            live[slot] = alloc(size), size

    return Work(turn, bare(steps, beside), len(steps))


def bare(steps: list[tuple[int, int]], beside: list) -> Callable[[], None]:
    """The same loop without the library."""

    def turn() -> None:
        for slot, size in steps:
            beside[slot]
            beside[slot] = size

    return turn
