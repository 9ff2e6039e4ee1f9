# cython: embedsignature=False
"""Which stream is current on each thread, and the contexts that change that.

One file, since the contexts exchange the pointers of the thread's current streams themselves: calls into another
extension would cost each `with stream(s)` some 3 %.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from accelrt.core.process cimport FORK_STREAMS, at_fork
from accelrt.devices.device cimport (
    count_devices, current_ordinal, device_total, ordinal_of, switch_back, switch_to,
)
from accelrt.devices.device import set_device
from accelrt.errors import ArgumentError
from accelrt.allocator.device_pools cimport MAX_DEVICES
from accelrt.runtime import init
from accelrt.status cimport NO_DEVICE, raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport LEGACY, default_of, other_stream, provide_current

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
    global currents
    cdef Currents owner
    cdef PyObject* before
    if currents == NULL:
        owner = Currents()
        (<dict>PyThreadState_GetDict())["accelrt.streams.current"] = owner
        currents = owner.array
    before = currents[stream.device_index].stream
    Py_INCREF(stream)
    currents[stream.device_index].stream = <PyObject*>stream
    currents[stream.device_index].handle = stream.handle
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
    currents[ordinal].handle = stream.handle
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
        if not (<Stream>stream).made:
            refuse_unmade(stream)
        return stream
    return other_stream(stream, ordinal)


cdef Stream stream_for(object stream, int ordinal, str what):
    cdef Stream found = stream_of(stream, ordinal)
    if found.device_index != ordinal:
        raise_elsewhere(found, ordinal, what)
    return found


cdef int raise_elsewhere(Stream stream, int ordinal, str what) except -1:
    raise ArgumentError(
        f"stream is on device {stream.device_index}, {what} on {ordinal}; pass a stream of device {ordinal}, which may "
        f"wait for this one (Stream.wait_stream): handle {stream.handle:#x}"
    )


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


def set_stream(stream):
    """Makes a stream the calling thread's current one, and its device the current one.

    Arguments:
        stream: Stream, or None to change nothing.
    """
    if stream is None:
        return
    cdef Stream chosen = stream
    if not chosen.made:
        refuse_unmade(chosen)
    set_device(chosen.device_index)
    make_current(chosen)


def _set_stream_by_id(stream_id, device_index, device_type):
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
        (<dict>PyThreadState_GetDict())["accelrt.streams.current.entries"] = owner
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
    cdef Entry gone = entered.entries[index]
    cdef Entry* entry = &entered.entries[index]
    cdef int ordinal = (<Stream>gone.before).device_index
    cdef PyObject* other = NULL
    cdef int inner
    (<StreamContext>gone.context).open -= 1
    entered.depth -= 1
    memmove(entry, entry + 1, (entered.depth - index) * sizeof(Entry))
    if index < entered.depth:
        entry.device = gone.device
    for inner in range(index, entered.depth):
        other = entered.entries[inner].before
        if (<Stream>other).device_index == ordinal:
            entered.entries[inner].before = gone.before
            break
    else:
        other = NULL
        put_back(gone.before)
    Py_XDECREF(other)
    Py_XDECREF(gone.context)
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
    The context in which a stream, and its device, are current; see stream()."""

    def __init__(self, stream):
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"stream is {stream!r} of type {type(stream).__name__}; pass a Stream or None")
        if stream is not None and not (<Stream>stream).made:
            refuse_unmade(stream)
        if self.open:
            raise RuntimeError("this stream context is entered; make another one")
        self.stream = stream

    def __reduce__(self):
        refuse_copy(self, "what it returns to belongs to the thread that enters it; make another one")

    def __enter__(self):
        if self.stream is None:
            return None
        enter_context(self)
        return self.stream

    def __exit__(self, kind, error, trace):
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
    context.open += 1
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
    context.open -= 1
    Py_DECREF(context)
    return_to(entry.before, entry.device)
    return False


cdef int enter_own(Stream stream) except -1:
    # `with s:` of a Stream.
    cdef StreamContext context
    if not stream.made:
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


def stream(stream):
    """The context in which a stream is the calling thread's current one, and its device the current one.

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


provide_current(&stream_of, &enter_own, &leave_own)
at_fork("streams.current", FORK_STREAMS, NULL, NULL, &forget_in_child)
