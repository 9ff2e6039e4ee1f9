"""torch.cuda.nccl's functions: collectives of one process, over lists of arrays, one a device.

The communicators of a list of devices are made at its first use, and kept until the process ends.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from accelrt.arrays.array import Array
from accelrt.arrays.create import asarray, from_dlpack
from accelrt.buffers.buffer import Buffer
from accelrt.errors import NotSupportedError
from accelrt.nccl.codes import SUM
from accelrt.nccl.communicator import Communicator, backend, init_all
from accelrt.nccl.groups import group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from accelrt.streams.stream import Stream

__all__ = [
    "all_gather",
    "all_reduce",
    "broadcast",
    "init_rank",
    "is_available",
    "reduce",
    "reduce_scatter",
    "unique_id",
    "version",
]

CPU, CUDA, MANAGED = 1, 2, 13  # DLDeviceType

_made: dict[tuple[int, ...], list[Communicator]] = {}
os.register_at_fork(after_in_child=_made.clear)


def version() -> tuple[int, int, int]:
    """NCCL's version, such as (2, 28, 9); (0, 0, 0) is the host backend's.

    Raises:
        NotSupportedError: nccl4py or libnccl.so.2 is not installed.
    """
    number: int = backend().version()
    return number // 10000, number // 100 % 100, number % 100


def unique_id() -> bytes:
    """128 bytes that name a communicator to be, which is made of them on all of its ranks.

    Raises:
        NotSupportedError: nccl4py or libnccl.so.2 is not installed.
    """
    name: bytes = backend().unique_id()
    return name


def init_rank(num_ranks: int, uid: bytes, rank: int) -> Communicator:
    """A rank of a communicator, on the current device; waits for the other ranks.

    Arguments:
        num_ranks: int, how many ranks there are.
        uid: bytes, of unique_id() on one of them.
        rank: int, this one's number.
    Raises:
        as of Communicator.
    """
    return Communicator(num_ranks, uid, rank)


def is_available(tensors: Sequence[Any] | None = None) -> bool:
    """Whether collectives of some arrays can be performed: NCCL is there, and they are contiguous, and each
    on a device of its own.

    Arguments:
        tensors: sequence of arrays; None asks whether NCCL is there at all.
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


def as_array(source: Any) -> Array:
    """An Array of what is given, on a device or the host, without a copy.

    Raises:
        TypeError, BufferError, ValueError: it is no array.
    """
    if isinstance(source, Array):
        return source
    if isinstance(source, Buffer):
        return Array(source)
    if hasattr(source, "__dlpack__"):
        return from_dlpack(source)
    if hasattr(source, "__cuda_array_interface__"):
        return asarray(source, copy=False)
    raise TypeError(
        f"{type(source).__name__} is no array; pass an Array, a Buffer, or an array with __dlpack__ or "
        "__cuda_array_interface__"
    )


def _device_of(source: Any) -> int:
    if isinstance(source, (Array, Buffer)):
        return source.device_index
    if hasattr(source, "__dlpack_device__"):
        kind, number = source.__dlpack_device__()
        return int(number) if kind in (CUDA, MANAGED) else -1
    return as_array(source).device_index


def _check_list(arrays: Any, name: str) -> None:
    if isinstance(arrays, (Array, Buffer, str, bytes)) or not hasattr(arrays, "__len__"):
        raise TypeError(
            f"{name} is {type(arrays).__name__}; it should be a collection of arrays, one a device"
        )
    if not len(arrays):
        raise ValueError(f"{name} is empty; pass an array for each device")


def _check_length(found: Any, name: str, wanted: int) -> None:
    if len(found) != wanted:
        raise ValueError(f"{name} has {len(found)} elements, inputs {wanted}; pass one for each device")


def _communicators(
    inputs: Sequence[Any], streams: Sequence[Any] | None, comms: Sequence[Communicator] | None
) -> Sequence[Communicator]:
    _check_list(inputs, "inputs")
    if streams is not None:
        _check_length(streams, "streams", len(inputs))
    if comms is not None:
        _check_length(comms, "comms", len(inputs))
        for each in comms:
            if not isinstance(each, Communicator):
                raise TypeError(f"comms has an element of type {type(each).__name__}; pass Communicators")
        return comms
    devices = tuple(_device_of(each) for each in inputs)
    if min(devices) < 0 or len(set(devices)) < len(devices):
        raise ValueError(f"inputs are on devices {list(devices)} (-1: the host); pass one on each device")
    found = _made.get(devices)
    if found is None or any(each._handle is None for each in found):
        found = _made[devices] = init_all(devices)
    return found


def _stream(streams: Sequence[Any] | None, index: int) -> Any:
    return None if streams is None else streams[index]


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
        as of Communicator.all_reduce.
    """
    found = _communicators(inputs, streams, comms)
    outputs = inputs if outputs is None else outputs
    _check_list(outputs, "outputs")
    _check_length(outputs, "outputs", len(inputs))
    with group():
        for index, comm in enumerate(found):
            out = None if outputs[index] is inputs[index] else outputs[index]
            comm.all_reduce(inputs[index], out, op, _stream(streams, index))


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
    """The same; one device gets the result.

    Arguments:
        output: array on that device; None is its input.
        root: int, the place in inputs of the array on that device.
        inputs, op, streams, comms: as of all_reduce.
        outputs: sequence of arrays, of which the root's is used; deprecated.
    Raises:
        as of Communicator.reduce.
    """
    found = _communicators(inputs, streams, comms)
    if not -len(inputs) <= root < len(inputs):
        raise ValueError(f"root is {root}; it goes from 0 to {len(inputs) - 1}")
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
    root %= len(inputs)
    with group():
        for index, comm in enumerate(found):
            out = output if index == root and output is not inputs[root] else None
            comm.reduce(inputs[index], out, root, op, _stream(streams, index))


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
    with group():
        for index, comm in enumerate(_communicators(inputs, streams, comms)):
            comm.broadcast(inputs[index], root, None, _stream(streams, index))


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
    found = _communicators(inputs, streams, comms)
    _check_list(outputs, "outputs")
    _check_length(outputs, "outputs", len(inputs))
    with group():
        for index, comm in enumerate(found):
            comm.all_gather(inputs[index], outputs[index], _stream(streams, index))


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
    found = _communicators(inputs, streams, comms)
    _check_list(outputs, "outputs")
    _check_length(outputs, "outputs", len(inputs))
    with group():
        for index, comm in enumerate(found):
            comm.reduce_scatter(inputs[index], outputs[index], op, _stream(streams, index))
