"""Tensor maps: what a GPU's tensor memory accelerator (TMA) is told of an array, as an argument of a launch.

    tiles = accelrt.TensorMap.tiled(x, box=(64, 64))
    kernel[grid, block](tiles, ...)  # __global__ void kernel(const __grid_constant__ CUtensorMap tiles, ...)

A kernel copies boxes of the array to its shared memory, or from there, by one instruction (CUDA driver API,
"Tensor Map Object Management"; compute capability 9.0).  Shapes, boxes and strides are in the order of the
array here, the last axis the innermost; NVIDIA's functions have them the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from accelrt.arrays.array import Array
from accelrt.arrays.exchange import asarray
from accelrt.core.arguments import checked_number, checked_type, checked_word
from accelrt.devices.device import device, get_device_properties
from accelrt.errors import ArgumentError, ArgumentTypeError, not_supported
from accelrt.runtime import cuda_bindings
from accelrt.runtime.lifetimes import AccessDescriptor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

__all__ = ["TensorMap"]

NBYTES = 128
# By dtype: CUtensorMapDataType without its prefix.  What has no number of its own is copied as bytes are.
TYPES = {
    **{"uint8": "UINT8", "int8": "UINT8", "bool": "UINT8", "uint16": "UINT16", "int16": "UINT16"},
    **{"uint32": "UINT32", "int32": "INT32", "uint64": "UINT64", "int64": "INT64"},
    **{"float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64", "bfloat16": "BFLOAT16"},
}
FLOATS = ("FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16", "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ")
AS_TYPES = ("float32_ftz", "tfloat32", "tfloat32_ftz")
INTERLEAVES = {"none": "NONE", "16B": "16B", "32B": "32B"}
SWIZZLES = {
    **{"none": "NONE", "32B": "32B", "64B": "64B", "128B": "128B"},
    **{"128B_atom_32B": "128B_ATOM_32B", "128B_atom_32B_flip_8B": "128B_ATOM_32B_FLIP_8B"},
    "128B_atom_64B": "128B_ATOM_64B",
}
PROMOTIONS = {"none": "NONE", "64B": "L2_64B", "128B": "L2_128B", "256B": "L2_256B"}
FILLS = {"zeros": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
WIDE_MODES = {"pixels": "W", "128": "W128"}
MOST_RANK = 5
LONGEST_AXIS, LONGEST_BOX, MOST_STEP = 1 << 32, 256, 8
LONGEST_STRIDE = 1 << 40
NEEDS = "tensor maps need a driver of CUDA 12.0 or later"


class Options(NamedTuple):
    """Holds the options of both kinds of maps."""

    element_strides: tuple[int, ...]
    interleave: str
    swizzle: str
    l2_promotion: str
    fill: str
    data_type: str


class TensorMap(AccessDescriptor):
    """A descriptor of an array for the tensor memory accelerator, made by tiled, im2col or im2col_wide.

    It is passed to a kernel by value, for a parameter of the type CUtensorMap, and keeps the array.  A launch
    with it uses the array's memory, as one with the array does: captures keep it, streams are noted, memory
    that sleeps or was freed is refused.

    Attributes:
        array: Array, which it describes.
        address: int, where that begins.
        data: bytes, the 128 of the descriptor.
        writes: bool, whether kernels write through it.
        description: str, how it was made.
    Raises:
        TypeError: it is called; use one of these.
    """

    __slots__ = ("description",)
    _parameter = "its parameter is a CUtensorMap, 128 bytes by value"

    description: str

    def __init__(self) -> None:
        raise ArgumentTypeError(
            "make a tensor map by TensorMap.tiled(array, box), im2col(...) or im2col_wide(...)"
        )

    @classmethod
    def tiled(
        cls,
        array: Any,
        box: Sequence[int],
        *,
        element_strides: Sequence[int] | None = None,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        fill: str = "zeros",
        as_type: str | None = None,
        writes: bool = False,
    ) -> Self:
        """Describes an array of which kernels copy boxes (cuTensorMapEncodeTiled).

        Arguments:
            array: Array on a GPU, or another library's array there, of 1 to 5 axes; the last one is dense,
                strides of the others are multiples of 16 bytes, and it begins at one.
            box: ints, 1 to 256, how long a box is along each axis; its last axis has a multiple of 16 bytes.
            element_strides: ints, 1 to 8, every how many elements are copied along each axis; None is all.
            interleave: "none", "16B" or "32B", how channels of 8 or 16 bytes lie (NC/8HWC8, NC/16HWC16).
            swizzle: "none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B" or
                "128B_atom_64B", how a box lies in shared memory; its last axis has at most so many bytes.
            l2_promotion: "none", "64B", "128B" or "256B", how much the L2 cache fetches at least.
            fill: "zeros" or "nan", what is read outside of the array; "nan" is of floats.
            as_type: "float32_ftz", "tfloat32" or "tfloat32_ftz", how float32 elements are read; None as they
                are.
            writes: bool, whether kernels write through it, for the race detector.
        Returns:
            TensorMap.
        Raises:
            ValueError, TypeError: an argument is out of range or of the wrong kind; the text says which.
            NotSupportedError: the device has no such accelerator, as the host device has none.
            CudaError: the driver refused.
        """
        memory = checked_array(array)
        lengths = checked_axes("box", box, memory.ndim, LONGEST_BOX)
        options = checked_options(
            memory, element_strides, interleave, swizzle, l2_promotion, fill, as_type, writes
        )
        check_inner(memory, lengths[-1], options)
        bindings = open_bindings(memory)
        integers = bindings.cuuint32_t
        middle = ([integers(length) for length in reversed(lengths)],)
        descriptor = encode(bindings, "cuTensorMapEncodeTiled", memory, options, middle)
        return cls._wrap(memory, descriptor, writes, f"tiled, box={lengths}")

    @classmethod
    def im2col(
        cls,
        array: Any,
        lower_corner: Sequence[int],
        upper_corner: Sequence[int],
        channels_per_pixel: int,
        pixels_per_column: int,
        *,
        element_strides: Sequence[int] | None = None,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        fill: str = "zeros",
        as_type: str | None = None,
        writes: bool = False,
    ) -> Self:
        """Describes images of which kernels copy columns, as convolutions do (cuTensorMapEncodeIm2col).

        Arguments:
            array: as of tiled, of 3 to 5 axes: images, one to three of space, channels (NWC, NHWC, NDHWC).
            lower_corner, upper_corner: ints, for each axis of space in the array's order, where the box of
                pixels begins before the image and ends after it.  They go from -2**15 to 2**15 - 1 for one
                axis, -2**7 to 2**7 - 1 for two, -2**4 to 2**4 - 1 for three.
            channels_per_pixel: int, 1 to 256.
            pixels_per_column: int, 1 to 1024.
            the others: as of tiled.
        Returns:
            TensorMap.
        Raises:
            as tiled.
        """
        memory = checked_array(array, 3)
        space = memory.ndim - 2
        reach = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}[space]
        corners = [
            checked_list(name, corner, space, -reach, reach - 1)
            for name, corner in (("lower_corner", lower_corner), ("upper_corner", upper_corner))
        ]
        channels = checked_number(channels_per_pixel, "channels_per_pixel", 1, 256)
        pixels = checked_number(pixels_per_column, "pixels_per_column", 1, 1024)
        options = checked_options(
            memory, element_strides, interleave, swizzle, l2_promotion, fill, as_type, writes
        )
        check_inner(memory, channels, options)
        bindings = open_bindings(memory)
        middle = (*(list(reversed(corner)) for corner in corners), channels, pixels)
        descriptor = encode(bindings, "cuTensorMapEncodeIm2col", memory, options, middle)
        words = f"im2col, corners={corners[0]}, {corners[1]}, channels={channels}, pixels={pixels}"
        return cls._wrap(memory, descriptor, writes, words)

    @classmethod
    def im2col_wide(
        cls,
        array: Any,
        lower_corner: int,
        upper_corner: int,
        channels_per_pixel: int,
        pixels_per_column: int,
        *,
        mode: str = "pixels",
        element_strides: Sequence[int] | None = None,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        fill: str = "zeros",
        as_type: str | None = None,
        writes: bool = False,
    ) -> Self:
        """Describes images of which kernels copy columns along the width (cuTensorMapEncodeIm2colWide).

        It needs compute capability 10.0 and CUDA 12.8.

        Arguments:
            array: as of im2col; the box has one row of one image in depth.
            lower_corner, upper_corner: int, -2**15 to 2**15 - 1, where the box of pixels begins before a row
                and ends after it.
            channels_per_pixel: int, 1 to 256.
            pixels_per_column: int, 1 to 1024.
            mode: "pixels", so many at a time; or "128", always 128.
            the others: as of tiled.
        Returns:
            TensorMap.
        Raises:
            as tiled.
        """
        memory = checked_array(array, 3)
        reach = 1 << 15
        corners = [
            checked_number(corner, name, -reach, reach - 1)
            for name, corner in (("lower_corner", lower_corner), ("upper_corner", upper_corner))
        ]
        channels = checked_number(channels_per_pixel, "channels_per_pixel", 1, 256)
        pixels = checked_number(pixels_per_column, "pixels_per_column", 1, 1024)
        checked_word(mode, "mode", WIDE_MODES)
        options = checked_options(
            memory, element_strides, interleave, swizzle, l2_promotion, fill, as_type, writes
        )
        check_inner(memory, channels, options)
        bindings = open_bindings(memory)
        modes = getattr(bindings, "CUtensorMapIm2ColWideMode", None)
        number = number_in(modes, "CU_TENSOR_MAP_IM2COL_WIDE_MODE_", WIDE_MODES[mode])
        middle = (*corners, channels, pixels)
        descriptor = encode(bindings, "cuTensorMapEncodeIm2colWide", memory, options, middle, (number,))
        words = f"im2col wide, corners={corners[0]}, {corners[1]}, channels={channels}, "
        words += f"pixels={pixels if mode == 'pixels' else 128}"
        return cls._wrap(memory, descriptor, writes, words)

    @classmethod
    def _wrap(cls, array: Array, data: bytes, writes: bool, words: str) -> Self:
        tensor_map = cls.__new__(cls)
        tensor_map._describe(array, array.device_index, array.ptr, data, writes)
        tensor_map.description = f"{array.shape} {array.dtype}, {words}"
        return tensor_map

    def __repr__(self) -> str:
        return f"<accelrt.TensorMap of {self.description}>"


# --- what is asked for ------------------------------------------------------------------------------------


def checked_list(name: str, values: Any, count: int, least: int, most: int) -> tuple[int, ...]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise ArgumentTypeError(f"{name} is {values!r} of type {type(values).__name__}; pass {count} ints")
    if len(values) != count:
        raise ArgumentError(f"{name} is {values!r}; pass {count} ints, one for each axis")
    return tuple(checked_number(each, f"{name}[{index}]", least, most) for index, each in enumerate(values))


def checked_axes(name: str, values: Any, count: int, most: int) -> tuple[int, ...]:
    return checked_list(name, values, count, 1, most)


def checked_array(value: Any, least: int = 1) -> Array:
    """The array as accelrt has it, of a shape that the accelerator takes."""
    try:
        array = value if isinstance(value, Array) else asarray(value, copy=False)
    except ValueError as error:
        raise ArgumentTypeError(
            f"array is of type {type(value).__name__}; pass an Array on a GPU, or another library's ({error})"
        ) from None
    if array.device_index < 0:
        raise ArgumentTypeError("array is in the host's memory; copy it to a device")
    if not least <= array.ndim <= MOST_RANK:
        raise ArgumentError(f"array has {array.ndim} axes; a tensor map has {least} to {MOST_RANK}")
    if array.dtype.name not in TYPES:
        raise ArgumentTypeError(
            f"array is of {array.dtype}; the accelerator copies {', '.join(TYPES)}: view it as one of those"
        )
    if not all(0 < length <= LONGEST_AXIS for length in array.shape):
        raise ArgumentError(f"array has the shape {array.shape}; each axis has 1 to 2**32 elements")
    if array.strides[-1] != array.itemsize:
        raise ArgumentError(
            f"array has strides of {array.strides} bytes; the last axis has to be dense, {array.itemsize}"
        )
    wrong = [stride for stride in array.strides[:-1] if stride % 16 or not 0 < stride < LONGEST_STRIDE]
    if wrong:
        raise ArgumentError(
            f"array has strides of {array.strides} bytes; but for the last they are multiples of 16, from 16 "
            "to below 2**40: pad its rows"
        )
    if array.ptr % 16:
        raise ArgumentError(f"array begins at {array.ptr:#x}; a tensor map begins at a multiple of 16 bytes")
    return array


def checked_options(
    array: Array,
    element_strides: Any,
    interleave: str,
    swizzle: str,
    l2_promotion: str,
    fill: str,
    as_type: str | None,
    writes: bool,
) -> Options:
    steps = (1,) * array.ndim if element_strides is None else element_strides
    steps = checked_axes("element_strides", steps, array.ndim, MOST_STEP)
    data_type = TYPES[array.dtype.name]
    if as_type is not None:
        data_type = checked_word(as_type, "as_type", AS_TYPES).upper()
        if array.dtype.name != "float32":
            raise ArgumentError(
                f"as_type is {as_type!r}, for elements of float32; these are of {array.dtype}"
            )
    checked_type(writes, "writes", bool, "a bool")
    checked_word(interleave, "interleave", INTERLEAVES)
    checked_word(swizzle, "swizzle", SWIZZLES)
    checked_word(l2_promotion, "l2_promotion", PROMOTIONS)
    checked_word(fill, "fill", FILLS)
    if fill == "nan" and data_type not in FLOATS:
        raise ArgumentError(f"fill is 'nan', but elements are of {array.dtype}; pass 'zeros'")
    if interleave != "none" and array.ndim < 3:
        raise ArgumentError(
            f"interleave is {interleave!r}; that is of 3 axes or more, array has {array.ndim}"
        )
    if interleave == "32B" and (array.ptr % 32 or any(stride % 32 for stride in array.strides[:-1])):
        raise ArgumentError(
            "interleave is '32B'; then array begins, and has strides, at multiples of 32 bytes"
        )
    if interleave == "32B" and swizzle != "32B":
        raise ArgumentError(f"interleave is '32B' and swizzle {swizzle!r}; the two are 32B together")
    return Options(steps, interleave, swizzle, l2_promotion, fill, data_type)


def check_inner(array: Array, length: int, options: Options) -> None:
    """The innermost axis of a box, in bytes."""
    if options.interleave != "none":
        return
    size = length * array.itemsize
    if size % 16:
        raise ArgumentError(f"the last axis of a box has {size} bytes; it has a multiple of 16")
    most = 0 if options.swizzle == "none" else int(options.swizzle.partition("B")[0])
    if most and size > most:
        raise ArgumentError(
            f"the last axis of a box has {size} bytes, more than the {most} of swizzle={options.swizzle!r}"
        )


# --- the driver -------------------------------------------------------------------------------------------


def open_bindings(array: Array) -> Any:
    """cuda.bindings.driver, where the array's device has the accelerator."""
    bindings = cuda_bindings.open_bindings(
        "the host device has no tensor memory accelerator; kernels there read arrays by their pointers",
        "cuTensorMapEncodeTiled",
    )
    if not get_device_properties(array.device_index).attributes.get("tensor_map_access_supported", 0):
        raise not_supported(
            f"device {array.device_index} has no tensor memory accelerator; GPUs have one from compute "
            "capability 9.0 on",
            "cuTensorMapEncodeTiled",
        )
    return bindings


def encode(
    bindings: Any,
    call: str,
    array: Array,
    options: Options,
    middle: tuple[Any, ...],
    modes: tuple[Any, ...] = (),
) -> bytes:
    """The descriptor; middle and modes: what differs between the calls, the innermost axis first."""
    wide, narrow = bindings.cuuint64_t, bindings.cuuint32_t
    arguments = (
        number_in(bindings.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_", options.data_type),
        array.ndim,
        array.ptr,
        [wide(length) for length in reversed(array.shape)],
        [wide(stride) for stride in reversed(array.strides[:-1])],
        *middle,
        [narrow(step) for step in reversed(options.element_strides)],
        number_in(
            bindings.CUtensorMapInterleave, "CU_TENSOR_MAP_INTERLEAVE_", INTERLEAVES[options.interleave]
        ),
        *modes,
        number_in(bindings.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_", SWIZZLES[options.swizzle]),
        number_in(
            bindings.CUtensorMapL2promotion, "CU_TENSOR_MAP_L2_PROMOTION_", PROMOTIONS[options.l2_promotion]
        ),
        number_in(bindings.CUtensorMapFloatOOBfill, "CU_TENSOR_MAP_FLOAT_OOB_FILL_", FILLS[options.fill]),
    )
    description = {"shape": array.shape, "strides": array.strides, "dtype": str(array.dtype)}
    with device(array.device_index):  # the driver wants a context, and the thread may have none
        tensor_map = cuda_bindings.ask(bindings, NEEDS, call, arguments, description)
    return b"".join(int(word).to_bytes(8, "little") for word in tensor_map.opaque)


def number_in(numbers: Any, prefix: str, name: str) -> Any:
    number = getattr(numbers, prefix + name, None)
    if number is None:
        raise not_supported(f"the installed cuda-bindings have no {prefix}{name}; a later one has")
    return number
