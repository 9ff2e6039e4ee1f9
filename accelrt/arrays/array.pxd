# Buffer, PinnedBuffer and Array for compiled modules: shapes as numbers, owners of memory, and arrays in it.

# Shapes and strides as plain numbers: an Array's extents are ndim lengths, then ndim strides in bytes.  Nothing here
# looks at memory, takes a lock or needs the GIL, but for the functions that raise.
from cpython.buffer cimport Py_buffer
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from accelrt.arrays.dlpack_abi cimport DLPackExchangeAPI
from accelrt.core.locks cimport WITHOUT_GIL
from accelrt.streams.stream cimport Stream
from accelrt.runtime.access cimport Export, PoolBlock

cdef enum:
    MAX_NDIM = 64  # NumPy's limit

ctypedef Py_ssize_t[2 * MAX_NDIM] Extents

# Reads a shape, an int or a sequence of ints, of 0 or more each; answers ndim.
cdef Py_ssize_t read_shape(object shape, Py_ssize_t* lengths) except -1
# Reads strides in bytes, of any sign.
cdef int read_strides(object strides, Py_ssize_t ndim, Py_ssize_t* out_strides) except -1
# The number of elements; OverflowError's place is a ValueError where their bytes pass what an address can reach.
cdef Py_ssize_t count_elements(Py_ssize_t ndim, const Py_ssize_t* lengths, Py_ssize_t itemsize) except -1
# The bytes from the first element's address to the lowest and past the highest that some element has: low <= 0 <= high.
cdef int find_bounds(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t itemsize, Py_ssize_t* out_low,
                     Py_ssize_t* out_high) except -1


cdef inline void set_contiguous(Py_ssize_t ndim, Py_ssize_t* extents, Py_ssize_t itemsize) noexcept nogil:
    # The strides of C order, for the lengths given.
    cdef Py_ssize_t axis, step = itemsize
    for axis in range(ndim - 1, -1, -1):
        extents[ndim + axis] = step
        step *= max(extents[axis], 1)


cdef inline bint is_c_contiguous(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t itemsize) noexcept nogil:
    # Whether the elements lie one behind the other in C order.  The stride of an axis of one element does not matter.
    cdef Py_ssize_t axis, step = itemsize
    cdef bint dense = True
    for axis in range(ndim - 1, -1, -1):
        if extents[axis] == 0:
            return True
        if extents[axis] != 1:
            dense = dense and extents[ndim + axis] == step
            step *= extents[axis]
    return dense


# Owners of memory: Buffer on a device, PinnedBuffer on the host, page-locked.
cdef class Buffer:
    cdef readonly uintptr_t ptr     # 0 once freed, and for 0 bytes
    cdef readonly size_t nbytes
    cdef readonly int device_index
    cdef readonly Stream stream     # whose order the memory follows; None before __init__
    cdef int exports                # DLPack tensors on the bytes that are alive
    cdef bint live                  # made, and not freed: what has no address may also have 0 bytes
    cdef bint kept                  # the memory is released by the keeper's end, not by the Buffer
    cdef object keeper              # of memory that other processes have too (accelrt/sharing); None once freed
    cdef object __weakref__

cdef class PinnedBuffer:
    cdef readonly uintptr_t ptr     # 0 once freed, and for 0 bytes
    cdef readonly size_t nbytes
    cdef int exports                # views of the bytes that are alive
    cdef bint live                  # as of a Buffer
    cdef object __weakref__

cdef Buffer new_buffer(size_t nbytes, Stream stream)  # on the stream's device; for callers who know that both will do
cdef int raise_freed(object owner, str name) except -1  # ValueError: it was freed, or never made
cdef int raise_lost(object memory, str name) except -1  # why still_has refuses it
cdef object base_of(Array array)  # the base, which another thread may be about to let go of
cdef uintptr_t address_in(object memory) noexcept  # of a Buffer, PinnedBuffer or Array; of anything else 0


# Arrays: memory with a shape, a type and strides.
cdef enum Owner:       # what an Array's base is
    OTHERS = 0         # an object of another library, which frees the memory when it dies
    DEVICE_BUFFER = 1  # a Buffer, which may be freed before its views are
    PINNED_BUFFER = 2  # a PinnedBuffer; each Array on it counts as an export

cdef class Array:
    cdef readonly uintptr_t ptr       # of the first element; 0 where there are no elements
    cdef readonly int device_index    # -1: host memory
    cdef readonly object base         # what owns the memory and is kept alive by this; None once freed
    cdef object parked                # without a GIL: the base that was, for threads that are just looking at it
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
cdef Array finish_array(Array array)  # counts the elements, and answers the Array, which is not live before
# With memory of its own, on a device, or page-locked, where stream has to be None; the extents' strides fill it.
cdef Array allocate_array(Py_ssize_t ndim, const Py_ssize_t* extents, object dtype, object device, object stream,
                          bint pinned)
# What Array.__dlpack__ and Array.__dlpack_device__ call, and what other libraries' C code calls: set by exchange.pyx, which
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


# Without a GIL a free() may be under way beside a look at its object: who sees no address sees that it is not live, and who
# sees no bytes sees no address any more.
cdef extern from *:
    """
    static inline void accelrt_forget_memory(int *live, uintptr_t *ptr, size_t *nbytes) {
        __atomic_store_n(live, 0, __ATOMIC_RELAXED);
        __atomic_store_n(ptr, 0, __ATOMIC_RELEASE);
        __atomic_store_n(nbytes, 0, __ATOMIC_RELEASE);
    }
    #define accelrt_load_field(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    """
    void forget_memory "accelrt_forget_memory" (bint* live, uintptr_t* ptr, size_t* nbytes) noexcept
    bint load_live "accelrt_load_field" (bint* place) noexcept
    uintptr_t load_ptr "accelrt_load_field" (uintptr_t* place) noexcept
    size_t load_nbytes "accelrt_load_field" (size_t* place) noexcept


cdef inline bint is_held(PyObject* base) noexcept:
    # Whether a Buffer was not freed.  Without a GIL an Array may have let go of it just now, and keeps it parked.
    return (not WITHOUT_GIL or base != <PyObject*>None) and load_live(&(<Buffer>base).live)


cdef inline bint is_live(Array array) noexcept:
    return array.live and (array.owner != DEVICE_BUFFER or is_held(<PyObject*>array.base))


cdef inline int check_live(Array array, str name) except -1:
    # ValueError where the memory was freed, also by the Buffer that the Array views.
    if is_live(array):
        return 0
    return raise_dead(array, name)


cdef inline bint still_has(object memory, uintptr_t address) noexcept:
    # Of memory of accelrt's own: whether it is not freed, and at this address; of anything else True.
    if isinstance(memory, Array):
        return (<Array>memory).ptr == address and is_live(<Array>memory)
    if isinstance(memory, Buffer):
        return load_live(&(<Buffer>memory).live) and load_ptr(&(<Buffer>memory).ptr) == address
    if isinstance(memory, PinnedBuffer):
        return load_live(&(<PinnedBuffer>memory).live) and load_ptr(&(<PinnedBuffer>memory).ptr) == address
    return not isinstance(memory, PoolBlock) or (<PoolBlock>memory).address == address
