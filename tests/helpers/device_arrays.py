"""Arrays on a device with NumPy's values, of any strides, and back."""

import numpy as np

import accelrt


def to_device(values, device=0):
    """A contiguous Array of a NumPy array's values."""
    values = np.ascontiguousarray(values)
    made = accelrt.empty(values.shape, values.dtype, device)
    if made.size:
        accelrt.copy(made.base, values.reshape(-1).view(np.uint8))
    return made


def strided(view, memory):
    """An Array that sees a copy of memory as a NumPy view sees memory."""
    held = accelrt.Buffer(memory.nbytes)
    accelrt.copy(held, memory.reshape(-1).view(np.uint8))
    offset = view.ctypes.data - memory.ctypes.data
    return accelrt.Array(held, view.shape, view.dtype, strides=view.strides, offset=offset)


def bytes_of(buffer, stream=None):
    """The bytes of a Buffer, after the work of a stream."""
    out = np.zeros(buffer.nbytes, np.uint8)
    buffer.copy_to(out, stream=stream)
    return out


def read(array):
    """The values of an Array of any strides, after all work of its device."""
    accelrt.synchronize(array.device_index)
    if not array.size:
        return np.empty(array.shape, array.dtype)
    held = np.empty(array.base.nbytes, np.uint8)
    accelrt.copy(held, array.base)
    accelrt.synchronize(array.device_index)
    return np.ndarray(array.shape, array.dtype, held, array.ptr - array.base.ptr, array.strides).copy()


def pattern(count, seed=0):
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


class StreamProtocol:
    """Another library's stream, by __cuda_stream__."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle
