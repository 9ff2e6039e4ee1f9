"""CUDA arrays, and the textures and surfaces through which kernels read and write them.

    image = accelrt.CUDAArray((480, 640), "float32")
    image.copy_from(pixels)
    texture = accelrt.TextureObject(image, filter_mode="linear")
    kernel[grid, block](texture, out)  # __global__ void kernel(cudaTextureObject_t texture, float* out)

Shapes are in the order of arrays here, the last axis the innermost; NVIDIA's functions name the width first.
"""

from __future__ import annotations

import math
import operator
import struct
from typing import TYPE_CHECKING

from accelrt.arrays.array import Array, Buffer
from accelrt.arrays.exchange import asarray, empty
from accelrt.arrays.managed import HandledMemory, copy_box
from accelrt.devices.context_limits import ordinal_of
from accelrt.devices.device import get_device_properties
from accelrt.driver.registry import Rows
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.memory.caching import empty_cache
from accelrt.runtime.lifetimes import capture_of
from accelrt.status import status_error
from accelrt.streams.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    import numpy as np
    from numpy.typing import DTypeLike

    from accelrt.annotations import DeviceArgument

__all__ = ["CUDAArray", "SurfaceObject", "TextureObject"]

# CUarray_format by dtype.
FORMATS = {
    **{"uint8": 1, "uint16": 2, "uint32": 3, "int8": 8, "int16": 9, "int32": 10},
    **{"float16": 16, "float32": 32},
}
NARROW = ("uint8", "uint16", "int8", "int16")  # which are read as fractions of their range too
LAYERED, SURFACE, CUBEMAP, GATHER = 1, 2, 4, 8  # CUDA_ARRAY3D_ flags
OF_ARRAY, OF_LINEAR, OF_ROWS = 0, 2, 3  # CUresourcetype
ADDRESS_MODES = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}
FILTER_MODES = {"nearest": 0, "linear": 1}
READ_MODES = ("element_type", "normalized_float")
AS_INTEGERS, NORMALIZED, SRGB = 1, 2, 16  # CU_TRSF_ flags
ARRAY, TEXTURE, SURFACE_OBJECT = 10, 11, 12  # kinds of runtime/lifetimes.pxd
OUT_OF_MEMORY = 2
LONGEST_PITCH = 0x7FFFFFFF
# The structs of driver/textures.pxd.
SPEC = struct.Struct("=QQQiII4x")
RESOURCE = struct.Struct("=i4xQiIQQQ96x")
SAMPLING = struct.Struct("=3iiIIif2f4f48x")


class CUDAArray(HandledMemory):
    """Memory that kernels reach by textures and surfaces alone, laid out for what lies near each other.

        image = accelrt.CUDAArray((480, 640), "uint8", channels=4)
        layers = accelrt.CUDAArray((8, 480, 640), "float32", layered=True)

    Arguments:
        shape: int, or 1 to 3 ints, elements along each axis: (width,), (height, width) or (depth, height,
            width).  Where it is layered the first one counts layers: (layers, width) or (layers, height,
            width); of a cubemap it counts the faces: (6, n, n), or (6 * layers, n, n).
        dtype: uint8, uint16, uint32, int8, int16, int32, float16 or float32.
        channels: int, values of that type in an element: 1, 2 or 4.
        layered: bool, whether it is layers, between which nothing is filtered.
        cubemap: bool, whether it is the faces of cubes.
        surface: bool, whether kernels may write it, by a SurfaceObject.
        gather: bool, whether kernels may gather one channel of four elements; of two axes alone.
        device: int, "cuda:1", ...; None is the current device.
    Attributes:
        shape: tuple of ints.
        dtype: numpy.dtype.
        channels: int.
        layered, cubemap, surface: bool.
        nbytes: int, bytes of its elements; the device pads them.
        device_index: int, the ordinal of the device.
        handle: int, the driver's (CUarray); 0 once it was closed.
    Raises:
        ValueError, TypeError: the arguments are no array's, or the device has none so large.
        OutOfMemoryError: the device has no memory left.
        CudaError: the driver refused.
        RuntimeError: it was made before.

    Copies keep the order of a stream, and so does close(): work that was put in goes on, and textures and
    graphs that have the array keep its memory.
    """

    __slots__ = ("channels", "cubemap", "dtype", "layered", "nbytes", "shape", "surface")
    _parameter = "a kernel reads and writes it by a TextureObject or a SurfaceObject of it"

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike,
        channels: int = 1,
        *,
        layered: bool = False,
        cubemap: bool = False,
        surface: bool = False,
        gather: bool = False,
        device: DeviceArgument | None = None,
    ) -> None:
        import numpy as np

        lengths = checked_shape(shape, bool(layered), bool(cubemap))
        kind = np.dtype(dtype)
        format_ = format_of(kind, channels)
        flags = (
            LAYERED * bool(layered)
            | SURFACE * bool(surface)
            | CUBEMAP * bool(cubemap)
            | GATHER * bool(gather)
        )
        ordinal = ordinal_of(device)
        self._describe(None, ordinal, 0, None, True)
        self._say(lengths, kind, channels, flags)
        spec = SPEC.pack(*dimensions(lengths, bool(layered)), format_, channels, flags)
        code = self._hold(ARRAY, None, spec, None, self.nbytes)
        if code == OUT_OF_MEMORY:
            empty_cache()
            code = self._hold(ARRAY, None, spec, None, self.nbytes)
        if code:
            facts = (
                "device",
                ordinal,
                "shape",
                lengths,
                "dtype",
                kind.name,
                "channels",
                channels,
                "flags",
                flags,
            )
            raise status_error(code, "array_create", facts, "" if code == OUT_OF_MEMORY else TOO_LARGE)

    @classmethod
    def from_handle(cls, handle: int, owner: object, device: DeviceArgument | None = None) -> Self:
        """Returns a CUDAArray of an array that another library made (cuArray3DGetDescriptor).

        Arguments:
            handle: int, the driver's (CUarray).
            owner: object, which is kept as long as the array is used: it destroys it.
            device: int, "cuda:1", ..., the array's; None is the current device.
        Raises:
            ValueError, TypeError: handle is no int, or its elements are of a type that is not taken here.
            CudaError: the driver knows no such array.
        """
        import ctypes

        import numpy as np

        number, ordinal = operator.index(handle), ordinal_of(device)
        room = ctypes.create_string_buffer(SPEC.size)
        code = Rows().array_spec(ordinal, number, ctypes.addressof(room))
        if code:
            raise status_error(code, "array_spec", ("device", ordinal, "array", number))
        width, height, depth, format_, channels, flags = SPEC.unpack(room.raw)
        names = [name for name, value in FORMATS.items() if value == format_]
        if not names:
            raise ArgumentError(
                f"the array has elements of format {format_}; {', '.join(FORMATS)} are taken here"
            )
        array = cls.__new__(cls)
        array._describe(None, ordinal, 0, None, True)
        array._say(
            tuple(each for each in (depth, height, width) if each), np.dtype(names[0]), channels, flags
        )
        array._adopt(ARRAY, number, owner)
        return array

    def _say(self, lengths: tuple[int, ...], dtype: Any, channels: int, flags: int) -> None:
        self.shape: tuple[int, ...] = lengths
        self.dtype: np.dtype[Any] = dtype
        self.channels: int = channels
        self.layered: bool = bool(flags & LAYERED)
        self.cubemap: bool = bool(flags & CUBEMAP)
        self.surface: bool = bool(flags & SURFACE)
        self.nbytes: int = dtype.itemsize * channels * math.prod(lengths)

    def copy_from(
        self,
        src: Any,
        *,
        offset: Sequence[int] | None = None,
        stream: Stream | int | None = None,
        blocking: bool = True,
    ) -> None:
        """Copies elements into the array (cuMemcpy3DAsync).

        Arguments:
            src: Array, or another array in host or device memory, of the array's dtype and number of axes,
                with several channels one more, of these.
            offset: ints, one for each axis of the array, where the elements begin in it; None is its start.
            stream: Stream, handle as int, or None for the current stream of the array's device.
            blocking: bool, wait until the copy is complete.  If False, page-locked memory has to stay as it
                is until the stream is past the copy; other host memory is staged.
        Raises:
            ValueError: the elements do not lie in the array, memory was freed, or a capture is to read
                ordinary host memory.
            TypeError: src is no array, or is of another dtype.
            CudaError: the driver refused.
        """
        self._copy(src, offset, stream, blocking, True)

    def copy_to(
        self,
        dst: Any,
        *,
        offset: Sequence[int] | None = None,
        stream: Stream | int | None = None,
        blocking: bool = True,
    ) -> None:
        """Copies elements out of the array, as copy_from copies them in.

        Arguments:
            dst: as src of copy_from, an array that can be written.
            offset, stream, blocking: as of copy_from; into ordinary host memory it always waits.
        """
        self._copy(dst, offset, stream, blocking, False)

    def _copy(
        self,
        array: Any,
        offset: Sequence[int] | None,
        stream: Stream | int | None,
        blocking: bool,
        writes: bool,
    ) -> None:
        name = "src" if writes else "dst"
        memory = checked_memory(array, name, self.device_index)
        if memory.dtype != self.dtype:
            raise ArgumentTypeError(
                f"{name} is of {memory.dtype}, the array of {self.dtype}; convert it first"
            )
        corner, size = self._box(memory.shape, offset, name)
        worker = (
            current_stream(self.device_index)
            if stream is None
            else Stream.from_any(stream, self.device_index)
        )
        if 0 in memory.shape:
            return
        layout = layout_of(memory.shape, memory.strides, size, len(self.shape), self.layered)
        if layout and copy_box(self, memory, corner, size, layout, writes, bool(blocking), worker):
            return
        # Scattered elements, and ordinary host memory, go by other memory.
        on_host = memory.device_index < 0
        if on_host and capture_of(self.device_index, worker.handle)[0]:
            raise ArgumentError(
                f"{name} is ordinary host memory, which no capture copies here; pass page-locked memory, "
                "accelrt.empty(..., pin_memory=True)"
            )
        place = {"pin_memory": True} if on_host else {"device": self.device_index, "stream": worker}
        between = empty(memory.shape, memory.dtype, **place)
        layout = layout_of(between.shape, between.strides, size, len(self.shape), self.layered)
        assert layout is not None
        if writes:
            between.copy_(memory, stream=None if on_host else worker)
        copy_box(
            self, between, corner, size, layout, writes, bool(blocking) or (on_host and not writes), worker
        )
        if not writes:
            memory.copy_(between, stream=None if on_host else worker)

    def _box(
        self, shape: tuple[int, ...], offset: Sequence[int] | None, name: str
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Finds where the elements begin, and how many they are: bytes, rows and slices."""
        axes = len(self.shape)
        starts = (0,) * axes if offset is None else tuple(operator.index(each) for each in offset)
        if len(shape) != axes + (self.channels > 1) or (self.channels > 1 and shape[-1] != self.channels):
            more = f", {self.channels}" if self.channels > 1 else ""
            wanted = ", ".join(map(str, self.shape))
            raise ArgumentError(
                f"{name} has the shape {shape}; pass one within ({wanted}{more}), with as many axes"
            )
        if len(starts) != axes:
            raise ArgumentError(f"offset is {offset!r}; pass {axes} ints, one for each axis of the array")
        for start, length, most in zip(starts, shape, self.shape, strict=False):
            if not 0 <= start <= most - length:
                raise ArgumentError(
                    f"{name} of shape {shape} at offset {starts} does not lie in an array of {self.shape}"
                )
        element = self.dtype.itemsize * self.channels
        (z, y, x), (depth, height, width) = (
            spread(values, fill, self.layered) for values, fill in ((starts, 0), (shape[:axes], 1))
        )
        return (x * element, y, z), (width * element, height, depth)

    def __repr__(self) -> str:
        kinds = [name for name in ("layered", "cubemap", "surface") if getattr(self, name)]
        return text_of(self, " ".join([f"of {self.shape}, {self.channels} x {self.dtype}", *kinds]))


class TextureObject(HandledMemory):
    """Lets kernels read elements of memory: a parameter of the type cudaTextureObject_t.

        texture = accelrt.TextureObject(image, filter_mode="linear", address_mode="border")

    Arguments:
        memory: CUDAArray; or an Array or Buffer in device memory: of one axis, which kernels read by
            tex1Dfetch, or of two, whose rows begin at multiples of the device's texture_pitch_alignment.
        channels: int, values of an element of such memory: 1, 2 or 4, which are its last axis then.
        address_mode: "clamp", "border", "wrap" or "mirror", what is read outside; or a tuple of one for each
            axis, the innermost last.  The last two are of normalized coordinates.
        filter_mode: "nearest", or "linear" between elements, where what is read is floating-point.
        read_mode: "element_type", or "normalized_float": integers of 8 and 16 bits as fractions of their
            range.
        normalized_coords: bool, whether coordinates go from 0 to 1, rather than to the number of elements.
        srgb: bool, whether uint8 is read as sRGB, by read_mode="normalized_float".
        border_color: float, or 4 of them, what "border" reads.
        max_anisotropy: int, 0 to 16.
    Attributes:
        array: CUDAArray or Array that it is of, which it keeps.
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
        memory: CUDAArray | Array | Buffer | Any,
        *,
        channels: int = 1,
        address_mode: str | Sequence[str] = "clamp",
        filter_mode: str = "nearest",
        read_mode: str = "element_type",
        normalized_coords: bool = False,
        srgb: bool = False,
        border_color: float | Sequence[float] = 0.0,
        max_anisotropy: int = 0,
    ) -> None:
        modes = checked_modes(address_mode, bool(normalized_coords))
        chosen = one_of("filter_mode", filter_mode, FILTER_MODES)
        one_of("read_mode", read_mode, READ_MODES)
        border = checked_border(border_color)
        if not isinstance(max_anisotropy, int) or not 0 <= max_anisotropy <= 16:
            raise ArgumentError(f"max_anisotropy is {max_anisotropy!r}; it is an int from 0 to 16")
        source: CUDAArray | Array
        if isinstance(memory, CUDAArray):
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
        self._describe(source, source.device_index, address, None, False)
        check_reading(source.dtype.name, filter_mode, read_mode, bool(srgb))
        flags = (
            AS_INTEGERS * (read_mode == "element_type")
            | NORMALIZED * bool(normalized_coords)
            | SRGB * bool(srgb)
        )
        # A GPU reads one axis as a row between two of the border, and would filter these in.
        modes[axes:] = [ADDRESS_MODES["clamp"]] * (3 - axes)
        sampling = SAMPLING.pack(*modes, chosen, flags, max_anisotropy, 0, 0.0, 0.0, 0.0, *border)
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

TOO_LARGE = "the device's properties say how long the axes may be: maximum_texture2d_width and its kin"


def one_of(name: str, value: Any, allowed: Any) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise ArgumentError(f"{name} is {value!r}; it may be {', '.join(allowed)}")
    return allowed[value] if isinstance(allowed, dict) else value


def format_of(dtype: Any, channels: Any) -> int:
    if dtype.name not in FORMATS:
        raise ArgumentTypeError(f"dtype is {dtype}; elements are of {', '.join(FORMATS)}")
    if channels not in (1, 2, 4):
        raise ArgumentError(f"channels is {channels!r}; an element has 1, 2 or 4")
    return FORMATS[dtype.name]


def checked_shape(shape: Any, layered: bool, cubemap: bool) -> tuple[int, ...]:
    try:
        lengths = tuple(
            operator.index(each) for each in (shape if isinstance(shape, (tuple, list)) else (shape,))
        )
    except TypeError:
        raise ArgumentTypeError(f"shape is {shape!r}; pass an int, or 1 to 3 ints") from None
    fewest = 3 if cubemap else 2 if layered else 1
    if not fewest <= len(lengths) <= 3:
        kind = "a cubemap" if cubemap else "a layered array" if layered else "an array"
        raise ArgumentError(f"shape is {shape!r}; {kind} has {fewest} to 3 axes")
    if not all(0 < length < 1 << 31 for length in lengths):
        raise ArgumentError(f"shape is {shape!r}; each axis has 1 element or more")
    if cubemap and (lengths[1] != lengths[2] or lengths[0] % 6 or (lengths[0] != 6 and not layered)):
        raise ArgumentError(
            f"shape is {shape!r}; a cubemap has 6 faces, or 6 for each layer, as high as wide"
        )
    return lengths


def spread(values: Sequence[int], fill: int, layered: bool) -> tuple[int, int, int]:
    """Spreads the values of an array's axes over slices, rows and elements."""
    if len(values) == 2 and layered:
        return values[0], fill, values[1]
    padded = (fill,) * (3 - len(values)) + tuple(values)
    return padded[0], padded[1], padded[2]


def dimensions(lengths: tuple[int, ...], layered: bool) -> tuple[int, int, int]:
    """Orders width, height and depth as the driver has them: 0 where there is none."""
    depth, height, width = spread(lengths, 0, layered)
    return width, height, depth


def layout_of(
    shape: tuple[int, ...], strides: tuple[int, ...], size: tuple[int, int, int], axes: int, layered: bool
) -> tuple[int, int] | None:
    """Measures bytes from row to row, and rows from slice to slice; None where no copy takes such memory."""
    width, height, depth = size
    element = width // max(shape[axes - 1], 1)
    dense = strides[axes - 1] == element or shape[axes - 1] == 1
    if len(shape) > axes:
        dense = dense and strides[-1] * shape[-1] == element
    slice_, pitch, _ = spread(strides[:axes], 0, layered)
    pitch = pitch if height > 1 else slice_ if depth > 1 and slice_ >= width * height else width
    if depth == 1:
        slice_ = pitch * height
    if not dense or not width <= pitch <= LONGEST_PITCH or slice_ % pitch or slice_ < pitch * height:
        return None
    return pitch, slice_ // pitch


def checked_memory(array: Any, name: str, device: int | None) -> Array:
    on_device = isinstance(array, (Array, Buffer)) or hasattr(array, "__cuda_array_interface__")
    try:
        memory = (
            array
            if isinstance(array, Array)
            else asarray(array, device=None if on_device else "cpu", copy=False)
        )
    except (ValueError, BufferError) as error:
        raise ArgumentTypeError(
            f"{name} is of type {type(array).__name__}; pass an array ({error})"
        ) from None
    if device is not None and memory.device_index not in (-1, device):
        raise ArgumentError(
            f"{name} is on device {memory.device_index}, the array on device {device}; copy it first"
        )
    return memory


def checked_modes(address_mode: Any, normalized: bool) -> list[int]:
    """Reads the modes of three axes, the innermost first."""
    words = (address_mode,) * 3 if isinstance(address_mode, str) else tuple(address_mode)[::-1]
    if not 1 <= len(words) <= 3:
        raise ArgumentError(f"address_mode is {address_mode!r}; pass one, or one for each of 1 to 3 axes")
    modes = [one_of("address_mode", word, ADDRESS_MODES) for word in words]
    if not normalized and {"wrap", "mirror"} & set(words):
        raise ArgumentError(
            f"address_mode is {address_mode!r}; 'wrap' and 'mirror' need normalized_coords=True"
        )
    return modes + modes[-1:] * (3 - len(modes))


def checked_border(color: Any) -> tuple[float, ...]:
    parts = (color,) * 4 if isinstance(color, (int, float)) else tuple(color)
    if len(parts) != 4 or not all(isinstance(part, (int, float)) for part in parts):
        raise ArgumentError(f"border_color is {color!r}; pass a float, or 4 of them")
    return parts


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


def resource_of(array: CUDAArray) -> bytes:
    if not array.handle:
        raise ArgumentError(f"{array!r} was closed; make another, or close it later")
    return RESOURCE.pack(OF_ARRAY, array.handle, 0, 0, 0, 0, 0)


def text_of(what: HandledMemory, facts: str) -> str:
    state = "" if what.handle else ", closed"
    return f"<accelrt.{type(what).__name__} {facts}, device {what.device_index}{state}>"


def make(what: HandledMemory, kind: int, source: Any, resource: bytes, sampling: bytes | None) -> None:
    code = what._hold(kind, source, resource, sampling)
    if code:
        raise status_error(
            code, "texture_create", ("device", what.device_index, "of", repr(source)), TOO_LARGE
        )
