"""Operations, and how they are put into their streams, alone or in groups."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accelrt.arrays.copy import MemoryUse
from accelrt.nccl import process_end
from accelrt.nccl.codes import BackendError, error_of
from accelrt.nccl.limits import POLL_SECONDS
from accelrt.nccl.ranks import InGraph, announce, begin_operation, calls_of, turn_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from accelrt.arrays.array import Array
    from accelrt.streams.stream import Stream


@dataclass(slots=True, eq=False)
class Operation:
    """An operation that was called, and is put into its stream at once or at the end of its group."""

    comm: Any
    call: str
    stream: Stream
    reads: tuple[Array, ...]
    writes: tuple[Array, ...]
    source: Array | None
    target: Array | None
    numbers: tuple[int, ...]  # of the backends' issue(): elements, bytes of one, data type, reduction, rank
    captured: bool = False
    addresses: tuple[int, int] = (0, 0)

    def begin(self) -> None:
        """Before any operation of the group is put into a stream; what raises here leaves all of them out."""
        token = InGraph(self.comm, self.comm._hold)
        self.captured, source, target = begin_operation(
            self.stream, self.call, self.reads, self.writes, self.source, self.target, token
        )
        self.addresses = source, target
        if self.captured:
            self.comm._in_graphs.add(token)
            self.comm._captures = True

    def issue(self, module: Any, handle: object) -> None:
        with self.comm.device:
            module.issue(handle, self.stream, self.call, *self.addresses, *self.numbers, self.captured)
        if not self.captured:
            self.comm._last_stream = self.stream

    @property
    def words(self) -> str:
        count, itemsize, datatype, op, root = self.numbers
        return (
            f"{self.call}({self.comm._words}, count={count}, itemsize={itemsize}, datatype={datatype}, "
            f"op={op}, root={root}, stream={self.stream.handle:#x})"
        )


@dataclass(slots=True, eq=False)
class Joining:
    """A communicator that is made, and is there once its group has ended."""

    comm: Any
    name: bytes
    words: str
    handle: object = None

    def issue(self, module: Any, handle: None) -> None:
        comm = self.comm
        with comm.device:
            self.handle = module.init_rank(
                comm.size, self.name, comm.rank, comm.device_index, comm.timeout, comm.config
            )

    @property
    def result(self) -> Any:
        return self.comm


@dataclass(slots=True, eq=False)
class Splitting:
    """A communicator that is split off another one, whose every rank calls it; result is None where this one
    is in none."""

    comm: Any
    result: Any
    color: int
    key: int
    words: str
    handle: object = None

    def issue(self, module: Any, handle: object) -> None:
        with self.comm.device:
            self.handle = module.split(handle, self.color, self.key, self.result)


@dataclass(slots=True, eq=False)
class Shrinking:
    """A communicator of those ranks of another one that are not left out, which only they call."""

    comm: Any
    result: Any
    left_out: tuple[int, ...]
    aborts: bool
    words: str
    handle: object = None

    def issue(self, module: Any, handle: object) -> None:
        with self.comm.device:
            self.handle = module.shrink(handle, self.left_out, self.aborts, self.result)


@dataclass(slots=True, eq=False)
class Suspending:
    """A communicator whose memory goes back to its device, or comes again; every rank calls it."""

    comm: Any
    resumes: bool
    words: str
    result: None = None

    def issue(self, module: Any, handle: object) -> None:
        with self.comm.device:
            if module.suspended(handle) == self.resumes:  # else a call that was interrupted has done it
                (module.resume if self.resumes else module.suspend)(handle)


def perform(pending: list[Any], call: str = "") -> None:
    """Puts operations into their streams, and makes and suspends communicators; those of a group at once.

    Arguments:
        pending: list of Operation, Joining, Splitting, Shrinking and Suspending.
        call: str, that errors name; the operations themselves where it is empty.
    """
    process_end.check_running()
    operations = [each for each in pending if isinstance(each, Operation)]
    joining = [each for each in pending if not isinstance(each, Operation) and each.result is not None]
    comms = list({id(each.comm): each.comm for each in pending if not isinstance(each, Joining)}.values())
    for comm in comms:
        comm._check_process()
    module = pending[0].comm._backend
    try:
        with turn_of([comm._hold for comm in comms]) as handles:
            perform_in_turn(pending, operations, module, dict(zip(comms, handles, strict=True)), call)
        for each in joining:
            each.result._adopt(each.handle)
            each.handle = None
    except BaseException:
        for each in joining:
            with contextlib.suppress(Exception):  # the first error tells more
                if each.result._hold.has_handle:  # it has its handle, and others may not
                    each.result._free("not all were made", "init_rank", True)
                elif each.handle is not None:
                    module.abort(each.handle)
        raise
    await_ready([each.result for each in joining])


def perform_in_turn(
    pending: list[Any], operations: list[Operation], module: Any, handles: dict[Any, Any], call: str
) -> None:
    for each in pending:
        if not isinstance(each, (Joining, Suspending)):
            each.comm._hold.check_awake()
    for each in operations:
        announce(each.stream, each.call, each.reads, each.writes)
    used = [array for each in operations for array in (*each.reads, *each.writes)]
    with MemoryUse(pending[0].words.partition("(")[0], used) as use:
        for each in operations:
            each.begin()
        with calls_of([comm._hold for comm in handles]):
            if len(pending) == 1:
                with errors_of(call or pending[0]):
                    pending[0].issue(module, handles.get(pending[0].comm))
            else:
                perform_group(pending, module, handles, call)
        if module.MAY_TAKE_LONG:
            use.await_others()
            for comm, handle in handles.items():
                settle(comm, handle, (operations or pending)[0].words, module)


def perform_group(pending: list[Any], module: Any, handles: dict[Any, Any], call: str) -> None:
    words = call or f"group_end(operations={len(pending)}, the first being {pending[0].words})"
    with pending[0].comm.device:
        try:
            module.group_start()
            for each in pending:
                with errors_of(call or each):
                    each.issue(module, handles.get(each.comm))
            with errors_of(words):
                module.group_end()
        except BaseException:
            module.group_abandon()  # also one that was ended, or not begun: an interruption does not say
            raise


def settle(comm: Any, handle: Any, call: str, module: Any) -> None:
    """Waits until a call of the backend that may go on after it returned is over.

    Raises:
        NcclError: it failed, or another thread called abort().
        TimeoutError: it takes longer than the communicator's timeout.
    """
    end, pause = time.monotonic() + comm.timeout, 0.0
    while True:
        with calls_of([comm._hold]), errors_of(call):
            if not module.in_progress(handle):
                return
        if not comm._hold.is_open:
            raise comm._hold.refuse()
        if time.monotonic() > end:
            awaited = module.awaited(handle)
            raise TimeoutError(
                f"{call} is not complete after {comm.timeout:g} s"
                + (f", and waits for {awaited}" if awaited else ": other ranks may not have come")
                + "; check that their processes were started and run, and abort() the communicator"
            )
        time.sleep(pause)
        pause = min(POLL_SECONDS, pause + POLL_SECONDS / 20)


def await_ready(comms: list[Any]) -> None:
    """Waits until all ranks of new communicators have come; where they do not, frees what there is."""
    try:
        for comm in comms:
            with comm._turn() as (handle,), comm.device:
                settle(comm, handle, f"init_rank({comm._words})", comm._backend)
    except BaseException:
        for comm in comms:
            with contextlib.suppress(Exception):  # the first error tells more
                comm._free("its ranks did not all come", "init_rank", True)
        raise


@contextlib.contextmanager
def errors_of(call: Any) -> Iterator[None]:
    """A backend's error as one of accelrt's.

    Arguments:
        call: str, or an Operation or a Joining, whose words are it.
    """
    try:
        yield
    except BackendError as error:
        raise error_of(error.code, error.text, getattr(call, "words", call)) from None
