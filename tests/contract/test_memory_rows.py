"""Rows about memory: plain, page-locked, and virtual."""

import ctypes
import random

import numpy as np
import pytest
from beside import on_a_thread

MIB = 1 << 20
INVALID_VALUE, OUT_OF_MEMORY, REGISTERED, NOT_REGISTERED, NOT_SUPPORTED = 1, 2, 712, 713, 801


def test_plain_memory_comes_and_goes(rows):
    address = rows.ok("memory_alloc", 0, 64 * MIB)
    assert address % 512 == 0
    assert rows.ok("pointer_device", address) == 0
    assert rows.ok("pointer_device", address + 64 * MIB - 1) == 0
    rows.ok("memory_free", 0, address)
    assert rows.pointer_device(address)[0] == INVALID_VALUE


def test_plain_memory_is_taken_from_what_is_free(rows):
    def taken():
        free, _ = rows.ok("memory_info", 0)
        address = rows.ok("memory_alloc", 0, 64 * MIB)
        left, _ = rows.ok("memory_info", 0)
        rows.ok("memory_free", 0, address)
        return free - left

    assert any(taken() >= 64 * MIB for _ in range(50))  # other processes may free a GPU's memory meanwhile


def test_no_bytes_and_too_many_are_refused(rows):
    assert rows.memory_alloc(0, 0)[0] == INVALID_VALUE
    assert rows.memory_alloc(0, 1 << 50)[0] == OUT_OF_MEMORY
    rows.kept("memory_alloc", 0, MIB)


def test_freeing_what_is_not_allocated_is_refused(rows):
    address = rows.ok("memory_alloc", 0, MIB)
    assert rows.memory_free(0, address + 512) == INVALID_VALUE
    rows.ok("memory_free", 0, address)
    assert rows.memory_free(0, address) == INVALID_VALUE
    assert rows.memory_free(0, 0x1234) == INVALID_VALUE


def test_page_locked_memory_is_known(rows):
    address, array = rows.pinned(4096)
    assert rows.ok("pointer_device", address) == -1
    array[:] = 7
    assert array.sum() == 7 * 4096
    rows.ok("host_free", 0, address)
    assert rows.host_free(0, address) == INVALID_VALUE


def test_the_users_memory_is_registered_once(rows):
    raw = np.zeros(1 << 16, np.uint8)
    address = (raw.ctypes.data + 4095) & ~4095
    rows.ok("host_register", 0, address, 8192)
    assert rows.host_register(0, address, 8192) == REGISTERED
    rows.ok("host_unregister", 0, address)
    assert rows.host_unregister(0, address) == NOT_REGISTERED


@pytest.fixture
def page(rows):
    return rows.ok("granularity", 0)


def mapped(rows, address, size, handle):
    rows.ok("memory_map", address, size, handle)
    rows.ok("memory_access", address, size, 0, 3)


def test_one_handle_at_two_addresses_shows_the_same_bytes(rows, page):
    room = rows.kept("address_reserve", 4 * page, 0)
    handle = rows.kept("physical_create", 0, 2 * page, False)
    mapped(rows, room, 2 * page, handle)
    mapped(rows, room + 2 * page, 2 * page, handle)
    assert rows.ok("pointer_device", room) == 0
    rows.ok("fill", 0, 0, room, 5, 1, 2 * page)
    assert (rows.read(room + 2 * page, 4096) == 5).all()
    rows.ok("fill", 0, 0, room + 3 * page, 6, 1, 16)
    assert (rows.read(room + page, 16) == 6).all()
    rows.ok("memory_unmap", room, 2 * page)
    assert (rows.read(room + 2 * page, 16) == 5).all()
    rows.ok("memory_unmap", room + 2 * page, 2 * page)


def test_bytes_outlive_their_handle_until_the_last_mapping_goes(rows, page):
    free, _ = rows.ok("memory_info", 0)
    room = rows.ok("address_reserve", page, 0)
    handle = rows.ok("physical_create", 0, page, False)
    mapped(rows, room, page, handle)
    rows.ok("fill", 0, 0, room, 9, 1, page)
    rows.ok("physical_release", handle)
    assert (rows.read(room, page) == 9).all()
    rows.ok("memory_unmap", room, page)
    rows.ok("address_free", room, page)
    if rows.driver == "host":
        assert rows.ok("memory_info", 0)[0] == free


def test_a_copy_may_cross_two_handles_that_lie_side_by_side(rows, page):
    room = rows.kept("address_reserve", 2 * page, 0)
    handles = [rows.ok("physical_create", 0, page, False) for _ in range(2)]
    for index, handle in enumerate(handles):
        mapped(rows, room + index * page, page, handle)
    data = np.arange(8192, dtype=np.uint8)
    rows.ok("copy", 0, 0, room + page - 4096, data.ctypes.data, 8192)
    assert (rows.read(room + page - 4096, 8192) == data).all()
    rows.ok("memory_unmap", room, 2 * page)
    for handle in handles:
        rows.ok("physical_release", handle)


def test_a_thread_without_a_device_works_on_ranges_of_several_handles(rows, page, stream):
    room, seen = rows.ok("address_reserve", 4 * page, 0), []
    handles = [rows.ok("physical_create", 0, page, False) for _ in range(4)]

    def work():
        for index, handle in enumerate(handles):
            mapped(rows, room + index * page, page, handle)
        rows.ok("fill", 0, stream, room, 7, 1, 2 * page)
        rows.ok("copy_async", 0, stream, room + 2 * page, room, 2 * page)
        seen.append((rows.ok("pointer_device", room + page), rows.ok("current_device")))
        rows.ok("stream_synchronize", 0, stream)
        seen.append(rows.read(room + 2 * page, 2 * page))
        rows.ok("memory_unmap", room, 4 * page)
        for handle in handles:
            rows.ok("physical_release", handle)
        seen.append(rows.ok("current_device"))

    on_a_thread(work)
    assert (seen[0], seen[2]) == ((0, -1), -1)
    assert (seen[1] == 7).all()
    rows.ok("address_free", room, 4 * page)


def test_mapping_is_whole_or_refused(rows, page):
    room = rows.kept("address_reserve", 2 * page, 0)
    handle = rows.kept("physical_create", 0, 2 * page, False)
    assert rows.memory_map(room, page, handle) == NOT_SUPPORTED
    assert rows.memory_map(room, 3 * page, handle) == NOT_SUPPORTED
    mapped(rows, room, 2 * page, handle)
    assert rows.memory_map(room, 2 * page, handle) == INVALID_VALUE
    assert rows.memory_unmap(room, page) == INVALID_VALUE
    assert rows.memory_unmap(room, 0) == INVALID_VALUE
    rows.ok("memory_unmap", room, 2 * page)
    rows.ok("memory_unmap", room, 2 * page)  # holes are no matter


def test_what_is_mapped_is_known_in_whatever_order_pages_come_and_go(rows, page):
    rng, pages = random.Random(5), 48
    room = rows.kept("address_reserve", pages * page, 0)
    handle = rows.kept("physical_create", 0, page, False)
    shown = set()
    for _ in range(400):
        place = rng.randrange(pages)
        if place in shown:
            assert rows.memory_map(room + place * page, page, handle) == INVALID_VALUE
            rows.ok("memory_unmap", room + place * page, page)
        else:
            rows.ok("memory_map", room + place * page, page, handle)
        shown ^= {place}
        asked = rng.randrange(pages)
        answer = rows.pointer_device(room + asked * page + rng.randrange(page))
        assert answer[0] == (0 if asked in shown else INVALID_VALUE)
    rows.ok("memory_unmap", room, pages * page)  # all at once, holes in between
    assert all(rows.pointer_device(room + place * page)[0] == INVALID_VALUE for place in range(pages))


def test_memory_without_access_is_refused_and_still_known(rows, page):
    room = rows.kept("address_reserve", page, 0)
    handle = rows.kept("physical_create", 0, page, False)
    rows.ok("memory_map", room, page, handle)
    assert rows.ok("pointer_device", room) == 0
    assert rows.fill(0, 0, room, 1, 1, 16) == INVALID_VALUE
    rows.ok("memory_unmap", room, page)


def test_odd_sizes_are_refused(rows, page):
    assert rows.physical_create(0, page + 1, False)[0] == INVALID_VALUE
    assert rows.physical_create(0, 1 << 50, False)[0] == OUT_OF_MEMORY
    assert rows.address_reserve(0, 0)[0] == INVALID_VALUE


def test_addresses_are_reserved_where_they_are_wanted_or_elsewhere(rows, page):
    room = rows.ok("address_reserve", 8 * page, 0)
    rows.ok("address_free", room, 8 * page)
    middle = rows.ok("address_reserve_at", 2 * page, page, room + 2 * page)
    assert middle == room + 2 * page
    other = rows.ok("address_reserve_at", 2 * page, page, room + 3 * page)
    assert other not in (0, room + 3 * page)
    assert other % page == 0
    left = next(
        at for at in range(room + 4 * page, room + 8 * page, page) if not other <= at < other + 2 * page
    )
    last = rows.ok("address_reserve_at", page, page, left)
    assert last == left
    handle = rows.kept("physical_create", 0, 2 * page, False)
    mapped(rows, middle, 2 * page, handle)
    rows.ok("fill", 0, 0, middle, 5, 1, 2 * page)
    assert (rows.read(middle + page, 4096) == 5).all()
    rows.ok("memory_unmap", middle, 2 * page)
    for address, size in ((middle, 2 * page), (other, 2 * page), (last, page)):
        rows.ok("address_free", address, size)


def test_addresses_alone_cost_nothing(rows, page):
    costs = []
    while 0 not in costs and len(costs) < 50:  # of a GPU other processes take memory meanwhile
        free, _ = rows.ok("memory_info", 0)
        room = rows.ok("address_reserve", 1 << 40, 0)
        costs.append(free - rows.ok("memory_info", 0)[0])
        rows.ok("address_free", room, 1 << 40)
    assert 0 in costs


def test_mapping_goes_on_while_work_runs(rows, page):
    stream = rows.stream()
    gate = rows.gate(stream)
    room = rows.ok("address_reserve", page, 0)
    handle = rows.ok("physical_create", 0, page, False)
    mapped(rows, room, page, handle)
    rows.ok("memory_unmap", room, page)
    rows.ok("physical_release", handle)
    rows.ok("address_free", room, page)
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    rows.ok("stream_destroy", 0, stream)


def test_a_page_locked_copy_is_seen_by_both_sides(rows):
    address, array = rows.pinned(1 << 16)
    device = rows.kept("memory_alloc", 0, 1 << 16)
    array[:] = np.arange(1 << 16, dtype=np.uint8)
    rows.ok("copy", 0, 0, device, address, 1 << 16)
    rows.ok("stream_synchronize", 0, 0)
    assert (rows.read(device, 1 << 16) == array).all()
    ctypes.memset(address, 0, 1 << 16)
    rows.ok("copy", 0, 0, address, device, 1 << 16)
    rows.ok("stream_synchronize", 0, 0)
    assert (array == np.arange(1 << 16, dtype=np.uint8)).all()
    rows.ok("host_free", 0, address)
