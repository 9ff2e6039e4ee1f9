"""Copies and fills: between host and device, within a device and between two; and use(), for what others do."""
import numbers

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyIndex_Check
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from accelrt.arrays.array cimport Array, numpy_module
from accelrt.arrays.buffer cimport Buffer, PinnedBuffer, raise_freed
from accelrt.arrays.buffer import provide_copies
from accelrt.arrays.operand cimport (
    Operand, View, captures_apart, enter_use, finish, follow_producer, is_asynchronous, keep, leave_use, may_capture,
    note_use, raise_scattered, read_array, read_operand, record_for,
)
from accelrt.core.integers cimport checked_address_int, checked_int, exact_int
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.waiting cimport begin_wait, end_wait, is_main_thread
from accelrt.memory.caching cimport checked_size, connect_devices
from accelrt.allocator.pinned.pool cimport use_pinned_on
from accelrt.memory.host_cache cimport allocate_host_bytes, release_host_bytes
from accelrt.runtime import init
from accelrt.runtime.capture_record cimport Record, any_capture
from accelrt.runtime.host_func cimport functions_wait
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport NOT_READY, PEER_ACCESS_UNSUPPORTED, raise_status
from accelrt.streams.current cimport current_of, stream_for, stream_of
from accelrt.streams.stream cimport Stream
from accelrt.uses.access cimport Access, refuse_sleeping

cdef enum:
    STAGED = 64 << 10  # bytes of ordinary host memory that a driver takes at once; more may wait for the stream
    STAGE = 4 << 20  # bytes of page-locked memory that a copy goes through

cdef tuple ACCESS_MODES = ("r", "w", "rw")

cdef str NO_ACCESS = (
    "a captured copy between two devices needs each to reach the other's memory (can_device_access_peer); nothing was "
    "captured, and the capture goes on: capture a copy to a PinnedBuffer and one from it, or copy between the replays"
)


def device_span(source, str name="flag"):
    """(ordinal, address, bytes) of device memory: a Buffer, or an object with __cuda_array_interface__.

    Arguments:
        name: str, what the memory is called in an error.
    """
    cdef Operand made
    made.ordinal = -1
    if isinstance(source, (Buffer, Array)) or hasattr(source, "__cuda_array_interface__"):
        read_operand(&made, source, name, False)
    if made.ordinal < 0:
        raise TypeError(f"{name} of type {type(source).__name__} is no device memory; pass a Buffer or a CUDA array")
    refuse_sleeping(made.address, name)
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
    if watch.sanitizing:
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
        leave_use(&access)
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


def copy(dst, src, nbytes=None, *, dst_offset=0, src_offset=0, stream=None, bint blocking=True):
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
            is src's current stream, which waits for dst's current one and is waited for by it.
        blocking: bool, wait until the copy is complete.  If False, page-locked host memory has to stay as it is
            until the stream is past the copy, but accelrt's own may be dropped; other host memory is staged by the
            driver.
    Raises:
        ValueError: a length or offset does not fit, both sides are host memory, a Buffer was freed, or the stream is
            none or on another device.
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
    if to.ordinal < 0 and origin.ordinal < 0:
        raise ValueError("both sides are host memory; copy those with numpy or a slice")
    copy_operands(&to, dst_address, &origin, src_address, size, stream, blocking, dst, src, view_to, view_origin)


cdef int copy_operands(Operand* to, uintptr_t dst_address, Operand* origin, uintptr_t src_address, size_t size,
                       object stream, bint blocking, object dst, object src, View view_to, View view_origin) except -1:
    cdef Stream worker
    cdef Record record
    cdef Access access
    cdef bint kept_to = False, kept_origin = False
    if to.ordinal != origin.ordinal and to.ordinal >= 0 and origin.ordinal >= 0:
        return copy_between(to, dst_address, origin, src_address, size, stream, blocking, dst, src)
    worker = worker_for(stream, max(to.ordinal, origin.ordinal))
    if watch.sync_mode:
        await_slow(to, blocking)
    if to.producer or origin.producer:
        follow_producer(to, worker)
        follow_producer(origin, worker)
    if watch.sanitizing:
        announce(to, dst_address, origin, src_address, size, worker)
    enter_use(&access, to, dst, origin, src)
    try:
        record = record_for(worker)
        if record is not None:
            kept_to, kept_origin = keep(to, view_to, record), keep(origin, view_origin, record)
        if to.ordered and origin.ordered:
            put_in(worker, dst_address, src_address, size)
        else:
            put_in_slow(to, origin, worker, dst_address, src_address, size, blocking)
        note_use(to, worker, kept_to, blocking)
        note_use(origin, worker, kept_origin, blocking)
        if blocking:  # until then page-locked memory is this copy's alone, of which its cache was not told
            access.enqueued = True
            finish(worker, to if to.ordinal < 0 else origin if origin.ordinal < 0 else NULL,
                   dst, src, view_to, view_origin)
    finally:
        leave_use(&access)
    return 0


cdef inline int checked_width(object width) except -1:
    cdef size_t bytes_ = 0
    if not is_within(width, 4, &bytes_):
        bytes_ = checked_int(width, "width", 1, 4, "1, 2 or 4")
    if bytes_ != 1 and bytes_ != 2 and bytes_ != 4:
        raise ValueError(f"width is {width}; an element has 1, 2 or 4 bytes")
    return <int>bytes_


cdef Stream worker_for(object stream, int ordinal):
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


cdef int put_fill_in(Stream worker, uintptr_t dst, unsigned int element, int width, size_t count) except -1:
    cdef int code
    with nogil:
        code = registry.active().fill(worker.device_index, worker.handle, dst, element, width, count)
    if code:
        raise_status(code, "fill", ("device", worker.device_index, "stream", worker.handle, "dst", dst, "value", element,
                                    "width", width, "count", count))
    return 0


def fill(dst, value=0, count=None, *, width=1, offset=0, stream=None, bint blocking=False):
    """Sets elements of device memory to one value (cuMemsetD8Async and its kin).

    Arguments:
        dst: Buffer, contiguous Array, or an object with __cuda_array_interface__.
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
    cdef Access access
    cdef int bytes_
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
    enter_use(&access, &to, dst, NULL, None)
    try:
        keep(&to, view, record_for(worker))
        put_fill_in(worker, to.address + skip, element, bytes_, elements)
        note_use(&to, worker, False, blocking)
    finally:
        leave_use(&access)
    if blocking:
        finish(worker, NULL, dst, None, view, None)


provide_copies(copy, fill)


# --- work of others on memory, as the race detector is told of it --------------------------------------------

cdef int read_memory(object memory, uintptr_t* out_address, size_t* out_size) except -1:
    # Answers 1 where the size is known.
    cdef Operand side
    cdef Py_buffer view
    if isinstance(memory, Buffer):
        if not (<Buffer>memory).live:
            raise_freed(memory, "memory")
        out_address[0], out_size[0] = (<Buffer>memory).ptr, (<Buffer>memory).nbytes
    elif isinstance(memory, PinnedBuffer):
        if not (<PinnedBuffer>memory).live:
            raise_freed(memory, "memory")
        out_address[0], out_size[0] = (<PinnedBuffer>memory).ptr, (<PinnedBuffer>memory).nbytes
    elif isinstance(memory, Array):
        read_array(&side, memory, "memory", False)
        if not (<Array>memory).dense():
            raise_scattered(memory, "memory")
        out_address[0], out_size[0] = side.address, side.nbytes
    elif isinstance(memory, (int, numbers.Integral)) and not isinstance(memory, bool):
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
