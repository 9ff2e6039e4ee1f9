"""Functions for a process with several ranks of a communicator, which act on all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelrt.devices.device import device, device_count, device_ordinal
from accelrt.nccl import communicator, process_end
from accelrt.nccl.communicator import Communicator
from accelrt.nccl.config import checked
from accelrt.nccl.groups import Joining, errors_of, perform
from accelrt.nccl.limits import seconds_of
from accelrt.nccl.splitting import checked_side, shrink, split
from accelrt.nccl.suspending import resume, suspend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from accelrt.annotations import DeviceArgument
    from accelrt.nccl.config import Config


def init_all(
    devices: Sequence[DeviceArgument] | None = None,
    timeout: float | None = None,
    config: Config | None = None,
) -> list[Communicator]:
    """Makes one communicator for each of several devices of this process (ncclCommInitAll).

    Arguments:
        devices: ordinals or accelrt.devices, each once; None is all.
        timeout, config: as of Communicator.
    Returns:
        list of Communicator, the rank of each its place in it.
    Raises:
        as of Communicator.
    """
    ordinals = list(range(device_count())) if devices is None else [device_ordinal(each) for each in devices]
    if len(set(ordinals)) < len(ordinals) or not ordinals:
        raise ValueError(f"devices are {ordinals}; pass each device once, and at least one")
    seconds, settings = seconds_of(timeout, "ACCELRT_NCCL_TIMEOUT"), checked(config)
    call = f"init_all(devices={ordinals})"
    with device(ordinals[0]), errors_of(call):
        process_end.check_running()
        name = communicator.backend().unique_id()
    comms = [Communicator.__new__(Communicator) for _ in ordinals]
    for rank, (comm, ordinal) in enumerate(zip(comms, ordinals, strict=True)):
        comm._place(rank, len(ordinals), ordinal, seconds, name, settings)
    perform([Joining(comm, name, call) for comm in comms], call)
    return comms


def checked_comms(comms: Sequence[Communicator]) -> list[Communicator]:
    ranks = list(comms)
    if not ranks or len(set(map(id, ranks))) < len(ranks):
        raise ValueError(f"comms are {ranks!r}; pass each once, and at least one")
    for each in ranks:
        if not isinstance(each, Communicator):
            raise TypeError(f"comms has {each!r} of type {type(each).__name__}; pass Communicators")
    return ranks


def split_all(
    comms: Sequence[Communicator],
    colors: Sequence[int | None],
    keys: Sequence[int | None] | None = None,
    *,
    config: Config | None = None,
) -> list[Communicator | None]:
    """Splits a communicator that a process has several ranks of, all at once; see Communicator.split.

    Arguments:
        comms: list of Communicator, ranks of one communicator, each once.
        colors, keys: one of each for each of them; keys of None are the ranks' numbers.
        config: as of Communicator.split.
    Returns:
        list of Communicator, or None where the colour is None.
    Raises:
        as of Communicator.split; ValueError: the lists differ in length, or a communicator is there twice.
    """
    ranks = checked_comms(comms)
    order = [None] * len(ranks) if keys is None else list(keys)
    if len(colors) != len(ranks) or len(order) != len(ranks):
        raise ValueError(
            f"comms are {len(ranks)}, colors {len(colors)} and keys {len(order)}; pass one of each for each"
        )
    sides = [checked_side(*each) for each in zip(ranks, colors, order, strict=True)]
    return split(ranks, sides, checked(config), "split_all()")


def shrink_all(
    comms: Sequence[Communicator],
    exclude: Iterable[int],
    *,
    abort: bool = False,
    config: Config | None = None,
) -> list[Communicator]:
    """Makes a communicator without some of another one's ranks, for all that a process has; see
    Communicator.shrink.

    Arguments:
        comms: sequence of Communicator, those that stay.
        exclude, abort, config: as of Communicator.shrink.
    Returns:
        list of Communicator, of each rank the new one.
    Raises:
        as of Communicator.shrink; ValueError: comms is empty, or has one twice; TypeError: it has
            another object.
    """
    return shrink(checked_comms(comms), exclude, bool(abort), checked(config), "shrink_all()")


def suspend_all(comms: Sequence[Communicator]) -> None:
    """Suspends the ranks that a process has of a communicator, all at once; see Communicator.suspend.

    Arguments:
        comms: sequence of Communicator, ranks of one communicator, each once.
    Raises:
        as of Communicator.suspend; ValueError: comms is empty, or has one twice; TypeError: it has another
            object.
    """
    suspend(checked_comms(comms), "suspend_all()")


def resume_all(comms: Sequence[Communicator]) -> None:
    """Resumes the ranks that a process has of a communicator, all at once; see Communicator.resume.

    Arguments:
        comms: as of suspend_all.
    Raises:
        as of Communicator.resume, and of suspend_all.
    """
    resume(checked_comms(comms), "resume_all()")
