"""Communicators: one rank each, with its operations, its errors and its end."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from typing import TYPE_CHECKING

from accelrt.core.arguments import checked_number
from accelrt.devices.device import device, device_ordinal, synchronize
from accelrt.errors import ForkedError, NcclError, refuse_copy
from accelrt.nccl import process_end
from accelrt.nccl.codes import OPERATIONS, PARTS, WHOLE, error_of, numbers_of
from accelrt.nccl.config import checked
from accelrt.nccl.groups import Joining, Operation, errors_of, perform
from accelrt.nccl.limits import POLL_SECONDS, seconds_of
from accelrt.nccl.ranks import Hold, InGraph, Turn, calls_of, groups, put, read_operand, stream_on
from accelrt.nccl.splitting import checked_side, shrink, split
from accelrt.nccl.suspending import resume, suspend
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn, Self

    from accelrt.annotations import DeviceArgument
    from accelrt.arrays.array import Array
    from accelrt.nccl.codes import Kind
    from accelrt.nccl.config import Config
    from accelrt.streams.stream import Stream


def backend() -> Any:
    """The module that performs collectives: NCCL, or on the host device the one for tests."""
    return init.later("accelrt.nccl.host_for_tests" if init.runs_on_host() else "accelrt.nccl.nvidia")


class Communicator:
    """One rank of a group of devices that perform collectives together.

    Every rank has to call the same operations in the same order, with the same element types and sizes; an
    operation is put into a stream and returns.  One thread at a time uses a communicator, but for abort(),
    check() and synchronize(), which any thread may call; a thread with several of them calls each operation
    for all in one group(), since the first one waits for the others.

    Making one waits for all other ranks: one process makes the ranks of several devices by init_all(), or
    in one group().

    Arguments:
        num_ranks: int, how many ranks there are.
        unique_id: bytes, of unique_id() on one of them, the same on all.
        rank: int, this one's number, from 0.
        device: ordinal or accelrt.device, or None for the current one.
        timeout: seconds that other ranks may take: to come now, and later in synchronize() and close();
            None is ACCELRT_NCCL_TIMEOUT (600), math.inf is without limit.
        config: accelrt.nccl.Config, settings of NCCL's, the same on all ranks; None leaves all to NCCL.
    Raises:
        NcclError: NCCL refused; two ranks on one device are refused.
        TimeoutError: other ranks did not come; the text names them where that is known.
        NotSupportedError: nccl4py or libnccl.so.2 is not installed.
        ValueError, TypeError: an argument is out of range or of the wrong kind.
    """

    def __init__(
        self,
        num_ranks: int,
        unique_id: bytes,
        rank: int,
        device: DeviceArgument | None = None,
        timeout: float | None = None,
        config: Config | None = None,
    ) -> None:
        seconds = seconds_of(timeout, "ACCELRT_NCCL_TIMEOUT")
        settings = checked(config)
        size = checked_number(num_ranks, "num_ranks", 1, (1 << 31) - 1)
        number = checked_number(rank, "rank", 0, size - 1)
        if not isinstance(unique_id, (bytes, bytearray)) or len(unique_id) != 128:
            raise ValueError(
                f"unique_id is {unique_id!r:.60}; pass the 128 bytes of accelrt.nccl.unique_id()"
            )
        self._place(number, size, device_ordinal(device), seconds, bytes(unique_id), settings)
        words = "init_rank in a group" if groups.depth else f"init_rank({self._words})"
        put(Joining(self, bytes(unique_id), words), perform)

    def _place(
        self, rank: int, size: int, ordinal: int, timeout: float, name: bytes, config: Config | None
    ) -> None:
        self._backend: Any = backend()
        self._name = name  # its unique id
        self._splits = 0  # how often all ranks have split it
        self._shrinks: Counter[tuple[int, ...]] = Counter()  # how often some were left out, by their numbers
        self.config = config
        self.rank = rank
        self.size = size
        self.device_index = ordinal
        self.device: device = device(ordinal)
        self.timeout = timeout
        self._words = f"rank={rank}, ranks={size}, device={ordinal}"
        self._pid = os.getpid()
        self._last_stream: Stream | None = None
        self._in_graphs: weakref.WeakSet[InGraph] = weakref.WeakSet()
        self._captures = False  # whether graphs have held operations of it
        self._hold = Hold("its group has not ended")  # last: __del__ looks for it

    def _make_child(
        self, rank: int, size: int, number: int, color: int, config: Config | None
    ) -> Communicator:
        """A communicator to be split off; number: which split of this one it is."""
        name = self._backend.name_of_split(self._name, number, color)
        child = Communicator.__new__(Communicator)
        child._place(rank, size, self.device_index, self.timeout, name, config or self.config)
        return child

    def _adopt(self, handle: object) -> None:
        self._hold.give(handle)
        process_end.live.add(self)

    def split(
        self, color: int | None, key: int | None = None, *, config: Config | None = None
    ) -> Communicator | None:
        """Makes communicators of parts of this one's ranks (ncclCommSplit); every rank has to call it.

        Arguments:
            color: int, from 0: the ranks that name the same one are together; None is in no communicator.
            key: int, ranks are numbered by their keys, and where those are equal by their numbers here; None
                is the number here.
            config: Config, settings of the new one; None is this one's.
        Returns:
            Communicator, which is closed by itself; None for a colour of None.
        Raises:
            ValueError, TypeError: an argument is out of range or of the wrong kind.
            NcclError, TimeoutError: as of Communicator and synchronize; this one can be used on.
            RuntimeError: in a group: a process with several ranks calls accelrt.nccl.split.
        """
        side = checked_side(self, color, key)
        return split([self], [side], checked(config), "split()")[0]

    def shrink(
        self, exclude: Iterable[int], *, abort: bool = False, config: Config | None = None
    ) -> Communicator:
        """Makes a communicator without some of this one's ranks (ncclCommShrink, NCCL 2.27); every other rank
        has to call it.

        Arguments:
            exclude: ranks that are left out, such as those whose processes have stopped; the others keep
                their order.
            abort: bool, whether operations of this one that are under way are ended first, since a rank that
                stopped will not take part in them; this one can then only be ended by abort().
            config: Config, settings of the new one; None is this one's.
        Returns:
            Communicator, which is closed by itself.
        Raises:
            ValueError, TypeError: exclude is empty, has a rank twice, that there is not, or this one.
            NcclError, TimeoutError: as of Communicator.
            RuntimeError: in a group: a process with several ranks calls accelrt.nccl.shrink_all.
        """
        child: Communicator = shrink([self], exclude, bool(abort), checked(config), "shrink()")[0]
        return child

    def suspend(self) -> None:
        """Gives the device back what NCCL has of its memory, until resume() (ncclCommSuspend, NCCL 2.29.7).

        Every rank has to call it.  The addresses stay, so that graphs that hold operations of it are valid
        afterwards.

        The device's work is waited for.  Until resume() operations of it are refused, and so are replays of
        accelrt's graphs that hold some; another library's graphs must not be replayed.

        Raises:
            RuntimeError: it is suspended; a capture is under way, beside which the device cannot be waited
                for; in a group: of several ranks of a process accelrt.nccl.suspend_all takes all at once.
            NotSupportedError: NCCL or nccl4py is too old.
            NcclError, TimeoutError: as of Communicator and synchronize; where all ranks had come it stays
                suspended.
        """
        suspend([self], "suspend()")

    def resume(self) -> None:
        """Takes memory for a communicator that is suspended, at the same addresses (ncclCommResume).

        Every rank has to call it.

        Raises:
            RuntimeError: it is not suspended; in a group: of several ranks of a process
                accelrt.nccl.resume_all takes all at once.
            NcclError, TimeoutError: as of Communicator; it stays suspended, and abort() ends it.
        """
        resume([self], "resume()")

    @property
    def suspended(self) -> bool:
        """Tells whether it is suspended, so that the device may have its memory back."""
        return self._hold.suspended

    def memory_stats(self) -> dict[str, int]:
        """Tells how much of the device's memory NCCL has for it (ncclCommMemStats, NCCL 2.29.7).

        Returns:
            dict: "total", and "suspendable", which suspend() gives back, in bytes; 0 on the host device.
        Raises:
            NotSupportedError: NCCL or nccl4py is too old.
            NcclError: NCCL refused, or the communicator is closed.
        """
        with self._turn() as (handle,), errors_of(f"memory_stats({self._words})"), calls_of([self._hold]):
            total, suspendable = self._backend.memory_stats(handle)
        return {"total": total, "suspendable": suspendable}

    # --- operations ---

    def all_reduce(
        self, input: Any, output: Any = None, op: str | int = "sum", stream: Stream | int | None = None
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
        self._call("all_reduce", input, output, stream, op)

    def reduce(
        self,
        input: Any,
        output: Any = None,
        root: int = 0,
        op: str | int = "sum",
        stream: Stream | int | None = None,
    ) -> None:
        """Reduces as all_reduce does, but only one rank gets the result (ncclReduce).

        Arguments:
            root: int, that rank.
            output: as of all_reduce; only the root's is looked at.
            input, op, stream: as of all_reduce.
        Raises:
            as of all_reduce.
        """
        self._call("reduce", input, output, stream, op, root)

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
        self._call("broadcast", input, output, stream, root=root)

    def all_gather(self, input: Any, output: Any, stream: Stream | int | None = None) -> None:
        """Puts all ranks' arrays one behind the other, in the order of the ranks, on every rank
        (ncclAllGather).

        Arguments:
            input: as of all_reduce; it may be this rank's part of output.
            output: as of all_reduce, of as many elements as all ranks' inputs together.
        Raises:
            as of all_reduce.
        """
        self._call("all_gather", input, output, stream)

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
        self._call("reduce_scatter", input, output, stream, op)

    def send(self, input: Any, peer: int, stream: Stream | int | None = None) -> None:
        """Sends an array to one rank, which receives it (ncclSend).  Transfers that wait for each other, as
        in an exchange, have to be in one group().

        Arguments:
            input: as of all_reduce.
            peer: int, the other rank; itself within a group.
        Raises:
            as of all_reduce.
        """
        self._call("send", input, None, stream, root=peer)

    def recv(self, output: Any, peer: int, stream: Stream | int | None = None) -> None:
        """Receives what one rank sends (ncclRecv), of the same size.

        Arguments:
            output: as of all_reduce.
            peer: int, the other rank; itself within a group.
        Raises:
            as of all_reduce.
        """
        self._call("recv", None, output, stream, root=peer)

    def _call(self, call: str, input: Any, output: Any, stream: Any, op: Any = None, root: Any = 0) -> None:
        """Reads an operation's arguments, and puts it into the stream, or into the group that is open."""
        kind = OPERATIONS[call]
        worker = self._begin(stream)
        name = "peer" if kind.root == "peer" else "root"
        number = checked_number(root, name, 0, self.size - 1) if kind.root else 0
        at_root = number == self.rank
        gives = kind.root == "source" and at_root  # in place it only reads
        gets = bool(kind.target) and (kind.root != "target" or at_root)
        is_in_place = output is None and kind.source == kind.target == WHOLE
        source: Any = None
        target: Any = None
        if kind.source:
            source = read_operand(input, worker, "input", is_in_place and gets and not gives)
        if gets:
            target = source if is_in_place else read_operand(output, worker, "output", True)
        if source is not None and target is not None:
            self._compare(source, target, kind)
        reads = (source,) if source is not None and (gives or kind.root != "source") else ()
        writes = (target,) if target is not None else ()
        if source is target:
            reads, writes = (reads, ()) if gives else ((), writes)
        # The array of which every rank has as many elements, as NCCL counts them; of parts alone, one part.
        counted = target if source is None or kind.source == PARTS else source
        parts = self.size if kind.source == kind.target == PARTS else 1
        numbers = numbers_of(kind, counted.dtype, op, counted.size // parts)
        if numbers[0]:  # without elements NCCL does nothing
            operation = Operation(self, call, worker, reads, writes, source, target, (*numbers, number))
            put(operation, perform)

    def _begin(self, stream: Any) -> Stream:
        self._check_open()
        return stream_on(stream, self.device_index)

    def _compare(self, source: Array, target: Array, kind: Kind) -> None:
        array, name, other, others = target, "output", source, "input"
        if kind.source == PARTS:
            array, name, other, others = source, "input", target, "output"
        count, words = other.size, f"{others} has"
        if kind.source == kind.target == PARTS:
            if count % self.size:
                words = f"{others} has {count} elements, which are no {self.size} parts of one size"
                raise ValueError(f"{words}; pass an array of a multiple of {self.size}")
        elif PARTS in (kind.source, kind.target):
            count, words = count * self.size, f"{self.size} {others}s have"
        if array.dtype != other.dtype:
            raise TypeError(
                f"input and output have one element type; one is {other.dtype}, {name} is {array.dtype}"
            )
        if array.size != count:
            raise ValueError(f"{name} has {array.size} elements, {words} {count}; pass an array of {count}")

    # --- errors ---

    def check(self) -> None:
        """Raises what went wrong since the operations returned: a rank that has gone, say.

        Raises:
            NcclError: an operation failed; abort() the communicator then.
        """
        error = self._find_error("check")
        if error is not None:
            code, text = error
            raise error_of(code, text, f"an operation of the communicator ({self._words})")

    def synchronize(self, stream: Stream | int | None = None, timeout: float | None = None) -> None:
        """Waits until a stream's work is done, and looks after the other ranks meanwhile, which waiting for
        the stream alone does not: it never ends where a rank has gone.

        Arguments:
            stream: Stream or handle of this device, or None for the current stream.
            timeout: seconds; None is what the communicator was made with, math.inf is without limit.
        Raises:
            NcclError: an operation failed, or another thread called abort(); abort() the communicator then.
            TimeoutError: the work is not done after that time; the text names the ranks that it waits for
                where that is known.  abort() ends it.
            ValueError, TypeError: the stream is none of this device, or timeout is no number from 0 on.
        """
        worker = self._begin(stream)
        self._await(worker, self.timeout if timeout is None else seconds_of(timeout, ""))
        self.check()

    def _await(self, worker: Stream, seconds: float) -> None:
        end = time.monotonic() + seconds
        pause = 0.0
        while not worker.query():
            self.check()
            if time.monotonic() > end:
                raise TimeoutError(
                    f"the work of {worker} is not done after {seconds:g} s{self._awaited()}: a rank may not "
                    f"have called the operation that this one waits in; abort() ends it ({self._words})"
                )
            time.sleep(pause)
            pause = min(POLL_SECONDS, pause + POLL_SECONDS / 20)

    def _awaited(self) -> str:
        """The ranks that an operation under way waits for, for errors; empty where that is not known."""
        with self._turn() as (handle,):
            ranks = self._backend.awaited(handle)
        return f", which waits for {ranks}" if ranks else ""

    def _find_error(self, call: str) -> tuple[int, str] | None:
        with self._turn() as (handle,), self.device, errors_of(f"{call}({self._words})"):
            with calls_of([self._hold]):
                error: tuple[int, str] | None = self._backend.async_error(handle)
            return error

    def _turn(self) -> Turn:
        self._check_process()
        return Turn([self._hold], [])

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                f"the communicator ({self._words}) is of the process that this one was forked from, where it "
                "still works; start processes by multiprocessing's 'spawn' or 'forkserver', and make one in "
                "each"
            )

    def _check_open(self) -> None:
        self._check_process()
        if not self._hold.is_open:
            raise self._hold.refuse()

    # --- its end ---

    def close(self, timeout: float | None = None) -> None:
        """Waits for the operations under way, and frees the rank (ncclCommDestroy).  All ranks have to do it.

        After an error it frees the rank without waiting, as abort() does.  Closed twice, or in a child of a
        fork, it does nothing.

        Arguments:
            timeout: seconds; None is what the communicator was made with, math.inf is without limit.
        Raises:
            RuntimeError: graphs hold operations of it; reset them first.  It is suspended; resume it first.
            TimeoutError: the operations are not done after that time; abort() ends them.
            NcclError: NCCL refused, or another thread called abort() meanwhile.
            ValueError, TypeError: timeout is no number from 0 on.
        """
        seconds = self.timeout if timeout is None else seconds_of(timeout, "")
        if not self._may_end("close", seconds):
            return
        if self.suspended:
            raise RuntimeError(
                f"close() of a communicator that is suspended ({self._words}): resume() it on all ranks "
                "first, or abort() it"
            )
        failed = self._find_error("close") is not None
        last = None if failed else self._find_last()
        if last is not None:
            self._await_last(last, seconds)
        self._free("it is closed", "close", failed)

    def _find_last(self) -> Stream | None:
        last = self._last_stream
        try:
            return None if last is None else stream_on(last.handle, self.device_index)
        except ValueError:  # another library's, which is gone, and its work with it
            return None

    def _await_last(self, last: Stream, seconds: float) -> None:
        try:
            self._await(last, seconds)
        except TimeoutError:
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # the first error tells more
                self._free("it is closed", "close", True)
            raise

    def abort(self) -> None:
        """Ends the operations under way at once, which leaves their results undefined, and frees the rank
        (ncclCommAbort).  Any thread may do it, beside whatever others do with the communicator: they get
        an NcclError.

        A thread that is inside a call of NCCL's is waited for, at most as long as the communicator's
        timeout; it frees the rank then as it returns.  Where graphs hold operations of it, what is under
        way is ended (by NCCL where it has ncclCommRevoke), and the rank is not yet freed.

        Raises:
            RuntimeError: graphs hold operations of it; reset them, and call it again.
            TimeoutError: another thread does not return from NCCL.
            NcclError: NCCL refused.
        """
        if not self._hold.has_handle or self._pid != os.getpid():
            return
        if self._in_graphs:
            with (
                contextlib.suppress(NcclError),
                self._turn() as (handle,),
                calls_of([self._hold]),
                self.device,
            ):
                self._backend.revoke(handle)
            self._refuse_graphs("abort")
        self._free("it was aborted", "abort", True)

    def _may_end(self, call: str, seconds: float) -> bool:
        if not self._hold.has_handle or self._pid != os.getpid():
            return False
        if self._captures and self._in_graphs:
            # What graphs that were dropped kept goes once their launches are over.
            self._await_device(seconds)
        if self._in_graphs:
            self._refuse_graphs(call)
        return True

    def _await_device(self, seconds: float) -> None:
        """Waits for the device's work, but no longer than that: a rank that has stopped may hold it up."""
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                synchronize(self.device_index)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=wait, name="accelrt-nccl-close", daemon=True)
        thread.start()
        thread.join(None if seconds == math.inf else seconds)
        if errors:
            raise errors[0]
        if thread.is_alive():
            raise TimeoutError(
                f"the work of {self.device} is not done after {seconds:g} s{self._awaited()}; abort() ends "
                f"what is under way of the communicator ({self._words})"
            )

    def _refuse_graphs(self, call: str) -> None:
        raise RuntimeError(
            f"{call}() would wait for ever: {len(self._in_graphs)} captured operations of the communicator "
            "are in graphs; reset() or drop those first"
        )

    def _free(self, why: str, call: str, at_once: bool) -> None:
        """Takes the handle, so that later calls are refused, and frees it once nobody is inside."""
        module, hold, device = self._backend, self._hold, self.device
        handle = None

        def free() -> None:
            with device:
                (module.abort if at_once else module.destroy)(handle)

        try:
            handle = hold.take(why)
            if handle is None:  # another thread ends it
                if not at_once:
                    raise hold.refuse()
                return
            self._await_calls(call)
            if self._in_graphs:  # a capture came in between
                hold.give(handle)
                handle = None
                self._refuse_graphs(call)
            self._last_stream = None
            process_end.live.discard(self)
            with errors_of(f"{call}({self._words})"):
                hold.free(free)  # later for a signal's handler, which is inside of what it interrupts
        except BaseException:
            if handle is not None:
                hold.free(free)
            raise

    def _await_calls(self, call: str) -> None:
        end = time.monotonic() + self.timeout
        while self._hold.is_busy and not self._hold.is_mine:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{call}({self._words}) waited {self.timeout:g} s for a thread that is inside a call of "
                    "the backend; the rank is freed as soon as that returns"
                )
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:  # the other ranks may never call what this one would wait for
            self.abort()

    def __del__(self) -> None:
        hold = getattr(self, "_hold", None)
        if hold is None or not hold.has_handle or self._pid != os.getpid() or sys.is_finalizing():
            return
        # To free it here could wait for other ranks, on any thread.
        handle = hold.take("it was dropped")
        process_end.abandoned.append((self._backend, handle, self.device_index, self._last_stream))
        warnings.warn(
            f"{self!r} was dropped without close(); it is freed when the process ends",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is one rank, of this process; pass its unique_id")

    def __repr__(self) -> str:
        if not hasattr(self, "_hold"):
            return "<accelrt.nccl.Communicator, not made>"
        state = "" if self._hold.has_handle else f", {self._hold.why}"
        state += ", suspended" if self.suspended else ""
        rank_text = f"rank {self.rank} of {self.size} on device {self.device_index}"
        return f"<accelrt.nccl.Communicator {rank_text}{state}>"
