"""Launches: which kernel draws a distribution into an array, with which grid, from which offset on."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from accelrt.arrays.array import Array
from accelrt.arrays.create import asarray
from accelrt.kernels import c_compiler, compiler
from accelrt.kernels.elementwise_layout import Piece, collapse, overlaps_itself
from accelrt.kernels.elementwise_source import MOST_AXES, STORED
from accelrt.kernels.module import Module
from accelrt.random import philox_source as source
from accelrt.random.philox_source import BLOCK, WIDTHS, Form
from accelrt.streams.stream import StreamContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from accelrt.kernels.kernel import Kernel
    from accelrt.streams.stream import Stream

__all__ = ["Part", "checked_array", "forget_kernels", "form_of", "kernel_for", "parts_of", "sizes_of"]

MOST = (
    1 << 31
) - 1  # elements, and bytes from the first to the last, of one launch; torch's, so that bits agree
RANKED = 1024  # elements up to which a permutation sorts drawn keys

_kernels: dict[tuple[Form | str, int], Kernel] = {}


class Part(NamedTuple):
    """What one launch fills.

    Attributes:
        begin: int, bytes from the array's first element to the part's.
        lengths, strides: list of int, of the axes, outermost first, strides in bytes.
    """

    begin: int
    lengths: list[int]
    strides: list[int]


def checked_array(out: object, device: int, stream: Stream | None) -> Array:
    """An Array that kernels of a device may write, of this object's memory.

    Arguments:
        stream: the one that comes after the work of another library's array; None is the current one.
    Raises:
        TypeError: of its type no numbers are drawn.
        ValueError: it is read-only, on another device, or its elements share memory.
    """
    if isinstance(out, Array):
        array = out
    elif hasattr(out, "__cuda_array_interface__"):
        with StreamContext(stream):
            array = asarray(out)
    else:
        raise TypeError(
            f"out is of type {type(out).__name__}; pass an Array, or another library's array on the device"
        )
    if array.dtype.name not in STORED or not array.dtype.isnative or array.dtype.kind == "c":
        kinds = ", ".join(name for name in STORED if "complex" not in name)
        raise TypeError(f"out is of {array.dtype}, of which no random numbers are drawn; it may be {kinds}")
    if array.device_index != device:
        place = "in host memory" if array.device_index < 0 else f"on device {array.device_index}"
        raise ValueError(
            f"out is {place}, and the generator is of device {device}; use one of the array's device"
        )
    if array.readonly:
        raise ValueError("out is read-only")
    piece = Piece(array.ptr, array.shape, array.strides, array.itemsize)
    if overlaps_itself(piece):
        raise ValueError("elements of out share memory, and each is to be written; pass a copy()")
    if array.size and any(each % array.itemsize for each in (piece.ptr, *piece.strides)):
        raise ValueError(
            f"out has elements of {array.dtype} at addresses that are no multiples of {array.itemsize}, "
            "which no GPU writes; copy its bytes to an Array of its own"
        )
    return array


def axes_of(array: Array, in_order: bool) -> Part:
    """The array's axes, put together where they can be."""
    layout = collapse(array.shape, [array.strides], in_order)
    if len(layout.lengths) > MOST_AXES:
        raise ValueError(
            f"out has {len(layout.lengths)} axes that cannot be put together, and a kernel takes "
            f"{MOST_AXES}; fill contiguous memory and copy it"
        )
    return Part(0, layout.lengths or [1], layout.strides[0] or [array.itemsize])


def is_small(part: Part) -> bool:
    reach = sum((length - 1) * abs(step) for length, step in zip(part.lengths, part.strides, strict=True))
    return prod(part.lengths) <= MOST and reach < MOST


def parts_of(part: Part) -> Iterator[Part]:
    """The part, and where it is too large for one launch instead the halves of its longest axis, and so on.

    The larger ones come too, each before its halves: what is drawn leaves their share of the sequence out, as
    torch does.
    """
    yield part
    if is_small(part):
        return
    reach = [(length - 1) * abs(step) for length, step in zip(part.lengths, part.strides, strict=True)]
    axis = reach.index(max(reach))
    half, step = part.lengths[axis] // 2, part.strides[axis]
    for start, length in ((0, half), (half, part.lengths[axis] - half)):
        lengths = [*part.lengths[:axis], length, *part.lengths[axis + 1 :]]
        yield from parts_of(Part(part.begin + start * step, lengths, part.strides))


def sizes_of(count: int, width: int, geometry: tuple[int, int]) -> tuple[int, int]:
    """Blocks of a launch for so many elements, and the words of each thread's sequence that it may use.

    Arguments:
        width: int, numbers of a group.
        geometry: multiprocessors, and threads that each holds.
    """
    blocks = min(geometry[0] * (geometry[1] // BLOCK), -(-count // BLOCK))
    return blocks, ((count - 1) // (BLOCK * blocks * width) + 1) * 4


def form_of(name: str, array: Array, number: str, part: Part) -> Form:
    plain = len(part.lengths) == 1 and part.strides[0] == array.itemsize
    return Form(name, array.dtype.name, number, 0 if plain else len(part.lengths))


def kernel_for(form: Form | str, device: int) -> Kernel:
    """The compiled kernel of a form on a device; of "state" the one that puts a seed and an offset into
    memory."""
    found = _kernels.get((form, device))
    if found is None:
        found = _kernels.setdefault((form, device), load(form, device))
    return found


def load(form: Form | str, device: int) -> Any:
    name = f"accelrt_{form}" if isinstance(form, str) else f"accelrt_{form.name}"
    if compiler.is_host(device):
        text = source.HOST_STATE if isinstance(form, str) else source.host_source(form)
        image = c_compiler.compile_c(text, f"{name}.c")
    else:
        text = source.CUDA_STATE if isinstance(form, str) else source.cuda_source(form)
        image = compiler.compile_image(text, arch=compiler.device_arch(device), name=f"{name}.cu")
    signature = source.STATE_SIGNATURE if isinstance(form, str) else source.signature(form)
    return Module(image, device).function(name, signature)


def forget_kernels() -> None:
    """Unloads the kernels; they are loaded again when they are needed."""
    _kernels.clear()


def width_of(form: Form) -> int:
    return WIDTHS[form.number]
