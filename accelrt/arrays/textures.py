"""Textures and surfaces, through which kernels read and write CUDA arrays.

image = accelrt.CUDAArray((480, 640), "float32")
texture = accelrt.TextureObject(image, filter_mode="linear")
kernel[grid, block](texture, out)  # __global__ void kernel(cudaTextureObject_t texture, float* out)
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from accelrt.arrays.managed import HandledMemory
from accelrt.arrays.texture_memory import (
    FORMATS,
    TOO_LARGE,
    CUDAArray,
    MipmappedArray,
    checked_memory,
    format_of,
    text_of,
)
from accelrt.core.arguments import checked_word
from accelrt.devices.device import get_device_properties
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.status import status_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from accelrt.arrays.array import Array, Buffer

__all__ = ["SurfaceObject", "TextureObject"]

NARROW = ("uint8", "uint16", "int8", "int16")  # which are read as fractions of their range too
OF_ARRAY, OF_MIPMAP, OF_LINEAR, OF_ROWS = range(4)  # CUresourcetype
ADDRESS_MODES = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}
FILTER_MODES = {"nearest": 0, "linear": 1}
READ_MODES = ("element_type", "normalized_float")
AS_INTEGERS, NORMALIZED, SRGB, EXACT, SEAMLESS = 1, 2, 16, 32, 64  # CU_TRSF_ flags
TEXTURE, SURFACE_OBJECT = 11, 12  # kinds of runtime/lifetimes.pxd
# The structs of driver/textures.pxd.
RESOURCE = struct.Struct("=i4xQiIQQQ96x")
SAMPLING = struct.Struct("=3iiIIif2f4f48x")
SINGLE = struct.Struct("=f")


class TextureObject(HandledMemory):
    """Lets kernels read elements of memory: a parameter of the type cudaTextureObject_t.

        texture = accelrt.TextureObject(image, filter_mode="linear", address_mode="border")

    Arguments:
        memory: CUDAArray; MipmappedArray, read by normalized coordinates; or an Array or Buffer in device
            memory: of one axis, which kernels read by tex1Dfetch, or of two, whose rows begin at multiples of
            the device's texture_pitch_alignment.
        channels: int, values of an element of such memory: 1, 2 or 4, which are its last axis then.
        address_mode: "clamp", "border", "wrap" or "mirror", what is read outside; or a tuple of one for each
            axis, the innermost last.  The last two are of normalized coordinates.
        filter_mode: "nearest", or "linear" between elements, where what is read is floating-point.
        read_mode: "element_type", or "normalized_float": integers of 8 and 16 bits as fractions of their
            range.
        normalized_coords: bool, whether coordinates go from 0 to 1, rather than to the number of elements.
        srgb: bool, whether uint8 is read as sRGB, by read_mode="normalized_float".
        border_color: float, or 4 of them, what "border" reads.
        seamless: bool, whether a cubemap is filtered over the edges of its faces.
        max_anisotropy: int, 0 to 16; the host device filters alike in every direction.
        mipmap_filter: "nearest" or "linear" between levels of a MipmappedArray; by tex2D and its like kernels
            read the first level, by tex2DLod and tex2DGrad one that they name.
        level_bias: float, added to the level that a kernel names.
        level_clamp: (float, float), the least and the most level that is read then; None is all of them.
        exact_levels: bool, whether a device may not approximate a filter between levels.
    Attributes:
        array: CUDAArray, MipmappedArray or Array that it is of, which it keeps.
        device_index: int, the ordinal of the device.
        handle: int, the driver's (CUtexObject); 0 once it was closed.
    Raises:
        ValueError, TypeError: an argument is out of range or of the wrong kind, or memory was freed.
        CudaError: the driver refused.
        RuntimeError: it was made before.

    A launch with it uses the memory: streams are noted, captures keep it, memory that sleeps or was freed is
    refused.  close() does not take it from work that was put in, nor from graphs.
    """

    __slots__ = ("description",)
    _parameter = "its parameter is a cudaTextureObject_t, of 8 bytes"

    def __init__(
        self,
        memory: CUDAArray | MipmappedArray | Array | Buffer | Any,
        *,
        channels: int = 1,
        address_mode: str | Sequence[str] = "clamp",
        filter_mode: str = "nearest",
        read_mode: str = "element_type",
        normalized_coords: bool = False,
        srgb: bool = False,
        seamless: bool = False,
        border_color: float | Sequence[float] = 0.0,
        max_anisotropy: int = 0,
        mipmap_filter: str = "nearest",
        level_bias: float = 0.0,
        level_clamp: tuple[float, float] | None = None,
        exact_levels: bool = False,
    ) -> None:
        modes = checked_modes(address_mode, bool(normalized_coords))
        chosen = FILTER_MODES[checked_word(filter_mode, "filter_mode", FILTER_MODES)]
        checked_word(read_mode, "read_mode", READ_MODES)
        border = checked_border(border_color)
        if not isinstance(max_anisotropy, int) or not 0 <= max_anisotropy <= 16:
            raise ArgumentError(f"max_anisotropy is {max_anisotropy!r}; it is an int from 0 to 16")
        between = FILTER_MODES[checked_word(mipmap_filter, "mipmap_filter", FILTER_MODES)]
        is_mipmap, levels = (True, memory.levels) if isinstance(memory, MipmappedArray) else (False, 1)
        least, most = checked_levels(levels, level_clamp, level_bias, between, is_mipmap)
        source: CUDAArray | MipmappedArray | Array
        if is_mipmap and not normalized_coords:
            raise ArgumentError(
                "a texture of a MipmappedArray has coordinates from 0 to 1; pass normalized_coords=True"
            )
        if isinstance(memory, (CUDAArray, MipmappedArray)):
            source, resource, address = memory, resource_of(memory), 0
            axes = len(memory.shape) - memory.layered
            if channels not in (1, memory.channels):
                raise ArgumentError(f"channels is {channels}, the array has {memory.channels}")
        else:
            source = linear = checked_linear(memory, channels)
            resource, address = rows_of(linear, channels), linear.ptr
            axes = linear.ndim - (channels > 1)
            if axes == 1 and (filter_mode == "linear" or normalized_coords):
                raise ArgumentError(
                    "memory of one axis is read by its index, unfiltered; copy it to a CUDAArray"
                )
        if seamless and not getattr(source, "cubemap", False):
            raise ArgumentError("seamless is of a cubemap's faces, and memory is none")
        self._describe(source, source.device_index, address, None, False)
        check_reading(source.dtype.name, filter_mode, read_mode, bool(srgb))
        flags = (
            AS_INTEGERS * (read_mode == "element_type")
            | NORMALIZED * bool(normalized_coords)
            | SRGB * bool(srgb)
            | EXACT * bool(exact_levels)
            | SEAMLESS * bool(seamless)
        )
        # A GPU reads one axis as a row between two of the border, and would filter these in.
        modes[axes:] = [ADDRESS_MODES["clamp"]] * (3 - axes)
        sampling = SAMPLING.pack(
            *modes, chosen, flags, max_anisotropy, between, level_bias, least, most, *border
        )
        self.description: str = f"{filter_mode}, {address_mode}, {read_mode}"
        make(self, TEXTURE, source, resource, sampling)

    def __repr__(self) -> str:
        return text_of(self, f"of {self.array!r}, {self.description}" if self.handle else "")


class SurfaceObject(HandledMemory):
    """Lets kernels read and write elements of a CUDAArray: a parameter of the type cudaSurfaceObject_t.

    Arguments:
        array: CUDAArray, made with surface=True.
    Attributes:
        array, device_index, handle: as of a TextureObject.
    Raises:
        ValueError, TypeError: array is no such array, or was closed.
        CudaError: the driver refused.
        RuntimeError: it was made before.

    Kernels name the place along a row in bytes: surf2Dwrite(value, surface, x * sizeof(value), y).
    """

    __slots__ = ()
    _parameter = "its parameter is a cudaSurfaceObject_t, of 8 bytes"

    def __init__(self, array: CUDAArray) -> None:
        if not isinstance(array, CUDAArray):
            raise ArgumentTypeError(
                f"array is of type {type(array).__name__}; pass a CUDAArray made with surface=True"
            )
        if not array.surface:
            raise ArgumentError("array was not made for surfaces; make it with surface=True")
        self._describe(array, array.device_index, 0, None, True)
        make(self, SURFACE_OBJECT, array, resource_of(array), None)

    def __repr__(self) -> str:
        return text_of(self, f"of {self.array!r}" if self.handle else "")


# --- arguments ---------------------------------------------------------------------------------------------


def make(what: HandledMemory, kind: int, source: Any, resource: bytes, sampling: bytes | None) -> None:
    code = what._hold(kind, source, resource, sampling)
    if code:
        raise status_error(
            code, "texture_create", ("device", what.device_index, "of", repr(source)), TOO_LARGE
        )


def parts_of(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else ()


def is_single(value: Any) -> bool:
    """Tells whether the driver's structs, whose numbers have 4 bytes, hold a number."""
    try:
        SINGLE.pack(value)
    except (OverflowError, struct.error):
        return False
    return True


def checked_modes(address_mode: Any, normalized: bool) -> list[int]:
    """Reads the modes of three axes, the innermost first."""
    words = (address_mode,) * 3 if isinstance(address_mode, str) else parts_of(address_mode)[::-1]
    if not 1 <= len(words) <= 3:
        raise ArgumentError(f"address_mode is {address_mode!r}; pass one, or one for each of 1 to 3 axes")
    modes = [ADDRESS_MODES[checked_word(word, "address_mode", ADDRESS_MODES)] for word in words]
    if not normalized and {"wrap", "mirror"} & set(words):
        raise ArgumentError(
            f"address_mode is {address_mode!r}; 'wrap' and 'mirror' need normalized_coords=True"
        )
    return modes + modes[-1:] * (3 - len(modes))


def checked_border(color: Any) -> tuple[float, ...]:
    parts = (color,) * 4 if is_single(color) else parts_of(color)
    if len(parts) != 4 or not all(map(is_single, parts)):
        raise ArgumentError(f"border_color is {color!r}; pass a float, or 4 of them")
    return parts


def checked_levels(levels: int, clamp: Any, bias: Any, between: int, is_mipmap: bool) -> tuple[float, float]:
    """Reads which levels of a texture are read: the least and the most."""
    if not is_mipmap and (clamp is not None or bias or between):
        raise ArgumentError(
            "mipmap_filter, level_bias and level_clamp choose between the levels of a MipmappedArray"
        )
    if not is_single(bias) or not math.isfinite(bias):
        raise ArgumentError(f"level_bias is {bias!r}; pass a float")
    if clamp is None:
        return 0.0, levels - 1.0
    pair = parts_of(clamp)
    if len(pair) != 2 or not all(map(is_single, pair)):
        raise ArgumentError(f"level_clamp is {clamp!r}; pass the least and the most level")
    if not 0 <= pair[0] <= pair[1]:
        raise ArgumentError(f"level_clamp is {clamp!r}; the least level is from 0 to the most")
    return pair[0], pair[1]


def check_reading(dtype: str, filter_mode: str, read_mode: str, srgb: bool) -> None:
    fractions = read_mode == "normalized_float"
    if fractions and dtype not in NARROW:
        raise ArgumentError(
            f"read_mode is {read_mode!r}, of integers of 8 and 16 bits; the elements are of {dtype}"
        )
    if filter_mode == "linear" and not fractions and not dtype.startswith("float"):
        raise ArgumentError(
            f"filter_mode is 'linear', but elements are of {dtype}; pass read_mode='normalized_float', or "
            "make them floating-point"
        )
    if srgb and (dtype != "uint8" or not fractions):
        raise ArgumentError("srgb is of elements of uint8, read by read_mode='normalized_float'")


def checked_linear(memory: Any, channels: int) -> Array:
    """Reads device memory of one axis, or of rows, as textures take it."""
    array = checked_memory(memory, "memory", None)
    if array.device_index < 0:
        raise ArgumentTypeError("memory is in the host's memory; copy it to a device")
    format_of(array.dtype, channels)
    axes = array.ndim - (channels > 1)
    if not 1 <= axes <= 2 or (channels > 1 and array.shape[-1] != channels) or array.size == 0:
        raise ArgumentError(
            f"memory has the shape {array.shape}; a texture of memory has one or two axes of elements of "
            f"{channels} channels, which are one more axis if there are several"
        )
    element = array.itemsize * channels
    if array.strides[axes - 1] != element or array.strides[-1] != array.itemsize:
        raise ArgumentError(f"memory has strides of {array.strides} bytes; its rows have to be dense")
    limits = get_device_properties(array.device_index).attributes
    start, pitch = limits["texture_alignment"], limits["texture_pitch_alignment"]
    if array.ptr % start:
        raise ArgumentError(
            f"memory begins at {array.ptr:#x}; a texture begins at a multiple of {start} bytes"
        )
    if axes == 2 and array.strides[0] % pitch:
        raise ArgumentError(
            f"memory has rows {array.strides[0]} bytes apart; a texture has them at multiples of {pitch}: "
            "make longer rows, and pass a slice of them"
        )
    return array


def rows_of(array: Array, channels: int) -> bytes:
    format_ = FORMATS[array.dtype.name]
    if array.ndim - (channels > 1) == 1:
        return RESOURCE.pack(OF_LINEAR, array.ptr, format_, channels, array.nbytes, 0, 0)
    return RESOURCE.pack(
        OF_ROWS, array.ptr, format_, channels, array.shape[1], array.shape[0], array.strides[0]
    )


def resource_of(array: CUDAArray | MipmappedArray) -> bytes:
    if not array.handle:
        raise ArgumentError(f"{array!r} was closed; make another, or close it later")
    kind = OF_MIPMAP if isinstance(array, MipmappedArray) else OF_ARRAY
    return RESOURCE.pack(kind, array.handle, 0, 0, 0, 0, 0)
