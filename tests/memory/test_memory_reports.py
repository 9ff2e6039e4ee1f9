"""What report() and memory_summary() say of the memory that is held."""

import os
import re
import threading

import pytest
from child import in_own_process

import accelrt

MIB = 1 << 20
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
report, report_data = accelrt.memory.report, accelrt.memory.report_data


def pool_named(data, name):
    return next(pool for pool in data["pools"] if pool["id"] == name)


def check_sums(data):
    """Figures of one moment agree with each other."""
    for key in ("live", "pending", "idle"):
        assert sum(stream[key] for stream in data["streams"]) == data[key]
        assert sum(pool[key] for pool in data["pools"]) == data[key]
    assert sum(pool["reserved"] for pool in data["pools"]) == data["reserved"]
    assert data["live"] + data["pending"] + data["idle"] == data["reserved"]
    assert max([stream["largest_free"] for stream in data["streams"]], default=0) == data["largest_free"]


def test_it_adds_up_by_pool_and_stream():
    pool, stream = accelrt.MemPool(), accelrt.Stream()
    first = accelrt.Buffer(5 * MIB)
    with accelrt.use_mem_pool(pool):
        second = accelrt.Buffer(3 * MIB, stream=stream)
    accelrt.Buffer(7 * MIB, stream=stream).free()
    data = report_data()
    check_sums(data)
    assert pool_named(data, pool.id)["live"] == 3 * MIB
    assert pool_named(data, (0, 0))["live"] == 5 * MIB
    held = {(one["pool"], one["stream"]): one["live"] for one in data["streams"]}
    assert held[pool.id, stream.cuda_stream] == 3 * MIB
    assert data["idle"] >= data["largest_free"] >= 7 * MIB
    assert data["fragmentation"] == 1 - data["largest_free"] / data["idle"]
    assert [block["size"] for block in data["blocks"][:2]] == [5 * MIB, 3 * MIB]
    assert data["blocks"][0]["address"] == first.ptr
    text = report()
    assert f"pool {pool.id}" in text
    assert "5.00 MiB at " in text
    assert f"stream {stream.cuda_stream:#x}" in text
    del second


def test_what_is_pending_is_named_with_its_stream():
    other, gate = accelrt.Stream(), threading.Event()
    address = alloc(5 * MIB)
    other.launch_host_func(gate.wait)
    accelrt.record_stream(address, other)
    delete(address)
    try:
        data = report_data()
        check_sums(data)
        assert data["pending"] == 5 * MIB
        assert [(one["stream"], one["events"], one["bytes"]) for one in data["events"]] == [
            (other.cuda_stream, 1, 5 * MIB)
        ]
        assert f"5.00 MiB are pending on stream {other.cuda_stream:#x} (1 event)" in report()
    finally:
        gate.set()
        other.synchronize()


def test_memory_of_graphs_is_told_apart():
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        buffer = accelrt.Buffer(5 * MIB)
        buffer.fill(0)
        buffer.free()
    pool = pool_named(report_data(), graph.pool())
    assert (pool["graphs"], pool["live"]) == (True, 0)
    assert pool["idle"] >= 5 * MIB
    assert any("graphs" in line and f"pool {graph.pool()}" in line for line in report().splitlines())
    graph.reset()


def test_page_locked_memory_is_there():
    before = report_data()["page_locked"]["live"]
    with accelrt.PinnedBuffer(MIB):
        data = report_data()
        assert data["page_locked"]["live"] == before + MIB
        assert "Page-locked memory of the host" in report()


def test_top_bounds_the_lists():
    held = [accelrt.Buffer(1000) for _ in range(5)]
    data = report_data(top=2)
    assert len(data["blocks"]) == 2
    assert data["live_blocks"] == 5
    assert "Largest live blocks, of 5" in report(top=2)
    assert report_data(top=0)["blocks"] == []
    with pytest.raises(ValueError, match="top is -1; pass 0 or more"):
        report(top=-1)
    with pytest.raises(TypeError, match=r"top is 1\.5 of type float"):
        report(top=1.5)
    with pytest.raises(ValueError, match="device"):
        report(64)
    del held


def test_devices_are_reported_one_by_one():
    last = accelrt.device_count() - 1
    with accelrt.Buffer(2 * MIB, last):
        assert report_data(last)["live"] == 2 * MIB
        assert report(last).startswith(f"Memory of device {last}: ")
        if last:
            assert report_data(0)["live"] == 0


@in_own_process
def test_stacks_and_tags_are_there_while_history_is_recorded():
    accelrt.memory.record_history("state", "state")
    with accelrt.memory.tag("cache"):
        held = [accelrt.Buffer(5 * MIB) for _ in range(2)]
    held.append(accelrt.Buffer(3 * MIB))
    data = report_data()
    assert data["recording"]
    assert data["tags"]["cache"] == 10 * MIB
    assert [(held, count) for _, held, count in data["stacks"]] == [(10 * MIB, 2), (3 * MIB, 1)]
    assert data["stacks"][0][0][0]["filename"].endswith("test_memory_reports.py")
    assert data["blocks"][0]["tag"] == "cache"
    text = report()
    assert re.search(r"10.00 MiB in 2 blocks: \S+ \(test_memory_reports.py:\d+\)", text)
    assert re.search(r"By tag\n  cache +10.00 MiB", text)
    accelrt.memory.record_history(None)
    assert "nothing is recorded" not in report()


@in_own_process
def test_before_the_first_use_it_opens_nothing():
    assert accelrt.memory.report_data() == {}
    assert accelrt.memory.report() == "accelrt has not used a device yet: it holds no memory\n"
    assert "Allocated memory      |      0 B   |" in accelrt.memory_summary()
    assert not accelrt.is_initialized()
    if os.fork() == 0:
        accelrt.Buffer(64).free()
        os._exit(0)
    assert os.wait()[1] == 0


@pytest.mark.host
@in_own_process
def test_another_backend_gives_totals():
    kept = []

    def take(size, device, stream):
        kept.append(size)
        return 0x1000000 * len(kept)

    accelrt.memory.change_current_allocator(accelrt.memory.CallbackAllocator(take, lambda *freed: None))
    address = alloc(3 * MIB)
    data = accelrt.memory.report_data()
    assert (data["live"], data["pools"], data["blocks"]) == (3 * MIB, [], [])
    assert re.search(r"live +3.00 MiB", accelrt.memory.report())
    delete(address)


def cells(summary, name):
    line = next(line for line in summary.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_the_summary_has_torchs_rows():
    accelrt.reset_accumulated_memory_stats()  # a total of gigabytes is wider than its column, as in torch's
    accelrt.reset_peak_memory_stats()
    with accelrt.Buffer(3 * MIB), accelrt.Buffer(1000):
        text = accelrt.memory_summary()
        stats = accelrt.memory_stats()
    assert {len(line) for line in text.splitlines()} == {77}
    assert cells(text, "Allocated memory")[0] == f"{stats['allocated_bytes.all.current'] >> 10} KiB"
    assert cells(text, "Allocations")[0] == str(stats["allocation.all.current"])
    assert text.count("from large pool") == text.count("from small pool") == 9
    assert accelrt.memory_summary(abbreviated=True).count("from large pool") == 0
    assert accelrt.memory_summary is accelrt.memory.memory_summary


def test_the_summary_is_torchs_but_for_its_title():
    torch = pytest.importorskip("torch")
    from unittest import mock

    with accelrt.Buffer(900 * MIB // 4), accelrt.Buffer(1000):
        stats, ours = accelrt.memory_stats(), accelrt.memory_summary()
        with mock.patch("torch.cuda.memory.memory_stats", return_value=stats):
            theirs = torch.cuda.memory_summary(0)
    assert ours.splitlines()[3:] == theirs.splitlines()[3:]
