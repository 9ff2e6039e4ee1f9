"""Allocation: a pair is one allocation and its free, which finds its block in the cache.

torch is given the device and the stream, its fastest form; accelrt takes the current ones.  Mixed sizes are
512 B to 4 MiB with 200 blocks live, per pair.  From several threads the figure is wall time, divided by all
pairs of all threads.
"""

import functools
import tempfile
from pathlib import Path

import threads
from rows import Goal, Row
from suite import run
from worker import Worker

HERE = Path(__file__).parent
CROWDS = (1, 2, 4, 8, 16)  # Python threads, each on a stream of its own
ROWS = [
    Row("pair_512", "alloc + free, 512 B", Goal(120)),
    Row("pair_512_stream", "alloc + free, 512 B, on a side stream"),
    Row("pair_4mib", "alloc + free, 4 MiB", Goal(150)),
    Row("mixed_200", "mixed sizes, 200 live", Goal(200), batch=1),
    Row("nogil_1", "alloc + free, 512 B, Cython, no GIL", Goal(40)),
    Row("c_api_1", "alloc + free, 512 B, C, by accelrt.h"),
    Row("nogil_8", "those of Cython, 8 threads on 8 streams, wall"),
    Row("nogil_scale", "those 8 against 1, pairs per second", Goal(6, ">="), unit="x"),
    Row("threads_8", "alloc + free, 512 B, 8 Python threads, wall", Goal(400)),
    Row("python_1", "the same, 1 Python thread on a stream of its own"),
    *(Row(f"python_{count}", f"the same, {count} on {count} streams, wall") for count in CROWDS[1:]),
    *(
        Row(f"python_scale_{count}", f"those {count} against 1, pairs per second", unit="x")
        for count in CROWDS[1:]
    ),
    Row("buffer_512", "object that owns 512 B, made and dropped"),
    Row("memory_allocated", "memory_allocated()", Goal(80)),
    Row("pinned_1mib", "pinned memory, 1 MiB, alloc + free", Goal(200), batch=20),
]


def python_threads(worker: Worker) -> None:
    """The row of eight Python threads, for libraries that have pairs."""
    single = worker.values.get("pair_512")
    if single is None:
        return
    pair, enter = worker.peer.pair_512(), worker.peer.enter_thread
    worker.attempt("threads_8", lambda: threads.python_wall(pair, single, enter, worker.quick))


def python_streams(worker: Worker) -> None:
    """The rows of Python threads that share nothing: side by side only in an interpreter without a GIL."""
    streams = worker.peer.side_streams(max(CROWDS))
    makers = [functools.partial(worker.peer.pair_on, stream) for stream in streams]
    enter = worker.peer.enter_thread
    for count in CROWDS:
        worker.attempt(
            f"python_{count}", lambda count=count: threads.apart_wall(makers[:count], enter, worker.quick)
        )
    alone = worker.values.get("python_1")
    for count in CROWDS[1:]:
        together = worker.values.get(f"python_{count}")
        if alone and together:
            worker.attempt(f"python_scale_{count}", lambda together=together: {"value": alone / together})


def nogil(worker: Worker) -> None:
    """The rows of threads of Cython's and C's, which only accelrt has."""
    streams = worker.peer.side_streams(threads.THREADS)
    handles = [stream.cuda_stream for stream in streams]
    with tempfile.TemporaryDirectory() as folder:

        def action(count: int) -> dict:
            pairs = threads.compiled(HERE / "raw" / "nogil_pairs.pyx", folder).pairs
            return threads.nogil_wall(pairs, handles[:count], worker.peer.enter_thread, worker.quick)

        def from_c() -> dict:
            pairs = threads.linked(HERE / "c_pairs.c", folder)
            return threads.nogil_wall(pairs, handles[:1], worker.peer.enter_thread, worker.quick)

        worker.attempt("nogil_1", lambda: action(1))
        worker.attempt("c_api_1", from_c)
        worker.attempt("nogil_8", lambda: action(threads.THREADS))
    one, eight = worker.values.get("nogil_1"), worker.values.get("nogil_8")
    if one and eight:
        worker.attempt("nogil_scale", lambda: {"value": one / eight})


def more(worker: Worker) -> None:
    """The rows of several threads."""
    python_threads(worker)
    if worker.peer.column == "accelrt":
        python_streams(worker)
        nogil(worker)


if __name__ == "__main__":
    run("alloc", ROWS, ["cuda.bindings", "torch", "CuPy", "cuda.core", "RMM async", "RMM pool"], more)
