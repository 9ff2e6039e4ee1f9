"""The exchange of a communicator's id: rank 0 listens on a TCP port, and the other ranks ask it.

A question is HELLO, the job's key, and how many ranks there are, which one asks, and for which of the job's
communicators; the answer is HELLO, a number and so many bytes.  Whoever asks for something else is cut off,
and what listens on a port
but answers something else is left alone: torchrun has a server of its own on MASTER_PORT, so that several
    ports in a row
are tried.  The id is no secret; run it in a network that is trusted, as NCCL's own connections need.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING

from accelrt.devices.device import device_count
from accelrt.nccl.collectives import unique_id
from accelrt.nccl.communicator import Communicator
from accelrt.nccl.launcher import place_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelrt.annotations import DeviceArgument
    from accelrt.nccl.launcher import Place

__all__ = ["exchange", "init_from_environment"]

HELLO = b"accelrt rendezvous 1\0\0\0\0"
QUESTION = struct.Struct("<24s16sIII")  # HELLO, key, ranks, rank, communicator
ANSWER = struct.Struct("<24siI")  # HELLO, 0 or 1 where the bytes are an error's text, bytes
DONE = b"\1"
PORTS = 8  # in a row that are tried
MOST_BYTES = 1 << 16
SILENCE_SECONDS = 5.0  # after which a connection that says nothing is cut off
PAUSE_SECONDS = 0.05

_exchanged = 0  # of this process; the same on all ranks, which make their communicators in the same order


def init_from_environment(device: DeviceArgument | None = None, timeout: float = 300.0) -> Communicator:
    """This process's rank of a communicator of all processes that a launcher started: torchrun, mpirun or
    Slurm.

    Arguments:
        device: ordinal or accelrt.device; None is the one whose ordinal is the process's local rank, or the
            only one.
        timeout: seconds that the other processes may take to come.
    Raises:
        ValueError: the launcher's variables are not set or wrong; the text names the variable.
        TimeoutError: ranks did not come; the text names them.
        RuntimeError: the ranks do not agree on how many there are.
        and as of Communicator.
    """
    place = place_from_environment()
    ordinal = _device_of(place) if device is None else device
    name = exchange(unique_id, place, timeout)
    return Communicator(place.size, name, place.rank, ordinal)


def _device_of(place: Place) -> int:
    count = device_count()
    if count == 1:  # the launcher shows each process its own
        return 0
    if place.local_rank >= count:
        raise ValueError(
            f"local rank {place.local_rank} of {place.launcher} has no device: {count} are visible; start "
            "fewer processes on a machine, or pass device"
        )
    return place.local_rank


def exchange(make: Callable[[], bytes], place: Place | None = None, timeout: float = 300.0) -> bytes:
    """Gives bytes of rank 0's to all ranks, each of which calls this once, in the same order.

    Arguments:
        make: function without arguments; rank 0's is called.
        place: Place; None is place_from_environment().
        timeout: seconds that the ranks may take to come.
    Raises:
        TimeoutError, RuntimeError, ValueError: as of init_from_environment.
    """
    global _exchanged
    where = place_from_environment() if place is None else place
    number, _exchanged = _exchanged, _exchanged + 1
    end = time.monotonic() + timeout
    if where.rank == 0:
        given = make()
        if where.size > 1:
            _Server(where, number, given, end, timeout).serve()
        return given
    return _ask(where, number, end, timeout)


def _key(place: Place) -> bytes:
    return hashlib.sha256(f"{place.job}|{place.address}|{place.port}".encode()).digest()[:16]


def _ports(place: Place) -> range:
    first = place.port + 1 if place.taken else place.port
    return range(first, min(first + PORTS, 65536))


def _reset_in_child() -> None:
    global _exchanged
    _exchanged = 0


os.register_at_fork(after_in_child=_reset_in_child)


class _Server:
    """Rank 0's side."""

    def __init__(self, place: Place, number: int, given: bytes, end: float, timeout: float) -> None:
        self.place = place
        self.number = number
        self.given = given
        self.end = end
        self.timeout = timeout
        self.missing = set(range(1, place.size))
        self.complaints: list[str] = []
        self.selector = selectors.DefaultSelector()

    def serve(self) -> None:
        listener = self._listen()
        try:
            listener.setblocking(False)
            self.selector.register(listener, selectors.EVENT_READ)
            while self.missing:
                if time.monotonic() > self.end:
                    self._give_up(listener)
                for key, _ in self.selector.select(PAUSE_SECONDS):
                    if key.fileobj is listener:
                        self._accept(listener)
                    else:
                        self._read(key.fileobj, key.data)  # type: ignore[arg-type]
                self._cut_off_the_silent()
        finally:
            for key in list(self.selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self.selector.close()

    def _listen(self) -> socket.socket:
        """On the first port that is free; on the loopback interface alone where that is what the ranks
        ask."""
        local = self.place.address in ("127.0.0.1", "localhost", "::1")
        problems = []
        for port in _ports(self.place):
            for family, host in ((socket.AF_INET6, "::1" if local else "::"), (socket.AF_INET, "")):
                if local and family == socket.AF_INET:
                    host = "127.0.0.1"
                try:
                    return self._bind(family, host, port, local)
                except OSError as error:
                    problems.append(f"{port}: {error.strerror or error}")
        raise RuntimeError(
            f"rank 0 can listen on none of the ports {_words(_ports(self.place))} ({problems[-1]}); set "
            "MASTER_PORT to one that is free, the same on all ranks"
        )

    def _bind(self, family: int, host: str, port: int, local: bool) -> socket.socket:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                if local and self.place.address != "::1":
                    raise OSError("the ranks ask at an address of IPv4")
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            made.bind((host, port))
            made.listen(128)
        except BaseException:
            made.close()
            raise
        return made

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            peer, _ = listener.accept()
            peer.setblocking(False)
            self.selector.register(peer, selectors.EVENT_READ, _Guest())

    def _read(self, peer: socket.socket, guest: _Guest) -> None:
        try:
            data = peer.recv(QUESTION.size + len(DONE) - len(guest.said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        guest.said += data
        if not data or not HELLO.startswith(guest.said[: len(HELLO)]):
            self._cut_off(peer)
        elif guest.rank is None and len(guest.said) >= QUESTION.size:
            self._answer(peer, guest)
        if guest.rank is not None and guest.said[QUESTION.size :] == DONE:
            self.missing.discard(guest.rank)
            self._cut_off(peer)

    def _answer(self, peer: socket.socket, guest: _Guest) -> None:
        _, key, size, rank, number = QUESTION.unpack(guest.said[: QUESTION.size])
        if key != _key(self.place) or (number != self.number and size == self.place.size):
            self._cut_off(peer)  # another job's, or early for the next communicator: it asks again
            return
        if size != self.place.size or not 0 < rank < size:
            text = f"rank {rank} says that there are {size} ranks, rank 0 that there are {self.place.size}"
        elif rank not in self.missing:
            text = f"rank {rank} asked twice: two processes have that number"
        else:
            guest.rank = rank
            self._send(peer, ANSWER.pack(HELLO, 0, len(self.given)) + self.given)
            return
        self.complaints.append(text)
        self._send(peer, ANSWER.pack(HELLO, 1, len(text)) + text.encode())
        self._cut_off(peer)

    def _send(self, peer: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it asks again where it did not get it
            peer.sendall(data)

    def _cut_off(self, peer: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(peer)
        peer.close()

    def _cut_off_the_silent(self) -> None:
        now = time.monotonic()
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, _Guest) and now - key.data.came > SILENCE_SECONDS:
                self._cut_off(key.fileobj)  # type: ignore[arg-type]

    def _give_up(self, listener: socket.socket) -> None:
        port = listener.getsockname()[1]
        raise TimeoutError(
            f"ranks {_words(sorted(self.missing))} of {self.place.size} did not come to "
            f"{self.place.address}:{port} "
            f"within {self.timeout:g} s"
            + "".join(f"; {text}" for text in dict.fromkeys(self.complaints))
            + "; check that all were started, with the same MASTER_ADDR and MASTER_PORT"
        )


class _Guest:
    """A connection to rank 0."""

    def __init__(self) -> None:
        self.said = b""
        self.rank: int | None = None
        self.came = time.monotonic()


def _ask(place: Place, number: int, end: float, timeout: float) -> bytes:
    """Another rank's side."""
    problem = "nothing answers there"
    while time.monotonic() < end:
        for port in _ports(place):
            left = end - time.monotonic()
            if left <= 0:
                break
            try:
                found = _ask_at(place, port, number, min(left, SILENCE_SECONDS))
            except OSError as error:
                problem = f"port {port}: {error.strerror or error}"
                continue
            if found is not None:
                return found
        time.sleep(max(0.0, min(PAUSE_SECONDS, end - time.monotonic())))
    raise TimeoutError(
        f"rank {place.rank} of {place.size} found no rank 0 at {place.address}, ports "
        f"{_words(_ports(place))}, within "
        f"{timeout:g} s ({problem}); check that rank 0 was started, and MASTER_ADDR and MASTER_PORT "
        f"({place.launcher})"
    )


def _ask_at(place: Place, port: int, number: int, seconds: float) -> bytes | None:
    """The bytes; None where something else listens there."""
    with socket.create_connection((place.address, port), timeout=seconds) as connection:
        connection.sendall(QUESTION.pack(HELLO, _key(place), place.size, place.rank, number))
        head = _receive(connection, ANSWER.size)
        if head is None:
            return None
        hello, wrong, size = ANSWER.unpack(head)
        if hello != HELLO or size > MOST_BYTES:
            return None
        data = _receive(connection, size)
        if data is None:
            return None
        if wrong:
            raise RuntimeError(f"rank 0 refuses this process: {data.decode()} ({place.launcher})")
        connection.sendall(DONE)
        return data


def _receive(connection: socket.socket, size: int) -> bytes | None:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return None
        found += part
    return found


def _words(numbers: range | list[int]) -> str:
    if isinstance(numbers, range):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:16])) + (", ..." if len(numbers) > 16 else "")
