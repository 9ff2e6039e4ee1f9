"""The sides of copies and fills: what callers give as memory, read; and what has to know of its use."""
cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport strchr

from accelrt.arrays.array cimport DEVICE_BUFFER, OTHERS, Array, check_live
from accelrt.arrays.buffer cimport Buffer, PinnedBuffer, raise_freed
from accelrt.devices.device cimport ordinal_of
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_NONE
from accelrt.driver.waiting cimport begin_wait, end_wait
from accelrt.allocator.device_pools cimport pool_if_made
from accelrt.allocator.pool cimport try_use_across, use_across
from accelrt.allocator.private.suspended cimport has_suspended_pools, refuse_suspended
from accelrt.allocator.pinned.pool cimport is_cached_pinned, use_pinned_on
from accelrt.runtime import init
from accelrt.runtime.capture_record cimport any_capture
from accelrt.runtime.host_func cimport raise_callback_errors
from accelrt.runtime.release_queue cimport keep_until_passed
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport NOT_ALLOCATED, NOT_READY, NO_HOST_MEMORY, raise_status, refuse_copy
from accelrt.streams.stream cimport Stream, judge_handle, wrap
from accelrt.uses.access cimport Access, PyThread_get_thread_ident, begin_use, end_use, end_use_of

cdef enum:
    LEGACY = 1   # the protocol's handle of the legacy default stream, for which we have 0 as well

cdef uintptr_t ANY = ~<uintptr_t>0  # which no stream has


cdef class View:
    """A buffer of Python's that a side of a copy borrows, and the object that it is of."""

    def __dealloc__(self):
        if self.borrowed:
            PyBuffer_Release(&self.buffer)


cdef View read_operand_slow(Operand* made, object source, str name, bint writable):
    cdef int flags = PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    cdef View view
    if hasattr(source, "__cuda_array_interface__"):
        read_interface(made, source.__cuda_array_interface__, name, writable)
        return None
    view = View()
    try:
        PyObject_GetBuffer(source, &view.buffer, flags)
    except (BufferError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name} of type {type(source).__name__} cannot be used: {error}; pass a Buffer, an object with "
            f"__cuda_array_interface__, or a contiguous {'writable ' if writable else ''}buffer such as a numpy array"
        ) from None
    view.borrowed = True
    view.source = source
    # An object's address needs so many bytes.
    if view.buffer.itemsize >= <Py_ssize_t>sizeof(void*) and holds_objects(source):
        raise TypeError(
            f"{name} of type {type(source).__name__} holds Python objects: a copy of their addresses is of no use, "
            "and one over them would crash the interpreter; pass an array of plain values"
        )
    made.address = <uintptr_t>view.buffer.buf
    made.nbytes = view.buffer.len
    made.ordinal = -1
    made.block = made.address
    made.ordered = False
    return view


cdef bint holds_objects(object source) except -1:
    # NumPy's types tell by themselves, and not all of them have a format.
    cdef Py_buffer view
    cdef bint found
    dtype = getattr(source, "dtype", None)
    told = getattr(dtype, "hasobject", None)
    if isinstance(told, bool):
        return told
    try:
        PyObject_GetBuffer(source, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, TypeError, ValueError):
        return False  # no such types have names
    found = view.format != NULL and strchr(view.format, b"O") != NULL
    if found:
        import re

        # In the format of a struct the names of its fields stand between colons.
        found = "O" in re.sub(":[^:]*:", "", view.format.decode(errors="replace"))
    PyBuffer_Release(&view)
    return found


cdef int device_of_pointer(uintptr_t address) except -2:
    cdef int device = -1, code
    ordinal_of(None)
    with nogil:
        code = registry.active().pointer_device(address, &device)
    if code:
        raise_status(code, "pointer_device", ("address", address))
    return device


cdef int read_interface(Operand* made, object interface, str name, bint writable) except -1:
    # What the driver knows is no ordinary host memory.
    cdef int device = -1
    made.address, made.nbytes, made.producer = init.later("accelrt.arrays.cuda_array").read(interface, name, writable)
    if made.address:
        device = device_of_pointer(made.address)
    else:
        made.producer = 0
    made.ordinal = device
    made.block = made.address
    made.owned = device >= 0 and pool_if_made(device) != NULL
    made.owner_stream = ANY
    return 0


cdef bint captures_apart(Stream worker, Stream producer) except -1:
    # What a captured copy does is done at a launch: what the array's stream did before the capture is no part of it.
    cdef int status = CAPTURE_NONE, others = CAPTURE_NONE, code
    cdef uint64_t capture = 0, other = 0
    with nogil:
        code = registry.active().capture_status(worker.device_index, worker.handle, &status, &capture)
    if code == 0 and status != CAPTURE_NONE:
        with nogil:
            code = registry.active().capture_status(producer.device_index, producer.handle, &others, &other)
        return code != 0 or capture != other
    return False


cdef int follow_producer(Operand* side, Stream worker) except -1:
    # The copy comes behind what the array's owner put into its stream (CUDA Array Interface, "Synchronization").
    cdef uintptr_t handle = side.producer if side.producer != LEGACY else 0
    cdef int hint = side.ordinal if side.ordinal >= 0 else worker.device_index
    cdef Stream producer
    if side.producer == 0:
        return 0
    if worker.device_index == hint and handle == (worker.handle if worker.handle != LEGACY else 0):
        return 0
    producer = wrap(handle, judge_handle(handle, hint, "the 'stream' of a CUDA array"), None)
    if any_capture() and captures_apart(worker, producer):
        return 0
    worker.wait_stream(producer)
    return 0


cdef int read_array(Operand* made, Array array, str name, bint writable) except -1:
    check_live(array, name)
    if writable and array.readonly:
        raise ValueError(f"{name} is a read-only Array; pass one that can be written")
    made.source = <PyObject*>array.base
    made.address = made.block = array.ptr
    made.nbytes = array.size * array.itemsize
    made.ordinal = array.device_index
    made.ordered = True
    made.owned = False
    made.producer = 0
    if array.owner == DEVICE_BUFFER:
        made.block = (<Buffer>array.base).ptr
        made.owned = made.block != 0
        made.owner_stream = array.stream.handle
    elif array.owner == OTHERS and array.device_index >= 0:
        made.owned = pool_if_made(array.device_index) != NULL
        made.owner_stream = ANY
    elif array.owner == OTHERS:
        made.ordered = is_cached_pinned(array.ptr)
    return 0


cdef int look_again_slow(Operand* side, object source, str name) except -1:
    # The caller's code, and other threads, may have freed it since it was read.
    if isinstance(source, Array):
        check_live(<Array>source, name)
        side.source = <PyObject*>(<Array>source).base
        if (<Array>source).ptr != side.address:
            raise_freed(source, name)
    elif isinstance(source, Buffer):
        if not (<Buffer>source).live or (<Buffer>source).ptr != side.address:
            raise_freed(source, name)
    elif isinstance(source, PinnedBuffer):
        if not (<PinnedBuffer>source).live or (<PinnedBuffer>source).ptr != side.address:
            raise_freed(source, name)
    return 0


cdef int refuse_sides(Access* access, Operand* to, Operand* origin) except -1:
    try:
        refuse_suspended(to.address, "dst")
        if origin != NULL:
            refuse_suspended(origin.address, "src")
    except BaseException:
        end_use_of(access)
        raise
    return 0


cdef bint uses_owner(const Access* access, PyObject* owner) noexcept:
    cdef PyObject* argument
    cdef Py_ssize_t index
    for index in range(PyTuple_GET_SIZE(<object>access.first)):
        argument = <PyObject*>PyTuple_GET_ITEM(<object>access.first, index)
        if argument == owner or (isinstance(<object>argument, Array)
                                 and <PyObject*>(<Array>argument).base == owner):
            return True
    return False


@cython.no_gc_clear  # the use names what is in the tuple
cdef class MemoryUse:
    """A use of memory by calls that Python code makes: collectives, files.  All of the caller's code has run before.

        with MemoryUse("all_reduce", arrays):
            ...                            # the calls; sleep() and frees of the memory wait for the end

    Arguments:
        call: str, for errors.
        memory: sequence of Buffers, Arrays, PinnedBuffers and whatever else, of which nothing is known.
    Raises:
        ValueError: some of it was freed.
        SleepingMemoryError: some of it sleeps.
    """

    cdef str call
    cdef tuple memory
    cdef Access access
    cdef bint entered

    def __init__(self, str call not None, memory):
        if self.entered:
            raise RuntimeError("a MemoryUse is entered; make another one")
        self.call = call
        self.memory = tuple(memory)

    def __dealloc__(self):
        self.leave()  # where an interrupt came between __enter__ and the block

    def __enter__(self):
        if self.entered or self.memory is None:
            raise RuntimeError("a MemoryUse is entered once at a time")
        for each in self.memory:
            look_live(each, self.call)
        begin_use(&self.access, uses_owner, <PyObject*>self.memory)
        self.access.thread = PyThread_get_thread_ident()
        self.entered = True
        if has_suspended_pools():
            try:
                for each in self.memory:
                    refuse_suspended(address_in(each), self.call)
            except BaseException:
                self.leave()
                raise
        return self

    def __exit__(self, kind, error, trace):
        self.leave()
        return False

    cdef void leave(self) noexcept:
        if self.entered:
            self.entered = False
            end_use(&self.access)

    def __reduce__(self):
        refuse_copy(self, "it is a use of memory by this process")


cdef int look_live(object memory, str name) except -1:
    if isinstance(memory, Array):
        return check_live(<Array>memory, name)
    if isinstance(memory, Buffer) and not (<Buffer>memory).live or (
            isinstance(memory, PinnedBuffer) and not (<PinnedBuffer>memory).live):
        raise_freed(memory, name)
    return 0


cdef uintptr_t address_in(object memory) noexcept:
    if isinstance(memory, Array):
        return (<Array>memory).ptr
    return (<Buffer>memory).ptr if isinstance(memory, Buffer) else 0


cdef int raise_scattered(Array array, str name) except -1:
    raise ValueError(
        f"{name} is an Array of shape {array.shape} and strides {array.strides}, whose bytes are not one piece; copy "
        "elements with its copy_() and fill_(), or take a contiguous copy() of it"
    )


cdef int note_pinned(Operand* side, Stream stream) except -1:
    # Page-locked memory may be dropped while the copy is in flight; other host memory is not the cache's.  The GIL stays:
    # the cache's spin lock is held for bookkeeping alone.
    cdef int code = use_pinned_on(side.address, stream.device_index, stream.handle)
    if code == NO_HOST_MEMORY:
        raise_status(NO_HOST_MEMORY, "record_host_stream", ("memory", side.address, "stream", stream.handle))
    if watch.sanitizing:
        watch.note_use_on(side.block, stream.device_index, stream.handle)
    return 0


cdef int note_elsewhere(Operand* side, Stream stream) except -1:
    # Memory that another stream's copy uses must not be handed out before the copy is done.
    cdef int code = try_use_across(side.ordinal, side.block, stream.device_index, stream.handle)
    if code == NOT_READY:
        with nogil:
            code = use_across(side.ordinal, side.block, stream.device_index, stream.handle)
    if code == NOT_ALLOCATED and side.owner_stream == ANY:
        return 0
    if code == NO_HOST_MEMORY and not any_capture():
        with nogil:  # what cannot be noted is waited for
            registry.active().stream_synchronize(stream.device_index, stream.handle)
    if code:
        raise_status(code, "record_stream", ("ptr", side.block, "stream", stream.handle))
    if watch.sanitizing:
        watch.note_use_on(side.block, stream.device_index, stream.handle)
    return 0


cdef bint is_asynchronous(Operand* side) except -1:
    # Other host memory than page-locked is read or written before the driver's call returns.
    cdef int device = 0, code
    if side.ordinal >= 0 or (side.ordered and side.address) or is_cached_pinned(side.address):
        return True
    with nogil:
        code = registry.active().pointer_device(side.address, &device)
    return code == 0 and device < 0


cdef bint may_capture(Stream stream) noexcept:
    # Perhaps for another library: asking for such a stream would break its capture.
    cdef int status = CAPTURE_NONE
    cdef int code
    with nogil:
        code = registry.active().stream_is_capturing(stream.device_index, stream.handle, &status)
    return code != 0 or status != CAPTURE_NONE


cdef int finish(Stream stream, Operand* host, object dst, object src, View view_to, View view_origin) except -1:
    cdef int code
    begin_wait(False)
    with nogil:
        code = registry.active().stream_synchronize(stream.device_index, stream.handle)
    if code and host != NULL and host.address:
        note_pinned(host, stream)  # the copy may still be under way
    if code:
        keep_until_passed(stream.device_index, stream.handle, (dst, src, view_to, view_origin))
    end_wait(code)
    if code:
        raise_status(code, "stream_synchronize", ("stream", stream.handle))
    if watch.sanitizing:
        watch.note_reached(stream.device_index, stream.handle)
    raise_callback_errors()
    return 0
