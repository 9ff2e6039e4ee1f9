"""Notices of memory for operators: the logger "accelrt.memory".

The allocator counts; the threads that come by with the GIL, outside all locks, compare the counts with those
that were told last.  So what nogil code caused is told too, a little later.
"""

from __future__ import annotations

import logging

from accelrt.core import logs
from accelrt.memory.explain import count_text, size_text

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from accelrt.errors import OutOfMemoryError

RETRIES, REFUSALS, SEGMENTS, BYTES = KEYS = (
    *("num_alloc_retries", "num_ooms", "num_device_free"),
    "reserved_bytes.all.freed",
)

_told: dict[int, dict[str, int]] = {}  # device -> the counts that were told last
_raised: dict[int, int] = {}  # device -> refusals that were told as errors, and not yet counted


def tell_changes(
    device: int, size: int | None, read_stats: Callable[[int], dict[str, Any]], own: bool
) -> None:
    """Logs what the allocator of a device had to do since it was told last.

    Arguments:
        device: int, an ordinal.
        size: int, the bytes of the request that met it; None where there was none, as of empty_cache().
        read_stats: callable, accelrt.memory.memory_stats.
        own: bool, whether the pool is accelrt's own; another backend gives memory back with each free.
    """
    if not logs.is_wanted("memory", logging.WARNING):
        return
    before = _told.get(device, {})  # first, so that no other thread tells later counts in between
    stats = read_stats(device)
    if not stats:  # in a forked child, to which no pool belongs
        return
    counts = _told[device] = {key: int(stats[key]) for key in KEYS}
    # Below what it was, a count was reset since.
    grown = {
        key: each - before.get(key, 0) if each >= before.get(key, 0) else each for key, each in counts.items()
    }
    facts = {"device": device, "requested": size, "segments": grown[SEGMENTS], "bytes": grown[BYTES]}
    back = f"{count_text(grown[SEGMENTS], 'segment')} of {size_text(grown[BYTES])} went back to the device"
    if grown[RETRIES]:
        tail = f"; {back}" if own and grown[SEGMENTS] else ""
        text = f"device {device} had no memory for {count_text(grown[RETRIES], 'request')}, tried again{tail}"
        logs.tell("memory", logging.WARNING, "retry", text, retries=grown[RETRIES], **facts)
    elif own and grown[SEGMENTS]:
        level, why = (
            (logging.INFO, "for a request") if size is not None else (logging.DEBUG, "by empty_cache()")
        )
        logs.tell("memory", level, "segments_released", f"device {device}: {back} {why}", **facts)
    unseen = grown[REFUSALS] - _raised.pop(device, 0)
    if unseen > 0:
        text = f"device {device} refused {count_text(unseen, 'request')} of code without Python"
        logs.tell("memory", logging.ERROR, "out_of_memory", text, device=device, refusals=unseen)


def tell_refusal(error: OutOfMemoryError, device: int | None) -> None:
    """Logs an out of memory error that is about to be raised, with its explanation.

    Arguments:
        error: OutOfMemoryError.
        device: int, an ordinal; None where the memory is the host's, page-locked.
    """
    if device is not None:
        _raised[device] = _raised.get(device, 0) + 1
    logs.tell(
        "memory", logging.ERROR, "out_of_memory", str(error), device=device, requested=error.requested,
        causes=error.causes,
    )  # fmt: skip


def tell_end(device: int, live: int) -> None:
    """Logs that memory of a device is live where the process begins to end; live: bytes."""
    text = f"{size_text(live)} of device {device} are live where the process ends; ACCELRT_LEAKS=1 lists them"
    logs.tell("memory", logging.INFO, "live_at_exit", text, device=device, bytes=live)
