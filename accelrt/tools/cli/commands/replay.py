"""accelrt replay: run a recorded trace through the allocator, and print peaks and times."""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import length_hint
from time import perf_counter_ns

import accelrt
from accelrt import Stream
from accelrt.core.printable import size_text
from accelrt.runtime.init import chosen_driver
from accelrt.tools.cli import options
from accelrt.tools.cli.choice import open_driver
from accelrt.tools.cli.interrupts import HeldInterrupts
from accelrt.tools.cli.text import Progress, pairs, put, table
from accelrt.tools.traces import load
from accelrt.tools.traces.trace import Trace

CHUNK = 8192  # events between two looks at the clock, and at the bar
HOST_SLACK = 1 << 30
HOST_LIMIT = 1 << 44  # of the host device's size, however much a trace asks for
# Figures of a pass: what each is called alone, and at the head of a column.
TITLES = {
    "events": ("events", "events"),
    "peak_live": ("peak live", "peak live"),
    "peak_reserved": ("peak reserved", "peak reserved"),
    "ratio": ("reserved / live", "ratio"),
    "ns_per_event": ("ns per event", "ns/event"),
    "ooms": ("out of memory", "ooms"),
    "virtual_memory_calls": ("virtual-memory calls", "vm_calls"),
}


@dataclass(frozen=True)
class Figures:
    """The figures of one pass over a trace; bytes, except for ratio and ns_per_event.

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
        rows = zip(trace.ops, trace.slots, trace.sizes, queues, strict=True)
        self.rows: list[tuple[int, int, int, Stream]] = list(rows)
        self.addresses: list[int] = [0] * trace.slot_count
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
        allocate, free = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
        ooms = 0
        begin = perf_counter_ns()
        for op, slot, size, stream in rows:
            if op:
                try:
                    addresses[slot] = allocate(size, None, stream)
                except accelrt.OutOfMemoryError:
                    addresses[slot] = 0
                    ooms += 1
            else:
                free(addresses[slot])
        return perf_counter_ns() - begin, ooms

    def free(self, slots: Iterable[int]) -> None:
        for slot in slots:
            accelrt.caching_allocator_delete(self.addresses[slot])


def replay(trace: Trace, wanted: bool = False) -> Figures:
    """One pass over a trace on the current device, of which nothing stays live; wanted: show a bar."""
    return replay_often(trace, 1, wanted)[0]


def replay_often(trace: Trace, times: int, wanted: bool) -> list[Figures]:
    replayer = Replayer(trace, wanted)
    return [figures_of(replayer) for _ in range(times)]


def figures_of(replayer: Replayer) -> Figures:
    trace = replayer.trace
    accelrt.reset_peak_memory_stats()
    before = accelrt.memory_stats()["virtual_memory_calls"]
    with HeldInterrupts() as interrupts:  # behind an allocation its address would be nobody's
        nanoseconds, ooms = replayer.run(interrupts)
        try:
            after = accelrt.memory_stats()
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
    """Returns how large a host device serves a trace however it fragments; untouched pages cost nothing."""
    return min(8 * trace.peak_live + HOST_SLACK, HOST_LIMIT)


def timed(figure: str, driver: str) -> str:
    """A time, with what it is the time of where that is no GPU."""
    return (
        f"{figure} (of the host device, emulated on the CPU; a GPU's differ)" if driver == "host" else figure
    )


def cell(figures: Figures, name: str) -> str:
    figure = getattr(figures, name)
    return "-" if figure is None else f"{figure:.4f}" if name == "ratio" else f"{figure:,}"


def describe(figures: Figures) -> str:
    """One pass as lines of text."""
    cells = {name: cell(figures, name) for name in TITLES}
    for name in ("peak_live", "peak_reserved"):
        cells[name] += f" bytes ({size_text(getattr(figures, name))})"
    cells["ns_per_event"] = timed(cells["ns_per_event"], figures.driver)
    return pairs([(TITLES[name][0], text) for name, text in cells.items()])


def describe_all(passes: Sequence[Figures]) -> str:
    """Several passes as a table."""
    rows = [[f"{number}", *(cell(one, name) for name in TITLES)] for number, one in enumerate(passes, 1)]
    return table(["pass", *(column for _, column in TITLES.values())], rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_trace(parser)
    options.add_driver(parser)
    text = "of the host device, such as 64GiB; default: what the trace needs"
    parser.add_argument("--memory", metavar="SIZE", help=text)
    positive = options.number_from(int, 1, math.inf, "a number from 1 on")
    text = "passes, one after the other"
    parser.add_argument("--repeat", metavar="N", type=positive, default=1, help=text)
    options.add_json(parser)


def run(
    trace: str,
    driver: str | None = None,
    memory: str | None = None,
    repeat: int = 1,
    as_json: bool = False,
    device: int | None = None,
) -> int:
    """The command.  Returns its exit status."""
    loaded = load(trace, device)
    for note in loaded.notes:
        put(f"accelrt replay: {note}", file=sys.stderr)
    line = open_driver(driver, memory, host_capacity(loaded))
    if not as_json:
        put(line, flush=True)
    passes = replay_often(loaded, repeat, wanted=not as_json)
    if as_json:
        objects = [{"schema": options.SCHEMA} | asdict(one) for one in passes]
        print(json.dumps(objects if repeat > 1 else objects[0]))
    else:
        put(describe(passes[0]) if repeat == 1 else describe_all(passes))
    return 1 if told_refusals(loaded, passes) else 0


def told_refusals(trace: Trace, passes: Sequence[Figures]) -> bool:
    """Tells whether an allocation was refused, which standard error is told: the trace was not replayed."""
    ooms = max(one.ooms for one in passes)
    if ooms:
        advice = "give it more by --memory" if chosen_driver() == "host" else "use a device with more"
        live, memory = size_text(trace.peak_live), size_text(accelrt.mem_get_info()[1])
        put(
            f"accelrt replay: out of memory: {ooms:,} of {sum(trace.ops):,} allocations were refused; the "
            f"trace has up to {live} live, the device has {memory}; {advice}",
            file=sys.stderr,
        )
    return bool(ooms)
