"""The settings that trade memory against time: every trace with each of a few settings strings.

Each cell is from a process of its own, in which `accelrt replay` replays the trace four times in a row.  The
ratio is the most reserved in the four passes to the most live; a pass's calls are those that create, map,
unmap and release memory behind addresses.  Times are per event, the replaying loop's included.  With --quick
two traces are cut short and replayed with two strings only, and the ratios mean nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers
from replay_trace import FOLDER, PASSES, QUICK_EVENTS, TRACES
from rows import Row
from suite import Suite, options

SETTING = "ACCELRT_ALLOC_CONF"
DEFAULT = "default"
STRINGS = (
    DEFAULT,
    "stitching:False",
    "growth_slack:0",
    "growth_slack:0.01",
    "growth_slack:0.02",
    "growth_slack:0.05",
    "piece_size_mb:2",
    "piece_size_mb:20",
    "expandable_segments:False",
)
TIMEOUT = 60.0  # seconds for one process
# What the process runs: the command line, of the tree that this file is in unless accelrt is installed.
COMMAND = "import runpy, peers; runpy.run_module('accelrt', run_name='__main__', alter_sys=True)"
CALLS = "virtual_memory_calls"
COUNTED, TIMED = (1, 2, PASSES), (1, PASSES)  # passes that have rows


def rows(traces: tuple[str, ...]) -> list[Row]:
    """A trace's memory, its calls, and its times."""
    made = []
    for name in traces:
        made.append(Row(f"{name}.ratio", f"{name}: reserved / live", unit="ratio"))
        for which in COUNTED:
            made.append(Row(f"{name}.calls.{which}", f"{name}: calls in pass {which}", unit="count"))
        for which in TIMED:
            made.append(Row(f"{name}.time.{which}", f"{name}: pass {which}, per event"))
    return made


def cells(name: str, passes: list[dict]) -> dict[str, dict]:
    """A trace's cells by row, of what the passes hold."""
    reserved, live = max(each["peak_reserved"] for each in passes), passes[0]["peak_live"]
    made = {f"{name}.ratio": {"value": reserved / live, "reserved": reserved, "live": live}}
    for which in TIMED:
        made[f"{name}.time.{which}"] = {"value": passes[which - 1]["ns_per_event"]}
    for which in COUNTED:
        if CALLS in passes[which - 1]:
            made[f"{name}.calls.{which}"] = {"value": passes[which - 1][CALLS]}
    return made


def replay(trace: Path, string: str) -> list[dict]:
    """The passes of one process.

    Raises:
        RuntimeError: it did not end well, or an allocation failed.
    """
    driver = "host" if peers.on_host() else "cuda"
    words = ["replay", str(trace), "--repeat", str(PASSES), "--json", "--driver", driver]
    settings = {key: value for key, value in os.environ.items() if key != SETTING}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent,
        env=settings if string == DEFAULT else {**settings, SETTING: string},
        timeout=TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError(f"the process ended with {done.returncode}: {done.stderr[-1000:]}")
    passes = json.loads(done.stdout.splitlines()[-1])
    if refused := sum(each.get("ooms", 0) for each in passes):
        raise RuntimeError(f"out of memory {refused} times")
    return passes


def shortened(name: str, folder: str) -> Path:
    """A file that holds the first events of a trace."""
    path = Path(folder, f"{name}.npz")
    with np.load(FOLDER / path.name) as arrays:
        np.savez(path, **{key: arrays[key][:QUICK_EVENTS] for key in ("op", "id", "size", "stream")})
    return path


def main() -> None:
    """Every trace with every string."""
    chosen = options()
    traces, strings = (TRACES[-2:], STRINGS[:2]) if chosen.quick else (TRACES, STRINGS)
    suite = Suite("stitching", rows(traces), list(strings), chosen.quick)
    with tempfile.TemporaryDirectory() as folder:
        for name in traces:
            trace = shortened(name, folder) if chosen.quick else FOLDER / f"{name}.npz"
            for string in strings:
                try:
                    found = cells(name, replay(trace, string))
                except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                    suite.fail(f"{name}.ratio", string, f"{type(error).__name__}: {error}")
                    continue
                for key, cell in found.items():
                    suite.keep(key, string, cell)
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
