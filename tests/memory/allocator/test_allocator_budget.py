"""Stitching has a budget: work whose sizes never come again grows instead, within bounds."""

import functools
import random
from itertools import pairwise

import pytest
from allocator_mirror import Mirror
from child import in_own_process
from model_blocks import MIB
from model_pages import NOVEL_RESERVE, THRIFTY_SLACK

import accelrt

pytestmark = pytest.mark.host
KIB = 1024
LIVE = 512 * MIB  # at most
LARGEST = 24 * MIB
ALLOCATIONS = 1_600


def walk(mirror, allocations=ALLOCATIONS, seed=4, largest=LARGEST, kinds=0):
    """Allocates sizes that never come again, or so many kinds of them, and frees in any order.

    Returns:
        the calls of each half.
    """
    chance = random.Random(seed)
    sizes = [chance.randint(1, largest) for _ in range(kinds)]
    live, used, calls = {}, 0, [stat("virtual_memory_calls")]
    for _ in range(2):
        made = 0
        while made < allocations // 2:
            size = chance.choice(sizes) if kinds else chance.randint(1, largest)
            if used + size <= LIVE:
                key = mirror.allocate(0, size)
                assert key, "there is room"
                live[key] = size
                used += size
                made += 1
            else:
                key = chance.choice(list(live))
                used -= live.pop(key)
                mirror.free(key)
        mirror.compare(0)
        calls.append(stat("virtual_memory_calls"))
    return [after - before for before, after in pairwise(calls)]


def stat(name):
    return accelrt.memory_stats(0)[name]


def ratio():
    return stat("reserved_bytes.all.peak") / stat("allocated_bytes.all.peak")


on_a_device = functools.partial(
    in_own_process, ACCELRT_HOST_MEMORY=str(2 * LIVE), ACCELRT_ALLOC_CONF="", ACCELRT_DEBUG="0"
)


@on_a_device
def test_sizes_that_never_come_again_stop_being_stitched():
    mirror = Mirror()
    first, second = walk(mirror, 2 * ALLOCATIONS)
    happened = mirror.models[0].happened
    assert happened["stitched"] > 50, happened
    assert happened["grown over budget"] > 0
    assert second < first / 4
    assert 1 < ratio() <= 1 + THRIFTY_SLACK
    mirror.close()


@on_a_device
def test_sizes_that_recur_may_spend_the_whole_budget():
    mirror = Mirror()
    walk(mirror, kinds=40)
    happened = mirror.models[0].happened
    assert happened["stitched"] > 100, happened
    assert happened["grown over budget"] == 0
    assert mirror.models[0].stitch_budget < NOVEL_RESERVE
    mirror.close()


@on_a_device(ACCELRT_HOST_MEMORY=str(LIVE * 5 // 4 - 40 * MIB))
def test_a_full_device_is_stitched_whatever_the_budget():
    mirror = Mirror()
    walk(mirror, largest=3 * LARGEST)
    happened = mirror.models[0].happened
    assert 0 < happened["refused"] < 10, "growth that the device refused is not tried again"
    assert happened["stitched"] > 150, happened
    assert stat("num_ooms") == stat("num_alloc_retries") == 0
    mirror.close()


@on_a_device(ACCELRT_ALLOC_CONF="growth_slack:0")
def test_with_a_slack_that_is_given_there_is_no_budget():
    mirror = Mirror()
    walk(mirror)
    happened = mirror.models[0].happened
    assert happened["grown over budget"] == 0
    assert happened["stitched"] > 200
    mirror.close()


def stitched_in(mirror):
    walk(mirror, 200, seed=9)
    return mirror.models[0].happened["stitched"]


@on_a_device
def test_an_allocator_that_gave_everything_back_has_its_full_budget_again():
    mirror = Mirror()
    fresh = stitched_in(mirror)
    mirror.close()
    walk(mirror)
    mirror.close()
    mirror.models[0].happened.clear()
    assert stitched_in(mirror) == fresh
    mirror.close()


def rounds(mirror, sizes, count):
    """The calls of each round: all sizes, every other one freed, and some of twice the size instead."""
    calls = []
    for _ in range(count):
        before = stat("virtual_memory_calls")
        keys = [mirror.allocate(0, size) for size in sizes]
        for key in keys[::2]:
            mirror.free(key)
        more = [mirror.allocate(0, 2 * size) for size in sizes[::4]]
        for key in keys[1::2] + more:
            mirror.free(key)
        calls.append(stat("virtual_memory_calls") - before)
    return calls


@pytest.mark.parametrize("settings", ["", "growth_slack:0"])
@on_a_device(ACCELRT_ALLOC_CONF="{settings}")
def test_work_that_repeats_reuses_the_same_stitched_segments(settings):
    mirror = Mirror()
    chance = random.Random(2)
    assert rounds(mirror, [chance.randint(MIB, LARGEST) for _ in range(40)], 4)[-2:] == [0, 0]
    assert mirror.models[0].happened["reused"] > 10
    mirror.close()


@pytest.mark.parametrize(("small", "count"), [(0, 3 * 4), (4000, 3 * 128)])
@on_a_device(ACCELRT_HOST_MEMORY=str(16 << 30))
def test_few_large_blocks_are_made_of_larger_pages(small, count):
    mirror = Mirror()
    for _ in range(small):
        assert mirror.allocate(0, MIB)
    before = stat("num_device_alloc")
    for _ in range(3):
        assert mirror.allocate(0, 2048 * MIB)
    mirror.compare(0)
    assert stat("num_device_alloc") - before == count
    mirror.close()


def pages_of(mirror, filled, size):
    """Fills more than 1 GiB with blocks of one size; how many pages a growth by the other size takes then."""
    for _ in range(1024 // filled + 1):
        assert mirror.allocate(0, filled * MIB)
    before = stat("num_device_alloc")
    assert mirror.allocate(0, size * MIB)
    mirror.compare(0)
    return stat("num_device_alloc") - before


# Pages of 8, 4 and 6 MiB; of 16 where blocks have more than 20 MiB in the mean.
OF_ONE = [(2, 32, 4), (8, 16, 4), (8, 24, 4), (24, 64, 4)]
# Pages of 2, 2, 4, 4 and 16 MiB, and of what is left in the end.
OF_SEVERAL = [(2, 2, 1), (8, 8, 4), (18, 18, 5), (24, 24, 6), (64, 64, 4)]


@pytest.mark.parametrize(
    ("several", "size", "growth", "count"),
    [(several, *each) for several, cases in enumerate((OF_ONE, OF_SEVERAL)) for each in cases],
)
@on_a_device(ACCELRT_HOST_MEMORY=str(2 << 30))
def test_a_page_has_at_most_a_quarter_of_the_growth(several, size, growth, count):
    mirror = Mirror()
    if several:
        mirror.free(mirror.allocate(0, MIB, stream=1))
    assert pages_of(mirror, size, growth) == count
    mirror.close()


@pytest.mark.parametrize(("size", "count"), [(2, 16), (8, 43), (24, 16)])  # of 16 and of 6 MiB
@on_a_device(ACCELRT_HOST_MEMORY=str(2 << 30))
def test_blocks_of_a_medium_size_are_made_of_smaller_pages(size, count):
    """Above 1 GiB a page has up to 16 MiB, but 6 where the blocks have 4 to 20 MiB in the mean."""
    mirror = Mirror()
    assert pages_of(mirror, size, 256) == count
    mirror.close()


def turns(mirror, chance, count):
    """Streams take turns to fill half of the device, and each keeps a few blocks; answers these."""
    kept = []
    sizes = [chance.choice([chance.randint(1, MIB), chance.randint(MIB, LARGEST)]) for _ in range(60)]
    for turn in range(count):
        keys, used = [], 0
        while used < LIVE // 2:
            size = chance.choice(sizes)
            keys.append(mirror.allocate(0, size, stream=turn % 4))
            used += size
        chance.shuffle(keys)
        kept += [keys.pop() for _ in range(4)]
        for key in keys:
            mirror.free(key)
        mirror.compare(0)
        for _ in range(1_000):  # which pays for calls of the driver
            mirror.free(mirror.allocate(0, KIB))
    return kept


@on_a_device(ACCELRT_HOST_MEMORY=str(4 * LIVE))
def test_pages_that_streams_exchange_fit_closely():
    mirror = Mirror()
    for key in turns(mirror, random.Random(2), 12):
        mirror.free(key)
    happened = mirror.models[0].happened
    assert happened["fitted closely"] > 20, happened
    mirror.close()


@on_a_device
def test_streams_that_take_turns_hold_no_more_for_small_blocks_than_was_live():
    mirror = Mirror()
    for stream in (1, 2):
        keys = [mirror.allocate(0, 500 * KIB, stream=stream) for _ in range(120)]
        mirror.compare(0)
        for key in keys:
            mirror.free(key)
    assert stat("reserved_bytes.all.peak") <= stat("allocated_bytes.all.peak") + 4 * MIB
    mirror.close()
