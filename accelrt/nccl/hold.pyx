"""Holds: who is in a call of the backend with a communicator's handle, so that nobody frees it meanwhile.

Operations come in by a Turn and find the handle, or are refused.  Who ends the communicator takes the handle first, so that
later calls are refused, and frees it once those inside have left.  Nothing here runs Python between its look and its
count, so that neither a signal's handler nor another thread comes between them.
"""
import threading

from cpython.exc cimport PyErr_WriteUnraisable
from cpython.pythread cimport PyThread_get_thread_ident

from accelrt.errors import NcclError
from accelrt.status cimport refuse_copy

cdef enum:
    INVALID_USAGE = 5  # ncclResult_t

cdef str ended = None  # why nothing is entered any more: the process ends


cdef class Hold:
    """One communicator's handle of its backend.

    Attributes:
        why: str, why there is no handle, where there is none.
    """

    cdef object handle    # None where it was not made, or was taken
    cdef readonly str why
    cdef dict inside      # by thread: in how many calls with the handle it is
    cdef object late      # function that frees the handle once nobody is inside
    cdef readonly object order    # RLock: one thread at a time puts operations into streams
    cdef readonly object calling  # RLock: one thread at a time is in a call of the backend; after `order`
    cdef object __weakref__

    def __cinit__(self):
        self.why = "it was never made"
        self.inside = {}
        self.order = threading.RLock()
        self.calling = threading.RLock()

    def __reduce__(self):
        refuse_copy(self, "it is of a communicator")

    @property
    def is_open(self):
        """bool, whether calls are let in."""
        return self.handle is not None and ended is None

    @property
    def has_handle(self):
        """bool, whether there is a handle to free."""
        return self.handle is not None

    @property
    def is_mine(self):
        """bool, whether this thread is inside: it would wait for itself."""
        return PyThread_get_thread_ident() in self.inside

    @property
    def is_busy(self):
        """bool, whether any thread is inside."""
        return bool(self.inside)

    def give(self, handle not None):
        """Lets calls in, with a handle."""
        self.handle = handle
        self.why = ""

    def take(self, str why not None):
        """The handle, or None; whoever gets it frees it, once nobody is inside."""
        handle = self.handle
        self.handle = None
        if handle is not None:
            self.why = why
        return handle

    def explain(self, str why not None):
        """Says why there is no handle yet."""
        self.why = why

    def free_late(self, function not None):
        """Has the last thread that is inside call a function as it leaves.

        Returns:
            bool, False where nobody is inside, so that the caller has to.
        """
        if not self.inside:
            return False
        self.late = function
        return True

    def refuse(self):
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
                function()
            except BaseException:
                PyErr_WriteUnraisable(function)
        return 0


cdef class Once:
    """Calls a function at the first call, and does nothing at later ones: who was interrupted may call it again.

    Arguments:
        function: callable without arguments.
    """

    cdef object function
    cdef object __weakref__

    def __init__(self, function not None):
        self.function = function

    def __reduce__(self):
        refuse_copy(self, "it may have been called")

    def run(self):
        """Calls it, if nobody has."""
        function, self.function = self.function, None
        if function is not None:
            function()


cdef class Locks:
    """A context that holds some locks, which an interruption while it takes them leaves free.

    Arguments:
        locks: list of RLock, in the order in which all threads take them.
    """

    cdef list locks
    cdef int taken
    cdef object __weakref__

    def __init__(self, list locks not None):
        self.locks = locks

    def __reduce__(self):
        refuse_copy(self, "it is what a thread does now")

    def __enter__(self):
        try:
            while self.taken < len(self.locks):
                self.locks[self.taken].acquire()
                self.taken += 1
        except BaseException:
            self.release()
            raise

    def __exit__(self, kind, error, trace):
        self.release()

    cdef int release(self) except -1:
        while self.taken:
            self.taken -= 1
            self.locks[self.taken].release()
        return 0


def calls_of(list holds not None):
    """Locks for a call of the backend with these communicators' handles: NCCL lets one thread at a time in."""
    return Locks([(<Hold>hold).calling for hold in sorted(holds, key=id)])


cdef class Turn:
    """A context in which the handles of some communicators stay alive; it gives the list of them.

    Arguments:
        holds: list of Hold, each once.
        ordered: bool, whether it takes turns with others that put operations into streams.
    Raises:
        NcclError: one has no handle.
    """

    cdef list holds
    cdef Locks locks
    cdef int entered
    cdef object __weakref__

    def __init__(self, list holds not None, bint ordered):
        self.holds = holds
        self.locks = Locks([(<Hold>hold).order for hold in sorted(holds, key=id)] if ordered else [])

    def __reduce__(self):
        refuse_copy(self, "it is what a thread does now")

    def __enter__(self):
        cdef Hold hold
        cdef list handles = []
        if self.locks is None:
            raise RuntimeError("this Turn was never initialised; make one with Turn(holds, ordered)")
        self.locks.__enter__()
        try:
            for hold in self.holds:
                handle = hold.enter()
                self.entered += 1
                handles.append(handle)
        except BaseException:
            self.end()
            raise
        return handles

    def __exit__(self, kind, error, trace):
        if self.locks is not None:
            self.end()

    cdef int end(self) except -1:
        cdef Hold hold
        try:
            while self.entered:
                self.entered -= 1
                hold = self.holds[self.entered]
                hold.leave()
        finally:
            self.locks.release()
        return 0


def end_all(str why not None):
    """Has all later calls refused, of all communicators."""
    global ended
    ended = why


def has_ended():
    """str, why all calls are refused, or None."""
    return ended
