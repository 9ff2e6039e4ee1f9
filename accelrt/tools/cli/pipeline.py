"""The demo's second part: a pipeline on two streams, run once as it is and then replayed as a graph.

Bytes come in from page-locked memory, are rotated on one stream and turned round in blocks on two, between
guard zones that have to stay as they are, and go out again.  Every result is compared with numpy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from accelrt import Buffer, CUDAGraph, PinnedBuffer, Stream, copy, graph, stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[Any]

BLOCKS = 8
GUARD = 4096  # bytes at either end of the result
GUARD_VALUE = 0xA5
SEED = 20


@dataclass(frozen=True)
class PipelineFigures:
    """The figures of the pipeline.

    Attributes:
        nbytes: that went in and out at every run.
        nodes: of the graph.
        replays: of it.
        us_per_replay: float, microseconds from replay() to the result on the host, the median.
        wrong: runs whose result, guard zones included, was not numpy's.
        calls: of the host function, one for each run.
    """

    nbytes: int
    nodes: int
    replays: int
    us_per_replay: float
    wrong: int
    calls: int

    @property
    def passed(self) -> bool:
        return self.wrong == 0 and self.calls == self.replays + 1


def pinned(nbytes: int) -> Bytes:
    """An array on page-locked memory, which it keeps alive."""
    import numpy as np

    memory: Any = PinnedBuffer(nbytes)
    return np.frombuffer(memory, dtype=np.uint8)


class Pipeline:
    """The pipeline's memory and streams; they go when it does."""

    def __init__(self, nbytes: int):
        import numpy as np

        self.nbytes = nbytes
        self.shift: int = nbytes // 3
        self.calls: int = 0
        self.copier: Stream = Stream()
        self.worker: Stream = Stream()
        self.input: Bytes = pinned(nbytes)
        self.output: Bytes = pinned(nbytes + 2 * GUARD)
        self.loaded: Buffer = Buffer(nbytes, stream=self.copier)
        self.rotated: Buffer = Buffer(nbytes, stream=self.worker)
        self.result: Buffer = Buffer(nbytes + 2 * GUARD, stream=self.copier)
        self.random: np.random.Generator = np.random.default_rng(SEED)

    def enqueue(self) -> None:
        """Puts one run into the streams: it begins and ends on copier, and worker joins in between."""
        copier, worker = self.copier, self.worker
        self.loaded.copy_from(self.input, stream=copier, blocking=False)
        worker.wait_stream(copier)
        self.result.fill(GUARD_VALUE, stream=copier)
        self.rotate()
        worker.launch_host_func(self.count)
        copier.wait_stream(worker)
        worker.wait_stream(copier)
        for block in range(BLOCKS):
            self.turn(block, copier if block % 2 else worker)
        copier.wait_stream(worker)
        self.result.copy_to(self.output, stream=copier, blocking=False)

    def rotate(self) -> None:
        rest = self.nbytes - self.shift
        copy(self.rotated, self.loaded, rest, src_offset=self.shift, stream=self.worker, blocking=False)
        copy(self.rotated, self.loaded, self.shift, dst_offset=rest, stream=self.worker, blocking=False)

    def turn(self, block: int, stream: Stream) -> None:
        size = self.nbytes // BLOCKS
        offset = GUARD + (BLOCKS - 1 - block) * size
        copy(
            self.result,
            self.rotated,
            size,
            dst_offset=offset,
            src_offset=block * size,
            stream=stream,
            blocking=False,
        )

    def count(self) -> None:
        self.calls += 1

    def renew(self) -> None:
        """New bytes to go in, and none to come out."""
        self.input[:] = self.random.integers(0, 256, self.nbytes, dtype=self.input.dtype)
        self.output[:] = 0

    def is_right(self) -> bool:
        """Tells whether the result is what numpy makes of the input, and the guard zones stand."""
        import numpy as np

        expected = np.full_like(self.output, GUARD_VALUE)
        rotated = np.roll(self.input, -self.shift).reshape(BLOCKS, -1)
        expected[GUARD:-GUARD] = rotated[::-1].reshape(-1)
        return bool(np.array_equal(self.output, expected))


def pipeline_part(nbytes: int = 1 << 20, replays: int = 100) -> PipelineFigures:
    """Runs the pipeline once as it is, captures it, replays it on new input each time, and compares.

    Arguments:
        nbytes: int, a multiple of 8.
        replays: int, at least 1.
    """
    pipeline = Pipeline(nbytes)
    pipeline.renew()
    pipeline.enqueue()
    pipeline.copier.synchronize()
    wrong = int(not pipeline.is_right())
    captured = CUDAGraph()
    with graph(captured, stream=pipeline.copier):
        pipeline.enqueue()
    times = []
    for _ in range(replays):
        pipeline.renew()
        times.append(timed_replay(captured, pipeline.copier))
        wrong += not pipeline.is_right()
    median = sorted(times)[replays // 2] / 1000
    return PipelineFigures(nbytes, captured.node_count, replays, round(median, 1), wrong, pipeline.calls)


def timed_replay(captured: CUDAGraph, copier: Stream) -> int:
    begin = perf_counter_ns()
    with stream(copier):
        captured.replay()
    copier.synchronize()
    return perf_counter_ns() - begin
