"""torch.cuda.nccl's functions: collectives of one process, over lists of arrays, one a device.

The communicators of a list of devices are made at its first use, and kept until the process ends.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import TYPE_CHECKING

from accelrt.arrays.array import Array, Buffer
from accelrt.core import process
from accelrt.core.arguments import checked_number
from accelrt.errors import NcclError, NotSupportedError
from accelrt.nccl import process_end
from accelrt.nccl.all_ranks import init_all
from accelrt.nccl.codes import SUM
from accelrt.nccl.communicator import Communicator, backend
from accelrt.nccl.ranks import as_array, group, read_operand, stream_on

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from accelrt.streams.stream import Stream

CPU, CUDA, MANAGED = 1, 2, 13  # DLDeviceType

_made: dict[tuple[int, ...], list[Communicator]] = {}
_making = threading.RLock()  # a signal's handler may come in between


def _forget_in_child() -> None:
    global _making
    _made.clear()
    _making = threading.RLock()


process.call_at_fork("nccl.collectives", "collectives", child=_forget_in_child)


def version() -> tuple[int, int, int]:
    """Returns NCCL's version, such as (2, 28, 9); (0, 0, 0) is the host backend's.

    Raises:
        NotSupportedError: nccl4py or libnccl.so.2 is not installed.
    """
    number: int = backend().version()
    return number // 10000, number // 100 % 100, number % 100


def unique_id() -> bytes:
    """Returns 128 bytes that name a communicator to be, which is made of them on all of its ranks.

    Raises:
        NotSupportedError: nccl4py or libnccl.so.2 is not installed.
    """
    name: bytes = backend().unique_id()
    return name


def init_rank(num_ranks: int, uid: bytes, rank: int) -> Communicator:
    """Makes a rank of a communicator, on the current device; waits for the other ranks.

    Arguments:
        num_ranks: int, how many ranks there are.
        uid: bytes, of unique_id() on one of them.
        rank: int, this one's number.
    Raises:
        as of Communicator.
    """
    return Communicator(num_ranks, uid, rank)


def is_available(tensors: Sequence[Any] | None = None) -> bool:
    """Tells whether collectives of some arrays can be performed: NCCL is there, and they are contiguous, and
    each on a device of its own.

    Arguments:
        tensors: sequence of arrays; None asks whether NCCL is there at all.
    Raises:
        TypeError: tensors is not such a sequence.
    """
    try:
        backend().version()
    except NotSupportedError:
        return False
    devices = set()
    for tensor in tensors or ():
        try:
            array = as_array(tensor)
        except (TypeError, ValueError, BufferError):
            return False
        if not array.is_contiguous or array.device_index < 0 or array.device_index in devices:
            return False
        devices.add(array.device_index)
    return True


def _check_list(arrays: Any, name: str) -> None:
    if isinstance(arrays, (Array, Buffer, str, bytes)) or not hasattr(arrays, "__len__"):
        raise TypeError(
            f"{name} is {type(arrays).__name__}; it should be a collection of arrays, one a device"
        )
    if not len(arrays):
        raise ValueError(f"{name} is empty; pass an array for each device")


def _check_length(values: Any, name: str, count: int) -> None:
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} elements, inputs {count}; pass one for each device")


def _device_of(source: Any) -> int:
    if isinstance(source, (Array, Buffer)):
        return source.device_index
    if hasattr(source, "__dlpack_device__"):
        kind, number = source.__dlpack_device__()
        return int(number) if kind in (CUDA, MANAGED) else -1
    return as_array(source).device_index


class _Call:
    """The arguments of a function over lists, read and compared before any collective is put into a stream.

    Attributes:
        comms: list of Communicator, one a device.
        streams: list of Stream.
        inputs: list of Array.
    """

    def __init__(self, inputs: Any, streams: Any, comms: Any, written: bool = False) -> None:
        _check_list(inputs, "inputs")
        self._given = list(inputs)
        if streams is not None:
            _check_length(streams, "streams", len(self._given))
        self.comms = self._find_communicators(comms)
        self.streams = [
            stream_on(None if streams is None else streams[index], comm.device_index)
            for index, comm in enumerate(self.comms)
        ]
        self.inputs = [
            self._read(each, index, f"inputs[{index}]", written) for index, each in enumerate(self._given)
        ]
        size = self.inputs[0].size
        for index, each in enumerate(self.inputs):
            self._compare(each, f"inputs[{index}]", size, f"inputs[0] has {size}")

    def put(self, call: str, outputs: Sequence[Array | None] | None = None, *arguments: Any) -> None:
        """Calls an operation of all communicators, as one group.

        Arguments:
            outputs: arrays that are written, each in the place of its input where that is None.
            arguments: of Communicator._call behind the stream.
        """
        each = zip(self.comms, self.inputs, outputs or [None] * len(self.comms), self.streams, strict=True)
        with group():
            for comm, source, target, stream in each:
                comm._call(call, source, target, stream, *arguments)

    def read_outputs(self, outputs: Any, parts: int = 1, times: int = 1) -> list[Array]:
        """The arrays that are written, each of the inputs' size times a number, or divided by one."""
        _check_list(outputs, "outputs")
        _check_length(outputs, "outputs", len(self.inputs))
        arrays = [
            self.inputs[index]
            if each is self._given[index]
            else self._read(each, index, f"outputs[{index}]", True)
            for index, each in enumerate(outputs)
        ]
        size = self.inputs[0].size
        if size % parts:
            raise ValueError(
                f"inputs[0] has {size} elements; pass a multiple of {parts}, as many for each device"
            )
        count = size // parts * times
        for index, each in enumerate(arrays):
            self._compare(each, f"outputs[{index}]", count, f"for inputs of {size} it should have {count}")
        return arrays

    def read_output(self, output: Any, root: int) -> list[Array | None]:
        """Reads the output of one device alone, as read_outputs does; None where that is its input."""
        arrays: list[Array | None] = [None] * len(self.inputs)
        if output is not None and output is not self._given[root]:
            arrays[root] = array = self._read(output, root, "output", True)
            size = self.inputs[0].size
            self._compare(array, "output", size, f"inputs[0] has {size}")
        return arrays

    def _find_communicators(self, comms: Any) -> list[Communicator]:
        if comms is None:
            devices = tuple(_device_of(each) for each in self._given)
            if min(devices) < 0 or len(set(devices)) < len(devices):
                raise ValueError(
                    f"inputs are on devices {list(devices)} (-1: the host); pass one on each device"
                )
            return _communicators_of(devices)
        _check_length(comms, "comms", len(self._given))
        for index, each in enumerate(comms):
            if not isinstance(each, Communicator):
                raise TypeError(f"comms[{index}] is of type {type(each).__name__}; pass Communicators")
        if len({id(each) for each in comms}) < len(comms):
            raise ValueError("comms has a Communicator twice; pass one for each device")
        return list(comms)

    def _read(self, source: Any, index: int, name: str, written: bool) -> Array:
        return read_operand(source, self.streams[index], name, written)

    def _compare(self, array: Array, name: str, size: int, words: str) -> None:
        dtype = self.inputs[0].dtype
        if array.dtype != dtype:
            raise TypeError(
                f"{name} is of {array.dtype}, inputs[0] of {dtype}; all arrays have one element type"
            )
        if array.size != size:
            raise ValueError(f"{name} has {array.size} elements, {words}; pass arrays of one size")


def _communicators_of(devices: tuple[int, ...]) -> list[Communicator]:
    """Those that are kept for these devices, or new ones.

    Raises:
        NcclError: an operation of those that are kept failed; the next call makes new ones.
    """
    process_end.check_running()
    with _making:
        comms = _made.get(devices)
        if comms is not None and all(each._hold.is_open for each in comms):
            try:
                for each in comms:
                    each.check()
                return comms
            except NcclError:
                _drop(devices)
                raise
        if comms is not None:
            _drop(devices)
        comms = _made[devices] = init_all(devices)
        return comms


def _drop(devices: tuple[int, ...]) -> None:
    for each in _made.pop(devices):
        with contextlib.suppress(Exception):  # what made it unusable tells more
            each.abort()


def all_reduce(
    inputs: Sequence[Any],
    outputs: Sequence[Any] | None = None,
    op: int | str = SUM,
    streams: Sequence[Stream | int | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduces arrays element by element; each device gets the result.

    Arguments:
        inputs: sequence of arrays, one a device, of one size and type.
        outputs: the same; None is inputs themselves.
        op: accelrt.nccl.SUM, PROD, MAX, MIN or AVG, or its name as str.
        streams: sequence of Stream, handle or None, one a device; None is the devices' current streams.
        comms: sequence of Communicator, one a device; None is those of this process's devices.
    Raises:
        TypeError, ValueError: the arrays differ in size or element type, or two are on one device; nothing
            was put into a stream.
        NcclError: an earlier call of these devices failed meanwhile; the next one makes new communicators.
        and as of Communicator.all_reduce.
    """
    call = _Call(inputs, streams, comms, outputs is None)
    call.put("all_reduce", None if outputs is None else call.read_outputs(outputs), op)


def reduce(
    inputs: Sequence[Any],
    output: Any = None,
    root: int = 0,
    op: int | str = SUM,
    streams: Sequence[Stream | int | None] | None = None,
    comms: Sequence[Communicator] | None = None,
    *,
    outputs: Sequence[Any] | None = None,
) -> None:
    """Reduces as all_reduce does, but only one device gets the result.

    Arguments:
        output: array on that device; None is its input.
        root: int, the place in inputs of the array on that device.
        inputs, op, streams, comms: as of all_reduce.
        outputs: sequence of arrays, of which the root's is used; deprecated.
    Raises:
        as of Communicator.reduce.
    """
    _check_list(inputs, "inputs")
    root = _read_root(root, len(inputs))
    if outputs is not None and output is not None:
        raise ValueError("'output' and 'outputs' can not be both specified; pass output, a single array")
    if outputs is None and isinstance(output, (list, tuple)):
        outputs, output = output, None
    if outputs is not None:
        warnings.warn(
            "nccl.reduce with a list of outputs is deprecated; pass output, a single array",
            FutureWarning,
            stacklevel=2,
        )
        output = outputs[root]
    call = _Call(inputs, streams, comms)
    call.put("reduce", call.read_output(output, root), op, call.comms[root].rank)


def _read_root(root: Any, count: int) -> int:
    if hasattr(root, "__index__") and -count <= root.__index__() < 0:
        root = root.__index__() + count
    return checked_number(root, "root", 0, count - 1)


def broadcast(
    inputs: Sequence[Any],
    root: int = 0,
    streams: Sequence[Stream | int | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Copies one device's array to the others.

    Arguments:
        root: int, the place in inputs of the array that is copied.
        inputs, streams, comms: as of all_reduce.
    Raises:
        as of Communicator.broadcast.
    """
    _check_list(inputs, "inputs")
    root = _read_root(root, len(inputs))
    call = _Call(inputs, streams, comms)
    call.put("broadcast", None, None, call.comms[root].rank)


def all_gather(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    streams: Sequence[Stream | int | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Puts all devices' arrays one behind the other, on each device.

    Arguments:
        outputs: sequence of arrays, each of as many elements as all inputs together.
        inputs, streams, comms: as of all_reduce.
    Raises:
        as of Communicator.all_gather.
    """
    call = _Call(inputs, streams, comms)
    call.put("all_gather", call.read_outputs(outputs, times=call.comms[0].size))


def reduce_scatter(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    op: int | str = SUM,
    streams: Sequence[Stream | int | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduces arrays, and gives each device its part of the result.

    Arguments:
        inputs: sequence of arrays, each of as many elements as all outputs together.
        outputs: sequence of arrays of one size and type.
        op, streams, comms: as of all_reduce.
    Raises:
        as of Communicator.reduce_scatter.
    """
    call = _Call(inputs, streams, comms)
    call.put("reduce_scatter", call.read_outputs(outputs, parts=call.comms[0].size), op)
