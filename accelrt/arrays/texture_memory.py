"""CUDA arrays, and mipmaps of them: memory that kernels reach by textures and surfaces (textures.py).

    image = accelrt.CUDAArray((480, 640), "float32")
    image.copy_from(pixels)

Shapes are in the order of arrays here, the last axis the innermost; NVIDIA's functions name the width first.
"""

from __future__ import annotations

import math
import operator
import struct
import sys
from typing import TYPE_CHECKING

from accelrt.arrays.array import Array, Buffer, PinnedBuffer, is_pinned
from accelrt.arrays.exchange import asarray, empty
from accelrt.arrays.managed import HandledMemory, copy_box
from accelrt.devices.device import device_ordinal
from accelrt.driver.registry import Rows
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.memory.history.recording import is_recording
from accelrt.runtime.lifetimes import capture_of
from accelrt.status import status_error
from accelrt.streams.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    import numpy as np
    from numpy.typing import DTypeLike

    from accelrt.annotations import DeviceArgument

__all__ = ["CUDAArray", "MipmappedArray"]

# CUarray_format by dtype.
FORMATS = {
    **{"uint8": 1, "uint16": 2, "uint32": 3, "int8": 8, "int16": 9, "int32": 10},
    **{"float16": 16, "float32": 32},
}
LAYERED, SURFACE, CUBEMAP, GATHER = 1, 2, 4, 8  # CUDA_ARRAY3D_ flags
ARRAY, MIPMAP = 10, 13  # kinds of runtime/lifetimes.pxd
OUT_OF_MEMORY = 2
LONGEST_PITCH = 0x7FFFFFFF
MOST_BYTES = 1 << 62
MOST_FRAMES = 64  # of a stack
SPEC = struct.Struct("=QQQiII4x")  # ArraySpec of driver/textures.pxd
TOO_LARGE = "the device's properties say how long the axes may be: maximum_texture2d_width and its kin"


class ElementArray(HandledMemory):
    """Holds the elements and the driver's object that arrays and mipmaps have in common."""

    __slots__ = ("channels", "cubemap", "dtype", "layered", "nbytes", "shape", "surface")
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    channels: int
    nbytes: int
    layered: bool
    cubemap: bool
    surface: bool

    def _describe_elements(
        self, ordinal: int, lengths: tuple[int, ...], dtype: np.dtype[Any], channels: int, flags: int
    ) -> None:
        self._describe(None, ordinal, 0, None, True)
        self.shape, self.dtype, self.channels = lengths, dtype, channels
        self.layered, self.cubemap, self.surface = (
            bool(flags & flag) for flag in (LAYERED, CUBEMAP, SURFACE)
        )
        self.nbytes = dtype.itemsize * channels * math.prod(lengths)

    def _make(
        self,
        kind: int,
        lengths: tuple[int, ...],
        dtype: Any,
        channels: Any,
        flags: int,
        device: Any,
        levels: int,
    ) -> None:
        """Makes the driver's array; levels: of a mipmap, 0 for what is none."""
        import numpy as np

        element = np.dtype(dtype)
        spec = SPEC.pack(
            *dimensions(lengths, bool(flags & LAYERED)), format_of(element, channels), channels, flags
        )
        ordinal = device_ordinal(device)
        self._describe_elements(ordinal, lengths, element, channels, flags)
        for level in range(1, levels):
            self.nbytes += element.itemsize * channels * math.prod(shape_at(lengths, flags, level))
        if self.nbytes > MOST_BYTES:
            raise ArgumentError(f"shape is {lengths}: no device has {self.nbytes} bytes; {TOO_LARGE}")
        listed = {"nbytes": self.nbytes, "shape": list(lengths), "dtype": element.name, "channels": channels}
        listed |= {"levels": levels, "kinds": self._kinds().split(), "frames": frames_here(ordinal)}
        code = self._hold(kind, None, spec, None, self.nbytes, levels, listed)
        if code:
            row, more = ("mipmap_create", ("levels", levels)) if levels else ("array_create", ())
            facts = ("shape", lengths, "dtype", element.name, "channels", channels, "flags", flags)
            meaning = "" if code == OUT_OF_MEMORY else TOO_LARGE
            raise status_error(code, row, ("device", ordinal, *facts, *more), meaning)

    def _kinds(self) -> str:
        return " ".join(name for name in ("layered", "cubemap", "surface") if getattr(self, name))


class CUDAArray(ElementArray):
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

    __slots__ = ()
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
        flags = kinds_of(layered, surface, cubemap, gather)
        self._make(ARRAY, checked_shape(shape, flags), dtype, channels, flags, device, 0)

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

        number, ordinal = operator.index(handle), device_ordinal(device)
        if not 0 <= number < 1 << 64:
            raise ArgumentError(f"handle is {handle!r}; pass the driver's, from 0 to 2**64 - 1")
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
        lengths = tuple(each for each in (depth, height, width) if each)
        array._describe_elements(ordinal, lengths, np.dtype(names[0]), channels, flags)
        array._adopt(ARRAY, number, owner)
        return array

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
                with several channels one more, of these.  Or memory with the bytes of all elements, in the
                order of arrays: a Buffer or PinnedBuffer, or uint8 of one axis.
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
            dst: as src of copy_from, memory that can be written.
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
        if offset is None and (isinstance(array, (Buffer, PinnedBuffer)) or self._takes_bytes_of(memory)):
            if memory.nbytes < self.nbytes:
                raise ArgumentError(
                    f"{name} has {memory.nbytes} bytes, the elements of the array {self.nbytes}"
                )
            more = (self.channels,) if self.channels > 1 else ()
            memory = Array(memory, (*self.shape, *more), self.dtype, readonly=memory.readonly)
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
        is_ordinary = memory.device_index < 0 and not is_pinned(memory.ptr)
        if is_ordinary and capture_of(self.device_index, worker.handle)[0]:
            raise ArgumentError(
                f"{name} is ordinary host memory, which no capture copies here; pass page-locked memory, "
                "accelrt.empty(..., pin_memory=True)"
            )
        place = {"pin_memory": True} if is_ordinary else {"device": self.device_index, "stream": worker}
        between = empty(memory.shape, memory.dtype, **place)
        layout = layout_of(between.shape, between.strides, size, len(self.shape), self.layered)
        assert layout is not None
        order = None if is_ordinary else worker  # page-locked memory too is read and written in the stream's
        if writes:
            between.copy_(memory, non_blocking=True, stream=order)
        waits = bool(blocking) or (is_ordinary and not writes)
        copy_box(self, between, corner, size, layout, writes, waits, worker)
        if not writes:
            memory.copy_(between, non_blocking=True, stream=order)
            if blocking and not is_ordinary:
                worker.synchronize()

    def _takes_bytes_of(self, memory: Array) -> bool:
        """Tells memory of bytes that are not the elements themselves."""
        is_of_bytes = self.dtype.itemsize == len(self.shape) == self.channels == 1
        return memory.ndim == 1 and memory.dtype.name == "uint8" and not is_of_bytes

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
        return text_of(self, f"of {self.shape}, {self.channels} x {self.dtype} {self._kinds()}".rstrip())


class MipmappedArray(ElementArray):
    """CUDA arrays of one image, each with half as many elements along an axis as the one before: levels of
    detail, between which a texture chooses.

        mipmaps = accelrt.MipmappedArray((256, 256), "float32")
        for level in range(mipmaps.levels):
            mipmaps.level(level).copy_from(smaller[level])
        texture = accelrt.TextureObject(mipmaps, normalized_coords=True, mipmap_filter="linear")

    Arguments:
        shape, dtype, channels, layered, cubemap, surface, gather, device: as of a CUDAArray, of the first
            level.  Layers and faces are as many in each.
        levels: int, from 1 on; None is all, down to one element.
    Attributes:
        shape, dtype, channels, layered, cubemap, surface: of the first level.
        levels: int.
        nbytes: int, bytes of the elements of all levels.
        device_index: int, the ordinal of the device.
        handle: int, the driver's (CUmipmappedArray); 0 once it was closed.
    Raises:
        As CUDAArray; ValueError also where there are not so many levels.

    What holds of copies and close() of a CUDAArray holds here: levels and textures keep the memory.
    """

    __slots__ = ("levels",)
    levels: int
    _parameter = "a kernel reads it by a TextureObject of it, and writes a level by a SurfaceObject"

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike,
        channels: int = 1,
        *,
        levels: int | None = None,
        layered: bool = False,
        cubemap: bool = False,
        surface: bool = False,
        gather: bool = False,
        device: DeviceArgument | None = None,
    ) -> None:
        flags = kinds_of(layered, surface, cubemap, gather)
        lengths = checked_shape(shape, flags)
        most = max(lengths[bool(layered or cubemap) :]).bit_length()
        count = most if levels is None else operator.index(levels)
        if not 1 <= count <= most:
            raise ArgumentError(f"levels is {levels!r}; an array of {lengths} has 1 to {most}")
        self.levels = count
        self._make(MIPMAP, lengths, dtype, channels, flags, device, count)

    def level(self, index: int) -> CUDAArray:
        """Returns a level as a CUDAArray (cuMipmappedArrayGetLevel), which keeps the memory of all.

        Arguments:
            index: int, from 0 on; below 0 it counts from the end.
        Raises:
            IndexError: there is no such level.
            ValueError: it was closed.
        """
        number = operator.index(index)
        if not -self.levels <= number < self.levels:
            raise IndexError(f"index is {number}; there are {self.levels} levels")
        number %= self.levels
        part = CUDAArray.__new__(CUDAArray)
        flags = kinds_of(self.layered, self.surface, self.cubemap, False)
        lengths = shape_at(self.shape, flags, number)
        part._describe_elements(self.device_index, lengths, self.dtype, self.channels, flags)
        code = part._adopt_level(self, number)
        if code:
            raise status_error(code, "mipmap_level", ("mipmap", self.handle, "level", number))
        return part

    def __repr__(self) -> str:
        facts = f"of {self.shape}, {self.levels} levels, {self.channels} x {self.dtype} {self._kinds()}"
        return text_of(self, facts.rstrip())


# --- arguments ---------------------------------------------------------------------------------------------


def frames_here(ordinal: int) -> list[dict[str, Any]]:
    """Lists the stack of who makes an array, the innermost first, where history is recorded."""
    frames: list[dict[str, Any]] = []
    frame = sys._getframe(1) if is_recording(ordinal) else None
    while frame is not None and len(frames) < MOST_FRAMES:
        code = frame.f_code
        if frames or frame.f_globals.get("__name__") != __name__:
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames


def format_of(dtype: Any, channels: Any) -> int:
    if dtype.name not in FORMATS or not dtype.isnative:
        raise ArgumentTypeError(
            f"dtype is {dtype}; elements are of {', '.join(FORMATS)}, in the machine's order of bytes"
        )
    if isinstance(channels, (bool, float)) or channels not in (1, 2, 4):
        raise ArgumentError(f"channels is {channels!r}; an element has 1, 2 or 4")
    return FORMATS[dtype.name]


def checked_shape(shape: Any, flags: int) -> tuple[int, ...]:
    layered, cubemap = flags & LAYERED, flags & CUBEMAP
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
        raise ArgumentError(f"shape is {shape!r}; each axis has 1 to {(1 << 31) - 1} elements")
    if cubemap and (lengths[1] != lengths[2] or lengths[0] % 6 or (lengths[0] != 6 and not layered)):
        raise ArgumentError(
            f"shape is {shape!r}; a cubemap has 6 faces, or 6 for each layer, as high as wide"
        )
    return lengths


def kinds_of(layered: Any, surface: Any, cubemap: Any, gather: Any) -> int:
    flags = (layered, LAYERED), (surface, SURFACE), (cubemap, CUBEMAP), (gather, GATHER)
    return sum(flag for wanted, flag in flags if wanted)


def shape_at(lengths: tuple[int, ...], flags: int, level: int) -> tuple[int, ...]:
    """Finds the shape of a mipmap's level: layers and faces stay as many."""
    slices = bool(flags & (LAYERED | CUBEMAP))
    return lengths[:slices] + tuple(max(length >> level, 1) for length in lengths[slices:])


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


def text_of(what: HandledMemory, facts: str) -> str:
    state = "" if what.handle else ", closed"
    return f"<accelrt.{type(what).__name__} {facts}, device {what.device_index}{state}>"
