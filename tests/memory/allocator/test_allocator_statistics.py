"""Figures worked out by hand.  The mirror compares the allocator with the model after every step as well.

With ACCELRT_ALLOC_CONF=expandable_segments:False they are those of plain segments (test_allocator_plain.py).
"""

import os

import pytest
from allocator_mirror import Mirror
from model_blocks import MIB

import accelrt

pytestmark = pytest.mark.host
PLAIN = "expandable_segments:False" in os.environ.get("ACCELRT_ALLOC_CONF", "")


@pytest.fixture
def mirror():
    both = Mirror()
    yield both
    both.close()


def test_a_figure_that_there_is_not_names_the_nearest():
    accelrt.init()
    with pytest.raises(KeyError, match=r"no key of memory_stats; did you mean 'allocated_bytes.all.current'"):
        accelrt.memory.memory_stat("allocated_byte.all.current")
    with pytest.raises(KeyError, match=r"'nothing like it' is no key of memory_stats\"$"):
        accelrt.memory.memory_stat("nothing like it")


def stats(name, *parts):
    current = accelrt.memory_stats(0)
    return tuple(current[f"{name}.{part}"] for part in parts)


def everything(name):
    return stats(name, "all.current", "all.peak", "all.allocated", "all.freed")


def test_a_small_block(mirror):
    key = mirror.allocate(0, 1000)
    assert everything("allocation") == (1, 1, 1, 0)
    assert everything("allocated_bytes") == everything("active_bytes") == (1024, 1024, 1024, 0)
    assert everything("requested_bytes") == (1000, 1000, 1000, 0)
    assert everything("segment") == (1, 1, 1, 0)
    assert everything("reserved_bytes") == (2 * MIB, 2 * MIB, 2 * MIB, 0)
    assert everything("inactive_split") == (1, 1, 1, 0)
    assert everything("inactive_split_bytes")[:2] == (2 * MIB - 1024, 2 * MIB - 1024)
    mirror.free(key)
    assert everything("allocation") == (0, 1, 1, 1)
    assert everything("requested_bytes") == (0, 1000, 1000, 1000)
    assert everything("inactive_split") == ((0, 1, 1, 1) if PLAIN else (1, 1, 1, 0))
    assert everything("reserved_bytes") == (2 * MIB, 2 * MIB, 2 * MIB, 0)
    mirror.empty_cache()
    assert everything("reserved_bytes") == (0, 2 * MIB, 2 * MIB, 2 * MIB)
    assert everything("segment") == (0, 1, 1, 1)


def test_small_and_large_are_counted_apart(mirror):
    mirror.allocate(0, MIB)
    mirror.allocate(0, MIB + 1)
    mirror.allocate(0, 10 * MIB)
    assert stats("allocated_bytes", "small_pool.current", "large_pool.current") == (MIB, 11 * MIB + 512)
    reserved = (2 * MIB, 20 * MIB) if PLAIN else (MIB, 13 * MIB)
    assert stats("reserved_bytes", "small_pool.current", "large_pool.current") == reserved
    assert stats("allocation", "small_pool.current", "large_pool.current", "all.current") == (1, 2, 3)
    assert stats("segment", "small_pool.current", "large_pool.current") == (int(PLAIN), 1)


@pytest.mark.parametrize(
    ("n", "reserved", "block"),
    [
        (1, 2 * MIB, 512),
        (512, 2 * MIB, 512),
        (513, 2 * MIB, 1024),
        (MIB, 2 * MIB, MIB),
        (MIB + 1, 20 * MIB, MIB + 512),
        (10 * MIB - 512, 20 * MIB, 10 * MIB - 512),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of 1 MiB stays with the block
        (11 * MIB - 512, 12 * MIB, 11 * MIB - 512),  # a larger one does not
        (20 * MIB + 1, 22 * MIB, 20 * MIB + 512),
    ]
    if PLAIN
    else [
        (1, 2 * MIB, 512),
        (512, 2 * MIB, 512),
        (513, 2 * MIB, 1024),
        (MIB, 2 * MIB, MIB),
        (MIB + 1, 2 * MIB, MIB + 512),
        (2 * MIB, 2 * MIB, 2 * MIB),
        (2 * MIB + 1, 4 * MIB, 2 * MIB + 512),
        (11 * MIB, 12 * MIB, 11 * MIB),
    ],
)
def test_sizes(mirror, n, reserved, block):
    mirror.allocate(0, n)
    assert stats("reserved_bytes", "all.current") == (reserved,)
    assert stats("allocated_bytes", "all.current") == (block,)
    assert stats("requested_bytes", "all.current") == (n,)


def test_a_pending_block_is_active_and_not_allocated(mirror):
    key = mirror.allocate(0, 5000, stream=1)
    mirror.close_gate(0, 2)
    mirror.record_stream(key, 2)
    mirror.free(key)
    assert stats("allocation", "all.current", "all.freed") == (0, 1)
    assert stats("active", "all.current", "all.freed") == (1, 0)
    assert stats("active_bytes", "all.current") == (5120,)
    assert stats("requested_bytes", "all.current") == (5000,)
    assert accelrt.memory_snapshot(0)[0]["blocks"][0]["state"] == "active_pending_free"
    mirror.open_gate(0, 2)
    mirror.allocate(0, 1, stream=3)
    assert stats("active_bytes", "all.current") == (512,)
    assert stats("active", "all.freed") == (1,)


def test_a_use_on_the_blocks_own_stream_is_none(mirror):
    key = mirror.allocate(0, 5000, stream=1)
    mirror.close_gate(0, 1)
    mirror.record_stream(key, 1)
    mirror.free(key)
    assert stats("active", "all.current") == (0,)
    assert mirror.allocate(0, 5000, stream=1) == key


def test_a_block_waits_for_the_last_of_its_streams(mirror):
    key = mirror.allocate(0, 5000, stream=1)
    for stream in (2, 3, 2):
        mirror.record_stream(key, stream)
    mirror.close_gate(0, 2)
    mirror.close_gate(0, 3)
    mirror.free(key)
    for stream in (3, 2):
        mirror.allocate(0, 512, stream=1)
        assert stats("active_bytes", "all.current")[0] >= 5120
        mirror.open_gate(0, stream)
    assert mirror.allocate(0, 5000, stream=1) == key


def test_each_statistic_has_a_peak_of_its_own(mirror):
    small = [mirror.allocate(0, 512) for _ in range(4)]
    for key in small:
        mirror.free(key)
    mirror.allocate(0, 4 * MIB)
    assert stats("allocation", "all.peak", "small_pool.peak", "large_pool.peak") == (4, 4, 1)
    assert stats("allocated_bytes", "all.peak") == (4 * MIB,)
    mirror.reset_peaks(0)
    assert stats("allocation", "all.peak", "small_pool.peak", "large_pool.peak") == (1, 0, 1)
    assert stats("reserved_bytes", "all.peak") == ((22 if PLAIN else 4) * MIB,)


def test_the_same_requests_have_the_same_peaks_again(mirror):
    def work():
        mirror.reset_peaks(0)
        keys = [mirror.allocate(0, n, stream) for n in (700, 3 * MIB, 40_000, 15 * MIB) for stream in (0, 1)]
        for key in keys[::2] + keys[1::2]:
            mirror.free(key)
        peaks = {key: value for key, value in accelrt.memory_stats(0).items() if key.endswith(".peak")}
        mirror.empty_cache()
        return peaks

    assert work() == work()


def test_accumulated_statistics_start_anew(mirror):
    mirror.allocate(0, 512)
    mirror.reset_accumulated(0)
    assert everything("allocation") == (1, 1, 0, 0)
    key = mirror.allocate(0, 512)
    mirror.free(key)
    assert everything("allocation") == (1, 2, 1, 1)
    assert accelrt.memory_stats(0)["num_device_alloc"] == 0
