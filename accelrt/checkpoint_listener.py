"""A process that prepares itself when another one suspends it: what the two say to each other.

The process that listens has a Unix socket under an abstract name with its number in it.  Each connection is
one word, "prepare" or "wake", and one answer, "ok" or what went wrong.  Who said "prepare" keeps the
connection, and says "suspended" in the end: where it is over before that, the client gave up or died, and
what slept wakes.  Both sides look by SO_PEERCRED who the other is: the same user, or root, and the process
that was meant.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time
import warnings
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from accelrt.core import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
LONGEST = 4096  # bytes of a word or an answer
ANSWER_SECONDS = 5.0  # how long a client may take to say its word
NAME_SECONDS = 1.0  # how long it may take until nobody has its name
PAUSE = 0.1  # seconds until it accepts again, where the process has no descriptor left, say
CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)  # of accept(), where the socket listens no more

_listener: Listener | None = None
_turn = process.ForkSafeLock()  # for it; held for no wait


def address_of(pid: int) -> str:
    return f"\0accelrt-checkpoint-{pid}"


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, user, _ = CREDENTIALS.unpack(credentials)
    return pid, user


def lifted(connection: socket.socket) -> socket.socket:
    """The socket under a number above 2: where a standard stream is closed, who prints would write to it."""
    if connection.fileno() > 2:
        return connection
    with connection:
        return socket.socket(fileno=fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


class Listener:
    """The thread that is told, and what sleeps because of it.

    Arguments:
        make: what makes the context in which the process is prepared.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self.make = make
        self.closed: bool = False
        self.turn: threading.RLock = threading.RLock()  # for asleep
        self.opening: threading.RLock = threading.RLock()  # for the socket
        self.asleep: AbstractContextManager[None] | None = None  # that was entered
        self.is_waking: bool = False  # its end was refused, and is to be tried again
        self.socket: socket.socket = lifted(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.preparing: list[socket.socket] = []  # of those who said "prepare", and not yet "suspended"
        self.thread: threading.Thread = threading.Thread(
            target=self.run, name="accelrt-checkpoint", daemon=True
        )

    def begin(self) -> None:
        with self.opening:
            if self.closed:  # another thread's took its place
                return
            bind(self.socket, address_of(os.getpid()))
            self.socket.listen()
            self.thread.start()

    def run(self) -> None:
        while not self.closed:
            try:
                self.serve_one()
            except Exception as error:  # a client that went, say: the next one is heard
                if not self.closed:
                    report(error)
                    time.sleep(PAUSE)
        self.close_connections()

    def serve_one(self) -> None:
        poll = select.poll()
        for connection in (self.socket, *self.preparing):
            poll.register(connection, select.POLLIN)
        numbers = [number for number, _ in poll.poll()]
        for connection in [each for each in self.preparing if each.fileno() in numbers]:
            self.let_go(connection)
        if self.socket.fileno() in numbers:
            self.accept_one()

    def let_go(self, connection: socket.socket) -> None:
        self.preparing.remove(connection)
        word = b""
        with connection:
            with suppress(OSError):
                word = connection.recv(LONGEST)
            if word != b"suspended" and not self.preparing:
                self.perform(b"wake")

    def accept_one(self) -> None:
        try:
            connection = lifted(self.socket.accept()[0])
        except OSError as error:
            self.closed = self.closed or error.errno in CLOSED
            raise
        with ExitStack() as kept:
            kept.enter_context(connection)
            connection.settimeout(ANSWER_SECONDS)
            _, user = peer_of(connection)
            if user in (0, os.geteuid()):
                word = connection.recv(LONGEST)
                if word == b"prepare":
                    self.preparing.append(connection)
                    kept.pop_all()
                self.answer(connection, word)

    def answer(self, connection: socket.socket, word: bytes) -> None:
        try:
            self.perform(word)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".encode(errors="replace")
            connection.sendall(text[:LONGEST])
        else:
            connection.sendall(b"ok")

    def perform(self, word: bytes) -> None:
        with self.turn:
            self.perform_alone(word)

    def perform_alone(self, word: bytes) -> None:
        if word == b"prepare":
            if self.closed:
                raise RuntimeError("the process listens no more")
            if self.is_waking:
                self.wake()
            if self.asleep is None:
                context = self.make()
                context.__enter__()
                self.asleep = context
        elif word == b"wake":
            self.wake()
        else:
            raise ValueError(f"{word!r} is no word of a checkpoint's")

    def wake(self) -> None:
        if self.asleep is not None:
            self.is_waking = True
            self.asleep.__exit__(None, None, None)
            self.asleep, self.is_waking = None, False

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # which ends accept
        if self.thread.is_alive() and self.thread is not threading.current_thread():
            self.thread.join(ANSWER_SECONDS)
        with self.opening:
            self.socket.close()
        self.perform(b"wake")  # behind a word that is performed just now

    def close_connections(self) -> None:
        while self.preparing:
            self.preparing.pop().close()


def bind(listening: socket.socket, address: str) -> None:
    """Takes the name; a child that is just being forked may have it for a moment."""
    end = time.monotonic() + NAME_SECONDS
    while True:
        try:
            return listening.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise
            time.sleep(PAUSE / 10)


def report(error: Exception) -> None:
    with suppress(RuntimeWarning):  # where warnings are errors: the thread goes on
        warnings.warn(f"a checkpoint's word was not answered: {error}", RuntimeWarning, stacklevel=2)


def start(make: Callable[[], AbstractContextManager[None]]) -> None:
    """Listens; in place of what listened before, whose pools are awake then."""
    while True:
        stop()
        listener = Listener(make)
        # Known before it begins, so that Ctrl-C leaves none that stop() cannot end.
        if take_place(listener):
            break
        listener.close()
    try:
        listener.begin()
    except BaseException:
        end(listener)
        raise


def take_place(listener: Listener) -> bool:
    """Makes it the one that listens, unless another thread's does by now."""
    global _listener
    with _turn:
        if _listener is not None:
            return False
        _listener = listener
        return True


def stop() -> None:
    """Listens no more; what sleeps because of it wakes."""
    listener = _listener
    if listener is not None:
        end(listener)


def end(listener: Listener) -> None:
    global _listener
    listener.close()
    with _turn:
        if _listener is listener:  # known until it is closed, whatever Ctrl-C comes between
            _listener = None


def forget_in_child() -> None:
    # The parent's sockets: whoever calls the parent is not to wait for the child.
    global _listener
    if _listener is not None:
        _listener.socket.close()
        _listener.close_connections()
    _listener = None


def tell(pid: int, word: str, seconds: float) -> bool:
    """Says a word to a process that listens; whether it does.

    Raises:
        TimeoutError: it does not answer in time.
        RuntimeError: what it was told went wrong there.
    """
    with lifted(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        return say(connection, pid, word, seconds)


@contextmanager
def preparation(pid: int, seconds: float) -> Iterator[None]:
    """Makes a context for which a process that listens prepares itself, and behind which it stays so; where
    the block raises, or this process dies, it wakes.

    Raises:
        as tell.
    """
    with lifted(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        listens = say(connection, pid, "prepare", seconds)
        yield
        if listens:
            with suppress(OSError):
                connection.sendall(b"suspended")
                connection.recv(LONGEST)  # its end: whoever saves the process now finds no connection open


def say(connection: socket.socket, pid: int, word: str, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        connect(connection, address_of(pid), seconds)
        number, user = peer_of(connection)
        if number != pid or user not in (0, os.geteuid(), owner_of(pid)):
            return False  # somebody took its name
        connection.sendall(word.encode())
        reply = connection.recv(LONGEST)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except (ConnectionResetError, BrokenPipeError):
        reply = b""
    except TimeoutError:
        raise TimeoutError(
            f"process {pid} was told to {word}, and did not answer within {seconds:g} s"
        ) from None
    if reply != b"ok":
        error = reply.decode(errors="replace") or "it broke the connection off"
        raise RuntimeError(f"process {pid} was told to {word}, which failed there: {error}")
    return True


def connect(connection: socket.socket, address: str, seconds: float) -> None:
    """Connects, and waits for a place where as many clients as may wait there do."""
    end = time.monotonic() + seconds
    while True:
        try:
            return connection.connect(address)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError from None
            time.sleep(PAUSE)


def owner_of(pid: int) -> int:
    """The user of a process; -1 where there is none any more."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


process.call_at_fork("checkpoint_listener", "tools", child=forget_in_child)
