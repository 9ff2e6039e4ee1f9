"""Copies and fills: what their sides are, copies of bytes, and copies of elements that lie apart."""
cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyIndex_Check
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, strchr

from accelrt.allocator.pinned.cache cimport is_cached_pinned, pinned_around, use_pinned_on
from accelrt.allocator.pool cimport block_around, device_at, pool_if_made, try_use_across, use_across
from accelrt.arrays.array cimport (
    address_in, allocate_array, Array, base_of, Buffer, check_live, DEVICE_BUFFER, Extents, find_bounds, finish_array,
    MAX_NDIM, new_array, numpy_module, OTHERS, PINNED_BUFFER, PinnedBuffer, raise_lost, set_contiguous, still_has,
)
from accelrt.core.growing cimport count_to, ensure_room
from accelrt.core.integers cimport checked_address_int, checked_int, exact_int, is_integer
from accelrt.core.interpreter cimport PyThread_get_thread_ident
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport begin_wait, end_wait, go_relaxed, is_main_thread, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.memory cimport MAX_PITCH, PitchedCopy
from accelrt.driver.table cimport CAPTURE_NONE
from accelrt.memory.caching cimport checked_size, connect_devices
from accelrt.memory.mempool cimport allocate_host_bytes, release_host_bytes
from accelrt.runtime import init
from accelrt.runtime.lifetimes cimport (
    AccessDescriptor, any_capture, functions_wait, keep_until_passed, raise_callback_errors, Record,
)
from accelrt.status cimport (
    INVALID_VALUE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY, PEER_ACCESS_UNSUPPORTED, raise_status, refuse_copy,
)
from accelrt.streams.stream cimport current_of, is_of, judge_handle, mark_used, Stream, stream_for, stream_of, wrap
from accelrt.runtime.access cimport Access, await_others, begin_use, end_use, end_use_of, refuse_sleeping
cimport accelrt.runtime.access as watch


# --- operand ----------------------------------------------------------------------------------------------------------
# The sides of copies and fills: what callers give as memory, read; and what has to know of its use.

cdef enum:
    LEGACY = 1   # the protocol's handle of the legacy default stream, for which we have 0 as well

cdef uintptr_t ANY = ~<uintptr_t>0  # which no stream has


# stub: class View:
@cython.no_gc_clear  # a buffer whose owner a collection forgot would stay exported
cdef class View:
    """A buffer of Python's that a side of a copy borrows, and the object that it is of."""

    def __dealloc__(self):
        if self.borrowed:
            PyBuffer_Release(&self.buffer)


cdef View read_operand_slow(Operand* operand, object source, str name, bint writable):
    cdef int flags = PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    cdef View view
    if hasattr(source, "__cuda_array_interface__"):
        read_interface(operand, source.__cuda_array_interface__, name, writable)
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
    operand.address = <uintptr_t>view.buffer.buf
    operand.nbytes = view.buffer.len
    operand.ordinal = -1
    operand.block = operand.address
    operand.ordered = False
    return view


cdef bint holds_objects(object source) except -1:
    # NumPy's types tell by themselves, and not all of them have a format.
    cdef Py_buffer view
    cdef bint has_objects
    dtype = getattr(source, "dtype", None)
    flag = getattr(dtype, "hasobject", None)
    if isinstance(flag, bool):
        return flag
    try:
        PyObject_GetBuffer(source, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, TypeError, ValueError):
        return False  # no such types have names
    has_objects = view.format != NULL and strchr(view.format, b"O") != NULL
    if has_objects:
        import re

        # In the format of a struct the names of its fields stand between colons.
        has_objects = "O" in re.sub(":[^:]*:", "", view.format.decode(errors="replace"))
    PyBuffer_Release(&view)
    return has_objects


cdef int device_of_pointer(uintptr_t address, object owner, str name) except -2:
    # The driver knows nothing of memory that another thread frees meanwhile.
    cdef int device = -1, code
    ordinal_of(None)
    with nogil:
        code = registry.active().pointer_device(address, &device)
    if code and not still_has(owner, address):
        raise_lost(owner, name)
    if code:
        raise_status(code, "pointer_device", ("address", address))
    return device


cdef int read_interface(Operand* operand, object interface, str name, bint writable) except -1:
    # What the driver knows is no ordinary host memory.
    cdef int device = -1
    cuda_array = init.later("accelrt.arrays.cuda_array")
    operand.address, operand.nbytes, operand.producer = cuda_array.read(interface, name, writable)
    if operand.address:
        device = device_of_pointer(operand.address, <object>operand.source, name)
    else:
        operand.producer = 0
    operand.ordinal = device
    operand.block = operand.address
    operand.owned = device >= 0 and pool_if_made(device) != NULL
    operand.owner_stream = ANY
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


cdef int read_array(Operand* operand, Array array, str name, bint writable) except -1:
    check_live(array, name)
    if writable and array.readonly:
        raise ValueError(f"{name} is a read-only Array; pass one that can be written")
    operand.source = <PyObject*>array.base
    operand.address = operand.block = array.ptr
    operand.nbytes = array.size * array.itemsize
    operand.ordinal = array.device_index
    operand.ordered = True
    operand.owned = False
    operand.producer = 0
    if array.owner == DEVICE_BUFFER:
        operand.block = (<Buffer>array.base).ptr
        operand.owned = operand.block != 0
        operand.owner_stream = array.stream.handle
    elif array.owner == OTHERS and array.device_index >= 0:
        operand.owned = pool_if_made(array.device_index) != NULL
        operand.owner_stream = ANY
    elif array.owner == OTHERS:
        operand.ordered = is_cached_pinned(array.ptr)
    return 0


cdef int look_again_slow(Operand* side, object source, str name) except -1:
    # The caller's code, and other threads, may have freed it since it was read.
    return 0 if still_has(source, side.address) else raise_lost(source, name)


cdef object source_of(Operand* side, object memory, str name):
    # What the use names: of an Array its base, which another thread may have it let go of.
    if not isinstance(memory, Array):
        return <object>side.source
    base = base_of(<Array>memory)
    if base is None:
        raise_lost(memory, name)
    side.source = <PyObject*>base
    return base


cdef int enter_use_apart(Access* access, Operand* to, object dst, Operand* origin, object src) except -1:
    # Without a GIL: the use first, then the looks, so that who frees the memory meanwhile sees the use, or is seen.
    to_source = source_of(to, dst, "dst")
    origin_source = None if origin == NULL else source_of(origin, src, "src")
    begin_use_of(access, <PyObject*>to_source, NULL if origin == NULL else <PyObject*>origin_source)
    try:
        look_again(to, dst, "dst")
        if origin != NULL:
            look_again(origin, src, "src")
    except BaseException:
        end_use_of(access)
        raise
    if any_sleeps():
        refuse_sides(access, to, origin)
    return 0


cdef int refuse_sides(Access* access, Operand* to, Operand* origin) except -1:
    try:
        refuse_sleeping(to.address, "dst")
        if origin != NULL:
            refuse_sleeping(origin.address, "src")
    except BaseException:
        end_use_of(access)
        raise
    return 0


cdef bint uses_owner(const Access* access, PyObject* owner) noexcept:
    cdef PyObject* argument
    cdef Py_ssize_t index
    for index in range(PyTuple_GET_SIZE(<object>access.first)):
        argument = <PyObject*>PyTuple_GET_ITEM(<object>access.first, index)
        if isinstance(<object>argument, AccessDescriptor) and argument != owner:
            argument = <PyObject*>(<AccessDescriptor>argument).array
        if argument == owner or (isinstance(<object>argument, Array) and <PyObject*>(<Array>argument).base == owner):
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
    cdef uintptr_t* addresses
    cdef bint entered

    def __init__(self, str call not None, memory: Iterable[object]) -> None:
        if self.entered:
            raise RuntimeError("a MemoryUse is entered; make another one")
        self.call = call
        self.memory = tuple(memory)

    def __dealloc__(self):
        self.leave()  # where an interrupt came between __enter__ and the block
        free(self.addresses)

    def __enter__(self) -> Self:
        if self.entered or self.memory is None:
            raise RuntimeError("a MemoryUse is entered once at a time")
        begin_use(&self.access, uses_owner, <PyObject*>self.memory)
        self.access.thread = PyThread_get_thread_ident()
        self.entered = True
        try:
            for each in self.memory:
                if not still_has(each, address_in(each)):
                    raise_lost(each, self.call)
                refuse_sleeping(address_in(each), self.call)
        except BaseException:
            self.leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> Literal[False]:
        self.leave()
        return False

    cdef void leave(self) noexcept:
        if self.entered:
            self.entered = False
            end_use(&self.access)

    def await_others(self) -> None:
        """Has nobody's sleep() wait for the rest of the use but that of its own memory: it waits for what other threads of
        this process have yet to do, and these may have memory of theirs to put to sleep before.
        """
        cdef size_t index, count = len(self.memory)
        if self.addresses == NULL:
            self.addresses = <uintptr_t*>calloc(count + 1, sizeof(uintptr_t))
            if self.addresses == NULL:
                raise MemoryError
            for index in range(count):
                self.addresses[index] = address_in(self.memory[index])
        await_others(&self.access, self.addresses, count)

    def __reduce__(self):
        refuse_copy(self, "it is a use of memory by this process")


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
    watch.note_use_on(side.block, stream.device_index, stream.handle)
    return 0


cdef int note_elsewhere(Operand* side, Stream stream) except -1:
    # Memory that another stream's copy uses must not be handed out before the copy is done.
    cdef uintptr_t low = 0, high = 0
    cdef int code = try_use_across(side.ordinal, side.block, stream.device_index, stream.handle)
    if code == NOT_READY:
        with nogil:
            code = use_across(side.ordinal, side.block, stream.device_index, stream.handle)
    if code == NOT_ALLOCATED and side.owner_stream == ANY:
        return 0
    if code == NOT_ALLOCATED and isinstance(<object>side.source, Buffer) and (<Buffer><object>side.source).kept:
        with nogil:  # memory of others (buffer_at), or a part of a block
            if block_around(side.ordinal, side.block, &low, &high) or high == 0:
                code = 0
            else:
                code = use_across(side.ordinal, low, stream.device_index, stream.handle)
    if code == NO_HOST_MEMORY and not any_capture():
        with nogil:  # what cannot be noted is waited for
            registry.active().stream_synchronize(stream.device_index, stream.handle)
    if code:
        raise_status(code, "record_stream", ("ptr", side.block, "stream", stream.handle))
    watch.note_use_on(side.block, stream.device_index, stream.handle)
    return 0


cdef enum:
    PAGE_LOCKED = -1    # a device's ordinal is 0 or more
    UNKNOWN_PLACE = -2

cdef int place_of(uintptr_t address) noexcept nogil:
    # Where the driver says that memory is.
    cdef int device = PAGE_LOCKED
    return UNKNOWN_PLACE if registry.active().pointer_device(address, &device) else max(device, PAGE_LOCKED)


cdef bint is_asynchronous(Operand* side) except -1:
    # Other host memory than page-locked is read or written before the driver's call returns.
    cdef int place
    if side.ordinal >= 0 or (side.ordered and side.address) or is_cached_pinned(side.address):
        return True
    with nogil:
        place = place_of(side.address)
    if place == UNKNOWN_PLACE and not still_has(<object>side.source, side.address):
        raise_lost(<object>side.source, "memory")
    return place == PAGE_LOCKED


cdef bint is_of_device(const Operand* side) noexcept:
    # Host memory to its owner, of a device to the driver, which stages none of it: NumPy's view of managed memory, or of the
    # host device's.
    cdef int place
    if side.ordered or side.address == 0 or is_cached_pinned(side.address):
        return False
    with nogil:
        place = place_of(side.address)
    return place >= 0


cdef bint may_capture(Stream stream) noexcept:
    # Perhaps for another library: asking for such a stream would break its capture.
    cdef int status = CAPTURE_NONE
    cdef int code
    with nogil:
        code = registry.active().stream_is_capturing(stream.device_index, stream.handle, &status)
    return code != 0 or status != CAPTURE_NONE


cdef int finish(Stream stream, Operand* host, object dst, object src, View view_to, View view_origin) except -1:
    # Waits for the stream.  host: the side in host memory, or NULL.  The rest is what the work uses.
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
    watch.note_reached(stream.device_index, stream.handle)
    raise_callback_errors()
    return 0


# --- the memory behind addresses ---------------------------------------------------------------------------------

cdef size_t span_at(const Spans* spans, uintptr_t address) noexcept nogil:
    # The first that ends behind the address.
    return count_to(&spans.at[0].high, spans.count, sizeof(Span), address)


cdef int insert_span(Spans* spans, uintptr_t low, uintptr_t high) noexcept nogil:
    # With all that share bytes with it.
    cdef size_t first = span_at(spans, low), end = first
    while end < spans.count and spans.at[end].low < high:
        low, high = min(low, spans.at[end].low), max(high, spans.at[end].high)
        end += 1
    if end == first and ensure_room(&spans.at, spans.count, &spans.room, sizeof(Span)):
        return NO_HOST_MEMORY
    memmove(spans.at + first + 1, spans.at + end, (spans.count - end) * sizeof(Span))
    spans.count = spans.count + 1 - (end - first)
    spans.at[first].low = low
    spans.at[first].high = high
    return 0


cdef int find_span(Spans* spans, uintptr_t address, size_t size, int device, uintptr_t stream) noexcept nogil:
    # What was not met before is looked up: a live block of the allocators', on which the stream is then recorded, or memory
    # that the driver at least knows, of which the end is not.
    cdef uintptr_t low = 0, high = 0
    cdef size_t index = span_at(spans, address)
    cdef int owner, code = 0
    if index < spans.count and address >= spans.at[index].low:
        return PAST_END if size > spans.at[index].high - address else 0
    owner = device_at(address)
    if owner >= 0:  # or it was, and the addresses are of something else by now
        code = block_around(owner, address, &low, &high)
        if code == 0 and high:
            code = use_across(owner, low, device, stream)
    if code == 0 and high == 0 and pinned_around(address, &low, &high):
        code = use_pinned_on(address, device, stream)
    if code == 0 and high == 0:
        code = registry.active().pointer_device(address, &owner)
        return NOT_LOCKED if code == INVALID_VALUE else code
    if code == 0:
        code = insert_span(spans, low, high)
    return code if code else PAST_END if size > high - address else 0


cdef int find_spans(Spans* spans, const uintptr_t* addresses, const size_t* sizes, size_t count, int device,
                    uintptr_t stream, size_t* out_index) noexcept nogil:
    # Copies that follow each other mostly lie in one span.
    cdef uintptr_t low = 0, size = 0
    cdef size_t index, span
    cdef int code
    for index in range(count):
        if sizes[index] == 0 or addresses[index] - low < size and sizes[index] <= size - (addresses[index] - low):
            continue
        out_index[0] = index
        code = find_span(spans, addresses[index], sizes[index], device, stream)
        if code:
            return code
        span = span_at(spans, addresses[index])
        if span < spans.count and spans.at[span].low <= addresses[index]:
            low, size = spans.at[span].low, spans.at[span].high - spans.at[span].low
    return 0


# --- copy -------------------------------------------------------------------------------------------------------------
# Copies and fills: between host and device, within a device and between two; and use(), for what others do.

cdef enum:
    STAGED = 64 << 10  # bytes of ordinary host memory that a driver takes at once; more may wait for the stream
    STAGE = 4 << 20  # bytes of page-locked memory that a copy goes through

cdef tuple ACCESS_MODES = ("r", "w", "rw")

cdef str NO_ACCESS = (
    "a captured copy between two devices needs each to reach the other's memory (can_device_access_peer); nothing was "
    "captured, and the capture goes on: capture a copy to a PinnedBuffer and one from it, or copy between the replays"
)


def device_span(source: object, str name="flag") -> tuple[int, int, int]:
    """(ordinal, address, bytes) of device memory: a Buffer, or an object with __cuda_array_interface__.

    Arguments:
        name: str, what the memory is called in an error.
    """
    cdef Operand operand
    operand.ordinal = -1
    if isinstance(source, (Buffer, Array)) or hasattr(source, "__cuda_array_interface__"):
        read_operand(&operand, source, name, False)
    if operand.ordinal < 0:
        raise TypeError(f"{name} of type {type(source).__name__} is no device memory; pass a Buffer or a CUDA array")
    refuse_sleeping(operand.address, name)
    return operand.ordinal, operand.address, operand.nbytes


cdef inline bint is_within(object value, size_t limit, size_t* out) noexcept:
    # An exact int is converted directly; anything else goes to the function that raises the precise error.
    cdef int overflow = 0
    cdef long read
    if not PyLong_CheckExact(value):
        return False
    read = PyLong_AsLongAndOverflow(value, &overflow)
    out[0] = <size_t>read
    return not overflow and read >= 0 and <size_t>read <= limit


cdef size_t checked_span(object value, str name, size_t limit) except? -1:
    cdef size_t span
    if is_within(value, limit, &span):
        return span
    value = exact_int(value, name, "an int")
    if value < 0 or value > limit:
        raise ValueError(f"{name} is {value}; with the sizes and offsets given it goes from 0 to {limit}")
    return value


cdef int announce(Operand* dst, uintptr_t to, Operand* src, uintptr_t origin, size_t size, Stream stream) except -1:
    # To the race detector, before anything is put into the stream.
    # Of other host memory than page-locked it is told elsewhere.
    cdef list uses = []
    if is_asynchronous(src):
        uses.append((origin, size, "r"))
    if is_asynchronous(dst):
        uses.append((to, size, "w"))
    return watch.note_work(stream.device_index, stream.handle, "copy", uses)


cdef int await_functions(Stream stream) except -1:
    # A driver's copy of host memory that is not page-locked waits for the stream, and the driver holds a lock meanwhile
    # that others need before they let the functions in the stream have the GIL; a wait for the stream holds none.  In
    # relaxed mode, for beside a global-mode capture of another thread's it would break that.
    cdef int mode, code
    code = go_relaxed(registry.active(), &mode)
    if code:
        raise_status(code, "capture_mode_exchange")
    begin_wait(False)
    with nogil:
        code = registry.active().stream_synchronize(stream.device_index, stream.handle)
        restore_mode(registry.active(), mode)
    end_wait(code)
    if code:
        raise_status(code, "stream_synchronize", ("stream", stream.handle))
    return 0


cdef int await_earlier(Stream stream, bint blocking) except -1:
    # A driver's copy of ordinary host memory waits for the stream's earlier work, and nothing ends that wait.  So the
    # main thread waits first, where there is something to wait for.
    cdef int code
    if not blocking and may_capture(stream):
        return 0
    with nogil:
        code = registry.active().stream_query(stream.device_index, stream.handle)
    if code == NOT_READY:
        return await_functions(stream)
    if code:
        raise_status(code, "stream_query", ("stream", stream.handle))
    return 0


cdef int copy_between(Operand* dst, uintptr_t to, Operand* src, uintptr_t origin, size_t size, object stream,
                      bint blocking, object dst_given, object src_given) except -1:
    # Where the caller chose no stream, the source's does the copy, and the current ones of both devices are ordered
    # around it.
    cdef Stream worker = stream_of(stream, src.ordinal)
    cdef Stream other = current_of(dst.ordinal)
    cdef bint around = stream is None, captured
    cdef Record record
    cdef Access access
    if worker.device_index != src.ordinal and worker.device_index != dst.ordinal:
        raise ValueError(f"stream is on device {worker.device_index}; a copy between devices takes one of src's, "
                         f"device {src.ordinal}, or of dst's, device {dst.ordinal}")
    if blocking:
        watch.before_wait("copy with blocking=True")
    if src.producer or dst.producer:
        follow_producer(src, worker)
        follow_producer(dst, worker)
    if around and any_capture():  # where one of the two alone captures, it does the copy, and waits for nothing outside
        if captures_apart(other, worker):
            worker, around = other, False
        elif captures_apart(worker, other):
            around = False
    captured = may_capture(worker)
    if captured:
        open_to_each_other(dst.ordinal, src.ordinal)
    if around:
        worker.wait_stream(other)
    if watch.detects_races():
        announce(dst, to, src, origin, size, worker)
    enter_use(&access, dst, dst_given, src, src_given)
    try:
        record = record_for(worker)
        keep(dst, None, record)
        keep(src, None, record)
        if captured:
            put_in(worker, to, origin, size)
        else:
            put_across(worker, dst.ordinal, to, src.ordinal, origin, size)
        note_use(src, worker, False, blocking)
        if not around or dst.owner_stream != other.handle:
            note_use(dst, worker, False, blocking)
    finally:
        end_use_of(&access)
    if around:  # what follows in the order of the other device's current stream follows the copy
        other.wait_stream(worker)
    return finish(worker, NULL, dst_given, src_given, None, None) if blocking else 0


cdef int open_to_each_other(int dst_ordinal, int src_ordinal) except -1:
    # A capture takes no cuMemcpyPeerAsync, but the copy of a device that reaches both sides.  May wait for a miss.
    cdef int code
    with nogil:
        code = connect_devices(dst_ordinal, src_ordinal)
    if code:
        raise_status(code, "enable_peer", ("device", dst_ordinal, "peer", src_ordinal),
                     NO_ACCESS if code == PEER_ACCESS_UNSUPPORTED else "")
    return 0


cdef int put_across(Stream worker, int dst_ordinal, uintptr_t dst, int src_ordinal, uintptr_t src, size_t size) except -1:
    cdef int code
    with nogil:
        code = registry.active().copy_across(worker.device_index, worker.handle, dst_ordinal, dst, src_ordinal, src, size)
    if code:
        raise_status(code, "copy_across", ("stream_device", worker.device_index, "stream", worker.handle, "dst_device",
                                           dst_ordinal, "dst", dst, "src_device", src_ordinal, "src", src,
                                           "size", size))
    return 0


cdef int await_slow(Operand* to, bint blocking) except -1:
    # Sync debug mode: whether the copy is one that waits.
    if blocking or not is_asynchronous(to):
        watch.before_wait("copy with blocking=True" if blocking else "copy to host memory that is not page-locked")
    return 0


cdef inline size_t measure(Operand* to, Operand* origin, object nbytes, object dst_offset, object src_offset,
                           uintptr_t* dst_address, uintptr_t* src_address) except? -1:
    # How many bytes go from where to where.
    cdef size_t skip_dst = 0, skip_src = 0, size, room
    if dst_offset is not 0:
        skip_dst = checked_span(dst_offset, "dst_offset", to.nbytes)
    if src_offset is not 0:
        skip_src = checked_span(src_offset, "src_offset", origin.nbytes)
    size, room = origin.nbytes - skip_src, to.nbytes - skip_dst
    if nbytes is not None or size > room:
        size = checked_span(size if nbytes is None else nbytes, "nbytes", min(size, room))
    dst_address[0], src_address[0] = to.address + skip_dst, origin.address + skip_src
    return size


cdef inline int put_in(Stream worker, uintptr_t dst, uintptr_t src, size_t size) except -1:
    cdef int code
    with nogil:  # a full queue may wait for a function of Python's, and a driver's lock for who wants the GIL
        code = registry.active().copy_async(worker.device_index, worker.handle, dst, src, size)
    if code:
        raise_refused(code, worker, dst, src, size)
    return 0


cdef int put_in_staged(Operand* to, Operand* origin, Stream worker, uintptr_t dst, uintptr_t src, size_t size) except -1:
    # By page-locked memory, so that what waits for the stream is not the driver's copy.
    cdef bint to_host = to.ordinal < 0
    cdef size_t done = 0, part
    cdef uintptr_t room = allocate_host_bytes(worker.device_index, min(size, STAGE))
    try:
        while done < size:
            part = min(size - done, STAGE)
            if to_host:
                put_in(worker, room, src + done, part)
                await_functions(worker)
                with nogil:
                    memcpy(<void*>(dst + done), <void*>room, part)
            else:
                with nogil:
                    memcpy(<void*>room, <void*>(src + done), part)
                put_in(worker, dst + done, room, part)
                await_functions(worker)
            done += part
    finally:  # where the wait was interrupted the copy goes on
        use_pinned_on(room, worker.device_index, worker.handle)
        release_host_bytes(room)
        note_use(origin if to_host else to, worker, False, False)
    return 0


cdef int put_in_slow(Operand* to, Operand* origin, Stream worker, uintptr_t dst, uintptr_t src, size_t size,
                     bint blocking) except -1:
    # Where a side may be ordinary host memory.
    cdef int code
    if size and functions_wait() and not may_capture(worker) and not is_asynchronous(to if to.ordinal < 0 else origin):
        return put_in_staged(to, origin, worker, dst, src, size)
    if is_main_thread() and not any_capture() and (
            blocking and (to.ordinal < 0 or size > STAGED) or to.ordinal < 0 and not is_asynchronous(to)):
        await_earlier(worker, blocking)
    with nogil:
        code = registry.active().copy(worker.device_index, worker.handle, dst, src, size)
    if code == INVALID_VALUE and not any_capture():
        with nogil:
            code = copy_of_devices(worker, dst, src, size)
    if code:
        raise_refused(code, worker, dst, src, size)
    if watch.detects_races() and not blocking and not is_asynchronous(to):
        watch.note_reached(worker.device_index, worker.handle)
    return 0


cdef int copy_of_devices(Stream worker, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    # Of the host device NumPy sees memory as the CPU's, which is one device's all the same (is_of_device).
    cdef int to = place_of(dst), origin = place_of(src)
    if to < 0 or origin < 0 or to == origin:
        return INVALID_VALUE
    return registry.active().copy_across(worker.device_index, worker.handle, to, dst, origin, src, size)


cdef int raise_refused(int code, Stream worker, uintptr_t dst, uintptr_t src, size_t size) except -1:
    return raise_status(code, "copy", ("device", worker.device_index, "stream", worker.handle, "dst", dst, "src", src,
                                       "size", size))


cdef object element_type(object side):
    # NumPy's type of what a side holds, or None: a Buffer, bytes, uint8, records and strings are bytes to a copy.
    if isinstance(side, (Buffer, PinnedBuffer, bytes, bytearray)):
        return None
    numpy = numpy_module()
    kind = getattr(side, "dtype", None)
    if not isinstance(kind, numpy.dtype):
        try:
            interface = getattr(side, "__cuda_array_interface__", None)
            kind = numpy.dtype(memoryview(side).format if interface is None else interface["typestr"])
        except (BufferError, KeyError, TypeError, ValueError):
            return None  # read_operand() refuses what is no memory
    return None if issubclass(kind.type, (numpy.uint8, numpy.flexible)) else kind


cdef int check_types(object dst, object src) except -1:
    cdef object to = element_type(dst)
    cdef object origin = None if to is None else element_type(src)
    if origin is not None and to is not origin and to != origin:
        raise TypeError(f"dst holds elements of {to} and src of {origin}: nothing is converted here; convert them first, or "
                        "pass nbytes to copy the bytes as they are")
    return 0


def copy(
    dst: Memory, src: Memory, nbytes: int | None = None, *, dst_offset: int = 0, src_offset: int = 0,
    stream: Stream | int | None = None, bint blocking=True,
) -> None:
    """Copies bytes between any two of host, device and another device.

    Arguments:
        dst: Buffer, contiguous Array, an object with __cuda_array_interface__, or a contiguous writable buffer (numpy array,
            bytearray, PinnedBuffer).
        src: the same, writable or not.
        nbytes: int; None is all of src from src_offset on, which has to fit.  Where both sides have a type of elements
            other than uint8, it has to be one type, unless nbytes is given.
        dst_offset, src_offset: int, bytes to skip at either side.
        stream: Stream, handle as int, or None: the current stream of dst's device, or of src's where dst is on
            the host.  Between two devices it is one of either, where 0, 1 and 2 name default streams of src's, and None
            is src's current stream, which waits for dst's current one and is waited for by it.  Between two places of
            page-locked memory it has to be given; there a driver may wait for the stream.
        blocking: bool, wait until the copy is complete.  If False, page-locked host memory has to stay as it is
            until the stream is past the copy, but accelrt's own may be dropped; other host memory is staged by the
            driver, and what NumPy sees of managed memory is waited for.
    Raises:
        ValueError: a length or offset does not fit, both sides are host memory and not page-locked, or without a stream, a
            Buffer was freed, or the stream is none or on another device.
        TypeError: a side is no memory, or holds Python objects, or the sides' types differ.
        CudaError: the driver refused; or the copy is between two devices that do not reach each other's memory, and its
            stream is capturing (PEER_ACCESS_UNSUPPORTED), which leaves the capture as it was.
        KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised; work
            that was put in goes on, and what it uses is kept alive until it is done.
    """
    cdef Operand to, origin
    cdef View view_to, view_origin
    cdef uintptr_t dst_address = 0, src_address = 0
    cdef size_t size
    if nbytes is None and not isinstance(dst, Buffer) and not isinstance(src, Buffer):
        check_types(dst, src)
    view_to = read_operand(&to, dst, "dst", True)
    view_origin = read_operand(&origin, src, "src", False)
    size = measure(&to, &origin, nbytes, dst_offset, src_offset, &dst_address, &src_address)
    if to.ordinal < 0 and origin.ordinal < 0 and (stream is None or not (is_asynchronous(&to) and is_asynchronous(&origin))):
        raise ValueError("both sides are host memory; copy those with numpy or a slice, or in a stream's order, stream=, "
                         "where both are page-locked")
    copy_operands(&to, dst_address, &origin, src_address, size, stream, blocking, dst, src, view_to, view_origin)


cdef int copy_operands(Operand* to, uintptr_t dst_address, Operand* origin, uintptr_t src_address, size_t size,
                       object stream, bint blocking, object dst, object src, View view_to, View view_origin) except -1:
    # size bytes from one side to the other, of which one is on a device.  dst to view_origin are what has to live as long
    # as a wait that was interrupted.
    cdef Stream worker
    cdef Record record
    cdef Access access
    cdef bint kept_to = False, kept_origin = False, on_host
    if to.ordinal != origin.ordinal and to.ordinal >= 0 and origin.ordinal >= 0:
        return copy_between(to, dst_address, origin, src_address, size, stream, blocking, dst, src)
    on_host = to.ordinal < 0 and origin.ordinal < 0
    worker = host_worker(stream) if on_host else worker_for(stream, max(to.ordinal, origin.ordinal))
    if watch.sync_mode:
        await_slow(to, blocking)
    if to.producer or origin.producer:
        follow_producer(to, worker)
        follow_producer(origin, worker)
    if watch.detects_races():
        announce(to, dst_address, origin, src_address, size, worker)
    enter_use(&access, to, dst, origin, src)
    try:
        record = record_for(worker)
        if record is not None:
            kept_to, kept_origin = keep(to, view_to, record), keep(origin, view_origin, record)
        if to.ordered and origin.ordered and not on_host:
            put_in(worker, dst_address, src_address, size)
        else:
            if not blocking and is_of_device(to if to.ordinal < 0 else origin):
                blocking = not may_capture(worker)  # the caller may use it at once, as all that is staged
            put_in_slow(to, origin, worker, dst_address, src_address, size, blocking)
        note_use(to, worker, kept_to, blocking and not on_host)
        note_use(origin, worker, kept_origin, blocking and not on_host)
        if blocking:  # until then page-locked memory is this copy's alone, of which its cache was not told
            access.enqueued = True
            finish(worker, to if to.ordinal < 0 else origin if origin.ordinal < 0 else NULL, dst, src, view_to, view_origin)
    finally:
        end_use_of(&access)
    return 0


cdef inline int checked_width(object width) except -1:
    cdef size_t bytes_ = 0
    if not is_within(width, 4, &bytes_):
        bytes_ = checked_int(width, "width", 1, 4, "1, 2 or 4")
    if bytes_ != 1 and bytes_ != 2 and bytes_ != 4:
        raise ValueError(f"width is {width}; an element has 1, 2 or 4 bytes")
    return <int>bytes_


cdef Stream host_worker(object stream):
    # For work on page-locked memory alone, which every device can do.
    return stream_of(stream, ordinal_of(None))


cdef Stream worker_for(object stream, int ordinal):
    # A stream of that device; None is its current one.
    if is_of(stream, ordinal):
        mark_used(<Stream>stream)
        return <Stream>stream
    return stream_for(stream, ordinal, "the memory")


cdef inline unsigned int checked_element(object value, int width) except? 0:
    cdef size_t limit = (<size_t>1 << 8 * width) - 1
    cdef size_t element
    if is_within(value, limit, &element):
        return element
    number = exact_int(value, "value", "an int") if PyIndex_Check(value) and not isinstance(value, bool) else -1
    if number < 0 or number > limit:
        raise ValueError(f"value is {value!r}; an element of {width} bytes holds an int from 0 to {limit}")
    return number


cdef int put_fill_in(Stream worker, uintptr_t dst, unsigned int element, int width, size_t count) except -1:
    cdef int code
    with nogil:
        code = registry.active().fill(worker.device_index, worker.handle, dst, element, width, count)
    if code:
        raise_status(code, "fill", ("device", worker.device_index, "stream", worker.handle, "dst", dst, "value", element,
                                    "width", width, "count", count))
    return 0


def fill(
    dst: Memory, value: int = 0, count: int | None = None, *, width: int = 1, offset: int = 0,
    stream: Stream | int | None = None, bint blocking=False,
) -> None:
    """Sets elements of device memory, or of page-locked memory, to one value (cuMemsetD8Async and its kin).

    Arguments:
        dst: Buffer, contiguous Array, an object with __cuda_array_interface__, or page-locked memory: a PinnedBuffer, or
            an array on one.
        value: int from 0 to 2**(8 * width) - 1.
        count: int, elements; None is all from offset on, which has to be a whole number of them.
        width: int, bytes of an element: 1, 2 or 4.
        offset: int, bytes to skip, a multiple of width.
        stream: Stream, handle as int, or None for the current stream of dst's device, or of the current one where dst is
            page-locked memory.
        blocking: bool, wait until the fill is complete.
    Raises:
        ValueError: a value, length or offset does not fit, dst is a Buffer that was freed, or the stream is none or on
            another device.
        TypeError: dst is host memory that is not page-locked.
        CudaError: the driver refused.
        KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised; work
            that was put in goes on, and what it uses is kept alive until it is done.
    """
    cdef Operand to
    cdef View view = read_operand(&to, dst, "dst", True)
    cdef Stream worker
    cdef size_t skip = 0, elements
    cdef unsigned int element
    cdef Access access
    cdef int bytes_
    if to.ordinal < 0 and not is_asynchronous(&to):
        raise TypeError(f"dst of type {type(dst).__name__} is host memory; fill takes a Buffer or a CUDA array, or "
                        "page-locked memory")
    bytes_ = checked_width(width)
    element = checked_element(value, bytes_)
    if offset is not 0:
        skip = checked_span(offset, "offset", to.nbytes)
    if skip % bytes_ or (count is None and (to.nbytes - skip) % bytes_):
        raise ValueError(f"offset {offset} and the {to.nbytes} bytes of dst have to be multiples of width {width}")
    elements = (to.nbytes - skip) // bytes_
    if count is not None:
        elements = checked_span(count, "count", elements)
    worker = worker_for(stream, to.ordinal) if to.ordinal >= 0 else host_worker(stream)
    if blocking:
        watch.before_wait("fill with blocking=True")
    if to.producer:
        follow_producer(&to, worker)
    watch.note_access(worker.device_index, worker.handle, to.address + skip, bytes_ * elements, "w", "fill")
    enter_use(&access, &to, dst, NULL, None)
    try:
        keep(&to, view, record_for(worker))
        put_fill_in(worker, to.address + skip, element, bytes_, elements)
        note_use(&to, worker, False, blocking)
    finally:
        end_use_of(&access)
    if blocking:
        finish(worker, &to if to.ordinal < 0 else NULL, dst, None, view, None)


# --- work of others on memory, as the race detector is told of it --------------------------------------------

cdef int read_memory(object memory, uintptr_t* out_address, size_t* out_size) except -1:
    # Answers 1 where the size is known.
    cdef Operand side
    cdef Py_buffer view
    if isinstance(memory, (Buffer, PinnedBuffer, Array)):
        read_operand(&side, memory, "memory", False)
        out_address[0], out_size[0] = side.address, side.nbytes
    elif is_integer(memory):
        out_address[0] = checked_address_int(memory, "memory")
        return 0
    elif hasattr(memory, "__cuda_array_interface__"):
        interface = memory.__cuda_array_interface__
        out_address[0], out_size[0], _ = init.later("accelrt.arrays.cuda_array").read(interface, "memory", False)
    else:
        try:
            PyObject_GetBuffer(memory, &view, PyBUF_ANY_CONTIGUOUS)
        except (BufferError, TypeError, ValueError) as error:
            raise TypeError(
                f"memory of type {type(memory).__name__} cannot be used: {error}; pass a Buffer, a contiguous array, or "
                "an address as int with nbytes"
            ) from None
        out_address[0], out_size[0] = <uintptr_t>view.buf, view.len
        PyBuffer_Release(&view)
    return 1


# stub: def use(memory: Memory, nbytes: int | None = None, stream: Stream | int | Literal["host"] | None = None, mode: Literal["r", "w", "rw"] = "rw") -> None: ...  # no-cython-lint
def use(
    memory: Memory, nbytes: int | None = None, stream: Stream | int | Literal["host"] | None = None, str mode="rw",
) -> None:
    """Tells the race detector of work that accelrt does not see: a kernel, say, or the host's own hands.

        accelrt.use(pointer, 4096, stream, "r")      # before the kernel that reads it is launched
        accelrt.use(pinned_array, stream="host", mode="w")

    Arguments:
        memory: an address as int, a Buffer, PinnedBuffer, a contiguous array or other buffer, or an object with
            __cuda_array_interface__.
        nbytes: int, from the address or the memory's begin on; None is all of the memory.
        stream: Stream, handle as int, None for the current stream, or "host" for the calling Python code, which in a
            host function is in its stream's order.
        mode: "r", "w" or "rw", whether the work reads the bytes, writes them, or both.
    Raises:
        RaceError: nothing orders it with earlier work on the bytes; with ACCELRT_SANITIZE=warn a RaceWarning.
        ValueError, TypeError: an argument is out of range or of the wrong kind.

    While the race detector is off it does nothing and looks at no argument.
    """
    cdef uintptr_t address = 0
    cdef size_t size = 0
    cdef Stream worker
    if not watch.detects_races():
        return
    if mode not in ACCESS_MODES:
        raise ValueError(f"mode is {mode!r}; it may be 'r', 'w' or 'rw'")
    has_size = read_memory(memory, &address, &size)
    if nbytes is None and not has_size:
        raise TypeError("nbytes is None; an address alone does not say how many bytes are used")
    if nbytes is not None:
        used_size = checked_size(nbytes, "nbytes")
        if has_size and used_size > size:
            raise ValueError(f"nbytes is {nbytes}, the memory has {size}")
        size = used_size
    mode = "r" if mode == "r" else "w"  # a write is ordered with all that a read is ordered with
    if isinstance(stream, str):
        if stream != "host":
            raise ValueError(f"stream is {stream!r}; pass a Stream, a handle, None, or 'host'")
        watch.note_host_work("use", [(address, size, mode)])
        return
    worker = stream_of(stream, ordinal_of(None))
    watch.note_access(worker.device_index, worker.handle, address, size, mode, "use")


# --- strided ----------------------------------------------------------------------------------------------------------
# Copies and fills of Arrays of any strides.
#
# Both sides' axes are merged where they lie alike.  What is left is copied in one piece, by the driver's copies of rows and
# slices (copy_3d), or by as many of those as there are steps along the axes that these do not take.  Elements that are
# read again and again (a stride of 0) are copied once, and then from the destination, twice as many each time.

cdef enum:
    LOOKS = 3  # axes at the end that one call of the driver takes at most: bytes of a row, rows, slices

cdef struct Piece:       # of a copy: both sides' strides along the same axes
    Py_ssize_t ndim
    Py_ssize_t itemsize  # bytes that lie together on both sides
    Py_ssize_t[MAX_NDIM] lengths
    Py_ssize_t[MAX_NDIM] to
    Py_ssize_t[MAX_NDIM] origin


# --- shapes ------------------------------------------------------------------------------------------------------

cdef int broadcast(Piece* piece, Array dst, Array src) except -1:
    # The source's axes are the destination's last ones; one of a single element is read again and again.
    cdef Py_ssize_t axis, behind, length
    piece.ndim = dst.ndim
    piece.itemsize = dst.itemsize
    for axis in range(dst.ndim):
        piece.lengths[axis] = dst.extents[axis]
        piece.to[axis] = dst.extents[dst.ndim + axis]
        piece.origin[axis] = 0
    for behind in range(1, src.ndim + 1):
        length = src.extents[src.ndim - behind]
        if behind > dst.ndim:
            if length != 1:
                raise_shapes(dst, src)
        elif length == dst.extents[dst.ndim - behind]:
            piece.origin[dst.ndim - behind] = src.extents[2 * src.ndim - behind]
        elif length != 1:
            raise_shapes(dst, src)
    return 0


cdef int raise_shapes(Array dst, Array src) except -1:
    raise ValueError(f"an Array of shape {src.shape} cannot be broadcast to shape {dst.shape}")


cdef int check_overlap(Array dst) except -1:
    # Two elements at one address would hold whichever was written last.  Sorted by stride, each axis has to step over
    # all of the axes below it; layouts that interleave without overlapping are refused too.
    cdef Py_ssize_t reach = dst.itemsize
    for stride, length in sorted([(abs(dst.extents[dst.ndim + axis]), dst.extents[axis]) for axis in range(dst.ndim)]):
        if length > 1:
            if stride < reach:
                raise ValueError(f"elements of an Array of shape {dst.shape} and strides {dst.strides} lie on each other; "
                                 "it cannot be written")
            reach = stride * (length - 1) + reach
    return 0


cdef void drop_axis(Piece* piece, Py_ssize_t axis) noexcept nogil:
    cdef Py_ssize_t behind
    piece.ndim -= 1
    for behind in range(axis, piece.ndim):
        piece.lengths[behind] = piece.lengths[behind + 1]
        piece.to[behind] = piece.to[behind + 1]
        piece.origin[behind] = piece.origin[behind + 1]


cdef void swap_axes(Piece* piece, Py_ssize_t first, Py_ssize_t second) noexcept nogil:
    piece.lengths[first], piece.lengths[second] = piece.lengths[second], piece.lengths[first]
    piece.to[first], piece.to[second] = piece.to[second], piece.to[first]
    piece.origin[first], piece.origin[second] = piece.origin[second], piece.origin[first]


cdef void merge_axes(Piece* piece, uintptr_t* dst, uintptr_t* src) noexcept nogil:
    # Axes that step backwards on the destination are turned round; then they are ordered by its strides, and neighbours
    # that step on where the other ends, on both sides, become one.  An innermost axis of bytes that lie together goes.
    cdef Py_ssize_t axis, inner
    for axis in range(piece.ndim - 1, -1, -1):
        if piece.lengths[axis] == 1:
            drop_axis(piece, axis)
        elif piece.to[axis] < 0:
            dst[0] += piece.to[axis] * (piece.lengths[axis] - 1)
            src[0] += piece.origin[axis] * (piece.lengths[axis] - 1)
            piece.to[axis] = -piece.to[axis]
            piece.origin[axis] = -piece.origin[axis]
    for axis in range(1, piece.ndim):
        inner = axis
        while inner and piece.to[inner - 1] < piece.to[inner]:
            swap_axes(piece, inner - 1, inner)
            inner -= 1
    for axis in range(piece.ndim - 2, -1, -1):
        if (piece.to[axis] == piece.to[axis + 1] * piece.lengths[axis + 1]
                and piece.origin[axis] == piece.origin[axis + 1] * piece.lengths[axis + 1]):
            piece.lengths[axis + 1] *= piece.lengths[axis]
            drop_axis(piece, axis)
    axis = piece.ndim - 1
    if axis >= 0 and piece.to[axis] == piece.itemsize and piece.origin[axis] == piece.itemsize:
        piece.itemsize *= piece.lengths[axis]
        piece.ndim -= 1


# --- the driver's copies -----------------------------------------------------------------------------------------

cdef inline bint is_pitch(Py_ssize_t stride, Py_ssize_t least) noexcept nogil:
    return least <= stride <= MAX_PITCH


cdef int copy_axis(const Piece* piece, Py_ssize_t axis, Stream worker, uintptr_t dst, uintptr_t src) noexcept nogil:
    # The axes from `axis` on.  Without the GIL: a full queue may wait for a function of Python's.
    cdef Py_ssize_t left = piece.ndim - axis, step, rows
    cdef int code = 0
    if left == 0:
        return registry.active().copy_async(worker.device_index, worker.handle, dst, src, piece.itemsize)
    if piece.origin[axis] == 0:
        return put_in_again(piece, axis, worker, dst, src)
    rows = piece.ndim - 1
    if left == 1 and is_pitch(piece.to[rows], piece.itemsize) and is_pitch(piece.origin[rows], piece.itemsize):
        return registry.active().copy_3d(
            worker.device_index, worker.handle, dst, piece.to[rows], piece.lengths[rows], src, piece.origin[rows],
            piece.lengths[rows], piece.itemsize, piece.lengths[rows], 1)
    if left == 2 and are_slices(piece):
        return registry.active().copy_3d(
            worker.device_index, worker.handle, dst, piece.to[rows], piece.to[axis] // piece.to[rows], src,
            piece.origin[rows], piece.origin[axis] // piece.origin[rows], piece.itemsize, piece.lengths[rows],
            piece.lengths[axis])
    for step in range(piece.lengths[axis]):
        code = copy_axis(piece, axis + 1, worker, dst + step * piece.to[axis], src + step * piece.origin[axis])
        if code:
            break
    return code


cdef bint are_slices(const Piece* piece) noexcept nogil:
    # Whether the last two axes are rows and slices to the driver, on both sides.
    cdef Py_ssize_t rows = piece.ndim - 1, axis = piece.ndim - 2
    return (is_pitch(piece.to[rows], piece.itemsize) and is_pitch(piece.origin[rows], piece.itemsize)
            and piece.to[axis] % piece.to[rows] == 0 and piece.origin[axis] % piece.origin[rows] == 0
            and piece.to[axis] // piece.to[rows] >= piece.lengths[rows]
            and piece.origin[axis] // piece.origin[rows] >= piece.lengths[rows])


cdef int put_in_again(const Piece* piece, Py_ssize_t axis, Stream worker, uintptr_t dst, uintptr_t src) noexcept nogil:
    # The first step along the axis comes from the source, the others from what is there already.
    cdef Piece rest = piece[0]
    cdef Py_ssize_t done = 1, part, inner
    cdef uintptr_t to = dst, origin = dst
    cdef int code = copy_axis(piece, axis + 1, worker, dst, src)
    while code == 0 and done < piece.lengths[axis]:
        part = min(done, piece.lengths[axis] - done)
        rest.ndim = piece.ndim - axis
        rest.itemsize = piece.itemsize
        for inner in range(rest.ndim):
            rest.lengths[inner] = piece.lengths[axis + inner]
            rest.to[inner] = rest.origin[inner] = piece.to[axis + inner]
        rest.lengths[0] = part
        to, origin = dst + done * piece.to[axis], dst
        merge_axes(&rest, &to, &origin)
        code = copy_axis(&rest, 0, worker, to, origin)
        done += part
    return code


cdef int put_piece_in(Piece* piece, Stream worker, uintptr_t dst, uintptr_t src) except? -1:
    # Answers the driver's code.  Axes that are read again and again go first, and of the last two the longer one is that
    # of the rows.
    cdef Py_ssize_t axis, inner, last = piece.ndim - 1
    cdef int code
    for axis in range(1, piece.ndim):
        inner = axis
        while inner and piece.origin[inner] == 0 and piece.origin[inner - 1] != 0:
            swap_axes(piece, inner - 1, inner)
            inner -= 1
    if (last > 0 and piece.origin[last - 1] and piece.lengths[last - 1] > piece.lengths[last] and not are_slices(piece)
            and is_pitch(piece.to[last - 1], piece.itemsize) and is_pitch(piece.origin[last - 1], piece.itemsize)):
        swap_axes(piece, last - 1, last)
    with nogil:
        code = copy_axis(piece, 0, worker, dst, src)
    return code


# --- the same, listed ---------------------------------------------------------------------------------------------

cdef int add_copy(Pieces* pieces, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src, size_t src_pitch,
                  size_t src_lines, size_t width, size_t height, size_t depth) noexcept nogil:
    cdef PitchedCopy* one
    if ensure_room(&pieces.copies, pieces.count, &pieces.room, sizeof(PitchedCopy)):
        return NO_HOST_MEMORY
    one = &pieces.copies[pieces.count]
    one.dst, one.dst_pitch, one.dst_lines = dst, dst_pitch, dst_lines
    one.src, one.src_pitch, one.src_lines = src, src_pitch, src_lines
    one.width, one.height, one.depth = width, height, depth
    pieces.count += 1
    return 0


cdef int list_axis(const Piece* piece, Py_ssize_t axis, uintptr_t dst, uintptr_t src, Pieces* pieces) noexcept nogil:
    # As copy_axis, but that elements which are read again and again are read each time: no copy comes after another.
    cdef Py_ssize_t left = piece.ndim - axis, rows = piece.ndim - 1, step
    cdef int code = 0
    if left == 0:
        return add_copy(pieces, dst, piece.itemsize, 1, src, piece.itemsize, 1, piece.itemsize, 1, 1)
    if left == 1 and is_pitch(piece.to[rows], piece.itemsize) and is_pitch(piece.origin[rows], piece.itemsize):
        return add_copy(pieces, dst, piece.to[rows], piece.lengths[rows], src, piece.origin[rows], piece.lengths[rows],
                        piece.itemsize, piece.lengths[rows], 1)
    if left == 2 and are_slices(piece):
        return add_copy(pieces, dst, piece.to[rows], piece.to[axis] // piece.to[rows], src, piece.origin[rows],
                        piece.origin[axis] // piece.origin[rows], piece.itemsize, piece.lengths[rows], piece.lengths[axis])
    for step in range(piece.lengths[axis]):
        code = code or list_axis(piece, axis + 1, dst + step * piece.to[axis], src + step * piece.origin[axis], pieces)
    return code


cdef int add_pieces(Array dst, Array src, Pieces* pieces) except -1:
    cdef Piece piece
    cdef uintptr_t to, origin
    check_sides(dst, src)
    to, origin = dst.ptr, src.ptr
    broadcast(&piece, dst, src)
    if dst.size == 0:
        return 0
    check_overlap(dst)
    if may_share(dst, src):
        raise ValueError("dst and src share bytes, and copies of a batch come in any order; copy them with copy_()")
    merge_axes(&piece, &to, &origin)
    if list_axis(&piece, 0, to, origin, pieces):
        raise MemoryError("no host memory for the parts of a copy")
    return 0


# --- whole copies --------------------------------------------------------------------------------------------------

cdef int span_of(Array array, uintptr_t* out_low, uintptr_t* out_size) except -1:
    cdef Py_ssize_t low, high
    find_bounds(array.ndim, array.extents, array.itemsize, &low, &high)
    out_low[0] = array.ptr + low
    out_size[0] = high - low
    return 0


cdef bint may_share(Array dst, Array src) except -1:
    # Whether the bytes from the first to the last element of each have some in common.
    cdef uintptr_t dst_low, dst_size, src_low, src_size
    if dst.device_index != src.device_index:
        return False
    span_of(dst, &dst_low, &dst_size)
    span_of(src, &src_low, &src_size)
    return dst_low < src_low + src_size and src_low < dst_low + dst_size


cdef int announce_arrays(Array dst, Array src, Stream worker) except -1:
    # To the race detector, both sides at once, for where it raises nothing is read: all bytes from the first element to the
    # last.
    cdef uintptr_t dst_low, dst_size, src_low, src_size
    span_of(dst, &dst_low, &dst_size)
    span_of(src, &src_low, &src_size)
    uses = [(src_low, src_size, "r"), (dst_low, dst_size, "w")]
    return watch.note_work(worker.device_index, worker.handle, "copy_", uses)


cdef Array packed(Array like, object device, object stream, bint pinned):
    cdef Extents extents
    memcpy(extents, like.extents, like.ndim * sizeof(Py_ssize_t))
    set_contiguous(like.ndim, extents, like.itemsize)
    return allocate_array(like.ndim, extents, like.dtype, device, stream, pinned)


cdef bint is_ordinary(Array array) except -1:
    # Host memory that is not page-locked.
    cdef Operand side
    if array.device_index >= 0 or array.owner == PINNED_BUFFER:
        return False
    read_array(&side, array, "the memory", False)
    return not is_asynchronous(&side)


cdef int check_sides(Array dst, Array src) except -1:
    check_live(dst, "dst")
    check_live(src, "src")
    if dst.readonly:
        raise ValueError("dst is a read-only Array; pass one that can be written")
    if dst.dtype is not src.dtype and dst.dtype != src.dtype:
        raise TypeError(f"an Array of {dst.dtype} takes no elements of {src.dtype}: nothing is converted here; convert them "
                        "first, or name the bytes' type with view()")
    return 0


cdef int copy_array(Array dst, Array src, bint blocking, object stream) except -1:
    cdef Piece piece
    cdef uintptr_t to, origin
    if stream is not None and max(src.device_index, dst.device_index) >= 0:  # the caller's code comes first
        stream = stream_of(stream, src.device_index if src.device_index >= 0 else dst.device_index)
    check_sides(dst, src)
    to, origin = dst.ptr, src.ptr
    broadcast(&piece, dst, src)
    if dst.size == 0:
        return 0
    check_overlap(dst)
    if dst.device_index < 0 and src.device_index < 0:
        return copy_on_host(dst, src)
    if dst.device_index >= 0 and src.device_index >= 0 and dst.device_index != src.device_index:
        return copy_arrays(dst, src, stream)
    merge_axes(&piece, &to, &origin)
    if may_share(dst, src):
        return copy_shared(dst, src, stream)
    if piece.ndim == 0:
        return copy_whole(dst, to, src, origin, piece.itemsize, blocking, stream)
    if is_ordinary(dst) or is_ordinary(src):
        return copy_staged(dst, src, blocking, stream)
    return copy_piece(dst, to, src, origin, &piece, blocking, stream)


cdef int copy_on_host(Array dst, Array src) except -1:
    # Where both share bytes NumPy does not always copy as if by memory of its own (x[0:40:2] = x[8:28]).
    cdef object elements = src.numpy()
    if may_share(dst, src):
        elements = elements.copy()
    numpy_module().copyto(dst.numpy(), elements)
    return 0


cdef int copy_whole(Array dst, uintptr_t to, Array src, uintptr_t origin, size_t size, bint blocking,
                    object stream) except -1:
    # One piece of memory, which lies alike on both sides.
    cdef Operand dst_side, src_side
    read_array(&dst_side, dst, "dst", True)
    read_array(&src_side, src, "src", False)
    return copy_operands(&dst_side, to, &src_side, origin, size, stream, blocking, dst, src, None, None)


cdef int copy_piece(Array dst, uintptr_t to, Array src, uintptr_t origin, Piece* piece, bint blocking,
                    object stream) except -1:
    cdef Stream worker = worker_for(stream, max(dst.device_index, src.device_index))
    cdef Operand dst_side, src_side
    cdef bint kept_dst = False, kept_src = False
    cdef Record record
    cdef Access access
    cdef int code
    read_array(&dst_side, dst, "dst", True)
    read_array(&src_side, src, "src", False)
    if blocking:
        watch.before_wait("copy_ with non_blocking=False")
    if watch.detects_races():
        announce_arrays(dst, src, worker)
    enter_use(&access, &dst_side, dst, &src_side, src)
    try:
        record = record_for(worker)
        if record is not None:
            kept_dst, kept_src = keep(&dst_side, None, record), keep(&src_side, None, record)
        code = put_piece_in(piece, worker, to, origin)
        note_use(&dst_side, worker, kept_dst, blocking)  # also where a later part was refused
        note_use(&src_side, worker, kept_src, blocking)
        if code:
            raise_status(code, "copy_3d", ("device", worker.device_index, "stream", worker.handle, "dst", to, "src",
                                           origin, "shape", dst.shape, "dst_strides", dst.strides, "src_strides",
                                           src.strides))
        if blocking:  # until then page-locked memory is this copy's alone, of which its cache was not told
            access.enqueued = True
            finish(worker, &dst_side if dst.device_index < 0 else &src_side if src.device_index < 0 else NULL, dst, src,
                   None, None)
    finally:
        end_use_of(&access)
    return 0


cdef int copy_shared(Array dst, Array src, object stream) except -1:
    # By memory of its own, for a driver's copy of bytes that both sides share is undefined.
    cdef Stream worker
    cdef Array between
    if dst.ptr == src.ptr and dst.shape == src.shape and dst.strides == src.strides:
        return 0
    worker = worker_for(stream, dst.device_index)
    between = packed(src, dst.device_index, worker, False)
    copy_array(between, src, False, worker)
    return copy_array(dst, between, False, worker)


cdef int copy_staged(Array dst, Array src, bint blocking, object stream) except -1:
    # Scattered elements of ordinary host memory, by page-locked memory, which the cache keeps until the copy is done.
    cdef Stream worker = worker_for(stream, max(dst.device_index, src.device_index))
    cdef Array between
    if record_for(worker) is not None:
        raise ValueError("a capture takes no copy of scattered elements of ordinary host memory; use page-locked memory, "
                         "accelrt.empty(..., pin_memory=True), or a contiguous array")
    between = packed(src, worker.device_index, None, True)
    if dst.device_index >= 0:
        numpy_module().copyto(between.numpy(), src.numpy())
        return copy_array(dst, between, blocking, worker)
    copy_array(between, src, True, worker)
    numpy_module().copyto(dst.numpy(), between.numpy())
    return 0


cdef int copy_arrays(Array dst, Array src, object stream) except -1:
    # Of two devices: as one piece, for which each side is packed on its own device where it is not one.
    cdef Array origin = src, to = dst
    cdef bint alike = dst.shape == src.shape
    cdef bint scattered = not (alike and dst.dense() and src.dense())
    cdef Stream near, far
    if stream is not None and scattered:
        raise ValueError("a copy of scattered elements between two devices works on a stream of each; pass no stream, and "
                         "make those that it is to use current")
    if scattered and any_capture():
        near, far = current_of(src.device_index), current_of(dst.device_index)
        if captures_apart(near, far) or captures_apart(far, near):
            raise ValueError("a captured copy of scattered elements between two devices works on the current stream of "
                             "each, and one of the two is not in the capture; have it wait for the other first, or copy "
                             "from and to contiguous arrays")
    if not src.dense():
        origin = packed(src, src.device_index, None, False)
        copy_array(origin, src, False, None)
    if not alike or not dst.dense():
        to = packed(src, dst.device_index, None, False)
    copy_whole(to, to.ptr, origin, origin.ptr, origin.size * origin.itemsize, False, stream)
    return copy_array(dst, to, False, None) if to is not dst else 0


# --- fills ---------------------------------------------------------------------------------------------------------

cdef int width_of(bytes element) except -1:
    # The shortest part, of 1, 2 or 4 bytes, that the element repeats; 0 where there is none.
    for width in (1, 2, 4):
        if len(element) % width == 0 and element == element[:width] * (len(element) // width):
            return width
    return 0


cdef int fill_array(Array dst, object value, object stream) except -1:
    cdef Piece piece
    cdef uintptr_t to, origin = 0
    cdef int width
    check_live(dst, "this")
    if dst.readonly:
        raise ValueError("this is a read-only Array; fill one that can be written")
    element = numpy_module().empty((), dst.dtype)
    element[()] = value
    if stream is not None and dst.device_index >= 0:
        stream = stream_of(stream, dst.device_index)
    check_live(dst, "this")  # the value's and the stream's code came before
    to = dst.ptr
    if dst.size == 0:
        return 0
    if dst.device_index < 0:
        dst.numpy()[...] = element
        return 0
    check_overlap(dst)
    width = width_of(element.tobytes())
    broadcast(&piece, dst, dst)
    merge_axes(&piece, &to, &origin)
    if width and piece.ndim == 0 and to % width == 0:
        number = int.from_bytes(element.tobytes()[:width], "little")
        fill(flat(dst, to, piece.itemsize), number, width=width, stream=stream)
        return 0
    return fill_scattered(dst, element, stream)


cdef Array flat(Array dst, uintptr_t ptr, Py_ssize_t nbytes):
    # The bytes from ptr on, in the same memory.
    cdef Array array = new_array(dst.base, ptr, dst.device_index, dst.stream, numpy_module().dtype("u1"), 1, False)
    array.extents[0] = nbytes
    array.extents[1] = 1
    return finish_array(array)


cdef int fill_scattered(Array dst, object element, object stream) except -1:
    # From one element in page-locked memory, which a capture's graph keeps.
    cdef Array one = allocate_array(0, dst.extents, dst.dtype, dst.device_index, None, True)
    one.numpy()[()] = element
    return copy_array(dst, one, False, stream)
