# Arrays: memory with a shape, a type and strides.
from libc.stdint cimport uintptr_t

from accelrt.arrays.dlpack_abi cimport DLPackExchangeAPI
from accelrt.streams.stream cimport Stream
from accelrt.uses.access cimport Export

cdef enum Owner:       # what an Array's base is
    OTHERS = 0         # an object of another library, which frees the memory when it dies
    DEVICE_BUFFER = 1  # a Buffer, which may be freed before its views are
    PINNED_BUFFER = 2  # a PinnedBuffer; each Array on it counts as an export

cdef class Array:
    cdef readonly uintptr_t ptr       # of the first element; 0 where there are no elements
    cdef readonly int device_index    # -1: host memory
    cdef readonly object base         # what owns the memory and is kept alive by this; None once freed
    cdef readonly object dtype        # numpy.dtype
    cdef readonly Stream stream       # whose order the memory follows; None for host memory
    cdef readonly Py_ssize_t ndim
    cdef readonly Py_ssize_t size     # in elements
    cdef readonly Py_ssize_t itemsize
    cdef readonly bint readonly
    cdef Owner owner
    cdef bint live                    # made, and not freed
    cdef int exports                  # DLPack tensors of this Array that are alive
    cdef Export export                # listed while there are any
    cdef Py_ssize_t* extents          # ndim lengths, then ndim strides in bytes; room where they fit in it
    cdef Py_ssize_t[8] room
    cdef Py_ssize_t* steps            # strides in elements, as DLPack has them, once they were asked for; or NULL
    cdef object __weakref__

    cdef bint dense(self) noexcept    # whether the elements lie one behind the other in C order

# An Array of others' memory, with room for ndim axes: the caller fills the extents and calls finish_array.  stream is
# None for host memory alone.
cdef Array new_array(object base, uintptr_t ptr, int device_index, Stream stream, object dtype, Py_ssize_t ndim,
                     bint readonly)
cdef int finish_array(Array array) except -1  # counts the elements; before it the Array is not live
cdef Array new_view(Array source, uintptr_t ptr, Py_ssize_t ndim)  # the same, of the same memory
# What Array.__dlpack__ and Array.__dlpack_device__ call, and what other libraries' C code calls: set by dlpack.pyx, which
# stands on arrays.
ctypedef object (*dlpack_function)(Array array, object stream, object max_version, object dl_device, object copy)
ctypedef object (*dlpack_device_function)(Array array)
cdef dlpack_function export_dlpack
cdef dlpack_device_function find_dlpack_device
cdef DLPackExchangeAPI exchange_api

cdef Array wrap_numpy(object array)  # of a numpy.ndarray, without a copy
cdef object dtype_of(object dtype)   # numpy.dtype of plain values
cdef object numpy_module()
cdef int raise_dead(Array array, str name) except -1  # why check_live refuses it


cdef inline bint is_live(Array array) noexcept:
    return array.live and (array.owner != DEVICE_BUFFER or is_held(array.base))


cdef inline int check_live(Array array, str name) except -1:
    # ValueError where the memory was freed, also by the Buffer that the Array views.
    if is_live(array):
        return 0
    return raise_dead(array, name)

cdef bint is_held(object base) noexcept  # whether a Buffer was not freed
