"""accelrt tune: replay a trace under many settings, and print the string of the best.

The best is the one that reserves least at its peak.  Among those within 1 % of the least it is the one with
the fewest driver calls; of equals, the one that names the fewest keys, then the fastest.  Settings by which
allocations are refused come last.

The defaults pass over the trace several times: what times differ by between these is noise, and is marked as
such where other settings differ from the defaults by no more.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import accelrt
from accelrt import env
from accelrt.allocator.settings import settings
from accelrt.core.printable import size_text
from accelrt.runtime.init import chosen_driver
from accelrt.tools.cli import options
from accelrt.tools.cli.choice import open_driver
from accelrt.tools.cli.commands.replay import host_capacity, replay
from accelrt.tools.cli.text import Progress, put, table
from accelrt.tools.traces import load, npz_archive
from accelrt.tools.traces.trace import Trace

# What is tried of each key, alone and then together with the best so far.
CHOICES: dict[str, tuple[str, ...]] = {
    "stitching": ("False",),
    "growth_slack": ("0.0", "0.02", "0.1", "1.0"),
    "piece_size_mb": ("2", "20"),
    "roundup_power2_divisions": ("4", "8", "16"),
    "expandable_segments": ("False",),
    "max_split_size_mb": ("64", "256"),
    "large_segment_size_mb": ("12", "64"),
    "garbage_collection_threshold": ("0.8",),
}
OF_PLAIN = ("large_segment_size_mb",)  # keys of no effect on segments that grow
WITH_CAPACITY = ("garbage_collection_threshold",)  # of no effect where memory is without end
NEAR = 1.01
ROUNDS = 3
PASSES = 3  # of the defaults over the trace, by which noise is measured
UNSET = ("ACCELRT_RECORD", "ACCELRT_PUBLISH", "ACCELRT_DEBUG", "ACCELRT_SANITIZE", "ACCELRT_HOST_MEMORY")


@dataclass(frozen=True)
class Trial:
    """The figures of one pass over the trace under some settings.

    Attributes:
        settings: the string; empty for the defaults.
        peak_reserved: bytes.
        fragmentation: the part of these that was never live, 0 to 1; None where an allocation was refused.
        driver_calls: calls that take memory from the device, map it or give it back.
        ns_per_event: nanoseconds.
        ooms: allocations that were refused.
    """

    settings: str
    peak_reserved: int
    fragmentation: float | None
    driver_calls: int
    ns_per_event: float
    ooms: int


@dataclass
class Tuner:
    """Tries settings on one trace and one capacity, each once."""

    trace: Trace
    path: Path
    driver: str | None
    capacity: int
    keys: Sequence[str]  # that are tried
    wanted: bool
    line: str = ""  # which driver it was
    trials: dict[str, Trial] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)  # of the defaults, nanoseconds an event, by pass

    def run(self) -> Trial:
        """Rounds of trials, until one brings nothing better.  Returns the best."""
        passes = [self.run_trial("") for _ in range(PASSES)]
        self.trials[""] = passes[0]
        self.times = [each.ns_per_event for each in passes]
        self.try_all(candidates("", self.keys, self.capacity > 0))
        best = best_of(self.trials.values())
        for _ in range(ROUNDS - 1):
            self.try_all(candidates(best.settings, self.keys, self.capacity > 0))
            before, best = best, best_of(self.trials.values())
            if best == before:
                break
        return best

    def is_noise(self, trial: Trial) -> bool:
        """Tells whether a time differs from the defaults' by no more than these differ among themselves."""
        low, high = min(self.times), max(self.times)
        return low - (high - low) <= trial.ns_per_event <= high + (high - low)

    def try_all(self, texts: Iterator[str]) -> None:
        new = [text for text in texts if text not in self.trials]
        progress = Progress(len(new), self.wanted)
        try:
            for done, text in enumerate(new):
                progress.update(done)
                self.trials[text] = self.run_trial(text)
        finally:
            progress.finish()

    def run_trial(self, text: str) -> Trial:
        variables = {name: value for name, value in os.environ.items() if name not in UNSET}
        done = subprocess.run(
            [
                *(sys.executable, "-m", __spec__.name),
                *(str(self.path), self.driver or "", str(self.capacity)),
            ],
            env=variables | {settings.VARIABLE: text},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise RuntimeError(f"the trial of {text or 'the defaults'!r} failed: {last[0]}")
        figures = json.loads(done.stdout)
        self.line = figures["driver"]
        peak, ooms = figures["peak_reserved"], figures["ooms"]
        lost = None if ooms or not peak else round(1 - self.trace.peak_live / peak, 6)
        return Trial(text, peak, lost, figures["driver_calls"], figures["ns_per_event"], ooms)


def print_trial(path: str, driver: str, capacity: str) -> None:
    """Prints the figures of one pass under the settings of the environment as JSON.

    In a process of its own: the settings that matter most cannot change once memory was allocated.

    Arguments:
        path: of the trace's npz archive.
        driver: "" is the environment's.
        capacity: bytes of memory that the device has, in digits; 0 is what it takes.
    """
    trace, limit = npz_archive.load(path), int(capacity)
    line = open_driver(driver or None, None, limit or host_capacity(trace))
    if limit and chosen_driver() != "host":
        accelrt.set_per_process_memory_fraction(min(1.0, limit / accelrt.mem_get_info()[1]))
    figures, stats = replay(trace), accelrt.memory_stats()
    calls = stats["num_device_alloc"] + stats["num_device_free"] + stats["virtual_memory_calls"]
    print(json.dumps(asdict(figures) | {"driver": line, "driver_calls": calls}))


def candidates(base: str, keys: Sequence[str], capped: bool) -> Iterator[str]:
    """Settings one key away from others, and these first; each is one that accelrt takes."""
    named = dict(item.split(":", 1) for item in settings.items(base))
    yield base
    for key in keys:
        if key in named or (key in WITH_CAPACITY and not capped):
            continue
        for value in CHOICES[key]:
            changed = named | {key: value}
            if key in OF_PLAIN and named.get("expandable_segments") != "False":
                changed = {"expandable_segments": "False"} | changed
            try:
                yield settings.parse(",".join(f"{name}:{each}" for name, each in changed.items())).text
            except ValueError:  # contradicts what is named already
                continue


def best_of(tried: Iterable[Trial]) -> Trial:
    """The best of some trials, as this module's text says."""
    trials = list(tried)
    served = [trial for trial in trials if not trial.ooms]
    if not served:
        return min(trials, key=place_of)
    least = min(trial.peak_reserved for trial in served)
    near = [trial for trial in served if trial.peak_reserved <= NEAR * least]
    keys = {trial.settings: len(list(settings.items(trial.settings))) for trial in near}
    return min(near, key=lambda trial: (trial.driver_calls, keys[trial.settings], trial.ns_per_event))


def place_of(trial: Trial) -> tuple[int, int, int]:
    return trial.ooms, trial.peak_reserved, trial.driver_calls


def describe(tuner: Tuner, best: Trial) -> str:
    """The trials of one capacity as a table, the best first, and what to copy."""
    ordered = sorted(tuner.trials.values(), key=lambda trial: (trial != best, *place_of(trial)))
    names = [trial.settings or "(the defaults)" for trial in ordered]
    width = max(map(len, names))
    figures = ("peak reserved", "fragmentation", "driver calls", "ns/event  ", "refused")
    header = (*figures, "settings".ljust(width))
    rows = [
        (
            f"{trial.peak_reserved:,}",
            "-" if trial.fragmentation is None else f"{100 * trial.fragmentation:.2f} %",
            f"{trial.driver_calls:,}",
            f"{trial.ns_per_event:,.1f} {'~' if tuner.is_noise(trial) else ' '}",
            f"{trial.ooms:,}",
            name.ljust(width),
        )
        for trial, name in zip(ordered, names, strict=True)
    ]
    low, high = min(tuner.times), max(tuner.times)
    passes = f"the defaults alone took {low:,.1f} to {high:,.1f} ns/event in {len(tuner.times)} passes"
    lines = [table(header, rows), f"~ as fast as the defaults, by noise: {passes}"]
    if best.ooms:
        lines.append(f"none of them serves the trace: {best.ooms:,} allocations were refused at least")
    promise = f"peak reserved {best.peak_reserved:,} bytes ({size_text(best.peak_reserved)})"
    lines += [verdict(tuner.trials[""], best, len(ordered) - 1), f"best: {promise}"]
    return "\n".join([*lines, f"{settings.VARIABLE}={best.settings}"])


def verdict(defaults: Trial, best: Trial, others: int) -> str:
    """Says what the best settings gain over the defaults, or that the defaults are best."""
    if not best.settings:
        return (
            f"the defaults are best: none of {others} others reserves over 1 % less, or about as much with "
            "fewer driver calls"
        )
    if best.ooms < defaults.ooms:
        return f"the defaults refuse {defaults.ooms:,} allocations, these settings {best.ooms:,}"
    calls = f"{best.driver_calls:,} driver calls, the defaults {defaults.driver_calls:,}"
    saved = 1 - best.peak_reserved / defaults.peak_reserved
    if abs(saved) < NEAR - 1:
        return f"these settings reserve about as much as the defaults, and make {calls}"
    return f"these settings reserve {100 * saved:.1f} % less than the defaults, and make {calls}"


def read_keys(text: str | None) -> list[str]:
    """The keys that a text names; None is all.

    Raises:
        ValueError: one is none of those that are tried.
    """
    keys = list(CHOICES) if text is None else text.split(",")
    unknown = [key for key in keys if key not in CHOICES]
    if unknown:
        raise ValueError(f"--keys={text}: {unknown[0]!r} is none of those tried, {', '.join(CHOICES)}")
    return keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_trace(parser)
    options.add_driver(parser)
    text = "memory that the device has, such as 64GiB; may be given several times; default: what it takes"
    parser.add_argument("--capacity", metavar="SIZE", action="append", default=[], help=text)
    text = "of the settings to try; default: all that may help"
    parser.add_argument("--keys", metavar="KEY,...", help=text)
    options.add_json(parser)


def run(
    trace: str,
    driver: str | None,
    capacity: Sequence[str],
    device: int | None = None,
    keys: str | None = None,
    as_json: bool = False,
) -> int:
    """The command.  Returns its exit status: 1 where no settings serve the trace."""
    sizes = [env.read_size("--capacity", text) for text in capacity] or [0]
    tried = read_keys(keys)
    loaded = load(trace, device)
    if not any(loaded.ops):
        raise ValueError(f"{trace} has no allocation, so every settings string is as good as any other")
    for note in loaded.notes:
        put(f"accelrt tune: {note}", file=sys.stderr)
    answers, bad = [], 0
    with tempfile.TemporaryDirectory(prefix="accelrt-tune-") as folder:
        archive = Path(folder, "trace.npz")
        npz_archive.save(archive, loaded)
        for size in sizes:
            tuner = Tuner(loaded, archive, driver, size, tried, wanted=not as_json)
            best = tuner.run()
            bad += bool(best.ooms)
            trials = [asdict(trial) for trial in tuner.trials.values()]
            answers.append(
                {
                    "capacity": size or None,
                    "best": asdict(best),
                    "defaults_are_best": not best.settings,
                    "defaults_ns_per_event": tuner.times,
                    "trials": trials,
                }
            )
            if not as_json:
                limit = f"; memory of {size_text(size)}" if size else ""
                put(f"{tuner.line}; peak live {loaded.peak_live:,} bytes{limit}")
                put(describe(tuner, best), flush=True)
    if as_json:
        print(
            json.dumps(
                {
                    "schema": options.SCHEMA,
                    "peak_live": loaded.peak_live,
                    "events": len(loaded),
                    "runs": answers,
                }
            )
        )
    return 1 if bad else 0


if __name__ == "__main__":
    print_trial(*sys.argv[1:])
