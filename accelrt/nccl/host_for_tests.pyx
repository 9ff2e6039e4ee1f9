"""The host backend of collectives, for tests alone: ranks on host devices, over memory that their processes share.

It makes programs that use accelrt.nccl run, and be tested, where there is no GPU: each rank's collectives are host
functions in its stream's order, so that they can be captured.  Nothing in it is meant to be fast.  It finds what NCCL
leaves to chance: ranks that disagree on what is next, and ranks that have gone.
"""
import fcntl
import mmap
import os
import socket
import stat
import tempfile
import threading
import time

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from accelrt.errors import CudaError
from accelrt.core.locks cimport add_count, load_count, store_count
from accelrt.core.process import call_at_fork
from accelrt.core.threads cimport pause
from accelrt.nccl.reduction cimport reduce_elements, size_of
from accelrt.nccl.codes import BackendError
from accelrt.nccl.transport cimport (
    ABORTED, ABSENT, CAPACITY, CLOSED, COLLECTIVE, JOINED, MOST_RANKS, PAIR, Channel, Head, Part, Shared, Task, Trouble,
)
from accelrt.runtime.lifetimes cimport enqueue_callback
from accelrt.status cimport refuse_copy
from accelrt.streams.stream cimport Stream

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

ctypedef const char* Address

cdef enum Kind:
    ALL_REDUCE = 1
    REDUCE = 2
    BROADCAST = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    SEND = 6
    RECV = 7

cdef enum Result:  # ncclResult_t
    SYSTEM_ERROR = 2
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    TIMED_OUT = 8

cdef enum:
    PAUSE_NS = 50000
    SLICE = 1000  # pauses between two looks at whether the others' processes live

GONE = ("", "Z", "X")  # states of a process: a zombie waits for its parent to ask how it ended
NAMES = ("", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "send or recv", "send or recv")
MAY_TAKE_LONG = False  # calls are over when they return
MARK = b"accelrt host for tests\0"
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
VERSION = 0     # NCCL's are greater


# --- one message after the other through channels ------------------------------------------------------------------

cdef size_t put(Channel* channel, const char* source, size_t most) noexcept nogil:
    # Answers how many bytes went in.
    cdef size_t written = <size_t>channel.written
    cdef size_t room = CAPACITY - (written - <size_t>load_count(&channel.read))
    cdef size_t size = min(most, room), at = written % CAPACITY, first = min(size, CAPACITY - at)
    memcpy(channel.ring + at, source, first)
    memcpy(channel.ring, source + first, size - first)
    store_count(&channel.written, <long>(written + size))
    return size


cdef size_t held(Channel* channel) noexcept nogil:
    return <size_t>load_count(&channel.written) - <size_t>channel.read


cdef size_t take(Channel* channel, char* target, size_t most) noexcept nogil:
    cdef size_t read = <size_t>channel.read
    cdef size_t size = min(most, held(channel)), at = read % CAPACITY, first = min(size, CAPACITY - at)
    memcpy(target, channel.ring + at, first)
    memcpy(target + first, channel.ring, size - first)
    store_count(&channel.read, <long>(read + size))
    return size


cdef Channel* channel_of(Shared* shared, int lane, int writer, int reader) noexcept nogil:
    cdef long size = shared.size
    return <Channel*>(shared + 1) + (lane * size + writer) * size + reader


cdef bint begin_part(Task* task, Part* part, Channel* channel, Trouble* trouble) noexcept nogil:
    # The head of the message.  Answers whether it has passed.
    cdef Head head
    if part.sends:
        if CAPACITY - (<size_t>channel.written - <size_t>load_count(&channel.read)) < sizeof(Head):
            return False
        head.nbytes, head.meaning = part.nbytes, task.meaning
        put(channel, <char*>&head, sizeof(Head))
    else:
        if held(channel) < sizeof(Head):
            return False
        take(channel, <char*>&head, sizeof(Head))
        if head.nbytes != part.nbytes or head.meaning != task.meaning:
            trouble.code, trouble.peer, trouble.theirs = INVALID_ARGUMENT, part.peer, head
            trouble.ours.nbytes, trouble.ours.meaning = part.nbytes, task.meaning
            return False
    part.begun = True
    return True


cdef bint reduce_some(Shared* shared, int rank, Task* task) noexcept nogil:
    # As many elements as all ranks have sent, and of a result in the summand's place, as this one has sent.
    cdef Address[MOST_RANKS] summands
    cdef char[MOST_RANKS][256] taken
    cdef size_t item = size_of(task.datatype), span = min(task.nbytes - task.done, <size_t>256)
    cdef int index
    cdef Part* part
    for index in range(task.count):
        part = &task.parts[index]
        if part.sends:
            if task.in_place:
                span = min(span, part.done - task.done if part.done > task.done else <size_t>0)
        elif not part.begun:
            return False
        else:
            span = min(span, held(channel_of(shared, task.lane, part.peer, rank)))
    span -= span % item
    if span == 0:
        return False
    summands[rank] = task.own + task.done
    for index in range(task.count):
        part = &task.parts[index]
        if not part.sends:
            take(channel_of(shared, task.lane, part.peer, rank), taken[part.peer], span)
            summands[part.peer] = taken[part.peer]
            part.done += span
    reduce_elements(task.out + task.done, summands, <int>shared.size, span // item, task.datatype, task.op)
    task.done += span
    return True


cdef bint is_over(const Task* task) noexcept nogil:
    cdef int index
    for index in range(task.count):
        if not task.parts[index].begun or task.parts[index].done < task.parts[index].nbytes:
            return False
    return True


cdef bint advance(Shared* shared, int rank, Task* tasks, int count, bint* out_over, Trouble* trouble) noexcept nogil:
    # One round over the operations of a group.  A message waits for those before it on its channel.
    cdef bint[2][2][MOST_RANKS] busy
    cdef bint moved = False
    cdef int number, index
    cdef size_t size
    cdef Task* task
    cdef Part* part
    cdef Channel* channel
    for index in range(2 * 2 * MOST_RANKS):
        (&busy[0][0][0])[index] = False
    out_over[0] = True
    for number in range(count):
        task = &tasks[number]
        if is_over(task):
            continue
        for index in range(task.count):
            part = &task.parts[index]
            if (part.begun and part.done == part.nbytes) or busy[task.lane][part.sends][part.peer]:
                continue
            if part.sends:
                channel = channel_of(shared, task.lane, rank, part.peer)
            else:
                channel = channel_of(shared, task.lane, part.peer, rank)
            if not part.begun:
                moved |= begin_part(task, part, channel, trouble)
                if trouble.code:
                    return False
            if part.begun and part.at != NULL:
                if part.sends:
                    size = put(channel, part.at + part.done, part.nbytes - part.done)
                else:
                    size = take(channel, part.at + part.done, part.nbytes - part.done)
                part.done += size
                moved |= size > 0
        if task.reduces:
            moved |= reduce_some(shared, rank, task)
        for index in range(task.count):
            part = &task.parts[index]
            if not part.begun or part.done < part.nbytes:
                busy[task.lane][part.sends][part.peer] = True
        out_over[0] &= is_over(task)
    return moved


cdef int find_gone(Shared* shared, int rank, Task* tasks, int count, long* out_awaited) noexcept nogil:
    # A rank that has left and is still to send or to take something, or -1.  out_awaited: a bit for each rank that is.
    cdef int number, index
    cdef Part* part
    cdef long state, awaited = 0
    out_awaited[0] = 0
    for number in range(count):
        for index in range(tasks[number].count):
            part = &tasks[number].parts[index]
            if part.begun and part.done == part.nbytes:
                continue
            awaited |= <long>1 << part.peer
            state = load_count(&shared.state[part.peer])
            if state == ABORTED or (state == CLOSED and (
                    part.sends or held(channel_of(shared, tasks[number].lane, part.peer, rank)) == 0)):
                return part.peer
    out_awaited[0] = awaited
    return -1


cdef bint work(
    Shared* shared, int rank, Task* tasks, int count, long* steps, bint* out_over, long* out_awaited, Trouble* trouble
) noexcept nogil:
    # Until all is done, something is wrong, or it is time to look after the other processes.  Answers whether anything
    # came or went.
    cdef int pauses = 0, gone
    cdef long awaited = 0
    cdef bint moved = False
    while pauses < SLICE:
        if load_count(&shared.state[rank]) != JOINED:
            trouble.code = INVALID_USAGE
            return moved
        if load_count(steps) == 0:
            moved = True  # what is held up waits for nobody
            pause(PAUSE_NS)
            pauses += 1
            continue
        if advance(shared, rank, tasks, count, out_over, trouble):
            moved = True
            if load_count(steps) > 0:
                add_count(steps, -1)
            continue
        if out_over[0] or trouble.code:
            return moved
        gone = find_gone(shared, rank, tasks, count, &awaited)
        store_count(out_awaited, awaited)
        if gone >= 0 and not advance(shared, rank, tasks, count, out_over, trouble):
            trouble.code, trouble.peer = REMOTE_ERROR, gone
            return moved
        pause(PAUSE_NS)
        pauses += 1
    return moved


# --- operations ----------------------------------------------------------------------------------------------------

cdef int add_part(Task* task, int peer, bint sends, char* at, size_t nbytes) noexcept:
    cdef Part* part = &task.parts[task.count]
    part.peer, part.sends, part.at, part.nbytes = peer, sends, at, nbytes
    task.count += 1
    return 0


cdef int plan(Task* task, int rank, int size, tuple operation) except -1:
    # operation: (kind, address read, address written, elements, bytes of one, datatype, op, root or peer)
    cdef int kind = operation[0], root = operation[7], peer
    cdef char* source = <char*><uintptr_t>operation[1]
    cdef char* target = <char*><uintptr_t>operation[2]
    cdef size_t nbytes = <size_t>operation[3] * <size_t>operation[4]
    cdef bint from_me = kind == BROADCAST and rank == root
    task.datatype, task.op, task.nbytes = operation[5], operation[6], nbytes
    task.lane = PAIR if kind >= SEND else COLLECTIVE
    task.meaning = <uint64_t>SEND if kind >= SEND else (
        <uint64_t>kind | <uint64_t>(task.datatype + 1) << 8 | <uint64_t>(task.op + 1) << 16 | <uint64_t>(root + 1) << 24)
    if kind == SEND or kind == RECV:
        add_part(task, root, kind == SEND, source if kind == SEND else target, nbytes)
        return 0
    task.own, task.out = source, target
    task.in_place = kind == ALL_REDUCE and source == target
    if kind == REDUCE_SCATTER:
        task.own = source + rank * nbytes
    task.reduces = kind == ALL_REDUCE or kind == REDUCE_SCATTER or (kind == REDUCE and rank == root)
    for peer in range(size):
        if peer == rank:
            continue
        if kind == ALL_REDUCE or kind == ALL_GATHER or from_me or (kind == REDUCE and peer == root):
            add_part(task, peer, True, source, nbytes)
        elif kind == REDUCE_SCATTER:
            add_part(task, peer, True, source + peer * nbytes, nbytes)
        if task.reduces:
            add_part(task, peer, False, NULL, nbytes)
        elif kind == ALL_GATHER:
            add_part(task, peer, False, target + peer * nbytes, nbytes)
        elif kind == BROADCAST and peer == root:
            add_part(task, peer, False, target, nbytes)
    if kind == ALL_GATHER:
        target = target + rank * nbytes
    if (kind == ALL_GATHER or from_me) and source != target:
        memcpy(target, source, nbytes)
    if task.reduces and size == 1:
        reduce_elements(target, <const char**>&source, 1, operation[3], task.datatype, task.op)
    return 0


cdef class Rank:
    """One rank of a communicator: its place in the shared memory, and what went wrong."""

    cdef readonly int rank
    cdef readonly int size
    cdef readonly int device
    cdef readonly object trouble  # (code, text) or None
    cdef object path              # of the memory's file, while it has a name
    cdef int file                 # its descriptor, which keeps the name from being cleared away, or -1
    cdef double timeout           # seconds that an operation waits for ranks that do nothing
    cdef long steps               # that it takes before it is held up (hold_up), or -1
    cdef long awaited             # a bit for each rank that the operation under way waits for
    cdef char[::1] memory
    cdef long pid
    cdef Stream last              # that an operation was put into
    cdef object __weakref__

    def __dealloc__(self):
        # One that was dropped before anybody could end it: its file is cleared away by whoever makes the next one.
        if self.pid != getpid():
            return
        if self.memory is not None:
            swap_count(&(<Shared*>&self.memory[0]).state[self.rank], JOINED, ABORTED)
        if self.file >= 0:
            close(self.file)

    def __reduce__(self):
        refuse_copy(self, "it is a rank of this process's")

    cdef Shared* shared(self) except NULL:
        if self.memory is None or self.pid != os.getpid():
            raise BackendError(INVALID_USAGE, "the rank is closed, or another process's")
        return <Shared*>&self.memory[0]

    cdef int leave(self, long state) except -1:
        if self.memory is not None and self.pid == os.getpid():
            swap_count(&self.shared().state[self.rank], JOINED, state)
            self.forget_name()
        return 0

    cdef int forget_name(self) except -1:
        # Once all have come; before that the last one does, so that who comes late finds that others have left.
        path, file = self.path, self.file
        self.path, self.file = None, -1
        try:
            if path is not None:
                if load_count(&self.shared().joined) < self.size:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if file >= 0:
                os.close(file)
        return 0

    cdef int fail(self, int code, str text) except -1:
        if self.trouble is None:
            self.trouble = (code, text)
        return 0

    cdef int run(self, list operations) except -1:
        # On a thread of the host driver.
        cdef Shared* shared = self.shared()
        cdef int count = len(operations), number, parts = 2 * self.size
        cdef Trouble trouble
        cdef bint over = False, moved
        cdef double waited = 0, began
        cdef Task* tasks
        cdef Part* room
        if self.trouble is not None:
            return 0
        tasks = <Task*>calloc(count, sizeof(Task))
        room = <Part*>calloc(count * parts, sizeof(Part))
        try:
            if tasks == NULL or room == NULL:
                raise MemoryError("no host memory for a collective")
            for number in range(count):
                tasks[number].parts = room + number * parts
                plan(&tasks[number], self.rank, self.size, operations[number])
            trouble.code = 0
            while not over and not trouble.code:
                began = time.monotonic()
                with nogil:
                    moved = work(shared, self.rank, tasks, count, &self.steps, &over, &self.awaited, &trouble)
                if not over and not trouble.code and load_count(&self.steps) != 0:
                    self.look_after_others(&trouble)
                # A second at most, for this process may have been stopped itself.
                waited = 0 if moved else waited + min(time.monotonic() - began, 1.0)
                if not over and not trouble.code and waited > self.timeout:
                    trouble.code = TIMED_OUT
            if trouble.code:
                self.fail(trouble.code, self.describe(&trouble))
                swap_count(&shared.state[self.rank], JOINED, ABORTED)  # the others are not left waiting
        except BaseException:
            self.fail(SYSTEM_ERROR, "the operation could not be performed: an exception was raised in it")
            swap_count(&shared.state[self.rank], JOINED, ABORTED)
            raise
        finally:
            store_count(&self.awaited, 0)
            free(tasks)
            free(room)
        return 0

    cdef int look_after_others(self, Trouble* trouble) except -1:
        cdef Shared* shared = self.shared()
        cdef int peer
        for peer in range(self.size):
            if load_count(&shared.state[peer]) == JOINED and self.state_of(peer) in GONE:
                trouble.code, trouble.peer = REMOTE_ERROR, peer
        return 0

    cdef str state_of(self, int peer):
        # The letter of its process's state (proc(5)), or "" where there is none any more.
        cdef Shared* shared = self.shared()
        state, started = look_up(load_count(&shared.pid[peer]))
        return state if started == load_count(&shared.started[peer]) else ""

    cdef str describe(self, const Trouble* trouble):
        if trouble.code == INVALID_USAGE:
            return "the communicator was aborted"
        if trouble.code == REMOTE_ERROR:
            return (f"rank {trouble.peer} has left, or its process has ended "
                    f"(process {load_count(&self.shared().pid[trouble.peer])})")
        if trouble.code == TIMED_OUT:
            return f"nothing came within {self.timeout:g} s from {self.name_awaited()}"
        return (f"the ranks disagree: rank {trouble.peer} is at {name_of(&trouble.theirs)}, this one at "
                f"{name_of(&trouble.ours)}")

    cdef str name_awaited(self):
        cdef Shared* shared = self.shared()
        cdef long awaited = load_count(&self.awaited)
        cdef int peer
        cdef list names = []
        for peer in range(self.size):
            joined = load_count(&shared.state[peer]) != ABSENT
            if self.path is not None and not joined:
                names.append(f"rank {peer}, which has not come")
            elif awaited >> peer & 1:
                state = self.state_of(peer)
                word = ", which is stopped" if state in ("T", "t") else ", which has ended" if state in GONE else ""
                names.append(f"rank {peer} (process {load_count(&shared.pid[peer])} on {socket.gethostname()}{word})")
        return " and ".join(names)


cdef str name_of(const Head* head):
    cdef uint64_t meaning = head.meaning
    text = f"{NAMES[meaning & 255]} of {head.nbytes} bytes a rank"
    if meaning >> 8:
        text += f" (datatype {(meaning >> 8 & 255) - 1}, op {(meaning >> 16 & 255) - 1}, root {(meaning >> 24) - 1})"
    return text


cdef tuple look_up(long pid):
    # The letter of a process's state, and when it started, in ticks since the system did: numbers are given anew.
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0], int(fields[19])


# --- the backend ---------------------------------------------------------------------------------------------------

class OpenGroup(threading.local):
    """A thread's group."""

    def __init__(self):
        self.depth = 0
        self.operations = []  # (rank, stream, operation, captured)


cdef object open_group = OpenGroup()


def forget_group():
    open_group.depth, open_group.operations = 0, []


call_at_fork("nccl.host_for_tests", "collectives", child=forget_group)


def version():
    """NCCL's number of its version; 0, which NCCL never had, for this backend."""
    return VERSION


def unique_id():
    """128 bytes that name a communicator to be."""
    return (MARK + os.urandom(32)).ljust(ID_BYTES, b"\0")


def path_of(bytes name not None):
    """The file that the ranks of a communicator share."""
    if not name.startswith(MARK):
        raise BackendError(INVALID_ARGUMENT, "the id is none of the host backend's: make it by unique_id() on host devices")
    return prefix() + name[len(MARK):][:16].hex()


def prefix():
    """How the names of these files begin; this user's."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    return f"{folder}/accelrt-nccl-for-tests-{os.getuid()}-"


cdef int clear_away() except -1:
    # Files of communicators whose ranks never all came, and were killed: nobody has them locked any more.
    folder, start = os.path.split(prefix())
    for name in os.listdir(folder):
        if not name.startswith(start):
            continue
        path = os.path.join(folder, name)
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError:  # it is in use, or was cleared away
            pass
        finally:
            os.close(file)
    return 0


cdef int open_file(str path) except -1:
    # The file, locked against being cleared away; one that was while it was opened is opened anew.
    cdef int file
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            found = os.fstat(file)
            if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                raise PermissionError(f"{path} is another user's")
            if found.st_nlink:
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


cdef Rank open_rank(bytes name, int size, int number, int device, double timeout):
    cdef Rank made = Rank.__new__(Rank)
    cdef Shared* shared
    made.file = made.steps = -1
    if size > MOST_RANKS:
        raise BackendError(INVALID_ARGUMENT, f"the host backend for tests has at most {MOST_RANKS} ranks")
    path = path_of(name)
    clear_away()
    made.file = open_file(path)
    try:
        nbytes = sizeof(Shared) + 2 * size * size * sizeof(Channel)
        os.posix_fallocate(made.file, 0, nbytes)  # a page that is not there at its use would be a SIGBUS
        made.memory = mmap.mmap(made.file, nbytes)
        made.path, made.rank, made.size, made.device, made.pid = path, number, size, device, os.getpid()
        made.timeout = timeout
        shared = made.shared()
        if not swap_count(&shared.size, 0, size) and shared.size != size:
            raise BackendError(INVALID_ARGUMENT, f"another rank says that there are {shared.size} ranks")
        if not swap_count(&shared.pid[number], 0, made.pid):
            raise BackendError(INVALID_ARGUMENT, f"rank {number} is taken, by process {shared.pid[number]}")
    except BaseException:
        file, made.file, made.path = made.file, -1, None  # the name is of those who came before
        os.close(file)
        raise
    store_count(&shared.started[number], look_up(made.pid)[1])
    store_count(&shared.state[number], JOINED)
    add_count(&shared.joined, 1)
    return made


def init_rank(int size, bytes name not None, int number, int device, double timeout):
    """One rank; it is in progress until the others have come."""
    try:
        return open_rank(name, size, number, device, timeout)
    except OSError as error:
        raise BackendError(SYSTEM_ERROR, f"memory to share could not be made: {error}") from error


def init_all(list devices not None, double timeout):
    """A rank for each device."""
    name = unique_id()
    made = []
    try:
        for number, device in enumerate(devices):
            made.append(init_rank(len(devices), name, number, device, timeout))
    except BaseException:
        for each in made:
            abort(each)
        raise
    return made


def in_progress(Rank rank not None):
    """Whether other ranks are still to come.

    Raises:
        BackendError: one has left.
    """
    cdef Shared* shared = rank.shared()
    cdef int peer
    cdef long state
    if rank.path is None:
        return False
    if load_count(&shared.joined) >= rank.size:
        rank.forget_name()
        return False
    for peer in range(rank.size):
        state = load_count(&shared.state[peer])
        if state in (CLOSED, ABORTED) or (state == JOINED and rank.state_of(peer) in GONE):
            raise BackendError(REMOTE_ERROR, f"rank {peer} has left, or its process has ended "
                                             f"(process {load_count(&shared.pid[peer])})")
    return True


def awaited(Rank rank not None):
    """str, the ranks that it waits for; empty where there are none."""
    return rank.name_awaited()


def hold_up(Rank rank not None, long steps):
    """For tests: has a rank do so many more steps of messages, and then nothing, as if its process were stopped.

    Arguments:
        steps: int; -1 lets it go on.
    """
    store_count(&rank.steps, steps)


def impersonate(Rank rank not None, long pid):
    """For tests: has the other ranks take a rank for another process's, which can be stopped and killed."""
    cdef Shared* shared = rank.shared()
    store_count(&shared.started[rank.rank], look_up(pid)[1])
    store_count(&shared.pid[rank.rank], pid)


def group_start():
    """What follows is put into the streams by group_end, as one."""
    open_group.depth += 1


def group_end():
    """Ends it, and puts into each stream what was for it, as one host function."""
    cdef Rank rank
    cdef dict found = {}
    open_group.depth -= 1
    if open_group.depth:
        return
    operations, open_group.operations = open_group.operations, []
    for rank, stream, operation, captured in operations:
        found.setdefault((id(rank), stream.handle), (rank, stream, captured, []))[3].append(operation)
    try:
        for rank, stream, captured, together in found.values():
            enqueue(rank, stream, together, captured)
    except BaseException as error:
        for rank, _, captured, _ in found.values():
            if not captured:  # a half of the group may be under way, and would wait for the other
                rank.fail(SYSTEM_ERROR, f"an operation of its group could not be put into a stream: {error}")
                rank.leave(ABORTED)
        raise


def group_abandon():
    """Ends it, and puts nothing into a stream."""
    forget_group()


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
          size_t itemsize, int datatype, int op, int root, bint captured):
    """Puts an operation into a stream, at the end of the group where there is one.

    Arguments:
        call: str, one of NAMES, or "send", "recv", where root is the peer.
        count: elements; of a rank's part, where the ranks' parts are gathered or scattered.
    Raises:
        BackendError: an operation before it failed, or the rank has left.
    """
    cdef int kind = SEND if call == "send" else RECV if call == "recv" else NAMES.index(call)
    cdef Shared* shared = rank.shared()
    if rank.trouble is not None:
        raise BackendError(*rank.trouble)
    if load_count(&shared.state[rank.rank]) != JOINED:
        raise BackendError(INVALID_USAGE, "the rank has left")
    if kind in (ALL_REDUCE, REDUCE, REDUCE_SCATTER) and size_of(datatype) == 0:
        raise BackendError(INVALID_ARGUMENT, "the host backend for tests reduces no elements of 8-bit floating point")
    operation = (kind, source, target, count, itemsize, datatype, op, root)
    if open_group.depth:
        open_group.operations.append((rank, stream, operation, captured))
    else:
        enqueue(rank, stream, [operation], captured)


def async_error(Rank rank not None):
    """(code, text) of what went wrong in a stream, or None."""
    return rank.trouble


def revoke(Rank rank not None):
    """Ends what is under way; the other ranks learn of it."""
    rank.fail(INVALID_USAGE, "the communicator was aborted")
    rank.leave(ABORTED)


def abort(Rank rank not None):
    """Ends what is under way, and leaves; the other ranks learn of it."""
    rank.last = None
    rank.leave(ABORTED)


def destroy(Rank rank not None):
    """Leaves; what was under way has been waited for."""
    rank.last = None
    rank.leave(CLOSED)
