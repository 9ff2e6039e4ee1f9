"""The rows for batches of copies, for access to mapped memory, and for what an address is."""

import ctypes

import numpy as np
import pytest
from beside import on_a_thread
from capturing import captured, instantiated, run

INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE = 1, 101, 400
NOT_SUPPORTED = 801
CLOSED, READ, WRITTEN = 0, 1, 3
NONE, HOST, DEVICE = 0, 1, 2
IN_ORDER, DURING_CALL, AT_ANY_TIME = 1, 2, 3  # CUmemcpySrcAccessOrder
PIECE, COUNT = 512, 64
SIZE = 1 << 16


def addresses(values):
    return np.asarray(values, np.uint64)


class CopyRun(ctypes.Structure):
    """CopyRun of accelrt/driver/memory.pxd."""

    _fields_ = (
        ("first", ctypes.c_size_t),
        ("dst_location", ctypes.c_uint64),
        ("src_location", ctypes.c_uint64),
        ("flags", ctypes.c_uint),
        ("order", ctypes.c_int),
    )


def runs_of(*runs):
    """The rows' array of how copies are made, each (first, two locations, flags, order)."""
    return (CopyRun * len(runs))(*[CopyRun(*run) for run in runs])


def batch(rows, stream, dsts, srcs, sizes, locations=(0, 0), flags=0, order=IN_ORDER, runs=None):
    """What the row answers: its status and how many copies were put in."""
    arrays = [addresses(values) for values in (dsts, srcs, sizes)]
    pointers = [array.ctypes.data for array in arrays]
    runs = runs_of(*(((0, *locations, flags, order),) if runs is None else runs))
    return rows.copy_batch(0, stream, *pointers, len(arrays[0]), ctypes.addressof(runs), len(runs))


def batch_3d(rows, stream, copies, count, *runs):
    """The same of PitchedCopy, in the stream's order unless runs say other."""
    runs = runs_of(*(runs or ((0, 0, 0, 0, IN_ORDER),)))
    return rows.copy_batch_3d(0, stream, ctypes.addressof(copies), count, ctypes.addressof(runs), len(runs))


def pitched(*copies):
    """PitchedCopy of dst, its pitch and lines, src, its pitch and lines, and width, height and depth."""
    return (ctypes.c_size_t * (9 * len(copies)))(*(number for copy in copies for number in copy))


def turned(device, pinned):
    """Pieces of page-locked memory that go to the device in reverse: dsts, srcs, sizes."""
    places = np.arange(COUNT, dtype=np.uint64) * PIECE
    return device + places[::-1], pinned + places, np.full(COUNT, PIECE)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "how", [{}, {"flags": 1}, {"order": AT_ANY_TIME}], ids=["plain", "flags", "any time"]
)
def test_a_batch_copies_each_piece(rows, device, pinned, stream, legacy, how):
    address, bytes_ = pinned
    on = 0 if legacy else stream
    assert batch(rows, on, *turned(device, address), **how) == (0, COUNT)
    rows.ok("stream_synchronize", 0, on)
    expected = bytes_[: COUNT * PIECE].reshape(COUNT, PIECE)[::-1].ravel()
    assert (rows.read(device, COUNT * PIECE) == expected).all()


def test_hints_of_location_change_nothing_for_memory_that_has_a_place(rows, device, pinned, stream):
    address, bytes_ = pinned
    hints = (1 << 32, 2 << 32)
    assert batch(rows, stream, [device], [address], [SIZE], hints) == (0, 1)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, SIZE) == bytes_).all()


def test_a_batch_runs_in_its_streams_order(rows, device, pinned, stream):
    address, bytes_ = pinned
    gate = rows.gate(stream)
    rows.ok("fill", 0, stream, device, 7, 1, PIECE)
    assert batch(rows, stream, [device + PIECE, address], [device, device], [PIECE, PIECE])[0] == 0
    before = bytes_[:PIECE].copy()
    assert (bytes_[:PIECE] == before).all()
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert (bytes_[:PIECE] == 7).all()
    assert (rows.read(device + PIECE, PIECE) == 7).all()


def test_a_captured_batch_has_a_node_for_each_copy_and_reads_anew(rows, device, pinned, stream):
    address, bytes_ = pinned
    graph = captured(rows, stream, lambda: batch(rows, stream, *turned(device, address)))
    assert rows.ok("graph_node_count", graph) == COUNT
    exec_ = instantiated(rows, graph)
    for value in (3, 4):
        bytes_[:] = value
        run(rows, exec_, stream)
        assert (rows.read(device, COUNT * PIECE) == value).all()


def test_a_captured_batch_of_rows_has_a_node_for_each_copy(rows, device, stream):
    copies = pitched(*[(device + 8192 * n, 64, 16, device + 4096, 128, 16, 32, 8, 1) for n in range(1, 4)])
    graph = captured(
        rows,
        stream,
        lambda: batch_3d(rows, stream, copies, 3) == (0, 3),
    )
    assert rows.ok("graph_node_count", graph) == 3
    rows.ok("graph_destroy", graph)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_batch_of_rows_and_slices_copies_each(rows, device, pinned, stream, legacy):
    address, bytes_ = pinned
    on = 0 if legacy else stream
    rows.ok("fill", 0, on, device, 0, 1, SIZE)
    copies = pitched(
        (device, 16, 4, address, 32, 5, 8, 4, 3), (device + 4096, 100, 1, address + 512, 64, 1, 60, 9, 1)
    )
    assert batch_3d(rows, on, copies, 2) == (0, 2)
    rows.ok("stream_synchronize", 0, on)
    expected = np.zeros(SIZE, np.uint8)
    view = np.lib.stride_tricks.as_strided
    view(expected, (3, 4, 8), (64, 16, 1))[:] = view(bytes_, (3, 4, 8), (160, 32, 1))
    view(expected[4096:], (9, 60), (100, 1))[:] = view(bytes_[512:], (9, 60), (64, 1))
    assert (rows.read(device, SIZE) == expected).all()


def takes_sources_at_once(code):
    """Whether the driver reads sources during the call; what it answered says so."""
    if code == NOT_SUPPORTED:
        pytest.skip("the driver reads sources in the stream's order alone")
    assert code == 0


def test_sources_that_are_read_during_the_call_may_change_after_it(rows, device, pinned, stream):
    address, bytes_ = pinned
    ordinary = np.arange(2048, dtype=np.uint16).view(np.uint8)
    rows.ok("fill", 0, stream, device, 0, 1, SIZE + ordinary.size)
    gate = rows.gate(stream)
    before = bytes_.copy()
    code, done = batch(rows, stream, *turned(device, address), order=DURING_CALL)
    if code:
        gate.set()
    takes_sources_at_once(code)
    assert done == COUNT
    bytes_[:] = 7
    takes_sources_at_once(
        batch(rows, stream, [device + SIZE], [ordinary.ctypes.data], [ordinary.size], order=DURING_CALL)[0]
    )
    ordinary[:] = 7
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    expected = before[: COUNT * PIECE].reshape(COUNT, PIECE)[::-1].ravel()
    assert (rows.read(device, COUNT * PIECE) == expected).all()
    assert (rows.read(device + SIZE, ordinary.size).view(np.uint16) == np.arange(2048)).all()


def test_rows_and_slices_that_are_read_during_the_call_may_change_after_it(rows, device, pinned, stream):
    address, bytes_ = pinned
    before = bytes_.copy()
    copies = pitched((device, 60, 1, address + 512, 64, 1, 60, 9, 1))
    gate = rows.gate(stream)
    code, done = batch_3d(rows, stream, copies, 1, (0, 0, 0, 0, DURING_CALL))
    bytes_[:] = 7
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    takes_sources_at_once(code)
    assert done == 1
    expected = np.lib.stride_tricks.as_strided(before[512:], (9, 60), (64, 1)).ravel()
    assert (rows.read(device, 540) == expected).all()


def test_no_capture_and_no_legacy_stream_reads_sources_during_the_call(rows, device, pinned, stream):
    copies = pitched((device, 64, 16, pinned[0], 128, 16, 32, 8, 1))

    def refused(on):
        assert batch(rows, on, [device], [pinned[0]], [PIECE], order=DURING_CALL) == (NOT_SUPPORTED, 0)
        refusal = batch_3d(rows, on, copies, 1, (0, 0, 0, 0, DURING_CALL))
        assert refusal == (NOT_SUPPORTED, 0)

    refused(0)
    graph = captured(rows, stream, lambda: refused(stream))
    assert rows.ok("graph_node_count", graph) == 0
    rows.ok("graph_destroy", graph)


@pytest.mark.parametrize("order", [0, 4])
def test_an_order_that_is_none_is_refused(rows, device, pinned, stream, order):
    assert batch(rows, stream, [device], [pinned[0]], [PIECE], order=order)[0] == INVALID_VALUE


@pytest.mark.parametrize("legacy", [False, True])
def test_runs_of_copies_have_hints_of_their_own(rows, device, pinned, stream, legacy):
    address, bytes_ = pinned
    on = 0 if legacy else stream
    runs = [(0, 0, 0, 0, IN_ORDER), (5, 1 << 32, 2 << 32, 1, AT_ANY_TIME), (5, 0, 2 << 32, 0, IN_ORDER)]
    runs += [(first, 0, 0, first % 2, AT_ANY_TIME) for first in range(6, COUNT)]
    assert batch(rows, on, *turned(device, address), runs=runs) == (0, COUNT)
    rows.ok("stream_synchronize", 0, on)
    expected = bytes_[: COUNT * PIECE].reshape(COUNT, PIECE)[::-1].ravel()
    assert (rows.read(device, COUNT * PIECE) == expected).all()


def test_the_sources_of_some_runs_are_read_during_the_call(rows, device, pinned, stream):
    address, bytes_ = pinned
    ordinary = np.arange(PIECE, dtype=np.uint16).view(np.uint8)[:PIECE]
    expected = ordinary.copy()
    rows.ok("fill", 0, stream, device, 0, 1, 4 * PIECE)
    gate = rows.gate(stream)
    sources = [address, ordinary.ctypes.data, address + PIECE]
    runs = [(0, 0, 0, 0, IN_ORDER), (1, 0, 0, 0, DURING_CALL), (2, 0, 0, 0, IN_ORDER)]
    targets = [device, device + PIECE, device + 2 * PIECE]
    code, _ = batch(rows, stream, targets, sources, [PIECE] * 3, runs=runs)
    ordinary[:] = 7
    bytes_[:] = 8
    gate.set()
    takes_sources_at_once(code)
    rows.ok("stream_synchronize", 0, stream)
    read = rows.read(device, 3 * PIECE)
    assert (read[PIECE : 2 * PIECE] == expected).all()
    assert (read[:PIECE] == 8).all()
    assert (read[2 * PIECE :] == 8).all()


def test_rows_and_slices_have_runs_too(rows, device, pinned, stream):
    address, bytes_ = pinned
    before = bytes_.copy()
    copies = pitched(*[(device + n * 4096, 64, 1, address + n * 4096, 64, 1, 64, 2, 1) for n in range(3)])
    runs = [(0, 0, 0, 0, IN_ORDER), (1, 1 << 32, 0, 0, AT_ANY_TIME), (2, 0, 2 << 32, 1, IN_ORDER)]
    assert batch_3d(rows, stream, copies, 3, *runs) == (0, 3)
    rows.ok("stream_synchronize", 0, stream)
    for n in range(3):
        assert (rows.read(device + n * 4096, 128) == before[n * 4096 :][:128]).all()


def test_runs_that_are_none_are_refused(rows, device, pinned, stream):
    places = [device], [pinned[0]], [PIECE]
    for runs in ([], [(1, 0, 0, 0, IN_ORDER)], [(0, 0, 0, 0, IN_ORDER), (0, 0, 0, 0, 4)]):
        assert batch(rows, stream, *places, runs=runs) == (INVALID_VALUE, 0)


def test_a_batch_of_nothing_is_none(rows, device, stream):
    assert batch(rows, stream, [], [], [])[0] == 0


def test_what_is_no_memory_is_refused_before_anything_is_put_in(rows, on_host, device, pinned, stream):
    address, _ = pinned
    ordinary = np.zeros(PIECE, np.uint8)
    before = rows.read(device, PIECE)
    for wrong in (ordinary.ctypes.data, 0, device + (1 << 20) - 1):
        assert batch(rows, stream, [device, wrong], [address, device], [PIECE, PIECE]) == (INVALID_VALUE, 0)
    assert batch(rows, stream, [device, device], [address, address], [PIECE, 0]) == (INVALID_VALUE, 0)
    assert (rows.read(device, PIECE) == before).all()


def test_a_stream_and_a_device_that_are_none_are_refused(rows, on_host, device, pinned, stream):
    assert batch(rows, 0xDEAD0, [device], [pinned[0]], [PIECE]) == (INVALID_HANDLE, 0)
    assert rows.copy_batch(64, stream, 0, 0, 0, 0, 0, 0)[0] == INVALID_DEVICE


def test_a_thread_without_a_context_puts_a_batch_in(rows, device, pinned, stream):
    address, _ = pinned
    assert on_a_thread(lambda: batch(rows, stream, *turned(device, address))) == (0, COUNT)
    rows.ok("stream_synchronize", 0, stream)


# --- access to mapped memory ---------------------------------------------


@pytest.fixture
def mapped(rows):
    """A page, mapped and open; its address and size."""
    size = rows.ok("granularity", 0)
    address = rows.kept("address_reserve", size, 0)
    handle = rows.ok("physical_create", 0, size, False)
    rows.ok("memory_map", address, size, handle)
    rows.ok("physical_release", handle)
    rows.ok("memory_access", address, size, 0, WRITTEN)
    yield address, size
    rows.ok("memory_unmap", address, size)


def test_memory_is_protected_and_opened_again(rows, mapped, stream):
    address, size = mapped
    rows.ok("fill", 0, stream, address, 5, 1, 4096)
    rows.ok("stream_synchronize", 0, stream)
    assert rows.memory_access(address, size, 0, READ) in (0, NOT_SUPPORTED)  # as the device has it
    assert (rows.read(address, 4096) == 5).all()
    rows.ok("memory_access", address, size, 0, WRITTEN)
    rows.ok("fill", 0, stream, address, 6, 1, 4096)
    rows.ok("stream_synchronize", 0, stream)
    rows.ok("memory_access", address, size, 0, CLOSED)
    rows.ok("memory_access", address, size, 0, WRITTEN)
    assert (rows.read(address, 4096) == 6).all()


def test_what_is_read_only_is_not_written(rows, on_host, mapped, device, stream):
    address, size = mapped
    rows.ok("memory_access", address, size, 0, READ)
    assert rows.fill(0, stream, address, 1, 1, 64) == INVALID_VALUE
    assert rows.copy_async(0, stream, address, device, 64) == INVALID_VALUE
    rows.ok("copy_async", 0, stream, device, address, 64)
    rows.ok("stream_synchronize", 0, stream)
    rows.ok("memory_access", address, size, 0, CLOSED)
    assert rows.copy_async(0, stream, device, address, 64) == INVALID_VALUE


def test_a_part_of_a_page_an_access_and_a_device_that_are_none_are_refused(rows, on_host, mapped):
    address, size = mapped
    assert rows.memory_access(address, size, 0, 2) == INVALID_VALUE
    assert rows.memory_access(address, size // 2, 0, READ) == INVALID_VALUE
    assert rows.memory_access(address, size, 64, READ) == INVALID_DEVICE


# --- what an address is ---------------------------------------------


def test_an_address_is_told_with_its_range(rows, device, pinned, mapped):
    address, _ = mapped
    assert rows.ok("pointer_range", device + 100)[:3] == (DEVICE, 0, device)
    assert rows.ok("pointer_range", device + 100)[3] >= 1 << 20
    assert rows.ok("pointer_range", pinned[0] + 100)[:2] == (HOST, -1)
    kind, on, start, length = rows.ok("pointer_range", address + 100)
    assert (kind, on) == (DEVICE, 0)
    assert start <= address + 100 < start + length
    ordinary = np.zeros(64, np.uint8)
    assert rows.ok("pointer_range", ordinary.ctypes.data) == (NONE, -1, 0, 0)


def test_who_may_use_the_drivers_own_pool(rows):
    code, own = rows.default_pool(0, DEVICE)
    if code == NOT_SUPPORTED:
        pytest.skip("the device has no such pool")
    assert rows.ok("pool_access_get", own, 0) == WRITTEN
    assert rows.pool_access_get(own, 64)[0] == rows.pool_access_set(own, 64, READ) == INVALID_DEVICE
    for peer in range(1, rows.ok("device_count")):
        if rows.ok("can_access_peer", peer, 0):
            for wanted in (WRITTEN, CLOSED):
                rows.ok("pool_access_set", own, peer, wanted)
                assert rows.ok("pool_access_get", own, peer) == wanted
