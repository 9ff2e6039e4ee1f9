"""Arrays with memory of their own or of others', and what the methods of Arrays do with memory."""
import sys

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from accelrt.arrays.array cimport Array, check_live, dtype_of, finish_array, new_array, numpy_module, wrap_numpy
from accelrt.arrays.array import provide_methods
from accelrt.arrays.dlpack cimport import_any
from accelrt.arrays.layout cimport (
    Extents, count_elements, find_bounds, is_c_contiguous, read_shape, read_strides, set_contiguous,
)
from accelrt.arrays.strided cimport copy_array, fill_array
from accelrt.arrays.buffer cimport Buffer, PinnedBuffer
from accelrt.arrays.operand cimport Operand, device_of_pointer, follow_producer
from accelrt.devices.device cimport ordinal_of
from accelrt.runtime import init
from accelrt.streams.current cimport current_of
from accelrt.streams.stream cimport Stream


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


def full(shape, value, dtype=None, device=None, stream=None):
    """An Array of which every element is one number, set in its stream's order; see empty().

    Arguments:
        value: anything that NumPy makes a number of.
        dtype: None is NumPy's for the value.
    """
    if dtype is None:
        dtype = numpy_module().asarray(value).dtype
    made = allocate_shaped(shape, dtype, device, stream, False)
    fill_array(made, value, (<Array>made).stream)
    return made


def full_like(Array other not None, value, dtype=None, device=None, stream=None):
    """An Array of another one's shape, of which every element is one number; see empty_like() and full()."""
    cdef Array made = allocate_like(other, dtype, device, stream)
    fill_array(made, value, made.stream)
    return made


# --- memory of others, without a copy ---------------------------------------------------------------------------

cdef bint is_foreign(object source) except -1:
    return (isinstance(source, (Array, Buffer, PinnedBuffer, numpy_module().ndarray))
            or hasattr(source, "__cuda_array_interface__") or hasattr(source, "__dlpack__"))


cdef Array wrap_interface(object source):
    # The current stream of the memory's device comes after the stream that the array names.
    cdef Extents extents
    cdef Py_ssize_t low, high
    cdef Operand side
    cdef Stream worker = None
    cdef Array made
    found = init.later("accelrt.arrays.cuda_array").describe(source.__cuda_array_interface__, "source")
    kind = dtype_of(found.dtype)
    cdef uintptr_t address = found.address
    cdef Py_ssize_t ndim = read_shape(found.lengths, extents)
    cdef int device = device_of_pointer(address) if address else ordinal_of(None)
    count_elements(ndim, extents, kind.itemsize)
    set_contiguous(ndim, extents, kind.itemsize)
    if found.strides is not None:
        read_strides(found.strides, ndim, extents + ndim)
    find_bounds(ndim, extents, kind.itemsize, &low, &high)
    if device >= 0:
        worker = current_of(device)
        side.ordinal = device
        side.producer = found.stream if address else 0
        follow_producer(&side, worker)
    made = new_array(source, address, device, worker, kind, ndim, found.readonly)
    memcpy(made.extents, extents, 2 * ndim * sizeof(Py_ssize_t))
    finish_array(made)
    return made


cdef Array wrap_any(object source, object dtype, object stream):
    cdef Array found
    if isinstance(source, Array):
        found = source
        check_live(found, "source")
    elif isinstance(source, (Buffer, PinnedBuffer)):
        found = Array(source)
    elif isinstance(source, numpy_module().ndarray):
        found = wrap_numpy(source)
    elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
        found = import_any(source)
    elif hasattr(source, "__cuda_array_interface__"):
        found = wrap_interface(source)
    else:
        found = wrap_numpy(numpy_module().asarray(source, dtype))
    if dtype is not None and found.dtype != dtype:
        raise TypeError(f"dtype is {dtype}, but source has {found.dtype}, and nothing is converted here; convert "
                        "it first, or name the bytes' type with view()")
    return found


def asarray(source, dtype=None, device=None, stream=None, *, copy=None):
    """An Array of what is given: without a copy where it is on the device, else a copy there.

    Arguments:
        source: Array, Buffer, PinnedBuffer, NumPy array, another library's array (__cuda_array_interface__,
            __dlpack__), or what NumPy makes an array of.
        dtype: None is the source's.  Only what NumPy makes an array of, lists say, is converted.
        device: int, "cuda:1", "host:0", an object with an index, or "cpu" for host memory; None is the source's device,
            or for host memory the current one, or the stream's.
        stream: Stream, handle as int, or None for the current stream: that of a copy, and of memory that it makes.
        copy: bool; True always copies, False never does, None copies where it has to.
    Returns:
        Array.
    Raises:
        ValueError: copy is False and one is needed.
        TypeError: source is no array, holds Python objects, or has another dtype.
    """
    cdef Array found
    cdef Array made
    cdef int ordinal = -1
    cdef bint copies = copy is not None and copy  # what may run the caller's code comes before the look at the source
    cdef bint refuses = copy is not None and not copies
    if dtype is not None:
        dtype = dtype_of(dtype)
    if device is not None and not (isinstance(device, str) and device == "cpu"):
        ordinal = ordinal_of(device)
    found = wrap_any(source, dtype, stream)
    if device is None and found.device_index >= 0:
        ordinal = found.device_index
    elif device is None:
        ordinal = (<Stream>stream).device_index if isinstance(stream, Stream) else ordinal_of(None)
    if ordinal == found.device_index and not copies:
        return found
    if refuses:
        raise ValueError("copy is False, but the elements are elsewhere; pass copy=None, or their own device")
    if ordinal < 0:
        made = allocate_like(found, None, None, None) if found.device_index < 0 else pinned_like(found)
        copy_array(made, found, True, stream)
        return made
    made = allocate_like(found, None, ordinal, stream)
    copy_array(made, found, found.device_index < 0, made.stream if stream is None else stream)
    return made


cdef Array pinned_like(Array other):
    cdef Extents extents
    memcpy(extents, other.extents, other.ndim * sizeof(Py_ssize_t))
    set_contiguous(other.ndim, extents, other.itemsize)
    return allocate(other.ndim, extents, other.dtype, None if other.device_index < 0 else other.device_index, None, True)


def from_dlpack(source, device=None, *, copy=None):
    """An Array of another library's array, by DLPack and without a copy where it can be.

    Arguments:
        source: object with __dlpack__ and __dlpack_device__, of memory of the CPU or of a GPU.
        device: int, "cuda:1", "host:0", an object with an index, or "cpu" for host memory; None is the source's.
        copy: bool; True always copies, False never does, None copies where the device is another.
    Returns:
        Array.  On a GPU its stream is the current one, which waits for the source's work; the source is given back once
        no Array is left of it and that stream's work then is done.  What other streams do with it has to be waited for.
        Memory of the CPU is host memory also where it is the host device's.
    Raises:
        BufferError: the source is on no device of accelrt's, or of a type without a dtype.
        ValueError: copy is False and the device is another.
        TypeError: source has no __dlpack__.
    """
    cdef Array found = source if isinstance(source, Array) else import_any(source)
    if device is None:
        device = "cpu" if found.device_index < 0 else found.device_index
    return asarray(found, device=device, copy=copy)


# --- what an Array's methods do with memory ----------------------------------------------------------------------

def copy_into(Array dst, src, bint non_blocking, stream):
    cdef Array source
    check_live(dst, "this")
    source = src if isinstance(src, Array) else wrap_any(src, None if is_foreign(src) else dst.dtype, stream)
    copy_array(dst, source, not non_blocking and (dst.device_index < 0 or source.device_index < 0), stream)
    return dst


def fill_into(Array dst, value, stream):
    fill_array(dst, value, stream)


def assign(Array dst, value):
    if isinstance(value, (int, float, complex)) or isinstance(value, numpy_module().generic):
        fill_array(dst, value, None)
    else:
        copy_into(dst, value, False, None)


def copied(Array array, stream):
    cdef Array made
    if array.device_index < 0:
        made = pinned_like(array)
    else:
        made = allocate_shaped(array.shape, array.dtype, array.device_index, stream, False)
    copy_array(made, array, False, stream)
    return made


def to_numpy(Array array):
    made = numpy_module().empty(array.shape, array.dtype)
    copy_array(wrap_numpy(made), array, True, None)
    return made


provide_methods(sys.modules[__name__])
