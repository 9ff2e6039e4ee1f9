"""Ranks of communicators: the arrays of their operations, their handles, and groups; and ranks on host devices.

What a group of operations uses is kept until its end: arrays, which are read and checked, noted on their streams and kept by
the graph of a capture; the handles of communicators; and the group itself.

A Hold has a communicator's handle and counts who is in a call of the backend with it, so that nobody frees it meanwhile.
Operations come in by a Turn and find the handle, or are refused.  Who ends the communicator takes the handle first, so that
later calls are refused, and frees it once those inside have left.  Groups are counted here too: nothing runs Python between
a look and its count, so that neither a signal's handler nor another thread comes in between.

The last two parts are the host backend's (host_for_tests.py): a rank shows a chunk of its elements in a slot, and may show
the next one once all who need it have taken it.  All ranks take all chunks that they need and compute the result themselves,
in the order of the ranks, so that all get the same bits.
"""
cimport cython
import contextlib
import fcntl
import functools
import glob
import os
import socket
import stat
import tempfile
import threading
import time

import numpy

from cpython.exc cimport PyErr_WriteUnraisable
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport errno
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_SHARED, mmap, munmap, PROT_READ, PROT_WRITE

from accelrt.allocator.private.sleep cimport count_suspension
from accelrt.arrays.array cimport Array, Buffer, check_live
from accelrt.arrays.exchange import asarray, from_dlpack
from accelrt.arrays.copy cimport Operand, keep, note_use, read_array, record_for
from accelrt.core import dtypes
from accelrt.core.descriptors cimport lift
from accelrt.core.locks cimport add_count, load_count, store_count
from accelrt.core.process import ForkSafeLock, call_at_fork
from accelrt.core.procfs import status_of
from accelrt.core.threads cimport pause
from accelrt.devices.device cimport switch_back, switch_to
from accelrt.errors import CudaError, NcclError
from accelrt.nccl import codes
from accelrt.nccl.codes import BackendError
from accelrt.runtime.lifetimes cimport OTHERS, Record, Sleeper, any_capture, enqueue_callback, keep_where_captured
from accelrt.runtime.access cimport await_uses
cimport accelrt.runtime.access as watch
from accelrt.status cimport refuse_copy
from accelrt.streams.stream cimport exchange_current, put_back, Stream, stream_for

cdef extern from "<unistd.h>" nogil:
    int close(int file)
    int getpid()

cdef extern from *:
    """
    static inline int accelrt_swap_count(long *count, long from, long to) {
        return __atomic_compare_exchange_n(count, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    """
    bint swap_count "accelrt_swap_count"(long* count, long before, long after) noexcept nogil

# stub: groups: Groups

cdef enum Result:  # ncclResult_t
    SYSTEM_ERROR = 2
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    TIMED_OUT = 8

cdef str ended = None  # why nothing is entered any more: the process ends


# --- arrays --------------------------------------------------------------------------------------------------------

def stream_on(stream: object, int ordinal) -> Stream:
    """The Stream that an argument stands for; None is the device's current one.

    Raises:
        ValueError, TypeError: it is on another device, dead, or no stream.
    """
    return stream_for(stream, ordinal, "the communicator")


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


def read_operand(source: object, Stream stream, str name, bint writable) -> Array:
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


# stub: def begin_operation(stream: Stream, call: str, reads: tuple[Array, ...], writes: tuple[Array, ...], source: Array | None, target: Array | None, token: object) -> tuple[bool, int, int]: ...  # no-cython-lint
def begin_operation(
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


def refuse_beside_captures(str call not None) -> None:
    """Raises where a capture is under way: what waits for a device would break it.

    Raises:
        RuntimeError: one is.
    """
    if any_capture():
        raise RuntimeError(f"{call}: a capture is under way, beside which the device cannot be waited for; call it before "
                           "or after that")


# stub: class InGraph:
cdef class InGraph(Sleeper):
    """The part of an operation that a graph keeps: its communicator, which then cannot be closed."""

    cdef Hold hold
    cdef object comm
    cdef object __weakref__

    # stub: def __init__(self, comm: object, hold: Hold) -> None: ...
    def __init__(self, comm, Hold hold not None) -> None:
        self.comm, self.hold = comm, hold

    def __reduce__(self):
        refuse_copy(self, "it is of a graph")

    cdef int refuse_asleep(self) except -1:
        # NVIDIA's kernels would find no memory at their addresses, which ends the context.
        self.hold.check_awake()
        return 0


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
    cdef int slept_in     # the process in which it is suspended, or 0
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

    @property
    def suspended(self) -> bool:
        """bool, whether the device may have the backend's memory back."""
        return self.slept_in != 0

    def suspend(self) -> None:
        """Refuses operations and replays from now on, and waits for the launches of replays that have begun."""
        if not self.slept_in:
            self.slept_in = getpid()
            count_suspension(1)
        await_uses("suspend", -1, 0, 0)

    def resume(self) -> None:
        """Lets operations and replays in."""
        if self.slept_in == getpid():  # a child of a fork counts none
            count_suspension(-1)
        self.slept_in = 0

    def check_awake(self) -> None:
        """Refuses an operation of a communicator that is suspended.

        Raises:
            NcclError: it is.
        """
        if self.slept_in:
            text = "the communicator is suspended: the device has its memory back; call resume() on all ranks first"
            raise NcclError(text, INVALID_USAGE, "INVALID_USAGE", "check")

    def give(self, handle: object) -> None:
        """Lets calls in, with a handle."""
        self.handle = handle
        self.owes_free = False
        self.why = ""

    @cython.critical_section
    def take(self, str why not None) -> object:
        """Takes the handle out, or answers None; whoever gets it frees it, once nobody is inside."""
        handle = self.handle
        self.handle = None
        if handle is not None:
            self.why = why
            self.owes_free = True
            self.resume()
        return handle

    def free(self, function: Callable[[], object]) -> None:
        """Calls a function that frees the handle which was taken: now, or where a thread is inside, as the last one
        leaves.  It is called once: who was interrupted may ask for it again."""
        with cython.critical_section(self):
            if self.inside:
                self.late = function
            if self.inside or not self.owes_free:
                return
            self.owes_free = False
        function()

    def refuse(self) -> NcclError:
        """The error that calls get."""
        text = f"the communicator cannot be used: {ended or self.why}; make another one"
        return NcclError(text, INVALID_USAGE, "INVALID_USAGE", "check")

    @cython.critical_section
    cdef object enter(self):
        if self.handle is None or ended is not None:
            raise self.refuse()
        thread = PyThread_get_thread_ident()
        self.inside[thread] = self.inside.get(thread, 0) + 1
        return self.handle

    cdef int leave(self) except -1:
        thread = PyThread_get_thread_ident()
        with cython.critical_section(self):
            self.inside[thread] -= 1
            if not self.inside[thread]:
                del self.inside[thread]
            function = None if self.inside else self.late
            if function is not None:
                self.late = None
        if function is not None:
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


# --- ranks on host devices --------------------------------------------------------------------------------------------

cdef enum State:   # of a rank
    ABSENT = 0
    JOINED = 1
    CLOSED = 2
    ABORTED = 3

cdef enum:
    MOST_RANKS = 16
    CHUNK = 1 << 15      # bytes
    LABEL = 128          # bytes
    PAUSE_NS = 50000     # the shortest pause of who waits for others
    LONG_PAUSE_NS = 1000000

cdef struct Slot:              # where one rank shows chunks, one after the other, to one other rank or to all
    long[MOST_RANKS] unread    # 1 for each rank that has still to take the chunk
    char[LABEL] label          # of the operation: ranks that disagree find out
    char[CHUNK] chunk

cdef struct Shared:            # the head of the memory; size slots for each rank follow, and its slot for all
    long size                  # ranks; 0 before the first joined
    long[MOST_RANKS] state
    long[MOST_RANKS] pid
    long[MOST_RANKS] started   # when the process did, in ticks: its number is given anew once it has ended

cdef double LOOK_SECONDS = 0.05    # between two looks at whether the others' processes live
cdef tuple GONE = ("", "Z", "X")  # states of a process: a zombie waits for its parent to ask how it ended
# stub: ID_MARK: bytes
ID_MARK = b"accelrt host for tests\0"

cdef dict BY_NUMBER = {dtype.nccl: dtype for dtype in dtypes.DTYPES if dtype.nccl is not None}
cdef dict REDUCTIONS = {
    codes.SUM: numpy.add,
    codes.PROD: numpy.multiply,
    codes.MAX: lambda one, other: numpy.where(other > one, other, one),
    codes.MIN: lambda one, other: numpy.where(other < one, other, one),
    codes.AVG: numpy.add,
}


# stub: def reduce_chunks(chunks: list[bytes], datatype: int, op: int) -> bytes: ...
def reduce_chunks(list chunks not None, int datatype, int op) -> bytes:
    """The bytes that several ranks' elements are reduced to.

    Floats of less than 32 bits are computed in single precision and rounded once; a mean of integers is rounded towards 0.
    """
    dtype = BY_NUMBER[datatype]
    stored = numpy.dtype(dtype.name)
    computed = numpy.dtype("float32") if dtype.kind == "float" and dtype.bits < 32 else stored
    with numpy.errstate(all="ignore"):
        total = functools.reduce(REDUCTIONS[op], [numpy.frombuffer(each, stored).astype(computed) for each in chunks])
        if op == codes.AVG:
            ranks = computed.type(len(chunks))
            total = total / ranks if dtype.kind == "float" else (total - numpy.fmod(total, ranks)) // ranks
        return total.astype(stored).tobytes()


cdef tuple look_up(long pid):
    # The letter of a process's state, and when it started: numbers are given anew.
    status = status_of(pid)
    return ("", 0) if status is None else (status.state, status.started)


@cython.no_gc_clear  # as it dies it writes into its memory
cdef class Rank:
    """One rank of a communicator: its place in the shared memory, and what went wrong."""

    cdef readonly int rank
    cdef readonly int size        # 0 before it has joined
    cdef readonly int device
    cdef readonly object trouble  # (code, text) or None
    cdef object path              # of the memory's file, while it has a name
    cdef int file                 # its descriptor, which keeps the name from being cleared away, or -1
    cdef double timeout           # seconds that an operation waits for ranks that do nothing, where nobody looks after it
    cdef long looks               # how often somebody asked async_error
    cdef long steps               # that it takes before it is held up (hold_up), or -1
    cdef long awaited             # a bit for each rank that the operation under way waits for
    cdef void* mapped             # that file's memory, or NULL before
    cdef size_t nbytes            # of it
    cdef long pid
    cdef bint suspended
    cdef Stream last              # that an operation was put into
    cdef object __weakref__

    def __cinit__(self):
        self.file = self.steps = -1
        self.pid = getpid()

    def __dealloc__(self):
        # One that was dropped before anybody could end it: its file is cleared away by whoever makes the next one.
        if self.pid == getpid():
            if self.size:
                swap_count(&(<Shared*>self.mapped).state[self.rank], JOINED, ABORTED)
            if self.file >= 0:
                close(self.file)
        if self.mapped != NULL:
            munmap(self.mapped, self.nbytes)

    def __reduce__(self):
        refuse_copy(self, "it is a rank of this process's")

    cdef int map(self, size_t nbytes) except -1:
        # Python's mmap has a descriptor of its own, which may be one of the standard streams'.
        cdef void* mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, self.file, 0)
        if mapped == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        self.mapped, self.nbytes = mapped, nbytes
        return 0

    cdef Shared* shared(self) except NULL:
        if self.mapped == NULL or self.pid != getpid():
            raise BackendError(INVALID_USAGE, "the rank is closed, or another process's")
        return <Shared*>self.mapped

    cdef Slot* slot(self, int writer, int reader) except NULL:
        # Where one rank shows to another one, or to all, whose number is size.
        return <Slot*>(self.shared() + 1) + writer * (self.size + 1) + reader

    cdef long state(self, int peer) except -1:
        return load_count(&self.shared().state[peer])

    cdef int join(self, int size, int number) except -1:
        cdef Shared* shared = self.shared()
        if not swap_count(&shared.size, 0, size) and shared.size != size:
            raise BackendError(INVALID_ARGUMENT, f"another rank says that there are {shared.size} ranks")
        if not swap_count(&shared.pid[number], 0, self.pid):
            raise BackendError(INVALID_ARGUMENT, f"rank {number} is taken, by process {shared.pid[number]}")
        store_count(&shared.started[number], look_up(self.pid)[1])
        store_count(&shared.state[number], JOINED)
        self.rank, self.size = number, size
        return 0

    cdef bint have_all_come(self) except -1:
        return all([self.state(peer) != ABSENT for peer in range(self.size)])

    cdef int leave(self, long state) except -1:
        if self.size and self.pid == getpid():
            swap_count(&self.shared().state[self.rank], JOINED, state)
            self.forget_name()
        return 0

    cdef int forget_name(self) except -1:
        # Once all have come; before that the last one does, so that who comes late finds that others have left.
        path, file = self.path, self.file
        self.path, self.file = None, -1
        try:
            if path is not None:
                if not self.have_all_come():
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if file >= 0:
                os.close(file)
        return 0

    cdef int fail(self, int code, str text) except -1:
        # The others are not left waiting.
        if self.trouble is None:
            self.trouble = (code, text)
        return self.leave(ABORTED)

    cdef int run(self, list operations) except -1:
        # On a thread of the host driver.
        if self.trouble is not None:
            return 0
        if self.suspended:  # on a GPU a kernel would find no memory, and the context would end
            return self.fail(INVALID_USAGE, "an operation ran while the communicator was suspended")
        try:
            self.perform([(each[0], self.pass_chunks(*each[1:])) for each in operations])
        except BackendError as error:
            self.fail(error.code, error.text)
        except BaseException:
            self.fail(SYSTEM_ERROR, "the operation could not be performed: an exception was raised in it")
            raise
        finally:
            self.awaited = 0
        return 0

    cdef int perform(self, list passing) except -1:
        # Until all is done, something is wrong, or others did nothing for too long.
        cdef double idle = 0, now, looked = time.monotonic()
        cdef long long rest = PAUSE_NS
        cdef long before = load_count(&self.looks)
        while passing:
            if self.state(self.rank) != JOINED:
                raise BackendError(INVALID_USAGE, "the communicator was aborted")
            if self.steps and self.advance(passing):
                self.steps -= self.steps > 0
                idle, rest = 0, PAUSE_NS
                continue
            now = time.monotonic()
            with nogil:
                pause(rest)
            rest = min(2 * rest, <long long>LONG_PAUSE_NS)
            if self.steps == 0:  # what is held up waits for nobody
                continue
            # A second at most, for this process may have been stopped itself.
            idle += min(time.monotonic() - now, 1.0)
            if before != load_count(&self.looks):  # who waits for it has a limit of their own, as with NCCL
                before, idle = load_count(&self.looks), 0
            looks = now > looked + LOOK_SECONDS
            if looks:
                looked = now
            error = self.find_gone(self.awaited, looks)
            if error is None and idle > self.timeout:
                error = BackendError(TIMED_OUT, f"nothing came within {self.timeout:g} s from {awaited(self)}")
            if error is not None:
                if not self.advance(passing):  # what is needed may have come before the rank left
                    raise error
                idle = 0
        return 0

    cdef bint advance(self, list passing) except -1:
        # One round over the operations of a group; each waits for those before it in its lane.  Answers whether any got on.
        cdef long awaited = 0
        cdef bint has_moved = False
        cdef set busy = set()
        for each in list(passing):
            lane, chunks = each
            if lane in busy:
                continue
            waits_for = next(chunks, None)
            has_moved |= not waits_for
            if waits_for is None:
                passing.remove(each)
            else:
                busy.add(lane)
                awaited |= waits_for
        self.awaited = awaited
        return has_moved

    def pass_chunks(self, str call not None, uintptr_t source, uintptr_t target, size_t count, size_t itemsize, int datatype,
                    int op, int root) -> Iterator[int]:
        """Performs an operation, chunk by chunk: an iterator of the ranks that it waits for, a bit for each; 0 after a step.

        Arguments:
            as of issue().
        """
        cdef size_t nbytes = count * itemsize, done = 0, total, size
        cdef int part, writer, reader, own = self.rank
        cdef char* into
        cdef Slot* slot
        kind, everyone = codes.OPERATIONS[call], range(self.size)
        is_transfer, is_spread = kind.root == "peer", kind.source == codes.PARTS
        shows = kind.source and (kind.root != "source" or root == own)
        takes = kind.target and (kind.root != "target" or root == own)
        writers = [root] if kind.root in ("source", "peer") else everyone
        label = f"send or recv of {nbytes} bytes a rank".encode() if is_transfer else (
            f"{call} of {nbytes} bytes a rank (datatype {datatype}, op {op}, root {root})".encode())
        total = nbytes * self.size if is_spread else nbytes
        while done < total:
            part, size = done // nbytes, min(nbytes - done % nbytes, <size_t>CHUNK)
            if shows:
                slot = self.slot(own, root if is_transfer else self.size)
                while waits_for := unread(slot, self.size):
                    yield waits_for
                memcpy(slot.chunk, <char*>source + done, size)
                memcpy(slot.label, <char*>label, len(label) + 1)
                for reader in [part] if is_spread else [root] if kind.root in ("target", "peer") else everyone:
                    store_count(&slot.unread[reader], 1)
                yield 0
            if takes and (not is_spread or part == own):
                reader = own if is_transfer else self.size
                while waits_for := self.find_unshown(writers, reader):
                    yield waits_for
                self.check_labels(writers, reader, label)
                into = <char*>target + done % nbytes
                if kind.reduces:
                    result = reduce_chunks([self.slot(writer, reader).chunk[:size] for writer in writers], datatype, op)
                    memcpy(into, <char*>result, size)
                for writer in writers:
                    slot = self.slot(writer, reader)
                    if kind.target == codes.PARTS:
                        into = <char*>target + writer * nbytes + done % nbytes
                    if not kind.reduces and (writer != own or into != <char*>source + done):  # which may be read-only
                        memcpy(into, slot.chunk, size)
                    store_count(&slot.unread[own], 0)
                yield 0
            done += size

    cdef long find_unshown(self, object writers, int reader) except -1:
        cdef long waits_for = 0
        cdef int writer
        for writer in writers:
            waits_for |= (not load_count(&self.slot(writer, reader).unread[self.rank])) << writer
        return waits_for

    cdef int check_labels(self, object writers, int reader, bytes label) except -1:
        cdef int writer
        for writer in writers:
            shown = <bytes>self.slot(writer, reader).label
            if shown != label:
                raise BackendError(INVALID_ARGUMENT, f"the ranks disagree: rank {writer} is at {shown.decode()}, "
                                                     f"this one at {label.decode()}")
        return 0

    cdef object find_gone(self, long awaited, bint looks):
        # The error where a rank that is waited for has left, or where it looks, where any rank's process has ended.
        cdef int peer
        for peer in range(self.size):
            state = self.state(peer)
            if (state in (CLOSED, ABORTED) and awaited >> peer & 1) or (
                    looks and state == JOINED and self.process_state(peer) in GONE):
                return BackendError(REMOTE_ERROR, f"rank {peer} has left, or its process has ended "
                                                  f"(process {load_count(&self.shared().pid[peer])})")
        return None

    cdef str process_state(self, int peer):
        # "" where there is none any more: its number may have been given anew.
        cdef Shared* shared = self.shared()
        state, started = look_up(load_count(&shared.pid[peer]))
        return state if started == load_count(&shared.started[peer]) else ""


cdef long unread(Slot* slot, int size) noexcept:
    cdef long waits_for = 0
    cdef int reader
    for reader in range(size):
        waits_for |= load_count(&slot.unread[reader]) << reader
    return waits_for


# --- the memory that ranks on host devices share -----------------------------------------------------------------------

def path_of(bytes name not None) -> str:
    """The file that the ranks of a communicator share."""
    if not name.startswith(ID_MARK):
        raise BackendError(INVALID_ARGUMENT, "the id is none of the host backend's: make it by unique_id() on host devices")
    return prefix() + name[len(ID_MARK):][:16].hex()


def prefix() -> str:
    """Returns how the names of these files begin; this user's."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    return f"{folder}/accelrt-nccl-for-tests-{os.getuid()}-"


cdef int clear_away() except -1:
    # Files of communicators whose ranks never all came, and were killed: nobody has them locked any more.
    for path in glob.glob(glob.escape(prefix()) + "*"):
        with contextlib.suppress(OSError):  # it is in use, or was cleared away
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(file)
    return 0


cdef int open_file(str path) except -1:
    # The file, locked against being cleared away; one that was while it was opened is opened anew.
    cdef int file
    while True:
        file = lift(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            status = os.fstat(file)
            if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
                raise PermissionError(f"{path} is another user's")
            if status.st_nlink:
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


# --- the host backend ---------------------------------------------------------------------------------------------------

class OpenGroup(threading.local):
    """A thread's group: a list of (rank, stream, operation, captured), or None where none is open."""
    # stub: operations: list[object] | None

    operations = None


cdef object open_group = OpenGroup()


def split(Rank rank not None, int color, int key, child) -> Rank | None:
    """The part of a communicator's ranks that name one colour; as init_rank.  child: the Communicator that it is for,
    or None for a rank that is in none."""
    rank.shared()
    if child is None:
        return None
    return init_rank(child.size, child._name, child.rank, child.device_index, child.timeout)


# stub: def shrink(rank: Rank, left_out: tuple[int, ...], aborts: bool, child: object) -> Rank: ...
def shrink(Rank rank not None, tuple left_out not None, bint aborts, child) -> Rank:
    """Those ranks of a communicator that are not left out; as init_rank.  child: the Communicator that it is for."""
    rank.shared()
    if aborts:
        revoke(rank)
    return init_rank(child.size, child._name, child.rank, child.device_index, child.timeout)


def init_rank(int size, bytes name not None, int number, int device, double timeout, config=None) -> Rank:
    """One rank; it is in progress until the others have come.  config: settings of NCCL's, which change nothing here."""
    cdef Rank rank = Rank()
    if size > MOST_RANKS:
        raise BackendError(INVALID_ARGUMENT, f"the host backend for tests has at most {MOST_RANKS} ranks")
    path = path_of(name)
    try:
        clear_away()
        rank.file = open_file(path)
        nbytes = sizeof(Shared) + size * (size + 1) * sizeof(Slot)
        os.posix_fallocate(rank.file, 0, nbytes)  # a page that is not there at its use would be a SIGBUS
        rank.map(nbytes)
        rank.join(size, number)
    except OSError as error:
        raise BackendError(SYSTEM_ERROR, f"memory to share could not be made: {error}") from error
    rank.device, rank.timeout, rank.path = device, timeout, path
    return rank


def in_progress(Rank rank not None) -> bool:
    """Tells whether other ranks are still to come.

    Raises:
        BackendError: one has left.
    """
    rank.shared()
    if rank.path is None:
        return False
    if rank.have_all_come():
        rank.forget_name()
        return False
    error = rank.find_gone(-1, True)
    if error is not None:
        raise error
    return True


def awaited(Rank rank not None) -> str:
    """str, the ranks that it waits for; empty where there are none."""
    cdef int peer
    cdef list names = []
    for peer in range(rank.size):
        if rank.path is not None and rank.state(peer) == ABSENT:
            names.append(f"rank {peer}, which has not come")
        elif rank.awaited >> peer & 1:
            state = rank.process_state(peer)
            word = ", which is stopped" if state in ("T", "t") else ", which has ended" if state in GONE else ""
            pid = load_count(&rank.shared().pid[peer])
            names.append(f"rank {peer} (process {pid} on {socket.gethostname()}{word})")
    return " and ".join(names)


def hold_up(Rank rank not None, long steps) -> None:
    """For tests: has a rank do so many more steps of operations, and then nothing, as if its process were stopped.

    Arguments:
        steps: int; -1 lets it go on.
    """
    rank.steps = steps


def impersonate(Rank rank not None, long pid) -> None:
    """For tests: has the other ranks take a rank for another process's, which can be stopped and killed."""
    cdef Shared* shared = rank.shared()
    store_count(&shared.started[rank.rank], look_up(pid)[1])
    store_count(&shared.pid[rank.rank], pid)


def open_host_group() -> None:
    """Begins a group: what follows is put into the streams by group_end, as one."""
    open_group.operations = []


def close_host_group() -> None:
    """Ends it, and puts into each stream what was for it, as one host function."""
    cdef Rank rank
    cdef dict together = {}
    operations, open_group.operations = open_group.operations, None
    for rank, stream, operation, captured in operations:
        together.setdefault((id(rank), stream.handle), (rank, stream, captured, []))[3].append(operation)
    try:
        for rank, stream, captured, operations_of in together.values():
            enqueue(rank, stream, operations_of, captured)
    except BaseException as error:
        for rank, _, captured, _ in together.values():
            if not captured:  # a half of the group may be under way, and would wait for the other
                rank.fail(SYSTEM_ERROR, f"an operation of its group could not be put into a stream: {error}")
        raise


def abandon_host_group() -> None:
    """Ends it, and puts nothing into a stream."""
    open_group.operations = None


cdef int enqueue(Rank rank, Stream stream, list operations, bint captured) except -1:
    # NCCL orders what is put into several streams of a rank; a capture's is ordered with the rest by its launch.
    if rank.last is not None and rank.last != stream and not captured:
        try:
            stream.wait_stream(rank.last)
        except CudaError as error:
            if error.name != "INVALID_HANDLE":  # a stream that is gone, and its work with it
                raise
    enqueue_callback(stream.device_index, stream.handle, lambda: rank.run(operations))
    if not captured:
        rank.last = stream
    return 0


def issue(Rank rank not None, Stream stream not None, str call not None, uintptr_t source, uintptr_t target, size_t count,
          size_t itemsize, int datatype, int op, int root, bint captured) -> None:
    """Puts an operation into a stream, at the end of the group where there is one.

    Arguments:
        call: str, a key of codes.OPERATIONS.
        source, target: int, addresses; 0 where the operation or the rank has none.
        count: elements; of a rank's part, where the ranks' parts are gathered or scattered.
        itemsize: bytes of one.
        datatype, op: int, an ncclDataType_t and an ncclRedOp_t.
        root: int, that rank, or the peer of a transfer.
    Raises:
        BackendError: an operation before it failed, or the rank has left.
    """
    if rank.trouble is not None:
        raise BackendError(*rank.trouble)
    if rank.state(rank.rank) != JOINED:
        raise BackendError(INVALID_USAGE, "the rank has left")
    lane = (call, root) if codes.OPERATIONS[call].root == "peer" else ()
    operation = (lane, call, source, target, count, itemsize, datatype, op, root)
    if open_group.operations is not None:
        open_group.operations.append((rank, stream, operation, captured))
    else:
        enqueue(rank, stream, [operation], captured)


def async_error(Rank rank not None) -> tuple[int, str] | None:
    """(code, text) of what went wrong in a stream, or None."""
    add_count(&rank.looks, 1)
    return rank.trouble


def can_suspend() -> None:
    """Refuses nothing."""


def suspend(Rank rank not None) -> None:
    """Has no memory of a device's to give back, and refuses to run operations."""
    rank.suspended = True


def resume(Rank rank not None) -> None:
    """Runs operations again."""
    rank.suspended = False


def suspended(Rank rank not None) -> bool:
    """Tells whether the rank refuses to run operations."""
    return rank.suspended


def memory_stats(Rank rank not None) -> tuple[int, int]:
    """(bytes of the device that the rank has, bytes of them that suspend gives back): none, all of it is the host's."""
    rank.shared()
    return 0, 0


def revoke(Rank rank not None) -> None:
    """Ends what is under way; the other ranks learn of it."""
    rank.fail(INVALID_USAGE, "the communicator was aborted")


def abort(Rank rank not None) -> None:
    """Ends what is under way, and leaves; the other ranks learn of it."""
    rank.last = None
    rank.leave(ABORTED)


def destroy(Rank rank not None) -> None:
    """Leaves; what was under way has been waited for."""
    rank.last = None
    rank.leave(CLOSED)


def forget_in_child() -> None:
    groups.depth = 0
    groups.pending = []
    open_group.operations = None


call_at_fork("nccl.ranks", "collectives", child=forget_in_child)
