"""Graphs of ten copies of 1 KiB within the device, and changes of instances, from Python.

A rebinding gives a graph of 1,000 copies of 1 KiB eight other sources, each of one node, or one of 1,000
kernels eight other pointers; an update gives a kernel node another pointer, by GraphParameters, the node or
the Cython API.
Nothing is replayed in between, so that an instance is changed in place.

Capture and instantiation are one figure, and the old graph's destruction is part of it.  Replay is the call
alone; the work itself takes the device longer.  The threads beside the last capture run loops without the
GIL: the end of a capture waits until none of them is in a call, and keeps them out.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import threads
from rows import Goal, Row
from suite import run
from timing import FULL, QUICK, Work, measure, repeated, summary
from worker import Worker

HERE = Path(__file__).parent
FOLDER = "BENCH_GRAPH_FOLDER"  # where the processes keep what they compiled
ASKERS = 8
UPDATES = 200  # of a compiled loop
ROWS = [
    Row("replay_10", "replay() of 10 nodes", Goal(100, plus="raw C"), batch=50),
    Row("capture_10", "capture and instantiate 10 nodes", Goal(1.2, times="raw C"), batch=20),
    Row("rebind_8", "other memory for 8 of 1,000 copies", Goal(1000 + 8 * 300), batch=50),
    Row("rebind_kernels_8", "other memory for 8 of 1,000 kernels", Goal(1000 + 8 * 300), batch=50),
    Row("update_1", "another pointer for one kernel node", Goal(150, plus="raw C"), batch=200),
    Row("update_node", "the same by the node of a definition", Goal(150, plus="raw C"), batch=200),
    Row("update_nogil", "the same in Cython, no GIL", Goal(150, plus="raw C")),
    Row(
        "capture_asked",
        f"capture and instantiate 10 nodes beside {ASKERS} threads that record and ask",
        batch=20,
    ),
]


@contextmanager
def asking(subjects: list[tuple[int, int, int]]) -> Iterator[None]:
    """A thread for each (device, stream, event), which records and asks all the time."""
    module = threads.compiled(HERE / "raw" / "nogil_askers.pyx", os.environ[FOLDER])
    crowd = [threading.Thread(target=module.ask, args=subject) for subject in subjects]
    module.stop(False)
    for thread in crowd:
        thread.start()
    try:
        yield
    finally:
        module.stop(True)
        for thread in crowd:
            thread.join()


def more(worker: Worker) -> None:
    """The rows beside other threads and of a compiled loop, for the library that has what they call."""
    budget = QUICK if worker.quick else FULL
    peer = worker.peer

    def captures() -> dict:
        with asking(peer.asked(ASKERS)):
            return measure(Work(peer.captured("thread_local")), 20, peer.stream.synchronize, budget)

    def updates() -> dict:
        loop = threads.compiled(HERE / "raw" / "nogil_launches.pyx", os.environ[FOLDER]).updates
        subject = peer.update_subject()
        return summary(repeated(lambda: loop(*subject, UPDATES) / UPDATES, budget))

    if hasattr(peer, "update_subject"):
        worker.attempt("update_nogil", updates)
    if hasattr(peer, "asked"):
        worker.attempt("capture_asked", captures)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.environ.setdefault(FOLDER, made)
        run("graph", ROWS, ["torch", "CuPy", "cuda.core"], more)
