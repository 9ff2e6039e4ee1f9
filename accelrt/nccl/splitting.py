"""Communicators that are split off others: of those ranks that name one colour, in the order of their keys,
or of those that are not left out.

All ranks first tell each other colours and keys, by an all_gather of the communicator's own.  So each knows
the new communicator's size and its place before the backend is asked (ncclCommSplit, which has all ranks
call it too), and a rank that does not come is found as in every operation.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from accelrt.arrays.exchange import asarray, empty
from accelrt.core.arguments import checked_number
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.nccl.groups import Shrinking, Splitting, perform
from accelrt.nccl.ranks import group, groups
from accelrt.streams.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from accelrt.nccl.config import Config

NO_COLOR = -1  # NCCL_SPLIT_NOCOLOR
MOST = (1 << 31) - 1
SHRUNK = 1 << 40  # of numbers that stand for the ranks that are left out, in place of a colour


class Side(NamedTuple):
    """Holds the wish of a rank."""

    color: int
    key: int


def refuse_in_group(call: str) -> None:
    if groups.depth:
        raise RuntimeError(f"{call} in a group; call it outside, for all ranks of the process at once")


def checked_side(comm: Any, color: int | None, key: int | None) -> Side:
    return Side(
        NO_COLOR if color is None else checked_number(color, "color", 0, MOST, "an int or None"),
        comm.rank if key is None else checked_number(key, "key", -MOST - 1, MOST, "an int or None"),
    )


def split(comms: Sequence[Any], sides: Sequence[Side], config: Config | None, call: str) -> list[Any | None]:
    """Splits the ranks that this process has of a communicator; answers the new rank of each, or None."""
    refuse_in_group(call)
    numbers = [comm._splits for comm in comms]
    for comm in comms:
        comm._check_open()
    for comm in comms:  # by every rank that comes here, whatever becomes of it
        comm._splits += 1
    everybody = exchange(comms, sides)
    children: list[Any | None] = []
    pending = []
    for comm, side, table, number in zip(comms, sides, everybody, numbers, strict=True):
        members = sorted(
            (rank for rank, each in enumerate(table) if each.color == side.color),
            key=lambda rank: (table[rank].key, rank),
        )
        child = None
        if side.color != NO_COLOR:
            child = comm._make_child(members.index(comm.rank), len(members), number, side.color, config)
        children.append(child)
        words = f"split({comm._words}, color={side.color}, key={side.key})"
        pending.append(Splitting(comm, child, side.color, side.key, words))
    try:
        perform(pending, call if len(pending) > 1 else "")
        return children
    except BaseException:
        drop(children)
        raise


def drop(children: list[Any]) -> None:
    """Ends what an interrupted call made, which its caller does not get."""
    for child in children:
        if child is not None:
            with contextlib.suppress(Exception):  # the first error tells more
                child.abort()


def checked_ranks(comm: Any, exclude: Iterable[int]) -> tuple[int, ...]:
    if isinstance(exclude, (int, str)):
        raise ArgumentTypeError(f"exclude is {exclude!r}; pass the ranks that are left out, such as [3]")
    ranks = tuple(exclude)
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise ArgumentTypeError(f"exclude has {rank!r} of type {type(rank).__name__}; pass ranks as int")
        if not 0 <= rank < comm.size:
            raise ArgumentError(f"exclude has rank {rank}; the communicator has ranks 0 to {comm.size - 1}")
    if not ranks or len(set(ranks)) < len(ranks):
        raise ArgumentError(
            f"exclude is {list(ranks)}; pass each rank that is left out once, and at least one"
        )
    if comm.rank in ranks:
        raise ArgumentError(f"exclude has rank {comm.rank}, which calls it; only those that stay do")
    return tuple(sorted(ranks))


def shrink(
    comms: Sequence[Any], exclude: Iterable[int], aborts: bool, config: Config | None, call: str
) -> list[Any]:
    """Makes a communicator of the ranks that are not left out, for those of them that this process has."""
    refuse_in_group(call)
    listed = exclude if isinstance(exclude, (int, str)) else tuple(exclude)
    for comm in comms:
        left_out = checked_ranks(comm, cast("Iterable[int]", listed))
    pending: list[Any] = []
    for comm in comms:
        comm._check_open()
    # Ranks that are left out count no more, and those that stay name the same ones.
    color = SHRUNK | zlib.crc32(repr(left_out).encode())
    for comm in comms:
        # Counted apart: ranks that are left out know nothing of it, and may split it with all others.
        number, comm._shrinks[left_out] = comm._shrinks[left_out], comm._shrinks[left_out] + 1
        before = sum(rank < comm.rank for rank in left_out)
        child = comm._make_child(comm.rank - before, comm.size - len(left_out), number, color, config)
        words = f"shrink({comm._words}, exclude={list(left_out)})"
        pending.append(Shrinking(comm, child, left_out, aborts, words))
    children = [each.result for each in pending]
    try:
        perform(pending, call if len(pending) > 1 else "")
        return children
    except BaseException:
        drop(children)
        raise


def exchange(comms: Sequence[Any], sides: Sequence[Side]) -> list[list[Side]]:
    """Each rank's table of what all ranks asked for."""
    streams = [Stream(comm.device_index) for comm in comms]
    outputs = []
    with group():
        for comm, side, stream in zip(comms, sides, streams, strict=True):
            with stream:
                own_side = asarray(np.array(side, np.int64), device=comm.device_index)
                all_of_them = empty((2 * comm.size,), "int64", device=comm.device_index)
            comm.all_gather(own_side, all_of_them, stream=stream)
            outputs.append(all_of_them)
    for comm, stream in zip(comms, streams, strict=True):
        comm.synchronize(stream)
    tables = []
    for all_of_them, stream in zip(outputs, streams, strict=True):
        with stream:
            numbers = all_of_them.numpy().reshape(-1, 2).tolist()
        tables.append([Side(*each) for each in numbers])
    return tables
