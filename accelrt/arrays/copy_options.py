"""Reads the options of a batch of copies, which copy_many takes for all of them or for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from accelrt.core.arguments import checked_number
from accelrt.devices.device import device_ordinal

# How copies in a row are put in, as CopyRun of driver/memory.pxd has it: the place of the first one, where
# the destinations and the sources are better looked for, flags, and when the sources are read.
Run: TypeAlias = tuple[int, int, int, int, int]

ACCESS_ORDERS = {"stream": 1, "during_api_call": 2, "any": 3}  # CUmemcpySrcAccessOrder
AT_DEVICE, AT_HOST, AT_NODE = 1, 2, 3  # locations of CUmemLocation
OVERLAPS = 1  # a flag of CUmemcpyFlags
NO_READ_NOW = (
    "copy_many: src_access_order='during_api_call' takes a driver of CUDA 12.8 or later and a stream that is "
    "not captured and not the legacy default stream; pass another stream, or blocking=True without it"
)


def location_of(location: Any, name: str) -> int:
    """Returns a location as rows of the driver table take it: kind << 32 | number."""
    if location is None:
        return 0
    if isinstance(location, str) and location == "cpu":
        return AT_HOST << 32
    if isinstance(location, tuple) and len(location) == 2 and location[0] == "numa":
        node = checked_number(location[1], f"the node of {name}", 0, 1 << 30, "a node's number")
        return AT_NODE << 32 | node
    return AT_DEVICE << 32 | device_ordinal(location)


def flags_of(overlap: Any, name: str) -> int:
    return OVERLAPS if overlap else 0


def order_of(order: Any, name: str) -> int:
    if not isinstance(order, str) or order not in ACCESS_ORDERS:
        raise ValueError(f"{name} is {order!r}; pass 'stream', 'during_api_call' or 'any'")
    return ACCESS_ORDERS[order]


READERS: tuple[tuple[str, Callable[[Any, str], int]], ...] = (
    ("dst_location", location_of),
    ("src_location", location_of),
    ("overlap", flags_of),
    ("src_access_order", order_of),
)


def read_runs(*options: Any) -> tuple[list[Run], int]:
    """Reads the options of a batch, in the order of READERS; a list has one for each copy.

    Returns:
        (list of Run, int): copies in a row that are made alike, and how many copies the lists are of; -1
        where no option is a list.
    Raises:
        ValueError: lists have other lengths than each other, or an option is none.
        TypeError: an option is of another type.
    """
    columns: list[int | list[int]] = []
    lengths: dict[int, str] = {}
    for (name, read), option in zip(READERS, options, strict=True):
        if isinstance(option, list):
            fixed = tuple(option)  # what reads one may change the list
            columns.append([read(each, f"{name}[{place}]") for place, each in enumerate(fixed)])
            lengths.setdefault(len(fixed), name)
        else:
            columns.append(read(option, name))
    if len(lengths) > 1:
        (first, first_name), (second, second_name) = list(lengths.items())[:2]
        raise ValueError(
            f"{first_name} has {first} options and {second_name} {second}; pass one for each copy, or for all"
        )
    count = next(iter(lengths), -1)
    if count == 0:
        return [(0, 0, 0, 0, ACCESS_ORDERS["stream"])], 0
    runs: list[Run] = []
    for place in range(max(count, 1)):
        dst, src, flags, order = (each if isinstance(each, int) else each[place] for each in columns)
        if not runs or runs[-1][1:] != (dst, src, flags, order):
            runs.append((place, dst, src, flags, order))
    return runs, count


def unfound_text(passes_end: bool, is_ordinary: bool, where: str, nbytes: int) -> str:
    """Says why an address is none that a batch copies from or to."""
    if passes_end:
        return f"{where}, and the {nbytes} bytes from there on pass the end of its memory"
    if is_ordinary:
        return (
            f"{where}, which is host memory that is not page-locked, or no memory; use page-locked memory "
            "(pinned_empty, register_host)"
        )
    return f"{where}, which is memory of the allocator that is not allocated: it was freed"
