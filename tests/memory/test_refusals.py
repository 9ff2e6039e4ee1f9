"""Requests that are refused: the error names the cause, and its advice, once it is followed, has the same
request served.  Memory that is cut up, pending, or held by captures, graphs and pools.
"""

import re
import threading

import pytest
from refused_requests import DEVICE, MIB, PLAIN, blocks, on_a_small_device, refused, run

import accelrt
from accelrt.driver import registry

pytestmark = [pytest.mark.host, pytest.mark.own_process]
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def cut_up(whole, piece, wanted, advised):
    """The device is allocated in pieces out of whole segments, or pages, and every second piece is free."""
    for address in blocks(whole, DEVICE // whole):
        delete(address)
    for address in blocks(piece, DEVICE // piece)[::2]:
        delete(address)
    if advised:
        alloc(wanted)
        return
    error = refused(wanted)
    assert error.causes[0] == "fragmented"
    assert error.idle >= wanted > error.largest_free


@pytest.mark.parametrize(
    ("conf", "whole", "advice"),
    [
        (PLAIN, 64, "expandable_segments:True"),
        ("max_split_size_mb:100", 64, "expandable_segments:True"),
        ("piece_size_mb:64", 256, "piece_size_mb:2"),
        ("roundup_power2_divisions:4,piece_size_mb:64", 256, "roundup_power2_divisions:4,piece_size_mb:2"),
    ],
)
def test_memory_that_is_cut_up_is_advised_another_kind_of_segments(conf, whole, advice):
    out = run(cut_up, conf, whole * MIB, 32 * MIB, 100 * MIB, False)
    assert "are idle in p" in out
    assert re.search("ACCELRT_ALLOC_CONF=(\\S*)", out)[1] == advice
    run(cut_up, advice, whole * MIB, 32 * MIB, 100 * MIB, True)


@on_a_small_device(ACCELRT_ALLOC_CONF=PLAIN)
def test_events_that_memory_waits_for_are_named():
    """Memory that a callback frees while the allocator tries, which another stream still uses."""
    slow, gate = accelrt.Stream(), threading.Event()
    slow.launch_host_func(gate.wait)
    held = blocks(100 * MIB, 2)

    def free_one(device, nbytes):
        if len(held) == 2:
            accelrt.record_stream(held[0], slow)
            delete(held.pop(0))
        return False

    handle = accelrt.memory.register_free_memory_callback(free_one)
    error = refused(120 * MIB)
    assert error.causes == ("pending",)
    assert f"stream {slow.cuda_stream:#x} (1 event, 100.00 MiB)" in str(error)
    assert error.pending_events[0]["bytes"] == error.pending == 100 * MIB
    assert error.advice == ("wait for that work (synchronize that stream) and try again",)
    handle.remove()
    gate.set()
    slow.synchronize()
    alloc(120 * MIB)


@on_a_small_device
def test_memory_that_a_capture_used_waits_for_its_end():
    (held,) = blocks(200 * MIB, 1)
    graph, main = accelrt.CUDAGraph(), accelrt.default_stream()
    with accelrt.graph(graph, stream=accelrt.Stream()):
        accelrt.record_stream(held, accelrt.current_stream())
        delete(held)
        error = refused(120 * MIB, lambda size: alloc(size, stream=main))
        assert error.causes[0] == "pending"
        assert "captures under way (200.00 MiB)" in str(error)
        assert "end the captures that use it and try again" in error.advice
    alloc(120 * MIB, stream=main)


@pytest.mark.parametrize("inside", [True, False], ids=["captured", "beside"])
@on_a_small_device
def test_idle_memory_that_a_capture_keeps_from_others(inside):
    """The memory's stream is another library's, which is never queried: only a wait for the device tells."""
    (_, side), main = registry.Rows().stream_create(accelrt.current_device(), 1, 0), accelrt.default_stream()
    (held,) = blocks(200 * MIB, 1, side)
    with accelrt.graph(accelrt.CUDAGraph(), stream=accelrt.Stream()):
        delete(held)
        error = refused(120 * MIB, alloc if inside else lambda size: alloc(size, stream=main))
        assert error.causes == ("capture",)
        assert "200.00 MiB that are idle stay as they are" in str(error)
    if inside:
        accelrt.synchronize()
        accelrt.empty_cache()
        with accelrt.graph(accelrt.CUDAGraph(), stream=accelrt.Stream()):
            alloc(120 * MIB)
    else:
        alloc(120 * MIB, stream=main)


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
@on_a_small_device(ACCELRT_ALLOC_CONF="{conf}")
def test_memory_that_a_live_graph_holds(conf):
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        accelrt.Buffer(150 * MIB).free()
    error = refused(140 * MIB)
    assert error.causes == ("graph pool",)
    assert f"pool ({graph.pool()[0]}, {graph.pool()[1]}) 150.00 MiB" in str(error)
    assert "CUDAGraph.reset()" in error.advice[0]
    assert any(pool["graphs"] and pool["id"] == graph.pool() for pool in error.by_pool)
    graph.reset()
    alloc(140 * MIB)


@on_a_small_device(ACCELRT_ALLOC_CONF=PLAIN)
def test_a_mempool_whose_free_block_would_do():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        delete(alloc(100 * MIB))
        alloc(40 * MIB)
    alloc(100 * MIB)
    error = refused(58 * MIB)
    assert error.causes == ("mempool",)
    assert error.advice == (
        f"allocate inside use_mem_pool of pool {pool.id}, whose largest free block for this stream has 60.00 "
        "MiB",
    )
    with accelrt.use_mem_pool(pool):
        alloc(58 * MIB)


@on_a_small_device(ACCELRT_ALLOC_CONF="piece_size_mb:64")
def test_a_mempool_of_which_little_is_live():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        delete(alloc(64 * MIB))
        small = alloc(MIB)
    alloc(128 * MIB)
    error = refused(100 * MIB)
    assert error.causes == ("mempool", "sleepable")
    assert error.advice[0] == f"free the live memory of pool {pool.id} (1.00 MiB): then all of it goes back"
    delete(small)
    alloc(100 * MIB)


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
@on_a_small_device(ACCELRT_ALLOC_CONF="{conf}")
def test_the_limit_of_a_mempool(conf):
    pool = accelrt.MemPool(limit=64 * MIB)
    with accelrt.use_mem_pool(pool):
        alloc(40 * MIB)
        error = refused(40 * MIB)
    assert (error.causes, error.refused_by, error.pool) == (("pool limit",), "pool", pool.id)
    assert f"pool {pool.id} has a limit of 64.00 MiB, of which 40.00 MiB are reserved" in str(error)
    assert "leave use_mem_pool for this request" in error.advice[1]
    alloc(40 * MIB)
    larger = accelrt.MemPool(limit=int(re.search(r"limit=(\d+)", error.advice[0])[1]))
    with accelrt.use_mem_pool(larger):
        blocks(40 * MIB, 2)
