"""Threads without the GIL on the fast paths; others empty the caches, read statistics and use Python."""

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from child import in_child
from compiled import compile_extension

import accelrt

pytestmark = [pytest.mark.own_process, pytest.mark.host]

THREADS = 8
ROUNDS = 20_000
PACE = 0.001  # seconds between two calls of a disturbing thread, so that memory is cached in between


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = str(tmp_path_factory.mktemp("stress"))
    compile_extension("stress", place)
    return place


def import_stress(folder):
    sys.path.insert(0, folder)
    import stress

    return stress


def over_and_over(call, over):
    """Calls until an event is set, once at least; returns how often."""
    times = 0
    while not (over.wait(PACE) and times):
        call()
        times += 1
    return times


def race(work, disturbers=()):
    """Runs work(index) on THREADS threads, from one moment on, while each disturber is called over and over.

    Returns what the threads return, and how often each disturber was called.
    """
    barrier, over = threading.Barrier(THREADS), threading.Event()

    def body(index):
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(THREADS + len(disturbers)) as threads:
        beside = [threads.submit(over_and_over, call, over) for call in disturbers]
        working = [threads.submit(body, index) for index in range(THREADS)]
        try:
            answers = [each.result() for each in working]
        finally:
            over.set()
        return answers, [each.result() for each in beside]


def check_stats():
    """One reading of the statistics adds up, whatever other threads do meanwhile."""
    stats = accelrt.memory_stats(0)
    names = ("allocation", "allocated_bytes", "requested_bytes", "active", "inactive_split_bytes", "segment")
    for name in names:
        current, peak, allocated, freed = (
            stats[f"{name}.all.{part}"] for part in ("current", "peak", "allocated", "freed")
        )
        assert 0 <= freed == allocated - current, (name, current, allocated, freed)
        assert current >= 0, (name, current)
        assert current <= peak, (name, current, peak)
    assert stats["allocated_bytes.all.current"] <= stats["reserved_bytes.all.current"]
    accelrt.memory.memory_allocated(0)


def check_host_stats():
    stats = accelrt.host_memory_stats()
    for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes"):
        current = stats[f"{name}.current"]
        assert 0 <= current == stats[f"{name}.allocated"] - stats[f"{name}.freed"], (name, stats)
        assert current <= stats[f"{name}.peak"], (name, stats)


def device_memory(folder):
    stress, shared = import_stress(folder), accelrt.Stream(0)
    streams = [accelrt.Stream(0) for _ in range(THREADS)]
    through_python = 0

    def work(index):
        return stress.churn(0, streams[index].cuda_stream, shared.cuda_stream, index + 1, ROUNDS)

    def use_python():
        nonlocal through_python
        for address in [accelrt.caching_allocator_alloc(4096, 0, shared) for _ in range(8)]:
            accelrt.caching_allocator_delete(address)
            through_python += 1

    def change_settings():
        steps = itertools.cycle(("4", "default"))
        return lambda: accelrt.memory.set_allocator_settings(f"roundup_power2_divisions:{next(steps)}")

    def walk():
        accelrt.memory.audit(0)
        accelrt.memory_snapshot(0)
        accelrt.reset_peak_memory_stats(0)

    taken, times = race(work, (accelrt.empty_cache, check_stats, use_python, walk, change_settings()))
    stress.empty_boxes(0)
    assert min(times) > 0, times
    accelrt.synchronize(0)
    accelrt.memory.audit(0)
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0
    stats = accelrt.memory_stats(0)
    count = sum(blocks for blocks, _ in taken) + through_python
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == count
    size = sum(size for _, size in taken) + 4096 * through_python
    assert stats["requested_bytes.all.allocated"] == stats["requested_bytes.all.freed"] == size
    assert {key: value for key, value in stats.items() if key.endswith(".current") and value} == {}


def pinned_memory(folder):
    stress, shared = import_stress(folder), accelrt.Stream(0)
    streams = [accelrt.Stream(0) for _ in range(THREADS)]

    def work(index):
        return stress.churn(0, streams[index].cuda_stream, shared.cuda_stream, index + 1, ROUNDS, True)

    taken, times = race(work, (accelrt.host_empty_cache, check_host_stats, accelrt.memory.host_audit))
    stress.empty_boxes(0)
    assert min(times) > 0, times
    accelrt.synchronize(0)
    accelrt.host_empty_cache()
    accelrt.memory.host_audit()
    stats = accelrt.host_memory_stats()
    count = sum(blocks for blocks, _ in taken)
    assert stats["active_requests.allocated"] == stats["active_requests.freed"] == count
    assert stats["active_bytes.allocated"] >= sum(size for _, size in taken)
    assert {key: value for key, value in stats.items() if key.endswith(".current") and value} == {}


def first_use(folder):
    # Unordered threads call the driver's table for the first time while it is being filled.
    stress = import_stress(folder)
    accelrt.lazy_call(stress.go)
    stress.hold()
    assert not accelrt.is_initialized()
    race(lambda index: stress.churn(0, 0, 0, index + 1, 100, index % 2 == 1) if index else accelrt.init())
    stress.empty_boxes(0)
    accelrt.synchronize(0)
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    accelrt.memory.audit(0)
    accelrt.memory.host_audit()
    assert accelrt.memory_reserved(0) == 0
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0


@pytest.mark.parametrize("scenario", [device_memory, pinned_memory, first_use])
def test_counts_and_bytes_add_up(folder, scenario):
    in_child(scenario, folder, ACCELRT_DEBUG="0", ACCELRT_HOST_MEMORY="4GiB")
