"""File descriptors, and handles of other libraries, with an owner from the first moment on.

What a function answers is lost where a KeyboardInterrupt comes between the call and the bytecode that keeps the answer,
and a destructor that Python runs may be interrupted too.  What is here takes and keeps in one step of compiled code, and
gives back in another: no interruption comes in between.
"""
import os

from accelrt.status cimport refuse_copy

cdef extern from "Python.h":
    int PyThreadState_SetAsyncExc(unsigned long thread, object error) except -1
    unsigned long PyThread_get_thread_ident() noexcept

cdef extern from "<unistd.h>" nogil:
    int close_number "close" (int fd)
    int getpid()


cdef class Descriptor:
    """A file descriptor, which is closed with the object.

    Made by open_descriptor, open_pidfd, pipe, receive, take_over and duplicate.  It is a context manager and has fileno().
    """

    def __cinit__(self):
        self.number = -1

    def __dealloc__(self):
        self.release()

    cdef int release(self) except -1:
        cdef int number = self.number
        self.number = -1
        if number >= 0:
            close_number(number)
        return 0

    def __reduce__(self):
        refuse_copy(self, "it owns a file descriptor; duplicate() makes another one of the same file")

    def __repr__(self):
        return f"<accelrt.core.owners.Descriptor {'closed' if self.number < 0 else self.number}>"

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    @property
    def closed(self):
        """Whether it was closed or detached."""
        return self.number < 0

    def fileno(self):
        """The number.

        Raises:
            ValueError: it is closed.
        """
        if self.number < 0:
            raise ValueError("the file descriptor is closed")
        return self.number

    def detach(self):
        """The number, which is the caller's from now on; for a call that takes it over in the same expression.

        Raises:
            ValueError: it is closed.
        """
        number = self.fileno()
        self.number = -1
        return number

    def close(self):
        """Closes it; does nothing where that was done before.

        Raises:
            OSError: what was written before could not be, as files on a network say; it is closed all the same.
        """
        cdef int number = self.number
        self.number = -1
        if number >= 0:
            os.close(number)

    def duplicate(self):
        """Another Descriptor of the same open file.

        Raises:
            OSError: the process has no room for one.
            ValueError: it is closed.
        """
        return own(os.dup(self.fileno()))


cdef Descriptor own(int number):
    cdef Descriptor taken = Descriptor.__new__(Descriptor)
    taken.number = number
    return taken


cdef int own_all(list taken, const int* numbers, size_t count) except -1:
    cdef size_t index, owned = 0
    try:
        while owned < count:
            taken.append(own(numbers[owned]))
            owned += 1
    except BaseException:
        for index in range(owned, count):
            close_number(numbers[index])
        raise
    return 0


def take_over(int number):
    """An open descriptor as a Descriptor, whose it is from now on.

    Arguments:
        number: int.
    """
    return own(number)


def open_descriptor(path, int flags, int mode=0o666):
    """os.open with O_CLOEXEC, as a Descriptor.

    Arguments:
        path: str, bytes or os.PathLike.
        flags: int, of os.open.
        mode: int, the permissions of a file that is made.
    Raises:
        OSError: the file cannot be opened so.
    """
    return own(os.open(path, flags | os.O_CLOEXEC, mode))


def open_pidfd(int pid):
    """os.pidfd_open as a Descriptor, which can be read once the process has ended.

    Raises:
        OSError: there is no such process, or this one has no room for it.
        AttributeError: this Python cannot open one.
    """
    return own(os.pidfd_open(pid))


def pipe():
    """os.pipe as two Descriptors: the end to read from, and the one to write to.

    Raises:
        OSError: the process has no room for them.
    """
    reading, writing = os.pipe()
    return own(reading), own(writing)


def receive(sock, size_t size, int count, int flags=0):
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
    cdef list taken = []
    data, parts, answered, _ = sock.recvmsg(size, socket.CMSG_SPACE(count * sizeof(int)), flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in parts:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            own_content(taken, content)
    return data, taken, answered


cdef int own_content(list taken, bytes content) except -1:
    # The last number may be cut off where there was no room for it; the kernel closed that one.
    cdef const char* start = content
    return own_all(taken, <const int*>start, <size_t>len(content) // sizeof(int))


cdef class Opener:
    """What open() takes as its opener: open(path, "wb", opener=Opener(os.O_EXCL, 0o600)).

    A function of Python's would have the number in a local name.

    Arguments:
        flags: int, added to those that follow from open's mode.
        mode: int, the permissions of a file that is made.
        replace: bool, whether the flags replace those, which for "wb" truncate the file.
    """

    cdef int flags
    cdef int mode
    cdef bint replace

    def __init__(self, int flags, int mode=0o666, bint replace=False):
        self.flags, self.mode, self.replace = flags, mode, replace

    def __call__(self, path, int flags):
        return os.open(path, (0 if self.replace else flags) | self.flags | os.O_CLOEXEC, self.mode)


cdef class Owned:
    """What a function answers, given back by another function once, at the latest when the object goes.

        handle = Owned(library.open, (path,), library.close)
        library.read(handle.value)

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

    cdef object taken
    cdef object release
    cdef object keep
    cdef int pid
    cdef object __weakref__

    def __init__(self, take, tuple arguments, release, keep=None):
        self.close()
        self.keep = keep
        self.pid = getpid()
        self.taken = take(*arguments)
        self.release = release

    def __del__(self):
        self.close()

    def __reduce__(self):
        refuse_copy(self, "what it owns is given back once")

    @property
    def value(self):
        """What take answered; None once it was given back."""
        return self.taken

    def close(self):
        """Gives it back; does nothing where that was done before, or in a forked child.

        Raises:
            what release raises; it counts as given back all the same.
        """
        taken, release, _keep = self.taken, self.release, self.keep
        self.taken = self.release = self.keep = None
        if release is not None and self.pid == getpid():
            release(taken)


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

    def __init__(self, prepare, take):
        self.prepare, self.take = prepare, take

    def __call__(self, *arguments):
        return self.take(*self.prepare(*arguments))

    def __reduce__(self):
        refuse_copy(self, "it takes what is this process's; make another one")


cdef class Releaser:
    """The same for what gives something back, which an interruption puts off: it is raised behind the call.

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

    def __init__(self, prepare, release, report=None):
        self.prepare, self.release, self.report = prepare, release, report

    def __call__(self, *arguments, **named):
        cdef bint interrupted = False
        prepared = None
        try:
            while prepared is None:
                try:
                    prepared = self.prepare(*arguments, **named)
                except KeyboardInterrupt:
                    interrupted = True
            self.release(*prepared)
        except Exception as error:
            if self.report is None:
                raise
            self.report(error, self)
        finally:
            if interrupted:
                PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), KeyboardInterrupt)

    def __reduce__(self):
        refuse_copy(self, "it gives back what is this process's; make another one")
