"""Elementwise kernels: a line of C for one element, computed for every element of arrays."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from accelrt.arrays.array import Array
from accelrt.arrays.create import asarray, empty
from accelrt.kernels import c_compiler, compiler
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
from accelrt.kernels.module import Module
from accelrt.runtime import init
from accelrt.streams.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ElementwiseKernel", "elementwise"]

PLANS = 1024  # shapes that a kernel remembers its decisions for
MOST_BLOCKS = (1 << 31) - 1
NARROW = 1 << 31  # elements below which a strided kernel counts in 32 bits
LIMITS = {"bool": (0, 1)}  # the least and the greatest integer of a type
for _bits in (8, 16, 32, 64):
    LIMITS[f"uint{_bits}"] = (0, (1 << _bits) - 1)
    LIMITS[f"int{_bits}"] = (-1 << _bits - 1, (1 << _bits - 1) - 1)


class Plan(NamedTuple):
    """What is decided once for the types, shapes and strides of a call.

    Attributes:
        kernel: Kernel, or None where there are no elements.
        grid: int, blocks.  block: int, threads.
        first: int or bytes, the parameter before the operands.
        device: int.  shape: tuple of int, of the outputs.
        dtypes: tuple of str, of each operand.
        made: tuple of int, the numbers of the operands that are allocated.
        spans: tuple, for each array that is given its lowest and highest byte from its first element on.
    """

    kernel: Any
    grid: int
    block: int
    first: int | bytes
    device: int
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    made: tuple[int, ...]
    spans: tuple[tuple[int, int] | None, ...]


def elementwise(
    inputs: str,
    outputs: str,
    operation: str,
    *,
    name: str = "elementwise",
    preamble: str = "",
    options: Sequence[str] = (),
) -> ElementwiseKernel:
    """A kernel that computes an operation for every element of arrays.

        axpy = accelrt.elementwise("T x, T y", "T z", "z = x * y + x", name="axpy")
        z = axpy(x, 2.5)

    It is compiled when it is first called with arrays of some types: by NVRTC for a GPU, where the operation
    is CUDA C++; by the C compiler for the host device, where it is C with <math.h> and <tgmath.h>.

    Arguments:
        inputs: str, declarations such as "T x, float32 y": a type and a name each.  A type is one of NumPy's
            names (bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64), or a
            placeholder that begins with a capital letter and stands for one type in each call.
        outputs: str, the same for what is written.
        operation: str, statements that assign the outputs, which are 0 before.  They may use the placeholders
            as types, i, the element's number in C order, and n, how many there are.  float16 and bfloat16 are
            computed in float.
        name: str, the kernel's, as profilers and errors show it.
        preamble: str, declarations before the kernel, such as functions (accelrt_inline is "static inline" in
            the terms of either compiler).
        options: sequence of str, NVRTC's; the host device ignores them.
    Returns:
        An ElementwiseKernel.
    Raises:
        TypeError, ValueError: a declaration, the name or an argument's type is wrong.
    """
    return ElementwiseKernel(inputs, outputs, operation, name, preamble, options)


class ElementwiseKernel:
    """What elementwise() makes; called with arrays and numbers."""

    def __init__(
        self,
        inputs: str,
        outputs: str,
        operation: str,
        name: str = "elementwise",
        preamble: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.inputs = read_parameters(inputs, "inputs")
        self.outputs = read_parameters(outputs, "outputs")
        self.operation = compiler.text_of(operation, "operation")
        self.name = compiler.text_of(name, "name")
        self.preamble = compiler.text_of(preamble, "preamble")
        self.options = compiler.checked_options(options)
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
        self._every = (*self.inputs, *self.outputs)
        self._in_order = bool(re.search(r"\bi\b", self.operation))
        self._kernels: dict[tuple[Any, ...], Any] = {}
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def __repr__(self) -> str:
        takes, makes = (
            ", ".join(f"{each.type} {each.name}" for each in parts) for parts in (self.inputs, self.outputs)
        )
        return f"<accelrt.ElementwiseKernel {self.name}: {takes} -> {makes}>"

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        texts = (
            ", ".join(f"{each.type} {each.name}" for each in parts) for parts in (self.inputs, self.outputs)
        )
        return (type(self), (*texts, self.operation, self.name, self.preamble, self.options))

    def unload(self) -> None:
        """Gives up what was compiled; the next call takes it from the cache."""
        self._plans.clear()
        self._kernels.clear()

    def __call__(
        self,
        *arguments: Any,
        out: Array | Sequence[Array] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        stream: Stream | int | None = None,
    ) -> Any:
        """Computes the operation on a device's stream; the call does not wait for it.

        Arguments:
            arguments: for each input an array on one device (an Array, or another library's with
                __cuda_array_interface__), or a number; they are broadcast together.
            out: Array, or for several outputs a sequence of Arrays, of the broadcast shape; None for new ones
                in C order.  It may be an input, but not overlap one in another way.
            dtypes: mapping from placeholders to types, for those that no array tells; numbers alone are bool,
                int64 and float64.
            stream: Stream, or a handle as int; None for the device's current one.
        Returns:
            The output, or a tuple of several.
        Raises:
            TypeError: an argument's type does not fit its declaration, or the others.
            ValueError: shapes do not fit, arrays are on several devices or overlap, or a number is out of
                range.
            CompileError, CompilerNotFoundError: of the first call with these types.
        """
        values = self._checked(arguments, out, stream)
        key = (*map(facts_of, values), *(dtypes.items() if dtypes else ()))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._decide(values, dtypes or {})
            if len(self._plans) >= PLANS:
                self._plans.clear()
            self._plans[key] = plan
        if isinstance(stream, Stream):
            self._check_stream(stream, plan.device)
        elif stream is None:
            stream = current_stream(plan.device)
        if out is not None:
            self._check_overlaps(values, plan.spans)
        for number in plan.made:
            values[number] = empty(plan.shape, dtype_named(plan.dtypes[number]), plan.device, stream)
        operands = [
            value if isinstance(value, Array) else scalar(value, dtype, each)
            for value, dtype, each in zip(values, plan.dtypes, self._every, strict=True)
        ]
        if plan.kernel is not None:
            plan.kernel.launch(plan.grid, plan.block, (plan.first, *operands), stream=stream)
        results = values[len(self.inputs) :]
        return results[0] if len(results) == 1 else tuple(results)

    def _checked(self, arguments: Sequence[Any], out: Any, stream: Stream | int | None) -> list[Any]:
        """The inputs, then the outputs, None for those to be made."""
        if len(arguments) != len(self.inputs):
            names = ", ".join(each.name for each in self.inputs)
            raise TypeError(f"{self.name} takes {len(self.inputs)} inputs ({names}); {len(arguments)} given")
        outs: Sequence[Any] = [None] * len(self.outputs)
        if out is not None:
            outs = list(out) if isinstance(out, (list, tuple)) else [out]
        if len(outs) != len(self.outputs):
            names = ", ".join(each.name for each in self.outputs)
            raise TypeError(f"{self.name} has {len(self.outputs)} outputs ({names}); out has {len(outs)}")
        values = [*arguments, *outs]
        for number, (each, value) in enumerate(zip(self._every, values, strict=True)):
            is_output = number >= len(self.inputs)
            if not isinstance(value, Array) and hasattr(value, "__cuda_array_interface__"):
                values[number] = value = asarray(value, stream=stream)
            if isinstance(value, Array):
                if is_output and value.readonly:
                    raise ValueError(f"out for {each.name} is read-only")
            elif is_output and value is not None:
                raise TypeError(f"out for {each.name} is an array on a device, not {type(value).__name__}")
            elif not is_output and not isinstance(value, (bool, int, float, numpy.number, numpy.bool_)):
                raise TypeError(
                    f"{each.name} is an array on a device or a number, not {type(value).__name__}; "
                    "accelrt.asarray copies one to a device"
                )
        return values

    def _types(self, values: Sequence[Any], dtypes: Mapping[str, Any]) -> dict[str, str]:
        """The name of the type of each placeholder, and of each name of a type that is declared."""
        every = self._every
        types = {each.type: each.type for each in every if each.type in STORED}
        for placeholder, given in dtypes.items():
            if placeholder in STORED or placeholder not in {each.type for each in every}:
                raise ValueError(f"dtypes has {placeholder!r}, which {self.name} does not declare")
            types[placeholder] = stored_name(numpy.dtype(given), placeholder)
        for each, value in zip(every, values, strict=True):
            if isinstance(value, Array):
                found = stored_name(value.dtype, each.name)
                if types.setdefault(each.type, found) != found:
                    raise TypeError(
                        f"{each.name} is of {found}, and {each.type} is {types[each.type]} here: {self.name} "
                        f"takes {self._declared()}"
                    )
        for each, value in zip(every, values, strict=True):
            if value is not None and not isinstance(value, Array) and each.type not in types:
                numbers = [
                    other
                    for one, other in zip(every, values, strict=True)
                    if one.type == each.type and other is not None
                ]
                types[each.type] = stored_name(numpy.result_type(*map(type_of_number, numbers)), each.name)
        for each in every:
            if each.type not in types:
                raise TypeError(
                    f"no argument tells the type {each.type} of {each.name}; give out, or "
                    f"dtypes={{'{each.type}': 'float32'}}"
                )
        return types

    def _declared(self) -> str:
        return ", ".join(f"{each.type} {each.name}" for each in self._every)

    def _shape(self, values: Sequence[Any]) -> tuple[int, ...]:
        arrays = [value for value in values if isinstance(value, Array)]
        if not arrays:
            raise ValueError(f"{self.name} has numbers alone; give out, whose shape and device it takes")
        shape = broadcast([array.shape for array in arrays])
        if shape is None:
            listed = ", ".join(str(array.shape) for array in arrays)
            raise ValueError(f"the shapes {listed} of {self.name} cannot be broadcast together")
        for each, value in zip(self.outputs, values[len(self.inputs) :], strict=True):
            if value is not None and value.shape != shape:
                raise ValueError(f"out for {each.name} has the shape {value.shape}; the result has {shape}")
        return shape

    def _device(self, values: Sequence[Any]) -> int:
        devices = {value.device_index for value in values if isinstance(value, Array)}
        if -1 in devices:
            raise ValueError(f"an array of {self.name} is in host memory; copy it to a device first")
        if len(devices) > 1:
            raise ValueError(
                f"the arrays of {self.name} are on the devices {sorted(devices)}; copy them to one"
            )
        return int(devices.pop())

    def _check_overlaps(self, values: Sequence[Any], spans: Sequence[tuple[int, int] | None]) -> None:
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
                    name, others = self._every[number].name, self._every[other].name
                    raise ValueError(
                        f"{name} overlaps {others}, which is not the same array; write to other memory"
                    )

    def _decide(self, values: Sequence[Any], dtypes: Mapping[str, Any]) -> Plan:
        types = self._types(values, dtypes)
        shape = self._shape(values)
        device = self._device(values)
        names = tuple(types[each.type] for each in self._every)
        first_output = len(self.inputs)
        made = tuple(number for number in range(first_output, len(values)) if values[number] is None)
        pieces = [piece_of(value) if isinstance(value, Array) else None for value in values]
        spans = tuple(span_of(piece) if piece is not None else None for piece in pieces)
        if prod(shape) == 0:
            return Plan(None, 0, 0, 0, device, shape, names, made, (None,) * len(values))
        for each, piece in zip(self.outputs, pieces[first_output:], strict=True):
            if piece is not None and overlaps_itself(piece):
                raise ValueError(f"elements of {each.name} share memory, and each is to be written")
        for number in made:
            pieces[number] = new_piece(shape, names[number])
        operands = tuple(
            Operand(each.name, name, piece is not None, number >= first_output)
            for number, (each, name, piece) in enumerate(zip(self._every, names, pieces, strict=True))
        )
        lengths, steps = self._axes(shape, [piece for piece in pieces if piece is not None])
        size = prod(shape)
        on_host = compiler.is_host(device)
        vector = 1 if lengths or on_host else vector_length([piece for piece in pieces if piece is not None])
        kernel = self._kernel(operands, types, len(lengths), vector, bool(lengths) and size >= NARROW, device)
        numbers = [size, *lengths, *(step for each in steps for step in each)]
        first = b"".join(number.to_bytes(8, "little", signed=True) for number in numbers) if lengths else size
        each_block = CHUNK if on_host else BLOCK if lengths else BLOCK * UNROLLED * vector
        grid = min(-(-size // each_block), MOST_BLOCKS)
        return Plan(kernel, grid, 1 if on_host else BLOCK, first, device, shape, names, made, spans)

    def _axes(self, shape: tuple[int, ...], pieces: Sequence[Piece]) -> tuple[list[int], list[list[int]]]:
        """The axes that a kernel counts and the strides of each array; none where all are contiguous."""
        strides = [broadcast_strides(shape, piece.shape, piece.strides) for piece in pieces]
        outputs = len(self.outputs)
        layout = collapse(shape, [*strides[-outputs:], *strides[:-outputs]], self._in_order)
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

    def _check_stream(self, stream: Stream, device: int) -> None:
        if stream.device.index != device:
            raise ValueError(
                f"stream is of device {stream.device.index}, and the arrays are on device {device}"
            )

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
        found = self._kernels.get(key)
        if found is None:
            computed = {
                placeholder: "float" if name in IN_FLOAT else STORED[name]
                for placeholder, name in types.items()
                if placeholder not in STORED
            }
            text = Text(self.name, operands, computed, self.operation, self.preamble)
            found = self._kernels[key] = load(text, axes, vector, wide, device, self.options)
        return found


def load(text: Text, axes: int, vector: int, wide: bool, device: int, options: Sequence[str]) -> Any:
    """The compiled kernel on a device."""
    if compiler.is_host(device):
        image = c_compiler.compile_c(host_source(text, axes), f"{text.name}.c")
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


def itemsize_of(name: str) -> int:
    return 2 if name in IN_FLOAT else numpy.dtype(name).itemsize


def dtype_named(name: str) -> Any:
    if name != "bfloat16":
        return name
    try:
        return init.later("ml_dtypes").bfloat16
    except ImportError:
        raise TypeError(
            "bfloat16 is a type of ml_dtypes, which is not installed: pip install ml_dtypes"
        ) from None


def type_of_number(value: Any) -> numpy.dtype[Any]:
    return numpy.dtype(type(value))  # float64 and int64 for Python's


def facts_of(value: Any) -> Any:
    """What a plan depends on of an operand."""
    if isinstance(value, Array):
        return value.dtype, value.shape, value.strides, value.ptr % VECTOR_BYTES, value.device_index
    return type(value)


def piece_of(array: Array) -> Piece:
    return Piece(array.ptr, array.shape, array.strides, array.itemsize)


def new_piece(shape: tuple[int, ...], name: str) -> Piece:
    """An array in C order that is yet to be allocated, at an address that is aligned for every load."""
    itemsize = step = itemsize_of(name)
    strides = []
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return Piece(0, shape, tuple(reversed(strides)), itemsize)


def vector_length(pieces: Sequence[Piece]) -> int:
    """The elements that a thread loads at a time: as many as the widest type and every address allow."""
    length = max(VECTOR_BYTES // max(piece.itemsize for piece in pieces), 1)
    while any(piece.ptr % (length * piece.itemsize) for piece in pieces):
        length //= 2
    return length


def scalar(value: Any, name: str, parameter: Parameter) -> bool | int | float:
    """A number as Python's of the kind that a type takes."""
    number = value.item() if isinstance(value, numpy.generic) else value
    limits = LIMITS.get(name)
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
