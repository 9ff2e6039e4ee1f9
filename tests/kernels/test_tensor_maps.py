"""Tensor maps: what they check, what the driver is asked, and launches with them."""

import enum
import gc
from types import SimpleNamespace

import numpy as np
import pytest
from child import in_own_process

import accelrt
from accelrt.driver.registry import Rows
from accelrt.kernels import tensor_map
from accelrt.runtime import cuda_bindings

SHOW = """
extern "C" __global__ void show(unsigned long long* out, const __grid_constant__ CUtensorMap map, int last) {
    const unsigned long long* words = (const unsigned long long*)&map;
    for (int i = 0; i < 16; i++) out[i] = words[i];
    out[16] = last;
}
"""
STRUCT = "struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };\n#define __grid_constant__\n"
SIGNATURE = "uint64_t* out, const __grid_constant__ CUtensorMap map, int last"


class Numbers(enum.IntEnum):
    """What drivers of CUDA 12 number, of the kinds that the tests use."""

    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6
    CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 11


def kind(prefix, names):
    return SimpleNamespace(**{prefix + name: number for number, name in enumerate(names.split())})


INVALID_CONTEXT = 201


class StandIn:
    """In the place of cuda.bindings.driver: a descriptor is the array's address, then what was asked."""

    CUtensorMapDataType = Numbers
    CUtensorMapInterleave = kind("CU_TENSOR_MAP_INTERLEAVE_", "NONE 16B 32B")
    CUtensorMapSwizzle = kind("CU_TENSOR_MAP_SWIZZLE_", "NONE 32B 64B 128B")
    CUtensorMapL2promotion = kind("CU_TENSOR_MAP_L2_PROMOTION_", "NONE L2_64B L2_128B L2_256B")
    CUtensorMapFloatOOBfill = kind("CU_TENSOR_MAP_FLOAT_OOB_FILL_", "NONE NAN_REQUEST_ZERO_FMA")
    CUtensorMapIm2ColWideMode = kind("CU_TENSOR_MAP_IM2COL_WIDE_MODE_", "W W128")
    cuuint32_t = cuuint64_t = int

    def __init__(self):
        self.calls, self.refuse = [], 0

    def answer(self, name, given):
        self.calls.append((name, *given))
        words = [given[2], *range(1, 16)]
        has_context = Rows().current_device()[1] >= 0
        return (self.refuse if has_context else INVALID_CONTEXT, SimpleNamespace(opaque=words))

    def cuTensorMapEncodeTiled(self, *given):
        return self.answer("tiled", given)

    def cuTensorMapEncodeIm2col(self, *given):
        return self.answer("im2col", given)

    def cuTensorMapEncodeIm2colWide(self, *given):
        return self.answer("im2col wide", given)


@pytest.fixture
def stand_in(monkeypatch):
    made = StandIn()
    monkeypatch.setattr(cuda_bindings, "open_bindings", lambda *_: made)
    attributes = SimpleNamespace(attributes={"tensor_map_access_supported": 1})
    monkeypatch.setattr(tensor_map, "get_device_properties", lambda _: attributes)
    return made


@pytest.fixture(scope="module")
def show():
    if accelrt.device(0).type != "host":
        pytest.skip("the stand-in's descriptors are for the host device")
    return accelrt.compile(STRUCT + SHOW).function("show", SIGNATURE)


def test_a_tiled_map_is_asked_for_with_the_innermost_axis_first(stand_in):
    x = accelrt.zeros((3, 40, 64), "float32")
    made = accelrt.TensorMap.tiled(
        x, (1, 8, 32), element_strides=(1, 2, 1), swizzle="128B", l2_promotion="256B", fill="nan"
    )
    assert stand_in.calls == [
        ("tiled", 7, 3, x.ptr, [64, 40, 3], [256, 10240], [32, 8, 1], [1, 2, 1], 0, 3, 3, 1)
    ]
    assert (made.array, made.address, len(made.data)) == (x, x.ptr, 128)
    assert repr(made) == "<accelrt.TensorMap of (3, 40, 64) float32, tiled, box=(1, 8, 32)>"


def test_views_and_other_types_are_described(stand_in):
    x = accelrt.zeros((16, 64), "float32")
    accelrt.TensorMap.tiled(x[2::2, 4:36], (4, 8), as_type="tfloat32")
    accelrt.TensorMap.tiled(accelrt.zeros(64, "int8"), [32])
    first, second = stand_in.calls
    assert first[1:7] == (11, 2, x.ptr + 2 * 256 + 16, [32, 7], [512], [8, 4])
    assert second[1:7] == (0, 1, second[3], [64], [], [32])


def test_an_im2col_map_is_asked_for(stand_in):
    x = accelrt.zeros((2, 10, 12, 64), "float16")
    made = accelrt.TensorMap.im2col(x, (-1, -2), (1, 2), 64, 128)
    assert stand_in.calls == [
        (
            *("im2col", 6, 4, x.ptr, [64, 12, 10, 2], [128, 1536, 15360], [-2, -1], [2, 1], 64, 128),
            *([1, 1, 1, 1], 0, 0, 0, 0),
        )
    ]
    assert "corners=(-1, -2), (1, 2), channels=64, pixels=128" in repr(made)


@pytest.mark.parametrize(("mode", "number", "pixels"), [("pixels", 0, 100), ("128", 1, 128)])
def test_a_wide_im2col_map_is_asked_for(stand_in, mode, number, pixels):
    x = accelrt.zeros((2, 10, 12, 64), "float16")
    made = accelrt.TensorMap.im2col_wide(x, -2, 3, 64, 100, mode=mode, swizzle="128B")
    assert stand_in.calls == [
        (
            *("im2col wide", 6, 4, x.ptr, [64, 12, 10, 2], [128, 1536, 15360], -2, 3, 64, 100),
            *([1, 1, 1, 1], 0, number, 3, 0, 0),
        )
    ]
    assert repr(made).endswith(f"im2col wide, corners=-2, 3, channels=64, pixels={pixels}>")


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            {"lower_corner": -(1 << 15) - 1},
            ValueError,
            "lower_corner is -32769; it goes from -32768 to 32767",
        ),
        ({"upper_corner": (1, 2)}, TypeError, r"upper_corner is \(1, 2\) of type tuple"),
        ({"pixels_per_column": 0}, ValueError, "pixels_per_column is 0; it goes from 1 to 1024"),
        ({"mode": "W"}, ValueError, "mode is 'W'; it may be pixels, 128"),
    ],
)
def test_what_a_wide_im2col_map_is_not_asked_for(stand_in, given, error, text):
    arguments = {"lower_corner": 0, "upper_corner": 0, "channels_per_pixel": 64, "pixels_per_column": 8}
    with pytest.raises(error, match=text):
        accelrt.TensorMap.im2col_wide(accelrt.zeros((2, 10, 64), "float16"), **{**arguments, **given})
    assert stand_in.calls == []


def test_bindings_without_wide_maps_are_named(stand_in, monkeypatch):
    monkeypatch.delattr(StandIn, "CUtensorMapIm2ColWideMode")
    with pytest.raises(
        accelrt.NotSupportedError, match="cuda-bindings have no CU_TENSOR_MAP_IM2COL_WIDE_MODE_W"
    ):
        accelrt.TensorMap.im2col_wide(accelrt.zeros((2, 10, 64), "float16"), 0, 0, 64, 8)


ARRAY = {"shape": (8, 64), "dtype": "float32"}


@pytest.mark.parametrize(
    ("array", "given", "error", "text"),
    [
        (ARRAY, {"box": 8}, TypeError, "box is 8 of type int; pass 2 ints"),
        (ARRAY, {"box": (8,)}, ValueError, r"box is \(8,\); pass 2 ints, one for each axis"),
        (ARRAY, {"box": (8, 257)}, ValueError, r"box\[1\] is 257; it goes from 1 to 256"),
        (ARRAY, {"box": (8, 3)}, ValueError, "the last axis of a box has 12 bytes; it has a multiple of 16"),
        (ARRAY, {"swizzle": "64B"}, ValueError, "has 128 bytes, more than the 64 of swizzle='64B'"),
        (ARRAY, {"swizzle": "16B"}, ValueError, "swizzle is '16B'; it may be none, 32B, 64B"),
        (ARRAY, {"interleave": "32B"}, ValueError, "that is of 3 axes or more, array has 2"),
        (ARRAY, {"element_strides": (1, 9)}, ValueError, r"element_strides\[1\] is 9; it goes from 1 to 8"),
        (ARRAY, {"fill": "ones"}, ValueError, "fill is 'ones'; it may be zeros, nan"),
        (ARRAY, {"l2_promotion": "512B"}, ValueError, "l2_promotion is '512B'"),
        (ARRAY, {"as_type": "bfloat16"}, ValueError, "as_type is 'bfloat16'; it may be float32_ftz"),
        (ARRAY, {"writes": 1}, TypeError, "writes is 1 of type int; pass a bool"),
        (
            {"shape": (8, 63)},
            {"box": (8, 32)},
            ValueError,
            "multiples of 16, from 16 to below 2.*: pad its rows",
        ),
        ({"shape": (2,) * 6}, {"box": (2,) * 6}, ValueError, "array has 6 axes; a tensor map has 1 to 5"),
        ({"shape": (0, 64)}, {}, ValueError, "each axis has 1 to"),
        (
            {"shape": (8, 64), "dtype": "complex64"},
            {},
            TypeError,
            "array is of complex64; the accelerator copies",
        ),
        ({"shape": (8, 64), "dtype": "int32"}, {"fill": "nan"}, ValueError, "elements are of int32"),
        ({"shape": (8, 64), "dtype": "int32"}, {"as_type": "tfloat32"}, ValueError, "these are of int32"),
    ],
)
def test_what_the_accelerator_cannot_take_is_named_on_every_device(stand_in, array, given, error, text):
    x = accelrt.zeros(**{"dtype": "float32", **array})
    with pytest.raises(error, match=text):
        accelrt.TensorMap.tiled(x, **{"box": (8, 32), **given})
    assert stand_in.calls == []


def test_arrays_that_do_not_fit_are_named(stand_in):
    x = accelrt.zeros((8, 64), "float32")
    for array, error, text in (
        (x[:, ::2], ValueError, "the last axis has to be dense, 4"),
        (x[:, 1:], ValueError, "a tensor map begins at a multiple of 16"),
        (np.zeros((8, 64), np.float32), TypeError, "array is of type ndarray; pass an Array on a GPU"),
    ):
        with pytest.raises(error, match=text):
            accelrt.TensorMap.tiled(array, (8, 32))
    image = accelrt.zeros((1, 8, 8, 64), "float16")
    for given, text in (
        (((-200, 0), (0, 0), 64, 8), r"lower_corner\[0\] is -200; it goes from -128 to 127"),
        (((0,), (0, 0), 64, 8), r"lower_corner is \(0,\); pass 2 ints"),
        (((0, 0), (0, 0), 257, 8), "channels_per_pixel is 257"),
        (((0, 0), (0, 0), 64, 1025), "pixels_per_column is 1025"),
    ):
        with pytest.raises(ValueError, match=text):
            accelrt.TensorMap.im2col(image, *given)
    with pytest.raises(ValueError, match="array has 2 axes; a tensor map has 3 to 5"):
        accelrt.TensorMap.im2col(x, (0,), (0,), 64, 8)
    assert stand_in.calls == []


def test_what_the_driver_refuses_is_told(stand_in):
    stand_in.refuse = 1
    with pytest.raises(accelrt.CudaError, match=r"cuTensorMapEncodeTiled\(shape=\(8, 64\)"):
        accelrt.TensorMap.tiled(accelrt.zeros((8, 64), "float32"), (8, 32))
    with pytest.raises(TypeError, match=r"make a tensor map by TensorMap\.tiled"):
        accelrt.TensorMap()


@pytest.mark.host
def test_the_host_device_has_no_accelerator():
    with pytest.raises(accelrt.NotSupportedError, match="no tensor memory accelerator"):
        accelrt.TensorMap.tiled(accelrt.zeros((8, 64), "float32"), (8, 32))


def words(show, given, stream=None):
    out = accelrt.zeros(17, "uint64")
    accelrt.synchronize()  # the stream may be another one
    show.launch(1, 1, (out, given, 5), stream=stream)
    accelrt.synchronize()
    return out.numpy().tolist()


def test_a_launch_passes_the_descriptor_by_value(stand_in, show):
    x = accelrt.zeros((8, 64), "float32")
    made = accelrt.TensorMap.tiled(x, (8, 32))
    assert words(show, made) == [x.ptr, *range(1, 16), 5]
    assert words(show, made, accelrt.Stream()) == [x.ptr, *range(1, 16), 5]


def test_a_launch_refuses_what_is_no_place_for_it_or_has_no_memory(stand_in, show):
    x = accelrt.zeros((8, 64), "float32")
    made, out = accelrt.TensorMap.tiled(x, (8, 32)), accelrt.zeros(17, "uint64")
    for arguments, text in (
        ((made, made, 5), "argument 0 .*a TensorMap.*CUtensorMap, 128 bytes by value"),
        ((out, made, made), "argument 2"),
    ):
        with pytest.raises(TypeError, match=text):
            show.launch(1, 1, arguments)
    x.free()
    with pytest.raises(ValueError, match="freed"):
        show.launch(1, 1, (out, made, 5))
    if accelrt.device_count() > 1:
        elsewhere = accelrt.TensorMap.tiled(accelrt.zeros((8, 64), "float32", device=1), (8, 32))
        with pytest.raises(ValueError, match="device 1"):
            show.launch(1, 1, (out, elsewhere, 5))


def test_memory_that_sleeps_is_refused_and_other_streams_are_noted(stand_in, show):
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        x = accelrt.zeros((8, 64), "float32")
    made = accelrt.TensorMap.tiled(x, (8, 32))
    address = x.ptr
    pool.sleep()
    with pytest.raises(accelrt.SleepingMemoryError):
        words(show, made)
    pool.wake()
    assert words(show, made)[0] == address
    side = accelrt.Stream()
    with accelrt.stream(side):
        accelrt.sleep(20_000_000)
    out = accelrt.zeros(17, "uint64")
    side.wait_stream(accelrt.current_stream())
    show.launch(1, 1, (out, made, 5), stream=side)
    x.free()  # the side stream uses it still
    with accelrt.use_mem_pool(pool):
        other = accelrt.zeros((8, 64), "float32")
    assert other.ptr != address
    side.synchronize()


def test_a_graph_keeps_the_array(stand_in, show):
    x = accelrt.zeros((8, 64), "float32")
    made, out, graph = accelrt.TensorMap.tiled(x, (8, 32)), accelrt.zeros(17, "uint64"), accelrt.CUDAGraph()
    with accelrt.graph(graph):
        show[1, 1](out, made, 7)
    address, held = x.ptr, accelrt.memory_allocated()
    del x, made
    gc.collect()
    assert accelrt.memory_allocated() == held
    others = [accelrt.zeros((8, 64), "float32") for _ in range(8)]
    assert address not in {other.ptr for other in others}
    graph.replay()
    accelrt.synchronize()
    assert out.numpy()[0] == address
    del others
    graph.reset()
    accelrt.synchronize()
    gc.collect()
    assert accelrt.memory_allocated() == held - 8 * 64 * 4


@pytest.mark.host
@in_own_process
def test_the_race_detector_sees_its_memory():
    made_bindings = StandIn()
    cuda_bindings.open_bindings = lambda *_: made_bindings
    attributes = SimpleNamespace(attributes={"tensor_map_access_supported": 1})
    tensor_map.get_device_properties = lambda _: attributes
    accelrt.sanitizer.enable()
    show = accelrt.compile(STRUCT + SHOW).function("show", SIGNATURE)
    x, out, other = (
        accelrt.zeros((8, 64), "float32"),
        accelrt.zeros(17, "uint64"),
        accelrt.zeros(17, "uint64"),
    )
    accelrt.synchronize()
    reads, writes = (accelrt.TensorMap.tiled(x, (8, 32), writes=each) for each in (False, True))
    first, second = accelrt.Stream(), accelrt.Stream()
    show.launch(1, 1, (out, reads, 1), stream=first)
    show.launch(1, 1, (other, reads, 1), stream=second)  # two readers need no order
    with pytest.raises(accelrt.RaceError):
        show.launch(1, 1, (other, writes, 1), stream=second)
    accelrt.synchronize()


def test_cuda_bindings_take_what_is_given():
    bindings = pytest.importorskip("cuda.bindings.driver")
    for name, numbers in (
        ("CUtensorMapDataType", tensor_map.TYPES.values()),
        ("CUtensorMapInterleave", tensor_map.INTERLEAVES.values()),
        ("CUtensorMapSwizzle", tensor_map.SWIZZLES.values()),
        ("CUtensorMapL2promotion", tensor_map.PROMOTIONS.values()),
        ("CUtensorMapFloatOOBfill", tensor_map.FILLS.values()),
    ):
        members = {member.name for member in getattr(bindings, name)}
        for number in numbers:
            assert any(member.endswith(f"_{number}") for member in members), number
    assert len(list(bindings.CUtensorMap().opaque)) == 16


TILE = r"""
#include <cuda.h>
extern "C" __global__ void tile(const __grid_constant__ CUtensorMap map, float* out, int row, int column) {
    __shared__ alignas(128) float box[8 * 32];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned target = (unsigned)__cvta_generic_to_shared(box);
    unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar));
        asm volatile("fence.proxy.async.shared::cta;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(1024));
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     :: "r"(target), "l"(&map), "r"(column), "r"(row), "r"(bar) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; "
                 "@!p bra again; }" :: "r"(bar) : "memory");
    for (int i = threadIdx.x; i < 8 * 32; i += blockDim.x) out[i] = box[i];
}
"""


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_gpu_copies_a_box_by_it():
    values = np.arange(40 * 64, dtype=np.float32).reshape(40, 64)
    x, out = accelrt.asarray(values, device=0), accelrt.zeros((8, 32), "float32")
    try:
        made = accelrt.TensorMap.tiled(x, (8, 32))
    except accelrt.NotSupportedError as error:
        pytest.skip(str(error))
    source = TILE.replace(
        "#include <cuda.h>", "struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };"
    )
    kernel = accelrt.compile(source).function("tile", "CUtensorMap map, float* out, int row, int column")
    kernel[1, 32](made, out, 16, 32)
    np.testing.assert_array_equal(out.numpy(), values[16:24, 32:64])
    kernel[1, 32](made, out, 36, 48)  # over two edges: zeros
    expected = np.zeros((8, 32), np.float32)
    expected[:4, :16] = values[36:, 48:]
    np.testing.assert_array_equal(out.numpy(), expected)
