"""Runs what belongs to a fork and to the end of the process: every module's part, in one order each.

A module registers what it does, once, when it is imported, and says its rank; so the order does not depend on which
module is imported first.  The process has one pthread_atfork, one os.register_at_fork and one atexit function of
accelrt's: these.
"""
cimport cython
import _signal
import atexit
import os
import sys
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetObject, PyErr_WriteUnraisable
from libc.string cimport strcmp

from accelrt.core.descriptors cimport close_kept, keep_number, lift, number_of
from accelrt.core.interpreter cimport (
    NOWAIT_LOCK, PY_LOCK_ACQUIRED, PY_LOCK_INTR, PyThread_acquire_lock, PyThread_acquire_lock_timed, PyThread_allocate_lock,
    PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock, PyThreadState_SetAsyncExc,
)
from accelrt.core.locks cimport WITHOUT_GIL, begin_turn, end_turn, pthread_mutex_init, pthread_mutex_t, pthread_mutex_unlock
from accelrt.core.threads cimport now
from accelrt.status cimport refuse_copy


# stub: FORK_ORDER: tuple[tuple[str, str], ...]
# stub: EXIT_ORDER: tuple[tuple[str, str], ...]
# stub: NAMES: dict[str, tuple[str, str]]
# stub: _T = TypeVar("_T")

# --- process ----------------------------------------------------------------------------------------------------------

cdef extern from *:
    """
    #include <pthread.h>
    #include <unistd.h>
    static int accelrt_is_hooked;  /* stays where an import is interrupted and tried again */
    /* Whoever holds the mutex in a fork may be waiting for the GIL.  Who has it never waits for that: without a GIL a
     * fork keeps every thread from coming back to Python, and waits for the mutex itself. */
    static void accelrt_lock_without_gil(pthread_mutex_t* mutex) {
        while (pthread_mutex_trylock(mutex) != 0) {
            PyThreadState* held = accelrt_holds_gil() ? PyEval_SaveThread() : NULL;
            pthread_mutex_lock(mutex);
            if (held == NULL) return;
            pthread_mutex_unlock(mutex);
            PyEval_RestoreThread(held);
        }
    }
    """
    int is_hooked "accelrt_is_hooked"
    void lock_without_gil "accelrt_lock_without_gil" (pthread_mutex_t* mutex) noexcept nogil
    ctypedef struct PyFrameObject
    PyFrameObject* PyEval_GetFrame()
    int Py_AddPendingCall(int (*function)(void*) except -1, void* argument)
    int pthread_atfork(fork_hook prepare, fork_hook parent, fork_hook child) nogil
    int getpid() nogil

# The ranks of forks, as ForkRank has them, each with why it stands where it does.
FORK_ORDER = (
    ("main thread", "whose signals are looked for: known before anything waits"),
    ("host driver", "its locks are taken last and given back first: threads enter it with any other lock held"),
    ("gate", "of captures, which asks no lock of the others"),
    ("driver", "from here on every row refuses, whatever the rest of a child calls"),
    ("pools", "the parent's memory: forgotten once no row can be called for it"),
    ("uses", "the parent's uses of that memory"),
    ("runtime", "what was on its way out, host functions, and the race detector's hooks"),
    ("devices", "counted anew, so that the next use is refused"),
    ("streams", "and events, which are the devices'"),
    ("history", "the recorder's lock, and what a stack walk was in the middle of"),
    ("kernels", "images, which are no device's: only the lock is new"),
    ("graphs", "they hold streams, memory and kernels"),
    ("tools", "what only builds on the rest: operations, green contexts, classes for other libraries"),
    ("connections", "closed before those who speak over them forget their owners"),
    ("sharing", "loans and leases, whose ends are the parent's"),
    ("collectives", "communicators, whose ranks are the parent's"),
    ("readings", "a reading may hold NVML for milliseconds, which is waited for with no lock of a driver's held"),
    ("initialisation", "waited for before all other locks, for it takes any of them"),
    ("thread states", "waiting for one may give up the GIL, before which no other lock of C's may be held"),
)
# The ranks of the end of the process, each with why it stands where it does.
EXIT_ORDER = (
    ("collectives", "operations under way end or are aborted; host functions may wait for them"),
    ("host functions", "those under way run, and no other starts; what follows finds the streams without Python's work"),
    ("leaks", "what is live is written down, and garbage collected, while the recorder still sees the frees"),
    ("recorder", "the file gets its end, with every segment that is left"),
    ("publishing", "the process's figures end with the process"),
    ("tunable", "results go to their files, while devices can still be asked for their names"),
    ("race detector", "what was found is told, once nothing above uses memory any more"),
    ("pools", "the thread that polls for page-locked memory ends, for it calls the driver"),
    ("driver", "closed, once it has finished what still runs"),
    ("callbacks", "no Python function is asked for memory, or told of frees, by what the interpreter's end destroys"),
)
cdef dict fork_ranks = {name: rank for rank, (name, _) in enumerate(FORK_ORDER)}
cdef dict exit_ranks = {name: rank for rank, (name, _) in enumerate(EXIT_ORDER)}


# --- the trace, for tests ---------------------------------------------------------------------------------------------

cdef enum:
    MOST_TRACED = 512

cdef struct Step:
    const char* phase
    const char* name

cdef Step[MOST_TRACED] steps
cdef int step_count = 0
cdef bint tracing = False


cdef void trace(const char* phase, const char* name) noexcept nogil:
    # By one thread at a time: the one that forks, with the mutex or the GIL, or the one that ends the process.
    global step_count
    if tracing and step_count < MOST_TRACED:
        steps[step_count].phase, steps[step_count].name = phase, name
        step_count += 1


def begin_trace() -> None:
    """Begins to write down what runs around forks and at the exit; forgets what was written before."""
    global tracing, step_count
    step_count = 0
    tracing = True


def traced() -> list[tuple[str, str]]:
    """Returns what ran since begin_trace: list of (phase, name), the first 512."""
    return [(steps[index].phase.decode(), steps[index].name.decode()) for index in range(step_count)]


# --- around a fork, in C ----------------------------------------------------------------------------------------------

cdef enum:
    MOST_FUNCTIONS = 64

cdef struct ForkFunctions:
    const char* name
    ForkRank rank
    fork_hook prepare
    fork_hook parent
    fork_hook child

cdef ForkFunctions[MOST_FUNCTIONS] functions  # by rank, then by name
cdef int function_count = 0
cdef pthread_mutex_t table  # of the two; a thread that forks has it meanwhile, so that no child finds half an entry


cdef bint stands_before(const ForkFunctions* one, const char* name, ForkRank rank) noexcept nogil:
    return one.rank < rank or one.rank == rank and strcmp(one.name, name) < 0


cdef void drop_entry(const char* name, ForkRank rank) noexcept nogil:
    # With the mutex.
    global function_count
    cdef int index, kept = 0
    for index in range(function_count):
        if functions[index].rank != rank or strcmp(functions[index].name, name) != 0:
            functions[kept] = functions[index]
            kept += 1
    function_count = kept


cdef int at_fork(const char* name, ForkRank rank, fork_hook prepare, fork_hook parent, fork_hook child) except -1 nogil:
    global function_count
    cdef int index
    cdef bint full
    lock_without_gil(&table)
    drop_entry(name, rank)
    full = function_count == MOST_FUNCTIONS
    if not full:
        index = function_count
        while index > 0 and not stands_before(&functions[index - 1], name, rank):
            functions[index] = functions[index - 1]
            index -= 1
        functions[index] = ForkFunctions(name, rank, prepare, parent, child)
        function_count += 1
    pthread_mutex_unlock(&table)
    if full:
        with gil:
            raise MemoryError(f"{name.decode()}: there is room for {MOST_FUNCTIONS} modules' functions around a fork")
    return 0


cdef void prepare_in_c() noexcept nogil:
    cdef int index
    lock_without_gil(&table)
    for index in range(function_count - 1, -1, -1):
        if functions[index].prepare != NULL:
            trace("prepare", functions[index].name)
            functions[index].prepare()


cdef void go_on_in_c() noexcept nogil:
    cdef int index
    for index in range(function_count):
        if functions[index].parent != NULL:
            trace("parent", functions[index].name)
            functions[index].parent()
    pthread_mutex_unlock(&table)


cdef void begin_anew_in_c() noexcept nogil:
    cdef int index
    note_fork()
    for index in range(function_count):
        if functions[index].child != NULL:
            trace("child", functions[index].name)
            functions[index].child()
    pthread_mutex_unlock(&table)


# --- locks of Python's in a child of a fork ---------------------------------------------------------------------------

cdef enum:
    MOST_NESTED = 64

cdef long forks = 0                          # how many forks made this process: of its parent, of that one's, ...
cdef unsigned long[MOST_NESTED] forking      # the thread that made each
cdef int renewing = 0                        # where there is no GIL, of a lock that is being renewed


cdef void note_fork() noexcept nogil:
    global forks
    if forks < MOST_NESTED:
        forking[forks] = PyThread_get_thread_ident()
    forks += 1


cdef enum:
    LONGEST_WAIT = 9_000_000_000  # seconds, whose nanoseconds 64 bits hold


cdef void* make_lock() except NULL:
    cdef void* lock = PyThread_allocate_lock()
    if lock == NULL:
        raise MemoryError("the host has no room for a lock")
    return lock


cdef int check_timeout(bint blocking, double timeout) except -1:
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if not timeout >= 0:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > LONGEST_WAIT:
        raise OverflowError("timeout value is too large")
    return 0


cdef class ForkSafeLock:
    """A lock of Python code, as threading.RLock is, that nobody holds in a child of a fork but the thread that forked.

        with lock:
            ...

    A thread may take it again, and gives it back as often.  In a child a lock that another thread of the parent's held would
    stay locked for ever; this one is free there.  What it guards may be half changed.
    """

    def __cinit__(self):
        self.lock = make_lock()
        self.forks = forks

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef bint is_kept(self) noexcept:
        # Whether its owner made all forks since.
        cdef long index
        for index in range(self.forks, forks):
            if index >= MOST_NESTED or forking[index] != self.owner:
                return False
        return True

    cdef int renew(self) except -1:
        cdef void* unused = make_lock()
        begin_turn(&renewing)
        if self.forks != forks:
            if self.owner == 0 or not self.is_kept():
                self.lock, unused, self.owner, self.depth = unused, self.lock, 0, 0
            self.forks = forks
        end_turn(&renewing)
        PyThread_free_lock(unused)
        return 0

    cdef bint take(self, bint blocking, double timeout) except -1:
        cdef unsigned long thread = PyThread_get_thread_ident()
        if self.forks != forks:
            self.renew()
        if self.owner != thread:
            if timeout != -1:
                check_timeout(blocking, timeout)
            if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK) and not (blocking and self.wait(timeout)):
                return False
            self.owner = thread
        self.depth += 1
        return True

    cdef bint wait(self, double timeout) except -1:
        cdef long long left = -1 if timeout == -1 else <long long>(timeout * 1e6)  # microseconds
        cdef long long end = now() + 1000 * left
        cdef int status
        while True:
            PyErr_CheckSignals()  # those before the wait do not end it
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, left, True)
            if status != PY_LOCK_INTR:
                return status == PY_LOCK_ACQUIRED
            if timeout != -1:
                left = max(end - now(), 0) // 1000

    cdef int give_back(self) except -1:
        if self.forks != forks:
            self.renew()
        if self.owner != PyThread_get_thread_ident():
            raise RuntimeError("the calling thread gives back a lock that it does not have")
        self.depth -= 1
        if self.depth == 0:
            self.owner = 0
            PyThread_release_lock(self.lock)
        return 0

    def acquire(self, bint blocking=True, timeout: float = -1) -> bool:
        """Takes the lock, or takes it again.

        Arguments:
            blocking: bool, whether to wait where another thread has it.
            timeout: float, seconds to wait at most; -1 is without end.
        Returns:
            bool, whether the calling thread has it.
        """
        return self.take(blocking, timeout)

    def release(self) -> None:
        """Gives the lock back once.

        Raises:
            RuntimeError: the calling thread does not have it.
        """
        self.give_back()

    def held_here(self) -> bool:
        """Tells whether the calling thread has it."""
        if self.forks != forks:
            self.renew()
        return self.owner == PyThread_get_thread_ident()

    def __enter__(self) -> Self:
        self.take(True, -1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_back()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "threads of this process wait for it; make another one")


# --- around a fork, in Python -----------------------------------------------------------------------------------------

cdef class PythonFunctions:
    """The functions that a module has called around a fork in Python; at the exit it is parent alone."""

    cdef str name
    cdef bytes traced_name
    cdef int rank
    cdef object before
    cdef object parent
    cdef object child
    cdef int ended_in  # the process at whose exit it ran


# By rank, then by name; replaced with the mutex, and never changed.  What was replaced is kept: a thread without a GIL may
# just be looking at it, and a child of a fork waits for no lock of an object's.
cdef list python_functions = []
cdef list superseded = []
cdef dict under_way = {}         # thread -> its Forks under way; more than one where a signal's handler forks in the midst
cdef list unraised = []          # of the main thread: (error, the frame that forked, where it is raised, or None: in any)
cdef ForkSafeLock hooking = ForkSafeLock()
cdef bint child_is_hooked = False


cdef class Fork:
    """A fork under way."""

    cdef list functions       # of the moment before it
    cdef object frame         # that called os.fork; None: not Python code
    cdef object interruption  # what a signal's handler raised in the functions, or None


class FromHandler(BaseException):
    """An exception that a signal's handler raised in a wait: its argument."""


cdef bint precedes(PythonFunctions one, PythonFunctions other):
    return one.rank < other.rank or one.rank == other.rank and one.name < other.name


cdef list with_functions(list known, PythonFunctions added):
    cdef PythonFunctions each
    cdef list others = [each for each in known if each.name != added.name or each.rank != added.rank]
    cdef Py_ssize_t index = len([each for each in others if precedes(each, added)])
    others.insert(index, added)
    return others


cdef PythonFunctions functions_of(str name, dict ranks, str rank, before, parent, child):
    cdef PythonFunctions functions = PythonFunctions()
    if rank not in ranks:
        raise ValueError(f"{name}: no rank is called {rank!r}; there are {', '.join(ranks)}")
    functions.name, functions.traced_name, functions.rank = name, name.encode(), ranks[rank]
    functions.before, functions.parent, functions.child = before, parent, child
    functions.ended_in = 0
    return functions


cdef object run(PythonFunctions entry, object function, const char* phase, object interruption):
    # What it raises is told, but for an interruption, which is answered in place of an earlier one; the rest runs.
    if function is None:
        return interruption
    trace(phase, entry.traced_name)
    try:
        function()
    except FromHandler as error:
        return error.args[0]
    except Exception as error:
        if is_of_handler(error):
            return error
        tell(error, function)
    except BaseException as error:
        return error
    return interruption


cdef bint is_of_handler(error) except -1:
    # Whether a signal's handler raised it in the midst of a function of Python's: then its frame is in the traceback.
    handlers = [code_of(_signal.getsignal(number)) for number in _signal.valid_signals()]
    trace = error.__traceback__
    while trace is not None:
        if any([trace.tb_frame.f_code is code for code in handlers]):
            return True
        trace = trace.tb_next
    return False


cdef object code_of(handler):
    # Of a function, a method, a functools.partial of either, or an object that is called; None: it is not Python's.
    handler = getattr(handler, "func", handler)
    if not hasattr(handler, "__code__"):
        handler = getattr(type(handler), "__call__", None)
    return getattr(handler, "__code__", None)


cdef void tell(error, function) noexcept:
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(function)


def call_at_fork(
    str name, str rank, before: Callable[[], object] | None = None, parent: Callable[[], object] | None = None,
    child: Callable[[], object] | None = None,
) -> None:
    """Has Python functions called around each os.fork(): before it, with ranks in reverse, then in both processes.

    What they raise goes to sys.unraisablehook, and the others still run.  What a signal's handler raises meanwhile, an
    interruption or any other exception, comes out of the fork: of before and parent in the parent, of child in the child.
    parent runs also where its before was interrupted.  What the name has at the rank already, as of a module that is
    imported again, is replaced.

    Arguments:
        name: str, the module's, without "accelrt.".
        rank: str, of FORK_ORDER.
        before, parent, child: callables of no arguments, or None.
    """
    global python_functions
    cdef PythonFunctions added = functions_of(name, fork_ranks, rank, before, parent, child)
    lock_without_gil(&table)
    try:
        superseded.append(python_functions)
        python_functions = with_functions(python_functions, added)
    finally:
        pthread_mutex_unlock(&table)


cdef object hook_child():
    # At the first fork, not at import: the part of threading in a child comes before ours, and so is registered first; to
    # import it takes a third of what the rest of accelrt does.
    global child_is_hooked
    try:
        with hooking:
            __import__("threading")
            if not child_is_hooked:
                child_is_hooked = True
                os.register_at_fork(after_in_child=_after_in_child)
    except BaseException as error:  # an interruption, which is answered; the next fork tries again
        return error
    return None


cdef object frame_here():
    # Of the Python code that called what runs; None where there is none.
    cdef PyFrameObject* frame = PyEval_GetFrame()
    return None if frame == NULL else <object>frame


def _before_fork():
    cdef PythonFunctions entry
    cdef Fork fork = Fork()
    fork.functions, fork.frame = python_functions, frame_here()
    if not child_is_hooked:
        fork.interruption = hook_child()
    under_way.setdefault(PyThread_get_thread_ident(), []).append(fork)
    for entry in reversed(fork.functions):
        fork.interruption = run(entry, entry.before, "before", fork.interruption)


cdef Fork leave_fork():
    # The calling thread's latest.
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef list forks_here = under_way.get(thread)
    cdef Fork fork
    if not forks_here:
        return None
    fork = forks_here.pop()
    if not forks_here:
        del under_way[thread]
    return fork


def _after_in_parent():
    # Those registered meanwhile have nothing to undo.
    cdef PythonFunctions entry
    cdef Fork fork = leave_fork()
    if fork is None:
        return
    for entry in fork.functions:
        fork.interruption = run(entry, entry.parent, "after in parent", fork.interruption)
    raise_later(fork.interruption, fork.frame)  # os.fork() would tell what is raised here, and lose it


def _after_in_child():
    cdef PythonFunctions entry
    cdef Fork fork = leave_fork()
    cdef list forks_here = under_way.get(PyThread_get_thread_ident())
    under_way.clear()  # they are the parent's, but for those in the midst of which this thread forked
    if forks_here:
        under_way[PyThread_get_thread_ident()] = forks_here
    unraised.clear()
    if fork is None:
        fork = Fork()
    fork.interruption = None  # the parent's
    for entry in python_functions:
        fork.interruption = run(entry, entry.child, "after in child", fork.interruption)
    raise_later(fork.interruption, fork.frame)


cdef int raise_later(object error, object frame) except -1:
    # Signals' handlers run on the main thread, whose pending calls raise the error itself.
    cdef unsigned long thread = PyThread_get_thread_ident()
    if error is None:
        return 0
    threading = sys.modules.get("threading")
    if threading is not None and threading.main_thread().ident == thread:
        unraised.append((error, frame))
        if Py_AddPendingCall(raise_pending, NULL) == 0:
            return 0
        unraised.pop()
    PyThreadState_SetAsyncExc(thread, type(error))
    return 0


cdef int raise_pending(void* nothing) except -1:
    # The interpreter calls it between two instructions of the main thread's, which may be those of others' functions around
    # the fork, or of a warning of os.fork()'s: these would lose the exception, and what they have to give back.
    if not unraised:
        return 0
    error, forker = unraised[len(unraised) - 1]
    if is_called_by(frame_here(), forker) and Py_AddPendingCall(raise_pending, NULL) == 0:
        return 0
    unraised.pop()
    PyErr_SetObject(type(error), error)
    return -1


cdef void raise_soon(object error) noexcept:
    raise_later(error, None)


cdef bint is_called_by(frame, caller) except -1:
    if frame is caller or caller is None:
        return False
    while frame is not None and frame is not caller:
        frame = frame.f_back
    return frame is caller


# Locks of Python code that a fork takes.  Compiled code is interrupted in the wait alone, and holds nothing then: Ctrl-C
# between a fork and what follows it in Python would leave them taken for ever.
cdef dict held_by_forks = {}  # thread -> of each fork under way, the locks that it has


def hold_through_forks(str name, str rank, first: list[ForkSafeLock], others: dict[int, ForkSafeLock]) -> None:
    """Has locks taken before each fork, and given back behind it in both processes.  It holds none while it waits for one.

    A signal's handler that raises ends the wait: the fork goes on without the locks, and what was raised comes out of it.

    Arguments:
        name, rank: as of call_at_fork.
        first: list of ForkSafeLocks, the last of which guards others.
        others: dict of ForkSafeLocks.
    """
    call_at_fork(name, rank, lambda: hold(first, others), _release_held, _release_held)


cdef int hold(list first, dict others) except -1:
    cdef list held = []
    cdef ForkSafeLock busy
    held_by_forks.setdefault(PyThread_get_thread_ident(), []).append(held)
    while True:
        busy = try_to_take(first, held)
        if busy is None:
            busy = try_to_take(list(others.values()), held)
        if busy is None:
            return 0
        release_all(held)
        try:
            busy.take(True, -1)
        except BaseException as error:
            raise FromHandler(error) from None
        busy.give_back()


cdef ForkSafeLock try_to_take(list locks, list held):
    # The first that another thread has, or None.
    cdef ForkSafeLock lock
    for lock in locks:
        if not lock.take(False, -1):
            return lock
        held.append(lock)
    return None


cdef int release_all(list locks) except -1:
    cdef ForkSafeLock lock
    while locks:
        lock = locks.pop()
        if lock.held_here():  # not in a child of more forks than are told apart
            lock.give_back()
    return 0


def _release_held():
    # What the calling thread took before its fork, in the parent and in the child.
    cdef list forks_under_way = held_by_forks.get(PyThread_get_thread_ident())
    if forks_under_way:
        release_all(forks_under_way.pop())


# --- the end of the process -------------------------------------------------------------------------------------------

cdef list exit_functions = []  # by rank, then by name; replaced and never changed
cdef int placed_in = 0         # the process whose atexit has _run_at_exit


def call_at_exit(str name, str rank, function: Callable[[], object]) -> None:
    """Has a function called at the interpreter's exit, at its rank, once a process.

    A child of a fork ends by itself, and calls them too.  What they raise goes to sys.unraisablehook, and the others still
    run.  When they are all called is come_first_at_exit's to say, not this one's.  What the name has at the
    rank is replaced.

    Arguments:
        name: str, the module's, without "accelrt.".
        rank: str, of EXIT_ORDER.
        function: callable of no arguments.
    """
    global exit_functions
    cdef PythonFunctions added = functions_of(name, exit_ranks, rank, None, function, None)
    lock_without_gil(&table)
    try:
        superseded.append(exit_functions)
        exit_functions = with_functions(exit_functions, added)
    finally:
        pthread_mutex_unlock(&table)
    if placed_in != getpid():
        come_first_at_exit()


def come_first_at_exit() -> None:
    """Has the exit's functions called before all that atexit knows until now: when a driver was opened.

    So the program's own functions find the driver open if they were registered after its first use.  What registers here
    later takes its place by rank and does not move the others.  multiprocessing empties atexit in a child (from Python 3.13
    on), which opens a driver of its own.
    """
    global placed_in
    atexit.unregister(_run_at_exit)
    atexit.register(_run_at_exit)
    placed_in = getpid()


cdef PythonFunctions next_at_exit(int process):
    cdef PythonFunctions entry
    for entry in exit_functions:
        if entry.ended_in != process:
            return entry
    return None


def _run_at_exit():
    # Another thread may import a module meanwhile, which registers.
    cdef int process = getpid()
    cdef PythonFunctions entry = next_at_exit(process)
    while entry is not None:
        entry.ended_in = process
        interruption = run(entry, entry.parent, "exit", None)
        if interruption is not None:
            tell(interruption, entry.parent)
        entry = next_at_exit(process)


# --- who is registered ------------------------------------------------------------------------------------------------

def registered_at_fork() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Returns what runs around a fork: list of (rank, name, "C" or "Python", phases) in the order in which a child runs
    it."""
    cdef PythonFunctions entry
    cdef ForkFunctions[MOST_FUNCTIONS] copied
    cdef int index, count
    with nogil:
        lock_without_gil(&table)
        copied, count = functions, function_count
        pthread_mutex_unlock(&table)
    entries = []
    for index in range(count):
        hooks = (copied[index].prepare != NULL, copied[index].parent != NULL, copied[index].child != NULL)
        entries.append((FORK_ORDER[copied[index].rank][0], copied[index].name.decode(), "C", phases_of(hooks)))
    for entry in python_functions:
        hooks = (entry.before is not None, entry.parent is not None, entry.child is not None)
        entries.append((FORK_ORDER[entry.rank][0], entry.name, "Python", phases_of(hooks)))
    return entries


cdef tuple phases_of(tuple hooks):
    return tuple([phase for phase, there in zip(("prepare", "parent", "child"), hooks) if there])


def registered_at_exit() -> list[tuple[str, str]]:
    """Returns what runs at the exit: list of (rank, name), in that order."""
    cdef PythonFunctions entry
    return [(EXIT_ORDER[entry.rank][0], entry.name) for entry in exit_functions]


assert len(FORK_ORDER) == FORK_RANKS
pthread_mutex_init(&table, NULL)
if not is_hooked and pthread_atfork(&prepare_in_c, &go_on_in_c, &begin_anew_in_c):
    raise MemoryError("no host memory for a function at a fork")
is_hooked = True
os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent)


# --- env watch --------------------------------------------------------------------------------------------------------
# The environment's variables that say which devices there are.
#
# Before init they are read anew whenever devices are counted.  After init a change has no effect, and a caller that
# counts is told so once.

NAMES = {"cuda": ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"), "host": ("ACCELRT_HOST_DEVICES", "ACCELRT_HOST_MEMORY")}

cdef extern from *:
    """
    #include <string.h>
    extern char **environ;
    static char **accelrt_array;             /* the process's environment when it was looked through */
    static long accelrt_end;                 /* where it ended: a variable that comes new stands there */
    static long accelrt_slots[2];            /* where the two variables stood; the end where they are not set */
    static char *accelrt_texts[2];

    static void accelrt_look(const char *first, const char *second) {
        const char *names[2] = {first, second};
        accelrt_array = environ;
        for (accelrt_end = 0; environ[accelrt_end]; accelrt_end++) {}
        for (int i = 0; i < 2; i++) {
            size_t length = strlen(names[i]);
            accelrt_slots[i] = accelrt_end;
            for (long at = 0; at < accelrt_end; at++)
                if (!strncmp(environ[at], names[i], length) && environ[at][length] == '=') accelrt_slots[i] = at;
            accelrt_texts[i] = environ[accelrt_slots[i]];
        }
    }

    /* os.environ sets variables with setenv, which puts another string into a variable's slot, moves the slots
       behind one that is unset, and appends what is new. */
    static int accelrt_moved(void) {
        return environ != accelrt_array || environ[accelrt_end] ||
            environ[accelrt_slots[0]] != accelrt_texts[0] || environ[accelrt_slots[1]] != accelrt_texts[1];
    }
    """
    void look "accelrt_look"(const char* first, const char* second) nogil
    bint moved "accelrt_moved"() nogil

cdef dict data = getattr(os.environ, "_data", {})  # keeps values as objects that a change replaces
cdef tuple encoded = tuple([os.environ.encodekey(name) for name in NAMES["cuda"]])
cdef tuple names = NAMES["cuda"]
cdef tuple values_at_init = (None, None)
cdef bint is_watching = False


cdef object current(int which):
    return data.get(encoded[which])


cdef bint is_same(object one, object other) noexcept:
    return one is current(0) and other is current(1)


cdef bint changed() noexcept nogil:
    return is_watching and moved()


cdef int warn() except -1:
    global is_watching
    values = tuple([os.environ.get(name) for name in names])
    if values == values_at_init:  # another variable, or the same value set again
        look_again()
        return 0
    is_watching = False
    for name, was, value in zip(names, values_at_init, values, strict=True):
        if was != value:
            import warnings

            warnings.warn(
                f"{name} is now {shown(value)}, but was {shown(was)} when accelrt initialised; the change has no "
                "effect in this process: set it before the first use of a device", RuntimeWarning, stacklevel=2)
    return 0


cdef int look_again() except -1:
    first, second = [name.encode() for name in names]
    look(first, second)
    return 0


cdef str shown(object value):
    return "not set" if value is None else repr(value)


def check() -> None:
    """Says once that a change of these variables since init has no effect."""
    if changed():
        warn()


def remember(str driver) -> None:
    """Notes what the variables are, as of now, for a driver that has just opened: "cuda" or "host"."""
    global names, values_at_init, is_watching
    names = NAMES.get(driver, NAMES["host"])
    values_at_init = tuple([os.environ.get(name) for name in names])
    look_again()
    is_watching = True


def at_init() -> tuple[str | None, str | None]:
    """CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as the driver read them; None for one that was not set.  After init."""
    return values_at_init if names == NAMES["cuda"] else (None, None)


# --- functions that all threads call ----------------------------------------------------------------------------------
#
# Without a GIL whoever calls a function counts a reference to it, in one word that all threads would write: two threads
# that share nothing else were slower than one.  Python's own functions are not counted so; Cython's are, until told.

cdef extern from *:
    """
    #if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030E0000
    #define accelrt_stop_counting(object) ((void)PyUnstable_Object_EnableDeferredRefcount(object))
    #elif defined(Py_GIL_DISABLED)
    /* For good, as Python 3.13 does it to its own.  Only the thread that made the object writes this field. */
    static void accelrt_stop_counting(PyObject *object) {
        if (object->ob_tid == _Py_ThreadId()) __atomic_store_n(&object->ob_ref_local, UINT32_MAX, __ATOMIC_RELAXED);
    }
    #else
    #define accelrt_stop_counting(object) ((void)(object))
    #endif
    """
    void stop_counting "accelrt_stop_counting" (object function) noexcept

cdef set uncounted = set()  # the modules whose functions are told already


cdef void stop_counting_in(dict names):
    for value in list(names.values()):
        if type(value) is type(stop_counting_functions):
            stop_counting(value)


def stop_counting_functions() -> None:
    """Has calls of accelrt's compiled functions and methods count no references, in the modules that are imported by now.

    Does nothing where there is a GIL.  The functions live as long as the process, as modules do that nothing unloads.
    """
    if not WITHOUT_GIL:
        return
    for name, module in list(sys.modules.items()):
        if not name.startswith("accelrt.") or name in uncounted or getattr(module.__spec__, "_initializing", False):
            continue
        uncounted.add(name)
        stop_counting_in(vars(module))
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name:
                stop_counting_in(dict(value.__dict__))


# --- owners -----------------------------------------------------------------------------------------------------------
# File descriptors, and handles of other libraries, with an owner from the first moment on.
#
# What a function answers is lost where a KeyboardInterrupt comes between the call and the bytecode that keeps the answer,
# and a destructor that Python runs may be interrupted too.  What is here takes and keeps in one step of compiled code, and
# gives back in another: no interruption comes in between.

cdef extern from "<unistd.h>" nogil:
    int close_number "close" (int fd)


cdef class Descriptor:
    """A file descriptor, which is closed with the object, unless other code closed it and the number is another file's.

    Made by open_descriptor, open_pidfd, pipe, receive, take_over and duplicate.  It is a context manager and has fileno().
    """

    def __cinit__(self):
        self.number, self.kept = -1, -1

    def __dealloc__(self):
        self.release()

    cdef int release(self) except -1:
        cdef KeptFile kept
        with cython.critical_section(self):  # of threads that come at once one alone closes the number
            kept = self.kept
            self.forget()
        close_kept(kept)
        return 0

    cdef void forget(self) noexcept:
        self.number, self.kept = -1, -1

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns a file descriptor; duplicate() makes another one of the same file")

    def __repr__(self):
        return f"<accelrt.core.process.Descriptor {'closed' if self.number < 0 else self.number}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Tells whether it was closed or detached."""
        return self.number < 0

    def fileno(self) -> int:
        """The number.

        Raises:
            ValueError: it is closed.
        """
        if self.number < 0:
            raise ValueError("the file descriptor is closed")
        return self.number

    def detach(self) -> int:
        """The number, which is the caller's from now on; for a call that takes it over in the same expression.

        Raises:
            ValueError: it is closed.
        """
        number = self.fileno()
        self.forget()
        return number

    def close(self) -> None:
        """Closes it; does nothing where that was done before.

        Raises:
            OSError: what was written before could not be, as files on a network say; it is closed all the same.
        """
        cdef int number
        with cython.critical_section(self):
            number = number_of(self.kept)
            self.forget()
        if number >= 0:
            os.close(number)

    def duplicate(self) -> Descriptor:
        """Another Descriptor of the same open file.

        Raises:
            OSError: the process has no room for one.
            ValueError: it is closed.
        """
        return own(os.dup(self.fileno()))


cdef Descriptor own(int number):
    # The number is this function's: it is closed where there is no memory for the object.
    cdef Descriptor descriptor
    try:
        descriptor = Descriptor.__new__(Descriptor)
    except BaseException:
        close_number(number)
        raise
    descriptor.number = lift(number)
    descriptor.kept = keep_number(descriptor.number)
    return descriptor


cdef int own_all(list descriptors, const int* numbers, size_t count) except -1:
    cdef size_t index, owned = 0
    try:
        while owned < count:
            owned += 1
            descriptors.append(own(numbers[owned - 1]))
    except BaseException:
        for index in range(owned, count):
            close_number(numbers[index])
        raise
    return 0


def take_over(int number) -> Descriptor:
    """An open descriptor as a Descriptor, whose it is from now on.

    Arguments:
        number: int.
    """
    return own(number)


def take_file(row: Callable[..., tuple[int, int]], *arguments: object) -> tuple[int, Descriptor]:
    """Calls a row of the driver table that answers (code, number of a descriptor).

    Returns: the code, and a Descriptor, which is closed where the row made none.
    """
    code, number = row(*arguments)
    return code, own(number if code == 0 else -1)


def close_answer(answer: tuple[int, Descriptor]) -> None:
    """Closes what take_file answered."""
    (<Descriptor?>answer[1]).release()


def open_descriptor(path: str | bytes | PathLike[str], int flags, int mode=0o666) -> Descriptor:
    """os.open with O_CLOEXEC, as a Descriptor.

    Arguments:
        path: str, bytes or os.PathLike.
        flags: int, of os.open.
        mode: int, the permissions of a file that is made.
    Raises:
        OSError: the file cannot be opened so.
    """
    return own(os.open(path, flags | os.O_CLOEXEC, mode))


def open_pidfd(int pid) -> Descriptor:
    """os.pidfd_open as a Descriptor, which can be read once the process has ended.

    Raises:
        OSError: there is no such process, or this one has no room for it.
        AttributeError: this Python cannot open one.
    """
    return own(os.pidfd_open(pid))


def pipe() -> tuple[Descriptor, Descriptor]:
    """os.pipe as two Descriptors: the end to read from, and the one to write to.

    Raises:
        OSError: the process has no room for them.
    """
    reading, writing = os.pipe()
    return own(reading), own(writing)


def receive(sock: socket.socket, size_t size, int count, int flags=0) -> tuple[bytes, list[Descriptor], int]:
    """socket.recv_fds as Descriptors, which are closed on exec.

    Arguments:
        sock: socket.socket of AF_UNIX.
        size: int, bytes of data at most.
        count: int, descriptors at most; more than come at a time would be lost.
        flags: int, of recvmsg.
    Returns: the data as bytes, a list of Descriptors, and the flags of recvmsg's answer.
    Raises:
        OSError: recvmsg failed.
    """
    import socket  # which takes long, and whoever calls this has it
    cdef list descriptors = []
    data, parts, answered, _ = sock.recvmsg(size, socket.CMSG_SPACE(count * sizeof(int)), flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in parts:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            own_content(descriptors, content)
    return data, descriptors, answered


cdef int own_content(list descriptors, bytes content) except -1:
    # The last number may be cut off where there was no room for it; the kernel closed that one.
    cdef const char* start = content
    return own_all(descriptors, <const int*>start, <size_t>len(content) // sizeof(int))


cdef class Opener:
    """An opener for open(): open(path, "wb", opener=Opener(os.O_EXCL, 0o600)).

    A function of Python's would have the number in a local name.

    Arguments:
        flags: int, added to those that follow from open's mode.
        mode: int, the permissions of a file that is made.
        replace: bool, whether the flags replace those, which for "wb" truncate the file.
    """

    cdef int flags
    cdef int mode
    cdef bint replace

    def __init__(self, int flags, int mode=0o666, bint replace=False) -> None:
        self.flags, self.mode, self.replace = flags, mode, replace

    def __call__(self, path: str, int flags) -> int:
        return lift(os.open(path, (0 if self.replace else flags) | self.flags | os.O_CLOEXEC, self.mode))


# stub: class Owned(Generic[_T]):
cdef class Owned:
    """The answer of a function, given back by another function once, at the latest when the object goes.

        handle = Owned(library.open, (path,), library.close)
        with handle.hold() as value:  # close() in another thread meanwhile has the block give it back at its end
            if value is not None:
                library.read(value)

    Given back in the process that took it, and not by a forked child.  Both functions should be compiled ones: in one
    of Python's an interruption may come before it returns.

    Arguments:
        take: function, called with the arguments.
        arguments: tuple.
        release: function of what take answered.
        keep: kept alive until then: the Descriptor of a file that is registered, say.
    Raises:
        what take raises.
    """

    cdef object resource
    cdef object release
    cdef object keep
    cdef int pid
    cdef long holds    # contexts that are entered
    cdef bint closing  # by the last of them
    cdef object __weakref__

    # stub: def __init__(self, take: Callable[..., _T], arguments: tuple[object, ...], release: Callable[[_T], object], keep: object = None) -> None: ...  # no-cython-lint
    def __init__(
        self, take: Callable[..., _T], tuple arguments, release: Callable[[_T], object], keep: object = None,
    ) -> None:
        self.give_back()
        self.keep = keep
        self.pid = getpid()
        self.resource = take(*arguments)
        self.release = release

    def __del__(self) -> None:
        self.give_back()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "what it owns is given back once")

    # stub: def hold(self) -> Hold[_T]: ...
    def hold(self) -> Hold:
        """Returns the context in which it is not given back.  It answers what value does."""
        return Hold(self)

    @cython.critical_section
    cdef object enter(self):
        self.holds += 1
        return None if self.closing else self.resource

    @cython.critical_section
    cdef bint leave(self) except -1:
        # Whether to give it back.
        self.holds -= 1
        return self.closing and self.holds == 0

    @property
    def value(self) -> _T | None:
        """Returns what take answered; None once it was given back, or is to be."""
        return None if self.closing else self.resource

    def close(self) -> None:
        """Gives it back, or has the last that holds it do so; does nothing where that was done before, or in a forked child.

        Raises:
            what release raises; it counts as given back all the same.
        """
        self.give_back(False)

    cdef int give_back(self, bint while_held=True) except -1:
        # Even while it is held, or else by its last holder.  Of threads that come at once one alone finds it.
        resource = release = _keep = None
        with cython.critical_section(self):
            self.closing = not while_held and self.holds > 0
            if not self.closing:
                resource, release, _keep = self.resource, self.release, self.keep
                self.resource = self.release = self.keep = None
        if release is not None and self.pid == getpid():
            release(resource)
        return 0


# stub: class Hold(Generic[_T]):
cdef class Hold:
    """The context that Owned.hold makes, for one with statement.

    Arguments:
        owned: Owned.
    """

    cdef Owned owned
    cdef bint entered

    # stub: def __init__(self, owned: Owned[_T]) -> None: ...
    def __init__(self, Owned owned not None) -> None:
        if self.owned is not None:
            raise RuntimeError("the Hold is made already; make another one")
        self.owned = owned

    def __del__(self) -> None:
        self.leave()  # where an interruption came before the block

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it holds what is this process's")

    def __enter__(self) -> _T | None:
        if self.owned is None or self.entered:
            raise RuntimeError("a Hold is entered once at a time; make another one")
        value = self.owned.enter()
        self.entered = True
        return value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()

    cdef int leave(self) except -1:
        if self.entered:
            self.entered = False
            if self.owned.leave():
                self.owned.give_back()
        return 0


# stub: class EntryOf(Generic[_T]):
cdef class EntryOf:
    """The base of contexts in Python whose ends an interruption may cut.

    A class has _entry(), which makes an object for one with statement and changes nothing yet.  That one's enter() answers
    what the statement binds, and its leave() undoes what enter() did, also where it came half way; after that it does
    nothing.  It is called behind an enter() that was cut, and once more where it was cut itself.

    Raises:
        RuntimeError: it is left on a thread that is not inside; nothing is changed.
    """

    cdef list entries  # (thread, entry) of what is inside

    def __cinit__(self, *arguments, **named):
        self.entries = []

    # stub: def __class_getitem__(cls, of: object) -> type: ...
    def __class_getitem__(cls, of):
        return cls

    # stub: def __enter__(self) -> _T: ...
    def __enter__(self) -> object:
        entry = self._entry()
        self.entries.append((PyThread_get_thread_ident(), entry))
        try:
            return entry.enter()
        except BaseException:
            self.leave_last()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave_last()

    @cython.critical_section
    cdef tuple last_here(self):
        cdef unsigned long thread = PyThread_get_thread_ident()
        for inside in reversed(self.entries):
            if (<tuple>inside)[0] == thread:
                return inside
        raise RuntimeError(f"{self!r} is not this thread's current context; nothing is changed")

    cdef int leave_last(self) except -1:
        inside = self.last_here()
        try:
            inside[1].leave()
        except BaseException as error:
            try:
                inside[1].leave()
            except BaseException:
                raise error from None  # it is still inside, as where it is not the thread's last context
            self.entries.remove(inside)
            raise
        self.entries.remove(inside)
        return 0


# stub: class Taker(Generic[_T]):
cdef class Taker:
    """A function for other libraries to call, of which the last step alone takes something, and is a compiled one.

        library.set_allocator(Taker(lambda size, stream: (size, device, handle_of(stream)), caching_allocator_alloc))

    In a function of Python's an interruption would come between what takes and the return.

    Arguments:
        prepare: function of what the library passes; answers the arguments of take, as a tuple.
        take: compiled function, whose answer the library gets.
    """

    cdef object prepare
    cdef object take
    cdef object __weakref__

    def __init__(self, prepare: Callable[..., tuple[object, ...]], take: Callable[..., _T]) -> None:
        self.prepare, self.take = prepare, take

    def __call__(self, *arguments: object) -> _T:
        return self.take(*self.prepare(*arguments))

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it takes what is this process's; make another one")


cdef class Releaser:
    """The same for what gives something back, which an interruption, or what else a signal's handler raises, puts off: it is
    raised behind the call.

    Arguments:
        prepare: function of what the library passes; answers the arguments of release, as a tuple.  After an interruption
            it is called again.
        release: compiled function.
        report: function of an exception and this object, called with what prepare or release raised; None raises it.
    """

    cdef object prepare
    cdef object release
    cdef object report
    cdef object __weakref__

    def __init__(
        self, prepare: Callable[..., tuple[object, ...]], release: Callable[..., object],
        report: Callable[[BaseException, object], object] | None = None,
    ) -> None:
        self.prepare, self.release, self.report = prepare, release, report

    def __call__(self, *arguments: object, **named: object) -> None:
        interruption = prepared = None
        try:
            while prepared is None:
                try:
                    prepared = self.prepare(*arguments, **named)
                except BaseException as error:
                    if not isinstance(error, KeyboardInterrupt) and not is_of_handler(error):
                        raise
                    interruption = error
            self.release(*prepared)
        except Exception as error:
            if self.report is None:
                raise
            self.report(error, self)
        finally:
            if interruption is not None:
                raise_soon(interruption)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it gives back what is this process's; make another one")
