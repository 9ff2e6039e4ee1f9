"""Sleep and wake on a GPU: gigabytes, a graph that is replayed right after, and work of torch's."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from child import in_child, in_own_process, output_of

import accelrt

pytestmark = [pytest.mark.gpu, pytest.mark.own_process]
PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_sleep.py"
GIB = 1 << 30
MIB = 1 << 20
ALONE = (
    "PYTEST_XDIST_WORKER" not in os.environ
)  # no other process of these tests changes the device's free memory


def room():
    """GiB of the device and of the host that a pool may have, at most 20."""
    available = next(
        int(line.split()[1]) << 10
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    return min(20, int(accelrt.mem_get_info()[0] * 0.8) // GIB, int(available * 0.7) // GIB)


def test_twenty_gigabytes_sleep_and_wake():
    gib = room()
    if gib < 1:
        pytest.skip("less than 1 GiB of memory is free")
    said = json.loads(output_of(PROGRAM, "--gib", gib, "--json", *([] if ALONE else ["--beside"])))
    for row in said["rows"]:
        assert row["bytes"] >= gib * GIB
        if row["what"] in ("first sleep", "second sleep"):
            assert row["copied"] >= gib * GIB
            assert row["free_memory_rose"] >= row["bytes"] - 64 * MIB or not ALONE
    print(said)


def sleep_with_torch():
    import torch

    accelrt.interop.torch.install()
    pool = torch.cuda.MemPool()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.use_mem_pool(pool):
        weights = torch.arange(64 * MIB, device="cuda", dtype=torch.int32)
        out = torch.zeros_like(weights)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool.id, stream=stream):
        out.copy_(weights * 3)
    address, before = weights.data_ptr(), torch.cuda.mem_get_info()[0]
    expected = weights.cpu() * 3
    for step in range(2):
        result = pool.sleep() if step == 0 else accelrt.memory.sleep(pool.id)
        assert result.bytes >= 2 * 256 * MIB
        assert torch.cuda.mem_get_info()[0] - before >= result.bytes - 64 * MIB or not ALONE
        with pytest.raises(RuntimeError, match="a pool that sleeps"), torch.cuda.use_mem_pool(pool):
            torch.empty(1 * MIB, device="cuda")
        pool.wake() if step == 0 else accelrt.memory.wake(pool)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out.cpu(), expected)
        assert weights.data_ptr() == address
        out.zero_()


def sleep_with_a_graph_of_torchs():
    import torch

    accelrt.interop.torch.install()
    graph, source = torch.cuda.CUDAGraph(), torch.arange(16 * MIB, device="cuda", dtype=torch.int32)
    with torch.cuda.graph(graph):
        out = source * 2
    graph.replay()
    expected = out.cpu()
    accelrt.memory.sleep(graph.pool())
    assert accelrt.memory.sleeping() >= 64 * MIB
    accelrt.memory.wake(graph.pool())
    assert torch.equal(out.cpu(), expected)
    out.zero_()
    graph.replay()
    assert torch.equal(out.cpu(), expected)


def test_the_pool_of_a_graph_of_torchs_sleeps():
    pytest.importorskip("torch")
    in_child(sleep_with_a_graph_of_torchs, ACCELRT_DRIVER="cuda", ACCELRT_DEBUG="0")


def test_torchs_pools_sleep_where_accelrt_is_its_allocator():
    pytest.importorskip("torch")
    in_child(sleep_with_torch, ACCELRT_DRIVER="cuda", ACCELRT_DEBUG="0")


@in_own_process(ACCELRT_DRIVER="cuda")
def test_kernels_that_are_under_way_end_before_their_memory_sleeps():
    pool, stream = accelrt.MemPool(), accelrt.Stream()
    with accelrt.use_mem_pool(pool), accelrt.stream(stream):
        array = accelrt.full(32 * MIB, 1, "f4")
    double, graph = accelrt.elementwise("float32 x", "float32 y", "y = 2 * x"), accelrt.CUDAGraph()
    double(accelrt.zeros(4, "f4"))  # compiles it
    with accelrt.graph(graph, pool=pool, stream=stream):
        double(array, out=array)
    for _ in range(10):
        with accelrt.stream(stream):
            for _ in range(3):
                graph.replay()
        pool.sleep()  # waits for them
        with pytest.raises(accelrt.SleepingMemoryError), accelrt.stream(stream):
            double(array, out=array)
        pool.wake()
    assert (array.numpy() == np.float32(2.0**30)).all()
