"""Communicators: one rank each, with its operations, its errors and its end."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING

from accelrt.devices.device import current_device, device, device_count, synchronize
from accelrt.errors import ForkedError, NcclError
from accelrt.nccl import codes, operands, process_end
from accelrt.nccl.codes import BackendError, error_of
from accelrt.nccl.groups import InGraph, Joining, Operation, errors_of, groups
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any, Self

    from accelrt.annotations import DeviceArgument
    from accelrt.arrays.array import Array
    from accelrt.streams.stream import Stream

__all__ = ["Communicator", "backend", "init_all"]

POLL_SECONDS = 0.001


def backend() -> Any:
    """The module that performs collectives: NCCL, or on the host device the one for tests."""
    host = init.chosen_driver() == "host"
    return init.later("accelrt.nccl.host_for_tests" if host else "accelrt.nccl.nvidia")


def ordinal_of(argument: DeviceArgument | None) -> int:
    """The ordinal of a device argument, None being the current device.

    Raises:
        ValueError, TypeError: it stands for none.
    """
    ordinal = current_device() if argument is None else device(argument).index
    if not 0 <= ordinal < device_count():
        raise ValueError(f"device {argument!r} does not exist; ordinals go from 0 to {device_count() - 1}")
    return ordinal


def checked_number(value: Any, name: str, least: int, most: int) -> int:
    """An int argument from least to most.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; pass an int")
    number = int(value.__index__())
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; it goes from {least} to {most}")
    return number


class Communicator:
    """One rank of a group of devices that perform collectives together.

    Every rank has to call the same operations in the same order, with the same element types and sizes; an
    operation is put into a stream and returns.  One thread at a time uses a communicator; a thread with
    several of them calls each operation for all in one group(), since the first one waits for the others.

    Making one waits for all other ranks: one process makes the ranks of several devices by init_all(), or
    in one group().

    Arguments:
        num_ranks: int, how many ranks there are.
        unique_id: bytes, of unique_id() on one of them, the same on all.
        rank: int, this one's number, from 0.
        device: ordinal or accelrt.device, or None for the current one.
    Raises:
        NcclError: NCCL refused; two ranks on one device are refused.
        NotSupportedError: nccl4py or libnccl.so.2 is not installed.
        ValueError, TypeError: an argument is out of range or of the wrong kind.
    """

    def __init__(
        self, num_ranks: int, unique_id: bytes, rank: int, device: DeviceArgument | None = None
    ) -> None:
        self._clear()
        size = checked_number(num_ranks, "num_ranks", 1, (1 << 31) - 1)
        number = checked_number(rank, "rank", 0, size - 1)
        if not isinstance(unique_id, (bytes, bytearray)) or len(unique_id) != 128:
            raise ValueError(
                f"unique_id is {unique_id!r:.60}; pass the 128 bytes of accelrt.nccl.unique_id()"
            )
        self._place(number, size, ordinal_of(device))
        name = bytes(unique_id)
        if groups.depth:
            groups.pending.append(Joining(self, name))
        else:
            with self.device, errors_of(f"init_rank({self._words})"):
                self._adopt(self._backend.init_rank(size, name, number, self.device_index))

    def _clear(self) -> None:
        # First: __del__ sees objects whose making failed.
        self._handle: object = None
        self._why_none = "it was never made"
        self._pid = os.getpid()
        self._last_stream: Stream | None = None
        self._in_graphs: weakref.WeakSet[InGraph] = weakref.WeakSet()
        self._captures = False  # whether graphs have held operations of it
        self._lock = threading.RLock()

    def _place(self, rank: int, size: int, ordinal: int) -> None:
        self._backend: Any = backend()
        self.rank = rank
        self.size = size
        self.device_index = ordinal
        self.device = device(ordinal)
        self._why_none = "its group has not ended"
        self._words = f"rank={rank}, ranks={size}, device={ordinal}"

    def _adopt(self, handle: object) -> None:
        self._handle = handle
        process_end.add(self)

    # --- operations ---

    def all_reduce(
        self,
        input: Any,
        output: Any = None,
        op: str | int = "sum",
        stream: Stream | int | None = None,
    ) -> None:
        """Reduces the elements of all ranks' arrays; every rank gets the result (ncclAllReduce).

        Arguments:
            input: Array, Buffer, or another library's array on this device; contiguous.
            output: the same, of as many elements of the same type; None is input itself.
            op: "sum", "prod", "max", "min" or "avg", or accelrt.nccl.SUM and so on.
            stream: Stream or handle of this device, or None for the current stream.
        Raises:
            ValueError, TypeError: an argument is of the wrong kind, size or place; NCCL has no such
                reduction.
            NcclError: NCCL refused, or an operation before it failed; or the communicator is closed.
            ForkedError: the communicator is of the process that this one was forked from.
        """
        worker = self._begin(stream)
        source = operands.read(input, worker, "input", output is None)
        target = source if output is None else operands.read(output, worker, "output", True)
        self._compare(target, "output", source, source.size, "input has")
        self._reduce("all_reduce", worker, source, target, source.size, op, 0)

    def reduce(
        self,
        input: Any,
        output: Any = None,
        root: int = 0,
        op: str | int = "sum",
        stream: Stream | int | None = None,
    ) -> None:
        """The same, but only one rank gets the result (ncclReduce).

        Arguments:
            root: int, that rank.
            output: as of all_reduce; only the root's is looked at.
            input, op, stream: as of all_reduce.
        Raises:
            as of all_reduce.
        """
        worker = self._begin(stream)
        at_root = self._peer(root, "root") == self.rank
        source = operands.read(input, worker, "input", at_root and output is None)
        target = None
        if at_root:
            target = source if output is None else operands.read(output, worker, "output", True)
            self._compare(target, "output", source, source.size, "input has")
        self._reduce("reduce", worker, source, target, source.size, op, int(root))

    def broadcast(
        self, input: Any, root: int = 0, output: Any = None, stream: Stream | int | None = None
    ) -> None:
        """Copies one rank's array to all (ncclBroadcast).

        Arguments:
            input: as of all_reduce; of other ranks than the root only its size and type are looked at, unless
                output is None.
            root: int, the rank whose elements are copied.
            output: where to, as of all_reduce; None is input itself.
        Raises:
            as of all_reduce.
        """
        worker = self._begin(stream)
        at_root = self._peer(root, "root") == self.rank
        source = operands.read(input, worker, "input", output is None and not at_root)
        target = source if output is None else operands.read(output, worker, "output", True)
        self._compare(target, "output", source, source.size, "input has")
        reads, writes = (
            ((source,) if at_root else ()),
            ((target,) if target is not source or not at_root else ()),
        )
        datatype, count, itemsize = codes.moved_as(source.dtype, source.size)
        self._put("broadcast", worker, reads, writes, source, target, count, itemsize, datatype, 0, int(root))

    def all_gather(self, input: Any, output: Any, stream: Stream | int | None = None) -> None:
        """Puts all ranks' arrays one behind the other, in the order of the ranks, on every rank
        (ncclAllGather).

        Arguments:
            input: as of all_reduce; it may be this rank's part of output.
            output: as of all_reduce, of as many elements as all ranks' inputs together.
        Raises:
            as of all_reduce.
        """
        worker = self._begin(stream)
        source = operands.read(input, worker, "input", False)
        target = operands.read(output, worker, "output", True)
        self._compare(target, "output", source, source.size * self.size, f"{self.size} inputs have")
        datatype, count, itemsize = codes.moved_as(source.dtype, source.size)
        self._put("all_gather", worker, (source,), (target,), source, target, count, itemsize, datatype, 0, 0)

    def reduce_scatter(
        self, input: Any, output: Any, op: str | int = "sum", stream: Stream | int | None = None
    ) -> None:
        """Reduces all ranks' arrays, and gives each rank its part of the result (ncclReduceScatter).

        Arguments:
            input: as of all_reduce, of as many elements as all ranks' outputs together.
            output: as of all_reduce; it may be this rank's part of input.
        Raises:
            as of all_reduce.
        """
        worker = self._begin(stream)
        source = operands.read(input, worker, "input", False)
        target = operands.read(output, worker, "output", True)
        self._compare(source, "input", target, target.size * self.size, f"{self.size} outputs have")
        self._reduce("reduce_scatter", worker, source, target, target.size, op, 0)

    def send(self, input: Any, peer: int, stream: Stream | int | None = None) -> None:
        """Sends an array to one rank, which receives it (ncclSend).  Transfers that wait for each other, as
        in an exchange, have to be in one group().

        Arguments:
            input: as of all_reduce.
            peer: int, the other rank; itself within a group.
        Raises:
            as of all_reduce.
        """
        worker = self._begin(stream)
        number = self._peer(peer, "peer")
        source = operands.read(input, worker, "input", False)
        datatype, count, itemsize = codes.moved_as(source.dtype, source.size)
        self._put("send", worker, (source,), (), source, None, count, itemsize, datatype, 0, number)

    def recv(self, output: Any, peer: int, stream: Stream | int | None = None) -> None:
        """Receives what one rank sends (ncclRecv), of the same size.

        Arguments:
            output: as of all_reduce.
            peer: int, the other rank; itself within a group.
        Raises:
            as of all_reduce.
        """
        worker = self._begin(stream)
        number = self._peer(peer, "peer")
        target = operands.read(output, worker, "output", True)
        datatype, count, itemsize = codes.moved_as(target.dtype, target.size)
        self._put("recv", worker, (), (target,), None, target, count, itemsize, datatype, 0, number)

    def _begin(self, stream: Any) -> Stream:
        self._check_open()
        return operands.stream_on(stream, self.device_index)

    def _peer(self, value: Any, name: str) -> int:
        return checked_number(value, name, 0, self.size - 1)

    def _compare(self, array: Array, name: str, other: Array, wanted: int, words: str) -> None:
        if array.dtype != other.dtype:
            raise TypeError(
                f"input and output have one element type; one is {other.dtype}, {name} is {array.dtype}"
            )
        if array.size != wanted:
            raise ValueError(f"{name} has {array.size} elements, {words} {wanted}; pass an array of {wanted}")

    def _reduce(
        self, call: str, worker: Stream, source: Array, target: Array | None, size: int, op: Any, root: int
    ) -> None:
        datatype, number, count, itemsize = codes.reduced_as(source.dtype, op, size)
        writes = () if target is None else (target,)
        reads = () if target is source and call != "reduce_scatter" else (source,)
        self._put(call, worker, reads, writes, source, target, count, itemsize, datatype, number, root)

    def _put(
        self,
        call: str,
        worker: Stream,
        reads: tuple[Array, ...],
        writes: tuple[Array, ...],
        source: Array | None,
        target: Array | None,
        *numbers: int,
    ) -> None:
        if numbers[0] == 0:  # no elements: NCCL does nothing then
            return
        operation = Operation(self, call, worker, reads, writes, source, target, numbers)
        if groups.depth:
            groups.pending.append(operation)
            return
        operation.begin()
        with self._lock:
            try:
                operation.issue(self._backend)
            except BackendError as error:
                raise error_of(error.code, error.text, operation.words) from None
            finally:
                operation.end()
        process_end.come_first()

    # --- errors ---

    def check(self) -> None:
        """Raises what went wrong since the operations returned: a rank that has gone, say.

        Raises:
            NcclError: an operation failed; abort() the communicator then.
        """
        self._check_open()
        with self.device, errors_of(f"check({self._words})"):
            found = self._backend.async_error(self._handle)
        if found is not None:
            code, text = found
            raise error_of(code, text, f"an operation of the communicator ({self._words})")

    def synchronize(self, stream: Stream | int | None = None, timeout: float | None = None) -> None:
        """Waits until a stream's work is done, and looks after the other ranks meanwhile, which waiting for
        the stream alone does not: it never ends where a rank has gone.

        Arguments:
            stream: Stream or handle of this device, or None for the current stream.
            timeout: seconds, or None to wait as long as it takes.
        Raises:
            NcclError: an operation failed; abort() the communicator then.
            TimeoutError: the work is not done after that time.
        """
        worker = self._begin(stream)
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.0
        while not worker.query():
            self.check()
            if end is not None and time.monotonic() > end:
                raise TimeoutError(
                    f"the work of {worker} is not done after {timeout} s: a rank may not have called the "
                    f"operation that this one waits in; abort() ends it ({self._words})"
                )
            time.sleep(pause)
            pause = min(POLL_SECONDS, pause + POLL_SECONDS / 20)
        self.check()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                f"the communicator ({self._words}) is of the process that this one was forked from, where "
                "it still "
                "works; start processes by multiprocessing's 'spawn' or 'forkserver', and make one in each"
            )
        if self._handle is None:
            raise NcclError(
                f"the communicator cannot be used: {self._why_none}; make another one",
                5,
                "INVALID_USAGE",
                "check",
            )

    # --- its end ---

    def close(self) -> None:
        """Waits for the operations under way, and frees the rank (ncclCommDestroy).  All ranks have to do it.

        After an error it frees the rank without waiting, as abort() does.  Closed twice, or in a child of a
        fork, it does nothing.

        Raises:
            RuntimeError: graphs hold operations of it; reset them first.
            NcclError: NCCL refused.
        """
        if self._captures and self._pid == os.getpid():
            # What graphs that were dropped kept goes once their launches are over.
            synchronize(self.device_index)
        if not self._may_end("close"):
            return
        last = self._last_stream
        handle = self._take("it is closed")
        with self.device, errors_of(f"close({self._words})"):
            try:
                failed = self._backend.async_error(handle) is not None
                if not failed and last is not None:
                    self._await(last)
            except BaseException:
                self._backend.abort(handle)
                raise
            if failed:
                self._backend.abort(handle)
            else:
                self._backend.destroy(handle)

    def _await(self, stream: Stream) -> None:
        try:
            found = operands.stream_on(stream.handle, self.device_index)
        except ValueError:  # another library's, which is gone, and its work with it
            return
        found.synchronize()

    def abort(self) -> None:
        """Ends the operations under way at once, which leaves their results undefined, and frees the rank
        (ncclCommAbort).  Any thread may do it.

        Raises:
            RuntimeError: graphs hold operations of it; reset them first.
            NcclError: NCCL refused.
        """
        if not self._may_end("abort"):
            return
        handle = self._take("it was aborted")
        with self.device, errors_of(f"abort({self._words})"):
            self._backend.abort(handle)

    def _may_end(self, call: str) -> bool:
        if self._handle is None or self._pid != os.getpid():
            return False
        if self._in_graphs:
            raise RuntimeError(
                f"{call}() would wait for ever: {len(self._in_graphs)} captured operations of the "
                "communicator are in "
                "graphs; reset() or drop those first"
            )
        return True

    def _take(self, why: str) -> object:
        handle, self._handle = self._handle, None
        self._why_none = why
        self._last_stream = None
        process_end.live.discard(self)
        return handle

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # the other ranks may never call what this one would wait for
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is None or self._pid != os.getpid() or sys.is_finalizing():
            return
        # To free it here could wait for other ranks, on any thread.
        process_end.abandoned.append((self._backend, self._handle, self.device_index, self._last_stream))
        warnings.warn(
            f"{self!r} was dropped without close(); it is freed when the process ends",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "a Communicator cannot be pickled or copied: it is one rank, of this process; pass its unique_id"
        )

    def __repr__(self) -> str:
        if not hasattr(self, "rank"):
            return "<accelrt.nccl.Communicator, not made>"
        state = "" if self._handle is not None else f", {self._why_none}"
        place = f"rank {self.rank} of {self.size} on device {self.device_index}"
        return f"<accelrt.nccl.Communicator {place}{state}>"


def init_all(devices: Sequence[DeviceArgument] | None = None) -> list[Communicator]:
    """One communicator for each of several devices of this process (ncclCommInitAll).

    Arguments:
        devices: ordinals or accelrt.devices, each once; None is all.
    Returns:
        list of Communicator, the rank of each its place in it.
    Raises:
        as of Communicator.
    """
    ordinals = list(range(device_count())) if devices is None else [ordinal_of(each) for each in devices]
    if len(set(ordinals)) < len(ordinals) or not ordinals:
        raise ValueError(f"devices are {ordinals}; pass each device once, and at least one")
    module = backend()
    with device(ordinals[0]), errors_of(f"init_all(devices={ordinals})"):
        handles = module.init_all(ordinals)
    made = []
    for rank, (ordinal, handle) in enumerate(zip(ordinals, handles, strict=True)):
        comm = Communicator.__new__(Communicator)
        comm._clear()
        comm._place(rank, len(ordinals), ordinal)
        comm._adopt(handle)
        made.append(comm)
    return made
