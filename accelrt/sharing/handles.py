"""The functions that programs call: handles of memory, and how multiprocessing pickles Buffers and Arrays."""

from __future__ import annotations

import gc
import os
import sys
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler

from accelrt.arrays.array import Array, Buffer, PinnedBuffer
from accelrt.core.process import ForkSafeLock
from accelrt.sharing import consumer, mapping, producer
from accelrt.sharing.mapping import Loan
from accelrt.streams.stream import current_stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn, Self

    from accelrt.annotations import DeviceArgument
    from accelrt.sharing.mapping import Claim
    from accelrt.sharing.producer import PinnedFile
    from accelrt.streams.stream import Stream

_turns = ForkSafeLock()

Layout = tuple[int, tuple[int, ...], tuple[int, ...], "Any", bool]  # offset, shape, strides, dtype, readonly


class MemoryHandle:
    """Memory that other processes can open, made by share: it pickles, and its copy there has open().

    In the owner's process it keeps the memory until close(), or its end; processes that opened it by then
    keep it on.
    """

    def __init__(self, place: consumer.Place, layout: Layout | None, loan: Loan | None = None) -> None:
        if not isinstance(place, consumer.Place) or not isinstance(loan, (Loan, type(None))):
            raise TypeError(
                f"a MemoryHandle is made by share(), not of {type(place).__name__} and {type(loan).__name__}"
            )
        self._place = place
        self._layout = layout
        self._loan = loan  # whose end is the handle's; None in every process but the owner's

    def open(self, device: DeviceArgument | None = None, *, timeout: float | None = None) -> Buffer | Array:
        """Returns the memory, as a Buffer, or an Array where one was shared, on the same bytes.

        Arguments:
            device: which device to expect it on; None is whichever it is, under the number that it has in
            this process.
            timeout: float, seconds that the owner may take to answer, and until memory of its that this
            process let go of has been given back, where that is much; None is ACCELRT_SHARING_TIMEOUT.
        Returns:
            Buffer or Array, whose stream is the current one of that device: its work follows the owner's.
        Raises:
            ValueError: this process does not see the device, or it is another one than device.
            RuntimeError: the owner is gone or has closed the handle, or the stream is capturing.
            PeerTimeoutError: it took too long; a TimeoutError, and a RuntimeError.
            PermissionError: the owner has another authkey.
            CudaError: the driver refused.
        """
        buffer = open_place(self._place, device, timeout)
        return buffer if self._layout is None else array_on(buffer, self._layout)

    @property
    def nbytes(self) -> int:
        """int: the bytes of the whole Buffer."""
        return self._place.nbytes

    def close(self) -> None:
        """Ends it: no process opens it any more.  It does nothing the second time, and in other processes."""
        self._loan = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (MemoryHandle, (self._place, self._layout))

    def __repr__(self) -> str:
        kind = "an Array" if self._layout is not None else "a Buffer"
        return (
            f"<accelrt.sharing.MemoryHandle of {kind} of {self.nbytes} bytes, of process {self._place.pid}>"
        )


class PinnedHandle:
    """Page-locked memory that other processes can open, made by PinnedBuffer.share: it pickles, and its copy
    there has open().

    In the owner's process it can be opened until close(), or its end; what was opened by then stays valid,
    also where the owner frees its own, or ends.
    """

    def __init__(self, place: consumer.PinnedPlace, file: PinnedFile | None = None) -> None:
        if not isinstance(place, consumer.PinnedPlace):
            raise TypeError(f"a PinnedHandle is made by PinnedBuffer.share(), not of {type(place).__name__}")
        self._place = place
        self._file = file  # None in every process but the owner's

    @property
    def nbytes(self) -> int:
        """int: the bytes of the PinnedBuffer."""
        return self._place.nbytes

    def open(self, device: DeviceArgument | None = None, *, timeout: float | None = None) -> PinnedBuffer:
        """Opens the memory, as a PinnedBuffer on the same bytes, which this process's driver has locked too.

        Arguments:
            device: as for PinnedBuffer.
            timeout: float, seconds that the owner may take to answer; None is ACCELRT_SHARING_TIMEOUT.
        Returns:
            PinnedBuffer.
        Raises:
            RuntimeError: the owner is gone or has closed the handle.
            PeerTimeoutError: it took too long; a TimeoutError, and a RuntimeError.
            PermissionError: the owner has another authkey.
            CudaError: the driver refused.
            ValueError: device names none, or what the owner sent is no such memory.
        """
        place = self._place
        if place.nbytes == 0:
            return PinnedBuffer(0, device)
        own, file = producer.own_pinned(place.name, place.number)
        if not own:
            return consumer.open_pinned(place, device, timeout)
        if file is None or file.file is None:
            raise consumer.missing(place, "its owner has dropped or closed the handle")
        return mapping.open_pinned(file.file.fileno(), place.nbytes, device)

    def close(self) -> None:
        """Ends the handle: no process opens it any more; doing it again does nothing, and so does doing it
        elsewhere.
        """
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (PinnedHandle, (self._place,))

    def __repr__(self) -> str:
        return f"<accelrt.sharing.PinnedHandle of {self.nbytes} bytes, of process {self._place.pid}>"


def share_pinned(memory: PinnedBuffer) -> PinnedHandle:
    """A handle by which other processes open page-locked memory; see PinnedBuffer.share()."""
    file = producer.PinnedFile(*mapping.file_of_pinned(memory))
    name, number = producer.offer_pinned(file) if file.nbytes else ("", 0)
    return PinnedHandle(consumer.PinnedPlace(name, os.getpid(), number, file.nbytes), file)


def lend(
    memory: Buffer | Array, stream: Stream | int | None, ticket: bool
) -> tuple[consumer.Place, Layout | None, Loan | None]:
    """Tells where others find the memory, how an Array lies in it, and the loan; of no bytes there is
    none."""
    buffer = mapping.buffer_of(memory)
    mapping.check_shareable(buffer)
    chosen = mapping.pick_stream(buffer, stream)
    mapping.refuse_capture(chosen, "share")
    uuid = mapping.uuid_of(buffer.device_index)
    lease = mapping.lease_of(buffer)
    if lease is not None:
        shared = mapping.pass_on(buffer, lease, consumer.ask_for_pages)
    else:
        with _turns:
            shared = mapping.share_bytes(buffer)
    name, loan = producer.lend(shared, chosen, ticket) if shared.ptr else ("", None)
    place = consumer.Place(
        name, os.getpid(), 0 if loan is None else loan.number, ticket, uuid, shared.nbytes,
        shared.ptr - shared.base, shared.size, shared.serial, shared.pages,
    )  # fmt: skip
    return place, layout_of(memory, buffer), loan


def layout_of(memory: Buffer | Array, buffer: Buffer) -> Layout | None:
    if isinstance(memory, Buffer):
        return None
    offset = memory.ptr - buffer.ptr if memory.size else 0
    return offset, memory.shape, memory.strides, memory.dtype, memory.readonly


def array_on(buffer: Buffer, layout: Layout) -> Array:
    offset, shape, strides, dtype, readonly = layout
    return Array(buffer, shape, dtype, strides=strides, offset=offset, readonly=readonly)


def share(memory: Buffer | Array, stream: Stream | int | None = None) -> MemoryHandle:
    """Returns a handle by which other processes open the same memory.

    Arguments:
        memory: Buffer or Array.
        stream: as of Buffer.share.
    Raises:
        TypeError: memory is neither.
        as Buffer.share and, of an Array, Array.share.
    """
    place, layout, loan = lend(memory, stream, False)
    if loan is not None:
        loan.offer()
    return MemoryHandle(place, layout, loan)


def open_place(
    place: consumer.Place, device: DeviceArgument | None = None, timeout: float | None = None
) -> Buffer:
    ordinal = mapping.find_device(place.uuid)
    if ordinal < 0:
        raise ValueError(
            f"memory of process {place.pid} is on the device with UUID {place.uuid.hex()}, which this "
            "process does "
            "not see; let CUDA_VISIBLE_DEVICES of both name it"
        )
    stream = current_stream(ordinal)
    if device is not None and current_stream(device).device_index != ordinal:
        raise ValueError(f"the memory is on device {ordinal} of this process, not on {device}; copy it there")
    mapping.refuse_capture(stream, "open")
    if place.nbytes == 0:
        return Buffer(0, ordinal)
    own, loan = producer.find_own(place.name, place.loan)
    if not own:
        return consumer.open_memory(place, stream, timeout)
    if loan is None:
        raise consumer.missing(place, "it was opened before, or its handle was closed")
    if loan.event is not None:
        stream.wait_event(loan.event)
    buffer = mapping.local_buffer(loan.memory, stream)
    buffer.record_stream(stream)  # a no-op where it is the stream that the memory was allocated on
    return buffer


def open_ticket(values: tuple[Any, ...], layout: Layout | None, claim: Claim) -> Buffer | Array:
    """Returns what a pickled Buffer or Array becomes."""
    try:
        buffer = open_place(consumer.Place(*values))
        memory = buffer if layout is None else array_on(buffer, layout)
        claim.settle()
        return memory
    except BaseException:
        claim.decline()  # now, whoever keeps the exception
        consumer.decline_unclaimed()
        raise


def reduce_memory(memory: Buffer | Array) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns what multiprocessing pickles one by: a ticket, which one process opens once.

    A thread that feeds a Queue has no caller to raise to, and whoever gets from the Queue would wait for
    ever: there an error is pickled instead, and raised where it is unpickled.
    """
    loan: Loan | None = None
    try:
        place, layout, loan = lend(memory, None, True)
        pickled = mapping.rebuild, (open_ticket, place.values, layout)
        if loan is not None:
            loan.offer()  # the last step: it is kept until it is opened
        return pickled
    except BaseException as error:
        if loan is not None:
            loan.withdraw()
        if not isinstance(error, Exception) or not feeds_queue():
            raise
        return raise_refusal, (os.getpid(), type(error).__name__, str(error))


def feeds_queue() -> bool:
    """Tells whether the calling thread feeds a multiprocessing.Queue that only prints the errors that it
    meets."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is Queue._feed.__code__:  # type: ignore[attr-defined]
            return frame.f_locals.get("onerror") is Queue._on_queue_feeder_error  # type: ignore[attr-defined]
        frame = frame.f_back
    return False


def raise_refusal(pid: int, kind: str, text: str) -> NoReturn:
    """Returns what the process that gets from a Queue unpickles where the other one could not share."""
    raise RuntimeError(f"process {pid} put memory into a Queue that it could not share: {kind}: {text}")


def register_reductions() -> None:
    for kind in (Buffer, Array):
        ForkingPickler.register(kind, reduce_memory)


def ipc_collect(timeout: float | None = None) -> int:
    """Gives back memory of other processes that this one does not use any more, and waits until the owners
    have it.

    It happens by itself soon after the last Buffer or Array of it dies, as torch.cuda.ipc_collect() says of
    tensors.  What is not given back in time, since work uses it or an owner does not answer, is named by a
    RuntimeWarning, and given back later.

    Arguments:
        timeout: float, seconds; None is ACCELRT_SHARING_TIMEOUT.
    Returns:
        int, how many Buffers and Arrays are not given back.
    """
    gc.collect()
    return consumer.collect(timeout)


def cancel_unopened() -> int:
    """Takes back what multiprocessing pickled and no process has opened, as where the one that was to get
    it died.

    Returns:
        int, how many; opening one of them from now on fails.
    """
    return producer.cancel_tickets()


def statistics() -> dict[str, int]:
    """Counts what this process shares, and what it has of others.

    Returns:
        dict: handles that are open here, unopened pickles, what was lent to other processes and not given
        back (lent, and lent_bytes with what may still be opened), borrowers (processes that are connected);
        opened, Buffers and Arrays of other processes; mapped, their mappings; owners, the processes that
        they are of.
    """
    return {**producer.statistics(), **consumer.statistics()}
