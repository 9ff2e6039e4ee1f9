"""The pinned_* settings, each and in pairs, and the figures of the page-locked memory."""

import itertools
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from beside import Gate
from child import in_own_process

import accelrt

MIB = 1 << 20
DEFAULTS = {
    "pinned_use_cuda_host_register": False,
    "pinned_num_register_threads": 1,
    "pinned_max_round_threshold_mb": None,
    "pinned_max_cached_size_mb": None,
    "pinned_use_background_threads": False,
    "pinned_reserve_segment_size_mb": 0,
}
OTHERS = {
    "pinned_use_cuda_host_register": True,
    "pinned_num_register_threads": 4,
    "pinned_max_round_threshold_mb": 2,
    "pinned_max_cached_size_mb": 3,
    "pinned_use_background_threads": True,
}
PAIRS = [dict(pair) for count in (1, 2) for pair in itertools.combinations(OTHERS.items(), count)]
COUNTS = ("current", "peak", "allocated", "freed")


@pytest.fixture(autouse=True)
def _defaults():
    yield
    accelrt.configure_pinned(**DEFAULTS)


def figures(name):
    stats = accelrt.host_memory_stats()
    return [stats[f"{name}.{count}"] for count in COUNTS]


def fresh():
    accelrt.host_empty_cache()
    accelrt.reset_accumulated_host_memory_stats()
    accelrt.reset_peak_host_memory_stats()


def polled_until(done):
    """Lets the polling thread work until something holds; it fails by the test's own time limit."""
    tick = threading.Event()
    for _ in range(300_000):
        if done():
            return True
        tick.wait(0.001)
    return False


def use(stream, sizes):
    """Copies through page-locked memory of each size and drops it with the copy in flight."""
    out = np.zeros(max(sizes), np.uint8)
    with accelrt.Buffer(max(sizes), stream=stream) as buffer:
        for value, size in enumerate(sizes):
            pinned = accelrt.pinned_empty(size, np.uint8)
            pinned[:] = value
            buffer.copy_from(pinned, stream=stream, blocking=False)
            del pinned
            buffer.copy_to(out, size, stream=stream)
            assert (out[:size] == value).all()


def test_the_defaults_are_torchs():
    assert accelrt.pinned_settings() == DEFAULTS


@pytest.mark.parametrize("chosen", PAIRS, ids=lambda chosen: "+".join(chosen))
def test_each_setting_and_each_pair_works(chosen):
    accelrt.configure_pinned(**chosen)
    assert accelrt.pinned_settings() == DEFAULTS | chosen
    use(accelrt.Stream(), [1, 5000, MIB, 2 * MIB + 1, 3 * MIB, 3 * MIB + 5000, 9 * MIB])
    accelrt.memory.host_audit()
    accelrt.host_empty_cache()
    assert figures("allocated_bytes")[0] == figures("active_bytes")[0] == 0


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("pinned_use_cuda_host_register", 1, TypeError),
        ("pinned_use_background_threads", "True", TypeError),
        ("pinned_num_register_threads", 0, ValueError),
        ("pinned_num_register_threads", 129, ValueError),
        ("pinned_num_register_threads", 7, ValueError),
        ("pinned_num_register_threads", 2.0, TypeError),
        ("pinned_max_round_threshold_mb", -1, ValueError),
        ("pinned_max_cached_size_mb", 1 << 40, ValueError),
        ("pinned_max_cached_size_mb", True, TypeError),
    ],
)
def test_values_that_are_none_are_refused_and_change_nothing(name, value, error):
    with pytest.raises(error, match=name):
        accelrt.configure_pinned(**(OTHERS | {name: value}))
    assert accelrt.pinned_settings() == DEFAULTS


def test_memory_may_come_from_the_operating_system_and_be_registered():
    fresh()
    accelrt.configure_pinned(pinned_use_cuda_host_register=True, pinned_num_register_threads=4)
    array = accelrt.pinned_empty(10 * MIB + 4097, np.uint8)
    assert accelrt.is_pinned(array)
    assert not array.any()
    array[:] = 1
    del array
    accelrt.configure_pinned(pinned_use_cuda_host_register=False)
    accelrt.host_empty_cache()
    assert accelrt.host_memory_stats()["num_host_free"] == 1


def mapped():
    """Bytes that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("threads", [1, 8])
@in_own_process  # where no earlier test's thread ends between two looks, and with it its stack
def test_registered_memory_may_lie_in_huge_pages_and_goes_whole(threads):
    fresh()
    accelrt.configure_pinned(pinned_use_cuda_host_register=True, pinned_num_register_threads=threads)
    accelrt.PinnedBuffer(32 * MIB).free()  # what a first time needs of its own: stacks of threads, records
    accelrt.host_empty_cache()
    for _ in range(100):  # with 8 threads more of them may run at once than before, each with a stack
        before = mapped()
        pinned = accelrt.PinnedBuffer(32 * MIB)
        assert pinned.ptr % (2 * MIB) == 0
        meanwhile = mapped()
        pinned.free()
        accelrt.host_empty_cache()
        if 32 * MIB <= meanwhile - before < 33 * MIB and mapped() - before < MIB:
            break
    else:
        raise AssertionError((meanwhile - before, mapped() - before))


def test_sizes_above_the_threshold_are_rounded_to_pages_only():
    accelrt.configure_pinned(pinned_max_round_threshold_mb=4)
    fresh()
    small, large = accelrt.PinnedBuffer(4 * MIB - 1), accelrt.PinnedBuffer(4 * MIB + 1)
    assert figures("active_bytes")[0] == 8 * MIB + 4096
    address = large.ptr
    large.free()
    small.free()
    assert accelrt.caching_host_allocator_alloc(4 * MIB + 1) == address  # of a size between two classes
    accelrt.caching_host_allocator_delete(address)
    assert accelrt.host_memory_stats()["num_host_alloc"] == 2


def test_larger_blocks_than_the_cache_keeps_go_back_at_once():
    accelrt.configure_pinned(pinned_max_cached_size_mb=1)
    fresh()
    kept, gone = accelrt.PinnedBuffer(MIB), accelrt.PinnedBuffer(MIB + 1)
    assert figures("allocated_bytes")[0] == 3 * MIB + 4096
    gone.free()
    kept.free()
    assert figures("allocated_bytes")[0] == 2 * MIB
    assert accelrt.host_memory_stats()["num_host_free"] == 1


def test_an_uncached_block_in_use_goes_back_after_the_work():
    accelrt.configure_pinned(pinned_max_cached_size_mb=0)
    fresh()
    stream, pinned = accelrt.Stream(), accelrt.PinnedBuffer(5000)
    with Gate(stream):
        accelrt.record_host_stream(pinned, stream)
        pinned.free()
        assert figures("allocated_bytes")[0] == 8192
    stream.synchronize()
    accelrt.PinnedBuffer(1).free()
    assert figures("allocated_bytes")[0] == 0


def test_an_uncached_block_freed_in_a_capture_goes_back_after_it():
    accelrt.configure_pinned(pinned_max_cached_size_mb=0)
    fresh()
    graph, pinned = accelrt.CUDAGraph(), accelrt.PinnedBuffer(5000)
    with accelrt.Buffer(64) as buffer, accelrt.graph(graph):
        buffer.fill(1)
        pinned.free()
        assert figures("allocated_bytes")[0] == 8192
        assert figures("active_bytes")[0] == 0
        accelrt.memory.host_audit()
    assert figures("allocated_bytes")[0] == 0


def test_a_thread_finds_what_no_stream_uses_any_more():
    accelrt.configure_pinned(pinned_use_background_threads=True)
    stream, pinned = accelrt.Stream(), accelrt.PinnedBuffer(5000)
    with Gate(stream):
        accelrt.record_host_stream(pinned, stream)
        pinned.free()
        assert figures("active_requests")[0] == 1
    assert polled_until(lambda: figures("active_requests")[0] == 0)


def test_figures_are_exact():
    fresh()
    first, second = accelrt.PinnedBuffer(5000), accelrt.PinnedBuffer(3 * MIB - 1)
    assert figures("allocations") == [2, 2, 2, 0]
    assert figures("allocated_bytes") == [5 * MIB, 5 * MIB, 5 * MIB, 0]
    assert figures("active_requests") == [2, 2, 2, 0]
    assert figures("active_bytes") == [5120 + 3 * MIB, 5120 + 3 * MIB, 5120 + 3 * MIB, 0]
    second.free()
    assert figures("active_requests") == [1, 2, 2, 1]
    assert figures("active_bytes") == [5120, 5120 + 3 * MIB, 5120 + 3 * MIB, 3 * MIB]
    accelrt.host_empty_cache()
    assert figures("allocations") == [1, 2, 2, 1]
    assert figures("allocated_bytes") == [2 * MIB, 5 * MIB, 5 * MIB, 3 * MIB]
    stats = accelrt.host_memory_stats()
    assert (stats["num_host_alloc"], stats["num_host_free"]) == (2, 1)
    assert (stats["host_alloc_time.count"], stats["host_free_time.count"]) == (2, 1)
    assert stats["host_alloc_time.min"] <= stats["host_alloc_time.avg"] <= stats["host_alloc_time.max"]
    accelrt.reset_peak_host_memory_stats()
    assert figures("active_bytes") == [5120, 5120, 5120 + 3 * MIB, 3 * MIB]
    accelrt.reset_accumulated_host_memory_stats()
    assert figures("active_bytes") == [5120, 5120, 0, 0]
    assert accelrt.host_memory_stats()["host_alloc_time.total"] == 0
    first.free()


def test_the_keys_are_torchs():
    expected = {
        f"{name}.{count}"
        for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        for count in COUNTS
    }
    expected |= {
        f"{name}.{what}"
        for name in ("host_alloc_time", "host_free_time")
        for what in ("total", "max", "min", "count", "avg")
    }
    assert set(accelrt.host_memory_stats()) == expected | {"num_host_alloc", "num_host_free"}
