"""Requests that no device could serve, and addresses that were never handed out."""

import re

import pytest
from allocator_mirror import Mirror
from child import in_own_process, wrap_host

import accelrt

pytestmark = pytest.mark.host
TOO_LARGE = [1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30]
NEGATIVE = [-1, -512, -(1 << 63), -(1 << 70)]
NOT_SIZES = [1.0, 1.5, float("nan"), "512", b"512", None, [512], object()]
REFUSED = (ValueError, OverflowError, accelrt.OutOfMemoryError)


def statistics_and_snapshot():
    return accelrt.memory_stats(0), accelrt.memory_snapshot(0)


@in_own_process
def test_sizes_that_cannot_be_served_call_no_driver_row():
    faults = wrap_host()
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(1, 0))
    before = statistics_and_snapshot()
    faults.reset_call_counts()
    for size in TOO_LARGE + NEGATIVE:
        with pytest.raises(REFUSED, match=re.escape(str(size))):
            accelrt.caching_allocator_alloc(size, 0)
    for size in NOT_SIZES:
        with pytest.raises(TypeError, match=r"int|integer"):
            accelrt.caching_allocator_alloc(size, 0)
    called = {row: count for row, count in faults.call_counts().items() if count}
    # For what the error says of the device.
    assert set(called) <= {"memory_info", "limit_get", "device_attribute"}, (
        "a request that cannot be served reached the driver"
    )
    assert_nothing_changed(before)


def assert_nothing_changed(before):
    (stats, segments), (stats_before, segments_before) = statistics_and_snapshot(), before
    assert segments == segments_before
    changed = {key for key in stats if stats[key] != stats_before[key]}
    assert changed <= {"num_ooms"}


@in_own_process
def test_addresses_that_are_not_live_are_refused_and_named():
    faults = wrap_host()
    address = accelrt.caching_allocator_alloc(4096, 0)
    other = accelrt.caching_allocator_alloc(4096, 0)
    accelrt.caching_allocator_delete(address)
    before = statistics_and_snapshot()
    faults.reset_call_counts()
    stream = accelrt.default_stream(0)
    for wrong in (address, other + 512, other - 1, 1, (1 << 64) - 1):
        with pytest.raises((accelrt.CudaError, ValueError), match=spelled(wrong)):
            accelrt.caching_allocator_delete(wrong)
        with pytest.raises((accelrt.CudaError, ValueError), match=spelled(wrong)):
            accelrt.record_stream(wrong, stream)
    for wrong in (None, "0x1000", 1.0):
        with pytest.raises(TypeError):
            accelrt.caching_allocator_delete(wrong)
    for wrong in (-1, 1 << 64):
        with pytest.raises((ValueError, OverflowError)):
            accelrt.caching_allocator_delete(wrong)
    called = {row for row, count in faults.call_counts().items() if count}
    assert called <= {"current_device"}, "asked which device to look at first, and nothing else"
    assert statistics_and_snapshot() == before
    accelrt.memory.audit(0)
    accelrt.caching_allocator_delete(other)


def spelled(address):
    return rf"\b({address:#x}|{address})\b"


def test_a_pending_block_cannot_be_freed_again():
    mirror = Mirror()
    key = mirror.allocate(0, 4096, stream=1)
    address = mirror.address(key)
    mirror.close_gate(0, 2)
    mirror.record_stream(key, 2)
    mirror.free(key)
    stream = accelrt.default_stream(0)
    for again in (accelrt.caching_allocator_delete, lambda wrong: accelrt.record_stream(wrong, stream)):
        with pytest.raises((accelrt.CudaError, ValueError), match=spelled(address)):
            again(address)
    mirror.compare(0)
    mirror.close()


def test_zero_bytes_are_address_zero_and_no_block():
    accelrt.init()
    before = statistics_and_snapshot()
    assert accelrt.caching_allocator_alloc(0, 0) == 0
    accelrt.caching_allocator_delete(0)
    assert statistics_and_snapshot() == before


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half"])
def test_memory_fractions_outside_0_to_1_are_refused(fraction):
    with pytest.raises((ValueError, TypeError), match=r"fraction|float|real"):
        accelrt.set_per_process_memory_fraction(fraction, 0)


def test_devices_that_do_not_exist_are_refused():
    for device in (-2, accelrt.device_count(), 1 << 40):
        with pytest.raises((ValueError, OverflowError, accelrt.CudaError), match="device"):
            accelrt.caching_allocator_alloc(512, device)


@in_own_process(ACCELRT_HOST_MEMORY="1GiB")
def test_what_the_device_has_not_is_refused_before_a_page_is_taken():
    faults = wrap_host()
    capacity = accelrt.mem_get_info()[1]
    kept = accelrt.caching_allocator_alloc(1, 0)
    for size in (capacity + 1, 1 << 40):
        faults.reset_call_counts()
        with pytest.raises(accelrt.OutOfMemoryError, match=str(size)):
            accelrt.caching_allocator_alloc(size, 0)
        assert faults.call_counts()["physical_create"] == 0, "pages that others may need meanwhile"
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(capacity // 2, 0))
    accelrt.caching_allocator_delete(kept)


@in_own_process(ACCELRT_HOST_MEMORY="1GiB")
def test_free_bytes_refuse_nothing_unless_they_are_the_devices_own():
    faults = wrap_host()
    capacity = accelrt.mem_get_info()[1]
    faults.arm(call=1, code=801, mode="onward", rows=["device_attribute"])
    faults.reset_call_counts()
    with pytest.raises(accelrt.OutOfMemoryError, match=str(capacity + 1)):
        accelrt.caching_allocator_alloc(capacity + 1, 0)
    faults.disarm()
    counts = faults.call_counts()
    assert counts["physical_create"] + counts["memory_alloc"] > 0
