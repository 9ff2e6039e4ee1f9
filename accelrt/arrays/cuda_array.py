"""The CUDA Array Interface, version 3, read with suspicion: what other libraries say of their arrays."""

from __future__ import annotations

import math
import operator
import re
from typing import Any, NamedTuple, NoReturn

TYPESTR = re.compile(r"[<>|=]?([A-Za-z])([0-9]+)(?:\[[^\]]*\])?")
BITS, OBJECT, UNICODE = "t", "O", "U"


def read(interface: Any, name: str, writable: bool) -> tuple[int, int, int]:
    """Returns what an array's `__cuda_array_interface__` says, checked entry by entry.

    Arguments:
        name: what the array is called in an error.
        writable: bool, whether the array is to be written.
    Returns:
        (address, bytes, stream): the stream that wrote it last, by the protocol's handle, or 0 for none.
    Raises:
        TypeError, ValueError: an entry is missing, of the wrong kind or out of range, or the array cannot be
            copied as plain bytes; the text names the entry.
    """
    without_mask = "pass an array without one; bytes are copied, masked or not"
    address, size, lengths = _read_layout(interface, name, writable, without_mask)
    total = size * math.prod(lengths)
    if total + address > 1 << 64 or (total and not address):
        _refuse(
            name,
            "shape",
            interface["shape"],
            f"no array of {total} bytes is at address {address:#x}",
            ValueError,
        )
    if total:
        _check_strides(interface, name, size, lengths)
    return address, total, _read_stream(interface, name)


class Description(NamedTuple):
    """The description of a CUDA array, of which an Array on the same memory is made."""

    address: int
    readonly: bool
    lengths: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: Any  # what numpy.dtype takes
    stream: int


def describe(interface: Any, name: str) -> Description:
    """The same as read(), of an array of any strides, which is not written.

    Raises:
        TypeError, ValueError: as of read().
    """
    address, size, lengths = _read_layout(interface, name, False, "pass an array without one")
    total = size * math.prod(lengths)
    if total and not address:
        _refuse(name, "shape", interface["shape"], f"no array of {total} bytes is at address 0", ValueError)
    strides = _read_strides(interface, name, lengths)
    text, descr = interface["typestr"], interface.get("descr")
    fields = "V" in text and isinstance(descr, list) and len(descr) > 1
    dtype = descr if fields else text
    return Description(
        address, bool(interface["data"][1]), lengths, strides, dtype, _read_stream(interface, name)
    )


def _read_layout(
    interface: Any, name: str, writable: bool, without_mask: str
) -> tuple[int, int, tuple[int, ...]]:
    # (address, bytes of an element, lengths)
    if not isinstance(interface, dict):
        raise TypeError(f"{name}.__cuda_array_interface__ is {interface!r}; it has to be a dict")
    address = _read_data(interface, name, writable)
    size = _read_typestr(interface, name)
    lengths = _read_lengths(interface, name)
    if interface.get("mask") is not None:
        _refuse(name, "mask", interface["mask"], without_mask, ValueError)
    return address, size, lengths


def _refuse(name: str, entry: str, value: Any, why: str, kind: type[Exception]) -> NoReturn:
    raise kind(f"{name} is a CUDA array whose {entry!r} is {value!r}; {why}")


def _required(interface: dict[str, Any], name: str, entry: str) -> Any:
    if entry not in interface:
        raise ValueError(f"{name} is a CUDA array without {entry!r}; version 3 of the interface requires it")
    return interface[entry]


def _as_int(value: Any) -> int:
    # TypeError for what is no int, and for a bool, which is one by accident.
    if isinstance(value, bool):
        raise TypeError
    return int(operator.index(value))


def _read_data(interface: dict[str, Any], name: str, writable: bool) -> int:
    data = _required(interface, name, "data")
    try:
        ptr, readonly = data
        address = 0 if ptr is None else _as_int(ptr)
    except (TypeError, ValueError):
        _refuse(name, "data", data, "it has to be (address as int, read-only as bool)", TypeError)
    if not 0 <= address < 1 << 64:
        _refuse(name, "data", data, "an address goes from 0 to 2**64 - 1", ValueError)
    if writable and readonly:
        raise ValueError(f"{name} is a read-only CUDA array; pass one that can be written")
    return address


def _read_typestr(interface: dict[str, Any], name: str) -> int:
    text = _required(interface, name, "typestr")
    match = TYPESTR.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        _refuse(name, "typestr", text, "it has to be a type such as '<f4' or '|u1'", TypeError)
    if match[1] == OBJECT or _holds_objects(interface.get("descr")):
        raise TypeError(f"{name} is a CUDA array of Python objects ({text!r}); pass an array of plain values")
    if match[1] == BITS:
        _refuse(name, "typestr", text, "an array of bits has no whole bytes to copy", ValueError)
    return int(match[2]) * (4 if match[1] == UNICODE else 1)


def _holds_objects(descr: Any) -> bool:
    # Of NumPy's description: a list of (name, type) or (name, type, shape), where a type may be such a list.
    if isinstance(descr, str):
        return OBJECT in descr[:2]
    return isinstance(descr, list) and any(len(field) > 1 and _holds_objects(field[1]) for field in descr)


def _read_lengths(interface: dict[str, Any], name: str) -> tuple[int, ...]:
    shape = _required(interface, name, "shape")
    try:
        lengths = tuple(_as_int(length) for length in shape)
    except TypeError:
        _refuse(name, "shape", shape, "it has to be a tuple of ints", TypeError)
    if any(length < 0 for length in lengths):
        _refuse(name, "shape", shape, "a length is 0 or more", ValueError)
    return lengths


def _check_strides(interface: dict[str, Any], name: str, size: int, lengths: tuple[int, ...]) -> None:
    strides = _read_strides(interface, name, lengths)
    if strides is None:
        return
    step = size
    for length, stride in zip(reversed(lengths), reversed(strides), strict=True):
        if length > 1 and stride != step:
            raise ValueError(f"{name} is a CUDA array with strides {strides}; pass a C-contiguous one")
        step *= length


def _read_strides(interface: dict[str, Any], name: str, lengths: tuple[int, ...]) -> tuple[int, ...] | None:
    value = interface.get("strides")
    if value is None:
        return None
    try:
        strides = tuple(_as_int(stride) for stride in value)
    except TypeError:
        _refuse(name, "strides", value, "it has to be None or a tuple of ints", TypeError)
    if len(strides) != len(lengths):
        _refuse(name, "strides", value, f"it has to be as long as the shape {interface['shape']}", ValueError)
    return strides


def _read_stream(interface: dict[str, Any], name: str) -> int:
    value = interface.get("stream")
    if value is None:
        return 0
    try:
        stream = _as_int(value)
    except TypeError:
        _refuse(name, "stream", value, "it has to be None, or a stream's handle as int", TypeError)
    if not 1 <= stream < 1 << 64:
        why = "1 is the legacy default stream, 2 the per-thread one, None is none to wait for, 0 is no handle"
        _refuse(name, "stream", value, why, ValueError)
    return stream
