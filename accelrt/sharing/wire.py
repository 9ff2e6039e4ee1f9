"""Two processes' connection: a Unix socket in the abstract namespace, which leaves no file behind.

The kernel names the process at the other end, multiprocessing's authkey proves that it is a friend, and
messages are JSON: nothing is unpickled.  A message is one packet, with the file descriptors that it brings:
a thread that sends or receives one gives up the GIL once, and may have to wait for it again.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from multiprocessing import current_process
from multiprocessing.connection import answer_challenge, deliver_challenge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = [
    "FILES_AT_ONCE",
    "Connection",
    "Message",
    "accept",
    "connect",
    "listen",
    "receive",
    "receive_files",
    "send",
]

FILES_AT_ONCE = 64  # descriptors in one message; Linux takes 253
LARGEST = 1 << 16  # bytes of a message
PATIENCE = 20  # seconds in which a process that connects has to prove itself
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
TIMEVAL = struct.Struct("ll")

Message = dict[str, "Any"]


class Connection:
    """A socket whose packets are messages, as multiprocessing's challenges take it too."""

    def __init__(self, taken: socket.socket) -> None:
        self.socket = taken

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()

    def send_bytes(self, packet: bytes) -> None:
        self.socket.send(packet)

    def recv_bytes(self, maxlength: int = LARGEST) -> bytes:
        packet = self.socket.recv(maxlength)
        if not packet:
            raise EOFError
        return packet

    def limit_waits(self, seconds: int) -> None:
        """How long the socket waits for a packet; 0 is for ever."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.pack(seconds, 0))


def listen() -> tuple[socket.socket, str]:
    """A listening socket, and its name."""
    name = f"accelrt-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{name}")
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener, name


def authkey() -> bytes:
    return bytes(current_process().authkey)


def challenge(connection: Any) -> None:
    """The other process proves that it has our authkey."""
    deliver_challenge(connection, authkey())


def answer(connection: Any) -> None:
    answer_challenge(connection, authkey())


def accept(taken: socket.socket) -> tuple[Connection, int]:
    """Proves both ends of a connection that was accepted; the other process's number with it.

    Raises:
        AuthenticationError, EOFError, OSError: it is no friend, or went away.
    """
    peer = taken.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(peer)
    connection = Connection(taken)
    try:
        connection.limit_waits(PATIENCE)
        if uid not in (os.geteuid(), 0):
            raise PermissionError(f"process {pid} of user {uid} asked for memory of user {os.geteuid()}")
        challenge(connection)
        answer(connection)
        connection.limit_waits(0)
    except BaseException:
        connection.close()
        raise
    return connection, pid


def connect(name: str) -> Connection:
    """A connection to the process that listens by that name.

    Raises:
        AuthenticationError: the two processes have other authkeys.
        EOFError, OSError: that process is gone.
    """
    connection = Connection(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    try:
        connection.socket.connect(f"\0{name}")
        answer(connection)
        challenge(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def send(connection: Connection, message: Message, files: Sequence[int] = ()) -> None:
    """A message with at most FILES_AT_ONCE descriptors, which stay the caller's."""
    packet = json.dumps(message).encode()
    if files:
        socket.send_fds(connection.socket, [packet], files)
    else:
        connection.send_bytes(packet)


def read(packet: bytes) -> Message:
    found = json.loads(packet)
    if not isinstance(found, dict):
        raise ValueError(f"a message is {found!r}; it has to be a dict")
    return found


def receive(connection: Connection) -> Message:
    """A message that brings no descriptors."""
    return read(connection.recv_bytes())


def receive_files(connection: Connection) -> tuple[Message, list[int], RuntimeError | None]:
    """A message, its descriptors, which are the caller's to close, and why this process could not take them.

    Raises:
        EOFError, OSError: the other process is gone.
        ValueError: its packet is no message; the descriptors that it brought are closed.
    """
    packet, files, _, _ = socket.recv_fds(connection.socket, LARGEST, FILES_AT_ONCE, socket.MSG_CMSG_CLOEXEC)
    kept: list[int] = []
    try:
        if not packet:
            raise EOFError
        message = read(packet)
        wanted = message.get("files", 0)
        if len(files) == wanted:
            kept = list(files)
            return message, kept, None
    finally:
        for file in files if not kept else ():
            os.close(file)
    limit = "this process may have no more (ulimit -n)"
    return message, [], RuntimeError(f"{len(files)} of {wanted} file descriptors came: {limit}")
