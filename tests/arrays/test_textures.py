"""CUDA arrays, textures and surfaces as objects: arguments, copies, figures, ends.

Kernels that read them are in tests/compiler/test_texture_kernels.py.
"""

import gc
import os
import struct
import threading

import numpy as np
import pytest
from child import in_own_process, run_python
from device_arrays import read, to_device

import accelrt
from accelrt.arrays import texture_memory, textures
from accelrt.testing import Gate, live_objects

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
SHAPES = [
    ((13,), {}),
    ((5, 7), {}),
    ((3, 5, 7), {}),
    ((3, 7), {"layered": True}),
    ((3, 5, 7), {"layered": True}),
]
SHAPES += [
    ((6, 4, 4), {"cubemap": True}),
    ((12, 4, 4), {"cubemap": True, "layered": True}),
    ((5, 7), {"surface": True}),
]


def numbers(shape, dtype="float32"):
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


# --- copies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "kinds"), SHAPES)
@pytest.mark.parametrize("place", ["ordinary", "pinned", "device"])
def test_elements_come_back_from_where_they_were_put(shape, kinds, place):
    values = numbers(shape)
    with accelrt.CUDAArray(shape, "float32", **kinds) as array:
        assert (array.shape, array.dtype, array.channels) == (shape, np.float32, 1)
        assert array.nbytes == values.nbytes
        make = {"ordinary": np.array, "pinned": accelrt.asarray, "device": to_device}[place]
        if place == "pinned":
            source = accelrt.empty(shape, "float32", pin_memory=True)
            source.copy_(values)
            back = accelrt.empty(shape, "float32", pin_memory=True)
        else:
            source, back = make(values), make(np.zeros_like(values))
        array.copy_from(source)
        array.copy_to(back)
        accelrt.synchronize()
        assert (np.asarray(back.numpy() if hasattr(back, "numpy") else back) == values).all()


@pytest.mark.parametrize("dtype", texture_memory.FORMATS)
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_elements_have_one_two_or_four_values(dtype, channels):
    shape = (4, 6) if channels == 1 else (4, 6, channels)
    values = numbers(shape, dtype)
    array = accelrt.CUDAArray((4, 6), dtype, channels)
    array.copy_from(values)
    back = np.zeros_like(values)
    array.copy_to(back)
    assert (back == values).all()


def test_a_part_goes_anywhere_and_comes_from_anywhere():
    array, image = accelrt.CUDAArray((4, 8, 16), "int16"), np.zeros((4, 8, 16), np.int16)
    array.copy_from(image)
    part = numbers((2, 3, 5), "int16")
    for source in (part, to_device(part)):
        array.copy_from(source, offset=(1, 4, 7))
        image[1:3, 4:7, 7:12] = part
        found = accelrt.empty((3, 8, 6), "int16")
        array.copy_to(found, offset=(1, 0, 6))
        assert (read(found) == image[1:, :, 6:12]).all()
        array.copy_from(np.zeros((4, 8, 16), np.int16))
        image[:] = 0


@pytest.mark.parametrize("index", [np.s_[:, ::2], np.s_[::2], np.s_[::-1], np.s_[:, :5], np.s_[1:4, 2:]])
def test_elements_that_lie_apart_are_put_together(index):
    whole = to_device(numbers((6, 10)))
    part = whole[index]
    array = accelrt.CUDAArray(part.shape, "float32")
    array.copy_from(part)
    back = accelrt.zeros((6, 10), "float32")
    array.copy_to(back[index])
    wanted = np.zeros((6, 10), np.float32)
    wanted[index] = read(whole)[index]
    assert (read(back) == wanted).all()
    turned = accelrt.CUDAArray((10, 6), "float32")
    turned.copy_from(whole.transpose())
    host = np.zeros((10, 6), np.float32)
    turned.copy_to(host)
    assert (host == read(whole).T).all()


def test_copies_keep_the_order_of_their_stream():
    stream, array, x = accelrt.Stream(), accelrt.CUDAArray((64,), "uint8"), accelrt.zeros(64, "uint8")
    accelrt.synchronize()
    with Gate(stream):
        x.fill_(4, stream=stream)
        array.copy_from(x, stream=stream, blocking=False)
        x.fill_(5, stream=stream)
    back = np.zeros(64, np.uint8)
    array.copy_to(back, stream=stream)
    assert (back == 4).all()


@pytest.mark.parametrize("blocking", [False, True])
def test_scattered_elements_of_page_locked_memory_are_copied_in_the_streams_order(blocking):
    stream, array = accelrt.Stream(), accelrt.CUDAArray((8, 16), "float32")
    host, x = accelrt.empty((8, 32), "float32", pin_memory=True), accelrt.full((8, 32), 5, "float32")
    host.numpy()[:] = 1
    accelrt.synchronize()
    gate = Gate(stream)
    host.copy_(x, non_blocking=True, stream=stream)
    if blocking:
        threading.Timer(0.1, gate.open.set).start()
    array.copy_from(host[:, ::2], stream=stream, blocking=blocking)
    x.fill_(9, stream=stream)
    host.copy_(x, non_blocking=True, stream=stream)
    array.copy_to(host[:, ::2], stream=stream, blocking=blocking)
    assert blocking == gate.open.is_set()
    gate.open.set()
    stream.synchronize()
    assert (host.numpy()[:, ::2] == 5).all()
    assert (host.numpy()[:, 1::2] == 9).all()


def test_a_graph_copies_scattered_elements_of_page_locked_memory():
    stream, graph, array = accelrt.Stream(), accelrt.CUDAGraph(), accelrt.CUDAArray((8, 16), "float32")
    host = accelrt.empty((8, 32), "float32", pin_memory=True)
    host.numpy()[:] = 0
    with accelrt.graph(graph, stream=stream):
        array.copy_from(host[:, ::2], blocking=False)
        array.copy_to(host[:, 1::2], blocking=False)
    host.numpy()[:] = np.arange(32)
    graph.replay()
    accelrt.synchronize()
    assert (host.numpy() == np.arange(32) // 2 * 2).all()


@in_own_process(ACCELRT_HOST_DELAY_US="2000")
def test_a_copy_into_scattered_elements_of_a_device_is_complete_where_it_blocks():
    stream, array = accelrt.Stream(), accelrt.CUDAArray((8, 16), "float32")
    x = accelrt.zeros((8, 32), "float32")
    accelrt.synchronize()
    array.copy_to(x[:, ::2], stream=stream)
    assert stream.query()


def test_memory_that_dies_while_a_copy_reads_it_waits_for_the_copy():
    stream, array = accelrt.Stream(), accelrt.CUDAArray((1 << 16,), "uint8")
    x = accelrt.full(1 << 16, 7, "uint8")
    accelrt.synchronize()
    with Gate(stream):
        array.copy_from(x, stream=stream, blocking=False)
        address = x.ptr
        del x
        other = accelrt.full(1 << 16, 9, "uint8")  # of the default stream, which does not wait
        assert other.ptr != address
    back = np.zeros(1 << 16, np.uint8)
    array.copy_to(back, stream=stream)
    assert (back == 7).all()


def test_copies_of_nothing_do_nothing():
    array = accelrt.CUDAArray((4, 4), "float32")
    array.copy_from(np.zeros((0, 4), np.float32))
    array.copy_to(np.zeros((4, 0), np.float32), offset=(0, 4))


def test_bytes_of_all_elements_go_in_and_out():
    for shape, channels in (((16,), 1), ((4, 6), 2), ((2, 3, 4), 4)):
        array = accelrt.CUDAArray(shape, "uint32", channels)
        values = numbers((*shape, channels), "uint32")
        source, back = accelrt.Buffer(array.nbytes), accelrt.PinnedBuffer(array.nbytes + 4)
        accelrt.copy(source, values)
        array.copy_from(source)
        array.copy_to(back)
        assert bytes(back)[: array.nbytes] == values.tobytes()
        with pytest.raises(ValueError, match=f"src has 8 bytes, the elements of the array {array.nbytes}"):
            array.copy_from(accelrt.PinnedBuffer(8))
        with pytest.raises(TypeError, match="dst is of uint8, the array of uint32"):
            array.copy_to(source, offset=(0,) * len(shape))


@pytest.mark.parametrize(
    ("shape", "dtype", "channels"), [((16,), "uint32", 1), ((4, 6), "uint8", 1), ((6,), "uint8", 4)]
)
def test_other_memory_of_bytes_is_taken_for_those_of_the_elements(shape, dtype, channels):
    array = accelrt.CUDAArray(shape, dtype, channels)
    values = numbers((*shape, channels), dtype)
    array.copy_from(np.frombuffer(values.tobytes(), np.uint8))
    on_device, on_host = accelrt.empty(array.nbytes, "uint8"), np.zeros(array.nbytes + 4, np.uint8)
    array.copy_to(on_device)
    array.copy_to(on_host)
    assert on_device.numpy().tobytes() == on_host[: array.nbytes].tobytes() == values.tobytes()
    with pytest.raises(ValueError, match=f"src has 8 bytes, the elements of the array {array.nbytes}"):
        array.copy_from(np.zeros(8, np.uint8))
    same = accelrt.CUDAArray(8, "uint8")  # whose elements are bytes: as many as there are
    with pytest.raises(ValueError, match="does not lie in an array"):
        same.copy_from(np.zeros(9, np.uint8))


@pytest.mark.host
def test_memory_of_a_driver_pool_is_bytes_of_elements():
    array, values = accelrt.CUDAArray(16, "float32"), np.arange(16, dtype=np.float32)
    with accelrt.memory.DriverPool(ipc_enabled=True) as pool, pool.allocate(64) as memory:
        accelrt.copy(memory, values)
        array.copy_from(memory)
    back = np.zeros(16, np.float32)
    array.copy_to(back)
    assert (back == values).all()


# --- mipmaps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kinds", "shapes"),
    [
        ((9,), {}, [(9,), (4,), (2,), (1,)]),
        ((3, 8), {}, [(3, 8), (1, 4), (1, 2), (1, 1)]),
        ((3, 8), {"levels": 2}, [(3, 8), (1, 4)]),
        ((4, 2, 3), {}, [(4, 2, 3), (2, 1, 1), (1, 1, 1)]),
        ((5, 2, 4), {"layered": True}, [(5, 2, 4), (5, 1, 2), (5, 1, 1)]),
        ((12, 2, 2), {"layered": True, "cubemap": True}, [(12, 2, 2), (12, 1, 1)]),
    ],
)
def test_each_level_has_half_the_elements_along_an_axis(shape, kinds, shapes):
    whole = accelrt.MipmappedArray(shape, "int16", 2, **kinds)
    levels = [whole.level(number) for number in range(whole.levels)]
    assert [level.shape for level in levels] == shapes
    assert whole.nbytes == sum(level.nbytes for level in levels)
    values = [numbers((*level.shape, 2), "int16") + number for number, level in enumerate(levels)]
    for level, given in zip(levels, values, strict=True):
        level.copy_from(given)
    for level, given in zip(levels, values, strict=True):
        back = np.zeros_like(given)
        level.copy_to(back)
        assert (back == given).all()
    assert whole.level(-1).shape == shapes[-1]
    assert f"{whole.levels} levels" in repr(whole)


def test_a_level_keeps_the_memory_of_all_and_no_figure_of_its_own():
    whole = accelrt.MipmappedArray((4, 4), "float32")
    level, texture = whole.level(1), accelrt.TextureObject(whole, normalized_coords=True)
    assert accelrt.memory_stats()["cuda_array_bytes"] == 84
    whole.close()
    with pytest.raises(ValueError, match="a MipmappedArray that was closed"):
        whole.level(0)
    texture.close()
    level.copy_from(np.ones((2, 2), np.float32))
    assert accelrt.memory_stats()["cuda_array_bytes"] == 84
    level.close()
    accelrt.synchronize()
    assert accelrt.memory_stats()["cuda_array_bytes"] == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: accelrt.MipmappedArray((4, 4), "float32", levels=4), r"an array of \(4, 4\) has 1 to 3"),
        (lambda: accelrt.MipmappedArray((4, 4), "float32", levels=0), "levels is 0"),
        (lambda: accelrt.MipmappedArray((4, 4), "float32", levels="2"), "str"),
        (lambda: accelrt.MipmappedArray((4, 5, 4), "float32", cubemap=True), "a cubemap has 6 faces"),
        (lambda: accelrt.MipmappedArray((4, 4), "float64"), "elements are of uint8"),
        (lambda: accelrt.MipmappedArray((4, 4), "float32").level(3), "there are 3 levels"),
        (lambda: accelrt.MipmappedArray((4, 4), "float32").level(-4), "there are 3 levels"),
        (
            lambda: accelrt.TextureObject(accelrt.MipmappedArray((4, 4), "float32")),
            "pass normalized_coords=True",
        ),
        (
            lambda: accelrt.TextureObject(accelrt.CUDAArray((4, 4), "float32"), mipmap_filter="linear"),
            "choose between the levels of a MipmappedArray",
        ),
        (
            lambda: accelrt.SurfaceObject(accelrt.MipmappedArray((4, 4), "float32", surface=True)),
            "pass a CUDAArray",
        ),
    ],
)
def test_what_is_no_mipmap_is_refused(make, said):
    with pytest.raises((ValueError, TypeError, IndexError), match=said):
        make()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mipmap_filter": "cubic"}, "it may be nearest, linear"),
        ({"level_bias": float("nan")}, "level_bias is nan"),
        ({"level_bias": "1"}, "level_bias is '1'"),
        ({"level_bias": 1e300}, "level_bias is 1e.300; pass a float"),
        ({"level_bias": 10**400}, "level_bias is 1000"),
        ({"level_clamp": (0, 1e300)}, "pass the least and the most level"),
        ({"level_clamp": 2}, "pass the least and the most level"),
        ({"level_clamp": (2, 1)}, "the least level is from 0 to the most"),
        ({"level_clamp": (-1, 1)}, "the least level is from 0 to the most"),
    ],
)
def test_what_levels_a_texture_does_not_take_is_refused(options, said):
    whole = accelrt.MipmappedArray((4, 4), "float32")
    with pytest.raises(ValueError, match=said):
        accelrt.TextureObject(whole, normalized_coords=True, **options)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((), "float32"), "has 1 to 3 axes"),
        (((4, 4), ">f4"), "in the machine's order of bytes"),
        (((4, 4), "float32", 1.0), "channels is 1.0; an element has 1, 2 or 4"),
        (((2**31 - 1,) * 3, "float32"), "no device has [0-9]+ bytes"),
        (((1, 2, 3, 4), "float32"), "has 1 to 3 axes"),
        (((0, 4), "float32"), "each axis has 1 to 2147483647 elements"),
        (((4, -1), "float32"), "each axis has 1 to 2147483647 elements"),
        (((1 << 40,), "uint8"), "each axis has 1 to 2147483647 elements"),
        (("4", "float32"), "pass an int, or 1 to 3 ints"),
        (((4, 4), "float64"), "elements are of uint8"),
        (((4, 4), "float32", 3), "an element has 1, 2 or 4"),
        (((4, 4), "float32", "2"), "an element has 1, 2 or 4"),
    ],
)
def test_what_is_no_array_is_refused(arguments, said):
    with pytest.raises((ValueError, TypeError), match=said):
        accelrt.CUDAArray(*arguments)


@pytest.mark.parametrize(
    ("shape", "kinds", "said"),
    [
        ((4,), {"layered": True}, "a layered array has 2 to 3 axes"),
        ((4, 4), {"cubemap": True}, "a cubemap has 3 to 3 axes"),
        ((6, 4, 5), {"cubemap": True}, "a cubemap has 6 faces"),
        ((12, 4, 4), {"cubemap": True}, "a cubemap has 6 faces"),
        ((7, 4, 4), {"cubemap": True, "layered": True}, "a cubemap has 6 faces"),
    ],
)
def test_shapes_that_are_not_of_their_kind_are_refused(shape, kinds, said):
    with pytest.raises(ValueError, match=said):
        accelrt.CUDAArray(shape, "float32", **kinds)


def test_what_is_too_large_says_where_the_limits_are():
    with pytest.raises(
        accelrt.CudaError, match=r"array_create.*shape=\(16777216,\).*maximum_texture2d_width"
    ):
        accelrt.CUDAArray(1 << 24, "float32")


@pytest.mark.parametrize(
    ("source", "offset", "said"),
    [
        (np.zeros((4, 5), np.float32), None, "does not lie in an array of"),
        (np.zeros((4, 4), np.float32), (0, 1), "does not lie in an array of"),
        (np.zeros((2, 2), np.float32), (-1, 0), "does not lie in an array of"),
        (np.zeros((2, 2), np.float32), (1,), "pass 2 ints, one for each axis"),
        (np.zeros(4, np.float32), None, "with as many axes"),
        (np.zeros((4, 4), np.float64), None, "is of float64, the array of float32; convert it first"),
        (object(), None, "pass a dtype of plain values"),
    ],
)
def test_copies_that_do_not_fit_are_refused(source, offset, said):
    array = accelrt.CUDAArray((4, 4), "float32")
    for copy in (array.copy_from, array.copy_to):
        with pytest.raises((ValueError, TypeError), match=said):
            copy(source, offset=offset)


def test_a_read_only_array_takes_no_copy():
    array, values = accelrt.CUDAArray((4, 4), "float32"), np.zeros((4, 4), np.float32)
    values.flags.writeable = False
    array.copy_from(values)
    with pytest.raises(ValueError, match="read-only"):
        array.copy_to(values)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address_mode": "repeat"}, "address_mode is 'repeat'; it may be wrap, clamp, mirror, border"),
        ({"address_mode": "wrap"}, "need normalized_coords=True"),
        ({"address_mode": ()}, "one for each of 1 to 3 axes"),
        ({"filter_mode": "cubic"}, "it may be nearest, linear"),
        ({"read_mode": "float"}, "it may be element_type, normalized_float"),
        ({"read_mode": "normalized_float"}, "of integers of 8 and 16 bits; the elements are of float32"),
        ({"border_color": (1, 2)}, "pass a float, or 4 of them"),
        ({"border_color": "black"}, "pass a float, or 4 of them"),
        ({"border_color": 1e300}, "pass a float, or 4 of them"),
        ({"border_color": None}, "pass a float, or 4 of them"),
        ({"address_mode": None}, "one for each of 1 to 3 axes"),
        ({"max_anisotropy": 17}, "from 0 to 16"),
        ({"srgb": True}, "srgb is of elements of uint8"),
        ({"seamless": True}, "seamless is of a cubemap's faces"),
        ({"channels": 2}, "channels is 2, the array has 1"),
    ],
)
def test_what_a_texture_does_not_take_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        accelrt.TextureObject(accelrt.CUDAArray((4, 4), "float32"), **options)


def test_integers_are_filtered_as_fractions_alone():
    array = accelrt.CUDAArray((4, 4), "uint8")
    with pytest.raises(ValueError, match=r"filter_mode is 'linear', but elements are of uint8"):
        accelrt.TextureObject(array, filter_mode="linear")
    accelrt.TextureObject(array, filter_mode="linear", read_mode="normalized_float").close()


def test_memory_that_a_texture_cannot_have_is_refused():
    rows = accelrt.zeros((4, 32), "float32")
    for memory, said in (
        (np.zeros(4, np.float32), "in the host's memory; copy it to a device"),
        (rows[:, 1:], "a texture begins at a multiple of"),
        (rows[:, ::2], "its rows have to be dense"),
        (accelrt.zeros((4, 5), "float32"), "a texture has them at multiples of .*: make longer rows"),
        (accelrt.zeros((2, 4, 32), "float32"), "one or two axes"),
        (accelrt.zeros(0, "float32"), "one or two axes"),
        (accelrt.zeros(8, "float64"), "elements are of uint8"),
        ("text", "in the host's memory"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            accelrt.TextureObject(memory)
    with pytest.raises(ValueError, match="read by its index, unfiltered; copy it to a CUDAArray"):
        accelrt.TextureObject(accelrt.zeros(8, "float32"), filter_mode="linear")
    texture = accelrt.TextureObject(accelrt.zeros((4, 8, 4), "float32"), channels=4)
    assert texture.handle
    assert accelrt.TextureObject(accelrt.Buffer(64)).array.dtype == np.uint8


def test_a_surface_is_of_an_array_that_was_made_for_it():
    with pytest.raises(ValueError, match="make it with surface=True"):
        accelrt.SurfaceObject(accelrt.CUDAArray((4, 4), "float32"))
    with pytest.raises(TypeError, match="pass a CUDAArray"):
        accelrt.SurfaceObject(accelrt.zeros((4, 4)))


# --- ends -------------------------------------------------------------------------------------------------


def test_what_was_closed_says_so():
    array = accelrt.CUDAArray((4, 4), "float32", surface=True)
    texture, surface = accelrt.TextureObject(array), accelrt.SurfaceObject(array)
    assert 0 not in (texture.handle, surface.handle, array.handle)
    for each in (array, texture, surface):
        each.close()
        each.close()
        assert each.handle == 0
        assert repr(each).endswith("device 0, closed>")
    for use in (
        lambda: array.copy_from(np.zeros((4, 4), np.float32)),
        lambda: accelrt.TextureObject(array),
        lambda: accelrt.SurfaceObject(array),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    for again in (array, texture, surface):
        with pytest.raises(TypeError, match="cannot be"):
            again.__reduce__()


def test_an_array_lives_as_long_as_its_textures():
    array = accelrt.CUDAArray((4, 4), "float32")
    texture = accelrt.TextureObject(array)
    array.close()
    del array
    gc.collect()
    assert accelrt.memory_stats()["cuda_array_bytes"] == 64
    texture.close()
    accelrt.synchronize()
    assert accelrt.memory_stats()["cuda_array_bytes"] == 0


def test_figures_count_arrays_until_they_are_gone():
    before = accelrt.memory_stats().get("cuda_array_bytes", 0)
    stream, array = accelrt.Stream(), accelrt.CUDAArray((1024, 1024), "float32")
    assert accelrt.memory_stats()["cuda_array_bytes"] == before + (4 << 20)
    x = accelrt.zeros((1024, 1024), "float32")
    accelrt.synchronize()
    with Gate(stream):
        array.copy_from(x, stream=stream, blocking=False)
        array.close()
        assert accelrt.memory.memory_stat("cuda_array_bytes") == before + (4 << 20)
    accelrt.synchronize()
    accelrt.CUDAArray((4, 4), "float32").close()  # by which what is left over goes
    assert accelrt.memory.memory_stat("cuda_array_bytes") == before


def test_an_array_in_a_cycle_that_is_collected_stays_under_a_copy():
    before = accelrt.memory_stats().get("cuda_array_bytes", 0)
    array, owner = accelrt.CUDAArray((4, 4), "float32"), accelrt.Stream()
    stream = accelrt.Stream.from_any(owner.handle, owner.device_index)  # which the array keeps
    x = accelrt.zeros((4, 4), "float32")
    accelrt.synchronize()
    with Gate(stream):
        array.copy_from(x, stream=stream, blocking=False)
        cycle = [array]  # the collection comes to it behind what the array has
        cycle.append(cycle)
        del array, cycle
        gc.collect()
        assert accelrt.memory_stats()["cuda_array_bytes"] == before + 64
    accelrt.synchronize()
    accelrt.CUDAArray((4, 4), "float32").close()
    assert accelrt.memory_stats()["cuda_array_bytes"] == before


def test_reports_and_snapshots_tell_of_arrays(tmp_path):
    moment = accelrt.memory.mark()
    accelrt.memory.record_history()
    whole = accelrt.MipmappedArray((512, 512), "float32", layered=False)
    accelrt.memory.record_history(None)
    small = accelrt.CUDAArray((6, 8, 8), "uint8", 4, cubemap=True, surface=True)
    sizes = [whole.nbytes, small.nbytes]
    data = accelrt.memory.report_data()
    assert data["cuda_array_bytes"] == sum(sizes)
    listed = data["cuda_arrays"]
    assert [each["nbytes"] for each in listed] == sizes
    assert [each["handle"] for each in listed] == [whole.handle, small.handle]
    assert listed[0]["frames"][0]["name"] == "test_reports_and_snapshots_tell_of_arrays"
    assert (listed[1]["shape"], listed[1]["kinds"], listed[1]["frames"]) == (
        [6, 8, 8],
        ["cubemap", "surface"],
        [],
    )
    text = accelrt.memory.report()
    assert "Largest CUDA arrays, of 2\n  1.33 MiB of (512, 512), 1 x float32, 10 levels: " in text
    assert "\n  1.50 KiB of (6, 8, 8), 4 x uint8, cubemap, surface" in text
    assert "CUDA arrays" in accelrt.memory_summary()
    grown = accelrt.memory.report_data(since=moment)["cuda_array_bytes"]
    assert grown[1] - grown[0] == sum(sizes)
    assert "CUDA arrays" in accelrt.memory.report(since=moment)
    assert accelrt.memory.snapshot()["accelrt"]["cuda_arrays"][0] == listed
    for name in ("arrays.pickle", "arrays.snapshot"):
        accelrt.memory.dump_snapshot(str(tmp_path / name))
        read_back = accelrt.memory.load_snapshot(str(tmp_path / name))
        assert read_back["accelrt"]["cuda_arrays"][0] == listed
    whole.close()
    small.close()
    accelrt.synchronize()
    assert accelrt.memory.report_data()["cuda_arrays"] == []
    assert "CUDA arrays" not in accelrt.memory_summary()
    after = accelrt.memory.snapshot()
    assert "CUDA arrays" in accelrt.memory.compare_snapshots(read_back, after)


def test_the_history_has_arrays_as_they_come_and_go():
    accelrt.Buffer(512).free()
    accelrt.memory.record_history(clear_history=True)
    array = accelrt.CUDAArray((4, 4), "float32")
    handle = array.handle
    array.close()
    del array
    accelrt.synchronize()
    taken = accelrt.memory.snapshot()
    accelrt.memory.record_history(None)
    events = [each for each in taken["accelrt"]["events"][0] if each["action"].startswith("array_")]
    assert [each["action"] for each in events] == ["array_create", "array_destroy"]
    assert all((each["addr"], each["size"]) == (handle, 64) for each in events)
    assert "test_the_history_has_arrays_as_they_come_and_go" in {each["name"] for each in events[0]["frames"]}
    assert not any(each["action"].startswith("array_") for each in taken["device_traces"][0])


LEFT = """
import accelrt
array, whole = accelrt.CUDAArray((64, 64), "float32"), accelrt.MipmappedArray((64, 64), "float32")
whole.close()
import ctypes
ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
"""


@pytest.mark.own_process
def test_arrays_that_are_left_at_the_end_are_told():
    done = run_python("-c", LEFT, ACCELRT_DRIVER="host", ACCELRT_LEAKS="1")
    assert "device 0: 16384 bytes in 1 CUDA array\n" in done.stderr


@pytest.mark.host
def test_a_refusal_tells_of_arrays_and_an_array_takes_what_is_cached():
    total = accelrt.get_device_properties(0).total_memory
    cached = accelrt.Buffer(total * 3 // 4)
    cached.free()
    array = accelrt.CUDAArray((total // 2 >> 14, 4096), "float32")  # more than is left beside the cache
    with pytest.raises(accelrt.OutOfMemoryError, match=r"CUDA arrays have .* beside it") as told:
        accelrt.Buffer(total)
    assert told.value.used_by_others == 0
    with pytest.raises(accelrt.OutOfMemoryError, match="array_create"):
        accelrt.CUDAArray((total // 2 >> 14, 4096), "float32", 4)
    array.close()


@in_own_process(printing="told\n" * 6)
def test_refused_calls_leave_nothing_behind():
    accelrt.testing.use_device("host")
    before, values = live_objects(), np.zeros((4, 4), np.float32)
    for row in ("array_create", "texture_create", "array_copy"):
        with accelrt.testing.failing(rows=[row]), pytest.raises(accelrt.CudaError, match=row):
            array = accelrt.CUDAArray((4, 4), "float32")
            array.copy_from(values)
            accelrt.TextureObject(array)
        print("told")
    for row in ("mipmap_create", "mipmap_level"):
        with accelrt.testing.failing(rows=[row]), pytest.raises(accelrt.CudaError, match=row):
            accelrt.MipmappedArray((4, 4), "float32").level(1)
        print("told")
    array = accelrt.CUDAArray((4, 4), "float32")
    texture = accelrt.TextureObject(array)
    with accelrt.testing.failing(rows=["texture_destroy"]):
        texture.close()
    assert live_objects()["textures"] == before["textures"] + 1
    array.close()
    accelrt.synchronize()  # it is tried again
    gc.collect()
    accelrt.host_empty_cache()
    after = live_objects()
    assert [after[kind] - before[kind] for kind in ("arrays", "textures")] == [0, 0]
    print("told")


def test_arrays_come_and_go_beside_a_capture():
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    x = accelrt.zeros(64)
    accelrt.synchronize()
    with accelrt.graph(graph, stream=stream):
        array = accelrt.CUDAArray((4, 4), "float32")
        texture = accelrt.TextureObject(array)
        del array, texture
        gc.collect()
        x.fill_(1)
    graph.replay()
    accelrt.synchronize()
    assert (read(x) == 1).all()


def test_a_graph_with_copies_of_arrays_says_that_its_memory_cannot_be_named():
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph(keep_graph=True)
    array, x = accelrt.CUDAArray((4, 4), "float32"), accelrt.zeros((4, 4), "float32")
    with accelrt.graph(graph, stream=stream):
        array.copy_from(x, blocking=False)
    with pytest.raises(
        accelrt.NotSupportedError, match="copies from or to a CUDAArray, of which nothing is told"
    ):
        accelrt.GraphParameters(graph, x=x)


@pytest.mark.parametrize("kind", [accelrt.TextureObject, accelrt.SurfaceObject])
def test_an_array_that_is_closed_once_it_was_described_is_not_read(kind, monkeypatch):
    described = textures.resource_of

    def closing(memory):
        resource = described(memory)
        memory.close()
        return resource

    monkeypatch.setattr(textures, "resource_of", closing)
    with pytest.raises(ValueError, match="the array is a CUDAArray that was closed"):
        kind(accelrt.CUDAArray((4, 4), "float32", surface=True))


def test_threads_close_what_others_copy_into():
    stream, x = accelrt.Stream(), accelrt.zeros((64, 64), "float32")
    accelrt.synchronize()
    refused, errors = [], []

    def work(array):
        try:
            for _ in range(50):
                array.copy_from(x, stream=stream, blocking=False)
                accelrt.TextureObject(array).close()
        except ValueError as error:
            refused.append(str(error))
        except Exception as error:
            errors.append(error)

    for _ in range(20):
        array = accelrt.CUDAArray((64, 64), "float32")
        threads = [threading.Thread(target=work, args=(array,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        array.close()
        for thread in threads:
            thread.join()
    stream.synchronize()
    accelrt.synchronize()
    assert not errors
    assert all("closed" in text for text in refused)
    if ON_HOST:
        assert live_objects()["arrays"] == live_objects()["textures"] == 0


@in_own_process(printing="told\n")
def test_a_forked_child_has_none_of_them():
    array = accelrt.CUDAArray((4, 4), "float32")
    texture = accelrt.TextureObject(array)
    child = os.fork()
    if child == 0:
        try:
            array.copy_from(np.zeros((4, 4), np.float32))
        except accelrt.ForkedError:
            texture.close()
            del array, texture
            gc.collect()
            print("told", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    array.copy_from(np.ones((4, 4), np.float32))


# --- others' arrays, and the structs -----------------------------------------------------------------------


def test_an_array_that_another_library_made_is_used_and_left_to_it():
    theirs = accelrt.CUDAArray((3, 4, 5), "uint8", 2, layered=True)
    array = accelrt.CUDAArray.from_handle(theirs.handle, theirs)
    assert (array.shape, array.dtype, array.channels, array.layered) == ((3, 4, 5), np.uint8, 2, True)
    values = numbers((3, 4, 5, 2), "uint8")
    array.copy_from(values)
    array.close()
    back = np.zeros_like(values)
    theirs.copy_to(back)
    assert (back == values).all()
    if ON_HOST:
        with pytest.raises(accelrt.CudaError, match="array_spec"):
            accelrt.CUDAArray.from_handle(12345, None)
    with pytest.raises(TypeError):
        accelrt.CUDAArray.from_handle("handle", None)


def test_the_structs_are_laid_out_as_cudas():
    driver = pytest.importorskip("cuda.bindings.driver")
    import ctypes

    def raw(made, size):
        return ctypes.string_at(made.getPtr(), size)

    spec = driver.CUDA_ARRAY3D_DESCRIPTOR()
    spec.Width, spec.Height, spec.Depth, spec.NumChannels, spec.Flags = 7, 5, 3, 4, 9
    spec.Format = driver.CUarray_format.CU_AD_FORMAT_HALF
    flags = texture_memory.LAYERED | texture_memory.GATHER
    packed = texture_memory.SPEC.pack(7, 5, 3, texture_memory.FORMATS["float16"], 4, flags)
    assert raw(spec, len(packed)) == packed
    linear = driver.CUDA_RESOURCE_DESC()
    linear.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
    rows = linear.res.pitch2D
    rows.devPtr, rows.numChannels, rows.width, rows.height, rows.pitchInBytes = (
        driver.CUdeviceptr(512),
        2,
        6,
        4,
        96,
    )
    rows.format = driver.CUarray_format.CU_AD_FORMAT_SIGNED_INT16
    packed = textures.RESOURCE.pack(textures.OF_ROWS, 512, textures.FORMATS["int16"], 2, 6, 4, 96)
    assert raw(linear, len(packed)) == packed
    mipmap = driver.CUDA_RESOURCE_DESC()
    mipmap.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    mipmap.res.mipmap.hMipmappedArray = driver.CUmipmappedArray(4096)
    packed = textures.RESOURCE.pack(textures.OF_MIPMAP, 4096, 0, 0, 0, 0, 0)
    assert raw(mipmap, len(packed)) == packed
    sampling = driver.CUDA_TEXTURE_DESC()
    modes = driver.CUaddress_mode
    sampling.addressMode = [
        modes.CU_TR_ADDRESS_MODE_BORDER,
        modes.CU_TR_ADDRESS_MODE_CLAMP,
        modes.CU_TR_ADDRESS_MODE_WRAP,
    ]
    sampling.filterMode, sampling.flags = driver.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR, 3
    sampling.maxAnisotropy, sampling.borderColor = 4, [1.0, 2.0, 3.0, 4.0]
    sampling.mipmapFilterMode, sampling.mipmapLevelBias = driver.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR, 0.5
    sampling.minMipmapLevelClamp, sampling.maxMipmapLevelClamp = 1.5, 2.5
    packed = textures.SAMPLING.pack(3, 1, 0, 1, 3, 4, 1, 0.5, 1.5, 2.5, 1.0, 2.0, 3.0, 4.0)
    assert raw(sampling, len(packed)) == packed
    copy = driver.CUDA_MEMCPY3D()
    names = ("XInBytes", "Y", "Z", "LOD", "MemoryType", "Host", "Device", "Array", None, "Pitch", "Height")
    values = (1, 2, 3, 0, driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, 0, 5, driver.CUarray(6), None, 7, 8)
    for side in ("src", "dst"):
        for name, value in zip(names, values, strict=True):
            if name and name != "Host":
                setattr(copy, side + name, value)
    copy.WidthInBytes, copy.Height, copy.Depth = 9, 10, 11
    one = (1, 2, 3, 0, 3, 0, 5, 6, 0, 7, 8)
    side = "QQQQi4xQQQQQQ"
    packed = struct.pack(f"={side}{side}QQQ", *one, *one, 9, 10, 11)  # as tests/contract packs it
    assert raw(copy, len(packed)) == packed


@pytest.mark.parametrize("handle", [-1, 1 << 64])
def test_what_is_no_handle_of_an_array_is_refused(handle):
    with pytest.raises(ValueError, match=r"handle is .*; pass the driver's"):
        accelrt.CUDAArray.from_handle(handle, None)
