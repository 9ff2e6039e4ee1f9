"""The other side: memory of other processes that this one has opened.

What is mapped once serves all that is opened of the same pages.  A Buffer of such memory keeps a Lease;
when that dies a thread waits until no stream's work uses the memory, unmaps it, and tells the owner.
"""

from __future__ import annotations

import os
import secrets
import threading
from itertools import count
from multiprocessing import AuthenticationError
from queue import Empty, SimpleQueue

from accelrt.sharing import mapping, wire
from accelrt.streams.event import Event

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable

    from accelrt.buffers.buffer import Buffer
    from accelrt.sharing.mapping import Mapping
    from accelrt.streams.stream import Stream

__all__ = ["Place", "collect", "decline", "missing", "open_memory", "statistics"]

AGAIN = 0.005  # seconds between two looks at memory that a capture keeps from being asked for
LATE = 10.0  # seconds that collect() waits for

_lock = threading.RLock()
_owners: dict[str, Owner] = {}
_mapped: dict[tuple[object, ...], Mapped] = {}
_ended: SimpleQueue[Ending | threading.Event] = SimpleQueue()
_names = count(1)  # of what this process has opened
_who = ""  # this process, to owners
_thread: threading.Thread | None = None
_leases = 0


class Place:
    """Where memory is: the owner's socket and process, the loan, and what has to be mapped: plain values."""

    __slots__ = ("loan", "name", "nbytes", "offset", "pages", "pid", "segment", "size", "ticket", "uuid")

    def __init__(
        self, name: str, pid: int, loan: int, ticket: bool, uuid: bytes, nbytes: int, offset: int, size: int,
        segment: int | None, pages: tuple[tuple[int, int], ...],
    ) -> None:  # fmt: skip
        self.name = name
        self.pid = pid
        self.loan = loan
        self.ticket = ticket
        self.uuid = uuid
        self.nbytes = nbytes
        self.offset = offset  # from where the pages, or the segment, begin
        self.size = size  # bytes from there on
        self.segment = segment  # the number of a plain segment; None for pages
        self.pages = pages  # number and bytes of each

    def __reduce__(self) -> tuple[object, ...]:
        return (Place, tuple(getattr(self, name) for name in (
            "name", "pid", "loan", "ticket", "uuid", "nbytes", "offset", "size", "segment", "pages",
        )))  # fmt: skip

    @property
    def key(self) -> tuple[object, ...]:
        return (self.name, self.uuid, self.segment, self.pages)  # numbers are of one device


class Owner:
    """The connection to one process whose memory is opened."""

    def __init__(self, name: str) -> None:
        global _who
        with _lock:
            _who = _who or f"{os.getpid()}-{secrets.token_hex(8)}"
        self.name = name
        self.lock = threading.Lock()  # of whole exchanges
        self.connection = wire.connect(name)
        wire.send(self.connection, {"who": _who})

    def forget(self) -> None:
        """Between exchanges: a thread in one would write to a descriptor that became another file's."""
        with _lock:
            if _owners.get(self.name) is self:
                del _owners[self.name]
        with self.lock:
            self.connection.close()


class Mapped:
    """Pages or a segment of another process, and how many leases need them."""

    __slots__ = ("key", "memory", "users")

    def __init__(self, key: tuple[object, ...], memory: Mapping) -> None:
        self.key = key
        self.memory = memory
        self.users = 0


class Ending:
    """What is left of a Lease that died: work to wait for, a mapping to close, an owner to tell."""

    __slots__ = ("mapped", "name", "number", "stream")

    def __init__(self, name: str, number: int, stream: Stream) -> None:
        self.name = name  # of the owner
        self.number = number
        self.mapped: Mapped | None = None  # nothing was mapped, or not by this one any more
        self.stream: Stream | None = stream  # None: it was waited for


class Lease:
    """What a Buffer of another process's memory keeps: its end gives the memory back."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        self.ended = _ended
        self.pid = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self.pid == getpid():  # not in a forked child, whose parent has it
            self.ended.put(self.ending)


def missing(place: Place, what: str) -> RuntimeError:
    return RuntimeError(
        f"memory of process {place.pid} cannot be opened: {what}; the owner has to live, and to keep "
        "the handle, "
        "until the others have opened it"
    )


def owner_at(name: str) -> Owner:
    """The connection to a process, made where there is none.

    Raises:
        AuthenticationError, EOFError, OSError: as of wire.connect().
    """
    with _lock:
        found = _owners.get(name)
    if found is not None:
        return found
    made = Owner(name)
    with _lock:
        kept = _owners.setdefault(name, made)
    if kept is not made:
        made.connection.close()
    return kept


def owner_of(place: Place) -> Owner:
    try:
        return owner_at(place.name)
    except AuthenticationError as error:
        raise PermissionError(
            f"process {place.pid} refused to hand over memory: the two processes have different "
            "authkeys; start "
            "one with the other's multiprocessing, or set multiprocessing.current_process().authkey to "
            "the same "
            "bytes in both"
        ) from error
    except (EOFError, OSError) as error:
        raise missing(place, "that process is gone") from error


def open_memory(place: Place, stream: Stream) -> Buffer:
    """A Buffer on another process's memory, on the stream's device; the stream comes after its owner's work.

    Raises:
        RuntimeError: the owner is gone, or has closed the handle.
        PermissionError: it has another authkey.
        CudaError: the driver refused.
    """
    owner = owner_of(place)
    ending = Ending(place.name, next(_names), stream)
    lease = Lease(ending)  # whatever happens from here on, it ends
    start()
    mode = mapping.relax()
    try:
        with owner.lock:  # so of one place there is one mapping
            ending.mapped = take_mapped(place)
            event = ask(owner, place, ending)
            if event:  # under the lock too: of one event, this process has one object at a time
                stream.wait_event(Event.from_ipc_handle(stream.device_index, event))
    except (EOFError, OSError) as error:
        owner.forget()
        raise missing(
            place, f"that process is gone, or broke off ({error or type(error).__name__})"
        ) from error
    except (RuntimeError, ValueError):
        raise
    except BaseException:  # an interruption in the middle of an exchange
        owner.forget()
        raise
    finally:
        mapping.restore(mode)
    assert ending.mapped is not None
    return ending.mapped.memory.buffer(place.offset, place.nbytes, stream, lease)


def decline(place: Place) -> None:
    """Tells the owner that a ticket will not be used, if it can be told."""
    try:
        owner = owner_at(place.name)
        with owner.lock:
            wire.send(owner.connection, {"do": "decline", "loan": place.loan})
    except (AuthenticationError, EOFError, OSError):
        pass


def take_mapped(place: Place) -> Mapped | None:
    with _lock:
        found = _mapped.get(place.key)
        if found is not None:
            found.users += 1
    return found


def put_mapped(place: Place, memory: Mapping) -> Mapped:
    """The mapping of a place, which is another thread's where that was faster."""
    with _lock:
        found = _mapped.setdefault(place.key, Mapped(place.key, memory))
        found.users += 1
    if found.memory is not memory:
        memory.close()
    return found


def ask(owner: Owner, place: Place, ending: Ending) -> bytes:
    """One exchange: maps what is not mapped, and answers the handle of the owner's event, or no bytes."""
    connection = owner.connection
    files = ending.mapped is None
    wire.send(connection, {"do": "open", "loan": place.loan, "as": ending.number, "files": files})
    answer, some, failure = wire.receive_files(connection)
    if answer.get("error") == "gone":
        raise missing(place, "it was opened before" if place.ticket else "its owner has closed the handle")
    if "error" in answer:
        raise RuntimeError(f"process {place.pid} could not hand over its memory: {answer['error']}")
    if files and place.segment is not None:
        device = mapping.find_device(place.uuid)
        made = mapping.open_segment(device, bytes.fromhex(answer["segment"]), place.size)
        made.finish()
        ending.mapped = put_mapped(place, made)
    elif files:
        ending.mapped = put_mapped(place, receive_pages(connection, place, some, failure))
    return bytes.fromhex(answer["event"] or "")


def receive_pages(
    connection: wire.Connection, place: Place, files: list[int], failure: Exception | None
) -> Mapping:
    """Maps the pages, of which the first descriptors came already, or failed to.  Takes all the others, also
    after a failure, so that the next message is read as such."""
    made: Mapping | None = None
    done = 0
    try:
        made = mapping.reserve(mapping.find_device(place.uuid), place.size)
    except RuntimeError as error:
        failure = failure or error
    while True:
        some = place.pages[done : done + wire.FILES_AT_ONCE]
        done += len(some)
        try:
            if failure is None and made is not None:
                add_pages(made, files, some)
        except (RuntimeError, ValueError) as error:
            failure = error
        finally:
            for file in files:
                os.close(file)
        if done >= len(place.pages):
            break
        message, files, fault = wire.receive_files(connection)
        if "error" in message:  # nothing follows
            raise RuntimeError(f"process {place.pid} could not hand over its memory: {message['error']}")
        failure = failure or fault
    if failure is not None or made is None:
        raise failure or RuntimeError("nothing was mapped")
    made.finish()
    return made


def add_pages(made: Mapping, files: list[int], pages: tuple[tuple[int, int], ...]) -> None:
    for file, (_, size) in zip(files, pages, strict=True):
        made.add_page(file, size)


# --- the end of leases ----------------------------------------------------------------------


def start() -> None:
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(
                target=give_back_all, args=(_ended,), name="accelrt-sharing-borrower", daemon=True
            )
            _thread.start()


def give_back_all(ended: SimpleQueue[Ending | threading.Event]) -> None:
    """The thread: takes leases that ended, and tries again what a capture keeps from being told."""
    waiting: list[Ending] = []
    while True:
        try:
            taken = ended.get(timeout=AGAIN if waiting else None)
            if isinstance(taken, Ending):
                waiting.append(taken)
            else:
                taken.set()
            del taken
        except Empty:
            pass
        waiting = [ending for ending in waiting if not give_back(ending)]


def give_back(ending: Ending) -> bool:
    """Whether the owner was told, or is gone."""
    mapped, stream = ending.mapped, ending.stream
    if mapped is not None and stream is not None:
        if not mapping.await_work(mapped.memory, stream.device_index, stream.handle):
            return False
        ending.stream = None
        with _lock:
            mapped.users -= 1
            if mapped.users:
                ending.mapped = None
            else:
                del _mapped[mapped.key]
    if ending.mapped is not None:
        if not ending.mapped.memory.close():
            return False
        ending.mapped = None
    tell(ending)
    return True


def tell(ending: Ending) -> None:
    """That the memory is done with; on a new connection where an interruption broke the old one."""
    for _ in range(2):
        try:
            owner = owner_at(ending.name)
        except (AuthenticationError, EOFError, OSError):
            return
        try:
            with owner.lock:
                wire.send(owner.connection, {"do": "end", "done": [ending.number]})
            return
        except OSError:
            owner.forget()


def collect() -> None:
    """Waits until the leases that ended before have been given back, as far as no capture holds them up."""
    if _thread is None:
        return
    passed = threading.Event()
    _ended.put(passed)
    passed.wait(LATE)


def statistics() -> dict[str, int]:
    with _lock:
        opened = sum(mapped.users for mapped in _mapped.values())
        return {"opened": opened, "mapped": len(_mapped), "owners": len(_owners)}


def forget() -> None:
    """In a forked child: the connections and the memory are the parent's."""
    global _lock, _thread, _ended, _who
    _lock = threading.RLock()
    for owner in _owners.values():
        owner.connection.close()
    _inherited.append((dict(_owners), dict(_mapped), _ended))  # whose ends are the parent's
    _owners.clear()
    _mapped.clear()
    _thread, _ended, _who = None, SimpleQueue(), ""


_inherited: list[object] = []
os.register_at_fork(after_in_child=forget)
