"""Decides of an elementwise kernel's call what depends on the types, shapes and strides of its operands."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from accelrt.arrays.array import Array
from accelrt.core.dtypes import BY_NAME
from accelrt.kernels import compiler, host_compiler
from accelrt.kernels.elementwise_layout import (
    Piece,
    broadcast,
    broadcast_strides,
    collapse,
    overlap,
    overlaps_itself,
    span_of,
)
from accelrt.kernels.elementwise_source import (
    BLOCK,
    CHUNK,
    COMPLEX,
    FLOATS,
    IN_FLOAT,
    MOST_AXES,
    MOST_PARAMETERS,
    NAME,
    STORED,
    UNROLLED,
    VECTOR_BYTES,
    Operand,
    Parameter,
    Text,
    cuda_source,
    host_source,
    read_parameters,
    signature,
)
from accelrt.kernels.kernel import Module
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FLOATS", "Declared", "Plan"]

MOST_BLOCKS = (1 << 31) - 1
NARROW = 1 << 31  # elements below which a strided kernel counts in 32 bits
NUMBERS = (bool, int, float, complex, numpy.number, numpy.bool_)
LIMITS = {name: _limits for name in STORED if (_limits := BY_NAME[name].limits)}


class Plan(NamedTuple):
    """The decisions made once for the types, shapes and strides of a call.

    Attributes:
        kernel: Kernel, or None where there are no elements.
        grid: int, blocks.  block: int, threads.
        first: int or bytes, the parameter before the operands.
        device: int.  shape: tuple of int, of the outputs that are allocated.
        dtypes: tuple of str, of each operand.
        made: tuple of int, the numbers of the operands that are allocated.
        types: tuple of numpy.dtype, theirs.
        spans: tuple, for each array that is given its lowest and highest byte from its first element on; None
            for others, and for raw parameters.
    """

    kernel: Any
    grid: int
    block: int
    first: int | bytes
    device: int
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    made: tuple[int, ...]
    types: tuple[Any, ...]
    spans: tuple[tuple[int, int] | None, ...]


class Declared:
    """The texts of an elementwise kernel, and the kernels that were compiled of them."""

    def __init__(
        self,
        inputs: str,
        outputs: str,
        operation: str,
        name: str = "elementwise",
        preamble: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.inputs: tuple[Parameter, ...] = read_parameters(inputs, "inputs")
        self.outputs: tuple[Parameter, ...] = read_parameters(outputs, "outputs")
        self.operation: str = compiler.text_of(operation, "operation")
        self.name: str = compiler.text_of(name, "name")
        self.preamble: str = compiler.text_of(preamble, "preamble")
        self.options: tuple[str, ...] = compiler.checked_options(options)
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name={name!r} is no name of a function in C")
        if not self.outputs:
            raise ValueError("outputs is empty; declare what the operation assigns, such as 'T z'")
        every = [each.name for each in (*self.inputs, *self.outputs)]
        if len(set(every)) != len(every):
            raise ValueError(f"two parameters have one name: {', '.join(every)}")
        if len(every) > MOST_PARAMETERS:
            raise ValueError(
                f"{len(every)} parameters are more than the {MOST_PARAMETERS} that a kernel takes"
            )
        self.every: tuple[Parameter, ...] = (*self.inputs, *self.outputs)
        self._in_order = bool(re.search(r"\bi\b", self.operation))
        self._kernels: dict[tuple[Any, ...], Any] = {}

    def texts(self) -> tuple[str, str]:
        """The declarations of the inputs and of the outputs."""
        takes, makes = (", ".join(map(text_of, parts)) for parts in (self.inputs, self.outputs))
        return takes, makes

    def unload(self) -> None:
        """Gives up the kernels that were compiled."""
        self._kernels.clear()

    def check_values(self, values: Sequence[Any]) -> None:
        """Refuses what is no array on a device and no number; an output that is to be made is None."""
        for number, (each, value) in enumerate(zip(self.every, values, strict=True)):
            is_output = number >= len(self.inputs)
            if isinstance(value, Array):
                if is_output and value.readonly:
                    raise ValueError(f"out for {each.name} is read-only")
            elif is_output and value is None and each.raw:
                raise ValueError(f"{each.name} is raw, so no shape of it is known; give out")
            elif is_output and value is not None:
                raise TypeError(f"out for {each.name} is an array on a device, not {type(value).__name__}")
            elif not is_output and each.raw:
                raise TypeError(f"{each.name} is raw: an array on a device, not {type(value).__name__}")
            elif not is_output and not isinstance(value, NUMBERS):
                raise TypeError(
                    f"{each.name} is an array on a device or a number, not {type(value).__name__}; "
                    "accelrt.asarray copies one to a device"
                )

    def number_for(self, number: int, value: Any, dtype: str) -> bool | int | float | complex:
        """A number as Python's of the kind that the type of an operand takes."""
        return scalar(value, dtype, self.every[number])

    def _types(self, values: Sequence[Any], dtypes: Mapping[str, Any]) -> dict[str, str]:
        """The name of the type of each placeholder, and of each name of a type that is declared."""
        every = self.every
        types = {each.type: each.type for each in every if each.type in STORED}
        for placeholder, dtype in dtypes.items():
            if placeholder in STORED or placeholder not in {each.type for each in every}:
                raise ValueError(f"dtypes has {placeholder!r}, which {self.name} does not declare")
            types[placeholder] = stored_name(numpy.dtype(dtype), placeholder)
        for each, value in zip(every, values, strict=True):
            if isinstance(value, Array):
                name = stored_name(value.dtype, each.name)
                if types.setdefault(each.type, name) != name:
                    raise TypeError(
                        f"{each.name} is of {name}, and {each.type} is {types[each.type]} here: {self.name} "
                        f"takes {', '.join(map(text_of, every))}"
                    )
        for each, value in zip(every, values, strict=True):
            if value is not None and not isinstance(value, Array) and each.type not in types:
                numbers = [
                    other
                    for one, other in zip(every, values, strict=True)
                    if one.type == each.type and other is not None
                ]
                kinds = map(type, numbers)  # float64 and int64 for Python's
                types[each.type] = stored_name(numpy.result_type(*map(numpy.dtype, kinds)), each.name)
        for each in every:
            if each.type not in types:
                raise TypeError(
                    f"no argument tells the type {each.type} of {each.name}; give out, or "
                    f"dtypes={{'{each.type}': 'float32'}}"
                )
        return types

    def _shape(self, values: Sequence[Any], size: int | None) -> tuple[int, ...]:
        beside = [
            value
            for each, value in zip(self.every, values, strict=True)
            if isinstance(value, Array) and not each.raw
        ]
        if size is not None and beside:
            raise ValueError(f"size={size} is for arrays that are all raw, and {self.name} has another one")
        if size is not None:
            return (size,)
        if not beside and any(isinstance(value, Array) for value in values):
            raise ValueError(
                f"the arrays of {self.name} are all raw; give size, how many elements to compute"
            )
        if not beside:
            raise ValueError(f"{self.name} has numbers alone; give out, whose shape and device it takes")
        shape = broadcast([array.shape for array in beside])
        if shape is None:
            listed = ", ".join(str(array.shape) for array in beside)
            raise ValueError(f"the shapes {listed} of {self.name} cannot be broadcast together")
        for each, value in zip(self.outputs, values[len(self.inputs) :], strict=True):
            if value is not None and not each.raw and value.shape != shape:
                raise ValueError(f"out for {each.name} has the shape {value.shape}; the result has {shape}")
        return shape

    def _device(self, values: Sequence[Any]) -> int:
        devices = {value.device_index for value in values if isinstance(value, Array)}
        if not devices:
            raise ValueError(f"{self.name} has numbers alone; give out, whose device it takes")
        if -1 in devices:
            raise ValueError(f"an array of {self.name} is in host memory; copy it to a device first")
        if len(devices) > 1:
            raise ValueError(
                f"the arrays of {self.name} are on the devices {sorted(devices)}; copy them to one"
            )
        return int(devices.pop())

    def _check_raw(self, values: Sequence[Any], names: Sequence[str]) -> None:
        for each, value, name in zip(self.every, values, names, strict=True):
            if each.raw and name in IN_FLOAT:
                raise TypeError(
                    f"{each.name} is raw and of {name}, of which the operation would see the bits; pass "
                    "float32, or declare it without raw"
                )
            if each.raw and not value.is_contiguous:
                raise ValueError(
                    f"{each.name} is raw, so that element k is found at {each.name}[k]; its array of shape "
                    f"{value.shape} and strides {value.strides} is not contiguous: pass a copy()"
                )

    def _check_aligned(self, pieces: Sequence[Piece | None], names: Sequence[str]) -> None:
        """Refuses what a GPU would fail at, with the loss of its context."""
        for each, piece, name in zip(self.every, pieces, names, strict=True):
            if piece is None:
                continue
            needed = piece.itemsize // 2 if name in COMPLEX else piece.itemsize
            steps = () if each.raw else piece.strides
            if piece.ptr % needed or any(step % needed for step in steps):
                raise ValueError(
                    f"{each.name} has elements of {name} at addresses that are no multiples of {needed}, "
                    "which no GPU reads; copy its bytes to an Array of its own"
                )

    def check_overlaps(self, values: Sequence[Any], spans: Sequence[tuple[int, int] | None]) -> None:
        """Refuses outputs that overlap others in another way than as the same array."""
        first_output = len(self.inputs)
        for number in range(first_output, len(values)):
            span = spans[number]
            if span is None:  # to be allocated
                continue
            output = values[number]
            low, high = output.ptr + span[0], output.ptr + span[1]
            for other, beside in enumerate(spans[:number]):
                if (
                    beside is None
                    or values[other].ptr + beside[1] <= low
                    or high <= values[other].ptr + beside[0]
                ):
                    continue
                one, two = piece_of(values[other]), piece_of(output)
                if overlap(one, two) and (one != two or other >= first_output):
                    name, others = self.every[number].name, self.every[other].name
                    raise ValueError(
                        f"{name} overlaps {others}, which is not the same array; write to other memory"
                    )

    def decide(self, values: Sequence[Any], dtypes: Mapping[str, Any], size: int | None) -> Plan:
        """The plan for operands that check_values took.

        Raises:
            TypeError, ValueError, CompileError, CompilerNotFoundError: as ElementwiseKernel.__call__.
        """
        types = self._types(values, dtypes)
        shape = self._shape(values, size)
        device = self._device(values)
        names = tuple(types[each.type] for each in self.every)
        self._check_raw(values, names)
        first_output = len(self.inputs)
        new_outputs = tuple(number for number in range(first_output, len(values)) if values[number] is None)
        new_types = tuple(numpy.dtype(dtype_named(names[number])) for number in new_outputs)
        pieces = [piece_of(value) if isinstance(value, Array) else None for value in values]
        spans = tuple(
            None if piece is None or each.raw else span_of(piece)
            for each, piece in zip(self.every, pieces, strict=True)
        )
        if prod(shape) == 0:
            none = (None,) * len(values)
            return Plan(None, 0, 0, 0, device, shape, names, new_outputs, new_types, none)
        for each, piece in zip(self.outputs, pieces[first_output:], strict=True):
            if piece is not None and not each.raw and overlaps_itself(piece):
                raise ValueError(f"elements of {each.name} share memory, and each is to be written")
        for number in new_outputs:
            pieces[number] = new_piece(shape, names[number])
        operands = tuple(
            Operand(each.name, name, piece is not None, number >= first_output, each.raw)
            for number, (each, name, piece) in enumerate(zip(self.every, names, pieces, strict=True))
        )
        on_host = compiler.is_host(device)
        if not on_host:
            self._check_aligned(pieces, names)
        walked = [
            piece
            for each, piece in zip(self.every, pieces, strict=True)
            if piece is not None and not each.raw
        ]
        outputs = sum(not each.raw for each in self.outputs)
        lengths, steps = self._axes(shape, walked, outputs)
        total = prod(shape)
        vector = 1 if lengths or on_host else vector_length(walked)
        wide = bool(lengths) and total >= NARROW
        kernel = self._kernel(operands, types, len(lengths), vector, wide, device)
        numbers = [total, *lengths, *(step for each in steps for step in each)]
        packed = b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
        each_block = CHUNK if on_host else BLOCK if lengths else BLOCK * UNROLLED * max(vector, 1)
        grid = min(-(-total // each_block), MOST_BLOCKS)
        block = 1 if on_host else BLOCK
        first = packed if lengths else total
        return Plan(kernel, grid, block, first, device, shape, names, new_outputs, new_types, spans)

    def _axes(
        self, shape: tuple[int, ...], pieces: Sequence[Piece], outputs: int
    ) -> tuple[list[int], list[list[int]]]:
        """The axes that a kernel counts and the strides of each array; none where all are contiguous."""
        strides = [broadcast_strides(shape, piece.shape, piece.strides) for piece in pieces]
        inputs = len(pieces) - outputs
        layout = collapse(shape, [*strides[inputs:], *strides[:inputs]], self._in_order)
        lengths, steps = layout.lengths, [*layout.strides[outputs:], *layout.strides[:outputs]]
        if not lengths or (
            len(lengths) == 1
            and all(step == [piece.itemsize] for step, piece in zip(steps, pieces, strict=True))
        ):
            return [], []
        if len(lengths) > MOST_AXES:
            raise ValueError(
                f"the arrays of {self.name} have {len(lengths)} axes that cannot be put together, and a "
                f"kernel takes {MOST_AXES}; copy one to contiguous memory"
            )
        return lengths, steps

    def _kernel(
        self,
        operands: tuple[Operand, ...],
        types: Mapping[str, str],
        axes: int,
        vector: int,
        wide: bool,
        device: int,
    ) -> Any:
        key = (operands, axes, vector, wide, device)
        kernel = self._kernels.get(key)
        if kernel is None:
            computed = {
                placeholder: "float" if name in IN_FLOAT else STORED[name]
                for placeholder, name in types.items()
                if placeholder not in STORED
            }
            text = Text(self.name, operands, computed, self.operation, self.preamble)
            kernel = self._kernels[key] = load(text, axes, vector, wide, device, self.options)
        return kernel


def load(text: Text, axes: int, vector: int, wide: bool, device: int, options: Sequence[str]) -> Any:
    """The compiled kernel on a device."""
    if compiler.is_host(device):
        source, sources = host_source(text, axes)
        image = host_compiler.compile_cpp(source, f"{text.name}.cpp", sources)
    else:
        source = cuda_source(text, axes, vector, wide)
        arch = compiler.device_arch(device)
        image = compiler.compile_image(source, arch=arch, options=options, name=f"{text.name}.cu")
    return Module(image, device).function(text.name, signature(text.operands, axes))


def stored_name(dtype: numpy.dtype[Any], what: str) -> str:
    name = dtype.name
    if name not in STORED or not dtype.isnative:
        raise TypeError(
            f"{what} is of {dtype}, which elementwise kernels do not take; they take {', '.join(STORED)}"
        )
    return name


def dtype_named(name: str) -> Any:
    if not BY_NAME[name].of_ml_dtypes:
        return name
    try:
        return getattr(init.later("ml_dtypes"), name)
    except ImportError:
        raise TypeError(
            f"{name} is a type of ml_dtypes, which is not installed: pip install ml_dtypes"
        ) from None


def piece_of(array: Array) -> Piece:
    return Piece(array.ptr, array.shape, array.strides, array.itemsize)


def new_piece(shape: tuple[int, ...], name: str) -> Piece:
    """An array in C order that is yet to be allocated, at an address that is aligned for every load."""
    itemsize = step = BY_NAME[name].itemsize
    strides = []
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return Piece(0, shape, tuple(reversed(strides)), itemsize)


def vector_length(pieces: Sequence[Piece]) -> int:
    """The elements that a thread loads at a time: as many as the widest type and every address allow.

    0 where one, a complex number, is not aligned as a whole.
    """
    length = max(VECTOR_BYTES // max((piece.itemsize for piece in pieces), default=VECTOR_BYTES), 1)
    while length and any(piece.ptr % (length * piece.itemsize) for piece in pieces):
        length //= 2
    return length


def text_of(each: Parameter) -> str:
    """A declaration as it is written."""
    return f"{'raw ' if each.raw else ''}{each.type} {each.name}"


def scalar(value: Any, name: str, parameter: Parameter) -> bool | int | float | complex:
    """A number as Python's of the kind that a type takes."""
    number = value.item() if isinstance(value, numpy.generic) else value
    limits = LIMITS.get(name)
    if name in COMPLEX:
        return complex(number)
    if limits is None and not isinstance(number, complex):
        return float(number)
    if limits is None or not isinstance(number, int):
        raise TypeError(f"{parameter.name} is {number!r}, and {parameter.type} is {name}")
    if name == "bool":
        return bool(number)
    if not limits[0] <= number <= limits[1]:
        raise ValueError(
            f"{parameter.name}={number} is out of the range of {name}, {limits[0]} to {limits[1]}"
        )
    return int(number)
