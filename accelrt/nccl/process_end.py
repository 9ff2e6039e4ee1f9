"""The interpreter's exit with communicators open, and forks."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import TYPE_CHECKING

from accelrt import env
from accelrt.core import process
from accelrt.devices.device import device
from accelrt.errors import NcclError
from accelrt.nccl.limits import POLL_SECONDS
from accelrt.nccl.operands import end_all, has_ended

if TYPE_CHECKING:
    from typing import Any

    from accelrt.streams.stream import Stream

live: weakref.WeakSet[Any] = weakref.WeakSet()  # communicators that the exit ends
abandoned: list[tuple[Any, object, int, Stream | None]] = []  # of communicators dropped without close()


def check_running() -> None:
    """Refuses what begins once the interpreter ends: nobody would end it.

    Raises:
        NcclError: it does.
    """
    why = has_ended()
    if why is not None:
        raise NcclError(f"no collective can begin: {why}", 5, "INVALID_USAGE", "check")


def _end_all() -> None:
    """Refuses what begins from now on, on threads that still run too; gives operations under way a while, and
    aborts the communicators that were not closed."""
    end_all("the interpreter ends")
    end = time.monotonic() + float(env.value("ACCELRT_NCCL_EXIT_TIMEOUT"))
    comms = [each for each in list(live) if each._pid == os.getpid()]
    for each in comms:  # threads that were inside a call
        while each._hold.is_busy and not each._hold.is_mine and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
    left = []
    for each in comms:
        busy, last, captured = each._hold.is_busy, each._last_stream, bool(each._in_graphs)
        handle = each._hold.take("the interpreter ends")
        if handle is not None and not busy:
            left.append((each._backend, handle, each.device_index, last, captured))
    handles = [*left, *((*each, False) for each in abandoned)]
    for module, handle, _, stream, _ in handles:
        with contextlib.suppress(Exception):
            while stream is not None and not stream.query() and time.monotonic() < end:
                if module.async_error(handle) is not None:
                    break
                time.sleep(POLL_SECONDS)
    for module, handle, ordinal, _, captured in handles:
        # Those that graphs use are left to the process's end where the backend would wait for the graphs.
        with contextlib.suppress(Exception), device(ordinal):
            if captured:
                module.revoke(handle)
            else:
                module.abort(handle)
    abandoned.clear()


def _forget_in_child() -> None:
    live.clear()
    abandoned.clear()


process.call_at_fork("nccl.process_end", "collectives", child=_forget_in_child)
process.call_at_exit("nccl.process_end", "collectives", _end_all)
