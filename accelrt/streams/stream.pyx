"""Streams, events, and which stream is current on each thread."""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from accelrt.allocator.pool cimport MAX_DEVICES, knows_stream, stream_waits
from accelrt.core.integers cimport exact_int, is_integer
from accelrt.core.locks cimport add_in_turn, number_in_turn
from accelrt.core.process cimport FORK_STREAMS, at_fork
from accelrt.devices.device cimport (
    count_devices, current_ordinal, device_at, device_total, ordinal_of, switch_back, switch_to,
)
from accelrt.devices.device import set_device
from accelrt.driver.guard cimport begin_wait, captures_open, end_wait, go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport (
    EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, STREAM_BLOCKING, STREAM_NON_BLOCKING,
)
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.runtime import init
from accelrt.runtime.lifetimes cimport (
    EVENT, UNCAPTURED, dispose, drain, enqueue_callback, keep_where_captured, raise_callback_errors, return_from_event,
    return_stream, share_stream, take_for_event, take_stream,
)
from accelrt.status cimport CAPTURED_EVENT, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NO_DEVICE, NOT_READY
from accelrt.status cimport NOT_SUPPORTED, raise_status, refuse_copy, refuse_unmade
cimport accelrt.runtime.access as watch

# stub: _Y = TypeVar("_Y")
# stub: _S = TypeVar("_S")
# stub: _R = TypeVar("_R")

# --- stream -----------------------------------------------------------------------------------------------------------
# Streams: queues of work on a device, the driver's own or other libraries'.

cdef enum:
    CUDA_TYPE = 1  # torch's DeviceType::CUDA

cdef dict defaults = {}  # (ordinal, handle) -> the default Stream


cdef Stream default_of(int ordinal, uintptr_t handle):
    # A device's default stream, LEGACY or PER_THREAD.
    stream = defaults.get((ordinal, handle))
    if stream is None:
        stream = defaults.setdefault((ordinal, handle), wrap(handle, ordinal, None))
    return stream


cdef Stream other_stream(object stream, int ordinal):
    cdef uintptr_t handle
    if is_integer(stream):
        handle = handle_of(stream, "stream")
        return wrap(handle, judge_handle(handle, ordinal, "stream"), None)
    if hasattr(stream, "__cuda_stream__"):
        handle = handle_from_protocol(stream)
        return wrap(handle, judge_handle(handle, ordinal, "the handle of __cuda_stream__()"), stream)
    if hasattr(stream, "cuda_stream") or type(stream).__module__.partition(".")[0] == "cupy":
        return stream_of_attributes(stream, ordinal)
    raise TypeError(
        f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream, a handle as int, "
        "an object with __cuda_stream__, or None for the current one"
    )


cdef Stream stream_of_attributes(object stream, int ordinal):
    # torch's and CuPy's streams of before the protocol.  A default stream belongs to the device that the object names.
    kind = type(stream).__name__
    name = "cuda_stream" if hasattr(stream, "cuda_stream") else "ptr"
    cdef uintptr_t handle = handle_of(getattr(stream, name, None), f"{kind}.{name}")
    device = getattr(stream, "device_index", getattr(stream, "device_id", None))
    if handle <= PER_THREAD and type(device) is int and device >= 0:
        ordinal = ordinal_of(device)
    return wrap(handle, judge_handle(handle, ordinal, f"{kind}.{name}"), stream)


cdef uintptr_t handle_of(object handle, str name) except? 0:
    # TypeError, ValueError: it is no int that can be a handle.
    cdef object number = exact_int(handle, name, "the stream's handle as an int")
    if number < 0 or number >> 64:
        raise ValueError(f"{name} is {number}; a handle is an int from 0 to 2**64 - 1")
    return number


cdef uintptr_t handle_from_protocol(object stream) except? 0:
    kind = type(stream).__name__
    method = stream.__cuda_stream__
    if not callable(method):
        raise TypeError(f"{kind}.__cuda_stream__ is {method!r}; it has to be a method that returns (0, handle)")
    pair = method()
    if not isinstance(pair, tuple) or len(pair) != 2 or not all([is_integer(part) for part in pair]):
        raise TypeError(f"{kind}.__cuda_stream__() returned {pair!r}; it has to be a tuple of two ints, (0, handle)")
    version = exact_int(pair[0], "version", "an int")
    if version != 0:
        raise ValueError(
            f"{kind}.__cuda_stream__() returned version {version} of the protocol, accelrt knows version 0; pass the "
            "stream's handle as int"
        )
    return handle_of(pair[1], f"the handle of {kind}.__cuda_stream__()")


cdef int device_of_stream(int hint, uintptr_t stream, int* out_device) noexcept nogil:
    # What was allocated on needs no question.
    cdef int code = 0
    out_device[0] = hint
    if stream > PER_THREAD and not knows_stream(hint, stream):
        code = registry.active().stream_device(hint, stream, out_device)
    if code == NOT_SUPPORTED:
        out_device[0] = hint
        code = 0
    return code


cdef int judge_handle(uintptr_t handle, int hint, str name) except -1:
    cdef int device = hint
    cdef int code
    if handle <= PER_THREAD or knows_stream(hint, handle):
        return hint
    with nogil:
        code = device_of_stream(hint, handle, &device)
    if code == INVALID_HANDLE or code == INVALID_VALUE or code == INVALID_CONTEXT:
        raise ArgumentError(
            f"{name} is {handle:#x}, which is no stream that the driver knows; pass the handle of one that is alive, "
            "or 0 for the default stream"
        )
    if code:
        raise_status(code, "stream_device", ("device", hint, "stream", handle))
    return device


cdef Stream wrap(uintptr_t handle, int ordinal, object owner):
    cdef Stream stream = Stream.__new__(Stream)
    stream.handle = handle
    stream.device_index = ordinal
    stream.owner = owner
    stream.initialised = True
    return stream


cdef enum:
    MOST_ATTRIBUTES = 4  # those that set_attributes sets


cdef void put_attributes_back(int ordinal, uintptr_t stream, bint has_window, const Attribute* before) noexcept nogil:
    # A destructor's calls, which must break no capture: the driver stream's next holder finds it as it was.
    cdef int mode = 0
    cdef bint relaxed = go_relaxed(registry.active(), &mode) == 0
    if has_window:
        registry.active().stream_window_set(ordinal, stream, 0, 0, 0, 0, 0)
    while before != NULL and before.attribute:
        registry.active().stream_attribute_set(ordinal, stream, before.attribute, before.first, before.second)
        before += 1
    if relaxed:
        restore_mode(registry.active(), mode)


cdef int read_priority(object priority) except? -1:
    description = "an int, the lower the more urgent (Stream.priority_range() says which there are)"
    return max(-1000, min(1000, exact_int(priority, "priority", description)))  # far outside of every device's range


cdef (int, int) priority_range_of(int ordinal):
    cdef int least = 0, greatest = 0
    cdef int code = registry.active().stream_priority_range(ordinal, &least, &greatest)
    if code:
        raise_status(code, "stream_priority_range", ("device", ordinal))
    return least, greatest


cdef int clamped_priority(int ordinal, object priority) except? -1:
    cdef int level = read_priority(priority)
    cdef int least, greatest
    least, greatest = priority_range_of(ordinal)
    return max(greatest, min(least, level))


cdef int ordinal_of_parts(object device, object stream_id, object device_index, object device_type) except -1:
    cdef int ordinal
    if stream_id is None:
        raise ArgumentTypeError("stream_id is None, with a device_index or a device_type; the three name a stream together")
    if device_type is not None and exact_int(device_type, "device_type", "Stream.device_type") != CUDA_TYPE:
        raise ArgumentError(f"device_type is {device_type!r}; the streams here are of type {CUDA_TYPE}, CUDA")
    ordinal = ordinal_of(device if device_index is None else device_index)
    if device is not None and ordinal_of(device) != ordinal:
        raise ArgumentError(f"device is {device!r} and device_index {device_index!r}; pass one of them")
    return ordinal


cdef Event event_of(object event):
    if not isinstance(event, Event):
        raise TypeError(f"event is {event!r} of type {type(event).__name__}; pass an Event")
    return event


cdef class Stream:
    """Stream(device=None, priority=0, *, stream_id=None, device_index=None, device_type=None, nonblocking=True)\n--\n\n\
    A queue of work on one device: what is put in runs in that order.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None for the current device.
        priority: int, lower is more urgent; clamped to what the device has (Stream.priority_range()).
        stream_id, device_index, device_type: int, what the properties of these names are of a stream that exists: then
            this is another object of that stream, and keeps it.  priority and nonblocking are ignored.  Without
            stream_id they mean nothing.
        nonblocking: bool, whether the stream is independent of the legacy default stream (CU_STREAM_NON_BLOCKING).
            Work of one made with False waits for all earlier work of default_stream(), whose later work waits for it.
    Raises:
        ValueError, TypeError: device names none, priority is no int, nonblocking no bool, or no stream with that id is
            in use.
        CudaError: the driver made no stream.
    Attributes:
        device_index: int, the ordinal of its device.

        with accelrt.Stream():  # as with accelrt.stream(...)
            ...

    Every Stream has a driver stream to itself.  When it dies and its work is complete, another Stream gets the driver
    stream, and with it the memory that it left in the cache.  Where none is idle the driver makes one, for which it may
    wait until work that runs is done, host functions included.
    """

    def __init__(
        self, device: DeviceArgument | None = None, priority: int = 0, *, stream_id: int | None = None,
        device_index: int | None = None, device_type: int | None = None, nonblocking: bool = True,
    ) -> None:
        cdef int ordinal = ordinal_of(device)
        cdef int level = 0
        cdef unsigned int flags = STREAM_NON_BLOCKING
        if self.initialised:  # a second call would lose the driver stream that it has
            raise RuntimeError(f"{self!r} is made already; make another Stream")
        if stream_id is not None or device_index is not None or device_type is not None:
            self.open_by_id(stream_id, ordinal_of_parts(device, stream_id, device_index, device_type))
            return
        if priority is not 0:
            level = clamped_priority(ordinal, priority)
        if nonblocking is not True:
            if nonblocking is not False:
                raise ArgumentTypeError(f"nonblocking is {nonblocking!r} of type {type(nonblocking).__name__}; pass a bool")
            flags = STREAM_BLOCKING
        self.pooled = take_stream(ordinal, flags, level)
        self.handle = self.pooled.handle
        self.device_index = ordinal
        self.initialised = True

    def __dealloc__(self):
        if self.has_window or self.changed != NULL:
            put_attributes_back(self.device_index, self.handle, self.has_window, self.changed)
        free(self.changed)
        if self.pooled != NULL:
            return_stream(self.pooled, self.used)

    cdef int open_by_id(self, object stream_id, int ordinal) except -1:
        cdef uintptr_t handle = handle_of(stream_id, "stream_id")
        cdef int code = 0, owner
        if handle > PER_THREAD:
            self.pooled = share_stream(ordinal, handle, &code)
        if code:
            raise ArgumentError(
                f"stream_id is {handle:#x}, which is no stream in use of device {ordinal}: it is another device's, or the "
                "Streams that had it are gone; keep the Stream for as long as its id is in use"
            )
        if self.pooled == NULL:  # a default stream or another library's
            owner = judge_handle(handle, ordinal, "stream_id")
            if owner != ordinal:
                raise ArgumentError(f"stream_id {handle:#x} is a stream of device {owner}, but device_index is {ordinal}")
        self.handle = handle
        self.used = True
        self.device_index = ordinal
        self.initialised = True
        return 0

    @staticmethod
    def from_any(stream: object, device: DeviceArgument | None = None) -> Stream:
        """Returns a Stream of whatever stands for one: its own handle, kept alive with its owner.

        Arguments:
            stream: Stream, handle as int, an object with __cuda_stream__ (cuda.core's, torch's, CuPy's), one with
                cuda_stream (torch's), CuPy's with ptr, or None for the current stream.
            device: what a default stream, handle 0 to 2, belongs to where the object does not say; None is the current
                device.
        Returns:
            Stream; stream itself where it is one.
        Raises:
            TypeError: it stands for none.
            ValueError: the driver knows no such stream.
        """
        return stream_of(stream, ordinal_of(device))

    @staticmethod
    def priority_range(device: DeviceArgument | None = None) -> tuple[int, int]:
        """Returns the least and the greatest priority of a device's streams, as (least, greatest): (0, -5), say.

        Arguments:
            device: int, "cuda:1", ...; None is the current device.
        """
        return priority_range_of(ordinal_of(device))

    @property
    def device(self) -> Device:
        """The device object of this stream's device."""
        return device_at(self.device_index)

    @property
    def handle(self) -> int:
        """The driver's handle, 0 where the stream is the device's legacy default stream."""
        return mark_used(self)

    @property
    def cuda_stream(self) -> int:
        """The driver's handle, by torch's name for it: an int that fits a CUstream."""
        if not self.initialised:
            refuse_unmade(self)
        return mark_used(self)

    @property
    def stream_id(self) -> int:
        """int: with device_index and device_type, what names this stream to Stream(stream_id=...); the driver's handle."""
        if not self.initialised:
            refuse_unmade(self)
        return mark_used(self)

    @property
    def native_handle(self) -> int:
        """The driver's handle, by torch.Stream's name for it."""
        return self.cuda_stream

    @property
    def device_type(self) -> int:
        """int, torch's number for CUDA, 1: it is the same for the host device, which "cuda" names too."""
        return CUDA_TYPE

    @property
    def _as_parameter_(self) -> c_void_p:
        """Returns what ctypes passes to a C function: the handle as a pointer."""
        import ctypes

        return ctypes.c_void_p(self.cuda_stream)

    @property
    def is_nonblocking(self) -> bool:
        """Tells whether the stream is independent of the legacy default stream (CU_STREAM_NON_BLOCKING)."""
        if not self.initialised:
            refuse_unmade(self)
        cdef unsigned int flags = STREAM_BLOCKING
        cdef int code = 0
        if self.pooled != NULL:
            flags = self.pooled.flags
        elif self.handle > PER_THREAD:
            code = registry.active().stream_flags(self.device_index, self.handle, &flags)
        if code:
            raise_status(code, "stream_flags", ("stream", self.handle))
        return flags & STREAM_NON_BLOCKING != 0

    @property
    def is_capturing(self) -> bool:
        """Tells whether the stream is captured, by accelrt or another library (cuStreamIsCapturing).

        Raises:
            CaptureError: the stream is the legacy default stream, and a stream that it waits for is captured.
        """
        cdef int code, status = 0
        if not self.initialised:
            refuse_unmade(self)
        code = registry.active().stream_is_capturing(self.device_index, self.handle, &status)
        if code:
            raise_status(code, "stream_is_capturing", ("stream", self.handle))
        return status != 0

    @property
    def priority(self) -> int:
        """int; lower is more urgent."""
        if not self.initialised:
            refuse_unmade(self)
        cdef int priority = 0
        cdef int code = 0
        if self.pooled != NULL and self.changed == NULL:
            return self.pooled.priority
        if self.handle:
            code = registry.active().stream_priority(self.device_index, self.handle, &priority)
        if code:
            raise_status(code, "stream_priority", ("stream", self.handle))
        return priority

    def set_access_policy_window(
        self, address: int, num_bytes: int, hit_ratio: float = 1.0, hit: str = "persisting", miss: str = "streaming",
    ) -> None:
        """Says how the work put in from now on uses the L2 cache for a range of addresses (cuStreamSetAttribute).

        Arguments:
            address, num_bytes: int, the range, of this device; accelrt.access_policy_window takes memory as objects.
            hit_ratio: float, the part of the range's lines that hit is for, 0 to 1; below 1 where the range is larger
                than the cache's part for such lines (accelrt.set_limit("persisting_l2_cache_size", ...)).
            hit: "persisting", kept longer than others; "streaming", replaced sooner; or "normal".
            miss: "streaming" or "normal", for the other lines of the range.
        Raises:
            ValueError, TypeError: an argument is none of these, or the range is larger than the device allows.
            NotSupportedError: the device has no such cache, as the host device has none.

        It lasts until another one is set, or reset_access_policy_window(), or until this Stream dies.  Kernels that are
        captured keep it in their graph.
        """
        policy = init.later("accelrt.streams.access_policy")
        window = policy.AccessPolicyWindow(address, num_bytes, hit_ratio, hit, miss)
        policy.write(self.device_index, self.cuda_stream, window)
        self.has_window = self.pooled != NULL

    def get_access_policy_window(self) -> AccessPolicyWindow | None:
        """Returns the stream's access policy window, as (address, num_bytes, hit_ratio, hit, miss); None where it has
        none."""
        return init.later("accelrt.streams.access_policy").read(self.device_index, self.cuda_stream)

    def reset_access_policy_window(self) -> None:
        """Ends the stream's access policy window.  What persists in the cache stays there until
        accelrt.reset_persisting_l2_cache()."""
        policy = init.later("accelrt.streams.access_policy")
        none = policy.AccessPolicyWindow(0, 0, 0.0, "normal", "normal")
        policy.write(self.device_index, self.cuda_stream, none)
        self.has_window = False

    @property
    def attributes(self) -> StreamAttributes:
        """The attributes by which the stream's later work runs (cuStreamGetAttribute).

        Returns:
            StreamAttributes, a named tuple of
                access_policy_window: see get_access_policy_window(); None too where the device has no such cache;
                priority: int;
                synchronization_policy: "auto", "spin", "yield" or "blocking", how a thread waits for the stream;
                memory_sync_domain: "default" or "remote", the logical domain of its kernels;
                memory_sync_domain_map: tuple of two ints, the device's domains that default and remote stand for.
        """
        return init.later("accelrt.streams.attributes").read(self.device_index, self.cuda_stream)

    def set_attributes(
        self, *, priority: int | None = None, synchronization_policy: str | None = None,
        memory_sync_domain: str | None = None, memory_sync_domain_map: tuple[int, int] | None = None,
    ) -> None:
        """Sets attributes of the work put in from now on (cuStreamSetAttribute); what is not given stays.

        Arguments:
            priority: int, clamped to what the device has, as Stream(priority=) has it.
            synchronization_policy: "auto", "spin", "yield" or "blocking", how a thread waits for the stream.
            memory_sync_domain: "default" or "remote": kernels of the one need not wait for the memory traffic of the
                other where they pass a fence (CUDA programming guide, "Memory Synchronization Domains").
            memory_sync_domain_map: two ints, the device's domains that default and remote stand for, from 0 to
                below mem_sync_domain_count of the device's attributes.
        Raises:
            ValueError, TypeError: an argument is none of these; nothing is changed.
            CudaError: the driver refused; what was set by the call before is as it was.

        They last until they are set again, or until this Stream dies.  Access policy windows have methods of their own.
        On the host device, which has one domain and no L2 cache of its own, they are kept and change nothing.
        """
        cdef uintptr_t handle = self.cuda_stream
        attributes = init.later("accelrt.streams.attributes")
        level = None if priority is None else clamped_priority(self.device_index, priority)
        settings = attributes.checked(
            self.device_index, level, synchronization_policy, memory_sync_domain, memory_sync_domain_map)
        before = [attributes.ask(self.device_index, handle, attribute) for attribute, _, _ in settings]
        for attribute, first, second in before:
            self.note_changed(attribute, first, second)
        attributes.write(self.device_index, handle, settings, before)

    @cython.critical_section
    cdef int note_changed(self, int attribute, int first, int second) except -1:
        # What an attribute of a driver stream of the pool was before this Stream changed it first.
        cdef Attribute* entry
        if self.pooled == NULL:
            return 0
        if self.changed == NULL:
            self.changed = <Attribute*>calloc(MOST_ATTRIBUTES + 1, sizeof(Attribute))
            if self.changed == NULL:
                raise MemoryError("no host memory for what a stream's attributes were")
        entry = self.changed
        while entry.attribute and entry.attribute != attribute:
            entry += 1
        if entry.attribute == 0:
            entry.attribute, entry.first, entry.second = attribute, first, second
        return 0

    def query(self) -> bool:
        """Tells whether all work put in so far is complete (cuStreamQuery).

        Raises:
            CaptureError: the stream is capturing; this breaks the capture.
            CudaError: work failed.
            Exception: where the work is complete, whatever a host function raised since the last synchronize or query.
        """
        cdef int code
        if not self.initialised:
            refuse_unmade(self)
        with nogil:
            code = registry.active().stream_query(self.device_index, self.handle)
        if code and code != NOT_READY:
            raise_status(code, "stream_query", ("stream", self.handle))
        if code == 0:
            watch.note_reached(self.device_index, self.handle)
            raise_callback_errors()
        return code == 0

    def synchronize(self) -> None:
        """Waits until all work put in so far is complete (cuStreamSynchronize).

        Raises:
            CaptureError: the stream is capturing; this breaks the capture.
            CudaError: work failed.
            Exception: whatever a host function raised since the last synchronize or query.
            KeyboardInterrupt: Ctrl-C, on the main thread, or what another signal's handler raised; the work goes on.
        """
        cdef int code
        if not self.initialised:
            refuse_unmade(self)
        watch.before_wait("Stream.synchronize")
        drain()
        begin_wait(False)
        with nogil:
            code = registry.active().stream_synchronize(self.device_index, self.handle)
        end_wait(code)
        if code:
            raise_status(code, "stream_synchronize", ("stream", self.handle))
        watch.note_reached(self.device_index, self.handle)
        raise_callback_errors()

    def wait_event(self, event: Event) -> None:
        """Makes later work of this stream wait for an event (cuStreamWaitEvent); the caller does not wait.

        Arguments:
            event: Event, of any device.  One that was never recorded is waited for no time.
        Raises:
            TypeError: it is no Event.
        """
        event_of(event).wait_in(self)

    def wait_stream(self, stream: Stream) -> None:
        """Makes later work of this stream wait for everything put into another one so far.

        Arguments:
            stream: Stream, of any device.
        Raises:
            TypeError: it is no Stream.
        """
        cdef Event point = Event()
        if not isinstance(stream, Stream):
            raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream")
        point.record_in(stream)
        point.wait_in(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event here.

        Arguments:
            event: Event; None makes one, without timing.
        Returns:
            Event, the one that was recorded.
        Raises:
            TypeError: event is no Event.
            ValueError: it was recorded before on a stream of another device.
        """
        cdef Event point = Event() if event is None else event_of(event)
        point.record_in(self)
        return point

    def launch_host_func(self, function: Callable[[], object]) -> None:
        """Calls a Python function when the work put in so far is complete (cuLaunchHostFunc).

        Arguments:
            function: called with nothing, on a thread of the driver; it may not use the device.  What it
                raises is raised by the next synchronize, of anything, or the next query that finds its work
                complete; where several raised, as an ExceptionGroup of the first ones, whose text counts all.
                In a capture it becomes a node of the graph, which keeps it; in one that accelrt did not begin, it is
                kept for ever, for nothing tells when that graph is destroyed.
        Raises:
            TypeError: it cannot be called.
            CudaError: the interpreter is about to exit (DEINITIALIZED), or the driver refused.
        """
        if not self.initialised:
            refuse_unmade(self)
        enqueue_callback(self.device_index, mark_used(self), function)

    def __enter__(self) -> Self:
        enter_own(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return leave_own(self)

    def __cuda_stream__(self) -> tuple[int, int]:
        """(0, handle): the protocol by which CUDA libraries in Python hand streams to each other."""
        if not self.initialised:
            refuse_unmade(self)
        return 0, mark_used(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return self.handle == (<Stream>other).handle and self.device_index == (<Stream>other).device_index

    def __hash__(self) -> int:
        return hash((self.handle, self.device_index))

    def __reduce__(self):
        refuse_copy(self, "a driver stream belongs to one object and one process; make another Stream there")

    def __repr__(self):
        kind = type(self).__name__
        return f"<accelrt.{kind} device={init.chosen_driver()}:{self.device_index} cuda_stream={mark_used(self):#x}>"


def default_stream(device: DeviceArgument | None = None) -> Stream:
    """Returns a device's legacy default stream (CU_STREAM_LEGACY), whose handle is 0.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.

    Its work waits for all earlier work of the device's blocking streams, the threads' default streams among them,
    and their later work waits for it (CUDA driver API, "Stream synchronization behavior").  Of the
    streams that Stream() makes those with nonblocking=False are.
    """
    return default_of(ordinal_of(device), LEGACY)


def per_thread_stream(device: DeviceArgument | None = None) -> Stream:
    """Returns the per-thread default stream of a device (CU_STREAM_PER_THREAD), whose handle is 2.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.

    The one handle names another stream on every thread: that of whichever thread uses it.  It is a blocking
    stream, see default_stream().  Device memory allocated on it waits, when it is freed, for an event on the
    legacy default stream, which is behind the work of every thread's.
    """
    return default_of(ordinal_of(device), PER_THREAD)


# --- streams that others made: another library's, kept alive by its owner, under our names ----------------

class ExternalStream(Stream):
    """A stream that another library made and owns.

    Arguments:
        stream_ptr: int, the driver's handle (CUstream); 0 and 1 name the legacy default stream, 2 the calling
            thread's own default stream.
        device: the device that it belongs to; None is the one that the driver names, and for a default stream the
            current one.
        owner: any object, kept alive as long as this one.
    Raises:
        TypeError: stream_ptr is not an int.
        ValueError: it is negative or too large, no stream that the driver knows, or one of another device.

    A handle is judged here, once.  That the stream lives on until its work is done is up to its owner.
    """

    def __init__(self, stream_ptr: int, device: DeviceArgument | None = None, owner: object = None) -> None:
        cdef Stream self_ = self
        cdef uintptr_t handle
        cdef int ordinal, actual
        if self_.initialised:
            raise RuntimeError(f"{self!r} is made already; make another ExternalStream")
        handle = handle_of(stream_ptr, "stream_ptr")
        ordinal = ordinal_of(device)
        actual = judge_handle(handle, ordinal, "stream_ptr")
        if device is not None and actual != ordinal:
            raise ValueError(
                f"stream_ptr {handle:#x} is a stream of device {actual}, but device is {device!r}; pass its own, or None"
            )
        self_.device_index = actual
        self_.handle = handle
        self_.owner = owner
        self_.initialised = True


def get_stream_from_external(data_ptr: int, device: DeviceArgument | None = None) -> ExternalStream:
    """Makes ExternalStream(data_ptr, device), by torch.cuda's name for it.

    Arguments:
        data_ptr, device: as stream_ptr and device of ExternalStream, which says what is raised.
    Raises: as ExternalStream.
    """
    return ExternalStream(data_ptr, device)


# --- event ------------------------------------------------------------------------------------------------------------
# Events: points in a stream's work that others can wait for, ask about and time.  The driver's event is taken from the pool
# at the first record.

cdef enum:
    IPC_BYTES = 64

cdef uint64_t records = <uint64_t>1 << 63  # numbers that are no driver's handles; in turn


cdef int raise_of_event(Event event, int code, str call) except -1:
    # Once its capture has ended, a driver knows the event no more than one that was never recorded.
    if event.captured and code == INVALID_VALUE:
        code = CAPTURED_EVENT
    return raise_status(code, call, ("event", event.handle))


cdef class Event:
    """Event(enable_timing=False, blocking=False, interprocess=False, external=False, *, device=None)\n--\n\n\
    A point in a stream's work.

    Arguments:
        enable_timing: bool, keep the time at which the point was passed, for elapsed_time.
        blocking: bool, synchronize() sleeps instead of spinning (CU_EVENT_BLOCKING_SYNC).
        interprocess: bool, the event can be opened by other processes, see ipc_handle(); excludes timing.
        external: bool, in a capture record() and wait() become nodes of the graph: every launch records the event,
            or waits for what was recorded last before it, so that a graph and work outside it wait for each other
            (CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL).  Such an event carries no stream into a capture.
        device: int, "cuda:1", ...: the device that it is of, whose driver's event it then has from the start; None leaves
            that to the first record, until when no driver call is made.
    Raises:
        ValueError: interprocess with enable_timing or external; or device names none.
    Attributes:
        handle: int, the driver's event (CUevent); 0 before the first record, where no device was given.
        device_index: int, the ordinal of its device; -1 before the first record, where none was given.
    """

    def __init__(
        self, bint enable_timing=False, bint blocking=False, bint interprocess=False, bint external=False, *,
        device: DeviceArgument | None = None,
    ) -> None:
        if interprocess and enable_timing:
            raise ArgumentError("an interprocess event cannot keep time; pass enable_timing=False")
        if interprocess and external:
            raise ArgumentError("an event is interprocess or external, not both; make one for each purpose")
        if self.handle:  # a second call would lose the driver's event that it has
            raise RuntimeError(f"{self!r} is made and recorded already; make another Event")
        self.device_index = -1
        self.external = external
        self.flags = EVENT_BLOCKING_SYNC * blocking + EVENT_INTERPROCESS * interprocess
        if not enable_timing:
            self.flags |= EVENT_DISABLE_TIMING
        if device is not None:
            self.ensure_handle(ordinal_of(device))

    @property
    def enable_timing(self) -> bool:
        """Tells that the event keeps the time at which it was passed."""
        return not self.flags & EVENT_DISABLE_TIMING

    @property
    def blocking(self) -> bool:
        """Tells that synchronize() sleeps instead of spinning."""
        return self.flags & EVENT_BLOCKING_SYNC != 0

    @property
    def interprocess(self) -> bool:
        """Tells that other processes can open the event."""
        return self.flags & EVENT_INTERPROCESS != 0

    @staticmethod
    def from_ipc_handle(device: DeviceArgument | None, handle: bytes) -> Event:
        """Returns an event of another process (cuIpcOpenEventHandle): both record it, wait for it and ask about it.

        Arguments:
            device: the device that it belongs to there; None is the current one.
            handle: bytes, what ipc_handle() answered in the other process, which keeps its event meanwhile.
        Raises:
            TypeError, ValueError: handle is no 64 bytes.
            NotSupportedError: the driver cannot do it.
            CudaError: the handle is of this process, or its event is gone.
        """
        cdef Event event = Event(interprocess=True)
        cdef int ordinal = ordinal_of(device)
        cdef int code
        cdef const char* content
        if not isinstance(handle, bytes):
            raise ArgumentTypeError(f"handle is {handle!r} of type {type(handle).__name__}; pass the bytes of ipc_handle()")
        if len(handle) != IPC_BYTES:
            raise ArgumentError(f"handle has {len(handle)} bytes; ipc_handle() answers {IPC_BYTES}")
        content = handle
        with nogil:
            code = registry.active().ipc_event_open(ordinal, content, &event.handle)
        if code:
            raise_status(code, "ipc_event_open", ("device", ordinal))
        event.device_index = ordinal
        return event

    def ipc_handle(self) -> bytes:
        """Returns the bytes by which another process opens this event (cuIpcGetEventHandle), see from_ipc_handle().

        An event that was not recorded yet gets its driver's event now, on the current device.

        Returns:
            bytes, 64 of them, to be sent to the other process in any way.
        Raises:
            ValueError: the event was not made with interprocess=True.
            NotSupportedError: the driver cannot do it.
        """
        cdef char[64] handle
        cdef int code
        if not self.flags & EVENT_INTERPROCESS:
            raise ArgumentError("the event is this process's own; make it with Event(interprocess=True)")
        with cython.critical_section(self):
            if self.handle == 0:
                self.ensure_handle(ordinal_of(None))
        with nogil:
            code = registry.active().ipc_event_export(self.device_index, self.handle, handle)
        if code:
            raise_status(code, "ipc_event_export", ("device", self.device_index, "event", self.handle))
        return handle[:IPC_BYTES]

    def __dealloc__(self):
        if self.pooled != NULL:
            self.pooled.captured = self.captured
            return_from_event(self.pooled)
        elif self.handle:
            dispose(EVENT, self.device_index, self.handle)

    cdef int ensure_handle(self, int ordinal, bint fresh=False) except -1:
        # fresh: a capture refuses to wait for an event of the pool that was captured last.
        cdef PooledEvent* event
        if self.handle == 0:
            event = take_for_event(ordinal, self.flags, fresh)
            if self.handle:  # another thread was faster, while the GIL was released
                return_from_event(event)
                return self.ensure_handle(ordinal)
            self.pooled = event
            self.handle = event.handle
            self.device_index = ordinal
        elif self.device_index != ordinal:
            raise ArgumentError(
                f"the event belongs to device {self.device_index}, where it was first recorded, "
                f"and the stream to device {ordinal}; use an event of its own for each device"
            )
        return 0

    @cython.critical_section
    cdef int record_in(self, Stream where) except -1:
        # The GIL is released although it costs some 20 ns: where the stream's queue is full the driver waits for
        # the stream, which may wait for a function of Python's.
        cdef int ordinal = where.device_index
        cdef uintptr_t stream = mark_used(where)
        cdef bint captured = False
        cdef bint is_node
        cdef int code
        if not where.initialised:
            refuse_unmade(where)
        if self.external or captures_open():
            # A driver crashed in recording an event anew while the graph that had captured it went.
            captured = keep_where_captured(ordinal, stream, self) != UNCAPTURED
        if self.handle == 0 or self.device_index != ordinal:
            self.ensure_handle(ordinal)
        is_node = captured and self.external
        if is_node:
            with nogil:
                code = registry.active().event_record_external(ordinal, self.handle, stream)
        else:
            with nogil:
                code = registry.active().event_record(ordinal, self.handle, stream)
        if code:
            self.raise_unrecorded(code, stream)
        watch.note_record(ordinal, stream, self.handle, is_node)
        self.record_number = number_in_turn(&records, 1)
        self.captured = captured and not is_node
        return 0

    cdef int raise_unrecorded(self, int code, uintptr_t stream) except -1:
        # An Event that was never recorded does not keep an event of the pool, whose last record may be in a capture that
        # goes on: to ask for it would break that.
        cdef uintptr_t handle = self.handle
        cdef PooledEvent* event = self.pooled
        if self.record_number == 0 and event != NULL and not self.flags & EVENT_INTERPROCESS:
            self.pooled = NULL
            self.handle = 0
            self.device_index = -1
            return_from_event(event)
        return raise_status(code, "event_record", ("event", handle, "stream", stream))

    @cython.critical_section
    cdef int wait_in(self, Stream stream) except -1:
        cdef int ordinal = stream.device_index
        cdef uintptr_t waiter = mark_used(stream)
        cdef bint is_node
        cdef int code
        if not stream.initialised:
            refuse_unmade(stream)
        if self.handle == 0 and not self.external:
            return 0
        is_node = self.external and keep_where_captured(ordinal, waiter, self) != UNCAPTURED
        if self.handle == 0:
            if not is_node:
                return 0
            self.ensure_handle(ordinal, True)  # launches wait for what is recorded later
        if is_node:
            with nogil:
                code = registry.active().stream_wait_external(ordinal, waiter, self.handle)
        else:
            with nogil:
                code = registry.active().stream_wait_event(ordinal, waiter, self.handle)
                if code == 0 and ordinal == self.device_index:
                    code = stream_waits(ordinal, waiter, self.record_number)
        if code:
            raise_status(code, "stream_wait_event", ("stream", waiter, "event", self.handle))
        watch.note_wait(ordinal, waiter, self.handle, is_node)
        return 0

    def record(self, stream: Stream | int | None = None) -> None:
        """Marks the end of the work put into a stream so far (cuEventRecord); replaces the last record.

        Arguments:
            stream: Stream; None is the current one.
        Raises:
            ValueError: the event was recorded before on a stream of another device.
            CudaError: the driver refused.
        """
        self.record_in(stream if isinstance(stream, Stream) else stream_of(stream, ordinal_of(None)))

    def wait(self, stream: Stream | int | None = None) -> None:
        """Makes later work of a stream wait for this event (cuStreamWaitEvent); the caller does not wait.

        Arguments:
            stream: Stream, of any device; None is the current one.
        """
        self.wait_in(stream if isinstance(stream, Stream) else stream_of(stream, ordinal_of(None)))

    def query(self) -> bool:
        """Tells whether the work before the last record is complete (cuEventQuery); True if never recorded.

        Raises:
            CaptureError: the event was last recorded in a capture.
            CudaError: work failed.
            Exception: where the work is complete, whatever a host function raised since the last synchronize or query.
        """
        cdef int code
        if self.handle == 0:
            return True
        with nogil:
            code = registry.active().event_query(self.device_index, self.handle)
        if code and code != NOT_READY:
            raise_of_event(self, code, "event_query")
        if code == 0:
            watch.note_event_reached(self.handle)
            raise_callback_errors()
        return code == 0

    def synchronize(self) -> None:
        """Waits until the work before the last record is complete (cuEventSynchronize).

        Raises:
            CaptureError: the event was last recorded in a capture.
            CudaError: work failed.
            Exception: whatever a host function raised since the last synchronize or query.
            KeyboardInterrupt: Ctrl-C, on the main thread, or what another signal's handler raised; the work goes on.
        """
        cdef int code
        if self.handle == 0:
            return
        watch.before_wait("Event.synchronize")
        drain()
        begin_wait(self.flags & EVENT_BLOCKING_SYNC != 0)
        with nogil:
            code = registry.active().event_synchronize(self.device_index, self.handle)
        end_wait(code)
        if code:
            raise_of_event(self, code, "event_synchronize")
        watch.note_event_reached(self.handle)
        raise_callback_errors()

    def elapsed_time(self, end_event: Event) -> float:
        """Returns the milliseconds from this event to a later one (cuEventElapsedTime), as float; about 0.5 us exact.

        Arguments:
            end_event: Event.
        Raises:
            TypeError: end_event is no Event.
            ValueError: one of them keeps no time, or was not recorded yet, or they belong to two devices.
            CudaError: one of them is not complete (NOT_READY); the text says which.
        """
        cdef Event end
        cdef float milliseconds = 0
        cdef int code
        if not isinstance(end_event, Event):
            raise ArgumentTypeError(f"end_event is {end_event!r} of type {type(end_event).__name__}; pass an Event")
        end = end_event
        self.check_timed("first")
        end.check_timed("second")
        if self.device_index != end.device_index:
            raise ArgumentError(
                f"the first event is of device {self.device_index} and the second of device {end.device_index}; "
                "times of two devices cannot be compared: record both on streams of one"
            )
        code = registry.active().event_elapsed(self.handle, end.handle, &milliseconds)
        if code:
            late = "start" if code == NOT_READY and is_pending(self) else "end"
            waits_for = ("not_complete", late) if code == NOT_READY else ()
            raise_status(code, "event_elapsed", ("start", self.handle, "end", end.handle, *waits_for))
        return milliseconds

    cdef int check_timed(self, str place) except -1:
        if self.flags & EVENT_DISABLE_TIMING:
            raise ValueError(f"the {place} event keeps no time; make it with Event(enable_timing=True)")
        if self.record_number == 0:
            raise ValueError(f"the {place} event was never recorded; record it on a stream first")
        return 0

    def __reduce__(self):
        refuse_copy(self, "the driver's event belongs to one object; between processes, send the bytes of "
                    "Event(interprocess=True).ipc_handle() to Event.from_ipc_handle()")

    @property
    def cuda_event(self) -> int:
        """The driver's handle, by torch's name for it: an int that fits a CUevent; 0 before the first record."""
        return self.handle

    @property
    def event_id(self) -> int:
        """The driver's handle, by torch.Event's name for it; 0 before the first record."""
        return self.handle

    @property
    def _as_parameter_(self) -> c_void_p:
        """Returns what ctypes passes to a C function: the handle as a pointer."""
        import ctypes

        return ctypes.c_void_p(self.handle)

    @property
    def device(self) -> Device | None:
        """The device object of the stream that it was first recorded on; None before."""
        return device_at(self.device_index) if self.device_index >= 0 else None

    def __repr__(self):
        return f"<accelrt.Event device={self.device_index} cuda_event={self.handle:#x}>"


cdef bint is_pending(Event event) noexcept:
    cdef int code
    with nogil:
        code = registry.active().event_query(event.device_index, event.handle)
    return code == NOT_READY


# --- current ----------------------------------------------------------------------------------------------------------
# Which stream is current on each thread, and the contexts that change that.
#
# One file, since the contexts exchange the pointers of the thread's current streams themselves: calls into another
# extension would cost each `with stream(s)` some 3 %.

cdef extern from "Python.h":
    PyObject* PyThreadState_GetDict()  # borrowed
    Py_ssize_t Py_REFCNT(PyObject* thing)

# A thread's current streams belong to a Currents object in the thread's state dict, which dies with the thread; the
# pointer is what the hot paths read.
cdef extern from *:
    """
    typedef struct { PyObject* stream; uintptr_t handle; } accelrt_current;
    static __thread accelrt_current* accelrt_currents;
    """
    ctypedef struct Current "accelrt_current":
        PyObject* stream
        uintptr_t handle
    Current* currents "accelrt_currents"

# The contexts that a thread has entered and not left belong to an Entries object in the thread's state dict, which dies
# with the thread; the pointer is what the hot paths read.
cdef extern from *:
    """
    typedef struct { PyObject* context; PyObject* before; int device; } accelrt_entry;
    typedef struct { accelrt_entry* entries; int depth, room; } accelrt_entered;
    static __thread accelrt_entered* accelrt_entered_here;
    """
    ctypedef struct Entry "accelrt_entry":  # of a context; owns both
        PyObject* context
        PyObject* before                    # the stream that was current
        int device                          # the one that was current
    ctypedef struct Entered "accelrt_entered":
        Entry* entries                      # the innermost last
        int depth
        int room
    Entered* entered "accelrt_entered_here"

cdef bint is_used = False    # some thread has entered one
cdef bint is_forked = False  # a child of a process in which that was so


cdef class Currents:
    """One thread's current streams, by device."""

    cdef Current* array

    def __cinit__(self):
        self.array = <Current*>calloc(MAX_DEVICES, sizeof(Current))
        if self.array == NULL:
            raise MemoryError("no host memory for a thread's current streams")

    def __dealloc__(self):
        global currents
        cdef int ordinal
        if self.array == NULL:  # there was no memory for it
            return
        if currents == self.array:
            currents = NULL
        for ordinal in range(MAX_DEVICES):
            Py_XDECREF(self.array[ordinal].stream)
        free(self.array)


cdef uintptr_t current_handle(int ordinal) noexcept nogil:
    return currents[ordinal].handle if currents != NULL else 0


cdef Stream current_of(int ordinal):
    if currents == NULL or currents[ordinal].stream == NULL:
        return current_slow(ordinal)
    return <Stream>currents[ordinal].stream


cdef Stream current_slow(int ordinal):
    cdef Stream stream
    if count_devices() == 0:
        raise_status(NO_DEVICE, "current_stream")
    stream = default_of(ordinal, LEGACY)
    make_current(stream)
    return stream


cdef int make_current(Stream stream) except -1:
    # Makes it current on its own device; the current device stays.
    global currents
    cdef Currents owner
    cdef PyObject* before
    if currents == NULL:
        owner = Currents()
        (<dict>PyThreadState_GetDict())["accelrt.streams.stream"] = owner
        currents = owner.array
    before = currents[stream.device_index].stream
    Py_INCREF(stream)
    currents[stream.device_index].stream = <PyObject*>stream
    currents[stream.device_index].handle = mark_used(stream)
    Py_XDECREF(before)
    return 0


cdef PyObject* exchange_current(Stream stream) except NULL:
    cdef int ordinal = stream.device_index
    cdef PyObject* before
    if currents == NULL or currents[ordinal].stream == NULL:
        current_slow(ordinal)
    before = currents[ordinal].stream
    Py_INCREF(stream)
    currents[ordinal].stream = <PyObject*>stream
    currents[ordinal].handle = mark_used(stream)
    return before


cdef void put_back(PyObject* before) noexcept:
    cdef int ordinal = (<Stream>before).device_index
    cdef PyObject* left
    if currents == NULL:  # the thread ends
        Py_DECREF(<Stream>before)
        return
    left = currents[ordinal].stream
    currents[ordinal].stream = before
    currents[ordinal].handle = (<Stream>before).handle
    Py_XDECREF(left)


cdef Stream stream_of(object stream, int ordinal):
    if stream is None:
        return current_of(ordinal)
    if isinstance(stream, Stream):
        if not (<Stream>stream).initialised:
            refuse_unmade(stream)
        mark_used(stream)
        return stream
    return other_stream(stream, ordinal)


cdef int ordinal_beside(object stream) except -1:
    return (<Stream>stream).device_index if isinstance(stream, Stream) else ordinal_of(None)


cdef Stream stream_for(object stream, int ordinal, str what):
    cdef Stream worker = stream_of(stream, ordinal)
    if worker.device_index != ordinal:
        raise_elsewhere(worker, ordinal, what)
    return worker


cdef int raise_elsewhere(Stream stream, int ordinal, str what) except -1:
    raise ArgumentError(
        f"stream is on device {stream.device_index}, {what} on {ordinal}; pass a stream of device {ordinal}, which may "
        f"wait for this one (Stream.wait_stream): handle {stream.handle:#x}"
    )


def current_stream(device: DeviceArgument | None = None) -> Stream:
    """Returns the calling thread's current stream of a device.

    Makes no driver call where the device is given or is the only one; among several devices the driver
    is asked which is current.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index; None is the current device.
    Returns:
        Stream, the same object while nothing changed.
    """
    cdef int ordinal, code
    if device is not None:
        return current_of(ordinal_of(device))
    code = current_ordinal(&ordinal)
    if code:
        raise_status(code, "current_device")
    return current_of(ordinal)


def set_stream(stream: Stream | None) -> None:
    """Makes a stream the calling thread's current one, and its device the current one.

    Arguments:
        stream: Stream, or None to change nothing.
    """
    if stream is None:
        return
    cdef Stream chosen = stream
    if not chosen.initialised:
        refuse_unmade(chosen)
    set_device(chosen.device_index)
    make_current(chosen)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))"""
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


# --- contexts: a stream is a thread's current one for a while, and its device the current one -------------------

cdef class Entries:
    """One thread's entries of stream contexts."""

    cdef Entered entered

    def __dealloc__(self):
        global entered
        cdef int index
        if entered == &self.entered:
            entered = NULL
        for index in range(self.entered.depth):
            Py_XDECREF(self.entered.entries[index].before)
            Py_XDECREF(self.entered.entries[index].context)
        free(self.entered.entries)


cdef void forget_in_child() noexcept nogil:
    # The next use goes the slow way and is told about the fork; to leave a context that was entered before does nothing.
    global currents, entered, is_forked
    currents = NULL
    entered = NULL
    is_forked = is_used


cdef int ensure_room() except -1:
    # For one entry more.
    global entered, is_used
    cdef Entries owner
    cdef int room
    cdef Entry* larger
    if entered == NULL:
        is_used = True
        owner = Entries()
        (<dict>PyThreadState_GetDict())["accelrt.streams.stream.entries"] = owner
        entered = &owner.entered
    if entered.depth < entered.room:
        return 0
    room = max(8, 2 * entered.room)
    larger = <Entry*>realloc(entered.entries, room * sizeof(Entry))
    if larger == NULL:
        raise MemoryError("no host memory for a stream context's entry")
    entered.entries = larger
    entered.room = room
    return 0


cdef int make_room(PyObject* before, int device) except -1:
    # After the rest of entering, which may run code that enters contexts itself.
    try:
        ensure_room()
    except BaseException:
        return_to(before, device)
        raise
    return 0


cdef int return_to(PyObject* before, int device) except -1:
    put_back(before)
    if device_total != 1:
        switch_back(device)
    return 0


cdef int unlink(int index) except -1:
    # An entry that may not be the innermost ends: those inside of it return to what it would have returned to.
    cdef Entry closed = entered.entries[index]
    cdef Entry* entry = &entered.entries[index]
    cdef int ordinal = (<Stream>closed.before).device_index
    cdef PyObject* other = NULL
    cdef int inner
    add_in_turn(&(<StreamContext>closed.context).open, -1)
    entered.depth -= 1
    memmove(entry, entry + 1, (entered.depth - index) * sizeof(Entry))
    if index < entered.depth:
        entry.device = closed.device
    for inner in range(index, entered.depth):
        other = entered.entries[inner].before
        if (<Stream>other).device_index == ordinal:
            entered.entries[inner].before = closed.before
            break
    else:
        other = NULL
        put_back(closed.before)
    Py_XDECREF(other)
    Py_XDECREF(closed.context)
    return 0


cdef int drop_inner(int index) except -1:
    # Ends the entries inside of one whose contexts have no other reference, so that no code can leave them.  Answers how
    # many others are inside.
    cdef PyObject* context
    cdef int inner
    for inner in range(entered.depth - 1, index, -1):
        context = entered.entries[inner].context
        if Py_REFCNT(context) == (<StreamContext>context).open and not (<StreamContext>context).is_streams:
            unlink(inner)
    return entered.depth - 1 - index


@cython.freelist(8)
cdef class StreamContext:
    """StreamContext(stream)\n--\n\n\
    The context in which a stream, and its device, are current; see stream().

    Arguments, Raises: as accelrt.stream.
    Attributes:
        stream: Stream, or None where the context does nothing.
    """
    # stub: stream: Stream | None
    # stub: @overload
    # stub: def follow(self, steps: Coroutine[_Y, _S, _R]) -> Coroutine[_Y, _S, _R]: ...
    # stub: @overload
    # stub: def follow(self, steps: Generator[_Y, _S, _R]) -> Generator[_Y, _S, _R]: ...
    # stub: @overload
    # stub: def follow(self, steps: AsyncGenerator[_Y, _S]) -> AsyncGenerator[_Y, _S]: ...

    def __init__(self, stream: Stream | None) -> None:
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream or None")
        if stream is not None and not (<Stream>stream).initialised:
            refuse_unmade(stream)
        if self.open:
            raise RuntimeError("this stream context is entered; make another one")
        self.stream = stream

    def __reduce__(self):
        refuse_copy(self, "what it returns to belongs to the thread that enters it; make another one")

    def __enter__(self) -> Stream | None:
        if self.stream is None:
            return None
        enter_context(self)
        return self.stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return False if self.stream is None else leave_context(self)

    def follow(self, steps):
        """Has the stream be current in each step of a coroutine, generator or async generator, and only there.

            await accelrt.stream(s).follow(work())
            for batch in accelrt.stream(s).follow(batches()):
                ...

        Arguments:
            steps: what an async def function, or one that yields, returned.  Between its steps, where it waits or has
                yielded, the thread's current stream is what it was before.
        Returns:
            an object of the same kind, which runs the steps and nothing else does; steps itself for a context of None.
        Raises:
            TypeError: steps is of no such kind.

        The context itself is not entered.  A step costs one entry of a stream context.
        """
        new_context = None if self.stream is None else lambda: StreamContext(self.stream)
        return init.later("accelrt.streams.steps").follow(new_context, steps)

    cdef bint leave_slow(self) except -1:
        # The innermost of this context's entries on this thread is not the thread's innermost.  Answers as __exit__.
        cdef Entry entry
        cdef int index
        if self.open == 0:
            raise RuntimeError(f"the context of {self.stream!r} is not entered, or was left already; nothing is changed")
        if is_forked:  # it was entered before the fork; a child has no current streams
            return False
        for index in range(entered.depth - 1 if entered != NULL else -1, -1, -1):
            if entered.entries[index].context == <PyObject*>self:
                break
        else:
            raise RuntimeError(
                f"the context of {self.stream!r} was entered on another thread and is left on this one; nothing is "
                "changed here, and there the stream stays current until it is left there"
            )
        entry = entered.entries[index]
        if drop_inner(index) == 0:
            unlink(index)
            if device_total != 1:
                switch_back(entry.device)
            return False
        unlink(index)
        raise RuntimeError(
            f"the context of {self.stream!r} is left before one that was entered inside of it, as when asyncio tasks "
            "or generators take turns inside of `with stream(...)`: they share the thread's one current stream, which "
            f"now is {current_of((<Stream>self.stream).device_index)!r}.  Await and yield outside of stream contexts, "
            "run each task with accelrt.stream(s).follow(...), or pass stream= to each call"
        )


cdef inline int enter_context(StreamContext context) except -1:
    cdef Stream stream = context.stream
    cdef PyObject* before
    cdef Entry* entry
    cdef int device = switch_to(stream.device_index) if device_total != 1 else 0
    before = exchange_current(stream)
    if entered == NULL or entered.depth == entered.room:
        make_room(before, device)
    entry = &entered.entries[entered.depth]
    Py_INCREF(context)
    add_in_turn(&context.open, 1)
    entry.context = <PyObject*>context
    entry.before = before
    entry.device = device
    entered.depth += 1
    return 0


cdef inline bint leave_context(StreamContext context) except -1:
    # Answers as __exit__.
    cdef Entry* entry
    if entered == NULL or entered.depth == 0:
        return context.leave_slow()
    entry = &entered.entries[entered.depth - 1]
    if entry.context != <PyObject*>context:
        return context.leave_slow()
    entered.depth -= 1
    add_in_turn(&context.open, -1)
    Py_DECREF(context)
    return_to(entry.before, entry.device)
    return False


cdef int enter_own(Stream stream) except -1:
    # `with s:` of a Stream.
    cdef StreamContext context
    if not stream.initialised:
        refuse_unmade(stream)
    context = StreamContext.__new__(StreamContext)
    context.stream = stream
    context.is_streams = True
    return enter_context(context)


cdef bint leave_own(Stream stream) except -1:
    cdef StreamContext context
    cdef int index
    for index in range(entered.depth - 1 if entered != NULL else -1, -1, -1):
        context = <StreamContext>entered.entries[index].context
        if context.is_streams and context.stream is stream:
            return leave_context(context)
    if is_forked:  # as in a context that was entered before the fork
        return False
    raise RuntimeError(f"{stream!r} is not entered on this thread; nothing is changed")


def stream(stream: Stream | None) -> StreamContext:
    """Returns the context in which a stream is the calling thread's current one, and its device the current one.

        with accelrt.stream(s):
            ...

    Arguments:
        stream: Stream, or None for a context that does nothing.
    Raises:
        TypeError: it is neither.

    The current stream is the thread's, not an asyncio task's or a generator's: an await or a yield inside of the
    context leaves the stream current for whatever runs next on the thread.  For those there is
    accelrt.stream(s).follow(...), or stream= of each call.  Leaving a context raises RuntimeError where one that was
    entered after it is still open, as when tasks take turns, where it is not entered, and where another thread
    entered it.  It may be entered again while it is entered.
    """
    return StreamContext(stream)


at_fork("streams.stream", FORK_STREAMS, NULL, NULL, &forget_in_child)
