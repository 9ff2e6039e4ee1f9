"""Rows of the driver's stream-ordered pools: a device's own, and those that leave the process."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from test_managed_rows import bytes_at
from test_process_rows import OPENED, child

MIB = 1 << 20
INTERNAL_DEPENDENCIES, THRESHOLD, RESERVED, USED, MOST_USED = 3, 4, 5, 7, 8  # CUmemPool_attribute
INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, NOT_SUPPORTED, UNSUPPORTED = 1, 2, 101, 801, 900
CLOSED, READ, WRITTEN = 0, 1, 3
HOST, NODE, CURRENT_NODE = 2, 3, 4  # CUmemLocationType
HOST_NUMA_ID = 134
PINNED_KIND, DEVICE_KIND = 1, 2  # pointer_range

OTHER_PROCESS = """
pool = must(rows.pool_import(0, int(sys.argv[2])))
assert rows.pool_export(pool)[0] == 1  # what is another process's is not handed on
assert rows.pool_alloc(0, 0, pool, 4096)[0] != 0
memory = must(rows.pool_pointer_import(0, pool, bytes.fromhex(sys.argv[3])))
seen = np.zeros(4096, np.uint8)
must(rows.copy(0, 0, seen.ctypes.data, memory, seen.nbytes))
must(rows.fill(0, 0, memory, 8, 1, seen.nbytes))
must(rows.device_synchronize(0))
if sys.argv[1] == "host":
    assert rows.pool_pointer_export(0, memory)[0] == 1
must(rows.async_free(0, 0, memory))
must(rows.device_synchronize(0))
must(rows.pool_destroy(pool))
print(set(seen.tolist()))
"""

KILLED = """
import os, signal
pool = must(rows.pool_create(0, 1 << 26, True))
memory = must(rows.pool_alloc(0, 0, pool, 4096))
must(rows.fill(0, 0, memory, 9, 1, 4096))
must(rows.device_synchronize(0))
file = must(rows.pool_export(pool))
os.set_inheritable(file, True)
pointer = must(rows.pool_pointer_export(0, memory))
os.write(1, pointer)
import socket
with socket.socket(fileno=int(sys.argv[2])) as connection:
    socket.send_fds(connection, [b"x"], [file])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def pool(rows):
    """A pool that the test makes."""
    code, made = rows.pool_create(0, 64 * MIB, True)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver makes no pools that leave the process")
    assert code == 0
    yield made
    rows.ok("device_synchronize", 0)
    rows.ok("pool_destroy", made)


@pytest.fixture
def own(rows):
    """The device's own pool."""
    code, pool = rows.default_pool(0, DEVICE_KIND)
    if code == NOT_SUPPORTED:
        pytest.skip("the device has no such pool")
    assert code == 0
    return pool


def allocated(rows, pool, size=MIB):
    return rows.ok("pool_alloc", 0, 0, pool, size)


def freed(rows, *addresses):
    for address in addresses:
        rows.ok("async_free", 0, 0, address)
    rows.ok("device_synchronize", 0)


def test_a_device_has_a_pool_of_its_memory(rows, own, stream):
    address = rows.ok("async_alloc", 0, stream, MIB)
    assert rows.ok("pool_get", own, USED) >= MIB
    assert rows.ok("pointer_range", address)[:2] == (2, 0)
    rows.ok("fill", 0, stream, address, 5, 1, MIB)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(address, MIB) == 5).all()
    rows.ok("async_free", 0, stream, address)
    rows.ok("stream_synchronize", 0, stream)
    rows.ok("pool_set", own, THRESHOLD, rows.ok("pool_get", own, THRESHOLD))
    rows.ok("pool_trim", own, 0, 0, 0)
    assert rows.ok("pool_get", own, RESERVED) >= rows.ok("pool_get", own, USED)


def test_memory_that_was_freed_serves_its_stream_at_once_and_another_one_when_it_is_past(
    rows, on_host, own, stream, other
):
    rows.ok("pool_set", own, THRESHOLD, 1 << 40)
    address = rows.ok("async_alloc", 0, stream, MIB)
    gate = rows.gate(stream)
    rows.ok("async_free", 0, stream, address)
    second = rows.ok("async_alloc", 0, other, MIB)
    assert second != address
    assert rows.ok("async_alloc", 0, stream, MIB) == address
    rows.ok("async_free", 0, stream, address)
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    third = rows.ok("async_alloc", 0, other, MIB)
    assert third == address
    rows.ok("async_free", 0, other, second)
    rows.ok("memory_free", 0, third)
    rows.alive["memory_alloc"] += 1
    rows.alive["async_alloc"] -= 1
    rows.ok("pool_set", own, THRESHOLD, 0)
    rows.ok("device_synchronize", 0)
    rows.ok("pool_trim", own, 0, 0, 0)
    assert rows.ok("pool_get", own, RESERVED) == rows.ok("pool_get", own, USED) == 0


def test_idle_memory_makes_room_for_what_does_not_fit_it(rows, on_host, own, stream, other):
    room = rows.ok("memory_info", 0)[0]
    large, small = room // 4 * 3 // (2 * MIB) * 2 * MIB, room // 10 * 3 // (2 * MIB) * 2 * MIB
    rows.ok("pool_set", own, THRESHOLD, 1 << 40)
    address = rows.ok("async_alloc", 0, stream, large)
    gate = rows.gate(stream)
    rows.ok("async_free", 0, stream, address)
    assert rows.async_alloc(0, other, small)[0] == OUT_OF_MEMORY
    assert rows.ok("async_alloc", 0, stream, small) == address  # its own stream comes behind the free
    rows.ok("async_free", 0, stream, address)
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    again = rows.ok("async_alloc", 0, other, small)
    assert rows.ok("pool_get", own, RESERVED) == small
    rows.ok("async_free", 0, other, again)
    rows.ok("pool_set", own, THRESHOLD, 0)
    rows.ok("device_synchronize", 0)
    rows.ok("pool_trim", own, 0, 0, 0)


def test_no_capture_takes_memory_of_a_pool(rows, pool, stream, on_host):
    rows.ok("capture_begin", 0, stream, 2)
    assert rows.async_alloc(0, stream, MIB)[0] == UNSUPPORTED
    assert rows.pool_alloc(0, stream, pool, MIB)[0] == UNSUPPORTED
    rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))


def test_a_pool_gives_memory_counts_it_and_keeps_what_is_idle(rows, pool):
    first, second = allocated(rows, pool), allocated(rows, pool, 5000)
    assert first != second
    assert rows.ok("pool_get", pool, USED) >= MIB + 5000
    rows.ok("fill", 0, 0, first, 3, 1, MIB)
    rows.ok("fill", 0, 0, second, 4, 1, 5000)
    assert (rows.read(first, MIB) == 3).all()
    assert (rows.read(second, 5000) == 4).all()
    rows.ok("pool_set", pool, THRESHOLD, 1 << 40)
    freed(rows, first, second)
    assert rows.ok("pool_get", pool, USED) == 0
    assert rows.ok("pool_get", pool, RESERVED) >= MIB
    assert rows.ok("pool_get", pool, MOST_USED) >= MIB + 5000
    rows.ok("pool_trim", pool, 0, 0, 0)
    assert rows.ok("pool_get", pool, RESERVED) <= 1 << 25  # a GPU's driver keeps one piece
    again = allocated(rows, pool)
    freed(rows, again)


def check_limit(rows, pool):
    """The pool counts what it gives, and gives no more than its limit."""
    held, code = [], 0
    while code == 0:
        code, address = rows.pool_alloc(0, 0, pool, 16 * MIB)
        held += [address] if code == 0 else []
        assert len(held) <= 5
    assert code == OUT_OF_MEMORY
    assert rows.ok("pool_get", pool, USED) >= len(held) * 16 * MIB > 0
    freed(rows, *held)
    assert rows.ok("pool_get", pool, USED) == 0
    rows.ok("pool_trim", pool, 0, 0, 0)
    freed(rows, *[rows.ok("pool_alloc", 0, 0, pool, 16 * MIB) for _ in held])


def test_a_pool_counts_its_memory_and_has_no_more_than_its_limit(rows, pool):
    check_limit(rows, pool)


def test_a_limit_is_rounded_up_to_whole_chunks(rows):
    code, pool = rows.pool_create(0, 33 * MIB, True)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver makes no pools")
    held = [rows.ok("pool_alloc", 0, 0, pool, 16 * MIB) for _ in range(4)]
    assert rows.pool_alloc(0, 0, pool, MIB)[0] == OUT_OF_MEMORY
    freed(rows, *held)
    rows.ok("pool_destroy", pool)


def test_other_devices_are_let_into_a_pool(rows, pool):
    assert rows.ok("pool_access_get", pool, 0) == WRITTEN
    assert rows.pool_access_get(pool, 64)[0] == INVALID_DEVICE
    assert rows.pool_access_set(pool, 64, WRITTEN) == INVALID_DEVICE
    if rows.ok("device_count") > 1 and rows.ok("can_access_peer", 0, 1):
        rows.ok("pool_access_set", pool, 1, WRITTEN)
        assert rows.ok("pool_access_get", pool, 1) == WRITTEN


def test_a_pool_that_is_destroyed_lives_until_its_memory_is_freed(rows):
    code, pool = rows.pool_create(0, 0, True)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver makes no pools that leave the process")
    address = allocated(rows, pool)
    rows.ok("pool_destroy", pool)
    rows.ok("fill", 0, 0, address, 6, 1, MIB)
    assert (rows.read(address, MIB) == 6).all()
    freed(rows, address)


def test_what_is_no_pool_is_refused(rows, on_host, pool):
    for row, arguments in (
        ("pool_destroy", ()), ("pool_export", ()), ("pool_trim", (0, 0, 0)), ("pool_get", (USED,)),
        ("pool_set", (THRESHOLD, 0)), ("pool_access_set", (0, WRITTEN)), ("pool_access_get", (0,)),
    ):  # fmt: skip
        answer = getattr(rows, row)(12345, *arguments)
        assert (answer[0] if isinstance(answer, tuple) else answer) == INVALID_VALUE, row
    assert rows.pool_alloc(0, 0, 12345, MIB)[0] == INVALID_VALUE
    assert rows.pool_pointer_import(0, 12345, bytes(64))[0] == INVALID_VALUE
    assert rows.pool_create(0, 1 << 61, True)[0] == INVALID_VALUE
    assert rows.pool_set(pool, RESERVED, 1) == INVALID_VALUE
    assert rows.pool_access_set(pool, 0, READ) == INVALID_VALUE
    assert rows.pool_alloc(0, 0, pool, 0)[0] == INVALID_VALUE
    with open("/dev/null") as file:
        assert rows.pool_import(0, file.fileno())[0] == INVALID_VALUE
    assert rows.pool_import(0, 12345)[0] == INVALID_VALUE
    handle = rows.ok("physical_create", 0, 2 * MIB, True)
    file = rows.ok("physical_export", handle)
    assert rows.pool_import(0, file)[0] == INVALID_VALUE
    os.close(file)
    rows.ok("physical_release", handle)


def test_pointers_are_of_memory_that_is_live_and_of_one_pool(rows, on_host, pool, device):
    other, address = rows.ok("pool_create", 0, 0, True), allocated(rows, pool)
    told = rows.ok("pool_pointer_export", 0, address)
    files = rows.ok("pool_export", pool), rows.ok("pool_export", other)
    mine, wrong = rows.ok("pool_import", 0, files[0]), rows.ok("pool_import", 0, files[1])
    assert rows.pool_pointer_export(0, device)[0] == INVALID_VALUE
    assert rows.pool_pointer_export(0, address + 4096)[0] == INVALID_VALUE
    for target, pointer in ((pool, told), (wrong, told), (mine, bytes(64)), (mine, told[:8] + bytes(56))):
        assert rows.pool_pointer_import(0, target, pointer)[0] == INVALID_VALUE
    for place, number in ((24, 1 << 62), (24, 0), (24, 4097), (32, 1 << 62), (32, 0)):
        forged = told[:place] + number.to_bytes(8, "little") + told[place + 8 :]
        assert rows.pool_pointer_import(0, mine, forged)[0] == INVALID_VALUE
    opened = rows.ok("pool_pointer_import", 0, mine, told)
    rows.ok("fill", 0, 0, address, 7, 1, MIB)
    assert (rows.read(opened, MIB) == 7).all()
    assert rows.pool_pointer_export(0, opened)[0] == INVALID_VALUE
    freed(rows, opened, address)
    assert rows.pool_pointer_export(0, address)[0] == INVALID_VALUE
    for file in files:
        os.close(file)
    for each in (mine, wrong, other):
        rows.ok("pool_destroy", each)


def test_another_process_opens_a_pool_and_its_memory(rows, pool):
    address = allocated(rows, pool)
    rows.ok("fill", 0, 0, address, 7, 1, 4096)
    rows.ok("device_synchronize", 0)
    file, pointer = rows.ok("pool_export", pool), rows.ok("pool_pointer_export", 0, address)
    assert not os.get_inheritable(file)
    assert child(OPENED + OTHER_PROCESS, rows.driver, file, pointer.hex(), keep=(file,)) == "{7}"
    assert (rows.read(address, 4096) == 8).all()
    os.close(file)
    freed(rows, address)


def test_memory_of_a_process_that_was_killed_stays_until_it_is_freed_here(rows, pool):
    here, there = socket.socketpair()
    with here, there:
        other = subprocess.Popen(
            [sys.executable, "-c", OPENED + KILLED, rows.driver, str(there.fileno())],
            stdout=subprocess.PIPE,
            pass_fds=[there.fileno()],
        )
        pointer = other.stdout.read()
        assert other.wait(60) == -signal.SIGKILL
        _, [file], _, _ = socket.recv_fds(here, 1, 1)
    opened = rows.ok("pool_import", 0, file)
    os.close(file)
    code, address = rows.pool_pointer_import(0, opened, pointer)
    if rows.driver == "host":
        assert code == 0
        assert (rows.read(address, 4096) == 9).all()
        rows.ok("fill", 0, 0, address, 1, 1, 4096)
        assert (rows.read(address, 4096) == np.full(4096, 1)).all()
    if code == 0:
        freed(rows, address)
    rows.ok("pool_destroy", opened)


# --- pools of page-locked memory ------------------------------------------------------------------


PINNED_PROCESS = """
import ctypes
pool = must(rows.pool_import(0, int(sys.argv[2])))
memory = must(rows.pool_pointer_import(0, pool, bytes.fromhex(sys.argv[3])))
seen = np.frombuffer((ctypes.c_uint8 * 4096).from_address(memory), np.uint8)
print(set(seen.tolist()))
seen[:] = 8
must(rows.async_free(0, 0, memory))
must(rows.device_synchronize(0))
must(rows.pool_destroy(pool))
"""


def made_pinned(rows, node=None, shared=False, limit=64 * MIB):
    """A pool of page-locked memory that the device uses, at a node, by 0 the one that is nearest to it."""
    if node is not None:
        node = rows.ok("device_attribute", 0, HOST_NUMA_ID)
    kind = HOST if node is None else NODE
    code, pool = rows.pinned_pool_create(kind, node or 0, limit, shared)
    if code == NOT_SUPPORTED or (code and node == -1):
        pytest.skip("the driver makes no pools of page-locked memory")
    assert code == 0
    rows.ok("pool_access_set", pool, 0, WRITTEN)
    return pool


@pytest.fixture(params=[None, 0], ids=["anywhere", "node"])
def pinned_pool(rows, request):
    pool = made_pinned(rows, request.param)
    yield pool
    rows.ok("device_synchronize", 0)
    rows.ok("pool_destroy", pool)


def test_the_host_and_the_device_use_memory_of_a_page_locked_pool(rows, pinned_pool, device, stream):
    address = rows.ok("pool_alloc", 0, stream, pinned_pool, MIB)
    rows.ok("stream_synchronize", 0, stream)
    assert rows.ok("pointer_range", address + 100)[:2] == (PINNED_KIND, -1)
    assert rows.ok("pointer_device", address) == -1
    bytes_at(address, MIB)[:] = 5
    rows.ok("copy_async", 0, stream, device, address, MIB)
    rows.ok("fill", 0, stream, address, 6, 1, MIB)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, MIB) == 5).all()
    assert (bytes_at(address, MIB) == 6).all()
    rows.ok("async_free", 0, stream, address)
    rows.ok("stream_synchronize", 0, stream)


def test_a_page_locked_pool_counts_its_memory_and_has_no_more_than_its_limit(rows, pinned_pool):
    check_limit(rows, pinned_pool)


def test_page_locked_memory_is_freed_by_the_row_of_plain_memory_too(rows, pinned_pool):
    address = rows.ok("pool_alloc", 0, 0, pinned_pool, MIB)
    rows.ok("device_synchronize", 0)
    rows.ok("memory_free", 0, address)
    rows.alive["memory_alloc"] += 1
    rows.alive["async_alloc"] -= 1
    # NVIDIA's driver goes on counting it as used (580.159.04), but gives the memory out again.
    freed(rows, *[rows.ok("pool_alloc", 0, 0, pinned_pool, 16 * MIB) for _ in range(4)])


def test_a_page_locked_pool_is_opened_and_closed_to_devices(rows, pinned_pool):
    for device in range(rows.ok("device_count")):
        for access in (WRITTEN, CLOSED, WRITTEN):
            rows.ok("pool_access_set", pinned_pool, device, access)
            assert rows.ok("pool_access_get", pinned_pool, device) == access


def test_streams_of_every_device_order_a_page_locked_pool(rows, pinned_pool):
    if rows.ok("device_count") < 2:
        pytest.skip("takes two devices")
    rows.ok("pool_set", pinned_pool, THRESHOLD, 1 << 40)
    rows.ok("pool_set", pinned_pool, INTERNAL_DEPENDENCIES, 0)  # else one stream may wait for the other
    rows.ok("pool_access_set", pinned_pool, 1, WRITTEN)
    gate = rows.gate(0)
    first = rows.ok("pool_alloc", 0, 0, pinned_pool, MIB)
    rows.ok("async_free", 0, 0, first)
    second = rows.ok("pool_alloc", 1, 0, pinned_pool, MIB)
    assert second != first  # the other device's default stream has the same number
    rows.ok("fill", 1, 0, second, 3, 1, MIB)
    rows.ok("device_synchronize", 1)
    assert (bytes_at(second, MIB) == 3).all()
    rows.ok("async_free", 1, 0, second)
    rows.ok("device_synchronize", 1)
    gate.set()
    rows.ok("device_synchronize", 0)


def test_the_process_has_one_page_locked_pool_of_its_own(rows):
    code, pool = rows.default_pool(0, PINNED_KIND)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver has no page-locked pool of its own")
    assert code == 0
    assert rows.ok("default_pool", 0, PINNED_KIND) == pool
    rows.ok("pool_access_set", pool, 0, WRITTEN)
    address = rows.ok("pool_alloc", 0, 0, pool, MIB)
    rows.ok("device_synchronize", 0)
    bytes_at(address, MIB)[:] = 1
    if rows.driver == "host":
        assert rows.pool_destroy(pool) == INVALID_VALUE
    freed(rows, address)


def test_another_process_uses_page_locked_memory_of_a_pool(rows):
    pool = made_pinned(rows, 0, shared=True)
    address = rows.ok("pool_alloc", 0, 0, pool, MIB)
    rows.ok("device_synchronize", 0)
    bytes_at(address, 4096)[:] = 7
    file, pointer = rows.ok("pool_export", pool), rows.ok("pool_pointer_export", 0, address)
    assert child(OPENED + PINNED_PROCESS, rows.driver, file, pointer.hex(), keep=(file,)) == "{7}"
    assert (bytes_at(address, 4096) == 8).all()
    os.close(file)
    freed(rows, address)
    rows.ok("pool_destroy", pool)


def test_page_locked_pools_that_are_none_are_refused(rows, on_host):
    for kind, node, shared in ((HOST, 0, True), (CURRENT_NODE, 0, False), (1, 0, False), (NODE, 999, False)):
        assert rows.pinned_pool_create(kind, node, 0, shared)[0] == INVALID_VALUE, kind
    assert rows.pinned_pool_create(NODE, -1, 0, False)[0] == INVALID_VALUE
    pool = made_pinned(rows, 0)
    address = rows.ok("pool_alloc", 0, 0, pool, MIB)
    assert rows.pool_export(pool)[0] == INVALID_VALUE
    assert rows.pool_pointer_export(0, address)[0] == INVALID_VALUE
    assert rows.pool_access_set(pool, 64, WRITTEN) == INVALID_DEVICE
    freed(rows, address)
    rows.ok("pool_destroy", pool)
