"""The recorder: an allocation and its free while their events are kept, and how long a snapshot takes.

A pair is one allocation and its free, 512 B, found in the cache; three events.  Stacks are Python's alone,
20 frames deep; the calls that make the depth are subtracted.  A dump writes a million events with 20 stacks
to a file: torch's is the pickle of `_snapshot()`, accelrt's its own format, or that.  What is loaded
is the last dump.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from peers.depth import descend
from rows import Goal, Row
from suite import run
from worker import Worker

EVENTS = 1_000_000
ROWS = [
    Row("history_off", "alloc + free, nothing recorded"),
    Row("history_events", "alloc + free, events recorded", Goal(3000)),
    Row("history_state", "alloc + free, stacks of live memory, 20 frames"),
    Row("history_stacks", "alloc + free, events with their stacks, 20 frames", Goal(12000)),
    Row("history_ended", "alloc + free, recording ended"),
    Row("history_tag", "alloc + free, in a tag"),
    Row("history_dump", "dump of a million events", Goal(2), unit="s"),
    Row("history_pickle", "dump of a million events, torch's format", unit="s"),
    Row("history_load", "load of that dump", unit="s"),
    Row("history_bytes", "size of that dump", unit="MB"),
]


def fill(worker: Worker, events: int) -> None:
    """Records so many events, with 20 stacks."""
    worker.peer.record(context="all", max_entries=2 * events)
    pair = worker.peer.pair_512()
    for number in range(events // 3):
        descend(pair, number % 20)


def more(worker: Worker) -> None:
    """The rows of dumps, for libraries that record."""
    fill(worker, EVENTS // 100 if worker.quick else EVENTS)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in worker.peer.dumps:
            path = Path(folder) / f"dump{suffix}"
            key = "history_pickle" if suffix == ".pickle" else "history_dump"
            worker.attempt(key, lambda path=path: seconds(worker.peer.dump, path))
        worker.attempt("history_load", lambda: seconds(worker.peer.load, path))
        worker.attempt("history_bytes", lambda: {"value": path.stat().st_size / 1e6})
    worker.peer.record(None)


def seconds(action: Callable[[Path], object], path: Path) -> dict:
    start = time.perf_counter()
    action(path)
    return {"value": time.perf_counter() - start}


if __name__ == "__main__":
    run("history", ROWS, ["torch"], more, rounds=1)
