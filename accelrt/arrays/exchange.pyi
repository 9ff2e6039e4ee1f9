import numpy as np
from numpy.typing import DTypeLike

from accelrt.annotations import DeviceArgument, Shape
from accelrt.arrays.array import Array
from accelrt.streams.stream import Stream

def empty(
    shape: Shape,
    dtype: DTypeLike = ...,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
    *,
    pin_memory: bool = False,
) -> Array: ...
def zeros(
    shape: Shape,
    dtype: DTypeLike = ...,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array: ...
def full(
    shape: Shape,
    value: object,
    dtype: DTypeLike | None = None,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array: ...
def full_like(
    other: Array,
    value: object,
    dtype: DTypeLike | None = None,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array: ...
def asarray(
    source: object,
    dtype: DTypeLike | None = None,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
    *,
    copy: bool | None = None,
) -> Array: ...
def from_dlpack(
    source: object, device: DeviceArgument | None = None, *, copy: bool | None = None
) -> Array: ...
def empty_like(
    other: Array,
    dtype: DTypeLike | None = None,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array: ...
def zeros_like(
    other: Array,
    dtype: DTypeLike | None = None,
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array: ...
def copy_into(dst: Array, src: object, non_blocking: bool, stream: Stream | int | None) -> Array: ...
def fill_into(dst: Array, value: object, stream: Stream | int | None) -> None: ...
def assign(dst: Array, value: object) -> None: ...
def copied(array: Array, stream: Stream | int | None) -> Array: ...
def to_numpy(array: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]: ...
