"""Finds what is alive and was not before: memory, handles and pools, with stacks and who holds them."""

from __future__ import annotations

import contextlib
import gc
import sys
from dataclasses import dataclass

from accelrt.allocator.readers import holdings
from accelrt.devices.device import device_count, synchronize
from accelrt.driver import guard
from accelrt.driver.host import driver as host
from accelrt.errors import LeakError
from accelrt.graphs.graph import CUDAGraph
from accelrt.memory.caching import audit as audit_devices
from accelrt.memory.caching import empty_cache
from accelrt.memory.explain import count_text
from accelrt.memory.growth import Mark, compared, mark_of
from accelrt.memory.history.recording import is_recording, record_history
from accelrt.memory.holders import holder_of, owners
from accelrt.memory.live_blocks import line_of
from accelrt.memory.mempool import MemPool, host_audit
from accelrt.runtime.init import init, is_initialized, runs_on_host
from accelrt.runtime.lifetimes import handles_in_use
from accelrt.streams.stream import Event, Stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any, Self

KINDS: dict[str, type[Any]] = {"stream": Stream, "event": Event, "graph": CUDAGraph, "pool": MemPool}
NOUNS = {
    "exec": ("executable graph", ""),
    "pinned": ("block", " of page-locked memory"),
    "pool": ("private pool", ""),
}
MISUSES = {
    "calls_of_gone_streams": "named a stream that was destroyed",
    "calls_beside_ends": "was about a stream whose capture another thread was ending",
    "children_of_themselves": "had a graph be a child of itself",
    "continuations_of_others": "had a capture go on after no node of it",
    "frees_under_work": "took memory away that queued work uses",
    "marks_in_captures": "had a capture take an event of accelrt's own",
}


def settle() -> None:
    """Collects garbage, waits for the work of every device that has memory of accelrt's, and has idle memory
    go back.

    What goes may leave more behind work of its own, as a graph its kernels and a kernel its module, so it is
    done until nothing more goes, three times at most.
    """
    before: object = None
    for _ in range(3):
        gc.collect()
        for ordinal in range(device_count()):
            if holdings(ordinal) is not None:  # else it would get a context for this
                synchronize(ordinal)
        empty_cache()
        now = (handles_in_use(), live_objects())
        if now == before:
            return
        before = now


def audit() -> None:
    """Checks every identity of the allocator, of all devices and of page-locked memory.

    Raises:
        AssertionError: one is violated; the text says which.
    """
    audit_devices()
    host_audit()


def live_objects() -> dict[str, int]:
    """Counts what is alive on the host device, by kind.

    Returns:
        dict of counts, and bytes; {} on a GPU, whose driver does not tell.
    """
    return host.live_objects() if is_initialized() and runs_on_host() else {}


def count_misuses() -> dict[str, int]:
    """Counts calls that a GPU's driver may die of, on the host device.

    calls_of_gone_streams, calls that named a stream which had been destroyed; calls_beside_ends, those about
    a capture that another thread was ending (ACCELRT_HOST_END_DELAY_US=50 makes ends take their time);
    children_of_themselves, those that had a graph be a child of itself, or of a graph within it;
    continuations_of_others, those that had a capture go on after what is no node of it;
    frees_under_work, memory taken away that queued work uses; marks_in_captures, events of the allocators'
    that became part of a capture.

    Returns:
        dict of counts since the process began; {} on a GPU.
    """
    return read_misuses() if is_initialized() and runs_on_host() else {}


def read_misuses() -> dict[str, int]:
    counters: dict[str, ModuleType] = {"marks_in_captures": guard}  # the others are the host device's
    return {name: getattr(counters.get(name, host), name)() for name in MISUSES}


@dataclass(frozen=True)
class State:
    """Holds what was alive at a moment.

    Attributes:
        marks: list of Mark, by device.
        handles: dict, kind -> count.
        misuses: dict, as of count_misuses().
        objects: set of ids of the objects of KINDS.
    """

    marks: list[Mark]
    handles: dict[str, int]
    misuses: dict[str, int]
    objects: set[int]


def read_state() -> State:
    marks = [mark_of(ordinal) for ordinal in range(device_count())]
    return State(marks, count_handles(marks), count_misuses(), {id(each) for each in objects_of_kinds()})


def count_handles(marks: list[Mark]) -> dict[str, int]:
    streams, events = handles_in_use()
    pools = [pool for ordinal in range(len(marks)) for pool in (holdings(ordinal) or {}).get("pools", ())]
    used = [pool for pool in pools if pool["id"] != (0, 0) and (pool["uses"] or pool["live"])]
    counts = {"stream": streams, "event": events, "pool": len(used)}
    counts["pinned"] = marks[0].page_locked["live_blocks"] if marks else 0
    alive = live_objects()
    return counts | {kind: alive[f"{kind}s"] for kind in ("graph", "exec") if alive}


def objects_of_kinds() -> list[object]:
    kinds = tuple(KINDS.values())
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


class LeakCheck:
    """Compares what is alive at two moments: begin() and finish().

    Arguments:
        stacks: bool, whether the stacks of allocations are recorded meanwhile, which costs each some
            microseconds.
    """

    def __init__(self, *, stacks: bool = True) -> None:
        self.stacks = stacks
        self.records: bool = False
        self.before: State | None = None

    def begin(self) -> Self:
        """Settles, and notes what is alive; the first use of a device, where there was none.

        Returns:
            LeakCheck, itself.
        """
        init()
        settle()
        try:
            if self.stacks and not is_recording():
                self.records = True
                record_history("state", "state")
            self.before = read_state()
        except BaseException:
            self.cancel()
            raise
        return self

    def finish(self) -> None:
        """Settles, and compares.

        Raises:
            LeakError: more is alive than at begin(), or there was a misuse; the text lists what.
            RuntimeError: begin() was not called.
        """
        __tracebackhide__ = True  # what pytest shows ends at the test
        if self.before is None:
            raise RuntimeError("finish() without begin()")
        before, self.before = self.before, None
        try:
            settle()
            refuse_growth(before, read_state())
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Ends the check without a comparison; again, it does nothing."""
        self.before = None
        if self.records:
            self.records = False
            record_history(None)


@contextlib.contextmanager
def check_leaks(*, stacks: bool = True) -> Iterator[LeakCheck]:
    """Raises LeakError where a block leaves more memory, handles or pools alive than it found.

        with accelrt.testing.check_leaks():
            step()

    Arguments:
        stacks: bool, whether the stacks of allocations are recorded meanwhile.
    Yields:
        LeakCheck, whose cancel() ends the check early.
    Raises:
        LeakError: the text lists the memory with stacks and holders, and the handles.

    An error of the block passes, and nothing is compared: its traceback holds what the block had made.  Where
    handles were made is told too while Python's tracemalloc traces (python -X tracemalloc).
    """
    check = LeakCheck(stacks=stacks).begin()
    try:
        yield check
    except BaseException:
        check.cancel()
        raise
    if check.before is not None:
        check.finish()


# --- the comparison -----------------------------------------------------------------------------------------


def refuse_growth(before: State, after: State) -> None:
    __tracebackhide__ = True
    blocks = [
        {"device": mark.device, **block}
        for old, mark in zip(before.marks, after.marks, strict=True)
        for block in new_blocks(old, mark)
    ]
    handles = grown(before.handles, after.handles)
    misuses = grown(before.misuses, after.misuses)
    if not blocks and not handles and not misuses:
        return
    holders = owners() if blocks else {}
    for block in blocks:
        owner = holders.get(block["address"])
        block["holder"] = "" if owner is None else f"{type(owner).__name__}{holder_text(owner, holders)}"
    lines = [
        *map(block_line, blocks),
        *handle_lines(handles, before.objects),
        *map(misuse_line, misuses.items()),
    ]
    raise LeakError("\n".join(["left behind:", *lines]), blocks, handles, misuses)


def new_blocks(before: Mark, after: Mark) -> list[dict[str, Any]]:
    """Lists the blocks that came, where there are more blocks or bytes than before."""
    is_more = (
        len(after.holding.blocks) > len(before.holding.blocks) or after.holding.live > before.holding.live
    )
    blocks: list[dict[str, Any]] = (
        compared(before.holding, after.holding, sys.maxsize)["blocks"] if is_more else []
    )
    return blocks


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {kind: count - before.get(kind, 0) for kind, count in after.items() if count > before.get(kind, 0)}


def holder_text(target: object, container: object) -> str:
    """Says who holds a thing, beside a container of ours, as text to append."""
    holder = holder_of(target, (container,))
    return f", held by {holder}" if holder else ""


def block_line(block: dict[str, Any]) -> str:
    holder = f": {block['holder']}" if block["holder"] else ""
    return f"{line_of(block)}, device {block['device']}{holder}"


def handle_lines(handles: dict[str, int], known: set[int]) -> Iterator[str]:
    for kind, count in handles.items():
        noun, rest = NOUNS.get(kind, (kind, ""))
        yield f"  {count_text(count, noun)}{rest}"
        if kind in KINDS:
            new = [
                each for each in objects_of_kinds() if isinstance(each, KINDS[kind]) and id(each) not in known
            ]
            for each in new:
                yield f"    {each!r}{origin_text(each)}{holder_text(each, new)}"


def origin_text(target: object) -> str:
    """Says where an object was made, as text to append, if tracemalloc was told to trace that."""
    tracemalloc = sys.modules.get("tracemalloc")
    trace = None if tracemalloc is None else tracemalloc.get_object_traceback(target)
    return f", made at {trace[-1].filename}:{trace[-1].lineno}" if trace else ""


def misuse_line(misuse: tuple[str, int]) -> str:
    name, count = misuse
    return f"  {count_text(count, 'call')} of the driver {MISUSES[name]}"
