"""The row copy_3d: slices of rows, between device memory and page-locked memory."""

import numpy as np
import pytest
from beside import on_a_thread
from capturing import run
from hypothesis import given, settings
from hypothesis import strategies as st

INVALID_VALUE = 1
SIZE = 1 << 16


def slices(bytes_, pitch, lines, width, height, depth):
    """The bytes that such a side of a copy names, as a view of three axes."""
    strides = (pitch * lines, pitch, 1)
    return np.lib.stride_tricks.as_strided(bytes_, (depth, height, width), strides)


def test_rows_go_from_one_pitch_to_another(rows, device, pinned, stream):
    address, bytes_ = pinned

    @settings(max_examples=60, deadline=None)
    @given(*[st.integers(1, 9)] * 3, *[st.integers(0, 5)] * 4)
    def check(width, height, depth, dst_gap, src_gap, dst_more, src_more):
        to = (width + dst_gap, height + dst_more)
        origin = (width + src_gap, height + src_more)
        rows.ok("fill", 0, stream, device, 0, 1, SIZE)
        rows.ok("copy_3d", 0, stream, device, *to, address, *origin, width, height, depth)
        rows.ok("stream_synchronize", 0, stream)
        expected = np.zeros(SIZE, np.uint8)
        size = (width, height, depth)
        slices(expected, *to, *size)[:] = slices(bytes_, *origin, *size)
        assert (rows.read(device, SIZE) == expected).all()

    check()


def test_rows_come_back_to_page_locked_memory_and_go_within_a_device(rows, device, pinned):
    address, bytes_ = pinned
    expected = bytes_.copy()
    rows.ok("copy", 0, 0, device, address, SIZE)
    rows.ok("copy_3d", 0, 0, device + 4096, 16, 1, device, 32, 1, 8, 20, 1)
    rows.ok("copy_3d", 0, 0, address, 64, 4, device + 4096, 16, 5, 8, 4, 4)
    rows.ok("stream_synchronize", 0, 0)
    moved = np.zeros((4, 5, 8), np.uint8)
    moved.reshape(20, 8)[:] = slices(expected, 32, 1, 8, 20, 1)[0]
    assert (slices(bytes_, 64, 4, 8, 4, 4) == moved[:, :4]).all()


def test_rows_are_copied_in_their_streams_order(rows, device, stream):
    gate = rows.gate(stream)
    rows.ok("fill", 0, stream, device, 5, 1, 4096)
    rows.ok("copy_3d", 0, stream, device + 8192, 64, 1, device, 128, 1, 64, 32, 1)
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device + 8192, 2048) == 5).all()


def test_a_captured_copy_of_rows_is_a_node_that_reads_anew(rows, device, stream):
    rows.ok("capture_begin", 0, stream, 0)
    rows.ok("copy_3d", 0, stream, device + 8192, 64, 1, device, 128, 1, 64, 32, 1)
    graph = rows.ok("capture_end", 0, stream)
    (node,) = [rows.ok("graph_node_count", graph)]
    assert node == 1
    exec_ = rows.kept("graph_instantiate", 0, graph, 0)
    for value in (3, 4):
        rows.ok("fill", 0, stream, device, value, 1, 4096)
        run(rows, exec_, stream)
        assert (rows.read(device + 8192, 2048) == value).all()
    rows.ok("graph_destroy", graph)


def test_copies_of_rows_take_a_thread_without_a_device(rows, device):
    code = on_a_thread(lambda: rows.copy_3d(0, 0, device + 64, 8, 1, device, 8, 1, 8, 4, 1))
    rows.ok("stream_synchronize", 0, 0)
    assert code == 0


def test_copies_of_no_rows_do_nothing(rows, device):
    for size in ((0, 4, 4), (4, 0, 4), (4, 4, 0)):
        rows.ok("copy_3d", 0, 0, device, 8, 8, device + 4096, 8, 8, *size)


@pytest.mark.parametrize(
    ("to", "origin", "size"),
    [
        ((7, 4), (8, 4), (8, 4, 1)),
        ((8, 4), (7, 4), (8, 4, 1)),
        ((8, 3), (8, 4), (8, 4, 2)),
        ((8, 4), (8, 3), (8, 4, 2)),
        ((1 << 32, 4), (8, 4), (8, 4, 1)),
        ((8, 4), (8, 4), (8, 4, 1 << 40)),
    ],
)
def test_rows_that_overlap_or_leave_the_memory_are_refused(rows, device, to, origin, size):
    assert rows.copy_3d(0, 0, device, *to, device + 4096, *origin, *size) == INVALID_VALUE


def test_rows_of_unknown_streams_are_refused(rows, device):
    if rows.driver == "host":  # a GPU's driver may crash on a stale handle
        assert rows.copy_3d(0, 0x300, device, 8, 1, device + 64, 8, 1, 8, 2, 1) == 400
