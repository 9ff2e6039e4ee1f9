"""Two processes' connection: a Unix socket in the abstract namespace, which leaves no file behind.

The kernel names the process at the other end, multiprocessing's authkey proves that it is a friend, and
messages are JSON: nothing is unpickled.  A message is one packet, with the file descriptors that it brings.
Whoever waits for the other process says until when.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from contextlib import suppress
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import answer_challenge, deliver_challenge

from accelrt import env
from accelrt.core import procfs
from accelrt.sharing import mapping
from accelrt.sharing.mapping import FILES_AT_ONCE, FOREVER, Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from accelrt.core.process import Descriptor

__all__ = [
    "FILES_AT_ONCE",
    "BrokenPeerError",
    "Connection",
    "Message",
    "OtherPeerError",
    "accept",
    "connect",
    "deadline_in",
    "describe",
    "listen",
    "receive",
    "receive_files",
    "send",
]

OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)  # what this process lacks, not the other

Message = dict[str, "Any"]


class BrokenPeerError(ConnectionError):
    """The other end does not speak as one of ours does."""


class OtherPeerError(BrokenPeerError):
    """At the other end there is another process, or another user's, than the one that was meant."""


def is_ours(error: BaseException) -> bool:
    """Tells whether this process lacks something, not the other one."""
    return isinstance(error, OSError) and error.errno in OURS


def is_alive(pid: int) -> bool:
    """Tells whether there is a process of that number; one that was stopped is alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def limit_of(timeout: float | None) -> float:
    """The seconds that an argument says, or ACCELRT_SHARING_TIMEOUT.

    Raises:
        TypeError, ValueError: it is no positive number.
    """
    if timeout is None:
        return float(env.value("ACCELRT_SHARING_TIMEOUT"))
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is {timeout!r} of type {type(timeout).__name__}; pass seconds, or None")
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; it has to be more than 0 seconds")
    return float(timeout)


def deadline_in(seconds: float) -> float:
    return time.monotonic() + seconds


def describe(pid: int) -> str:
    """A process for an error: its number, its name and whether it is stopped, as far as the system tells."""
    status = None
    with suppress(OSError):
        status = procfs.status_of(pid)
    if status is None:
        return f"process {pid}"
    return f"process {pid} ({status.name!r}{', which is stopped' if status.state in 'Tt' else ''})"


def listen() -> tuple[mapping.Listener, str]:
    """A listening socket, and its name."""
    name = f"accelrt-{os.getpid()}-{secrets.token_hex(8)}"
    return mapping.Listener(name), name


def authkey() -> bytes:
    return bytes(current_process().authkey)


def check_user(connection: Connection) -> int:
    """The other process's number; PermissionError where it is of another user, who is not root."""
    pid, uid = connection.peer
    if uid not in (os.geteuid(), 0):
        raise PermissionError(f"process {pid} is of user {uid}, and this one of user {os.geteuid()}")
    return int(pid)


def prove(connection: Connection, deadline: float, key: bytes | None, first: Any, second: Any) -> None:
    """Proves both ends to each other by a key, or multiprocessing's authkey; what multiprocessing makes of
    garbage is a BrokenPeerError."""
    connection.deadline = deadline
    try:
        first(connection, key or authkey())
        second(connection, key or authkey())
    except (EOFError, OSError):
        raise
    except AuthenticationError as error:
        # Python 3.12 and later say so of garbage too, where earlier ones fail an assertion.
        if not str(error).startswith("Protocol error"):
            raise
        raise BrokenPeerError(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise BrokenPeerError(f"{type(error).__name__}: {error}") from error
    connection.deadline = FOREVER


def accept(connection: Connection, deadline: float, key: bytes | None = None) -> int:
    """Proves both ends of a connection that was accepted; the other process's number.

    Raises:
        AuthenticationError, EOFError, OSError: it is no friend, went away, or said nothing by the deadline.
    """
    pid = check_user(connection)
    prove(connection, deadline, key, deliver_challenge, answer_challenge)
    return pid


def connect(name: str, wanted: int, deadline: float, key: bytes | None = None) -> tuple[Connection, int]:
    """A connection to the process that listens by that name, and that process's number.

    Arguments:
        wanted: the number that it has to have, since it had it before; 0 where it is not known.
        key: what both have to know; None is multiprocessing's authkey.
    Raises:
        OtherPeerError: somebody else has its name.
        AuthenticationError: the two processes have other authkeys.
        TimeoutError: it does not answer.
        EOFError, OSError: it is gone, or is no process of ours.
    """
    connection = mapping.connect(name, deadline)
    try:
        pid = check_user(connection)
    except PermissionError as error:
        raise OtherPeerError(str(error)) from error
    if wanted not in (0, pid):
        raise OtherPeerError(f"process {pid} has the name of process {wanted}")
    prove(connection, deadline, key, answer_challenge, deliver_challenge)
    return connection, pid


def send(connection: Connection, message: Message, deadline: float, files: Sequence[int] = ()) -> None:
    """A message with at most FILES_AT_ONCE descriptors, which stay the caller's."""
    connection.send(json.dumps(message).encode(), files, deadline)


def read(packet: bytes) -> Message:
    if not packet:
        raise EOFError("the connection was closed")
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise BrokenPeerError(f"{packet[:40]!r} is no message: {error}") from error
    if not isinstance(message, dict):
        raise BrokenPeerError(f"a message is {message!r}; it has to be a dict")
    return message


def receive(connection: Connection, deadline: float = FOREVER) -> Message:
    """A message that brings no descriptors.

    Raises:
        TimeoutError: none came.
        EOFError, OSError: the other process is gone.
    """
    packet, files = connection.receive(deadline)
    files.clear()
    return read(packet)


def receive_files(connection: Connection, deadline: float) -> tuple[Message, list[Descriptor]]:
    """A message and its descriptors.

    Raises:
        RuntimeError: this process could not take all of them.
        TimeoutError, EOFError, OSError: as of receive().
    """
    packet, files = connection.receive(deadline)
    message = read(packet)
    expected = message.get("files", 0)
    if len(files) != expected:
        limit = "this process may have no more (ulimit -n)"
        raise RuntimeError(f"{len(files)} of {expected} file descriptors came: {limit}")
    return message, files
