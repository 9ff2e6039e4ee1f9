"""Launches: which kernel draws a distribution into an array, with which grid, from which offset on."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from accelrt.arrays.array import Array
from accelrt.arrays.exchange import asarray
from accelrt.kernels import compiler, host_compiler
from accelrt.kernels.elementwise_layout import Piece, collapse, overlaps_itself
from accelrt.kernels.elementwise_source import MOST_AXES, STORED
from accelrt.kernels.kernel import Module
from accelrt.random import philox_source as source
from accelrt.random.philox_source import BLOCK, Form
from accelrt.random.philox_text import WIDTHS
from accelrt.streams.stream import StreamContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from accelrt.kernels.kernel import Kernel
    from accelrt.streams.stream import Stream

# Elements, and bytes from the first to the last, of one launch; torch's, so that bits agree.
MOST = (1 << 31) - 1
RANKED = 1024  # elements up to which a permutation sorts drawn keys

TARGET = """\
#ifndef __clang__
#pragma GCC target("avx2,fma")
#endif
"""
_target: str | None = None
MOST_PLANS = 1024
_names: dict[Any, str] = {}  # of types of which numbers are drawn
_plans: dict[tuple[Any, ...], tuple[Launch, ...]] = {}
_kernels: dict[tuple[Form, int], Kernel] = {}


class Part(NamedTuple):
    """The part of an array that one launch fills.

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
        TypeError: it is no array.
        ValueError: it is read-only or on another device.
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
    if array.device_index != device:
        memory = "in host memory" if array.device_index < 0 else f"on device {array.device_index}"
        raise ValueError(
            f"out is {memory}, and the generator is of device {device}; use one of the array's device"
        )
    if array.readonly:
        raise ValueError("out is read-only")
    return array


def name_of(dtype: Any) -> str:
    """NumPy's name of a type of which numbers are drawn; TypeError of any other."""
    text = _names.get(dtype)
    if text is None:
        text = dtype.name
        if text not in STORED or not dtype.isnative or dtype.kind == "c":
            kinds = ", ".join(name for name in STORED if "complex" not in name)
            raise TypeError(f"out is of {dtype}, of which no random numbers are drawn; it may be {kinds}")
        _names[dtype] = text
    return text


def check_elements(array: Array) -> None:
    """Refuses elements that share memory, or lie where a GPU would fail with the loss of its context."""
    piece = Piece(array.ptr, array.shape, array.strides, array.itemsize)
    if overlaps_itself(piece):
        raise ValueError("elements of out share memory, and each is to be written; pass a copy()")
    if any(each % array.itemsize for each in (piece.ptr, *piece.strides)):
        raise ValueError(
            f"out has elements of {array.dtype} at addresses that are no multiples of {array.itemsize}, "
            "which no GPU writes; copy its bytes to an Array of its own"
        )


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


class Launch(NamedTuple):
    """One launch of a call; or what it leaves out of the sequence.

    Attributes:
        kernel: Kernel, or None where nothing is launched.
        blocks: int, of the grid.  words: int, by which the offset moves.
        middle: tuple, the arguments between the offset and the array.
    """

    kernel: Kernel | None
    blocks: int
    words: int
    middle: tuple[Any, ...]


def plan_for(
    name: str, number: str, array: Array, device: int, geometry: tuple[int, int]
) -> tuple[Launch, ...]:
    """The launches that fill an array.

    Arguments:
        name: str, of a distribution, or "permutation".  number: str, the type of C that is drawn.
        geometry: multiprocessors, and threads that each holds.
    """
    shape, strides, past = array.shape, array.strides, array.ptr % array.itemsize
    key = (name, number, array.dtype, shape, strides, past, device, geometry)
    plan = _plans.get(key)
    if plan is None:
        check_elements(array)
        if name == "permutation":
            plan = (ordered(array, device),)
        else:
            parts = parts_of(axes_of(array, False))
            plan = tuple(filled(name, number, array, device, geometry, part) for part in parts)
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def filled(
    name: str, number: str, array: Array, device: int, geometry: tuple[int, int], part: Part
) -> Launch:
    form, count = form_of(name, array, number, part), prod(part.lengths)
    blocks, words = sizes_of(count, WIDTHS[number], geometry)
    return Launch(kernel_for(form, device) if is_small(part) else None, blocks, words, middle_of(form, part))


def ordered(array: Array, device: int) -> Launch:
    ranked, part = array.size <= RANKED, axes_of(array, True)
    form = form_of("ranked" if ranked else "walked", array, "accelrt_long", part)
    blocks = min(-(-array.size // BLOCK), (1 << 31) - 1)
    return Launch(kernel_for(form, device), blocks, 4 if ranked else 24, middle_of(form, part))


def form_of(name: str, array: Array, number: str, part: Part) -> Form:
    plain = len(part.lengths) == 1 and part.strides[0] == array.itemsize
    return Form(name, name_of(array.dtype), number, 0 if plain else len(part.lengths))


def middle_of(form: Form, part: Part) -> tuple[Any, ...]:
    numbers = (*part.lengths, *part.strides) if form.axes else ()
    layout = b"".join(each.to_bytes(8, "little", signed=True) for each in numbers)
    return (prod(part.lengths), *([layout] if form.axes else []), part.begin)


def kernel_for(form: Form, device: int) -> Kernel:
    """The compiled kernel of a form on a device."""
    kernel = _kernels.get((form, device))
    if kernel is None:
        kernel = _kernels.setdefault((form, device), load(form, device))
    return kernel


def load(form: Form, device: int) -> Any:
    name = f"accelrt_{form.name}"
    if compiler.is_host(device):
        image = host_compiler.compile_cpp(host_target() + source.host_source(form), f"{name}.cpp", {})
    else:
        arch = compiler.device_arch(device)
        image = compiler.compile_image(source.cuda_source(form), arch=arch, name=f"{name}.cu")
    return Module(image, device).function(name, source.signature(form))


def host_target() -> str:
    """Lines that let the compiler use this processor's fused operations; the bits are the same."""
    global _target
    if _target is None:
        try:
            with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
                flags = next((line.split() for line in file if line.startswith("flags")), [])
        except OSError:
            flags = []
        _target = TARGET if {"avx2", "fma"} <= set(flags) else ""
    return _target
