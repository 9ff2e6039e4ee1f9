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
