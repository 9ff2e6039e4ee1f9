"""Stream contexts: in which a stream is the current one of a thread, and its device the current one."""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from accelrt.runtime import init
from accelrt.devices.device cimport device_total, switch_back, switch_to
from accelrt.status cimport refuse_copy, refuse_unmade
from accelrt.streams.stream cimport Stream, current_of, exchange_current, put_back

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from "Python.h":
    PyObject* PyThreadState_GetDict()  # borrowed
    Py_ssize_t Py_REFCNT(PyObject* thing)

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


cdef void forget_entries() noexcept nogil:
    # In a forked child: there what was entered before is left without a word.
    global entered, is_forked
    entered = NULL
    is_forked = is_used


cdef int see_to_room() except -1:
    # For one entry more.
    global entered, is_used
    cdef Entries owner
    cdef int room
    cdef Entry* larger
    if entered == NULL:
        is_used = True
        owner = Entries()
        (<dict>PyThreadState_GetDict())["accelrt.streams.stream_context"] = owner
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
        see_to_room()
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
    # Ends the entries inside of one whose contexts nobody holds any more and so nobody can leave; answers how many
    # others there are.
    cdef PyObject* context
    cdef int inner
    for inner in range(entered.depth - 1, index, -1):
        context = entered.entries[inner].context
        if Py_REFCNT(context) == (<StreamContext>context).open:
            unlink(inner)
    return entered.depth - 1 - index


@cython.freelist(8)
cdef class StreamContext:
    """The context in which a stream, and its device, are current; see stream()."""

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
        cdef Stream stream
        cdef PyObject* before
        cdef Entry* entry
        cdef int device
        if self.stream is None:
            return None
        stream = self.stream
        device = switch_to(stream.device_index) if device_total != 1 else 0
        before = exchange_current(stream)
        if entered == NULL or entered.depth == entered.room:
            make_room(before, device)
        entry = &entered.entries[entered.depth]
        Py_INCREF(self)
        self.open += 1
        entry.context = <PyObject*>self
        entry.before = before
        entry.device = device
        entered.depth += 1
        return stream

    def __exit__(self, kind, error, trace):
        cdef Entry* entry
        if self.stream is None:
            return False
        if entered == NULL or entered.depth == 0:
            return self.leave_slow()
        entry = &entered.entries[entered.depth - 1]
        if entry.context != <PyObject*>self:
            return self.leave_slow()
        entered.depth -= 1
        self.open -= 1
        Py_DECREF(self)
        return_to(entry.before, entry.device)
        return False

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


pthread_atfork(NULL, NULL, &forget_entries)
