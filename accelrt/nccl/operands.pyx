"""Keeps what a group of operations uses until its end: arrays, which are read and checked, noted on their streams and kept
by the graph of a capture; the handles of communicators; and the group itself.

A Hold has a communicator's handle and counts who is in a call of the backend with it, so that nobody frees it meanwhile.
Operations come in by a Turn and find the handle, or are refused.  Who ends the communicator takes the handle first, so that
later calls are refused, and frees it once those inside have left.  Groups are counted here too: nothing runs Python between
a look and its count, so that neither a signal's handler nor another thread comes in between.
"""
import threading

from cpython.exc cimport PyErr_WriteUnraisable
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uintptr_t

from accelrt.arrays.array cimport Array, Buffer, check_live
from accelrt.arrays.exchange import asarray, from_dlpack
from accelrt.arrays.copy cimport Operand, keep, note_use, read_array, record_for
from accelrt.core.integers cimport checked_int
from accelrt.core.process import ForkSafeLock, call_at_fork
from accelrt.devices.device cimport switch_back, switch_to
from accelrt.errors import NcclError
from accelrt.runtime.lifetimes cimport OTHERS, Record, any_capture, keep_where_captured
cimport accelrt.runtime.access as watch
from accelrt.status cimport refuse_copy
from accelrt.streams.stream cimport exchange_current, put_back, Stream, stream_for

# stub: groups: Groups

cdef enum:
    INVALID_USAGE = 5  # ncclResult_t

cdef str ended = None  # why nothing is entered any more: the process ends


# --- arrays --------------------------------------------------------------------------------------------------------

def stream_on(stream: object, int ordinal) -> Stream:
    """The Stream that an argument stands for; None is the device's current one.

    Raises:
        ValueError, TypeError: it is on another device, dead, or no stream.
    """
    return stream_for(stream, ordinal, "the communicator")


def checked_number(value: object, str name not None, long least, long most) -> int:
    """An int argument from least to most.

    Raises:
        TypeError, ValueError: it is none.
    """
    return checked_int(value, name, least, most, "an int")


def as_array(source: object, str refusal=None) -> Array:
    """An Array of what is given, on a device or the host, without a copy.

    Arguments:
        refusal: what the error says of what is no array.
    Raises:
        TypeError, BufferError, ValueError: it is no array.
    """
    if isinstance(source, Array):
        return source
    if isinstance(source, Buffer):
        return Array(source)
    if hasattr(source, "__dlpack__"):
        return from_dlpack(source)
    if hasattr(source, "__cuda_array_interface__"):
        return asarray(source, copy=False)
    raise TypeError(f"{refusal or type(source).__name__ + ' is no array'}; pass an Array, a Buffer, or an array with "
                    "__dlpack__ or __cuda_array_interface__")


cdef Array import_array(object source, Stream stream, str name):
    # DLPack and the CUDA Array Interface order the memory for the current stream, whose work has to be done before the
    # memory is given back to its owner.
    cdef PyObject* before
    cdef int device = switch_to(stream.device_index)  # libraries record their events on the current device
    try:
        before = exchange_current(stream)
        try:
            return as_array(source, f"{name} is of type {type(source).__name__}")
        finally:
            put_back(before)
    finally:
        switch_back(device)


def read(source: object, Stream stream, str name, bint writable) -> Array:
    """An Array of what a collective reads or writes, without a copy.

    Arguments:
        source: Array, Buffer, or an array of another library's (__dlpack__, __cuda_array_interface__), for whose work
            the stream then waits.
        stream: of the collective.
        name: of the argument, for errors.
        writable: whether the collective writes it.
    Raises:
        TypeError: it is no array.
        ValueError: it is not contiguous, in host memory, on another device, freed, or read-only and to be written.
    """
    cdef Operand side
    cdef Array array
    if isinstance(source, Array):
        array = source
    else:
        array = Array(source) if isinstance(source, Buffer) else import_array(source, stream, name)
    read_array(&side, array, name, writable)
    if array.device_index != stream.device_index:
        where = f"on device {array.device_index}" if array.device_index >= 0 else "in host memory"
        raise ValueError(f"{name} is {where}, the communicator on device {stream.device_index}; pass a copy on that device, "
                         f"accelrt.asarray({name}, device={stream.device_index})")
    if not array.dense():
        raise ValueError(f"{name} has shape {array.shape} and strides {array.strides}; collectives take contiguous arrays: "
                         "pass a copy()")
    return array


# stub: def announce(stream: Stream, call: str, reads: tuple[Array, ...], writes: tuple[Array, ...]) -> None: ...
def announce(Stream stream not None, str call not None, tuple reads not None, tuple writes not None) -> None:
    """Tells the race detector of a collective, before its use of the memory begins.

    Raises:
        RaceError: nothing orders it with earlier work on the same bytes.
    """
    if watch.detects_races():
        uses = [((<Array>each).ptr, (<Array>each).size * (<Array>each).itemsize, "r") for each in reads]
        uses += [((<Array>each).ptr, (<Array>each).size * (<Array>each).itemsize, "w") for each in writes]
        watch.note_work(stream.device_index, stream.handle, call, [use for use in uses if use[1]])


# stub: def begin(stream: Stream, call: str, reads: tuple[Array, ...], writes: tuple[Array, ...], source: Array | None, target: Array | None, token: object) -> tuple[bool, int, int]: ...  # no-cython-lint
def begin(
    Stream stream not None, str call not None, tuple reads not None, tuple writes not None, Array source,
    Array target, token: object,
) -> tuple[bool, int, int]:
    """Does what comes before a collective is put into its stream, within the use of its memory (MemoryUse).

    Where the stream captures for a graph of accelrt's, the graph keeps the arrays and the token alive.  The allocators learn
    of the stream now, so that memory which another thread frees meanwhile is not handed out before the collective is done.

    Returns:
        (bool, whether the stream is in a capture; int, int, the addresses of source and target, 0 for None).
    Raises:
        ValueError: an array was freed meanwhile.
    """
    cdef Operand side
    cdef Array array
    cdef Record record
    cdef uintptr_t origin = 0 if source is None else source.ptr, to = 0 if target is None else target.ptr
    for array in (*reads, *writes):
        check_live(array, call)
    record = record_for(stream)
    for array in (*reads, *writes):
        read_array(&side, array, call, False)
        if record is not None:
            keep(&side, None, record)
        note_use(&side, stream, False, False)
    if record is not None:
        record.kept.append(token)
        return True, origin, to
    return any_capture() and keep_where_captured(stream.device_index, stream.handle, token) == OTHERS, origin, to


# --- handles -------------------------------------------------------------------------------------------------------

cdef class Hold:
    """One communicator's handle of its backend.

    Arguments:
        why: str, why there is no handle yet.
    Attributes:
        why: str, why there is no handle, where there is none.
    """
    # stub: order: ForkSafeLock
    # stub: calling: ForkSafeLock

    cdef object handle    # None where it was not made, or was taken
    cdef readonly str why
    cdef dict inside      # by thread: in how many calls with the handle it is
    cdef bint owes_free   # whether the handle was taken and not yet freed
    cdef object late      # function that frees the handle once nobody is inside
    cdef readonly object order    # ForkSafeLock: one thread at a time puts operations into streams
    cdef readonly object calling  # ForkSafeLock: one thread at a time is in a call of the backend; after `order`
    cdef object __weakref__

    def __cinit__(self):
        self.why = "it was never made"
        self.inside = {}
        self.order = ForkSafeLock()
        self.calling = ForkSafeLock()

    def __init__(self, str why not None) -> None:
        self.why = why

    def __reduce__(self):
        refuse_copy(self, "it is of a communicator")

    @property
    def is_open(self) -> bool:
        """bool, whether calls are let in."""
        return self.handle is not None and ended is None

    @property
    def has_handle(self) -> bool:
        """bool, whether there is a handle to free."""
        return self.handle is not None

    @property
    def is_mine(self) -> bool:
        """bool, whether this thread is inside: it would wait for itself."""
        return PyThread_get_thread_ident() in self.inside

    @property
    def is_busy(self) -> bool:
        """bool, whether any thread is inside."""
        return bool(self.inside)

    def give(self, handle: object) -> None:
        """Lets calls in, with a handle."""
        self.handle = handle
        self.owes_free = False
        self.why = ""

    def take(self, str why not None) -> object:
        """The handle, or None; whoever gets it frees it, once nobody is inside."""
        handle = self.handle
        self.handle = None
        if handle is not None:
            self.why = why
            self.owes_free = True
        return handle

    def free(self, function: Callable[[], object]) -> None:
        """Calls a function that frees the handle which was taken: now, or where a thread is inside, as the last one
        leaves.  It is called once: who was interrupted may ask for it again."""
        if self.inside:
            self.late = function
        elif self.owes_free:
            self.owes_free = False
            function()

    def refuse(self) -> NcclError:
        """The error that calls get."""
        text = f"the communicator cannot be used: {ended or self.why}; make another one"
        return NcclError(text, INVALID_USAGE, "INVALID_USAGE", "check")

    cdef object enter(self):
        if self.handle is None or ended is not None:
            raise self.refuse()
        thread = PyThread_get_thread_ident()
        self.inside[thread] = self.inside.get(thread, 0) + 1
        return self.handle

    cdef int leave(self) except -1:
        thread = PyThread_get_thread_ident()
        cdef long calls = self.inside[thread] - 1
        if calls:
            self.inside[thread] = calls
            return 0
        del self.inside[thread]
        function = self.late
        if function is not None and not self.inside:
            self.late = None
            try:
                self.free(function)
            except BaseException:
                PyErr_WriteUnraisable(function)
        return 0


cdef class Turn:
    """A context in which a thread has some locks, and the handles of some communicators stay alive; it gives the list of
    these.  An interruption while it begins leaves the locks free.

    Arguments:
        holds: list of Hold, each once.
        locks: list of ForkSafeLock, in the order in which all threads take them.
    Raises:
        NcclError: one has no handle.
    """

    cdef list holds
    cdef list locks
    cdef int taken    # locks
    cdef int entered  # holds
    cdef object __weakref__

    # stub: def __init__(self, holds: list[Hold], locks: list[ForkSafeLock]) -> None: ...
    def __init__(self, list holds not None, list locks not None) -> None:
        self.holds = holds
        self.locks = locks

    def __reduce__(self):
        refuse_copy(self, "it is what a thread does now")

    def __enter__(self) -> list[object]:
        cdef Hold hold
        cdef list handles = []
        if self.locks is None:
            raise RuntimeError("this Turn was never initialised; make one with Turn(holds, locks)")
        try:
            while self.taken < len(self.locks):
                self.locks[self.taken].acquire()
                self.taken += 1
            for hold in self.holds:
                handle = hold.enter()
                self.entered += 1
                handles.append(handle)
        except BaseException:
            self.end()
            raise
        return handles

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    cdef int end(self) except -1:
        cdef Hold hold
        try:
            while self.entered:
                self.entered -= 1
                hold = self.holds[self.entered]
                hold.leave()
        finally:
            while self.taken:
                self.taken -= 1
                self.locks[self.taken].release()
        return 0


# stub: def turn_of(holds: list[Hold]) -> Turn: ...
def turn_of(list holds not None) -> Turn:
    """A Turn with these communicators' handles that takes turns with others that put operations into streams."""
    return Turn(holds, [(<Hold>hold).order for hold in sorted(holds, key=id)])


# stub: def calls_of(holds: list[Hold]) -> Turn: ...
def calls_of(list holds not None) -> Turn:
    """A Turn for a call of the backend with these communicators: NCCL lets one thread at a time in."""
    return Turn([], [(<Hold>hold).calling for hold in sorted(holds, key=id)])


def end_all(str why not None) -> None:
    """Has all later calls refused, of all communicators."""
    global ended
    ended = why


def has_ended() -> str | None:
    """str, why all calls are refused, or None."""
    return ended


# --- groups --------------------------------------------------------------------------------------------------------

class Groups(threading.local):
    """A thread's open groups, and what was called in them, with the function that performs it."""
    # stub: depth: int
    # stub: pending: list[object]
    # stub: perform: Callable[..., None] | None

    def __init__(self) -> None:
        self.depth = 0
        self.pending = []
        self.perform = None


groups = Groups()


def put(operation: object, perform: Callable[..., None]) -> None:
    """Has an operation performed: at once, or with the others of the thread's open group at its end.

    Arguments:
        perform: function of a list of operations, the same for all.
    """
    if groups.depth:
        groups.pending.append(operation)
        groups.perform = perform
    else:
        perform([operation])


def group_start() -> None:
    """Opens a group on this thread: what is called until group_end() is put into the streams there, all at
    once (ncclGroupStart).  Groups may be nested; the outermost counts."""
    groups.depth += 1


def group_end() -> None:
    """Ends the group, and puts into the streams what was called in it.

    Raises:
        NcclError: NCCL refused an operation; those that came before it may be in their streams.
        RuntimeError: no group is open on this thread.
    """
    if groups.depth == 0:
        raise RuntimeError("group_end() without group_start() on this thread")
    groups.depth -= 1
    if groups.depth == 0:
        pending, groups.pending = groups.pending, []
        if pending:
            groups.perform(pending)


cdef class group:
    """group()\n--\n\n\
    A group as a context: operations of several communicators of one thread, or transfers that wait for
    each other.  If its body raises, none of them is put into a stream.

    with accelrt.nccl.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    """

    cdef object __weakref__

    def __reduce__(self):
        refuse_copy(self, "it is of a thread")

    def __enter__(self) -> None:
        groups.depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            group_end()
        elif groups.depth:
            groups.depth -= 1
            groups.pending.clear()


def forget_in_child() -> None:
    groups.depth = 0
    groups.pending = []


call_at_fork("nccl.operands", "collectives", child=forget_in_child)
