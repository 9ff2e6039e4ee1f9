"""Rows about devices and contexts."""

import pytest
from beside import on_a_thread

from accelrt.devices.attributes import known_to

INVALID_VALUE, INVALID_DEVICE, PEER_ACCESS_UNSUPPORTED, NO_CONTEXT = 1, 101, 217, -1
UNSUPPORTED_LIMIT, NOT_SUPPORTED = 215, 801


def test_devices_are_counted_and_described(rows):
    count = rows.ok("device_count")
    assert count >= 1
    assert rows.ok("driver_version") >= 12000
    names = {rows.ok("device_uuid", device) for device in range(count)}
    assert len(names) == count
    for device in range(count):
        assert rows.ok("device_name", device)
        assert rows.ok("device_pci_bus_id", device)
        free, total = rows.ok("memory_info", device)
        assert 0 < free <= total
        assert rows.ok("device_memory", device) >= total


@pytest.mark.parametrize("attribute", [1, 10, 16, 41, 75, 76, 102])
def test_attributes_answer_by_cudas_numbers(rows, attribute):
    assert rows.ok("device_attribute", 0, attribute) >= 0


def test_every_attribute_of_the_drivers_version_is_answered(rows):
    known = known_to(rows.ok("driver_version"))
    assert not [name for name, number in known.items() if rows.device_attribute(0, number)[0]]


# What programs ask before they use it.
ABLE = (
    *("can_map_host_memory", "can_use_host_pointer_for_registered_mem", "concurrent_kernels", "gpu_overlap"),
    *("concurrent_managed_access", "handle_type_posix_file_descriptor_supported", "ipc_event_supported"),
    *("host_native_atomic_supported", "host_register_supported", "managed_memory", "memory_pools_supported"),
    *("mempool_supported_handle_types", "stream_priorities_supported", "virtual_memory_management_supported"),
)


def test_the_host_device_says_that_it_can_do_what_it_does(rows, on_host):
    known = known_to(rows.ok("driver_version"))
    answers = {name: rows.ok("device_attribute", 0, known[name]) for name in ABLE}
    assert set(answers.values()) == {1}, answers
    assert rows.ok("device_attribute", 0, known["async_engine_count"]) == 2
    assert rows.ok("device_attribute", 0, known["max_pitch"]) == (1 << 31) - 1


def test_an_unknown_attribute_is_refused(rows):
    assert rows.device_attribute(0, 100_000)[0] == INVALID_VALUE


@pytest.mark.parametrize(
    ("row", "device"),
    [
        (row, device)
        for row in (
            "device_name",
            "device_uuid",
            "device_memory",
            "memory_info",
            "set_device",
            "device_synchronize",
        )
        for device in (-1, -2, 64, 1 << 30)
        if (row, device) != ("set_device", -1)  # that one unsets it
    ],
)
def test_a_device_that_is_not_is_refused(rows, row, device):
    answer = getattr(rows, row)(device)
    assert (answer[0] if isinstance(answer, tuple) else answer) == INVALID_DEVICE


def test_the_current_device_is_the_threads_own(rows):
    last = rows.ok("device_count") - 1

    def look():
        before = rows.ok("current_device")
        rows.ok("set_device", last)
        return before, rows.ok("current_device")

    rows.ok("set_device", 0)
    assert on_a_thread(look) == (NO_CONTEXT, last)
    assert rows.ok("current_device") == 0


def test_a_thread_goes_back_to_no_device(rows):
    seen = []

    def look():
        rows.ok("set_device", NO_CONTEXT)  # where there is none to leave
        for device in range(rows.ok("device_count")):
            rows.ok("set_device", device)
            rows.ok("set_device", NO_CONTEXT)
            seen.append(rows.ok("current_device"))

    rows.ok("set_device", 0)
    on_a_thread(look)
    assert set(seen) == {NO_CONTEXT}
    assert rows.ok("current_device") == 0


def test_peers(rows):
    count = rows.ok("device_count")
    assert rows.ok("can_access_peer", 0, 0) == 0
    assert rows.enable_peer(0, 0) == PEER_ACCESS_UNSUPPORTED
    if count > 1 and rows.ok("can_access_peer", 0, 1):
        rows.ok("enable_peer", 0, 1)
        rows.ok("enable_peer", 0, 1)


def test_limits_are_told_and_set(rows):
    size = rows.ok("limit_get", 0, 0)  # CU_LIMIT_STACK_SIZE
    rows.ok("limit_set", 0, 0, 2 * size)
    assert rows.ok("limit_get", 0, 0) >= 2 * size
    rows.ok("limit_set", 0, 0, size)
    assert rows.limit_get(0, 4096)[0] in (1, 215)  # INVALID_VALUE, UNSUPPORTED_LIMIT
    assert rows.limit_set(0, 0, 1 << 40) in (INVALID_VALUE, 2)
    assert rows.ok("limit_get", 0, 0) == size
    code, mode = rows.module_loading()
    assert mode in (1, 2) if rows.driver == "cuda" else code == NOT_SUPPORTED


def test_limits_are_rounded_or_kept_within_what_there_is(rows):
    before = rows.ok("limit_get", 0, 5)  # CU_LIMIT_MAX_L2_FETCH_GRANULARITY
    assert rows.limit_set(0, 5, 1000) == INVALID_VALUE
    rows.ok("limit_set", 0, 5, 128)
    assert before <= rows.ok("limit_get", 0, 5) <= 128
    rows.ok("limit_set", 0, 5, before)
    for limit in (1, 2):  # of printf's buffer and the kernels' heap
        size = rows.ok("limit_get", 0, limit)
        rows.ok("limit_set", 0, limit, size + 5)
        assert rows.ok("limit_get", 0, limit) >= size + 5
        rows.ok("limit_set", 0, limit, size)
    # CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH is gone from compute capability 9.0 on, which the host device has.
    if rows.driver == "host":
        assert rows.limit_get(0, 3)[0] == rows.limit_set(0, 3, 2) == UNSUPPORTED_LIMIT


def test_lines_that_persist_are_of_devices_that_keep_them(rows):
    if rows.ok("device_attribute", 0, 108):  # MAX_PERSISTING_L2_CACHE_SIZE
        rows.ok("limit_get", 0, 6)
        rows.ok("l2_reset", 0)
    else:
        assert rows.limit_get(0, 6)[0] == rows.limit_set(0, 6, 1 << 20) == UNSUPPORTED_LIMIT
        assert rows.l2_reset(0) == NOT_SUPPORTED


def test_a_device_has_a_context_once_it_is_used(rows):
    rows.ok("memory_info", 0)
    assert rows.ok("context_active", 0) == 1
    assert rows.context_active(rows.ok("device_count"))[0] == 101  # INVALID_DEVICE


def test_questions_about_a_device_make_no_context(rows):
    last = rows.ok("device_count") - 1
    before = rows.ok("context_active", last)
    for name in ("device_name", "device_uuid", "device_memory", "granularity", "context_active"):
        rows.ok(name, last)
    rows.ok("device_attribute", last, 16)
    rows.ok("can_access_peer", last, last)
    assert rows.ok("context_active", last) == before
