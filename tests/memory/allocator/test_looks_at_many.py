"""Misses, polls and captures look at no more beside many streams.  Looks are counted, never timed."""

import sys
import threading

import pytest
from child import in_own_process
from compiled import compile_extension

import accelrt

ROOM = {"ACCELRT_HOST_MEMORY": "4GiB"}
MANY = 100  # streams or graphs, of which at most AWAKE stay awake
AWAKE = 32
GRAPHS = 60  # what so many leave, a page each, the next capture does not give back
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("filed")
    compile_extension("filed", made)
    return str(made)


def counters(folder):
    sys.path.insert(0, folder)
    import filed

    return filed


def leave_pages(count):
    """As many streams, each of which has freed pages; answers them."""
    streams = [accelrt.Stream() for _ in range(count)]
    for buffer in [accelrt.Buffer(3 * MIB, stream=stream) for stream in streams]:
        buffer.free()
    return streams


@in_own_process(**ROOM)
def test_a_miss_looks_at_heaps_that_it_takes_pages_from(folder):
    filed, streams = counters(folder).filed, leave_pages(MANY)
    assert filed()["busy"] >= MANY - AWAKE
    reserved, kept = accelrt.memory_reserved(), []
    for misses in range(1, 6):
        kept.append(accelrt.Buffer(30 * MIB, stream=streams[0]))
        counts = filed()
        assert counts["busy"] == 0
        assert counts["unsearched"] <= 15 + AWAKE  # what the miss took pages from, and what fell asleep since
        assert counts["ranked"] >= MANY - AWAKE - 15 * misses
    assert accelrt.memory_reserved() == reserved  # what the streams left served all of it
    accelrt.memory.audit()


@in_own_process(**ROOM)
def test_a_capture_asks_no_stream_again_whose_work_is_done(folder):
    filed, streams = counters(folder).filed, leave_pages(MANY)
    assert filed()["busy"] >= MANY - AWAKE
    for _ in range(3):
        with accelrt.graph(accelrt.CUDAGraph(), stream=streams[0]):
            pass
        assert filed()["busy"] == 0


@in_own_process(**ROOM)
def test_pages_of_graphs_are_looked_at_once_the_graphs_are_gone(folder):
    filed, stream, kept = counters(folder).filed, accelrt.Stream(), []
    for _ in range(GRAPHS):
        kept.append(accelrt.CUDAGraph())
        with accelrt.graph(kept[-1], stream=stream):
            accelrt.Buffer(MIB).free()
    accelrt.Buffer(30 * MIB).free()
    counts = filed()
    assert (counts["busy"], counts["unsearched"], counts["ranked"]) == (0, 0, 0)
    kept.clear()
    with accelrt.graph(accelrt.CUDAGraph(), stream=stream):  # before which replays are asked for
        accelrt.Buffer(1)
    counts = filed()
    assert counts["busy"] + counts["unsearched"] >= GRAPHS - AWAKE
    reserved = accelrt.memory_reserved()
    accelrt.Buffer(90 * MIB).free()
    assert accelrt.memory_reserved() == reserved
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0
    assert sum(filed().values()) == filed()["awake"]
    accelrt.memory.audit()


@in_own_process(**ROOM)
def test_pages_of_memory_pools_are_looked_at_once_nobody_uses_them(folder):
    filed, pools = counters(folder).filed, [accelrt.MemPool() for _ in range(MANY)]
    for pool in pools:
        with accelrt.use_mem_pool(pool):
            accelrt.Buffer(3 * MIB).free()
    accelrt.synchronize()
    accelrt.Buffer(30 * MIB).free()
    counts = filed()
    assert counts["unsearched"] + counts["ranked"] == 0
    pools.clear()
    del pool
    reserved = accelrt.memory_reserved()
    accelrt.Buffer(90 * MIB).free()
    assert accelrt.memory_reserved() == reserved
    assert filed()["ranked"] + filed()["unsearched"] >= MANY - AWAKE
    accelrt.memory.audit()


@in_own_process(**ROOM)
def test_a_poll_goes_by_the_streams_that_memory_waits_for(folder):
    queues, streams = counters(folder).queues, [accelrt.Stream() for _ in range(3 * MANY)]
    for stream in streams:
        buffer = accelrt.Buffer(1000)
        buffer.record_stream(stream)
        buffer.free()
    accelrt.synchronize()
    accelrt.Buffer(1000).free()
    assert queues() == (3 * MANY, 0)
    gate = threading.Event()
    for stream in (streams[200], streams[70]):
        buffer = accelrt.Buffer(1000)
        buffer.record_stream(stream)
        stream.launch_host_func(gate.wait)
        buffer.free()
    accelrt.Buffer(1000).free()
    assert queues() == (3 * MANY, 2)
    gate.set()
    accelrt.synchronize()
    accelrt.empty_cache()
    assert queues() == (3 * MANY, 0)
    assert accelrt.memory_reserved() == 0
