"""Sleep and wake of everything that torch holds in accelrt's pool: which pools there are, in which order they
sleep, and what is left on a device.  accelrt.interop.torch.sleep() and wake() are the public names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from accelrt.allocator import readers
from accelrt.devices.context_limits import thread_stacks
from accelrt.driver import registry
from accelrt.errors import CudaError, NotSupportedError, not_supported
from accelrt.memory import caching, mempool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from accelrt.memory.sleep_result import SleepResult

__all__ = ["PoolMoved", "SleepReport", "Staying"]

DEFAULT = (0, 0)  # torch's id of no pool: its default memory
MIB = 1 << 20


class PoolMoved(NamedTuple):
    """The part of a sleep() or wake() that one pool had.

    Attributes:
        device: int.
        pool: (int, int), the id that torch knows the pool by; (0, 0) is torch's default memory.
        tags: tuple of str, of what is live in it.
        bytes: int, of the device.
        copied: int, bytes of contents that went to the host, or came from there.
    """

    device: int
    pool: tuple[int, int]
    tags: tuple[str, ...]
    bytes: int
    copied: int


class Staying(NamedTuple):
    """Memory of a device that is still there.

    Attributes:
        device: int.
        what: str, whose it is.
        bytes: int; None where nothing tells.
        reason: str, why it stays.
    """

    device: int
    what: str
    bytes: int | None
    reason: str


@dataclass(frozen=True)
class SleepReport:
    """The effect of sleep() or wake(); str() is a text for people.

    Attributes:
        call: "sleep" or "wake".
        pools: tuple of PoolMoved.
        seconds: float, of the whole call.
        staying: tuple of Staying: what the devices still hold for this process.
    """

    call: str
    pools: tuple[PoolMoved, ...]
    seconds: float
    staying: tuple[Staying, ...]

    @property
    def bytes(self) -> int:
        """The bytes that the devices have back, or gave."""
        return sum(pool.bytes for pool in self.pools)

    @property
    def copied(self) -> int:
        """Bytes of contents that went to the host, or came from there."""
        return sum(pool.copied for pool in self.pools)

    def __str__(self) -> str:
        gone = "have back" if self.call == "sleep" else "gave"
        lines = [
            f"{self.call}: the devices {gone} {mib(self.bytes)} of {len(self.pools)} pools in "
            f"{self.seconds:.3f} s; {mib(self.copied)} of contents were copied"
        ]
        for pool in self.pools:
            tags = f" ({', '.join(pool.tags)})" if pool.tags else ""
            lines.append(f"  device {pool.device}: {name_of(pool.pool)}{tags}: {mib(pool.bytes)}")
        for each in self.staying:
            held = "not known" if each.bytes is None else mib(each.bytes)
            lines.append(f"  device {each.device} still holds: {each.what}: {held}; {each.reason}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Held:
    """A pool of a device: a private one, or the common one, whose id is DEFAULT."""

    device: int
    id: tuple[int, int]  # accelrt's
    pool: tuple[int, int]  # torch's
    asleep: bool
    retained: bool  # by a graph, a MemPool or a context
    bytes: int
    tags: tuple[str, ...]


def mib(count: int) -> str:
    return f"{count / MIB:,.1f} MiB"


def name_of(pool: tuple[int, int]) -> str:
    return "torch's default memory" if pool == DEFAULT else f"pool {pool}"


def held_pools(home: tuple[int, int], torchs_id: Callable[[tuple[int, int]], tuple[int, int]]) -> list[Held]:
    """Every pool of every device that holds memory, or sleeps."""
    held = []
    for device in range(registry.active_device_count()):
        holdings = readers.holdings(device)
        if holdings is None or holdings["external"]:
            continue
        tags = tags_on(device)
        for pool in holdings["pools"]:
            name = DEFAULT if pool["id"] == home else torchs_id(pool["id"])
            size = pool["reserved"] + pool["sleeping"]
            if size:
                used = tuple(sorted(tags.get(pool["id"], ())))
                held.append(Held(device, pool["id"], name, pool["asleep"], pool["uses"] > 0, size, used))
    return held


def tags_on(device: int) -> dict[tuple[int, int], set[str]]:
    """The tags of what is live, by pool."""
    tags: dict[tuple[int, int], set[str]] = {}
    for segment in caching.memory_snapshot(device):
        live = {block["tag"] for block in segment["blocks"] if block["state"].startswith("active")}
        tags.setdefault(segment["segment_pool_id"], set()).update(live - {""})
    return tags


def chosen(wanted: Iterable[object], device: int, home: tuple[int, int]) -> set[tuple[int, int]]:
    """The ids of what names pools, on a device; torch's default memory is (0, 0)."""
    ids = set()
    for each in wanted:
        if each == DEFAULT:
            if home == DEFAULT:
                raise not_supported(
                    "torch's default memory lies among accelrt's common memory, of which nothing can sleep; "
                    "call accelrt.interop.torch.install(sleepable=True) before it is allocated",
                    "accelrt.interop.torch.sleep",
                )
            ids.add(home)
        else:
            ids.add(mempool.sleeper_id(each, device))
    return ids


def keeps_of(keep: object, device: int, home: tuple[int, int]) -> Callable[[Held], str]:
    """Answers what memory.sleep's `keep` is for a pool."""
    if isinstance(keep, str):
        if keep not in ("host", "discard"):
            raise ValueError(
                f"keep is {keep!r}; it may be 'host', 'discard', or a list of the tags and pools to keep"
            )
        return lambda held: str(keep)
    kept = chosen(keep, device, home)  # type: ignore[arg-type]
    return lambda held: "host" if held.id in kept else "discard"


def move_all(
    call: str, pools: list[Held], move: Callable[[Held], SleepResult]
) -> tuple[list[PoolMoved], list[Staying]]:
    """Moves one pool after the other.  A failure tells what was moved before; what cannot sleep stays."""
    moved: list[PoolMoved] = []
    staying = []
    for held in pools:
        try:
            movement = move(held)
        except NotSupportedError as error:
            staying.append(Staying(held.device, name_of(held.pool), held.bytes, str(error)))
            continue
        except BaseException as error:
            if type(error) in (RuntimeError, ValueError) and is_settled(held, call):
                continue
            done = ", ".join(f"{name_of(each.pool)} of device {each.device}" for each in moved) or "nothing"
            error.add_note(
                f"accelrt.interop.torch.{call}() ended at {name_of(held.pool)} of device {held.device}; "
                f"before, it moved {done}. wake() wakes whatever sleeps now, and sleep() goes on"
            )
            raise
        moved.append(PoolMoved(held.device, held.pool, held.tags, movement.bytes, movement.copied))
    return moved, staying


def is_settled(held: Held, call: str) -> bool:
    """Tells whether another thread let a pool go, or moved it, since it was listed."""
    holdings = readers.holdings(held.device)
    pools = {} if holdings is None else {pool["id"]: pool for pool in holdings["pools"]}
    pool = pools.get(held.id)
    if pool is None or (pool["uses"] == 0 and call == "sleep"):
        return True
    return bool(pool["asleep"]) == (call == "sleep")


def left_on(former: Callable[[int], int], pools: list[Held]) -> list[Staying]:
    """Returns what the devices hold for this process."""
    staying = []
    for device in range(registry.active_device_count()):
        awake = [held for held in pools if held.device == device and not held.asleep]
        others = former(device)
        if readers.holdings(device) is None and not others:
            continue
        for held in awake:
            owner, reason = name_of(held.pool), "it is awake"
            if held.id == DEFAULT:
                owner, reason = "accelrt's common memory", "nothing of it can sleep"
            elif not held.retained:
                reason = "no graph and no MemPool retains it, yet it is live"
            staying.append(Staying(device, owner, held.bytes, reason))
        if others:
            staying.append(
                Staying(device, "torch's former allocator", others, "it was allocated before install()")
            )
        each, threads = thread_stacks(device)
        stacks = each * threads
        if stacks:
            staying.append(
                Staying(
                    device,
                    "stacks of GPU threads",
                    stacks,
                    "accelrt.set_limit('stack_size', 0) lets them go; set it back before anything runs",
                )
            )
        process = process_bytes(device)
        known = others + stacks + sum(held.bytes for held in awake)
        rest = None if process is None else max(process - known, 0)
        staying.append(
            Staying(
                device,
                "contexts, modules, executables of graphs, communicators and workspaces of libraries",
                rest,
                "NVML does not tell how much" if rest is None else "the driver and libraries have it",
            )
        )
    return staying


def process_bytes(device: int) -> int | None:
    """Returns what NVML says that this process holds of a device."""
    from accelrt.readings.processes import gpu_processes

    try:
        mine = [each.memory for each in gpu_processes(device) if each.pid == os.getpid()]
    except (CudaError, RuntimeError, OSError, ValueError):
        return None
    return sum(each or 0 for each in mine) if mine and None not in mine else None
