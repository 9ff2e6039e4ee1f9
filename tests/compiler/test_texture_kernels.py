"""Kernels that read textures and write surfaces, against CUDA's programming guide, "Texture Fetching"."""

import gc
import os
import weakref

import numpy as np
import pytest
from child import in_child, tell_loss
from device_arrays import read, to_device

import accelrt
from accelrt.testing import Gate, live_objects

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
pytestmark = [] if ON_HOST else [pytest.mark.nvrtc]

SOURCE = r"""
#define AT const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
typedef cudaTextureObject_t Texture;
extern "C" __global__ void one(Texture t, const float* x, float* out, int n) {
    AT out[i] = tex1D<float>(t, x[i]);
}
extern "C" __global__ void two(Texture t, const float* x, float* out, int n) {
    AT out[i] = tex2D<float>(t, x[i], x[n + i]);
}
extern "C" __global__ void three(Texture t, const float* x, float* out, int n) {
    AT out[i] = tex3D<float>(t, x[i], x[n + i], x[2 * n + i]);
}
extern "C" __global__ void layers(Texture t, const float* x, float* out, int n) {
    AT out[i] = tex2DLayered<float>(t, x[i], x[n + i], (int)x[2 * n + i]);
}
extern "C" __global__ void cube(Texture t, const float* x, float* out, int n) {
    AT out[i] = texCubemap<float>(t, x[i], x[n + i], x[2 * n + i]);
}
extern "C" __global__ void level1(Texture t, const float* x, float* out, int n) {
    AT out[i] = tex1DLod<float>(t, x[i], x[n + i]);
}
extern "C" __global__ void level2(Texture t, const float* x, float* out, int n) {
    AT tex2DLod(&out[i], t, x[i], x[n + i], x[2 * n + i]);
}
extern "C" __global__ void level3(Texture t, const float* x, float* out, int n) {
    AT out[i] = tex3DLod<float>(t, x[i], x[n + i], x[2 * n + i], x[3 * n + i]);
}
extern "C" __global__ void level_of_layer(Texture t, const float* x, float* out, int n) {
    AT out[i] = tex2DLayeredLod<float>(t, x[i], x[n + i], 1, x[2 * n + i]);
}
extern "C" __global__ void level_of_cube(Texture t, const float* x, float* out, int n) {
    AT out[i] = texCubemapLod<float>(t, 1.0f, 0.0f, 0.0f, x[i]);
}
extern "C" __global__ void steps(Texture t, const float* x, float* out, int n) {
    AT float2 across = {x[2 * n + i], 0}, down = {0, x[2 * n + i] / 4};
    out[i] = tex2DGrad<float>(t, x[i], x[n + i], across, down);
}
extern "C" __global__ void gathered(Texture t, const float* x, float* out, int n) {
    AT float4 c = tex2Dgather<float4>(t, x[i], x[n + i], 1);
    out[i] = c.x, out[n + i] = c.y, out[2 * n + i] = c.z, out[3 * n + i] = c.w;
}
extern "C" __global__ void linear(Texture t, int* out, int n) { AT out[i] = tex1Dfetch<int>(t, i - 2); }
extern "C" __global__ void colours(Texture t, float* out, int n) {
    AT float4 c = tex2D<float4>(t, i + 0.5f, 0.5f);
    out[4 * i] = c.x, out[4 * i + 1] = c.y, out[4 * i + 2] = c.z, out[4 * i + 3] = c.w;
}
extern "C" __global__ void wholes(Texture t, int* out, int n) {
    AT short2 c = tex2D<short2>(t, i + 0.5f, 0.5f);
    out[2 * i] = c.x, out[2 * i + 1] = c.y;
}
extern "C" __global__ void write(cudaSurfaceObject_t s, int w, int n) {
    AT int x = i % w, y = i / w;
    float before;
    surf2Dread(&before, s, x * 4, y);
    surf2Dwrite(before + 100.0f * y + x, s, x * 4, y);
    surf2Dwrite(-1.0f, s, -4, y, cudaBoundaryModeZero);
}
"""
MODES = ["clamp", "border", "wrap", "mirror"]
BORDER = 0.5


@pytest.fixture(scope="module")
def kernels():
    module = accelrt.compile(SOURCE)
    return lambda name, signature="": module.function(
        name, signature or "cudaTextureObject_t t, const float* x, float* out, int n"
    )


def launch(kernel, texture, places, shape=None, dtype=np.float32, *, stream=None):
    """What a kernel reads at places, whose first axis is that of the coordinates."""
    count = places.shape[-1]
    x, out = to_device(places.astype(np.float32)), accelrt.zeros(shape or (count,), dtype)
    kernel[-(-count // 64), 64, stream](texture, x, out, count)
    accelrt.synchronize()
    return read(out)


def coordinates(values, length, mode, normalized, linear):
    """Indices of two elements, whether each is outside, and how much of the second there is."""
    x = values.astype(np.float64)
    if mode == "wrap":
        x = x - np.floor(x)
    if mode == "mirror":
        whole = np.floor(x)
        x = np.where(whole % 2, 1 - (x - whole), x - whole)
    if normalized:
        x = x * length
    if linear:
        x = x - 0.5
    first = np.floor(x).astype(int)
    share = np.round((x - first) * 256) / 256 if linear else np.zeros_like(x)
    sides = []
    for index in (first, first + 1):
        outside = (index < 0) | (index >= length)
        held = index % length if mode == "wrap" else np.clip(index, 0, length - 1)
        sides.append((held, outside & (mode == "border")))
    return sides, share


def expected(image, places, mode="clamp", normalized=False, linear=False):
    """The same in NumPy, of any number of axes; places are the innermost axis's first."""
    axes = [
        coordinates(values, length, mode, normalized, linear)
        for values, length in zip(places, image.shape[::-1], strict=True)
    ]
    total = np.zeros(places.shape[-1])
    for corner in np.ndindex(*(2,) * len(axes)):
        share, outside, index = np.ones(places.shape[-1]), False, []
        for (sides, second), side in zip(axes, corner, strict=True):
            share = share * (second if side else 1 - second)
            index.append(sides[side][0])
            outside = outside | sides[side][1]
        total += np.where(share > 0, share * np.where(outside, BORDER, image[tuple(index[::-1])]), 0)
    return total


def close(found, wanted, linear):
    """A GPU's fraction has 8 bits too, of which the last may be rounded otherwise."""
    assert np.abs(found - wanted).max() <= (1e-6 if ON_HOST else 1 / 128 if linear else 0)


@pytest.mark.parametrize("filter_mode", ["nearest", "linear"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "shape"), [("one", (13,)), ("two", (5, 9)), ("three", (3, 4, 6))])
def test_elements_are_found_and_filtered_along_every_axis(kernels, name, shape, mode, filter_mode):
    random = np.random.default_rng(7)
    image = random.random(shape, np.float32)
    array = accelrt.CUDAArray(shape, "float32")
    array.copy_from(image)
    linear = filter_mode == "linear"
    for normalized in {True, mode in ("wrap", "mirror")}:
        reach = np.array([1.0 if normalized else length for length in shape[::-1]])[:, None]
        # Between the places where the nearest element changes, or the last bit of a fraction.
        places = np.round((random.random((len(shape), 500)) * 3 - 1) * reach * 128) / 128 + 1 / 1024
        texture = accelrt.TextureObject(
            array,
            filter_mode=filter_mode,
            address_mode=mode,
            normalized_coords=normalized,
            border_color=BORDER,
        )
        close(
            launch(kernels(name), texture, places), expected(image, places, mode, normalized, linear), linear
        )


def test_layers_are_chosen_and_not_filtered(kernels):
    image = np.random.default_rng(3).random((4, 5, 6), np.float32)
    array = accelrt.CUDAArray(image.shape, "float32", layered=True)
    array.copy_from(image)
    texture = accelrt.TextureObject(array, filter_mode="linear")
    places = np.random.default_rng(4).random((2, 200)) * [[6], [5]]
    layer = np.random.default_rng(5).integers(0, 4, 200)
    found = launch(kernels("layers"), texture, np.concatenate([places, layer[None]]))
    wanted = np.array(
        [
            expected(image[each], places[:, [index]].astype(np.float32), linear=True)[0]
            for index, each in enumerate(layer)
        ]
    )
    close(found, wanted, True)


def test_a_cubes_faces_are_found_by_direction(kernels):
    array = accelrt.CUDAArray((6, 2, 2), "float32", cubemap=True)
    array.copy_from(np.arange(24, dtype=np.float32).reshape(6, 2, 2))
    texture = accelrt.TextureObject(array)
    towards = np.array(
        [[9, 1, -2], [-9, 1, -2], [1, 9, -2], [1, -9, -2], [1, -2, 9], [1, -2, -9]], np.float32
    )
    # By the guide: s and t are (-z, -y), (z, -y), (x, z), (x, -z), (x, -y), (-x, -y).
    signs = [(2, -1), (-2, -1), (1, -2), (1, 2), (1, 2), (-1, 2)]
    wanted = [4 * face + 2 * (t > 0) + (s > 0) for face, (s, t) in enumerate(signs)]
    assert launch(kernels("cube"), texture, towards.T).tolist() == wanted


def test_a_seamless_cubemap_is_filtered_over_the_edges_of_its_faces(kernels):
    image = np.random.default_rng(9).random((6, 2, 2), np.float32)
    array = accelrt.CUDAArray((6, 2, 2), "float32", cubemap=True)
    array.copy_from(image)
    apart, seamless = (
        accelrt.TextureObject(array, filter_mode="linear", seamless=each) for each in (False, True)
    )
    # Where the faces of +x and +z meet, in the middle of their lower rows; and amid a face.
    towards = np.array([[1, -0.5, 1], [1, 0.0, 0.0]]).T
    amid = image[0].mean()
    close(launch(kernels("cube"), apart, towards), np.array([image[4, 1, 1], amid]), True)
    wanted = np.array([(image[0, 1, 0] + image[4, 1, 1]) / 2, amid])
    close(launch(kernels("cube"), seamless, towards), wanted, True)
    # Across each edge the value is the same, whichever the face.
    near = np.array([[1, 1 - 1e-5, 0.3], [-1, 0.4, 1 - 1e-5], [0.2, -1, 1 - 1e-5], [0.7, -1 + 1e-5, -1]]).T
    far = np.array([[1 - 1e-5, 1, 0.3], [-1 + 1e-5, 0.4, 1], [0.2, -1 + 1e-5, 1], [0.7, -1, -1 + 1e-5]]).T
    close(launch(kernels("cube"), seamless, near), launch(kernels("cube"), seamless, far), True)
    if ON_HOST:  # at a corner there is no fourth element
        found = launch(kernels("cube"), seamless, np.ones((3, 1)))
        close(found, np.array([(image[0, 0, 0] + image[2, 1, 1] + image[4, 0, 1]) / 3]), True)


def mipmaps_of(shape, **kinds):
    """Levels of chance, and a MipmappedArray of them."""
    random, whole = np.random.default_rng(11), accelrt.MipmappedArray(shape, "float32", **kinds)
    images = []
    for number in range(whole.levels):
        level = whole.level(number)
        images.append(random.random(level.shape, np.float32))
        level.copy_from(images[-1])
    return whole, images


def expected_of_levels(images, places, levels, linear, between):
    """Of the levels that are asked for, with bias and clamps in them already."""
    levels = np.clip(levels, 0, len(images) - 1)
    levels = np.round(levels * 256) / 256 if between else np.floor(levels + 0.5)
    values = np.array([expected(image, places, "wrap", True, linear) for image in images])
    first = np.floor(levels).astype(int)
    above = np.minimum(first + 1, len(images) - 1)
    at = np.arange(len(levels))
    return values[first, at] * (1 - (levels - first)) + values[above, at] * (levels - first)


@pytest.mark.parametrize(("filter_mode", "between"), [("nearest", "nearest"), ("linear", "linear")])
@pytest.mark.parametrize(
    ("name", "shape"), [("level1", (21,)), ("level2", (9, 20)), ("level3", (4, 6, 9)), ("level2", (1, 8))]
)
def test_levels_are_chosen_and_filtered(kernels, name, shape, filter_mode, between):
    whole, images = mipmaps_of(shape)
    assert whole.levels == max(shape).bit_length() == len(images)
    random = np.random.default_rng(5)
    places = np.round((random.random((len(shape), 300)) * 3 - 1) * 128) / 128 + 1 / 1024
    levels = np.round(random.random(300) * 16 * (len(images) + 2)) / 16 - 1 + 1 / 64
    how = {"filter_mode": filter_mode, "mipmap_filter": between, "normalized_coords": True}
    given = np.concatenate([places, levels[None]])
    for bias, clamp in ((0, None), (-0.5, (1, 2.25))):
        texture = accelrt.TextureObject(whole, address_mode="wrap", level_bias=bias, level_clamp=clamp, **how)
        asked = levels + bias if clamp is None else np.clip(levels + bias, *clamp)
        linear = filter_mode == "linear"
        wanted = expected_of_levels(images, places, asked, linear, between == "linear")
        close(launch(kernels(name), texture, given), wanted, linear)


def test_steps_choose_the_level_and_plain_reads_the_first(kernels):
    whole, images = mipmaps_of((16, 16))
    texture = accelrt.TextureObject(whole, normalized_coords=True)
    places = np.random.default_rng(6).integers(0, 16, (2, 100)) / 16 + 1 / 32
    close(launch(kernels("two"), texture, places), expected(images[0], places, "clamp", True), False)
    step = 2.0 ** np.random.default_rng(7).integers(-6, 1, 100)  # of 16 elements: levels -2 to 4
    wanted = expected_of_levels(images, places, np.log2(step * 16), False, False)
    close(launch(kernels("steps"), texture, np.concatenate([places, step[None]])), wanted, False)


def test_layers_and_faces_have_levels(kernels):
    layers, images = mipmaps_of((3, 4, 4), layered=True)
    assert [each.shape for each in images] == [(3, 4, 4), (3, 2, 2), (3, 1, 1)]
    places = np.full((2, 3), 0.4)
    texture = accelrt.TextureObject(layers, normalized_coords=True)
    found = launch(kernels("level_of_layer"), texture, np.concatenate([places, [[0, 1, 2]]]))
    assert found.tolist() == [images[0][1, 1, 1], images[1][1, 0, 0], images[2][1, 0, 0]]
    cube, images = mipmaps_of((6, 4, 4), cubemap=True)
    texture = accelrt.TextureObject(cube, normalized_coords=True)
    assert launch(kernels("level_of_cube"), texture, np.array([[2.0]]))[0] == images[2][0, 0, 0]


def test_a_level_is_written_by_a_surface_and_outlives_what_it_is_of(kernels):
    whole = accelrt.MipmappedArray((5, 14), "float32", surface=True)
    level = whole.level(-3)
    assert (level.shape, level.surface) == ((2, 7), True)
    level.copy_from(np.zeros((2, 7), np.float32))
    surface = accelrt.SurfaceObject(level)
    whole.close()
    del whole
    kernels("write", "cudaSurfaceObject_t s, int w, int n")[1, 64](surface, 7, 14)
    found = np.zeros((2, 7), np.float32)
    level.copy_to(found)
    assert found.tolist() == [[float(x) for x in range(7)], [100.0 + x for x in range(7)]]


def test_four_elements_are_gathered_of_one_channel(kernels):
    image = np.random.default_rng(2).random((5, 6, 2), np.float32)
    array = accelrt.CUDAArray((5, 6), "float32", 2, gather=True)
    array.copy_from(image)
    for mode in ("clamp", "border"):
        texture = accelrt.TextureObject(array, address_mode=mode, border_color=BORDER)
        places = np.round(np.random.default_rng(3).random((2, 200)) * [[8], [7]] * 64 - 64) / 64 + 1 / 128
        sides = [
            coordinates(values, length, mode, False, True)[0]
            for values, length in zip(places, (6, 5), strict=True)
        ]
        wanted = []
        for right, lower in ((0, 1), (1, 1), (1, 0), (0, 0)):
            (x, left_out), (y, above_out) = sides[0][right], sides[1][lower]
            wanted.append(np.where(left_out | above_out, BORDER, image[y, x, 1]))
        found = launch(kernels("gathered"), texture, places, (4, 200))
        assert (found == np.array(wanted, np.float32)).all()


def test_linear_memory_is_read_by_its_index(kernels):
    values = to_device(np.arange(1, 9, dtype=np.int32))
    texture = accelrt.TextureObject(values)
    out = accelrt.zeros(12, np.int32)
    kernels("linear", "cudaTextureObject_t t, int* out, int n")[1, 12](texture, out, 12)
    assert read(out).tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]


def test_rows_of_memory_are_filtered(kernels):
    rows = to_device(np.random.default_rng(0).random((7, 32)).astype(np.float32))
    part = rows[:, :21]
    places = np.random.default_rng(1).random((2, 100)) * [[21], [7]]
    texture = accelrt.TextureObject(part, filter_mode="linear")
    wanted = expected(read(rows)[:, :21], places.astype(np.float32), linear=True)
    close(launch(kernels("two"), texture, places), wanted, True)


def test_integers_are_read_as_fractions_or_as_they_are(kernels):
    image = np.array([[[0, 51, 255, 204], [255, 0, 102, 255]]], np.uint8)
    array = accelrt.CUDAArray((1, 2), "uint8", channels=4)
    array.copy_from(image)
    for srgb in (False, True):
        texture = accelrt.TextureObject(array, read_mode="normalized_float", srgb=srgb)
        out = accelrt.zeros(8, np.float32)
        kernels("colours", "cudaTextureObject_t t, float* out, int n")[1, 2](texture, out, 2)
        wanted = image.reshape(2, 4) / 255
        if srgb:
            colours = wanted[:, :3]
            wanted[:, :3] = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        assert np.abs(read(out).reshape(2, 4) - wanted).max() < (1e-6 if not srgb or ON_HOST else 1e-2)
    pairs = np.array([[[-3, 7], [32767, -32768]]], np.int16)
    array = accelrt.CUDAArray((1, 2), "int16", channels=2)
    array.copy_from(pairs)
    out = accelrt.zeros(4, np.int32)
    kernels("wholes", "cudaTextureObject_t t, int* out, int n")[1, 2](accelrt.TextureObject(array), out, 2)
    assert read(out).tolist() == pairs.ravel().tolist()


def test_half_floats_are_widened(kernels):
    values = np.array([[0, 1, -2.5, 65504, 6e-8, np.inf]], np.float16)
    array = accelrt.CUDAArray(values.shape, "float16")
    array.copy_from(values)
    places = np.stack([np.arange(6) + 0.5, np.full(6, 0.5)])
    assert (
        launch(kernels("two"), accelrt.TextureObject(array), places) == values[0].astype(np.float32)
    ).all()


def test_a_surface_is_written_where_it_is(kernels):
    image = np.random.default_rng(0).random((5, 7), np.float32)
    with accelrt.CUDAArray((5, 7), "float32", surface=True) as array:
        array.copy_from(image)
        with accelrt.SurfaceObject(array) as surface:
            kernels("write", "cudaSurfaceObject_t s, int w, int n")[1, 64](surface, 7, 35)
        found = np.zeros_like(image)
        array.copy_to(found)
    y, x = np.mgrid[:5, :7]
    assert (found == image + (100 * y + x).astype(np.float32)).all()


# --- lifetimes ---------------------------------------------------------------------------------


def a_texture(value=1.0):
    array = accelrt.CUDAArray((4, 4), "float32")
    array.copy_from(np.full((4, 4), value, np.float32))
    return array, accelrt.TextureObject(array)


PLACES = np.full((2, 8), 1.5, np.float32)


def test_a_texture_that_is_closed_stays_until_the_work_is_past(kernels):
    kernel, stream = kernels("two"), accelrt.Stream()
    array, texture = a_texture(3.0)
    x, out = to_device(PLACES), accelrt.zeros(8, np.float32)
    accelrt.synchronize()
    with Gate(stream):
        kernel[1, 8, stream](texture, x, out, 8)
        texture.close()
        array.close()
        del array, texture
        if ON_HOST:
            assert live_objects()["textures"] == live_objects()["arrays"] == 1
    stream.synchronize()
    assert (read(out) == 3).all()
    accelrt.synchronize()
    if ON_HOST:
        assert live_objects()["textures"] == live_objects()["arrays"] == 0


def test_a_graph_keeps_what_it_reads_although_it_is_closed(kernels):
    kernel, stream, graph = kernels("two"), accelrt.Stream(), accelrt.CUDAGraph()
    array, texture = a_texture(5.0)
    x, out = to_device(PLACES), accelrt.zeros(8, np.float32)
    accelrt.synchronize()
    with accelrt.graph(graph, stream=stream):
        kernel[1, 8, stream](texture, x, out, 8)
    texture.close()
    array.close()
    del array, texture
    for _ in range(2):
        out.fill_(0)
        accelrt.synchronize()
        graph.replay()
        assert (read(out) == 5).all()
    graph.reset()
    accelrt.synchronize()
    if ON_HOST:
        assert live_objects()["textures"] == live_objects()["arrays"] == 0


def test_nodes_that_are_made_or_changed_by_hand_keep_their_textures(kernels):
    kernel, stream = kernels("two"), accelrt.Stream()
    x, out = to_device(PLACES), accelrt.zeros(8, np.float32)
    (array, texture), definition = a_texture(2.0), accelrt.GraphDefinition()
    definition.kernel(kernel, 1, 8, (texture, x, out, 8))
    texture.close()
    del array, texture
    instance = definition.instantiate()
    accelrt.synchronize()
    instance.replay()
    assert (read(out) == 2).all()
    _, first = a_texture(3.0)
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph, stream=stream):
        kernel[1, 8, stream](first, x, out, 8)
    _, second = a_texture(4.0)
    graph.set_kernel_node_params(graph.nodes()[0], args=(second, x, out, 8))
    first.close()
    second.close()
    gc.collect()
    accelrt.synchronize()
    graph.replay()
    assert (read(out) == 4).all()


@pytest.mark.parametrize("mode", ["r", "w"])
def test_the_race_detector_is_told_of_a_textures_memory(mode):
    printed = in_child(race_on_a_texture, mode, ACCELRT_SANITIZE="raise")
    assert printed == ("no race\n" if mode == "r" else "race of two\n")


def race_on_a_texture(mode):
    values = accelrt.zeros((4, 32), np.float32)
    x, out = accelrt.full((2, 8), 1.5, np.float32), accelrt.zeros(8, np.float32)
    kernel = accelrt.compile(SOURCE).function(
        "two", "cudaTextureObject_t t, const float* x, float* out, int n"
    )
    texture, stream = accelrt.TextureObject(values), accelrt.Stream()
    accelrt.synchronize()
    if mode == "w":
        values.fill_(1)  # of another stream
    else:
        accelrt.copy(accelrt.empty((4, 32), np.float32), values, blocking=False)
    try:
        kernel[1, 8, stream](texture, x, out, 8)
        print("no race")
    except accelrt.RaceError as error:
        print(f"race of {str(error).partition('second: ')[2].split()[0]}")


def test_copies_of_arrays_are_captured_with_what_they_copy():
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    array, x = accelrt.CUDAArray((4, 8), "float32"), to_device(np.zeros((4, 8), np.float32))
    host = np.ones((4, 8), np.float32)
    with accelrt.graph(graph, stream=stream):
        with pytest.raises(ValueError, match=r"ordinary host memory, which no capture copies"):
            array.copy_from(host, blocking=False)
        array.copy_from(x, blocking=False)
    for value in (2, 3):
        x.fill_(value)
        accelrt.synchronize()
        graph.replay()
        accelrt.synchronize()
        array.copy_to(host)
        assert (host == value).all()
    kept = weakref.ref(array)
    del array
    gc.collect()
    graph.replay()
    accelrt.synchronize()
    assert kept() is None
    graph.reset()


def test_a_texture_of_memory_uses_it_as_the_memory_itself_does(kernels):
    kernel = kernels("two")
    values = accelrt.zeros((4, 32), np.float32)
    texture = accelrt.TextureObject(values)
    held = weakref.ref(values.base)
    assert texture.array is values
    x, out = to_device(PLACES), accelrt.zeros(8, np.float32)
    kernel[1, 8](texture, x, out, 8)
    base = values.base
    del values
    gc.collect()
    assert held() is not None  # the texture keeps it
    accelrt.synchronize()
    base.free()
    with pytest.raises(ValueError, match=r"argument 0 of kernel 'two' is .* that was freed"):
        kernel[1, 8](texture, x, out, 8)


def test_memory_that_sleeps_is_refused(kernels):
    pool = accelrt.memory.MemPool()
    with accelrt.memory.use_mem_pool(pool):
        values = accelrt.zeros((4, 512), np.float32)
    texture = accelrt.TextureObject(values)
    x, out = to_device(PLACES), accelrt.zeros(8, np.float32)
    accelrt.synchronize()
    pool.sleep()
    with pytest.raises(accelrt.SleepingMemoryError):
        kernels("two")[1, 8](texture, x, out, 8)
    pool.wake()
    kernels("two")[1, 8](texture, x, out, 8)
    accelrt.synchronize()


def test_what_a_kernel_does_not_take_is_refused(kernels):
    kernel = kernels("two")
    array, texture = a_texture()
    x, out = to_device(PLACES), accelrt.zeros(8, np.float32)
    with pytest.raises(
        TypeError, match=r"argument 0 .* is a CUDAArray; .* by a TextureObject or a SurfaceObject of it"
    ):
        kernel[1, 8](array, x, out, 8)
    with pytest.raises(
        TypeError, match=r"argument 1 .* is a TextureObject; .* its parameter is a cudaTextureObject_t"
    ):
        kernel[1, 8](texture, texture, out, 8)
    texture.close()
    texture.close()
    with pytest.raises(ValueError, match="argument 0 of kernel 'two' is a TextureObject that was closed"):
        kernel[1, 8](texture, x, out, 8)
    if accelrt.device_count() > 1:
        other = accelrt.TextureObject(accelrt.CUDAArray((4, 4), "float32", device=1))
        with pytest.raises(ValueError, match="on device 1"):
            kernel[1, 8](other, x, out, 8)


def name_a_stale_handle():
    kernel = accelrt.compile(SOURCE).function("two")
    texture = accelrt.TextureObject(accelrt.CUDAArray((4, 4), "float32"))
    handle = np.uint64(texture.handle)
    texture.close()
    x, out = accelrt.zeros((2, 8), np.float32), accelrt.zeros(8, np.float32)
    tell_loss(lambda: kernel[1, 8](handle, x, out, np.int32(8)))


@pytest.mark.host
def test_a_stale_handle_fails_the_kernel():
    printed = in_child(name_a_stale_handle)
    assert "a texture or a surface is used that was destroyed" in printed
    assert "told LAUNCH_FAILED" in printed


def gather_what_is_not_made_for_it():
    kernel = accelrt.compile(SOURCE).function(
        "gathered", "cudaTextureObject_t t, const float* x, float* out, int n"
    )
    texture = accelrt.TextureObject(accelrt.CUDAArray((4, 4), "float32"))
    x, out = accelrt.zeros((2, 8), np.float32), accelrt.zeros(32, np.float32)
    tell_loss(lambda: kernel[1, 8](texture, x, out, 8))


@pytest.mark.host
def test_a_gather_of_an_array_that_was_not_made_for_it_fails_the_kernel():
    assert "was not made with gather=True" in in_child(gather_what_is_not_made_for_it)


def write_outside(mode):
    source = """
    extern "C" __global__ void k(cudaSurfaceObject_t s, int at) { surf2Dwrite(1.0f, s, at, 0MODE); }
    """.replace("MODE", mode)
    array = accelrt.CUDAArray((1, 4), "float32", surface=True)
    array.copy_from(np.zeros((1, 4), np.float32))
    kernel = accelrt.compile(source).function("k", "cudaSurfaceObject_t s, int at")
    tell_loss(lambda: kernel[1, 1](accelrt.SurfaceObject(array), 16))
    found = np.zeros((1, 4), np.float32)
    array.copy_to(found)
    print(found.tolist())


@pytest.mark.host
def test_a_write_outside_of_a_surface_does_what_its_mode_says():
    assert "told LAUNCH_FAILED" in in_child(write_outside, "")
    assert in_child(write_outside, ", cudaBoundaryModeZero") == "[[0.0, 0.0, 0.0, 0.0]]\n"
    assert in_child(write_outside, ", cudaBoundaryModeClamp") == "[[0.0, 0.0, 0.0, 1.0]]\n"
