"""Full devices: what the retry ladder does before a request fails, and what the error says."""

import functools
import time

import pytest
from allocator_gates import WAIT_SECONDS
from allocator_mirror import Mirror
from child import in_own_process, waits, wrap_host
from model_blocks import MIB

import accelrt

pytestmark = pytest.mark.host
DEVICE = 256 * MIB
SETTINGS = {"pages": "", "plain": "expandable_segments:False"}
full_device = functools.partial(in_own_process, ACCELRT_HOST_MEMORY=str(DEVICE), ACCELRT_ALLOC_CONF="{mode}")


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS)
def mode(request):
    return request.param


def begin():
    wrap_host()
    return Mirror(waits=waits)


@full_device
def test_half_the_device_twice_fails_and_succeeds_once_the_first_is_freed(mode):
    mirror = begin()
    half = DEVICE // 2 + 1
    first = mirror.allocate(0, half)
    assert mirror.allocate(0, half) is None
    mirror.compare(0)
    mirror.free(first)
    second = mirror.allocate(0, half)
    assert second
    mirror.compare(0)
    mirror.close()


@full_device
def test_the_error_says_what_was_asked_for_and_what_there_is(mode):
    reserved = 120 * MIB if mode else 104 * MIB
    mirror = begin()
    mirror.allocate(0, 100 * MIB)
    idle = mirror.allocate(0, 100 * MIB, stream=1)
    mirror.allocate(0, 3 * MIB, stream=2)
    mirror.free(idle)
    for _ in range(2):
        assert mirror.allocate(0, 200 * MIB) is None
        error = mirror.error
        assert (error.requested, error.capacity) == (200 * MIB, DEVICE)
        assert (error.live, error.reserved, error.free) == (103 * MIB, reserved, DEVICE - reserved)
        assert str(200 * MIB) in str(error) or "200.00 MiB" in str(error)
    mirror.compare(0)
    mirror.close()


@full_device
def test_pending_memory_is_waited_for_before_anything_is_given_back(mode):
    mirror = begin()
    key = mirror.allocate(0, 200 * MIB, stream=1)
    mirror.close_gate(0, 2)
    mirror.record_stream(key, 2)
    mirror.free(key)
    assert accelrt.memory_stats(0)["active_bytes.all.current"] == 200 * MIB
    before = waits()
    assert mirror.allocate(0, 200 * MIB, stream=1) == key
    assert waits() > before
    assert accelrt.memory_stats(0)["num_alloc_retries"] == 0
    mirror.compare(0)
    mirror.close()


@full_device
def test_memory_pending_on_two_streams_is_waited_for(mode):
    """By hand: the mirror leaves one stream to wait for."""
    mirror = begin()
    address = accelrt.caching_allocator_alloc(200 * MIB, 0, mirror.streams[0, 1])
    for stream in (2, 3):
        mirror.close_gate(0, stream)
        accelrt.record_stream(address, mirror.streams[0, stream])
    accelrt.caching_allocator_delete(address)
    with mirror.opening_gates(True):
        assert accelrt.caching_allocator_alloc(200 * MIB, 0, mirror.streams[0, 1]) == address
    assert accelrt.memory_stats(0)["reserved_bytes.all.current"] == 200 * MIB
    accelrt.caching_allocator_delete(address)
    accelrt.empty_cache()
    assert accelrt.memory_snapshot(0) == []


@pytest.mark.parametrize("pending", [True, False], ids=["event", "segment"])
@in_own_process(ACCELRT_ALLOC_CONF="{mode}")
def test_a_host_function_may_free_memory_while_the_allocator_waits_for_it(mode, pending):
    wrap_host()
    stream, other = accelrt.Stream(0), accelrt.Stream(0)
    idle, used, held = (accelrt.caching_allocator_alloc(size, 0, stream) for size in (20 * MIB, 2 * MIB, 512))
    accelrt.caching_allocator_delete(idle)
    accelrt.record_stream(used, other)
    before, seen = waits(), []

    def give_back():
        deadline = time.monotonic() + WAIT_SECONDS
        while waits() == before and time.monotonic() < deadline:
            time.sleep(0.0002)
        seen.append(waits() > before)
        accelrt.caching_allocator_delete(held)

    other.launch_host_func(give_back)
    if pending:
        accelrt.caching_allocator_delete(used)
    accelrt.empty_cache()
    assert seen == [True]
    if not pending:
        accelrt.caching_allocator_delete(used)
    accelrt.empty_cache()
    assert accelrt.memory_snapshot(0) == []


@full_device
def test_idle_memory_of_other_streams_serves_or_is_given_back(mode):
    expected = (1, 1, 0) if mode else (0, 0, 0)
    mirror = begin()
    keys = [mirror.allocate(0, 60 * MIB, stream) for stream in (1, 2, 3)]
    for key in keys:
        mirror.free(key)
    assert mirror.allocate(0, 250 * MIB)
    stats = accelrt.memory_stats(0)
    counts = ("num_alloc_retries", "num_sync_all_streams", "num_ooms")
    assert tuple(stats[name] for name in counts) == expected
    assert stats["reserved_bytes.all.current"] == 250 * MIB
    mirror.compare(0)
    mirror.close()


@full_device(ACCELRT_ALLOC_CONF=SETTINGS["plain"])
def test_a_plain_segment_is_no_larger_than_the_device_allows():
    mirror = begin()
    mirror.allocate(0, 246 * MIB)
    key = mirror.allocate(0, 5 * MIB)
    assert accelrt.memory_stats(0)["reserved_bytes.all.current"] == 252 * MIB
    assert mirror.allocate(0, 5 * MIB) is None
    assert mirror.allocate(0, 1) is not None
    assert mirror.allocate(0, 2 * MIB) is not None
    assert mirror.allocate(0, MIB + 1) is None
    mirror.free(key)
    assert mirror.allocate(0, 5 * MIB) == key
    mirror.compare(0)
    mirror.close()


@full_device(ACCELRT_ALLOC_CONF="")
def test_every_byte_of_a_device_can_be_had():
    mirror = begin()
    assert mirror.allocate(0, 246 * MIB, stream=1)
    assert mirror.allocate(0, 10 * MIB - 512)
    last = mirror.allocate(0, 512)
    assert last
    assert mirror.allocate(0, 1) is None
    assert mirror.error.live == mirror.error.reserved == DEVICE
    mirror.free(last)
    assert mirror.allocate(0, 512) == last
    mirror.compare(0)
    mirror.close()


@full_device
def test_failures_leave_the_device_usable_and_lose_nothing(mode):
    mirror = begin()
    keys = []
    while (key := mirror.allocate(0, 9 * MIB)) is not None:
        keys.append(key)
    for _ in range(50):
        assert mirror.allocate(0, 9 * MIB) is None
    assert accelrt.memory_stats(0)["num_ooms"] == 51
    mirror.free(keys.pop())
    keys.append(mirror.allocate(0, 9 * MIB))
    assert keys[-1] is not None
    mirror.compare(0)
    mirror.close()
    assert accelrt.mem_get_info(0) == (DEVICE, DEVICE)


@full_device
def test_the_memory_fraction_limits_growth_and_nothing_else(mode):
    mirror = begin()
    mirror.set_fraction(0, 0.25)
    assert mirror.allocate(0, 65 * MIB) is None
    assert mirror.allocate(0, 64 * MIB) is not None
    assert mirror.allocate(0, 1) is None
    mirror.set_fraction(0, 0.5)
    assert mirror.allocate(0, 1) is not None
    mirror.set_fraction(0, 0.0)
    assert mirror.allocate(0, 1) is not None, "what is reserved stays usable under a lower limit"
    assert mirror.allocate(0, 2 * MIB) is None
    mirror.compare(0)
    mirror.close()


@pytest.mark.parametrize("limit", [21, 64])
@in_own_process(ACCELRT_ALLOC_CONF="max_split_size_mb:{limit}")
def test_a_request_just_below_the_limit_on_splitting_is_served(limit):
    """Rounded up to 2 MiB, its segment would be a block that serves no request below the limit."""
    limit *= MIB
    for size in (limit - 512, limit - MIB + 512, limit - 2 * MIB + 1):
        address = accelrt.caching_allocator_alloc(size)
        assert size <= accelrt.memory_reserved() <= limit
        accelrt.caching_allocator_delete(address)
        accelrt.empty_cache()
    accelrt.memory.audit()
