"""The owner's side: the threads that hand this process's memory to other processes.

What a process opened it keeps until it says that its work is done, or has ended; the kernel tells of that
(pidfds), for only then has its GPU work ended too.  Connections may end before: a process has several, and
closes one whose exchange was interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import select
import threading
import time
from collections import deque
from itertools import count
from multiprocessing import AuthenticationError
from weakref import WeakValueDictionary

from accelrt.core import procfs
from accelrt.core.process import call_at_fork, open_pidfd
from accelrt.sharing import counters, mapping, wire
from accelrt.sharing.mapping import Loan
from accelrt.sharing.threads import Service, report
from accelrt.streams.stream import default_stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from accelrt.core.process import Descriptor
    from accelrt.sharing.counters import Counter
    from accelrt.sharing.mapping import SharedBytes
    from accelrt.streams.stream import Event, Stream

PER_THREAD = 2  # the handle of the calling thread's default stream
LOOK_EVERY = 1.0  # seconds between two looks at processes whose end the kernel does not tell
KEY_BYTES = 16
RETRY_EVERY = 0.05  # seconds until a thread is tried again that could not start
# What a connection may end by, and what says that it ends by another process's doing, or by its end.
ENDED = (EOFError, OSError, AuthenticationError, KeyError, TypeError, ValueError)
BROKEN_LISTENER = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)

_lock = threading.RLock()  # held for no call of a driver's, and for no wait
_borrowers: dict[str, Borrower] = {}  # processes, by the names that they gave themselves
_offer: Offer | None = None  # where this process listens
_pinned: WeakValueDictionary[int, PinnedFile] = WeakValueDictionary()  # that handles offer, by number
_pinned_numbers = count(1)


class PinnedFile:
    """The file of page-locked memory that a handle offers; None of no bytes."""

    __slots__ = ("__weakref__", "file", "nbytes")

    file: Descriptor | None
    nbytes: int

    def __init__(self, file: Descriptor | None, nbytes: int) -> None:
        self.file = file
        self.nbytes = nbytes


class Borrower:
    """A process that opens memory: its connections, and what it has."""

    def __init__(self, who: str, pid: int, life: Descriptor | None) -> None:
        self.who = who
        self.pid = pid
        self.life = life  # can be read once it has ended; None: it has to be looked at
        self.began: int | None = procfs.started(pid) if life is None else None
        self.connections: dict[int, Lender] = {}
        self.lent: dict[int, Loan | LentTensor] = {}  # by the names that it gave
        self.late: list[LentTensor] = []  # that it gave back, and torch has not counted down there yet
        self.over: bool = False

    def has_ended(self) -> bool:
        """Tells whether the process has ended, where the kernel does not tell it by itself (life)."""
        return self.life is None and (self.began is None or procfs.started(self.pid) != self.began)

    def is_watched(self) -> bool:
        return self.life is not None or self.over or bool(self.connections) or not (self.lent or self.late)

    def forget(self) -> list[Loan | LentTensor]:
        """It has ended, or has nothing any more.  Under the lock; what it had is let go of without it."""
        self.over = True
        loans, self.lent, self.late = [*self.lent.values(), *self.late], {}, []
        if _borrowers.get(self.who) is self:
            del _borrowers[self.who]
        for lender in self.connections.values():
            lender.connection.shutdown()  # a child that it forked may have the other end too
        if self.life is not None:
            if _offer is not None:
                _offer.forget_life(self.life)
            self.life.close()
            self.life = None
        return loans


class LentTensor:
    """Memory of torch's that a process has mapped, and the counter by which torch waits for it."""

    def __init__(self, nbytes: int, counter: Counter | None) -> None:
        self.nbytes = nbytes
        self.counter = counter

    @property
    def memory(self) -> LentTensor:
        return self

    def is_late(self) -> bool:
        return self.counter is not None and self.counter.is_open()


class Lender:
    """One connection, and the thread that serves it."""

    def __init__(self, connection: wire.Connection, key: bytes | None) -> None:
        self.connection = connection
        self.key = key
        self.deadline: float = wire.deadline_in(wire.limit_of(None))  # until when it has to begin
        self.process: Borrower | None = None
        self.number: int = 0  # of the process's connections
        self.cut: set[int] = set()  # names of what was given back before it was handed out

    def begin(self) -> None:
        threading.Thread(target=self.serve, name="accelrt-sharing-lender", daemon=True).start()

    def serve(self) -> None:
        loans: list[Loan | LentTensor] = []
        try:
            mapping.relax()  # for the thread's life
            self.introduce()
            while self.next_message():
                pass
        except ENDED:
            pass
        except BaseException as error:
            report("a process that opens memory was not served", error)
        finally:
            loans = self.end()
        let_go(loans)
        while self.process is not None and not self.process.is_watched():
            time.sleep(LOOK_EVERY)
            let_go(self.end())

    def introduce(self) -> None:
        """Both ends prove themselves, and the process says which one it is."""
        pid = wire.accept(self.connection, self.deadline, self.key)
        message = wire.receive(self.connection, self.deadline)
        who, self.number = str(message["who"]), int(message["connection"])
        life = None
        with _lock:
            is_known = who in _borrowers
        if not is_known:
            life = open_life(self.connection, pid)
        with _lock:
            process = _borrowers.get(who)
            if process is None:
                process = _borrowers[who] = Borrower(who, pid, life)
                if life is not None and _offer is not None:
                    _offer.watch_life(process, life)
            if process.pid != pid:
                raise ValueError(f"process {pid} gave itself the name of process {process.pid}")
            process.connections[self.number] = self
            self.process = process
        self.send({"welcome": self.number})

    def send(self, message: wire.Message, files: list[int] | None = None) -> None:
        wire.send(self.connection, message, wire.deadline_in(wire.limit_of(None)), files or ())

    def next_message(self) -> bool:
        message = wire.receive(self.connection)
        if message["do"] == "open" and "tensor" in message:
            self.hand_out_tensor(
                message["tensor"], message["claim"], int(message["as"]), bool(message["files"])
            )
        elif message["do"] == "open" and "pinned" in message:
            self.hand_out_pinned(int(message["pinned"]))
        elif message["do"] == "open":
            self.hand_out(int(message["loan"]), int(message["as"]), bool(message["files"]))
        elif message["do"] == "pages":
            self.hand_out_pages(int(message["as"]))
        elif message["do"] == "end":
            self.take_back(message["done"], message["declined"])
            self.send({"taken": len(message["done"])})
        return True

    def lend(self, name: int, loan: Loan | LentTensor | None) -> bool:
        """Tells whether the process has the loan from now on: there is one, and it was not given back
        already. Under the lock."""
        process = self.process
        if process is None or process.over:
            raise EOFError("the process has ended")
        if name in self.cut:
            self.cut.discard(name)
            return False
        if loan is not None:
            process.lent[name] = loan
        return loan is not None

    def hand_out(self, number: int, name: int, files: bool) -> None:
        with _lock:
            loan = mapping.find(number)
            is_lent = self.lend(name, loan)
        if loan is None or not is_lent:
            self.send({"error": "gone"})
            return
        self.lend_memory(name, loan.memory, loan.event, files)

    def hand_out_tensor(self, where: list[int], claim: list[Any] | None, name: int, files: bool) -> None:
        """Hands out memory of torch's, which torch keeps, and the hand-out while it lasts."""
        memory = mapping.hold_tensor(*where)
        if memory is not None:
            loan = LentTensor(memory.nbytes, None if claim is None else counters.claim(*claim))
            with _lock:
                is_lent = self.lend(name, loan)
                if not is_lent and self.process is not None:
                    self.process.late.append(loan)
        if memory is None or not is_lent:
            self.send({"error": "gone"})
            return
        self.lend_memory(name, memory, None, files)

    def hand_out_pinned(self, number: int) -> None:
        """Page-locked memory lasts as long as any process has it mapped, so that nothing is written down."""
        with _lock:
            offered = _pinned.get(number)
        if offered is None or offered.file is None:
            self.send({"error": "gone"})
            return
        self.send({"files": 1, "sizes": [offered.nbytes]}, [offered.file.fileno()])

    def hand_out_pages(self, name: int) -> None:
        """Hands out once more the pages that the process has, which it passes on to another."""
        with _lock:
            loan = self.process.lent.get(name) if self.process is not None else None
        if not isinstance(loan, Loan) or loan.memory.serial is not None:
            self.send({"error": "it has no pages that others can have"})
            return
        try:
            self.send_memory(loan.memory, None, True)
        except RuntimeError as error:
            self.send({"error": str(error)})

    def lend_memory(self, name: int, memory: SharedBytes, event: Event | None, files: bool) -> None:
        try:
            self.send_memory(memory, event, files)
        except RuntimeError as error:
            self.take_back([[self.number, name]], [])
            self.send({"error": str(error)})

    def send_memory(self, memory: SharedBytes, event: Event | None, files: bool) -> None:
        answer: wire.Message = {"event": None, "segment": None}
        if event is not None:
            answer["event"] = event.ipc_handle().hex()
        if files and memory.serial is not None:
            answer["segment"] = memory.export_segment().hex()
        count = len(memory.pages) if files else 0
        self.send_pages(answer, memory, 0, count)
        for first in range(wire.FILES_AT_ONCE, count, wire.FILES_AT_ONCE):
            self.send_pages({}, memory, first, count)

    def send_pages(self, message: wire.Message, memory: SharedBytes, first: int, end: int) -> None:
        """A message with the descriptors of some pages: at once it has no room for those of large memory."""
        pages = [memory.export_page(index) for index in range(first, min(first + wire.FILES_AT_ONCE, end))]
        sizes = [size for _, size in memory.pages[first : first + len(pages)]]
        self.send(message | {"files": len(pages), "sizes": sizes}, [file for file, _ in pages])

    def take_back(self, done: list[list[int]], declined: list[int]) -> None:
        """Ends what the process has, by connection and name, and tickets that it will not use.

        What it asked for on a connection that it has closed since may not have been handed out yet: then it
        will not be.
        """
        process = self.process
        loans: list[Loan | LentTensor | None] = []
        if process is None:
            return
        with _lock:
            for connection, name in done:
                loan = process.lent.pop(name, None)
                lender = process.connections.get(connection)
                if loan is None and lender is not None:
                    lender.cut.add(name)
                loans.append(loan)
            ended = [loan for loan in loans if isinstance(loan, LentTensor)]
            if ended or process.late:
                process.late = [loan for loan in (*process.late, *ended) if loan.is_late()]
            loans += [mapping.drop_ticket(number) for number in declined]
        loans.clear()  # without the lock: memory goes back

    def end(self) -> list[Loan | LentTensor]:
        """The connection is gone; what the process has comes back when it has ended."""
        process = self.process
        with _lock:
            self.connection.close()
            if process is None:
                return []
            if process.connections.get(self.number) is self:
                del process.connections[self.number]
            if process.over or process.connections:
                return []
            if (process.lent or process.late) and not process.has_ended():
                return []
            return process.forget()


class Offer:
    """The address where this process listens, and the thread that accepts and sees processes end."""

    def __init__(self) -> None:
        self.poll: select.epoll = select.epoll()
        self.listener: mapping.Listener
        self.name: str
        self.listener, self.name = wire.listen()  # for who has multiprocessing's authkey
        self.tensor_listener: mapping.Listener
        self.tensor_name: str
        self.tensor_listener, self.tensor_name = wire.listen()  # for who has a tensor's handle, with its key
        self.tensor_key: bytes = secrets.token_bytes(KEY_BYTES)
        self.lives: dict[int, Borrower] = {}
        self.waiting: deque[Lender] = deque()  # connections whose thread could not start
        self.service: Service = Service(
            "accelrt-sharing-listener", "a process that opens memory has to wait", self.serve
        )
        for listener in (self.listener, self.tensor_listener):
            self.poll.register(listener.fileno(), select.EPOLLIN)

    def watch_life(self, process: Borrower, life: Descriptor) -> None:
        try:
            self.poll.register(life.fileno(), select.EPOLLIN)
            self.lives[life.fileno()] = process
        except OSError:
            process.life, process.began = None, procfs.started(process.pid)

    def forget_life(self, life: Descriptor) -> None:
        if self.lives.pop(life.fileno(), None) is not None:
            self.poll.unregister(life.fileno())

    def serve(self) -> None:
        """One round of the thread."""
        try:
            ready = self.poll.poll(RETRY_EVERY if self.waiting else -1)
        except OSError as error:
            self.judge(error)
            raise
        for file, _ in ready:
            process = self.lives.get(file)
            if process is not None:
                end_process(process)
        self.begin_waiting()
        for listener, key in ((self.listener, None), (self.tensor_listener, self.tensor_key)):
            if any(file == listener.fileno() for file, _ in ready):
                self.accept_one(listener, key)

    def accept_one(self, listener: mapping.Listener, key: bytes | None) -> None:
        try:
            connection = listener.accept()
        except OSError as error:
            self.judge(error)
            if error.errno != errno.ECONNABORTED:
                raise
            return
        if connection is not None:
            self.waiting.append(Lender(connection, key))
            self.begin_waiting()

    def begin_waiting(self) -> None:
        while self.waiting:
            lender = self.waiting[0]
            if time.monotonic() < lender.deadline:
                lender.begin()  # an exception of which has it tried again
            else:
                lender.connection.close()
            self.waiting.popleft()

    def judge(self, error: OSError) -> None:
        """Gives up descriptors that somebody closed, since their numbers may be others' by now."""
        global _offer
        if error.errno in BROKEN_LISTENER:
            self.listener.abandon()
            self.tensor_listener.abandon()
            _inherited.append(self.poll)
            with _lock:
                self.service.thread = None
                if _offer is self:
                    _offer = None


def end_process(process: Borrower) -> None:
    """It has ended: all that it had comes back."""
    with _lock:
        loans = process.forget() if not process.over else []
    let_go(loans)


def let_go(loans: list[Loan | LentTensor]) -> None:
    """Gives back what an ended process had; without the lock, since memory goes back."""
    returned = [loan.counter for loan in loans if isinstance(loan, LentTensor) and loan.counter is not None]
    loans.clear()
    if returned:
        with mapping.Relaxed():
            counters.take_back(returned)


def open_life(connection: wire.Connection, pid: int) -> Descriptor | None:
    """Opens a descriptor that shows when a process ends; None where this process can have none."""
    life = connection.open_life()
    if life is None:
        with contextlib.suppress(OSError, AttributeError):
            life = open_pidfd(pid)
    return life


def record_work(loan: Loan, stream: Stream) -> None:
    """Has others come after the stream's work: by an event, or by waiting where there are too many."""
    if stream.handle == PER_THREAD:  # others cannot name this thread's; the legacy stream comes behind it
        stream = default_stream(stream.device_index)
    if not loan.record(stream):
        stream.synchronize()


def lend(memory: SharedBytes, stream: Stream, ticket: bool) -> tuple[str, Loan]:
    """The name by which other processes find this one, and a new loan, which is the caller's to offer."""
    loan = Loan(memory, ticket)
    record_work(loan, stream)
    return start(), loan


def start() -> str:
    """The name of this process's socket, which listens from the first call on.

    Raises:
        OSError, RuntimeError: the system gives no descriptor, or no thread.
    """
    return offer().name


def start_for_tensors() -> tuple[str, bytes]:
    """Starts the same for torch's tensors; returns the name, and the key that opens them."""
    listening = offer()
    return listening.tensor_name, listening.tensor_key


def offer() -> Offer:
    global _offer
    with _lock:
        if _offer is None:
            _offer = Offer()
        _offer.service.ensure()
        return _offer


def drop_own_ticket(name: str, number: int) -> bool:
    """Tells whether that is this process's socket; the ticket will not be opened then."""
    with _lock:
        if _offer is None or name != _offer.name:
            return not name
        loan = mapping.drop_ticket(number)
    del loan  # without the lock
    return True


def find_own(name: str, number: int) -> tuple[bool, Loan | None]:
    """Tells whether that is this process's socket, and the loan, which a ticket ends."""
    with _lock:
        if not name or _offer is None or name != _offer.name:
            return False, None
        return True, mapping.find(number)


def offer_pinned(file: PinnedFile) -> tuple[str, int]:
    """Returns the name of this process's socket, and the number by which it hands the file out while that
    lives."""
    number = next(_pinned_numbers)
    with _lock:
        _pinned[number] = file
    return start(), number


def own_pinned(name: str, number: int) -> tuple[bool, PinnedFile | None]:
    """Says whether that is this process's socket, and finds the file."""
    with _lock:
        if _offer is None or name != _offer.name:
            return False, None
        return True, _pinned.get(number)


def cancel_tickets() -> int:
    with _lock:
        loans = mapping.drop_tickets()
    return len(loans) + counters.cancel()


def statistics() -> dict[str, int]:
    with _lock:
        live = mapping.live()
        loans = [loan for process in _borrowers.values() for loan in process.lent.values()]
        connected = sum(bool(process.connections) for process in _borrowers.values())
    sizes = {id(loan.memory): loan.memory.nbytes for loan in (*live, *loans)}
    return {
        "handles": sum(not loan.ticket for loan in live),
        "unopened": sum(loan.ticket for loan in live) + counters.unopened(),
        "lent": len(loans),
        "lent_bytes": sum(sizes.values()),
        "borrowers": connected,
    }


def forget() -> None:
    """In a forked child, which has none of its parent's threads and may not use its memory."""
    global _lock, _offer
    _lock = threading.RLock()
    _inherited.append((mapping.forget_loans(), dict(_borrowers), _offer))  # whose ends are the parent's
    if _offer is not None:
        _offer.poll.close()
    for process in _borrowers.values():
        if process.life is not None:
            process.life.close()
    _borrowers.clear()
    _pinned.clear()
    _offer = None


_inherited: list[object] = []
call_at_fork("sharing.producer", "sharing", child=forget)
