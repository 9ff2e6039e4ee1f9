# cython: embedsignature=False
"""Streams: queues of work on a device, the driver's own or other libraries'.

Which one is current on a thread, and the contexts that change that, are in current.pyx, which gives this module what a
Stream needs of it.
"""
import numbers

from libc.stdint cimport uintptr_t

from accelrt.core.integers cimport exact_int
from accelrt.devices.device cimport device_at, ordinal_of
from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.waiting cimport begin_wait, end_wait
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.allocator.pool cimport knows_stream
from accelrt.runtime import init
from accelrt.runtime.host_func cimport enqueue_callback, raise_callback_errors
from accelrt.runtime.release_queue cimport drain
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport (
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, raise_status, refuse_copy, refuse_unmade,
)
from accelrt.streams.stream_pool cimport return_stream, share_stream, take_stream

cdef enum:
    CUDA_TYPE = 1  # torch's DeviceType::CUDA

cdef object event_type = None
cdef dict defaults = {}  # (ordinal, handle) -> the default Stream
cdef find_fn find = NULL  # what current.pyx gave
cdef enter_fn enter = NULL
cdef leave_fn leave = NULL


cdef Stream default_of(int ordinal, uintptr_t handle):
    found = defaults.get((ordinal, handle))
    if found is None:
        found = defaults.setdefault((ordinal, handle), wrap(handle, ordinal, None))
    return found


cdef Stream other_stream(object stream, int ordinal):
    cdef uintptr_t handle
    if is_handle(stream):
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


cdef bint is_handle(object stream) except -1:
    # An int, NumPy's too; but no other object with __index__, as a device is.
    return (isinstance(stream, int) or isinstance(stream, numbers.Integral)) and not isinstance(stream, bool)


cdef uintptr_t handle_of(object handle, str name) except? 0:
    cdef object number = exact_int(handle, name, "the stream's handle as an int")
    if number < 0 or number >> 64:
        raise ValueError(f"{name} is {number}; a handle is an int from 0 to 2**64 - 1")
    return number


cdef uintptr_t handle_from_protocol(object stream) except? 0:
    kind = type(stream).__name__
    method = stream.__cuda_stream__
    if not callable(method):
        raise TypeError(f"{kind}.__cuda_stream__ is {method!r}; it has to be a method that returns (0, handle)")
    answer = method()
    if not isinstance(answer, tuple) or len(answer) != 2 or not all([is_handle(part) for part in answer]):
        raise TypeError(f"{kind}.__cuda_stream__() returned {answer!r}; it has to be a tuple of two ints, (0, handle)")
    version = exact_int(answer[0], "version", "an int")
    if version != 0:
        raise ValueError(
            f"{kind}.__cuda_stream__() returned version {version} of the protocol, accelrt knows version 0; pass the "
            "stream's handle as int"
        )
    return handle_of(answer[1], f"the handle of {kind}.__cuda_stream__()")


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
    stream.made = True
    return stream


cdef void end_window(int ordinal, uintptr_t stream) noexcept nogil:
    # A destructor's call, which must break no capture.
    cdef int before = 0
    cdef bint relaxed = go_relaxed(registry.active(), &before) == 0
    registry.active().stream_window_set(ordinal, stream, 0, 0, 0, 0, 0)
    if relaxed:
        restore_mode(registry.active(), before)


cdef int read_priority(object priority) except? -1:
    wanted = "an int, the lower the more urgent (Stream.priority_range() says which there are)"
    return max(-1000, min(1000, exact_int(priority, "priority", wanted)))  # far outside of every device's range


cdef (int, int) priority_range_of(int ordinal):
    cdef int least = 0, greatest = 0
    cdef int code = registry.active().stream_priority_range(ordinal, &least, &greatest)
    if code:
        raise_status(code, "stream_priority_range", ("device", ordinal))
    return least, greatest


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


cdef class Waitable:
    """A point in a stream's work that streams can wait for: the part of an Event that streams know of."""

    cdef int record_in(self, Stream stream) except -1:
        raise NotImplementedError

    cdef int wait_in(self, Stream stream) except -1:
        raise NotImplementedError


cdef Waitable event_of(object event):
    if not isinstance(event, Waitable):
        raise TypeError(f"event is {event!r} of type {type(event).__name__}; pass an Event")
    return event


cdef class Stream:
    """Stream(device=None, priority=0, *, stream_id=None, device_index=None, device_type=None)\n--\n\n\
    A queue of work on one device: what is put in runs in that order.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None for the current device.
        priority: int, lower is more urgent; clamped to what the device has (Stream.priority_range()).
        stream_id, device_index, device_type: int, what the properties of these names are of a stream that exists: then
            this is another object of that stream, and keeps it.  priority is ignored.  Without stream_id they mean
            nothing.
    Raises:
        ValueError, TypeError: device names none, priority is no int, or no stream with that id is in use.
        CudaError: the driver made no stream.

        with accelrt.Stream():  # as with accelrt.stream(...)
            ...

    Every Stream has a driver stream to itself, which does not synchronise with the legacy default stream
    (CU_STREAM_NON_BLOCKING).  When it dies and its work is complete, another Stream gets the driver stream, and with
    it the memory that it left in the cache.  Where none is idle the driver makes one, for which it may wait until work
    that runs is done, host functions included.
    """

    def __init__(self, device=None, priority=0, *, stream_id=None, device_index=None, device_type=None):
        cdef int ordinal = ordinal_of(device)
        cdef int least, greatest, level = 0
        if self.made:  # a second call would lose the driver stream that it has
            raise RuntimeError(f"{self!r} is made already; make another Stream")
        if stream_id is not None or device_index is not None or device_type is not None:
            self.open_by_id(stream_id, ordinal_of_parts(device, stream_id, device_index, device_type))
            return
        if priority is not 0:
            level = read_priority(priority)
            least, greatest = priority_range_of(ordinal)
            level = max(greatest, min(least, level))
        self.pooled = take_stream(ordinal, level)
        self.handle = self.pooled.handle
        self.device_index = ordinal
        self.made = True

    def __dealloc__(self):
        if self.has_window:  # the driver stream's next holder begins without one
            end_window(self.device_index, self.handle)
        if self.pooled != NULL:
            return_stream(self.pooled)

    cdef int open_by_id(self, object stream_id, int ordinal) except -1:
        cdef uintptr_t handle = handle_of(stream_id, "stream_id")
        cdef int code = 0, found
        if handle > PER_THREAD:
            self.pooled = share_stream(ordinal, handle, &code)
        if code:
            raise ArgumentError(
                f"stream_id is {handle:#x}, which is no stream in use of device {ordinal}: it is another device's, or the "
                "Streams that had it are gone; keep the Stream for as long as its id is in use"
            )
        if self.pooled == NULL:  # a default stream or another library's
            found = judge_handle(handle, ordinal, "stream_id")
            if found != ordinal:
                raise ArgumentError(f"stream_id {handle:#x} is a stream of device {found}, but device_index is {ordinal}")
        self.handle = handle
        self.device_index = ordinal
        self.made = True
        return 0

    @staticmethod
    def from_any(stream, device=None):
        """A Stream of whatever stands for one: its own handle, kept alive with its owner.

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
        return find(stream, ordinal_of(device))

    @staticmethod
    def priority_range(device=None):
        """The least and the greatest priority of a device's streams, as (least, greatest): (0, -5), say."""
        return priority_range_of(ordinal_of(device))

    @property
    def device(self):
        """The device object of this stream's device."""
        return device_at(self.device_index)

    @property
    def cuda_stream(self):
        """The driver's handle, by torch's name for it: an int that fits a CUstream."""
        if not self.made:
            refuse_unmade(self)
        return self.handle

    @property
    def stream_id(self):
        """int: with device_index and device_type, what names this stream to Stream(stream_id=...); the driver's handle."""
        if not self.made:
            refuse_unmade(self)
        return self.handle

    @property
    def native_handle(self):
        """The driver's handle, by torch.Stream's name for it."""
        return self.cuda_stream

    @property
    def device_type(self):
        """int, torch's number for CUDA, 1: it is the same for the host device, which "cuda" names too."""
        return CUDA_TYPE

    @property
    def _as_parameter_(self):
        """What ctypes passes to a C function: the handle as a pointer."""
        import ctypes

        return ctypes.c_void_p(self.cuda_stream)

    @property
    def priority(self):
        """int; lower is more urgent."""
        if not self.made:
            refuse_unmade(self)
        cdef int priority = 0
        cdef int code = 0
        if self.pooled != NULL:
            return self.pooled.priority
        if self.handle:
            code = registry.active().stream_priority(self.device_index, self.handle, &priority)
        if code:
            raise_status(code, "stream_priority", ("stream", self.handle))
        return priority

    def set_access_policy_window(self, address, num_bytes, hit_ratio=1.0, hit="persisting", miss="streaming"):
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

    def get_access_policy_window(self):
        """The stream's access policy window, as (address, num_bytes, hit_ratio, hit, miss); None where it has none."""
        return init.later("accelrt.streams.access_policy").read(self.device_index, self.cuda_stream)

    def reset_access_policy_window(self):
        """Ends the stream's access policy window.  What persists in the cache stays there until
        accelrt.reset_persisting_l2_cache()."""
        policy = init.later("accelrt.streams.access_policy")
        none = policy.AccessPolicyWindow(0, 0, 0.0, "normal", "normal")
        policy.write(self.device_index, self.cuda_stream, none)
        self.has_window = False

    def query(self):
        """Whether all work put in so far is complete (cuStreamQuery).

        Raises:
            CaptureError: the stream is capturing; this breaks the capture.
            CudaError: work failed.
            Exception: where the work is complete, whatever a host function raised since the last synchronize or query.
        """
        cdef int code
        if not self.made:
            refuse_unmade(self)
        with nogil:
            code = registry.active().stream_query(self.device_index, self.handle)
        if code and code != NOT_READY:
            raise_status(code, "stream_query", ("stream", self.handle))
        if watch.sanitizing and code == 0:
            watch.note_reached(self.device_index, self.handle)
        if code == 0:
            raise_callback_errors()
        return code == 0

    def synchronize(self):
        """Waits until all work put in so far is complete (cuStreamSynchronize).

        Raises:
            CaptureError: the stream is capturing; this breaks the capture.
            CudaError: work failed.
            Exception: whatever a host function raised since the last synchronize or query.
            KeyboardInterrupt: Ctrl-C, on the main thread, or what another signal's handler raised; the work goes on.
        """
        cdef int code
        if not self.made:
            refuse_unmade(self)
        watch.before_wait("Stream.synchronize")
        drain()
        begin_wait(False)
        with nogil:
            code = registry.active().stream_synchronize(self.device_index, self.handle)
        end_wait(code)
        if code:
            raise_status(code, "stream_synchronize", ("stream", self.handle))
        if watch.sanitizing:
            watch.note_reached(self.device_index, self.handle)
        raise_callback_errors()

    def wait_event(self, event):
        """Makes later work of this stream wait for an event (cuStreamWaitEvent); the caller does not wait.

        Arguments:
            event: Event, of any device.  One that was never recorded is waited for no time.
        """
        event_of(event).wait_in(self)

    def wait_stream(self, stream):
        """Makes later work of this stream wait for everything put into another one so far.

        Arguments:
            stream: Stream, of any device.
        """
        cdef Waitable point
        if not isinstance(stream, Stream):
            raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream")
        point = event_type()
        point.record_in(stream)
        point.wait_in(self)

    def record_event(self, event=None):
        """Records an event here, one made for it by default, and returns it."""
        cdef Waitable point = event_type() if event is None else event_of(event)
        point.record_in(self)
        return point

    def launch_host_func(self, function):
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
        if not self.made:
            refuse_unmade(self)
        enqueue_callback(self.device_index, self.handle, function)

    def __enter__(self):
        enter(self)
        return self

    def __exit__(self, kind, error, trace):
        return leave(self)

    def __cuda_stream__(self):
        """(0, handle): the protocol by which CUDA libraries in Python hand streams to each other."""
        if not self.made:
            refuse_unmade(self)
        return 0, self.handle

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        return self.handle == (<Stream>other).handle and self.device_index == (<Stream>other).device_index

    def __hash__(self):
        return hash((self.handle, self.device_index))

    def __reduce__(self):
        refuse_copy(self, "a driver stream belongs to one object and one process; make another Stream there")

    def __repr__(self):
        kind = type(self).__name__
        return f"<accelrt.{kind} device={init.chosen_driver()}:{self.device_index} cuda_stream={self.handle:#x}>"


def default_stream(device=None):
    """A device's legacy default stream (CU_STREAM_LEGACY), whose handle is 0.

    Its work waits for all earlier work of the device's blocking streams, the threads' default streams among them,
    and their later work waits for it (CUDA driver API, "Stream synchronization behavior").  Streams made by
    Stream() are not blocking.
    """
    return default_of(ordinal_of(device), LEGACY)


def per_thread_stream(device=None):
    """The per-thread default stream of a device (CU_STREAM_PER_THREAD), whose handle is 2.

    The one handle names another stream on every thread: that of whichever thread uses it.  It is a blocking
    stream, see default_stream().  Device memory allocated on it waits, when it is freed, for an event on the
    legacy default stream, which is behind the work of every thread's.
    """
    return default_of(ordinal_of(device), PER_THREAD)


cdef void provide_current(find_fn find_, enter_fn enter_, leave_fn leave_) noexcept:
    global find, enter, leave
    find, enter, leave = find_, enter_, leave_


def provide_event_type(kind):
    """Sets the class of the events that streams make: events import streams, and streams do not import events."""
    global event_type
    event_type = kind


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

    def __init__(self, stream_ptr, device=None, owner=None):
        cdef Stream self_ = self
        cdef uintptr_t handle
        cdef int ordinal, found
        if self_.made:
            raise RuntimeError(f"{self!r} is made already; make another ExternalStream")
        handle = handle_of(stream_ptr, "stream_ptr")
        ordinal = ordinal_of(device)
        found = judge_handle(handle, ordinal, "stream_ptr")
        if device is not None and found != ordinal:
            raise ValueError(
                f"stream_ptr {handle:#x} is a stream of device {found}, but device is {device!r}; pass its own, or None"
            )
        self_.device_index = found
        self_.handle = handle
        self_.owner = owner
        self_.made = True


def get_stream_from_external(data_ptr, device=None):
    """ExternalStream(data_ptr, device), by torch.cuda's name for it."""
    return ExternalStream(data_ptr, device)
