"""Rows of arrays, textures and surfaces; kernels with them are in tests/compiler/test_texture_kernels.py."""

import ctypes
import struct
import threading
import time

import numpy as np
import pytest
from beside import on_a_thread
from capturing import INVALID_VALUE, RELAXED, captured, instantiated, run

INVALID_HANDLE, NOT_SUPPORTED, OUT_OF_MEMORY = 400, 801, 2
UINT8, INT16, FLOAT = 1, 9, 32
LAYERED, SURFACE, CUBEMAP = 1, 2, 4
COPY_NODE = 1
ROOM = 1 << 16


def address_of(data, keep=[]):  # noqa: B006  what rows read lives as long as the tests
    keep.append(ctypes.create_string_buffer(data, len(data)))
    return ctypes.addressof(keep[-1])


def spec(width, height=0, depth=0, format_=FLOAT, channels=1, flags=0):
    return address_of(struct.pack("=QQQiII4x", width, height, depth, format_, channels, flags))


def in_array(array, x=0, y=0, z=0):
    return (x, y, z, 0, 3, 0, 0, array, 0, 0, 0)


def in_memory(address, pitch, lines):
    return (0, 0, 0, 0, 4, 0, address, 0, 0, pitch, lines)


def box(src, dst, width, height=1, depth=1):
    side = "QQQQi4xQQQQQQ"
    return address_of(struct.pack(f"={side}{side}QQQ", *src, *dst, width, height, depth))


def of_array(array, kind=0):
    return address_of(struct.pack("=i4xQiIQQQ96x", kind, array, 0, 0, 0, 0, 0))


def of_mipmap(mipmap):
    return of_array(mipmap, 1)


def read_spec(rows, array):
    room = ctypes.create_string_buffer(40)
    rows.ok("array_spec", 0, array, ctypes.addressof(room))
    return struct.unpack("=QQQiII4x", room.raw)


def of_linear(address, size):
    return address_of(struct.pack("=i4xQiIQQQ96x", 2, address, FLOAT, 1, size, 0, 0))


def sampling(*modes, filter_mode=0, flags=1):
    return address_of(struct.pack("=3iiIIif2f4f48x", *modes, filter_mode, flags, 0, 0, *[0.0] * 7))


@pytest.fixture
def pinned(rows):
    address, bytes_ = rows.pinned(ROOM)
    bytes_[:] = np.random.default_rng(1).integers(0, 256, ROOM, np.uint8)
    yield address, bytes_
    rows.ok("host_free", 0, address)


@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        ((7, 0, 0), 0),
        ((7, 5, 0), 0),
        ((7, 5, 3), 0),
        ((7, 0, 4), LAYERED),
        ((7, 5, 4), LAYERED),
        ((6, 6, 6), CUBEMAP),
        ((7, 5, 0), SURFACE),
    ],
)
def test_an_array_keeps_what_is_copied_into_it(rows, pinned, device, stream, shape, flags):
    address, bytes_ = pinned
    array = rows.kept("array_create", 0, spec(*shape, flags=flags))
    assert read_spec(rows, array) == (*shape, FLOAT, 1, flags)
    width, height, depth = (4 * shape[0], max(shape[1], 1), max(shape[2], 1))
    size = width * height * depth
    expected = bytes_[:size].copy()
    rows.ok(
        "array_copy", 0, stream, box(in_memory(address, width, height), in_array(array), width, height, depth)
    )
    rows.ok(
        "array_copy", 0, stream, box(in_array(array), in_memory(device, width, height), width, height, depth)
    )
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, size) == expected).all()


def test_boxes_lie_anywhere_and_go_from_array_to_array(rows, pinned, device):
    address, bytes_ = pinned
    here, there = (rows.kept("array_create", 0, spec(16, 8, 4, UINT8)) for _ in range(2))
    image = np.zeros((4, 8, 16), np.uint8)
    for array in (here, there):
        rows.ok("fill", 0, 0, device, 0, 1, image.size)
        rows.ok("array_copy", 0, 0, box(in_memory(device, 16, 8), in_array(array), 16, 8, 4))
    source = bytes_[: 2 * 5 * 64].reshape(2, 5, 64)
    rows.ok("array_copy", 0, 0, box(in_memory(address, 64, 5), in_array(here, 3, 2, 1), 10, 4, 2))
    image[1:3, 2:6, 3:13] = source[:, :4, :10]
    moved = np.zeros_like(image)
    moved[2, 1:4, 5:9] = image[1, 3:6, 4:8]
    rows.ok("array_copy", 0, 0, box(in_array(here, 4, 3, 1), in_array(there, 5, 1, 2), 4, 3, 1))
    for array, expected in ((here, image), (there, moved)):
        rows.ok("array_copy", 0, 0, box(in_array(array), in_memory(device, 16, 8), 16, 8, 4))
        rows.ok("stream_synchronize", 0, 0)
        assert (rows.read(device, image.size) == expected.ravel()).all()


def test_copies_keep_their_streams_order(rows, device, stream):
    array = rows.kept("array_create", 0, spec(256, format_=UINT8))
    gate = rows.gate(stream)
    rows.ok("fill", 0, stream, device, 5, 1, 256)
    rows.ok("array_copy", 0, stream, box(in_memory(device, 256, 1), in_array(array), 256))
    rows.ok("fill", 0, stream, device, 6, 1, 256)
    rows.ok("array_copy", 0, stream, box(in_array(array), in_memory(device + 256, 256, 1), 256))
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 512) == np.repeat([6, 5], 256)).all()


def test_a_captured_copy_is_a_node_that_reads_anew_and_is_not_told_of(rows, device, stream):
    array = rows.kept("array_create", 0, spec(64, 4, format_=UINT8))
    whole = box(in_memory(device, 64, 4), in_array(array), 64, 4)
    graph = captured(rows, stream, lambda: rows.ok("array_copy", 0, stream, whole))
    node = ctypes.c_uint64()
    assert rows.ok("graph_nodes", graph, 1, ctypes.addressof(node)) == 1
    assert rows.ok("graph_node_type", graph, node.value) == COPY_NODE
    room = ctypes.create_string_buffer(1024)
    assert rows.graph_node_params(graph, node.value, ctypes.addressof(room)) == NOT_SUPPORTED
    exec_ = instantiated(rows, graph)
    for value in (3, 4):
        rows.ok("fill", 0, stream, device, value, 1, 256)
        run(rows, exec_, stream)
        rows.ok("array_copy", 0, stream, box(in_array(array), in_memory(device + 4096, 64, 4), 64, 4))
        rows.ok("stream_synchronize", 0, stream)
        assert (rows.read(device + 4096, 256) == value).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 4, "channels": 3},
        {"width": 4, "format_": 5},
        {"width": 4, "height": 0, "depth": 2},
        {"width": 4, "height": 5, "depth": 6, "flags": CUBEMAP},
        {"width": 4, "height": 4, "depth": 5, "flags": CUBEMAP},
        {"width": 1 << 24},
        {"width": 1 << 15, "height": 1 << 15, "depth": 1 << 15},
    ],
)
def test_what_is_no_array_is_refused(rows, wrong):
    assert rows.array_create(0, spec(**wrong)) == (INVALID_VALUE, 0)


def test_boxes_outside_of_an_array_are_refused(rows, device):
    array = rows.kept("array_create", 0, spec(8, 8, 0))
    for corner, size in (((4, 0, 0), (32, 1, 1)), ((0, 4, 0), (4, 5, 1)), ((0, 0, 1), (4, 1, 1))):
        copy = box(in_memory(device, 64, 8), in_array(array, *corner), *size)
        assert rows.array_copy(0, 0, copy) == INVALID_VALUE, (corner, size)
    rows.ok("array_copy", 0, 0, box(in_memory(device, 64, 8), in_array(array), 0, 4, 1))


def test_copies_take_a_thread_without_a_device(rows, device):
    array = rows.kept("array_create", 0, spec(8, 8, 0))
    copy = box(in_memory(device, 32, 8), in_array(array), 32, 8)
    assert on_a_thread(lambda: rows.array_copy(0, 0, copy)) == 0
    rows.ok("stream_synchronize", 0, 0)


def test_textures_and_surfaces_are_made_of_what_fits(rows, device):
    array = rows.kept("array_create", 0, spec(8, 8, flags=SURFACE))
    texture = rows.ok("texture_create", 0, of_array(array), sampling(1, 1, 1, filter_mode=1, flags=0))
    linear = rows.ok("texture_create", 0, of_linear(device, 4096), sampling(1, 1, 1))
    surface = rows.ok("texture_create", 0, of_array(array), 0)
    assert len({texture, linear, surface, 0}) == 4
    for made, is_surface in ((surface, True), (linear, False), (texture, False)):
        rows.ok("texture_destroy", 0, made, is_surface)
    assert rows.texture_create(0, of_linear(device + 4, 4096), sampling(1, 1, 1)) == (INVALID_VALUE, 0)


@pytest.mark.parametrize(
    ("shape", "flags", "lengths"),
    [
        ((9, 0, 0), 0, [(9, 0, 0), (4, 0, 0), (2, 0, 0), (1, 0, 0)]),
        ((8, 3, 0), SURFACE, [(8, 3, 0), (4, 1, 0), (2, 1, 0), (1, 1, 0)]),
        ((2, 5, 4), 0, [(2, 5, 4), (1, 2, 2), (1, 1, 1)]),
        ((4, 4, 3), LAYERED, [(4, 4, 3), (2, 2, 3), (1, 1, 3)]),
        ((2, 2, 6), CUBEMAP, [(2, 2, 6), (1, 1, 6)]),
    ],
)
def test_each_level_of_a_mipmap_is_an_array_of_half_the_length(rows, device, shape, flags, lengths):
    mipmap = rows.kept("mipmap_create", 0, spec(*shape, flags=flags), len(lengths) + 3)
    levels = [rows.ok("mipmap_level", 0, mipmap, level) for level in range(len(lengths))]
    assert [read_spec(rows, array)[:3] for array in levels] == lengths
    assert rows.mipmap_level(0, mipmap, len(lengths)) == (INVALID_VALUE, 0)
    boxes = [(4 * width, max(height, 1), max(depth, 1)) for width, height, depth in lengths]
    rows.ok("fill", 0, 0, device, 0, 1, 4096)
    for value, (array, size) in enumerate(zip(levels, boxes, strict=True), 1):
        rows.ok("fill", 0, 0, device, value, 1, int(np.prod(size)))
        rows.ok("array_copy", 0, 0, box(in_memory(device, *size[:2]), in_array(array), *size))
    for value, (array, size) in enumerate(zip(levels, boxes, strict=True), 1):
        rows.ok("array_copy", 0, 0, box(in_array(array), in_memory(device, *size[:2]), *size))
        rows.ok("stream_synchronize", 0, 0)
        assert (rows.read(device, int(np.prod(size))) == value).all()


def test_a_mipmap_has_as_many_levels_as_it_is_made_with(rows):
    mipmap = rows.kept("mipmap_create", 0, spec(64, 64), 2)
    assert rows.ok("mipmap_level", 0, mipmap, 0) != rows.ok("mipmap_level", 0, mipmap, 1)
    assert rows.mipmap_level(0, mipmap, 2) == (INVALID_VALUE, 0)
    assert rows.mipmap_create(0, spec(0), 1) == (INVALID_VALUE, 0)


def test_a_texture_of_a_mipmap_has_normalized_coordinates(rows):
    mipmap = rows.kept("mipmap_create", 0, spec(8, 8), 4)
    texture = rows.ok("texture_create", 0, of_mipmap(mipmap), sampling(1, 1, 1, flags=3))
    rows.ok("texture_destroy", 0, texture, False)


@pytest.mark.host
def test_the_host_device_takes_no_other_coordinates_of_a_mipmap(rows, on_host):
    mipmap = rows.kept("mipmap_create", 0, spec(8, 8), 4)
    assert rows.texture_create(0, of_mipmap(mipmap), sampling(1, 1, 1, flags=1)) == (INVALID_VALUE, 0)


@pytest.mark.host
def test_the_host_device_tells_mipmaps_from_arrays(rows, on_host):
    free = rows.ok("memory_info", 0)[0]
    mipmap = rows.ok("mipmap_create", 0, spec(256, 256), 2)
    assert rows.ok("memory_info", 0)[0] < free - (256 << 10)
    array, level = rows.ok("array_create", 0, spec(8, 8)), rows.ok("mipmap_level", 0, mipmap, 1)
    assert rows.array_destroy(0, mipmap) == rows.array_destroy(0, level) == INVALID_HANDLE
    assert rows.mipmap_destroy(0, array) == rows.mipmap_destroy(0, level) == INVALID_HANDLE
    assert rows.array_spec(0, mipmap, spec(1)) == INVALID_HANDLE
    assert rows.mipmap_level(0, array, 0) == (INVALID_HANDLE, 0)
    for resource in (of_array(mipmap), of_mipmap(array), of_mipmap(level)):
        assert rows.texture_create(0, resource, sampling(1, 1, 1, flags=3)) == (INVALID_VALUE, 0)
    assert rows.texture_create(0, of_mipmap(mipmap), 0) == (INVALID_VALUE, 0)  # a surface is of one level
    rows.ok("array_destroy", 0, array)
    rows.ok("mipmap_destroy", 0, mipmap)
    assert rows.array_spec(0, level, spec(1)) == INVALID_HANDLE
    assert rows.ok("memory_info", 0)[0] == free


@pytest.mark.host
def test_the_host_device_refuses_what_is_gone_or_does_not_fit(rows, on_host, device):
    array = rows.ok("array_create", 0, spec(8, 8))
    texture = rows.ok("texture_create", 0, of_array(array), sampling(1, 1, 1))
    amid = box(in_memory(device, 64, 8), in_array(array, 2, 0, 0), 4, 1, 1)  # an element, which a GPU takes
    assert rows.array_copy(0, 0, amid) == INVALID_VALUE
    assert rows.texture_create(0, of_array(array), 0) == (INVALID_VALUE, 0)  # not made for surfaces
    assert rows.texture_create(0, of_linear(0x5000, 64), sampling(1, 1, 1)) == (INVALID_VALUE, 0)
    nothing = of_linear(device, 0)  # which a GPU takes
    assert rows.texture_create(0, nothing, sampling(1, 1, 1)) == (INVALID_VALUE, 0)
    assert rows.texture_create(0, of_array(array), sampling(4, 1, 1)) == (INVALID_VALUE, 0)
    rows.ok("texture_destroy", 0, texture, False)
    rows.ok("array_destroy", 0, array)
    assert rows.array_destroy(0, array) == rows.array_spec(0, array, spec(1)) == INVALID_HANDLE
    assert rows.texture_destroy(0, texture, False) == INVALID_VALUE
    assert rows.array_copy(0, 0, box(in_memory(device, 64, 8), in_array(array), 4)) == INVALID_VALUE
    again = rows.ok("texture_create", 0, of_linear(device, 64), sampling(1, 1, 1))
    assert again != texture
    rows.ok("texture_destroy", 0, again, False)


@pytest.mark.host
def test_the_host_device_has_so_many_bytes_less(rows, on_host):
    free, total = rows.ok("memory_info", 0)
    array = rows.ok("array_create", 0, spec(1024, 1024))
    assert rows.ok("memory_info", 0)[0] == free - (4 << 20)
    rows.ok("array_destroy", 0, array)
    # A little more than there is, in three axes.
    depth = total // (4096 * 4096 * 16) + 1
    assert rows.array_create(0, spec(4096, 4096, depth, FLOAT, 4)) == (OUT_OF_MEMORY, 0)
    assert rows.ok("memory_info", 0)[0] == free


def test_arrays_and_textures_come_and_go_beside_a_capture_in_relaxed_mode(rows, device, stream):
    def work():
        before = rows.ok("capture_mode_exchange", RELAXED)
        array = rows.ok("array_create", 0, spec(8, 8))
        texture = rows.ok("texture_create", 0, of_array(array), sampling(1, 1, 1))
        rows.ok("texture_destroy", 0, texture, False)
        rows.ok("array_destroy", 0, array)
        rows.ok("capture_mode_exchange", before)
        rows.ok("fill", 0, stream, device, 1, 1, 64)

    graph = captured(rows, stream, work)
    assert rows.ok("graph_node_count", graph) == 1
    rows.ok("graph_destroy", graph)


@pytest.mark.host
@pytest.mark.frees_under_work
def test_an_array_that_goes_under_work_is_counted(rows, on_host, device, stream):
    from accelrt.driver.host.driver import frees_under_work

    array = rows.ok("array_create", 0, spec(64, format_=UINT8))
    before = frees_under_work()
    gate = rows.gate(stream)
    rows.ok("array_copy", 0, stream, box(in_memory(device, 64, 1), in_array(array), 64))
    goes = threading.Thread(target=rows.ok, args=("array_destroy", 0, array))
    goes.start()  # it counts, and then waits
    while frees_under_work() == before and goes.is_alive():
        time.sleep(1e-3)
    assert frees_under_work() == before + 1
    gate.set()
    goes.join()
    rows.ok("stream_synchronize", 0, stream)
