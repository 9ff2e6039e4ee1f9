"""accelrt replay: a recorded trace through the caching allocator."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import length_hint
from time import perf_counter_ns

from accelrt.devices.device import mem_get_info
from accelrt.errors import OutOfMemoryError
from accelrt.memory.caching import caching_allocator_alloc, caching_allocator_delete
from accelrt.memory.statistics import memory_stats, reset_peak_memory_stats
from accelrt.runtime.init import chosen_driver
from accelrt.streams.stream import Stream
from accelrt.tools.cli.choice import open_driver
from accelrt.tools.cli.interrupts import HeldInterrupts
from accelrt.tools.cli.text import Progress, human, pairs, put, table
from accelrt.tools.traces import load
from accelrt.tools.traces.trace import Trace

__all__ = ["Figures", "describe", "host_capacity", "replay", "run", "timed"]

CHUNK = 8192  # events between two looks at the clock, and at the bar
HOST_SLACK = 1 << 30
HOST_LIMIT = 1 << 44  # of the host device's size, however much a trace asks for


@dataclass(frozen=True)
class Figures:
    """What one pass over a trace gave; bytes, except for ratio and ns_per_event.

    There is no ratio where an allocation was refused: what was reserved is not for all of the trace.
    """

    driver: str
    events: int
    peak_live: int
    peak_reserved: int
    ratio: float | None
    ns_per_event: float
    ooms: int
    virtual_memory_calls: int


class Replayer:
    """A trace made ready to run: what the timed loop needs is looked up before it."""

    def __init__(self, trace: Trace, wanted: bool):
        streams = {index: Stream() for index in sorted(set(trace.streams))}
        queues = [streams[index] for index in trace.streams]
        self.trace = trace
        self.rows = list(zip(trace.ops, trace.slots, trace.sizes, queues, strict=True))
        self.addresses = [0] * trace.slot_count
        self.wanted = wanted

    def run(self, interrupts: HeldInterrupts) -> tuple[int, int]:
        """One pass; (nanoseconds, out-of-memory errors).  An interruption ends it between two chunks."""
        progress = Progress(len(self.rows), self.wanted)
        nanoseconds = ooms = 0
        try:
            for start in range(0, len(self.rows), CHUNK):
                took, refused = self.run_chunk(start)
                nanoseconds += took
                ooms += refused
                if interrupts.came:
                    self.free(self.trace.prefix(start + CHUNK).left)
                    raise KeyboardInterrupt
                progress.update(start)
        finally:
            progress.finish()
        return nanoseconds, ooms

    def run_chunk(self, start: int) -> tuple[int, int]:
        chunk = self.rows[start : start + CHUNK]
        rows = iter(chunk)
        try:
            return self.run_rows(rows)
        except Exception:
            done = len(chunk) - length_hint(rows) - 1  # the iterator is past the event that failed
            self.free(self.trace.prefix(start + done).left)
            raise

    def run_rows(self, rows: Iterator[tuple[int, int, int, Stream]]) -> tuple[int, int]:
        # An allocation that was refused leaves address 0, and freeing that does nothing.
        addresses = self.addresses
        allocate, free = caching_allocator_alloc, caching_allocator_delete
        ooms = 0
        begin = perf_counter_ns()
        for op, slot, size, stream in rows:
            if op:
                try:
                    addresses[slot] = allocate(size, None, stream)
                except OutOfMemoryError:
                    addresses[slot] = 0
                    ooms += 1
            else:
                free(addresses[slot])
        return perf_counter_ns() - begin, ooms

    def free(self, slots: Iterable[int]) -> None:
        for slot in slots:
            caching_allocator_delete(self.addresses[slot])


def replay(trace: Trace, wanted: bool = False) -> Figures:
    """One pass over a trace on the current device; nothing of it is live afterwards.

    Arguments:
        trace: Trace.
        wanted: bool, show a bar on a terminal.
    """
    return replay_often(trace, 1, wanted)[0]


def replay_often(trace: Trace, times: int, wanted: bool) -> list[Figures]:
    replayer = Replayer(trace, wanted)
    return [figures_of(replayer) for _ in range(times)]


def figures_of(replayer: Replayer) -> Figures:
    trace = replayer.trace
    reset_peak_memory_stats()
    before = memory_stats()["virtual_memory_calls"]
    with HeldInterrupts() as interrupts:  # behind an allocation its address would be nobody's
        nanoseconds, ooms = replayer.run(interrupts)
        try:
            after = memory_stats()
        finally:
            replayer.free(trace.left)
    reserved = after["reserved_bytes.all.peak"]
    return Figures(
        driver=chosen_driver(),
        events=len(trace),
        peak_live=trace.peak_live,
        peak_reserved=reserved,
        ratio=round(reserved / trace.peak_live, 6) if trace.peak_live and not ooms else None,
        ns_per_event=round(nanoseconds / len(trace), 1) if len(trace) else 0.0,
        ooms=ooms,
        virtual_memory_calls=after["virtual_memory_calls"] - before,
    )


def host_capacity(trace: Trace) -> int:
    """How large a host device serves a trace however it fragments; untouched pages cost nothing."""
    return min(8 * trace.peak_live + HOST_SLACK, HOST_LIMIT)


def timed(figure: str, driver: str) -> str:
    """A time, with what it is the time of where that is no GPU."""
    return (
        f"{figure} (of the host device, emulated on the CPU; a GPU's differ)" if driver == "host" else figure
    )


def describe(figures: Figures) -> str:
    """One pass as lines of text."""
    ratio = "-" if figures.ratio is None else f"{figures.ratio:.4f}"
    lines = [
        ("events", f"{figures.events:,}"),
        ("peak live", f"{figures.peak_live:,} bytes ({human(figures.peak_live)})"),
        ("peak reserved", f"{figures.peak_reserved:,} bytes ({human(figures.peak_reserved)})"),
        ("reserved / live", ratio),
        ("ns per event", timed(f"{figures.ns_per_event:,.1f}", figures.driver)),
        ("out of memory", f"{figures.ooms:,}"),
        ("virtual-memory calls", f"{figures.virtual_memory_calls:,}"),
    ]
    return pairs(lines)


def describe_all(passes: Sequence[Figures]) -> str:
    """Several passes as a table."""
    header = ("pass", "events", "peak live", "peak reserved", "ratio", "ns/event", "ooms", "vm_calls")
    rows = [
        (
            f"{number}",
            f"{one.events:,}",
            f"{one.peak_live:,}",
            f"{one.peak_reserved:,}",
            "-" if one.ratio is None else f"{one.ratio:.4f}",
            f"{one.ns_per_event:,.1f}",
            f"{one.ooms:,}",
            f"{one.virtual_memory_calls:,}",
        )
        for number, one in enumerate(passes, 1)
    ]
    return table(header, rows)


def run(
    path: str,
    driver: str | None = None,
    memory: str | None = None,
    repeat: int = 1,
    as_json: bool = False,
    device: int | None = None,
) -> int:
    """The command.  Returns its exit status."""
    trace = load(path, device)
    for note in trace.notes:
        put(f"accelrt replay: {note}", file=sys.stderr)
    chosen = open_driver(driver, memory, host_capacity(trace))
    if not as_json:
        put(chosen.line, flush=True)
    passes = replay_often(trace, repeat, wanted=not as_json)
    if as_json:
        objects = [asdict(one) for one in passes]
        print(json.dumps(objects if repeat > 1 else objects[0]))
    else:
        put(describe(passes[0]) if repeat == 1 else describe_all(passes))
    return 1 if told_refusals(trace, passes) else 0


def told_refusals(trace: Trace, passes: Sequence[Figures]) -> bool:
    """Whether an allocation was refused, which standard error is told: the trace was not replayed."""
    ooms = max(one.ooms for one in passes)
    if ooms:
        advice = "give it more by --memory" if chosen_driver() == "host" else "use a device with more"
        put(
            f"accelrt replay: out of memory: {ooms:,} of {sum(trace.ops):,} allocations were refused; the "
            f"trace has up to {human(trace.peak_live)} live, the device has {human(mem_get_info()[1])}; "
            f"{advice}",
            file=sys.stderr,
        )
    return bool(ooms)
