"""The other side: memory of other processes that this one has opened.

What is mapped once serves all that is opened of the same pages.  A Buffer of such memory keeps a Lease;
when that dies, this process's thread for its owner waits until no stream's work uses the memory, unmaps it,
and tells the owner.  Each owner has such a thread, connections and a queue to itself, so that one which is
stopped holds up nobody else.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
import warnings
from collections import deque
from itertools import count
from multiprocessing import AuthenticationError
from queue import Empty, SimpleQueue

from accelrt.core.process import call_at_fork
from accelrt.errors import PeerTimeoutError
from accelrt.sharing import counters, mapping, producer, wire
from accelrt.sharing.mapping import Ending, Lease, Tally
from accelrt.sharing.threads import Service
from accelrt.streams.stream import Event, Stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from accelrt.annotations import DeviceArgument
    from accelrt.arrays.array import Buffer, PinnedBuffer
    from accelrt.core.process import Descriptor

MOST_LATE = 64  # what this process may have of one owner's that is over and not given back
MOST_LATE_BYTES = 256 << 20
MOST_TOLD = 256  # of what is over, told in one message
MOST_IDLE = 4  # connections to one owner, kept for the next exchange
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.05  # seconds between two looks at work that is under way
QUICK = 0.005  # seconds in which an owner's answer is waited for before anything else is looked at
LONGEST_RETRY = 5.0  # seconds until an owner that did not answer is tried again
UNUSED = 10.0  # seconds after which an owner's thread ends that nothing was opened of
DOUBTS = 10  # failures after which an owner counts as gone of which the system does not tell whether it lives

_lock = threading.RLock()
_owners: dict[str, Owner] = {}
_names = count(1)  # of what this process has opened
_numbers = count(1)  # of connections
_who = ""  # this process, to owners
# Of one plain segment there is one mapping; held for no wait for another process.  A handler of a
# signal may open memory while its thread holds one of these.
_segment_turns = threading.RLock()
_event_turns = threading.RLock()  # of one event of another process's, this one has one object at a time


class Place:
    """The place of memory: owner's socket and process, the loan, and what has to be mapped: plain values."""

    __slots__ = ("loan", "name", "nbytes", "offset", "pages", "pid", "segment", "size", "ticket", "uuid")
    unseen = False  # whether other libraries' work uses the memory, of which this one knows nothing
    authkey: bytes | None = None  # what opens it; None is multiprocessing's
    claim: tuple[str, int] | None = None  # torch's counter of a tensor

    def __init__(
        self, name: str, pid: int, loan: int, ticket: bool, uuid: bytes, nbytes: int, offset: int, size: int,
        segment: int | None, pages: tuple[tuple[int, int], ...],
    ) -> None:  # fmt: skip
        self.name: str = name
        self.pid: int = pid
        self.loan: int = loan
        self.ticket: bool = ticket
        self.uuid: bytes = uuid
        self.nbytes: int = nbytes
        self.offset: int = offset  # from where the pages, or the segment, begin
        self.size: int = size  # bytes from there on
        self.segment: int | None = segment  # the number of a plain segment; None for pages
        self.pages: tuple[tuple[int, int], ...] = pages  # number and bytes of each

    def __reduce__(self) -> tuple[object, ...]:
        return (Place, self.values)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in (
            "name", "pid", "loan", "ticket", "uuid", "nbytes", "offset", "size", "segment", "pages",
        ))  # fmt: skip

    @property
    def key(self) -> tuple[object, ...]:
        return (self.name, self.uuid, self.segment, self.pages)  # numbers are of one device

    @property
    def request(self) -> wire.Message:
        """Returns what the owner is asked for."""
        return {"loan": self.loan}

    @property
    def gone(self) -> str:
        """Tells why its owner has it no more."""
        return "it was opened before" if self.ticket else "its owner has closed the handle"


class PinnedPlace:
    """A place of page-locked memory: the owner's socket and process, its number there, and its bytes."""

    __slots__ = ("name", "nbytes", "number", "pid")

    name: str
    pid: int
    number: int
    nbytes: int

    def __init__(self, name: str, pid: int, number: int, nbytes: int) -> None:
        self.name = name
        self.pid = pid
        self.number = number
        self.nbytes = nbytes

    def __reduce__(self) -> tuple[object, ...]:
        return (PinnedPlace, (self.name, self.pid, self.number, self.nbytes))


class GoneError(ConnectionError):
    """The process whose memory is opened has ended."""


class Mark:
    """A place in an owner's queue: set once all that ended before it has been given back."""

    __slots__ = ("before", "passed")

    def __init__(self) -> None:
        self.before: list[Ending] | None = None
        self.passed: threading.Event = threading.Event()


class Owner:
    """A process whose memory this one has, and the thread that gives it back."""

    def __init__(self, name: str, pid: int, authkey: bytes | None) -> None:
        self.name = name
        self.pid = pid
        self.authkey = authkey
        self.counters: set[str] = set()  # files of torch's that are this process's to remove if it dies
        self.peer: int = 0  # its number in this process's namespace, once it was connected to
        self.tally: Tally = Tally()
        self.idle: list[wire.Connection] = []
        self.ended: SimpleQueue[Ending | Mark | int] = SimpleQueue()
        self.giving: GiveBack = GiveBack(self)

    def describe(self) -> str:
        return wire.describe(self.peer or self.pid)

    def connect(self, deadline: float) -> wire.Connection:
        """A new connection.

        Raises:
            GoneError: it has ended, or another process has its name.
            AuthenticationError: it has another authkey.
            TimeoutError, EOFError, OSError: it does not answer, or broke off.
        """
        try:
            connection, self.peer = wire.connect(self.name, self.peer, deadline, self.authkey)
        except (ConnectionRefusedError, wire.OtherPeerError) as error:
            raise GoneError(f"nobody listens at its name any more ({error})") from error
        connection.number = next(_numbers)
        wire.send(connection, {"who": who(), "connection": connection.number}, deadline)
        if wire.receive(connection, deadline).get("welcome") != connection.number:
            raise wire.BrokenPeerError("it did not welcome the connection")
        return connection

    def take_connection(self, deadline: float) -> wire.Connection:
        try:
            return self.idle.pop()
        except IndexError:
            return self.connect(deadline)

    def keep_connection(self, connection: wire.Connection) -> None:
        if len(self.idle) < MOST_IDLE:
            self.idle.append(connection)
        else:
            connection.close()

    def close_idle(self) -> None:
        """Closes connections one by one, each taken out before: page-locked memory is opened meanwhile."""
        while self.idle:
            try:
                connection = self.idle.pop()
            except IndexError:  # another thread was as quick
                return
            connection.close()

    def remove_counters(self) -> None:
        """It counts as gone; where it is dead, nobody else removes its files."""
        if self.peer and not wire.is_alive(self.peer):
            while self.counters:
                counters.remove(self.counters.pop())

    def hold_back(self, nbytes: int, limit: float, deadline: float) -> None:
        """Waits while too much of what this process had of the owner has not been given back."""
        pause, tally = FIRST_PAUSE, self.tally
        while tally.late >= MOST_LATE or (tally.late and tally.late_bytes + nbytes > MOST_LATE_BYTES):
            if time.monotonic() >= deadline:
                raise PeerTimeoutError(
                    f"no more memory of {self.describe()} was opened within {limit:g} s: {tally.late} "
                    f"Buffers of {tally.late_bytes} bytes that were dropped here are not given back, since "
                    f"{self.giving.reason()}"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


class GiveBack:
    """The work of an owner's thread: it gives back what has ended, whatever happens."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.service: Service = Service(
            f"accelrt-sharing-borrower-{owner.pid}",
            f"memory of process {owner.pid} is given back later",
            self.step,
        )
        self.working: deque[Ending] = deque()  # work uses the memory, or the driver keeps it
        self.untold: deque[Ending] = deque()  # the owner has to be told
        self.declined: list[int] = []  # tickets of which it has to be told
        self.marks: list[Mark] = []
        self.line: wire.Connection | None = None  # to the owner, for this thread alone
        self.sent: list[Ending] | None = None  # the owner was told of these, and has not answered
        self.sent_declined: list[int] = []
        self.pause: float = FIRST_PAUSE
        self.next_try: float = 0.0
        self.retry: float = FIRST_PAUSE
        self.doubts: int = 0
        self.gone: bool = False

    def reason(self) -> str:
        """Tells why something is not given back, for an error."""
        if self.sent is not None or self.untold:
            return "that process was told of it and does not answer"
        return "this process's own work uses it still"

    def step(self) -> bool:
        """One round of the thread; False: it is not needed any more."""
        if not self.take_ended():
            return self.goes_on()
        before = (len(self.working), len(self.untold), self.sent is None)
        self.let_go()
        self.tell()
        if before != (len(self.working), len(self.untold), self.sent is None):
            self.pause = FIRST_PAUSE
        self.pass_marks()
        return True

    def has_work(self) -> bool:
        left = mapping.close_left()
        return (
            bool(self.working or self.untold or self.declined or self.marks or left) or self.sent is not None
        )

    def take_ended(self) -> bool:
        """Takes what ended, and waits for it where nothing else is to be done; whether there is something."""
        wait = UNUSED
        if self.has_work():
            wait = self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
        try:
            self.take(self.owner.ended.get(timeout=wait))
            self.pause = FIRST_PAUSE
            while True:
                self.take(self.owner.ended.get_nowait())
        except Empty:
            return self.has_work()

    def take(self, ended: Ending | Mark | int) -> None:
        if isinstance(ended, Ending):
            self.working.append(ended)
        elif isinstance(ended, Mark):
            ended.before = [*self.working, *self.untold, *(self.sent or ())]
            self.marks.append(ended)
        else:
            self.declined.append(ended)

    def let_go(self) -> None:
        for _ in range(len(self.working)):
            ending = self.working[0]
            if ending.is_idle() and ending.let_go():
                self.untold.append(ending)
            else:
                self.working.append(ending)
            self.working.popleft()

    def tell(self) -> None:
        """Tells the owner as much as one message holds, and takes its answer, if it has come."""
        if time.monotonic() < self.next_try:
            return
        try:
            self.take_answer()
            if self.sent is None and (self.untold or self.declined):
                self.send_some()
                self.take_answer()
        except Exception as error:
            self.judge(error)

    def send_some(self) -> None:
        deadline = wire.deadline_in(wire.limit_of(None))
        if self.gone:
            self.owner.remove_counters()
            self.come_back([*self.untold])
            self.untold.clear()
            self.declined.clear()
            return
        never_asked = [ending for ending in self.untold if ending.connection == 0]
        if never_asked:
            self.come_back(never_asked)
            self.untold = deque(ending for ending in self.untold if ending.connection)
            if not self.untold and not self.declined:
                return
        if self.line is None:
            self.line = self.owner.connect(deadline)
        some = [ending for ending, _ in zip(self.untold, range(MOST_TOLD), strict=False)]
        done = [[ending.connection, ending.number] for ending in some]
        wire.send(self.line, {"do": "end", "done": done, "declined": self.declined[:MOST_TOLD]}, deadline)
        self.sent, self.sent_declined = some, self.declined[:MOST_TOLD]

    def take_answer(self) -> None:
        if self.sent is None or self.line is None or not self.line.wait_readable(wire.deadline_in(QUICK)):
            return
        wire.receive(self.line, wire.deadline_in(QUICK))
        answered, self.sent = self.sent, None
        self.come_back(answered)
        for _ in answered:
            self.untold.popleft()
        del self.declined[: len(self.sent_declined)]
        self.retry, self.doubts = FIRST_PAUSE, 0

    def come_back(self, endings: list[Ending]) -> None:
        for ending in endings:
            ending.come_back()

    def judge(self, error: Exception) -> None:
        """After a failure: the owner is gone, or is told later on a new connection."""
        line, self.line, self.sent = self.line, None, None
        if line is not None:
            line.close()
        self.doubts += not (isinstance(error, TimeoutError) or wire.is_ours(error))
        peer = self.owner.peer
        ended = not wire.is_alive(peer) if peer else self.doubts >= DOUBTS
        self.gone = self.gone or isinstance(error, GoneError) or ended
        self.next_try = 0.0 if self.gone else time.monotonic() + self.retry
        self.retry = min(2 * self.retry, LONGEST_RETRY)

    def pass_marks(self) -> None:
        for mark in self.marks:
            mark.before = [ending for ending in mark.before or () if not ending.is_back]
            if not mark.before:
                mark.passed.set()
        self.marks = [mark for mark in self.marks if mark.before]

    def goes_on(self) -> bool:
        """Tells whether the thread is needed: where nothing was opened for a while, it and the connections
        end."""
        owner = self.owner
        with _lock:
            if owner.tally.leases or not owner.ended.empty():
                return True
            self.service.thread = None
            if _owners.get(owner.name) is owner:
                del _owners[owner.name]
        owner.close_idle()
        if self.line is not None:
            self.line.close()
        return False


def who() -> str:
    """This process, to owners: the same on all of its connections."""
    global _who
    with _lock:
        _who = _who or f"{os.getpid()}-{secrets.token_hex(8)}"
        return _who


def missing(place: Place | PinnedPlace, what: str) -> RuntimeError:
    return RuntimeError(
        f"memory of process {place.pid} cannot be opened: {what}; the owner has to live, and to keep "
        "the handle, "
        "until the others have opened it"
    )


def owner_of(name: str, pid: int, authkey: bytes | None = None) -> Owner:
    """The owner, whose thread runs.  Under the lock.

    Raises:
        RuntimeError: the system gives no thread.
    """
    owner = _owners.get(name)
    if owner is None:
        owner = _owners[name] = Owner(name, pid, authkey)
    owner.giving.service.ensure()
    return owner


def open_memory(place: Place, stream: Stream, timeout: float | None = None) -> Buffer:
    """A Buffer on another process's memory, on the stream's device; the stream comes after its owner's work.

    Raises:
        RuntimeError: the owner is gone, or has closed the handle.
        PeerTimeoutError: it did not answer in time.
        PermissionError: it has another authkey.
        CudaError: the driver refused.
    """
    limit = wire.limit_of(timeout)
    deadline = wire.deadline_in(limit)
    with _lock:
        owner = owner_of(place.name, place.pid, place.authkey)
        ending = Ending(next(_names), place.nbytes, stream, owner.tally)
        ending.unseen = place.unseen
        lease = Lease(owner.ended, ending)  # whatever happens from here on, it ends
    try:
        owner.hold_back(place.nbytes, limit, deadline)
        with mapping.Relaxed():
            event = exchange(owner, place, ending, deadline)
            if event:
                with _event_turns:
                    stream.wait_event(Event.from_ipc_handle(stream.device_index, event))
        assert ending.memory is not None
        if place.claim is not None:
            owner.counters.add(place.claim[0])
        return ending.memory.buffer(place.offset, place.nbytes, stream, lease)
    except BaseException as error:
        lease.end()  # now, whoever keeps the exception
        raise_plainly(error, owner, place, limit)
        raise


def ask_for_file(owner: Owner, place: PinnedPlace, deadline: float) -> list[Descriptor]:
    """The file of page-locked memory."""
    connection = owner.take_connection(deadline)
    try:
        wire.send(connection, {"do": "open", "pinned": place.number}, deadline)
        reply, files = wire.receive_files(connection, deadline)
    except BaseException:
        connection.close()
        raise
    owner.keep_connection(connection)
    if "error" in reply or not len(files):
        raise missing(place, "its owner has dropped or closed the handle")
    return files


def open_pinned(place: PinnedPlace, device: DeviceArgument | None, timeout: float | None) -> PinnedBuffer:
    """A PinnedBuffer on another process's page-locked memory; raises as open_memory."""
    limit = wire.limit_of(timeout)
    deadline = wire.deadline_in(limit)
    with _lock:
        owner = owner_of(place.name, place.pid)
    try:
        files = ask_for_file(owner, place, deadline)
    except BaseException as error:
        raise_plainly(error, owner, place, limit)
        raise
    with mapping.Relaxed():
        return mapping.open_pinned(files[0].fileno(), place.nbytes, device)


def raise_plainly(error: BaseException, owner: Owner, place: Place | PinnedPlace, limit: float) -> None:
    """Raises what a failure means to the caller of open(), where that is more than it says itself."""
    if isinstance(error, PeerTimeoutError) or wire.is_ours(error):
        return
    if isinstance(error, TimeoutError):
        raise PeerTimeoutError(
            f"{owner.describe()} did not hand over its memory within {limit:g} s; wait for longer by "
            "open(timeout=) or ACCELRT_SHARING_TIMEOUT, or see what holds it up"
        ) from error
    if isinstance(error, AuthenticationError):
        raise PermissionError(
            f"process {place.pid} refused to hand over memory: the two processes have different "
            "authkeys; start "
            "one with the other's multiprocessing, or set multiprocessing.current_process().authkey to "
            "the same "
            "bytes in both"
        ) from error
    if isinstance(error, (EOFError, OSError)):
        raise missing(
            place, f"that process is gone, or broke off ({error or type(error).__name__})"
        ) from error


def attach(ending: Ending, place: Place, deadline: float) -> bool:
    """Tells whether the memory is mapped already, and the lease uses that."""
    while True:
        attached = ending.attach(place.key)
        if attached is not None:
            return bool(attached)
        if time.monotonic() >= deadline:
            raise TimeoutError("another thread unmaps the memory")
        time.sleep(FIRST_PAUSE)


def exchange(owner: Owner, place: Place, ending: Ending, deadline: float) -> bytes:
    """Maps what is not mapped, and answers the handle of the owner's event, or no bytes.

    A connection on which anything failed is closed: what was under way on it is nobody's any more.
    """
    files = not attach(ending, place, deadline)
    connection = owner.take_connection(deadline)
    try:
        ending.connection = connection.number
        reply = ask(connection, place, ending, files, deadline)
        event = bytes.fromhex(reply.get("event") or "")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        connection.close()
        raise wire.BrokenPeerError(f"{type(error).__name__}: {error}") from error
    except BaseException:
        connection.close()
        raise
    owner.keep_connection(connection)
    if reply.get("error") == "gone":
        raise missing(place, place.gone)
    if "error" in reply:
        raise RuntimeError(f"process {place.pid} could not hand over its memory: {reply['error']}")
    return event


def ask(
    connection: wire.Connection, place: Place, ending: Ending, files: bool, deadline: float
) -> wire.Message:
    """The owner's answer; the lease has a mapping unless that says why not."""
    wire.send(connection, {"do": "open", "as": ending.number, "files": files} | place.request, deadline)
    reply, some = wire.receive_files(connection, deadline)
    if "error" in reply or not files:
        return reply
    if place.segment is not None:
        open_segment(place, ending, bytes.fromhex(reply["segment"]), deadline)
        return reply
    memory = mapping.reserve(mapping.find_device(place.uuid), place.size)
    for files_of_some, sizes in pages_that_come(connection, reply, some, place.size, deadline):
        for file, size in zip(files_of_some, sizes, strict=True):
            memory.add_page(file.fileno(), size)
        files_of_some.clear()
    memory.finish()
    ending.publish(place.key, memory)
    return reply


def pages_that_come(
    connection: wire.Connection, message: wire.Message, files: list[Descriptor], size: int, deadline: float
) -> Iterator[tuple[list[Descriptor], list[int]]]:
    """The descriptors of pages and their sizes, message by message, until there are size bytes."""
    done = 0
    while True:
        sizes = message["sizes"]
        yield files, sizes
        done += sum(sizes)
        if done >= size:
            return
        message, files = wire.receive_files(connection, deadline)
        if "error" in message or not len(files):
            raise RuntimeError(
                f"an owner could not hand over its memory: {message.get('error', 'it sent no descriptors')}"
            )


def ask_for_pages(ending: Ending, size: int) -> list[Descriptor]:
    """The descriptors of memory that this process has opened, once more from its owner.

    Raises:
        RuntimeError: the owner is gone, or has no page for others.
        PeerTimeoutError: it did not answer in ACCELRT_SHARING_TIMEOUT.
    """
    limit = wire.limit_of(None)
    deadline = wire.deadline_in(limit)
    with _lock:
        owner = next(owner for owner in _owners.values() if owner.tally is ending.tally)
    connection: wire.Connection | None = None
    try:
        connection = owner.take_connection(deadline)
        wire.send(connection, {"do": "pages", "as": ending.number}, deadline)
        reply, some = wire.receive_files(connection, deadline)
        pages = [] if "error" in reply else list(pages_that_come(connection, reply, some, size, deadline))
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, (TimeoutError, GoneError, EOFError, OSError)) and not wire.is_ours(error):
            late = PeerTimeoutError if isinstance(error, TimeoutError) else RuntimeError
            raise late(
                f"memory of {owner.describe()} cannot be passed on: within {limit:g} s that process did not "
                f"hand it over ({error or type(error).__name__}); copy it into a Buffer of this process, and "
                "share that"
            ) from error
        raise
    owner.keep_connection(connection)
    if "error" in reply:
        raise RuntimeError(
            f"memory of {owner.describe()} cannot be passed on: {reply['error']}; copy it into a Buffer of "
            "this process, and share that"
        )
    return [file for files, _ in pages for file in files]


def open_segment(place: Place, ending: Ending, handle: bytes, deadline: float) -> None:
    """Maps a plain segment unless another thread did so meanwhile: a driver maps it once, at one address."""
    with _segment_turns:
        if not attach(ending, place, deadline):
            memory = mapping.open_segment(mapping.find_device(place.uuid), handle, place.size)
            memory.finish()
            ending.publish(place.key, memory)


def decline_unclaimed() -> None:
    """Has owners told of the tickets that will not be used."""
    while True:
        ticket = mapping.next_unclaimed()
        if ticket is None:
            return
        claim = mapping.Claim(*ticket)  # until the owner's queue has it
        name, pid, loan = ticket
        try:
            if not producer.drop_own_ticket(name, loan):
                with _lock:
                    owner_of(name, pid).ended.put(loan)
        except RuntimeError:  # no thread now; the claim's end has it tried again
            return
        claim.settle()


def collect(timeout: float | None = None) -> int:
    """Waits until the leases that ended before have been given back; how many are not.

    Warns of each owner whose memory stays, and says why.
    """
    limit = wire.limit_of(timeout)
    deadline = wire.deadline_in(limit)
    marks: list[tuple[Owner, Mark]] = []
    decline_unclaimed()
    with _lock:
        for owner in _owners.values():
            owner.giving.service.ensure()
            marks.append((owner, Mark()))
            owner.ended.put(marks[-1][1])
    left = 0
    for owner, mark in marks:
        wait = None if math.isinf(deadline) else max(deadline - time.monotonic(), 0)
        if not mark.passed.wait(wait):
            count_left = len(mark.before or ()) or owner.tally.late
            left += count_left
            warnings.warn(
                f"{count_left} Buffers of {owner.describe()} were not given back within {limit:g} s: "
                f"{owner.giving.reason()}",
                RuntimeWarning,
                stacklevel=3,
            )
    return left


def statistics() -> dict[str, int]:
    with _lock:
        owners = len(_owners)
    return {**mapping.statistics(), "owners": owners}


def forget() -> None:
    """In a forked child: the connections and the memory are the parent's."""
    global _lock, _segment_turns, _event_turns, _who
    _lock, _segment_turns, _event_turns = threading.RLock(), threading.RLock(), threading.RLock()
    _inherited.append((dict(_owners), mapping.forget_leases()))  # whose ends are the parent's
    _owners.clear()
    _who = ""


_inherited: list[object] = []
call_at_fork("sharing.consumer", "sharing", child=forget)
