"""Arrays of ones and of ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from accelrt.arrays.exchange import asarray, full, full_like

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from accelrt.annotations import DeviceArgument, Shape
    from accelrt.arrays.array import Array
    from accelrt.streams.stream import Stream

__all__ = ["arange", "ones", "ones_like"]


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
    return asarray(numpy.arange(*bounds, dtype=dtype), device=device, stream=stream)
