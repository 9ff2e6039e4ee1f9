"""Allocation: a pair is one allocation and its free, which finds its block in the cache.

torch is given the device and the stream, its fastest form; accelrt takes the current ones.  Mixed sizes are
512 B to 4 MiB with 200 blocks live, per pair.  From several threads the figure is wall time, divided by all
pairs of all threads, and the loop is not subtracted.
"""

import tempfile
from pathlib import Path

import threads
from rows import Goal, Row
from suite import Suite, run

SOURCE = Path(__file__).with_name("raw") / "nogil_pairs.pyx"
ROWS = [
    Row("pair_512", "alloc + free, 512 B", Goal(120)),
    Row("pair_512_stream", "alloc + free, 512 B, on a side stream"),
    Row("pair_4mib", "alloc + free, 4 MiB", Goal(150)),
    Row("mixed_200", "mixed sizes, 200 live", Goal(200), batch=1),
    Row("nogil_1", "alloc + free, 512 B, Cython, no GIL", Goal(40)),
    Row("nogil_8", "the same, 8 threads on 8 streams, wall"),
    Row("nogil_scale", "pairs per second of those 8, in times of one", Goal(6, ">="), unit="x"),
    Row("threads_8", "alloc + free, 512 B, 8 Python threads, wall", Goal(400)),
    Row("buffer_512", "object that owns 512 B, made and dropped"),
    Row("memory_allocated", "memory_allocated()", Goal(80)),
    Row("pinned_1mib", "pinned memory, 1 MiB, alloc + free", Goal(200), batch=20),
]


def python_threads(suite: Suite, peer) -> None:
    """The row of eight Python threads, for one peer that has pairs."""
    single = suite.cells.get("pair_512", {}).get(peer.column)
    if single is None:
        return

    def action() -> dict:
        return threads.python_wall(peer.pair_512(), single["value"], peer.enter_thread, suite.quick)

    suite.attempt("threads_8", peer.column, action)


def nogil(suite: Suite, peer) -> None:
    """The rows of Cython threads, which only accelrt has."""
    streams = peer.side_streams(threads.THREADS)
    handles = [stream.cuda_stream for stream in streams]
    with tempfile.TemporaryDirectory() as folder:

        def action(count: int) -> dict:
            pairs = threads.compiled(SOURCE, folder).pairs
            return threads.nogil_wall(pairs, handles[:count], peer.enter_thread, suite.quick)

        suite.attempt("nogil_1", peer.column, lambda: action(1))
        suite.attempt("nogil_8", peer.column, lambda: action(threads.THREADS))
    cells = [suite.cells.get(key, {}).get(peer.column) for key in ("nogil_1", "nogil_8")]
    if None not in cells:
        suite.keep("nogil_scale", peer.column, {"value": cells[0]["value"] / cells[1]["value"]})


def more(suite: Suite, present: list) -> None:
    """The rows of several threads."""
    for peer in present:
        python_threads(suite, peer)
        if peer.column == "accelrt":
            nogil(suite, peer)


if __name__ == "__main__":
    run("alloc", ROWS, more)
