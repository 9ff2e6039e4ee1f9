"""Shapes and strides of elementwise kernels: broadcasting, axes put together, and operands that overlap."""

from __future__ import annotations

from math import gcd, prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Layout(NamedTuple):
    """A way to count elements.

    Attributes:
        lengths: list of int, of the axes that are left, outermost first.
        strides: list of list of int, bytes, for each array its stride along each of them.
    """

    lengths: list[int]
    strides: list[list[int]]


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that NumPy's broadcasting rules give; None where they give none."""
    lengths_out: list[int] = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        lengths = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(lengths) > 1:
            return None
        lengths_out.append(lengths.pop() if lengths else 1)
    return tuple(lengths_out)


def broadcast_strides(
    shape: tuple[int, ...], own: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[int, ...]:
    """The strides of an array of the shape `own` broadcast to a shape: 0 along the axes that it lacks."""
    lacks = len(shape) - len(own)
    return (0,) * lacks + tuple(
        stride if length == target else 0
        for length, stride, target in zip(own, strides, shape[lacks:], strict=True)
    )


def collapse(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]], in_order: bool) -> Layout:
    """The fewest axes that visit the same elements of each array together.

    Arguments:
        strides: of each array, bytes; the first one's decide the order of the axes.
        in_order: bool, whether elements have to be counted in the shape's C order.
    """
    axes = [axis for axis, length in enumerate(shape) if length != 1]
    if not in_order:
        axes.sort(key=lambda axis: [-abs(each[axis]) for each in strides])
    lengths: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis in axes:
        length, steps = shape[axis], [each[axis] for each in strides]
        if lengths and all(old[-1] == step * length for old, step in zip(merged, steps, strict=True)):
            lengths[-1] *= length
            for old, step in zip(merged, steps, strict=True):
                old[-1] = step
        else:
            lengths.append(length)
            for old, step in zip(merged, steps, strict=True):
                old.append(step)
    return Layout(lengths, merged)


class Piece(NamedTuple):
    """The place of an array's elements; strides in bytes."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def span_of(piece: Piece) -> tuple[int, int]:
    """The lowest byte of an element, and the one past the highest, from the first element's address on."""
    reach = [(length - 1) * stride for length, stride in zip(piece.shape, piece.strides, strict=True)]
    return sum(step for step in reach if step < 0), sum(step for step in reach if step > 0) + piece.itemsize


def overlap(one: Piece, other: Piece) -> bool:
    """Tells whether two arrays may share bytes.

    Certain where it answers False: their addresses lie apart, or one's elements lie between the other's, as
    with x[::2] and x[1::2].
    """
    if prod(one.shape) == 0 or prod(other.shape) == 0:
        return False
    (low, high), (other_low, other_high) = span_of(one), span_of(other)
    if one.ptr + high <= other.ptr + other_low or other.ptr + other_high <= one.ptr + low:
        return False
    steps = [
        stride
        for piece in (one, other)
        for length, stride in zip(piece.shape, piece.strides, strict=True)
        if length > 1
    ]
    # Every element of both is a multiple of the common divisor away from its array's first one.
    common = gcd(*steps)
    apart = (other.ptr - one.ptr) % common if common else 0
    return not (common and one.itemsize <= apart and apart + other.itemsize <= common)


def overlaps_itself(piece: Piece) -> bool:
    """Tells whether two elements of an array may share bytes; certain where it answers False."""
    reach = piece.itemsize
    for stride, length in sorted(
        (abs(stride), length) for length, stride in zip(piece.shape, piece.strides, strict=True) if length > 1
    ):
        if stride < reach:
            return prod(piece.shape) != 0
        reach = stride * (length - 1) + reach
    return False
