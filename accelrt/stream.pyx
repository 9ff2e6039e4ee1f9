"""Streams: queues of work on a device, and which one is current on each thread."""
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdlib cimport calloc, free

from accelrt.callback cimport enqueue_callback, raise_callback_errors
from accelrt.deferred cimport drain
from accelrt.device cimport count_devices, current_ordinal, device_at, ordinal_of
from accelrt.device import set_device
cimport accelrt.driver.registry as registry
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

cdef object event_type = None
cdef dict defaults = {}  # ordinal -> the legacy default Stream


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
    stream = default_of(ordinal)
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


cdef Stream default_of(int ordinal):
    found = defaults.get(ordinal)
    if found is None:
        found = defaults.setdefault(ordinal, wrap(0, ordinal, None))
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


cdef (int, int) priority_range_of(int ordinal):
    cdef int least = 0, greatest = 0
    cdef int code = registry.active().stream_priority_range(ordinal, &least, &greatest)
    if code:
        raise_status(code, "stream_priority_range", ("device", ordinal))
    return least, greatest


cdef class Stream:
    """A queue of work on one device: what is put in runs in that order.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None for the current device.
        priority: int, lower is more urgent; clamped to what the device has (Stream.priority_range()).
    Raises:
        ValueError, TypeError: device names none, or priority is no int.
        CudaError: the driver made no stream.

    Every Stream has a driver stream to itself, which does not synchronise with the legacy default stream
    (CU_STREAM_NON_BLOCKING).
    """

    def __init__(self, device=None, int priority=0):
        cdef int ordinal = ordinal_of(device)
        cdef int least, greatest
        if priority:
            least, greatest = priority_range_of(ordinal)
            priority = max(greatest, min(least, priority))
        self.handle = lease(ordinal, priority)
        self.device_index = ordinal
        self.level = priority
        self.leased = True

    def __dealloc__(self):
        if self.leased:
            give_back(self.device_index, self.level, self.handle)

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
        cdef int priority = self.level
        cdef int code = 0
        if not self.leased and self.handle:
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
        if not isinstance(event, event_type):
            raise TypeError(f"event is {event!r} of type {type(event).__name__}; pass an Event")
        event.wait(self)

    def wait_stream(self, stream):
        """Makes later work of this stream wait for everything put into another one so far.

        Arguments:
            stream: Stream, of any device.
        """
        self.wait_event((<Stream?>stream).record_event())

    def record_event(self, event=None):
        """Records an event here, one made for it by default, and returns it."""
        if event is None:
            event = event_type()
        event.record(self)
        return event

    def launch_host_func(self, function):
        """Calls a Python function when the work put in so far is complete (cuLaunchHostFunc).

        Arguments:
            function: called with nothing, on a thread of the driver; it may not use the device.  What it
                raises is raised by the next synchronize.  In a capture it becomes a node of the graph.
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

    def __repr__(self):
        kind = type(self).__name__
        return f"<accelrt.{kind} device={self.device.type}:{self.device_index} cuda_stream={self.handle:#x}>"


class ExternalStream(Stream):
    """A stream that another library made and owns.

    Arguments:
        stream_ptr: int, the driver's handle (CUstream).
        device: the device that it belongs to; None is the current one.
        owner: any object, kept alive as long as this one.
    Raises:
        TypeError, ValueError: stream_ptr is not an int, or is negative.
    """

    def __init__(self, stream_ptr, device=None, owner=None):
        cdef Stream self_ = self
        if isinstance(stream_ptr, bool) or not isinstance(stream_ptr, int):
            raise TypeError(f"stream_ptr is {stream_ptr!r}; pass the stream's handle as an int")
        if not 0 <= stream_ptr < 1 << 64:
            raise ValueError(f"stream_ptr is {stream_ptr}; a handle is an int from 0 to 2**64 - 1")
        self_.device_index = ordinal_of(device)
        self_.handle = stream_ptr
        self_.owner = owner


cdef class StreamContext:
    """The context in which a stream, and its device, are current; see stream()."""

    def __init__(self, stream):
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream or None")
        self.stream = stream

    def __enter__(self):
        cdef Stream stream
        cdef int code
        if self.stream is None:
            return None
        stream = self.stream
        code = current_ordinal(&self.device_before)
        if code:
            raise_status(code, "current_device")
        if self.device_before != stream.device_index:
            set_device(stream.device_index)
        self.before = current_of(stream.device_index)
        make_current(stream)
        return stream

    def __exit__(self, kind, error, trace):
        if self.stream is None:
            return False
        make_current(self.before)
        if self.device_before != self.before.device_index:
            set_device(self.device_before)
        return False


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
    """A device's legacy default stream (CU_STREAM_LEGACY), whose handle is 0."""
    return default_of(ordinal_of(device))


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
