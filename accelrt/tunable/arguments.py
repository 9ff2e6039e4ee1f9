"""An operation's arguments: copies, their names in a file, arguments made of a name, and comparisons."""

from __future__ import annotations

import ast
import math
import re
from functools import cache
from typing import Any

import numpy as np

from accelrt.arrays.array import Array, Buffer
from accelrt.arrays.exchange import asarray
from accelrt.tunable.switches import Tolerances

ARRAY = re.compile(r"(?P<dtype>[A-Za-z]\w*)\[(?P<shape>\d*(?:x\d+)*)\](?P<strided>s?)")
BYTES = re.compile(r"bytes\((\d+)\)")
ADVICE = "give the operation a function for it: Operation(..., {0}=...)"


def is_array(value: object) -> bool:
    # Of the type: torch refuses to tell it of a tensor that requires gradients, and of one in host memory.
    return isinstance(value, (Array, Buffer, np.ndarray)) or hasattr(type(value), "__cuda_array_interface__")


def arrays_in(value: object) -> list[Any]:
    """The arrays of an argument, those inside of tuples, lists and dicts too, in order."""
    if is_array(value):
        return [value]
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value, key=str)]
    return [array for part in value for array in arrays_in(part)] if isinstance(value, (tuple, list)) else []


def copied(value: Any) -> Any:
    """Copies a value's arrays; what is no array stays what it is."""
    if isinstance(value, Buffer):
        duplicate = Buffer(value.nbytes, value.device_index)
        duplicate.copy_from(value, blocking=False)
        return duplicate
    if is_array(value):
        return value.clone() if hasattr(value, "clone") else value.copy()
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(copied(part) for part in value)
    return value


def nbytes_of(value: object) -> int:
    """The bytes of all arrays of an argument."""
    return sum(array_bytes(array) for array in arrays_in(value))


def array_bytes(array: Any) -> int:
    nbytes = getattr(array, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    interface = array.__cuda_array_interface__
    return int(math.prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize)


def ordinal_of_arrays(value: object) -> int | None:
    """The device of the first array that is in device memory; None where there is none."""
    for array in arrays_in(value):
        device = getattr(array, "device", None)
        indices = (
            getattr(array, "device_index", None),
            getattr(device, "index", None),
            getattr(device, "id", None),
        )
        for index in indices:  # accelrt's, torch's and CuPy's
            if isinstance(index, int) and index >= 0:
                return index
    return None


def name_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns what arguments are called in a file: shapes and types of arrays, and the other values.

    A float is "float" whatever its value, since few operations depend on it.
    Raises:
        TypeError: an argument has no such name.
    """
    parts = [part_of(value) for value in args]
    parts += [f"{name}={part_of(kwargs[name])}" for name in sorted(kwargs)]
    return ";".join(parts) or "()"


def part_of(value: Any) -> str:
    if isinstance(value, Buffer):
        return f"bytes({value.nbytes})"
    if is_array(value):
        return array_part(value)
    if type(value) in (tuple, list):
        return "(" + " ".join(part_of(part) for part in value) + ")"
    if isinstance(value, float):
        return "float"
    if (
        value is None
        or isinstance(value, (bool, int))
        or (isinstance(value, str) and re.fullmatch(r"[\w.-]*", value))
    ):
        return repr(value)
    raise TypeError(
        f"{value!r} of type {type(value).__name__} has no name in a file of results; " + ADVICE.format("key")
    )


@cache
def dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]  # torch's say torch.float32


def array_part(array: Any) -> str:
    shape = "x".join(str(length) for length in array.shape)
    kind = dtype_name(array.dtype)
    contiguous = getattr(array, "is_contiguous", None)
    if contiguous is None:
        flags = getattr(array, "flags", None)
        contiguous = flags is None or flags["C_CONTIGUOUS"]
    elif callable(contiguous):
        contiguous = contiguous()
    return f"{kind}[{shape}]{'' if contiguous else 's'}"


def made_of(params: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that have a name: Arrays of random numbers, Buffers of zeros, 1.0 for a float.

    Returns:
        (args, kwargs).
    Raises:
        ValueError: it is none of name_of's, or names what only the operation's owner can make.
    """
    args, kwargs = [], {}
    for part in [] if params == "()" else params.split(";"):
        name, equals, rest = part.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = value_of(rest, params)
        else:
            args.append(value_of(part, params))
    return tuple(args), kwargs


def value_of(part: str, params: str) -> Any:
    array, size = ARRAY.fullmatch(part), BYTES.fullmatch(part)
    try:
        if array is not None and not array["strided"]:
            lengths = [int(length) for length in array["shape"].split("x") if length]
            return random_array(array["dtype"], lengths)
        if size is not None:
            buffer = Buffer(int(size[1]))
            buffer.fill(0)
            return buffer
        return 1.0 if part == "float" else ast.literal_eval(part)
    except (ValueError, SyntaxError, TypeError, ImportError) as error:  # ml_dtypes may not be installed
        raise ValueError(
            f"no arguments can be made of {params!r}, since {part!r} is not known ({error}); "
            + ADVICE.format("arguments")
        ) from None


def random_array(kind: str, lengths: list[int]) -> Array:
    random, dtype = np.random.default_rng(0), dtype_of(kind)
    if dtype.kind in "biu":
        return asarray(random.integers(0, 2 if dtype.kind == "b" else 10, lengths).astype(dtype))
    return asarray(random.standard_normal(lengths).astype(dtype))


def dtype_of(kind: str) -> np.dtype[Any]:
    try:
        return np.dtype(kind)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, kind, None) or kind)


def differs(theirs: object, ours: object, tolerances: Tolerances) -> str:
    """Returns how what a candidate wrote differs from what the default wrote, as text; empty where it does
    not."""
    expected, arrays = arrays_in(theirs), arrays_in(ours)
    if len(expected) != len(arrays):
        return f"{len(arrays)} arrays instead of {len(expected)}"
    for index, (one, other) in enumerate(zip(expected, arrays, strict=True)):
        first, second = on_host(one), on_host(other)
        if first.shape != second.shape:
            return f"array {index} has the shape {second.shape} instead of {first.shape}"
        if not is_near(first, second, tolerances):
            return f"array {index} differs"
    return ""


def on_host(array: Any) -> np.ndarray[Any, Any]:
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, Buffer):
        content = np.empty(array.nbytes, np.uint8)
        array.copy_to(content)
        return content
    return asarray(array.detach() if hasattr(array, "detach") else array).numpy()


def is_near(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], tolerances: Tolerances) -> bool:
    if first.dtype.kind in "biuSUM":
        return bool(np.array_equal(first, second))
    if first.dtype.kind not in "fc":  # bfloat16 and the eight-bit floats
        first, second = first.astype(np.float32), second.astype(np.float32)
    return bool(np.allclose(second, first, rtol=tolerances.rtol, atol=tolerances.atol, equal_nan=True))
