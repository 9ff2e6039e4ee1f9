"""Two processes' connection: a Unix socket in the abstract namespace, which leaves no file behind.

The kernel names the process at the other end, multiprocessing's authkey proves that it is a friend, and
messages are JSON: nothing is unpickled.  File descriptors follow their message, some at a time.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from multiprocessing import current_process
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = [
    "FILES_AT_ONCE",
    "Message",
    "Unsent",
    "accept",
    "connect",
    "listen",
    "receive",
    "receive_files",
    "send",
    "send_files",
]

FILES_AT_ONCE = 64  # descriptors in one message; Linux takes 253
PATIENCE = 20  # seconds in which a process that connects has to prove itself
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
TIMEVAL = struct.Struct("ll")

Message = dict[str, "Any"]


class Unsent(Exception):
    """The other process says why it cannot send what was asked for."""


def listen() -> tuple[socket.socket, str]:
    """A listening socket, and its name."""
    name = f"accelrt-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener, name


def authkey() -> bytes:
    return bytes(current_process().authkey)


def accept(taken: socket.socket) -> tuple[Connection[Any, Any], int]:
    """Proves both ends of a connection that was accepted; the other process's number with it.

    Raises:
        AuthenticationError, EOFError, OSError: it is no friend, or went away.
    """
    peer = taken.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(peer)
    connection: Connection[Any, Any] = Connection(taken.detach())
    try:
        limit_waits(connection, PATIENCE)
        if uid not in (os.geteuid(), 0):
            raise PermissionError(f"process {pid} of user {uid} asked for memory of user {os.geteuid()}")
        deliver_challenge(connection, authkey())
        answer_challenge(connection, authkey())
        limit_waits(connection, 0)
    except BaseException:
        connection.close()
        raise
    return connection, pid


def limit_waits(connection: Connection[Any, Any], seconds: int) -> None:
    """How long the socket waits for a byte; 0 is for ever."""
    with socket.socket(fileno=os.dup(connection.fileno())) as borrowed:
        borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.pack(seconds, 0))


def connect(name: str) -> Connection[Any, Any]:
    """A connection to the process that listens by that name.

    Raises:
        AuthenticationError: the two processes have other authkeys.
        EOFError, OSError: that process is gone.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.connect(f"\0{name}")
        connection: Connection[Any, Any] = Connection(made.detach())
    try:
        answer_challenge(connection, authkey())
        deliver_challenge(connection, authkey())
    except BaseException:
        connection.close()
        raise
    return connection


def send(connection: Connection[Any, Any], message: Message) -> None:
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection[Any, Any]) -> Message:
    found = json.loads(connection.recv_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"a message is {found!r}; it has to be a dict")
    return found


def send_files(connection: Connection[Any, Any], files: Sequence[int]) -> None:
    """At most FILES_AT_ONCE descriptors, which stay the caller's."""
    send(connection, {"files": len(files)})
    with socket.socket(fileno=os.dup(connection.fileno())) as borrowed:
        socket.send_fds(borrowed, [b"F"], files)


def receive_files(connection: Connection[Any, Any]) -> tuple[list[int], RuntimeError | None]:
    """The descriptors of one send_files, which are the caller's to close, or why this process could not
    take them.

    Raises:
        EOFError, OSError: the other process is gone.
        Unsent: it could not send them, nor any after them.
    """
    message = receive(connection)
    if "error" in message:
        raise Unsent(message["error"])
    wanted = message["files"]
    with socket.socket(fileno=os.dup(connection.fileno())) as borrowed:
        byte, files, _, _ = socket.recv_fds(borrowed, 1, wanted, socket.MSG_CMSG_CLOEXEC)
    if not byte:
        raise EOFError
    if len(files) == wanted:
        return list(files), None
    for file in files:
        os.close(file)
    limit = "this process may have no more (ulimit -n)"
    return [], RuntimeError(f"{len(files)} of {wanted} file descriptors came: {limit}")
