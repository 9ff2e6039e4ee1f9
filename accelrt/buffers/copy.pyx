"""Copies and fills: between host and device, within a device and between two; and use(), for what others do."""
import numbers

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyIndex_Check
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcpy, strchr

from accelrt.buffers.buffer cimport Buffer, PinnedBuffer, raise_freed
from accelrt.buffers.buffer import provide_copies
from accelrt.core.integers cimport checked_address_int, checked_int, exact_int
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_NONE
from accelrt.driver.waiting cimport INTERRUPTED, begin_wait, end_wait, is_main_thread
from accelrt.memory.allocator.pool cimport pool_if_made, use_across
from accelrt.memory.caching cimport checked_size
from accelrt.memory.host.pool cimport is_cached_pinned, use_pinned_on
from accelrt.memory.host_cache cimport allocate_host_bytes, release_host_bytes
from accelrt.runtime import init
from accelrt.runtime.capture_record cimport Record, any_capture, keep_side, record_on
from accelrt.runtime.host_func cimport functions_wait, raise_callback_errors
from accelrt.runtime.release_queue cimport keep_until_passed
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport CAPTURE_UNSUPPORTED, NOT_ALLOCATED, NOT_READY, NO_HOST_MEMORY, raise_status
from accelrt.streams.stream cimport Stream, current_of, judge_handle, stream_for, stream_of, wrap

cdef enum:
    STAGED = 64 << 10  # bytes of ordinary host memory that a driver takes at once; more may wait for the stream
    STAGE = 4 << 20  # bytes of page-locked memory that a copy goes through

cdef struct Operand:      # one side of a copy
    uintptr_t address
    size_t nbytes
    int ordinal           # -1 for host memory
    bint ordered          # copies read or write it in their stream's order: it is no ordinary host memory
    bint owned            # by an allocator of ours, which files it under the stream below
    uintptr_t owner_stream  # ANY where that is unknown: the memory may be an allocator's of ours, or not
    uintptr_t producer    # of an array of others: the stream that wrote it last, in their words; 0: wait for none
    PyObject* source      # borrowed: an argument of the caller's


cdef enum:
    LEGACY = 1   # the protocol's handle of the legacy default stream, for which we have 0 as well

cdef uintptr_t ANY = ~<uintptr_t>0  # which no stream has

cdef tuple ACCESS_MODES = ("r", "w", "rw")

cdef str NOT_CAPTURED = (
    "a copy between two devices cannot be captured, and this one broke the capture, which takes copies within a device "
    "and to and from host memory; capture each device's work in a graph of its own and copy between the replays, or "
    "capture a copy to a PinnedBuffer and one from it"
)


cdef class View:
    """A buffer of Python's that a side of a copy borrows, and the object that it is of."""

    cdef object source
    cdef Py_buffer buffer
    cdef bint borrowed

    def __dealloc__(self):
        if self.borrowed:
            PyBuffer_Release(&self.buffer)


cdef inline View read_operand(Operand* made, object source, str name, bint writable):
    # Answers what has to live as long as the side is used, where source alone does not do, or None.
    made.source = <PyObject*>source
    made.ordered = True
    made.owned = False
    made.producer = 0
    if isinstance(source, Buffer):
        made.address = (<Buffer>source).ptr
        made.nbytes = (<Buffer>source).nbytes
        made.ordinal = (<Buffer>source).device_index
        if made.address:
            made.owned = True
            made.owner_stream = (<Buffer>source).stream.handle
        elif not (<Buffer>source).live:
            raise_freed(source, name)
        return None
    if isinstance(source, PinnedBuffer):
        made.address = (<PinnedBuffer>source).ptr
        made.nbytes = (<PinnedBuffer>source).nbytes
        made.ordinal = -1
        if not made.address and not (<PinnedBuffer>source).live:
            raise_freed(source, name)
        return None
    return read_operand_slow(made, source, name, writable)


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


cdef int read_interface(Operand* made, object interface, str name, bint writable) except -1:
    # What the driver knows is no ordinary host memory.
    cdef int device = -1
    cdef int code
    made.address, made.nbytes, made.producer = init.later("accelrt.buffers.cuda_array").read(interface, name, writable)
    if made.address:
        ordinal_of(None)
        with nogil:
            code = registry.active().pointer_device(made.address, &device)
        if code:
            raise_status(code, "pointer_device", ("address", made.address))
    else:
        made.producer = 0
    made.ordinal = device
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


cdef int follow_stream(uintptr_t given, int ordinal, Stream worker) except -1:
    # What comes next on worker comes behind what an array's owner put into its stream (CUDA Array Interface,
    # "Synchronization").
    cdef uintptr_t handle = given if given != LEGACY else 0
    cdef int hint = ordinal if ordinal >= 0 else worker.device_index
    cdef Stream producer
    if given == 0:
        return 0
    if worker.device_index == hint and handle == (worker.handle if worker.handle != LEGACY else 0):
        return 0
    producer = wrap(handle, judge_handle(handle, hint, "the 'stream' of a CUDA array"), None)
    if any_capture() and captures_apart(worker, producer):
        return 0
    worker.wait_stream(producer)
    return 0


cdef inline int follow_producer(Operand* side, Stream worker) except -1:
    return follow_stream(side.producer, side.ordinal, worker)


def device_span(source):
    """(ordinal, address, bytes) of device memory: a Buffer, or an object with __cuda_array_interface__."""
    cdef Operand made
    made.ordinal = -1
    if isinstance(source, Buffer) or hasattr(source, "__cuda_array_interface__"):
        read_operand(&made, source, "flag", False)
    if made.ordinal < 0:
        raise TypeError(f"flag of type {type(source).__name__} is no device memory; pass a Buffer or a CUDA array")
    return made.ordinal, made.address, made.nbytes


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


cdef int note_pinned(Operand* side, Stream stream) except -1:
    # Page-locked memory may be dropped while the copy is in flight; other host memory is not the cache's.  The GIL stays:
    # the cache's spin lock is held for bookkeeping alone.
    cdef int code = use_pinned_on(side.address, stream.device_index, stream.handle)
    if code == NO_HOST_MEMORY:
        raise_status(NO_HOST_MEMORY, "record_host_stream", ("memory", side.address, "stream", stream.handle))
    if watch.sanitizing:
        watch.note_use_on(side.address, stream.device_index, stream.handle)
    return 0


cdef int note_elsewhere(Operand* side, Stream stream) except -1:
    # Memory that another stream's copy uses must not be handed out before the copy is done.
    cdef int code
    with nogil:
        code = use_across(side.ordinal, side.address, stream.device_index, stream.handle)
    if code == NOT_ALLOCATED and side.owner_stream == ANY:
        return 0
    if code == NO_HOST_MEMORY and not any_capture():
        with nogil:  # what cannot be noted is waited for
            registry.active().stream_synchronize(stream.device_index, stream.handle)
    if code:
        raise_status(code, "record_stream", ("ptr", side.address, "stream", stream.handle))
    if watch.sanitizing:
        watch.note_use_on(side.address, stream.device_index, stream.handle)
    return 0


cdef inline int note_use(Operand* side, Stream stream, bint kept, bint blocking) except -1:
    # Once the driver took the work: what it refused uses nothing.
    if side.owned and (side.owner_stream != stream.handle or side.ordinal != stream.device_index):
        note_elsewhere(side, stream)
    if side.ordinal < 0 and not blocking and side.address and not kept:
        note_pinned(side, stream)
    return 0


cdef inline bint keep(Operand* side, View view, Record record) except -1:
    # What a captured copy points at lives as long as the graph.  Memory of the graph's own pool does so anyway, and
    # may be used again by what is captured after it was freed.  Before the work is put in: a node's memory is never
    # without an owner.
    return record is not None and keep_side(record, side.source, view, side.ordinal, side.address)


cdef inline Record record_for(Stream stream):
    if any_capture():
        return record_on(stream.device_index, stream.handle)
    return None


cdef bint is_asynchronous(Operand* side) except -1:
    # Other host memory than page-locked is read or written before the driver's call returns.
    cdef int device = 0, code
    if side.ordinal >= 0 or (side.ordered and side.address) or is_cached_pinned(side.address):
        return True
    with nogil:
        code = registry.active().pointer_device(side.address, &device)
    return code == 0 and device < 0


cdef int announce(Operand* dst, uintptr_t to, Operand* src, uintptr_t origin, size_t size, Stream stream) except -1:
    # To the race detector, before anything is put into the stream.
    watch.note_copy(stream.device_index, stream.handle, to, origin, size, is_asynchronous(src), is_asynchronous(dst))
    return 0


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


cdef bint may_capture(Stream stream) noexcept:
    # Perhaps for another library: asking for such a stream would break its capture.
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    cdef int code
    with nogil:
        code = registry.active().capture_status(stream.device_index, stream.handle, &status, &capture)
    return code != 0 or status != CAPTURE_NONE


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


cdef int finish(Stream stream, Operand* host, object dst, object src, View view_to, View view_origin) except -1:
    # host: the side in host memory, or NULL.  The rest is what the work uses.
    cdef int code
    begin_wait(False)
    with nogil:
        code = registry.active().stream_synchronize(stream.device_index, stream.handle)
    if code and host != NULL and host.address:
        note_pinned(host, stream)  # the copy may still be under way
    if code == INTERRUPTED:
        keep_until_passed(stream.device_index, stream.handle, (dst, src, view_to, view_origin))
    end_wait(code)
    if code:
        raise_status(code, "stream_synchronize", ("stream", stream.handle))
    if watch.sanitizing:
        watch.note_reached(stream.device_index, stream.handle)
    raise_callback_errors()
    return 0


cdef int copy_between(Operand* dst, uintptr_t to, Operand* src, uintptr_t origin, size_t size, object stream,
                      bint blocking) except -1:
    # Where the caller chose no stream, the source's does the copy, and the current ones of both devices are ordered
    # around it.
    cdef Stream worker = stream_of(stream, src.ordinal)
    cdef Stream other = current_of(dst.ordinal)
    cdef bint around = stream is None
    cdef Record record
    cdef int code
    if worker.device_index != src.ordinal and worker.device_index != dst.ordinal:
        raise ValueError(f"stream is on device {worker.device_index}; a copy between devices takes one of src's, "
                         f"device {src.ordinal}, or of dst's, device {dst.ordinal}")
    if blocking:
        watch.before_wait("copy with blocking=True")
    if src.producer or dst.producer:
        follow_producer(src, worker)
        follow_producer(dst, worker)
    if around and any_capture():  # one of the two alone captures: it is for the driver to refuse the copy, not the waits
        if captures_apart(other, worker):
            worker, around = other, False
        elif captures_apart(worker, other):
            around = False
    if around:
        worker.wait_stream(other)
    if watch.sanitizing:
        announce(dst, to, src, origin, size, worker)
    record = record_for(worker)
    keep(dst, None, record)
    keep(src, None, record)
    with nogil:
        code = registry.active().copy_across(
            worker.device_index, worker.handle, dst.ordinal, to, src.ordinal, origin, size)
    if code:
        raise_status(code, "copy_across", ("stream_device", worker.device_index, "stream", worker.handle, "dst_device",
                                           dst.ordinal, "dst", to, "src_device", src.ordinal, "src", origin,
                                           "size", size), NOT_CAPTURED if code == CAPTURE_UNSUPPORTED else "")
    note_use(src, worker, False, blocking)
    if not around or dst.owner_stream != other.handle:
        note_use(dst, worker, False, blocking)
    if around:  # what follows in the order of the other device's current stream follows the copy
        other.wait_stream(worker)
    return finish(worker, NULL, <object>dst.source, <object>src.source, None, None) if blocking else 0


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


cdef int put_in_staged(bint to_host, Stream worker, uintptr_t dst, uintptr_t src, size_t size) except -1:
    # By page-locked memory, so that what waits for the stream is not the driver's copy.
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
    finally:
        use_pinned_on(room, worker.device_index, worker.handle)  # where the wait was interrupted the copy goes on
        release_host_bytes(room)
    return 0


cdef int put_in_slow(Operand* to, Operand* origin, Stream worker, uintptr_t dst, uintptr_t src, size_t size,
                     bint blocking) except -1:
    # Where a side may be ordinary host memory.
    cdef int code
    if size and functions_wait() and not may_capture(worker) and (
            not is_asynchronous(to if to.ordinal < 0 else origin)):
        return put_in_staged(to.ordinal < 0, worker, dst, src, size)
    if is_main_thread() and not any_capture() and (
            blocking and (to.ordinal < 0 or size > STAGED) or to.ordinal < 0 and not is_asynchronous(to)):
        await_earlier(worker, blocking)
    with nogil:
        code = registry.active().copy(worker.device_index, worker.handle, dst, src, size)
    if code:
        raise_refused(code, worker, dst, src, size)
    if watch.sanitizing and not blocking and not is_asynchronous(to):
        watch.note_reached(worker.device_index, worker.handle)
    return 0


cdef int raise_refused(int code, Stream worker, uintptr_t dst, uintptr_t src, size_t size) except -1:
    return raise_status(code, "copy", ("device", worker.device_index, "stream", worker.handle, "dst", dst, "src", src,
                                       "size", size))


def copy(dst, src, nbytes=None, *, dst_offset=0, src_offset=0, stream=None, bint blocking=True):
    """Copies bytes between any two of host, device and another device.

    Arguments:
        dst: Buffer, an object with __cuda_array_interface__, or a contiguous writable buffer (numpy array,
            bytearray, PinnedBuffer).
        src: the same, writable or not.
        nbytes: int; None is all of src from src_offset on, which has to fit.
        dst_offset, src_offset: int, bytes to skip at either side.
        stream: Stream, handle as int, or None: the current stream of dst's device, or of src's where dst is on
            the host.  Between two devices it is one of either, where 0, 1 and 2 name default streams of src's, and None
            is src's current stream, which waits for dst's current one and is waited for by it.
        blocking: bool, wait until the copy is complete.  If False, page-locked host memory has to stay as it is
            until the stream is past the copy, but accelrt's own may be dropped; other host memory is staged by the
            driver.
    Raises:
        ValueError: a length or offset does not fit, both sides are host memory, a Buffer was freed, or the stream is
            none or on another device.
        TypeError: a side is no memory, or holds Python objects.
        CaptureError: the copy is between two devices and its stream is capturing, or either device's current stream
            is where none is given; this breaks the capture.
        CudaError: the driver refused.
        KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised; work
            that was put in goes on, and what it uses is kept alive until it is done.
    """
    cdef Operand to, origin
    cdef View view_to = read_operand(&to, dst, "dst", True)
    cdef View view_origin = read_operand(&origin, src, "src", False)
    cdef uintptr_t dst_address = 0, src_address = 0
    cdef size_t size = measure(&to, &origin, nbytes, dst_offset, src_offset, &dst_address, &src_address)
    cdef Stream worker
    cdef Record record
    cdef bint kept_to = False, kept_origin = False
    if to.ordinal != origin.ordinal and to.ordinal >= 0 and origin.ordinal >= 0:
        copy_between(&to, dst_address, &origin, src_address, size, stream, blocking)
        return
    if to.ordinal < 0 and origin.ordinal < 0:
        raise ValueError("both sides are host memory; copy those with numpy or a slice")
    worker = worker_for(stream, max(to.ordinal, origin.ordinal))
    if watch.sync_mode:
        await_slow(&to, blocking)
    if to.producer or origin.producer:
        follow_producer(&to, worker)
        follow_producer(&origin, worker)
    if watch.sanitizing:
        announce(&to, dst_address, &origin, src_address, size, worker)
    record = record_for(worker)
    if record is not None:
        kept_to, kept_origin = keep(&to, view_to, record), keep(&origin, view_origin, record)
    if to.ordered and origin.ordered:
        put_in(worker, dst_address, src_address, size)
    else:
        put_in_slow(&to, &origin, worker, dst_address, src_address, size, blocking)
    note_use(&to, worker, kept_to, blocking)
    note_use(&origin, worker, kept_origin, blocking)
    if blocking:
        finish(worker, &to if to.ordinal < 0 else &origin if origin.ordinal < 0 else NULL,
               dst, src, view_to, view_origin)


cdef inline int checked_width(object width) except -1:
    cdef size_t bytes_ = 0
    if not is_within(width, 4, &bytes_):
        bytes_ = checked_int(width, "width", 1, 4, "1, 2 or 4")
    if bytes_ != 1 and bytes_ != 2 and bytes_ != 4:
        raise ValueError(f"width is {width}; an element has 1, 2 or 4 bytes")
    return <int>bytes_


cdef inline Stream worker_for(object stream, int ordinal):
    if isinstance(stream, Stream) and (<Stream>stream).device_index == ordinal and (<Stream>stream).made:
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


def fill(dst, value=0, count=None, *, width=1, offset=0, stream=None, bint blocking=False):
    """Sets elements of device memory to one value (cuMemsetD8Async and its kin).

    Arguments:
        dst: Buffer, or an object with __cuda_array_interface__.
        value: int from 0 to 2**(8 * width) - 1.
        count: int, elements; None is all from offset on, which has to be a whole number of them.
        width: int, bytes of an element: 1, 2 or 4.
        offset: int, bytes to skip, a multiple of width.
        stream: Stream, handle as int, or None for the current stream of dst's device.
        blocking: bool, wait until the fill is complete.
    Raises:
        ValueError: a value, length or offset does not fit, dst is a Buffer that was freed, or the stream is none or on
            another device.
        TypeError: dst is no device memory.
        CudaError: the driver refused.
        KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised; work
            that was put in goes on, and what it uses is kept alive until it is done.
    """
    cdef Operand to
    cdef View view = read_operand(&to, dst, "dst", True)
    cdef Stream worker
    cdef size_t skip = 0, elements
    cdef unsigned int element
    cdef int code, bytes_
    if to.ordinal < 0:
        raise TypeError(f"dst of type {type(dst).__name__} is host memory; fill takes a Buffer or a CUDA array")
    bytes_ = checked_width(width)
    element = checked_element(value, bytes_)
    if offset is not 0:
        skip = checked_span(offset, "offset", to.nbytes)
    if skip % bytes_ or (count is None and (to.nbytes - skip) % bytes_):
        raise ValueError(f"offset {offset} and the {to.nbytes} bytes of dst have to be multiples of width {width}")
    elements = (to.nbytes - skip) // bytes_
    if count is not None:
        elements = checked_span(count, "count", elements)
    worker = worker_for(stream, to.ordinal)
    if blocking:
        watch.before_wait("fill with blocking=True")
    if to.producer:
        follow_producer(&to, worker)
    if watch.sanitizing:
        watch.note_access(worker.device_index, worker.handle, to.address + skip, bytes_ * elements, "w", "fill")
    keep(&to, view, record_for(worker))
    with nogil:
        code = registry.active().fill(worker.device_index, worker.handle, to.address + skip, element, bytes_, elements)
    if code:
        raise_status(code, "fill", ("device", worker.device_index, "stream", worker.handle, "dst", to.address + skip,
                                    "value", value, "width", bytes_, "count", elements))
    note_use(&to, worker, False, blocking)
    if blocking:
        finish(worker, NULL, dst, None, view, None)


provide_copies(copy, fill)


# --- work of others on memory, as the race detector is told of it --------------------------------------------

cdef int read_memory(object memory, uintptr_t* out_address, size_t* out_size) except -1:
    # Answers 1 where the size is known.
    cdef Py_buffer view
    if isinstance(memory, Buffer):
        if not (<Buffer>memory).live:
            raise_freed(memory, "memory")
        out_address[0], out_size[0] = (<Buffer>memory).ptr, (<Buffer>memory).nbytes
    elif isinstance(memory, PinnedBuffer):
        if not (<PinnedBuffer>memory).live:
            raise_freed(memory, "memory")
        out_address[0], out_size[0] = (<PinnedBuffer>memory).ptr, (<PinnedBuffer>memory).nbytes
    elif isinstance(memory, (int, numbers.Integral)) and not isinstance(memory, bool):
        out_address[0] = checked_address_int(memory, "memory")
        return 0
    elif hasattr(memory, "__cuda_array_interface__"):
        interface = memory.__cuda_array_interface__
        out_address[0], out_size[0], _ = init.later("accelrt.buffers.cuda_array").read(interface, "memory", False)
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


def use(memory, nbytes=None, stream=None, str mode="rw"):
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
    if not watch.sanitizing:
        return
    if mode not in ACCESS_MODES:
        raise ValueError(f"mode is {mode!r}; it may be 'r', 'w' or 'rw'")
    known = read_memory(memory, &address, &size)
    if nbytes is None and not known:
        raise TypeError("nbytes is None; an address alone does not say how many bytes are used")
    if nbytes is not None:
        wanted = checked_size(nbytes, "nbytes")
        if known and wanted > size:
            raise ValueError(f"nbytes is {nbytes}, the memory has {size}")
        size = wanted
    mode = "r" if mode == "r" else "w"  # a write is ordered with all that a read is ordered with
    if isinstance(stream, str):
        if stream != "host":
            raise ValueError(f"stream is {stream!r}; pass a Stream, a handle, None, or 'host'")
        watch.note_host_access(address, size, mode, "use")
        return
    worker = stream_of(stream, ordinal_of(None))
    watch.note_access(worker.device_index, worker.handle, address, size, mode, "use")
