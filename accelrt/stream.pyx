"""Streams: queues of work on a device, and which one is current on each thread."""
cimport cython
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdlib cimport calloc, free

from accelrt.callback cimport enqueue_callback, raise_callback_errors
from accelrt.deferred cimport drain
from accelrt.device cimport count_devices, current_ordinal, device_at, ordinal_of, this_thread
from accelrt.device import set_device
cimport accelrt.driver.registry as registry
from accelrt.lazy import chosen_driver
from accelrt.lease cimport give_back, lease
from accelrt.memory.pool cimport MAX_DEVICES
from accelrt.status cimport NOT_READY, raise_status
cimport accelrt.watch as watch

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from "Python.h":
    PyObject* PyThreadState_GetDict()  # borrowed

# A thread's current streams.  The array belongs to a Currents object in the thread's state dict, which
# dies with the thread; the pointer to it is what the hot paths read.
cdef extern from *:
    """
    typedef struct { PyObject* stream; uintptr_t handle; } accelrt_current;
    static __thread accelrt_current* accelrt_currents;
    """
    ctypedef struct Current "accelrt_current":
        PyObject* stream
        uintptr_t handle
    Current* currents "accelrt_currents"

cdef enum:
    LEGACY = 0        # handles of default streams
    PER_THREAD = 2

cdef object event_type = None
cdef dict defaults = {}  # (ordinal, handle) -> the default Stream


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
        if currents == self.array:
            currents = NULL
        for ordinal in range(MAX_DEVICES):
            Py_XDECREF(self.array[ordinal].stream)
        free(self.array)


cdef void forget_streams() noexcept nogil:
    # In a forked child: the next use goes the slow way and is told about the fork.
    global currents
    currents = NULL


cdef uintptr_t current_handle(int ordinal) noexcept nogil:
    return currents[ordinal].handle if currents != NULL else 0


cdef Stream current_of(int ordinal):
    if currents == NULL or currents[ordinal].stream == NULL:
        return current_slow(ordinal)
    return <Stream>currents[ordinal].stream


cdef Stream current_slow(int ordinal):
    cdef Stream stream
    count_devices()
    stream = default_of(ordinal, LEGACY)
    make_current(stream)
    return stream


cdef int make_current(Stream stream) except -1:
    global currents
    cdef Currents owner
    cdef PyObject* before
    if currents == NULL:
        owner = Currents()
        (<dict>PyThreadState_GetDict())["accelrt.stream"] = owner
        currents = owner.array
    before = currents[stream.device_index].stream
    Py_INCREF(stream)
    currents[stream.device_index].stream = <PyObject*>stream
    currents[stream.device_index].handle = stream.handle
    Py_XDECREF(before)
    return 0


cdef Stream default_of(int ordinal, uintptr_t handle):
    found = defaults.get((ordinal, handle))
    if found is None:
        found = defaults.setdefault((ordinal, handle), wrap(handle, ordinal, None))
    return found


cdef Stream stream_of(object stream, int ordinal):
    if stream is None:
        return current_of(ordinal)
    if isinstance(stream, Stream):
        return stream
    if isinstance(stream, int) and not isinstance(stream, bool):
        return wrap(stream, ordinal, None)
    if hasattr(stream, "__cuda_stream__"):
        return wrap(stream.__cuda_stream__()[1], ordinal, stream)
    raise TypeError(
        f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream, a handle as int, "
        "an object with __cuda_stream__, or None for the current one"
    )


cdef Stream wrap(uintptr_t handle, int ordinal, object owner):
    cdef Stream stream = Stream.__new__(Stream)
    stream.handle = handle
    stream.device_index = ordinal
    stream.owner = owner
    return stream


cdef int read_priority(object priority) except? -1:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(
            f"priority is {priority!r} of type {type(priority).__name__}; pass an int, the lower the more urgent "
            "(Stream.priority_range() says which there are)"
        )
    return max(-1000, min(1000, priority))  # far outside of every device's range


cdef (int, int) priority_range_of(int ordinal):
    cdef int least = 0, greatest = 0
    cdef int code = registry.active().stream_priority_range(ordinal, &least, &greatest)
    if code:
        raise_status(code, "stream_priority_range", ("device", ordinal))
    return least, greatest


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
    """A queue of work on one device: what is put in runs in that order.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None for the current device.
        priority: int, lower is more urgent; clamped to what the device has (Stream.priority_range()).
    Raises:
        ValueError, TypeError: device names none, or priority is no int.
        CudaError: the driver made no stream.

    Every Stream has a driver stream to itself, which does not synchronise with the legacy default stream
    (CU_STREAM_NON_BLOCKING).  When it dies and its work is complete, another Stream gets the driver stream; what
    it left in the cache of device memory serves the stream that was current when it was made.
    """

    def __init__(self, device=None, priority=0):
        cdef int ordinal = ordinal_of(device)
        cdef int least, greatest, level = 0
        if self.leased != NULL:  # a second call would lose the driver stream that it has
            raise RuntimeError(f"{self!r} is made already; make another Stream")
        if priority is not 0:
            level = read_priority(priority)
            least, greatest = priority_range_of(ordinal)
            level = max(greatest, min(least, level))
        self.leased = lease(ordinal, level, current_handle(ordinal))
        self.handle = self.leased.handle
        self.device_index = ordinal

    def __dealloc__(self):
        if self.leased != NULL:
            give_back(self.leased)

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
        return self.handle

    @property
    def priority(self):
        """int; lower is more urgent."""
        cdef int priority = 0
        cdef int code = 0
        if self.leased != NULL:
            return self.leased.level
        if self.handle:
            code = registry.active().stream_priority(self.device_index, self.handle, &priority)
        if code:
            raise_status(code, "stream_priority", ("stream", self.handle))
        return priority

    def query(self):
        """Whether all work put in so far is complete (cuStreamQuery)."""
        cdef int code
        with nogil:
            code = registry.active().stream_query(self.device_index, self.handle)
        if code and code != NOT_READY:
            raise_status(code, "stream_query", ("stream", self.handle))
        if watch.sanitizing and code == 0:
            watch.note_reached(self.device_index, self.handle)
        return code == 0

    def synchronize(self):
        """Waits until all work put in so far is complete (cuStreamSynchronize).

        Raises:
            CaptureError: the stream is capturing; this breaks the capture.
            CudaError: work failed.
            Exception: whatever a host function raised since the last synchronize.
        """
        cdef int code
        watch.before_wait("Stream.synchronize")
        drain()
        with nogil:
            code = registry.active().stream_synchronize(self.device_index, self.handle)
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
                raises is raised by the next synchronize, of anything; where several raised, as an ExceptionGroup.
                In a capture it becomes a node of the graph.
        Raises:
            TypeError: it cannot be called.
        """
        enqueue_callback(self.device_index, self.handle, function)

    def __cuda_stream__(self):
        """(0, handle): the protocol by which CUDA libraries in Python hand streams to each other."""
        return 0, self.handle

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        return self.handle == (<Stream>other).handle and self.device_index == (<Stream>other).device_index

    def __hash__(self):
        return hash((self.handle, self.device_index))

    def __reduce__(self):
        raise TypeError(
            f"{self!r} cannot be pickled or copied: a driver stream belongs to one object and one process; "
            "make another Stream there"
        )

    def __repr__(self):
        kind = type(self).__name__
        return f"<accelrt.{kind} device={chosen_driver()}:{self.device_index} cuda_stream={self.handle:#x}>"


@cython.freelist(8)
cdef class StreamContext:
    """The context in which a stream, and its device, are current; see stream()."""

    def __init__(self, stream):
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream or None")
        self.stream = stream

    def __reduce__(self):
        raise TypeError("a stream's context cannot be pickled or copied; enter it where it was made")

    def __enter__(self):
        cdef Stream stream, before
        cdef int device, code
        if self.stream is None:
            return None
        stream = self.stream
        code = current_ordinal(&device)
        if code:
            raise_status(code, "current_device")
        if device != stream.device_index:
            set_device(stream.device_index)
        before = current_of(stream.device_index)
        make_current(stream)
        if self.before is None:
            self.before = before
            self.device_before = device
        else:
            self.again = self.again or []
            self.again.append((this_thread(), before, device))
        return stream

    def __exit__(self, kind, error, trace):
        cdef Stream before = self.before
        if self.stream is None or (self.again and self.leave_again()):
            return False
        self.before = None
        return_to(before, self.device_before)
        return False

    cdef int leave_again(self) except -1:
        # Whether this thread had entered it again.
        cdef Py_ssize_t index
        for index in range(len(self.again) - 1, -1, -1):
            if self.again[index][0] == this_thread():
                _, before, device = self.again.pop(index)
                return_to(before, device)
                return 1
        return 0


cdef int return_to(Stream before, int device) except -1:
    make_current(before)
    if device != before.device_index:
        set_device(device)
    return 0


def stream(stream):
    """The context in which a stream is the calling thread's current one, and its device the current one.

        with accelrt.stream(s):
            ...

    Arguments:
        stream: Stream, or None for a context that does nothing.
    Raises:
        TypeError: it is neither.
    """
    return StreamContext(stream)


def current_stream(device=None):
    """The calling thread's current stream of a device.

    Makes no driver call where the device is given or is the only one; among several devices the driver
    is asked which is current.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index; None is the current device.
    Returns:
        Stream, the same object while nothing changed.
    """
    cdef int ordinal
    cdef int code
    if device is not None:
        return current_of(ordinal_of(device))
    code = current_ordinal(&ordinal)
    if code:
        raise_status(code, "current_device")
    return current_of(ordinal)


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


def set_stream(stream):
    """Makes a stream the calling thread's current one, and its device the current one.

    Arguments:
        stream: Stream, or None to change nothing.
    """
    if stream is None:
        return
    cdef Stream chosen = stream
    set_device(chosen.device_index)
    make_current(chosen)


def provide_event_type(kind):
    """Events stand on streams; this is the one word that streams need of them."""
    global event_type
    event_type = kind


pthread_atfork(NULL, NULL, &forget_streams)
