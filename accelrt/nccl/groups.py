"""Groups of operations, and how operations are put into their streams."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from accelrt.nccl import operands, process_end
from accelrt.nccl.codes import BackendError, error_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType, TracebackType
    from typing import Any

    from accelrt.arrays.array import Array
    from accelrt.streams.stream import Stream

__all__ = ["InGraph", "Joining", "Operation", "errors_of", "group", "group_end", "group_start", "groups"]


class InGraph:
    """What a graph keeps for each operation that it holds: its communicator, which then cannot be closed."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm


class Operation:
    """An operation that was called, and is put into its stream at once or at the end of its group."""

    __slots__ = ("call", "captured", "comm", "numbers", "reads", "source", "stream", "target", "writes")

    def __init__(
        self,
        comm: Any,
        call: str,
        stream: Stream,
        reads: tuple[Array, ...],
        writes: tuple[Array, ...],
        source: Array | None,
        target: Array | None,
        numbers: tuple[int, ...],
    ) -> None:
        self.comm = comm
        self.call = call
        self.stream = stream
        self.reads = reads
        self.writes = writes
        self.source = source
        self.target = target
        self.numbers = numbers
        self.captured = False

    def begin(self) -> None:
        """Before any operation of the group is put into a stream; what raises here leaves all of them out."""
        comm = self.comm
        comm._check_open()
        token = InGraph(comm)
        self.captured = operands.begin(self.stream, self.call, self.reads, self.writes, token)
        if self.captured:
            comm._in_graphs.add(token)
            comm._captures = True

    def issue(self, module: ModuleType) -> None:
        comm = self.comm
        with comm.device:
            source = self.source.ptr if self.source is not None else 0
            target = self.target.ptr if self.target is not None else 0
            module.issue(comm._handle, self.stream, self.call, source, target, *self.numbers, self.captured)
        if not self.captured:
            comm._last_stream = self.stream

    def end(self) -> None:
        operands.note(self.stream, (*self.reads, *self.writes))

    @property
    def words(self) -> str:
        count, itemsize, datatype, op, root = self.numbers
        return (
            f"{self.call}({self.comm._words}, count={count}, itemsize={itemsize}, datatype={datatype}, "
            f"op={op}, root={root}, stream={self.stream.handle:#x})"
        )


class Joining:
    """A communicator that is made in a group, and is there at its end."""

    __slots__ = ("comm", "handle", "name")
    words = "init_rank in a group"

    def __init__(self, comm: Any, name: bytes) -> None:
        self.comm = comm
        self.name = name
        self.handle: object = None

    def begin(self) -> None:
        pass

    def issue(self, module: Any) -> None:
        comm = self.comm
        with comm.device:
            self.handle = module.init_rank(comm.size, self.name, comm.rank, comm.device_index)

    def end(self) -> None:
        self.comm._adopt(self.handle)


class Groups(threading.local):
    """A thread's open groups, and what was called in them."""

    def __init__(self) -> None:
        self.depth = 0
        self.pending: list[Any] = []


groups = Groups()


def group_start() -> None:
    """Opens a group on this thread: what is called until group_end() is put into the streams there, all at
    once (ncclGroupStart).  Groups may be nested; the outermost counts."""
    groups.depth += 1


def group_end() -> None:
    """Ends the group, and puts into the streams what was called in it.

    Raises:
        NcclError: NCCL refused an operation; those that came before it may be in their streams.
        RuntimeError: no group is open on this thread.
    """
    if groups.depth == 0:
        raise RuntimeError("group_end() without group_start() on this thread")
    groups.depth -= 1
    if groups.depth == 0:
        pending, groups.pending = groups.pending, []
        if pending:
            perform(pending)
            process_end.come_first()


class group:
    """A group as a context: operations of several communicators of one thread, or transfers that wait for
    each other.  If its body raises, none of them is put into a stream.

    with accelrt.nccl.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    """

    __slots__ = ()

    def __enter__(self) -> None:
        group_start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            group_end()
        elif groups.depth:
            groups.depth -= 1
            groups.pending.clear()


def perform(pending: list[Any]) -> None:
    """Puts the operations of a group into their streams."""
    for each in pending:
        each.begin()
    module = pending[0].comm._backend
    locks = [each._lock for each in sorted({each.comm for each in pending}, key=id)]
    try:
        for lock in locks:
            lock.acquire()
        perform_group(pending, module)
    finally:
        for lock in reversed(locks):
            lock.release()
        for each in pending:
            if isinstance(each, Operation):  # also after an error: it may be under way
                each.end()
    for each in pending:
        if isinstance(each, Joining):
            each.end()


def perform_group(pending: list[Any], module: Any) -> None:
    with pending[0].comm.device:
        module.group_start()
        for each in pending:
            try:
                with errors_of_operation(each):
                    each.issue(module)
            except BaseException:
                module.group_abandon()
                raise
        with errors_of(f"group_end(operations={len(pending)}, the first being {pending[0].words})"):
            module.group_end()


@contextlib.contextmanager
def errors_of(call: str) -> Iterator[None]:
    """A backend's error as one of accelrt's."""
    try:
        yield
    except BackendError as error:
        raise error_of(error.code, error.text, call) from None


@contextlib.contextmanager
def errors_of_operation(operation: Any) -> Iterator[None]:
    try:
        yield
    except BackendError as error:
        raise error_of(error.code, error.text, operation.words) from None


def _forget_in_child() -> None:
    groups.depth = 0
    groups.pending = []


os.register_at_fork(after_in_child=_forget_in_child)
