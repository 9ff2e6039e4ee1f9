"""Memory of others as Arrays, without a copy: NumPy's, Buffers, and arrays with __cuda_array_interface__ or __dlpack__."""
from accelrt.arrays.array cimport Array, dtype_of, numpy_module, wrap_numpy
from accelrt.buffers.buffer cimport Buffer, PinnedBuffer


cdef bint is_foreign(object source) except -1:
    return (isinstance(source, (Array, Buffer, PinnedBuffer, numpy_module().ndarray))
            or hasattr(source, "__cuda_array_interface__") or hasattr(source, "__dlpack__"))


cdef Array take(object array):
    return wrap_numpy(array)


cdef Array wrap_any(object source, object dtype, object stream):
    cdef Array found
    if isinstance(source, Array):
        found = source
    elif isinstance(source, (Buffer, PinnedBuffer)):
        found = Array(source)
    elif isinstance(source, numpy_module().ndarray):
        found = wrap_numpy(source)
    else:
        found = wrap_numpy(numpy_module().asarray(source, dtype))
    if dtype is not None and found.dtype != dtype_of(dtype):
        raise TypeError(f"dtype is {dtype_of(dtype)}, but source has {found.dtype}, and nothing is converted here; convert "
                        "it first, or name the bytes' type with view()")
    return found
