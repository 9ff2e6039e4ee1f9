"""Rows about streams, events, copies, fills and host functions."""

import numpy as np
import pytest
from beside import on_a_thread

INVALID_VALUE, INVALID_HANDLE, NOT_READY = 1, 400, 600
DISABLE_TIMING, INTERPROCESS = 2, 4
NON_BLOCKING = 1


def test_priorities(rows):
    least, greatest = rows.ok("stream_priority_range", 0)
    assert least >= greatest
    for asked in (least, greatest, -1000, 1000):
        stream = rows.ok("stream_create", 0, 1, asked)
        assert rows.ok("stream_priority", 0, stream) == max(greatest, min(least, asked))
        rows.ok("stream_destroy", 0, stream)


def test_a_stream_tells_its_flags(rows):
    for flags in (0, 1):
        stream = rows.ok("stream_create", 0, flags, 0)
        assert rows.ok("stream_flags", 0, stream) == flags
        rows.ok("stream_destroy", 0, stream)


def test_unknown_flags_are_refused(rows):
    assert rows.stream_create(0, 77, 0)[0] == INVALID_VALUE
    assert rows.event_create(0, 77)[0] == INVALID_VALUE
    assert rows.event_create(0, INTERPROCESS)[0] == INVALID_VALUE


def test_work_is_asynchronous_and_in_order(rows, device, stream):
    gate, seen = rows.gate(stream), []
    for number in range(20):
        rows.call(stream, lambda number=number: seen.append(number))
    rows.ok("fill", 0, stream, device, 3, 1, 4096)
    assert rows.stream_query(0, stream) == NOT_READY
    assert seen == []
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert rows.stream_query(0, stream) == 0
    assert seen == list(range(20))
    assert (rows.read(device, 4096) == 3).all()


def test_work_of_a_destroyed_stream_completes(rows, device):
    stream, seen = rows.stream(), []
    gate = rows.gate(stream)
    rows.call(stream, lambda: seen.append(1))
    rows.ok("stream_destroy", 0, stream)
    gate.set()
    rows.ok("device_synchronize", 0)
    assert seen == [1]


def test_non_blocking_streams_are_independent(rows, device, stream, other):
    # No host function behind the gate's: a GPU's driver may run those of all streams on one thread.
    gate = rows.gate(stream)
    rows.ok("fill", 0, other, device, 7, 1, 4096)
    rows.ok("stream_synchronize", 0, other)
    rows.ok("stream_synchronize", 0, 0)
    assert (rows.read(device, 4096) == 7).all()
    assert rows.stream_query(0, stream) == NOT_READY
    gate.set()


def test_the_legacy_stream_orders_blocking_streams(rows):
    first, second, seen = rows.stream(0), rows.stream(0), []
    gate = rows.gate(first)
    rows.call(0, lambda: seen.append("legacy"))
    rows.call(second, lambda: seen.append("second"))
    assert rows.stream_query(0, second) == NOT_READY
    assert seen == []
    gate.set()
    rows.ok("stream_synchronize", 0, second)
    assert seen == ["legacy", "second"]
    for stream in (first, second):
        rows.ok("stream_destroy", 0, stream)


def test_an_event_orders_two_streams(rows, device, stream, other, event):
    assert rows.event_query(0, event) == 0
    rows.ok("event_synchronize", 0, event)
    gate = rows.gate(stream)
    rows.ok("fill", 0, stream, device, 7, 4, 1024)
    rows.ok("event_record", 0, event, stream)
    rows.ok("stream_wait_event", 0, other, event)
    rows.ok("copy", 0, other, device + 4096, device, 4096)
    assert rows.event_query(0, event) == NOT_READY
    assert rows.stream_query(0, other) == NOT_READY
    gate.set()
    rows.ok("event_synchronize", 0, event)
    rows.ok("stream_synchronize", 0, other)
    assert (rows.read(device + 4096, 4096).view(np.uint32) == 7).all()


def test_a_wait_keeps_the_record_that_it_saw(rows):
    first, second, other = rows.stream(), rows.stream(), rows.stream()
    event = rows.ok("event_create", 0, DISABLE_TIMING)
    rows.ok("event_record", 0, event, first)
    rows.ok("stream_synchronize", 0, first)
    rows.ok("stream_wait_event", 0, second, event)
    gate = rows.gate(other)
    rows.ok("event_record", 0, event, other)
    rows.ok("stream_synchronize", 0, second)
    gate.set()
    rows.ok("event_destroy", 0, event)
    for stream in (first, second, other):
        rows.ok("stream_destroy", 0, stream)


def test_a_pending_event_may_be_destroyed(rows, stream, other):
    event = rows.ok("event_create", 0, DISABLE_TIMING)
    gate = rows.gate(stream)
    rows.ok("event_record", 0, event, stream)
    rows.ok("stream_wait_event", 0, other, event)
    rows.ok("event_destroy", 0, event)
    assert rows.stream_query(0, other) == NOT_READY
    gate.set()
    rows.ok("stream_synchronize", 0, other)


def test_elapsed_time(rows, stream):
    start, end, silent = (rows.ok("event_create", 0, flags) for flags in (0, 0, DISABLE_TIMING))
    assert rows.event_elapsed(start, end)[0] == INVALID_HANDLE
    rows.ok("event_record", 0, start, stream)
    gate = rows.gate(stream)
    rows.ok("event_record", 0, end, stream)
    assert rows.event_elapsed(start, end)[0] == NOT_READY
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert rows.ok("event_elapsed", start, end) >= 0
    rows.ok("event_record", 0, silent, stream)
    rows.ok("stream_synchronize", 0, stream)
    assert rows.event_elapsed(start, silent)[0] == INVALID_HANDLE
    for event in (start, end, silent):
        rows.ok("event_destroy", 0, event)


@pytest.mark.parametrize(("width", "value"), [(1, 0xA5), (2, 0xA5B6), (4, 0xA5B6C7D8)])
def test_fills_of_every_width(rows, device, width, value):
    rows.ok("fill", 0, 0, device, 0, 1, 4096)
    rows.ok("fill", 0, 0, device + 8, value, width, 10)
    found = rows.read(device, 4096)
    assert (found[8 : 8 + 10 * width].view(f"<u{width}") == value).all()
    assert not found[:8].any()
    assert not found[8 + 10 * width :].any()


def test_fills_that_cannot_be_are_refused(rows, device):
    assert rows.fill(0, 0, device, 0, 3, 4) == INVALID_VALUE
    assert rows.fill(0, 0, device + 1, 0, 4, 4) == INVALID_VALUE
    assert rows.fill(0, 0, 0x1000, 0, 1, 4) == INVALID_VALUE


def test_copies_of_nothing_and_out_of_range(rows, device):
    data = np.zeros(4 << 20, np.uint8)
    rows.ok("copy", 0, 0, device, data.ctypes.data, 0)
    assert rows.copy(0, 0, device, data.ctypes.data, 4 << 20) == INVALID_VALUE
    small = rows.kept("memory_alloc", 0, 1000)
    assert rows.copy(0, 0, device, small, 1000) == 0
    assert rows.copy(0, 0, device, small, 2000) == INVALID_VALUE


def test_pageable_bytes_are_read_before_the_row_returns(rows, device, stream):
    data = np.full(1 << 20, 4, np.uint8)
    rows.ok("copy", 0, stream, device, data.ctypes.data, data.nbytes)
    data[:] = 0
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 1 << 20) == 4).all()
    out = np.zeros(1 << 20, np.uint8)
    rows.ok("copy", 0, stream, out.ctypes.data, device, out.nbytes)
    assert (out == 4).all()


def test_copies_of_memory_that_the_driver_knows_do_not_wait(rows, device, stream):
    address, bytes_ = rows.pinned(4096)
    bytes_[:2048], bytes_[2048:] = 6, 0
    gate = rows.gate(stream)
    rows.ok("copy_async", 0, stream, device, address, 2048)
    rows.ok("copy_async", 0, stream, device + 2048, device, 2048)
    rows.ok("copy_async", 0, stream, address + 2048, device + 2048, 2048)
    assert not bytes_[2048:].any()
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert (bytes_ == 6).all()
    assert (rows.read(device, 4096) == 6).all()
    rows.ok("host_free", 0, address)


def test_copies_of_known_memory_take_any_thread_and_are_captured(rows, device, stream):
    rows.ok("fill", 0, stream, device, 5, 1, 64)
    assert on_a_thread(lambda: rows.copy_async(0, stream, device + 64, device, 64)) == 0
    rows.ok("capture_begin", 0, stream, 0)
    rows.ok("copy_async", 0, stream, device + 128, device + 64, 64)
    graph = rows.ok("capture_end", 0, stream)
    assert rows.ok("graph_node_count", graph) == 1
    rows.ok("graph_destroy", graph)
    rows.ok("copy_async", 0, stream, device + 128, device + 64, 64)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 192) == 5).all()


def test_copies_between_devices(rows, device):
    last = rows.ok("device_count") - 1
    other = rows.ok("memory_alloc", last, 4096)
    rows.ok("fill", 0, 0, device, 8, 1, 4096)
    rows.ok("stream_synchronize", 0, 0)
    rows.ok("copy_peer", last, other, 0, device, 4096, 0)
    rows.ok("stream_synchronize", 0, 0)
    out = np.zeros(4096, np.uint8)
    rows.ok("copy", last, 0, out.ctypes.data, other, 4096)
    rows.ok("stream_synchronize", last, 0)
    assert (out == 8).all()
    rows.ok("memory_free", last, other)


def test_a_stream_names_its_device(rows):
    last = rows.ok("device_count") - 1
    mine, other = (
        rows.ok("stream_create", 0, NON_BLOCKING, 0),
        rows.ok("stream_create", last, NON_BLOCKING, 0),
    )
    assert rows.ok("stream_device", 0, mine) == rows.ok("stream_device", last, mine) == 0
    assert rows.ok("stream_device", 0, other) == rows.ok("stream_device", last, other) == last
    for default in (0, 1, 2):
        assert rows.ok("stream_device", last, default) == last
    rows.ok("capture_begin", 0, mine, 0)
    assert rows.ok("stream_device", 0, mine) == 0
    rows.ok("graph_destroy", rows.ok("capture_end", 0, mine))
    rows.ok("stream_destroy", 0, mine)
    rows.ok("stream_destroy", last, other)


def test_copies_between_devices_go_on_a_stream_of_either(rows, device):
    last = rows.ok("device_count") - 1
    other = rows.ok("memory_alloc", last, 4096)
    out = np.zeros(4096, np.uint8)
    for turn, on in enumerate((0, last)):
        for stream in (0, rows.ok("stream_create", on, NON_BLOCKING, 0)):
            rows.ok("fill", 0, 0, device, 8 + turn, 1, 4096)
            rows.ok("fill", last, 0, other, 0, 1, 4096)
            rows.ok("stream_synchronize", 0, 0)
            rows.ok("stream_synchronize", last, 0)
            rows.ok("copy_across", on, stream, last, other, 0, device, 4096)
            rows.ok("stream_synchronize", on, stream)
            rows.ok("copy", last, 0, out.ctypes.data, other, 4096)
            rows.ok("stream_synchronize", last, 0)
            assert (out == 8 + turn).all()
            if stream:
                rows.ok("stream_destroy", on, stream)
    rows.ok("memory_free", last, other)


@pytest.mark.gone_streams
def test_a_stale_handle_is_refused(rows):
    if rows.driver == "host":  # a GPU's driver may crash on one
        stream, event = rows.stream(), rows.ok("event_create", 0, 0)
        rows.ok("stream_destroy", 0, stream)
        rows.ok("event_destroy", 0, event)
        assert rows.stream_synchronize(0, stream) == INVALID_HANDLE
        assert rows.stream_device(0, stream)[0] == INVALID_HANDLE
        assert rows.event_query(0, event) == INVALID_HANDLE
        assert rows.event_record(0, event, 0) == INVALID_HANDLE
        assert rows.graph_destroy(0xBAD) == INVALID_VALUE


def test_a_stream_has_the_window_that_was_set(rows, device, stream):
    code, *window = rows.stream_window_get(0, stream)
    if code:  # the host device has no L2 cache of its own
        assert code == rows.stream_window_set(0, stream, device, 4096, 1.0, 2, 1) == 801
    else:
        assert window[1] == 0
        rows.ok("stream_window_set", 0, stream, device, 4096, 0.5, 2, 1)
        assert rows.ok("stream_window_get", 0, stream) == (device, 4096, 0.5, 2, 1)
        rows.ok("fill", 0, stream, device, 3, 1, 4096)
        rows.ok("stream_window_set", 0, stream, 0, 0, 0.0, 0, 0)
        assert rows.ok("stream_window_get", 0, stream)[1] == 0
    rows.ok("stream_synchronize", 0, stream)


DOMAIN_COUNT = 126  # CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT
SYNC_POLICY, PRIORITY, DOMAIN_MAP, DOMAIN = 3, 8, 9, 10


def test_a_new_stream_on_the_host_device_has_these_attributes(rows, on_host, stream):
    # A GPU's driver has a default of its own.
    assert rows.ok("stream_attribute_get", 0, stream, SYNC_POLICY) == (1, 0)


def test_a_stream_has_the_attributes_that_were_set(rows, stream):
    assert rows.ok("stream_attribute_get", 0, stream, PRIORITY) == (0, 0)
    assert rows.ok("stream_attribute_get", 0, stream, DOMAIN) == (0, 0)
    count = max(1, rows.ok("device_attribute", 0, DOMAIN_COUNT))
    assert rows.ok("stream_attribute_get", 0, stream, DOMAIN_MAP) == (0, min(1, count - 1))
    for attribute, numbers in (
        *((SYNC_POLICY, (policy, 0)) for policy in (2, 3, 4, 1)),
        (DOMAIN, (1, 0)),
        (DOMAIN, (0, 0)),
        (DOMAIN_MAP, (count - 1, 0)),
        (DOMAIN_MAP, (0, count - 1)),
    ):
        rows.ok("stream_attribute_set", 0, stream, attribute, *numbers)
        assert rows.ok("stream_attribute_get", 0, stream, attribute) == numbers
    rows.ok("stream_synchronize", 0, stream)


def test_a_streams_priority_can_be_set(rows, stream):
    _, greatest = rows.ok("stream_priority_range", 0)
    rows.ok("stream_attribute_set", 0, stream, PRIORITY, greatest, 0)
    assert rows.ok("stream_attribute_get", 0, stream, PRIORITY) == (greatest, 0)
    assert rows.ok("stream_priority", 0, stream) == greatest


def test_attributes_that_cannot_be_are_refused_and_nothing_changes(rows, stream):
    before = rows.ok("stream_attribute_get", 0, stream, SYNC_POLICY)
    for attribute, first, second in ((1, 0, 0), (99, 0, 0), (DOMAIN_MAP, 256, 0), (DOMAIN_MAP, 0, -1)):
        assert rows.stream_attribute_set(0, stream, attribute, first, second) == INVALID_VALUE
    for attribute in (1, 99):
        assert rows.stream_attribute_get(0, stream, attribute)[0] == INVALID_VALUE
    assert rows.ok("stream_attribute_get", 0, stream, SYNC_POLICY) == before
