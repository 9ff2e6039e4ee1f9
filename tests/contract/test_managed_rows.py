"""Rows about managed memory: it is one for the host and all devices, and lies where it was prefetched to."""

import ctypes

import numpy as np
import pytest

KIB, MIB = 1 << 10, 1 << 20
GLOBAL = 1
DEVICE, HOST, NODE = 1, 2, 3  # kinds of location
READ_MOSTLY, UNSET_READ_MOSTLY, PREFERRED, UNSET_PREFERRED, ACCESSED_BY, UNSET_ACCESSED_BY = range(1, 7)
IS_READ_MOSTLY, PREFERRED_DEVICE, USERS, PREFETCHED_DEVICE = range(1, 5)
PREFERRED_KIND, PREFERRED_PLACE, PREFETCHED_KIND, PREFETCHED_PLACE = range(5, 9)
THE_HOST, NOWHERE = -1, -2
INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, NOT_SUPPORTED, UNSUPPORTED = 1, 2, 101, 801, 900
SIZE = 8 * MIB
MANAGED, CONCURRENT = 83, 89  # attributes of a device


class Range(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("place", ctypes.c_int),
    )


def ranges(*parts):
    """What the rows take: the array's address, and how many; the array is kept by the caller."""
    array = (Range * len(parts))(*[Range(*part) for part in parts])
    return array, ctypes.addressof(array), len(parts)


@pytest.fixture(autouse=True)
def concurrent(rows):
    if not all(rows.ok("device_attribute", 0, each) for each in (MANAGED, CONCURRENT)):
        pytest.skip("the device uses no managed memory beside the host")


@pytest.fixture
def managed(rows):
    return rows.kept("managed_alloc", 0, SIZE, GLOBAL)


def bytes_at(address, size):
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def prefetch(rows, stream, *parts):
    array, address, count = ranges(*parts)
    code = rows.managed_prefetch(0, stream, address, count)
    del array
    return code


def discard(rows, stream, *parts, prefetches=False):
    array, address, count = ranges(*parts)
    code = rows.managed_discard(0, stream, address, count, prefetches)
    del array
    return code


def numbers(rows, address, size, attribute, count=1):
    values = (ctypes.c_int * count)()
    rows.ok("managed_attribute", 0, address, size, attribute, ctypes.addressof(values), count)
    return list(values)


def number(rows, address, size, attribute):
    return numbers(rows, address, size, attribute)[0]


def test_the_host_and_the_device_use_it_at_one_address(rows, managed, stream):
    assert rows.ok("pointer_device", managed) == 0
    seen = bytes_at(managed, SIZE)
    seen[:] = 3
    rows.ok("fill", 0, stream, managed, 7, 1, MIB)
    rows.ok("stream_synchronize", 0, stream)
    assert (seen[:MIB] == 7).all()
    assert (seen[MIB:] == 3).all()
    assert (rows.read(managed + MIB - 2, 4) == [7, 7, 3, 3]).all()


def test_it_comes_and_goes(rows):
    address = rows.ok("managed_alloc", 0, SIZE, GLOBAL)
    assert address % 4096 == 0
    rows.ok("memory_free", 0, address)
    assert rows.memory_free(0, address) == INVALID_VALUE
    assert rows.pointer_device(address)[0] == INVALID_VALUE
    assert rows.managed_alloc(0, 0, GLOBAL)[0] == INVALID_VALUE
    assert rows.managed_alloc(0, SIZE, 0)[0] == INVALID_VALUE


def test_contents_stay_wherever_it_goes(rows, managed, stream):
    seen = bytes_at(managed, SIZE)
    wanted = np.arange(SIZE, dtype=np.uint32).view(np.uint8)[:SIZE]
    seen[:] = wanted
    for kind in (DEVICE, HOST, DEVICE):
        assert prefetch(rows, stream, (managed, SIZE, kind, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(managed, SIZE) == wanted).all()
    assert (seen == wanted).all()


def test_prefetches_are_told_by_attributes(rows, managed, stream):
    half = SIZE // 2
    assert number(rows, managed, SIZE, PREFETCHED_DEVICE) == NOWHERE
    assert prefetch(rows, stream, (managed, SIZE, DEVICE, 0)) == 0
    assert number(rows, managed, SIZE, PREFETCHED_DEVICE) == 0
    assert number(rows, managed, SIZE, PREFETCHED_KIND) == DEVICE
    assert prefetch(rows, stream, (managed + half, half, HOST, 0)) == 0
    assert number(rows, managed, half, PREFETCHED_DEVICE) == 0
    assert number(rows, managed + half, half, PREFETCHED_DEVICE) == THE_HOST
    assert number(rows, managed + half, half, PREFETCHED_KIND) == HOST
    assert number(rows, managed, SIZE, PREFETCHED_DEVICE) == NOWHERE
    assert number(rows, managed, SIZE, PREFETCHED_KIND) == 0


def test_a_batch_goes_to_a_place_each(rows, managed, stream):
    part = 2 * MIB
    parts = [(managed + at, part, kind, 0) for at, kind in ((0, DEVICE), (part, HOST), (2 * part, DEVICE))]
    assert prefetch(rows, stream, *parts) == 0
    places = [number(rows, address, size, PREFETCHED_DEVICE) for address, size, _, _ in parts]
    assert places == [0, THE_HOST, 0]
    assert prefetch(rows, stream) == 0  # none at all


def test_one_bad_part_of_a_batch_puts_nothing_into_the_stream(rows, managed, stream, on_host):
    free, _ = rows.ok("memory_info", 0)
    good = managed, SIZE, DEVICE, 0
    assert prefetch(rows, stream, good, (managed, SIZE + MIB, DEVICE, 0)) == INVALID_VALUE
    assert prefetch(rows, stream, good, (managed, SIZE, DEVICE, 77)) == INVALID_DEVICE
    rows.ok("stream_synchronize", 0, stream)
    assert rows.ok("memory_info", 0)[0] == free
    assert number(rows, managed, SIZE, PREFETCHED_DEVICE) == NOWHERE


def test_advice_is_told_by_attributes(rows, managed):
    assert number(rows, managed, SIZE, IS_READ_MOSTLY) == 0
    rows.ok("managed_advise", 0, managed, SIZE, READ_MOSTLY, DEVICE, 0)
    assert number(rows, managed, SIZE, IS_READ_MOSTLY) == 1
    rows.ok("managed_advise", 0, managed, MIB, UNSET_READ_MOSTLY, DEVICE, 0)
    assert number(rows, managed, SIZE, IS_READ_MOSTLY) == 0
    assert number(rows, managed + 2 * MIB, MIB, IS_READ_MOSTLY) == 1

    assert number(rows, managed, SIZE, PREFERRED_DEVICE) == NOWHERE
    rows.ok("managed_advise", 0, managed, SIZE, PREFERRED, HOST, 0)
    assert number(rows, managed, SIZE, PREFERRED_DEVICE) == THE_HOST
    assert number(rows, managed, SIZE, PREFERRED_KIND) == HOST
    rows.ok("managed_advise", 0, managed, SIZE, PREFERRED, DEVICE, 0)
    assert number(rows, managed, SIZE, PREFERRED_DEVICE) == 0
    place = [number(rows, managed, SIZE, attribute) for attribute in (PREFERRED_KIND, PREFERRED_PLACE)]
    assert place == [DEVICE, 0]
    rows.ok("managed_advise", 0, managed, SIZE, UNSET_PREFERRED, DEVICE, 0)
    assert number(rows, managed, SIZE, PREFERRED_DEVICE) == NOWHERE

    assert numbers(rows, managed, SIZE, USERS, 3) == [NOWHERE] * 3
    rows.ok("managed_advise", 0, managed, SIZE, ACCESSED_BY, DEVICE, 0)
    rows.ok("managed_advise", 0, managed, SIZE, ACCESSED_BY, HOST, 0)
    assert sorted(numbers(rows, managed, SIZE, USERS, 3)) == [NOWHERE, THE_HOST, 0]
    rows.ok("managed_advise", 0, managed, SIZE, UNSET_ACCESSED_BY, HOST, 0)
    assert numbers(rows, managed, SIZE, USERS, 2) == [0, NOWHERE]


def test_other_memory_and_other_places_are_refused(rows, managed, device, stream):
    values = (ctypes.c_int * 1)()
    answer = ctypes.addressof(values)
    assert prefetch(rows, stream, (device, MIB, HOST, 0)) == INVALID_VALUE
    assert prefetch(rows, stream, (managed, SIZE, DEVICE, 77)) == INVALID_DEVICE
    assert rows.managed_advise(0, device, MIB, READ_MOSTLY, DEVICE, 0) == INVALID_VALUE
    assert rows.managed_advise(0, managed, SIZE, PREFERRED, DEVICE, 77) == INVALID_DEVICE
    assert rows.managed_advise(0, managed, SIZE, 99, DEVICE, 0) == INVALID_VALUE
    assert rows.managed_attribute(0, device, MIB, IS_READ_MOSTLY, answer, 1) == INVALID_VALUE
    assert rows.managed_attribute(0, managed, SIZE, 99, answer, 1) == INVALID_VALUE


def test_discarded_memory_is_written_and_read_again(rows, managed, stream):
    assert discard(rows, stream, (managed, SIZE, DEVICE, 0)) == 0
    rows.ok("fill", 0, stream, managed, 9, 1, SIZE)
    parts = (managed, MIB, DEVICE, 0), (managed + 4 * MIB, MIB, HOST, 0)
    assert discard(rows, stream, *parts, prefetches=True) == 0
    rows.ok("fill", 0, stream, managed, 5, 1, MIB)
    rows.ok("stream_synchronize", 0, stream)
    seen = bytes_at(managed, SIZE)
    assert (seen[:MIB] == 5).all()
    assert (seen[MIB : 4 * MIB] == 9).all()
    assert (seen[5 * MIB :] == 9).all()
    assert number(rows, managed, MIB, PREFETCHED_DEVICE) == 0
    assert number(rows, managed + 4 * MIB, MIB, PREFETCHED_DEVICE) == THE_HOST


def test_the_legacy_default_stream_takes_no_discard(rows, managed):
    assert discard(rows, 0, (managed, SIZE, DEVICE, 0)) == INVALID_VALUE
    assert prefetch(rows, 0, (managed, SIZE, DEVICE, 0)) == 0
    rows.ok("stream_synchronize", 0, 0)


@pytest.mark.parametrize("move", [prefetch, discard])
def test_a_capture_takes_no_move(rows, managed, stream, move):
    rows.ok("capture_begin", 0, stream, 0)
    assert move(rows, stream, (managed, SIZE, DEVICE, 0)) == UNSUPPORTED
    code, graph = rows.capture_end(0, stream)
    assert code
    assert graph == 0


# What the host device counts, and a GPU does not tell.


def free_bytes(rows):
    return rows.ok("memory_info", 0)[0]


def test_it_takes_the_devices_memory_where_it_was_prefetched(rows, managed, stream, on_host):
    before = free_bytes(rows)
    gate = rows.gate(stream)
    assert prefetch(rows, stream, (managed, SIZE, DEVICE, 0)) == 0
    assert free_bytes(rows) == before  # it goes in the stream's order
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == before - SIZE
    assert prefetch(rows, stream, (managed + MIB, MIB, HOST, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == before - SIZE + MIB
    assert prefetch(rows, stream, (managed, 1, DEVICE, 1)) == 0  # a page goes whole
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == before - SIZE + MIB + 64 * KIB
    assert discard(rows, stream, (managed, SIZE, DEVICE, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == before


def test_there_is_more_of_it_than_the_device_has(rows, stream, on_host):
    free, total = rows.ok("memory_info", 0)
    large = rows.kept("managed_alloc", 0, 2 * total, GLOBAL)
    at_the_end = bytes_at(large + 2 * total - MIB, MIB)
    at_the_end[:] = 11
    assert prefetch(rows, stream, (large, 2 * total, DEVICE, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == 0
    other = rows.ok("memory_alloc", 0, free // 2)  # managed memory makes room for it
    assert free_bytes(rows) == 0
    assert rows.memory_alloc(0, free)[0] == OUT_OF_MEMORY
    rows.ok("memory_free", 0, other)
    assert free_bytes(rows) == free // 2
    assert (at_the_end == 11).all()


def test_what_came_first_leaves_first(rows, stream, on_host):
    free, _ = rows.ok("memory_info", 0)
    first, second = (rows.kept("managed_alloc", 0, SIZE, GLOBAL) for _ in range(2))
    block = rows.kept("memory_alloc", 0, free - SIZE)
    for address in (first, second):
        assert prefetch(rows, stream, (address, SIZE, DEVICE, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == 0
    assert prefetch(rows, stream, (first, SIZE, HOST, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == 0  # it was on the host already
    assert prefetch(rows, stream, (second, SIZE, HOST, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert free_bytes(rows) == SIZE
    assert block


def test_a_free_gives_the_devices_memory_back(rows, stream, on_host):
    before = free_bytes(rows)
    address = rows.ok("managed_alloc", 0, SIZE, GLOBAL)
    assert prefetch(rows, stream, (address, SIZE, DEVICE, 1)) == 0
    rows.ok("memory_free", 0, address)
    assert rows.ok("memory_info", 1)[0] == rows.ok("memory_info", 1)[1]
    assert free_bytes(rows) == before


# --- the driver's pool of it --------------------------------------------------------------------------

THRESHOLD, RESERVED, MOST_RESERVED, USED, MOST_USED = range(4, 9)


@pytest.fixture
def own(rows, stream):
    """The pool, with nothing idle; as it was when the test is over."""
    code, own = rows.default_pool(0, 3)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver has no pool of managed memory")
    assert code == 0
    threshold = rows.ok("pool_get", own, THRESHOLD)
    rows.ok("pool_trim", own, 0, 0, 0)
    yield own
    rows.ok("pool_set", own, THRESHOLD, threshold)
    rows.ok("stream_synchronize", 0, stream)
    rows.ok("pool_trim", own, 0, 0, 0)


@pytest.fixture
def pool(rows, own):
    """Figures of the pool by attribute."""
    return lambda attribute: rows.ok("pool_get", own, attribute)


def test_a_pool_gives_managed_memory_in_a_streams_order(rows, stream, pool):
    before = pool(USED)
    address = rows.ok("managed_pool_alloc", 0, stream, SIZE)
    assert pool(USED) >= before + SIZE
    assert pool(RESERVED) >= pool(USED)
    assert rows.ok("pointer_range", address)[0] == 3  # KIND_MANAGED
    rows.ok("fill", 0, stream, address, 7, 1, SIZE)
    rows.ok("stream_synchronize", 0, stream)
    assert (bytes_at(address, SIZE) == 7).all()
    bytes_at(address, SIZE)[:] = 9
    rows.ok("managed_pool_free", 0, stream, address)
    assert pool(USED) == before
    assert pool(MOST_USED) >= before + SIZE


def test_what_was_freed_serves_its_stream_at_once(rows, stream, own, pool):
    rows.ok("pool_set", own, THRESHOLD, 1 << 40)
    gate = rows.gate(stream)
    first = rows.ok("managed_pool_alloc", 0, stream, SIZE)
    rows.ok("managed_pool_free", 0, stream, first)
    reserved = pool(RESERVED)
    second = rows.ok("managed_pool_alloc", 0, stream, SIZE)
    assert pool(RESERVED) == reserved
    rows.ok("managed_pool_free", 0, stream, second)
    gate.set()


def test_what_is_idle_goes_back_down_to_the_threshold(rows, stream, own, pool):
    start = pool(RESERVED)
    rows.ok("pool_set", own, THRESHOLD, 1 << 40)
    address = rows.ok("managed_pool_alloc", 0, stream, SIZE)
    rows.ok("managed_pool_free", 0, stream, address)
    rows.ok("stream_synchronize", 0, stream)
    assert pool(RESERVED) >= start + SIZE
    before = pool(RESERVED)
    rows.ok("pool_trim", own, 0, 0, 0)
    if rows.driver == "host":
        assert pool(RESERVED) == start
    assert pool(RESERVED) <= before  # NVIDIA's driver may keep a chunk of 32 MiB (580.159.04)
    rows.ok("pool_set", own, MOST_RESERVED, 0)
    assert pool(MOST_RESERVED) == pool(RESERVED)


@pytest.mark.parametrize("place", [(0, 0), (1, 0), (2, 0)], ids=["nowhere", "device", "host"])
def test_a_pool_that_is_made_prefers_a_place(rows, stream, own, place):
    code, pool = rows.managed_pool_create(0, *place)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver makes no pools of managed memory")
    assert (code, pool != own) == (0, True)
    address = rows.ok("pool_alloc", 0, stream, pool, SIZE)
    assert rows.ok("pointer_range", address)[0] == 3  # KIND_MANAGED
    rows.ok("fill", 0, stream, address, 7, 1, SIZE)
    rows.ok("stream_synchronize", 0, stream)
    assert (bytes_at(address, SIZE) == 7).all()
    if rows.driver == "host":
        kind = np.zeros(1, np.int32)
        rows.ok("managed_attribute", 0, address, SIZE, PREFERRED_KIND, kind.ctypes.data, 1)
        assert kind[0] == place[0]
        assert rows.pool_export(pool)[0] == INVALID_VALUE
    rows.ok("async_free", 0, stream, address)
    rows.ok("stream_synchronize", 0, stream)
    assert rows.ok("pool_get", pool, USED) == 0
    rows.ok("pool_destroy", pool)


@pytest.mark.host
def test_no_pool_prefers_what_is_no_place(rows, on_host):
    for place in ((4, 0), (9, 0), (NODE, -1)):
        assert rows.managed_pool_create(0, *place)[0] == INVALID_VALUE
    assert rows.managed_pool_create(0, DEVICE, 9)[0] == INVALID_DEVICE


def test_a_capture_takes_no_memory_of_the_pool_and_goes_on(rows, stream, other, own):
    address = rows.ok("managed_pool_alloc", 0, other, SIZE)
    rows.ok("capture_begin", 0, stream, 2)
    assert rows.managed_pool_alloc(0, stream, SIZE)[0] == UNSUPPORTED
    assert rows.managed_pool_free(0, stream, address) == UNSUPPORTED
    assert rows.ok("stream_is_capturing", 0, stream) == 1
    graph = rows.ok("capture_end", 0, stream)
    rows.ok("graph_destroy", graph)
    rows.ok("managed_pool_free", 0, other, address)
    rows.ok("stream_synchronize", 0, other)


@pytest.mark.host
def test_what_the_pool_does_not_have_is_refused(rows, on_host, stream, own):
    assert rows.managed_pool_alloc(0, stream, 0)[0] == INVALID_VALUE
    assert rows.managed_pool_alloc(0, stream, 1 << 61)[0] == OUT_OF_MEMORY
    assert rows.managed_pool_alloc(0, 12345, SIZE)[0] == 400
    assert rows.managed_pool_free(0, stream, 12345) == INVALID_VALUE
    address = rows.ok("managed_pool_alloc", 0, stream, SIZE)
    assert rows.managed_pool_free(0, 12345, address) == 400
    rows.ok("managed_pool_free", 0, stream, address)
    assert rows.managed_pool_free(0, stream, address) == INVALID_VALUE
    for attribute, value in ((0, 0), (9, 0), (RESERVED, 0), (USED, 0), (MOST_USED, 1)):
        assert rows.pool_set(own, attribute, value) == INVALID_VALUE
    assert rows.pool_get(own, 9)[0] == INVALID_VALUE


@pytest.mark.host
def test_memory_free_takes_memory_of_the_pool_too(rows, on_host, stream, pool):
    before = pool(RESERVED), pool(USED)
    address = rows.ok("managed_pool_alloc", 0, stream, SIZE)
    assert rows.raw.memory_free(0, address) == 0
    rows.alive["managed_pool_alloc"] -= 1
    assert (pool(RESERVED), pool(USED)) == before
