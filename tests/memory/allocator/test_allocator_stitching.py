"""Stitched segments: when they are made, what they cost, and which heaps' pages they take."""

import functools

import pytest
from allocator_mirror import Mirror
from allocator_storm import PAGES, check_error
from child import in_own_process, waits, wrap_host
from model_blocks import LIVE, MIB

import accelrt
from accelrt.testing import failing_calls

pytestmark = pytest.mark.host
DEVICE = 64 * MIB


on_a_small_device = functools.partial(in_own_process, ACCELRT_HOST_MEMORY=str(DEVICE), ACCELRT_ALLOC_CONF="")


def stats(*names):
    current = accelrt.memory_stats(0)
    return tuple(current[name] for name in names)


def every_other_page(mirror, stream=0):
    """Eight pages side by side, of which four are free."""
    keys = [mirror.allocate(0, 2 * MIB, stream) for _ in range(8)]
    for key in keys[::2]:
        mirror.free(key)
    return keys[1::2]


@on_a_small_device
def test_a_block_is_made_of_pages_that_lie_apart():
    mirror = Mirror()
    every_other_page(mirror)
    before = stats("reserved_bytes.all.current", "num_device_alloc")
    key = mirror.allocate(0, 8 * MIB)
    assert stats("reserved_bytes.all.current", "num_device_alloc") == before
    assert stats("stitched_bytes") == (8 * MIB,)
    mirror.compare(0)
    mirror.free(key)
    mirror.compare(0)
    mirror.close()


@on_a_small_device
def test_only_what_is_missing_is_taken_from_the_device():
    mirror = Mirror()
    every_other_page(mirror)
    assert mirror.allocate(0, 11 * MIB)
    assert stats("reserved_bytes.all.current", "stitched_bytes") == (20 * MIB, 12 * MIB)
    mirror.compare(0)
    mirror.close()


@on_a_small_device
def test_work_that_repeats_calls_the_driver_no_more():
    mirror = Mirror()
    every_other_page(mirror)
    calls = []
    for _ in range(5):
        keys = [mirror.allocate(0, size) for size in (3 * MIB, 4 * MIB)]
        for key in keys:
            mirror.free(key)
        keys = [mirror.allocate(0, 2 * MIB) for _ in range(4)]
        for key in keys:
            mirror.free(key)
        calls.append(stats("virtual_memory_calls"))
        mirror.compare(0)
    assert calls == calls[:1] * 5
    mirror.close()


@on_a_small_device
def test_parts_of_a_stitched_segment_are_reused_without_the_driver():
    mirror = Mirror()
    every_other_page(mirror)
    mirror.free(mirror.allocate(0, 8 * MIB))
    before = stats("virtual_memory_calls", "stitched_bytes")
    for sizes in [(2, 6), (4, 4), (6, 2), (2, 4, 2), (8,)] * 2:  # each fills what the segment maps
        keys = [mirror.allocate(0, size * MIB) for size in sizes]
        mirror.compare(0)
        for key in keys:
            mirror.free(key)
        mirror.compare(0)
    assert stats("virtual_memory_calls", "stitched_bytes") == before
    assert mirror.models[0].happened["reused in part"] >= 3
    mirror.close()


@on_a_small_device
def test_pages_of_a_stream_that_is_busy_serve_no_other():
    wrap_host()
    mirror = Mirror(waits=waits)
    mirror.close_gate(0, 1)
    every_other_page(mirror, stream=1)
    held = mirror.allocate(0, 8 * MIB, stream=2)
    assert stats("reserved_bytes.all.current", "stitched_bytes") == (24 * MIB, 0)
    mirror.open_gate(0, 1)
    assert mirror.allocate(0, 8 * MIB, stream=2)
    assert stats("reserved_bytes.all.current", "stitched_bytes") == (24 * MIB, 8 * MIB)
    mirror.free(held)
    mirror.compare(0)
    mirror.close()


@on_a_small_device
def test_a_full_device_waits_for_the_stream_and_takes_its_pages():
    wrap_host()
    mirror = Mirror(waits=waits)
    keys = [mirror.allocate(0, 2 * MIB, stream=1) for _ in range(32)]
    mirror.close_gate(0, 1)
    for key in keys[::2]:
        mirror.free(key)
    assert mirror.allocate(0, 32 * MIB, stream=2)
    assert not mirror.gates, "it was waited for"
    assert stats("num_sync_all_streams", "num_alloc_retries") == (1, 0)
    mirror.compare(0)
    mirror.close()


def live_blocks():
    blocks = [block for run in accelrt.memory_snapshot(0) for block in run["blocks"]]
    return [block for block in blocks if block["state"] == LIVE]


@pytest.mark.parametrize("row", PAGES)
@on_a_small_device
def test_a_refused_call_loses_no_page(row):
    wrap_host()
    mirror = Mirror()
    every_other_page(mirror)
    before = live_blocks()

    def step():
        accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(11 * MIB, 0))

    for _, error in failing_calls(step, rows=[row]):
        if error is not None:
            check_error(error, 999, [])
        accelrt.memory.audit(0)
        assert live_blocks() == before
    for place in list(mirror.models[0].live):
        accelrt.caching_allocator_delete(mirror.address((0, *place)))
    accelrt.empty_cache()
    assert accelrt.memory_snapshot(0) == []
    assert accelrt.mem_get_info(0) == (DEVICE, DEVICE)
