"""What there is already makes nothing slower, and no figure wrong.  Calls are counted here, never timed."""

import functools
import os
import random

import pytest
from beside import Caller, Crowd
from child import in_child, in_own_process

import accelrt
from accelrt.memory import audit, memory_stats

ROOM = {"ACCELRT_HOST_MEMORY": "4GiB"}
STREAMS = 80  # more than heaps that stay awake
FIGURES = ("allocation.all.current", "allocated_bytes.all.current", "allocated_bytes.all.peak")


def round_up(size):
    return -(-size // 512) * 512


def allocate_by_turns(seed):
    rng = random.Random(seed)
    streams = [accelrt.Stream() for _ in range(STREAMS)]
    live, current, peak = [], 0, 0
    for step in range(4000):
        if live and rng.random() < 0.48:
            buffer, size = live.pop(rng.randrange(len(live)))
            buffer.free()
            current -= size
        else:
            # Runs on one stream are hits, which change figures under that heap's lock alone.
            stream = streams[rng.randrange(STREAMS) if step % 7 == 0 else step // 50 % STREAMS]
            size = rng.choice((1, 512, 5000, 100_000, 3 << 20))
            live.append((accelrt.Buffer(size, stream=stream), round_up(size)))
            current += round_up(size)
            peak = max(peak, current)
        if step % 500 == 250:
            accelrt.reset_peak_memory_stats()
            peak = current
        if step % 100 == 0:
            stats = memory_stats()
            assert tuple(stats[name] for name in FIGURES) == (len(live), current, peak)
            assert accelrt.memory_allocated() == current
    accelrt.synchronize()
    for buffer, _ in live:
        buffer.free()
    assert accelrt.memory_allocated() == 0
    audit()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@pytest.mark.parametrize("debug", ["0", "1"])
def test_figures_and_peaks_are_exact_over_many_streams(debug):
    in_child(allocate_by_turns, 7, ACCELRT_DEBUG=debug, **ROOM)


@pytest.mark.parametrize("settings", ["expandable_segments:False", "stitching:False"])
def test_figures_are_exact_in_the_other_modes(settings):
    in_child(allocate_by_turns, 8, ACCELRT_DEBUG="0", ACCELRT_ALLOC_CONF=settings, **ROOM)


@in_own_process(ACCELRT_DEBUG="0", **ROOM)
def test_threads_of_many_streams_keep_every_identity():
    def work(seed):
        rng = random.Random(seed)
        streams = [accelrt.Stream() for _ in range(STREAMS // 4)]
        live = []
        for step in range(3000):
            if live and rng.random() < 0.5:
                live.pop(rng.randrange(len(live))).free()
            else:
                size = rng.choice((1, 5000, 3 << 20))
                live.append(accelrt.Buffer(size, stream=streams[step // 40 % len(streams)]))
        for buffer in live:
            buffer.free()

    callers = [Caller(functools.partial(work, seed)).begin() for seed in range(4)]
    while not all(caller.is_done() for caller in callers):
        accelrt.memory_allocated()
        accelrt.empty_cache()
    for caller in callers:
        caller.result()
    audit()
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_allocated() == accelrt.memory_reserved() == 0


@in_own_process(**ROOM)
def test_pools_of_many_graphs_are_told_apart_and_leave_nothing():
    stream, kept = accelrt.Stream(), []
    for _ in range(60):
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            buffer = accelrt.Buffer(1000)
            buffer.fill(1)
        kept.append((graph, buffer))
    pools = {graph.pool() for graph, _ in kept}
    assert len(pools) == 60
    for graph, buffer in kept[::2]:
        assert graph.memory_stats()["allocated_bytes.current"] == 1024 > buffer.nbytes
        graph.replay()
    del graph, buffer
    kept.clear()
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0
    audit()


def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif("ACCELRT_SANITIZE_BUILD" in os.environ, reason="a sanitizer keeps records of its own")
@in_own_process(ACCELRT_DEBUG="0", **ROOM)
def test_a_graph_writes_to_few_pages_of_the_hosts_memory():
    stream, kept = accelrt.Stream(), []

    def capture(count):
        for _ in range(count):
            kept.append(accelrt.CUDAGraph())
            with accelrt.graph(kept[-1], stream=stream):
                kept.append(accelrt.Buffer(1000))

    capture(200)
    before = resident()
    capture(1000)
    assert (resident() - before) / 1000 < 40  # KiB
    audit()


@in_own_process(**ROOM)
def test_a_first_allocation_calls_the_driver_as_often_beside_many_streams():
    accelrt.init()

    def calls():
        stats = memory_stats()
        return stats["virtual_memory_calls"], stats["num_device_alloc"], stats["num_sync_all_streams"]

    def first():
        before, stream = calls(), accelrt.Stream()
        kept.append(accelrt.Buffer(1000, stream=stream))
        return tuple(now - then for now, then in zip(calls(), before, strict=True))

    kept = []
    first()  # reserves addresses, which the next ones share
    alone = first()
    for _ in range(300):
        first()
    assert first() == alone


@in_own_process(ACCELRT_HOST_END_DELAY_US="300")
def test_streams_are_handed_out_again_beside_the_ends_of_captures():
    captured = accelrt.Stream()
    buffer, other = accelrt.Buffer(1000), accelrt.Buffer(1000, stream=captured)

    def capture():
        with accelrt.graph(accelrt.CUDAGraph(), stream=captured, capture_error_mode="thread_local"):
            other.fill(1)

    handles = set()
    with Crowd(capture) as crowd:
        while crowd.rounds[0] < 200 and not crowd.has_failed():
            stream = accelrt.Stream()
            buffer.fill(1, stream=stream)
            stream.synchronize()
            handles.add(stream.cuda_stream)
    assert len(handles) <= 3  # one is in use at a time
