"""What a process of soak.py holds at a rest, and whether that has grown."""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from words import resident_bytes

LEAST = 4  # rests, of which growth is told
GIVE_BACK_SECONDS = 30  # that another process may take to give back what it has opened
MIB = 1 << 20


class Figures(NamedTuple):
    """What a process holds at a rest."""

    memory: int  # bytes of the process that are in memory (RSS)
    files: int  # descriptors
    handles: int  # of the host device: streams, events, allocations, reservations, graphs; 0 on a GPU
    threads: int
    live: int  # bytes allocated on all devices, and page-locked
    reserved: int  # bytes that accelrt holds of all devices


# What chance moves: how many streams and shared events were in use at once at most, arenas of the C library.
# A process settles at some 100 MiB after a minute or two.
ALLOWED = Figures(memory=16 * MIB, files=20, handles=40, threads=40, live=0, reserved=0)


def growth(samples: Sequence[Figures], names: Sequence[str] = Figures._fields) -> list[str]:
    """What has grown in the figures of one process, as texts; nothing where there are fewer than LEAST.

    Arguments:
        samples: in the order in which they were taken, the warm-up included.
    """
    after = samples[len(samples) // 4 :]
    third = len(after) // 3
    if len(samples) < LEAST:
        return []
    said = []
    for name in names:
        values = [getattr(each, name) for each in after]
        most, least = max(values[:third]), min(values[-third:])
        allowed = getattr(ALLOWED, name)
        if least > most + allowed:
            said.append(f"{name} grew from {most:,} to {least:,}; {allowed:,} more are allowed")
    return said


def figures() -> Figures:
    """Of this process, which is at rest."""
    import accelrt

    gc.collect()
    devices = range(accelrt.device_count())
    for ordinal in devices:
        accelrt.synchronize(ordinal)
    live = await_no_live_bytes()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    ctypes.CDLL(None).malloc_trim(0)
    return Figures(
        memory=resident_bytes(),
        files=len(os.listdir("/proc/self/fd")),
        handles=count_handles(),
        threads=len(os.listdir("/proc/self/task")),
        live=live,
        reserved=sum(accelrt.memory_reserved(ordinal) for ordinal in devices),
    )


def await_no_live_bytes() -> int:
    """How many bytes are live on all devices, and page-locked: 0 once other processes gave back what they had
    opened, which they do at their own pace."""
    import accelrt
    import accelrt.sharing

    end = time.monotonic() + GIVE_BACK_SECONDS
    while True:
        accelrt.sharing.ipc_collect()
        live = sum(accelrt.memory_allocated(ordinal) for ordinal in range(accelrt.device_count()))
        live += accelrt.host_memory_stats()["active_bytes.current"]
        if live == 0 or time.monotonic() > end:
            return live
        time.sleep(0.01)


def count_handles() -> int:
    driver = sys.modules.get("accelrt.driver.host.driver")
    if driver is None:
        return 0
    counts = driver.live_objects()
    return sum(count for kind, count in counts.items() if kind not in ("bytes", "operations"))
