"""torch.cuda.comm: arrays copied to, summed from, spread over and joined from the devices of one process.

Copies and sums are put into the current streams of the devices that they touch, and each follows what was put
there before.  Where NCCL is installed and the arrays lie on different devices, broadcasts and sums go by it.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from accelrt import nccl
from accelrt.arrays.array import Array
from accelrt.arrays.exchange import empty, empty_like
from accelrt.devices.device import device, device_ordinal
from accelrt.nccl.codes import OPERATIONS, numbers_of
from accelrt.nccl.ranks import as_array
from accelrt.runtime import init
from accelrt.streams.stream import stream as stream_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from accelrt.annotations import DeviceArgument
    from accelrt.streams.stream import Stream

__all__ = ["broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced", "scatter"]

HOST = -1
BUFFER_SIZE = 10485760  # bytes; torch's

_adder: Any = None


def broadcast(
    tensor: Any, devices: Iterable[DeviceArgument] | None = None, *, out: Sequence[Array] | None = None
) -> tuple[Array, ...]:
    """Copies an array to several devices.

    Arguments:
        tensor: array, on a device or in host memory.
        devices: ordinals or accelrt.devices; or else
        out: sequence of Arrays of the same shape and type, on devices, to copy to.
    Returns:
        tuple of Arrays, one a device; on the array's own device, the array itself.
    Raises:
        RuntimeError: devices and out are given both, or neither.
        ValueError, TypeError: a device does not exist, a shape or type differs.
    """
    source = as_array(tensor)
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )
    if out is not None:
        for index, each in enumerate(out):
            _check_alike(each, f"out[{index}]", source)
        _copy_to_all(source, list(out))
        return tuple(out)
    copies = [
        source if ordinal == source.device_index else _empty(source, source.shape, ordinal)
        for ordinal in [device_ordinal(each) for each in devices or ()]
    ]
    _copy_to_all(source, [each for each in copies if each is not source])
    return tuple(copies)


def broadcast_coalesced(
    tensors: Sequence[Any], devices: Iterable[DeviceArgument], buffer_size: int = BUFFER_SIZE
) -> tuple[tuple[Array, ...], ...]:
    """Copies many arrays to several devices, small ones together.

    Arguments:
        tensors: sequence of arrays on one device, or in host memory.
        devices: ordinals or accelrt.devices.
        buffer_size: int, bytes that are copied together at most; a larger array is copied alone.
    Returns:
        tuple of tuples: for each device, an Array for each array; on the arrays' own device, themselves.
    Raises:
        ValueError, TypeError: as of broadcast, or the arrays are on several devices.
    """
    sources = [as_array(each) for each in tensors]
    ordinals = [device_ordinal(each) for each in devices]
    if len({each.device_index for each in sources}) > 1:
        raise ValueError(
            f"tensors are on devices {[each.device_index for each in sources]} (-1: the host); pass arrays "
            "of one device"
        )
    copies: list[list[Any]] = [[None] * len(sources) for _ in ordinals]
    for chunk in _chunks(sources, buffer_size):
        flat = _flatten([sources[index] for index in chunk])
        for index_of_device, copied in enumerate(broadcast(flat, ordinals)):
            parts = _unflatten(copied, [sources[index] for index in chunk])
            for index, part in zip(chunk, parts, strict=True):
                copies[index_of_device][index] = sources[index] if copied is flat else part
    return tuple(tuple(each) for each in copies)


def reduce_add(inputs: Sequence[Any], destination: DeviceArgument | None = None) -> Array:
    """Sums arrays of several devices.

    Arguments:
        inputs: sequence of arrays of one shape and type, on devices.
        destination: ordinal or accelrt.device of one of them, where the sum goes; None is the current device.
    Returns:
        Array; the array itself where there is one alone.
    Raises:
        AssertionError: an array is in host memory.
        ValueError: the shapes differ.
        TypeError: the types differ.
        RuntimeError: no array is on the destination.
    """
    ordinal = device_ordinal(destination)
    arrays = [as_array(each) for each in inputs]
    root = None
    for index, each in enumerate(arrays):
        if each.device_index < 0:
            raise AssertionError(f"reduce_add expects all inputs to be on GPUs, but input {index} is on CPU")
        if each.shape != arrays[0].shape:
            shape_text, first_text = ("x".join(map(str, shape)) for shape in (each.shape, arrays[0].shape))
            raise ValueError(f"input {index} has invalid size: got {shape_text}, but expected {first_text}")
        if each.dtype != arrays[0].dtype:
            raise TypeError(f"input {index} is of {each.dtype}, the first of {arrays[0].dtype}")
        if each.device_index == ordinal:
            root = index
    if root is None:
        raise RuntimeError("reduce_add expects destination to be on the same GPU with one of the tensors")
    if len(arrays) == 1:
        return arrays[0]
    if _is_summed_by_nccl(arrays[0].dtype) and _by_nccl(arrays):
        total = _empty(arrays[root], arrays[root].shape, ordinal)
        nccl.reduce(arrays, output=total, root=root)
        return total
    return _add_all(arrays, root)


def reduce_add_coalesced(
    inputs: Sequence[Sequence[Any]], destination: DeviceArgument | None = None, buffer_size: int = BUFFER_SIZE
) -> tuple[Array, ...]:
    """Sums many arrays of each of several devices, small ones together.

    Arguments:
        inputs: sequence of sequences: for each device, its arrays, in one order.
        destination: as of reduce_add.
        buffer_size: int, bytes that are summed together at most.
    Returns:
        tuple of Arrays, a sum for each array.
    Raises:
        ValueError: the devices have different numbers of arrays.
        and as of reduce_add.
    """
    lists = [[as_array(each) for each in group] for group in inputs]
    if not lists:
        return ()
    if len({len(group) for group in lists}) > 1:
        raise ValueError(f"the devices have {[len(group) for group in lists]} arrays; pass as many for each")
    for index, alike in enumerate(zip(*lists, strict=True)):
        for each in alike[1:]:
            _check_alike(each, f"array {index} of a device", alike[0])
    sums: list[Any] = [None] * len(lists[0])
    for chunk in _chunks(lists[0], buffer_size):
        flats = [_flatten([group[index] for index in chunk]) for group in lists]
        parts = _unflatten(reduce_add(flats, destination), [lists[0][index] for index in chunk])
        for index, part in zip(chunk, parts, strict=True):
            sums[index] = part
    return tuple(sums)


def scatter(
    tensor: Any,
    devices: Iterable[DeviceArgument] | None = None,
    chunk_sizes: Iterable[int] | None = None,
    dim: int = 0,
    streams: Sequence[Stream | None] | None = None,
    *,
    out: Sequence[Array] | None = None,
) -> tuple[Array, ...]:
    """Spreads an array over several devices, a part to each.

    Arguments:
        tensor: array, on a device or in host memory.
        devices: ordinals or accelrt.devices; or else out.
        chunk_sizes: iterable of int, each device's part of axis dim; None is equal parts, the last ones
            shorter or left out.
        dim: int, the axis that is divided.
        streams: sequence of Stream or None, one a device: on which the copies to it are put, and its part is
            allocated; None is the current streams.
        out: sequence of Arrays on devices, whose lengths along dim divide the array.
    Returns:
        tuple of Arrays, a part each; on the array's own device a view of it.
    Raises:
        RuntimeError: devices, or chunk_sizes, and out are given both, or neither devices nor out.
        ValueError, TypeError: the parts do not make up the array, a shape or type differs.
    """
    source = as_array(tensor)
    axis = _axis(dim, source.ndim)
    targets: list[Array | None]
    if out is not None:
        _refuse_beside_out(devices=devices, chunk_sizes=chunk_sizes)
        sizes = [each.shape[axis] if each.ndim == source.ndim else -1 for each in out]
        targets, ordinals = list(out), [each.device_index for each in out]
    else:
        ordinals, sizes = _read_devices(devices, chunk_sizes, source.shape[axis])
        targets = [None] * len(sizes)
    parts = _split(source, sizes, axis)
    if streams is not None and len(streams) < len(parts):
        raise ValueError(f"streams has {len(streams)} elements for {len(parts)} devices; pass one for each")
    results = []
    for index, (part, target, ordinal) in enumerate(zip(parts, targets, ordinals, strict=False)):
        worker = None if streams is None else streams[index]
        if worker is not None and worker.device_index != ordinal:
            raise ValueError(
                f"streams[{index}] is on device {worker.device_index}, its part goes to {ordinal}"
            )
        with stream_context(worker):
            if target is None:
                target = part if ordinal == part.device_index else _empty(part, part.shape, ordinal)
            if target is not part:
                _check_alike(target, f"out[{index}]", part)
                target.copy_(part)
        results.append(target)
    return tuple(results)


def gather(
    tensors: Sequence[Any],
    dim: int = 0,
    destination: DeviceArgument | None = None,
    *,
    out: Array | None = None,
) -> Array:
    """Joins arrays of several devices along an axis.

    Arguments:
        tensors: sequence of arrays, whose lengths may differ along dim alone.
        dim: int, the axis.
        destination: ordinal or accelrt.device, or "cpu" for page-locked host memory; None is the current
            device.
        out: Array to join them in, instead of a destination.
    Returns:
        Array.
    Raises:
        RuntimeError: destination and out are given both.
        ValueError, TypeError: shapes or types differ.
    """
    arrays = [as_array(each) for each in tensors]
    if not arrays:
        raise ValueError("tensors is empty; pass at least one array")
    if all(each.ndim == 0 for each in arrays) and dim in (0, -1):
        warnings.warn(
            "Was asked to gather along dimension 0, but all input tensors were scalars; will instead "
            "unsqueeze and return a vector.",
            UserWarning,
            stacklevel=2,
        )
        arrays = [each.reshape(1) for each in arrays]
    first, axis = arrays[0], _axis(dim, arrays[0].ndim)
    for index, each in enumerate(arrays):
        rest = each.shape[:axis] + each.shape[axis + 1 :]
        if each.dtype != first.dtype:
            raise TypeError(f"tensors[{index}] is of {each.dtype}, the first of {first.dtype}")
        if each.ndim != first.ndim or rest != first.shape[:axis] + first.shape[axis + 1 :]:
            raise ValueError(
                f"tensors[{index}] has shape {each.shape}, the first {first.shape}; they may differ along "
                f"{axis} alone"
            )
    shape = (*first.shape[:axis], sum(each.shape[axis] for each in arrays), *first.shape[axis + 1 :])
    if out is None:
        out = _empty(first, shape, _destination(destination))
    else:
        _refuse_beside_out(destination=destination)
        if out.shape != shape or out.dtype != first.dtype:
            raise ValueError(
                f"out has shape {out.shape} and type {out.dtype}, what is joined {shape} and {first.dtype}"
            )
    for part, each in zip(_split(out, [each.shape[axis] for each in arrays], axis), arrays, strict=True):
        part.copy_(each)
    return out


# --- parts -----------------------------------------------------------------------------------------------


def _refuse_beside_out(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise RuntimeError(
                f"'{name}' must not be specified when 'out' is specified, but got {name}={value}"
            )


def _read_devices(
    devices: Iterable[DeviceArgument] | None, chunk_sizes: Iterable[int] | None, length: int
) -> tuple[list[int], list[int]]:
    """The ordinals, and the size of each part; of equal parts there may be fewer."""
    if devices is None:
        raise RuntimeError("one of 'devices' and 'out' must be specified, but got neither")
    ordinals = [device_ordinal(each) for each in devices]
    if not ordinals:
        raise ValueError("devices is empty; pass at least one")
    if chunk_sizes is None:
        return ordinals, _equal_parts(length, len(ordinals))
    sizes = list(chunk_sizes)
    if len(sizes) != len(ordinals):
        raise ValueError(f"chunk_sizes has {len(sizes)} elements, devices {len(ordinals)}; pass one for each")
    return ordinals, sizes


def _destination(destination: DeviceArgument | None) -> int:
    if isinstance(destination, int) and destination == HOST:
        warnings.warn(
            "Using -1 to represent CPU tensor is deprecated. Please use a device object or string instead, "
            'e.g., "cpu".',
            FutureWarning,
            stacklevel=3,
        )
        return HOST
    if isinstance(destination, str) and destination == "cpu":
        return HOST
    return device_ordinal(destination)


def _axis(dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        raise ValueError(f"dim is {dim}; an array of {ndim} axes has those from {-ndim} to {ndim - 1}")
    return dim % ndim


def _empty(like: Array, shape: tuple[int, ...], ordinal: int) -> Array:
    return empty(shape, like.dtype, pin_memory=True) if ordinal < 0 else empty(shape, like.dtype, ordinal)


def _check_alike(array: Array, name: str, expected: Array) -> None:
    if not isinstance(array, Array):
        raise TypeError(f"{name} is of type {type(array).__name__}; pass an Array")
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise ValueError(
            f"{name} has shape {array.shape} and type {array.dtype}; pass one of {expected.shape} and "
            f"{expected.dtype}"
        )


def _by_nccl(arrays: list[Array]) -> bool:
    return len(arrays) > 1 and nccl.is_available(arrays)


def _is_summed_by_nccl(dtype: Any) -> bool:
    try:
        numbers_of(OPERATIONS["reduce"], dtype, nccl.SUM, 1)
    except TypeError:
        return False
    return True


def _copy_to_all(source: Array, targets: list[Array]) -> None:
    if targets and source.device_index >= 0 and source.size and _by_nccl([source, *targets]):
        nccl.broadcast([source, *targets])
        return
    for each in targets:
        each.copy_(source)


def _add_all(arrays: list[Array], root: int) -> Array:
    global _adder
    if _adder is None:
        elementwise = init.later("accelrt.kernels.elementwise").elementwise
        _adder = elementwise("T x, T y", "T z", "z = x + y", name="reduce_add")
    total = arrays[root]
    with device(total.device_index):
        for index, each in enumerate(arrays):
            if index == root:
                continue
            near = each
            if each.device_index != total.device_index:
                near = _empty(each, each.shape, total.device_index)
                near.copy_(each)
            out = empty_like(total) if total is arrays[root] else total
            total = _adder(total, near, out=out)
    return total


def _chunks(arrays: list[Array], buffer_size: int) -> Iterator[list[int]]:
    """The places of arrays that go together: of one type, and of so many bytes at most unless one alone has
    more."""
    open_: dict[Any, tuple[list[int], int]] = {}
    for index, each in enumerate(arrays):
        chunk, held = open_.get(each.dtype, ([], 0))
        if chunk and held + each.nbytes > buffer_size:
            yield chunk
            chunk, held = [], 0
        open_[each.dtype] = ([*chunk, index], held + each.nbytes)
    for chunk, _ in open_.values():
        yield chunk


def _flatten(arrays: list[Array]) -> Array:
    """One array with the elements of several of one device."""
    if len(arrays) == 1 and arrays[0].is_contiguous:
        return arrays[0].reshape(-1)
    flat = _empty(arrays[0], (sum(each.size for each in arrays),), arrays[0].device_index)
    for part, each in zip(_unflatten(flat, arrays), arrays, strict=True):
        part.copy_(each)
    return flat


def _unflatten(flat: Array, arrays: list[Array]) -> list[Array]:
    """Views of it with the shapes of arrays."""
    parts = _split(flat, [each.size for each in arrays], 0)
    return [part.reshape(each.shape) for part, each in zip(parts, arrays, strict=True)]


def _equal_parts(length: int, count: int) -> list[int]:
    step = max(1, math.ceil(length / count))
    return [min(step, length - start) for start in range(0, length, step)] or [0]


def _split(array: Array, sizes: list[int], axis: int) -> list[Array]:
    if any(size < 0 for size in sizes) or sum(sizes) != array.shape[axis]:
        raise ValueError(
            f"the parts' lengths {sizes} along axis {axis} do not make up its {array.shape[axis]} elements"
        )
    parts, start = [], 0
    for size in sizes:
        parts.append(array[(slice(None),) * axis + (slice(start, start + size),)])
        start += size
    return parts
