"""Arrays in captures, on several streams, and under the race detector."""

import gc
from functools import partial

import numpy as np
import pytest
from beside import Gate, on_threads

import accelrt


def captured(work):
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        work()
    return graph


def test_copies_of_rows_are_captured_and_read_anew_at_each_replay():
    src, dst = accelrt.zeros((6, 8), "i4"), accelrt.zeros((8, 6), "i4")
    graph = captured(lambda: dst.copy_(src.T))
    for seed in range(3):
        model = np.random.default_rng(seed).integers(0, 99, (6, 8), dtype=np.int32)
        src.copy_(model)
        graph.replay()
        assert (dst.numpy() == model.T).all()


def test_a_graph_keeps_the_arrays_that_it_uses():
    src, dst = accelrt.full((6, 8), 3, "i4"), accelrt.zeros((6, 8), "i4")
    graph = captured(partial(dst[::2].copy_, src[1::2]))
    held = accelrt.memory_allocated()
    del src
    gc.collect()
    assert accelrt.memory_allocated() == held
    others = [accelrt.full((6, 8), 9, "i4") for _ in range(8)]
    graph.replay()
    assert dst.numpy()[:, 0].tolist() == [3, 0] * 3
    del graph, others


def test_arrays_are_made_filled_and_copied_in_a_capture():
    out = accelrt.zeros((4, 4), "f8")

    def work():
        made = accelrt.full((4, 4), 1.5)
        made[1:3, 1:3] = 2.5
        out.copy_(made.T)

    graph = captured(work)
    assert (out.numpy() == 0).all()
    for _ in range(2):
        out.fill_(0)
        graph.replay()
        assert out.numpy().sum() == 12 * 1.5 + 4 * 2.5


def test_page_locked_memory_is_captured_and_ordinary_memory_only_in_one_piece():
    array = accelrt.zeros((4, 4), "i4")
    pinned = accelrt.empty((4, 4), "i4", pin_memory=True).fill_(5)
    graph = captured(partial(array.copy_, pinned.T, non_blocking=True))
    view = pinned.numpy()
    del pinned
    graph.replay()
    assert (array.numpy() == 5).all()
    view[...] = 6
    graph.replay()
    assert (array.numpy() == 6).all()
    with pytest.raises(ValueError, match="a capture takes no copy of scattered elements of ordinary"):
        captured(lambda: array[::2].copy_(np.zeros((2, 4), np.int32), non_blocking=True))
    array.fill_(1)
    del view


def test_overlapping_copies_are_captured():
    array = accelrt.asarray(np.arange(16, dtype=np.int32))
    graph = captured(lambda: array[1:].copy_(array[:-1]))
    for _ in range(2):
        graph.replay()
    assert array.numpy().tolist() == [0, 0, *range(14)]


def test_memory_used_on_another_stream_is_not_reused_before_its_work_is_done():
    worker = accelrt.Stream()
    src, dst = accelrt.full((64, 64), 1, "i4"), accelrt.zeros((64, 64), "i4")
    accelrt.synchronize()
    with Gate(worker):
        dst.copy_(src.T, stream=worker)
        address = src.ptr
        del src
        other = accelrt.full((64, 64), 9, "i4")
        accelrt.current_stream().synchronize()
        assert other.ptr != address
    worker.synchronize()
    assert (dst.numpy() == 1).all()


def test_page_locked_memory_may_be_dropped_while_it_is_copied():
    worker = accelrt.Stream()
    array = accelrt.zeros((64, 64), "i4", stream=worker)
    with Gate(worker):
        source = accelrt.empty((64, 64), "i4", pin_memory=True).fill_(4)
        address = source.ptr
        array.copy_(source.T, non_blocking=True, stream=worker)
        array[0].copy_(np.full((2, 64), 6, np.int32)[0, ::-1], non_blocking=True, stream=worker)
        del source
        assert accelrt.empty((64, 64), "i4", pin_memory=True).ptr != address
    worker.synchronize()
    found = array.numpy()
    assert (found[0] == 6).all()
    assert (found[1:] == 4).all()


def test_a_stream_of_another_device_is_refused():
    last = accelrt.device_count() - 1
    if last == 0:
        pytest.skip("there is one device")
    array = accelrt.zeros((4, 4), device=0)
    for work in (
        lambda stream: array.copy_(array.copy().T, stream=stream),
        lambda stream: array.fill_(1, stream=stream),
        lambda stream: array[:, 1].fill_(1, stream=stream),
    ):
        with pytest.raises(ValueError, match="stream is on device"):
            work(accelrt.Stream(last))


def test_threads_copy_at_once():
    def work(seed):
        model = np.random.default_rng(seed).integers(0, 99, (20, 30), dtype=np.int16)
        with accelrt.stream(accelrt.Stream()):
            for _ in range(20):
                array = accelrt.asarray(model)
                turned = accelrt.empty((30, 20), "i2").copy_(array.T)
                assert (turned[::-1, ::2].copy().numpy() == model.T[::-1, ::2]).all()

    on_threads(work, range(4))


def test_the_race_detector_sees_copies_of_rows():
    accelrt.sanitizer.enable()
    try:
        first, second = accelrt.Stream(), accelrt.Stream()
        src, dst = accelrt.zeros((8, 8)), accelrt.zeros((8, 8))
        first.wait_stream(accelrt.current_stream())
        dst.copy_(src.T, stream=first)
        with pytest.raises(accelrt.RaceError, match="copy_"):
            dst.copy_(src.T, stream=second)
        second.wait_stream(first)
        dst.copy_(src.T, stream=second)
    finally:
        accelrt.sanitizer.disable()
