"""The exchange of a communicator's id: rank 0 listens on a TCP port, and the other ranks ask it.

All messages but the first two carry an HMAC of the job's key, so that with a secret (ACCELRT_RENDEZVOUS_KEY,
the same for all ranks) nobody else takes a rank's place, nor rank 0's.  Without one the key is made of what
the launcher says of the job, which keeps jobs apart but no stranger out who knows it: run it in a network
that is trusted then.  The id itself is not encrypted, as NCCL's own connections are not.

Rank 0 gives the id once all ranks have come, and both sides go on once all have confirmed it, so that a rank
that is missing, has stopped, or exists twice is an error that names it, on every rank.  What listens on a
port but answers something else is left alone: torchrun has a server of its own on MASTER_PORT, so that
several ports in a row are tried.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING

from accelrt import env
from accelrt.core import process
from accelrt.devices.device import device_count
from accelrt.nccl.collectives import unique_id
from accelrt.nccl.communicator import Communicator
from accelrt.nccl.launcher import place_from_environment
from accelrt.nccl.limits import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelrt.annotations import DeviceArgument
    from accelrt.nccl.config import Config
    from accelrt.nccl.launcher import Place

HELLO = b"accelrt rendezvous 2\0\0\0\0"
# HELLO, job, ranks, rank, communicator, token of the process, nonce of the connection, process id, host
QUESTION = struct.Struct("<24s16sIII16s16sI64s")
CHALLENGE = struct.Struct("<24s16s")  # HELLO, rank 0's nonce
MESSAGE = struct.Struct("<BI")  # kind, bytes that follow, behind which comes their HMAC
ID, REFUSAL, GIVES_UP, STRANGER, GO = range(5)  # kinds
PROOF_BYTES = 32
NONCE_BYTES = 16
PORTS = 8  # in a row that are tried
MOST_BYTES = 1 << 16
MOST_STRANGERS = 256  # connections that have not proved to be a rank
SILENCE_SECONDS = 5.0  # after which such a connection is cut off
FAREWELL_SECONDS = 2.0  # that rank 0 takes to tell the others why it gives up
PAUSE_SECONDS = 0.05

_exchanged = 0  # of this process; the same on all ranks, which make their communicators in the same order
_token = os.urandom(16)  # tells a process that asks again from another one


def init_from_environment(
    device: DeviceArgument | None = None, timeout: float | None = None, config: Config | None = None
) -> Communicator:
    """Makes this process's rank of a communicator of all processes that a launcher started: torchrun, mpirun
    or Slurm.

    Arguments:
        device: ordinal or accelrt.device; None is the one whose ordinal is the process's local rank, or the
            only one.
        timeout: seconds that the other processes may take to come, and later those of Communicator; None is
            ACCELRT_NCCL_TIMEOUT (600), math.inf is without limit.
        config: as of Communicator.
    Raises:
        ValueError: the launcher's variables are not set or wrong; the text names the variable.
        TimeoutError: ranks did not come, or stopped; the text names them.
        RuntimeError: the ranks do not agree on how many there are, or two processes have one rank.
        and as of Communicator.
    """
    place = place_from_environment()
    ordinal = _device_of(place) if device is None else device
    name = exchange(unique_id, place, timeout)
    return Communicator(place.size, name, place.rank, ordinal, timeout, config)


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


def exchange(make: Callable[[], bytes], place: Place | None = None, timeout: float | None = None) -> bytes:
    """Gives bytes of rank 0's to all ranks, each of which calls this once, in the same order.  It returns
    once all have them.

    Arguments:
        make: function without arguments; rank 0's is called, and gives at most 65536 bytes.
        place: Place; None is place_from_environment().
        timeout: seconds that the ranks may take to come; None is ACCELRT_NCCL_TIMEOUT (600), math.inf is
            without limit.
    Returns:
        bytes, what make returned on rank 0.
    Raises:
        TimeoutError, RuntimeError, ValueError: as of init_from_environment.
    """
    global _exchanged
    where = place_from_environment() if place is None else place
    seconds = seconds_of(timeout, "ACCELRT_NCCL_TIMEOUT")
    number, _exchanged = _exchanged, _exchanged + 1
    end = time.monotonic() + seconds
    if where.rank == 0:
        payload = make()
        if len(payload) > MOST_BYTES:
            raise ValueError(f"{len(payload)} bytes are too many to exchange; give at most {MOST_BYTES}")
        if where.size > 1:
            _Server(where, number, payload, end, seconds).serve()
        return payload
    return _Asker(where, number, end, seconds, _token).ask()


def _job(place: Place) -> bytes:
    """Returns what tells this job's questions from another's; it is no secret."""
    return hashlib.sha256(f"{place.job}|{place.address}|{place.port}".encode()).digest()[:16]


def _key(place: Place) -> bytes:
    secret = env.text("ACCELRT_RENDEZVOUS_KEY").encode()
    return hashlib.sha256(b"accelrt rendezvous key\0" + _job(place) + secret).digest()


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")


def _message(key: bytes, kind: int, data: bytes) -> bytes:
    head = MESSAGE.pack(kind, len(data)) + data
    return head + _proof(key, b"message", head)


def _ports(place: Place) -> range:
    first = place.port + 1 if place.taken else place.port
    return range(first, min(first + PORTS, 65536))


def _reset_in_child() -> None:
    global _exchanged, _token
    _exchanged = 0
    _token = os.urandom(16)


process.call_at_fork("nccl.rendezvous", "collectives", child=_reset_in_child)


class _Guest:
    """A connection to rank 0.

    Attributes:
        peer: socket.
        said: bytes received and not yet read; out: bytes still to be sent.
        rank: int, that it has proved to be, or None; words: who says so.
        session: bytes, the key of its further messages.
        confirmed: bool, whether it has said that it has the id.
    """

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.said = b""
        self.out = b""
        self.question = b""
        self.nonce = os.urandom(NONCE_BYTES)
        self.rank: int | None = None
        self.session = b""
        self.token = b""
        self.words = ""
        self.has_id = False
        self.confirmed = False
        self.is_leaving = False  # cut off once all is sent
        self.came = time.monotonic()


class _Server:
    """Rank 0's side."""

    def __init__(self, place: Place, number: int, payload: bytes, end: float, timeout: float) -> None:
        self.place = place
        self.number = number
        self.payload = payload
        self.end = end
        self.timeout = timeout
        self.key = _key(place)
        self.ranks: dict[int, _Guest] = {}
        self.complaints: list[str] = []
        self.all_came = False
        self.selector = selectors.DefaultSelector()

    def serve(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            listener = self._listen(stack)
            listener.setblocking(False)
            self.selector.register(listener, selectors.EVENT_READ)
            try:
                while not self._is_complete():
                    if time.monotonic() > self.end:
                        self._give_up(listener)
                    self._turn(listener)
                for guest in list(self.ranks.values()):
                    self._say(guest, GO)
            except (RuntimeError, TimeoutError) as error:
                self._tell_all(REFUSAL if isinstance(error, RuntimeError) else GIVES_UP, str(error))
                raise
            finally:
                self._flush()

    def _close(self) -> None:
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()

    def _is_complete(self) -> bool:
        return len(self.ranks) == self.place.size - 1 and all(
            guest.confirmed for guest in self.ranks.values()
        )

    def _turn(self, listener: socket.socket) -> None:
        """Takes what has come, and what can be sent."""
        for key, events in self.selector.select(PAUSE_SECONDS):
            if key.fileobj is listener:
                self._accept(listener)
                continue
            if events & selectors.EVENT_WRITE:
                self._send(key.data)
            if events & selectors.EVENT_READ:
                self._receive(key.data)
        self._cut_off_the_silent()
        self.all_came |= len(self.ranks) == self.place.size - 1
        if self.all_came:
            for guest in list(self.ranks.values()):
                if not guest.has_id:
                    guest.has_id = True
                    self._say(guest, ID, self.payload)

    def _listen(self, stack: contextlib.ExitStack) -> socket.socket:
        """Listens on the first port that is free; on the loopback interface alone where the ranks ask
        there."""
        local = self.place.address in ("127.0.0.1", "localhost", "::1")
        problems = []
        for port in _ports(self.place):
            hosts = ("::1", "127.0.0.1") if local else ("::", "")
            for family, host in zip((socket.AF_INET6, socket.AF_INET), hosts, strict=True):
                try:
                    return stack.enter_context(self._bind(family, host, port, local))
                except OSError as error:
                    problems.append(f"{port}: {error.strerror or error}")
        raise RuntimeError(
            f"rank 0 can listen on none of the ports {_words(_ports(self.place))} ({problems[-1]}); set "
            "MASTER_PORT to one that is free, the same on all ranks"
        )

    def _bind(self, family: int, host: str, port: int, local: bool) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                if local and self.place.address != "::1":
                    raise OSError("the ranks ask at an address of IPv4")
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((host, port))
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        return listener

    def _accept(self, listener: socket.socket) -> None:
        strangers = self._strangers()
        try:
            peer, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self.complaints.append(f"a connection could not be taken ({error.strerror})")
                if strangers:
                    self._cut_off(strangers[0])
                else:
                    time.sleep(PAUSE_SECONDS)  # the listener stays ready
            return
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.selector.register(peer, selectors.EVENT_READ, _Guest(peer))
        except BaseException:
            peer.close()
            raise
        if len(strangers) >= MOST_STRANGERS:
            self._cut_off(strangers[0])

    def _guests(self) -> list[_Guest]:
        return [key.data for key in list(self.selector.get_map().values()) if key.data is not None]

    def _strangers(self) -> list[_Guest]:
        return sorted((each for each in self._guests() if each.rank is None), key=lambda each: each.came)

    def _receive(self, guest: _Guest) -> None:
        try:
            data = guest.peer.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        guest.said += data
        if not data or len(guest.said) > 4096:
            self._cut_off(guest)
        elif guest.is_leaving:
            guest.said = b""
        elif guest.rank is not None:
            self._read_confirmation(guest)
        elif guest.question:
            self._read_proof(guest)
        elif not HELLO.startswith(guest.said[: len(HELLO)]):
            self._cut_off(guest)
        elif len(guest.said) >= QUESTION.size:
            self._challenge(guest)

    def _challenge(self, guest: _Guest) -> None:
        guest.question, guest.said = guest.said[: QUESTION.size], guest.said[QUESTION.size :]
        _, job, size, _, number, _, _, _, _ = QUESTION.unpack(guest.question)
        if job != _job(self.place) or (number != self.number and size == self.place.size):
            self._cut_off(guest)  # another job's, or early for the next communicator: it asks again
            return
        self._send(guest, CHALLENGE.pack(HELLO, guest.nonce))
        if guest.said:
            self._read_proof(guest)

    def _read_proof(self, guest: _Guest) -> None:
        if len(guest.said) < PROOF_BYTES:
            return
        proof, guest.said = guest.said[:PROOF_BYTES], guest.said[PROOF_BYTES:]
        _, _, size, rank, _, token, _, process, host = QUESTION.unpack(guest.question)
        words = f"process {process} on {host.rstrip(bytes(1)).decode(errors='replace')}"
        guest.session = _proof(self.key, b"session", guest.question, guest.nonce)
        if not hmac.compare_digest(proof, _proof(self.key, b"rank", guest.question, guest.nonce)):
            text = f"{words!a}, as rank {rank}, has another ACCELRT_RENDEZVOUS_KEY than rank 0"
            self._dismiss(guest, text, STRANGER)
        elif size != self.place.size or not 0 < rank < size:
            text = f"rank {rank} says that there are {size} ranks, rank 0 that there are {self.place.size}"
            self._dismiss(guest, text, REFUSAL, text.encode())
        else:
            guest.rank, guest.token, guest.words = rank, token, words
            self._admit(guest, rank)

    def _admit(self, guest: _Guest, rank: int) -> None:
        if rank in self.ranks:
            first = self.ranks[rank]
            if first.token != guest.token:
                text = f"two processes are rank {rank}: {first.words}, and {guest.words}"
                self._say(guest, REFUSAL, text.encode())
                raise RuntimeError(f"{text}; give each its own number")
            self._cut_off(first)  # its connection broke, and it asks again
        self.ranks[rank] = guest

    def _read_confirmation(self, guest: _Guest) -> None:
        if len(guest.said) < PROOF_BYTES:
            return
        if not hmac.compare_digest(guest.said, _proof(guest.session, b"done")) or not guest.has_id:
            self._cut_off(guest)
            return
        guest.said, guest.confirmed = b"", True

    def _dismiss(self, guest: _Guest, complaint: str, kind: int, data: bytes = b"") -> None:
        if len(self.complaints) < 16:
            self.complaints.append(complaint)
        self._say(guest, kind, data)
        guest.is_leaving = True

    def _say(self, guest: _Guest, kind: int, data: bytes = b"") -> None:
        self._send(guest, _message(guest.session, kind, data))

    def _send(self, guest: _Guest, data: bytes = b"") -> None:
        guest.out += data
        try:
            guest.out = guest.out[guest.peer.send(guest.out) :] if guest.out else b""
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # it asks again where it did not get it
            self._cut_off(guest)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.out else 0)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.modify(guest.peer, events, guest)

    def _cut_off(self, guest: _Guest) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(guest.peer)
        if guest.rank is not None and self.ranks.get(guest.rank) is guest:
            del self.ranks[guest.rank]  # who comes next may have the number
        guest.peer.close()

    def _cut_off_the_silent(self) -> None:
        now = time.monotonic()
        for guest in self._strangers():
            if now - guest.came > SILENCE_SECONDS or (guest.is_leaving and not guest.out):
                self._cut_off(guest)

    def _tell_all(self, kind: int, text: str) -> None:
        for guest in list(self.ranks.values()):
            self._say(guest, kind, text.encode()[:MOST_BYTES])

    def _flush(self) -> None:
        """Sends what is left, to those that take it within a while."""
        end = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < end:
            waiting = [each for each in self._guests() if each.out]
            if not waiting:
                return
            for guest in waiting:
                self._send(guest)
            time.sleep(PAUSE_SECONDS / 10)

    def _give_up(self, listener: socket.socket) -> None:
        missing = [rank for rank in range(1, self.place.size) if rank not in self.ranks]
        silent = [
            f"rank {rank} ({guest.words})"
            for rank, guest in sorted(self.ranks.items())
            if self.all_came and not guest.confirmed
        ]
        where = f"{self.place.address}:{listener.getsockname()[1]}"
        problems = []
        if missing:
            problems.append(f"ranks {_words(missing)} of {self.place.size} did not come to {where}")
        if silent:
            problems.append(f"{', '.join(silent[:16])} came to {where} and did not answer any more")
        raise TimeoutError(
            f"{' and '.join(problems)} within {self.timeout:g} s"
            + "".join(f"; {text}" for text in dict.fromkeys(self.complaints))
            + "; check that all were started and run, with the same MASTER_ADDR and MASTER_PORT"
        )


class _GivesUp(Exception):
    """Rank 0 did, and said why."""


class _Asker:
    """Another rank's side."""

    def __init__(self, place: Place, number: int, end: float, timeout: float, token: bytes) -> None:
        self.place = place
        self.number = number
        self.end = end
        self.timeout = timeout
        self.token = token
        self.key = _key(place)
        self.problem = "nothing answers there"
        self.mismatch = ""  # of keys, which tells more
        self.reached = ""  # where rank 0 answered, and what it did not say since

    def ask(self) -> bytes:
        place = self.place
        while time.monotonic() < self.end:
            for port in _ports(place):
                if time.monotonic() >= self.end:
                    break
                try:
                    payload = self._ask_at(port)
                except OSError as error:
                    self.problem = f"port {port}: {error.strerror or error}"
                    continue
                except _GivesUp as error:
                    raise TimeoutError(f"rank 0 gave up: {error} ({place.launcher})") from None
                if payload is not None:
                    return payload
            time.sleep(max(0.0, min(PAUSE_SECONDS, self.end - time.monotonic())))
        if self.reached and not self.mismatch:
            raise TimeoutError(
                f"rank {place.rank} of {place.size} reached rank 0 at {place.address}:{self.reached} within "
                f"{self.timeout:g} s; check that all ranks were started and run ({place.launcher})"
            )
        raise TimeoutError(
            f"rank {place.rank} of {place.size} found no rank 0 at {place.address}, ports "
            f"{_words(_ports(place))}, within {self.timeout:g} s "
            f"({self.mismatch or self.problem}); check that rank 0 was started, and "
            f"MASTER_ADDR and MASTER_PORT ({place.launcher})"
        )

    def _ask_at(self, port: int) -> bytes | None:
        """Asks for the bytes; None where something else listens there."""
        place = self.place
        soon = min(self.end, time.monotonic() + SILENCE_SECONDS)
        limit = max(0.001, soon - time.monotonic())
        with socket.create_connection((place.address, port), timeout=limit) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            host = socket.gethostname().encode()[:64]
            nonce = os.urandom(NONCE_BYTES)
            numbers = (place.size, place.rank, self.number)
            question = QUESTION.pack(HELLO, _job(place), *numbers, self.token, nonce, os.getpid(), host)
            connection.sendall(question)
            head = _receive(connection, CHALLENGE.size, soon)
            if head is None or head[: len(HELLO)] != HELLO:
                return None
            answer_part = head[len(HELLO) :]
            connection.sendall(_proof(self.key, b"rank", question, answer_part))
            session = _proof(self.key, b"session", question, answer_part)
            self.reached = f"{port}, which did not say that all ranks had come"
            data = self._await(connection, port, session, ID)
            if data is None:
                return None
            connection.sendall(_proof(session, b"done"))
            self.reached = f"{port}, which did not say that all ranks had the id"
            return None if self._await(connection, port, session, GO) is None else data

    def _await(self, connection: socket.socket, port: int, session: bytes, kind: int) -> bytes | None:
        """The bytes of rank 0's next message; None where it is none of its, or the connection broke.

        Raises:
            RuntimeError: it refuses this process.
        """
        head = _receive(connection, MESSAGE.size, self.end)
        if head is None:
            return None
        reply, size = MESSAGE.unpack(head)
        rest = _receive(connection, size + PROOF_BYTES, self.end) if size <= MOST_BYTES else None
        if rest is None:
            return None
        data, proof = rest[:size], rest[size:]
        if not hmac.compare_digest(proof, _proof(session, b"message", head + data)):
            self.reached = ""
            self.mismatch = f"port {port}: what answers there has another ACCELRT_RENDEZVOUS_KEY"
            return None
        self.mismatch = ""
        if reply == GIVES_UP:
            raise _GivesUp(data.decode(errors="replace"))
        if reply == REFUSAL:
            raise RuntimeError(
                f"rank 0 refuses this process: {data.decode(errors='replace')} ({self.place.launcher})"
            )
        return data if reply == kind else None


def _receive(connection: socket.socket, size: int, end: float) -> bytes | None:
    """Receives so many bytes; None where the connection ends before."""
    data = b""
    while len(data) < size:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(None if left == float("inf") else left)
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def _words(numbers: range | list[int]) -> str:
    if isinstance(numbers, range):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:16])) + (", ..." if len(numbers) > 16 else "")
