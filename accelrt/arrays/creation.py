"""Arrays of ones and of ranges, and NumPy's on page-locked memory."""

from __future__ import annotations

import math
import operator
import sys
from typing import TYPE_CHECKING

import numpy

from accelrt.arrays.array import PinnedBuffer
from accelrt.arrays.exchange import asarray, empty, full, full_like

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import DTypeLike, NDArray

    from accelrt.annotations import DeviceArgument, Shape
    from accelrt.arrays.array import Array
    from accelrt.streams.stream import Stream

__all__ = ["arange", "ones", "ones_like", "pinned_empty"]
MUCH = 64 << 20  # bytes that NumPy computes where the device has room for them, and not before


def ones(
    shape: Shape,
    dtype: DTypeLike = float,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array:
    """Returns an Array of ones, which are set in its stream's order.

    Arguments, Raises: as accelrt.empty.
    """
    return full(shape, 1, dtype, device, stream)


def ones_like(
    other: Array,
    dtype: DTypeLike | None = None,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array:
    """Returns an Array of ones of another one's shape.

    Arguments: as accelrt.empty_like.
    """
    return full_like(other, 1, dtype, device, stream)


def arange(
    *bounds: float,
    dtype: DTypeLike | None = None,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array:
    """Makes an Array of numbers at one distance: arange(stop), (start, stop) or (start, stop, step).

    Arguments:
        bounds: one to three numbers.  The first element is start, or 0; none reaches stop; step is 1.
        dtype: None is NumPy's for the numbers.
        device, stream: as of accelrt.empty().
    Returns:
        Array of one axis.  NumPy computes the elements, which are copied to the device.
    Raises:
        TypeError: bounds are not one to three numbers.
        ZeroDivisionError, ValueError: of NumPy's, for a step of 0 and bounds without an end.
        OutOfMemoryError: the device, or the host, has no room.
    """
    if not 1 <= len(bounds) <= 3:
        raise TypeError(
            f"arange() takes stop, or start and stop, or start, stop and step; {len(bounds)} given"
        )
    nbytes = bytes_of_range(*bounds, dtype=dtype)
    if nbytes >= MUCH:  # it is refused before the host has as much
        empty(nbytes, numpy.uint8, device, stream)
    return asarray(numpy.arange(*bounds, dtype=dtype), device=device, stream=stream)


def bytes_of_range(*bounds: float, dtype: DTypeLike | None) -> int:
    """Returns how many bytes a range has; 0 where NumPy is to say what is wrong with it."""
    start, stop, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    try:
        count = max(math.ceil((stop - start) / step), 0)
        kind = numpy.result_type(*bounds) if dtype is None else numpy.dtype(dtype)
    except (ArithmeticError, TypeError, ValueError):
        return 0
    return count * kind.itemsize if count * kind.itemsize <= sys.maxsize else 0


def pinned_empty(shape: int | tuple[int, ...], dtype: DTypeLike = float) -> NDArray[Any]:
    """Returns a NumPy array on page-locked memory of the cache, not set.

    The memory goes back when the last view of it dies.

    Arguments:
        shape: int or tuple of int.
        dtype: anything that numpy.dtype takes, but without Python objects.
    Returns:
        numpy.ndarray, C-contiguous.
    Raises:
        OutOfMemoryError: the driver has no such memory.
        ValueError, TypeError: a length is negative or no int, or dtype is none or holds Python objects.
    """
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(
            f"dtype {kind} holds Python objects, which no device can read; pass a dtype of plain values"
        )
    lengths: tuple[int, ...]
    try:
        lengths = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        lengths = tuple(operator.index(length) for length in shape)  # type: ignore[union-attr]
    if min(lengths, default=0) < 0:
        raise ValueError(f"shape is {shape}; a length is 0 or more")
    memory: Any = PinnedBuffer(math.prod(lengths) * kind.itemsize)
    return numpy.ndarray(lengths, kind, memory if memory.nbytes else None)
