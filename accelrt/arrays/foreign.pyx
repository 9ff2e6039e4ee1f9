"""Memory of others as Arrays, without a copy: NumPy's, Buffers, and arrays with __cuda_array_interface__ or __dlpack__."""
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from accelrt.arrays.array cimport Array, dtype_of, finish_array, new_array, numpy_module, wrap_numpy
from accelrt.arrays.dlpack cimport import_any
from accelrt.arrays.layout cimport Extents, count_elements, read_shape, read_strides, set_contiguous
from accelrt.buffers.buffer cimport Buffer, PinnedBuffer
from accelrt.buffers.operand cimport Operand, follow_producer
from accelrt.devices.device cimport ordinal_of
cimport accelrt.driver.registry as registry
from accelrt.runtime import init
from accelrt.status cimport raise_status
from accelrt.streams.stream cimport Stream, current_of


cdef bint is_foreign(object source) except -1:
    return (isinstance(source, (Array, Buffer, PinnedBuffer, numpy_module().ndarray))
            or hasattr(source, "__cuda_array_interface__") or hasattr(source, "__dlpack__"))


cdef Array take(object array):
    return wrap_numpy(array)


cdef int device_of_pointer(uintptr_t address) except -2:
    # -1 for host memory.
    cdef int device = ordinal_of(None), code
    if address:
        with nogil:
            code = registry.active().pointer_device(address, &device)
        if code:
            raise_status(code, "pointer_device", ("address", address))
    return device


cdef Array wrap_interface(object source):
    # The current stream of the memory's device comes after the stream that the array names.
    cdef Extents extents
    cdef Operand side
    cdef Stream worker = None
    cdef Array made
    found = init.later("accelrt.buffers.cuda_array").describe(source.__cuda_array_interface__, "source")
    kind = dtype_of(found.dtype)
    cdef uintptr_t address = found.address
    cdef Py_ssize_t ndim = read_shape(found.lengths, extents)
    cdef int device = device_of_pointer(address)
    count_elements(ndim, extents, kind.itemsize)
    set_contiguous(ndim, extents, kind.itemsize)
    if found.strides is not None:
        read_strides(found.strides, ndim, extents + ndim)
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
    if dtype is not None and found.dtype != dtype_of(dtype):
        raise TypeError(f"dtype is {dtype_of(dtype)}, but source has {found.dtype}, and nothing is converted here; convert "
                        "it first, or name the bytes' type with view()")
    return found
