"""Describes a piece of memory from outside: where it is, how long, and of what shape and type."""

from __future__ import annotations

from typing import Any, NamedTuple

from accelrt.arrays.array import Array, Buffer, PinnedBuffer
from accelrt.errors import ArgumentTypeError


class ArraySpec(NamedTuple):
    """One piece of contiguous memory.  Buffers have no form: bytes are what a function makes of them."""

    address: int
    nbytes: int
    form: tuple[tuple[int, ...], str] | None  # shape, and type as in the array interfaces: "<f4"
    on_host: bool
    writable: bool


def spec_of(memory: Any, name: str) -> ArraySpec:
    """The spec of a Buffer, a PinnedBuffer, an Array, a CUDA array or a contiguous host array.

    Raises:
        TypeError: it is none of these; the text calls it by its name.
    """
    if isinstance(memory, Buffer):
        return ArraySpec(memory.ptr, memory.nbytes, None, False, True)
    if isinstance(memory, PinnedBuffer):
        return ArraySpec(memory.ptr, memory.nbytes, None, True, True)
    if isinstance(memory, Array):
        if not memory.is_contiguous:
            raise TypeError(f"{name} is an Array of strides {memory.strides}; pass a contiguous one")
        form = memory.shape, memory.dtype.str
        return ArraySpec(memory.ptr, memory.nbytes, form, memory.device_index < 0, not memory.readonly)
    if hasattr(memory, "__cuda_array_interface__"):
        return spec_of_cuda_array(memory.__cuda_array_interface__)
    return spec_of_host_array(memory, name)


def spec_of_cuda_array(interface: dict[str, Any]) -> ArraySpec:
    # Whether its strides are those of contiguous memory is checked by the copy.
    address, readonly = interface["data"]
    shape, kind = tuple(interface["shape"]), interface["typestr"]
    nbytes = int(kind[2:])
    for length in shape:
        nbytes *= length
    return ArraySpec(address or 0, nbytes, (shape, kind), False, not readonly)


def host_array(memory: Any) -> Any:
    """Host memory as a NumPy array on the same bytes."""
    import numpy

    if isinstance(memory, Array):
        return memory.numpy()
    return memory if isinstance(memory, numpy.ndarray) else numpy.asarray(memoryview(memory))


def host_bytes(memory: Any) -> Any:
    """Contiguous host memory as a flat NumPy array of its bytes."""
    import numpy

    return host_array(memory).reshape(-1).view(numpy.uint8)


def spec_of_host_array(memory: Any, name: str) -> ArraySpec:
    try:
        array = host_array(memory)
    except (TypeError, ValueError, BufferError):
        raise ArgumentTypeError(
            f"{name} is of type {type(memory).__name__}, which is no memory; pass a Buffer, a PinnedBuffer, "
            "an array with __cuda_array_interface__ or a contiguous host array; bind other arguments "
            "with functools.partial"
        ) from None
    if array.dtype.hasobject or not array.flags.c_contiguous:
        raise TypeError(
            f"{name} is a host array of {array.dtype}, not contiguous or of Python objects; pass a "
            "contiguous one of plain values"
        )
    address = array.__array_interface__["data"][0]
    return ArraySpec(address, array.nbytes, (array.shape, array.dtype.str), True, array.flags.writeable)


def require_alike(given: ArraySpec, sample: ArraySpec, name: str) -> None:
    """ValueError where memory cannot stand for the sample: other bytes or, if both have one, another form."""
    if given.form is not None and sample.form is not None and given.form != sample.form:
        raise ValueError(
            f"{name} has shape {given.form[0]} and type {given.form[1]!r}; the graph was captured with shape "
            f"{sample.form[0]} and type {sample.form[1]!r}, and can take no other"
        )
    if given.nbytes != sample.nbytes:
        raise ValueError(f"{name} has {given.nbytes} bytes; the graph was captured with {sample.nbytes}")
