"""Arrays with memory of their own."""
from libc.string cimport memcpy

from accelrt.arrays.array cimport Array, check_live, dtype_of, finish_array, new_array
from accelrt.arrays.layout cimport Extents, count_elements, is_c_contiguous, read_shape, set_contiguous
from accelrt.buffers.buffer cimport Buffer, PinnedBuffer


cdef Array allocate(Py_ssize_t ndim, const Py_ssize_t* extents, object dtype, object device, object stream,
                    bint pinned):
    # With the extents' strides, which fill the memory.
    cdef Py_ssize_t nbytes = dtype.itemsize * count_elements(ndim, extents, dtype.itemsize)
    cdef Buffer buffer
    cdef PinnedBuffer locked
    cdef Array made
    if pinned:
        if stream is not None:
            raise ValueError("pin_memory=True makes host memory, which follows no stream's order; pass no stream")
        locked = PinnedBuffer(nbytes, device)
        made = new_array(locked, locked.ptr, -1, None, dtype, ndim, False)
    else:
        buffer = Buffer(nbytes, device, stream)
        made = new_array(buffer, buffer.ptr, buffer.device_index, buffer.stream, dtype, ndim, False)
    memcpy(made.extents, extents, 2 * ndim * sizeof(Py_ssize_t))
    finish_array(made)
    return made


cdef Array allocate_shaped(object shape, object dtype, object device, object stream, bint pinned):
    cdef Extents extents
    cdef Py_ssize_t ndim = read_shape(shape, extents)
    kind = dtype_of(dtype)
    set_contiguous(ndim, extents, kind.itemsize)
    return allocate(ndim, extents, kind, device, stream, pinned)


def empty(shape, dtype=float, device=None, stream=None, *, bint pin_memory=False):
    """An Array with memory of its own, whose contents are not set.

    Arguments:
        shape: int or tuple of int.
        dtype: anything that numpy.dtype takes, but without Python objects.
        device: int, "cuda:1", "host:0", an object with an index; None is the current device, or the stream's.
        stream: Stream, handle as int, or None for the current stream: the one whose order the memory follows.
        pin_memory: bool, page-locked host memory instead of the device's.
    Returns:
        Array, C-contiguous.
    Raises:
        OutOfMemoryError: the device, or the host, has no room.
        ValueError, TypeError: an argument is out of range, or of the wrong kind.
    """
    return allocate_shaped(shape, dtype, device, stream, pin_memory)


def zeros(shape, dtype=float, device=None, stream=None):
    """An Array of zero bytes, which are set in its stream's order; see empty()."""
    cdef Array made = allocate_shaped(shape, dtype, device, stream, False)
    made.base.fill(0, stream=made.stream)
    return made


cdef Array allocate_like(Array other, object dtype, object device, object stream):
    # In the other's place, and in its order of axes where its elements fill their memory.
    cdef Extents extents
    check_live(other, "other")
    kind = other.dtype if dtype is None else dtype_of(dtype)
    if device is None and stream is None and other.device_index >= 0:
        device = other.device_index
    memcpy(extents, other.extents, other.ndim * sizeof(Py_ssize_t))
    set_contiguous(other.ndim, extents, kind.itemsize)
    if other.itemsize == kind.itemsize and fills_memory(other):
        memcpy(extents + other.ndim, other.extents + other.ndim, other.ndim * sizeof(Py_ssize_t))
    return allocate(other.ndim, extents, kind, device, stream, other.device_index < 0 and device is None)


cdef bint fills_memory(Array other) except -1:
    # Whether some order of the axes makes it contiguous.
    cdef Extents sorted_
    cdef Py_ssize_t place, axis
    order = sorted(range(other.ndim), key=lambda axis_: (-other.extents[other.ndim + axis_], axis_))
    for place in range(other.ndim):
        axis = order[place]
        sorted_[place] = other.extents[axis]
        sorted_[other.ndim + place] = other.extents[other.ndim + axis]
    return is_c_contiguous(other.ndim, sorted_, other.itemsize)


def empty_like(Array other not None, dtype=None, device=None, stream=None):
    """An Array of another one's shape, whose contents are not set.

    Arguments:
        other: Array.
        dtype: None is the other's.
        device, stream: None is the other's device and the current stream; page-locked memory for a host Array.
    Returns:
        Array; its axes lie in the other's order where the other's elements fill their memory, else in C order.
    """
    return allocate_like(other, dtype, device, stream)


def zeros_like(Array other not None, dtype=None, device=None, stream=None):
    """An Array of zero bytes of another one's shape, on a device; see empty_like()."""
    cdef Array made
    check_live(other, "other")
    if other.device_index < 0 and device is None:
        raise ValueError("other is in host memory; pass the device that the Array of zeros is to be on")
    made = allocate_like(other, dtype, device, stream)
    made.base.fill(0, stream=made.stream)
    return made
