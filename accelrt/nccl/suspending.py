"""Communicators that are suspended: their devices have NCCL's memory back until they are resumed.

All ranks first come together by an operation of the communicator's own, as for a split, so that a rank that
does not come is found before anything is given back.  Then replays are refused, those under way have reached
the driver, and the backend is asked, which waits for the devices (ncclCommSuspend).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelrt.nccl.groups import Suspending, perform
from accelrt.nccl.ranks import refuse_beside_captures
from accelrt.nccl.splitting import Side, exchange, refuse_in_group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def check(comms: Sequence[Any], call: str, suspended: bool) -> None:
    refuse_in_group(call)
    refuse_beside_captures(call)
    for comm in comms:
        comm._check_open()
        if comm.suspended != suspended:
            lack = "it is not suspended" if suspended else "it is suspended already; resume it first"
            raise RuntimeError(f"{call} of a communicator ({comm._words}): {lack}")


def suspend(comms: Sequence[Any], call: str) -> None:
    """Suspends the ranks that this process has of a communicator.

    What fails before the backend is asked leaves them in use; later nobody knows, and they stay suspended.
    """
    check(comms, call, suspended=False)
    comms[0]._backend.can_suspend()
    exchange(comms, [Side(0, comm.rank) for comm in comms])
    try:
        for comm in comms:
            comm._hold.suspend()
    except BaseException:
        for comm in comms:
            comm._hold.resume()
        raise
    perform([Suspending(comm, False, f"{call} of ({comm._words})") for comm in comms], call)


def resume(comms: Sequence[Any], call: str) -> None:
    """Resumes them."""
    check(comms, call, suspended=True)
    perform([Suspending(comm, True, f"{call} of ({comm._words})") for comm in comms], call)
    for comm in comms:
        comm._hold.resume()
