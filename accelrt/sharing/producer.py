"""The owner's side: the loans of this process's memory, and the threads that hand it to other processes.

A loan is what one share() or one pickling made: the memory, and the event behind the owner's work.  It is
kept by this process until it is closed or, where it is for one opening alone (a ticket), until it was
opened; and by each process that opened it, until that says that its work is done, or is dead.  When a
connection ends, the kernel is asked whether the process has ended: only then has its GPU work ended too.
"""

from __future__ import annotations

import os
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import wait

from accelrt.sharing import mapping, wire
from accelrt.streams.event import Event
from accelrt.streams.stream import default_stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    import socket
    from typing import Any

    from accelrt.sharing.mapping import SharedBytes
    from accelrt.streams.stream import Stream

__all__ = ["cancel_tickets", "close_loan", "find_own", "lend", "statistics"]

MOST_EVENTS = 512  # of one process; a driver has no more than some thousands for all
PER_THREAD = 2  # the handle of the calling thread's default stream
# What a connection may end by.
ENDED = (EOFError, OSError, AuthenticationError, RuntimeError, ValueError, KeyError, TypeError)

_lock = threading.RLock()  # held for no call of a driver's that waits
_events: dict[int, list[Event]] = {}  # by device, of loans that ended
_event_count = 0
_loans: dict[int, Loan] = {}  # those that may be opened, by number
_next_number = 0
_listener: socket.socket | None = None
_name = ""  # of the socket; empty before the first loan
_borrowers: set[Borrower] = set()
_lent: dict[tuple[str, int], Loan] = {}  # by process, and the name that it gave


class Loan:
    """Memory that others may open, and the event that says when they may use it."""

    __slots__ = ("event", "memory", "number", "ticket")

    def __init__(self, memory: SharedBytes, event: Event | None, ticket: bool) -> None:
        self.memory = memory
        self.event = event  # None: the work was waited for
        self.ticket = ticket
        self.number = 0

    def __del__(self, free: Any = _events) -> None:
        if self.event is not None:
            free.setdefault(self.memory.device_index, []).append(self.event)


class Borrower:
    """One connection of a process that opens memory, and the thread that serves it."""

    def __init__(self, taken: socket.socket) -> None:
        self.taken = taken
        self.who = ""  # the process, whichever of its connections
        self.connection: wire.Connection | None = None
        self.life = -1  # a descriptor that can be read once the process has ended
        threading.Thread(target=self.serve, name="accelrt-sharing-lender", daemon=True).start()

    def serve(self) -> None:
        try:
            mapping.relax()  # for the thread's life
            self.connection, pid = wire.accept(self.taken)
            self.life = open_life(pid)
            self.who = str(wire.receive(self.connection)["who"])
            while self.next_message(self.connection):
                pass
        except ENDED:
            pass
        finally:
            self.end()

    def next_message(self, connection: wire.Connection) -> bool:
        """Whether the process is there; a child that it forked may have its end of the connection too."""
        ready = wait([connection.socket] if self.life < 0 else [connection.socket, self.life])
        if connection.socket not in ready:
            return False
        message = wire.receive(connection)
        if message["do"] == "open":
            self.hand_out(connection, message["loan"], message["as"], message["files"])
        elif message["do"] == "decline":
            close_loan(message["loan"])
        else:
            take_back([(self.who, number) for number in message["done"]])
        return True

    def hand_out(self, connection: wire.Connection, number: int, name: int, files: bool) -> None:
        with _lock:
            loan = _loans.get(number)
            if loan is not None:
                _lent[self.who, name] = loan
                if loan.ticket:
                    del _loans[number]
        if loan is None:
            wire.send(connection, {"error": "gone"})
            return
        memory = loan.memory
        answer: wire.Message = {"event": None, "segment": None}
        try:
            if loan.event is not None:
                answer["event"] = loan.event.ipc_handle().hex()
            if files and memory.serial is not None:
                answer["segment"] = memory.export_segment().hex()
            send_pages(connection, answer, memory, 0, len(memory.pages) if files else 0)
        except RuntimeError as error:
            take_back([(self.who, name)])
            wire.send(connection, {"error": str(error)})
            return
        if files and len(memory.pages) > wire.FILES_AT_ONCE:
            send_more_pages(connection, memory)

    def end(self) -> None:
        """The connection is gone; what the process has comes back when it has ended."""
        if self.connection is not None:
            self.connection.close()
        self.taken.close()
        with _lock:
            _borrowers.discard(self)
            last = all(other.who != self.who for other in _borrowers)
            has = any(who == self.who for who, _ in _lent)
        if last and has and self.life >= 0:
            wait([self.life])  # its GPU work may still be under way until then
            with _lock:
                last = all(other.who != self.who for other in _borrowers)
        if self.life >= 0:
            os.close(self.life)
        if last:
            with _lock:
                names = [name for name in _lent if name[0] == self.who]
            take_back(names)


def take_back(names: list[tuple[str, int]]) -> None:
    """Ends what processes have of this one's memory, by process and the name that it gave."""
    with _lock:
        gone = [_lent.pop(name, None) for name in names]
    gone.clear()  # without the lock: memory goes back


def send_pages(
    connection: wire.Connection, message: wire.Message, memory: SharedBytes, first: int, end: int
) -> None:
    """A message with the descriptors of some pages: at once it has no room for those of large memory."""
    files: list[int] = []
    own: list[int] = []
    try:
        for index in range(first, min(first + wire.FILES_AT_ONCE, end)):
            file, is_own = memory.export_page(index)
            files.append(file)
            own += [file] * is_own
        wire.send(connection, message | {"files": len(files)}, files)
    finally:
        for file in own:
            os.close(file)


def send_more_pages(connection: wire.Connection, memory: SharedBytes) -> None:
    for first in range(wire.FILES_AT_ONCE, len(memory.pages), wire.FILES_AT_ONCE):
        try:
            send_pages(connection, {}, memory, first, len(memory.pages))
        except RuntimeError as error:
            wire.send(connection, {"error": str(error)})
            return


def open_life(pid: int) -> int:
    """A descriptor by which the end of a process is seen; -1 where the system has none, or it ended."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def take_event(device: int) -> Event | None:
    """An event for one loan; None where the process has too many."""
    global _event_count
    with _lock:
        free = _events.setdefault(device, [])
        if free:
            return free.pop()
        if _event_count >= MOST_EVENTS:
            return None
        _event_count += 1
    return Event(interprocess=True)


def record_work(stream: Stream) -> Event | None:
    """The event behind a stream's work; None where that was waited for instead."""
    device = stream.device_index
    if stream.handle == PER_THREAD:  # others cannot name this thread's; the legacy stream comes behind it
        stream = default_stream(device)
    event = take_event(device)
    if event is None:
        stream.synchronize()
        return None
    try:
        event.record(stream)
    except BaseException:
        global _event_count
        with _lock:
            _event_count -= 1
        raise
    return event


def lend(memory: SharedBytes, stream: Stream, ticket: bool) -> tuple[str, int]:
    """The name by which other processes find this one, and the number of a new loan."""
    global _next_number
    event = record_work(stream)
    loan = Loan(memory, event, ticket)
    with _lock:
        name = start()
        _next_number += 1
        loan.number = _next_number
        _loans[loan.number] = loan
    return name, loan.number


def start() -> str:
    """The name of this process's socket, which listens from the first call on."""
    global _listener, _name
    if _listener is None:
        _listener, _name = wire.listen()
        threading.Thread(
            target=accept_all, args=(_listener,), name="accelrt-sharing-listener", daemon=True
        ).start()
    return _name


def accept_all(listener: socket.socket) -> None:
    while True:
        try:
            taken, _ = listener.accept()
        except OSError:
            return
        with _lock:
            _borrowers.add(Borrower(taken))


def close_loan(number: int) -> None:
    """No other process opens it any more; those that did keep it."""
    with _lock:
        loan = _loans.pop(number, None)
    del loan  # without the lock


def find_own(name: str, number: int) -> tuple[bool, Loan | None]:
    """Whether that is this process's socket, and the loan, which a ticket ends."""
    with _lock:
        if not name or name != _name:
            return False, None
        loan = _loans.get(number)
        if loan is not None and loan.ticket:
            del _loans[number]
        return True, loan


def cancel_tickets() -> int:
    with _lock:
        gone = [_loans.pop(number) for number in [n for n, loan in _loans.items() if loan.ticket]]
    return len(gone)


def statistics() -> dict[str, int]:
    with _lock:
        kept = {id(loan.memory): loan.memory.nbytes for loan in (*_loans.values(), *_lent.values())}
        return {
            "handles": sum(not loan.ticket for loan in _loans.values()),
            "unopened": sum(loan.ticket for loan in _loans.values()),
            "lent": len(_lent),
            "lent_bytes": sum(kept.values()),
            "borrowers": len(_borrowers),
        }


def forget() -> None:
    """In a forked child, which has none of its parent's threads and may not use its memory."""
    global _lock, _listener, _name, _event_count
    _lock = threading.RLock()
    if _listener is not None:
        _listener.close()
    for borrower in _borrowers:
        if borrower.connection is not None:
            borrower.connection.close()
        borrower.taken.close()
        if borrower.life >= 0:
            os.close(borrower.life)
    _inherited.append(
        (dict(_loans), set(_borrowers), dict(_lent), dict(_events))
    )  # whose ends are the parent's
    _loans.clear()
    _lent.clear()
    _borrowers.clear()
    _events.clear()
    _listener, _name, _event_count = None, "", 0


_inherited: list[object] = []
os.register_at_fork(after_in_child=forget)
