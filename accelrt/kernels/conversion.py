"""Arrays converted to another dtype: by a kernel where one can be compiled for it, else on the host."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

from accelrt.arrays.array import Array
from accelrt.arrays.exchange import asarray, empty
from accelrt.core.dtypes import BY_NAME
from accelrt.errors import CompilerNotFoundError
from accelrt.kernels.elementwise import ElementwiseKernel, elementwise

if TYPE_CHECKING:
    import numpy

    from accelrt.streams.stream import Stream


@functools.cache
def _kernel() -> ElementwiseKernel:
    return elementwise("From x", "To y", "y = (To)x", name="accelrt_convert")


def _has_kernel(name: str) -> bool:
    row = BY_NAME.get(name)
    return row is not None and bool(row.stored) and row.kind != "complex"


def converted(
    array: Array, dtype: numpy.dtype[numpy.generic], copy: bool, stream: Stream | int | None
) -> Array:
    """Does Array.astype()."""
    if array.dtype == dtype:
        return array.copy(stream=stream) if copy or not array.is_contiguous else array
    if array.device_index >= 0 and _has_kernel(array.dtype.name) and _has_kernel(dtype.name):
        out = empty(array.shape, dtype, array.device_index, stream)
        try:
            _kernel()(array, out=out, stream=stream)
            return out
        except CompilerNotFoundError:
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=RuntimeWarning)  # of numbers that do not fit, as in a kernel
        elements = array.numpy().astype(dtype)
    return asarray(elements, device="cpu" if array.device_index < 0 else array.device_index, stream=stream)
