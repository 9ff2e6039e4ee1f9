"""Arrays of new memory, and memory exchanged with other libraries by DLPack."""
cimport cython
import sys
from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strchr

from accelrt.allocator.backing.pages cimport is_managed
from accelrt.allocator.pool cimport device_at, use_across
from accelrt.arrays.array cimport (
    allocate_array, Array, Buffer, check_live, count_elements, DEVICE_BUFFER, dtype_of, Extents, find_bounds,
    finish_array, is_c_contiguous, is_live, MAX_NDIM, new_array, numpy_module, OTHERS, PINNED_BUFFER, PinnedBuffer,
    raise_lost, read_shape, read_strides, set_contiguous, still_has, wrap_numpy,
)
from accelrt.arrays.array import provide_methods
cimport accelrt.arrays.array as arrays
from accelrt.arrays.copy import copy as copy_bytes, fill as fill_bytes
from accelrt.arrays.copy cimport (
    add_pieces, captures_apart, copy_array, device_of_pointer, fill_array, find_spans, finish, follow_producer,
    insert_span, is_asynchronous, keep, NOT_LOCKED, note_use, Operand, packed, PAST_END, Pieces, read_array, read_operand,
    record_for, Spans, uses_owner,
)
from accelrt.arrays.dlpack_abi cimport (
    DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DL_IS_COPIED, DL_PADDED, DL_READ_ONLY, DLPACK_MAJOR, DLPACK_MINOR,
    DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLPackExchangeAPI, DLTensor, set_error,
)
from accelrt.core.integers cimport checked_address_int, checked_int
from accelrt.core.interpreter cimport holds_gil, interpreter_is_gone, PyThread_get_thread_ident
from accelrt.core.locks cimport WITHOUT_GIL, begin_turn, end_turn
from accelrt.devices.device cimport count_devices, ordinal_of
from accelrt.driver.guard cimport ask_stream, drop_with_gil, make_thread_state
cimport accelrt.driver.registry as registry
from accelrt.memory.caching cimport checked_size
from accelrt.memory.caching import provide_views
from accelrt.runtime import init
from accelrt.runtime.lifetimes cimport any_capture, keep_until_passed, Record, record_on
from accelrt.driver.memory cimport CopyRun, PitchedCopy, run_from, SOURCE_DURING_CALL, SOURCE_IN_STREAM_ORDER
from accelrt.errors import not_supported
from accelrt.status cimport INVALID_VALUE, NOT_ALLOCATED, NOT_SUPPORTED, raise_status, refuse_copy
from accelrt.streams.stream cimport (
    current_handle, current_of, judge_handle, ordinal_beside, Stream, stream_for, stream_of, wrap,
)
from accelrt.runtime.access cimport (
    Access, any_sleeps, begin_use, end_use, link_export, PoolBlock, PoolView, refuse_sleeping, unlink_export,
)
cimport accelrt.runtime.access as watch


# --- dlpack -----------------------------------------------------------------------------------------------------------
# DLPack both ways: capsules of either kind, and the C functions of DLPack's exchange API.
#
# An export holds the Array, and counts on its Buffer or PinnedBuffer, so that free() does not take the memory from under
# another library.  Its deleter takes the GIL, on whichever thread it runs, and does nothing once the interpreter is gone.

cdef enum:
    NO_ORDER = -1    # values of stream
    LEGACY = 1
    RECENT = 16

cdef const char* VERSIONED = "dltensor_versioned"
cdef const char* USED_VERSIONED = "used_dltensor_versioned"
cdef const char* UNVERSIONED = "dltensor"
cdef const char* USED_UNVERSIONED = "used_dltensor"

cdef dict type_codes = {}  # numpy.dtype -> code | bits << 8 | DL_PADDED << 16
cdef uintptr_t[RECENT] recent_types  # addresses of the types that recent_kept keeps
cdef long[RECENT] recent_codes
cdef list recent_kept = [None] * RECENT
cdef int recent_lock = 0   # of the three, where there is no GIL
cdef dict dtypes = {}      # code | bits << 8 -> numpy.dtype
cdef int driver_is_host = -1


cdef inline bint on_host_driver() except -1:
    # The answer never changes once a driver is open, as it is for any Array's memory, except in a fork's child.
    global driver_is_host
    if driver_is_host < 0:
        driver_is_host = init.chosen_driver() == "host"
    return driver_is_host


# --- types --------------------------------------------------------------------------------------------------------

cdef inline long code_of(object dtype) except -1:
    # The type is looked up by identity first: NumPy has one object per type, and hashing it costs more than an export.
    cdef uintptr_t slot = (<uintptr_t><void*>dtype >> 4) % RECENT
    cdef long code = -1
    begin_turn(&recent_lock)
    if recent_types[slot] == <uintptr_t><void*>dtype:
        code = recent_codes[slot]
    end_turn(&recent_lock)
    return code if code >= 0 else code_of_slow(dtype, slot)


cdef long code_of_slow(object dtype, uintptr_t slot) except -1:
    code = type_codes.get(dtype)
    if code is None:
        code = type_codes[dtype] = find_code(dtype)
    before = recent_kept[slot]  # no-cython-lint  it is to die behind the lock
    begin_turn(&recent_lock)
    recent_kept[slot] = dtype
    recent_types[slot] = <uintptr_t><void*>dtype
    recent_codes[slot] = code
    end_turn(&recent_lock)
    return code


cdef object find_code(object dtype):
    if not dtype.isnative:
        raise BufferError(f"DLPack has no {dtype}, whose bytes are in another order than this machine's")
    row = init.later("accelrt.core.dtypes").BY_NAME.get(dtype.name)
    if row is None or dtype.type.__module__.partition(".")[0] != ("ml_dtypes" if row.of_ml_dtypes else "numpy"):
        raise BufferError(f"DLPack has no {dtype}; export a view of its bytes: array.view('uint8')")
    return row.dlpack | row.bits << 8 | (DL_PADDED << 16 if row.bits < 8 else 0)


cdef object dtype_of_code(DLDataType dtype):
    cdef long key = dtype.code | dtype.bits << 8
    numpy_type = dtypes.get(key) if dtype.lanes == 1 else None
    if numpy_type is None:
        if dtype.lanes != 1:
            raise BufferError(f"a DLPack tensor has elements of {dtype.lanes} lanes; an Array has none of several")
        numpy_type = dtypes[key] = find_dtype(dtype.code, dtype.bits)
    return numpy_type


cdef object find_dtype(int code, int bits):
    for row in init.later("accelrt.core.dtypes").DTYPES:
        if row.dlpack == code and row.bits == bits:
            if not row.of_ml_dtypes:
                return numpy_module().dtype(row.name)
            try:
                import ml_dtypes

                return numpy_module().dtype(getattr(ml_dtypes, row.name))
            except (ImportError, AttributeError):
                raise BufferError(f"a DLPack tensor is of {row.name}, for which ml_dtypes has to be installed") from None
    raise BufferError(f"a DLPack tensor is of type code {code} with {bits} bits, which NumPy has no dtype for")


# --- exports --------------------------------------------------------------------------------------------------------

cdef inline int place_of(Array array, int32_t* out_type, int32_t* out_id) except -1:
    out_id[0] = 0
    if on_host_driver():
        out_type[0] = DL_CPU
    elif array.device_index >= 0:
        out_type[0], out_id[0] = DL_CUDA_MANAGED if is_managed(array.ptr) else DL_CUDA, array.device_index
    else:
        is_of_pool = isinstance(array.base, memoryview) and isinstance(array.base.obj, PoolBlock)
        out_type[0] = DL_CUDA_HOST if array.owner == PINNED_BUFFER or is_of_pool else DL_CPU
    return 0


cdef object device_pair(Array array):
    cdef int32_t kind = 0, number = 0
    place_of(array, &kind, &number)
    return kind, number


cdef inline int describe(Array array, DLTensor* out, uint64_t* out_flags) except -1:
    # Fills in everything but the shape and the strides.
    if WITHOUT_GIL:  # it was looked at before the export counted
        check_live(array, "this")
    refuse_sleeping(array.ptr, "this Array")
    cdef long code = code_of(array.dtype)
    out.data = <void*>array.ptr
    place_of(array, &out.device.device_type, &out.device.device_id)
    out.ndim = <int32_t>array.ndim
    out.dtype.code = code & 0xFF
    out.dtype.bits = code >> 8 & 0xFF
    out.dtype.lanes = 1
    out.byte_offset = 0
    out_flags[0] = <uint64_t>(code >> 16) | (DL_READ_ONLY if array.readonly else 0)
    return 0


cdef inline int write_steps(Array array, int64_t* steps) except -1:
    # A division costs as much as the rest of an axis, and C order needs none.
    cdef Py_ssize_t axis, stride, dense = 1
    for axis in range(array.ndim - 1, -1, -1):
        stride = array.extents[array.ndim + axis]
        if stride == dense * array.itemsize:
            steps[axis] = dense
            dense *= array.extents[axis]
            continue
        if stride % array.itemsize:
            raise BufferError(f"strides {array.strides} are no multiples of the {array.itemsize} bytes of {array.dtype}, "
                              "and DLPack counts in elements; export a copy()")
        steps[axis] = stride // array.itemsize
    return 0


cdef inline int describe_whole(Array array, DLTensor* out, int64_t* numbers, uint64_t* out_flags) except -1:
    # Fills in the shape and the strides too, for which `numbers` has room.
    cdef Py_ssize_t axis
    describe(array, out, out_flags)
    for axis in range(array.ndim):
        numbers[axis] = array.extents[axis]
    write_steps(array, numbers + array.ndim)
    out.shape = numbers
    out.strides = numbers + array.ndim
    return 0


cdef void drop_export(PyObject* array) noexcept:
    cdef Array held = <Array>array
    count_export(held, -1)
    Py_DECREF(held)


cdef void hold(Array array) noexcept:
    Py_INCREF(array)
    count_export(array, 1)


@cython.critical_section
cdef int count_export(Array array, int change) noexcept:
    array.exports += change
    if array.exports == 0:
        unlink_export(&array.export)
    elif array.exports == 1 and change == 1:
        link_export(&array.export, array.ptr, <PyObject*>array)
    if array.owner == DEVICE_BUFFER:
        with cython.critical_section(array.base):
            (<Buffer>array.base).exports += change
    elif array.owner == PINNED_BUFFER:
        with cython.critical_section(array.base):
            (<PinnedBuffer>array.base).exports += change
    return 0


cdef void delete_holder(void* holder) noexcept nogil:
    # Any thread of any library may call this.
    cdef bint new_state
    if interpreter_is_gone():
        return
    if holds_gil():  # to take it again would cost more than the rest
        (<void (*)(PyObject*) noexcept nogil><void*>drop_export)(<PyObject*>holder)
        return
    new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        drop_export(<PyObject*>holder)


cdef void delete_versioned(void* tensor) noexcept nogil:
    delete_holder((<DLManagedTensorVersioned*>tensor).manager_ctx)
    free(tensor)


cdef void delete_unversioned(void* tensor) noexcept nogil:
    delete_holder((<DLManagedTensor*>tensor).manager_ctx)
    free(tensor)


cdef void drop_versioned(object capsule) noexcept:
    cdef DLManagedTensorVersioned* tensor
    if PyCapsule_IsValid(capsule, VERSIONED):
        tensor = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        tensor.deleter(tensor)


cdef void drop_unversioned(object capsule) noexcept:
    cdef DLManagedTensor* tensor
    if PyCapsule_IsValid(capsule, UNVERSIONED):
        tensor = <DLManagedTensor*>PyCapsule_GetPointer(capsule, UNVERSIONED)
        tensor.deleter(tensor)


cdef DLManagedTensorVersioned* make_versioned(Array array, bint copied) except NULL:
    # The tensor, its shape and its strides share one piece of memory.
    cdef DLManagedTensorVersioned* tensor = <DLManagedTensorVersioned*>malloc(
        sizeof(DLManagedTensorVersioned) + 2 * array.ndim * sizeof(int64_t))
    if tensor == NULL:
        raise MemoryError("no host memory for a DLPack tensor")
    if not is_live(array):  # the caller's code ran before, and the stream was waited for
        free(tensor)
        check_live(array, "this")
    hold(array)  # before the looks: sleep() closes the pool before it looks for exports
    try:
        describe_whole(array, &tensor.dl_tensor, <int64_t*>(tensor + 1), &tensor.flags)
    except BaseException:
        drop_export(<PyObject*>array)
        free(tensor)
        raise
    tensor.flags |= DL_IS_COPIED if copied else 0
    tensor.version.major = DLPACK_MAJOR
    tensor.version.minor = DLPACK_MINOR
    tensor.manager_ctx = <void*>array
    tensor.deleter = delete_versioned
    return tensor


cdef DLManagedTensor* make_unversioned(Array array) except NULL:
    cdef uint64_t flags
    cdef DLManagedTensor* tensor
    if array.readonly:
        raise BufferError("the Array is read-only, which an unversioned DLPack tensor cannot say; ask for a versioned one, "
                          "max_version=(1, 0), or export a copy()")
    tensor = <DLManagedTensor*>malloc(sizeof(DLManagedTensor) + 2 * array.ndim * sizeof(int64_t))
    if tensor == NULL:
        raise MemoryError("no host memory for a DLPack tensor")
    if not is_live(array):  # the caller's code ran before, and the stream was waited for
        free(tensor)
        check_live(array, "this")
    hold(array)
    try:
        describe_whole(array, &tensor.dl_tensor, <int64_t*>(tensor + 1), &flags)
        if flags & DL_PADDED:
            raise BufferError(f"an unversioned DLPack tensor has no {array.dtype} of a byte an element; ask for a versioned "
                              "one, max_version=(1, 1)")
    except BaseException:
        drop_export(<PyObject*>array)
        free(tensor)
        raise
    tensor.manager_ctx = <void*>array
    tensor.deleter = delete_unversioned
    return tensor


cdef object export(Array array, object stream, object max_version, object dl_device, object copy):
    cdef bint copied = copy is not None and copy
    cdef bint as_device = False  # managed memory for a consumer that knows a device's alone
    cdef Array exported = array
    cdef DLManagedTensorVersioned* versioned
    cdef DLManagedTensor* unversioned
    if dl_device is not None and tuple(dl_device) == (DL_CUDA, array.device_index) and is_managed(array.ptr):
        as_device = not on_host_driver()
    if dl_device is not None and not as_device and tuple(dl_device) != device_pair(array):
        if tuple(dl_device) != (DL_CPU, 0) or (copy is not None and not copy):
            raise BufferError(f"dl_device is {dl_device} and copy {copy}; the Array is on {device_pair(array)}, and is "
                              f"exported there, or copied to ({DL_CPU}, 0)")
        exported, copied, stream = copied_to_host(array), True, None
    elif copied:
        exported = array.copy(stream=array.stream)
    order_consumer(exported, stream)
    if max_version is not None and max_version[0] >= 1:
        versioned = make_versioned(exported, copied)
        if as_device:
            versioned.dl_tensor.device.device_type = DL_CUDA
        try:
            return PyCapsule_New(versioned, VERSIONED, drop_versioned)
        except BaseException:
            versioned.deleter(versioned)
            raise
    unversioned = make_unversioned(exported)
    if as_device:
        unversioned.dl_tensor.device.device_type = DL_CUDA
    try:
        return PyCapsule_New(unversioned, UNVERSIONED, drop_unversioned)
    except BaseException:
        unversioned.deleter(unversioned)
        raise


cdef Array copied_to_host(Array array):
    cdef Array host_copy = wrap_numpy(numpy_module().empty(array.shape, array.dtype))
    copy_array(host_copy, array, True, array.stream)
    return host_copy


cdef int order_consumer(Array array, object stream) except -1:
    # The consumer's stream comes after what was put into the Array's; on the CPU the consumer has none.
    cdef int device = array.device_index
    cdef uintptr_t handle
    cdef Stream consumer
    if type(stream) is int and stream == NO_ORDER:
        return 0
    if device < 0 or on_host_driver():
        if stream is not None:
            raise ValueError(f"stream is {stream!r}; host memory is exported with None, or -1 for no order")
        if device >= 0 and record_on(device, array.stream.handle) is None:
            array.stream.synchronize()
        return 0
    if stream is None:
        handle = LEGACY
        if is_managed(array.ptr) and record_on(device, array.stream.handle) is None:
            array.stream.synchronize()  # the consumer may be the CPU
    elif isinstance(stream, int) and not isinstance(stream, bool) and 0 < stream < 1 << 64:
        handle = stream
    elif isinstance(stream, int) and not isinstance(stream, bool):
        raise ValueError(f"stream is {stream}; 1 is the legacy default stream, 2 the per-thread one, -1 orders nothing, "
                         "others are handles, and 0 is ambiguous")
    else:
        raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a handle as int, -1 or None")
    if (handle if handle != LEGACY else 0) == (array.stream.handle if array.stream.handle != LEGACY else 0):
        return 0
    consumer = wrap(handle if handle != LEGACY else 0, judge_handle(handle, device, "stream"), None)
    if not any_capture() or not (captures_apart(consumer, array.stream) or captures_apart(array.stream, consumer)):
        consumer.wait_stream(array.stream)
    return note_consumer(array, consumer.device_index, consumer.handle)


cdef int note_consumer(Array array, int device, uintptr_t handle) except -1:
    # Once freed, the memory is not reused before the consumer's work is done.
    cdef uintptr_t block
    cdef int ordinal = array.device_index
    cdef int code
    if array.owner != DEVICE_BUFFER:
        return 0
    block = (<Buffer>array.base).ptr
    with nogil:
        code = use_across(ordinal, block, device, handle)
    if code and code != NOT_ALLOCATED:
        raise_status(code, "record_stream", ("ptr", block, "stream", handle))
    watch.note_use_on(block, device, handle)
    return 0


# --- imports --------------------------------------------------------------------------------------------------------

@cython.no_gc_clear  # __dealloc__ needs the stream
cdef class ImportedTensor:
    """Another library's DLPack tensor; when this dies, it is given back after the work then in the Array's stream."""

    cdef DLManagedTensorVersioned* versioned
    cdef DLManagedTensor* unversioned
    cdef Stream stream

    def __dealloc__(self):
        cdef ImportedTensor late
        cdef int ordinal, code
        cdef uintptr_t handle
        if (self.versioned != NULL or self.unversioned != NULL) and self.stream is not None:
            ordinal, handle = self.stream.device_index, self.stream.handle
            with nogil:
                code = ask_stream(registry.active(), ordinal, handle)
            if code:
                late = ImportedTensor.__new__(ImportedTensor)
                late.versioned, late.unversioned = self.versioned, self.unversioned
                self.versioned = NULL
                self.unversioned = NULL
                keep_until_passed(ordinal, handle, late)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)
        if self.unversioned != NULL and self.unversioned.deleter != NULL:
            self.unversioned.deleter(self.unversioned)

    def __reduce__(self):
        refuse_copy(self, "it gives the tensor back when it dies")


cdef Array wrap_tensor(ImportedTensor owner, DLTensor* tensor, uint64_t flags):
    cdef Py_ssize_t axis, low, high, ndim = tensor.ndim
    cdef int device = -1
    cdef Stream stream = None
    cdef Array array
    if not 0 <= ndim <= MAX_NDIM:
        raise BufferError(f"a DLPack tensor has {ndim} axes; an Array has at most {MAX_NDIM}")
    if tensor.dtype.bits < 8 and not flags & DL_PADDED:
        raise BufferError(f"a DLPack tensor has packed elements of {tensor.dtype.bits} bits; an Array's have whole bytes")
    dtype = dtype_of_code(tensor.dtype)
    if tensor.device.device_type == DL_CUDA or tensor.device.device_type == DL_CUDA_MANAGED:
        device = device_of_tensor(tensor)
        stream = owner.stream = current_of(device)
    elif tensor.device.device_type != DL_CPU and tensor.device.device_type != DL_CUDA_HOST:
        raise_device(tensor.device.device_type)
    array = new_array(owner, <uintptr_t>tensor.data + tensor.byte_offset, device, stream, dtype, ndim,
                      flags & DL_READ_ONLY != 0)
    for axis in range(ndim):
        if tensor.shape[axis] < 0:
            raise BufferError(f"a DLPack tensor has an axis of {tensor.shape[axis]} elements")
        array.extents[axis] = tensor.shape[axis]
        if tensor.strides != NULL:
            array.extents[ndim + axis] = bytes_of_stride(tensor, axis, array.itemsize)
    if tensor.strides == NULL:
        set_contiguous(ndim, array.extents, array.itemsize)
    try:
        find_bounds(ndim, array.extents, array.itemsize, &low, &high)
        finish_array(array)
    except ValueError as error:
        raise BufferError(f"a DLPack tensor cannot be in memory: {error}") from None
    return array


cdef Py_ssize_t bytes_of_stride(DLTensor* tensor, Py_ssize_t axis, Py_ssize_t itemsize) except? -1:
    # The stride of an axis without a second element means nothing, and producers write anything there.
    cdef Py_ssize_t limit = PY_SSIZE_T_MAX // itemsize
    if -limit <= tensor.strides[axis] <= limit:
        return tensor.strides[axis] * itemsize
    if tensor.shape[axis] > 1:
        raise BufferError(f"a DLPack tensor has a stride of {tensor.strides[axis]} elements of {itemsize} bytes; no memory "
                          "reaches so far")
    return 0


cdef int raise_device(int kind) except -1:
    raise BufferError(f"a DLPack tensor is on a device of type {kind}; accelrt takes 1 (CPU), and on GPUs 2 (CUDA), 3 (CUDA "
                      "host) and 13 (CUDA managed); copy it to one of these first")


cdef int device_of_tensor(DLTensor* tensor) except -1:
    cdef int device = tensor.device.device_id
    count_devices()
    if on_host_driver():
        raise BufferError("a DLPack tensor is on a GPU, and accelrt uses the host device; use ACCELRT_DRIVER=cuda")
    if tensor.device.device_type == DL_CUDA_MANAGED and tensor.data != NULL:
        device = device_of_pointer(<uintptr_t>tensor.data, None, "source")
    if not 0 <= device < count_devices():
        raise BufferError(f"a DLPack tensor is on GPU {device}; accelrt sees {count_devices()}")
    return device


cdef Array take_capsule(object capsule):
    # Marks the capsule as used: a failure from here on gives the tensor back.
    cdef ImportedTensor owner = ImportedTensor.__new__(ImportedTensor)
    if PyCapsule_IsValid(capsule, VERSIONED):
        owner.versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        PyCapsule_SetName(capsule, USED_VERSIONED)
        return take_versioned(owner)
    if PyCapsule_IsValid(capsule, UNVERSIONED):
        owner.unversioned = <DLManagedTensor*>PyCapsule_GetPointer(capsule, UNVERSIONED)
        PyCapsule_SetName(capsule, USED_UNVERSIONED)
        return wrap_tensor(owner, &owner.unversioned.dl_tensor, 0)
    raise BufferError(f"__dlpack__() returned {capsule!r}, which is no DLPack capsule, or one that was used already")


cdef Array take_versioned(ImportedTensor owner):
    if owner.versioned.version.major != DLPACK_MAJOR:
        raise BufferError(f"a DLPack tensor is of version {owner.versioned.version.major}."
                          f"{owner.versioned.version.minor}; accelrt takes {DLPACK_MAJOR}.x")
    return wrap_tensor(owner, &owner.versioned.dl_tensor, owner.versioned.flags)


cdef object ask_capsule(object source):
    # Producers from before DLPack 1.0 know no max_version.  A capturing stream is not named to any producer: to make it
    # wait for work outside of the capture would break the capture.
    cdef object arguments = {}
    cdef Stream worker
    cdef int kind
    kind, number = source.__dlpack_device__()
    if kind == DL_CUDA or kind == DL_CUDA_MANAGED:
        if on_host_driver():
            raise BufferError("source is on a GPU, and accelrt uses the host device; use ACCELRT_DRIVER=cuda")
        if not 0 <= number < count_devices():
            raise BufferError(f"source is on GPU {number}; accelrt sees {count_devices()}")
        worker = current_of(number)
        apart = any_capture() and record_on(number, worker.handle) is not None
        arguments["stream"] = NO_ORDER if apart else worker.handle or LEGACY
    elif kind != DL_CPU and kind != DL_CUDA_HOST:
        raise_device(kind)
    try:
        return source.__dlpack__(max_version=(DLPACK_MAJOR, DLPACK_MINOR), **arguments)
    except TypeError as error:
        try:
            return source.__dlpack__(**arguments)
        except TypeError:
            raise error from None


cdef Array import_any(object source):
    # Imports an object with __dlpack__ without a copy.
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TypeError(f"source is of type {type(source).__name__}, which has no __dlpack__ and __dlpack_device__; pass an "
                        "array, or use accelrt.asarray()")
    return take_capsule(ask_capsule(source))


# --- DLPack's exchange API ------------------------------------------------------------------------------------------

cdef Array allocate_alike(DLTensor* prototype):
    # Has the prototype's shape, type and device; memory of the CPU is page-locked.
    cdef Extents extents
    cdef Py_ssize_t ndim = read_shape([prototype.shape[axis] for axis in range(prototype.ndim)], extents)
    cdef object dtype = dtype_of_code(prototype.dtype), device = None
    if prototype.device.device_type == DL_CUDA:
        device = device_of_tensor(prototype)
    elif prototype.device.device_type != DL_CPU and prototype.device.device_type != DL_CUDA_HOST:
        raise_device(prototype.device.device_type)
    set_contiguous(ndim, extents, dtype.itemsize)
    return allocate_array(ndim, extents, dtype, device, None, device is None)


cdef int allocate_tensor(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
                         set_error SetError) noexcept with gil:
    out[0] = NULL
    try:
        out[0] = make_versioned(allocate_alike(prototype), False)
        return 0
    except BaseException as error:
        kind, text = type(error).__name__.encode(), str(error).encode()
        SetError(error_ctx, kind, text)
        return -1


cdef int tensor_of_object(void* object_, DLManagedTensorVersioned** out) except -1:
    cdef Array array = <Array>object_
    cdef uintptr_t handle
    out[0] = NULL
    check_live(array, "this")
    out[0] = make_versioned(array, False)
    if array.device_index >= 0:  # the consumer works on the current stream
        handle = current_handle(array.device_index)
        if handle != array.stream.handle:
            try:
                note_consumer(array, array.device_index, handle)
            except BaseException:
                delete_versioned(out[0])
                out[0] = NULL
                raise
    return 0


cdef int object_of_tensor(DLManagedTensorVersioned* tensor, void** out) except -1:
    cdef ImportedTensor owner = ImportedTensor.__new__(ImportedTensor)
    cdef Array array
    out[0] = NULL
    owner.versioned = tensor
    array = take_versioned(owner)
    Py_INCREF(array)
    out[0] = <void*>array
    return 0


cdef int describe_object(void* object_, DLTensor* out) except -1:
    # The Array itself keeps the shape and the strides.
    return describe_array(<Array>object_, out)


@cython.critical_section
cdef int describe_array(Array array, DLTensor* out) except -1:
    cdef uint64_t flags
    cdef Py_ssize_t* steps
    check_live(array, "this")
    describe(array, out, &flags)
    if flags:
        raise BufferError(f"{array!r} is read-only, or has elements of less than a byte: a DLTensor alone does not say so")
    if array.steps == NULL:
        steps = <Py_ssize_t*>malloc((array.ndim + 1) * sizeof(Py_ssize_t))
        if steps == NULL:
            raise MemoryError("no host memory for an Array's strides")
        try:
            write_steps(array, <int64_t*>steps)
        except BaseException:
            free(steps)
            raise
        array.steps = steps
    out.shape = <int64_t*>array.extents
    out.strides = <int64_t*>array.steps
    return 0


cdef int find_stream(int32_t kind, int32_t device, void** out) except -1:
    out[0] = NULL
    if kind == DL_CUDA:
        if not 0 <= device < count_devices():
            raise BufferError(f"there is no GPU {device}; accelrt sees {count_devices()}")
        out[0] = <void*>current_handle(device)
    return 0


def fill_exchange_api() -> None:
    """Points the exchange API of Arrays, and their methods, at the functions of this module."""
    cdef DLPackExchangeAPI* api = &arrays.exchange_api
    memset(api, 0, sizeof(DLPackExchangeAPI))
    api.version.major = DLPACK_MAJOR
    api.version.minor = DLPACK_MINOR
    api.managed_tensor_allocator = allocate_tensor
    api.managed_tensor_from_py_object_no_sync = <int (*)(void*, DLManagedTensorVersioned**) noexcept>tensor_of_object
    api.managed_tensor_to_py_object_no_sync = <int (*)(DLManagedTensorVersioned*, void**) noexcept>object_of_tensor
    api.dltensor_from_py_object_no_sync = <int (*)(void*, DLTensor*) noexcept>describe_object
    api.current_work_stream = <int (*)(int32_t, int32_t, void**) noexcept>find_stream
    arrays.export_dlpack = export
    arrays.find_dlpack_device = device_pair


fill_exchange_api()


# --- create -----------------------------------------------------------------------------------------------------------
# Arrays with memory of their own or of others', and what the methods of Arrays do with memory.

cdef Array allocate_shaped(object shape, object dtype, object device, object stream, bint pinned):
    cdef Extents extents
    cdef Py_ssize_t ndim = read_shape(shape, extents)
    kind = dtype_of(dtype)
    set_contiguous(ndim, extents, kind.itemsize)
    return allocate_array(ndim, extents, kind, device, stream, pinned)


def empty(
    shape: Shape, dtype: DTypeLike = float, device: DeviceArgument | None = None, stream: Stream | int | None = None,
    *, bint pin_memory=False,
) -> Array:
    """Returns an Array with memory of its own, whose contents are not set.

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


def zeros(
    shape: Shape, dtype: DTypeLike = float, device: DeviceArgument | None = None, stream: Stream | int | None = None,
) -> Array:
    """Returns an Array of zero bytes, which are set in its stream's order.

    Arguments, Raises: as empty.
    """
    cdef Array array = allocate_shaped(shape, dtype, device, stream, False)
    array.base.fill(0, stream=array.stream)
    return array


cdef Array allocate_like(Array other, object dtype, object device, object stream):
    # The result is where `other` is, with the same order of axes if the elements fill their memory.
    cdef Extents extents
    check_live(other, "other")
    kind = other.dtype if dtype is None else dtype_of(dtype)
    if device is None and stream is None and other.device_index >= 0:
        device = other.device_index
    memcpy(extents, other.extents, other.ndim * sizeof(Py_ssize_t))
    set_contiguous(other.ndim, extents, kind.itemsize)
    if other.itemsize == kind.itemsize and fills_memory(other):
        memcpy(extents + other.ndim, other.extents + other.ndim, other.ndim * sizeof(Py_ssize_t))
    return allocate_array(other.ndim, extents, kind, device, stream, other.device_index < 0 and device is None)


cdef bint fills_memory(Array other) except -1:
    # Returns whether some order of the axes makes the Array contiguous.
    cdef Extents sorted_
    cdef Py_ssize_t position, axis
    order = sorted(range(other.ndim), key=lambda axis_: (-other.extents[other.ndim + axis_], axis_))
    for position in range(other.ndim):
        axis = order[position]
        sorted_[position] = other.extents[axis]
        sorted_[other.ndim + position] = other.extents[other.ndim + axis]
    return is_c_contiguous(other.ndim, sorted_, other.itemsize)


def empty_like(
    Array other not None, dtype: DTypeLike | None = None, device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array:
    """Returns an Array of another one's shape, whose contents are not set.

    Arguments:
        other: Array.
        dtype: None is the other's.
        device, stream: None is the other's device and the current stream; page-locked memory for a host Array.
    Returns:
        Array; its axes lie in the other's order where the other's elements fill their memory, else in C order.
    Raises:
        ValueError: other was freed.
        TypeError: other is no Array, or dtype is none.
        OutOfMemoryError: the device, or the host, has no room.
    """
    return allocate_like(other, dtype, device, stream)


def zeros_like(
    Array other not None, dtype: DTypeLike | None = None, device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array:
    """Returns an Array of zero bytes of another one's shape, on a device.

    Arguments: as empty_like.
    Raises:
        ValueError: other is in host memory and device is None, or other was freed.
        TypeError: other is no Array, or dtype is none.
        OutOfMemoryError: the device has no room.
    """
    cdef Array array
    check_live(other, "other")
    if other.device_index < 0 and device is None:
        raise ValueError("other is in host memory; pass the device that the Array of zeros is to be on")
    array = allocate_like(other, dtype, device, stream)
    array.base.fill(0, stream=array.stream)
    return array


def full(
    shape: Shape, value: object, dtype: DTypeLike | None = None, device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array:
    """Returns an Array of which every element is one number, set in its stream's order.

    Arguments:
        value: anything that NumPy makes a number of.
        dtype: None is NumPy's for the value.
        shape, device, stream: as for empty.
    Raises: as empty.
    """
    if dtype is None:
        dtype = numpy_module().asarray(value).dtype
    array = allocate_shaped(shape, dtype, device, stream, False)
    fill_array(array, value, (<Array>array).stream)
    return array


def full_like(
    Array other not None, value: object, dtype: DTypeLike | None = None, device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
) -> Array:
    """Returns an Array of another one's shape, of which every element is one number.

    Arguments:
        other, dtype, device, stream: as for empty_like, which says what is raised.
        value: anything that NumPy makes a number of.
    Raises: as empty_like.
    """
    cdef Array array = allocate_like(other, dtype, device, stream)
    fill_array(array, value, array.stream)
    return array


# --- memory of others, without a copy ---------------------------------------------------------------------------

cdef bint is_foreign(object source) except -1:
    return (isinstance(source, (Array, Buffer, PinnedBuffer)) or isinstance(source, numpy_module().ndarray)
            or hasattr(source, "__cuda_array_interface__") or hasattr(source, "__dlpack__"))


cdef Array wrap_interface(object source):
    # The current stream of the memory's device comes after the stream that the array names.
    cdef Extents extents
    cdef Py_ssize_t low, high
    cdef Operand side
    cdef Stream worker = None
    cdef Array array
    cdef object base = PoolView(source) if isinstance(source, PoolBlock) else source
    interface = init.later("accelrt.arrays.cuda_array").describe(source.__cuda_array_interface__, "source")
    kind = dtype_of(interface.dtype)
    cdef uintptr_t address = interface.address
    cdef Py_ssize_t ndim = read_shape(interface.lengths, extents)
    cdef int device = device_of_pointer(address, source, "source") if address else ordinal_of(None)
    count_elements(ndim, extents, kind.itemsize)
    set_contiguous(ndim, extents, kind.itemsize)
    if interface.strides is not None:
        read_strides(interface.strides, ndim, extents + ndim)
    find_bounds(ndim, extents, kind.itemsize, &low, &high)
    if device >= 0:
        worker = current_of(device)
        side.ordinal = device
        side.producer = interface.stream if address else 0
        follow_producer(&side, worker)
    array = new_array(base, address, device, worker, kind, ndim, interface.readonly)
    memcpy(array.extents, extents, 2 * ndim * sizeof(Py_ssize_t))
    return finish_array(array)


cdef Array wrap_pinned(PoolBlock source):
    # A memoryview keeps it from being freed.
    cdef Array array = new_array(memoryview(source), source.address, -1, None, dtype_of("uint8"), 1, False)
    array.extents[0], array.extents[1] = source.nbytes, 1
    return finish_array(array)


cdef Array wrap_any(object source, object dtype, object stream):
    cdef Array array
    if isinstance(source, Array):
        array = source
        check_live(array, "source")
    elif isinstance(source, (Buffer, PinnedBuffer)):
        array = Array(source)
    elif isinstance(source, numpy_module().ndarray):
        array = wrap_numpy(source)
    elif isinstance(source, PoolBlock):
        array = wrap_pinned(source) if (<PoolBlock>source).pinned else wrap_interface(source)
    elif init.chosen_driver() == "host" and hasattr(source, "_accelrt_array"):  # a DeviceBuffer, host memory to DLPack
        array = source._accelrt_array()
    elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
        array = import_any(source)
    elif hasattr(source, "__cuda_array_interface__"):
        array = wrap_interface(source)
    else:
        array = wrap_numpy(numpy_module().asarray(source, dtype))
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"dtype is {dtype}, but source has {array.dtype}, and nothing is converted here; convert "
                        "it first, or name the bytes' type with view()")
    return array


def asarray(
    source: object, dtype: DTypeLike | None = None, device: DeviceArgument | None = None,
    stream: Stream | int | None = None, *, copy: bool | None = None,
) -> Array:
    """Returns an Array of what is given: without a copy where it is on the device, else a copy there.

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
    cdef Array array
    cdef Array target
    cdef int ordinal = -1
    cdef bint copies = copy is not None and copy  # what may run the caller's code comes before the look at the source
    cdef bint refuses = copy is not None and not copies
    if dtype is not None:
        dtype = dtype_of(dtype)
    if device is not None and not (isinstance(device, str) and device == "cpu"):
        ordinal = ordinal_of(device)
    array = wrap_any(source, dtype, stream)
    if device is None:
        ordinal = array.device_index if array.device_index >= 0 else ordinal_beside(stream)
    if ordinal == array.device_index and not copies:
        return array
    if refuses:
        raise ValueError("copy is False, but the elements are elsewhere; pass copy=None, or their own device")
    if ordinal < 0:
        target = allocate_like(array, None, None, None) if array.device_index < 0 else packed(
            array, array.device_index, None, True)
        copy_array(target, array, True, stream)
        return target
    target = allocate_like(array, None, ordinal, stream)
    copy_array(target, array, array.device_index < 0, target.stream if stream is None else stream)
    return target


def from_dlpack(source: object, device: DeviceArgument | None = None, *, copy: bool | None = None) -> Array:
    """Returns an Array of another library's array, by DLPack and without a copy where it can be.

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
    cdef Array array = source if isinstance(source, Array) else import_any(source)
    if device is None:
        device = "cpu" if array.device_index < 0 else array.device_index
    return asarray(array, device=device, copy=copy)


# --- many copies at once -------------------------------------------------------------------------------------------
# What is given is read into plain arrays.  Of memory that is given as objects all is known as for one copy; addresses are
# looked up (find_spans), which also records the use.  Then come one or two calls of the driver for all.

cdef struct Batch:
    uintptr_t* dsts
    uintptr_t* srcs
    size_t* sizes
    size_t count
    Operand* sides        # one of each object
    size_t side_count
    bint checks_dsts      # they are addresses, of which nothing is known; and so the next
    bint checks_srcs
    Pieces pieces
    Spans spans           # of the memory named
    int device            # of the memory; -1: not known
    CopyRun* runs         # how the copies are made that were asked for,
    CopyRun* kept_runs    # those that are left of them, once drop_empty was called, and
    CopyRun* piece_runs   # the pieces; freed with runs
    size_t run_count, listed  # of each of the three; of how many copies options are given, or -1
    bint reads_now, all_read_now  # some sources, or all, are read during the call
    size_t first_source   # of the sides, and behind the last one
    size_t end_of_sources


cdef void free_batch(Batch* batch) noexcept:
    free(batch.dsts)
    free(batch.srcs)
    free(batch.sizes)
    free(batch.sides)
    free(batch.runs)
    free(batch.pieces.copies)
    free(batch.spans.at)


cdef void* room_for(size_t count, size_t size) except NULL:
    cdef void* room = calloc(count + 1, size)
    if room == NULL:
        raise MemoryError(f"no host memory for a batch of {count} copies")
    return room


cdef tuple IN_ORDER = ([(0, 0, 0, 0, SOURCE_IN_STREAM_ORDER)], -1)  # what copy_options reads where nothing is said


cdef int read_runs(Batch* batch, tuple options) except -1:
    cdef list runs = options[0]
    cdef CopyRun* run
    cdef size_t index
    batch.run_count, batch.listed, batch.all_read_now = len(runs), <Py_ssize_t>options[1], True
    batch.runs = <CopyRun*>room_for(3 * batch.run_count, sizeof(CopyRun))
    batch.kept_runs, batch.piece_runs = batch.runs + batch.run_count, batch.runs + 2 * batch.run_count
    for index in range(batch.run_count):
        run = &batch.runs[index]
        run.first, run.dst_location, run.src_location, run.flags, run.order = runs[index]
        batch.reads_now = batch.reads_now or run.order == SOURCE_DURING_CALL
        batch.all_read_now = batch.all_read_now and run.order == SOURCE_DURING_CALL
        batch.kept_runs[index] = batch.piece_runs[index] = run[0]
    return 0


cdef size_t* numbers_of(object numbers_given, str name, size_t* out_count) except? NULL:
    # Copies the numbers of an array of 8-byte ints, or of a sequence of ints; NULL where it is neither.
    cdef Py_buffer view
    cdef size_t* numbers
    cdef bint alike
    if PyObject_CheckBuffer(numbers_given) and not isinstance(numbers_given, (Buffer, PinnedBuffer, PoolBlock, Array)):
        try:
            PyObject_GetBuffer(numbers_given, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT)
        except (BufferError, ValueError) as error:
            raise ValueError(f"{name} is an array that cannot be read ({error}); pass a contiguous one, or a copy") from None
        alike = view.itemsize == 8 and view.ndim == 1 and has_int_format(view.format)
        numbers = <size_t*>malloc(view.len + 8) if alike else NULL
        if numbers != NULL:
            memcpy(numbers, view.buf, view.len)
            out_count[0] = view.len // 8
        PyBuffer_Release(&view)
        if not alike:
            raise TypeError(f"{name} is an array of another type; pass 8-byte ints (uint64), in one axis, or a sequence of "
                            "Buffers and Arrays")
        if numbers == NULL:
            raise MemoryError(f"no host memory for {name}")
        return numbers
    if not isinstance(numbers_given, (list, tuple)) or not numbers_given or type(numbers_given[0]) is not int:
        return NULL
    fixed = tuple(numbers_given)  # an int's __index__ could lengthen a list
    numbers = <size_t*>room_for(len(fixed), sizeof(size_t))
    try:
        for index, number in enumerate(fixed):
            numbers[index] = checked_address_int(number, f"{name}[{index}]")
    except BaseException:
        free(numbers)
        raise
    out_count[0] = len(fixed)
    return numbers


cdef bint has_int_format(const char* format) noexcept:
    # One letter, behind a sign of the machine's own order of bytes or none.
    if format == NULL:
        return False
    if format[0] != 0 and strchr(b"@=<", format[0]) != NULL:
        format += 1
    return format[0] != 0 and format[1] == 0 and strchr(b"lLqQnNP", format[0]) != NULL


cdef tuple objects_of(object memory, str name, str wanted):
    if isinstance(memory, (Buffer, PinnedBuffer, Array)) or not hasattr(memory, "__iter__"):
        raise TypeError(f"{name} is of type {type(memory).__name__}; pass a sequence of {wanted}")
    return tuple(memory)


cdef int read_sizes(Batch* batch, object sizes, tuple dsts, tuple srcs) except -1:
    # Of pairs of objects with elements that lie apart the size stays 0, and so of those that copy nothing.
    cdef size_t count = batch.count, listed = 0, each, index
    if sizes is None and dsts is None and srcs is None:
        raise TypeError("sizes is None, and dsts and srcs are addresses, which have none; pass an int or an array of ints")
    if sizes is None or hasattr(type(sizes), "__index__") and not getattr(sizes, "shape", ()):
        batch.sizes = <size_t*>room_for(count, sizeof(size_t))
        each = 0 if sizes is None else checked_int(sizes, "sizes", 0, 0xFFFFFFFFFFFFFFFF, "bytes as int")
        for index in range(count):
            batch.sizes[index] = each
        return 0
    batch.sizes = numbers_of(sizes, "sizes", &listed)
    if batch.sizes == NULL:
        if not hasattr(sizes, "__iter__") or len(tuple(sizes)):
            raise TypeError(f"sizes is of type {type(sizes).__name__}; pass an int, or an array of ints, in bytes")
        batch.sizes = <size_t*>room_for(0, sizeof(size_t))
    if listed != count:
        raise ValueError(f"there are {listed} sizes and {count} copies")
    return 0


cdef int read_object(Operand* side, object source, str name, bint writable, bint reads_now, list views) except -1:
    # An Array of any strides too.  Only what is used in a stream's order goes into a batch, or is read during the call.
    if isinstance(source, Array):
        read_array(side, source, name, writable)
        side.source = <PyObject*>source
        views.append(None)
    else:
        views.append(read_operand(side, source, name, writable))
    if side.ordered or is_asynchronous(side):
        return 0
    if not reads_now:
        raise ValueError(f"{name} is host memory that is not page-locked, which is not copied in a batch; use page-locked "
                         "memory (pinned_empty, register_host), copy() for each, or for sources "
                         "src_access_order='during_api_call'")
    if isinstance(source, Array) and not (<Array>source).dense():
        raise ValueError(f"{name} is host memory that is not page-locked, whose elements lie apart; pass a contiguous copy")
    return 0


cdef int read_objects(Batch* batch, tuple objects, str name, bint writable, uintptr_t* addresses, list views) except -1:
    cdef const CopyRun* run = batch.runs
    cdef Operand* side
    cdef size_t index
    cdef bint reads_now
    for index in range(len(objects)):
        side, run = &batch.sides[batch.side_count], run_from(run, batch.runs + batch.run_count, index)
        reads_now = not writable and (batch.all_read_now if addresses == NULL else run.order == SOURCE_DURING_CALL)
        read_object(side, objects[index], f"{name}[{index}]", writable, reads_now, views)
        batch.side_count += 1
        if addresses != NULL:
            addresses[index] = side.address
        if side.ordinal < 0 or side.ordinal == batch.device:
            continue
        if batch.device >= 0:
            raise ValueError(f"{name}[{index}] is on device {side.ordinal}, and others on {batch.device}; a batch has one "
                             "device: copy those between two with copy()")
        batch.device = side.ordinal
    return 0


cdef int add_pair(Batch* batch, size_t index, Array dst, Array src) except -1:
    # Elements that lie together are one copy, others become pieces.
    cdef const PitchedCopy* last
    cdef size_t before = batch.pieces.count
    add_pieces(dst, src, &batch.pieces)
    last = &batch.pieces.copies[before]
    if batch.pieces.count == before + 1 and last.height * last.depth == 1:
        batch.dsts[index], batch.srcs[index], batch.sizes[index] = last.dst, last.src, last.width
        batch.pieces.count = before
    return 0


cdef int check_pair(Batch* batch, size_t index, tuple dsts, tuple srcs, object sizes, const Operand* to,
                    const Operand* origin) except -1:
    # The size of a copy, of which one side at least is an object.
    cdef size_t room = to.nbytes if origin == NULL else origin.nbytes if to == NULL else min(to.nbytes, origin.nbytes)
    cdef object dst = None if dsts is None else dsts[index], src = None if srcs is None else srcs[index]
    if sizes is None and isinstance(dst, Array) and isinstance(src, Array):
        return add_pair(batch, index, dst, src)
    for side in (dst, src):
        if isinstance(side, Array) and not (<Array>side).dense():
            raise ValueError(f"copy {index} is of elements that lie apart; pass Arrays on both sides, and sizes=None")
    if sizes is None:
        batch.sizes[index] = origin.nbytes if origin != NULL else to.nbytes
    if batch.sizes[index] > room:
        raise ValueError(f"copy {index} is of {batch.sizes[index]} bytes, and its memory has {room}")
    return 0


cdef int read_batch(Batch* batch, object dsts, object srcs, object sizes, tuple memory, list owners, list views) except -1:
    # All of the caller's code.
    cdef size_t dst_count = 0, src_count = 0, run = 0, index
    cdef tuple to = None, origin = None
    batch.device = -1
    batch.dsts = numbers_of(dsts, "dsts", &dst_count)
    batch.srcs = numbers_of(srcs, "srcs", &src_count)
    batch.checks_dsts, batch.checks_srcs = batch.dsts != NULL, batch.srcs != NULL
    if batch.dsts == NULL:
        to = objects_of(dsts, "dsts", "Buffers and Arrays, or an array of addresses")
        dst_count = len(to)
        batch.dsts = <uintptr_t*>room_for(dst_count, sizeof(uintptr_t))
    if batch.srcs == NULL:
        origin = objects_of(srcs, "srcs", "Buffers and Arrays, or an array of addresses")
        src_count = len(origin)
        batch.srcs = <uintptr_t*>room_for(src_count, sizeof(uintptr_t))
    if dst_count != src_count:
        raise ValueError(f"there are {dst_count} dsts and {src_count} srcs; each copy has one of both")
    batch.count = dst_count
    if batch.listed != dst_count and batch.listed != <size_t>-1:
        raise ValueError(f"there are options of {batch.listed} copies and {dst_count} copies; pass one for each, or for all")
    read_sizes(batch, sizes, to, origin)
    batch.sides = <Operand*>room_for(2 * batch.count + len(memory), sizeof(Operand))
    owners.extend((to or ()) + (origin or ()) + memory)
    if to is not None:
        read_objects(batch, to, "dsts", True, batch.dsts, views)
    batch.first_source = batch.side_count
    if origin is not None:
        read_objects(batch, origin, "srcs", False, batch.srcs, views)
    batch.end_of_sources = batch.side_count
    for index in range(batch.count if batch.side_count else 0):
        while run < batch.run_count and batch.runs[run].first <= index:
            batch.piece_runs[run].first = batch.pieces.count
            run += 1
        check_pair(batch, index, to, origin, sizes, NULL if to is None else &batch.sides[index],
                   NULL if origin is None else &batch.sides[index + (0 if to is None else batch.count)])
    index = batch.side_count
    read_objects(batch, memory, "memory", False, NULL, views)
    while index < batch.side_count:
        add_span(batch, &batch.sides[index], memory[len(memory) - (batch.side_count - index)])
        index += 1
    return 0


cdef int add_span(Batch* batch, const Operand* side, object owner) except -1:
    # All of what owns the memory, of whatever part the object is.
    cdef uintptr_t low = side.address, size = side.nbytes
    cdef Py_ssize_t below, above
    if isinstance(owner, Array) and (<Array>owner).owner != OTHERS:
        owner = (<Array>owner).base
        low, size = owner.ptr, owner.nbytes
    elif isinstance(owner, Array):
        find_bounds((<Array>owner).ndim, (<Array>owner).extents, (<Array>owner).itemsize, &below, &above)
        low, size = side.address + below, above - below
    if size and insert_span(&batch.spans, low, low + size):
        raise MemoryError("no host memory for a batch of copies")
    return 0


cdef int find_all(Batch* batch, Stream worker) except -1:
    cdef int device = worker.device_index, code = 0
    cdef uintptr_t stream = worker.handle
    cdef bint of_dsts = False
    cdef size_t index = 0
    with nogil:
        if batch.checks_dsts:
            of_dsts = True
            code = find_spans(&batch.spans, batch.dsts, batch.sizes, batch.count, device, stream, &index)
        if code == 0 and batch.checks_srcs:
            of_dsts = False
            code = find_spans(&batch.spans, batch.srcs, batch.sizes, batch.count, device, stream, &index)
    if code == 0:
        return 0
    name, address = ("dsts", batch.dsts[index]) if of_dsts else ("srcs", batch.srcs[index])
    if code in (PAST_END, NOT_ALLOCATED, NOT_LOCKED):
        raise ValueError(init.later("accelrt.arrays.copy_options").unfound_text(
            code == PAST_END, code == NOT_LOCKED, f"{name}[{index}] is {address:#x}", batch.sizes[index]))
    return raise_status(code, "copy_many", ("address", address, "size", batch.sizes[index]))


cdef int refuse_asleep(Batch* batch) except -1:
    # Inside the use: what sleeps, or is about to.
    cdef size_t index
    if not any_sleeps():
        return 0
    for index in range(batch.side_count):
        refuse_sleeping(batch.sides[index].address, "memory of a batch of copies")
    for index in range(batch.spans.count):
        refuse_sleeping(batch.spans.at[index].low, "memory of a batch of copies")
    return 0


# --- putting a batch in ------------------------------------------------------------------------------------------

cdef int announce_batch(Batch* batch, Stream worker) except -1:
    # Sources that are not read in the stream's order are read beside all that the host has not waited for.
    cdef const PitchedCopy* piece
    cdef const CopyRun* run = batch.runs
    cdef size_t index
    cdef list reads = [], writes = []
    for index in range(batch.count):
        run = run_from(run, batch.runs + batch.run_count, index)
        if batch.sizes[index]:
            reads.append((run.order, (batch.srcs[index], batch.sizes[index], "r")))
            writes.append((batch.dsts[index], batch.sizes[index], "w"))
    run = batch.piece_runs
    for index in range(batch.pieces.count):
        piece, run = &batch.pieces.copies[index], run_from(run, batch.piece_runs + batch.run_count, index)
        slices, rows = piece.depth - 1, piece.height - 1
        reads.append((run.order, (piece.src, (slices * piece.src_lines + rows) * piece.src_pitch + piece.width, "r")))
        writes.append((piece.dst, (slices * piece.dst_lines + rows) * piece.dst_pitch + piece.width, "w"))
    early = [source for order, source in reads if order != SOURCE_IN_STREAM_ORDER]
    if early:
        watch.note_host_work("copy_many", early)
    ordered = [source for order, source in reads if order != SOURCE_DURING_CALL]
    return watch.note_work(worker.device_index, worker.handle, "copy_many", ordered + writes)


cdef void drop_empty(Batch* batch) noexcept nogil:
    # The driver takes no copy of 0 bytes.
    cdef size_t index, kept = 0, run = 0
    for index in range(batch.count):
        while run < batch.run_count and batch.runs[run].first <= index:
            batch.kept_runs[run].first = kept
            run += 1
        if batch.sizes[index]:
            batch.dsts[kept] = batch.dsts[index]
            batch.srcs[kept] = batch.srcs[index]
            batch.sizes[kept] = batch.sizes[index]
            kept += 1
    batch.count = kept


cdef int put_batch_in(Batch* batch, Stream worker, size_t* out_done) noexcept nogil:
    # Without the GIL: a full queue may wait for a function of Python's, and a driver's lock for who wants the GIL.
    cdef int code = 0, device = worker.device_index
    cdef uintptr_t stream = worker.handle
    drop_empty(batch)
    if batch.count:
        code = registry.active().copy_batch(device, stream, batch.dsts, batch.srcs, batch.sizes, batch.count,
                                            batch.kept_runs, batch.run_count, out_done)
    if code == 0 and batch.pieces.count:
        code = registry.active().copy_batch_3d(device, stream, batch.pieces.copies, batch.pieces.count,
                                               batch.piece_runs, batch.run_count, out_done)
    return code


cdef int copy_batch(Batch* batch, Stream worker, tuple owners, list views) except -1:
    cdef Record record
    cdef Access access
    cdef const CopyRun* run = batch.runs
    cdef size_t index, done = 0
    cdef int code
    begin_use(&access, uses_owner, <PyObject*>owners)
    access.thread = PyThread_get_thread_ident()
    try:
        for index in range(batch.side_count):
            if not still_has(owners[index], batch.sides[index].address):
                raise_lost(owners[index], "memory of a batch of copies")
        find_all(batch, worker)
        refuse_asleep(batch)
        record = record_for(worker)
        for index in range(batch.side_count):
            keep(&batch.sides[index], views[index], record)
        with nogil:
            code = put_batch_in(batch, worker, &done)
        for index in range(batch.side_count):
            run = run_from(run, batch.runs + batch.run_count, max(index, batch.first_source) - batch.first_source)
            if run.order != SOURCE_DURING_CALL or not batch.first_source <= index < batch.end_of_sources:
                note_use(&batch.sides[index], worker, False, False)  # also where a later copy was refused
    finally:
        end_use(&access)
    if code == NOT_SUPPORTED and batch.reads_now:
        raise not_supported(init.later("accelrt.arrays.copy_options").NO_READ_NOW, "copy_many")
    if code:
        raise_status(code, "copy_many", ("device", worker.device_index, "stream", worker.handle, "copies",
                                         batch.count + batch.pieces.count, "put in", done))
    return 0


# stub: _Location = DeviceArgument | tuple[str, int] | None
# stub: _Order = Literal["stream", "during_api_call", "any"]
def copy_many(
    dsts: Sequence[Memory] | NDArray[Any], srcs: Sequence[Memory] | NDArray[Any],
    sizes: int | Sequence[int] | NDArray[Any] | None = None, *, memory: Sequence[Memory] = (),
    stream: Stream | int | None = None, bint blocking=False,
    dst_location: _Location | list[_Location] = None, src_location: _Location | list[_Location] = None,
    overlap: bool | list[bool] = False, src_access_order: _Order | list[_Order] = "stream",
) -> None:
    """Copies many pieces of memory in one call (cuMemcpyBatchAsync, or a loop where the driver or the stream takes none).

        cuda.copy_many(pages, staged, 16384)                     # sequences of Buffers, PinnedBuffers and Arrays
        cuda.copy_many(base + table * 16384, addresses, 16384, memory=[cache, pinned])  # NumPy arrays of addresses

    The copies come after the stream's earlier work and before its later work, and among themselves in any order: none may
    write what another one reads or writes.  The last four arguments hold for all of them, or are lists of one for each.

    Arguments:
        dsts: a sequence of Buffers, PinnedBuffers, Arrays and objects with __cuda_array_interface__; or addresses, as an
            array of 8-byte ints (NumPy's uint64, say) or a list of ints.  Arrays of one device may have any strides.
        srcs: the same, as many.
        sizes: int, bytes of each copy; an array or list of them; or None, all of each source, or of each destination
            where the sources are addresses.
        memory: what owns the memory that addresses are in: it is kept alive until the copies are put in, and by a
            graph that captures them, and their streams are told.  Memory of accelrt's allocators that is not named
            here is found by its address, checked and told as well, but nothing keeps it alive.
        stream: Stream, handle as int, or None: the current stream of the memory's device.
        blocking: bool, wait until all are complete.
        dst_location, src_location: where managed memory of the side is better looked for: a device, "cpu" or
            ("numa", node); a hint, which drivers may ignore.
        overlap: bool, a hint that the copies had better not wait for kernels' multiprocessors.
        src_access_order: str, when the sources are read (CUmemcpySrcAccessOrder): "stream", after the stream's earlier work;
            "during_api_call", beside that and before the call returns, so that they may be changed or freed then, and may
            be ordinary host memory, a NumPy array say; "any", beside that and until the copies are complete.  Only
            who knows that no work under way writes them asks for one of the latter two.
    Raises:
        ValueError: lengths differ or do not fit; memory was freed, is of two devices, or is host memory that is not
            page-locked; an address is in no memory, or its copy passes the end; src_access_order is none of these.
        TypeError: an argument is no memory and no address.
        SleepingMemoryError: some of it sleeps.
        NotSupportedError: "during_api_call" in a capture, on the legacy default stream, or before CUDA 12.8.
        CudaError: the driver refused; the text says how many copies had been put in.
    """
    cdef Batch batch
    cdef list owners = [], views = []
    cdef tuple options = IN_ORDER
    cdef Stream worker
    cdef size_t index
    memset(&batch, 0, sizeof(Batch))
    if dst_location is not None or src_location is not None or overlap is not False or src_access_order != "stream":
        options = init.later("accelrt.arrays.copy_options").read_runs(
            dst_location, src_location, overlap, src_access_order)
    try:
        read_runs(&batch, options)
        read_batch(&batch, dsts, srcs, sizes, objects_of(memory, "memory", "what owns the memory"), owners, views)
        if batch.device < 0 and batch.count:  # addresses alone
            batch.device = max(device_at(batch.dsts[0]), device_at(batch.srcs[0]))
        worker = stream_of(stream, batch.device if batch.device >= 0 else ordinal_of(None))
        if batch.device >= 0 and batch.side_count and worker.device_index != batch.device:
            raise ValueError(f"stream is on device {worker.device_index}, and the memory on {batch.device}; a batch has one "
                             "device")
        if blocking:
            watch.before_wait("copy_many with blocking=True")
        for index in range(batch.side_count):
            follow_producer(&batch.sides[index], worker)
        if watch.detects_races():
            announce_batch(&batch, worker)
        copy_batch(&batch, worker, tuple(owners), views)
    finally:
        free_batch(&batch)
    if blocking:
        finish(worker, NULL, owners, views, None, None)


def buffer_over(keeper: object, int device, Stream stream, uintptr_t address, size_t nbytes) -> Buffer:
    """A Buffer over memory that its keeper holds, and that is not freed with it."""
    cdef Buffer view = Buffer.__new__(Buffer)
    view.keeper, view.device_index, view.stream = keeper, device, stream
    view.ptr, view.nbytes = address, nbytes
    view.kept = view.live = True
    return view


def buffer_at(
    address: int, nbytes: int, device: DeviceArgument | None = None, stream: Stream | int | None = None, *,
    owner: object = None,
) -> Buffer:
    """Makes a Buffer over memory that something else owns, which is not given back with it.

        buffer = accelrt.memory.buffer_at(pointer, 4096, owner=tensor)
        array = accelrt.Array(buffer, (1024,), "float32")

    Arguments:
        address: int, of memory that the device uses: a GPU's, managed, or page-locked.
        nbytes: int, bytes that are there.
        device: int, "cuda:1", ...: whose memory it is; None is the device that the driver names, and of host memory the
            current one.
        stream: Stream, handle as int, or None for the device's current stream: the one in whose order it is used.
        owner: any object, kept alive as long as the Buffer and what is made of it.
    Returns:
        Buffer.
    Raises:
        ValueError, TypeError: address or nbytes is no int from 0 on, or the driver knows no memory there; device or stream
            names none; the memory is another device's.

    That the memory lives as long is up to its owner.  Where it is part of accelrt's own memory, uses on other streams are
    recorded there.
    """
    cdef uintptr_t pointer = checked_address_int(address, "address")
    cdef size_t size = checked_size(nbytes, "nbytes")
    cdef int driver_device = -1, ordinal, code = 0
    ordinal = ordinal_of(device)
    if size:
        with nogil:
            code = registry.active().pointer_device(pointer, &driver_device)
        if code == INVALID_VALUE or pointer == 0:
            raise ValueError(f"address is {pointer:#x}; the driver knows no memory there")
        if code:
            raise_status(code, "pointer_device", ("address", pointer))
    if driver_device >= 0 and device is None:
        ordinal = driver_device
    if driver_device >= 0 and driver_device != ordinal:
        raise ValueError(f"address is {pointer:#x}, of device {driver_device}; device is {device!r}")
    return buffer_over(owner, ordinal, stream_for(stream, ordinal, "the buffer"), pointer if size else 0, size)


# --- what an Array's methods do with memory ----------------------------------------------------------------------

def copy_into(Array dst, src: object, bint non_blocking, stream: Stream | int | None) -> Array:
    cdef Array source
    check_live(dst, "this")
    source = src if isinstance(src, Array) else wrap_any(src, None if is_foreign(src) else dst.dtype, stream)
    copy_array(dst, source, not non_blocking and (dst.device_index < 0 or source.device_index < 0), stream)
    return dst


def fill_into(Array dst, value: object, stream: Stream | int | None) -> None:
    fill_array(dst, value, stream)


def assign(Array dst, value: object) -> None:
    if isinstance(value, (int, float, complex)) or isinstance(value, numpy_module().generic):
        fill_array(dst, value, None)
    else:
        copy_into(dst, value, False, None)


def copied(Array array, stream: Stream | int | None) -> Array:
    cdef bint on_host = array.device_index < 0
    cdef Array target = packed(array, None if on_host else array.device_index, None if on_host else stream, on_host)
    copy_array(target, array, False, stream)
    return target


def to_numpy(Array array) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    elements = numpy_module().empty(array.shape, array.dtype)
    copy_array(wrap_numpy(elements), array, True, None)
    return elements


provide_methods(copy_bytes, fill_bytes, sys.modules[__name__])
provide_views(buffer_over, Array, asarray)
