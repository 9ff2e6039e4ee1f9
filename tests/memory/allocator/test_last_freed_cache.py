"""A block that is freed and allocated by turns leaves everything as if each step had gone the usual way."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from child import in_child, in_own_process
from model_blocks import MIB

import accelrt

pytestmark = pytest.mark.own_process

ROUNDS = 1000


def turn(size, stream=None):
    address = accelrt.caching_allocator_alloc(size, 0, stream)
    accelrt.caching_allocator_delete(address)
    return address


@pytest.mark.parametrize("settings", ["", "expandable_segments:False"], ids=["pages", "plain"])
@in_own_process(ACCELRT_DEBUG="0", ACCELRT_ALLOC_CONF="{settings}")
def test_every_round_counts(settings):
    keep = accelrt.caching_allocator_alloc(3 * MIB)
    before = accelrt.memory_stats()
    assert len({turn(5000) for _ in range(ROUNDS)}) == 1
    after = accelrt.memory_stats()
    for key, amount in {"allocation": 1, "allocated_bytes": 5120, "requested_bytes": 5000}.items():
        assert after[f"{key}.all.allocated"] - before[f"{key}.all.allocated"] == ROUNDS * amount
        assert after[f"{key}.all.freed"] - before[f"{key}.all.freed"] == ROUNDS * amount
        assert after[f"{key}.all.current"] == before[f"{key}.all.current"]
        assert after[f"{key}.all.peak"] == before[f"{key}.all.current"] + amount
    accelrt.memory.audit()
    accelrt.caching_allocator_delete(keep)


@in_own_process(ACCELRT_DEBUG="0")
def test_a_second_free_of_a_cached_block_is_refused():
    for _ in range(3):
        address = turn(512)
    with pytest.raises(ValueError, match="not allocated"):
        accelrt.caching_allocator_delete(address)
    assert accelrt.memory_allocated() == 0
    assert turn(512) == address


@in_own_process(ACCELRT_DEBUG="0")
def test_figures_are_right_at_any_moment():
    over = threading.Event()

    def read():
        seen = set()
        while not over.is_set():
            seen.add(accelrt.memory_allocated())
        return seen

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(read)
        for _ in range(50 * ROUNDS):
            turn(700)
        over.set()
        assert seen.result() <= {0, 1024}
    assert accelrt.memory_stats()["allocation.all.allocated"] == 50 * ROUNDS


def collect_what_was_idle_longest(look):
    """A thread inside a MemPool counts slow allocations without a step on the default stream's heap."""
    accelrt.set_per_process_memory_fraction(0.125, 0)
    other, pool, held = accelrt.Stream(), accelrt.MemPool(), []

    def inside():
        with accelrt.use_mem_pool(pool):
            held.append(accelrt.caching_allocator_alloc(1000))

    def used_again():
        turn(12 * MIB)
        if look:
            accelrt.memory_stats()

    for address in [accelrt.caching_allocator_alloc(10 * MIB) for _ in range(10)]:
        accelrt.caching_allocator_delete(address)
    accelrt.empty_cache()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(inside).result()
        idle = accelrt.caching_allocator_alloc(14 * MIB, 0, other)
        accelrt.caching_allocator_alloc(30 * MIB, 0, other)
        used_again()
        used_again()
        thread.submit(inside).result()
        used_again()
        accelrt.caching_allocator_delete(idle)
        thread.submit(inside).result()
        used_again()
        accelrt.caching_allocator_alloc(20 * MIB, 0, other)
    print(sorted(segment["total_size"] // MIB for segment in accelrt.memory_snapshot()))


def test_collection_finds_a_cached_block_used_when_it_was_used():
    environment = {
        "ACCELRT_DEBUG": "0",
        "ACCELRT_ALLOC_CONF": "expandable_segments:False,garbage_collection_threshold:0.5",
    }
    left = {in_child(collect_what_was_idle_longest, look, **environment).strip() for look in (False, True)}
    assert left == {"[2, 12, 20, 30]"}
